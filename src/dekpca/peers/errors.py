"""What can end a peer's run, as a tree.

    PeerError                 something between nodes, or in the run's folder
      PeerLost                a neighbor is silent, or makes no progress; the run can go on later
        BelowQuorum           too few nodes are left to go on without the lost ones; the run can go on later
      Excluded                the others go on, or have finished, without this node
      ProtocolError           a neighbor broke the protocol: the message is refused and logged, not acknowledged
        TooMuch               a neighbor may send no more before both are started again
      Damaged                 a file of the run's folder is damaged or lost
        OlderCopy             this node runs in an older copy of its folder; the others go on without it
      Disagreement            two nodes have different settings, or different records of the network
        Changed               this node's data or settings are not those that it began the run with
      RunFailed               the problem has no solution, with these data and settings

Errors with `stops_all` are told to the neighbors, who stop for the same reason. (A node whose program has not begun stops no node whose program
has.) `resumable`: the same command, given again, may go on. Of the others, Disagreement and RunFailed are for the owner to correct; after
ProtocolError and Damaged only a new run helps.
"""

from __future__ import annotations


class PeerError(RuntimeError):
    """`told` is what the neighbors hear of it, if that is less than the text that the owner reads."""

    stops_all = True
    resumable = False

    def __init__(self, *args: object, told: str | None = None):
        super().__init__(*args)
        self.told = told


class PeerLost(PeerError):
    resumable = True


class BelowQuorum(PeerLost):
    stops_all = False  # every node counts for itself who is left


class Excluded(PeerError):
    stops_all = False


class ProtocolError(PeerError):
    pass


class TooMuch(ProtocolError):
    resumable = True


class Damaged(PeerError):
    pass


class OlderCopy(Damaged):
    stops_all = False


class Disagreement(PeerError, ValueError):
    pass


class Changed(Disagreement):
    stops_all = False  # its owner can put back what it was; the others wait


class RunFailed(PeerError, ValueError):
    pass


# those that end a run, by the name that a heartbeat has
KINDS: dict[str, type[PeerError]] = {
    kind.__name__: kind
    for kind in (PeerLost, BelowQuorum, Excluded, ProtocolError, Damaged, OlderCopy, Disagreement, RunFailed)
}
NEW_RUN = "start all nodes anew, with another run id and other folders"  # the remedy for what cannot be resumed
