"""The mathematics: pure functions on arrays with a leading axis of nodes. No files, sockets, clocks or global random state."""
