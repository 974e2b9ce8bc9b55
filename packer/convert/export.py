"""export_images: the rows of a pack become a folder of image files again.

    <folder>/cat/1.png              images under their keys; drawn splits in folders of their own (train/cat/1.png)
    <folder>/labels.csv             labels that are not the names of the folders, boxes, keypoints
    <folder>/classes.txt            classes, where they are not the sorted names of the labels
    <folder>/image/cat/1.png        with fields of pixels beside the images, such as masks: each field in a folder of its name
    <folder>/mask/cat/1.png

export_files.py encodes the rows and names the files, export_labels.py writes labels.csv and classes.txt.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from packer.arguments import check_workers, choice, whole
from packer.convert.export_files import (
    ExportRows,
    check_keys,
    check_lengths,
    file_names,
    file_stems,
    hidden,
    in_split_folders,
    inner_folders,
    stem_of,
)
from packer.convert.export_labels import CLASSES_FILE, LABELS_FILE, LabelFiles
from packer.errors import PackerError, UsageError
from packer.format.file_io import pwrite_all, remove
from packer.format.pack import open_pack
from packer.format.working_folder import check_output, check_space, failure, locked
from packer.opencv import cv2
from packer.orders.runs import consecutive
from packer.path_text import as_text, on_disk, safe_name
from packer.progress import Progress

ENCODINGS = ("png", "jpeg")
"""Encodings of the image files."""
SUFFIX = ".exporting"
"""Of the folder in which the files are made; they lie in its folder ``files``, beside ``MARK``."""
MARK = "packer-export"
"""Empty file that tells a folder of an interrupted export, which may be removed, from one that somebody else made."""

_ENDINGS = {"png": (".png",), "jpeg": (".jpg", ".jpeg", ".jpe"), "tiff": (".tif", ".tiff")}


@dataclass(frozen=True)
class ExportReport:
    """The result of an export.

    files: written, labels.csv and classes.txt among them; nbytes: in them; seconds: wall time; notes: sentences about what
    the folder does not hold, or holds under other names.
    """

    files: int
    nbytes: int
    seconds: float
    notes: tuple[str, ...]


def export_images(
    pack: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    encoding: str = "png",
    quality: int = 95,
    split: str | None = None,
    workers: int | None = None,
    progress: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> ExportReport:
    """Write the images of a pack as files, with masks, labels, boxes and keypoints beside them.

    pack: a path. folder: a new one, or an empty one.
    encoding: of the images, "png": exactly the pixels (of 2 bands, or of 5 and more, as TIFF files), or "jpeg": the stored files
        where rows are JPEG files, else pixels encoded at ``quality``.
    split: only its rows. workers: threads; default: the cores at hand.
    progress: show a bar on stderr, or a line a minute where there is no terminal.
    on_progress: called now and then with the rows done so far.

    Every block is compared with its checksum. Nothing is left under the name of the folder unless it is whole; the files are not
    flushed to the disk.
    Raises UsageError (the folder is not empty, no images, no such split), FormatError (damage; a key that is no path below a
    folder), SpaceError, PackerError.
    """
    began = time.perf_counter()
    target = os.fspath(folder).rstrip("/") or os.fspath(folder)
    choice("encoding", encoding, ENCODINGS)
    if not 1 <= whole("quality", quality) <= 100:
        raise UsageError(f"quality {quality}: is not within 1 to 100. Pass for example 95.")
    count = check_workers(workers)
    _check_folder(target)
    opened = open_pack(pack)
    if opened.parts[0].header.table is not None:
        raise UsageError(
            f"{opened.path}: was made of a table; image files are exported. Read its fields with h5py, or"
            " packer.PackedDataset, and write them with pandas, as docs/guides/tables.md shows."
        )
    rows = ExportRows(opened, encoding, quality, split)
    real = os.path.realpath(target)  # an empty folder may be a link
    work = real + SUFFIX
    inner = os.path.join(work, "files")
    try:
        exported = _ExportedFolder(rows, os.path.dirname(real))
        check_space(real, rows.estimate())
        _take(work)
        with locked(work, target):
            try:
                remove(inner)
                os.mkdir(inner)
                with Progress(progress, "rows", on_progress) as bar:
                    bar.start(len(rows.rows))
                    files, nbytes = exported.write(inner, count, bar.move)
                _publish(inner, real, target)
            finally:
                remove(work)
    except FileExistsError as error:
        name = as_text(os.path.relpath(os.fsencode(error.filename), os.fsencode(inner)))
        raise PackerError(
            f"{target}: {name} would be there twice, as a folder, or under a name that this disk takes for equal."
            " Nothing was written; pass a folder on another disk."
        ) from None
    except OSError as error:
        raise failure(target, error) from error
    finally:
        rows.reader.close()
    return ExportReport(files, nbytes, time.perf_counter() - began, tuple(exported.notes()))


def _check_folder(folder: str) -> None:
    """Refuse a folder that cannot be written, before any work. Raises UsageError or PackerError."""
    if os.path.isdir(folder):
        try:
            empty = not os.listdir(folder)
        except OSError as error:
            raise PackerError(f"{folder}: cannot be listed ({error.strerror}). Pass another name.") from None
        if empty and not os.access(parent := os.path.dirname(os.path.realpath(folder)), os.W_OK | os.X_OK):
            raise PackerError(
                f"{folder}: no permission to write in {parent}, where the whole folder is to take the place of the empty one."
                " Pass another name, or change the permission."
            )
        if empty:
            return
    if os.path.lexists(folder):
        raise UsageError(
            f"{folder}: exists, and is no empty folder; nothing is overwritten. Pass another name."
        )
    check_output(folder, overwrite=False)


def _take(work: str) -> None:
    """Make the folder for the work, or take over that of an interrupted export. Raises UsageError if it is not ours; OSError."""
    mark = os.path.join(work, MARK)
    try:
        os.mkdir(work)
    except FileExistsError:
        if (
            os.path.islink(work)
            or not os.path.isfile(mark)
            or not {MARK, "files"}.issuperset(os.listdir(work))
        ):
            raise UsageError(
                f"{work}: is where the files would be made, and packer did not make it. Move it away, or pass another folder."
            ) from None
    else:
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))


def _publish(work: str, real: str, folder: str) -> None:
    """Give the folder its name, in place of an empty one. Raises PackerError."""
    try:
        os.rename(work, real)
    except OSError as error:
        raise PackerError(
            f"{folder}: cannot be replaced by the whole folder ({error.strerror}). Pass a name that does not exist yet."
        ) from error


class _ExportedFolder:
    """The files of an export, and their names."""

    def __init__(self, rows: ExportRows, parent: str) -> None:
        """parent: the existing folder in which the new one will lie. Raises FormatError for keys that are no names of files."""
        self._rows, self._header = rows, rows.pack.header
        keys = [as_text(key) for key in rows.reader.read_ragged("key", consecutive(rows.rows))]
        check_keys(rows.pack.path, keys, rows.rows)
        self._splits = {} if rows.split else self._header.splits
        foldered = in_split_folders([*map(safe_name, keys)], rows.rows, self._splits)
        endings = _ENDINGS["tiff" if rows.tiff else rows.encoding]
        self._stems = file_stems(foldered, endings[0])
        self._names = file_names(foldered, self._stems, endings)
        self._renamed = sum(stem != stem_of(key) for key, stem in zip(foldered, self._stems, strict=True))
        self._unsafe = sum(safe_name(key) != key for key in keys)
        self._base = "image/" if rows.masks else ""
        longest = max((len(f.name) for f in rows.masks), default=0) + len(SUFFIX) + len("/files") + 64
        check_lengths(rows.pack.path, parent, self._names, keys, rows.rows, spare=longest)
        self._split_folders, self._folders = inner_folders(self._names)
        self._labels = LabelFiles(rows.pack, rows.reader, rows.targets, rows.rows)
        self._by_folders = self._labels.told_by_folders(self._folders)
        self._labelled = bool(rows.targets.names) and not self._by_folders

    def write(self, work: str, workers: int, progress: Callable[[int], None]) -> tuple[int, int]:
        """Write everything into an empty folder, and return the files and bytes. Raises OSError, FormatError."""
        roots = {"image": os.path.join(work, self._base)}
        roots |= {f.name: os.path.join(work, f.name) for f in self._rows.masks}
        parents = sorted({name.rpartition("/")[0] for name in self._names})
        for root in roots.values():
            for parent in parents:
                os.makedirs(os.path.join(os.fsencode(root), on_disk(parent)), exist_ok=True)
        files, nbytes = self._write_rows(roots, workers, progress)
        if self._labelled:
            nbytes += self._labels.write_labels(os.path.join(work, LABELS_FILE), self._names)
            files += 1
        if self._labels.classes_listed:
            nbytes += self._labels.write_classes(os.path.join(work, CLASSES_FILE))
            files += 1
        return files, nbytes

    def _write_rows(
        self, roots: dict[str, str], workers: int, progress: Callable[[int], None]
    ) -> tuple[int, int]:
        endings = {f.name: self._rows.ending(f) for f in self._rows.masks}
        stop = threading.Event()

        def write(piece: tuple[int, int, int]) -> tuple[int, int, int]:
            files = nbytes = 0
            for file in self._rows.files(*piece):
                if stop.is_set():
                    break
                name = self._names[file.position]
                if file.field != "image":
                    name = self._stems[file.position] + endings[file.field]
                _write(os.path.join(os.fsencode(roots[file.field]), on_disk(name)), file.data)
                files, nbytes = files + 1, nbytes + len(file.data)
            return piece[2], files, nbytes

        rows = files = nbytes = 0
        previous = cv2.getNumThreads()
        cv2.setNumThreads(1)  # the images are the parallel work
        pool = ThreadPoolExecutor(workers, thread_name_prefix="packer-export")
        try:
            for done in as_completed([pool.submit(write, piece) for piece in self._rows.pieces()]):
                counts = done.result()
                rows, files, nbytes = rows + counts[0], files + counts[1], nbytes + counts[2]
                progress(rows)
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            cv2.setNumThreads(previous)
        return files, nbytes

    def notes(self) -> list[str]:
        """Return a sentence for each thing that the folder does not hold, or holds under another name."""
        rows = self._rows
        notes: list[str] = []
        if rows.left:
            notes.append(
                f"Not written: {', '.join(rows.left)}; images, labels, boxes, keypoints and fields of pixels are."
            )
        if self._renamed:
            notes.append(
                f"{self._renamed:,} files have other names than their keys, as these differ only in their endings, or not at all."
            )
        if self._unsafe:
            notes.append(
                f"In {self._unsafe:,} of the files' names _ stands for control characters, ends of lines and backslashes."
            )
        out_of_sight = hidden(self._names)
        if out_of_sight:
            notes.append(
                f"packer convert passes over {len(out_of_sight):,} of the files, first {out_of_sight[0]}: it takes them for hidden."
            )
        if self._split_folders != set(self._splits):
            notes.append(
                f"The splits ({', '.join(sorted(self._splits)) or 'none'}) are not the folders at the top"
                f" ({', '.join(sorted(self._split_folders)) or 'none'}); those called train, val or test, whose rows"
                " are all of the pack's, each once, become such folders."
            )
        return [*notes, *self._labels.notes()]


def _write(path: bytes, data: bytes | memoryview) -> None:
    """Write a new file; never through a link."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        pwrite_all(fd, data, 0)
    finally:
        os.close(fd)
