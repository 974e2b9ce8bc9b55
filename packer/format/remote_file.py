"""Files of packs in stores: header, seal and checksums by ranged reads, each of the version that was opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from packer.errors import FormatError
from packer.format.checksums import SIZE, Trailer
from packer.format.header import Header
from packer.format.pack import Pack, PackFiles, check_extents
from packer.format.shards import is_header_sealed, not_listed
from packer.format.stretch_window import StretchWindow
from packer.remote import access
from packer.remote.object_store import ObjectInfo
from packer.starting import ForkSafeLock

END_BYTES = 1 << 20  # of an object, read first: trailer, header and checksums of most packs lie there
ATTEMPTS = 3  # at bytes whose checksums differ, before they are thought to be so in the store
_PIECE_BYTES = 8 << 20


class RemoteFile:
    """A file of a pack in a store: its URL, size and version. Thread-safe.

    end: its last bytes, if they hold the block checksums: reading rows needs them first. listed: the shard as the index describes it,
    with which the first read compares the object.
    """

    def __init__(self, url: str, info: ObjectInfo, end: bytes = b"", listed: Pack | None = None) -> None:
        self.url, self.info, self._end, self._listed = url, info, end, listed
        self._lock = ForkSafeLock()

    @classmethod
    def of_listed(cls, shard: Pack) -> RemoteFile:
        """Return the file of a shard as the index describes it; nothing is asked of the store."""
        return cls(shard.path, ObjectInfo(shard.trailer.container_length + SIZE, None, ""), listed=shard)

    def confirm(self) -> None:
        """See that the object is the shard that the index lists, if it is one and that was not done. Raises PackerError."""
        with self._lock:
            if self._listed is None:
                return
            distance = self.info.size - self._listed.trailer.checksums_offset
            nbytes = distance if SIZE < distance <= END_BYTES else SIZE
            for _ in range(ATTEMPTS):
                data, info = access.read_end(self.url, nbytes, patience=access.ROWS_PATIENCE)
                if bytes(data[-SIZE:]) == self._listed.seal:
                    break
            if bytes(data[-SIZE:]) != self._listed.seal or not is_header_sealed(self._listed):
                read_object(self.url)  # to say what is wrong, if something is
                raise not_listed(self.url)
            check_extents(self._listed, info.size)
            self.info, self._end, self._listed = info, bytes(data), None

    def read(self, offset: int, nbytes: int, path: str = "") -> bytearray:
        """Return bytes of it, or write them to a file; of this version or not at all. See read_range. Raises PackerError."""
        self.confirm()
        end, stop = self._end, offset + nbytes
        at = offset - (self.info.size - len(end))
        if end and at >= 0 and nbytes and not path:
            self._end = b""
            if stop <= self.info.size:
                return bytearray(end[at : at + nbytes])
        return access.read_range(self.url, offset, stop, self.info, path, patience=access.ROWS_PATIENCE)


@dataclass(frozen=True)
class StoredPack(Pack):
    """A pack in a store, without its rows. path: its URL; files: by the names that extents have."""

    files: Mapping[str, RemoteFile] = field(kw_only=True)

    def read_bytes(self, file: str, offset: int, nbytes: int) -> bytes:
        """See Pack."""
        return bytes(self.files[file].read(offset, nbytes))

    def open_files(self) -> PackFiles:
        """See Pack."""
        return _RemoteFiles(self)


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
    end, first = bytes(data), info.size - len(data)
    trailer = Trailer.from_bytes(end[-SIZE:])
    if trailer is None:
        raise FormatError(
            f"{url}: is no pack, or was opened for writing since it was sealed. Download it, see what packer info says"
            " of it, and upload it when packer seal has made it a pack again."
        )
    trailer.check_length(url, info.size)
    read = RemoteFile(url, info, end).read
    header = Header.sealed_by(trailer, url, info.size, lambda offset, nbytes: bytes(read(offset, nbytes)))
    near = end[max(0, trailer.checksums_offset - first) :] if first <= trailer.checksums_offset else b""
    pack = StoredPack(url, header, end[-SIZE:], files={"": RemoteFile(url, info, near)})
    check_extents(pack, info.size)
    return pack
