"""Rows of several packs in given proportions: one sequence, composed of an order for each pack.

A mixture is computed on demand, as every order is; it stores a few numbers a pack. Its sequences are frozen.

The mixture deals the positions of an epoch to the packs so that of any m consecutive positions a pack gets m
times its share, to within one row (two in a mixture of many packs). The same holds for batches of every size,
on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.declared_types import checked_class
from packer.errors import UsageError
from packer.orders.epochs import Context, RowOrder, order_key
from packer.orders.interleaving import Dealt, Interleaved, OrderPart

_LARGE = 1 << 31  # from here on, products of positions may exceed int64


@checked_class
@dataclass(frozen=True, eq=False)
class Mixture(Interleaved):
    """Rows of several packs in the proportion of the packs' weights, for ``PackedBatchDataset([(path,
    weight), ...], ...)``.

    A weight is a share of the drawn rows, whatever the sizes of the packs: weights 0.7 and 0.3 (or 7 and 3)
    give 70 and 30 of 100 rows, exactly in an epoch, and up to a row or two in every batch on every rank. A
    dataset with weights creates a Mixture of its order; pass one to set the rows of an epoch too.

    A pack's rows come in passes, each row once per pass, in a new permutation for each pass. Passes do not
    end with epochs: if an epoch holds only a part of a pack, the next epoch continues with the other rows.

    Parameters
    ----------
    order : str or order, optional
        Order of each pack's rows: "rows", "blocks", "slices", "sequential", or an object. Default: the order
        that shuffle=True means for the pack, or "sequential" without shuffle.
    rows : int, optional
        Rows of an epoch; default: the sum over the packs.

    Examples
    --------
    >>> from packer import Rows
    >>> from packer.orders.epochs import Share
    >>> from packer.orders.runs import Subset
    >>> first, second, both = Subset([(0, 8)]), Subset([(8, 12)]), Subset([(0, 12)])
    >>> members = Context(first, 1, 4, 4, weight=0.75), Context(second, 1, 4, 4, weight=0.25)
    >>> mixture = Mixture().bind_packs(Context(both, 1, 4, 4, members=members), Rows().bind)
    >>> mixture.rows_at(np.arange(12), epoch=0).tolist()
    [0, 1, 9, 5, 7, 2, 10, 3, 4, 6, 4, 8]

    The second pack has four rows, and an epoch holds three of them: the fourth comes first in the next epoch.

    >>> mixture.rows_at(np.arange(4), epoch=1).tolist()
    [11, 3, 1, 5]

    Two ranks begin with batches of two, and a single rank resumes with batches of four where they stopped:

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
                f"Mixture: the order of each pack is {self.order.name!r}, which draws rows by weights or"
                " classes; orders with each row once are allowed. Pass for example 'rows', or packs without"
                " weights."
            )

    def bind_packs(self, about: Context, choose: Callable[[Context], RowOrder]) -> Mixture:
        """Return the mixture of the members of a context, bound to its rows.

        choose: returns a pack's bound order. Raises UsageError for a weight that yields no row of an epoch.
        """
        members, batch = about.members, max(1, about.global_batch)
        length = self.rows or about.subset.rows or 1
        draws = _draws([member.weight for member in members], length)
        for number, (member, count) in enumerate(zip(members, draws, strict=True)):
            if not count or not member.subset.rows:
                raise UsageError(
                    f"pack {number + 1} of {len(members)}: of {length:,} rows of an epoch its weight of"
                    f" {member.weight:g} gives {count:,}, and it has {member.subset.rows:,} to draw; at least"
                    " one of each is needed. Raise its weight, leave the pack out, or pass"
                    " order=Mixture(rows=...)."
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
        """Orders of the packs."""
        return tuple(part.order for part in self.parts)

    def __repr__(self) -> str:
        """Return the rows that an epoch draws from each pack, and the packs' orders."""
        if not self.parts:
            return f"Mixture(order={self.order!r}, rows={self.rows})"
        dealt = ", ".join(f"{draws:,} of {order.length:,} rows by {order!r}" for order, draws in self.parts)
        return f"Mixture({dealt})"

    def record(self) -> dict[str, Any]:
        """Return `RowOrder.record`, with the record of each pack's order."""
        return super().record() | {"orders": [order.record() for order in self.orders]}

    def resumed(self, record: Mapping[str, Any], seed: int) -> RowOrder:
        """See RowOrder; packs and weights must be the same."""
        mixture, orders = super().resumed(record, seed), record.get("orders")
        if not isinstance(orders, list) or len(orders) != len(self.parts):
            raise UsageError(
                f"state_dict: the orders of its packs are {orders!r}; one for each pack is needed. Pass the"
                " result of state_dict()."
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
        everywhere = np.arange(len(positions))
        return _deal(counts, 0, everywhere, _turned(positions, batch, length, key))


def _draws(weights: Sequence[float], length: int) -> list[int]:
    """Return the rows of an epoch from each pack, its share, rounded by largest remainders."""
    whole = sum(map(Fraction, weights))
    shares = [Fraction(weight) * length / whole for weight in weights]
    counts = [int(share) for share in shares]
    by_rest = sorted(range(len(shares)), key=lambda k: counts[k] - shares[k])
    for k in by_rest[: length - sum(counts)]:
        counts[k] += 1
    return counts


def _turned(positions: NDArray[np.int64], batch: int, length: int, key: int) -> NDArray[np.int64]:
    """Rotate each global batch by a random number of positions: a rank would otherwise get the same places.

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
    """Deal places 0..sum(counts)-1 to packs: yield pack, indices of its places, and numbers of its draws.

    One half of the packs is dealt against the other half, recursively: of the first p places, the first half
    gets p times its share, rounded (Bresenham's line). first: number of the first of these packs.

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
