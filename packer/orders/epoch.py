"""One epoch's sequence: an order over a subset, with its seed and number."""

from __future__ import annotations

from dataclasses import dataclass

from packer.orders.row_orders import RowOrder
from packer.orders.runs import Runs
from packer.orders.subset import Subset


@dataclass(frozen=True)
class Epoch:
    """Which row stands at which position. order: bound; number: of the epoch."""

    order: RowOrder
    subset: Subset
    seed: int
    number: int

    @property
    def length(self) -> int:
        """Positions in it."""
        return self.order.length(self.subset.rows)

    def within(self, positions: Runs) -> Runs:
        """The rows at these positions, counted within the subset."""
        return self.order.place(positions, self.subset.rows, self.seed, self.number)

    def rows(self, positions: Runs) -> Runs:
        """The rows of the pack at these positions."""
        return self.subset.place(self.within(positions))

    def counters(self, positions: Runs) -> Runs:
        """What draws for these positions are counted by: rows of the pack, but positions where rows are repeated.

        So a row that comes again in an epoch is not augmented alike.
        """
        return positions if self.order.repeats else self.rows(positions)

    def ahead(self, start: int, stop: int, *, begin: bool = False) -> Runs:
        """The rows of the pack that are worth asking the disk for when positions start..stop-1 come next. begin: first of all."""
        soon = self.order.ahead(start, stop, self.subset.rows, self.seed, self.number, begin=begin)
        return self.subset.place(soon) if len(soon.starts) else soon
