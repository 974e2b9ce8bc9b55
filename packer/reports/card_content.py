"""All that stands on a data card, before it is written as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from packer.format.pack import Pack
from packer.reports.label_measures import LabelMeasures, RowGroup
from packer.reports.near_duplicates import Duplicates
from packer.reports.thumbnails import Thumbnail


@dataclass(frozen=True)
class CardContent:
    """All that stands on the page. names: of the packs; parts: by number, row_parts: of each row, [N]; sheet: rows of the contact sheet.

    sizes: int32 [N, 2], None if all images have one size; thumbnails: by row; duplicates: None where they were not looked for.
    """

    packs: Sequence[Pack]
    names: Sequence[str]
    parts: Sequence[RowGroup]
    row_parts: NDArray[np.int16]
    labels: LabelMeasures
    duplicates: Duplicates | None = None
    sheet: Sequence[int] = ()
    thumbnails: Mapping[int, Thumbnail] = field(default_factory=dict)
    sizes: NDArray[np.int32] | None = None

    @property
    def rows(self) -> int:
        """Rows of all packs."""
        return sum(pack.rows for pack in self.packs)

    @property
    def noun(self) -> str:
        """The noun for a row: "image" or "row"."""
        return "image" if any(f.name == "image" for f in self.packs[0].fields) else "row"

    @property
    def place(self) -> str:
        """The noun for what rows are parted into: "split" or "pack"."""
        return "split" if any(pack.header.splits for pack in self.packs) else "pack"
