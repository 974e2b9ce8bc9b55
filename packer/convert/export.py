"""export_images: write the rows of a pack as a folder of image files.

    <folder>/cat/1.png              images under their keys; random splits in a folder each (train/cat/1.png)
    <folder>/labels.csv             labels, boxes and keypoints, if the pack has any
    <folder>/classes.txt            class names, in the order of their numbers
    <folder>/image/cat/1.png        if other fields hold pixels, such as masks: one folder per field
    <folder>/mask/cat/1.png

The file name is the row's key with another suffix: cat/1.jpg -> cat/1.png. A pack may come from an untrusted
source: each key is checked before it is used as a path. Keys that map to the same name (cat/1.jpg and
cat/1.bmp, or equal keys in a merged pack) get numbers: cat/1.png, cat/1~2.png. export_files.py encodes and
writes the files.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from packer import units
from packer.arguments import absolute, check_workers, choice, whole
from packer.convert.block_workers import one_thread_an_image
from packer.convert.export_files import ExportRows, LabelFiles
from packer.declared_types import checks_arguments
from packer.errors import FormatError, PackerError, UsageError
from packer.format.file_io import create, make_folder, pwrite_all
from packer.format.output_names import check_space
from packer.format.pack import Pack
from packer.format.pack_opening import check_order, open_pack
from packer.format.working_folder import WorkingFolder, failure
from packer.inputs.file_names import SPLIT_NAMES, is_array, is_image, split_folders
from packer.orders.runs import consecutive
from packer.path_text import as_text, on_disk, safe_name
from packer.progress import Progress
from packer.sentence import Call

ENCODINGS = ("png", "jpeg")
"""Encodings of the image files."""
_MOST_FOLDERS = 100
"""Most nested folders in a key: Python creates and removes them recursively."""


@dataclass(frozen=True)
class ExportReport:
    """The result of an export.

    files: number of files written, labels.csv and classes.txt included; nbytes: their bytes; seconds: wall
    time; notes: sentences about content that was not written, or written under other names.
    """

    files: int
    nbytes: int
    seconds: float
    notes: tuple[str, ...]


@checks_arguments
def export_images(
    pack: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    encoding: str = "png",
    quality: int = 95,
    split: str | Sequence[str] | None = None,
    workers: int | None = None,
    progress: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> ExportReport:
    """Write the images of a pack as files, with masks, labels, boxes and keypoints beside them.

    pack: path of the pack. folder: a new or empty folder.
    encoding: "png": lossless (images of 2 bands, or of 5 and more, as TIFF files); "jpeg": JPEG rows as they
        are stored, other rows encoded at ``quality``.
    split: write only the rows of this split, or of several. workers: threads; default: the available cores.
    progress: show a bar on stderr, or a line a minute if stderr is no terminal.
    on_progress: called now and then with the rows done so far.

    Every block is compared with its checksum. The folder gets its name only when it is complete; the files
    are not flushed to the disk. Raises UsageError (the folder is not empty, no images, no such split),
    FormatError (damage; a key that is not a path below a folder), SpaceError, PackerError.
    """
    began = time.perf_counter()
    target = os.fspath(folder).rstrip("/") or os.fspath(folder)
    choice("encoding", encoding, ENCODINGS)
    if not 1 <= whole("quality", quality) <= 100:
        raise UsageError(f"quality {quality}: is not within 1 to 100. Pass for example 95.")
    check_order(pack, folder, Call("export_images", (target, os.fspath(pack))))
    count = check_workers(workers)
    real = os.path.realpath(absolute(target))  # an empty folder may be a link
    empty = False
    with suppress(OSError):
        empty = not os.listdir(real)
    if os.path.lexists(real) and not empty:
        raise UsageError(
            f"{target}: exists, and is not an empty folder; nothing is overwritten. Pass another name."
        )
    opened = open_pack(pack)
    rows = ExportRows(opened, encoding, quality, split)
    keys = [as_text(key) for key in rows.reader.ragged("key", consecutive(rows.rows))]
    _check_keys(opened, keys, rows)
    foldered = keys if isinstance(split, str) else _in_split_folders(rows, keys)
    stems = file_stems([*map(safe_name, foldered)], rows.ending)
    labels = LabelFiles(rows)
    if empty:
        with suppress(OSError):
            os.rmdir(real)
    place = WorkingFolder(real, name=target)
    try:
        check_space(real, rows.estimate())
        make_folder(place.pack)
        with Progress(progress, "rows", on_progress) as bar:
            bar.start(len(rows.rows))
            files, nbytes = _write_rows(rows, stems, place.pack, count, bar.move)
        for name, write in labels.files([stem + rows.ending for stem in stems]).items():
            files, nbytes = files + 1, nbytes + write(os.path.join(place.pack, name))
        place.publish()
    except FileExistsError as error:
        name = as_text(os.path.relpath(os.fsencode(error.filename), os.fsencode(place.pack)))
        raise PackerError(
            f"{target}: {name} would be written twice, as a folder, or under a name that this disk treats as"
            " equal. Nothing was written; pass a folder on another disk."
        ) from None
    except OSError as error:
        raise failure(target, error) from error
    finally:
        place.close(keep=False)
        rows.reader.close()
    notes = _notes(rows, labels, foldered, stems, one_split=isinstance(split, str))
    return ExportReport(files, nbytes, time.perf_counter() - began, (*labels.notes, *notes))


def _notes(
    rows: ExportRows, labels: LabelFiles, keys: Sequence[str], stems: Sequence[str], *, one_split: bool
) -> Iterator[str]:
    """Yield notes on content that was not written, or under other names.

    one_split: only one split was exported.
    """
    fields, splits = rows.pack.fields, rows.pack.header.splits
    used = {"image", "key", *labels.fields, *(f.name for f in rows.masks)}
    if left := [f.name for f in fields if f.name not in used and not f.measures]:
        yield f"Not written: {', '.join(left)}; images, labels, boxes, keypoints and fields of pixels are."
    if renamed := sum(stem != _stem(key) for key, stem in zip(keys, stems, strict=True)):
        yield (
            f"Names that differ from the keys: {units.count(renamed, 'file')}, as the name was taken, or the"
            " key holds control characters, line ends or backslashes."
        )
    in_folders = all("/" in key for key in keys) and split_folders({key.partition("/")[0] for key in keys})
    if splits and not one_split and not in_folders:
        yield (
            f"The splits ({', '.join(sorted(splits))}) are not written as folders: only splits called train,"
            " val or test are, if each row is in a split."
        )


def _write_rows(
    rows: ExportRows, stems: Sequence[str], work: str, workers: int, progress: Callable[[int], None]
) -> tuple[int, int]:
    """Write the files of all rows into an empty folder; return their number and bytes.

    Raises OSError, FormatError.
    """
    roots = {f.name: os.path.join(work, f.name) for f in (rows.image, *rows.masks)} if rows.masks else {}
    for root in roots.values() or [work]:
        for parent in sorted({stem.rpartition("/")[0] for stem in stems}):
            make_folder(os.path.join(os.fsencode(root), on_disk(parent)))
    stop = threading.Event()

    def write(piece: tuple[int, int, int]) -> tuple[int, int, int]:
        files = nbytes = 0
        for position, field, ending, data in rows.files(*piece):
            if stop.is_set():
                break
            path = os.path.join(os.fsencode(roots.get(field, work)), on_disk(stems[position] + ending))
            fd = create(path)
            try:
                pwrite_all(fd, data, 0)
            finally:
                os.close(fd)
            files, nbytes = files + 1, nbytes + len(data)
        return piece[2], files, nbytes

    done = np.zeros(3, np.int64)
    with one_thread_an_image(True):
        pool = ThreadPoolExecutor(workers, thread_name_prefix="packer-export")
        try:
            for future in as_completed([pool.submit(write, piece) for piece in rows.pieces()]):
                done += future.result()
                progress(int(done[0]))
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
    return int(done[1]), int(done[2])


# Names


def _check_keys(pack: Pack, keys: Sequence[str], rows: ExportRows) -> None:
    """Raise FormatError for the first key that is not a plain path below a folder."""
    for key, row in zip(keys, rows.rows.tolist(), strict=True):
        if not is_plain(key):
            shown = key if len(key) <= 80 else key[:77] + "..."
            raise FormatError(
                f"{pack.path}: the key of row {row} is {shown!r}; only plain paths below a folder are written"
                " as files. Nothing was written."
            )


def is_plain(key: str) -> bool:
    """Return True for a relative path of fewer than 100 folders, without empty parts, ".", ".." and NUL."""
    return "\0" not in key and {"", ".", ".."}.isdisjoint(key.split("/")) and key.count("/") < _MOST_FOLDERS


def _in_split_folders(exported: ExportRows, keys: list[str]) -> list[str]:
    """Prefix each key with the folder of its split, unless all keys begin with it already.

    Keys stay unchanged if packer convert would not recognize the folders, or if splits share or leave out
    rows.
    """
    pack, splits = exported.pack, exported.pack.header.splits
    owners = np.full(pack.rows, -1)
    for number, spans in enumerate(splits.values()):
        for start, stop in spans:
            owners[start:stop] = number
    rows = sum(stop - start for spans in splits.values() for start, stop in spans)
    if rows != pack.rows or (owners < 0).any() or not set(SPLIT_NAMES.values()).issuperset(splits):
        return keys
    names = [list(splits)[owner] for owner in owners[exported.rows].tolist()]
    tops = [key.partition("/")[0] for key in keys if "/" in key]
    called = split_folders(set(tops))
    if [called.get(top) for top in tops] == names:
        return keys
    return [f"{name}/{key}" for key, name in zip(keys, names, strict=True)]


def file_stems(keys: Sequence[str], ending: str) -> list[str]:
    """Return distinct file names without suffix for checked keys; with the suffix, none equals a folder."""
    folders = {key[:at] for key in keys for at, letter in enumerate(key) if letter == "/"}
    used: set[str] = set()
    numbers: Counter[str] = Counter()
    stems = []
    for key in keys:
        base = stem = _stem(key)
        while stem in used or stem + ending in folders:
            numbers[base] += 1
            stem = f"{base}~{numbers[base] + 1}"
        used.add(stem)
        stems.append(stem)
    return stems


def _stem(key: str) -> str:
    """Return a key without the suffix of an image or array file."""
    name = key.rpartition("/")[2]
    return os.path.splitext(key)[0] if is_image(name) or is_array(name) else key
