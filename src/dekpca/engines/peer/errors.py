"""What can end a peer's run, as a tree.

    PeerError                 something between nodes, or in the run's folder
      PeerLost                a neighbor is silent, or makes no progress; the run can go on later
      ProtocolError           a neighbor said what the protocol does not allow: refused and logged, not acknowledged
        TooMuch               a neighbor may send no more before both are started again
      Damaged                 a file of the run's folder is not as it was written, or was lost
      Disagreement            two nodes do not hold the same settings, or tell different things about the network
        Changed               this node's data or settings are not those that it began the run with
      RunFailed               the program found that the problem cannot be solved, with these data and settings

`contagious` errors are told to the neighbors, who stop for the same reason: nobody can go on. (A run that has begun is not stopped by a
node that has not.) `resumable`: the same command, given again, may go on. Of the others, Disagreement and RunFailed are for the owner to correct, and
after ProtocolError and Damaged only a new run helps.
"""

from __future__ import annotations


class PeerError(RuntimeError):
    contagious = True
    resumable = False


class PeerLost(PeerError):
    resumable = True


class ProtocolError(PeerError):
    pass


class TooMuch(ProtocolError):
    resumable = True


class Damaged(PeerError):
    pass


class Disagreement(PeerError, ValueError):
    pass


class Changed(Disagreement):
    contagious = False  # its owner can put back what it was; the others wait


class RunFailed(PeerError, ValueError):
    pass


# contagious, by the name that a beat gives
KINDS: dict[str, type[PeerError]] = {
    kind.__name__: kind for kind in (PeerLost, ProtocolError, Damaged, Disagreement, RunFailed)
}
NEW_RUN = "start all nodes anew, with another run id and other folders"  # the remedy for what cannot be resumed
