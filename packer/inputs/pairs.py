"""Partners of images, such as masks and depth maps: found by name, sampled where the image's pixels are.

To image ``cat/1.jpg`` belongs ``cat/1.png`` below the pair's folder, whatever either one's extension. It may have another size:
the same part of the scene is seen. Sampling is nearest, so that every value was there before; bars of "pad" hold 0. What becomes
of each kind of file:

    | file                           | row              | values                                            |
    |--------------------------------|------------------|---------------------------------------------------|
    | PNG, TIFF, BMP: grey           | uint8 [H, W]     | as they are; 2 and 4 bits spread over 0 to 255    |
    | PNG, TIFF, BMP: 1 bit          | uint8 [H, W]     | 0 and 255, as viewers and OpenCV have them        |
    | PNG, TIFF, BMP: palette        | uint8 [H, W]     | the indices, as in Pascal VOC; not the colours    |
    | PNG, TIFF: 16-bit grey         | uint16 [H, W]    | as they are                                       |
    | TIFF: 32-bit floats            | float32 [H, W]   | as they are                                       |
    | RGB, RGBA, grey with alpha     | uint8 [H, W, C]  | as they are, C = 3, 4, 2                          |
    | WebP                           | uint8 [H, W, C]  | as they are; [H, W] where the channels are equal  |
    | .npy [h, w] or [h, w, C]       | [H, W(, C)]      | uint8, uint16 or float32, as they are             |

Anything else is refused, also what Pillow would narrow (16-bit RGB, 64-bit floats). Of several pages, the first is read. EXIF
orientation is applied, the mask's own to the mask.
"""

from __future__ import annotations

import io
import math
import os
import tokenize
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from keyword import iskeyword
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL import Image, ImageFile, TiffImagePlugin

from packer.codecs.orientation import EXIF_TAG, upright
from packer.errors import ImageError, SourceError, UsageError
from packer.format.header import Field
from packer.inputs.archives import archive_stem, open_archive
from packer.inputs.layout import is_hidden
from packer.inputs.sources import newest_file, read_file, split_archive
from packer.pixels.decode import DAMAGE, FORMATS, check_pixels, without_pillow_limit
from packer.pixels.geometry import Geometry
from packer.pixels.maker import PixelSpec

EXTENSIONS = (".bmp", ".npy", ".png", ".tif", ".tiff", ".webp")
"""What a partner's name ends in, whichever the case."""

RESERVED = frozenset(
    ("image", "label", "boxes", "box_label", "keypoints", "key", "packer", "checksums", "header", "trailer")
)
_FORMATS_READ = frozenset(("PNG", "TIFF", "BMP", "WebP"))
_KINDS = ("|u1", "<u2", "<f4")
_MODES = frozenset(("1", "L", "P", "I;16", "I;16B", "F", "LA", "RGB", "RGBA"))
_SAMPLE_FORMAT, _SIGNED = 339, 2  # TIFF 6.0, section 19
_BYTES_A_PIXEL = 16
"""Files larger than --max-pixels times this, four floats, are not read, as anyone can make an endless one."""
_TRIES = 100
_NONE = 255
_SHOWN = 3
_AT_ONCE = 1 << 16


class Kind(NamedTuple):
    """What the values of a pair are. dtype: numpy type string, one of _KINDS; channels: 1 or more."""

    dtype: str
    channels: int

    def __str__(self) -> str:
        """As a message has it."""
        name = np.dtype(self.dtype).name
        return name if self.channels == 1 else f"{name} in {self.channels} channels"


class Pair:
    """The partners of a list of images. A context manager; made by `open_pair`."""

    def __init__(self, name: str, spec: PixelSpec, files: _Files, like: Field | None) -> None:
        """Find out what the values are: as in ``like``, or else in the first file that can be read."""
        self._name, self._files, self._max_pixels = name, files, spec.max_pixels
        self._kind = self._first_kind() if like is None else _kind_of(like)
        single = self._kind.channels == 1
        self.field = Field(
            name,
            self._kind.dtype,
            spec.size if single else (*spec.size, self._kind.channels),
            {"layout": "HW" if single else "HWC", "fit": spec.fit, "sampling": "nearest"},
        )
        """As it is stored: [H, W], or [H, W, C] for several channels."""
        self.notes = files.notes
        """What the user may not expect, a sentence each."""
        self.sizes = files.sizes
        """int64 [N], bytes of each image's partner."""
        self.times = files.times
        """int64 [N], when each was changed last, in nanoseconds since 1970."""
        self.newest = files.newest
        """Which of the files was changed last, and when."""

    def read(self, index: int, geometry: Geometry, out: NDArray[Any]) -> int:
        """Fill ``out`` with the partner of image ``index``; thread-safe, in any order.

        geometry: where the image's pixels went. out: of the field's dtype and shape, rows may lie apart.
        Returns: bytes read. Raises: ImageError that names the partner, but not the image.
        """
        try:
            data = self._data(index)
            values = _decode(data, self._max_pixels, self._kind.channels)
            found, (height, width) = _kind(values), values.shape[:2]
            if found != self._kind:
                raise ImageError(f"holds {found}; {self._kind} is needed, as in the others.")
            if height != width and (width, height) == geometry.source:
                raise ImageError(
                    f"{width:,} x {height:,} pixels, and its image {height:,} x {width:,} when upright; they must lie alike. "
                    "Turn it as the image's EXIF orientation says."
                )
        except ImageError as error:
            raise ImageError(f"its {self._name} {self._files.path(index)}: {error}") from None
        target = geometry.target
        if (target.height, target.width) != geometry.result:
            out[...] = 0
        rows, columns = geometry.nearest(height, width)
        target.of(out)[...] = values.take(rows, axis=0).take(columns, axis=1)
        return len(data)

    def fingerprint(self) -> bytes:
        """Sixteen bytes that differ if the names or sizes of the files do, or what is stored of them."""
        state = blake2b(repr(self.field).encode(), digest_size=16)
        for start in range(0, len(self.sizes), _AT_ONCE):
            paths = map(self._files.path, range(start, min(start + _AT_ONCE, len(self.sizes))))
            state.update("\0".join(paths).encode("utf-8", "surrogateescape"))
        state.update(self.sizes.data)
        return state.digest()

    def close(self) -> None:
        """Close what is open; closing again does nothing."""
        self._files.close()

    def __enter__(self) -> Pair:
        """Give the pair itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _data(self, index: int) -> bytes:
        size, most = int(self._files.sizes[index]), _BYTES_A_PIXEL * self._max_pixels
        if size > most:
            raise ImageError(f"{size:,} bytes; at most {most:,} are read. Raise --max-pixels if it is meant.")
        return self._files.read(index)

    def _first_kind(self) -> Kind:
        reasons = []
        for index in range(min(_TRIES, len(self._files.sizes))):
            try:
                return _kind(_decode(self._data(index), self._max_pixels, None))
            except ImageError as error:
                reasons.append(str(error))
        raise SourceError(
            f"{self._files.place}/{self._files.path(0)}: {reasons[0]} No {self._name} can be read, of {len(reasons):,} tried."
        )


def open_pair(
    name: str,
    folder: str | os.PathLike[str],
    keys: list[str],
    *,
    spec: PixelSpec,
    like: Field | None = None,
    spool_dir: str | None = None,
) -> Pair:
    """Find the partner of each image.

    name: of the field, for example "mask". keys: the images' paths, "/"-separated.
    folder: with the partners under the same paths, extensions aside; or an archive, or a folder in one. The archives' listing
        leaves .npy files out.
    spec: the images' size and fit, and the most pixels a file may have. like: of the same dtype and channels; None: as the first
        file that can be read. spool_dir: where a compressed tar is decompressed to.
    Raises: UsageError for a name that cannot be a field's, or a folder that is not there; SourceError when an image has no
        partner or several, or none of the first files can be read.
    """
    if not (name.isascii() and name.isidentifier()) or name[0] == "_" or iskeyword(name) or name in RESERVED:
        raise UsageError(
            f"pair {name}: not a name for a field; letters, digits and _ are allowed, and {', '.join(sorted(RESERVED))} are taken. "
            "Pass another one, for example mask."
        )
    place = os.fspath(folder).rstrip("/") or "/"
    files = (
        _in_folder(name, place, keys) if os.path.isdir(place) else _in_archive(name, place, keys, spool_dir)
    )
    try:
        return Pair(name, spec, files, like)
    except BaseException:
        files.close()
        raise


# Files


class _Entry(NamedTuple):
    """A file that may be a partner. path: below the pair's folder; position: where its archive lists it."""

    path: str
    size: int
    time: int
    position: int


class _Files:
    """Which file belongs to which image. ``read`` and ``close`` are set by whoever knows what holds them."""

    read: Callable[[int], bytes]

    def __init__(self, name: str, place: str, keys: list[str], entries: Iterable[_Entry]) -> None:
        """Give each image its file. Raises: SourceError unless there is exactly one."""
        self.place = place
        self.notes: list[str] = []
        self.sizes = np.zeros(len(keys), np.int64)
        self.times = np.zeros(len(keys), np.int64)
        self.positions = np.zeros(len(keys), np.int64)
        self._keys = keys
        self._suffixes: list[str] = []  # few, so that an image's file takes one byte
        self._codes = np.full(len(keys), _NONE, np.uint8)
        newest, doubles = ("", 0), {}
        loose, first_loose = 0, ""
        images, twins = _by_stem(keys)
        for entry in entries:
            stem, suffix = os.path.splitext(entry.path)
            index = images.get(stem)
            if index is None:
                first_loose = min(first_loose or entry.path, entry.path)
                loose += 1
                continue
            if self._codes[index] != _NONE:
                doubles[index] = (entry.path, self.path(index))
                continue
            if suffix not in self._suffixes:
                self._suffixes.append(suffix)
            self._codes[index] = self._suffixes.index(suffix)
            self.sizes[index], self.positions[index] = entry.size, entry.position
            self.times[index] = entry.time
            newest = max(newest, (entry.path, entry.time), key=lambda found: found[1])
        for index, first in twins.items():
            for column in (self._codes, self.sizes, self.times, self.positions):
                column[index] = column[first]
        self._check(name, doubles)
        self.newest = newest_file([newest[0]], np.array([newest[1]]))
        if loose:
            belong = "file belongs" if loose == 1 else "files belong"
            self.notes.append(f"{place}: {loose:,} {belong} to no image, first {first_loose}; left out.")

    def path(self, index: int) -> str:
        """Path of an image's file below the place."""
        return os.path.splitext(self._keys[index])[0] + self._suffixes[int(self._codes[index])]

    def close(self) -> None:
        """Close what is open."""

    def _check(self, name: str, doubles: dict[int, tuple[str, str]]) -> None:
        missing = np.flatnonzero(self._codes == _NONE)
        if len(missing):
            shown = ", ".join(self._keys[index] for index in missing[:_SHOWN])
            raise SourceError(
                f"{self.place}: no {name} for {shown}{_more(len(missing) - _SHOWN)}; each image needs a file of its own path and name, "
                f"ending in {', '.join(EXTENSIONS)}. Add them, or remove the images."
            )
        if doubles:
            shown = ", ".join(" and ".join(sorted(doubles[index])) for index in sorted(doubles)[:_SHOWN])
            raise SourceError(
                f"{self.place}: several files for one image: {shown}{_more(len(doubles) - _SHOWN)}; each needs one {name}. "
                "Remove the others."
            )


def _by_stem(keys: list[str]) -> tuple[dict[str, int], dict[int, int]]:
    """Path without extension -> the first image of it; and other images of such a path -> the first."""
    images: dict[str, int] = {}
    twins: dict[int, int] = {}
    for index, key in enumerate(keys):
        first = images.setdefault(os.path.splitext(key)[0], index)
        if first != index:
            twins[index] = first
    return images, twins


def _more(count: int) -> str:
    return f" and {count:,} more" if count > 0 else ""


def _is_partner(path: str) -> bool:
    return path.lower().endswith(EXTENSIONS)


def _in_folder(name: str, place: str, keys: list[str]) -> _Files:
    files = _Files(name, place, keys, _scan(place, {key.rpartition("/")[0] for key in keys}))

    def read(index: int) -> bytes:
        try:
            listed = int(files.sizes[index]), int(files.times[index])
            return read_file(os.path.join(place, files.path(index)), listed)
        except OSError as error:
            raise ImageError(f"cannot be read ({error.strerror}).") from None

    files.read = read
    return files


def _scan(place: str, folders: set[str]) -> Iterator[_Entry]:
    """List the folders in which images lie, no others: nothing needs a walk, and no link can form a loop."""
    for folder in sorted(folders):
        try:
            with os.scandir(os.path.join(place, folder)) as entries:
                for entry in entries:
                    if is_hidden(entry.name) or not _is_partner(entry.name) or entry.is_dir():
                        continue
                    size = time = 0
                    with suppress(OSError):  # a link to nothing: reading it says so
                        status = entry.stat()
                        size, time = status.st_size, status.st_mtime_ns
                    yield _Entry(f"{folder}/{entry.name}" if folder else entry.name, size, time, 0)
        except (FileNotFoundError, NotADirectoryError):
            continue  # then its images have no partners, which is said of all of them together
        except OSError as error:
            where = os.path.join(place, folder).rstrip("/")
            raise SourceError(
                f"{where}: cannot be listed ({error.strerror}); its files are needed. Make it readable."
            ) from None


def _in_archive(name: str, place: str, keys: list[str], spool_dir: str | None) -> _Files:
    path, inside = split_archive(place)
    if path is None:
        raise UsageError(f"{place}: no such folder or archive; pair {name} needs one. Check it.")
    archive = open_archive(path, inside, spool_dir)
    try:
        base = "" if inside or not archive.holds_only(archive_stem(path)) else f"{archive_stem(path)}/"
        time = archive.time
        entries = (
            _Entry(key.removeprefix(base), size, time, position)
            for position, (key, size) in enumerate(zip(archive.keys, archive.sizes, strict=True))
            if _is_partner(key)
        )
        files = _Files(name, place, keys, entries)
        files.newest = newest_file([os.path.basename(path)], np.array([time]))
    except BaseException:
        archive.close()
        raise
    files.read = lambda index: archive.read(int(files.positions[index]))
    files.close = archive.close  # type: ignore[method-assign]
    return files


# Values


def _kind(values: NDArray[Any]) -> Kind:
    return Kind(values.dtype.newbyteorder("<").str, 1 if values.ndim == 2 else values.shape[2])


def _kind_of(field: Field) -> Kind:
    shape = field.shape or ()
    return Kind(field.dtype, shape[2] if len(shape) > 2 else 1)


def _decode(data: bytes, max_pixels: int, channels: int | None) -> NDArray[Any]:
    """Read one file, upright.

    channels: how many are expected, None: any. Returns: [h, w], or [h, w, C] for several channels, of a dtype in _KINDS, of
    either byte order. Raises: ImageError.
    """
    if not data:
        raise ImageError("empty (0 bytes).")
    if data.startswith(npy.MAGIC_PREFIX):
        return _decode_npy(data, max_pixels)
    for name, opens, accepts in FORMATS:
        if name in _FORMATS_READ and accepts(data):
            values, orientation = _decode_picture(data, name, opens, max_pixels)
            if name == "WebP" and channels in (1, None) and (values == values[..., :1]).all():
                values = values[..., 0]  # it has no grey of its own
            return upright(values, orientation)
    raise ImageError("not a PNG, TIFF, BMP, WebP or npy file; those are read.")


def _decode_npy(data: bytes, max_pixels: int) -> NDArray[Any]:
    """Read an array as a view of the file's bytes: whatever its header announces, nothing is allocated."""
    stream = io.BytesIO(data)
    try:
        version = npy.read_magic(stream)
        reads = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, fortran, dtype = reads(stream)
    except (*DAMAGE, tokenize.TokenError):
        raise ImageError("a damaged or truncated npy file.") from None
    if dtype.newbyteorder("<").str not in _KINDS:
        raise ImageError(f"its values are {dtype.name}; uint8, uint16 and float32 are read.")
    if len(shape) not in (2, 3) or min(shape) < 1:
        raise ImageError(
            f"its shape is {list(shape)}; [height, width] and [height, width, channels] are read."
        )
    check_pixels(shape[0], shape[1], max_pixels)
    if len(data) - stream.tell() != math.prod(shape) * dtype.itemsize:
        raise ImageError("a damaged or truncated npy file.")
    values = np.frombuffer(data, dtype, offset=stream.tell()).reshape(shape, order="F" if fortran else "C")
    return values[..., 0] if values.shape[2:] == (1,) else values


def _decode_picture(
    data: bytes, name: str, opens: Callable[[io.BytesIO], ImageFile.ImageFile], max_pixels: int
) -> tuple[NDArray[Any], int]:
    """Read a picture as it is stored. Returns: [h, w] or [h, w, C], and its EXIF orientation."""
    try:
        with opens(io.BytesIO(data)) as image:
            check_pixels(image.height, image.width, max_pixels)
            if not _is_exact(image):
                raise _inexact()
            with without_pillow_limit(image):
                image.load()
            orientation = image.getexif().get(EXIF_TAG, 1)
            values = np.asarray(image.convert("L") if image.mode == "1" else image)
    except (*DAMAGE, Image.DecompressionBombError) as error:
        if isinstance(error, SyntaxError) and "mode" in str(error):
            raise _inexact() from None  # Pillow opens no TIFF whose pixels it has no mode for
        raise ImageError(f"a damaged or truncated {name} file.") from None
    return values, orientation if orientation in range(1, 9) else 1


def _is_exact(image: ImageFile.ImageFile) -> bool:
    """Say whether Pillow would give the values of an opened file as they are."""
    if image.mode not in _MODES:
        return False
    if isinstance(image, TiffImagePlugin.TiffImageFile) and _SIGNED in image.tag_v2.get(_SAMPLE_FORMAT, ()):
        return False
    # The raw mode says what Pillow unpacks: of "RGB;16B" it keeps 8 bits a channel.
    arguments = image.tile[0].args if image.tile else ""
    raw = arguments if isinstance(arguments, str) else str((arguments or ("",))[0])
    return "16" not in raw or image.mode.startswith("I;16")


def _inexact() -> ImageError:
    return ImageError(
        "its pixels cannot be read exactly; grey of 8 and 16 bits, palettes, 8-bit RGB and 32-bit floats can. Store it as .npy."
    )
