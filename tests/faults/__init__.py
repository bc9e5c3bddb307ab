"""Faults for the peer engine: a TCP proxy that misbehaves, a supervisor of node processes, scenarios and a soak."""
