"""What makes the rows of a pack: from image files (ImageRows), from another pack (PackRows), or a block at a time (ColumnRows)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from packer.format.header import Field
from packer.format.pack_writer import Rows


class MadeRow(NamedTuple):
    """The result of making a row, beside what was filled in.

    bytes_read: of inputs; ragged: field -> the row's bytes, of the ragged fields; narrowed: the input had more than 8 bits a channel,
    or 8 for a row of 16.
    pixels: uint8 [h, w, C], those of an image of a size of its own that count for mean and standard deviation, valid until the next row.
    """

    bytes_read: int
    ragged: Mapping[str, bytes] = {}
    narrowed: bool = False
    pixels: NDArray[np.uint8] | None = None


class RowMaker(Protocol):
    """A maker of rows, of all fields but the key. One object serves any number of threads and forked processes, with equal results.

    fields: as they are made; how an image is stored (raw, JPEG, compressed) is not its business. ragged_bytes: about how many a
    row's ragged fields have together.
    """

    @property
    def fields(self) -> Sequence[Field]:
        """In order, without the key."""

    @property
    def ragged_bytes(self) -> int:
        """About, a row."""

    def columns(self, samples: NDArray[np.int64]) -> Mapping[str, Rows]:
        """Return the fields that need no row made, the same ones whatever the samples: of fixed fields [len(samples), *shape],
        C-contiguous; of ragged ones a list of each row's bytes.
        """

    def ahead(self, samples: NDArray[np.int64]) -> None:
        """Begin to read the inputs of rows that will be made soon, in that order, where that helps."""

    def make(self, sample: int, row: Mapping[str, NDArray[np.generic]]) -> MadeRow:
        """Fill one row of the other fixed fields, name -> [*shape].

        Raises ImageError with the reason, but not the input's name.
        """

    def name(self, sample: int) -> str:
        """Return what the sample's input is called in messages."""

    def key(self, sample: int) -> str:
        """Return what the pack calls it: its relative path."""


class ColumnRows(ABC):
    """Base of RowMakers whose fields are all columns: no row is made by itself, and rows have no names."""

    fields: tuple[Field, ...] = ()
    ragged_bytes: int = 0

    @abstractmethod
    def columns(self, samples: NDArray[np.int64]) -> Mapping[str, Rows]:
        """See RowMaker; all fields."""

    def ahead(self, samples: NDArray[np.int64]) -> None:  # noqa: B027
        """Do nothing: rows have no inputs of their own."""

    def make(self, sample: int, row: Mapping[str, NDArray[np.generic]]) -> MadeRow:
        """Raise NotImplementedError: nothing is left to be made."""
        raise NotImplementedError

    def name(self, sample: int) -> str:
        """Return its number."""
        return f"row {sample}"

    def key(self, sample: int) -> str:
        """Return its number; packs of such rows have no keys."""
        return str(sample)
