"""Archives of images, read in any order without unpacking: tar, compressed tar and zip.

A tar file is read at its members' offsets. A compressed tar cannot be, so it is decompressed once
into an unnamed temporary file, which vanishes with the process. A zip file is read at its members' offsets,
too, each of them stored or deflated by itself. All reads are `pread`: any number of threads share one
descriptor.
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
from packer.source_kinds import ARCHIVES, COMPRESSED_TARS

_DAMAGE = (
    EOFError,
    ValueError,
    NotImplementedError,
    OverflowError,
    RecursionError,  # tarfile follows a chain of long names that way
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
_LONGEST_NAME = 4096
"""Bytes of a path that a system takes (PATH_MAX): a listing of longer ones was made to exhaust the memory."""
_LEVELS = 3
"""Of folders that are noted: splits and classes, perhaps in a folder of the archive's name."""
_TAR_HEADER = 1 << 20
"""Bytes of a tar header for long names and PAX records; libarchive reads no longer ones."""
_TAR_GLOBAL_RECORDS = 1000
"""PAX records for all members that follow: each of them costs time for every member."""
_SEEN = 1 << 20
_LARGE, _MOST_RATIO = 256 << 20, 100
"""Bytes up to which a member may be any number of times as large as in the archive, and how many times above.

zlib makes 1 GB of 1 MB. Compressed images gain nothing; uncompressed masks of that size, almost all of one value, are refused.
"""
_ZIP_ENCRYPTED = 1
_ZIP_UTF8 = 0x800
_ZIP_LOCAL_HEADER = struct.Struct("<4s2xHH16xHH")
"""Signature, flags, method, lengths of name and extra field: 30 bytes (PKWARE's APPNOTE 6.3.10, section 4.3.7)."""


def open_archive(
    path: str,
    inside: str = "",
    spool_dir: str | None = None,
    also: Callable[[str], bool] = lambda name: False,
) -> Archive:
    """List an archive, or one folder in it.

    path: a file for which `is_archive` holds; inside: a folder in it, "/"-separated, or "" for everything.
    spool_dir: where a compressed tar is decompressed to; None for the system's temporary directory.
    also: tells of the name of a file that is no image whether `read_other` is to give it.
    Raises: SourceError when the archive is damaged or holds images that cannot be packed; SpaceError when there is no room to
        decompress it; UsageError when it has no such folder.
    """
    damaged = SourceError(f"{path}: a damaged or truncated archive; a whole one is needed. Fetch it again.")
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
        raise SourceError(f"{path}: its listing needs more memory than there is. Unpack it.") from None


@contextmanager
def spooled(path: str, spool_dir: str | None) -> Iterator[IO[bytes]]:
    """Open a temporary file without a name for what the file `path` holds. Raises SpaceError where there is no room for it."""
    try:
        with tempfile.TemporaryFile(dir=spool_dir) as spool:
            yield spool
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise SpaceError(
            f"{path}: no space left in {spool_dir or tempfile.gettempdir()} for a temporary copy of its images, which cannot be read "
            "at random where they are. Make room there."
        ) from None


def archive_stem(path: str) -> str:
    """Strip folders and the archive's ending: "data/pets.tar.gz" -> "pets"."""
    name = os.path.basename(path)
    return name[: -max(len(end) for end in ARCHIVES if name.lower().endswith(end))]


def path_parts(name: str) -> list[str]:
    """Split a member's name into its folders and its last part, without empty ones and dots."""
    return [part for part in name.split("/") if part not in ("", ".")]


class Archive:
    """The images of one archive, or of one folder in it. Made by `open_archive`."""

    def __init__(self, path: str, inside: str, spool_dir: str | None, also: Callable[[str], bool]) -> None:
        """List ``path``; arguments: as `open_archive` has them. Raises whatever Python's modules raise of damaged files, too."""
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._status = os.fstat(self._fd)
        self.time = self._status.st_mtime_ns
        """When the archive was changed last, in nanoseconds since 1970."""
        self.keys: list[str] = []
        """The images, as paths below ``inside``, in the archive's order."""
        self.folders: set[str] = set()
        """Every folder below ``inside`` that is not hidden, as a path, down to the third level."""
        self.others: dict[str, tuple[int, ...]] = {}
        """Files that are no images and were asked for: path -> bytes and place, in the archive's order."""
        self.left_out: Counter[str] = Counter()
        """Files that are not hidden and no images, by `suffix_of` their names."""
        self._prefix, self._also = path_parts(inside), also
        self._loose: set[str] = (
            set()
        )  # folders that hold files, directly or below the third level; "": inside itself
        self._tops: set[str] = set()
        try:
            self._list(spool_dir)
            if inside and not self.folders and not self._loose:
                tops = ", ".join(sorted(self._tops)) or "no folders"
                raise UsageError(
                    f"{path}/{inside}: no such folder in the archive; its top holds {tops}. Pass a folder that it holds."
                )
        except BaseException:
            self.close()
            raise

    def read(self, index: int) -> bytes:
        """Read image ``index`` of ``keys``; thread-safe. Raises: ImageError without the image's name."""
        return self._read(*self._places[index].tolist())

    def read_other(self, path: str) -> bytes:
        """Read a file of ``others``; thread-safe. Raises: ImageError without its name."""
        return self._read(*self.others[path])

    def close(self) -> None:
        """Close the archive; closing again does nothing."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    @property
    def base(self) -> str:
        """The folder of the archive's own name that everything lies in, a slash behind it; "" if there is no such folder."""
        stem = as_text(archive_stem(self.path))
        only = "" not in self._loose and {path.partition("/")[0] for path in self.folders} == {stem}
        return f"{stem}/" if only and not self._prefix else ""

    def _list(self, spool_dir: str | None) -> None:
        """List the members, a compressed tar's in a decompressed copy."""
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
                    f"{self.path}: {shorten(member.name)} occurs twice; each image needs a name of its own. Make the archive anew."
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
        """Bytes of each image file, int64."""

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
        """Note one member and say under which key it is listed, None if it is not listed."""
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
                f"{self.path}: {shorten(name)} {refused}; images must be ordinary members. Make the archive without it."
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
            raise ImageError("cannot be read whole; the archive is shorter.")
        return data

    def _check_unchanged(self) -> None:
        """Raise SourceError if the archive is another one than was listed: its bytes would get labels of others."""
        status = os.fstat(self._fd)
        if (status.st_size, status.st_mtime_ns) != (self._status.st_size, self._status.st_mtime_ns):
            raise changed(self.path)

    def _read(self, size: int, start: int, *zipped: int) -> bytes:
        """Read a member at its place."""
        if not zipped:
            return self._pread(size, start)
        packed, method, *sums = zipped
        if size > max(_LARGE, _MOST_RATIO * packed):
            raise ImageError(
                f"{size:,} bytes, made of {packed:,} in the archive; above {_LARGE:,} at most {_MOST_RATIO} times as many"
                " are. Unpack the archive if it is meant."
            )
        header = self._pread(_ZIP_LOCAL_HEADER.size, start)
        signature, flags, own_method, name_bytes, extra_bytes = _ZIP_LOCAL_HEADER.unpack(header)
        data = self._pread(name_bytes + extra_bytes + packed, start + _ZIP_LOCAL_HEADER.size)
        name, data = data[:name_bytes], data[name_bytes + extra_bytes :]
        told = signature, flags & _ZIP_ENCRYPTED, own_method, zlib.crc32(name)
        if told != (b"PK\3\4", 0, method, sums[0]):
            raise ImageError("is another member where it lies than in the archive's directory.")
        try:
            if method == zipfile.ZIP_DEFLATED:
                # One byte more than announced is enough to see a lie, and no bomb gets further.
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)
        except zlib.error:
            data = b""
        if len(data) != size or zlib.crc32(data) != sums[1]:
            raise ImageError("damaged inside the archive.")
        return data


class _ArchiveMember(NamedTuple):
    """A member as an archive lists it.

    refused: why it cannot be an image, in words that follow its name, or None.
    place: its bytes, and its offset; in a zip file that of its header, its bytes there, its method, checksums of its name and itself.
    """

    name: str
    is_folder: bool
    refused: str | None
    place: tuple[int, ...]


class _TarHeaders(io.BufferedReader):
    """A tar file of which tarfile reads headers alone: those for long names and PAX records that would fill the memory are damage."""

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
        # tarfile takes damaged, cut off or missing headers for the end, which a block of zeros is.
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("no end")
        if file.read(_SEEN).strip(b"\0"):
            raise SourceError(
                f"{path}: goes on behind its end, as several archives in one file do; one is read. Unpack it with tar "
                "--ignore-zeros, or make it anew."
            )


def _zip_members(path: str, fd: int) -> Iterator[_ArchiveMember]:
    """List the members of a zip file. Raises SourceError where they lie outside it, or two share bytes, as those of bombs do."""
    with open(fd, "rb", closefd=False) as file, zipfile.ZipFile(file) as listing:
        members = listing.infolist()
    nbytes, end, last = os.fstat(fd).st_size, 0, ""
    for member in sorted(members, key=lambda member: member.header_offset):
        name = shorten(member.orig_filename)
        if member.header_offset < end:
            raise SourceError(
                f"{path}: {last} and {name} share bytes of it; each member has its own. Make the archive anew."
            )
        end, last = member.header_offset + _ZIP_LOCAL_HEADER.size + member.compress_size, name
        if member.header_offset < 0 or end > nbytes:
            raise SourceError(
                f"{path}: {name} would lie behind its end; a whole archive is needed. Fetch it again."
            )
    for member in members:
        kind = stat.S_IFMT(member.external_attr >> 16)
        name = member.orig_filename  # unlike filename not cut off at a NUL
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
        with suppress(
            UnicodeError
        ):  # names that are not marked as UTF-8 are it if their bytes are: macOS marks none
            name = encoded.decode("utf-8")
        place = member.file_size, member.header_offset, member.compress_size, member.compress_type
        folder = member.filename.endswith("/")  # is_dir() fails for names that a NUL begins
        yield _ArchiveMember(name, folder, refused, (*place, zlib.crc32(encoded), member.CRC))
