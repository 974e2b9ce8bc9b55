"""The files that rows of a pack are exported to: a PNG or JPEG file of each image, a PNG or .npy file of each of its masks; their names.

A file is called as the row's key, its ending replaced: cat/1.jpg -> cat/1.png. Keys come from the pack, and a pack from anywhere:
each is checked before it is used as a path. Names without their endings are unique, so that masks can be called alike:

    cat/1.jpg, cat/1.bmp          cat/1.jpg.png, cat/1.bmp.png: keys that differ only in their endings keep them
    cat/1.jpg twice               cat/1.jpg.png, cat/1~2.png: packs that were merged may hold a key twice

Images of 2 bands, or of 5 and more, are TIFF files.
PNG files are written by OpenCV at its default, level 1 with filter "sub". A photo of 256 px, ms of one core and kB: 2.6 and 110;
Pillow at level 1 5.7 and 98, at level 0 2.9 and 197, at its default 20 and 91; OpenCV without filters 2.2 and 171.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.channels import COLORS
from packer.codecs import jpeg
from packer.convert.export_labels import TargetFields
from packer.errors import FormatError, MissingDependencyError, UsageError
from packer.format.header import Field
from packer.format.pack import Pack
from packer.inputs.file_names import SPLIT_NAMES, is_array, is_hidden, is_image, split_called
from packer.inputs.image_pairs import RESERVED
from packer.opencv import cv2
from packer.orders.runs import Runs, one_run
from packer.path_text import on_disk
from packer.read.row_reader import RowReader, decode_ragged
from packer.read.row_selection import select_rows

"""Channels of an image -> the name that packer convert has for them."""

_PIECE_PICTURES = 16  # whole ones, of which the sizes are not known beforehand
_PIECE_BYTES, _PIECE_ROWS = 4 << 20, 256  # read at once by each worker
_SAMPLES = 16  # rows encoded to see how large the files will be

MOST_FOLDERS = 100
"""Folders within each other that a key may name: Python makes and removes them by calls within each other."""

Spans = Sequence[tuple[int, int]]


class ExportedFile(NamedTuple):
    """A file to be written. position: of its row among those exported; field: whose rows it holds."""

    position: int
    field: str
    data: bytes | memoryview


class ExportRows:
    """The rows of a pack, or of one split, as files. Thread-safe."""

    def __init__(self, pack: Pack, encoding: str, quality: int, split: str | None) -> None:
        """Raises UsageError when there is nothing to export."""
        self.pack, self.encoding, self.split, self._quality = pack, encoding, split, quality
        self.spans = select_rows(pack, split)
        self.rows = np.concatenate([np.arange(0), *(np.arange(*span) for span in self.spans)])
        if not len(self.rows):
            raise UsageError(f"{pack.path}: has no rows to export. Pass another pack or split.")
        fields = {f.name: f for f in pack.fields}
        image = fields.get("image")
        self.encoded = holds_jpeg(pack)
        """True if rows are JPEG files."""
        if (
            image is None
            or "key" not in fields
            or not (image.own_size is not None or self.encoded or _is_picture(image))
        ):
            raise UsageError(
                f"{pack.path}: holds no images with names; uint8 or uint16 [H, W, C], or JPEG files, are exported,"
                " each with its key. Pass a pack of images."
            )
        self.image = image.loaded
        own = self.image.own_size
        self.channels = (own.channels if own else None) or (self.image.shape or (0, 0, 1))[2]
        if encoding == "jpeg" and self.image.deep:
            raise UsageError("encoding jpeg: JPEG files hold 8 bits and no bands. Pass png.")
        if encoding == "jpeg" and self.channels == 4:
            raise UsageError("encoding jpeg: JPEG has no transparency. Pass png.")
        self.tiff = self.channels not in COLORS
        """True if images have bands that no PNG file holds: they are TIFF files."""
        self.masks = [f for f in pack.fields if _is_mask(f)]
        self.targets = TargetFields.of(pack)
        used = {"image", "key", *self.targets.names, *(f.name for f in self.masks)}
        self.left = [f.name for f in pack.fields if f.name not in used and not f.measures]
        """Fields that are not exported."""
        self.reader = RowReader(pack, pack.fields, verify=True)

    def ending(self, f: Field) -> str:
        """Return the ending of a mask's files."""
        return ".png" if fits_png(f) else ".npy"

    def pieces(self) -> Iterator[tuple[int, int, int]]:
        """Yield (position, first row, rows) of runs that are read at once."""
        row_bytes = max(1, self.image.row_bytes + sum(f.row_bytes for f in self.masks))
        step = (
            _PIECE_PICTURES
            if self.image.shape is None
            else max(1, min(_PIECE_ROWS, _PIECE_BYTES // row_bytes))
        )
        position = 0
        for start, stop in self.spans:
            for first in range(start, stop, step):
                count = min(step, stop - first)
                yield position, first, count
                position += count

    def files(self, position: int, first: int, count: int) -> Iterator[ExportedFile]:
        """Yield the files of rows [first, first + count), images first. Raises FormatError."""
        run = one_run(first, first + count)
        for i, data in enumerate(self._images(run)):
            yield ExportedFile(position + i, "image", data)
        for f in self.masks:
            pictures = self._pictures(f, run) if f.own_size is not None else self.reader.array(f, run)
            for i, values in enumerate(pictures):
                yield ExportedFile(position + i, f.name, png(values) if fits_png(f) else _npy(values))

    def estimate(self) -> int:
        """Return the estimated bytes of all files, from a sample."""
        chosen = np.unique(np.linspace(0, len(self.rows) - 1, _SAMPLES).astype(int))
        sizes = [sum(len(file.data) for file in self.files(0, int(self.rows[i]), 1)) for i in chosen]
        return int(np.mean(sizes) * len(self.rows))

    def _images(self, run: Runs) -> Iterator[bytes | memoryview]:
        if self.encoded and self.encoding == "jpeg":
            yield from self.reader.read_ragged("image", run)
            return
        if self.image.own_size is not None:
            for image in self._pictures(self.image, run):
                yield self._encoded(image)
            return
        shape = self.image.shape
        assert shape is not None
        pixels = np.empty((run.total, *shape), self.image.dtype)
        self.reader.read("image", run, pixels.reshape(run.total, -1).view(np.uint8))
        for image in pixels:
            yield self._encoded(image)

    def _pictures(self, f: Field, run: Runs) -> Iterator[NDArray[Any]]:
        """Yield rows of a field of pictures of sizes of their own, decoded one by one."""
        sides = [self.reader.array(side, run) for side in self.pack.fields if side.measures]
        sizes = np.stack(sides, axis=1) if sides else None
        rows = zip(self.reader.read_ragged(f.name, run), run.rows().tolist(), strict=True)
        for i, (data, number) in enumerate(rows):
            size = None if sizes is None else sizes[i : i + 1]
            (values,) = decode_ragged(self.pack, f, [data], [number], size)
            yield values

    def _encoded(self, image: NDArray[Any]) -> bytes | memoryview:
        """Return an image's file."""
        return tiff(image) if self.tiff else png(image) if self.encoding == "png" else self._jpeg(image)

    def _jpeg(self, image: NDArray[np.uint8]) -> bytes:
        try:
            return jpeg.encode(image, self._quality)
        except ValueError as error:
            raise UsageError(f"encoding jpeg: {error}. Pass png.") from None


def holds_jpeg(pack: Pack) -> bool:
    """Return True if a pack's images are stored as JPEG files."""
    image = next((f for f in pack.fields if f.name == "image"), None)
    return image is not None and image.ragged and (image.codec or {}).get("name") == "jpeg"


def _is_picture(f: Field) -> bool:
    """True if rows of a field are images that packer convert could have made."""
    shape = f.shape or ()
    return f.pixels or (f.dtype == "|u1" and len(shape) == 3 and shape[2] in COLORS)


def _is_mask(f: Field) -> bool:
    """True if rows of a field are pixels that packer convert reads as pairs."""
    fixed = f.dtype in ("|u1", "<u2", "<f4") and len(f.shape or ()) in (2, 3)
    return (fixed or f.own_size is not None) and f.name not in RESERVED


def fits_png(f: Field) -> bool:
    """True if packer convert reads rows of a field back exactly from PNG files."""
    own = f.own_size
    dtype, channels = (
        (f.dtype, ((f.shape or ())[2:] or (1,))[0]) if own is None else (own.dtype, own.channels or 1)
    )
    return (dtype, channels) in (("|u1", 1), ("|u1", 3), ("|u1", 4), ("<u2", 1))


def png(values: NDArray[Any]) -> memoryview:
    """Encode a PNG file. values: uint8 or uint16 [H, W], [H, W, 1], RGB or RGBA."""
    if values.ndim == 3 and values.shape[2] > 1:
        turned = cv2.COLOR_RGB2BGR if values.shape[2] == 3 else cv2.COLOR_RGBA2BGRA
        values = cv2.cvtColor(values, turned)
    encoded: NDArray[np.uint8] = cv2.imencode(".png", values)[1]
    return memoryview(encoded).cast("B")


def tiff(values: NDArray[Any]) -> memoryview:
    """Encode a TIFF file of bands. values: uint8 or uint16 [H, W, C]. Raises MissingDependencyError."""
    try:
        import tifffile
    except ImportError:
        raise MissingDependencyError("tifffile", "A TIFF file of bands") from None
    file = io.BytesIO()
    tifffile.imwrite(
        file, values, photometric="minisblack", planarconfig="contig", metadata=None, software=False
    )
    return file.getbuffer()


def _npy(values: NDArray[Any]) -> memoryview:
    file = io.BytesIO()
    np.lib.format.write_array(file, values, version=(1, 0), allow_pickle=False)
    return file.getbuffer()


# Names


def check_keys(subject: str, keys: Sequence[str], rows: NDArray[np.int64]) -> None:
    """Check that every key is a plain path below a folder. subject: the pack; rows: int64 [N], of the keys.

    Raises FormatError for an empty or absolute one, one that holds a NUL, one of whose parts is empty, "." or "..",
        and one of MOST_FOLDERS folders or more.
    """
    for key, row in zip(keys, rows.tolist(), strict=True):
        if "\0" in key or not {"", ".", ".."}.isdisjoint(key.split("/")):
            raise FormatError(
                f"{subject}: the key of row {row} is {key!r}; only plain paths below a folder are made into files."
                " Nothing was written."
            )
        if key.count("/") >= MOST_FOLDERS:
            raise FormatError(
                f"{subject}: the key of row {row} lies {key.count('/'):,} folders deep; below {MOST_FOLDERS} are made."
                " Nothing was written."
            )


def check_lengths(
    subject: str, root: str, names: Sequence[str], keys: Sequence[str], rows: NDArray[np.int64], *, spare: int
) -> None:
    """Check that the disk takes names of such a length.

    root: an existing folder below which they will lie; spare: bytes of the folders between. Raises FormatError.
    """
    longest, path = os.pathconf(root, "PC_NAME_MAX"), os.pathconf(root, "PC_PATH_MAX")
    room = path - len(os.fsencode(os.path.abspath(root))) - spare
    for name, key, row in zip(names, keys, rows.tolist(), strict=True):
        found = on_disk(name)
        if len(found) > room or max(map(len, found.split(b"/"))) > longest:
            shown = key if len(key) <= 80 else key[:77] + "..."
            raise FormatError(
                f"{subject}: the key of row {row} is {shown!r}, {len(key):,} characters; {root} takes names of {longest} bytes,"
                f" and paths of {path:,}. Pass a shorter folder, or convert the images under shorter names."
            )


def in_split_folders(
    keys: Sequence[str], rows: NDArray[np.int64], splits: Mapping[str, Spans]
) -> Sequence[str]:
    """Put the split's folder before each key, unless all keys begin with it already.

    Splits whose folders packer convert does not know, or that share or leave out rows, change nothing. rows: int64 [N], rising.
    """
    owners = np.full(len(rows), -1)
    shared = False
    for number, spans in enumerate(splits.values()):
        for start, stop in spans:
            own = slice(*np.searchsorted(rows, (start, stop)).tolist())
            shared = shared or bool((owners[own] >= 0).any())
            owners[own] = number
    if shared or not splits or (owners < 0).any() or not set(SPLIT_NAMES.values()).issuperset(splits):
        return keys
    names = [list(splits)[owner] for owner in owners.tolist()]
    if all(
        "/" in key and split_called(key.partition("/")[0]) == name
        for key, name in zip(keys, names, strict=True)
    ):
        return keys
    return [f"{name}/{key}" for key, name in zip(keys, names, strict=True)]


def file_stems(keys: Sequence[str], ending: str) -> list[str]:
    """Return file names without endings for checked keys: all different, and none a folder's name once it has its ending."""
    shared = Counter(map(stem_of, keys))
    folders = {key[:at] for key in keys for at, letter in enumerate(key) if letter == "/"}
    used: set[str] = set()
    numbers: Counter[str] = Counter()
    stems = []
    for key in keys:
        own = stem_of(key)
        stem = own if shared[own] == 1 else key
        while stem in used or stem + ending in folders:
            numbers[own] += 1
            stem = f"{own}~{numbers[own] + 1}"
        used.add(stem)
        stems.append(stem)
    return stems


def file_names(keys: Sequence[str], stems: Sequence[str], endings: Sequence[str]) -> list[str]:
    """Return the stems with the endings of their keys if ``endings`` has those, else with the first of these."""
    names = []
    for key, stem in zip(keys, stems, strict=True):
        own = key[len(stem) :] if key.startswith(stem) else ""
        names.append(stem + (own if own.lower() in endings else endings[0]))
    return names


def inner_folders(names: Sequence[str]) -> tuple[set[str], list[str]]:
    """Return the splits of the folders at the top, empty if there are none, and for each file the folder below that it lies in, or ""."""
    parts = [name.split("/") for name in names]
    tops = {part[0] if len(part) > 1 else "" for part in parts}
    found = {split_called(top) for top in tops}
    splits = {name for name in found if name} if None not in found else set()
    depth = 1 if splits else 0
    return splits, [part[depth] if len(part) > depth + 1 else "" for part in parts]


def hidden(names: Sequence[str]) -> list[str]:
    """Return the names that packer convert passes over."""
    return [name for name in names if any(map(is_hidden, name.split("/")))]


def stem_of(key: str) -> str:
    """Return a key without the ending of an image, or of an array."""
    name = key.rpartition("/")[2]
    return os.path.splitext(key)[0] if is_image(name) or is_array(name) else key
