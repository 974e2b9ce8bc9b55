"""Which rows, in which order, on which rank: pure functions of integers, which know of no file.

    row_orders.py       orders: which rows stand where in an epoch
    sampling.py         orders that draw rows by weight, or by class
    order_choice.py     what order= and shuffle= mean
    epochs.py           one epoch: an order over a subset, and each rank's share of it
    runs.py             row numbers as contiguous runs; a subset of rows, numbered from 0
    shuffle_quality.py  how far an order's batches are from a uniform shuffle's

Start with row_orders.py. Imports: randomness.
"""
