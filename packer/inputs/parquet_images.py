"""Images in Parquet files, as Hugging Face's datasets writes them: the bytes of image files in a column, a label in another.

    image   struct<bytes: binary, path: string>, or binary       the encoded file; path, if there is one, becomes the image's key
    label   int64, named by a ClassLabel in the schema's entry "huggingface"; or any integer, number or text column

The column of images is the one that this entry calls an Image, or whose first value begins as an image file. Rows of a Parquet file
cannot be read at random, so the encoded images are copied once into an unnamed temporary file, as those of a compressed tar are.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import ImageError, MissingDependencyError, SourceError, SpaceError, UsageError
from packer.format.file_io import pread_all
from packer.inputs.file_names import FolderLayout, changed, file_splits, is_hidden, shorten, split_of
from packer.inputs.label_values import CheckedRows, number_labels
from packer.inputs.opened_source import ImageFiles, ImageSource, SourceOptions
from packer.pixels.image_decoder import format_of_image
from packer.sentence import Option, Sentence
from packer.source_kinds import IMAGES

_ROWS_AT_ONCE = 256
_BUFFER = 1 << 20
_HEAD = 32
"""Bytes by which an image's format is told."""
_NAMES = ("image", "img")

Arrow = Any  # what pyarrow makes; it has no types


class _Columns(NamedTuple):
    """The columns that are read. names: of the classes that the label numbers, None without; others: that are left out, and of them
    those that could be the label."""

    image: str
    label: str | None
    names: list[str] | None
    others: list[str]
    usable: list[str]


def find_images(path: str) -> list[str]:
    """Return the columns of images of a Parquet file. Raises: SourceError for a damaged one, MissingDependencyError."""
    return _image_columns(path, _opened(path))


def read_parquet(name: str, paths: Sequence[str], options: SourceOptions) -> ImageSource:
    """Open files with equal columns, one of them of images.

    name: what to call them in messages.
    Raises: SourceError for what is damaged or cannot be used, SpaceError, UsageError, MissingDependencyError.
    """
    for path in paths:
        if not os.path.isfile(path):
            raise UsageError(f"{path}: no such file; Parquet files of images are read. Check it.")
    times = np.array([os.stat(path).st_mtime_ns for path in paths])
    columns = _choose(paths[0], options)
    try:
        with tempfile.TemporaryFile(dir=options.spool_dir) as spool:
            rows = _Spooled(spool, columns, options)
            for path in paths:
                rows.add(path)
            spool.flush()
            if not rows.sizes:
                raise SourceError(f"{name}: holds no rows; images are needed. Check it.")
            splits = file_splits(paths, [split_of(path) for path in paths], np.array(rows.owners, np.int64))
            layout, notes = rows.labels(name)
            images = SpooledImages(os.dup(spool.fileno()), np.array(rows.sizes, np.int64))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        folder = options.spool_dir or tempfile.gettempdir()
        raise SpaceError(
            f"{paths[0]}: no space left in {folder} for a copy of its images, as its rows cannot be read at random. Make room there."
        ) from None
    source = ImageSource(
        name,
        rows.keys(splits),
        images,
        images.sizes,
        times,
        layout._replace(splits=splits),
        True,
        files=tuple(paths),
        refused=rows.refused,
        label_chosen=True,
    )
    files = "a Parquet file" if len(paths) == 1 else f"{len(paths):,} Parquet files"
    classes = "" if source.classes is None else f" in {len(source.classes):,} classes"
    if columns.others:
        notes.append(
            f"Left out: {shorten(', '.join(columns.others))}; the column of images and one label are packed."
        )
    source.notes[:0] = [f"Read as images in {files}: {len(source):,} rows{classes}.", *notes]
    return source


class SpooledImages(ImageFiles):
    """Images one after another in a file without a name. fd: its descriptor, closed with it; sizes: int64 [N]."""

    def __init__(self, fd: int, sizes: NDArray[np.int64]) -> None:
        self._fd, self.sizes = fd, sizes
        self._ends = np.cumsum(sizes)

    def read(self, index: int) -> bytes:
        """See ImageFiles."""
        size = int(self.sizes[index])
        data = pread_all(self._fd, size, int(self._ends[index]) - size)
        if len(data) < size:
            raise ImageError("cannot be read whole from the temporary file.")
        return data

    def close(self) -> None:
        """Remove the file."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class _Spooled:
    """The rows read so far: the images in a temporary file, everything else in memory."""

    def __init__(self, spool: IO[bytes], columns: _Columns, options: SourceOptions) -> None:
        self._spool, self._columns, self._options = spool, columns, options
        self.sizes: list[int] = []
        self.owners: list[int] = []
        self.refused: dict[int, str] = {}
        self._paths: list[str | None] = []
        self._endings: list[str] = []
        self._labels: list[Any] = []
        self._rows: list[int] = []
        self._files: list[str] = []
        self._told: dict[str, Any] = {}

    def add(self, path: str) -> None:
        """Read a file. Raises: SourceError, OSError for a full disk, SpaceError."""
        columns, before = self._columns, os.stat(path)
        self._files.append(path)
        file = _opened(path)
        wanted = [columns.image, *([columns.label] if columns.label else [])]
        for name in wanted:
            kind = _told(file.schema_arrow, name)
            if kind is None or kind != self._told.setdefault(name, kind):
                raise SourceError(
                    f"{path}: its column {name!r} is not as that of {self._files[0]}, or is not there; files of one data set have equal "
                    "columns. Pass those that belong together."
                )
        row = 0
        with _reading(path):
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=wanted, use_threads=False):
                row = self._take(path, batch, row)
        after = os.stat(path)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise changed(path)

    def _take(self, path: str, batch: Arrow, row: int) -> int:
        column = batch.column(batch.schema.get_field_index(self._columns.image))
        count = len(column)
        paths: list[str | None] = [None] * count
        values = column
        if _is_struct(column.type):
            # flatten() gives null where the whole struct is null.
            parts = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
            values = parts["bytes"]
            if "path" in parts and _kind(parts["path"].type) == "text":
                paths = parts["path"].to_pylist()
        wide = str(values.type) == "large_binary"
        _, offsets_of, data = values.buffers()
        offsets = np.frombuffer(offsets_of, np.int64 if wide else np.int32)[
            values.offset : values.offset + count + 1
        ]
        there = values.is_valid().to_pylist()
        view = memoryview(data or b"")
        for place, found in enumerate(there):
            start, stop = int(offsets[place]), int(offsets[place + 1])
            if not found:
                start = stop
                self._refuse(path, row + place, paths[place])
            self._spool.write(view[start:stop])
            self.sizes.append(stop - start)
            name, _ = format_of_image(bytes(view[start : min(stop, start + _HEAD)]))
            self._endings.append(IMAGES.get(name, (".bin",))[0])
        self._paths += paths
        self._rows += range(row + 1, row + count + 1)
        self.owners += [len(self._files) - 1] * count
        if self._columns.label:
            self._labels += batch.column(batch.schema.get_field_index(self._columns.label)).to_pylist()
        return row + count

    def _refuse(self, path: str, row: int, named: str | None) -> None:
        name = (
            None if named is None else shorten(os.path.basename(named))
        )  # paths of a machine do not go into packs
        found = "holds no image" if name is None else f"holds the name of an image ({name}) and not its bytes"
        if not self._options.skip:
            raise SourceError(
                f"{path} row {row + 1}: {found}; the bytes of image files are read. Embed them, or "
                f"pass {Option('on_error', 'skip')}."
            )
        self.refused[len(self.sizes)] = f"{found}."

    def _without_label(self) -> Sentence:
        """Say that no label is packed, and which columns could be one."""
        usable = shorten(", ".join(self._columns.usable))
        if not usable:
            return Sentence(
                f"No column can be a label, so the pack has none; pass {Option('labels')} to add some."
            )
        return Sentence(
            f"No column is called label, or names classes, so the pack has no labels; {usable} can be "
            f"one. Pass {Option('Labels.column', self._columns.usable[0])}."
        )

    def labels(self, subject: str) -> tuple[FolderLayout, list[str]]:
        """Return labels and classes, and notes about them. Raises: SourceError."""
        columns, options = self._columns, self._options
        if columns.label is None:
            return FolderLayout(None, None, {}), [] if options.labelled else [self._without_label()]
        rows = CheckedRows(subject, self._rows, skip=options.skip, unit="row")
        rows.refused.update(self.refused)
        label_as = options.label_as if columns.names is None else "auto"
        if label_as == "auto" and self._told[columns.label][0] == "float":
            label_as = "float"
        texts = ["" if value is None else str(value).strip() for value in self._labels]
        labels, classes = number_labels(
            rows, texts, column=columns.label, label_as=label_as, names=columns.names
        )
        self.refused = dict(rows.refused)
        return FolderLayout(labels, classes, {}), rows.notes

    def keys(self, splits: dict[str, NDArray[np.int64]]) -> list[str]:
        """Return the paths of the images where all have one, else numbers; below the split's folder if there are splits."""
        split_of = [""] * len(self.sizes)
        for name, members in splits.items():
            for index in members.tolist():
                split_of[index] = name
        plain = all(path is not None and _is_plain(path) for path in self._paths)
        keys = [str(path) for path in self._paths]
        if plain and splits and not all(k.startswith(f"{s}/") for k, s in zip(keys, split_of, strict=True)):
            keys = [f"{s}/{k}" for k, s in zip(keys, split_of, strict=True)]
        if plain and len(set(keys)) == len(keys):
            return keys
        width = max(6, len(str(len(self.sizes))))
        return [
            f"{split}/{n:0{width}d}{ending}".lstrip("/")
            for n, (split, ending) in enumerate(zip(split_of, self._endings, strict=True))
        ]


def _is_plain(path: str) -> bool:
    """Say whether a path can be a key: one below a folder, of no hidden parts."""
    parts = path.split("/")
    return "\0" not in path and not any(part in ("", "..") or is_hidden(part) for part in parts)


# Columns


def _choose(path: str, options: SourceOptions) -> _Columns:
    file = _opened(path)
    schema = file.schema_arrow
    images = _image_columns(path, file)
    if not images:
        raise SourceError(
            f"{path}: has no column of images; the bytes of image files are read, as binary or struct<bytes, path>. Check it."
        )
    named = [name for name in images if name.lower() in _NAMES]
    if len(images) > 1 and len(named) != 1:
        raise SourceError(
            f"{path}: has several columns of images ({shorten(', '.join(images))}); one is packed. Call it image, or drop the others."
        )
    image = named[0] if len(images) > 1 else images[0]
    label = None if options.labelled else _label_column(path, schema, image, options.label)
    others = [name for name in schema.names if name not in (image, label)]
    usable = [name for name in others if _kind(schema.field(name).type)]
    return _Columns(image, label, None if label is None else names_of(schema, label), others, usable)


def _label_column(path: str, schema: Arrow, image: str, chosen: str | None) -> str | None:
    if chosen is not None:
        if chosen not in schema.names or chosen == image or not _kind(schema.field(chosen).type):
            usable = [name for name in schema.names if name != image and _kind(schema.field(name).type)]
            raise UsageError(
                f"{path}: has no column {chosen} of integers, numbers or texts; {shorten(', '.join(usable)) or 'none'} can be labels. "
                "Pass one of them."
            )
        return chosen
    classes = [name for name in schema.names if names_of(schema, name) is not None]
    if "label" in schema.names and _kind(schema.field("label").type):
        return "label"
    if len(classes) > 1:
        raise UsageError(
            f"{path}: has several labels ({shorten(', '.join(classes))}); one is packed. Pass "
            f"{Option('Labels.column', classes[0])}."
        )
    return classes[0] if classes else None


def _image_columns(path: str, file: Arrow) -> list[str]:
    """Return the columns of images: called so by the schema, or whose first value begins as an image file."""
    features = _features(file.schema_arrow)
    found = []
    for field in file.schema_arrow:
        if _bytes_type(field.type) is None:
            continue
        told = features.get(field.name)
        if isinstance(told, dict) and "_type" in told:
            if told["_type"] == "Image":
                found.append(field.name)
        elif _begins_as_image(path, file, field.name):
            found.append(field.name)
    return found


def _begins_as_image(path: str, file: Arrow, name: str) -> bool:
    with _reading(path):
        for batch in file.iter_batches(16, columns=[name], use_threads=False):
            for value in batch.column(0).to_pylist():
                data = value.get("bytes") if isinstance(value, dict) else value
                if data:
                    return format_of_image(bytes(data[:_HEAD]))[1] is not None
    return False


def _features(schema: Arrow) -> dict[str, Any]:
    try:
        told = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = told["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def names_of(schema: Arrow, column: str) -> list[str] | None:
    """Return the class names that a schema gives the numbers of a column, None if it gives none."""
    told = _features(schema).get(column)
    names = told.get("names") if isinstance(told, dict) and told.get("_type") == "ClassLabel" else None
    if isinstance(names, dict):  # {"0": "cat"}, as old files have it
        names = [names.get(str(n)) for n in range(len(names))]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        return None
    return names if len(set(names)) == len(names) and _kind(schema.field(column).type) == "int" else None


def _is_struct(kind: Arrow) -> bool:
    return str(kind).startswith("struct<")


def _bytes_type(kind: Arrow) -> Arrow | None:
    """Return the type of the bytes in a column that may hold images, else None."""
    if _is_struct(kind):
        index = kind.get_field_index("bytes")
        kind = kind.field(index).type if index >= 0 else None
    return kind if str(kind) in ("binary", "large_binary") else None


def _told(schema: Arrow, column: str) -> tuple[str, list[str] | None] | None:
    """Return the kind of a column, and the names of classes that it numbers; None if it is not there, or of another type."""
    if column not in schema.names:
        return None
    type_ = schema.field(column).type
    kind = "image" if _bytes_type(type_) is not None else _kind(type_)
    return None if kind is None else (kind, names_of(schema, column))


def _kind(kind: Arrow) -> str | None:
    """Return "int", "float" or "text" of a type that a label may have, else None."""
    text = str(kind)
    if text in ("string", "large_string") or text.startswith(
        ("dictionary<values=string", "dictionary<values=large_string")
    ):
        return "text"
    if text in ("float", "double", "halffloat"):
        return "float"
    if text == "bool":
        return "text"  # False and True are classes
    return "int" if text.startswith(("int", "uint")) else None


# Files


def _opened(path: str) -> Arrow:
    try:
        import pyarrow.parquet
    except ImportError:
        raise MissingDependencyError("pyarrow", path) from None
    with _reading(path):
        file = pyarrow.parquet.ParquetFile(
            path, pre_buffer=False, buffer_size=_BUFFER, page_checksum_verification=True
        )
        str(file.schema_arrow)  # names that are no text are found here
        return file


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Make a SourceError of what pyarrow raises about a file."""
    import pyarrow

    try:
        yield
    except (pyarrow.lib.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise  # of the temporary file
        said = (str(error).strip().splitlines() or ["nothing is said why"])[0].rstrip(".")
        raise SourceError(f"{path}: cannot be read ({shorten(said)}). Check it, or write it again.") from None
