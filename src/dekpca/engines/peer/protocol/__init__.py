"""The protocol between a node and its neighbors, without threads, clocks, sockets or files.

    events       events of a neighbor, and actions for the caller
    neighbor     a neighbor as a state machine: states, and the table of transitions
    node         all neighbors together: rounds, limits, the end of a run
    losses       lost and stuck neighbors: a node stops, or goes on with the others
    window       messages to a neighbor until it acknowledges them
    membership   the records of the network
    views        agreement on the survivors and on the final answer, when nodes are lost; view_messages encodes them
    handshake    settings that two nodes compare first
    progress     which node is stuck
    checks       sizes and shapes that a neighbor may send, checked before memory is allocated
    wire         the format of messages (protobuf)

`NodeProtocol.receive(name, event, now)` is the main entry. It changes the state of a neighbor by the table in
neighbor.py, and returns actions; it raises an error of errors.py if the neighbor has broken the protocol. `now` is
the caller's monotonic clock, in seconds. So tests and simulations run thousands of nodes in one process, and every
failure can be reproduced.

What happens when a node is killed. Its connections end (`Unreachable`, the link is DOWN). The program of each
neighbor runs until it needs a message of the node, and then waits. After `peer_timeout` `check_waiting` raises
PeerLost, or `check_losses` lets the survivors agree to go on without the node (ViewChanged). Meanwhile messages for
the node stay in the window. After a restart the node reads its checkpoint and the messages that it has acknowledged
(storage/), and its program runs from the checkpoint. The handshake checks that it is the same run; `Opening` says
which messages the node holds. Its neighbors send the others. The node sends its own messages again, with the same
round numbers; a neighbor acknowledges and drops duplicates.
"""
