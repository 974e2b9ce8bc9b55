"""Which rows, in which order, on which rank: pure functions of integers. Read ``row_orders.py`` first.

    runs.py      numbers as contiguous runs
    row_orders.py  which rows stand where in an epoch
    sampling.py  orders that draw rows by weight, or by class
    order_choice.py  what order= and shuffle= mean
    subset.py    rows of a split, of some classes, of a list, counted as if they were all
    epoch.py     one epoch's sequence: an order over a subset
    epoch_shares.py  which positions of it are whose
    shuffle_quality.py  how far an order's batches are from a uniform shuffle's

Imports ``packer.randomness``, ``packer.errors`` and ``packer.units``; knows of no file.
"""
