"""Rows of which only number, label and columns are known, as splits are drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from packer.convert.row_maker import RowMaker
from packer.convert.sample_order import SampleOrder, arrange
from packer.convert.split_assignment import Codes, assign
from packer.convert.splits import Split


class PlainRows(RowMaker):
    """Rows with a label, and columns of texts."""

    subject = "t"

    def __init__(self, count: int, label: Any = None, columns: Mapping[str, Any] | None = None) -> None:
        self.count, self._label, self._columns = count, label, columns or {}

    def codes(self, column: str | None) -> Codes | None:
        values = self._label if column is None else self._columns[column]
        return None if values is None else Codes.from_values(values)


def order_of(
    rows: int,
    split: Any = None,
    *,
    label: Any = None,
    shuffle: bool = True,
    seed: int = 0,
    folder: str | None = None,
) -> SampleOrder:
    """The order of plain rows."""
    owners = assign(Split.parse(split), PlainRows(rows, label), seed)
    return arrange(owners, shuffle=shuffle, seed=seed, folder=folder)


def members(rows: RowMaker, split: Any, seed: int = 0) -> dict[str, np.ndarray]:
    """The rows of each split."""
    owners = assign(Split.parse(split), rows, seed)
    return {name: np.flatnonzero(owners.numbers == number) for number, name in enumerate(owners.names)}
