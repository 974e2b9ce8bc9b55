"""Interleaved orders ("regions", mixtures): one sequence from several orders, each of a part of the rows.

Position p of an epoch is dealt to one of the parts. A part yields its rows in its order, pass after pass: a
pass holds each of its rows once, and the next pass begins where it ends, regardless of epochs. So a part that
is small for its share is repeated within an epoch, each time in another order, and a large part continues in
the next epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from packer.orders.epochs import Asked, Order, RowOrder, order_key
from packer.orders.runs import Runs, Subset, one_run

PIECE_ROWS = 4096  # positions dealt at once, in arrays that fit in the CPU cache


Dealt: TypeAlias = tuple[int, NDArray[np.int64], NDArray[np.int64]]
"""A part with some of the positions: its number, the indices of its positions, and of its draws."""


class OrderPart(NamedTuple):
    """A part of the rows. order: bound to its rows, numbered over all parts. draws: its rows in an epoch."""

    order: RowOrder
    draws: int


class Interleaved(RowOrder):
    """An order composed of others. A subclass defines `parts` and `deal`."""

    parts: tuple[OrderPart, ...] = ()

    def over(self: Order, rows: int | Subset, seed: int = 0) -> Order:
        """Return the order bound to rows, divided among the parts, whose seeds differ."""
        assert isinstance(self, Interleaved)
        parts = tuple(
            OrderPart(order.over(order.subset, order_key(seed, number, self.name)), draws)
            for number, (order, draws) in enumerate(self.parts)
        )
        return super().over(rows, seed).having(parts=parts)

    def deal(self, positions: NDArray[np.int64], epoch: int) -> Iterator[Dealt]:
        """Yield each part with some of these positions. positions: at most PIECE_ROWS."""
        raise NotImplementedError

    def rows_at(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return the rows at the positions, from the orders of the parts that they are dealt to."""
        rows = np.empty(len(positions), np.int64)
        for number, where, draws in self._dealt(positions, epoch):
            order, count = self.parts[number]
            turn, begun = divmod(epoch * count, order.length)
            if begun:
                draws = draws + begun
            if begun + count <= order.length or int(draws.max()) < order.length:
                rows[where] = order.subset.numbers(order.rows_at(draws, turn))
                continue
            passes = draws // order.length
            for later in np.unique(passes).tolist():
                own = np.flatnonzero(passes == later)
                inside = draws[own] - later * order.length
                rows[where[own]] = order.subset.numbers(order.rows_at(inside, turn + later))
        return rows

    def upcoming(self, at: Runs, epoch: int, asked: Asked) -> list[Runs]:
        """Return the windows of the parts that the positions are dealt to, by part and pass."""
        found: list[Runs] = []
        positions = at.rows()
        # At the end of an epoch its first positions may be repeated.
        for rising in np.split(positions, np.flatnonzero(np.diff(positions) < 0) + 1):
            for number, _, draws in self._dealt(rising, epoch):
                order, count = self.parts[number]
                begin, end = epoch * count + int(draws.min()), epoch * count + int(draws.max()) + 1
                # Repeated rows are in memory after the first time.
                begin = max(begin, end - order.length)
                while begin < end:
                    turn, first = divmod(begin, order.length)
                    last = min(order.length, first + end - begin)
                    found += map(order.subset.place, order.upcoming(one_run(first, last), turn, asked))
                    begin += last - first
        return found

    def mixed_rows(self, ranks: int) -> int:
        """See RowOrder: the sum over all parts."""
        return sum(part.order.mixed_rows(ranks) for part in self.parts)

    def _dealt(self, positions: NDArray[np.int64], epoch: int) -> Iterator[Dealt]:
        """Yield as `deal` does, for any number of positions."""
        for first in range(0, len(positions), PIECE_ROWS):
            for number, where, draws in self.deal(positions[first : first + PIECE_ROWS], epoch):
                yield number, where + first if first else where, draws
