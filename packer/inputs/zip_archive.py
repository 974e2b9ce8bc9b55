"""Zip files of images, each member stored or deflated by itself, read at its place."""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from array import array

from packer.errors import ImageError, SourceError
from packer.inputs.archive_members import Archive
from packer.inputs.file_names import shorten

_LARGE, _MOST_RATIO = 256 << 20, 100
"""Bytes up to which a member may be any number of times as large as in the archive, and how many times above.

zlib makes 1 GB of 1 MB. Compressed images gain nothing; uncompressed masks of that size, almost all of one value, are refused.
"""
_ZIP_ENCRYPTED = 1
_ZIP_UTF8 = 0x800
_ZIP_LOCAL_HEADER = struct.Struct("<4s2xHH16xHH")
"""Signature, flags, method, lengths of name and extra field: 30 bytes (PKWARE's APPNOTE 6.3.10, section 4.3.7)."""


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
