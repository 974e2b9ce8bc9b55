"""One epoch: the base class of orders, and its positions, cut by global batch, then by rank.

An order is a sequence of rows, a pure function of (rows, seed, epoch, its lengths), computed on demand and
never stored. It is independent of ranks, so it is the same on one GPU and on sixty-four, and an epoch that
stopped at some position resumes there with any other number of ranks.
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
from packer.orders.runs import Runs, Subset, concatenate_runs, consecutive, one_run
from packer.starting import ForkSafeLock

ENDS = ("even", "uneven", "drop", "pad")
# With more ranks than this, and a global batch of this many windows, each rank prefetches only its own rows.
# Otherwise every node would also read the rows of all others (1,000 GPUs, 64 photos each: 12.6 GB a step
# instead of 100 MB).
WIDE_RANKS, WIDE_WINDOWS = 4, 3
PLACED_ROWS = 4096
"""Approximate number of rows that are placed at once if requests are smaller."""
_ASKED_WINDOWS = 1 << 14  # most remembered windows
_NONE = one_run(0, 0)

Order = TypeVar("Order", bound="RowOrder")
Asked = set[tuple[int, int, int]]
"""Prefetched windows: seed of the order, epoch and number of each."""


@dataclass(frozen=True)
class Context:
    """Properties of a pack by which an order is chosen, sized and bound.

    subset: rows of the pack that are read. row_bytes: average stored bytes of a row's loaded fields.
    block_rows: rows per block. global_batch: rows of a batch on all ranks together. labels: field -> label of
    each row of the subset, int64 [n]. pack_rows: rows of the full pack; weights may be given for all of them.
    shuffled: True if conversion shuffled the rows. coded: True if rows are compressed in blocks. remote: True
    if the pack is at a URL. filled: True for a shuffled pack that is made while it is loaded, whose chosen
    rows are in its order. share: this order's share of an epoch, in a mixture of packs. members: contexts of
    the packs of a mixture, whose rows are numbered 0..n-1 over all of them; weight: a member's weight, as
    given. sizes: height and width of each row's image, [n, 2].
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
    filled: bool = False
    share: float = 1.0
    weight: float = 1.0
    members: tuple[Context, ...] = ()
    sizes: Callable[[], NDArray[np.integer[Any]]] | None = None


class RowOrder:
    """Base class of the orders. Immutable, holds no file, thread-safe.

    An order is created with or without its lengths, and bound to the rows of a dataset. A bound order has
    epochs of positions 0..length-1. The row at a position depends only on the position, the epoch and what
    the order is bound to, not on earlier calls. A subclass defines `within`, or `rows_at`.

    subset: rows that the order is bound to. rows: positions of an epoch, for orders that repeat rows.
    chosen: if shuffle=True chose this order, the orders that it may choose, by name. drawn: name -> digest of
    data about rows that this order depends on; a state identifies the data by it. stored_first: epoch 0 takes
    the stored order instead (`order_of_epoch`).
    """

    name: ClassVar[str]
    repeats: ClassVar[bool] = False  # True if a row may come several times in an epoch
    fixed: ClassVar[bool] = False  # True if all epochs are alike
    span: int = 1  # rows at each position
    by_run: ClassVar[bool] = (
        False  # True if a run of positions is placed as a whole, not position by position
    )
    lengths: ClassVar[tuple[str, ...]] = ()  # attributes: whole numbers, or None until it is bound
    subset: Subset
    seed: int
    rows: int | None = None
    chosen: Mapping[str, Callable[[], RowOrder]] = MappingProxyType({})
    drawn: Mapping[str, Any] = MappingProxyType({})
    stored_first: bool = False

    def __post_init__(self) -> None:
        self.check_lengths(*self.lengths)

    def check_lengths(self, *names: str) -> None:
        """Convert lengths to int. Raises UsageError unless each is a whole number from 1, or None."""
        for name in names:
            if (value := getattr(self, name)) is not None:
                self.__dict__[name] = whole(f"{type(self).__name__}: {name}", value, 1)

    def bind(self, about: Context) -> RowOrder:
        """Return this order bound to rows, with defaults for lengths that are None."""
        return self.over(about.subset, about.seed)

    def over(self: Order, rows: int | Subset, seed: int = 0) -> Order:
        """Return this order, which has all its lengths, bound to the rows of a subset, or to 0..rows-1."""
        subset = rows if isinstance(rows, Subset) else Subset([(0, rows)])
        return self.having(subset=subset, seed=seed)

    def having(self: Order, **values: Any) -> Order:
        """Return a copy with other values of attributes, unchecked."""
        other = copy(self)
        other.__dict__.update(values)
        return other

    @property
    def bound(self) -> tuple[int, ...]:
        """Lengths of a bound order."""
        return tuple(getattr(self, name) for name in self.lengths)

    @property
    def length(self) -> int:
        """Number of positions of an epoch: the rows, or as requested if rows repeat; 0 without rows."""
        asked = self.rows if self.repeats and self.subset.rows else None
        return self.subset.rows if asked is None else asked

    @property
    def orders(self) -> tuple[RowOrder, ...]:
        """Orders of the packs of a mixture; else this order."""
        return (self,)

    def within(self, at: Runs, epoch: int) -> Runs:
        """Return the rows at runs of positions, in their order, as numbers 0..n-1 of the subset.

        Consecutive rows are joined to runs ("sequential" returns the given runs). Positions are not checked:
        the caller took them from an epoch.
        """
        return consecutive(self.rows_at(at.rows(), epoch)) if len(at.starts) else at

    def rows_at(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return the row at each position, as a number of the subset, int64 [k], k from 1."""
        return self.within(consecutive(positions), epoch).rows()

    def numbers(self, at: Runs, epoch: int) -> NDArray[np.int64]:
        """Return the sample at each position: its row, or its window."""
        return self.within(at, epoch).rows()

    def keys(self, at: Runs, epoch: int) -> Runs | None:
        """Return the key of the draws of each row at these positions; None if the rows are the keys."""
        return at if self.repeats else None

    def upcoming(self, at: Runs, epoch: int, asked: Asked) -> list[Runs]:
        """Return rows of the subset to prefetch before these positions are read: windows, each in file order.

        Empty unless the order mixes rows in windows. asked: windows prefetched before; new ones are added.
        """
        return []

    def mixed_rows(self, ranks: int) -> int:
        """Return the rows of the windows that a rank's batch reads from; 0 for orders without windows."""
        return 0

    def record(self) -> dict[str, Any]:
        """Return name, lengths and `drawn`, for JSON: what resuming needs besides seed, epoch, position."""
        first = {"stored_first": True} if self.stored_first else {}
        lengths = {name: getattr(self, name) for name in self.lengths}
        return {"name": self.name} | lengths | dict(self.drawn) | first

    def resumed(self, record: Mapping[str, Any], seed: int) -> RowOrder:
        """Return this order with the lengths of a record, and a seed.

        Raises UsageError for other orders or rows.
        If shuffle=True chose this order, the record may be of another one, chosen for another batch size.
        """
        name = record.get("name") if isinstance(record, Mapping) else None
        if isinstance(name, str) and name != self.name and name in self.chosen:
            other = self.chosen[name]().having(subset=self.subset, chosen=self.chosen)
            return other.resumed(record, seed)
        lengths = recorded(record, self.name, *self.lengths)
        for what, here in self.drawn.items():
            if here != (there := record.get(what)):
                raise UsageError(
                    f"state_dict: was taken with other {what} ({there} there, {here} here); equal ones are"
                    f" needed to resume. Pass the same {what}, or start again without the state."
                )
        first = record.get("stored_first") is True
        return self.having(**lengths, stored_first=first).over(self.subset, seed)


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
        What happens to a last global batch of fewer than batch_size * world_size rows. "even" splits it into
        equally many rows a rank, rounded up; the missing rows, fewer than world_size, are taken from the
        beginning of the epoch's sequence, as torch's DistributedSampler does. "uneven" splits it as evenly as
        possible, the first ranks getting one row more; with fewer rows than ranks the last ranks get no batch
        (`differs`). "drop" leaves it out. "pad" fills it up with rows from the beginning of the epoch.
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

    Other ranks resume the epoch where it stopped, here after one global batch:

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
    def global_batch(self) -> int:
        """Rows in a full global batch."""
        return self.batch_size * self.world_size

    @property
    def steps(self) -> int:
        """Number of batches of this rank."""
        full, rest = divmod(self.n - self.origin, self.global_batch)
        if self.ends == "uneven":
            # `rank < rest`: an even split in rank order gives each of the first `rest` ranks one row more.
            return full + (self.rank < rest)
        return full + (self.ends != "drop" and rest > 0)

    @property
    def differs(self) -> bool:
        """True if some ranks get one batch more than others."""
        return self.ends == "uneven" and 0 < (self.n - self.origin) % self.global_batch < self.world_size

    def sizes(self, first: int, last: int) -> list[int]:
        """Return the number of rows in each of the batches first..last-1."""
        if self.origin + last * self.global_batch <= self.n:
            return [self.batch_size] * (last - first)
        return [self._span(step)[1] for step in range(first, last)]

    def positions(self, first: int, last: int) -> Runs:
        """Return the positions of the batches first..last-1, in order, neighbours joined.

        Raises UsageError if the rank has no such batch.
        """
        if not 0 <= first <= last <= self.steps:
            raise UsageError(
                f"batches {first:,} to {last:,}: rank {self.rank} of {self.world_size} has {self.steps:,};"
                " numbers below that are allowed. Pass these."
            )
        if first == last:
            return one_run(0, 0)
        begin, size = self._span(last - 1)
        if self.world_size == 1:
            return self._wrapped(self._span(first)[0], begin + size)
        starts = self.origin + np.arange(first, last) * self.global_batch + self.rank * self.batch_size
        lengths = np.full(last - first, self.batch_size)
        if begin == starts[-1] and begin + size <= self.n:
            lengths[-1] = size
            return Runs(starts, lengths)
        end = self._wrapped(begin, begin + size)
        return Runs(np.append(starts[:-1], end.starts), np.append(lengths[:-1], end.lengths))

    def _span(self, step: int) -> tuple[int, int]:
        """Return the first position and the rows of a batch; positions from n on wrap to the beginning."""
        begin = self.origin + step * self.global_batch
        left = self.n - begin
        if left >= self.global_batch or self.ends == "pad":
            return begin + self.rank * self.batch_size, self.batch_size
        share, odd = divmod(left, self.world_size)
        if self.ends == "even":
            share, odd = share + (odd > 0), 0
        return begin + self.rank * share + min(self.rank, odd), share + (self.rank < odd)

    def _wrapped(self, start: int, stop: int) -> Runs:
        """Return the positions start..stop-1 modulo n."""
        if stop <= self.n:
            return one_run(start, stop)
        again = consecutive(np.arange(max(start, self.n), stop) % self.n)
        return concatenate_runs([one_run(start, self.n), again]) if start < self.n else again


class PlacedRows:
    """Rows at the positions of consecutive requests, placed together by the first thread that needs some.

    Placing 8 rows takes as long as placing 256, tens of microseconds, and as long as reading 8 rows.
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
    """Batches that are read together. The first thread that needs the rows evaluates the order, once.

    positions: positions of all batches in the epoch. sizes: rows of each batch, `order.span` for each
    position. placed: rows of several requests, of which this request's begin at entry `at`; if `at` is None,
    this request's rows alone. soon:
    positions of this rank to prefetch when this request starts, since their rows still have to arrive from a
    disk, a remote store or a process that fills the pack; with `asked`, their windows.
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
        """Return the row numbers, within the subset, to prefetch when this request starts; may be empty."""
        if self.asked is None:
            return self.order.within(self.soon, self.epoch)
        if len(self.asked) > _ASKED_WINDOWS:
            self.asked.clear()
        return concatenate_runs(self.order.upcoming(self.soon, self.epoch, self.asked))

    def windows(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the windows of entries start..stop-1 of an order of windows."""
        span = self.order.span
        return self.order.numbers(self.positions.part(start // span, stop // span), self.epoch)

    def counters(self, start: int = 0, stop: int | None = None) -> Runs | None:
        """Return the draw keys of entries start..stop-1; None if their rows are the keys."""
        keys = self.order.keys(self.positions, self.epoch)
        return keys if keys is None or stop is None else keys.part(start, stop)


def read_request(order: RowOrder, epoch: int, share: Share, first: int, last: int) -> ReadRequest:
    """Return a request for batches first..last-1 of a rank, without prefetching."""
    positions = share.positions(first, last)
    sizes = [order.span * size for size in share.sizes(first, last)]
    return ReadRequest(order, epoch, positions, sizes, PlacedRows(order, epoch, positions))


def read_requests(
    order: RowOrder, epoch: int, share: Share, most: int, ahead_rows: int | None = None
) -> Iterator[ReadRequest]:
    """Yield requests for a rank's batches, each for up to `most` consecutive ones.

    Each request prefetches rows that are read some batches later. An order with windows prefetches windows.
    Other orders prefetch the rank's rows if rows still have to arrive; so do many ranks whose global batch
    spans several windows (WIDE_RANKS), since each rank reads few rows of a window.

    ahead_rows: rows of a rank to prefetch, if they still have to arrive; None if all are there.
    """
    parts, windows = spans(share.steps, most), order.mixed_rows(1)
    wide = share.world_size > WIDE_RANKS and share.global_batch >= WIDE_WINDOWS * windows > 0
    ahead: int | None = None if ahead_rows is None else ahead_rows // share.batch_size
    asked_windows: Asked | None = None
    if windows:
        ahead = (ahead or 1) if wide else -(-windows // share.global_batch)
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
                # A mixture computes each position that it is asked for, so look only some batches ahead.
                growth = max(2 * (high - low), PLACED_ROWS // share.batch_size) if windows else share.steps
                until = min(high + ahead + slack, max(asked, high) + growth, share.steps)
                request.soon, request.asked, asked = share.positions(asked, until), asked_windows, until
            yield request


def spans(steps: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last + 1) of the batches that are read together.

    One batch, then two, four … up to `most`, so that the first batch is not delayed by others.
    """
    first, count = 0, 1
    while first < steps:
        last = min(first + min(count, most), steps)
        yield first, last
        first, count = last, 2 * count


order_key = lru_cache(maxsize=64)(randomness.key)
"""Key of an epoch's permutation; cached, since every batch needs it."""


def recorded(record: Mapping[str, Any], name: str, *lengths: str) -> dict[str, int]:
    """Return the lengths in a record of the order `name`. Raises UsageError for other records."""
    found = record.get("name") if isinstance(record, Mapping) else None
    if not isinstance(found, str):
        raise UsageError(
            f"state_dict: the order in it is {record!r}; a name and lengths are allowed. Pass the result of"
            " state_dict()."
        )
    if found != name:
        raise UsageError(
            f"state_dict: was taken in the order {found!r}; this dataset has {name!r}. Pass the order of the"
            " state."
        )
    return {length: whole(f"state_dict: {name}: {length}", record.get(length), 1) for length in lengths}
