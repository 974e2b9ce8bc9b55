"""The last step of converting a table: staged rows, in the pack's order, mapped to its fields a block at a time."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from packer.convert.row_maker import ColumnRows
from packer.errors import UsageError
from packer.format.header import Field
from packer.format.pack_writer import Rows
from packer.sentence import Option
from packer.tables.shuffled_file import ShuffledFile
from packer.tables.staging import Staged
from packer.tables.transform.row_mapper import RowMapper


class TableRows(ColumnRows):
    """A RowMaker over staged rows; samples are their numbers in the order of the input."""

    def __init__(self, staged: Staged, records: ShuffledFile, mapper: RowMapper) -> None:
        """records: of `staged`, prepared."""
        self._records, self._mapper = records, mapper
        self._dtype = staged.layout.dtype
        # A label that all files lack (with `like`) is no field; a kept column neither.
        made = mapper.map(np.zeros(0, self._dtype)).fields
        self.fields = tuple(
            Field(f.name, f.dtype, f.shape, f.about) for f in mapper.transform.fields() if f.name in made
        )
        self._texts: bytes | mmap.mmap = b""
        size = os.path.getsize(staged.texts)
        if size:
            with open(staged.texts, "rb") as file:
                self._texts = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        ragged = sum(1 for f in self.fields if f.ragged)
        self.ragged_bytes = size // staged.rows + 8 * ragged

    def columns(self, samples: NDArray[np.int64]) -> Mapping[str, Rows]:
        """All fields of these rows. Raises UsageError if a number does not fit its field."""
        records = self._records.take(samples).view(self._dtype).reshape(-1)
        mapped = self._mapper.map(records, memoryview(self._texts))
        if mapped.beyond is not None:
            record, name = mapped.beyond
            raise UsageError(
                f"row {int(samples[record]) + 1:,} of the rows taken, column {name!r}: its value, mapped, is beyond"
                f" {np.dtype(self._mapper.transform.dtype).name}. Mend it, pass ",
                Option("dtype", "float64"),
                ", or ",
                Option("drop", name),
                ".",
            )
        return mapped.fields
