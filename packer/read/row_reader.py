"""Rows of a pack's fields into given memory, stored as they are, of any length (perhaps JPEG files), or in compressed blocks."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.codecs import jpeg
from packer.codecs.block_codecs import codec_from_record
from packer.errors import FormatError, damaged
from packer.format.checksums import BlockChecksum
from packer.format.header import OFFSETS, Extent, Field
from packer.format.own_size import OwnSize
from packer.format.pack import Pack
from packer.format.remote_pack import RemotePack
from packer.orders.runs import Runs, cut, one_run
from packer.read.encoded_images import EncodedImages
from packer.read.gather import Bytes, by_part, check_range
from packer.read.joined_array import open_array


class RowReader:
    """Reads rows of some fields of a pack. Thread-safe; works again after fork and after unpickling.

    Raises FormatError when a file is shorter than it was when the pack was opened, cannot be read, or holds rows that
    cannot be decoded.
    """

    def __init__(self, pack: Pack, fields: Sequence[Field], *, verify: bool = False) -> None:
        """fields: as the pack stores them, or as they are loaded.

        verify: compare each block with its checksum when it is first touched.
        """
        self.pack, self.verify = pack, verify
        self.fields = tuple(pack.header.field(f.name) for f in fields)
        self._lock = threading.Lock()
        self._pid = -1
        self._open: dict[str, FieldRows] = {}
        self._keep = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"pack": self.pack, "fields": self.fields, "verify": self.verify}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["pack"], state["fields"], verify=state["verify"])  # type: ignore[misc]

    @property
    def opened(self) -> bool:
        """True once the files of all fields are open in this process."""
        return self._pid == os.getpid() and len(self._open) == len(self.fields)

    def read(self, name: str, runs: Runs, out: Bytes) -> None:
        """Read runs of rows of a field that is loaded as an array.

        out: C-contiguous uint8 [sum of lengths, row bytes], overwritten.
        """
        self._rows(name).read(runs, out)

    def array(self, field: Field, runs: Runs) -> NDArray[Any]:
        """Return rows of a fixed field, [rows, *shape] of its dtype."""
        out = np.empty((runs.total, field.row_bytes), np.uint8)
        if len(out):
            self.read(field.name, runs, out)
        return out.view(field.dtype).reshape(-1, *(field.shape or ()))

    def read_ragged(self, name: str, runs: Runs) -> list[bytes]:
        """Read the bytes of each row of a ragged field."""
        return list(map(bytes, self._rows(name).encoded(runs)))

    def ragged_views(self, name: str, runs: Runs) -> list[memoryview]:
        """Read the bytes of each row of a ragged field into memory that all rows share: it is held as long as any of them."""
        return self._rows(name).encoded(runs)

    def willneed(self, name: str, runs: Runs) -> None:
        """Tell the system that these rows will be read soon, if they seem to be on the disk still; does not wait for them."""
        self._rows(name).willneed(runs)

    def keep(self, blocks: int) -> None:
        """Keep up to so many decoded blocks of each field that is compressed in blocks, those used last."""
        self._keep = blocks
        for rows in list(self._open.values()):
            rows.keep(blocks)

    def close(self) -> None:
        """Close the files, each when the calls that read it now have ended; reading opens them again."""
        self._open = {}

    def _rows(self, name: str) -> FieldRows:
        if self._pid != os.getpid():  # in a forked child the parent's lock may be held for ever
            self._lock, self._open, self._pid = threading.Lock(), {}, os.getpid()
        rows = self._open.get(name)
        if rows is None:
            with self._lock:
                rows = self._open.get(name)
                if rows is None:
                    rows = self._made(name)
                    self.pack.check_same()  # after opening: what is open now stays the same file
                    self._open[name] = rows
        return rows

    def _made(self, name: str) -> FieldRows:
        f = next(f for f in self.fields if f.name == name)
        kind = RaggedRows if f.ragged else CompressedRows if f.compressed else FixedRows
        pack = self.pack.settled()
        try:
            rows = kind(pack, f)
        except FormatError:
            again = pack.settled()
            if again is pack:
                raise
            rows = kind(again, f)  # it got its name in this moment
        rows.keep(self._keep)
        return VerifiedRows(rows, self.pack, f) if self.verify else rows


_PIECE_BYTES = 1 << 20  # read at once while a block's checksum is computed


class FieldRows:
    """One field of a pack, opened; closed when nobody has it any more. Thread-safe."""

    def read(self, runs: Runs, out: Bytes) -> None:
        """Read runs of rows as they are loaded. out: C-contiguous uint8 [sum of lengths, row bytes], overwritten."""
        raise NotImplementedError

    def encoded(self, runs: Runs) -> list[memoryview]:
        """Return the bytes of each row of a ragged field. Raises TypeError for others."""
        raise TypeError("rows of one length have no encoded form")

    def willneed(self, runs: Runs) -> None:
        """Tell the system that these rows will be read soon, if they seem to be on the disk still; does not wait for them."""
        raise NotImplementedError

    def keep(self, blocks: int) -> None:
        """Keep up to so many blocks, those used last, if they have to be decoded."""


class FixedRows(FieldRows):
    """A fixed field whose rows lie in the files as they are loaded."""

    def __init__(self, pack: Pack, field: Field) -> None:
        array = open_array(pack, field.name)
        self.read, self.willneed = array.read, array.willneed  # type: ignore[method-assign]


class RaggedRows(FieldRows):
    """Rows of any length: in each part of the pack a blob, and offsets in it. Where they are JPEG files, read() decodes them."""

    def __init__(self, pack: Pack, field: Field) -> None:
        self._pack, self._field = pack, field
        self._shape = field.loaded.shape
        self._blob = open_array(pack, field.name)
        self._offsets = open_array(pack, field.name + OFFSETS)
        sizes = [
            (part.rows, *(sum(e.rows for e in part.header.extents[field.name + of]) for of in (OFFSETS, "")))
            for part in pack.parts
        ]
        # Where each part's rows, offsets and bytes begin among those of all parts; at the end, how many there are.
        self._firsts, self._offset_firsts, self._blob_firsts = np.cumsum([(0, 0, 0), *sizes], axis=0).T

    def read(self, runs: Runs, out: Bytes) -> None:
        """See FieldRows; the rows are JPEG files of one shape."""
        assert self._shape is not None
        pixels = out.reshape(-1, *self._shape)
        for i, data in enumerate(self.encoded(runs)):
            try:
                jpeg.decode_into(data, pixels[i])
            except ValueError as error:
                raise FormatError(
                    f"{self._pack.path}: row {runs.rows()[i]} of {self._field.name!r} is damaged ({error})."
                    " Run packer verify, or convert the images again."
                ) from None

    def willneed(self, runs: Runs) -> None:
        """See FieldRows. Their offsets are read."""
        self._blob.willneed(self._stretches(runs)[0])

    def encoded(self, runs: Runs) -> list[memoryview]:
        """See FieldRows."""
        stretches, sizes = self._stretches(runs)
        data = np.empty(stretches.total, np.uint8)
        self._blob.read(stretches, data)
        view, ends = memoryview(data), np.cumsum(sizes)
        return [view[a:b] for a, b in zip((ends - sizes).tolist(), ends.tolist(), strict=True)]

    def _stretches(self, runs: Runs) -> tuple[Runs, NDArray[np.int64]]:
        """Return where the bytes of these rows lie in the blobs, and the size of each row."""
        check_range(runs, int(self._firsts[-1]))
        runs, parts = cut(self._firsts, runs)
        raw = np.empty((runs.total + len(parts), 8), np.uint8)
        self._offsets.read(
            Runs(runs.starts + (self._offset_firsts - self._firsts)[parts], runs.lengths + 1), raw
        )
        bounds, lasts = raw.view("<i8")[:, 0], np.cumsum(runs.lengths + 1) - 1
        first, last = bounds[lasts - runs.lengths], bounds[lasts]
        limits = np.repeat(np.diff(self._blob_firsts)[parts], runs.lengths + 1)
        inside = bool(((bounds >= 0) & (bounds <= limits)).all())  # else differences might overflow
        sizes = np.delete(np.diff(bounds), lasts[:-1]) if inside else bounds[:0]
        if not inside or (sizes < 0).any():
            raise damaged(self._pack.path, f"offsets of {self._field.name!r} are damaged")
        return Runs(first + self._blob_firsts[parts], last - first), sizes


class CompressedRows(FieldRows):
    """A fixed field in compressed blocks. A block is decoded whole, so contiguous rows are far cheaper than scattered ones.

    A call decodes each block that it touches once, in the order of the file; each thread keeps the block it decoded last. Where
    rows of a few blocks come mixed, all threads keep the blocks that were used last (`keep`).
    """

    def __init__(self, pack: Pack, field: Field) -> None:
        try:
            self._codec = codec_from_record(dict(field.codec or {}))
        except ValueError as error:
            raise FormatError(
                f"{pack.path}: {field.name!r} is stored in a way that this packer does not know ({error}). Upgrade packer."
            ) from None
        self._pack, self._field = pack, field
        blocks = pack.header.extents[field.name]
        # One extent a file, as each call of the C loops looks through all of them; and where each block lies among their bytes.
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

    def keep(self, blocks: int) -> None:
        """Keep up to so many decoded blocks, those used last, for all threads; 0: let go of them."""
        with self._keeping:
            self._most = blocks
            self._let_go()

    def read(self, runs: Runs, out: Bytes) -> None:
        """See FieldRows."""
        check_range(runs, int(self._firsts[-1]))
        runs, blocks = cut(self._firsts, runs)
        if len(blocks) > 1:
            self._ask(blocks)
        order = np.argsort(blocks, kind="stable")
        if self._most and len(blocks) == len(out):  # rows one by one, of blocks that are kept
            inside, blocks = (runs.starts - self._firsts[blocks])[order], blocks[order]
            for a, b in pairwise([0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(blocks)]):
                out[order[a:b]] = self._decoded(int(blocks[a]))[inside[a:b]]
            return
        at = np.cumsum(runs.lengths) - runs.lengths
        for group in np.split(order, np.flatnonzero(np.diff(blocks[order])) + 1) if len(order) else ():
            self._read_block(
                int(blocks[group[0]]), Runs(runs.starts[group], runs.lengths[group]), at[group], out
            )

    def willneed(self, runs: Runs) -> None:
        """See FieldRows."""
        check_range(runs, int(self._firsts[-1]))
        self._ask(cut(self._firsts, runs)[1])

    def _ask(self, blocks: NDArray[np.int64]) -> None:
        blocks = np.unique(blocks)
        self._stored.willneed(Runs(self._bytes.starts[blocks], self._bytes.lengths[blocks]))

    def _read_block(self, block: int, runs: Runs, at: NDArray[np.int64], out: Bytes) -> None:
        """Copy runs of one block's rows into the rows of ``out`` that begin at ``at``."""
        first = int(self._firsts[block])
        whole = np.flatnonzero(runs.lengths == self._decodes[block])
        if len(whole):
            rows = out[at[whole[0]] : at[whole[0]] + self._decodes[block]]
            self._decode(block, rows.reshape(-1))
        else:
            rows = self._decoded(block)
        if len(at) > 1:
            out[Runs(at, runs.lengths).rows()] = rows[runs.rows() - first]
        elif not len(whole):
            start, to, length = int(runs.starts[0]) - first, int(at[0]), int(runs.lengths[0])
            np.copyto(out[to : to + length], rows[start : start + length])

    def _decoded(self, block: int) -> Bytes:
        """Return a block's rows, uint8 [rows, row bytes]: those that are kept, or in this thread's memory."""
        if self._most:
            return self._shared(block)
        local = self._local
        if getattr(local, "block", None) != block:
            shape = (self._decodes[block], self._field.row_bytes)
            if getattr(local, "rows", None) is None or local.rows.shape != shape:
                local.rows = np.empty(shape, np.uint8)
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
            rows = np.empty((self._decodes[block], self._field.row_bytes), np.uint8)
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
            raise FormatError(
                f"{self._pack.path}: rows {first} to {last - 1} of {self._field.name!r} are damaged ({error})."
                " Run packer verify, or convert the images again."
            ) from None


class VerifiedRows(FieldRows):
    """Any of the others, whose blocks are compared with their checksums when they are first touched."""

    def __init__(self, rows: FieldRows, pack: Pack, field: Field) -> None:
        self._rows, self._field = rows, field
        self.willneed, self.keep = rows.willneed, rows.keep  # type: ignore[method-assign]
        self._packs = pack.parts
        self._parts: dict[int, tuple[NDArray[np.uint64], NDArray[np.bool_]]] = {}
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
        """Compare the blocks of these rows that were not compared yet. Raises FormatError."""
        for number, own, _ in by_part(self._firsts, runs):
            part = self._packs[number]
            if isinstance(part, RemotePack):  # it was compared on its way
                continue
            if number not in self._parts:
                self._parts[number] = part.checksums(), np.zeros(part.header.blocks, bool)
            checksums, good = self._parts[number]
            size = part.header.block_rows
            first = own.starts // size
            blocks = Runs(first, (own.starts + own.lengths - 1) // size - first + 1).rows()
            for block in np.unique(blocks[~good[blocks]]).tolist():
                for name in self._field.arrays:
                    checksum = BlockChecksum()
                    for piece in part.stored_block(name, block, _PIECE_BYTES):
                        checksum.update(piece)
                    if checksum.intdigest() != checksums[block, part.header.columns.index(name)]:
                        first_row = block * size
                        raise FormatError(
                            f"{part.path}: rows {first_row} to {min(first_row + size, part.rows) - 1} of {name!r} are damaged"
                            " (their checksum differs). Run packer verify, or convert the images again."
                        )
                good[block] = True


def decode_ragged(
    pack: Pack,
    field: Field,
    rows: list[bytes],
    numbers: Sequence[int],
    sizes: NDArray[np.int32] | None = None,
) -> list[Any]:
    """Decode rows of a ragged field as a user gets them, by what the field says of itself.

    Text: str, undecodable bytes as surrogate escapes. ``dtype`` and ``row_shape``: arrays [n, *row_shape]. Pictures of sizes of
    their own: arrays [h, w, C] or [h, w]. Else the bytes. numbers: of the rows, for messages, and for their heights and widths.
    sizes: int32 [N, 2], these, as `picture_sizes` reads them; None: they are read if they are needed.
    Raises FormatError for damaged rows, and for a codec that is not known.
    """
    own = OwnSize.of(field.about, field.codec)
    if field.codec is not None and (own is None or own.codec not in ("jpeg", "png")):
        raise FormatError(
            f"{pack.path}: {field.name!r} is stored in a way that this packer does not know"
            f" (codec {field.codec.get('name')!r}). Upgrade packer."
        )
    if own is not None:
        images = encoded_images(pack, field, rows, numbers, sizes)
        return [images.decode(i) for i in range(len(rows))]
    decoded: list[Any] = []
    for row, number in zip(rows, numbers, strict=True):
        try:
            decoded.append(_plain(field, row))
        except (ValueError, TypeError, LookupError) as error:
            raise FormatError(
                f"{pack.path}: row {number} of {field.name!r} is damaged ({error})."
                " Run packer verify, or convert the images again."
            ) from None
    return decoded


def encoded_images(
    pack: Pack,
    field: Field,
    rows: Sequence[bytes | memoryview],
    numbers: Sequence[int],
    sizes: NDArray[np.int32] | None = None,
) -> EncodedImages:
    """Return rows of pictures of sizes of their own, undecoded. Arguments: as of `decode_ragged`."""
    if sizes is None and field.codec is None:
        sizes = picture_sizes(pack, numbers)
    return EncodedImages(pack, field, rows, numbers, sizes)


def key_in_brackets(pack: Pack, row: int) -> str:
    """Return a row's key for a message, as " ('a/1.png')"; "" if the pack has no keys, or they cannot be read."""
    for f in pack.fields:
        if f.name == "key" and "encoding" in f.about:
            with suppress(Exception):  # it only adorns the message of another error
                rows = RowReader(pack, (f,)).read_ragged("key", one_run(row, row + 1))
                return f" ({decode_ragged(pack, f, rows, (row,))[0]!r})"
    return ""


def picture_sizes(pack: Pack, numbers: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int32]:
    """Read the fields height and width of rows: int32 [N, 2]. Raises FormatError."""
    reader = _sizes.get(id(pack))
    if reader is None or reader.pack is not pack:
        reader = RowReader(pack, [pack.header.field(name) for name in ("height", "width")])
        while len(_sizes) >= _MOST_SIZES:
            _sizes.pop(next(iter(_sizes), 0), None)
        _sizes[id(pack)] = reader
    runs = Runs(np.asarray(numbers, np.int64), np.ones(len(numbers), np.int64))
    return np.stack([reader.array(f, runs) for f in reader.fields], axis=1)


_MOST_SIZES = 16
_sizes: dict[int, RowReader] = {}
"""What reads the heights and widths of the packs that were read last, by their id: opened once, not for each batch."""


def _plain(field: Field, row: bytes) -> Any:
    about = field.about
    if "encoding" in about:
        return row.decode(about["encoding"], "surrogateescape")
    if "row_shape" in about:
        return np.frombuffer(row, about["dtype"]).reshape(-1, *about["row_shape"]).copy()
    return row
