"""Privacy with a guarantee: sums of which only totals are seen, and totals with noise.

fixed_point   numbers as integers modulo 2^64, by public bounds
masks         what a node adds to its integers so that they tell nothing; it cancels in the total
records       public keys that travel from node to node, signed by the nodes' certificates
noise         exact discrete Gaussian noise from the operating system's generator
accounting    what noise costs: epsilon and delta, by dp-accounting
ledger        what was spent on a data set, in a file
errors        what other nodes hear of an error
settings      what a user asks for, and what is refused

Nothing here draws from `random_state`. docs/explanation/privacy.md has the promises, and against whom they hold.
"""
