"""Runs of the peer protocol under a deterministic simulator: a virtual clock, and a network and disks that fail as a seed says.

    world    nodes, links between them, and the clock
    cases    what goes wrong in the run of a seed, and how it must end
    walks    the agreement alone, without clocks, against an adversary
    rules    what goes wrong without each rule: `make rules`
    run      many seeds in several processes: `make test-faults`

A run is a function of its seed. A failure prints the seed, and `python -m simulator.run --first SEED --seeds 1 --trace` shows it again.
"""
