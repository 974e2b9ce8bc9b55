"""Stretches of a remote pack: numbered runs of complete blocks, each fetched by one read and verified.

An element of an array is a row of a fixed field, an entry of offsets or a byte of a ragged field's blob. In
an array with compressed blocks it is a byte of the file, up to the array's last byte. Elements are counted
over all parts of the pack.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError, damaged
from packer.format.checksums import BlockChecksum
from packer.format.fields import OFFSETS
from packer.orders.runs import Runs, cut
from packer.packs.pack import Pack
from packer.packs.remote_file import ATTEMPTS, RemoteFile
from packer.packs.stretch_window import STRETCH_BYTES
from packer.starting import ForkSafeLock

Numbers = NDArray[np.int64]


class _Bounds(NamedTuple):
    """First elements and ends of the blocks of one array of one part.

    order: sorts the stretches by first element.
    """

    begins: Numbers
    ends: Numbers
    order: Numbers


class StretchMap:
    """The places of a pack's stretches. Thread-safe.

    count: number of stretches. Their numbers follow from the pack's header alone. A pack may have millions of
    stretches, so the map stores only facts per part, and the bounds of blocks that cannot be computed from
    their number.
    """

    files: list[str]

    def __init__(self, pack: Pack, files: Mapping[str, RemoteFile]) -> None:
        """Raise FormatError if rows of an uncompressed array lie in several pieces."""
        self._pack, self._objects, self.files = pack, files, list(files)
        self._parts = {file: part for part, file in enumerate(self.files)}
        self._arrays = pack.header.columns  # the same in each part
        fields = [pack.header.field(array.removesuffix(OFFSETS)) for array in self._arrays]
        self._compressed = [f.compressed for f in fields]
        self._blobs = [f.ragged and array == f.name for f, array in zip(fields, self._arrays, strict=True)]
        table = [_column(part, array) for part in pack.parts for array in self._arrays]
        # For each part and array: int64 [parts, arrays].
        shaped = np.array(table, np.int64).reshape(len(pack.parts), len(self._arrays), -1)
        self._steps, self._counts, self._rows, self._bases, totals = np.moveaxis(shaped, 2, 0)
        self.count: int = int(self._counts.sum())
        self._firsts = np.cumsum(self._counts).reshape(self._counts.shape) - self._counts
        # Number of elements before each part, then the total: int64 [arrays, parts + 1].
        self._before = np.insert(np.cumsum(totals, axis=0), 0, 0, axis=0).T.copy()
        self._bounds: dict[tuple[int, int], _Bounds] = {}
        self._tables: dict[int, NDArray[np.uint64]] = {}
        self._reading: defaultdict[int, ForkSafeLock] = defaultdict(ForkSafeLock)  # each part is read once

    def file(self, number: int) -> str:
        """Return the pack's file that holds a stretch."""
        return self.files[self._at(number)[0]]

    def span_of_file(self, file: str) -> tuple[int, int]:
        """Return [first, last + 1) of the stretches of a pack's file."""
        bounds = [*self._firsts[self._parts[file] :, 0][:2].tolist(), self.count]
        return bounds[0], bounds[1]

    def numbers(self, array: str) -> Runs:
        """Return the stretches of an array as runs, one per part."""
        c = self._arrays.index(array)
        return Runs(self._firsts[:, c], self._counts[:, c])

    def following(self, array: str, number: int, count: int) -> Numbers:
        """Return up to `count` stretches of an array after `number`; for a blob only those of its part.

        The places of a blob's stretches in other parts may still be unknown.
        """
        runs = self.numbers(array)
        part = int(np.searchsorted(runs.starts, number, "right")) - 1
        last = part + 1 if self._blobs[self._arrays.index(array)] else part + 1 + count
        numbers = Runs(runs.starts[part:last], runs.lengths[part:last]).rows()
        return numbers[numbers > number][:count]

    def element_bytes(self, array: str) -> int:
        """Return the size of an array's element in bytes."""
        c = self._arrays.index(array)
        if self._compressed[c]:
            return 1
        return 8 if array.endswith(OFFSETS) else self._pack.header.field(array).row_bytes

    def place(self, number: int) -> tuple[int, int]:
        """Return the byte offsets at which a stretch begins and ends in its file."""
        part, c, _ = self._at(number)
        first, last = self.span(number)
        base, size = int(self._bases[part, c]), self.element_bytes(self._arrays[c])
        before = int(self._before[c, part])
        return base + (first - before) * size, base + (last - before) * size

    def span(self, number: int) -> tuple[int, int]:
        """Return the elements [first, last + 1) of its array that a stretch holds."""
        part, c, _ = self._at(number)
        begins, ends = self._blocks(number)
        before = int(self._before[c, part])
        return before + int(begins[0]), before + int(ends.max(initial=int(begins[0])))

    def holding(self, array: str, runs: Runs) -> Numbers:
        """Return the stretches that hold elements of an array, unique and ascending.

        Where blocks are compressed, each run lies within a block. Raises FormatError if no stretch holds some
        of them.
        """
        c = self._arrays.index(array)
        before = self._before[c]
        # Bytes outside of all stretches would never be fetched and would be read as zeros.
        if (runs.starts < 0).any() or (runs.starts + runs.lengths > before[-1]).any():
            raise self._outside()
        runs, parts = cut(before, runs)
        starts = runs.starts - before[parts]
        low = self._numbered(c, parts, starts)
        high = self._numbered(c, parts, starts + runs.lengths - 1)
        if (high < low).any():
            raise self._outside()
        return np.unique(Runs(low, high - low + 1).rows())

    def _numbered(self, c: int, parts: Numbers, elements: Numbers) -> Numbers:
        """Return the stretch of each element; elements are counted from the first of their part."""
        numbers: Numbers = self._firsts[parts, c]
        if not (self._blobs[c] or self._compressed[c]):
            numbers += np.minimum(elements // self._rows[parts, c], self._counts[parts, c] - 1)
            return numbers
        for part in np.unique(parts).tolist():
            own = np.flatnonzero(parts == part)
            if (bounds := self._bounds_of(part, c)) is None:
                raise self._outside()
            step = int(self._steps[part, c])
            begins, ends = bounds.begins[::step], bounds.ends
            found = np.searchsorted(begins, elements[own], "right", sorter=bounds.order) - 1
            at = bounds.order[found]
            stops = ends[np.minimum((at + 1) * step, len(ends)) - 1]
            if (found < 0).any() or (elements[own] >= stops).any():
                raise self._outside()
            numbers[own] += at
        return numbers

    def _outside(self) -> FormatError:
        return FormatError(f"{self._pack.path}: rows lie outside its blocks. Convert the images again.")

    def find(self, array: str, runs: Runs, load: Callable[[Numbers], Iterable[memoryview]]) -> None:
        """Read the places of a blob's blocks, for the parts that have these elements.

        Other methods need them.
        Does nothing for other arrays. load: returns the bytes of stretches of the offsets. Raises
        FormatError.
        """
        c = self._arrays.index(array)
        if not self._blobs[c]:
            return
        parts = np.unique(cut(self._before[c], runs)[1])
        unknown = np.array([part for part in parts.tolist() if (part, c) not in self._bounds], np.int64)
        o = self._arrays.index(array + OFFSETS)
        numbers = Runs(self._firsts[unknown, o], self._counts[unknown, o])
        loaded = iter(load(numbers.rows()) if len(unknown) else ())
        for part, count in zip(unknown.tolist(), numbers.lengths.tolist(), strict=True):
            offsets = np.frombuffer(b"".join(itertools.islice(loaded, count)), "<i8")
            header = self._pack.parts[part].header
            bounds = offsets[np.minimum(np.arange(header.blocks + 1) * header.block_rows, header.rows)]
            total = self._before[c, part + 1] - self._before[c, part]
            if (bounds[1:] < bounds[:-1]).any() or bounds[0] < 0 or bounds[-1] > total:
                raise damaged(self._pack.parts[part].path, f"offsets of {array!r} are damaged")
            self._keep(part, c, bounds[:-1], bounds[1:])

    def fetch(self, number: int, path: str = "") -> memoryview:
        """Fetch a stretch from the store, verify its blocks, and return its bytes. Raises PackerError.

        path: a local file that receives the bytes at their offset before they are verified. A mismatch is
        fetched again, because the network may have changed the bytes.
        """
        begin, end = self.place(number)
        file = self._objects[self.file(number)]
        for _ in range(ATTEMPTS):
            data = memoryview(file.read(begin, end - begin, path))
            if path and begin < end:
                data = memoryview(np.memmap(path, np.uint8, "r", begin, (end - begin,)))
            if not (wrong := self.damaged(number, data)):
                return data
        part, c, _ = self._at(number)
        header = self._pack.parts[part].header
        first, last = wrong[0] * header.block_rows, min((wrong[0] + 1) * header.block_rows, header.rows) - 1
        raise FormatError(
            f"{file.url}: rows {first} to {last} of {self._arrays[c]!r} are damaged in the store"
            " (their checksum differs). Copy the pack there again."
        )

    def damaged(self, number: int, data: memoryview) -> list[int]:
        """Return the blocks of a stretch that these bytes do not contain, or whose checksum differs."""
        part, c, first = self._at(number)
        begins, ends = self._blocks(number)
        sums = self._checksums(part)[first : first + len(ends), c]
        stops = (ends - begins[0]) * self.element_bytes(self._arrays[c])
        raw, wrong, start = np.frombuffer(data, np.uint8), [], 0
        for block, (stop, expected) in enumerate(zip(stops.tolist(), sums.tolist(), strict=True), first):
            checksum = BlockChecksum()
            checksum.update(raw[start:stop])
            if stop > len(raw) or checksum.intdigest() != expected:
                wrong.append(block)
            start = stop
        return wrong

    def _checksums(self, part: int) -> NDArray[np.uint64]:
        with self._reading[part]:
            if part not in self._tables:
                self._tables[part] = self._pack.parts[part].checksums()
        return self._tables[part]

    def _at(self, number: int) -> tuple[int, int, int]:
        """Return the part, the array (both as numbers) and the first block of a stretch."""
        at = int(np.searchsorted(self._firsts.reshape(-1), number, "right")) - 1
        part, c = divmod(at, len(self._arrays))
        return part, c, int((number - self._firsts[part, c]) * self._steps[part, c])

    def _blocks(self, number: int) -> tuple[Numbers, Numbers]:
        """Return the first elements and the ends of a stretch's blocks, counted in its part."""
        part, c, first = self._at(number)
        header = self._pack.parts[part].header
        stop = min(first + int(self._steps[part, c]), header.blocks)
        if (bounds := self._bounds_of(part, c)) is not None:
            return bounds.begins[first:stop], bounds.ends[first:stop]
        rows = np.arange(first, stop + 1) * header.block_rows
        if stop == header.blocks:
            rows[-1] = self._before[c, part + 1] - self._before[c, part]
        return rows[:-1], rows[1:]

    def _bounds_of(self, part: int, c: int) -> _Bounds | None:
        """Return the bounds of blocks of unequal size; None if sizes are equal, or not yet known."""
        if self._compressed[c] and (part, c) not in self._bounds:
            extents = self._pack.parts[part].header.extents[self._arrays[c]]
            self._keep(part, c, *np.array([(e.offset, e.end) for e in extents], np.int64).T)
        return self._bounds.get((part, c))

    def _keep(self, part: int, c: int, begins: Numbers, ends: Numbers) -> None:
        order = np.argsort(begins[:: int(self._steps[part, c])], kind="stable")
        self._bounds[part, c] = _Bounds(begins, ends, order)


def _column(part: Pack, array: str) -> tuple[int, int, int, int, int]:
    """Return facts about an array of a part.

    Returns: blocks per stretch, number of stretches, rows per stretch, byte offset of the first element,
    number of elements.
    """
    header, extents = part.header, part.header.extents[array]
    nbytes = sum(extent.nbytes for extent in extents)
    step = max(1, min(header.blocks, STRETCH_BYTES * header.blocks // max(1, nbytes)))
    base, total = (extents[0].offset, extents[0].rows) if extents else (0, 0)
    if header.field(array.removesuffix(OFFSETS)).compressed:
        base, total = 0, max(extent.end for extent in extents)
        if any(extent.end != following.offset for extent, following in itertools.pairwise(extents)):
            step = 1
    elif len(extents) > 1:
        raise FormatError(f"{part.path}: {array!r} lies in several pieces. Repack it: packer repack.")
    return step, -(-header.blocks // step), step * header.block_rows, base, total
