"""Which rows, in which order, on which rank: pure functions of integers, which know of no file.

    row_orders.py       sequential, slices, blocks and rows
    sampling.py         orders that draw rows by weight, or by class
    regions.py          for packs in object stores: a node reads the same part of a pack in every epoch
    buckets.py          images alike in size together
    block_windows.py    rows in blocks, blocks in windows: what "blocks" and "regions" are made of
    mixture.py          rows of several packs by the packs' weights: one sequence of theirs
    epochs.py           what an order is; one epoch of it over a subset, and each rank's share
    runs.py             row numbers as contiguous runs; a subset of rows, numbered from 0

Start with row_orders.py. Imports: randomness.
"""
