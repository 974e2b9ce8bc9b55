"""Rows of several packs in given proportions: one sequence, put together from an order of each pack.

A mixture is computed where it is asked for, as every order is; it keeps a few numbers a pack. Its sequences are frozen.

Position p of an epoch is dealt to one of the packs so that any m positions that follow each other hold m times the pack's share
of its rows, up to one (two in a mixture of many packs): so do the batches of every size, on every number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packer import native, randomness
from packer.errors import UsageError
from packer.orders.epochs import Context, RowOrder, order_key
from packer.orders.interleaving import Dealt, Interleaved, OrderPart

_LARGE = 1 << 31  # positions whose products no longer fit int64


@dataclass(frozen=True, eq=False)
class Mixture(Interleaved):
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
    >>> from packer.orders.epochs import Share
    >>> from packer.orders.runs import Subset
    >>> first, second, both = Subset([(0, 8)]), Subset([(8, 12)]), Subset([(0, 12)])
    >>> members = Context(first, 1, 4, 4, weight=0.75), Context(second, 1, 4, 4, weight=0.25)
    >>> mixture = Mixture().of(Context(both, 1, 4, 4, members=members), lambda about: Rows().bind(about))
    >>> mixture.rows_at(np.arange(12), epoch=0).tolist()
    [0, 1, 9, 5, 7, 2, 10, 3, 4, 6, 4, 8]

    The second pack has four rows, of which three come in an epoch: the fourth is the first of them in the next one.

    >>> mixture.rows_at(np.arange(4), epoch=1).tolist()
    [11, 3, 1, 5]

    Two ranks begin with batches of two, and one goes on with batches of four where they stopped:

    >>> [mixture.rows_at(Share(12, 2, 2, rank).positions(0, 1).rows(), epoch=0).tolist() for rank in (0, 1)]
    [[0, 1], [9, 5]]
    >>> mixture.rows_at(Share(12, 4, origin=4).positions(0, 1).rows(), epoch=0).tolist()
    [7, 2, 10, 3]
    """

    order: str | RowOrder | None = None
    rows: int | None = None
    batch: int | None = field(default=None, init=False, repr=False)
    name: ClassVar[str] = "mixture"
    lengths: ClassVar[tuple[str, ...]] = ("rows", "batch")
    repeats: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.order, RowOrder) and self.order.repeats:
            raise UsageError(
                f"Mixture: the order of each pack is {self.order.name!r}, which draws rows by weights or classes; orders that give each row"
                " once are allowed. Pass one such as 'rows', or packs without weights."
            )

    def of(self, about: Context, choose: Callable[[Context], RowOrder]) -> Mixture:
        """Return the mixture of the members of a context, bound to its rows.

        choose: gives the order of a pack's rows, bound. Raises UsageError for a weight by which no row of an epoch is drawn.
        """
        members, batch = about.members, max(1, about.global_batch)
        length = self.rows or about.subset.rows or 1
        draws = _draws([member.weight for member in members], length)
        for number, (member, count) in enumerate(zip(members, draws, strict=True)):
            if not count or not member.subset.rows:
                raise UsageError(
                    f"pack {number + 1} of {len(members)}: of {length:,} rows of an epoch its weight of {member.weight:g} gives"
                    f" {count:,}, and it has {member.subset.rows:,} to draw; one at least of each is needed."
                    " Raise its weight, leave the pack out, or pass order=Mixture(rows=...)."
                )
        shares = [count / length for count in draws]
        parts = tuple(
            OrderPart(choose(replace(m, share=share, global_batch=max(1, round(share * batch)))), count)
            for m, share, count in zip(members, shares, draws, strict=True)
        )
        drawn = {"packs": [order.length for order, _ in parts], "weights": draws}
        mixture = self.having(rows=length, batch=batch, parts=parts, drawn=drawn)
        return mixture.over(about.subset, about.seed)

    @property
    def orders(self) -> tuple[RowOrder, ...]:
        """The orders of the packs."""
        return tuple(part.order for part in self.parts)

    def __repr__(self) -> str:
        """Return the rows that an epoch draws from each pack, and the packs' orders."""
        if not self.parts:
            return f"Mixture(order={self.order!r}, rows={self.rows})"
        dealt = ", ".join(f"{draws:,} of {order.length:,} rows by {order!r}" for order, draws in self.parts)
        return f"Mixture({dealt})"

    def record(self) -> dict[str, Any]:
        """Return what `RowOrder.record` does, and the record of each pack's order."""
        return super().record() | {"orders": [order.record() for order in self.orders]}

    def resumed(self, record: Mapping[str, Any], seed: int) -> RowOrder:
        """See RowOrder; the packs and weights have to be the same."""
        mixture, orders = super().resumed(record, seed), record.get("orders")
        if not isinstance(orders, list) or len(orders) != len(self.parts):
            raise UsageError(
                f"state_dict: the orders of its packs are {orders!r}; one for each is needed. Pass what state_dict() gave."
            )
        parts = tuple(
            OrderPart(part.order.resumed(inner, order.seed), part.draws)
            for part, order, inner in zip(self.parts, mixture.orders, orders, strict=True)
        )
        return mixture.having(parts=parts)

    def deal(self, positions: NDArray[np.int64], epoch: int) -> Iterator[Dealt]:
        """See Interleaved."""
        counts, length = tuple(draws for _, draws in self.parts), self.length
        batch, key = min(self.bound[1], length), order_key(self.seed, epoch, self.name)
        if not native.COMPILED or length >= _LARGE:
            everywhere = np.arange(len(positions))
            yield from _deal(counts, 0, everywhere, _turned(positions, batch, length, key))
            return
        draws, where = np.empty_like(positions), np.empty_like(positions)
        ends = np.empty(len(counts), np.int64)
        native.loops.deal(positions, key, batch, length, _nodes(counts), draws, where, ends)
        first = 0
        for number, stop in enumerate(ends.tolist()):
            if stop > first:
                yield number, where[first:stop], draws[first:stop]
            first = stop


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
    counts: Sequence[int], first: int, where: NDArray[np.int64], places: NDArray[np.int64]
) -> Iterator[Dealt]:
    """Deal places 0..sum(counts)-1 to packs: yield the pack, `where` its own are, and which of its draws these are.

    Half of the packs are dealt to against the other half, and so on: of the first p places, p times its share, rounded, are the
    first half's (Bresenham's line). first: number of the first of these packs.

    >>> for pack, where, draws in _deal([3, 1], 0, np.arange(4), np.arange(4)):
    ...     print(pack, where.tolist(), draws.tolist())
    0 [0, 1, 3] [0, 1, 2]
    1 [2] [0]
    """
    if len(counts) == 1 or not len(places):
        yield from [(first, where, places)] * (len(places) > 0)
        return
    middle = len(counts) // 2
    own, whole = sum(counts[:middle]), sum(counts)
    lines = (places.astype(object) if whole >= _LARGE else places) * own + whole // 2
    before = lines // whole
    mine = (lines - before * whole >= whole - own).astype(bool, copy=False)
    before = before.astype(np.int64, copy=False)
    yield from _deal(counts[:middle], first, where[mine], before[mine])
    yield from _deal(counts[middle:], first + middle, where[~mine], (places - before)[~mine])


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
