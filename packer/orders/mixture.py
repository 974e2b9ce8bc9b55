"""Rows of several packs in given proportions: one sequence, put together from an order of each pack.

A mixture is computed where it is asked for, as every order is; it keeps a few numbers a pack. Its sequences are frozen.

Position p of an epoch is dealt to one of the packs so that any m positions that follow each other hold m times the pack's share
of its rows, up to one (two in a mixture of many packs): so do the batches of every size, on every number of ranks. A pack gives
its rows in an order of its own, pass after pass: a pass holds each of its rows once, and where it ends the next one
begins, whatever epoch it is. So a pack that is small for its share is repeated in an epoch, each time in another order, and a
large one goes on in the next epoch where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer import native, randomness
from packer.errors import UsageError
from packer.orders.epochs import Context, Member, Reach, RowOrder, check_same, order_key, recorded
from packer.orders.runs import Runs, Subset, consecutive, one_run

_PIECE_ROWS = 4096  # are placed at once, in arrays that stay in the processor's cache
_LARGE = 1 << 31  # positions whose products no longer fit int64


class _MixedPack(NamedTuple):
    """A pack of a mixture. order: of its rows, bound. places: its rows, as numbers of the mixture's. draws: its rows in an epoch."""

    order: RowOrder
    places: Subset
    draws: int


@dataclass(frozen=True, eq=False)
class Mixture(RowOrder):
    """Rows of several packs in the proportion of the packs' weights, for ``PackedBatchDataset([(path, weight), ...], ...)``.

    A weight is a share of the rows drawn, whatever the sizes of the packs: weights 0.7 and 0.3 (or 7 and 3) give 70 and 30 of
    100 rows, in an epoch exactly, and in every batch, on every rank, up to a row or two. A dataset whose packs have weights makes
    its order one of each pack by itself; pass a Mixture to choose the length of an epoch too.

    A pack's rows come in passes, each row once in a pass, in another permutation in the next. Passes do not end with
    epochs: a pack of which an epoch holds a part goes on with the others in the next one.

    Parameters
    ----------
    order : str or order, optional
        Order of each pack's rows: "rows", "blocks", "slices", "sequential", or an object. Default: what shuffle=True means
        for the pack, or, without shuffle, as they lie.
    rows : int, optional
        Rows of an epoch; default: as many as the packs have together.

    Examples
    --------
    >>> from packer import Rows
    >>> packs = [Member(0.75, Subset([(0, 8)]), Context(8, 1, 4, 4)), Member(0.25, Subset([(8, 12)]), Context(4, 1, 4, 4))]
    >>> mixture = Mixture().of(packs, 4, lambda about: Rows().bind(about))
    >>> mixture.place(consecutive(np.arange(12)), n=12, seed=0, epoch=0).rows().tolist()
    [0, 1, 9, 5, 7, 2, 10, 3, 4, 6, 4, 8]
    """

    order: str | RowOrder | None = None
    rows: int | None = None
    _packs: tuple[_MixedPack, ...] = field(default=(), repr=False)
    _batch: int = field(default=1, repr=False)
    name: ClassVar[str] = "mixture"
    lengths: ClassVar[tuple[str, ...]] = ("rows",)
    repeats: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.order, RowOrder) and self.order.repeats:
            raise UsageError(
                f"Mixture: the order of each pack is {self.order.name!r}, which draws rows by weights or classes; orders that give each row"
                " once are allowed. Pass one such as 'rows', or packs without weights."
            )

    def of(
        self, members: Sequence[Member], global_batch: int, choose: Callable[[Context], RowOrder]
    ) -> Mixture:
        """Return the mixture of these packs, bound.

        choose: gives the order of a pack's rows, bound. Raises UsageError for a weight by which no row of an epoch is drawn.
        """
        length = self.rows or sum(member.places.rows for member in members) or 1
        draws = _draws([member.weight for member in members], length)
        for number, (member, count) in enumerate(zip(members, draws, strict=True)):
            if not count:
                raise UsageError(
                    f"pack {number + 1} of {len(members)}: of {length:,} rows of an epoch its weight of {member.weight:g} gives none;"
                    " one at least is needed. Raise its weight, leave the pack out, or pass order=Mixture(rows=...)."
                )
            if not member.places.rows:
                raise UsageError(
                    f"pack {number + 1} of {len(members)}: has a weight of {member.weight:g} and no rows to draw;"
                    " one at least is needed. Leave the pack out, or choose other rows."
                )
        packs = tuple(
            _MixedPack(choose(_part(m.about, count / length, global_batch)), m.places, count)
            for m, count in zip(members, draws, strict=True)
        )
        return replace(self, rows=length, _packs=packs, _batch=max(1, global_batch))

    @property
    def orders(self) -> tuple[RowOrder, ...]:
        """The orders of the packs."""
        return tuple(pack.order for pack in self._packs)

    @property
    def looks_ahead(self) -> bool:  # type: ignore[override]
        """See RowOrder."""
        return any(order.looks_ahead for order in self.orders)

    def __repr__(self) -> str:
        """Return the rows that an epoch draws from each pack, and the packs' orders."""
        if not self._packs:
            return f"Mixture(order={self.order!r}, rows={self.rows})"
        dealt = ", ".join(
            f"{pack.draws:,} of {pack.places.rows:,} rows by {pack.order!r}" for pack in self._packs
        )
        return f"Mixture({dealt})"

    def length(self, n: int) -> int:
        """Return the rows of an epoch; 0 of no rows."""
        return (self.rows or n) if n else 0

    def rows_at(self, positions: NDArray[np.int64], n: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return the rows that the packs' orders put at the positions dealt to them."""
        rows = np.empty(len(positions), np.int64)
        for first in range(0, len(positions), _PIECE_ROWS):
            piece = slice(first, first + _PIECE_ROWS)
            for number, where, draws in self._dealt(positions[piece], seed, epoch):
                rows[piece][where] = self._rows(number, draws, seed, epoch)
        return rows

    def ahead(self, reach: Reach, n: int, seed: int, epoch: int) -> Runs:
        """Return what the packs' orders ask the disk for, pack after pass after pack."""
        if reach.is_wide(self.mixed_rows(1)):
            return self.place(reach.later(self.length(n)), n, seed, epoch)
        counts, found = tuple(pack.draws for pack in self._packs), [one_run(0, 0)]
        ends = zip(self._packs, _drawn(counts, reach.start), _drawn(counts, reach.stop), strict=True)
        for number, (pack, first, last) in enumerate(ends):
            size, own_seed = pack.places.rows, order_key(seed, number, self.name)
            at, end, anew = epoch * pack.draws + first, epoch * pack.draws + last, reach.begins or not first
            if end - at > size:  # a pack that comes several times meanwhile is in memory after the first
                at = end if first else end - size
            while at < end and pack.order.looks_ahead:
                turn, begun = divmod(at, size)
                until = min(size, begun + end - at)
                inside = Reach(begun, until, begins=anew or not begun)
                found.append(pack.places.place(pack.order.ahead(inside, size, own_seed, turn)))
                at, anew = at + until - begun, False
        return Runs(*map(np.concatenate, zip(*found, strict=True)))

    def mixed_rows(self, ranks: int) -> int:
        """See RowOrder: those of all packs."""
        return sum(order.mixed_rows(ranks) for order in self.orders)

    def record(self) -> dict[str, Any]:
        """Return the name, rows of a batch, and of each pack its rows, those drawn in an epoch, and its order's record."""
        return {
            "name": self.name,
            "batch": self._batch,
            "sizes": [pack.places.rows for pack in self._packs],
            "draws": [pack.draws for pack in self._packs],
            "orders": [pack.order.record() for pack in self._packs],
        }

    def resumed(
        self,
        record: Mapping[str, Any],
        resume: Callable[[RowOrder, Mapping[str, Any]], RowOrder] = lambda order, record: order.resumed(
            record
        ),
    ) -> Mixture:
        """Return the mixture with the recorded lengths. Raises UsageError for other packs or weights, or the record of another order.

        resume: returns a pack's order with the lengths of a recorded one.
        """
        batch = recorded(record, self.name, "batch")["batch"]
        own, orders = self.record(), record.get("orders")
        check_same("packs", own["sizes"], record.get("sizes"))
        check_same("weights", own["draws"], record.get("draws"))
        if not isinstance(orders, list) or len(orders) != len(self._packs):
            raise UsageError(
                f"state_dict: the orders of its packs are {orders!r}; one for each is needed. Pass what state_dict() gave."
            )
        packs = tuple(
            pack._replace(order=resume(pack.order, inner))
            for pack, inner in zip(self._packs, orders, strict=True)
        )
        return replace(self, _packs=packs, _batch=batch)

    def _dealt(
        self, numbers: NDArray[np.int64], seed: int, epoch: int
    ) -> Iterator[tuple[int, NDArray[np.intp] | slice, NDArray[np.int64]]]:
        """Yield each pack that has some of these positions, where among them its own are, and which of its draws these are."""
        counts, length = tuple(pack.draws for pack in self._packs), self.length(1)
        batch, key = min(self._batch, length), order_key(seed, epoch, self.name)
        if not native.COMPILED or length >= _LARGE:
            yield from _deal(counts, 0, slice(None), _turned(numbers, batch, length, key))
            return
        draws, where, ends = np.empty_like(numbers), np.empty_like(numbers), np.empty(len(counts), np.int64)
        native.loops.deal(numbers, key, batch, length, _nodes(counts), draws, where, ends)
        first = 0
        for number, stop in enumerate(ends.tolist()):
            if stop > first:
                yield number, where[first:stop], draws[first:stop]
            first = stop

    def _rows(self, number: int, draws: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.int64]:
        """Return the rows, among the mixture's, that a pack gives at its draws of an epoch; int64 [k], at least one."""
        pack = self._packs[number]
        size, key = pack.places.rows, order_key(seed, number, self.name)
        turn, begun = divmod(epoch * pack.draws, size)
        draws = draws + begun
        rows, last = np.empty(len(draws), np.int64), int(draws.max()) // size
        turns = draws // size if last else draws
        for later in np.unique(turns).tolist() if last else [0]:
            own: Any = np.flatnonzero(turns == later) if last else slice(None)
            inside = draws[own] - later * size
            if pack.order.by_run:
                runs = pack.order.place(consecutive(inside), size, key, turn + later)
                rows[own] = pack.places.place(runs).rows()
            else:
                rows[own] = pack.places.numbers(pack.order.rows_at(inside, size, key, turn + later))
        return rows


def _part(about: Context, share: float, global_batch: int) -> Context:
    """Return the facts of a pack of which a batch holds a share."""
    return replace(about, share=share, global_batch=max(1, round(share * global_batch)))


def _draws(weights: Sequence[float], length: int) -> list[int]:
    """Return the rows of an epoch that each pack gives: its share, rounded so that the sum is right (largest remainders first)."""
    whole = sum(map(Fraction, weights))
    shares = [Fraction(weight) * length / whole for weight in weights]
    counts = [int(share) for share in shares]
    by_rest = sorted(range(len(shares)), key=lambda k: counts[k] - shares[k])
    for k in by_rest[: length - sum(counts)]:
        counts[k] += 1
    return counts


def _turned(positions: NDArray[np.int64], batch: int, length: int, key: int) -> NDArray[np.int64]:
    """Turn each global batch by a random number of positions: or a rank would get the same few places of the pattern for ever.

    Return the place of each position, int64 [k].
    """
    numbers = positions // batch
    firsts = numbers * batch
    sizes = np.minimum(length - firsts, batch)
    places: NDArray[np.int64] = positions + randomness.integers(numbers, key, sizes)
    places -= sizes * (places >= firsts + sizes)
    return places


def _deal(
    counts: Sequence[int], first: int, where: NDArray[np.intp] | slice, places: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[np.intp] | slice, NDArray[np.int64]]]:
    """Deal places 0..sum(counts)-1 to packs: yield the pack, where among the places its own are, and which of its draws these are.

    Half of the packs are dealt to against the other half, and so on: of the first p places, p times its share, rounded, are the
    first half's (Bresenham's line). first: number of the first of these packs.
    """
    if not len(places):
        return
    if len(counts) == 1:
        yield first, where, places
        return
    middle = len(counts) // 2
    own, whole = sum(counts[:middle]), sum(counts)
    lines = (places.astype(object) if whole >= _LARGE else places) * own + whole // 2
    before = lines // whole
    lines -= before * whole
    mine = (lines >= whole - own).astype(bool, copy=False)
    before = before.astype(np.int64, copy=False)
    at = np.flatnonzero(mine)
    yield from _deal(counts[:middle], first, at if isinstance(where, slice) else where[at], before[at])
    at = np.flatnonzero(~mine)
    own_places = places[at] - before[at]
    yield from _deal(
        counts[middle:], first + middle, at if isinstance(where, slice) else where[at], own_places
    )


@lru_cache(maxsize=64)
def _nodes(counts: tuple[int, ...]) -> NDArray[np.int64]:
    """Return how `_deal` halves the packs, for C: the draws of all, of the first half, and the halves, int64 [k, 4].

    A half is a later row, or -1 - a pack.
    """
    nodes: list[list[int]] = []

    def add(first: int, last: int) -> int:
        if last - first == 1:
            return -1 - first
        number, middle = len(nodes), (first + last) // 2
        nodes.append([sum(counts[first:last]), sum(counts[first:middle])])
        nodes[number] += [add(first, middle), add(middle, last)]
        return number

    add(0, len(counts))
    return np.array(nodes, np.int64).reshape(-1, 4)


@lru_cache(maxsize=256)
def _drawn(counts: tuple[int, ...], place: int) -> tuple[int, ...]:
    """Return how many of the places before `place` are dealt to each of the packs; kept, as the next call begins where this one ends."""
    if len(counts) == 1:
        return (place,)
    middle = len(counts) // 2
    own = (place * sum(counts[:middle]) + sum(counts) // 2) // sum(counts)
    return _drawn(counts[:middle], own) + _drawn(counts[middle:], place - own)


def single_orders(order: RowOrder) -> tuple[RowOrder, ...]:
    """Return the orders of the packs of a mixture, or the order itself."""
    return order.orders if isinstance(order, Mixture) else (order,)
