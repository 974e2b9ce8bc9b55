"""Archives of images (tar, compressed tar, zip), read in any order without unpacking.

Members of a tar file are read at their offsets. A compressed tar has no random access, so it is decompressed
once into an unnamed temporary file, which vanishes with the process. Members of a zip file are read at their
offsets, too: each is stored or deflated separately. All reads are `pread`, so threads share one descriptor.
"""

from __future__ import annotations

import errno
import io
import lzma
import os
import shutil
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import IO, NamedTuple

import numpy as np

from packer.errors import ImageError, PackerError, SourceError, SpaceError, UsageError
from packer.format.file_io import pread_all
from packer.inputs.file_names import as_text, changed, is_hidden, is_image, shorten, suffix_of
from packer.source_kinds import ARCHIVES, COMPRESSED_TARS, LABELS

_DAMAGE = (
    EOFError,
    ValueError,
    NotImplementedError,
    OverflowError,
    RecursionError,  # tarfile recurses along a chain of long-name headers
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
_LONGEST_NAME = 4096
"""Longest path in bytes (Linux PATH_MAX). Archives with longer names are attempts to exhaust the memory."""
_LEVELS = 3
"""Recorded folder levels: splits and classes, perhaps below a folder of the archive's name."""
_TAR_HEADER = 1 << 20
"""Largest tar header in bytes (long names, PAX records); the limit of libarchive."""
_TAR_GLOBAL_RECORDS = 1000
"""Most global PAX records: each of them costs time for every later member."""
_SEEN = 1 << 20
_LARGE, _MOST_RATIO = 256 << 20, 100
"""Protection against zip bombs: a member above _LARGE bytes may expand at most _MOST_RATIO times.

zlib expands 1 MB to 1 GB. Compressed images do not expand; uncompressed masks above _LARGE bytes that hold
almost a single value are refused.
"""
_ZIP_ENCRYPTED = 1
_ZIP_UTF8 = 0x800
_ZIP_LOCAL_HEADER = struct.Struct("<4s2xHH16xHH")
"""Signature, flags, method, lengths of name and extra field: 30 bytes (PKWARE APPNOTE 6.3.10, 4.3.7)."""


def open_archive(
    path: str,
    inside: str = "",
    spool_dir: str | None = None,
    also: Callable[[str], bool] = lambda name: False,
) -> Archive:
    """List an archive, or a folder in it.

    path: a file for which `is_archive` is True. inside: a folder in it, "/"-separated; "" for the entire
    archive.
    spool_dir: directory for the decompressed copy of a compressed tar; None for the system's temporary
    directory.
    also: predicate on the names of files other than images; `read_other` reads those that it accepts.
    Raises: SourceError if the archive is damaged or holds images that cannot be packed; SpaceError if the
        disk is too small to decompress it; UsageError if it lacks the folder.
    """
    damaged = SourceError(
        f"{path}: a damaged or truncated archive; an intact archive is needed. Fetch it again."
    )
    try:
        return Archive(path, inside, spool_dir, also)
    except PackerError:
        raise
    except OSError as error:
        if error.errno is None:
            raise damaged from None
        raise SourceError(f"{path}: cannot be read ({error.strerror}); an archive is needed.") from None
    except _DAMAGE:
        raise damaged from None
    except MemoryError:
        raise SourceError(f"{path}: listing it needs more memory than is available. Unpack it.") from None


@contextmanager
def spooled(path: str, spool_dir: str | None) -> Iterator[IO[bytes]]:
    """Open an unnamed temporary file for the contents of `path`. Raises SpaceError if the disk is full."""
    try:
        with tempfile.TemporaryFile(dir=spool_dir) as spool:
            yield spool
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise SpaceError(
            f"{path}: no space left in {spool_dir or tempfile.gettempdir()} for a temporary copy of its "
            "images; the file itself has no random access. Free space there."
        ) from None


def archive_stem(path: str) -> str:
    """Return an archive's name without folders and extension: "data/pets.tar.gz" -> "pets"."""
    name = os.path.basename(path)
    return name[: -max(len(end) for end in ARCHIVES if name.lower().endswith(end))]


def path_parts(name: str) -> list[str]:
    """Split a member's path into its parts, without empty parts and "."."""
    return [part for part in name.split("/") if part not in ("", ".")]


class Archive:
    """The images of an archive, or of a folder in it; created by `open_archive`."""

    def __init__(self, path: str, inside: str, spool_dir: str | None, also: Callable[[str], bool]) -> None:
        """List ``path``; see `open_archive`. Also raises what tarfile and zipfile raise for damaged files."""
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._status = os.fstat(self._fd)
        self.time: int = self._status.st_mtime_ns
        """Modification time of the archive, in nanoseconds since 1970."""
        self.keys: list[str] = []
        """Paths of the images relative to ``inside``, in the archive's order."""
        self.folders: set[str] = set()
        """Paths of the visible folders below ``inside``, down to the third level."""
        self.others: dict[str, tuple[int, ...]] = {}
        """Other files that `also` accepts: path -> bytes and place, in the archive's order."""
        self.left_out: Counter[str] = Counter()
        """Counts of the visible files that are not images, by `suffix_of`."""
        self.unread: list[str] = []
        """Paths of those that may hold labels, by their suffix."""
        self._prefix, self._also = path_parts(inside), also
        # Folders that hold files, directly or below the third level; "" is `inside` itself.
        self._loose: set[str] = set()
        self._tops: set[str] = set()
        try:
            self._list_members(spool_dir)
            if inside and not self.folders and not self._loose:
                tops = ", ".join(sorted(self._tops)) or "no folders"
                raise UsageError(
                    f"{path}/{inside}: no such folder in the archive; its top holds {tops}. Pass one of its "
                    "folders."
                )
        except BaseException:
            self.close()
            raise

    def read(self, index: int) -> bytes:
        """Return the bytes of image ``index``; thread-safe. Raises: ImageError without the image's name."""
        return self._read_member(*self._places[index].tolist())

    def read_other(self, path: str) -> bytes:
        """Return the bytes of a file in ``others``; thread-safe. Raises: ImageError without its name."""
        return self._read_member(*self.others[path])

    def close(self) -> None:
        """Close the archive; closing again does nothing."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    @property
    def base(self) -> str:
        """The top folder, with a final slash, if it has the archive's name and holds all files; else ""."""
        stem = as_text(archive_stem(self.path))
        only = "" not in self._loose and {path.partition("/")[0] for path in self.folders} == {stem}
        return f"{stem}/" if only and not self._prefix else ""

    def _list_members(self, spool_dir: str | None) -> None:
        """List the members; a compressed tar is decompressed first."""
        seen, places, width = set[str](), array("q"), 1
        ending = next((end for end in ARCHIVES if self.path.lower().endswith(end)), "")
        if ending in COMPRESSED_TARS:
            self._decompress(COMPRESSED_TARS[ending], spool_dir)
        for member in (_zip_members if ending == ".zip" else _tar_members)(self.path, self._fd):
            key = self._key(member)
            if key is None:
                continue
            if key in seen:
                raise SourceError(
                    f"{self.path}: {shorten(member.name)} occurs twice; names in an archive are unique. "
                    "Create the archive again."
                )
            seen.add(key)
            if is_image(key):
                self.keys.append(key)
                places.extend(member.place)
                width = len(member.place)
            else:
                self.others[key] = member.place
        self._places = np.array(places, np.int64).reshape(-1, width)
        self.sizes = self._places[:, 0]
        """Bytes of each image file, int64 [N]."""

    def _decompress(self, module: str, spool_dir: str | None) -> None:
        with (
            spooled(self.path, spool_dir) as spool,
            open(self._fd, "rb", closefd=False) as packed,
            import_module(module).open(packed) as stream,
        ):
            shutil.copyfileobj(stream, spool, _SEEN)
            spool.flush()
            self._check_unchanged()
            os.dup2(spool.fileno(), self._fd, inheritable=False)
        self._status = os.fstat(self._fd)

    def _key(self, member: _ArchiveMember) -> str | None:
        """Record a member's folders; return the key under which it is listed, None if it is not listed."""
        name, refused = member.name, member.refused
        parts = path_parts(name[-_LONGEST_NAME:])
        if not parts or any(is_hidden(part) for part in parts if part != ".."):
            return None
        wanted = not member.is_folder and (is_image(parts[-1]) or self._also(parts[-1]))
        if len(name) > _LONGEST_NAME:
            refused = f"is longer than {_LONGEST_NAME:,} bytes"
        elif name.startswith("/") or ".." in parts:
            refused = "leads out of the archive"
        if refused and wanted:
            raise SourceError(
                f"{self.path}: {shorten(name)} {refused}; images must be ordinary members. Create the "
                "archive without it."
            )
        if refused:
            return None
        if member.is_folder or len(parts) > 1:
            self._tops.add(parts[0])
        if parts[: len(self._prefix)] != self._prefix:
            return None
        parts = parts[len(self._prefix) :]
        folder = "/".join((parts if member.is_folder else parts[:-1])[:_LEVELS])
        if parts and not member.is_folder:
            self._loose.add(folder)
            if not wanted:
                self.left_out[suffix_of(parts[-1])] += 1
                if parts[-1].lower().endswith(LABELS):
                    self.unread.append("/".join(parts))
        while folder and folder not in self.folders:
            self.folders.add(folder)
            folder = folder.rpartition("/")[0]
        return "/".join(parts) if wanted and parts else None

    def _pread(self, size: int, offset: int) -> bytes:
        try:
            data = pread_all(self._fd, size, offset)
        except OSError as error:
            raise ImageError(f"cannot be read from the archive ({error.strerror}).") from None
        self._check_unchanged()
        if len(data) < size:
            raise ImageError("cannot be read in full; the archive is shorter.")
        return data

    def _check_unchanged(self) -> None:
        """Raise SourceError if the archive changed since it was listed: images would get wrong labels."""
        status = os.fstat(self._fd)
        if (status.st_size, status.st_mtime_ns) != (self._status.st_size, self._status.st_mtime_ns):
            raise changed(self.path)

    def _read_member(self, size: int, start: int, *zipped: int) -> bytes:
        """Return the bytes of a member; arguments: `_ArchiveMember.place`. Raises: ImageError."""
        if not zipped:
            return self._pread(size, start)
        packed, method, *sums = zipped
        if size > max(_LARGE, _MOST_RATIO * packed):
            raise ImageError(
                f"expands from {packed:,} to {size:,} bytes; files above {_LARGE:,} bytes may expand at most "
                f"{_MOST_RATIO} times. Unpack the archive if the file is genuine."
            )
        header = self._pread(_ZIP_LOCAL_HEADER.size, start)
        signature, flags, local_method, name_bytes, extra_bytes = _ZIP_LOCAL_HEADER.unpack(header)
        data = self._pread(name_bytes + extra_bytes + packed, start + _ZIP_LOCAL_HEADER.size)
        name, data = data[:name_bytes], data[name_bytes + extra_bytes :]
        actual = signature, flags & _ZIP_ENCRYPTED, local_method, zlib.crc32(name)
        if actual != (b"PK\3\4", 0, method, sums[0]):
            raise ImageError("has a local header that differs from the archive's directory.")
        try:
            if method == zipfile.ZIP_DEFLATED:
                # One byte more than announced shows a wrong size, and stops a bomb.
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)
        except zlib.error:
            data = b""
        if len(data) != size or zlib.crc32(data) != sums[1]:
            raise ImageError("damaged inside the archive.")
        return data


class _ArchiveMember(NamedTuple):
    """A member of an archive.

    refused: why it cannot be an image, as the end of a sentence that begins with its name, or None.
    place: bytes and offset; for a zip file: bytes, offset of the local header, compressed bytes, method,
        CRC-32 of the encoded name, CRC-32 of the data.
    """

    name: str
    is_folder: bool
    refused: str | None
    place: tuple[int, ...]


class _TarHeaders(io.BufferedReader):
    """A file from which tarfile reads headers only: huge ones (long names, PAX records) count as damage."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= _TAR_HEADER:
            raise tarfile.ReadError("a header of too many bytes")
        return super().read(size)


def _tar_members(path: str, fd: int) -> Iterator[_ArchiveMember]:
    """List the members of a plain tar."""
    with _TarHeaders(io.FileIO(fd, closefd=False)) as file:
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:", encoding="utf-8") as tar:
            while (member := tar.next()) is not None:
                # The list would grow to 1 KB a member; tarfile needs it only to find members by name.
                tar.members.clear()  # type: ignore[attr-defined]
                if member.size < 0 or len(tar.pax_headers) > _TAR_GLOBAL_RECORDS:
                    raise tarfile.ReadError("a hostile header")
                refused = None
                if member.issym() or member.islnk():
                    refused = "is a link"
                elif not member.isdir() and (member.issparse() or not member.isreg()):
                    refused = "is not an ordinary file"
                yield _ArchiveMember(member.name, member.isdir(), refused, (member.size, member.offset_data))
        file.seek(tar.offset)
        # tarfile mistakes damaged, truncated or missing headers for the end marker, which is a block of
        # zeros.
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("no end")
        if file.read(_SEEN).strip(b"\0"):
            raise SourceError(
                f"{path}: has data after its end marker, as concatenated archives have; only the first "
                "would be read. Unpack it with tar --ignore-zeros, or create it again."
            )


def _zip_members(path: str, fd: int) -> Iterator[_ArchiveMember]:
    """List the members of a zip file. Raises SourceError if members overlap (zip bombs) or lie outside."""
    with open(fd, "rb", closefd=False) as file, zipfile.ZipFile(file) as listing:
        members = listing.infolist()
    nbytes, end, last = os.fstat(fd).st_size, 0, ""
    for member in sorted(members, key=lambda member: member.header_offset):
        name = shorten(member.orig_filename)
        if member.header_offset < end:
            raise SourceError(
                f"{path}: {last} and {name} overlap; members of an archive may not. Create the archive again."
            )
        end, last = member.header_offset + _ZIP_LOCAL_HEADER.size + member.compress_size, name
        if member.header_offset < 0 or end > nbytes:
            raise SourceError(
                f"{path}: {name} lies beyond its end; an intact archive is needed. Fetch it again."
            )
    for member in members:
        kind = stat.S_IFMT(member.external_attr >> 16)
        name = member.orig_filename  # `filename` is cut off at a NUL
        encoded = name.encode("utf-8" if member.flag_bits & _ZIP_UTF8 else "cp437")
        refused = None
        if kind == stat.S_IFLNK:
            refused = "is a link"
        elif kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            refused = "is not an ordinary file"
        elif "\0" in name or "\\" in name:
            refused = "has a zero byte or a backslash in its name"
        elif member.flag_bits & _ZIP_ENCRYPTED:
            refused = "is encrypted"
        elif member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            refused = f"is compressed by method {member.compress_type}, not stored or deflated"
        # macOS writes UTF-8 names without the flag: every name that decodes as UTF-8 counts as UTF-8.
        with suppress(UnicodeError):
            name = encoded.decode("utf-8")
        place = member.file_size, member.header_offset, member.compress_size, member.compress_type
        folder = member.filename.endswith("/")  # is_dir() fails for names that begin with a NUL
        yield _ArchiveMember(name, folder, refused, (*place, zlib.crc32(encoded), member.CRC))
