"""What two nodes say to each other: no threads, clocks, sockets or files."""
