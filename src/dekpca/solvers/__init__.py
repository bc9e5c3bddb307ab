"""The solvers: each finds the components from a node's rows and from what the node is told."""
