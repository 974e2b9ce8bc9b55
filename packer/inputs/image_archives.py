"""Archives of images, read in any order without unpacking: tar, compressed tar and zip.

A tar file is read at its members' offsets. A compressed tar cannot be, so it is decompressed once
into an unnamed temporary file, which vanishes with the process. A zip file is read at its members' offsets,
too, each of them stored or deflated by itself. All reads are `pread`: any number of threads share one
descriptor.
"""

from __future__ import annotations

import errno
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
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from typing import IO, Any, cast

from packer.errors import ImageError, SourceError, SpaceError, UsageError
from packer.inputs.archive_members import Archive
from packer.inputs.file_names import is_image, shorten
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
    """A tar file, read at its members' offsets; a compressed one through a temporary file."""

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
            with ExitStack() as stack:
                file: IO[bytes] = stack.enter_context(open(self._fd, "rb", closefd=False))
                if opens is not None:
                    spool = stack.enter_context(tempfile.TemporaryFile(dir=spool_dir))
                    with opens(file) as stream:
                        shutil.copyfileobj(stream, spool, _SEEN)
                    spool.flush()
                    self._check_unchanged()
                    fd, self._fd = self._fd, os.dup(spool.fileno())
                    os.close(fd)
                    self._status = os.fstat(self._fd)
                    file = spool
                    file.seek(0)
                with tarfile.open(fileobj=file, mode="r:", tarinfo=headers, encoding="utf-8") as tar:
                    self._list(tar)
                file.seek(tar.offset)
                if file.read(_SEEN).strip(b"\0"):
                    raise SourceError(
                        f"{path}: goes on behind its end, as several archives in one file do; one is read. Unpack it with tar "
                        "--ignore-zeros, or make it anew."
                    )
        except BaseException:
            self.close()
            raise

    def _list(self, tar: tarfile.TarFile) -> None:
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
                continue
            if not is_image(key):
                self.others[key] = member.offset_data, member.size
                continue
            self.keys.append(key)
            self._offsets.append(member.offset_data)
            self.sizes.append(member.size)
        if not headers.ended:
            raise tarfile.ReadError("no end")

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
