"""The stretches of a pack in a store: runs of whole blocks of one array, numbered; each is had by one ranged read, and checked."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError, damaged
from packer.format.checksums import BlockChecksum
from packer.format.header import OFFSETS, Extent
from packer.format.remote_pack import ATTEMPTS, RemotePack

STRETCH_BYTES = 8 << 20  # about: smaller ones cost requests, larger ones what is not needed

Numbers = NDArray[np.int64]
Load = Callable[[int], memoryview]
"""Returns the bytes of a stretch."""


class StretchRuns(NamedTuple):
    """Numbers of stretches that follow each other, in runs. firsts: of each run; lengths: of each."""

    firsts: Numbers
    lengths: Numbers

    @property
    def total(self) -> int:
        """Numbers in all runs together."""
        return int(self.lengths.sum())

    def numbers(self) -> Numbers:
        """Return all of them."""
        before = np.cumsum(self.lengths) - self.lengths
        return np.repeat(self.firsts - before, self.lengths) + np.arange(self.total)

    def part(self, start: int, stop: int) -> Numbers:
        """Return numbers start..stop-1, counted over all of them; 0 <= start <= stop <= total."""
        ends = np.cumsum(self.lengths)
        begins = np.maximum(ends - self.lengths, start)
        lengths = np.minimum(ends, stop) - begins
        some = lengths > 0
        return StretchRuns((self.firsts + begins - ends + self.lengths)[some], lengths[some]).numbers()


class _Stretches(NamedTuple):
    """The stretches of one array of one part. first: number of the first one; step: blocks of each."""

    part: int
    array: str
    first: int
    step: int
    blocks: int


class _Segments(NamedTuple):
    """Runs of bytes by address, rising, each of one array of one part: all of it, or, where blocks are compressed, a stretch.

    firsts: number of the first stretch; counts: of stretches; strides: bytes of each but the last, 0 where only a blob's offsets tell.
    """

    starts: Numbers
    stops: Numbers
    firsts: Numbers
    counts: Numbers
    strides: Numbers


class StretchMap:
    """The places of a pack's stretches. Thread-safe.

    count: of stretches. Their numbers follow from the pack's header alone. Bytes have an address: all files one after the other.
    What is kept is of the parts of the pack, and of those stretches alone whose place does not follow from their number: a pack may
    have millions of them.
    """

    def __init__(self, pack: RemotePack) -> None:
        self._pack = pack
        self.files = list(pack.files)
        sizes = [pack.files[file].info.size for file in self.files]
        self._bases = np.cumsum([0, *sizes])
        self._numbers_of = {file: number for number, file in enumerate(self.files)}
        self._columns = pack.header.columns  # of each part the same
        self._runs: list[_Stretches] = []
        self._bounds: dict[tuple[int, str], tuple[Numbers, Numbers]] = {}  # of blocks that differ in size
        self._tables: dict[int, NDArray[np.uint64]] = {}
        self._reading: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)  # read once
        self._lock = threading.Lock()
        segments: list[Numbers] = []
        self.count = 0
        for number, part in enumerate(pack.parts):
            for array in self._columns:
                extents, blocks = part.header.extents[array], part.header.blocks
                nbytes = sum(extent.nbytes for extent in extents)
                step = max(1, min(blocks, STRETCH_BYTES * blocks // max(1, nbytes)))
                if not _together(extents):
                    step = 1
                run = _Stretches(number, array, self.count, step, blocks)
                self._runs.append(run)
                segments.append(self._segments_of(run))
                self.count += -(-blocks // step)
        self._run_firsts = np.array([run.first for run in self._runs], np.int64)
        table = np.concatenate(segments, axis=1)  # columns: see _Segments
        table = table[:, table[0] < table[1]]  # those of empty arrays hold nothing
        self._segments = _Segments(*table[:, np.argsort(table[0], kind="stable")])

    def _segments_of(self, run: _Stretches) -> Numbers:
        """Return where the stretches of a run lie, int64 [5, segments]. Raises FormatError."""
        part = self._pack.parts[run.part]
        header, extents = part.header, part.header.extents[run.array]
        base, count = int(self._bases[run.part]), -(-run.blocks // run.step)
        if header.field(run.array.removesuffix(OFFSETS)).compressed:
            begins = np.array([extent.offset for extent in extents], np.int64)
            ends = np.array([extent.end for extent in extents], np.int64)
            self._bounds[run.part, run.array] = begins, ends
            lasts = np.minimum(np.arange(run.step, run.blocks + run.step, run.step), run.blocks) - 1
            one = np.ones(count, np.int64)
            starts, stops = base + begins[:: run.step], base + ends[lasts]
            return np.stack([starts, stops, run.first + np.arange(count), one, one << 62])
        if not extents:
            return np.empty((5, 0), np.int64)
        stride = 0 if self._is_blob(run) else run.step * header.block_rows * extents[0].row_bytes
        if len(extents) > 1 and stride:
            raise FormatError(f"{part.path}: {run.array!r} lies in several pieces. Repack it: packer repack.")
        bounds = base + extents[0].offset, base + max(extent.end for extent in extents)
        return np.array([*bounds, run.first, count, stride], np.int64).reshape(5, 1)

    def file(self, number: int) -> str:
        """Return the name of the file of the pack in which a stretch lies."""
        return self.files[self._run(number).part]

    def of_file(self, file: str) -> tuple[int, int]:
        """Return [first, last + 1) of the stretches of a file of the pack."""
        firsts = [*self._run_firsts[:: len(self._columns)][self._numbers_of[file] :][:2].tolist(), self.count]
        return firsts[0], firsts[1]

    def array(self, number: int) -> str:
        """Return the name of the array that a stretch is of."""
        return self._run(number).array

    def place(self, number: int) -> tuple[int, int]:
        """Return where in its file a stretch begins and ends."""
        begins, ends, _ = self._blocks(number)
        return int(begins[0]), int(ends.max(initial=int(begins[0])))

    def of_addresses(self, begins: Numbers, ends: Numbers) -> Numbers:
        """Return the stretches that hold any of these bytes, [begin, end) by address, each once, rising."""
        some = begins < ends
        if not some.all():
            begins, ends = begins[some], ends[some]
        table = self._segments
        low = np.searchsorted(table.starts, begins, "right") - 1
        high = np.searchsorted(table.starts, ends, "left") - 1
        # Bytes of no stretch would never be fetched, and read as zeros.
        if (low < 0).any() or (table.stops[high] < ends).any():
            raise self._outside()
        firsts, lasts = self._numbered(low, begins), self._numbered(high, ends - 1)
        over = np.flatnonzero(low < high)
        if not len(over):
            return np.unique(StretchRuns(firsts, lasts - firsts + 1).numbers())
        found = [StretchRuns(firsts, np.where(low < high, 0, lasts - firsts + 1)).numbers()]
        for a, b, first, last in zip(
            *(each[over].tolist() for each in (low, high, firsts, lasts)), strict=True
        ):
            if (table.starts[a + 1 : b + 1] != table.stops[a:b]).any():
                raise self._outside()
            begun, stopped = table.firsts[a : b + 1].copy(), table.firsts[a : b + 1] + table.counts[a : b + 1]
            begun[0], stopped[-1] = first, last + 1
            found.append(StretchRuns(begun, stopped - begun).numbers())
        return np.unique(np.concatenate(found))

    def _numbered(self, at: Numbers, addresses: Numbers) -> Numbers:
        """Return the stretch in which each address lies. at: the segment of each."""
        table = self._segments
        stride = table.strides[at]
        places = np.minimum((addresses - table.starts[at]) // np.maximum(stride, 1), table.counts[at] - 1)
        numbers: Numbers = table.firsts[at] + places
        blobs = np.flatnonzero(stride == 0)
        for segment in np.unique(at[blobs]).tolist():
            run = self._run(int(table.firsts[segment]))
            if (run.part, run.array) not in self._bounds:
                raise self._outside()
            own = blobs[at[blobs] == segment]
            begins, ends = self._bounds[run.part, run.array]
            inside = addresses[own] - self._bases[run.part]
            if (inside < begins[0]).any() or (inside >= ends[-1]).any():
                raise self._outside()
            numbers[own] = run.first + np.searchsorted(begins[:: run.step], inside, "right") - 1
        return numbers

    def _outside(self) -> FormatError:
        return FormatError(f"{self._pack.path}: rows lie outside its blocks. Convert the images again.")

    def address(self, file: str) -> int:
        """Return the address of a file's first byte."""
        return int(self._bases[self._numbers_of[file]])

    def parts_of(self, begins: Numbers, ends: Numbers) -> list[int]:
        """Return the parts in which any of these bytes lie, each [begin, end) in one, rising."""
        found: list[int] = np.unique(
            np.searchsorted(self._bases, begins[begins < ends], "right") - 1
        ).tolist()
        return found

    def blob_of(self, extents: Sequence[Extent]) -> str:
        """Return the name of the blob whose extents these are; "" if they are another array's."""
        for name, own in self._pack.header.extents.items():
            if own[:1] == tuple(extents[:1]) and self._pack.header.field(name.removesuffix(OFFSETS)).ragged:
                return "" if name.endswith(OFFSETS) else name
        return ""

    def offsets_of(self, blobs: Sequence[tuple[int, str]]) -> Numbers:
        """Return the stretches that hold the offsets of these blobs (part and name), as far as they are not known yet."""
        runs = [
            self._run_of(part, name + OFFSETS) for part, name in blobs if (part, name) not in self._bounds
        ]
        return np.concatenate([np.empty(0, np.int64), *(self._numbers(run) for run in runs)]).astype(np.int64)

    def find_blobs(self, blobs: Sequence[tuple[int, str]], load: Load) -> None:
        """Find where the blocks of blobs lie, by their offsets. load: gives a stretch of these. Raises FormatError."""
        for part, name in blobs:
            if (part, name) in self._bounds:
                continue
            run = self._run_of(part, name + OFFSETS)
            offsets = np.frombuffer(b"".join(load(number) for number in self._numbers(run).tolist()), "<i8")
            header = self._pack.parts[part].header
            rows = np.minimum(np.arange(run.blocks + 1) * header.block_rows, header.rows)
            bounds = offsets[rows]
            extents = header.extents[name]
            total = sum(extent.rows for extent in extents)
            if (bounds[1:] < bounds[:-1]).any() or bounds[0] < 0 or bounds[-1] > total or len(extents) > 1:
                raise damaged(self._pack.parts[part].path, f"offsets of {name!r} are damaged")
            bounds = bounds + (extents[0].offset if extents else 0)
            with self._lock:
                self._bounds[part, name] = bounds[:-1], bounds[1:]

    def needs_offsets(self, number: int) -> list[tuple[int, str]]:
        """Return the blob that a stretch is of, if its place is not known yet."""
        run = self._run(number)
        needed = self._is_blob(run) and (run.part, run.array) not in self._bounds
        return [(run.part, run.array)] if needed else []

    def fetch(self, number: int, path: str = "") -> memoryview:
        """Read a stretch from the store, compare its blocks with their checksums, and return its bytes. Raises PackerError.

        path: of a file of this machine that gets the bytes in their places, before they are compared.
        """
        data, wrong = self._read(number, path)
        if wrong:
            run, header = self._run(number), self.part(number).header
            first, last = (
                wrong[0] * header.block_rows,
                min((wrong[0] + 1) * header.block_rows, header.rows) - 1,
            )
            raise FormatError(
                f"{self._pack.files[self.file(number)].url}: rows {first} to {last} of {run.array!r} are damaged in the store"
                " (their checksum differs). Copy the pack there again."
            )
        return data

    def damaged(self, number: int, data: memoryview) -> list[int]:
        """Return the blocks of a stretch whose checksum differs in these bytes, or that these do not hold."""
        run = self._run(number)
        begins, ends, first = self._blocks(number)
        sums = self._checksums(run.part)[first : first + len(ends), self._columns.index(run.array)]
        raw, wrong = np.frombuffer(data, np.uint8), []
        for block, (end, expected) in enumerate(zip((ends - begins[0]).tolist(), sums.tolist(), strict=True)):
            checksum = BlockChecksum()
            checksum.update(raw[int(ends[block - 1] - begins[0]) if block else 0 : end])
            if end > len(raw) or checksum.intdigest() != expected:
                wrong.append(first + block)
        return wrong

    def _read(self, number: int, path: str = "") -> tuple[memoryview, list[int]]:
        """Read a stretch, again while some blocks differ, as the network may have changed them; return these, too."""
        begin, end = self.place(number)
        file = self._pack.files[self.file(number)]
        for _ in range(ATTEMPTS):
            data = memoryview(file.read(begin, end - begin, path))
            if path and begin < end:
                data = memoryview(np.memmap(path, np.uint8, "r", begin, (end - begin,)))
            wrong = self.damaged(number, data)
            if not wrong:
                break
        return data, wrong

    @property
    def blobs(self) -> list[str]:
        """The names of the ragged fields' blobs."""
        return [field.name for field in self._pack.fields if field.ragged]

    def part(self, number: int) -> RemotePack:
        """Return the part of the pack in which a stretch lies."""
        part = self._pack.parts[self._run(number).part]
        assert isinstance(part, RemotePack)
        return part

    def numbers(self, array: str) -> StretchRuns:
        """Return the stretches of an array, of all parts: a run a part."""
        runs = [run for run in self._runs if run.array == array]
        counts = [-(-run.blocks // run.step) for run in runs]
        return StretchRuns(np.array([run.first for run in runs], np.int64), np.array(counts, np.int64))

    def _checksums(self, part: int) -> NDArray[np.uint64]:
        with self._reading[part]:
            if part not in self._tables:
                self._tables[part] = self._pack.parts[part].checksums()
        return self._tables[part]

    def _run(self, number: int) -> _Stretches:
        return self._runs[int(np.searchsorted(self._run_firsts, number, "right")) - 1]

    def _numbers(self, run: _Stretches) -> Numbers:
        return np.arange(run.first, run.first - (-run.blocks // run.step), dtype=np.int64)

    def _run_of(self, part: int, array: str) -> _Stretches:
        return self._runs[part * len(self._columns) + self._columns.index(array)]

    def _blocks(self, number: int) -> tuple[Numbers, Numbers, int]:
        """Return where the blocks of a stretch begin and end, and the number of the first of them."""
        run = self._run(number)
        first = (number - run.first) * run.step
        stop = min(first + run.step, run.blocks)
        bounds = self._bounds.get((run.part, run.array))
        if bounds is not None:
            return bounds[0][first:stop], bounds[1][first:stop], first
        header = self._pack.parts[run.part].header
        extents = header.extents[run.array]
        rows = np.minimum(np.arange(first, stop + 1) * header.block_rows, header.rows)
        if stop == run.blocks:
            rows[-1] = header.rows + run.array.endswith(OFFSETS)
        ends = (extents[0].offset if extents else 0) + rows * (extents[0].row_bytes if extents else 1)
        return ends[:-1], ends[1:], first

    def _is_blob(self, run: _Stretches) -> bool:
        field = self._pack.header.field(run.array.removesuffix(OFFSETS))
        return field.ragged and run.array == field.name


def _together(extents: Sequence[Extent]) -> bool:
    """Return True if these extents follow each other in their file without a gap."""
    return all(extent.end == following.offset for extent, following in itertools.pairwise(extents))
