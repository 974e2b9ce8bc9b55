"""Files of packs in stores: header, seal and checksums by ranged reads, each of the version that was opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError, damaged
from packer.format.checksums import SIZE, Trailer
from packer.format.header import Header
from packer.format.pack import Pack, PackFiles, check_extents
from packer.format.shards import ListedHeader, not_listed
from packer.format.stretch_window import StretchWindow
from packer.remote import access
from packer.remote.object_store import ObjectInfo
from packer.starting import ForkSafeLock

END_BYTES = 1 << 20  # of an object, read first: trailer, header and checksums of most packs lie there
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
                read_object(self.url)  # to say what is wrong, if something is
                raise not_listed(self.url)
            check_extents(Pack(self.url, self._listed.header, self._listed.seal), info.size)
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
class StoredPack(Pack):
    """A pack in a store, without its rows. path: its URL; files: by the names that extents have.

    table: its checksum table, if it came with the end of the file.
    """

    files: Mapping[str, RemoteFile | ListedRemoteFile] = field(kw_only=True)
    table: bytes = field(default=b"", kw_only=True, repr=False)

    def read_bytes(self, file: str, offset: int, nbytes: int) -> bytes:
        """See Pack."""
        return bytes(self.files[file].read(offset, nbytes))

    def open_files(self) -> PackFiles:
        """See Pack."""
        return _RemoteFiles(self)

    def stored_checksums(self) -> NDArray[np.uint64] | None:
        """See Pack."""
        shape = self.header.blocks, len(self.header.columns)
        if len(self.table) == 8 * shape[0] * shape[1]:
            return np.frombuffer(self.table, "<u8").reshape(shape)
        return super().stored_checksums()


class _RemoteFiles(PackFiles):
    """The files of a pack in a store, read in pieces, each once."""

    def __init__(self, pack: StoredPack) -> None:
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


def read_object(url: str) -> StoredPack:
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
    trailer.check_length(url, info.size)
    header = Header.sealed_by(trailer, url, info.size, part)
    near = first <= trailer.checksums_offset
    table = part(trailer.checksums_offset, trailer.checksums_length) if near else b""
    pack = StoredPack(url, header, bytes(data[-SIZE:]), files={"": file}, table=table)
    check_extents(pack, info.size)
    return pack
