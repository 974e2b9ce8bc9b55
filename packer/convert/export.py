"""export_images: the rows of a pack become a folder of image files again, from which packer convert makes the same rows.

    <folder>/cat/1.png              images under their keys; drawn splits in folders of their own (train/cat/1.png)
    <folder>/labels.csv             what the folders do not say: labels, boxes, keypoints
    <folder>/image/cat/1.png        where there are fields of pixels beside the images, such as masks: each field in a folder of
    <folder>/mask/cat/1.png         its name

exportnames.py (what files are called) and exportrows.py (what is in them) and exportlabels.py (the CSV) -> here
"""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import cv2
import numpy as np

from packer.arguments import check_workers, choice, whole
from packer.convert.exportlabels import LABELS_FILE, Table, read_fixed, runs_of
from packer.convert.exportnames import (
    Seen,
    check_keys,
    check_lengths,
    file_names,
    file_stems,
    hidden,
    in_split_folders,
    seen_by_convert,
    stem_of,
)
from packer.convert.exportrows import CHANNELS, ExportRows
from packer.errors import PackerError, UsageError
from packer.format.filesystem import remove
from packer.format.output import check_output, check_space, failure
from packer.format.pack import open_pack
from packer.format.positional_io import pwrite_all
from packer.format.workplace import locked
from packer.pixels.resize import FITS
from packer.progress import Progress

FORMATS = ("png", "jpeg")
SUFFIX = ".exporting"
"""Of the folder's name while it is being written."""

_ENDINGS = {"png": (".png",), "jpeg": (".jpg", ".jpeg", ".jpe")}


@dataclass(frozen=True)
class ExportReport:
    """What an export did.

    files: written, the CSV among them; nbytes: in them; seconds: wall time; command: the packer convert command that makes the pack
    again; notes: sentences about what that will not bring back as it was.
    """

    files: int
    nbytes: int
    seconds: float
    command: str
    notes: tuple[str, ...]


def export_images(
    pack: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    format: str = "png",
    quality: int = 95,
    split: str | None = None,
    workers: int | None = None,
    progress: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> ExportReport:
    """Write the images of a pack as files, with masks, labels, boxes and keypoints beside them.

    pack: a path. folder: a new one, or an empty one.
    format: "png": exactly the pixels; "jpeg": the stored files where rows are JPEG files, else pixels encoded at ``quality``.
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
    choice("format", format, FORMATS)
    if not 1 <= whole("quality", quality) <= 100:
        raise UsageError(f"quality {quality}: is not within 1 to 100. Pass for example 95.")
    count = check_workers(workers)
    _check_folder(target)
    rows = ExportRows(open_pack(pack), format, quality, split)
    real = os.path.realpath(target)  # an empty folder may be a link
    plan = _Plan(rows, os.path.dirname(real))
    check_space(real, rows.estimate())
    work = real + SUFFIX
    try:
        if os.path.lexists(work) and (os.path.islink(work) or not os.path.isdir(work)):
            os.unlink(work)
        os.makedirs(work, exist_ok=True)
        with locked(work, target):
            try:
                for left in os.scandir(work):
                    remove(left.path)
                with Progress(progress, "rows", on_progress) as bar:
                    bar.start(len(rows.rows))
                    files, nbytes, notes = plan.write(work, count, bar.move)
                _publish(work, real, target)
            except BaseException:
                remove(work)
                raise
    except FileExistsError as error:
        name = os.path.relpath(os.fsdecode(error.filename), work)
        raise PackerError(
            f"{target}: {name} would be there twice, as a folder, or under a name that this disk takes for equal."
            " Nothing was written; pass a folder on another disk."
        ) from None
    except OSError as error:
        raise failure(target, error) from error
    finally:
        rows.reader.close()
    notes = [note.replace(work, target) for note in notes]
    return ExportReport(files, nbytes, time.perf_counter() - began, plan.command(target), tuple(notes))


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


def _publish(work: str, real: str, folder: str) -> None:
    """Give the folder its name, in place of an empty one. Raises PackerError."""
    try:
        os.rename(work, real)
    except OSError as error:
        raise PackerError(
            f"{folder}: cannot be replaced by the whole folder ({error.strerror}). Pass a name that does not exist yet."
        ) from error


class _Plan:
    """What the files are called, and how packer convert will read them."""

    def __init__(self, rows: ExportRows, parent: str) -> None:
        """parent: the existing folder in which the new one will lie. Raises FormatError for keys that are no names of files."""
        self._rows, self._header = rows, rows.pack.header
        keys = [os.fsdecode(key) for key in rows.reader.read_ragged("key", runs_of(rows.rows))]
        check_keys(rows.pack.path, keys, rows.rows)
        foldered = in_split_folders(keys, rows.rows, {} if rows.split else self._header.splits)
        endings = _ENDINGS[rows.format]
        self._stems = file_stems(foldered, endings[0])
        self._names = file_names(foldered, self._stems, endings)
        self._renamed = sum(stem != stem_of(key) for key, stem in zip(foldered, self._stems, strict=True))
        self._base = "image/" if rows.masks else ""
        longest = max((len(f.name) for f in rows.masks), default=0) + len(SUFFIX) + 64
        check_lengths(rows.pack.path, parent, self._names, keys, rows.rows, spare=longest)
        self._table: Table | None = None
        self._seen = seen_by_convert(self._names, labelled=False)
        known = rows.known
        if known.names and not (known.names == ["label"] and self._folders_say_it()):
            self._table = Table(rows.pack, rows.reader, known, rows.rows)
            self._seen = seen_by_convert(self._names, labelled=True)

    def write(self, work: str, workers: int, progress: Callable[[int], None]) -> tuple[int, int, list[str]]:
        """Write everything into an empty folder. Returns: files, bytes, notes. Raises OSError, FormatError."""
        roots = {"image": os.path.join(work, self._base)}
        roots |= {f.name: os.path.join(work, f.name) for f in self._rows.masks}
        parents = sorted({name.rpartition("/")[0] for name in self._names})
        for root in roots.values():
            for parent in parents:
                os.makedirs(os.path.join(root, parent), exist_ok=True)
        files, nbytes = self._write_rows(roots, workers, progress)
        notes = []
        if self._table is not None:
            path = os.path.join(work, LABELS_FILE)
            nbytes += self._table.write(path, self._names)
            files += 1
            notes = self._table.differences(path, self._names)
        return files, nbytes, [*self._notes(), *notes]

    def command(self, folder: str) -> str:
        """The command that makes the pack again."""
        rows, pack, about = self._rows, self._rows.pack, self._rows.image.about
        shape, codec = rows.image.shape, pack.header.field("image").codec or {}
        words = ["packer", "convert", os.path.join(folder, self._base).rstrip("/")]
        words.append("again.h5" if pack.format == "h5" and not pack.shards else "again")
        if shape is None:
            words += ["--size", "keep", "--store", "jpeg"]
        else:
            height, width = shape[:2]
            words += ["--size", f"{height}" if height == width else f"{height}x{width}"]
            words += ["--any-size"] if height & (height - 1) or width & (width - 1) else []
            words += ["--channels", CHANNELS[rows.channels]] if rows.channels != 3 else []
            words += ["--fit", about["fit"]] if about.get("fit") in FITS[1:] else []
            words += ["--compress", str(codec["name"])] if codec and not rows.encoded else []
        if pack.shards:
            words += ["--format", pack.format, "--shard-rows", str(pack.shards[0].rows)]
        words += self._table.options(os.path.join(folder, LABELS_FILE)) if self._table is not None else []
        for f in rows.masks:
            words += ["--pair", f"{f.name}={os.path.join(folder, f.name)}"]
        seed = self._header.seed
        words += ["--no-shuffle"] if seed is None else ["--seed", str(seed)] if seed else []
        return shlex.join(words)

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
                _write(os.path.join(roots[file.field], name), file.data)
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

    def _folders_say_it(self) -> bool:
        """Whether packer convert finds the labels and classes in the folders."""
        label = self._rows.known.label
        if self._seen is None or label is None or self._header.classes is None:
            return False
        found = self._seen.labels()
        return (
            found is not None
            and self._seen.layout.classes == list(self._header.classes)
            and (label.dtype, label.shape) == ("<i8", ())
            and np.array_equal(found, read_fixed(self._rows.reader, label, self._rows.rows))
        )

    def _notes(self) -> list[str]:
        """What will not come back as it was, a sentence each; not what the CSV holds."""
        rows, notes = self._rows, []
        if rows.left:
            notes.append(
                f"Not written: {', '.join(rows.left)}; images, labels, boxes, keypoints and fields of pixels are."
            )
        if self._renamed:
            notes.append(
                f"{self._renamed:,} files have other names than their keys, as these differ only in their endings, or not at all."
            )
        out_of_sight = hidden(self._names)
        if out_of_sight:
            notes.append(
                f"packer convert passes over {len(out_of_sight):,} of the files, first {out_of_sight[0]}: it takes them for hidden."
            )
        elif self._seen is None:
            notes.append(
                "packer convert will not take the folder, as some files lie in folders and others do not."
            )
        else:
            notes += self._notes_on(self._seen)
        for f in rows.masks:
            shape = f.shape or ()
            if shape[:2] != (rows.image.shape or ())[:2] or shape[2:] == (1,):
                notes.append(
                    f"{f.name} comes back at the size of the images, and without an axis of one channel."
                )
        if rows.encoded and rows.format == "png" and rows.image.shape is None:
            notes.append(
                "The rows are JPEG files, which packer convert would encode anew; export them as jpeg."
            )
        elif rows.encoded and rows.image.shape is not None:
            quality = (self._header.field("image").codec or {}).get("quality", 90)
            notes.append(
                "The rows are JPEG files; the command brings back their pixels. To encode these anew,"
                f" add --store jpeg --quality {quality}."
            )
        return notes

    def _notes_on(self, seen: Seen) -> list[str]:
        """What differs in order, splits and labels, as far as folders decide them."""
        notes = []
        if seen.layout.labels is not None and not self._rows.known.names:
            notes.append("The pack has no labels; packer convert will take the folders for classes.")
        files, splits = seen.rows(self._header.seed)
        wanted = {} if self._rows.split else self._header.splits
        if {name: (span,) for name, span in splits.items()} != wanted:
            names = ", ".join(wanted) or "none"
            notes.append(f"The splits ({names}) come back as others ({', '.join(splits) or 'none'}).")
        if not np.array_equal(files, np.arange(len(files))):
            notes.append("packer convert will store the rows in another order.")
        return notes


def _write(path: str, data: bytes | memoryview) -> None:
    """Write a new file; never through a link."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        pwrite_all(fd, data, 0)
    finally:
        os.close(fd)
