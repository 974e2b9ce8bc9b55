"""Files of text as streams of UTF-8: decompressed (.gz, .zst, .bz2, .xz), transcoded, without byte order marks."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from packer.errors import MissingDependencyError, SourceError, UsageError
from packer.sentence import Option
from packer.source_kinds import compression

_AT_A_TIME = 512 * 1024  # bytes of the compressed file; more brings nothing
_ZST_AT_A_TIME = 4096  # all that they become is held: up to 32,768 times as much
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

    def _start(self) -> None:
        """Begin at the file's beginning. Raises SourceError for UTF-16 and UTF-32 that are not said to be such."""
        self._file.seek(0)
        self._bytes: Any = self._file
        self._faults: tuple[type[Exception], ...] = (OSError, EOFError)
        if self._suffix and self._file.read(1):  # an empty file holds nothing, however it is named
            self._file.seek(0)
            self._bytes, faults = _KINDS[self._suffix](self._file)
            self._faults += faults
        if self._encoding != "utf-8":
            self._bytes = _Pieces(_transcoded(self._bytes, self._encoding))
        begin = bytearray(4)
        self._pending = memoryview(b"")
        """Read, but not yet given."""
        begin = begin[: self.fill(memoryview(begin))]
        mark = next((mark for mark in _MARKS if begin.startswith(mark)), None)
        if mark is not None:
            raise SourceError(
                f"{self.name}: begins as {_MARKS[mark].upper()} text does ({mark.hex(' ').upper()}); "
                f"UTF-8 is expected. Pass {Option('Csv.encoding', _MARKS[mark])}."
            )
        self._mark = len(codecs.BOM_UTF8) if begin.startswith(codecs.BOM_UTF8) else 0
        """Bytes before the text."""
        self._pending = memoryview(begin)[self._mark :]

    def fill(self, buffer: memoryview) -> int:
        """Fill a buffer of bytes, unless the text ends. Returns: how many it holds. Raises: SourceError."""
        have = min(len(buffer), len(self._pending))
        buffer[:have], self._pending = self._pending[:have], self._pending[have:]
        try:
            while have < len(buffer) and (more := self._bytes.readinto(buffer[have:])):
                have += more
        except UnicodeError:
            raise SourceError(
                f"{self.name}: holds bytes that are not {self._encoding.upper()}; the whole file must be. "
                f"Pass another {Option('Csv.encoding')}."
            ) from None
        except self._faults as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise unreadable(self.name, error) from None
            raise SourceError(
                f"{self.name}: its compressed data are damaged, or stop before their end ({str(error) or 'end of file'});"
                f" whole {self._suffix} files are read. Copy it again, or rename it if it is none."
            ) from None
        return have

    def seek(self, offset: int) -> None:
        """Go to an offset in the text: at once in a plain file; others are read again, what comes before is thrown away."""
        if self._bytes is self._file:
            self._pending = memoryview(b"")
            self._file.seek(self._mark + offset)
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


class _Pieces:
    """A stream of pieces of bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")

    def readinto(self, buffer: memoryview) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        have = min(len(buffer), len(self._rest))
        buffer[:have], self._rest = self._rest[:have], self._rest[have:]
        return have


def _transcoded(stream: Any, encoding: str) -> Iterator[bytes]:
    decoder, block = codecs.getincrementaldecoder(encoding)(), bytearray(_STEP)
    while size := stream.readinto(block):
        yield decoder.decode(block[:size]).encode()
    yield decoder.decode(b"", final=True).encode()


def _frames(file: io.FileIO, decompressor: Any) -> Iterator[bytes]:
    """Yield what frames of Zstandard hold. The package's own reader ends silently where a file was cut off."""
    frame: Any = None
    while data := file.read(_ZST_AT_A_TIME):
        while data:
            frame = frame or decompressor.decompressobj()
            yield frame.decompress(data)
            data, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame is not None:
        raise EOFError


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
    frames = _frames(file, zstandard.ZstdDecompressor(max_window_size=2**31))
    return _Pieces(frames), (zstandard.ZstdError,)


_KINDS: dict[str, Callable[[io.FileIO], Opened]] = {
    ".gz": _gzip,
    ".zst": _zst,
    ".bz2": lambda file: (bz2.BZ2File(file), (ValueError,)),
    ".xz": lambda file: (lzma.LZMAFile(file), (lzma.LZMAError,)),  # noqa: SIM115
}
