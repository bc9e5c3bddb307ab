"""What can end a peer's run, as a tree.

    PeerError                 something between nodes, or in the run's folder
      ProtocolError           a neighbor said what the protocol does not allow: refused, logged, not acknowledged
      Disagreement            two nodes do not hold the same settings, or tell different things about the network
      PeerLost                a neighbor was not heard from for too long; the run can go on later
      Damaged                 a file of the run's folder is not as it was written

`contagious` errors are told to the neighbors, who stop for the same reason: nobody can go on then. (A run that has begun is not stopped by a
node that has not.)
"""

from __future__ import annotations


class PeerError(RuntimeError):
    contagious = False


class ProtocolError(PeerError):
    pass


class Disagreement(PeerError, ValueError):
    contagious = True


class PeerLost(PeerError):
    contagious = True


class Damaged(PeerError):
    pass


KINDS: dict[str, type[PeerError]] = {kind.__name__: kind for kind in (Disagreement, PeerLost)}  # contagious, by name
