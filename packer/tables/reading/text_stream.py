"""Text files as UTF-8 streams: unpacked, transcoded, without byte order mark and without escape characters.

The first bytes show how a file is packed (gzip, zstd, bzip2, xz, zip, tar, .xlsx), not its name.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from zipfile import BadZipFile

from packer.errors import MissingDependencyError, SourceError, UsageError
from packer.source_kinds import compression
from packer.tables.reading.table_archives import is_tar, tar_member, zip_member

_AT_A_TIME = 512 * 1024  # bytes read of the compressed file at once; more is not faster
_ZST_AT_A_TIME = 4096  # bytes read at once; memory holds their decompressed form, up to 32,768 times as large
_STEP = 1 << 20  # bytes skipped or transcoded at once
_MARKS = {  # longer marks first: UTF-16's are prefixes of UTF-32's
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


_MAGIC = {
    b"\x1f\x8b": ".gz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"BZh": ".bz2",
    b"\xfd7zXZ": ".xz",
    b"PK\3\4": ".zip",
}
_TAR_BLOCK = 512


class TextStream:
    """The text of a file as UTF-8, unpacked, without a byte order mark."""

    def __init__(self, name: str, encoding: str = "utf-8", escape: Sequence[str] = ()) -> None:
        """Open a file. escape: escape character, delimiter, quote; cells are written again without escapes.

        Raises SourceError, UsageError (unknown encoding), MissingDependencyError (.zst, .xlsx).
        """
        self.name = name
        self._encoding, self._escape = python_encoding(encoding), escape
        self._tar = False
        try:
            self._file = open(name, "rb", buffering=0)  # noqa: SIM115 — close() does
        except OSError as error:
            raise unreadable(name, error) from None
        try:
            block = self._file.read(_TAR_BLOCK)
            named = compression(name) if block else ""  # an empty file is valid under any name
            begins = (suffix for magic, suffix in _MAGIC.items() if block.startswith(magic))
            self._suffix = next(begins, named)
            self._unpack()
            self._tar = is_tar(block if self._suffix in ("", ".zip") else self.read(_TAR_BLOCK))
            self._start()
        except OSError as error:
            self._file.close()
            raise unreadable(name, error) from None
        except BaseException:
            self._file.close()
            raise

    @property
    def consumed(self) -> int:
        """Bytes read of the file, in steps if it is compressed."""
        return self._file.tell()

    def _unpack(self) -> None:
        """Start at the beginning of the unpacked file."""
        self._file.seek(0)
        self._pending = memoryview(b"")
        """Bytes read, but not returned yet."""
        self._bytes: Any = self._file
        self._faults: tuple[type[Exception], ...] = (OSError, EOFError)
        if self._suffix:
            self._bytes, faults = _KINDS[self._suffix](self._file)
            self._faults += faults
        if self._tar:
            self._bytes = _Pieces(tar_member(self.name, self._bytes))
            self._faults += (tarfile.TarError,)

    def _start(self) -> None:
        """Start at the text's beginning. Raises SourceError for UTF-16 and UTF-32 under another encoding."""
        self._unpack()
        if self._encoding != "utf-8":
            self._bytes = _Pieces(_transcoded(self._bytes, self._encoding))
        if self._escape:
            self._bytes = _Pieces(_unescaped(self._bytes, *self._escape))
        begin = bytearray(4)
        begin = begin[: self.fill(memoryview(begin))]
        mark = next((mark for mark in _MARKS if begin.startswith(mark)), None)
        if mark is not None:
            raise SourceError(
                f"{self.name}: begins like {_MARKS[mark].upper()} text ({mark.hex(' ').upper()}); "
                f"UTF-8 is expected. Pass csv=Csv(encoding={_MARKS[mark]!r})."
            )
        self._mark = len(codecs.BOM_UTF8) if begin.startswith(codecs.BOM_UTF8) else 0
        """Length of the byte order mark, in bytes."""
        self._pending = memoryview(begin)[self._mark :]

    def fill(self, buffer: memoryview) -> int:
        """Fill a buffer, unless the text ends. Return the number of bytes. Raises SourceError."""
        have = min(len(buffer), len(self._pending))
        buffer[:have], self._pending = self._pending[:have], self._pending[have:]
        try:
            while have < len(buffer) and (more := self._bytes.readinto(buffer[have:])):
                have += more
        except UnicodeError:
            raise SourceError(
                f"{self.name}: holds bytes that are not {self._encoding.upper()}; all of them must be. "
                "Pass another csv=Csv(encoding=)."
            ) from None
        except csv.Error as error:
            raise SourceError(
                f"{self.name}: a quoted cell is not closed as csv=Csv(escape={self._escape[0]!r}) and"
                f" csv=Csv(quote={self._escape[2]!r}) say ({error}). Correct it, or pass csv=Csv(quote='')."
            ) from None
        except self._faults as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise unreadable(self.name, error) from None
            raise SourceError(
                f"{self.name}: its compressed data are damaged or truncated ({str(error) or 'end of file'});"
                f" complete {self._suffix or '.tar'} files are read. Copy it again, or rename it if it is not"
                " compressed."
            ) from None
        return have

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes, fewer at the end of the text, as files do. Raises SourceError."""
        buffer = memoryview(bytearray(size))
        return bytes(buffer[: self.fill(buffer)])

    @property
    def closed(self) -> bool:
        """True once the file is closed."""
        return self._file.closed

    def seek(self, offset: int) -> None:
        """Go to an offset in the text: directly in a plain file, else by reading from the beginning."""
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
    """Return Python's name of an encoding, utf-8 for subsets of it. Raises UsageError for an unknown one."""
    try:
        codec = codecs.lookup(encoding)
        "a".encode(encoding)  # raises for codecs that are not text encodings, such as hex
    except (LookupError, ValueError, TypeError):
        raise UsageError(
            f"csv=Csv(encoding={encoding!r}): is not an encoding; those that Python knows are allowed, "
            "such as utf-16, cp1252 or latin-1. Pass one of them."
        ) from None
    return "utf-8" if codec.name in ("utf-8", "utf-8-sig", "ascii") else codec.name


def unreadable(name: str, error: OSError) -> SourceError:
    """Return the error for a file that the system cannot read."""
    return SourceError(f"{name}: cannot be read ({error.strerror}); readable files are needed. Check it.")


class _Pieces(io.RawIOBase):
    """A readable stream over an iterator of bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        have = min(len(buffer), len(self._rest))
        buffer[:have], self._rest = self._rest[:have], self._rest[have:]
        return have


def _unescaped(stream: Any, escape: str, delimiter: str, quote: str) -> Iterator[bytes]:
    r"""Yield lines without escapes, by Python's csv: `"a \" b"` becomes `"a "" b"`, \N an empty cell.

    Line ends stay where they are, so that line numbers do.
    """
    null = f"(?:(?<={re.escape(delimiter)})|^){re.escape(escape)}N(?={re.escape(delimiter)}|[\r\n]|$)"
    pieces = _Pieces(iter(partial(stream.read, _STEP), b""))  # which BufferedReader may close
    lines = (re.sub(null, "", line.decode()) for line in io.BufferedReader(pieces))
    rows = csv.reader(
        lines,
        delimiter=delimiter,
        quotechar=quote or None,
        escapechar=escape,
        strict=True,
        quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
    )
    for row in rows:
        line = io.StringIO()
        csv.writer(line, delimiter=delimiter, lineterminator="\n").writerow(row)
        yield line.getvalue().encode()


def without_escapes(text: bytes, escape: str, delimiter: str, quote: str) -> bytes:
    """Return complete lines of UTF-8 without escape characters. Raises csv.Error."""
    return b"".join(_unescaped(io.BytesIO(text), escape, delimiter, quote))


def _transcoded(stream: Any, encoding: str) -> Iterator[bytes]:
    decoder, block = codecs.getincrementaldecoder(encoding)(), bytearray(_STEP)
    while size := stream.readinto(block):
        yield decoder.decode(block[:size]).encode()
    yield decoder.decode(b"", final=True).encode()


def _frames(file: io.FileIO, decompressor: Any) -> Iterator[bytes]:
    """Yield the content of Zstandard frames. zstandard's own reader stops silently at a truncated frame."""
    frame: Any = None
    while data := file.read(_ZST_AT_A_TIME):
        while data:
            frame = frame or decompressor.decompressobj()
            yield frame.decompress(data)
            data, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame is not None:
        raise EOFError


Opened = tuple[Any, "tuple[type[Exception], ...]"]
"""An object with `readinto` for the decompressed bytes, and the error types that it raises for damaged data.
"""


def _gzip(file: io.FileIO) -> Opened:
    try:
        from isal import igzip, isal_zlib
    except ImportError:
        return gzip.GzipFile(fileobj=file, mode="rb"), (zlib.error,)
    # IGzipFile.readinto copies bytes; the reader below it decompresses into the buffer, 5 % faster.
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
    ".zip": lambda file: (_Pieces(zip_member(file)), (BadZipFile, zlib.error)),
    ".xz": lambda file: (lzma.LZMAFile(file), (lzma.LZMAError,)),  # noqa: SIM115
}
