"""Archives of images, read in any order without unpacking: tar and compressed tar here, zip in zip_archive.py.

A tar file is read at its members' offsets. A compressed tar cannot be, so its images are decompressed once
into an unnamed temporary file, which vanishes with the process. A zip file is read at its members' offsets,
too, each of them stored or deflated by itself. All reads are `pread`: any number of threads share one
descriptor.
"""

from __future__ import annotations

import errno
import lzma
import os
import shutil
import struct
import tarfile
import tempfile
import zipfile
import zlib
from array import array
from collections.abc import Callable
from importlib import import_module
from typing import IO, Any, cast

from packer.errors import SourceError, SpaceError, UsageError
from packer.inputs.archive_members import Archive
from packer.inputs.file_names import is_image
from packer.inputs.zip_archive import ZipArchive
from packer.source_kinds import COMPRESSED_TARS

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
_TAR_HEADER = 1 << 20
"""Bytes of a tar header for long names and PAX records; libarchive reads no longer ones."""
_TAR_GLOBAL_HEADER = 64 << 10
"""Bytes of a PAX header for all members that follow: each of them costs time for every record."""
_TAR_END = 64 << 20
"""Bytes behind the end of a tar; writers fill up to 10 KiB, some to a few MiB."""
_LARGEST = 4 << 30
"""Bytes of an image file in a compressed tar; larger ones are not decompressed to the disk."""
_SEEN = 1 << 20


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


_TAR_MOST = {
    **dict.fromkeys(
        (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE),
        _TAR_HEADER,
    ),
    tarfile.XGLTYPE: _TAR_GLOBAL_HEADER,
}


class _StrictTarInfo(tarfile.TarInfo):
    """Damaged, cut off or missing headers are errors; tarfile takes them for the end of the archive.

    So are headers for long names and PAX records that would fill the memory, and negative sizes. An archive makes a class of its own
    of it. ended: whether that has seen the block of zeros that ends an archive.
    """

    ended = False

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _StrictTarInfo:
        """Parse one header block of 512 bytes."""
        return cls._checked(super().frombuf, buf, encoding, errors)

    @classmethod
    def _frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str, **settings: bool) -> _StrictTarInfo:
        """Do the same; newer releases of Python, 3.14.10 for one, call it past `frombuf`."""
        parse = super()._frombuf  # type: ignore[misc]
        return cls._checked(parse, buf, encoding, errors, **settings)

    @classmethod
    def _checked(
        cls,
        parse: Callable[..., _StrictTarInfo],
        buf: bytes | bytearray,
        encoding: str,
        errors: str,
        **settings: bool,
    ) -> _StrictTarInfo:
        try:
            info = parse(buf, encoding, errors, **settings)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                cls.ended = True
                raise
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
        super().__init__(path, inside, also)
        self._offsets = array("q")
        headers = type("_TarInfo", (_StrictTarInfo,), {})
        try:
            with open(self._fd, "rb", closefd=False) as file:
                if opens is None:
                    with tarfile.open(fileobj=file, mode="r:", tarinfo=headers, encoding="utf-8") as tar:
                        self._list(tar, None)
                    file.seek(tar.offset)
                    self._check_end(lambda: file.read(_SEEN), whole=False)
                    return
                with tempfile.TemporaryFile(dir=spool_dir) as spool:
                    with (
                        opens(file) as stream,
                        tarfile.open(fileobj=stream, mode="r|", tarinfo=headers, encoding="utf-8") as tar,
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
        headers = cast(type[_StrictTarInfo], tar.tarinfo)
        while not headers.ended and (member := tar.next()) is not None:
            # The list would grow to 1 KB a member; tarfile needs it only to find members by name.
            tar.members.clear()  # type: ignore[attr-defined]
            refused = None
            if member.issym() or member.islnk():
                refused = "is a link"
            elif member.issparse() or not member.isreg():
                refused = "is not an ordinary file"
            key = self._key(member.name, member.isdir(), None if member.isdir() else refused)
            if key is None:
                if spool is not None:
                    _pass_over(tar)
                continue
            offset = member.offset_data if spool is None else self._spool(tar, member, spool)
            if not is_image(key):
                self.others[key] = offset, member.size
                continue
            self.keys.append(key)
            self._offsets.append(offset)
            self.sizes.append(member.size)
        if not headers.ended:
            raise tarfile.ReadError("no end")

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
