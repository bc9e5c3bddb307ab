"""The Gram matrices of all neighborhoods of a block, each pair of nodes stored once.

A neighborhood's Gram matrix consists of blocks rest(X_p, X_q) for pairs p, q of its nodes, and most pairs lie in several
neighborhoods: on a ring with 4 neighbors each is needed by up to 5 nodes, in both orders. Here each unordered pair of *sites* (distinct
sets of samples) is one block. Pairs of the same shape that serve equally many neighborhoods form a group, so that a product with all
neighborhoods is a few batched matrix products.

    layout.py     which pairs exist and where they are used: indices only
    blocks.py     the blocks of a group: stored, or recomputed at each use
    operator.py   products with the matrices of all neighborhoods
"""

from .blocks import Pool
from .operator import NeighborhoodGram, neighborhood_gram

__all__ = ["NeighborhoodGram", "Pool", "neighborhood_gram"]
