"""Archives of images, read in any order without unpacking: tar, compressed tar, zip.

A tar file is read at its members' offsets. A compressed tar cannot be, so its images are decompressed once
into an unnamed temporary file, which vanishes with the process. A zip file is read at its members' offsets,
too, each of them stored or deflated by itself. All reads are `pread`: any number of threads share one
descriptor.
"""

from __future__ import annotations

import bz2
import errno
import gzip
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
from collections.abc import Callable
from typing import IO, Any, cast

from packer.errors import ImageError, SourceError, SpaceError, UsageError
from packer.format.file_io import pread_all
from packer.inputs.file_names import as_text, changed, is_hidden, is_image, shorten

_COMPRESSED: dict[str, Callable[[IO[bytes]], Any]] = {
    ".tar.gz": gzip.open,
    ".tgz": gzip.open,
    ".tar.bz2": bz2.open,
    ".tbz2": bz2.open,
    ".tar.xz": lzma.open,
    ".txz": lzma.open,
}
ARCHIVE_EXTENSIONS = (".tar", *_COMPRESSED, ".zip")
"""What an archive's name ends in, whichever the case."""

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
_ZIP_ENCRYPTED = 1
_ZIP_UTF8 = 0x800
_ZIP_LOCAL_HEADER = struct.Struct("<4s2xHH16xHH")
"""Signature, flags, method, lengths of name and extra field: 30 bytes (PKWARE's APPNOTE 6.3.10, section 4.3.7)."""
_LONGEST_NAME = 4096
"""Bytes of a path that a system takes (PATH_MAX): a listing of longer ones was made to exhaust the memory."""
_LEVELS = 3
"""Of folders that are noted: splits and classes, perhaps in a folder of the archive's name."""
_TAR_HEADER = 1 << 20
"""Bytes of a tar header for long names and PAX records; libarchive reads no longer ones."""
_TAR_GLOBAL_HEADER = 64 << 10
"""Bytes of a PAX header for all members that follow: each of them costs time for every record."""
_TAR_END = 64 << 20
"""Bytes behind the end of a tar; writers fill up to 10 KiB, some to a few MiB."""
_LARGEST = 4 << 30
"""Bytes of an image file in a compressed tar; larger ones are not decompressed to the disk."""
_SEEN = 1 << 20


def is_archive(path: str) -> bool:
    """Say whether a file of this name is read as an archive."""
    return path.lower().endswith(ARCHIVE_EXTENSIONS)


def archive_stem(path: str) -> str:
    """Strip folders and the archive's ending: "data/pets.tar.gz" -> "pets"."""
    name = os.path.basename(path)
    return name[: -max(len(end) for end in ARCHIVE_EXTENSIONS if name.lower().endswith(end))]


def open_archive(
    path: str,
    inside: str = "",
    spool_dir: str | None = None,
    also: Callable[[str], bool] = lambda name: False,
) -> Archive:
    """List an archive, or one folder in it.

    path: a file for which `is_archive` holds; inside: a folder in it, "/"-separated, or "" for everything.
    spool_dir: where a compressed tar is decompressed to; None for the system's temporary directory.
    also: tells of the name of a file that is no image whether `read_other` is to give it; of tars.
    Raises: SourceError when the archive is damaged or holds images that cannot be packed; SpaceError when
    there is no
        room to decompress it; UsageError when it has no such folder.
    """
    lower = path.lower()
    archive: Archive
    try:
        if lower.endswith(".zip"):
            archive = ZipArchive(path, inside)
        else:
            opens = next((opens for end, opens in _COMPRESSED.items() if lower.endswith(end)), None)
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


class Archive(ABC):
    """The images of one archive, or of one folder in it. Made by `open_archive`."""

    def __init__(self, path: str, inside: str) -> None:
        """Open ``path``, and start an empty list of what it holds below ``inside``."""
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
        self._inside = inside
        self._tops: set[str] = set()
        self._seen: set[str] = set()

    @abstractmethod
    def read(self, index: int) -> bytes:
        """Read image ``index`` of ``keys``; thread-safe. Raises: ImageError without the image's name."""

    def read_other(self, path: str) -> bytes:
        """Read a file of ``others``; thread-safe. Raises: ImageError without its name."""
        offset, size = self.others[path]
        return self._pread(size, offset)

    @property
    def plain(self) -> bool:
        """True if the images' bytes lie in the file itself."""
        return self.path.lower().endswith((".tar", ".zip"))

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
        """Note one member and say under which key its image is listed, None if it is not listed.

        name: as the archive has it; refused: why it could not be read if it were an image, else None.
        """
        if len(name) > _LONGEST_NAME:
            if is_folder or not is_image(name[-_LONGEST_NAME:].rpartition("/")[2]):
                return None
            raise SourceError(
                f"{self.path}: {shorten(name)} is longer than {_LONGEST_NAME:,} bytes; no system has such paths. "
                "Make the archive without it."
            )
        parts = _parts(name)
        if not parts or any(is_hidden(part) for part in parts if part != ".."):
            return None
        wanted = not is_folder and is_image(parts[-1])
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
        prefix = _parts(self._inside)
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

    def _path(self, name: str) -> str | None:
        """Return the path below ``inside`` of a member that is no image, None if it is hidden or lies elsewhere."""
        parts, prefix = _parts(name), _parts(self._inside)
        if len(name) > _LONGEST_NAME or name.startswith("/") or ".." in parts or any(map(is_hidden, parts)):
            return None
        return "/".join(parts[len(prefix) :]) if parts[: len(prefix)] == prefix else None

    def _add_other(self, path: str, offset: int, size: int) -> None:
        if path in self.others:
            raise SourceError(
                f"{self.path}: {shorten(path)} occurs twice; each file needs a name of its own. Make the archive anew."
            )
        self.others[path] = offset, size

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


def _parts(name: str) -> list[str]:
    return [part for part in name.split("/") if part not in ("", ".")]


_TAR_MOST = {
    **dict.fromkeys(
        (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE),
        _TAR_HEADER,
    ),
    tarfile.XGLTYPE: _TAR_GLOBAL_HEADER,
}


class _StrictTarInfo(tarfile.TarInfo):
    """Damaged, cut off or missing headers are errors; tarfile takes them for the end of the archive.

    So are headers for long names and PAX records that would fill the memory, and negative sizes.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _StrictTarInfo:
        """Parse one header block of 512 bytes."""
        try:
            info = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise  # a block of zeros is the proper end
            raise tarfile.ReadError(str(error)) from None
        most = _TAR_MOST.get(info.type, info.size)
        if not 0 <= info.size <= most:
            raise tarfile.ReadError(f"a header of {info.size:,} bytes")
        return info


class TarArchive(Archive):
    """A tar file, read at its members' offsets; a compressed one through a temporary file of its images."""

    def __init__(
        self,
        path: str,
        inside: str,
        opens: Callable[[IO[bytes]], Any] | None,
        spool_dir: str | None,
        also: Callable[[str], bool],
    ) -> None:
        """List ``path``; ``opens`` gives the decompressed stream of a compressed one; also: as `open_archive` has it."""
        super().__init__(path, inside)
        self._also = also
        self._offsets = array("q")
        try:
            with open(self._fd, "rb", closefd=False) as file:
                if opens is None:
                    with tarfile.open(
                        fileobj=file, mode="r:", tarinfo=_StrictTarInfo, encoding="utf-8"
                    ) as tar:
                        self._list(tar, None)
                    file.seek(tar.offset)
                    self._check_end(lambda: file.read(_SEEN), whole=False)
                    return
                with tempfile.TemporaryFile(dir=spool_dir) as spool:
                    with (
                        opens(file) as stream,
                        tarfile.open(
                            fileobj=stream, mode="r|", tarinfo=_StrictTarInfo, encoding="utf-8"
                        ) as tar,
                    ):
                        self._list(tar, spool)
                        rest = cast(IO[bytes], tar.fileobj)
                        self._check_end(lambda: rest.read(_SEEN), whole=True)
                    spool.flush()
                    self._check_unchanged()
                    os.close(self._fd)
                    self._fd = -1
                    self._fd = os.dup(spool.fileno())
                    self._status = os.fstat(self._fd)
        except BaseException:
            self.close()
            raise

    def _check_end(self, read: Callable[[], bytes], *, whole: bool) -> None:
        """Raise SourceError if something lies behind the end of the listing: the images of another tar would be missing.

        read: gives the next bytes, up to _SEEN. whole: read on to the end, as a compressor's checksum comes last.
        """
        left = _TAR_END
        while data := read():
            left -= len(data)
            if left < 0 or data.strip(b"\0"):
                raise SourceError(
                    f"{self.path}: goes on behind its end, as several archives in one file do; one is read. "
                    "Unpack it with tar --ignore-zeros, or make it anew."
                )
            if not whole:
                return

    def _list(self, tar: tarfile.TarFile, spool: IO[bytes] | None) -> None:
        while (member := tar.next()) is not None:
            # The list would grow to 1 KB a member; tarfile needs it only to find members by name.
            tar.members.clear()  # type: ignore[attr-defined]
            refused = None
            if member.issym() or member.islnk():
                refused = "is a link"
            elif member.issparse() or not member.isreg():
                refused = "is not an ordinary file"
            key = self._key(member.name, member.isdir(), None if member.isdir() else refused)
            other = None
            if key is None and member.isreg() and refused is None and self._also(member.name):
                other = self._path(member.name)
            if key is None and other is None:
                if spool is not None:
                    _pass_over(tar)
                continue
            offset = member.offset_data
            if spool is not None:
                offset = self._spool(tar, member, spool)
            if key is None:
                self._add_other(other or "", offset, member.size)
                continue
            self.keys.append(key)
            self._offsets.append(offset)
            self.sizes.append(member.size)

    def _spool(self, tar: tarfile.TarFile, member: tarfile.TarInfo, spool: IO[bytes]) -> int:
        """Decompress a member to the end of ``spool``, and return where it begins there. Raises: SourceError, OSError, EOFError."""
        if member.size > _LARGEST:
            raise SourceError(
                f"{self.path}: {member.name} has {member.size:,} bytes; images of up to {_LARGEST:,} are read. "
                "Make the archive without it."
            )
        offset = spool.tell()
        if member.size > _SEEN and member.size > _free(spool):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        shutil.copyfileobj(cast(IO[bytes], tar.extractfile(member)), spool)
        if spool.tell() - offset != member.size:
            raise EOFError
        return offset

    def read(self, index: int) -> bytes:
        """Read image ``index`` of ``keys``; thread-safe. Raises: ImageError without the image's name."""
        return self._pread(self.sizes[index], self._offsets[index])


def _pass_over(tar: tarfile.TarFile) -> None:
    """Read a stream up to the next header; tarfile's own seek goes on for ever where the stream ends before it."""
    stream = cast(IO[bytes], tar.fileobj)
    while (left := tar.offset - 1 - stream.tell()) > 0:
        if not stream.read(min(left, _SEEN)):
            raise EOFError


def _free(file: IO[bytes]) -> int:
    """Return the bytes that its disk has left."""
    status = os.fstatvfs(file.fileno())
    return status.f_bavail * status.f_frsize


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
