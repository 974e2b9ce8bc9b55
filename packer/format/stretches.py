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
from packer.remote.object_store import Take

STRETCH_BYTES = 8 << 20  # about: smaller ones cost requests, larger ones what is not needed

Numbers = NDArray[np.int64]
Load = Callable[[int], memoryview]
"""Returns the bytes of a stretch."""


class _Stretches(NamedTuple):
    """The stretches of one array of one part. first: number of the first one; step: blocks of each."""

    part: int
    array: str
    first: int
    step: int
    blocks: int


class StretchMap:
    """The places of a pack's stretches. Thread-safe.

    count: of stretches. Their numbers follow from the pack's header alone. Bytes have an address: all files one after the other.
    """

    def __init__(self, pack: RemotePack) -> None:
        self._pack = pack
        self.files = list(pack.files)
        sizes = [pack.files[file].info.size for file in self.files]
        self._bases = dict(zip(self.files, np.cumsum([0, *sizes]).tolist(), strict=False))
        self._runs: list[_Stretches] = []
        at = 0
        for number, part in enumerate(pack.parts):
            for array in part.header.columns:
                nbytes = sum(extent.nbytes for extent in part.header.extents[array])
                blocks = part.header.blocks
                step = max(1, min(blocks, STRETCH_BYTES * blocks // max(1, nbytes)))
                if not _together(part.header.extents[array]):
                    step = 1
                self._runs.append(_Stretches(number, array, at, step, blocks))
                at += -(-blocks // step)
        self.count = at
        self._firsts = np.array([run.first for run in self._runs], np.int64)
        self._bounds: dict[tuple[int, str], tuple[Numbers, Numbers]] = {}
        self._tables: dict[int, NDArray[np.uint64]] = {}
        self._reading: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)  # read once
        self._lock = threading.Lock()
        self._sorted: tuple[Numbers, Numbers, Numbers] | None = None
        for run in self._runs:
            if not self._is_blob(run):
                self._bounds[run.part, run.array] = self._known_bounds(run)

    def file(self, number: int) -> str:
        """Return the name of the file of the pack in which a stretch lies."""
        return self.files[self._run(number).part]

    def array(self, number: int) -> str:
        """Return the name of the array that a stretch is of."""
        return self._run(number).array

    def place(self, number: int) -> tuple[int, int]:
        """Return where in its file a stretch begins and ends."""
        begins, ends, first, stop = self._blocks(number)
        return int(begins[first]), int(ends[first:stop].max(initial=int(begins[first])))

    def of_addresses(self, begins: Numbers, ends: Numbers) -> Numbers:
        """Return the stretches that hold any of these bytes, [begin, end) by address, each once, rising."""
        table = self._sorted
        if table is None:
            with self._lock:
                table = self._sorted = self._table()
        starts, stops, numbers = table
        first = np.maximum(np.searchsorted(starts, begins, "right") - 1, 0)
        stop = np.searchsorted(starts, ends, "left")
        some = begins < ends
        if not some.all():
            begins, ends, first, stop = begins[some], ends[some], first[some], stop[some]
        # Bytes of no stretch would never be fetched, and read as zeros.
        if (stop <= first).any() or (starts[first] > begins).any() or (stops[stop - 1] < ends).any():
            raise FormatError(f"{self._pack.path}: rows lie outside its blocks. Convert the images again.")
        if (stop - first == 1).all():
            return np.unique(numbers[first])
        if any(
            (starts[a + 1 : b] != stops[a : b - 1]).any()
            for a, b in zip(first.tolist(), stop.tolist(), strict=True)
        ):
            raise FormatError(f"{self._pack.path}: rows lie outside its blocks. Convert the images again.")
        return np.unique(
            np.concatenate([numbers[a:b] for a, b in zip(first.tolist(), stop.tolist(), strict=True)])
        )

    def address(self, file: str) -> int:
        """Return the address of a file's first byte."""
        return int(self._bases[file])

    def blob_of(self, extents: Sequence[Extent]) -> list[tuple[int, str]]:
        """Return the parts and the name of the blob whose extents these are; none if they are another array's."""
        for name, own in self._pack.header.extents.items():
            if own[:1] == tuple(extents[:1]) and self._pack.header.field(name.removesuffix(OFFSETS)).ragged:
                return (
                    [] if name.endswith(OFFSETS) else [(part, name) for part in range(len(self._pack.parts))]
                )
        return []

    def offsets_of(self, blobs: Sequence[tuple[int, str]]) -> Numbers:
        """Return the stretches that hold the offsets of these blobs, as far as they are not known yet."""
        wanted = {(part, name + OFFSETS) for part, name in blobs if (part, name) not in self._bounds}
        runs = [run for run in self._runs if (run.part, run.array) in wanted]
        return np.concatenate([np.empty(0, np.int64), *(self._numbers(run) for run in runs)]).astype(np.int64)

    def find_blobs(self, blobs: Sequence[tuple[int, str]], load: Load) -> None:
        """Find where the blocks of blobs lie, by their offsets. load: gives a stretch of these. Raises FormatError."""
        for part, name in blobs:
            if (part, name) in self._bounds:
                continue
            [run] = [run for run in self._runs if (run.part, run.array) == (part, name + OFFSETS)]
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
                self._sorted = None

    def needs_offsets(self, number: int) -> list[tuple[int, str]]:
        """Return the blob that a stretch is of, if its place is not known yet."""
        run = self._run(number)
        return [] if (run.part, run.array) in self._bounds else [(run.part, run.array)]

    def fetch(self, number: int, take: Take | None = None) -> memoryview:
        """Read a stretch from the store, compare its blocks with their checksums, and return its bytes. Raises PackerError.

        take: called with the bytes as they come, before they are compared, instead of returning them; see access.read_range.
        """
        begin, end = self.place(number)
        file = self._pack.files[self.file(number)]
        wrong: list[int] = []
        for _ in range(ATTEMPTS):
            check = self._check(number)

            def took(at: int, piece: memoryview, check: _BlockComparison = check) -> None:
                check.add(at, piece)
                if take is not None:
                    take(at, piece)

            data = memoryview(file.read(begin, end - begin, took if take is not None else None))
            if take is None:
                check.add(0, data)
            wrong = check.wrong
            if not wrong:
                return data
        run, header = self._run(number), self._pack.parts[self._run(number).part].header
        last = min((wrong[0] + 1) * header.block_rows, header.rows) - 1
        raise FormatError(
            f"{file.url}: rows {wrong[0] * header.block_rows} to {last} of {run.array!r} are damaged in the store"
            " (their checksum differs). Copy the pack there again."
        )

    def check(self, number: int) -> tuple[int, list[int]]:
        """Read a stretch from the store; return its size, and the blocks that are damaged there."""
        begin, end = self.place(number)
        wrong: list[int] = []
        for _ in range(ATTEMPTS):  # it may be the network that changed them
            wrong = self.damaged(
                number, memoryview(self._pack.files[self.file(number)].read(begin, end - begin))
            )
            if not wrong:
                break
        return end - begin, wrong

    def damaged(self, number: int, data: memoryview) -> list[int]:
        """Return the blocks of a stretch whose checksum differs in these bytes."""
        check = self._check(number)
        check.add(0, data)
        return check.wrong

    def _check(self, number: int) -> _BlockComparison:
        run = self._run(number)
        begins, ends, first, stop = self._blocks(number)
        column = self._pack.parts[run.part].header.columns.index(run.array)
        sums = self._checksums(run.part)[first:stop, column]
        return _BlockComparison(first, (ends[first:stop] - begins[first]).tolist(), sums.tolist())

    @property
    def blobs(self) -> list[str]:
        """The names of the ragged fields' blobs."""
        return [field.name for field in self._pack.fields if field.ragged]

    def part(self, number: int) -> RemotePack:
        """Return the part of the pack in which a stretch lies."""
        part = self._pack.parts[self._run(number).part]
        assert isinstance(part, RemotePack)
        return part

    def numbers(self, array: str) -> Numbers:
        """Return the stretches of an array, of all parts."""
        return np.concatenate([self._numbers(run) for run in self._runs if run.array == array])

    def _checksums(self, part: int) -> NDArray[np.uint64]:
        with self._reading[part]:
            if part not in self._tables:
                self._tables[part] = self._pack.parts[part].checksums()
        return self._tables[part]

    def _run(self, number: int) -> _Stretches:
        return self._runs[int(np.searchsorted(self._firsts, number, "right")) - 1]

    def _numbers(self, run: _Stretches) -> Numbers:
        return np.arange(run.first, run.first - (-run.blocks // run.step), dtype=np.int64)

    def _blocks(self, number: int) -> tuple[Numbers, Numbers, int, int]:
        """Return where its array's blocks begin and end, and which of them are a stretch's."""
        run = self._run(number)
        begins, ends = self._bounds[run.part, run.array]
        first = (number - run.first) * run.step
        return begins, ends, first, min(first + run.step, run.blocks)

    def _is_blob(self, run: _Stretches) -> bool:
        field = self._pack.header.field(run.array.removesuffix(OFFSETS))
        return field.ragged and run.array == field.name

    def _known_bounds(self, run: _Stretches) -> tuple[Numbers, Numbers]:
        """Return where the blocks of an array begin and end that is no blob. Raises FormatError."""
        part = self._pack.parts[run.part]
        header, extents = part.header, part.header.extents[run.array]
        if header.field(run.array.removesuffix(OFFSETS)).compressed:
            begins = np.array([extent.offset for extent in extents], np.int64)
            ends = np.array([extent.end for extent in extents], np.int64)
        else:
            if len(extents) > 1:
                raise FormatError(
                    f"{part.path}: {run.array!r} lies in several pieces. Repack it: packer repack."
                )
            entries = header.rows + run.array.endswith(OFFSETS)
            firsts = np.minimum(np.arange(run.blocks + 1) * header.block_rows, header.rows)
            firsts[-1:] = entries
            bounds = (extents[0].offset if extents else 0) + firsts * (extents[0].row_bytes if extents else 1)
            begins, ends = bounds[:-1], bounds[1:]
        return begins, ends

    def _table(self) -> tuple[Numbers, Numbers, Numbers]:
        """Return address of the first byte, of the end, and number of the stretches whose place is known, sorted."""
        begins, ends, numbers = [], [], []
        for run in self._runs:
            if (run.part, run.array) not in self._bounds:
                continue
            own_begins, own_ends = self._bounds[run.part, run.array]
            base = self.address(self.files[run.part])
            begins.append(base + own_begins[:: run.step])
            ends.append(
                base
                + own_ends[np.minimum(np.arange(run.step, run.blocks + run.step, run.step), run.blocks) - 1]
            )
            numbers.append(self._numbers(run))
        first, last, which = (
            np.concatenate([np.empty(0, np.int64), *one]) for one in (begins, ends, numbers)
        )
        some = first < last  # those of empty arrays hold nothing
        order = np.argsort(first[some], kind="stable")
        return first[some][order], last[some][order], which[some][order].astype(np.int64)


class _BlockComparison:
    """The blocks of a stretch, one after the other, compared with their checksums while their bytes come."""

    def __init__(self, first: int, ends: list[int], checksums: list[int]) -> None:
        self._first, self._ends, self._checksums = first, ends, checksums
        self.add(0, memoryview(b""))

    def add(self, at: int, piece: memoryview) -> None:
        """Take in the bytes at a place, after those before it; 0: begin anew."""
        if not at:
            self._found: list[int] = []
            self._sum = BlockChecksum()
        raw = np.frombuffer(piece, np.uint8)
        for end in self._ends[len(self._found) :]:
            some = raw[: end - at]
            self._sum.add(some)
            raw, at = raw[len(some) :], at + len(some)
            if at < end:
                return
            self._found.append(self._sum.value())
            self._sum = BlockChecksum()

    @property
    def wrong(self) -> list[int]:
        """The blocks that differ, or have not come."""
        found = itertools.zip_longest(self._found, self._checksums)
        return [self._first + number for number, (a, b) in enumerate(found) if a != b]


def _together(extents: Sequence[Extent]) -> bool:
    """Return True if these extents follow each other in their file without a gap."""
    return all(extent.end == following.offset for extent, following in itertools.pairwise(extents))
