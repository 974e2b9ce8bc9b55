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
from packer.inputs.layout import is_hidden, is_image

_COMPRESSED: dict[str, Callable[[str], Any]] = {
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
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
_ZIP_ENCRYPTED = 1
_ZIP_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Signature, then the lengths of name and extra field: 30 bytes (PKWARE's APPNOTE 6.3.10, section 4.3.7)."""


def is_archive(path: str) -> bool:
    """Say whether a file of this name is read as an archive."""
    return path.lower().endswith(ARCHIVE_EXTENSIONS)


def archive_stem(path: str) -> str:
    """Strip folders and the archive's ending: "data/pets.tar.gz" -> "pets"."""
    name = os.path.basename(path)
    return name[: -max(len(end) for end in ARCHIVE_EXTENSIONS if name.lower().endswith(end))]


def open_archive(path: str, inside: str = "", spool_dir: str | None = None) -> Archive:
    """List an archive, or one folder in it.

    path: a file for which `is_archive` holds; inside: a folder in it, "/"-separated, or "" for everything.
    spool_dir: where a compressed tar is decompressed to; None for the system's temporary directory.
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
            archive = TarArchive(path, inside, opens, spool_dir)
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
        """Start an empty list of what ``path`` holds below ``inside``."""
        self.path = path
        self.keys: list[str] = []
        """The images, as paths below ``inside``, in the archive's order."""
        self.sizes = array("q")
        """Bytes of each image file."""
        self.folders: set[str] = set()
        """Every folder below ``inside`` that is not hidden, as a path."""
        self.loose: set[str] = set()
        """The folders that directly hold files of any kind; "" stands for ``inside`` itself."""
        self._inside = inside
        self._tops: set[str] = set()
        self._seen: set[str] = set()
        self._fd = -1

    @abstractmethod
    def read(self, index: int) -> bytes:
        """Read image ``index`` of ``keys``; thread-safe. Raises: ImageError without the image's name."""

    def close(self) -> None:
        """Close the archive; closing again does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def holds_only(self, folder: str) -> bool:
        """Say whether everything that is listed lies in one folder at the top, and that folder is called so."""
        return "" not in self.loose and {path.partition("/")[0] for path in self.folders} == {folder}

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
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if not parts or any(is_hidden(part) for part in parts if part != ".."):
            return None
        wanted = not is_folder and is_image(parts[-1])
        if name.startswith("/") or ".." in parts:
            refused = "leads out of the archive"
        if refused:
            if wanted:
                raise SourceError(
                    f"{self.path}: {name} {refused}; images must be ordinary members. "
                    "Make the archive without it."
                )
            return None
        if is_folder or len(parts) > 1:
            self._tops.add(parts[0])
        prefix = [part for part in self._inside.split("/") if part]
        if parts[: len(prefix)] != prefix:
            return None
        parts = parts[len(prefix) :]
        folder = "/".join(parts if is_folder else parts[:-1])
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
                f"{self.path}: {name} occurs twice; each image needs a name of its own. "
                "Make the archive anew."
            )
        self._seen.add(key)
        return key

    def _pread(self, size: int, offset: int) -> bytes:
        try:
            data = os.pread(self._fd, size, offset)
        except OSError as error:
            raise ImageError(f"cannot be read from the archive ({error.strerror}).") from None
        if len(data) < size:
            raise ImageError("cannot be read whole; the archive became shorter.")
        return data


class _StrictTarInfo(tarfile.TarInfo):
    """Damaged, cut off or missing headers are errors; tarfile takes them for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _StrictTarInfo:
        """Parse one header block of 512 bytes."""
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise  # a block of zeros is the proper end
            raise tarfile.ReadError(str(error)) from None


class TarArchive(Archive):
    """A tar file, read at its members' offsets; a compressed one through a temporary file of its images."""

    def __init__(
        self, path: str, inside: str, opens: Callable[[str], Any] | None, spool_dir: str | None
    ) -> None:
        """List ``path``; ``opens`` gives the decompressed stream of a compressed one."""
        super().__init__(path, inside)
        self._offsets = array("q")
        if opens is None:
            with tarfile.open(path, "r:", tarinfo=_StrictTarInfo) as tar:
                self._list(tar, None)
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return
        with tempfile.TemporaryFile(dir=spool_dir) as spool:
            with opens(path) as stream:
                with tarfile.open(fileobj=stream, mode="r|", tarinfo=_StrictTarInfo) as tar:
                    self._list(tar, spool)
                while stream.read(1 << 20):
                    pass  # the compressor's checksum comes last
            spool.flush()
            self._fd = os.dup(spool.fileno())

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
            if key is None:
                continue
            offset = member.offset_data
            if spool is not None:
                offset = spool.tell()
                shutil.copyfileobj(cast(IO[bytes], tar.extractfile(member)), spool)
                if spool.tell() - offset != member.size:
                    raise EOFError
            self.keys.append(key)
            self._offsets.append(offset)
            self.sizes.append(member.size)

    def read(self, index: int) -> bytes:
        """Read image ``index`` of ``keys``; thread-safe. Raises: ImageError without the image's name."""
        return self._pread(self.sizes[index], self._offsets[index])


class ZipArchive(Archive):
    """A zip file, read at its members' offsets."""

    def __init__(self, path: str, inside: str) -> None:
        """List ``path``."""
        super().__init__(path, inside)
        self._headers, self._packed, self._sums = array("q"), array("q"), array("L")
        self._deflated = bytearray()
        with zipfile.ZipFile(path) as listing:
            for member in listing.infolist():
                refused = None
                if stat.S_ISLNK(member.external_attr >> 16):
                    refused = "is a link"
                elif member.flag_bits & _ZIP_ENCRYPTED:
                    refused = "is encrypted"
                elif member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    refused = f"is compressed by method {member.compress_type}, not stored or deflated"
                key = self._key(member.filename, member.is_dir(), refused)
                if key is None:
                    continue
                self.keys.append(key)
                self.sizes.append(member.file_size)
                self._headers.append(member.header_offset)
                self._packed.append(member.compress_size)
                self._sums.append(member.CRC)
                self._deflated.append(member.compress_type == zipfile.ZIP_DEFLATED)
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, index: int) -> bytes:
        """Read image ``index`` of ``keys``; thread-safe. Raises: ImageError without the image's name."""
        start, size = self._headers[index], self.sizes[index]
        header = self._pread(_ZIP_LOCAL_HEADER.size, start)
        signature, name_bytes, extra_bytes = _ZIP_LOCAL_HEADER.unpack(header)
        start += _ZIP_LOCAL_HEADER.size + name_bytes + extra_bytes
        data = self._pread(self._packed[index], start)
        try:
            if self._deflated[index]:
                # One byte more than announced is enough to see a lie, and no bomb gets further.
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)
        except zlib.error:
            data = b""
        if signature != b"PK\3\4" or len(data) != size or zlib.crc32(data) != self._sums[index]:
            raise ImageError("damaged inside the archive.")
        return data
