"""What passes between a node and its neighbors, without threads, clocks, sockets or files.

    events       what can happen to a neighbor, and what the caller must do then
    neighbor     a neighbor as a state machine: states, and the table of transitions
    node         all neighbors together: rounds, limits, how a run ends
    losses       lost and stuck neighbors: a node stops, or goes on with the others
    window       messages to a neighbor until it acknowledges them
    membership   what is known of the network
    views        who goes on when nodes are lost, and whose answer is the answer; view_messages has their form on the wire
    handshake    settings that two nodes compare before anything else
    progress     which node is stuck
    checks       what a neighbor may send: sizes and shapes, before memory is taken
    wire         the format of messages (protobuf)

`NodeProtocol.receive(name, event, now)` is the heart. It changes the state of a neighbor by the table in neighbor.py, and returns actions;
it raises an error of errors.py if the neighbor has broken the protocol. `now` is whatever clock the caller has: seconds that only grow. So
tests and simulations run thousands of nodes in one process, and every failure can be repeated.

What happens when a node is killed. Its connections end (`Unreachable`, the link is DOWN). The program of each neighbor goes on until it needs a
message of it, and then waits; after `peer_timeout` `check_waiting` ends that with PeerLost, or `check_losses` lets the survivors agree on going on
without it (ViewChanged). Meanwhile messages for the node stay in the window. Started again, it reads its checkpoint and the messages that it has
acknowledged (storage/), and its program runs from the checkpoint. The handshake says that it is the same run; `Opening` says which messages it
holds. Its neighbors send the others, and it sends again what it says, with the same round numbers: a neighbor that has a message already
acknowledges it and drops it. Nothing else is special about a restart.
"""
