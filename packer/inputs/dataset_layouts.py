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
from itertools import product

from packer.errors import MissingDependencyError, UsageError
from packer.inputs.archive_members import Archive
from packer.inputs.file_names import as_text, is_hidden, is_image, on_disk
from packer.inputs.opened_source import ImageSource, SourceOptions
from packer.inputs.parquet_images import find_images, read_parquet
from packer.inputs.webdataset_tars import CLASSES_FILE, is_label, open_samples, open_tars, split_sample
from packer.source_kinds import PARQUET, TARS

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
    if not first.lower().endswith(PARQUET) or not os.path.isfile(first):
        return False
    try:
        return bool(find_images(first))
    except MissingDependencyError:
        return False


def open_layout(name: str, paths: Sequence[str], options: SourceOptions) -> ImageSource | None:
    """Open a data set in a layout of its own; None if it is in none of them.

    name: what to call it in messages; paths: a folder, or files. Raises: SourceError, SpaceError, UsageError.
    """
    folder = paths[0] if len(paths) == 1 and os.path.isdir(paths[0]) else None
    files = list(paths) if folder is None else _files(folder)
    tars = [path for path in files if path.lower().endswith(TARS)]
    if tars and (folder is not None or 1 < len(tars) == len(files)):
        classes = os.path.join(folder or os.path.dirname(tars[0]), CLASSES_FILE)
        found = classes if os.path.isfile(classes) else None
        return open_samples(name, open_tars(tars, options), options, found)
    tables = [path for path in files if path.lower().endswith(PARQUET)]
    if folder is not None:
        return read_parquet(name, tables, options) if tables and find_images(tables[0]) else None
    return read_parquet(name, tables, options) if len(tables) == len(files) else None


def _files(folder: str) -> list[str]:
    """List the files of a folder and of those in it; [] if there are images among them, or folders in these."""
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
                    if is_image(name) or (inner and entry.is_dir()):
                        return []
                    (waiting if entry.is_dir() else files).append(os.path.join(inner, name))
        except OSError:
            return []  # a walk for images says what is wrong with it
    return [os.fsdecode(on_disk(os.path.join(as_text(folder), path))) for path in sorted(files)]


def asked_for(options: SourceOptions) -> Callable[[str], bool]:
    """Return what tells of a member of a tar, by its name, whether a layout needs it."""
    return (lambda name: False) if options.labelled else is_label(options.label)


def open_tar_layout(name: str, archive: Archive, options: SourceOptions) -> ImageSource | None:
    """Open an archive that holds labels beside images; None if it is one of images. It is closed with the source."""
    beside = {split_sample(path)[0] for path in archive.others}
    if not any(split_sample(key)[0] in beside for key in archive.keys):
        return None
    return open_samples(name, [archive], options)
