"""Compressed files, read as what they hold: .gz (several members), .zst (several frames), .bz2, .xz."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from typing import Any, Protocol, cast

from packer.errors import MissingDependencyError, SourceError

_AT_A_TIME = 512 * 1024  # bytes of the compressed file; more brings nothing
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE = 0x184D2A50  # to ...5F


class ByteReader(Protocol):
    """What bytes are read from."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Put bytes into a buffer. Returns: how many, at least one unless the end is reached."""


class Raw:
    """A file's bytes, decompressed if its name says that it is compressed."""

    def __init__(self, name: str, file: io.FileIO) -> None:
        """Begin at the file's beginning. Raises: SourceError if it is not compressed though it should be."""
        self._name, self._file = name, file
        file.seek(0)
        self._suffix = compression(name)
        self._reader: ByteReader = cast(ByteReader, file)
        self._faults: tuple[type[Exception], ...] = ()
        if not self._suffix:
            return
        magics, opener = _KINDS[self._suffix]
        begin = file.read(6)
        file.seek(0)
        if not begin:
            return  # an empty file holds nothing, however it is named
        if not any(begin.startswith(magic) for magic in magics):
            raise SourceError(
                f"{name}: begins with {begin.hex(' ').upper()}, as no {self._suffix} file does; its name says it is one. "
                "Rename it."
            )
        self._reader, self._faults = opener(file)

    def readinto(self, buffer: memoryview) -> int:
        """Put bytes into a buffer. Raises: SourceError when they cannot be read."""
        try:
            return self._reader.readinto(buffer) or 0
        except EOFError:
            self._check_behind()
            raise SourceError(
                f"{self._name}: its compressed data stop before their end; whole {self._suffix} files are read. Copy it again."
            ) from None
        except OSError as error:
            if error.errno is None:
                self._check_behind()
                raise self._damaged(error) from None
            raise unreadable(self._name, error) from None
        except self._faults as error:
            self._check_behind()
            raise self._damaged(error) from None

    @property
    def compressed(self) -> bool:
        """Whether the file's bytes are not what is read."""
        return bool(self._suffix)

    def _check_behind(self) -> None:
        """Raises SourceError if the compressed data are whole, and something else follows them."""
        count = bytes_behind(self._file) if self._suffix == ".gz" else 0
        if count:
            raise SourceError(
                f"{self._name}: has {count:,} bytes behind its compressed data that are none; .gz files end with them. "
                "Write it again, as by: gzip -dc OLD | gzip > NEW."
            )

    def _damaged(self, error: Exception) -> SourceError:
        return SourceError(
            f"{self._name}: its compressed data are damaged ({error}); whole {self._suffix} files are read. Copy it again."
        )


def unreadable(name: str, error: OSError) -> SourceError:
    """What to say of a file that the system does not let us read."""
    return SourceError(f"{name}: cannot be read ({error.strerror}); readable files are needed. Check it.")


def compression(name: str) -> str:
    """The suffix that says how a file is compressed, "" if it is not."""
    return next((suffix for suffix in COMPRESSIONS if name.lower().endswith(suffix)), "")


Opened = tuple[ByteReader, tuple[type[Exception], ...]]
"""What to read from, and the errors of its own that it raises for damaged data."""


def _gzip(file: io.FileIO) -> Opened:
    try:
        from isal import igzip, isal_zlib
    except ImportError:
        return cast(ByteReader, gzip.GzipFile(fileobj=file, mode="rb")), (zlib.error,)
    # IGzipFile.readinto makes bytes and copies them; the reader below it, 5 % faster, decompresses into the buffer.
    modules: tuple[Any, Any] = igzip, isal_zlib
    bare = getattr(modules[1], "_GzipReader", None)
    reader = modules[0].IGzipFile(fileobj=file, mode="rb") if bare is None else bare(file, _AT_A_TIME)
    return cast(ByteReader, reader), (zlib.error, modules[1].error)


def bytes_behind(file: io.FileIO) -> int:
    """How many bytes follow the whole members of a .gz file, and begin no other; 0 if a member is damaged or cut off."""
    at, size = 0, file.seek(0, io.SEEK_END)
    while at < size:
        file.seek(at)
        begin = file.read(2)
        if begin[:1] == b"\0":  # zeros may fill up the last block of a tape
            at += 1
        elif begin != b"\x1f\x8b":
            return size - at
        else:
            try:
                at = _member_end(file, at)
            except zlib.error:
                return 0
    return 0


def _member_end(file: io.FileIO, at: int) -> int:
    """Where the member that begins there ends; if it was cut off: the end of the file."""
    file.seek(at)
    member = zlib.decompressobj(wbits=31)
    while not member.eof and (data := file.read(_AT_A_TIME)):
        at += len(data)
        while data and not member.eof:
            member.decompress(data, _AT_A_TIME)  # bounded: a file may hold a thousand times its size
            data = member.unconsumed_tail
    return at - len(member.unused_data)


def _bz2(file: io.FileIO) -> Opened:
    return cast(ByteReader, bz2.BZ2File(file)), (ValueError,)


def _xz(file: io.FileIO) -> Opened:
    return cast(ByteReader, lzma.LZMAFile(file)), (lzma.LZMAError,)


def _zst(file: io.FileIO) -> Opened:
    try:
        import zstandard
    except ImportError:
        raise MissingDependencyError("zstandard", "reading .zst files", "tables") from None
    return _Zst(file, zstandard.ZstdDecompressor(max_window_size=2**31)), (zstandard.ZstdError,)


class _Zst:
    """Frames of Zstandard. The package's own reader ends without a word where a file was cut off."""

    def __init__(self, file: io.FileIO, decompressor: Any) -> None:
        self._file = file
        self._reader = decompressor.stream_reader(file, read_across_frames=True, closefd=False)

    def readinto(self, buffer: memoryview) -> int:
        have = int(self._reader.readinto(buffer))
        if not have and len(buffer):
            check_frames(self._file)
        return have


def check_frames(file: io.FileIO) -> None:
    """Walk over the frames of a .zst file, block by block, without decompressing. Raises: EOFError if it was cut off.

    The layout: RFC 8878, 3.1.1. The file's position is kept.
    """
    position, size = file.tell(), file.seek(0, io.SEEK_END)
    at = 0

    def number(first: int, count: int) -> int:
        file.seek(first)
        data = file.read(count)
        if len(data) < count:
            raise EOFError
        return int.from_bytes(data, "little")

    while at < size:
        if number(at, 4) & ~0xF == _ZSTD_SKIPPABLE:
            at += 8 + number(at + 4, 4)
            continue
        descriptor = number(at + 4, 1)
        single = descriptor >> 5 & 1
        at += 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3] + ((single, 2, 4, 8)[descriptor >> 6])
        last = 0
        while not last:
            header = number(at, 3)
            last = header & 1
            at += 3 + (1 if header >> 1 & 3 == 1 else header >> 3)  # of a repeated byte, one is stored
        at += 4 * (descriptor >> 2 & 1)  # the checksum
    if at > size:
        raise EOFError
    file.seek(position)


_KINDS: dict[str, tuple[tuple[bytes, ...], Callable[[io.FileIO], Opened]]] = {
    ".gz": ((b"\x1f\x8b",), _gzip),
    ".zst": (
        (
            _ZSTD_MAGIC.to_bytes(4, "little"),
            *((_ZSTD_SKIPPABLE + n).to_bytes(4, "little") for n in range(16)),
        ),
        _zst,
    ),
    ".bz2": ((b"BZh",), _bz2),
    ".xz": ((b"\xfd7zXZ\x00",), _xz),
}
COMPRESSIONS = tuple(_KINDS)
