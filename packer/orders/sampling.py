"""Samplers: epochs that hold rows by weight or by class instead of each row once.

Like all orders they are pure functions of (n, seed, epoch, position), computed on demand; their sequences are
frozen. Their data about the rows (cumulative weights, rows by class) takes 8 bytes a row. From a cold disk
their rows are read one by one, as for "rows".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer import randomness
from packer.declared_types import checked_class
from packer.errors import UsageError
from packer.orders.epochs import Context, RowOrder
from packer.orders.runs import digest_of, one_run

_STEP = np.array(randomness.GOLDEN, np.uint64)  # 0-d: faster than a number
_ROUNDS = 10
_SORTED = 256  # up to this number of classes, a round of them is sorted


@checked_class
@dataclass(frozen=True, eq=False)
class Weighted(RowOrder):
    """Rows with repetitions, each in proportion to its weight.

    Systematic sampling: the cumulative weights are cut into as many equal parts as the epoch has rows, and a
    mark at the same place in each part picks the row there; then the picks are permuted. So a row comes as
    often as its share of the weights says, rounded down or up (sums are float64). Independent draws have the
    same probabilities but more noise: of n rows of equal weight they would miss n / e; here each comes once.
    The mark moves from epoch to epoch by the golden section, so that rare rows are spread evenly over the
    epochs too.

    Parameters
    ----------
    weights : array-like
        float [n], one for each row of the dataset, in its order (that of `subset`); or, if there are fewer
        rows than weights, one for each row of the pack. Finite, not negative, some above 0. A row of weight 0
        never comes.
    rows : int, optional
        Rows of an epoch; default: n.

    Examples
    --------
    >>> from packer.orders.runs import Subset
    >>> about = Context(Subset([(0, 4)]), row_bytes=1, block_rows=4, global_batch=4)
    >>> Weighted([1, 1, 2, 0]).bind(about).within(one_run(0, 4), epoch=0).rows().tolist()
    [1, 0, 2, 2]
    """

    weights: ArrayLike
    rows: int | None = None
    _ends: NDArray[np.float64] = field(init=False, repr=False)  # cumulative weights
    name: ClassVar[str] = "weighted"
    repeats: ClassVar[bool] = True
    lengths: ClassVar[tuple[str, ...]] = ("rows",)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_weights(self.weights)

    def bind(self, about: Context) -> Weighted:
        """Return the order with the weights summed up.

        Raises UsageError for a wrong number of weights, or if none is above 0.
        """
        weights, n = np.asarray(self.weights, np.float64), about.subset.rows
        if len(weights) != n and len(weights) == about.pack_rows:
            weights = weights[about.subset.place(one_run(0, n)).rows()]
        elif len(weights) != n:
            pack = f" or {about.pack_rows:,}, one a row of the whole pack," if about.pack_rows else ""
            raise UsageError(
                f"Weighted: has {len(weights):,} weights; {n:,}, one a row,{pack} are allowed. Pass one for"
                " each."
            )
        with np.errstate(over="ignore"):
            ends = np.cumsum(weights)
        if n and not (0 < ends[-1] < math.inf):
            raise UsageError(
                f"Weighted: the weights sum to {ends[-1]:g}; finite sums above 0 are allowed. Give some rows"
                " a weight."
            )
        bound = self.having(rows=self.rows or n or 1, _ends=ends, drawn={"weights": digest_of(weights)})
        return bound.over(about.subset, about.seed)

    def rows_at(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return the rows under the permuted marks."""
        length = self.length
        parts = randomness.permute(positions, length, randomness.key(self.seed, epoch, self.name))
        mark = (
            (randomness.key(self.seed, self.name) + int(epoch) * randomness.GOLDEN) % 2**64 >> 11
        ) * 2.0**-53
        marks = (parts + mark) * (self._ends[-1] / length)
        # Rounding may put the last mark at the very end, beyond the last row.
        np.minimum(marks, math.nextafter(self._ends[-1], 0), out=marks)
        # With sorted marks the search walks through memory: a third of the time for 8,192 of a million rows.
        rising = np.argsort(marks)
        rows = np.empty(len(marks), np.int64)
        rows[rising] = np.searchsorted(self._ends, marks[rising], "right")
        return rows


@checked_class
@dataclass(frozen=True, eq=False)
class Balanced(RowOrder):
    """Rows of all classes equally often, with differences of at most one row.

    An epoch consists of rounds, and a round holds one row of each class that occurs, in a random order, so
    batches are balanced too. Each class yields its rows in a permutation, and begins another when they are
    used up. A class too large for an epoch continues with its other rows in the next epochs.

    Parameters
    ----------
    by : str
        Field that holds the class of a row.
    rows : int, optional
        Rows of an epoch; default: n.

    Examples
    --------
    >>> from packer.orders.runs import Subset
    >>> labels = np.array([0, 0, 0, 1])
    >>> about = Context(
    ...     Subset([(0, 4)]), row_bytes=1, block_rows=4, global_batch=4, labels=lambda field: labels
    ... )
    >>> Balanced().bind(about).within(one_run(0, 4), epoch=0).rows().tolist()
    [3, 2, 3, 0]
    """

    by: str = "label"
    rows: int | None = None
    # Rows by class, ascending; the first index and the number of rows of each class.
    _by_class: NDArray[np.int64] = field(init=False, repr=False)
    _firsts: NDArray[np.int64] = field(init=False, repr=False)
    _sizes: NDArray[np.int64] = field(init=False, repr=False)
    name: ClassVar[str] = "balanced"
    repeats: ClassVar[bool] = True
    lengths: ClassVar[tuple[str, ...]] = ("rows",)

    def bind(self, about: Context) -> Balanced:
        """Return the order with the rows by class.

        Raises UsageError unless the field has a whole number a row.
        """
        n, labels = about.subset.rows, np.asarray(about.labels(self.by)) if about.labels else np.empty(0)
        if labels.shape != (n,) or labels.dtype.kind not in "iu":
            found = f"is {labels.dtype} {list(labels.shape)}" if about.labels else "is not there"
            raise UsageError(
                f"Balanced: the field {self.by!r} {found}; one whole number for each of {n:,} rows is needed."
                " Pass by= the name of a field of labels."
            )
        labels = labels.astype(np.int64)
        _, sizes = np.unique(labels, return_counts=True)
        by_class = {"_by_class": np.argsort(labels, kind="stable"), "_firsts": np.cumsum(sizes) - sizes}
        bound = self.having(rows=self.rows or n or 1, _sizes=sizes, **by_class)
        return bound.having(drawn={"labels": digest_of(labels)}).over(about.subset, about.seed)

    def rows_at(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return the rows of the rounds at the positions."""
        count = len(self._sizes)
        rounds, inside = np.divmod(positions, count)
        classes = _permuted(inside, count, keys_of(randomness.key(self.seed, epoch, self.name), rounds))
        sizes = self._sizes[classes]
        # A class of `size` rows fills size // drawn epochs without repeats, each with another stretch of a
        # permutation.
        drawn = -(-self.length // count)
        turns, stretches = np.divmod(epoch % 2**62, np.maximum(sizes // drawn, 1))
        again, draws = np.divmod(stretches * drawn + rounds, sizes)
        keys = keys_of(randomness.key(self.seed, self.name), classes, turns, again)
        found: NDArray[np.int64] = self._by_class[self._firsts[classes] + permute_each(draws, sizes, keys)]
        return found


def _permuted(positions: NDArray[np.int64], size: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return `permute_each` for one size; small sizes sort hashes, so that all permutations are equally
    likely.
    """
    if size > _SORTED:
        return permute_each(positions, np.full(len(positions), size), keys)
    some, which = np.unique(keys, return_inverse=True)
    hashes = randomness.mix64(some[:, None] + np.arange(1, size + 1, dtype=np.uint64) * _STEP)
    permuted: NDArray[np.int64] = hashes.argsort(axis=1, kind="stable")[which, positions]
    return permuted


def permute_each(
    positions: NDArray[np.int64], sizes: NDArray[np.int64], keys: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Return the number at each position of a shuffled range, with a range and key for every position.

    positions: int64 [k]; sizes: int64 [k], position < size <= 2**52; keys: uint64 [k], of the permutation.
    Returns int64 [k]: for one size and key each of 0..size-1 once.

    `randomness.feistel`, with ten rounds: each number is equally likely at each place from size 2 on, but
    some orders of 5 to 20 numbers are up to a fifth more likely than others.
    """
    a = np.ceil(np.sqrt(sizes)).astype(np.uint64)
    unsigned = sizes.astype(np.uint64)
    b = (unsigned + a - np.uint64(1)) // a
    return randomness.cycle_walk(
        positions.astype(np.uint64),
        unsigned,
        lambda some, where: randomness.feistel(some, a[where], b[where], _round_keys(keys[where])),
    )


def _round_keys(keys: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
    """Yield each round's keys, in memory that the next round overwrites."""
    keys = keys.copy()
    for _ in range(_ROUNDS):
        keys += _STEP
        yield keys


def keys_of(key: int, *numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a key for each combination of arrays of numbers, uint64 [k]."""
    keys = np.array(key, np.uint64)
    for array in numbers:
        keys = randomness.mix64((keys ^ array.view(np.uint64)) + _STEP)
    return keys


def _check_weights(weights: ArrayLike) -> None:
    try:
        array = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        array = np.empty((0, 0))
    if array.ndim != 1:
        raise UsageError(
            "Weighted: weights are no list of numbers; one number a row is needed. Pass an array [n]."
        )
    wrong = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if len(wrong):
        raise UsageError(
            f"Weighted: the weight of row {wrong[0]:,} is {array[wrong[0]]:g}; finite numbers from 0 are"
            f" allowed. Correct {'it' if len(wrong) == 1 else f'these {len(wrong):,} weights'}."
        )
