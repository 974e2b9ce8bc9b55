"""export_images: write the rows of a pack as a folder of image files and one CSV.

    <folder>/cat/1.png              images under their keys: PNG files, or the stored JPEG files
    <folder>/labels.csv             labels, splits, boxes and keypoints, if the pack has any
    <folder>/image/cat/1.jpg        with masks: one folder per field
    <folder>/mask/cat/1.png

The file name is the row's key with another suffix: cat/1.tif -> cat/1.png. A pack may come from an untrusted
source: each key is checked before it is used as a path. Keys that map to the same name (cat/1.bmp and
cat/1.tif, or equal keys in a merged pack) get numbers: cat/1.png, cat/1~2.png.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass

from packer import units
from packer.arguments import absolute, check_workers
from packer.convert.block_workers import one_thread_an_image
from packer.convert.export_files import ImageFiles
from packer.convert.export_labels import LABELS_FILE, ExportedLabels
from packer.declared_types import checks_arguments
from packer.errors import FormatError, PackerError, UsageError
from packer.format.file_io import create, make_folder, pwrite_all
from packer.format.write_errors import failure
from packer.given_values import call_text
from packer.inputs.file_names import is_array, is_image
from packer.orders.runs import consecutive
from packer.packs.output_names import check_space
from packer.packs.pack_opening import check_order, open_pack
from packer.path_text import as_text, on_disk, safe_name
from packer.progress import Progress
from packer.writing.working_folder import WorkingFolder

_MOST_FOLDERS = 100
"""Most nested folders in a key: Python creates and removes them recursively."""


@dataclass(frozen=True)
class ExportReport:
    """The result of an export.

    files: number of files written, labels.csv included; nbytes: their bytes; seconds: wall time; notes:
    sentences about content that was not written, or written under other names.
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
    split: str | Sequence[str] | None = None,
    workers: int | None = None,
    progress: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> ExportReport:
    """Write the images of a pack as files, with masks, labels, splits, boxes and keypoints beside them.

    JPEG rows are written as the files that they are, other images and masks as PNG files.

    pack: path of the pack. folder: a new or empty folder.
    split: write only the rows of this split, or of several. workers: threads; default: the available cores.
    progress: show a bar on stderr, or a line a minute if stderr is no terminal.
    on_progress: called now and then with the rows done so far.

    Every block is compared with its checksum. The folder gets its name only when it is complete; the files
    are not flushed to the disk. Raises UsageError (the folder is not empty, no images, no such split),
    FormatError (damage; a key that is not a path below a folder), SpaceError, PackerError.
    """
    began = time.perf_counter()
    target = os.fspath(folder).rstrip("/") or os.fspath(folder)
    check_order(pack, folder, call_text("export_images", target, os.fspath(pack)))
    count = check_workers(workers)
    real = os.path.realpath(absolute(target))  # an empty folder may be a link
    empty = False
    with suppress(OSError):
        empty = not os.listdir(real)
    if os.path.lexists(real) and not empty:
        raise UsageError(
            f"{target}: exists, and is not an empty folder; nothing is overwritten. Pass another name."
        )
    images = ImageFiles(open_pack(pack), split)
    keys = [as_text(key) for key in images.reader.ragged("key", consecutive(images.rows))]
    _check_keys(images, keys)
    stems = file_stems([*map(safe_name, keys)], images.ending)
    labels = ExportedLabels(images.reader, images.rows)
    with suppress(OSError):
        os.rmdir(real)
    place = WorkingFolder(real, name=target)
    try:
        check_space(real, images.estimate())
        make_folder(place.pack)
        with Progress(progress, "rows", on_progress) as bar:
            bar.start(len(images.rows))
            files, nbytes = _write_images(images, stems, place.pack, count, bar.move)
        if table := bool(labels.columns or labels.box_columns):
            path = os.path.join(place.pack, LABELS_FILE)
            nbytes += labels.write(path, [stem + images.ending for stem in stems])
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
        images.reader.close()
    notes = (*labels.notes, *_notes(images, labels, keys, stems))
    return ExportReport(files + table, nbytes, time.perf_counter() - began, notes)


def _notes(
    images: ImageFiles, labels: ExportedLabels, keys: Sequence[str], stems: Sequence[str]
) -> Iterator[str]:
    """Yield notes on content that was not written, or under other names."""
    used = {"image", "key", *labels.fields, *(f.name for f in images.masks)}
    if left := [f.name for f in images.reader.pack.fields if f.name not in used and not f.measures]:
        yield (
            f"Not written: {', '.join(left)}; images, labels, boxes, keypoints and masks that PNG files hold"
            " are."
        )
    if renamed := sum(stem != _stem(key) for key, stem in zip(keys, stems, strict=True)):
        yield (
            f"Names that differ from the keys: {units.count(renamed, 'file')}, as the name was taken, or the"
            " key holds control characters, line ends or backslashes."
        )


def _write_images(
    images: ImageFiles, stems: Sequence[str], work: str, workers: int, progress: Callable[[int], None]
) -> tuple[int, int]:
    """Write the image files of all rows into an empty folder; return their number and bytes.

    Raises OSError, FormatError.
    """
    fields = (images.image, *images.masks)
    roots = {f.name: os.path.join(work, f.name) if images.masks else work for f in fields}
    for root in roots.values():
        for parent in sorted({stem.rpartition("/")[0] for stem in stems}):
            make_folder(os.path.join(os.fsencode(root), on_disk(parent)))

    def write(piece: tuple[int, int, int]) -> tuple[int, int]:
        nbytes = 0
        for position, field, ending, data in images.files(*piece):
            fd = create(os.path.join(os.fsencode(roots[field]), on_disk(stems[position] + ending)))
            try:
                pwrite_all(fd, data, 0)
            finally:
                os.close(fd)
            nbytes += len(data)
        return piece[2], nbytes

    rows = nbytes = 0
    with one_thread_an_image(True):
        pool = ThreadPoolExecutor(workers, thread_name_prefix="packer-export")
        try:
            for future in as_completed([pool.submit(write, piece) for piece in images.pieces()]):
                done, written = future.result()
                rows, nbytes = rows + done, nbytes + written
                progress(rows)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return rows * len(roots), nbytes


# Names


def _check_keys(images: ImageFiles, keys: Sequence[str]) -> None:
    """Raise FormatError for the first key that is not a plain path below a folder."""
    for key, row in zip(keys, images.rows.tolist(), strict=True):
        if not is_plain(key):
            shown = key if len(key) <= 80 else key[:77] + "..."
            raise FormatError(
                f"{images.reader.pack.path}: the key of row {row} is {shown!r}; only plain paths below a"
                " folder are written as files. Nothing was written."
            )


def is_plain(key: str) -> bool:
    """Return True for a relative path of fewer than 100 folders, without empty parts, ".", ".." and NUL."""
    return "\0" not in key and {"", ".", ".."}.isdisjoint(key.split("/")) and key.count("/") < _MOST_FOLDERS


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
