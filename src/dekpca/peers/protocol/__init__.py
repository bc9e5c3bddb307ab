"""The protocol between a node and its neighbors, without threads, clocks, sockets or files.

    events         events of a neighbor, and actions for the caller
    neighbor       a neighbor as a state machine: states, the table of transitions, messages until they are acknowledged
    node           NodeProtocol: what follows from an event; the phases of a run. It is composed of
      rounds         messages of the program
      liveness       clocks: which neighbors are silent or stuck
      agreement      what a node publishes about lost nodes, and on the final answer; views has the rules
    proofs         that a node has said its status itself
    membership     the records of the network
    handshake      settings that two nodes compare first
    checks         sizes and shapes that a neighbor may send, checked before memory is allocated; view_messages, text
    wire           the format of messages (protobuf)

`NodeProtocol.receive(name, event, now)` is the main entry. It changes the state of a neighbor by the table in
neighbor.py, and returns actions; it raises an error of errors.py if the neighbor has broken the protocol. `now` is
the caller's monotonic clock, in seconds. So tests and simulations run thousands of nodes in one process, and every
failure can be reproduced.

What happens when a node is killed. Its connections end (`Unreachable`, the link is DOWN). The program of each
neighbor runs until it needs a message of the node, and then waits. After `peer_timeout` `check_waiting` raises
PeerLost, or `check_losses` lets the survivors agree to go on without the node (ViewChanged). Meanwhile messages for
the node stay in the window. After a restart the node's program runs from the start, and reads the messages that
it has acknowledged from disk (storage/). The handshake checks that it is the same run; `Opening` says
which messages the node holds. Its neighbors send the others. The node sends its own messages again, with the same
round numbers; a neighbor acknowledges and drops duplicates.
"""
