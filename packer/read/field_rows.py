"""One opened field of a pack: fixed rows, ragged rows (perhaps JPEG files), or compressed blocks."""

from __future__ import annotations

import mmap
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.codecs import jpeg
from packer.codecs.block_codecs import codec_from_record
from packer.errors import FormatError, damaged, damaged_rows
from packer.format.checksums import BlockChecksum
from packer.format.fields import (
    OFFSETS,
    Extent,
    Field,
)
from packer.orders.runs import Runs, Subset, cut, one_run
from packer.packs.filling_pack import FillingPack
from packer.packs.joined_fields import FieldsPack
from packer.packs.joined_pack import JoinedPack
from packer.packs.own_arrays import ArraysPack
from packer.packs.pack import Pack
from packer.packs.remote_pack import RemotePack
from packer.read.gather import (
    DONE,
    Bytes,
    allow_files,
    by_part,
    check_range,
    copy_rows,
    empty,
    open_array,
    read_part,
)

_COMPARED_BYTES = 1 << 20  # read at once while a block's checksum is computed


class FieldRows:
    """One opened field of a pack; closed once nobody holds it. Thread-safe."""

    def read(self, runs: Runs, out: Bytes) -> None:
        """Read runs of rows in their loaded form.

        out: C-contiguous uint8 [sum of lengths, row bytes], overwritten.
        """
        raise NotImplementedError

    def encoded(self, runs: Runs) -> list[memoryview]:
        """Read the bytes of each row of a ragged field into one shared buffer.

        Raises TypeError for other fields.
        """
        raise TypeError("rows of one length have no encoded form")

    def willneed(self, runs: Runs) -> None:
        """Ask the system to read these rows ahead unless they seem to be cached; do not wait for them."""
        raise NotImplementedError

    def cache_blocks(self, rows: int) -> None:
        """Cache decoded blocks, if any: twice as many as a window of `rows` mixed rows has."""


class JoinedRows(FieldRows):
    """A field of packs that are read as one; each pack may store its rows in another form."""

    def __init__(self, rows: Sequence[FieldRows], counts: Iterable[int]) -> None:
        """counts: rows of each pack."""
        self._rows, self._firsts = rows, np.cumsum([0, *counts])

    def read(self, runs: Runs, out: Bytes) -> None:
        """See FieldRows."""
        for number, own, places in by_part(self._firsts, runs):
            read_part(self._rows[number].read, own, places, out)

    def encoded(self, runs: Runs) -> list[memoryview]:
        """See FieldRows."""
        found = [memoryview(b"")] * runs.total
        for number, own, places in by_part(self._firsts, runs):
            at = Runs(places, own.lengths).rows().tolist()
            for place, row in zip(at, self._rows[number].encoded(own), strict=True):
                found[place] = row
        return found

    def willneed(self, runs: Runs) -> None:
        """See FieldRows."""
        for number, own, _ in by_part(self._firsts, runs):
            self._rows[number].willneed(own)

    def cache_blocks(self, rows: int) -> None:
        """See FieldRows."""
        for own in self._rows:
            own.cache_blocks(rows)


class LateRows(FieldRows):
    """A field of a shard that may not be complete yet: the first read waits for the shard, and opens it."""

    def __init__(self, open: Callable[[], FieldRows]) -> None:
        self._open, self._cached_rows = open, 0
        self._rows: FieldRows | None = None

    def read(self, runs: Runs, out: Bytes) -> None:
        """See FieldRows."""
        self._opened().read(runs, out)

    def encoded(self, runs: Runs) -> list[memoryview]:
        """See FieldRows."""
        return self._opened().encoded(runs)

    def willneed(self, runs: Runs) -> None:
        """Do nothing: rows that were just converted are in the page cache."""

    def cache_blocks(self, rows: int) -> None:
        """See FieldRows."""
        self._cached_rows = rows
        if self._rows is not None:
            self._rows.cache_blocks(rows)

    def _opened(self) -> FieldRows:
        if self._rows is None:
            rows = self._open()
            rows.cache_blocks(self._cached_rows)
            self._rows = rows
        return self._rows


class MatchedRows(FieldRows):
    """A field of a joined pack whose rows are in another order than the main pack's."""

    def __init__(self, rows: FieldRows, places: Subset) -> None:
        self._rows, self._places, self.cache_blocks = rows, places, rows.cache_blocks  # type: ignore[method-assign]

    def read(self, runs: Runs, out: Bytes) -> None:
        """See FieldRows."""
        self._rows.read(self._placed(runs), out)

    def encoded(self, runs: Runs) -> list[memoryview]:
        """See FieldRows."""
        return self._rows.encoded(self._placed(runs))

    def willneed(self, runs: Runs) -> None:
        """See FieldRows."""
        self._rows.willneed(self._placed(runs))

    def _placed(self, runs: Runs) -> Runs:
        check_range(runs, self._places.rows)
        return self._places.place(runs)


class FixedRows(FieldRows):
    """A fixed field that is stored in its loaded form."""

    def __init__(self, pack: Pack, field: Field) -> None:
        array = open_array(pack, field.name)
        self.read, self.willneed = array.read, array.willneed  # type: ignore[method-assign]


class MemoryRows(FieldRows):
    """A fixed field in an array of this process. values: C-contiguous [N, ...]."""

    def __init__(self, values: NDArray[Any]) -> None:
        self._values = values  # holds the memory
        self._rows: Bytes = np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint8)
        self._extents = np.array([[0, 0, 0], [len(values), 0, 0]], np.int64)
        self._files = np.array([[-1, self._rows.ctypes.data, self._rows.nbytes]], np.int64)

    def read(self, runs: Runs, out: Bytes) -> None:
        """See FieldRows."""
        starts, lengths = np.ascontiguousarray(runs.starts), np.ascontiguousarray(runs.lengths)
        if copy_rows(self._extents, self._files, starts, lengths, self._rows.shape[1], out) != DONE:
            check_range(runs, len(self._rows))
            np.take(self._rows, runs.rows(), axis=0, out=out, mode="clip")

    def willneed(self, runs: Runs) -> None:
        """See FieldRows: nothing."""


class RaggedRows(FieldRows):
    """A ragged field: in each part of the pack a blob, and offsets in it. read() decodes JPEG rows."""

    def __init__(self, pack: Pack, field: Field) -> None:
        self._pack, self._field = pack, field
        self._shape = field.loaded.shape
        self._blob = open_array(pack, field.name)
        self._offsets = open_array(pack, field.name + OFFSETS)
        sizes = [
            (part.rows, *(sum(e.rows for e in part.header.extents[field.name + of]) for of in (OFFSETS, "")))
            for part in pack.parts
        ]
        # First row, offset and byte of each part among those of all parts; the totals at the end.
        self._firsts, self._offset_firsts, self._blob_firsts = np.cumsum([(0, 0, 0), *sizes], axis=0).T

    def read(self, runs: Runs, out: Bytes) -> None:
        """See FieldRows; the rows must be JPEG files of one shape."""
        assert self._shape is not None
        pixels = out.reshape(-1, *self._shape)
        for i, data in enumerate(self.encoded(runs)):
            try:
                jpeg.decode_into(data, pixels[i])
            except ValueError as error:
                raise damaged_rows(self._pack.path, self._field.name, error, runs.rows()[i]) from None

    def willneed(self, runs: Runs) -> None:
        """See FieldRows. Reads their offsets."""
        self._blob.willneed(self._stretches(runs)[0])

    def encoded(self, runs: Runs) -> list[memoryview]:
        """See FieldRows."""
        stretches, sizes = self._stretches(runs)
        data = np.empty(stretches.total, np.uint8)
        self._blob.read(stretches, data)
        view, ends = memoryview(data), np.cumsum(sizes)
        return [view[a:b] for a, b in zip((ends - sizes).tolist(), ends.tolist(), strict=True)]

    def _stretches(self, runs: Runs) -> tuple[Runs, NDArray[np.int64]]:
        """Return the positions of these rows' bytes in the blobs, and the size of each row."""
        check_range(runs, int(self._firsts[-1]))
        runs, parts = cut(self._firsts, runs)
        raw = np.empty((runs.total + len(parts), 8), np.uint8)
        self._offsets.read(
            Runs(runs.starts + (self._offset_firsts - self._firsts)[parts], runs.lengths + 1), raw
        )
        bounds, lasts = raw.view("<i8")[:, 0], np.cumsum(runs.lengths + 1) - 1
        first, last = bounds[lasts - runs.lengths], bounds[lasts]
        limits = np.repeat(np.diff(self._blob_firsts)[parts], runs.lengths + 1)
        inside = bool(((bounds >= 0) & (bounds <= limits)).all())  # otherwise differences might overflow
        sizes = np.delete(np.diff(bounds), lasts[:-1]) if inside else bounds[:0]
        if not inside or (sizes < 0).any():
            raise damaged(self._pack.path, f"offsets of {self._field.name!r} are damaged")
        return Runs(first + self._blob_firsts[parts], last - first), sizes


class CompressedRows(FieldRows):
    """A fixed field in compressed blocks. A block is decoded as a unit, so contiguous rows are far cheaper.

    A call decodes each block that it needs once, in file order; each thread keeps its last decoded block. If
    the order mixes rows of a few blocks, all threads share a cache of the last used blocks (`cache_blocks`).
    """

    def __init__(self, pack: Pack, field: Field) -> None:
        try:
            self._codec = codec_from_record(dict(field.codec or {}))
        except ValueError as error:
            raise FormatError(
                f"{pack.path}: {field.name!r} is stored in a form that this packer does not know ({error})."
                " Upgrade packer."
            ) from None
        self._pack, self._field = pack, field
        blocks = pack.header.extents[field.name]
        # One extent per file, since each call of the C loops searches all; and each block's position.
        ends: dict[str, int] = {}
        for extent in blocks:
            ends[extent.file] = max(extent.end, ends.get(extent.file, 0))
        self._stored = open_array(pack, field.name, [Extent(file, 0, end, 1) for file, end in ends.items()])
        begins = dict(zip(ends, np.cumsum([0, *ends.values()]).tolist(), strict=False))
        self._bytes = Runs(
            np.array([begins[e.file] + e.offset for e in blocks], np.int64),
            np.array([e.nbytes for e in blocks], np.int64),
        )
        self._decodes = [
            part.header.block_rows for part in pack.parts for _ in part.header.extents[field.name]
        ]
        self._firsts = np.cumsum([0, *(e.rows for e in blocks)])
        self._local = threading.local()
        self._kept: OrderedDict[int, Future[Bytes]] = OrderedDict()
        self._most, self._keeping = 0, threading.Lock()

    def cache_blocks(self, rows: int) -> None:
        """See FieldRows.

        The cache is shared by all threads, which read ahead, so it is doubled; 0 disables it.
        """
        blocks = -(-rows // max(self._decodes, default=1))
        with self._keeping:
            self._most = 2 * blocks + bool(blocks)  # a split may begin within a block
            self._let_go()

    def read(self, runs: Runs, out: Bytes) -> None:
        """See FieldRows."""
        check_range(runs, int(self._firsts[-1]))
        runs, blocks = cut(self._firsts, runs)
        if len(blocks) > 1:
            self._ask(blocks)
        if self._most and len(blocks) == len(out):  # single rows of cached blocks
            order = np.argsort(blocks, kind="stable")
            inside, blocks = (runs.starts - self._firsts[blocks])[order], blocks[order]
            for a, b in pairwise([0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(blocks)]):
                out[order[a:b]] = self._decoded(int(blocks[a]))[inside[a:b]]
            return
        for block, own, places in by_part(self._firsts, runs):
            if len(places) > 1:
                out[Runs(places, own.lengths).rows()] = self._decoded(block)[own.rows()]
                continue
            start, rows = int(own.starts[0]), out[places[0] : places[0] + own.total]
            if len(rows) == self._decodes[block]:
                self._decode(block, rows.reshape(-1))
            else:
                np.copyto(rows, self._decoded(block)[start : start + len(rows)])

    def willneed(self, runs: Runs) -> None:
        """See FieldRows."""
        check_range(runs, int(self._firsts[-1]))
        self._ask(cut(self._firsts, runs)[1])

    def _ask(self, blocks: NDArray[np.int64]) -> None:
        blocks = np.unique(blocks)
        self._stored.willneed(Runs(self._bytes.starts[blocks], self._bytes.lengths[blocks]))

    def _decoded(self, block: int) -> Bytes:
        """Return a block's rows, uint8 [rows, row bytes], from the cache or in this thread's buffer."""
        if self._most:
            return self._shared(block)
        local = self._local
        if getattr(local, "block", None) != block:
            shape = (self._decodes[block], self._field.row_bytes)
            if getattr(local, "rows", None) is None or local.rows.shape != shape:
                local.rows = None  # free the last block's memory first
                local.rows = empty(self._pack.path, self._field.name, shape)
            local.block = None
            self._decode(block, local.rows.reshape(-1))
            local.block = block
        rows: Bytes = local.rows
        return rows

    def _shared(self, block: int) -> Bytes:
        """Return a block's rows, decoded by the first thread that needs them."""
        with self._keeping:
            future = self._kept.get(block)
            mine = future is None
            if future is None:
                future = self._kept[block] = Future()
                self._let_go()
            self._kept.move_to_end(block)
        if not mine:
            return future.result()
        try:
            shape = (self._decodes[block], self._field.row_bytes)
            rows = empty(self._pack.path, self._field.name, shape)
            self._decode(block, rows.reshape(-1))
        except BaseException as error:
            with self._keeping:
                self._kept.pop(block, None)
            future.set_exception(error)
            raise
        future.set_result(rows)
        return rows

    def _let_go(self) -> None:
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def _decode(self, block: int, out: NDArray[np.uint8]) -> None:
        start, nbytes = int(self._bytes.starts[block]), int(self._bytes.lengths[block])
        data = np.empty(nbytes, np.uint8)
        self._stored.read(one_run(start, start + nbytes), data)
        try:
            self._codec.decompress_into(memoryview(data), out)
        except ValueError as error:
            first, last = self._firsts[block : block + 2].tolist()
            raise damaged_rows(self._pack.path, self._field.name, error, first, last - 1) from None


def unchecked(rows: int) -> NDArray[np.bool_]:
    """Return flags of blocks that have not been compared, in memory that forked processes share.

    rows: rows of the pack; the flags of a part begin at its first row.
    """
    return np.frombuffer(mmap.mmap(-1, max(1, rows)), np.bool_)


class VerifiedRows(FieldRows):
    """A wrapper that compares blocks with their checksums at first use. checked: see `unchecked`."""

    def __init__(self, rows: FieldRows, pack: Pack, field: Field, checked: NDArray[np.bool_]) -> None:
        self._rows, self._field, self._checked = rows, field, checked
        self.willneed, self.cache_blocks = rows.willneed, rows.cache_blocks  # type: ignore[method-assign]
        self._packs = pack.parts
        self._parts: dict[int, NDArray[np.uint64]] = {}
        self._firsts = np.cumsum([0, *(part.rows for part in pack.parts)])

    def read(self, runs: Runs, out: Bytes) -> None:
        """See FieldRows."""
        self._check(runs)
        self._rows.read(runs, out)

    def encoded(self, runs: Runs) -> list[memoryview]:
        """See FieldRows."""
        self._check(runs)
        return self._rows.encoded(runs)

    def _check(self, runs: Runs) -> None:
        """Compare the blocks of these rows that have not been compared. Raises FormatError."""
        for number, own, _ in by_part(self._firsts, runs):
            part = self._packs[number]
            if isinstance(part, RemotePack):  # verified when it was downloaded
                continue
            if number not in self._parts:
                self._parts[number] = part.checksums()
            checksums, good = self._parts[number], self._checked[self._firsts[number] :]
            size = part.header.block_rows
            first = own.starts // size
            blocks = Runs(first, (own.starts + own.lengths - 1) // size - first + 1).rows()
            for block in np.unique(blocks[~good[blocks]]).tolist():
                for name in self._field.arrays:
                    checksum = BlockChecksum()
                    for piece in part.stored_block(name, block, _COMPARED_BYTES):
                        checksum.update(piece)
                    if checksum.intdigest() != checksums[block, part.header.columns.index(name)]:
                        last = min((block + 1) * size, part.rows) - 1
                        raise damaged_rows(part.path, name, "their checksum differs", block * size, last)
                good[block] = True


def open_rows(pack: Pack, name: str, checked: NDArray[np.bool_] | None = None) -> FieldRows:
    """Open a field of a pack, whatever provides its rows. Raises FormatError.

    checked: compare each block with its checksum at first use; see `unchecked`. None: compare none.
    """
    if isinstance(pack, FillingPack):
        return _open_unfinished(pack, name)
    if isinstance(pack, FieldsPack):
        source, own, places = pack.source(name)
        rows = open_rows(source, own, None if checked is None else unchecked(source.rows))
        return rows if places is None else MatchedRows(rows, places)
    field = pack.header.field(name)
    if isinstance(pack, ArraysPack) and name in pack.memory:
        return MemoryRows(pack.memory[name])
    if isinstance(pack, JoinedPack) and any(
        isinstance(one, FieldsPack | ArraysPack)
        or any(one.arrival(array) is not None for array in field.arrays)
        for one in pack.shards
    ):
        starts = np.cumsum([0, *(one.rows for one in pack.shards)])
        flags = [None if checked is None else checked[start:] for start in starts.tolist()]
        each = [open_rows(one, name, own) for one, own in zip(pack.shards, flags, strict=False)]
        return JoinedRows(each, [one.rows for one in pack.shards])
    kind = RaggedRows if field.ragged else CompressedRows if field.compressed else FixedRows
    rows = kind(pack, field)
    return rows if checked is None else VerifiedRows(rows, pack, field, checked)


def _open_unfinished(pack: FillingPack, name: str) -> FieldRows:
    """Open a field of an unfinished pack; wait for the complete one if its rows have no fixed place."""
    if pack.files:
        allow_files(len(pack.files))
        counts = [min(pack.shard_rows, pack.rows - first) for first in range(0, pack.rows, pack.shard_rows)]
        return JoinedRows([LateRows(partial(_open_shard, pack, n, name)) for n in range(len(counts))], counts)
    field = pack.header.field(name)
    if all(pack.header.extents[array] for array in field.arrays):
        with suppress(FormatError):  # it has just got its name
            return FixedRows(pack, field)
    return open_rows(pack.complete(), name)


def _open_shard(pack: FillingPack, number: int, name: str) -> FieldRows:
    """Open a field of a shard once it is complete."""
    try:
        rows = open_rows(pack.shard(number), name)
    except FormatError:  # the pack has just got its name
        rows = open_rows(pack.complete().shards[number], name)
    pack.check_same()  # after opening: no other pack had this name meanwhile
    return rows
