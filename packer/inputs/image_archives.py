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
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import IO, Any

from packer.errors import ImageError, SourceError, SpaceError, UsageError
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
    also: Callable[[str], bool] | None = None,
) -> Archive:
    """List an archive, or one folder in it.

    path: a file for which `is_archive` holds; inside: a folder in it, "/"-separated, or "" for everything.
    spool_dir: where a compressed tar is decompressed to; None for the system's temporary directory.
    also: tells of the name of a file that is no image whether `read_other` is to give it; of tars.
    Raises: SourceError when the archive is damaged or holds images that cannot be packed; SpaceError when there is no room to
        decompress it; UsageError when it has no such folder.
    """
    lower = path.lower()
    archive: Archive
    try:
        if lower.endswith(".zip"):
            archive = ZipArchive(path, inside)
        else:
            module = next((name for end, name in COMPRESSED_TARS.items() if lower.endswith(end)), None)
            opens = None if module is None else import_module(module).open
            archive = TarArchive(path, inside, opens, spool_dir, also)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            folder = spool_dir or tempfile.gettempdir()
            raise SpaceError(
                f"{path}: no space left in {folder} to decompress it; its images must fit. "
                "Make room there, or decompress the archive yourself."
            ) from None
        if error.errno is None:
            raise _damaged(path) from None
        raise SourceError(f"{path}: cannot be read ({error.strerror}); an archive is needed.") from None
    except _DAMAGE:
        raise _damaged(path) from None
    except MemoryError:
        raise SourceError(f"{path}: its listing needs more memory than there is. Unpack it.") from None
    try:
        archive.check_inside()
    except UsageError:
        archive.close()
        raise
    return archive


def _damaged(path: str) -> SourceError:
    return SourceError(f"{path}: a damaged or truncated archive; a whole one is needed. Fetch it again.")


def archive_stem(path: str) -> str:
    """Strip folders and the archive's ending: "data/pets.tar.gz" -> "pets"."""
    name = os.path.basename(path)
    return name[: -max(len(end) for end in ARCHIVES if name.lower().endswith(end))]


class Archive(ABC):
    """The images of one archive, or of one folder in it. Made by `open_archive`."""

    def __init__(self, path: str, inside: str, also: Callable[[str], bool] | None = None) -> None:
        """Open ``path``, and start an empty list of what it holds below ``inside``; also: as `open_archive` has it."""
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._status = os.fstat(self._fd)
        self.time = self._status.st_mtime_ns
        """When the archive was changed last, in nanoseconds since 1970."""
        self.keys: list[str] = []
        """The images, as paths below ``inside``, in the archive's order."""
        self.sizes = array("q")
        """Bytes of each image file."""
        self.folders: set[str] = set()
        """Every folder below ``inside`` that is not hidden, as a path, down to the third level."""
        self.loose: set[str] = set()
        """The folders that hold files of any kind, directly or below the third level; "" stands for ``inside`` itself."""
        self.others: dict[str, tuple[int, int]] = {}
        """Files that are no images and were asked for: path -> place and bytes, in the archive's order."""
        self.left_out: Counter[str] = Counter()
        """Files that are not hidden and no images, by `suffix_of` their names."""
        self._inside, self._also = inside, also
        self._tops: set[str] = set()
        self._seen: set[str] = set()

    @abstractmethod
    def read(self, index: int) -> bytes:
        """Read image ``index`` of ``keys``; thread-safe. Raises: ImageError without the image's name."""

    def read_other(self, path: str) -> bytes:
        """Read a file of ``others``; thread-safe. Raises: ImageError without its name."""
        offset, size = self.others[path]
        return self._pread(size, offset)

    def close(self) -> None:
        """Close the archive; closing again does nothing."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def holds_only(self, folder: str) -> bool:
        """Say whether everything that is listed lies in one folder at the top, and that folder is called so."""
        return "" not in self.loose and {path.partition("/")[0] for path in self.folders} == {folder}

    @property
    def base(self) -> str:
        """The folder of the archive's own name that it was made of, a slash behind it; "" if it was made of something else."""
        stem = as_text(archive_stem(self.path))
        return f"{stem}/" if not self._inside and self.holds_only(stem) else ""

    def check_inside(self) -> None:
        """Raise UsageError when a folder was asked for and the archive has none of that name."""
        if self._inside and not self.folders and not self.loose:
            tops = ", ".join(sorted(self._tops)) or "no folders"
            raise UsageError(
                f"{self.path}/{self._inside}: no such folder in the archive; its top holds {tops}. "
                "Pass a folder that it holds."
            )
        self._seen.clear()

    def _key(self, name: str, is_folder: bool, refused: str | None) -> str | None:
        """Note one member and say under which key it is listed, None if it is not listed.

        name: as the archive has it; refused: why it could not be read if it were wanted, else None.
        """
        if len(name) > _LONGEST_NAME:
            if is_folder or not is_image(name[-_LONGEST_NAME:].rpartition("/")[2]):
                return None
            raise SourceError(
                f"{self.path}: {shorten(name)} is longer than {_LONGEST_NAME:,} bytes; no system has such paths. "
                "Make the archive without it."
            )
        parts = path_parts(name)
        if not parts or any(is_hidden(part) for part in parts if part != ".."):
            return None
        wanted = not is_folder and (is_image(parts[-1]) or (self._also is not None and self._also(parts[-1])))
        if name.startswith("/") or ".." in parts:
            refused = "leads out of the archive"
        if refused:
            if wanted:
                raise SourceError(
                    f"{self.path}: {shorten(name)} {refused}; images must be ordinary members. "
                    "Make the archive without it."
                )
            return None
        if is_folder or len(parts) > 1:
            self._tops.add(parts[0])
        prefix = path_parts(self._inside)
        if parts[: len(prefix)] != prefix:
            return None
        parts = parts[len(prefix) :]
        within = parts if is_folder else parts[:-1]
        folder = "/".join(within[:_LEVELS])
        if not is_folder and parts:
            self.loose.add(folder)
        while folder and folder not in self.folders:
            self.folders.add(folder)
            folder = folder.rpartition("/")[0]
        if not is_folder and not wanted and parts:
            self.left_out[suffix_of(parts[-1])] += 1
        if not wanted or not parts:
            return None
        key = "/".join(parts)
        if key in self._seen:
            raise SourceError(
                f"{self.path}: {shorten(name)} occurs twice; each image needs a name of its own. "
                "Make the archive anew."
            )
        self._seen.add(key)
        return key

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


def path_parts(name: str) -> list[str]:
    """Split a member's name into its folders and its last part, without empty ones and dots."""
    return [part for part in name.split("/") if part not in ("", ".")]


class _TarHeaders(io.BufferedReader):
    """A tar file of which tarfile reads headers alone: those for long names and PAX records that would fill the memory are damage."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= _TAR_HEADER:
            raise tarfile.ReadError("a header of too many bytes")
        return super().read(size)


class TarArchive(Archive):
    """A tar file, read at its members' offsets; a compressed one through a temporary file."""

    def __init__(
        self,
        path: str,
        inside: str,
        opens: Callable[[IO[bytes]], Any] | None,
        spool_dir: str | None,
        also: Callable[[str], bool] | None,
    ) -> None:
        """List ``path``; ``opens`` gives the decompressed stream of a compressed one; also: as `open_archive` has it."""
        super().__init__(path, inside, also)
        self._offsets = array("q")
        try:
            if opens is not None:
                with (
                    open(self._fd, "rb", closefd=False) as packed,
                    opens(packed) as stream,
                    tempfile.TemporaryFile(dir=spool_dir) as spool,
                ):
                    shutil.copyfileobj(stream, spool, _SEEN)
                    spool.flush()
                    self._check_unchanged()
                    fd, self._fd = self._fd, os.dup(spool.fileno())
                    os.close(fd)
                self._status = os.fstat(self._fd)
            with _TarHeaders(io.FileIO(self._fd, closefd=False)) as file:
                file.seek(0)
                with tarfile.open(fileobj=file, mode="r:", encoding="utf-8") as tar:
                    while (member := tar.next()) is not None:
                        # The list would grow to 1 KB a member; tarfile needs it only to find members by name.
                        tar.members.clear()  # type: ignore[attr-defined]
                        if member.size < 0 or len(tar.pax_headers) > _TAR_GLOBAL_RECORDS:
                            raise tarfile.ReadError("a hostile header")
                        self._add(member)
                file.seek(tar.offset)
                # tarfile takes damaged, cut off or missing headers for the end, which a block of zeros is.
                if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                    raise tarfile.ReadError("no end")
                if file.read(_SEEN).strip(b"\0"):
                    raise SourceError(
                        f"{path}: goes on behind its end, as several archives in one file do; one is read. Unpack it with tar "
                        "--ignore-zeros, or make it anew."
                    )
        except BaseException:
            self.close()
            raise

    def _add(self, member: tarfile.TarInfo) -> None:
        refused = None
        if member.issym() or member.islnk():
            refused = "is a link"
        elif member.issparse() or not member.isreg():
            refused = "is not an ordinary file"
        key = self._key(member.name, member.isdir(), None if member.isdir() else refused)
        if key is None:
            return
        if not is_image(key):
            self.others[key] = member.offset_data, member.size
            return
        self.keys.append(key)
        self._offsets.append(member.offset_data)
        self.sizes.append(member.size)

    def read(self, index: int) -> bytes:
        """Read image ``index`` of ``keys``; thread-safe. Raises: ImageError without the image's name."""
        return self._pread(self.sizes[index], self._offsets[index])


def _zip_name(member: zipfile.ZipInfo) -> str:
    """Return the name of a member: where it is not marked as UTF-8, it is that all the same if its bytes are (macOS marks none)."""
    name = member.orig_filename  # unlike filename not cut off at a NUL
    if member.flag_bits & _ZIP_UTF8:
        return name
    try:
        return name.encode("cp437").decode("utf-8")
    except UnicodeError:
        return name


class ZipArchive(Archive):
    """A zip file, read at its members' offsets."""

    def __init__(self, path: str, inside: str) -> None:
        """List ``path``."""
        super().__init__(path, inside)
        self._headers, self._packed, self._sums = array("q"), array("q"), array("L")
        self._names = array("L")  # checksums of the names as the archive has them
        self._deflated = bytearray()
        try:
            with open(self._fd, "rb", closefd=False) as file, zipfile.ZipFile(file) as listing:
                members = listing.infolist()
                self._check_places(members)
                for member in members:
                    self._add(member)
        except BaseException:
            self.close()
            raise

    def _check_places(self, members: list[zipfile.ZipInfo]) -> None:
        """Raise SourceError where members lie outside the archive, or two share bytes, as those of bombs do."""
        end, last = 0, ""
        for member in sorted(members, key=lambda member: member.header_offset):
            name = shorten(member.orig_filename)
            if member.header_offset < end:
                raise SourceError(
                    f"{self.path}: {last} and {name} share bytes of it; each member has its own. Make the archive anew."
                )
            end = member.header_offset + _ZIP_LOCAL_HEADER.size + member.compress_size
            if member.header_offset < 0 or end > self._status.st_size:
                raise SourceError(
                    f"{self.path}: {name} would lie behind its end; a whole archive is needed. Fetch it again."
                )
            last = name

    def _add(self, member: zipfile.ZipInfo) -> None:
        """List one member."""
        kind = stat.S_IFMT(member.external_attr >> 16)
        name = member.orig_filename  # unlike filename not cut off at a NUL
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
        key = self._key(_zip_name(member), member.is_dir(), refused)
        if key is None:
            return
        self.keys.append(key)
        self.sizes.append(member.file_size)
        self._headers.append(member.header_offset)
        self._packed.append(member.compress_size)
        self._sums.append(member.CRC)
        self._names.append(zlib.crc32(name.encode("utf-8" if member.flag_bits & _ZIP_UTF8 else "cp437")))
        self._deflated.append(member.compress_type == zipfile.ZIP_DEFLATED)

    def read(self, index: int) -> bytes:
        """Read image ``index`` of ``keys``; thread-safe. Raises: ImageError without the image's name."""
        start, size = self._headers[index], self.sizes[index]
        if size > max(_LARGE, _MOST_RATIO * self._packed[index]):
            raise ImageError(
                f"{size:,} bytes, made of {self._packed[index]:,} in the archive; above {_LARGE:,} at most {_MOST_RATIO} times as many"
                " are. Unpack the archive if it is meant."
            )
        header = self._pread(_ZIP_LOCAL_HEADER.size, start)
        signature, flags, method, name_bytes, extra_bytes = _ZIP_LOCAL_HEADER.unpack(header)
        start += _ZIP_LOCAL_HEADER.size
        data = self._pread(name_bytes + extra_bytes + self._packed[index], start)
        name, data = data[:name_bytes], data[name_bytes + extra_bytes :]
        deflated = self._deflated[index]
        told = (signature, flags & _ZIP_ENCRYPTED, method, zlib.crc32(name))
        if told != (
            b"PK\3\4",
            0,
            zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED,
            self._names[index],
        ):
            raise ImageError("is another member where it lies than in the archive's directory.")
        try:
            if deflated:
                # One byte more than announced is enough to see a lie, and no bomb gets further.
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)
        except zlib.error:
            data = b""
        if len(data) != size or zlib.crc32(data) != self._sums[index]:
            raise ImageError("damaged inside the archive.")
        return data
