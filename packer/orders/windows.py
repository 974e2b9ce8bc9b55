"""Windows: samples of several consecutive rows, such as clips of frames or stretches of a time series.

An order of windows is any order over their numbers, 0..W-1; each stands for the rows of its frames. Ranks,
resuming, weights and the ends of an epoch therefore count windows, as they count rows elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packer.arguments import one_of, whole
from packer.declared_types import checked_class
from packer.errors import UsageError
from packer.orders.epochs import Asked, Context, RowOrder
from packer.orders.runs import Runs, Subset, consecutive, digest_of

MOST = 1 << 30
"""Largest length, step, dilation and horizon: their products are int64."""


@checked_class
@dataclass(frozen=True)
class Windows:
    """Samples of `length` consecutive rows, for ``window=`` of the datasets; ``window=8`` is ``Windows(8)``.

    Each field gets an axis of frames: images [B, length, C, H, W], features [B, length, F]. Rows of a window
    are of one group and one split, in the order of the pack, which must not be shuffled.

    Parameters
    ----------
    length : int
        Frames of a window.
    step : int
        Rows from the beginning of a window to that of the next one in its group.
    dilation : int
        Rows from a frame to the next one: 2 takes every second row.
    group : str, optional
        Field that is equal in all rows of a group, such as "episode". Default: the sequences that the pack
        records (``sequence=`` of convert_images and convert_table); of arrays all rows of a split.
    anchor : "first" or "last"
        The frame that stands for the window: its row decides the class in Weighted.balanced, and the
        augmentation's draws.
    ends : "drop" or "repeat"
        "repeat": every `step`-th row is an anchor. Frames beyond the group repeat its first or last row, and
        are False in the field `frame_mask`, bool [B, length]. "drop": no such windows.
    horizon : int
        Frames after the window whose labels are the targets: label [B, horizon]; 0: label [B, length].
    alike : bool
        All frames of a window get the same augmentation; False: each row its own.

    Examples
    --------
    >>> from packer import Windows
    >>> Windows(8, step=4, group="episode")
    Windows(length=8, step=4, dilation=1, group='episode', anchor='first', ends='drop', horizon=0, alike=True)
    """

    length: int
    step: int = 1
    dilation: int = 1
    group: str | None = None
    anchor: str = "first"
    ends: str = "drop"
    horizon: int = 0
    alike: bool = True

    def __post_init__(self) -> None:
        """Check the values. Raises UsageError."""
        for name, least in (("length", 1), ("step", 1), ("dilation", 1), ("horizon", 0)):
            object.__setattr__(self, name, whole(f"Windows: {name}", getattr(self, name), least, MOST))
        one_of("anchor", self.anchor, ("first", "last"))
        one_of("ends", self.ends, ("drop", "repeat"))
        if self.horizon and self.ends == "repeat" and self.anchor == "first":
            raise UsageError(
                f"Windows: horizon={self.horizon} with ends='repeat': frames of the horizon are never"
                " repeated. Pass anchor='last', or ends='drop'."
            )

    @property
    def frames(self) -> int:
        """Rows of a window, with those of the horizon."""
        return self.length + self.horizon

    def firsts(self, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first row of each window, int64 [W], of groups of rows bounds[k]..bounds[k + 1] - 1.

        Rows of windows that repeat may lie outside of their group.

        >>> Windows(3, step=2).firsts(np.array([0, 6, 8, 11])).tolist()
        [0, 2, 8]
        >>> Windows(3, ends="repeat", anchor="last").firsts(np.array([0, 3])).tolist()
        [-2, -1, 0]
        """
        before = (self.length - 1) * self.dilation  # from the first frame to the last one
        after = self.horizon * self.dilation
        if self.ends == "drop":
            ahead, behind = 0, before + after  # rows of a window before the first anchor, after the last one
        else:
            ahead, behind = (0, 0) if self.anchor == "first" else (before, after)
        counts = np.maximum(-(-(np.diff(bounds) - behind) // self.step), 0)
        numbers = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        firsts: NDArray[np.int64] = np.repeat(bounds[:-1], counts) + numbers * self.step - ahead
        return firsts


class WindowOrder(RowOrder):
    """An order whose positions are windows of rows: `span` rows each.

    windows: the form of the windows. inner: order of their numbers. firsts: first row of each, int64 [W];
    bounds: the first row of each group, and the number of rows.
    """

    windows: Windows
    inner: RowOrder
    name: ClassVar[str] = "windows"

    def __init__(self, windows: Windows, bounds: NDArray[np.int64], subset: Subset) -> None:
        self.windows, self._bounds, self.subset = windows, bounds, subset
        self._firsts = windows.firsts(bounds)
        self.span = windows.frames

    @property
    def count(self) -> int:
        """Number of windows."""
        return len(self._firsts)

    def context(self, about: Context) -> Context:
        """Return the properties by which the order of the windows is chosen and bound."""
        labels, anchors = about.labels, self._anchors
        return replace(
            about,
            subset=Subset([(0, self.count)]),
            row_bytes=about.row_bytes * self.span,
            block_rows=max(1, about.block_rows // self.windows.step),
            labels=None if labels is None else lambda name: labels(name)[anchors],
            pack_rows=None,
            shuffled=False,
            sizes=None,
        )

    def ordered(self, inner: RowOrder) -> WindowOrder:
        """Return the windows in an order that is bound to their numbers."""
        return self.having(inner=inner, repeats=inner.repeats, fixed=inner.fixed, seed=inner.seed)

    @property
    def _anchors(self) -> NDArray[np.int64]:
        last = (self.windows.length - 1) * self.windows.dilation
        return self._firsts + (last if self.windows.anchor == "last" else 0)

    @property
    def length(self) -> int:
        """See RowOrder: the windows of an epoch."""
        return self.inner.length

    @property
    def orders(self) -> tuple[RowOrder, ...]:
        """See RowOrder."""
        return self.inner.orders

    def frames(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the rows of some windows, int64 [n, span], and which of them are no repetitions."""
        rows = self._firsts[numbers, None] + np.arange(self.span) * self.windows.dilation
        if self.windows.ends == "drop":
            return rows, np.ones(rows.shape, bool)
        group = np.searchsorted(self._bounds, self._anchors[numbers], "right") - 1
        inside = np.clip(rows, self._bounds[group, None], self._bounds[group + 1, None] - 1)
        return inside, inside == rows

    def numbers(self, at: Runs, epoch: int) -> NDArray[np.int64]:
        """Return the window at each position."""
        return self.inner.within(at, epoch).rows()

    def within(self, at: Runs, epoch: int) -> Runs:
        """Return the rows of the windows at runs of positions, `span` for each."""
        return consecutive(self.frames(self.numbers(at, epoch))[0].reshape(-1)) if len(at.starts) else at

    def keys(self, at: Runs, epoch: int) -> Runs | None:
        """See RowOrder: those of a window's anchor, for all of its frames."""
        if not self.windows.alike:
            numbers = at.rows()[:, None] * self.span + np.arange(self.span)
            return consecutive(numbers.reshape(-1)) if self.repeats else None
        keys = at.rows() if self.repeats else self.subset.numbers(self._anchors[self.numbers(at, epoch)])
        return consecutive(keys.repeat(self.span))

    def upcoming(self, at: Runs, epoch: int, asked: Asked) -> list[Runs]:
        """See RowOrder."""
        windows = self.inner.upcoming(at, epoch, asked)
        return [consecutive(np.unique(self.frames(one.rows())[0])) for one in windows]

    def mixed_rows(self, ranks: int) -> int:
        """See RowOrder."""
        return self.inner.mixed_rows(ranks) * self.windows.step

    def record(self) -> dict[str, Any]:
        """See RowOrder."""
        windows = {name: getattr(self.windows, name) for name in self.windows.__dataclass_fields__}
        return {"name": self.name, "windows": windows, "groups": digest_of(self._bounds)} | {
            "order": self.inner.record()
        }

    def resumed(self, record: Mapping[str, Any], seed: int) -> RowOrder:
        """See RowOrder; the windows must be the same."""
        own = self.record()
        if not isinstance(record, Mapping) or any(
            record.get(one) != own[one] for one in ("windows", "groups")
        ):
            found = record.get("windows") if isinstance(record, Mapping) else None
            raise UsageError(
                f"state_dict: was taken with window={found}; this dataset has {self.windows!r}. Pass the same"
                " window, group and rows."
            )
        return self.ordered(self.inner.resumed(record["order"], seed))

    def __repr__(self) -> str:
        return f"{self.inner!r} of {self.count:,} windows of {self.windows.length} rows"
