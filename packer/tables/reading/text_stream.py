"""Text files as streams of UTF-8: names and globs, byte order marks, other encodings."""

from __future__ import annotations

import codecs
import glob
import os
import stat
from collections.abc import Sequence

from packer.errors import SourceError, UsageError
from packer.tables.reading.compression import ByteReader, Raw, unreadable

_STEP = 1 << 20  # bytes that are skipped, or transcoded, at a time
_MARKS = {  # the longer ones first, as the bytes of UTF-16 begin those of UTF-32
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def expand(sources: Sequence[str]) -> list[str]:
    """Names of files and globs, made names of files: in the order given, what a glob matches sorted.

    Raises: SourceError for what is no readable file, for a glob that matches nothing, for a file that comes twice.
    """
    names: list[str] = []
    for source in sources:
        if glob.has_magic(source) and not os.path.lexists(source):
            found = sorted(name for name in glob.glob(source, recursive=True) if not os.path.isdir(name))
            if not found:
                raise SourceError(f"{source}: matches no file; at least one is needed. Check the pattern.")
            names += found
        else:
            names.append(source)
    seen: dict[tuple[int, int], str] = {}
    for name in names:
        identity = _identity(name)
        if identity in seen:
            raise SourceError(f"{name}: is {seen[identity]} once more; each file is read once. Drop one.")
        seen[identity] = name
    return names


def _identity(name: str) -> tuple[int, int]:
    """What tells a file from another, whatever its names. Raises: SourceError for what is no readable file."""
    try:
        status = os.stat(name)
        if stat.S_ISDIR(status.st_mode):
            raise SourceError(f"{name}: is a folder; files are read. Pass those in it, as '{name}/*.csv'.")
        if not stat.S_ISREG(status.st_mode):
            raise SourceError(
                f"{name}: is no regular file; only such can be read more than once. Copy it to one."
            )
        with open(name, "rb"):
            return status.st_dev, status.st_ino
    except OSError as error:
        raise unreadable(name, error) from None


class Stream:
    """The text of one file as UTF-8, decompressed, without a byte order mark."""

    def __init__(self, name: str, encoding: str = "utf-8") -> None:
        """Open a file. Raises: SourceError; UsageError for an unknown encoding; MissingDependencyError for .zst."""
        self.name = name
        self._encoding = python_encoding(encoding)
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
        raw = Raw(self.name, self._file)
        begin = bytearray(4)
        have = 0
        while have < 4 and (more := raw.readinto(memoryview(begin)[have:])):
            have += more
        self._pending = bytes(begin[:have])
        """Read, but not yet given."""
        self._mark = 0
        """Bytes before the text."""
        self._reader: ByteReader = raw
        if self._encoding != "utf-8":
            self._reader = _Transcoder(self.name, self._pending, raw, self._encoding)
            self._pending = b""
            return
        mark = next((mark for mark in _MARKS if self._pending.startswith(mark)), None)
        if mark is not None:
            raise SourceError(
                f"{self.name}: begins as {_MARKS[mark].upper()} text does ({mark.hex(' ').upper()}); UTF-8 is expected. "
                f"Pass --encoding {_MARKS[mark]}."
            )
        if self._pending.startswith(codecs.BOM_UTF8):
            self._mark = len(codecs.BOM_UTF8)
            self._pending = self._pending[self._mark :]

    def fill(self, buffer: memoryview) -> int:
        """Fill a buffer of bytes, unless the text ends. Returns: how many it holds. Raises: SourceError."""
        have = min(len(self._pending), len(buffer))
        buffer[:have] = self._pending[:have]
        self._pending = self._pending[have:]
        while have < len(buffer) and (more := self._reader.readinto(buffer[have:])):
            have += more
        return have

    def seek(self, offset: int) -> None:
        """Go to an offset in the text: at once in a plain file; others are read again, what comes before is thrown away."""
        if self._plain:
            self._pending = b""
            self._file.seek(self._mark + offset)
            return
        self._start()
        waste = memoryview(bytearray(min(_STEP, offset)))
        while offset and (more := self.fill(waste[:offset])):
            offset -= more

    @property
    def _plain(self) -> bool:
        return isinstance(self._reader, Raw) and not self._reader.compressed

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def python_encoding(encoding: str) -> str:
    """Python's name of an encoding; utf-8 for what is a part of it. Raises: UsageError for none."""
    try:
        found = codecs.lookup(encoding)
        "a".encode(encoding)  # refuses those that are not for text, as hex
    except (LookupError, ValueError, TypeError):
        raise UsageError(
            f"--encoding {encoding}: no such encoding; those that Python knows are read, as utf-16, cp1252 or latin-1. "
            "Pass one."
        ) from None
    return "utf-8" if found.name in ("utf-8", "utf-8-sig", "ascii") else found.name


class _Transcoder:
    """Bytes of another encoding, as UTF-8."""

    def __init__(self, name: str, begin: bytes, reader: ByteReader, encoding: str) -> None:
        self._name, self._reader, self._encoding = name, reader, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._block = bytearray(_STEP)
        self._begin = begin
        self._at = 0  # bytes that the decoder has got
        self._text = memoryview(b"")
        self._ended = False
        self._begun = False

    def readinto(self, buffer: memoryview) -> int:
        while not self._text and not self._ended:
            self._more()
        count = min(len(self._text), len(buffer))
        buffer[:count] = self._text[:count]
        self._text = self._text[count:]
        return count

    def _more(self) -> None:
        data = self._begin
        if not data:
            data = bytes(memoryview(self._block)[: self._reader.readinto(memoryview(self._block))])
        self._begin = b""
        self._ended = not data
        held = len(self._decoder.getstate()[0])
        try:
            text = self._decoder.decode(data, self._ended)
            if text and not self._begun:
                self._begun = True
                text = text.removeprefix("\ufeff")
            self._text = memoryview(text.encode())
        except UnicodeDecodeError as error:
            raise self._undecodable(self._at - held + error.start) from None
        except UnicodeError:  # UTF-16 without its mark; text that cannot be UTF-8
            raise self._undecodable(self._at - held) from None
        self._at += len(data)

    def _undecodable(self, offset: int) -> SourceError:
        return SourceError(
            f"{self._name}: byte {offset:,} is not {self._encoding.upper()}; the whole file must be. Pass another --encoding."
        )
