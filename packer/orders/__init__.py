"""Which rows, in which order, on which rank: pure functions of integers, which know of no file.

    row_orders.py       sequential, slices and rows
    blocks.py           blocks of rows in a random order, rows mixed in windows of some blocks
    sampling.py         orders that draw rows by weight, or by class
    buckets.py          images alike in size together
    interleaving.py     one sequence of several orders: what mixtures and "regions" are
    mixture.py          rows of several packs by the packs' weights
    regions.py          for packs in object stores: a node reads the same part of a pack in every epoch
    epochs.py           what an order is, bound to rows; each rank's share of an epoch, and what it reads at once
    runs.py             row numbers as contiguous runs; a subset of rows, numbered from 0

Start with row_orders.py. Imports: randomness.
"""
