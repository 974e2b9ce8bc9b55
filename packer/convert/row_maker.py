"""What makes the rows of a pack, a few at a time: as whole columns, one after the other, or some fields so and some so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.convert.pixel_sums import PixelSums
from packer.errors import ImageError, PackerError, SourceError
from packer.format.header import Field
from packer.format.pack_writer import Rows
from packer.sentence import Option

_PIECE_BYTES = 256 << 10  # rows that are made at once: they stay in the cache until they are written
_COLUMN_BYTES = 1 << 20  # rows that are read at once


@dataclass
class Block:
    """Some rows, and what making them gave; without rows, the sum of that over a pack, or a part of it.

    count: of the rows; rows: field -> an array [count, *shape], C-contiguous, or the bytes of each row; files: of images of one size the
    JPEG files of theirs, where these are there already.
    sums: over the packed images, None where there are none, or they are files as they were given; reasons: row -> why its input could
    not be packed; bytes_read: of the inputs; narrowed: of how many of them the depth was changed.
    error: of the last row, which is empty, if its input could not be packed.
    """

    count: int = 0
    rows: dict[str, Any] = field(default_factory=dict)
    files: dict[str, list[bytes]] = field(default_factory=dict)
    sums: PixelSums | None = None
    reasons: dict[int, str] = field(default_factory=dict)
    bytes_read: int = 0
    narrowed: int = 0
    error: SourceError | None = None

    def add_picture(self, pixels: NDArray[Any]) -> None:
        """Count a picture of a size of its own, [h, w, C], for mean and standard deviation."""
        if self.sums is None:
            self.sums = PixelSums(pixels.shape[2])
        self.sums.add_mean(pixels)

    def merge(self, other: Block, first: int = 0) -> None:
        """Add what making other rows gave. first: the row of their row 0."""
        if self.sums is None:
            self.sums = copy(other.sums)
        elif other.sums is not None:
            self.sums.merge(other.sums)
        self.reasons |= {first + row: reason for row, reason in other.reasons.items()}
        self.bytes_read += other.bytes_read
        self.narrowed += other.narrowed

    def to_note(self) -> list[Any]:
        """Return what making the rows gave as plain JSON values, for the journal."""
        sums = None if self.sums is None else [self.sums.pixels, self.sums.sums, self.sums.squares]
        return [sums, list(self.reasons.items()), self.bytes_read, self.narrowed]

    @classmethod
    def from_note(cls, note: list[Any]) -> Block:
        """Read what to_note gave."""
        sums, reasons, bytes_read, narrowed = note
        made = None if sums is None else PixelSums(len(sums[1]), *sums)
        reasons = {int(row): str(reason) for row, reason in reasons}
        return cls(sums=made, reasons=reasons, bytes_read=bytes_read, narrowed=narrowed)


class RowMaker:
    """Base of makers of rows, of all fields but the key. A subclass has ``columns``, ``make``, or both.

    One object serves any number of threads and forked processes, with equal results.
    fields: as they are made; how an image is stored (raw, JPEG, compressed) is not its business. ragged_bytes: about how many a
    row's ragged fields have together.
    """

    fields: Sequence[Field] = ()
    ragged_bytes: int = 0

    def columns(self, samples: NDArray[np.int64]) -> Mapping[str, Rows]:
        """Return the fields that need no row made, the same ones whatever the samples: see Block.rows."""
        return {}

    def make(self, sample: int, at: int, block: Block) -> None:
        """Make one row of the other fields: fill in ``block.rows[name][at]``, count what was read.

        Raises ImageError with the reason, but not the input's name; nothing may be counted then.
        """
        raise NotImplementedError

    def ahead(self, samples: NDArray[np.int64]) -> None:
        """Begin to read the inputs of rows that will be made soon, in that order, where that helps."""

    def labels(self) -> NDArray[np.int64] | None:
        """Return the label of each sample, of which splits get equal shares; None where there are none."""
        return None

    def name(self, sample: int) -> str:
        """Return what the sample's input is called in messages."""
        return f"row {sample}"

    def key(self, sample: int) -> str:
        """Return what the pack calls it: its relative path, or its number."""
        return str(sample)

    @cached_property
    def made(self) -> list[Field]:
        """The fields whose rows are made one after the other."""
        known = self.columns(np.empty(0, np.int64))
        return [f for f in self.fields if f.name not in known]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, about, before it is compressed."""
        return sum(f.row_bytes for f in self.fields if not f.ragged) + self.ragged_bytes

    def pack_bytes(self, rows: int) -> int:
        """Return the bytes of a pack of so many rows, about, before they are compressed."""
        return self.row_bytes * rows + (1 << 16)

    def read(
        self, samples: NDArray[np.int64], begin: Callable[[int], None] = lambda sample: None
    ) -> Iterator[Block]:
        """Yield the rows of some samples in order, a few at a time; arrays are valid until the next.

        Where rows are made one after the other, columns come whole with the first of them; a row that could not be made ends its
        block. begin: called with each sample that is made; it raises ImageError for one that must not be.
        """
        made, count = self.made, len(samples)
        large = made or [f for f in self.fields if f.pixels]
        row_bytes = sum(f.row_bytes for f in large if not f.ragged)
        most = _PIECE_BYTES if made else _COLUMN_BYTES
        step = max(1, min(count, most // row_bytes)) if row_bytes else count
        if not made:
            for first in range(0, count, step):
                some = samples[first : first + step]
                rows = dict(self.columns(some))
                nbytes = sum(map(_nbytes, rows.values()))
                yield Block(len(some), rows, bytes_read=nbytes)
            return
        columns = dict(self.columns(samples))
        buffers = {f.name: np.empty((step, *(f.shape or ())), f.dtype) for f in made if not f.ragged}
        first = 0
        while first < count:
            lists = {f.name: [b""] * step for f in made if f.ragged}
            block = Block(rows={**buffers, **lists})
            for sample in samples[first : first + step].tolist():
                self._make(sample, block, begin)
                if block.error is not None:
                    break
            block.rows = columns | {name: rows[: block.count] for name, rows in block.rows.items()}
            block.files = {name: files[: block.count] for name, files in block.files.items()}
            yield block
            columns, first = {}, first + block.count

    def _make(self, sample: int, block: Block, begin: Callable[[int], None]) -> None:
        """Make the next row of a block."""
        at, block.count = block.count, block.count + 1
        try:
            begin(sample)
            self.make(sample, at, block)
        except MemoryError:
            raise PackerError(
                f"{self.name(sample)}: not enough memory to decode it. Pass fewer "
                f"{Option('workers')}, or a smaller {Option('max_pixels')}."
            ) from None
        except ImageError as error:
            for rows in (*block.rows.values(), *block.files.values()):
                rows[at] = b"" if isinstance(rows, list) else 0
            block.reasons[at] = error.sentence
            block.error = self.refusal(sample, error)

    def refusal(self, sample: int, error: ImageError) -> SourceError:
        """Return the error that ends a run at an input that could not be packed."""
        failed = SourceError(
            f"{self.name(sample)}: ", error.sentence, f" Remove it, or pass {Option('on_error', 'skip')}."
        )
        failed.__dict__.update(error.__dict__)
        failed.__cause__ = error.__cause__
        return failed


def _nbytes(rows: Rows) -> int:
    return rows.nbytes if isinstance(rows, np.ndarray) else sum(map(len, rows))
