"""Orders: the rows of an epoch, in which order, on which rank.

Pure functions of integers, independent of files.
    row_orders.py       sequential, slices and rows
    blocks.py           blocks of rows in a random order, rows mixed in windows of some blocks
    sampling.py         an order that draws rows by weight, or classes equally often
    windows.py          windows of consecutive rows as samples, in any order
    buckets.py          batches of images alike in size
    interleaving.py     base of mixtures and "regions": one sequence from several orders
    mixture.py          rows of several packs by the packs' weights
    regions.py          for packs in object stores: a node reads the same part of a pack in every epoch
    epochs.py           base class of orders; each rank's share of an epoch, and its read requests
    runs.py             row numbers as contiguous runs; a subset of rows, numbered from 0

Start with row_orders.py. Imports: randomness.
"""
