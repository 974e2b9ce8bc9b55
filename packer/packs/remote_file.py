"""Files of remote packs: ranged reads of header, seal and checksums, all of the version that was opened."""

from __future__ import annotations

from packer.errors import FormatError
from packer.format.checksums import SIZE, Trailer
from packer.format.header import Header
from packer.packs.pack import Pack
from packer.packs.pack_checks import check_extents
from packer.packs.shards import is_header_sealed, not_listed
from packer.remote import access
from packer.remote.object_store import ObjectInfo
from packer.starting import ForkSafeLock

# bytes at an object's end that are read first; they hold trailer, header and checksums of most packs
END_BYTES = 1 << 20
ATTEMPTS = 3  # reads after a checksum mismatch, before the object counts as damaged


class RemoteFile:
    """A file of a remote pack: its URL, size and version. Thread-safe.

    end: its last bytes, if they hold the block checksums, which reading rows needs first; listed: the shard
    as the index describes it, which the first read compares with the object.
    """

    url: str
    info: ObjectInfo

    def __init__(self, url: str, info: ObjectInfo, end: bytes = b"", listed: Pack | None = None) -> None:
        self.url, self.info, self._end, self._listed = url, info, end, listed
        self._lock = ForkSafeLock()

    @classmethod
    def from_shard(cls, shard: Pack) -> RemoteFile:
        """Return the file of a shard as the index describes it, without a request to the store."""
        return cls(shard.path, ObjectInfo(shard.trailer.container_length + SIZE, None, ""), listed=shard)

    def confirm(self) -> None:
        """Compare a listed shard's object with the index, unless that was done. Raises PackerError."""
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
                read_object(self.url)  # reports damage, if any
                raise not_listed(self.url)
            check_extents(self._listed, info.size)
            self.info, self._end, self._listed = info, bytes(data), None

    def read(self, offset: int, nbytes: int, path: str = "") -> bytearray:
        """Return bytes of the opened version, or write them to a file (see read_range).

        Raises PackerError.
        """
        self.confirm()
        end, stop = self._end, offset + nbytes
        at = offset - (self.info.size - len(end))
        if end and at >= 0 and nbytes and not path:
            self._end = b""
            if stop <= self.info.size:
                return bytearray(end[at : at + nbytes])
        return access.read_range(self.url, offset, stop, self.info, path, patience=access.ROWS_PATIENCE)


def read_object(url: str) -> tuple[Pack, RemoteFile]:
    """Open a pack of one file. Raises FormatError, RemoteError."""
    data, info = access.read_end(url, END_BYTES)
    end, first = bytes(data), info.size - len(data)
    trailer = Trailer.from_bytes(end[-SIZE:])
    if trailer is None:
        raise FormatError(
            f"{url}: is not a pack, or was opened for writing after it was sealed."
            " Download it, run packer info on it, then packer seal, and upload it again."
        )
    trailer.check_length(url, info.size)
    read = RemoteFile(url, info, end).read
    header = Header.sealed_by(trailer, url, info.size, lambda offset, nbytes: bytes(read(offset, nbytes)))
    pack = Pack(url, header, end[-SIZE:])
    check_extents(pack, info.size)
    near = end[max(0, trailer.checksums_offset - first) :] if first <= trailer.checksums_offset else b""
    return pack, RemoteFile(url, info, near)
