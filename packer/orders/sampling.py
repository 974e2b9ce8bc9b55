"""Weighted: epochs that hold rows by weight, or classes equally often, instead of each row once.

Like all orders it is a pure function of (n, seed, epoch, position), computed on demand; its sequences are
frozen. The cumulative weights take 8 bytes a row, the rows by class another 8. From a cold disk its rows are
read one by one, as for "rows".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer import randomness
from packer.declared_types import checked_class, checks_arguments
from packer.errors import UsageError
from packer.orders.epochs import Context, RowOrder
from packer.orders.runs import digest_of, one_run


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
    by: str | None = field(default=None, init=False)  # the field of balanced()
    _ends: NDArray[np.float64] = field(init=False, repr=False)  # cumulative weights
    _by_class: NDArray[np.int64] | None = field(default=None, init=False, repr=False)  # the rows they are of
    name: ClassVar[str] = "weighted"
    repeats: ClassVar[bool] = True
    lengths: ClassVar[tuple[str, ...]] = ("rows",)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_weights(self.weights)

    @classmethod
    @checks_arguments
    def balanced(cls, by: str = "label", rows: int | None = None) -> Weighted:
        """Return an order in which all classes come equally often: in an epoch, up to one row.

        The weight of a row is one over the number of rows of its class. Like the rows of an epoch, the
        classes are permuted: a batch holds them in about equal numbers.

        Parameters
        ----------
        by : str
            Field that holds the class of a row, a whole number.
        rows : int, optional
            Rows of an epoch; default: n.

        Examples
        --------
        >>> from packer.orders.runs import Subset
        >>> labels = np.array([0, 1, 0, 0])
        >>> about = Context(
        ...     Subset([(0, 4)]), row_bytes=1, block_rows=4, global_batch=4, labels=lambda field: labels
        ... )
        >>> Weighted.balanced().bind(about).within(one_run(0, 4), epoch=0).rows().tolist()
        [3, 2, 1, 1]
        """
        return cls((), rows).having(weights=None, by=by)

    def bind(self, about: Context) -> Weighted:
        """Return the order with the weights summed up.

        Raises UsageError for a wrong number of weights, or if none is above 0.
        """
        if self.by is not None:
            return self._bind_classes(about, self.by)
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

    def _bind_classes(self, about: Context, by: str) -> Weighted:
        """Return the order with the rows sorted by class and their weights summed up.

        As the rows of a class are consecutive, systematic sampling is exact for classes too.
        """
        assert about.labels is not None
        labels, n = np.asarray(about.labels(by)), about.subset.rows
        _, sizes = np.unique(labels, return_counts=True)
        ends = np.cumsum(np.repeat(1 / sizes, sizes))
        by_class = np.argsort(labels, kind="stable")
        bound = self.having(rows=self.rows or n or 1, _ends=ends, _by_class=by_class)
        return bound.having(drawn={"labels": digest_of(labels)}).over(about.subset, about.seed)

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
        return rows if self._by_class is None else self._by_class[rows]


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
