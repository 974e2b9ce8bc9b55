"""One sequence of several orders, each of a part of the rows: what "regions" and mixtures of packs are made of.

Position p of an epoch is dealt to one of the parts. A part gives its rows in an order of its own, pass after pass: a pass holds each
of its rows once, and where it ends the next one begins, whatever epoch it is. So a part that is small for its share is repeated in an
epoch, each time in another order, and a large one goes on in the next epoch where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from packer.orders.epochs import Asked, Order, RowOrder, order_key
from packer.orders.runs import Runs, Subset, one_run

PIECE_ROWS = 4096  # are dealt at once, in arrays that stay in the processor's cache


Dealt: TypeAlias = tuple[int, NDArray[np.int64], NDArray[np.int64]]
"""A part that has some positions: its number, where among them its own are, and which of its draws these are."""


class OrderPart(NamedTuple):
    """A part of the rows. order: bound to its rows, as numbers of the whole's. draws: its rows in an epoch."""

    order: RowOrder
    draws: int


class Interleaved(RowOrder):
    """An order made of others. A subclass has `parts` and `deal`."""

    parts: tuple[OrderPart, ...] = ()

    def over(self: Order, rows: int | Subset, seed: int = 0) -> Order:
        """Return the order bound to rows, of which each part has its own; the parts' seeds differ."""
        assert isinstance(self, Interleaved)
        parts = tuple(
            OrderPart(order.over(order.subset, order_key(seed, number, self.name)), draws)
            for number, (order, draws) in enumerate(self.parts)
        )
        return super().over(rows, seed).having(parts=parts)

    def deal(self, positions: NDArray[np.int64], epoch: int) -> Iterator[Dealt]:
        """Yield each part that has some of these positions. positions: at most PIECE_ROWS."""
        raise NotImplementedError

    def rows_at(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return the rows that the parts' orders put at the positions dealt to them."""
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
        """Return the windows of the parts that the positions are dealt to, part after part, pass after pass."""
        found: list[Runs] = []
        positions = at.rows()
        # At the end of an epoch its first positions may come again.
        for rising in np.split(positions, np.flatnonzero(np.diff(positions) < 0) + 1):
            for number, _, draws in self._dealt(rising, epoch):
                order, count = self.parts[number]
                begin, end = epoch * count + int(draws.min()), epoch * count + int(draws.max()) + 1
                # What comes several times is in memory after the first.
                begin = max(begin, end - order.length)
                while begin < end:
                    turn, first = divmod(begin, order.length)
                    last = min(order.length, first + end - begin)
                    found += map(order.subset.place, order.upcoming(one_run(first, last), turn, asked))
                    begin += last - first
        return found

    def mixed_rows(self, ranks: int) -> int:
        """See RowOrder: those of all parts."""
        return sum(part.order.mixed_rows(ranks) for part in self.parts)

    def _dealt(self, positions: NDArray[np.int64], epoch: int) -> Iterator[Dealt]:
        """Yield as `deal`, for any number of positions."""
        for first in range(0, len(positions), PIECE_ROWS):
            for number, where, draws in self.deal(positions[first : first + PIECE_ROWS], epoch):
                yield number, where + first if first else where, draws
