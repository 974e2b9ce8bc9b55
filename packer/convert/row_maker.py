"""RowMaker: base of sources of rows, read a few rows at a time; fields come as columns or row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.convert.pixel_sums import PixelSums
from packer.convert.split_assignment import RowSource
from packer.errors import ImageError, PackerError, SourceError
from packer.format.fields import Field
from packer.format.header import TRAIN
from packer.format.part_files import Rows

_PIECE_BYTES = 256 << 10  # rows made at once; they stay in the CPU cache until they are written
_COLUMN_BYTES = 1 << 20  # rows read at once, if all fields are columns


@dataclass
class Block:
    """Some rows and their outcome; without rows, the merged outcome of a pack or of a part of it.

    count: number of rows; rows: field -> an array [count, *shape], C-contiguous, or the bytes of each row;
    files: JPEG files of images of one size, if they exist already.
    sums: sums over the packed images of the split train (TRAIN), and of all other rows (""); empty without
    images, or if they are copied files; pictures: row -> sums of its image, if sizes differ; reasons: row ->
    reason why its input could not be packed; bytes_read: bytes of inputs; narrowed: number of images whose
    bit depth changed.
    error: error of the last row, which is empty, if its input could not be packed.
    """

    count: int = 0
    rows: dict[str, Any] = field(default_factory=dict)
    files: dict[str, list[bytes]] = field(default_factory=dict)
    sums: dict[str, PixelSums] = field(default_factory=dict)
    pictures: dict[int, PixelSums] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    bytes_read: int = 0
    narrowed: int = 0
    error: SourceError | None = None

    def add_picture(self, pixels: NDArray[Any]) -> None:
        """Keep the sums of the last row's image [h, w, C], one of different sizes."""
        sums = self.pictures[self.count - 1] = PixelSums(pixels.shape[2])
        sums.add_mean(pixels)

    def measure(self, first: int, train: tuple[int, int], pixels: bool) -> None:
        """Add the images of these rows to the sums.

        first: number of row 0 in the pack; train: the rows of the split train, [first, last + 1); pixels: the
        images have one size.
        """
        low, high = (min(max(bound - first, 0), self.count) for bound in train)
        for name, start, stop in (("", 0, low), (TRAIN, low, high), ("", high, self.count)):
            if start == stop:
                continue
            if pixels:
                images = self.rows["image"][start:stop]
                sums = PixelSums(images.shape[-1])
                sums.add(images, stop - start - sum(start <= row < stop for row in self.reasons))
                self._add(name, sums)
            for row in range(start, stop) if self.pictures else ():
                if row in self.pictures:
                    self._add(name, self.pictures[row])

    def _add(self, name: str, sums: PixelSums) -> None:
        self.sums.setdefault(name, PixelSums(sums.channels)).merge(sums)

    def merge(self, other: Block, first: int = 0) -> None:
        """Add the outcome of other rows. first: number of their row 0 in this block."""
        for name, sums in other.sums.items():
            self._add(name, sums)
        self.reasons |= {first + row: reason for row, reason in other.reasons.items()}
        self.bytes_read += other.bytes_read
        self.narrowed += other.narrowed

    def to_note(self) -> list[Any]:
        """Return the outcome as plain JSON values, for the journal."""
        sums = {name: [one.pixels, one.sums, one.squares] for name, one in self.sums.items()}
        return [sums, list(self.reasons.items()), self.bytes_read, self.narrowed]

    @classmethod
    def from_note(cls, note: list[Any]) -> Block:
        """Return the outcome from the result of to_note."""
        sums, reasons, bytes_read, narrowed = note
        pixel_sums = {name: PixelSums(len(one[1]), *one) for name, one in sums.items()}
        reasons = {int(row): str(reason) for row, reason in reasons}
        return cls(sums=pixel_sums, reasons=reasons, bytes_read=bytes_read, narrowed=narrowed)


class RowMaker(RowSource):
    """Base class of sources of rows, with all fields except the key.

    Subclasses define ``columns``, ``make``, or both. Thread-safe, and safe in forked processes, with equal
    results.
    fields: fields before storage (raw, JPEG, compressed), which RowStorage decides. ragged_bytes: estimated
    bytes of a row's ragged fields.
    """

    fields: Sequence[Field] = ()
    ragged_bytes: int = 0

    def columns(self, samples: NDArray[np.int64]) -> Mapping[str, Rows]:
        """Return the fields that are read as columns, as in Block.rows; the same fields for any samples."""
        return {}

    def make(self, sample: int, at: int, block: Block) -> None:
        """Make a row of the other fields: write it to ``block.rows[name][at]``, and count the bytes read.

        Raises ImageError with the reason, without the input's name, before it counts anything.
        """
        raise NotImplementedError

    def ahead(self, samples: NDArray[np.int64]) -> None:
        """Start to read the inputs of the next rows, in this order, if that helps."""

    def name(self, sample: int) -> str:
        """Return the name of the sample's input, for messages."""
        return f"row {sample}"

    def key(self, sample: int) -> str:
        """Return the sample's key in the pack: its relative path, or its number."""
        return str(sample)

    @cached_property
    def made_fields(self) -> list[Field]:
        """Fields whose rows are made one after the other."""
        known = self.columns(np.empty(0, np.int64))
        return [f for f in self.fields if f.name not in known]

    @property
    def row_bytes(self) -> int:
        """Estimated bytes of a row before compression."""
        return sum(f.row_bytes for f in self.fields if not f.ragged) + self.ragged_bytes

    def pack_bytes(self, rows: int) -> int:
        """Return the estimated bytes of a pack before compression."""
        return self.row_bytes * rows + (1 << 16)

    def read(
        self, samples: NDArray[np.int64], begin: Callable[[int], None] = lambda sample: None
    ) -> Iterator[Block]:
        """Yield the rows of some samples in order, a few at a time; arrays are valid until the next block.

        If rows are made one after the other, the first block has all rows of the columns; a row that could
        not be made ends its block. begin: called before each sample is made; it can raise ImageError.
        """
        made_fields, count = self.made_fields, len(samples)
        large = made_fields or [f for f in self.fields if f.pixels]
        row_bytes = sum(f.row_bytes for f in large if not f.ragged)
        most = _PIECE_BYTES if made_fields else _COLUMN_BYTES
        step = max(1, min(count, most // row_bytes)) if row_bytes else count
        if not made_fields:
            for first in range(0, count, step):
                some = samples[first : first + step]
                rows = dict(self.columns(some))
                nbytes = sum(map(_nbytes, rows.values()))
                yield Block(len(some), rows, bytes_read=nbytes)
            return
        columns = dict(self.columns(samples))
        buffers = {f.name: np.empty((step, *(f.shape or ())), f.dtype) for f in made_fields if not f.ragged}
        first = 0
        while first < count:
            lists = {f.name: [b""] * step for f in made_fields if f.ragged}
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
                "workers=, or a smaller max_pixels=."
            ) from None
        except ImageError as error:
            for rows in (*block.rows.values(), *block.files.values()):
                rows[at] = b"" if isinstance(rows, list) else 0
            block.reasons[at] = str(error)
            block.error = self.refusal(sample, error)

    def refusal(self, sample: int, error: ImageError) -> SourceError:
        """Return the error of a run that stops at an input that could not be packed."""
        failed = SourceError(f"{self.name(sample)}: {error} Remove it, or pass on_error='skip'.")
        failed.__dict__.update(error.__dict__)
        failed.__cause__ = error.__cause__
        return failed


def _nbytes(rows: Rows) -> int:
    return rows.nbytes if isinstance(rows, np.ndarray) else sum(map(len, rows))
