"""Which rows, in which order, on which rank: pure functions of integers. Read ``order.py`` first.

    runs.py    numbers as contiguous runs
    order.py   where each row stands in an epoch
    spans.py   positions of a split as rows of the pack

Imports ``packer.randomness`` and ``packer.errors``; knows of no file.
"""
