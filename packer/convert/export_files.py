"""Files that rows of a pack are exported to, in the formats that packer convert reads.

An image becomes a PNG or JPEG file, or a TIFF file if it has 2 bands or more than 4; a mask a PNG or .npy
file. labels.csv has a row per image, or per box: ``file``, then the columns of label, boxes and keypoints
that the pack has. Coordinates are pixels of the rows; images are written at the same size. classes.txt lists
the classes, one per line.

OpenCV writes PNG files with its defaults, level 1 with filter "sub". A photo of 256 px, ms on one core and
kB: 2.6 and 110; OpenCV without filters 2.2 and 171; Pillow at level 1 5.7 and 98, at level 0 2.9 and 197, at
its default 20 and 91.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.channels import COLORS
from packer.codecs import jpeg
from packer.errors import FormatError, MissingDependencyError, UsageError
from packer.format.file_io import create
from packer.format.header import Field
from packer.format.pack import Pack
from packer.inputs.file_names import shorten
from packer.inputs.image_pairs import RESERVED
from packer.inputs.point_names import columns_of, point_names, sides
from packer.opencv import cv2
from packer.orders.runs import consecutive, one_run
from packer.path_text import safe_name
from packer.read.array_store import PackStore
from packer.read.row_selection import Splits, select_rows
from packer.sentence import Option, Sentence

_PIECE_PICTURES = 16  # images of unknown, different sizes that a worker reads at once
_PIECE_BYTES, _PIECE_ROWS = 4 << 20, 256  # most that a worker reads at once
_SAMPLES = 16  # rows encoded to estimate the size of the files


class ExportRows:
    """The rows of a pack, or of one split, as files. Thread-safe."""

    pack: Pack
    rows: NDArray[np.int64]

    def __init__(self, pack: Pack, encoding: str, quality: int, split: Splits) -> None:
        """Raises UsageError if the pack has nothing to export."""
        self.pack, self._quality = pack, quality
        if pack.parts[0].header.table is not None:
            raise UsageError(
                f"{pack.path}: was made from a table; image files are exported. Read its fields with h5py, or"
                " packer.PackedDataset, and write them with pandas, as docs/guides/tables.md shows."
            )
        self._spans = select_rows(pack, split)
        self.rows = np.concatenate([np.arange(0), *(np.arange(*span) for span in self._spans)])
        if not len(self.rows):
            raise UsageError(f"{pack.path}: has no rows to export. Pass another pack or split.")
        fields = {f.name: f for f in pack.fields}
        image = fields.get("image")
        files = image is not None and image.ragged and (image.codec or {}).get("name") == "jpeg"
        if (
            image is None
            or "key" not in fields
            or not (image.own_size is not None or files or _is_picture(image))
        ):
            raise UsageError(
                f"{pack.path}: holds no images with keys; uint8 or uint16 [H, W, C], or JPEG files, are"
                " exported, each with its key. Pass a pack of images."
            )
        self.image: Field = image.loaded
        sized = self.image.own_size
        channels = (sized.channels if sized else None) or (self.image.shape or (0, 0, 1))[2]
        if encoding == "jpeg" and (self.image.deep or channels == 4):
            raise UsageError(
                "encoding jpeg: JPEG files hold 8 bits, and neither transparency nor bands. Pass png."
            )
        self._untouched = files and encoding == "jpeg"
        self._encode = _tiff if channels not in COLORS else png if encoding == "png" else self._jpeg
        self.ending = ".tif" if channels not in COLORS else ".png" if encoding == "png" else ".jpg"
        """Suffix of the image files."""
        self.masks: list[Field] = [f for f in pack.fields if _is_mask(f)]
        self.reader: PackStore = PackStore(pack, pack.fields, verify=True)

    def pieces(self) -> Iterator[tuple[int, int, int]]:
        """Yield (position, first row, number of rows) of runs that a worker reads at once."""
        row_bytes = max(1, self.image.row_bytes + sum(f.row_bytes for f in self.masks))
        step = max(1, min(_PIECE_ROWS, _PIECE_BYTES // row_bytes)) if self.image.shape else _PIECE_PICTURES
        position = 0
        for start, stop in self._spans:
            for first in range(start, stop, step):
                yield position, first, min(step, stop - first)
                position += min(step, stop - first)

    def files(
        self, position: int, first: int, count: int
    ) -> Iterator[tuple[int, str, str, bytes | memoryview]]:
        """Yield position, field, suffix and content of each file of rows first..first+count-1.

        Raises FormatError.
        """
        images: Iterable[bytes | memoryview] = (
            self.reader.ragged("image", one_run(first, first + count))
            if self._untouched
            else map(self._encode, self._pictures(self.image, first, count))
        )
        for i, data in enumerate(images):
            yield position + i, "image", self.ending, data
        for f in self.masks:
            encode, ending = (png, ".png") if fits_png(f) else (_npy, ".npy")
            for i, values in enumerate(self._pictures(f, first, count)):
                yield position + i, f.name, ending, encode(values)

    def estimate(self) -> int:
        """Return the estimated bytes of all files, from a sample of rows."""
        chosen = np.unique(np.linspace(0, len(self.rows) - 1, _SAMPLES).astype(int))
        sizes = [sum(len(data) for *_, data in self.files(0, int(self.rows[i]), 1)) for i in chosen]
        return int(np.mean(sizes) * len(self.rows))

    def _pictures(self, f: Field, first: int, count: int) -> Iterator[NDArray[Any]]:
        """Yield rows of a field of pixels; images of different sizes are decoded one at a time."""
        run = one_run(first, first + count)
        if f.own_size is None:
            yield from self.reader.array(f.name, run)
        else:
            yield from self.reader.decoded(f.name, run)

    def _jpeg(self, image: NDArray[np.uint8]) -> bytes:
        try:
            return jpeg.encode(image, self._quality)
        except ValueError as error:
            raise UsageError(f"encoding jpeg: {error}. Pass png.") from None


def _is_picture(f: Field) -> bool:
    """Return True if rows of a field are images that packer convert could have written."""
    shape = f.shape or ()
    return f.pixels or (f.dtype == "|u1" and len(shape) == 3 and shape[2] in COLORS)


def _is_mask(f: Field) -> bool:
    """Return True if rows of a field are pixels that packer convert reads as pairs."""
    fixed = f.dtype in ("|u1", "<u2", "<f4") and len(f.shape or ()) in (2, 3)
    return (fixed or f.own_size is not None) and f.name not in RESERVED


def fits_png(f: Field) -> bool:
    """Return True if packer convert reads rows of a field back exactly from PNG files."""
    sized = f.own_size
    dtype, channels = (
        (f.dtype, ((f.shape or ())[2:] or (1,))[0]) if sized is None else (sized.dtype, sized.channels or 1)
    )
    return (dtype, channels) in (("|u1", 1), ("|u1", 3), ("|u1", 4), ("<u2", 1))


def png(values: NDArray[Any]) -> memoryview:
    """Encode a PNG file. values: uint8 or uint16 [H, W], [H, W, 1], RGB or RGBA."""
    if values.ndim == 3 and values.shape[2] > 1:
        turned = cv2.COLOR_RGB2BGR if values.shape[2] == 3 else cv2.COLOR_RGBA2BGRA
        values = cv2.cvtColor(values, turned)
    encoded: NDArray[np.uint8] = cv2.imencode(".png", values)[1]
    return memoryview(encoded).cast("B")


def _tiff(values: NDArray[Any]) -> memoryview:
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


# Labels

LABELS_FILE, CLASSES_FILE = "labels.csv", "classes.txt"
_CORNERS = ["xmin", "ymin", "xmax", "ymax"]
_AT_ONCE = 4096
_FORMULA = "=+-@"
"""Characters that begin a formula, for a spreadsheet."""


class LabelFiles:
    """The labels.csv and classes.txt of some rows of a pack.

    fields: names of the fields in these files; notes: sentences about content that they cannot hold.
    """

    fields: list[str]

    def __init__(self, rows: ExportRows) -> None:
        """Raises FormatError for class names that a file cannot hold."""
        self._pack, self._reader, self._rows = rows.pack, rows.reader, rows.rows
        self.notes: list[str] = []
        fields = {f.name: f for f in self._pack.fields}
        self._boxes = _ragged(fields.get("boxes"), "<f4", [4])
        self._box_label = self._boxes and _ragged(fields.get("box_label"), "<i8", [])
        label, points = fields.get("label"), fields.get("keypoints")
        if self._boxes is not None or label is None or label.ragged or len(label.shape or ()) > 1:
            label = None
        if points is not None and (points.dtype[1] != "f" or (points.shape or ())[1:] != (2,)):
            points = None
        self.fields = [f.name for f in (label, self._boxes, self._box_label, points) if f is not None]
        runs = consecutive(self._rows)
        self._label = None if label is None else self._reader.array(label.name, runs)
        self._points = (
            None if points is None else self._reader.array(points.name, runs).reshape(len(self._rows), -1)
        )
        self._label_columns = ["label"] if self._box_label or (label and not label.shape) else []
        point_columns = [] if points is None else _point_columns(points, {"file", "label", *_CORNERS})
        given = None if points is None else points.about.get("flip_pairs")
        found = [list(pair) for pair in sides(point_names(point_columns))]
        if given is not None and (not given or given != found):
            pairs = Option("Labels.flip_pairs", shorten(",".join(map(":".join, given)) or "none"))
            self.notes.append(
                Sentence(
                    f"{LABELS_FILE} does not say which points are sides; to pack it again, pass {pairs}."
                )
            )
        if label is not None and label.shape:
            self._label_columns = _label_columns(label, {"file", *point_columns})
        corners = [] if self._boxes is None else _CORNERS
        self._columns = [*self._label_columns, *corners, *point_columns]
        named = self._box_label or (label is not None and label.dtype[1] in "iu" and not label.shape)
        self._classes = self._safe_classes() if named else ()

    def files(self, names: Sequence[str]) -> dict[str, Callable[[str], int]]:
        """Return for each necessary file a function that writes it to a path and returns its bytes.

        names: file names of the images, in the order of the rows. The functions raise OSError, and
        FormatError for a name that a file cannot hold.
        """
        writers: dict[str, Callable[[str], int]] = {}
        if self._columns:
            writers[LABELS_FILE] = partial(self._write, lines=self._lines(names))
        if any(name != name.strip() for name in self._classes):
            self.notes.append(
                f"{CLASSES_FILE} is not written, as some class names do not fit on lines; the order of the"
                " classes is lost."
            )
        elif self._classes:
            writers[CLASSES_FILE] = partial(self._write, lines=None)
        return writers

    def _write(self, path: str, lines: Iterator[list[str]] | None) -> int:
        """Write lines as CSV, or the classes, one per line; return the size of the file in bytes."""
        with open(create(path), "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            try:
                if lines is None:
                    file.writelines(f"{name}\n" for name in self._classes)
                else:
                    csv.writer(file).writerows(lines)
            except UnicodeEncodeError as error:
                raise FormatError(
                    f"{self._pack.path}: the name of a class or column holds"
                    f" {error.object[error.start : error.end]!r}, which a file cannot hold. Nothing was"
                    " written."
                ) from None
        return os.path.getsize(path)

    def _safe_classes(self) -> tuple[str, ...]:
        """Return class names without control characters and formulas.

        Raises FormatError if two become equal.
        """
        classes = self._pack.header.classes or ()
        names = tuple(f"'{name}" if _is_formula(name) else name for name in map(safe_name, classes))
        if len(set(names)) < len(set(classes)):
            raise FormatError(
                f"{self._pack.path}: two of its class names differ only in control characters, which a file"
                " of names cannot hold. Nothing was written."
            )
        if changed := sum(map(str.__ne__, names, classes)):
            self.notes.append(
                f"In {changed:,} of the class names, _ replaces control characters and line ends, and '"
                " precedes = + - @."
            )
        return names

    def _lines(self, names: Sequence[str]) -> Iterator[list[str]]:
        """Yield the lines of labels.csv."""
        yield ["file", *self._columns]
        for start in range(0, len(self._rows), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            boxes = self._decoded(self._boxes, part)
            numbers = self._decoded(self._box_label, part)
            for i, name in enumerate(names[part]):
                # packer convert strips blanks from cells, and a spreadsheet computes text that begins as a
                # formula.
                called = f"./{name}" if name[0].isspace() or _is_formula(name) else name
                points = [] if self._points is None else _texts(self._points[start + i])
                if boxes is None:
                    label = [] if self._label is None else self._label_cells(self._label[start + i])
                    yield [called, *label, *points]
                    continue
                box_labels: Any = [None] * len(boxes[i]) if numbers is None else numbers[i]
                if len(box_labels) != len(boxes[i]):
                    raise FormatError(
                        f"{self._pack.path}: row {self._rows[start + i]} has {len(boxes[i])} boxes and"
                        f" {len(box_labels)} labels of boxes; each box has one. Convert the images again."
                    )
                for box, number in zip(boxes[i], box_labels, strict=True):
                    yield [
                        called,
                        *([] if number is None else self._label_cells(number)),
                        *_texts(box),
                        *points,
                    ]
                if not len(boxes[i]):
                    yield [called, *[""] * (len(self._label_columns) + 4), *points]

    def _label_cells(self, label: Any) -> list[str]:
        if self._classes and 0 <= label < len(self._classes):
            return [self._classes[label]]
        return _texts(np.atleast_1d(label))

    def _decoded(self, f: Field | None, part: slice) -> list[NDArray[Any]] | None:
        if f is None:
            return None
        return list(self._reader.decoded(f.name, consecutive(self._rows[part])))


def _label_columns(label: Field, taken: set[str]) -> list[str]:
    """Return column names of several labels: the pack's if a CSV can hold them, else label1, label2 ..."""
    (count,) = label.shape or ()
    names = [str(name) for name in label.about.get("columns", ())]
    if len(names) == count and _are_columns(names, taken):
        return names
    return [f"label{number}" for number in range(1, count + 1)]


def _point_columns(points: Field, taken: set[str]) -> list[str]:
    """Return two column names a point: left_eye_x, left_eye_y if a CSV can hold its name, else x1, y1 ..."""
    names = points.about.get("points", ())
    columns = columns_of(names)
    if names and _are_columns(columns, taken) and point_names(columns) == tuple(names):
        return columns
    return [f"{axis}{number}" for number in range(1, (points.shape or (0,))[0] + 1) for axis in "xy"]


def _are_columns(names: Sequence[str], taken: set[str]) -> bool:
    """Return True if a CSV can hold these names of columns, beside others that are taken."""
    return (
        len(names) == len(set(names))
        and taken.isdisjoint(names)
        and all(
            name and "," not in name and name == safe_name(name.strip()) and not _is_formula(name)
            for name in names
        )
    )


def _is_formula(text: str) -> bool:
    """Return True for text other than numbers that a spreadsheet would compute as a formula."""
    return text[:1] in tuple(_FORMULA) and re.fullmatch(r"[+-]?[\d.eE+-]+", text) is None


def _ragged(f: Field | None, dtype: str, row_shape: list[int]) -> Field | None:
    """Return the field if its rows are arrays of this dtype and row shape, else None."""
    fits = (
        f is not None and f.ragged and (f.about.get("dtype"), f.about.get("row_shape")) == (dtype, row_shape)
    )
    return f if fits else None


def _texts(values: NDArray[Any]) -> list[str]:
    """Return numbers as the shortest texts that parse to equal values; "" for NaN."""
    if values.dtype.kind == "f":
        return ["" if np.isnan(value) else str(value) for value in values]
    return [str(int(value)) for value in values]
