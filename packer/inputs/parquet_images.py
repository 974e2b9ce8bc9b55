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
from functools import cached_property
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import ImageError, MissingDependencyError, SourceError, SpaceError, UsageError
from packer.format.file_io import pread_all
from packer.inputs.file_names import changed, file_splits, is_hidden, shorten, split_of
from packer.inputs.image_targets import ImageTargets
from packer.inputs.opened_source import ImageFiles, ImageSource, SourceOptions, Splits
from packer.pixels.image_decoder import format_of_image
from packer.sentence import Option, Sentence
from packer.source_kinds import IMAGES

_ROWS_AT_ONCE = 256
_BUFFER = 1 << 20
_HEAD = 32
"""Bytes by which an image's format is told."""
_NAMES = ("image", "img")
_LABELS = ("int", "float", "text")

Arrow = Any  # what pyarrow makes; it has no types


def find_images(path: str) -> list[str]:
    """Return the columns of images of a Parquet file. Raises: SourceError for a damaged one, MissingDependencyError."""
    return _image_columns(path, _opened(path))


def read_parquet(name: str, paths: Sequence[str], options: SourceOptions) -> ImageSource:
    """Open files with equal columns, one of them of images.

    name: what to call them in messages.
    Raises: SourceError for what is damaged or cannot be used, SpaceError, UsageError, MissingDependencyError.
    """
    times = np.array([os.stat(path).st_mtime_ns if os.path.exists(path) else 0 for path in paths])
    try:
        with tempfile.TemporaryFile(dir=options.spool_dir) as spool:
            rows = _ParquetRows(spool, paths[0], options)
            for path in paths:
                rows.add(path)
            spool.flush()
            if not rows.sizes:
                raise SourceError(f"{name}: holds no rows; images are needed. Check it.")
            splits = file_splits(paths, [split_of(path) for path in paths], np.array(rows.owners, np.int64))
            targets = rows.targets(name)
            sizes = np.array(rows.sizes, np.int64)
            images = SpooledImages(rows.keys(splits), sizes, times, files=paths)
            images.fd = os.dup(spool.fileno())
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        folder = options.spool_dir or tempfile.gettempdir()
        raise SpaceError(
            f"{paths[0]}: no space left in {folder} for a copy of its images, as its rows cannot be read at random. Make room there."
        ) from None
    files = "a Parquet file" if len(paths) == 1 else f"{len(paths):,} Parquet files"
    named = "" if targets.classes is None else f" in {len(targets.classes):,} classes"
    options.findings.notes.insert(0, f"Read as images in {files}: {len(sizes):,} rows{named}.")
    return ImageSource(name, images, targets, splits, labelled=True, label_chosen=True)


class SpooledImages(ImageFiles):
    """Images one after another in a file without a name. fd: its descriptor, closed with it."""

    fd = -1

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.sizes)

    def read(self, index: int) -> bytes:
        """See ImageFiles."""
        size = int(self.sizes[index])
        data = pread_all(self.fd, size, int(self._ends[index]) - size)
        if len(data) < size:
            raise ImageError("cannot be read whole from the temporary file.")
        return data

    def close(self) -> None:
        """Remove the file."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)


class _ParquetRows:
    """The rows read so far: the images in a temporary file, everything else in memory.

    first: the file that decides which columns are read, those of one image and one label.
    """

    def __init__(self, spool: IO[bytes], first: str, options: SourceOptions) -> None:
        self._spool, self._first, self._options = spool, first, options
        self.sizes: list[int] = []
        self.owners: list[int] = []
        self._paths: list[str | None] = []
        self._endings: list[str] = []
        self._labels: list[Any] = []
        self._rows: list[int] = []
        self._files = 0
        file = _opened(first)
        schema = self._schema = file.schema_arrow
        self._image = _image_column(first, file)
        others = [field.name for field in schema if field.name != self._image]
        self._usable = [name for name in others if _kind(schema.field(name).type) in _LABELS]
        self._label = None if options.labelled else _label_column(first, schema, self._usable, options.label)
        self._left_out = [name for name in others if name != self._label]

    def add(self, path: str) -> None:
        """Read a file. Raises: SourceError, OSError for a full disk, SpaceError."""
        file, before = _opened(path), os.stat(path)
        wanted = [self._image, *([self._label] if self._label else [])]
        for name in wanted:
            if _column(file.schema_arrow, name) != _column(self._schema, name):
                raise SourceError(
                    f"{path}: its column {name!r} is not as that of {self._first}, or is not there; files of one data set have equal "
                    "columns. Pass those that belong together."
                )
        row = 0
        with _reading(path):
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=wanted, use_threads=False):
                row = self._take(path, batch, row)
        after = os.stat(path)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise changed(path)
        self._files += 1

    def _take(self, path: str, batch: Arrow, row: int) -> int:
        column = batch.column(self._image)
        count = len(column)
        paths: list[str | None] = [None] * count
        if str(column.type).startswith("struct<"):
            # flatten() gives null where the whole struct is null.
            parts = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
            column = parts["bytes"]
            if "path" in parts and _kind(parts["path"].type) == "text":
                paths = parts["path"].to_pylist()
        for named, value in zip(paths, column, strict=True):
            data = value.as_buffer()
            row += 1
            if data is None:
                self._refuse(path, row, named)
            head = b"" if data is None else data[:_HEAD].to_pybytes()
            self._spool.write(data or b"")
            self.sizes.append(0 if data is None else data.size)
            self._endings.append(IMAGES.get(format_of_image(head)[0], (".bin",))[0])
            self._rows.append(row)
        self._paths += paths
        self.owners += [self._files] * count
        if self._label:
            self._labels += batch.column(self._label).to_pylist()
        return row

    def _refuse(self, path: str, row: int, named: str | None) -> None:
        # Only the last part of the path, as those of a machine do not go into packs.
        name = "" if named is None else shorten(os.path.basename(named))
        found = (
            "holds no image" if named is None else f"holds the name of an image ({name}) and not its bytes"
        )
        error = f"{path} row {row}: {found}; the bytes of image files are read. Embed them"
        self._options.findings.refuse(len(self.sizes), f"{found}.", error)

    def targets(self, subject: str) -> ImageTargets:
        """Return the labels, and note which columns are taken. Raises: SourceError."""
        options, column, notes = self._options, self._label, self._options.findings.notes
        targets = ImageTargets(findings=options.findings)
        if column is not None:
            kind, names = _column(self._schema, column)
            label_as = options.label_as if names is None else "auto"
            if label_as == "auto" and kind == "float":
                label_as = "float"
            texts = ["" if value is None else str(value).strip() for value in self._labels]
            more = {"column": column, "label_as": label_as, "names": names}
            targets = options.number(subject, texts, self._rows, "row", **more)
        elif not options.labelled:
            usable = shorten(", ".join(self._usable)) or "none"
            said = "No column is called label, or alone names classes, so the pack has no labels; columns that can be one: "
            notes.append(Sentence(f"{said}{usable}. Pass {Option('Labels.column')}."))
        if left_out := shorten(", ".join(self._left_out)):
            notes.append(f"Left out: {left_out}; the column of images and one label are packed.")
        return targets

    def keys(self, splits: Splits) -> list[str]:
        """Return the paths of the images where all have one, else numbers; below the split's folder if there are splits."""
        below = [""] * len(self.sizes)
        for name, members in splits.items():
            for index in members.tolist():
                below[index] = f"{name}/"
        width = max(6, len(str(len(self.sizes))))
        keys = [str(path) for path in self._paths]
        if None in self._paths or not all(map(_is_plain, keys)):
            keys = [f"{n:0{width}d}{ending}" for n, ending in enumerate(self._endings)]
        if not all(map(str.startswith, keys, below)):
            keys = list(map(str.__add__, below, keys))
        if len(set(keys)) < len(keys):
            keys = [
                f"{split}{n:0{width}d}{end}"
                for n, (split, end) in enumerate(zip(below, self._endings, strict=True))
            ]
        return keys


def _is_plain(path: str) -> bool:
    """Say whether a path can be a key: one below a folder, of no hidden parts."""
    parts = path.split("/")
    return "\0" not in path and not any(part in ("", "..") or is_hidden(part) for part in parts)


# Columns


def _image_columns(path: str, file: Arrow) -> list[str]:
    """Return the columns of images: called so by the schema, or whose first value begins as an image file."""
    features = _features(file.schema_arrow)
    found = []
    for field in file.schema_arrow:
        told = features.get(field.name)
        if _kind(field.type) != "image":
            continue
        if (
            told["_type"] == "Image"
            if isinstance(told, dict) and "_type" in told
            else _begins(path, file, field.name)
        ):
            found.append(field.name)
    return found


def _begins(path: str, file: Arrow, name: str) -> bool:
    """Return True if the first value of a column that is there begins as an image file."""
    with _reading(path):
        for batch in file.iter_batches(16, columns=[name], use_threads=False):
            for value in batch.column(0).to_pylist():
                data = value.get("bytes") if isinstance(value, dict) else value
                if data:
                    return format_of_image(bytes(data[:_HEAD]))[1] is not None
    return False


def _image_column(path: str, file: Arrow) -> str:
    images = _image_columns(path, file)
    named = [name for name in images if len(images) == 1 or name.lower() in _NAMES]
    if len(named) != 1:
        raise SourceError(
            f"{path}: its columns of images are: {shorten(', '.join(images)) or 'none'}; one is packed, of the bytes of image files, as "
            "binary or struct<bytes, path>. Call it image, or drop the others."
        )
    return named[0]


def _label_column(path: str, schema: Arrow, usable: list[str], chosen: str | None) -> str | None:
    """Return the column that was chosen, or is called label, or alone names classes; None without one. Raises: UsageError."""
    if chosen is not None and chosen not in usable:
        raise UsageError(
            f"{path}: has no column {chosen} of integers, numbers or texts; {shorten(', '.join(usable)) or 'none'} can be labels. "
            "Pass one of them."
        )
    classes = [name for name in usable if names_of(schema, name) is not None]
    return chosen or ("label" if "label" in usable else classes[0] if len(classes) == 1 else None)


def _column(schema: Arrow, name: str) -> tuple[str, list[str] | None]:
    """Return the kind of a column, and the names of classes that it numbers; ("", None) of one that is not there."""
    return (_kind(schema.field(name).type), names_of(schema, name)) if name in schema.names else ("", None)


def _features(schema: Arrow) -> dict[str, Any]:
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def names_of(schema: Arrow, column: str) -> list[str] | None:
    """Return the class names that a schema gives the numbers of a column, None if it gives none."""
    told = _features(schema).get(column)
    names = told.get("names") if isinstance(told, dict) and told.get("_type") == "ClassLabel" else None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        return None
    return names if len(set(names)) == len(names) and _kind(schema.field(column).type) == "int" else None


def _kind(kind: Arrow) -> str:
    """Return "image" of a type that may hold the bytes of images, "int", "float" or "text" of one that a label may have, else ""."""
    text = str(kind)
    if text.startswith("struct<") and kind.get_field_index("bytes") >= 0:
        return "image" if _kind(kind.field("bytes").type) == "image" else ""
    if text in ("binary", "large_binary"):
        return "image"
    text = text.removeprefix("dictionary<values=")
    if text == "bool" or text.startswith(("string", "large_string")):
        return "text"  # False and True are classes
    if text in ("float", "double", "halffloat"):
        return "float"
    return "int" if str(kind).startswith(("int", "uint")) else ""


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
