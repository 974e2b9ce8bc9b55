"""Data sets in layouts of their own, recognised by what they hold: WebDataset's tars, Parquet.

    a folder of .parquet files, at most one folder deep, without images; .parquet files               Parquet (parquet_images.py)
    a folder of tars, at most one folder deep, without images; several tars; a tar with .cls files     WebDataset (webdataset_tars.py)

Several files are given as a sequence of paths, as a list in braces ("{000000..000009}.tar") or as a pattern ("train-*.tar").
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import product

import numpy as np

from packer.errors import MissingDependencyError, UsageError
from packer.format.file_io import newest_file
from packer.inputs.archive_members import ARCHIVE_EXTENSIONS, Archive
from packer.inputs.file_names import FolderLayout, as_text, is_hidden, is_image, on_disk
from packer.inputs.opened_source import ImageSource, SourceOptions
from packer.inputs.parquet_images import PARQUET_EXTENSIONS, find_images, read_parquet
from packer.inputs.webdataset_tars import (
    CLASSES_FILE,
    file_splits,
    group_samples,
    is_label,
    open_tars,
    split_of,
    split_sample,
)

TAR_EXTENSIONS = tuple(ending for ending in ARCHIVE_EXTENSIONS if ending != ".zip")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)")
_MOST_FILES = 1_000_000


def expand(text: str) -> list[str]:
    """Return the files that a list in braces or a pattern stands for: "a{0..2}.tar" -> ["a0.tar", "a1.tar", "a2.tar"].

    Numbers have as many digits as the first of the range. Raises: UsageError for a range that is none.
    """
    parts = _BRACES.split(text)
    choices = [[part] if number % 2 == 0 else _choices(text, part) for number, part in enumerate(parts)]
    names = ["".join(words) for words in product(*choices)]
    if glob.has_magic(text):
        names = [found for name in names for found in sorted(glob.glob(name))]
    return names


def _choices(text: str, part: str) -> list[str]:
    found = _RANGE.fullmatch(part)
    if found is None:
        return part.split(",")
    first, last = int(found[1]), int(found[2])
    if not 0 <= last - first < _MOST_FILES:
        raise UsageError(
            f"{text}: {{{part}}} is no range of files; the first number is the smaller one. Correct it."
        )
    return [f"{number:0{len(found[1])}d}" for number in range(first, last + 1)]


def holds_images(source: str) -> bool:
    """Say whether a Parquet file, or the first one of a list in braces or a pattern, holds a column of images; False without pyarrow.

    Raises: SourceError for a damaged file.
    """
    first = source if os.path.exists(source) else next(iter(expand(source)), source)
    if not first.lower().endswith(PARQUET_EXTENSIONS) or not os.path.isfile(first):
        return False
    try:
        return bool(find_images(first))
    except MissingDependencyError:
        return False


def open_layout(name: str, paths: Sequence[str], options: SourceOptions) -> ImageSource | None:
    """Open a data set in a layout of its own; None if it is in none of them.

    name: what to call it in messages; paths: a folder, or files. Raises: SourceError, SpaceError, UsageError.
    """
    if len(paths) == 1 and os.path.isdir(paths[0]):
        return _open_folder(name, paths[0], options)
    if all(path.lower().endswith(TAR_EXTENSIONS) for path in paths) and len(paths) > 1:
        return _open_tars(name, paths, options)
    if all(path.lower().endswith(PARQUET_EXTENSIONS) for path in paths):
        return open_parquet(name, paths, options)
    return None


def _open_folder(name: str, folder: str, options: SourceOptions) -> ImageSource | None:
    files = _files(folder)
    if files is None:
        return None
    tars = [_below(folder, path) for path in files if path.lower().endswith(TAR_EXTENSIONS)]
    if tars:
        return _open_tars(name, tars, options, folder)
    tables = [
        _below(folder, path)
        for path in files
        if os.path.isfile(_below(folder, path)) and path.lower().endswith(PARQUET_EXTENSIONS)
    ]
    return open_parquet(name, tables, options) if tables and find_images(tables[0]) else None


def _below(folder: str, path: str) -> str:
    """Return the path of a file for the system. path: below the folder, as text."""
    return os.fsdecode(on_disk(os.path.join(as_text(folder), path)))


def _files(folder: str) -> list[str] | None:
    """List the files of a folder and of those in it; None if there are images among them, or folders in these."""
    files: list[str] = []
    waiting = [""]
    while waiting:
        inner = waiting.pop()
        try:
            with os.scandir(on_disk(os.path.join(as_text(folder), inner))) as entries:
                for entry in entries:
                    name = as_text(entry.name)
                    if is_hidden(name):
                        continue
                    if entry.is_dir():
                        if inner:
                            return None
                        waiting.append(name)
                    elif is_image(name):
                        return None
                    else:
                        files.append(f"{inner}/{name}" if inner else name)
        except OSError:
            return None  # a walk for images says what is wrong with it
    return sorted(files)


# Tars


def asked_for(options: SourceOptions) -> Callable[[str], bool]:
    """Return what tells of a member of a tar, by its name, whether a layout needs it."""
    return (lambda name: False) if options.labelled else is_label(options.label)


def open_tar_layout(name: str, archive: Archive, options: SourceOptions) -> ImageSource | None:
    """Open an archive that holds labels beside images; None if it is one of images. It is closed with the source."""
    beside = {split_sample(path)[0] for path in archive.others}
    if not any(split_sample(key)[0] in beside for key in archive.keys):
        return None
    stack = ExitStack()
    stack.callback(archive.close)
    return _open_samples(name, [archive], stack, options, None)


def _open_tars(
    name: str, paths: Sequence[str], options: SourceOptions, folder: str | None = None
) -> ImageSource:
    folder = os.path.dirname(paths[0]) if folder is None else folder
    with ExitStack() as stack:
        archives = open_tars(stack, paths, options)
        beside = os.path.join(folder, CLASSES_FILE)
        return _open_samples(
            name, archives, stack.pop_all(), options, beside if os.path.isfile(beside) else None
        )


def _open_samples(
    name: str, archives: Sequence[Archive], stack: ExitStack, options: SourceOptions, classes: str | None
) -> ImageSource:
    with stack:
        samples = group_samples(name, archives, options, classes_file=classes)
        times = np.array([archive.time for archive in archives])
        members = samples.members
        source = ImageSource(
            name,
            samples.keys,
            FolderLayout(samples.labels, samples.classes, samples.splits),
            samples.sizes,
            times,
            newest_file([as_text(os.path.basename(archive.path)) for archive in archives], times),
            None,
            lambda index: archives[members[index][0]].read(members[index][1]),
            options.labelled,
            refused=samples.refused,
            skipped=samples.skipped,
            files=tuple(archive.path for archive in archives if archive.plain),
            label_chosen=True,
        )
        source.close = stack.pop_all().close
    tars = "a tar" if len(archives) == 1 else f"{len(archives):,} tars"
    classes_said = "" if source.classes is None else f" in {len(source.classes):,} classes"
    source.notes[:0] = [
        f"Read as WebDataset: {len(source):,} samples of {tars}{classes_said}.",
        *samples.notes,
    ]
    return source


# Parquet


def open_parquet(name: str, paths: Sequence[str], options: SourceOptions) -> ImageSource:
    """Open Parquet files with equal columns, one of them of images. Raises: SourceError, SpaceError, UsageError, MissingDependencyError."""
    for path in paths:
        if not os.path.isfile(path):
            raise UsageError(f"{path}: no such file; Parquet files of images are read. Check it.")
    times = np.array([os.stat(path).st_mtime_ns for path in paths])
    images = read_parquet(
        name, paths, lambda owners: file_splits(paths, [split_of(path) for path in paths], owners), options
    )
    source = ImageSource(
        name,
        images.keys,
        images.layout,
        images.sizes,
        times,
        newest_file([as_text(os.path.basename(path)) for path in paths], times),
        None,
        images.read,
        True,
        images.close,
        refused=images.refused,
        label_chosen=True,
    )
    files = "a Parquet file" if len(paths) == 1 else f"{len(paths):,} Parquet files"
    classes = "" if source.classes is None else f" in {len(source.classes):,} classes"
    source.notes[:0] = [f"Read as images in {files}: {len(source):,} rows{classes}.", *images.notes]
    return source
