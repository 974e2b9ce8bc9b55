"""SomeRows: an engine that writes a few rows of a planned pack, spread evenly over its splits and classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from packer.convert.conversion_task import ConversionTask, Report, RunOptions
from packer.convert.pack_run import write_pack
from packer.convert.sample_order import SampleOrder
from packer.errors import UsageError

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class SomeRows:
    """An Engine that writes up to `rows` rows of a pack, sorted by split and class, to look at them.

    split: name of the only split to choose from; "" for all. Nothing can be resumed.
    """

    rows: int
    split: str = ""

    def __call__(self, task: ConversionTask, out: str, running: RunOptions) -> Report:
        """See Engine. Raises UsageError if there is no such split."""
        order = task.order
        if self.split:
            if self.split not in order.splits:
                there = f"its splits: {', '.join(order.splits)}. Pass one of these"
                if not order.splits:
                    there = "it has none. To make some, pass split='train=0.9,val=0.1'"
                raise UsageError(f"{task.subject}: has no split {self.split!r}; {there}.")
            order = order.part(*order.splits[self.split])
        labels = task.maker.labels()
        groups = np.zeros(len(order.samples), np.int64) if labels is None else labels[order.samples]
        chosen = spread(groups, split_numbers(order.splits, len(groups)), self.rows)
        return write_pack(replace(task, order=taken(order, chosen), inputs=None), out, running)


def split_numbers(splits: Mapping[str, tuple[int, int]], rows: int) -> Ints:
    """Return the number of each row's split, in the order of `splits`; 0 without splits."""
    numbers = np.zeros(rows, np.int64)
    for number, (start, stop) in enumerate(splits.values()):
        numbers[start:stop] = number
    return numbers


def taken(order: SampleOrder, rows: Ints) -> SampleOrder:
    """Return the order of some rows only. rows: those of a split beside each other."""
    splits, first = dict[str, tuple[int, int]](), 0
    for name, (start, stop) in order.splits.items():
        count = int(((rows >= start) & (rows < stop)).sum())
        splits[name] = (first, first + count)
        first += count
    return SampleOrder(order.samples[rows], splits)


def spread(groups: Ints, splits: Ints, rows: int) -> Ints:
    """Return up to `rows` rows of all groups, sorted by split, group and row.

    groups, splits: numbers of each row's class and split. In each turn every class gives a row, each time of
    its next split; classes begin with different splits. So every class is seen if there are at most `rows`
    classes, else as many, evenly spread. Rows of one class and split are spread evenly, too.

    >>> spread(np.array([0, 0, 0, 0, 0, 0, 1, 1]), np.array([0, 0, 0, 0, 0, 1, 0, 1]), 4)
    array([0, 6, 5, 7])
    """
    order = np.lexsort((groups, splits))
    changes = (np.diff(groups[order]) != 0) | (np.diff(splits[order]) != 0)
    cells = np.split(order, np.flatnonzero(changes) + 1)  # the rows of each class in each split
    of_class: dict[int, list[int]] = {}
    for cell, held in enumerate(cells):
        of_class.setdefault(int(groups[held[0]]), []).append(cell)
    waiting = [own[k % len(own) :] + own[: k % len(own)] for k, own in enumerate(of_class.values())]
    wanted, left = [0] * len(cells), rows
    while left and waiting:
        turn = [waiting[k] for k in _evenly(len(waiting), left)]
        for own in turn:
            cell = own.pop(0)
            wanted[cell] += 1
            if wanted[cell] < len(cells[cell]):
                own.append(cell)
        left -= len(turn)
        waiting = [own for own in waiting if own]
    return np.concatenate([held[_evenly(len(held), n)] for held, n in zip(cells, wanted, strict=True)])


def _evenly(count: int, most: int) -> Ints:
    """Return up to `most` of the numbers below `count`, evenly spread."""
    return np.linspace(0, count - 1, min(most, count)).round().astype(np.int64)
