"""Packs in stores: header, seal and checksums by ranged reads; rows come by remote_rows.py."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError, MissingObjectError, UsageError, damaged
from packer.format.checksums import SIZE, Trailer, digest
from packer.format.header import HEADER_FILE, MAX_HEADER_BYTES, Header
from packer.format.listed_pack import check_listed, not_listed
from packer.format.pack import Arrival, Pack, PackFiles, check_extents
from packer.format.shards import INDEX_FILE, MAX_INDEX_BYTES, ListedHeader, index_of, merge_headers
from packer.format.stretch_window import CONNECTIONS, StretchWindow
from packer.remote import access
from packer.remote.object_store import ObjectInfo
from packer.remote.urls import join
from packer.starting import ForkSafeLock

if TYPE_CHECKING:
    from packer.format.remote_rows import RemoteRows

END_BYTES = 1 << 20  # of an object, read first: trailer, header and checksums of most packs lie there
AHEAD_BYTES = 256 << 20  # two stretches for each connection
ATTEMPTS = 3  # at bytes whose checksums differ, before they are thought to be so in the store
_PIECE_BYTES = 8 << 20


class RemoteFile(NamedTuple):
    """A file of a pack: its URL, size and version."""

    url: str
    info: ObjectInfo

    def read(self, offset: int, nbytes: int, path: str = "") -> bytearray:
        """Return bytes of it, or write them to a file; of this version or not at all. See read_range. Raises PackerError."""
        stop, patience = offset + nbytes, access.ROWS_PATIENCE
        return access.read_range(self.url, offset, stop, self.info, path, patience=patience)


class ListedRemoteFile:
    """A shard as the index describes it: a RemoteFile that is compared with its trailer by the first read. Thread-safe.

    With the trailer come the block checksums, if they lie near: reading rows needs them first.
    """

    def __init__(self, url: str, listed: ListedHeader) -> None:
        trailer = Trailer.from_bytes(listed.seal)
        if trailer is None:
            raise damaged(url, "has a trailer in the index that is damaged", "trailer")
        self.url, self._listed, self._checksums = url, listed, trailer.checksums_offset
        self.info = ObjectInfo(trailer.container_length + SIZE, None, "")
        self._known = False
        self._end = b""
        self._lock = ForkSafeLock()

    def confirm(self) -> None:
        """See that the object is the shard that the index lists. Raises PackerError."""
        with self._lock:
            if self._known:
                return
            distance = self.info.size - self._checksums
            nbytes = distance if SIZE < distance <= END_BYTES else SIZE
            for _ in range(ATTEMPTS):
                data, info = access.read_end(self.url, nbytes, patience=access.ROWS_PATIENCE)
                if bytes(data[-SIZE:]) == self._listed.seal:
                    break
            if bytes(data[-SIZE:]) != self._listed.seal or not self._listed.sealed:
                open_object(self.url)  # to say what is wrong, if something is
                raise not_listed(self.url)
            pack = RemotePack(self.url, self._listed.header, self._listed.seal, files={"": self})
            check_extents(pack, lambda extent: info.size)
            self.info, self._end, self._known = info, bytes(data), True

    def read(self, offset: int, nbytes: int, path: str = "") -> bytearray:
        """See RemoteFile."""
        self.confirm()
        at = offset - (self.info.size - len(self._end))
        if at >= 0 and nbytes and not path:
            data, self._end = bytearray(self._end[at : at + nbytes]), b""
            if len(data) == nbytes:
                return data
        return RemoteFile(self.url, self.info).read(offset, nbytes, path)


@dataclass(frozen=True)
class RemotePack(Pack):
    """A pack in a store. path: its URL; files: by the names that extents have; rows_from: None: its rows pass through memory.

    table: its checksum table, if it came with the end of the file.
    """

    files: Mapping[str, RemoteFile | ListedRemoteFile] = field(kw_only=True)
    rows_from: RemoteRows | None = field(default=None, kw_only=True)
    table: bytes = field(default=b"", kw_only=True, repr=False)

    @property
    def format(self) -> str:
        """See Pack."""
        return "h5"

    @property
    def ahead_bytes(self) -> int | None:
        """See Pack."""
        return AHEAD_BYTES

    def check_same(self) -> None:
        """Do nothing: each read asks for the version that was opened."""

    def confirm(self) -> None:
        """See Pack."""
        listed = [file for file in self.files.values() if isinstance(file, ListedRemoteFile)]
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            for _ in pool.map(ListedRemoteFile.confirm, listed):
                pass

    def close(self) -> None:
        """See Pack."""
        if self.rows_from is not None:
            self.rows_from.close()

    def own(self) -> Pack:
        """See Pack."""
        return replace(self, rows_from=self.rows_from and self.rows_from.own())

    def arrival(self, array: str) -> Arrival | None:
        """See Pack."""
        return self._rows().arrival(array)

    def _path(self, file: str) -> str:
        return self._rows().path(file)

    def _rows(self) -> RemoteRows:
        if self.rows_from is None:
            from packer.format.remote_rows import RemoteRows

            object.__setattr__(self, "rows_from", RemoteRows(replace(self)))
        assert self.rows_from is not None
        return self.rows_from

    def read_bytes(self, file: str, offset: int, nbytes: int) -> bytes:
        """See Pack."""
        return bytes(self.files[file].read(offset, nbytes))

    def open_files(self) -> PackFiles:
        """See Pack."""
        return RemoteFiles(self)

    def stored_checksums(self) -> NDArray[np.uint64] | None:
        """See Pack."""
        shape = self.header.blocks, len(self.header.columns)
        if len(self.table) == 8 * shape[0] * shape[1]:
            return np.frombuffer(self.table, "<u8").reshape(shape)
        return super().stored_checksums()


class RemoteFiles(PackFiles):
    """The files of a pack in a store, read in pieces, each once."""

    def __init__(self, pack: RemotePack) -> None:
        self._files = pack.files
        self._window = StretchWindow(self._fetch)

    def __exit__(self, *exc: object) -> None:
        self._window.close()

    def read_into(self, file: str, out: memoryview, offset: int) -> int:
        """See PackFiles. Raises RemoteError."""
        done = 0
        while done < len(out):
            number, at = divmod(offset + done, _PIECE_BYTES)
            piece = self._window.get([(file, number)])[file, number][at : at + len(out) - done]
            if not piece:
                break
            out[done : done + len(piece)] = piece
            done += len(piece)
        return done

    def willneed(self, file: str, offset: int, nbytes: int) -> None:
        """See PackFiles."""
        last = (offset + nbytes - 1) // _PIECE_BYTES
        self._window.ahead(
            [(file, number) for number in range(offset // _PIECE_BYTES, last + 1)], _PIECE_BYTES
        )

    def _fetch(self, place: tuple[str, int]) -> memoryview:
        file, begin = self._files[place[0]], place[1] * _PIECE_BYTES
        return memoryview(file.read(begin, max(0, min(_PIECE_BYTES, file.info.size - begin))))


def open_remote(url: str) -> RemotePack:
    """Open a pack by its URL: a file, or a folder of shards. Raises FormatError, RemoteError."""
    openers = [open_object, open_shards]
    if url.endswith("/") or not url.lower().endswith((".h5", ".hdf5")):
        openers.reverse()
    for opener in openers:
        try:
            return opener(url.rstrip("/"))
        except MissingObjectError:
            continue
    try:
        access.stat(join(url, HEADER_FILE))
    except MissingObjectError:
        raise MissingObjectError(f"{url}: there is no pack. Check the name.") from None
    raise FormatError(
        f"{url}: is a folder of .npy files; of stores HDF5 packs are read. Repack it: packer repack."
    )


def put_pack(url: str, path: str) -> None:
    """Write a file of a pack as an object, which may replace one. Raises UsageError if what has that name is no pack; RemoteError."""
    check_replaceable(url)
    access.put_file(url, path, patience=access.ROWS_PATIENCE)


def check_replaceable(url: str) -> bool:
    """Return True if there is a pack of one file at a URL, False if there is nothing. Raises UsageError for anything else."""
    try:
        open_object(url)
    except MissingObjectError:
        return False
    except FormatError:
        raise UsageError(
            f"{url}: is there, and is no pack; only packs are replaced. Pass another name, or remove it."
        ) from None
    return True


def open_object(url: str) -> RemotePack:
    """Open a pack of one file. Raises FormatError, RemoteError."""
    data, info = access.read_end(url, END_BYTES)
    file, first = RemoteFile(url, info), info.size - len(data)

    def part(offset: int, nbytes: int) -> bytes:
        if offset < first:
            return bytes(file.read(offset, nbytes))
        return bytes(data[offset - first : offset - first + nbytes])

    trailer = Trailer.from_bytes(bytes(data[-SIZE:]))
    if trailer is None:
        raise FormatError(
            f"{url}: is no pack, or was opened for writing since it was sealed. Download it, see what packer info says"
            " of it, and upload it when packer seal has made it a pack again."
        )
    if trailer.container_length != info.size - SIZE:
        raise damaged(
            url, f"is {info.size} bytes long, its trailer says {trailer.container_length + SIZE}", "trailer"
        )
    end = trailer.header_offset + trailer.header_length
    if trailer.header_length > MAX_HEADER_BYTES or end > info.size:
        raise damaged(url, "its trailer places the header where it cannot be", "header")
    text = part(trailer.header_offset, trailer.header_length)
    if digest([text]) != trailer.header_digest:
        raise damaged(url, "header is damaged (its checksum differs)", "header")
    near = first <= trailer.checksums_offset
    table = part(trailer.checksums_offset, trailer.checksums_length) if near else b""
    pack = RemotePack(url, Header.from_bytes(text, url), bytes(data[-SIZE:]), files={"": file}, table=table)
    check_extents(pack, lambda extent: info.size)
    return pack


def open_shards(url: str) -> RemotePack:
    """Open a pack of shards. Raises FormatError, RemoteError."""
    data, _ = access.read_all(join(url, INDEX_FILE), MAX_INDEX_BYTES)
    index = index_of(bytes(data), join(url, INDEX_FILE))
    urls = [join(url, line.file) for line in index.shards]
    shards: list[RemotePack] = []
    if index.headers:
        for own, listed in zip(urls, index.headers, strict=True):
            files = {"": ListedRemoteFile(own, listed)}
            shards.append(RemotePack(own, listed.header, listed.seal, files=files))
    else:
        with ThreadPoolExecutor(min(CONNECTIONS, len(urls))) as pool:
            shards += pool.map(open_object, urls)
        check_listed(index, shards)
    header = merge_headers([shard.header for shard in shards], index.skipped)
    return RemotePack(
        url,
        header,
        index.digest,
        tuple(shards),
        files={str(number): shard.files[""] for number, shard in enumerate(shards)},
    )
