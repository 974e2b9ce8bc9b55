"""Pack: an opened pack with its header, the places of its rows, and methods that read and check it."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from html import escape
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError, UsageError, damaged
from packer.format.block_spans import ArraySpans, BlockSpans
from packer.format.checksums import SIZE, Trailer, digest
from packer.format.fields import (
    OFFSETS,
    Extent,
    Field,
)
from packer.format.file_io import check_inside, pread_into, pread_path
from packer.format.header import (
    CHECKSUMS_FILE,
    HEADER_FILE,
    INDEX_FILE,
    MAX_INDEX_BYTES,
    PARTIAL_SUFFIX,
    TRAILER_FILE,
    Header,
)
from packer.packs.description import describe
from packer.packs.file_rows import SOURCE_ROW, counted_files, is_counted, recounted
from packer.packs.row_keys import RowKeys
from packer.path_text import visible

_MAX_OFFSET = 1 << 62  # past the end of every file; the system refuses offsets from 2**63 on


class Arrival(Protocol):
    """Access to an array's rows while a pack is being filled, or when its rows are remote. Thread-safe.

    starts, lengths: int64 [k], runs of rows; of bytes for the blob of a ragged field. For compressed blocks:
    one run per block, in bytes of the concatenated files, each file ending with its last block.
    """

    def take(self, starts: NDArray[np.int64], lengths: NDArray[np.int64], out: NDArray[np.uint8]) -> bool:
        """Return False if the rows can be read from the pack's files; else fill `out` and return True.

        Raises PackerError if the rows cannot be obtained.
        """

    def ahead(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Request rows that will be needed soon, without waiting."""


class Units(Protocol):
    """Provider of rows that arrive while a pack is read, from a store or from a conversion.

    Its methods mirror Pack's.
    """

    @property
    def ahead_bytes(self) -> int | None:
        """Bytes of rows to request in advance."""

    def arrival(self, array: str) -> Arrival | None:
        """Return the access to an array's arriving rows."""

    def path(self, file: str) -> str:
        """Return the path of the file that holds rows once they have arrived."""

    def exclusive(self) -> Units:
        """Return a provider for the exclusive use of one dataset."""

    def close(self) -> None:
        """Disconnect."""

    def closing(self) -> AbstractContextManager[None]:
        """Return a context that disconnects and refuses to wait for rows."""


@dataclass(frozen=True)
class Pack:
    """An opened pack: picklable, holds no file open. Long because it has all methods that read a pack.

    path: as given; header: see format.header; seal: the trailer's bytes, b"" if there is none;
    shards: the packs it consists of, () if it is one file or one directory of .npy. Their headers are then
    combined: rows, extents (also of ragged fields, whose offsets restart in each shard), splits and skipped
    inputs are concatenated, statistics are weighted by rows, and the seal is that of the index.
    verify: datasets compare each block with its checksum before the first use of its rows;
    filled: the pack is, or was, converted while it is loaded from; units: provides rows that arrive during
    reading; None: all rows are there.
    """

    path: str
    header: Header
    seal: bytes
    shards: tuple[Pack, ...] = ()
    verify: bool = field(default=False, kw_only=True)
    filled: bool = field(default=False, kw_only=True)
    units: Units | None = field(default=None, kw_only=True)

    def describe(self, columns: Sequence[str] = ()) -> list[str]:
        """Return the description as text lines; columns: lines about a table's columns."""
        return describe(self.path, self.header, [shard.rows for shard in self.shards], columns)

    def _repr_html_(self) -> str:
        return "<pre>" + escape("\n".join(map(visible, self.describe()))) + "</pre>"

    @property
    def name(self) -> str:
        """Name of its file or folder."""
        return os.path.basename(self.path)

    @property
    def sealed(self) -> bool:
        """True unless it is being filled or was opened for writing."""
        return bool(self.seal)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.header.rows

    @property
    def fields(self) -> tuple[Field, ...]:
        """Fields in order."""
        return self.header.fields

    @property
    def format(self) -> str:
        """ "h5" or "npy"."""
        return self.header.format

    @property
    def parts(self) -> tuple[Pack, ...]:
        """Its shards, also those of joined packs; or itself."""
        return self._leaves if self.shards else (self,)

    @cached_property
    def _leaves(self) -> tuple[Pack, ...]:
        return tuple(part for shard in self.shards for part in shard.parts)

    @property
    def last_written(self) -> str:
        """Path of the file that conversion wrote last."""
        if self.shards:
            return os.path.join(self.path, INDEX_FILE)
        return os.path.join(self.path, TRAILER_FILE) if self.format == "npy" else self.path

    @property
    def nbytes(self) -> int:
        """Bytes of all rows as stored."""
        return self.header.nbytes

    def check_classes(self, other: Pack) -> None:
        """Check that another pack numbers its classes like this one.

        Raises UsageError that names the first difference.
        """
        own, theirs = self.header.classes, other.header.classes
        if own == theirs:
            return
        if own is None or theirs is None:
            with_names, without = (other, self) if own is None else (self, other)
            raise UsageError(
                f"{without.path}: has no class names, and {with_names.path} has some; the packs must have "
                f"equal ones. Convert it again with like={with_names.path!r}."
            )
        number = next(n for n in range(max(len(own), len(theirs))) if own[n : n + 1] != theirs[n : n + 1])
        mine, its = (repr(names[number]) if number < len(names) else "none" for names in (own, theirs))
        raise UsageError(
            f"{other.path}: class {number} is {its}, and {mine} in {self.path}; the packs must have "
            f"equal classes. Convert it again with like={self.path!r}."
        )

    def check_same(self) -> None:
        """Check that the pack is unchanged since it was opened.

        Raises FormatError if it was replaced or is gone.
        """
        try:
            seal = read_seal(self.path) if self.seal else b""
        except OSError as error:
            raise unreadable(self.path, error) from error
        if seal != self.seal:
            raise FormatError(f"{self.path}: was replaced or changed after it was opened. Open it again.")
        for shard in self.shards:
            shard.check_same()

    def confirm(self) -> None:
        """Compare each shard with the index, if opening has postponed that. Raises PackerError."""
        for shard in self.shards:
            shard.confirm()

    def check_part(self, file: str) -> None:
        """Check that the part of a just opened file is unchanged. file: as in extents. Raises FormatError."""
        if self.shards:
            number, _, own = file.partition("/")
            self.shards[int(number)].check_part(own)
        else:
            self.check_same()

    def file(self, extent: Extent) -> str:
        """Return the path of the file that holds an extent."""
        return self._path(extent.file)

    def place(self, extent: Extent) -> str:
        """Return the path of an extent's file in a pack of one part, without checking the file."""
        return os.path.join(self.path, extent.file) if extent.file else self.path

    @property
    def members(self) -> tuple[Pack, ...]:
        """Packs that are joined row after row (joined_pack.py); () for other packs."""
        return ()

    def __fspath__(self) -> str:
        """Return the path, so that functions of paths accept an open pack."""
        return self.path

    @property
    def packs(self) -> tuple[Pack, ...]:
        """Packs that were joined (joined_pack.py, joined_fields.py), or itself."""
        return (self,)

    def origin(self, name: str) -> object:
        """Return a value that distinguishes fields of equal name when files are joined in different ways."""
        return None

    @property
    def pending(self) -> bool:
        """True while rows are still being converted."""
        return any(shard.pending for shard in self.shards)

    @property
    def ahead_bytes(self) -> int | None:
        """Bytes of rows to request ahead, besides those being read; None: all rows are there."""
        return self.units.ahead_bytes if self.units else None

    def settled(self) -> Pack:
        """Return the pack in its present state: itself, or the complete pack once filling has ended."""
        return self

    def close(self) -> None:
        """Disconnect from the process that provides rows, if any; the next request connects again."""
        for one in (*self.shards, *([self.units] if self.units else ())):
            one.close()

    def exclusive(self) -> Pack:
        """Return the pack for one dataset alone, which may close it: a copy if rows arrive during reading."""
        return replace(self, units=self.units.exclusive()) if self.units else self

    def closing(self) -> AbstractContextManager[None]:
        """Return a context that closes the pack and requests no rows, to end threads that wait for rows."""
        if self.units is not None:
            return self.units.closing()
        self.close()
        return nullcontext()

    def arrival(self, array: str) -> Arrival | None:
        """Return the access to an array's arriving rows; None if all rows are there."""
        return self.units.arrival(array) if self.units else None

    def _path(self, file: str) -> str:
        if self.units is not None:
            return self.units.path(file)
        if self.shards:
            number, _, own = file.partition("/")
            return self.shards[int(number)]._path(own)
        return os.path.join(self.path, file) if file else self.path

    @property
    def trailer(self) -> Trailer:
        """Trailer of a sealed pack of one part."""
        trailer = None if self.shards else Trailer.from_bytes(self.seal)
        if trailer is None:
            raise ValueError("a pack of shards has a trailer in each")
        return trailer

    def read_bytes(self, file: str, offset: int, nbytes: int) -> bytes:
        """Return bytes of one of its files, fewer only at the file's end. file: as in extents.

        Raises OSError.
        """
        return pread_path(self._path(file), nbytes, min(offset, _MAX_OFFSET))

    def open_files(self) -> PackFiles:
        """Open the files that hold its rows. Raises FormatError."""
        return PackFiles(self)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.generic]:
        """Return rows [start, stop) of one array as stored, in new memory; for inspection, not for training.

        name: a fixed field, or an array of a ragged field ("key", "key.offsets"; not in a pack of several
        shards); rows of a blob are its bytes. Raises UsageError for another name; FormatError if a file is
        shorter than the header says; ValueError for a compressed array.
        """
        if name not in self.header.extents:
            raise UsageError(
                f"{self.path}: has no array {name!r}; it has {', '.join(self.header.extents)}. Pass one of"
                " them; a table has columns that were kept (keep=)."
            )
        extents = self.header.extents[name]
        total = sum(e.rows for e in extents)
        stop = total if stop is None else min(stop, total)
        start = min(start, total)
        f = self.header.field(name.removesuffix(OFFSETS))
        if f.compressed or (f.ragged and self.shards):
            raise ValueError(f"{name!r} is not stored in one piece")
        dtype, shape = self.header.form(name)
        pieces, row = [], start
        for span in ArraySpans(extents).elements(start, max(start, stop)) or ():
            data, row = self.read_bytes(*span), row + span.nbytes // extents[0].row_bytes
            if len(data) != span.nbytes:
                raise damaged(self._path(span.file), f"ends before row {row}; it was cut short")
            pieces.append(data)
        return np.frombuffer(b"".join(pieces), dtype).reshape(-1, *shape)

    def read_ragged(self, name: str, start: int = 0, stop: int | None = None) -> list[bytes]:
        """Return the bytes of each of rows [start, stop) of a ragged field.

        Raises FormatError if its offsets are damaged.
        """
        sizes, blob = self.read_blob(name, start, self.rows if stop is None else min(stop, self.rows))
        bounds = np.cumsum([0, *sizes]).tolist()
        return [blob[a:b] for a, b in itertools.pairwise(bounds)]

    def read_blob(self, name: str, start: int, stop: int) -> tuple[NDArray[np.int64], bytes]:
        """Return the sizes of rows [start, stop) of a ragged field, and their concatenated bytes.

        Raises FormatError.
        """
        if self.shards:
            pieces = [pack.read_blob(own, *rows) for pack, own, *rows in self.pieces(name, start, stop)]
            sizes = np.concatenate([np.empty(0, np.int64), *(some for some, _ in pieces)])
            return sizes, b"".join(data for _, data in pieces)
        offsets = self.read(name + OFFSETS, start, stop + 1).view("<i8")
        total = sum(e.rows for e in self.header.extents[name])
        if int(offsets[0]) < 0 or int(offsets[-1]) > total or (offsets[1:] < offsets[:-1]).any():
            raise damaged(self.path, f"offsets of {name!r} are damaged")
        return np.diff(offsets), self.read(name, int(offsets[0]), int(offsets[-1])).tobytes()

    def pieces(self, name: str, start: int, stop: int) -> Iterator[tuple[Pack, str, int, int]]:
        """Yield (shard, field's name there, first row, last row + 1) for rows [start, stop) of a field."""
        first = 0
        for shard in self.shards:
            low, high = max(start, first) - first, min(stop, first + shard.rows) - first
            if low < high:
                yield shard, name, low, high
            first += shard.rows

    def checksums(self) -> NDArray[np.uint64]:
        """Return the checksum table of a pack of one part, uint64 [blocks, columns].

        Raises FormatError if it is damaged; ValueError for a pack of shards, each of which has its own table.
        """
        try:
            table = self.stored_checksums()
        except OSError as error:
            raise damaged(error.filename or self.path, f"cannot be read ({error.strerror})") from None
        if table is None or digest([table]) != self.trailer.checksums_digest:
            raise damaged(self.path, "checksum table is damaged")
        return table

    def stored_checksums(self) -> NDArray[np.uint64] | None:
        """Return the checksum table without checking it; None if its length is wrong. Raises OSError."""
        trailer, shape = self.trailer, (self.header.blocks, len(self.header.columns))
        file = CHECKSUMS_FILE if self.format == "npy" else ""
        data = self.read_bytes(file, trailer.checksums_offset, 8 * shape[0] * shape[1])
        whole = trailer.checksums_length == len(data) == 8 * shape[0] * shape[1]
        return np.frombuffer(data, "<u8").reshape(shape) if whole else None

    def stored_block(self, array: str, block: int, piece: int) -> Iterator[bytes]:
        """Yield the stored bytes of one block of an array in pieces of `piece` bytes; for a pack of one part.

        Raises FormatError if the offsets of a ragged field lead outside its blob.
        """
        spans = BlockSpans(self.header, array, self.read_bytes).spans(block)
        if spans is None:
            raise damaged(self.path, f"offsets of {array.removesuffix(OFFSETS)!r} are damaged")
        for file, offset, nbytes in spans:
            for at in range(0, nbytes, piece):
                yield self.read_bytes(file, offset + at, min(piece, nbytes - at))

    def keys(self, start: int = 0, stop: int | None = None) -> list[str]:
        """Return the keys (inputs' relative paths) of rows [start, stop).

        Undecodable bytes become lone surrogates.
        """
        return self.texts("key", start, stop)

    def texts(self, name: str, start: int = 0, stop: int | None = None) -> list[str]:
        """Return rows [start, stop) of a field of texts, such as a kept column, like `keys`.

        Raises UsageError for other fields, FormatError.
        """
        named = [f.name for f in self.fields if f.about.get("encoding") == "utf-8"]
        if name not in named:
            raise UsageError(
                f"{self.path}: {name!r} is no field of texts; it has {', '.join(named) or 'none'}. Pass one of"
                " them; a table has columns that were kept (keep=)."
            )
        found = self.read_ragged(name, start, stop) if start < self.rows else []
        return [text.decode("utf-8", "surrogateescape") for text in found]

    @property
    def source_rows(self) -> NDArray[np.int64]:
        """Number of each row among the rows of the table's files, int64 [rows].

        From 0; headers are not counted, rows that were left out are. Several files, also of packs that were
        merged or appended, count as one after the other: those of the first pack, then further ones. Raises
        UsageError if the pack does not have the numbers, FormatError if they are damaged.
        """
        headers = [part.header for part in self.parts]
        if not all(map(is_counted, headers)):
            raise UsageError(
                f"{self.path}: does not have the numbers of its rows in their files; packs of tables do, "
                "unless an"
                " older packer wrote them, or packs that they were made of. Convert the table again."
            )
        files, found = counted_files(headers), []
        for part in self.parts:
            numbers = part.read(SOURCE_ROW.name)
            try:
                found.append(recounted(numbers, counted_files([part.header]), files))
            except (ValueError, OverflowError) as error:
                raise damaged(part.path, f"its row numbers are wrong ({error})") from None
        return np.concatenate(found)

    def preprocess(self, images: Any, *, augment: Any = None) -> Any:
        """Return new images as rows.

        Keep a ``packer.Preprocess(pack, augment)`` instead for several calls.
        """
        import packer  # public names; the format imports nothing beside it at import time

        return packer.Preprocess(self, augment)(images)

    def rows_of(self, keys: Sequence[str]) -> NDArray[np.int64]:
        """Return the row of each key, int64 [len(keys)].

        The first call reads all keys, 0.5 us each, and keeps 24 bytes per row, in temporary files above 6
        million rows. Raises UsageError if the pack has no keys, for a key that no row has, and for a key that
        several rows have.
        """
        self.check_keyed()
        if isinstance(keys, str) or not isinstance(keys, Iterable):
            raise UsageError(f"{self.path}: {keys!r} is not a list of keys. Pass one such as ['cat/1.jpg'].")
        return self._row_keys.rows(keys)

    def check_keyed(self) -> None:
        """Raise UsageError if its rows have no keys."""
        if self.header.find("key") is None:
            raise UsageError(f"{self.path}: its rows have no keys. Ask for them by number.")

    @cached_property
    def _row_keys(self) -> RowKeys:
        return RowKeys(self.path, self.rows, partial(self.read_ragged, "key"))


class PackFiles:
    """The open files that hold a pack's rows, each opened once; a context manager."""

    def __init__(self, pack: Pack) -> None:
        """Open all files. Raises FormatError."""
        self._fds: dict[str, int] = {}
        for extent in itertools.chain(*pack.header.extents.values()):
            if extent.file not in self._fds:
                path = pack.file(extent)
                try:
                    self._fds[extent.file] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                except OSError as error:
                    self.__exit__()
                    raise unreadable(path, error) from error

    def __enter__(self) -> PackFiles:
        return self

    def __exit__(self, *exc: object) -> None:
        for fd in self._fds.values():
            os.close(fd)

    def read_into(self, file: str, out: memoryview, offset: int) -> int:
        """Fill `out` from an offset of a file; return the bytes read, fewer only at its end.

        Raises OSError.
        """
        return pread_into(self._fds[file], out, offset)

    def willneed(self, file: str, offset: int, nbytes: int) -> None:
        """Tell the system that these bytes will be read soon."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fds[file], offset, nbytes, os.POSIX_FADV_WILLNEED)


def read_seal(path: str) -> bytes:
    """Return the last 128 bytes of a pack's file or of its directory's trailer, fewer if it is shorter.

    Raises OSError.
    For a pack of shards: the digest of its index.
    """
    if os.path.exists(os.path.join(path, INDEX_FILE)):
        return digest([pread_path(check_inside(path, INDEX_FILE), MAX_INDEX_BYTES + 1, 0)])
    file = os.path.join(path, TRAILER_FILE) if os.path.isdir(path) else path
    return pread_path(file, SIZE, max(0, os.path.getsize(file) - SIZE))


def unreadable(name: str, error: OSError) -> FormatError:
    """Return the error for a file that is missing or not readable."""
    remedy = "Raise ulimit -n" if error.errno == errno.EMFILE else "Check the name and the permissions"
    if error.errno == errno.ENOENT and os.path.isdir(work := name.rstrip("/") + PARTIAL_SUFFIX):
        # A conversion without a journal, such as one of a generator's samples, starts again.
        goes_on = os.path.exists(os.path.join(work, "journal"))
        again = "run the same packer convert again to continue" if goes_on else "run it again; it starts over"
        remedy = f"Its conversion did not finish ({work}): {again}"
    parts = {TRAILER_FILE: "trailer", HEADER_FILE: "header"}
    return FormatError(
        f"{error.filename or name}: cannot be read ({error.strerror}). {remedy}.",
        part=parts.get(os.path.basename(error.filename or ""), "rows"),
    )
