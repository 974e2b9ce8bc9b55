"""Files of text as streams of UTF-8: decompressed (.gz, .zst, .bz2, .xz), transcoded, without byte order marks."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from typing import Any

from packer.errors import MissingDependencyError, SourceError, UsageError
from packer.sentence import Option
from packer.source_kinds import compression

_AT_A_TIME = 512 * 1024  # bytes of the compressed file; more brings nothing
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
_STEP = 1 << 20  # bytes that are skipped, or transcoded, at a time
_MARKS = {  # the longer ones first, as the bytes of UTF-16 begin those of UTF-32
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class TextStream:
    """The text of one file as UTF-8, decompressed, without a byte order mark."""

    def __init__(self, name: str, encoding: str = "utf-8") -> None:
        """Open a file. Raises: SourceError; UsageError for an unknown encoding; MissingDependencyError for .zst."""
        self.name = name
        self._encoding = python_encoding(encoding)
        self._suffix = compression(name)
        try:
            self._file = open(name, "rb", buffering=0)  # noqa: SIM115 — close() does
        except OSError as error:
            raise unreadable(name, error) from None
        try:
            self._start()
        except BaseException:
            self._file.close()
            raise

    @property
    def consumed(self) -> int:
        """Bytes taken of the file on the disk, in steps if it is compressed."""
        return self._file.tell()

    def place(self, offset: int) -> int | None:
        """Return where in the file an offset of the text is, None where it is compressed or transcoded."""
        return None if self._suffix or self._encoding != "utf-8" else self._mark + offset

    def _start(self) -> None:
        self._pending = memoryview(b"")
        """Read, but not yet given."""
        self._mark = 0
        """Bytes before the text."""
        self._open()
        if self._encoding != "utf-8":
            self._decoder = codecs.getincrementaldecoder(self._encoding)()
            self._decoded = 0  # bytes that the decoder has got
            self._begun = self._ended = False
            return
        begin = bytearray(4)
        begin = begin[: self.fill(memoryview(begin))]
        mark = next((mark for mark in _MARKS if begin.startswith(mark)), None)
        if mark is not None:
            raise SourceError(
                f"{self.name}: begins as {_MARKS[mark].upper()} text does ({mark.hex(' ').upper()}); "
                f"UTF-8 is expected. Pass {Option('Csv.encoding', _MARKS[mark])}."
            )
        if begin.startswith(codecs.BOM_UTF8):
            self._mark = len(codecs.BOM_UTF8)
        self._pending = memoryview(begin)[self._mark :]

    def _open(self) -> None:
        """Begin at the file's beginning. Raises: SourceError if it is not compressed though its name says so."""
        self._file.seek(0)
        self._bytes: Any = self._file
        self._faults: tuple[type[Exception], ...] = (OSError,)
        begin = self._file.read(6) if self._suffix else b""
        self._file.seek(0)
        if not begin:
            return  # an empty file holds nothing, however it is named
        magics, opener = _KINDS[self._suffix]
        if not any(begin.startswith(magic) for magic in magics):
            raise SourceError(
                f"{self.name}: begins with {begin.hex(' ').upper()}, as no {self._suffix} file does; its name says it is one. "
                "Rename it."
            )
        self._bytes, faults = opener(self._file)
        self._faults += faults

    def fill(self, buffer: memoryview) -> int:
        """Fill a buffer of bytes, unless the text ends. Returns: how many it holds. Raises: SourceError."""
        have = 0
        read = self._read if self._encoding == "utf-8" else self._transcode
        while have < len(buffer):
            if self._pending:
                more = min(len(self._pending), len(buffer) - have)
                buffer[have : have + more] = self._pending[:more]
                self._pending = self._pending[more:]
            else:
                more = read(buffer[have:])
                if not more and not self._pending:
                    break
            have += more
        return have

    def _read(self, buffer: memoryview) -> int:
        """Put bytes of the decompressed file into a buffer; none at its end."""
        try:
            return self._bytes.readinto(buffer) or 0
        except EOFError:
            raise SourceError(
                f"{self.name}: its compressed data stop before their end, or other bytes are behind them;"
                f" whole {self._suffix} files are read. Copy it again, or make it anew."
            ) from None
        except self._faults as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise unreadable(self.name, error) from None
            raise SourceError(
                f"{self.name}: its compressed data are damaged ({error}); whole {self._suffix} files are read. Copy it again."
            ) from None

    def _transcode(self, buffer: memoryview) -> int:
        """Make more of the text pending, as UTF-8; nothing at its end."""
        while not self._pending and not self._ended:
            block = bytearray(_STEP)
            data = block[: self._read(memoryview(block))]
            self._ended = not data
            held = len(self._decoder.getstate()[0])
            try:
                text = self._decoder.decode(data, self._ended)
                if text and not self._begun:
                    self._begun = True
                    text = text.removeprefix("\ufeff")
                self._pending = memoryview(text.encode())
            except UnicodeDecodeError as error:
                raise self._undecodable(self._decoded - held + error.start) from None
            except UnicodeError:  # UTF-16 without its mark; text that cannot be UTF-8
                raise self._undecodable(self._decoded - held) from None
            self._decoded += len(data)
        return 0

    def _undecodable(self, offset: int) -> SourceError:
        return SourceError(
            f"{self.name}: byte {offset:,} is not {self._encoding.upper()}; the whole file must be. "
            f"Pass another {Option('Csv.encoding')}."
        )

    def seek(self, offset: int) -> None:
        """Go to an offset in the text: at once in a plain file; others are read again, what comes before is thrown away."""
        place = self.place(offset)
        if place is not None:
            self._pending = memoryview(b"")
            self._file.seek(place)
            return
        self._start()
        waste = memoryview(bytearray(min(_STEP, offset)))
        while offset and (more := self.fill(waste[:offset])):
            offset -= more

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def python_encoding(encoding: str) -> str:
    """Return Python's name of an encoding; utf-8 for what is a part of it. Raises: UsageError for none."""
    try:
        found = codecs.lookup(encoding)
        "a".encode(encoding)  # refuses those that are not for text, as hex
    except (LookupError, ValueError, TypeError):
        raise UsageError(
            f"{Option('Csv.encoding', encoding)}: no such encoding; those that Python knows are read, "
            "as utf-16, cp1252 or latin-1. Pass one."
        ) from None
    return "utf-8" if found.name in ("utf-8", "utf-8-sig", "ascii") else found.name


def unreadable(name: str, error: OSError) -> SourceError:
    """Return the error for a file that the system does not let us read."""
    return SourceError(f"{name}: cannot be read ({error.strerror}); readable files are needed. Check it.")


Opened = tuple[Any, "tuple[type[Exception], ...]"]
"""What has `readinto` for the decompressed bytes, and the errors of its own that it raises for damaged data."""


def _gzip(file: io.FileIO) -> Opened:
    try:
        from isal import igzip, isal_zlib
    except ImportError:
        return gzip.GzipFile(fileobj=file, mode="rb"), (zlib.error,)
    # IGzipFile.readinto makes bytes and copies them; the reader below it, 5 % faster, decompresses into the buffer.
    modules: Any = (igzip, isal_zlib)
    bare = getattr(modules[1], "_GzipReader", None)
    reader = modules[0].IGzipFile(fileobj=file, mode="rb") if bare is None else bare(file, _AT_A_TIME)
    return reader, (zlib.error, modules[1].error)


def _zst(file: io.FileIO) -> Opened:
    try:
        import zstandard
    except ImportError:
        raise MissingDependencyError("zstandard", "reading .zst files") from None
    return _Zst(file, zstandard.ZstdDecompressor(max_window_size=2**31)), (zstandard.ZstdError,)


class _Zst:
    """Frames of Zstandard. The package's own reader ends silently where a file was cut off, so they are counted at the end."""

    def __init__(self, file: io.FileIO, decompressor: Any) -> None:
        self._file = file
        self._reader = decompressor.stream_reader(file, read_across_frames=True, closefd=False)

    def readinto(self, buffer: memoryview) -> int:
        have = int(self._reader.readinto(buffer))
        if not have and len(buffer):
            _check_frames(self._file)
        return have


def _check_frames(file: io.FileIO) -> None:
    """Walk over the frames of a .zst file, block by block, without decompressing. Raises: EOFError if it was cut off.

    The layout: RFC 8878, 3.1.1. The file's position is kept.
    """
    position, size = file.tell(), file.seek(0, io.SEEK_END)

    def number(at: int, count: int) -> int:
        file.seek(at)
        data = file.read(count)
        if len(data) < count:
            raise EOFError
        return int.from_bytes(data, "little")

    at = 0
    while at < size:
        if number(at, 4) in _ZSTD_SKIPPABLE:
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
    ".zst": (tuple(n.to_bytes(4, "little") for n in (_ZSTD_MAGIC, *_ZSTD_SKIPPABLE)), _zst),
    ".bz2": ((b"BZh",), lambda file: (bz2.BZ2File(file), (ValueError,))),
    ".xz": ((b"\xfd7zXZ\x00",), lambda file: (lzma.LZMAFile(file), (lzma.LZMAError,))),  # noqa: SIM115
}
