"""One epoch: what an order is, and which positions of its sequence are whose, cut by global batch, then by rank.

An order is a sequence of rows, a pure function of (rows, seed, epoch, its own lengths), computed where it is asked for and
never stored. It knows nothing of ranks, so it is the same on one GPU and on sixty-four, and an epoch that stopped at some
position goes on there with any other number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.arguments import whole
from packer.errors import UsageError
from packer.orders.runs import Runs, Subset, consecutive, joined, one_run
from packer.starting import ForkSafeLock

ENDS = ("even", "uneven", "drop", "pad")
# Of more ranks than this, whose global batch is of so many windows, each asks for its own rows only: else every node would read
# the rows of all others, too (at 1,000 GPUs, 64 photos each, 12.6 GB a step instead of 100 MB).
WIDE_RANKS, WIDE_WINDOWS = 4, 3
PLACED_ROWS = 4096
"""Rows, about, that are placed at once where requests are smaller."""
_ASKED_WINDOWS = 1 << 14  # that are remembered
_NONE = one_run(0, 0)

Order = TypeVar("Order", bound="RowOrder")
Asked = set[tuple[int, int, int]]
"""Windows that were asked for: the seed of the order, epoch and number of each."""


@dataclass(frozen=True)
class Context:
    """The facts by which an order is chosen and sized, and to which it is bound.

    subset: rows of the pack that are read. row_bytes: of the loaded fields together as they are stored, on average.
    block_rows: of the pack. global_batch: rows of a batch on all ranks together. labels: field -> the label of each row of the
    subset, int64 [n]. pack_rows: rows of the whole pack; weights may be given for all of them. shuffled: True if conversion
    shuffled the rows. coded: True if rows are compressed in blocks. remote: True if the pack is at a URL. share: of an epoch that
    is this order's, in a mixture of packs. members: the packs of a mixture, each alone, with its rows as numbers 0..n-1 of all; weight:
    of a member, as given. sizes: height and width of each row's image, [n, 2].
    """

    subset: Subset
    row_bytes: int
    block_rows: int
    global_batch: int
    seed: int = 0
    labels: Callable[[str], NDArray[np.int64]] | None = None
    pack_rows: int | None = None
    shuffled: bool = True
    coded: bool = False
    remote: bool = False
    share: float = 1.0
    weight: float = 1.0
    members: tuple[Context, ...] = ()
    sizes: Callable[[], NDArray[np.integer[Any]]] | None = None


class RowOrder:
    """The base of every order. It is immutable, holds no file and may be asked from several threads at once.

    An order is made with its lengths, or without, and bound to the rows of a dataset. Bound, it has epochs with the positions
    0..length-1. The row at one of them depends on the position, the epoch and what the order is bound to: not on what was asked
    before, nor on who asks. A subclass has `within`, or `rows_at`.

    subset: rows that it is bound to. rows: positions of an epoch, of orders that repeat rows. chosen: name -> order, of those that
    shuffle=True chooses from, if it chose this one. drawn: what is known of the rows, and tells them from others; a value for each
    name.
    """

    name: ClassVar[str]
    repeats: ClassVar[bool] = False  # True if a row may come several times in an epoch
    fixed: ClassVar[bool] = False  # True if all epochs are alike
    by_run: ClassVar[bool] = (
        False  # True if a run of positions is placed as a whole, not position by position
    )
    lengths: ClassVar[tuple[str, ...]] = ()  # attributes: whole numbers, or None until it is bound
    subset: Subset
    seed: int
    rows: int | None = None
    chosen: Mapping[str, Callable[[], RowOrder]] = MappingProxyType({})
    drawn: Mapping[str, Any] = MappingProxyType({})

    def __post_init__(self) -> None:
        self.check_lengths(*self.lengths)

    def check_lengths(self, *names: str) -> None:
        """Make lengths ints. Raise UsageError for any that is neither a whole number from 1 nor None."""
        for name in names:
            if (value := getattr(self, name)) is not None:
                self.__dict__[name] = whole(f"{type(self).__name__}: {name}", value, 1)

    def bind(self, about: Context) -> RowOrder:
        """Return this order bound to rows, with all lengths filled in that were left to be chosen."""
        return self.over(about.subset, about.seed)

    def over(self: Order, rows: int | Subset, seed: int = 0) -> Order:
        """Return this order, which has all its lengths, bound to rows: those of a subset, or so many."""
        subset = rows if isinstance(rows, Subset) else Subset([(0, rows)])
        return self.having(subset=subset, seed=seed)

    def having(self: Order, **values: Any) -> Order:
        """Return a copy with other values of attributes, which are not checked."""
        other = copy(self)
        other.__dict__.update(values)
        return other

    @property
    def bound(self) -> tuple[int, ...]:
        """Lengths of a bound order."""
        return tuple(getattr(self, name) for name in self.lengths)

    @property
    def length(self) -> int:
        """Number of positions of an epoch: one for each row, or, where rows repeat, as many as asked for, if any are."""
        asked = self.rows if self.repeats and self.subset.rows else None
        return self.subset.rows if asked is None else asked

    @property
    def orders(self) -> tuple[RowOrder, ...]:
        """The orders of the packs of a mixture; else this one."""
        return (self,)

    def within(self, at: Runs, epoch: int) -> Runs:
        """Return the rows, as numbers 0..n-1 of the subset, at runs of positions, one after the other as the positions are.

        Rows that follow each other are one run ("sequential" gives back the runs it is given). Positions are not checked:
        the caller has cut them from an epoch.
        """
        return consecutive(self.rows_at(at.rows(), epoch)) if len(at.starts) else at

    def rows_at(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return the row, as a number of the subset, at each of some positions, int64 [k], at least one."""
        return self.within(consecutive(positions), epoch).rows()

    def upcoming(self, at: Runs, epoch: int, asked: Asked) -> list[Runs]:
        """Return rows of the subset worth asking the disk for before these positions are read: windows, each in file order.

        None but for orders that mix rows in windows. asked: windows that were asked for before; new ones are added.
        """
        return []

    def mixed_rows(self, ranks: int) -> int:
        """Return the rows of the windows of which a batch needs some, a rank's own; 0 of an order without windows."""
        return 0

    def record(self) -> dict[str, Any]:
        """Return name, lengths and what tells the rows from others, for JSON: what resuming needs beside seed, epoch and position."""
        return {"name": self.name} | {name: getattr(self, name) for name in self.lengths} | dict(self.drawn)

    def resumed(self, record: Mapping[str, Any], seed: int) -> RowOrder:
        """Return this order with a recorded one's lengths, and a seed. Raises UsageError for another order's record, or other rows.

        Where shuffle=True chose this order, the recorded one may be another that it chooses: for another batch size it may.
        """
        name = record.get("name") if isinstance(record, Mapping) else None
        if isinstance(name, str) and name != self.name and name in self.chosen:
            other = self.chosen[name]().having(subset=self.subset, chosen=self.chosen)
            return other.resumed(record, seed)
        lengths = recorded(record, self.name, *self.lengths)
        for what, here in self.drawn.items():
            if here != (there := record.get(what)):
                raise UsageError(
                    f"state_dict: was taken with other {what} ({there} there, {here} here); the same are needed to go on."
                    f" Pass the same {what}, or begin anew without the state."
                )
        return self.having(**lengths).over(self.subset, seed)


@dataclass(frozen=True)
class Share:
    """A rank's batches of the positions origin..n-1 of an epoch, cut by global batch and then by rank.

    Eleven positions, two ranks, batches of two; the last global batch lacks a row::

        position      0  1 | 2  3 || 4  5 | 6  7 || 8  9 | 10
        rank             0      1      0      1      0      1
        batch                   0             1             2

    Parameters
    ----------
    n : int
        Positions of the epoch.
    batch_size : int
        Rows a rank and batch, at least 1.
    world_size, rank : int
        0 <= rank < world_size.
    ends : "even", "uneven", "drop" or "pad"
        What becomes of a last global batch of fewer than batch_size * world_size rows. "even" splits it into equally many rows a rank,
        rounded up; the missing ones, fewer than world_size, are those at the beginning of the epoch's sequence, as torch's
        DistributedSampler has it. "uneven" splits it as evenly as possible, the first ranks getting the odd rows; with fewer rows
        than ranks the last ranks get no such batch (`differs`). "drop" leaves it out. "pad" fills it up with the rows at the
        beginning of the epoch's sequence.
    origin : int
        Positions that were handed out before, 0 <= origin <= n.

    Examples
    --------
    >>> share = Share(n=11, batch_size=2, world_size=2, rank=1)
    >>> [share.positions(k, k + 1).rows().tolist() for k in range(share.steps)]
    [[2, 3], [6, 7], [10]]
    >>> Share(n=11, batch_size=2, world_size=2, rank=1, ends="even").positions(2, 3).rows().tolist()
    [10, 0]
    >>> Share(n=11, batch_size=2, world_size=2, rank=1, ends="drop").steps
    2

    The epoch goes on with other ranks where it stopped: here after one global batch.

    >>> Share(n=11, batch_size=2, world_size=3, rank=0, origin=4).positions(0, 2).rows().tolist()
    [4, 5, 10]
    """

    n: int
    batch_size: int
    world_size: int = 1
    rank: int = 0
    ends: str = "uneven"
    origin: int = 0

    @property
    def whole(self) -> int:
        """Rows in a full global batch."""
        return self.batch_size * self.world_size

    @property
    def steps(self) -> int:
        """Batches that this rank gets."""
        full, rest = divmod(self.n - self.origin, self.whole)
        if self.ends == "uneven":
            # `rank < rest`: an even split in rank order hands the first `rest` ranks a row before any gets two.
            return full + (self.rank < rest)
        return full + (self.ends != "drop" and rest > 0)

    @property
    def differs(self) -> bool:
        """True if some ranks get a batch more than others."""
        return self.ends == "uneven" and 0 < (self.n - self.origin) % self.whole < self.world_size

    def sizes(self, first: int, last: int) -> list[int]:
        """Return the number of rows in each of the batches first..last-1."""
        if self.origin + last * self.whole <= self.n:
            return [self.batch_size] * (last - first)
        return [self._span(step)[1] for step in range(first, last)]

    def positions(self, first: int, last: int) -> Runs:
        """Return the positions of the batches first..last-1, in order, neighbours joined.

        Raises UsageError if the rank has no such batch.
        """
        if not 0 <= first <= last <= self.steps:
            raise UsageError(
                f"batches {first:,} to {last:,}: rank {self.rank} of {self.world_size} has {self.steps:,};"
                " numbers below that are allowed. Ask for these."
            )
        if first == last:
            return one_run(0, 0)
        begin, size = self._span(last - 1)
        if self.world_size == 1:
            return self._wrapped(self._span(first)[0], begin + size)
        starts = self.origin + np.arange(first, last) * self.whole + self.rank * self.batch_size
        lengths = np.full(last - first, self.batch_size)
        if begin == starts[-1] and begin + size <= self.n:
            lengths[-1] = size
            return Runs(starts, lengths)
        end = self._wrapped(begin, begin + size)
        return Runs(np.append(starts[:-1], end.starts), np.append(lengths[:-1], end.lengths))

    def _span(self, step: int) -> tuple[int, int]:
        """Return the first position and rows of a batch; positions from n on stand for the beginning of the sequence."""
        begin = self.origin + step * self.whole
        left = self.n - begin
        if left >= self.whole or self.ends == "pad":
            return begin + self.rank * self.batch_size, self.batch_size
        share, odd = divmod(left, self.world_size)
        if self.ends == "even":
            share, odd = share + (odd > 0), 0
        return begin + self.rank * share + min(self.rank, odd), share + (self.rank < odd)

    def _wrapped(self, start: int, stop: int) -> Runs:
        """Return the positions start..stop-1, those from n on from the beginning again, as often as need be."""
        if stop <= self.n:
            return one_run(start, stop)
        again = consecutive(np.arange(max(start, self.n), stop) % self.n)
        return joined([one_run(start, self.n), again]) if start < self.n else again


class PlacedRows:
    """Rows at the positions of requests that follow each other, placed at once by the thread that needs some of them first.

    Placing takes tens of microseconds for 8 rows and for 256: as much as reading the first.
    """

    def __init__(self, order: RowOrder, epoch: int, positions: Runs) -> None:
        self._order, self._epoch, self._positions = order, epoch, positions
        self._runs: Runs | None = None
        self._ends: NDArray[np.int64] | None = None
        self._lock = ForkSafeLock()

    @property
    def runs(self) -> Runs:
        """The rows, within the subset."""
        with self._lock:
            if self._runs is None:
                self._runs = self._order.within(self._positions, self._epoch)
            return self._runs

    def part(self, start: int, stop: int) -> Runs:
        """Return entries start..stop-1."""
        if self._ends is None:
            self._ends = np.cumsum(self.runs.lengths)
        return self.runs.part(start, stop, self._ends)


@dataclass
class ReadRequest:
    """Batches that are read together. The order is evaluated once, by the thread that needs the rows first.

    positions: positions of all batches in the epoch. sizes: rows of each batch. placed: rows of this request, from its entry `at` on,
    and of others; at None: of this one alone. soon: positions of this rank whose rows are asked for when this request starts, for
    they have yet to come from a disk, a store or a process that makes them; with `asked`, their windows.
    """

    order: RowOrder
    epoch: int
    positions: Runs
    sizes: list[int]
    placed: PlacedRows
    at: int | None = None
    soon: Runs = _NONE
    asked: Asked | None = None

    @property
    def count(self) -> int:
        """Number of rows of all batches."""
        return sum(self.sizes)

    def within(self, start: int = 0, stop: int | None = None) -> Runs:
        """Return the row numbers of entries start..stop-1 (all by default) within the subset."""
        if self.at is None and (stop is None or (start, stop) == (0, self.count)):
            return self.placed.runs
        at = self.at or 0
        return self.placed.part(at + start, at + (self.count if stop is None else stop))

    def rows(self, start: int = 0, stop: int | None = None) -> Runs:
        """Return the row numbers of entries start..stop-1 (all by default) within the pack."""
        return self.order.subset.place(self.within(start, stop))

    def upcoming(self) -> Runs:
        """Return row numbers, within the subset, that are to be asked for when this request starts; perhaps none."""
        if self.asked is None:
            return self.order.within(self.soon, self.epoch)
        if len(self.asked) > _ASKED_WINDOWS:
            self.asked.clear()
        return joined(self.order.upcoming(self.soon, self.epoch, self.asked))

    def counters(self, start: int = 0, stop: int | None = None) -> Runs | None:
        """Return what keys the draws of entries start..stop-1 where the order repeats rows: their positions. None: the rows do."""
        if not self.order.repeats:
            return None
        return self.positions if stop is None else self.positions.part(start, stop)


def read_request(order: RowOrder, epoch: int, share: Share, first: int, last: int) -> ReadRequest:
    """Return a request for batches first..last-1 of a rank; it asks for no others."""
    positions = share.positions(first, last)
    return ReadRequest(order, epoch, positions, share.sizes(first, last), PlacedRows(order, epoch, positions))


def read_requests(
    order: RowOrder, epoch: int, share: Share, most: int, ahead_rows: int | None = None
) -> Iterator[ReadRequest]:
    """Yield requests for a rank's batches, for up to `most` neighbours at once.

    Each asks for what is read some batches later: a window, where an order has windows; else the rows that have yet to come.
    So do ranks whose batches are of many windows, of which each rank reads a few rows.

    ahead_rows: rows of a rank that are asked for before they are read, where they have yet to come; None: all are there.
    """
    parts, windows = spans(share.steps, most), order.mixed_rows(1)
    wide = share.world_size > WIDE_RANKS and share.whole >= WIDE_WINDOWS * windows > 0
    ahead: int | None = None if ahead_rows is None else ahead_rows // share.batch_size
    asked_windows: Asked | None = None
    if windows:
        ahead = (ahead or 1) if wide else -(-windows // share.whole)
        asked_windows = None if wide else set()
    slack = 0 if ahead is None or asked_windows is None else ahead // 4
    target, most_rows, asked = 1, 0 if order.by_run else PLACED_ROWS, 0
    for begin, end in parts:
        some = [(begin, end)]
        while (some[-1][1] - begin) * share.batch_size < target and (more := next(parts, None)):
            some.append(more)
        target = min(2 * max(target, (some[-1][1] - begin) * share.batch_size), most_rows)
        several = len(some) > 1
        placed, at = PlacedRows(order, epoch, share.positions(begin, some[-1][1])) if several else None, 0
        for low, high in some:
            request = read_request(order, epoch, share, low, high)
            if placed is not None:
                request.placed, request.at = placed, at
                at += request.count
            if ahead is not None and asked < min(high + ahead, share.steps):
                # A mixture deals every position that it is asked about: some batches at once, not many more than are read.
                growth = max(2 * (high - low), PLACED_ROWS // share.batch_size) if windows else share.steps
                until = min(high + ahead + slack, max(asked, high) + growth, share.steps)
                request.soon, request.asked, asked = share.positions(asked, until), asked_windows, until
            yield request


def spans(steps: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last + 1) of the batches that are read together.

    One batch, then two, four … up to `most`, so that the first batch waits for no other.
    """
    first, count = 0, 1
    while first < steps:
        last = min(first + min(count, most), steps)
        yield first, last
        first, count = last, 2 * count


order_key = lru_cache(maxsize=64)(randomness.key)
"""The key of an epoch's permutation, asked for once a batch."""


def recorded(record: Mapping[str, Any], name: str, *lengths: str) -> dict[str, int]:
    """Return the lengths in the record of the order of that name. Raises UsageError for any other record."""
    found = record.get("name") if isinstance(record, Mapping) else None
    if not isinstance(found, str):
        raise UsageError(
            f"state_dict: the order in it is {record!r}; a name and lengths are allowed. Pass what state_dict() gave."
        )
    if found != name:
        raise UsageError(
            f"state_dict: was taken in the order {found!r}; this dataset has {name!r}. Pass the order that it was taken in."
        )
    return {length: whole(f"state_dict: {name}: {length}", record.get(length), 1) for length in lengths}
