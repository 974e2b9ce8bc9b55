"""Images in Parquet files, as Hugging Face datasets writes them: columns of encoded images and of labels.

    image   struct<bytes: binary, path: string>, or binary; a path becomes the image's key
    label   int64, with names from a ClassLabel in the schema's entry "huggingface"; or any integer,
            float or text column

The image column is the one that this entry calls an Image, or whose first value begins like an image file.
Rows of a Parquet file have no random access, so the encoded images are copied once into an unnamed temporary
file, as for a compressed tar.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import ImageError, SourceError, UsageError
from packer.format.file_io import pread_all
from packer.inputs.file_names import UNLABELED, changed, file_splits, is_hidden, shorten, split_of
from packer.inputs.image_archives import spooled
from packer.inputs.image_targets import ImageTargets
from packer.inputs.opened_source import ImageSource, SourceOptions, Splits
from packer.parquet import open_parquet, reading_arrow
from packer.pixels.image_files import format_of_image
from packer.source_kinds import IMAGES

_ROWS_AT_ONCE = 256
_HEAD = 32
"""Bytes at the beginning of a file that identify its image format."""
_NAMES = ("image", "img")
_KINDS = {
    **dict.fromkeys(("binary", "large_binary"), "image"),
    # False and True are class names.
    **dict.fromkeys(("bool", "string", "large_string", "string_view"), "text"),
    **dict.fromkeys(("halffloat", "float", "double"), "float"),
    **{f"{sign}int{bits}": "int" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
"""Arrow type -> "image" if it may hold encoded images, else the kind of label that it holds."""

Arrow = Any  # objects of pyarrow, which has no type annotations


def find_images(path: str) -> list[str]:
    """Return the image columns of a Parquet file, by its schema or by the first value of a column.

    Raises: SourceError for a damaged file, MissingDependencyError.
    """
    file = open_parquet(path)
    features, found = _features(file.schema_arrow), []
    for field in file.schema_arrow:
        if _kind_of(field.type) == "image":
            feature = features.get(field.name)
            named = feature["_type"] == "Image" if isinstance(feature, dict) and "_type" in feature else None
            if named or (named is None and _begins(path, file, field.name)):
                found.append(field.name)
    return found


def read_parquet(name: str, paths: Sequence[str], options: SourceOptions) -> ImageSource:
    """Open Parquet files with equal columns, one of which holds images.

    name: name of the source in messages.
    Raises: SourceError for damaged or unusable files, SpaceError, UsageError, MissingDependencyError.
    """
    times = np.array([os.stat(path).st_mtime_ns if os.path.exists(path) else 0 for path in paths])
    columns, findings = _Columns.choose(paths[0], options), options.findings
    sizes, owners, rows = array("q"), array("q"), array("q")
    named: list[str | None] = []
    endings: list[str] = []
    labels: list[Any] = []
    with spooled(paths[0], options.spool_dir) as spool:
        for owner, path in enumerate(paths):
            for row, (data, key, label) in enumerate(columns.rows(path), 1):
                if data is None:
                    reason = "holds no image"
                    if key is not None:  # packs record no paths of the machine, so only the file name
                        reason = (
                            f"holds the name of an image ({shorten(os.path.basename(key))}) instead of its "
                            "bytes"
                        )
                    error = f"{path} row {row}: {reason}; the bytes of image files are read. Embed them"
                    findings.refuse(len(sizes), f"{reason}.", error)
                    data = b""
                spool.write(data)
                sizes.append(len(data))
                endings.append(IMAGES.get(format_of_image(bytes(data[:_HEAD]))[0], (".bin",))[0])
                owners.append(owner)
                rows.append(row)
                named.append(key)
                labels.append(label)
        spool.flush()
        if not sizes:
            raise SourceError(f"{name}: holds no rows; images are needed. Check the file.")
        splits = file_splits(paths, [split_of(path) for path in paths], np.array(owners, np.int64))
        targets = columns.targets(name, labels, rows, splits, options)
        keys = _keys(named, endings, splits)
        images = SpooledImages(keys, np.array(sizes, np.int64), times, files=paths)
        images.fd = os.dup(spool.fileno())
    files = "a Parquet file" if len(paths) == 1 else f"{len(paths):,} Parquet files"
    among = "" if targets.classes is None else f" in {len(targets.classes):,} classes"
    findings.notes.insert(0, f"Read as images in {files}: {len(sizes):,} rows{among}.")
    return images.describe(name, targets, splits, label_chosen=True)


class SpooledImages(ImageSource):
    """Images stored back to back in an unnamed file. fd: its descriptor, closed with the source."""

    fd: int = -1

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.sizes)

    def read(self, index: int) -> bytes:
        """See ImageSource."""
        size = int(self.sizes[index])
        data = pread_all(self.fd, size, int(self._ends[index]) - size)
        if len(data) < size:
            raise ImageError("cannot be read in full from the temporary file.")
        return data

    def close(self) -> None:
        """Close the file, which removes it."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)


def _keys(paths: Sequence[str | None], endings: Sequence[str], splits: Splits) -> list[str]:
    """Return the images' paths if all have distinct ones, else numbers; in a folder for each split."""
    below = [""] * len(paths)
    for name, members in splits.items():
        for index in members.tolist():
            below[index] = f"{name}/"
    width = max(6, len(str(len(paths))))
    numbers = [f"{number:0{width}d}{ending}" for number, ending in enumerate(endings)]
    keys = [path for path in paths if path is not None and _is_plain(path)]
    if len(keys) == len(paths):
        keys = keys if all(map(str.startswith, keys, below)) else list(map(str.__add__, below, keys))
        if len(set(keys)) == len(keys):
            return keys
    return list(map(str.__add__, below, numbers))


def _is_plain(path: str) -> bool:
    """Return True if a path can be a key: relative, without "..", and without hidden parts."""
    parts = path.split("/")
    return "\0" not in path and not any(part in ("", "..") or is_hidden(part) for part in parts)


# Columns


class _Columns(NamedTuple):
    """The columns to read, chosen from the first file: an image column and a label column.

    label: None without labels. wanted: column -> its kind and its class names. usable: columns that can be
    labels. left_out: columns that are not read.
    """

    first: str
    image: str
    label: str | None
    wanted: dict[str, tuple[str, list[str] | None]]
    usable: list[str]
    left_out: list[str]

    @classmethod
    def choose(cls, path: str, options: SourceOptions) -> _Columns:
        """Choose among the columns of a file. Raises: SourceError, UsageError."""
        schema, images = open_parquet(path).schema_arrow, find_images(path)
        image = [name for name in images if len(images) == 1 or name.lower() in _NAMES]
        if len(image) != 1:
            raise SourceError(
                f"{path}: its image columns are: {shorten(', '.join(images)) or 'none'}; one is packed, "
                "with the bytes of image files as binary or struct<bytes, path>. Name it image, or drop "
                "the others."
            )
        others = [field.name for field in schema if field.name != image[0]]
        usable = [name for name in others if _kind_of(schema.field(name).type) in ("int", "float", "text")]
        label = options.label
        if options.labels.ignore_source:
            label = None
        elif label is None:
            named = [name for name in usable if names_of(schema, name) is not None]
            label = "label" if "label" in usable else named[0] if len(named) == 1 else None
        elif label not in usable:
            raise UsageError(
                f"{path}: has no column {label} of integers, floats or text; "
                f"{shorten(', '.join(usable)) or 'none'} can be labels. Pass one of them."
            )
        wanted = {name: _column(schema, name) for name in (image[0], label) if name is not None}
        return cls(path, image[0], label, wanted, usable, [name for name in others if name != label])

    def rows(self, path: str) -> Iterator[tuple[memoryview | bytes | None, str | None, Any]]:
        """Yield bytes, path and label of each row of a file, None for missing ones. Raises: SourceError."""
        file, before = open_parquet(path), os.stat(path)
        for name, column in self.wanted.items():
            if _column(file.schema_arrow, name) != column:
                raise SourceError(
                    f"{path}: its column {name!r} is missing or differs from that of {self.first}; all "
                    "files of a dataset have equal columns. Pass the files that belong together."
                )
        with reading_arrow(path):
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=list(self.wanted), use_threads=False):
                column = batch.column(self.image)
                paths = labels = [None] * len(column)
                if str(column.type).startswith("struct<"):
                    # flatten() gives null if the struct itself is null.
                    parts = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
                    column = parts["bytes"]
                    if "path" in parts and _kind_of(parts["path"].type) == "text":
                        paths = parts["path"].to_pylist()
                if self.label is not None:
                    labels = batch.column(self.label).to_pylist()
                for value, key, label in zip(column, paths, labels, strict=True):
                    data = value.as_buffer()
                    yield None if data is None else memoryview(data), key, label
        after = os.stat(path)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise changed(path)

    def targets(
        self, subject: str, labels: Sequence[Any], rows: Sequence[int], splits: Splits, options: SourceOptions
    ) -> ImageTargets:
        """Return the labels, and note the columns that are not packed. Raises: SourceError, UsageError.

        A split of which every ClassLabel is -1 has no labels, as in Hugging Face datasets.
        """
        targets, notes = ImageTargets(findings=options.findings), options.findings.notes
        if self.label is not None:
            kind, names = self.wanted[self.label]
            label_as = options.labels.as_ if names is None else "auto"
            if label_as == "auto" and kind == "float":
                label_as = "float"
            texts = ["" if value is None else str(value).strip() for value in labels]
            unlabeled = options.without_labels(subject, splits, len(texts))
            none = np.array([text == str(UNLABELED) for text in texts])
            for split, members in (splits or {"": np.arange(len(texts))}).items() if names else ():
                if none[members].all() and not unlabeled[members].all():
                    unlabeled[members] = True
                    of = f"of split {split} " if split else ""
                    notes.append(f"All labels {of}are -1, which means that there are none.")
            if unlabeled.all():
                return targets
            targets = options.number(
                subject,
                texts,
                rows,
                "row",
                column=self.label,
                label_as=label_as,
                names=names,
                unlabeled=unlabeled,
            )
        elif not options.labels.ignore_source:
            usable = shorten(", ".join(self.usable)) or "none"
            notes.append(
                "No column is called label, and no single column has class names, so the pack has no labels; "
                f"possible label columns: {usable}. Pass labels=Labels(column=)."
            )
        if left_out := shorten(", ".join(self.left_out)):
            notes.append(f"Left out: {left_out}; the column of images and one label are packed.")
        return targets


def _begins(path: str, file: Arrow, name: str) -> bool:
    """Return True if the first value of a column (that is not null) begins like an image file."""
    with reading_arrow(path):
        for batch in file.iter_batches(16, columns=[name], use_threads=False):
            for value in batch.column(0).to_pylist():
                data = value.get("bytes") if isinstance(value, dict) else value
                if data:
                    return format_of_image(bytes(data[:_HEAD]))[1] is not None
    return False


def _column(schema: Arrow, name: str) -> tuple[str, list[str] | None]:
    """Return the kind and the class names of a column; ("", None) for a missing column."""
    return (_kind_of(schema.field(name).type), names_of(schema, name)) if name in schema.names else ("", None)


def _features(schema: Arrow) -> dict[str, Any]:
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def names_of(schema: Arrow, column: str) -> list[str] | None:
    """Return the class names that the schema defines for a column of integers, or None."""
    feature = _features(schema).get(column)
    names = (
        feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    )
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        return None
    return names if len(set(names)) == len(names) and _kind_of(schema.field(column).type) == "int" else None


def _kind_of(kind: Arrow) -> str:
    """Return the `_KINDS` entry of a type or of a struct's `bytes`; "text" for a text dictionary; else ""."""
    text = str(kind)
    if text.startswith("struct<") and kind.get_field_index("bytes") >= 0:
        return "image" if _kind_of(kind.field("bytes").type) == "image" else ""
    names = "dictionary<values=string,", "dictionary<values=large_string,"
    return "text" if text.startswith(names) else _KINDS.get(text, "")
