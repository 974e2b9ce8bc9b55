"""One epoch: what an order is, and which positions of its sequence are whose, cut by global batch, then by rank.

An order is a sequence of rows, a pure function of (n, seed, epoch, its own lengths), computed where it is asked for and
never stored. It knows nothing of ranks, so it is the same on one GPU and on sixty-four, and an epoch that stopped at some
position goes on there with any other number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.arguments import as_whole
from packer.errors import UsageError
from packer.orders.runs import Runs, Subset, consecutive, one_run
from packer.starting import ForkSafeLock

ENDS = ("even", "uneven", "drop", "pad")
# Of more ranks than this, whose global batch is of so many windows, each asks for its own rows only: else every node would read the
# rows of all others, too (at 1,000 GPUs, 64 photos each, 12.6 GB a step instead of 100 MB).
WIDE_RANKS, WIDE_WINDOWS = 4, 3
PLACED_ROWS = 4096
"""Rows, about, that are placed at once where requests are smaller."""


@dataclass(frozen=True)
class Context:
    """The facts by which an order is chosen and sized: the rows at hand, how they lie, and who reads them.

    n: rows of the subset. row_bytes: of the loaded fields together as they are stored, on average. block_rows: of the pack.
    global_batch: rows of a batch on all ranks together. labels: field -> the label of each of the n rows, int64 [n].
    pack_rows: rows of the whole pack, and place: rows of the subset -> rows of the pack; asked only where weights were given
    for the whole pack. shuffled: whether conversion shuffled the rows. coded: whether rows are compressed in blocks.
    remote: whether the pack is at a URL. share: of an epoch that is this order's, in a mixture of packs. members: the packs of a
    mixture. sizes: height and width of the image of each of the n rows, [n, 2].
    """

    n: int
    row_bytes: int
    block_rows: int
    global_batch: int
    labels: Callable[[str], NDArray[np.int64]] | None = None
    pack_rows: int | None = None
    place: Callable[[Runs], Runs] | None = None
    shuffled: bool = True
    coded: bool = False
    remote: bool = False
    share: float = 1.0
    members: tuple[Member, ...] = ()
    sizes: Callable[[], NDArray[np.integer[Any]]] | None = None


class Member(NamedTuple):
    """One of several packs that are mixed. weight: as given; places: its rows, as numbers 0..n-1 of all; about: it alone."""

    weight: float
    places: Subset
    about: Context


class Reach(NamedTuple):
    """A part of an epoch that is read next: positions start..stop-1 by all ranks together, `own` of them by this one (None: all).

    begins: whether this is what an iteration reads first.
    """

    start: int
    stop: int
    own: Runs | None = None
    begins: bool = False

    @property
    def first(self) -> int:
        """Position up to which an order has been asked: the one read before, at the beginning the first."""
        return self.start - (not self.begins)

    def is_wide(self, window: int) -> bool:
        """Return True if a rank reads few of these positions, which are of many windows of so many rows."""
        few = self.own is not None and WIDE_RANKS * self.own.total < self.stop - self.start
        return few and self.stop - self.start >= WIDE_WINDOWS * window > 0

    def later(self, length: int) -> Runs:
        """Return the positions that this rank reads after its own, of an epoch of so many."""
        assert self.own is not None
        places = self.own.rows() + self.stop - self.start
        return consecutive(places[places < length])


@runtime_checkable
class RowOrder(Protocol):
    """The interface of every order. It is immutable, holds no file and may be asked from several threads at once.

    An epoch has the positions 0..length(n)-1. The row at one of them depends on the position, n, seed, epoch and the order's
    own lengths: not on what was asked before, nor on who asks.
    """

    name: ClassVar[str]
    repeats: ClassVar[bool] = False  # whether a row may come several times in an epoch
    fixed: ClassVar[bool] = False  # whether all epochs are alike
    looks_ahead: ClassVar[bool] = False  # whether `ahead` returns any rows
    by_run: ClassVar[bool] = (
        False  # whether a run of positions is placed as a whole, not position by position
    )
    drawn_by: ClassVar[str] = ""  # what is known of the rows, and tells them from others by `digest`
    digest: str = ""
    lengths: ClassVar[tuple[str, ...]] = ()  # attributes: whole numbers, or None until it is bound

    def __post_init__(self) -> None:
        check_lengths(self, *self.lengths)

    @property
    def bound(self) -> tuple[int, ...]:
        """The lengths of an order that `bind` returned."""
        return tuple(getattr(self, name) for name in self.lengths)

    def bind(self, about: Context) -> RowOrder:
        """Return this order with all filled in that was left to be chosen; the other methods work on what this returns."""
        return self

    def length(self, n: int) -> int:
        """Return the number of positions of an epoch over n rows, 0 <= n <= 2**62; but for samplers, each row has one."""
        return n

    def place(self, positions: Runs, n: int, seed: int, epoch: int) -> Runs:
        """Return the rows, 0..n-1, at runs of positions, one after the other as the positions are.

        Rows that follow each other are one run ("sequential" gives back the runs it is given). Positions are not checked:
        the caller has cut them from an epoch.
        """
        if not len(positions.starts):
            return positions
        return consecutive(self.rows_at(positions.rows(), n, seed, epoch))

    def rows_at(self, positions: NDArray[np.int64], n: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return the row at each of some positions, int64 [k], at least one; of an order that is not placed by run."""
        return positions

    def ahead(self, reach: Reach, n: int, seed: int, epoch: int) -> Runs:
        """Return the rows worth asking the disk for now; none but for "blocks" and "regions", and mixtures of them.

        For a caller that asks with intervals that follow each other, from wherever its epoch begins or is resumed. "regions", and "blocks"
        where ranks are many, ask for the rows of a rank, else for those of all ranks.
        """
        return one_run(0, 0)

    def mixed_rows(self, ranks: int) -> int:
        """Return the rows of the blocks of which a batch needs some, a rank's own: what a reader keeps that decodes blocks."""
        return 0

    def record(self) -> dict[str, Any]:
        """Return the name, lengths and digest of the order, for JSON: what resuming needs beside seed, epoch and position."""
        known = {self.drawn_by: self.digest} if self.drawn_by else {}
        return {"name": self.name} | {name: getattr(self, name) for name in self.lengths} | known

    def resumed(self, record: Mapping[str, Any]) -> RowOrder:
        """Return this order with the lengths of a recorded one. Raises UsageError for the record of another order, or other rows."""
        lengths: Mapping[str, Any] = recorded(record, self.name, *self.lengths)
        if self.drawn_by:
            check_same(self.drawn_by, self.digest, record.get(self.drawn_by))
        return replace(self, **lengths)  # type: ignore[type-var]


@dataclass(frozen=True)
class Epoch:
    """One epoch: the row that stands at each position. order: bound; number: of the epoch."""

    order: RowOrder
    subset: Subset
    seed: int
    number: int

    @property
    def length(self) -> int:
        """Positions in it."""
        return self.order.length(self.subset.rows)

    def within(self, positions: Runs) -> Runs:
        """Return the rows at these positions, counted within the subset."""
        return self.order.place(positions, self.subset.rows, self.seed, self.number)

    def ahead(self, reach: Reach) -> Runs:
        """Return the rows within the subset that are worth asking the disk for; see RowOrder."""
        return self.order.ahead(reach, self.subset.rows, self.seed, self.number)


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
        starts, lengths = [], []
        while start < stop:
            within = start % self.n
            length = min(stop - start, self.n - within)
            starts.append(within)
            lengths.append(length)
            start += length
        return Runs(np.array(starts), np.array(lengths))


class PlacedRows:
    """Rows at the positions of some requests that follow each other, placed at once by the thread that needs some of them first.

    Placing takes tens of microseconds for 8 rows and for 256: as much as reading the first.
    """

    def __init__(self, epoch: Epoch, positions: Runs) -> None:
        self._epoch, self._positions = epoch, positions
        self._lock = ForkSafeLock()
        self._ends: NDArray[np.int64] | None = None

    def part(self, start: int, stop: int) -> Runs:
        """Return entries start..stop-1 as row numbers within the subset."""
        with self._lock:
            if self._ends is None:
                self._runs = self._epoch.within(self._positions)
                self._ends = np.cumsum(self._runs.lengths)
        return self._runs.part(start, stop, self._ends)


@dataclass
class ReadRequest:
    """Batches that are read together. The order is evaluated once, by the thread that needs the rows first.

    positions: positions of all batches in the epoch. sizes: rows of each batch. reach: what all ranks read at this point. placed: rows of
    this request from its entry `at` on, and of others; None: it is placed alone. later: positions of this rank whose rows have yet to come,
    from a store or a process that makes them, and are asked for when this request starts.
    """

    epoch: Epoch
    positions: Runs
    sizes: list[int]
    reach: Reach
    placed: PlacedRows | None = None
    at: int = 0
    later: Runs | None = None
    _within: Runs | None = field(default=None, repr=False)

    @property
    def count(self) -> int:
        """Number of rows of all batches."""
        return sum(self.sizes)

    def within(self, start: int = 0, stop: int | None = None) -> Runs:
        """Return the row numbers of entries start..stop-1 (all by default) within the subset."""
        placed, at = self.placed, self.at
        if stop is not None and (start, stop) != (0, self.count):
            if placed is None:
                return self.epoch.within(self.positions.part(start, stop))
            return placed.part(at + start, at + stop)
        if self._within is None:
            within = self.epoch.within
            self._within = placed.part(at, at + self.count) if placed else within(self.positions)
        return self._within

    def rows(self, start: int = 0, stop: int | None = None) -> Runs:
        """Return the row numbers of entries start..stop-1 (all by default) within the pack."""
        return self.epoch.subset.place(self.within(start, stop))

    def upcoming(self) -> Iterator[Runs]:
        """Yield rows within the subset that are to be asked for when this request starts."""
        if self.later is not None and len(self.later.starts):
            yield self.epoch.within(self.later)
        soon = self.epoch.ahead(self.reach)
        if len(soon.starts):
            yield soon

    def counters(self, start: int = 0, stop: int | None = None) -> Runs | None:
        """Return what keys the draws of entries start..stop-1 where the order repeats rows: their positions. None: the rows do."""
        if not self.epoch.order.repeats:
            return None
        return self.positions if stop is None else self.positions.part(start, stop)


def read_requests(epoch: Epoch, share: Share, most: int, ahead: int | None = None) -> Iterator[ReadRequest]:
    """Yield requests for a rank's batches, for up to `most` neighbours at once.

    ahead: rows of a rank that are asked for before they are read, where they have yet to come; None: all are there.
    """
    parts = spans(share.steps, most)
    target, most_rows = 1, 0 if epoch.order.by_run else PLACED_ROWS
    if epoch.order.looks_ahead and ahead:
        ahead = None  # the order itself says what a store is to be asked for
    asked = 0
    for begin, end in parts:
        some = [(begin, end)]
        while (some[-1][1] - begin) * share.batch_size < target and (more := next(parts, None)):
            some.append(more)
        target = min(2 * max(target, (some[-1][1] - begin) * share.batch_size), most_rows)
        placed = PlacedRows(epoch, share.positions(begin, some[-1][1])) if len(some) > 1 else None
        at = 0
        for low, high in some:
            request = read_request(epoch, share, low, high)
            request.placed, request.at = placed, at
            at += request.count
            if ahead is not None:
                until = min(high + ahead // share.batch_size, share.steps)
                request.later, asked = share.positions(asked, until), until
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


def read_request(epoch: Epoch, share: Share, first: int, last: int) -> ReadRequest:
    """Return a request for batches first..last-1 of a rank."""
    begin, stop = share.origin + first * share.whole, share.origin + last * share.whole
    sizes = [share.batch_size] * (last - first) if stop <= share.n else share.sizes(first, last)
    positions = share.positions(first, last)
    reach = Reach(begin, min(stop, share.n), positions, begins=not first)
    return ReadRequest(epoch, positions, sizes, reach)


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
    remedy = "Pass what state_dict() gave."
    return {
        name: whole_number(f"state_dict: the order's {name}", record.get(name), remedy) for name in lengths
    }


def whole_number(subject: str, value: object, remedy: str) -> int:
    """Return the value as an int. Raise UsageError unless it is a whole number from 1."""
    number = as_whole(value, 1)
    if number is None:
        raise UsageError(f"{subject}: is {value!r}; whole numbers from 1 are allowed. {remedy}")
    return number


def check_lengths(order: RowOrder, *names: str) -> None:
    """Make attributes ints that are whole numbers, or None. Raise UsageError for others."""
    for name in names:
        if (value := getattr(order, name)) is not None:
            number = whole_number(f"{type(order).__name__}: {name}", value, "Pass one, or leave it out.")
            object.__setattr__(order, name, number)


def digest_of(array: NDArray[np.generic]) -> str:
    """16 hexadecimal digits that tell arrays of 8-byte numbers apart."""
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    return blake2b(little.view(np.uint8), digest_size=8).hexdigest()


def check_same(what: str, here: object, there: object) -> None:
    """Raise UsageError if a state was taken with other weights, labels, sizes or packs."""
    if here != there:
        raise UsageError(
            f"state_dict: was taken with other {what} ({there} there, {here} here); the same are needed to go on."
            f" Pass the same {what}, or begin anew without the state."
        )
