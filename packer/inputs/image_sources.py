"""Images to be packed: a folder, a list or an archive, as one list of keys that any thread can read.

file_names.py decides what folders mean; image_targets.py reads labels; image_archives.py reads archives;
`open_source` composes them.
"""

from __future__ import annotations

import os
import stat
from array import array
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import ImageError, SourceError, UsageError
from packer.inputs.coco_annotations import CocoPart, find_annotations, read_coco
from packer.inputs.dataset_layouts import asked_for, expand, open_layout, open_tar_layout
from packer.inputs.file_names import (
    FolderLayout,
    as_text,
    file_splits,
    image_order,
    is_array,
    is_hidden,
    is_image,
    no_images,
    note_left_out,
    on_disk,
    shorten,
    suffix_of,
)
from packer.inputs.image_archives import open_archive
from packer.inputs.label_csv import read_lines
from packer.inputs.label_values import CheckedRows, number_labels
from packer.inputs.opened_source import ArchiveImages, ImageFiles, ImageSource, SourceOptions, arrange
from packer.remote.urls import is_url
from packer.sentence import Option
from packer.source_kinds import ARCHIVES, LISTS, is_archive

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def open_source(
    path: Source,
    *,
    labelled: bool = False,
    spool_dir: str | None = None,
    label: str | None = None,
    label_as: str = "auto",
    listed: Collection[str] = (),
    skip: bool = False,
    arrays: bool = False,
) -> ImageSource:
    """Find the images under ``path``.

    path: a folder, or the URL of one in a store; a list of image paths (.txt or .lst, one a line, each with a label or none); an archive;
        or a folder in an archive, as in "photos.tar/train".
        A list's paths are absolute or relative to its folder. Keys are paths below that folder, or, where an
        image lies elsewhere, below the deepest folder that holds all images: so the machine stays out of them.
        An archive is what unpacking it would give; one in which everything lies in one folder of the archive's
        own name (pets.tar.gz: pets/cat/1.jpg) was made of that folder, and is it.
        Or a data set in a layout of its own (dataset_layouts.py), perhaps of several files.
    labelled: labels come from elsewhere, so that folders stand for no classes.
    spool_dir: where a compressed tar is decompressed to; None for the system's temporary directory.
    label: of a data set in a layout of its own, the label that is taken where there are several.
    label_as: how a list's labels are taken, see label_values.py. listed: classes that may have no images.
    arrays: look for .npy files in folders, too.
    skip: leave out empty class folders and lines of a list that name no file, and refuse images whose label cannot be used,
        instead of raising.
    Raises: SourceError when this cannot be packed, UsageError when something else should be passed.
    """
    options = SourceOptions(labelled, spool_dir, label, label_as, listed, skip, arrays)
    name, paths = _named(path)
    if is_url(name):
        from packer.inputs.remote_images import open_remote_folder

        return open_remote_folder(name, options)
    is_folder = len(paths) == 1 and os.path.isdir(name)
    annotated = find_annotations(name) if is_folder and not labelled else []
    if annotated:
        return _open_annotated(name, annotated, skip)
    known = open_layout(name, paths, options)
    if known is not None:
        return known
    if len(paths) > 1:
        raise UsageError(
            f"{paths[1]}: is a second SRC; images come from one. Put the folders into one, or run packer merge."
        )
    if is_folder:
        return _open_folder(name, options)
    archive, inside = split_archive(name)
    if archive is not None:
        return _open_archive(name, archive, inside, options)
    if not os.path.exists(name):
        raise UsageError(f"{name}: no such file or folder; folders, lists and archives are read. Check it.")
    if name.lower().endswith(LISTS):
        return _open_list(name, options)
    endings = ", ".join((*LISTS, *ARCHIVES))
    raise UsageError(f"{name}: not a source of images; folders and files ending in {endings} are. Pass one.")


def _named(source: Source) -> tuple[str, list[str]]:
    """Return what to call a source in messages, and its paths, lists in braces and patterns written out."""
    given = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    names = [os.fspath(path).rstrip("/") or "/" for path in given]
    paths = [path for name in names for path in _files_of(name)]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more", paths


def _files_of(name: str) -> list[str]:
    files = [] if os.path.exists(name) else expand(name)
    return files if any(map(os.path.exists, files)) else [name]


# Folders


def _open_folder(name: str, options: SourceOptions) -> ImageSource:
    found = _scan(as_text(name), options.arrays)
    layout, skipped = arrange(name, found.keys, found.folders, options)
    source = _of_files(name, as_text(name), found, layout, options.labelled, skipped=skipped)
    source.notes += note_left_out(found.left_out)
    return source


def _open_annotated(name: str, parts: Sequence[CocoPart], skip: bool) -> ImageSource:
    """Open a folder of images with COCO's annotations; images in other folders than theirs are left out."""
    found = _scan(as_text(name))
    places = tuple(part.folder for part in parts)
    own = [index for index, key in enumerate(found.keys) if key.startswith(places)]
    if not own:
        raise no_images(name)
    images = found._replace(
        keys=[found.keys[index] for index in own], sizes=found.sizes[own], times=found.times[own]
    )
    targets, owners = read_coco(parts, images.keys, skip=skip)
    splits = file_splits([part.path for part in parts], [part.split for part in parts], owners)
    source = _of_files(name, as_text(name), images, FolderLayout(None, None, splits), True, targets=targets)
    if len(own) < len(found.keys):
        source.notes.append(
            f"{len(found.keys) - len(own):,} images lie in other folders than the annotations', and are left out."
        )
    return source


class _Files(NamedTuple):
    """Image files below a folder. sizes, times: int64 [N]; folders: of the top two levels; left_out: other files, by suffix."""

    keys: list[str]
    sizes: NDArray[np.int64]
    times: NDArray[np.int64]
    folders: Sequence[str] = ()
    left_out: Mapping[str, int] = {}


def _of_files(
    name: str, folder: str, files: _Files, layout: FolderLayout, labelled: bool, **more: Any
) -> ImageSource:
    images = FolderImages(folder, files.keys, files.sizes, files.times)
    return ImageSource(
        name, files.keys, images, files.sizes, files.times, layout, labelled, folder=folder, **more
    )


def _scan(root: str, arrays: bool = False) -> _Files:
    """Walk a folder, through links; in `image_order`."""
    keys: list[str] = []
    sizes, times = array("q"), array("q")
    tops: list[str] = []
    left_out: Counter[str] = Counter()
    waiting: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", (_identity(os.stat(on_disk(root))),))]
    while waiting:
        folder, above = waiting.pop()
        try:
            with os.scandir(on_disk(os.path.join(root, folder))) as entries:
                for entry in entries:
                    name = as_text(entry.name)
                    if is_hidden(name):
                        continue
                    key = folder + name
                    if entry.is_dir():
                        identity = _identity(entry.stat())
                        if identity in above:
                            target = "/".join([root, *folder.split("/")[: above.index(identity)]])
                            raise SourceError(
                                f"{root}/{key}: a link back to {target}, which holds it; links may not form a loop. Remove the link."
                            )
                        waiting.append((key + "/", (*above, identity)))
                        if len(above) <= 2:
                            tops.append(key)
                    elif is_image(name) or (arrays and is_array(name)):
                        size, time = file_state(entry)
                        keys.append(key)
                        sizes.append(size)
                        times.append(time)
                    else:
                        left_out[suffix_of(name)] += 1
        except OSError as error:
            raise unlistable(root, folder, error) from None
    order = image_order(keys)
    return _Files(
        [keys[index] for index in order],
        np.frombuffer(sizes, np.int64)[order],
        np.frombuffer(times, np.int64)[order],
        tops,
        left_out,
    )


def unlistable(root: str, folder: str, error: OSError) -> SourceError:
    """Make the error for a folder that cannot be listed."""
    where = os.path.join(root, folder).rstrip("/")
    return SourceError(
        f"{where}: cannot be listed ({error.strerror}); its files would be missing. Make it readable."
    )


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def file_state(entry: os.DirEntry[bytes]) -> tuple[int, int]:
    """Return the bytes, and the time of the last change."""
    try:
        status = entry.stat()
    except OSError:
        return 0, 0  # a link to nothing: reading it says so
    return status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class FolderImages(ImageFiles):
    """Files below a folder. keys: their paths; sizes, times: int64 [N], as they were when they were listed."""

    root: str
    keys: list[str]
    sizes: NDArray[np.int64]
    times: NDArray[np.int64]

    def read(self, index: int) -> bytes:
        """See ImageFiles."""
        listed = int(self.sizes[index]), int(self.times[index])
        return _read_file(on_disk(f"{self.root}/{self.keys[index]}"), listed)


MOST_BYTES_A_PIXEL = 16
"""Files larger than max_pixels times this, four floats, are not read, as anyone can make an endless one."""


def check_bytes(nbytes: int, max_pixels: int) -> None:
    """Raise ImageError for a file too large to be read."""
    most = MOST_BYTES_A_PIXEL * max_pixels
    if nbytes > most:
        raise ImageError(
            f"{nbytes:,} bytes; at most {most:,} are read. Raise {Option('max_pixels')} if it is meant."
        )


def _read_file(path: str | bytes, listed: tuple[int, int]) -> bytes:
    """Read a file in as few system calls as can be: `open(path, "rb").read()` makes seven.

    listed: its size, and the time of its last change in nanoseconds, when its label was found out.
    Raises: ImageError for what cannot be read, for what is no file (a pipe, a device), and for one that is no longer as it was listed.
    """
    fd = -1
    try:
        # Without O_NONBLOCK, opening a pipe waits for its writer; reading files does not change by it.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ImageError("not a regular file.")
        # One byte more than announced is enough to see a file grow, and no endless one gets further.
        size = status.st_size
        data = os.read(fd, size + 1)
        while len(data) < size and (more := os.read(fd, size + 1 - len(data))):
            data += more
        if (len(data), os.fstat(fd).st_mtime_ns) != listed:
            raise ImageError("changed since the conversion began.")
        return data
    except OSError as error:
        raise ImageError(f"cannot be read ({error.strerror}).") from None
    finally:
        if fd >= 0:
            os.close(fd)


# Archives


def split_archive(name: str) -> tuple[str | None, str]:
    """Split "photos.tar/train" into the archive and the folder in it; (None, "") if there is none."""
    archive, inside = name, ""
    while archive not in ("", "/"):
        if os.path.isfile(archive):
            return (archive, inside) if is_archive(archive) else (None, "")
        archive, _, last = archive.rpartition("/")
        inside = f"{last}/{inside}" if inside else last
    return None, ""


def _open_archive(name: str, path: str, inside: str, options: SourceOptions) -> ImageSource:
    archive = open_archive(path, as_text(inside), options.spool_dir, asked_for(options))
    try:
        known = open_tar_layout(name, archive, options)
        if known is not None:
            return known
        base = archive.base
        order = image_order(archive.keys)
        keys = [archive.keys[index].removeprefix(base) for index in order]
        folders = [folder.removeprefix(base) for folder in archive.folders if folder.startswith(base)]
        place = f"{name}/{base}".rstrip("/")
        tops = [folder for folder in folders if folder and folder.count("/") < 2]
        layout, skipped = arrange(place, keys, tops, options)
    except BaseException:
        archive.close()
        raise
    source = ImageSource(
        name,
        keys,
        ArchiveImages([archive], np.zeros(len(order), np.int64), order),
        np.frombuffer(archive.sizes, np.int64)[order],
        np.array([archive.time]),
        layout,
        options.labelled,
        files=(path,),
        skipped=skipped,
    )
    source.notes += note_left_out(archive.left_out)
    return source


# Lists


def _open_list(name: str, options: SourceOptions) -> ImageSource:
    root = as_text(os.path.abspath(os.path.dirname(name)))
    texts: list[str | None] = []
    lines: list[int] = []
    seen: dict[str, int] = {}
    sizes, times = array("q"), array("q")
    skipped: list[dict[str, str]] = []
    for line, row in enumerate(read_lines(name, "a list of paths is needed"), 1):
        if not row.strip():
            continue
        found = _split_row(root, row.rstrip("\n"))
        if isinstance(found, str):
            if not options.skip:
                raise SourceError(
                    f"{name} line {line}: no file {shorten(found)}; paths are absolute, or relative to "
                    f"the list's folder. Correct it, or pass {Option('on_error', 'skip')}."
                )
            shown = os.path.basename(found) if found.startswith("/") else found
            skipped.append(
                {"key": f"{os.path.basename(name)} line {line}", "reason": f"no file {shorten(shown)}."}
            )
            continue
        path, text, status = found
        if path in seen:
            raise SourceError(
                f"{name} line {line}: {row.strip()} is in line {seen[path]}, too; each image is packed once. Remove one."
            )
        seen[path] = line
        texts.append(text)
        lines.append(line)
        sizes.append(status.st_size)
        times.append(status.st_mtime_ns)
    if not seen:
        raise SourceError(
            f"{name}: none of its {len(skipped):,} lines names a file; the first, {skipped[0]['key']}: {skipped[0]['reason']}"
            if skipped
            else f"{name}: names no images; one path a line is read. Check the file."
        )
    folder = _common_folder(root, list(seen))
    rows = CheckedRows(name, lines, skip=options.skip)
    layout = FolderLayout(None, None, {})
    if any(text is not None for text in texts):
        if options.labelled:
            raise UsageError(
                f"{name}: has labels, and {Option('labels')} is given; one of them is used. Drop one."
            )
        labels, classes = number_labels(rows, [text or "" for text in texts], label_as=options.label_as)
        layout = FolderLayout(labels, classes, {})
    files = _Files(
        [path[len(folder) :] for path in seen], np.frombuffer(sizes, np.int64), np.frombuffer(times, np.int64)
    )
    source = _of_files(
        name, folder, files, layout, options.labelled, refused=rows.refused, skipped=tuple(skipped)
    )
    source.notes += rows.notes
    return source


def _common_folder(root: str, paths: list[str]) -> str:
    """Find the folder that a list's keys are relative to, its trailing slash included: root, if all lie below it."""
    first, last = min(paths), max(paths)  # what these two begin with, all begin with
    below = root.rstrip("/") + "/"
    if first.startswith(below) and last.startswith(below):
        return below
    return os.path.commonpath([os.path.dirname(first), os.path.dirname(last)]).rstrip("/") + "/"


def _split_row(root: str, row: str) -> tuple[str, str | None, os.stat_result] | str:
    """Split a line into the file's absolute path, its label or None, and its state; or return the path that is no file."""
    ways: list[tuple[str, str | None]] = [(row.strip(), None)]
    if "\t" in row:
        path, _, last = row.rpartition("\t")
        ways = [(path.strip(), last.strip())]
    elif len(words := row.rsplit(None, 1)) == 2:
        ways.append((words[0].strip(), words[1]))
    for path, text in ways:
        # normpath keeps two leading slashes, which POSIX lets mean something else than one; nobody's system does.
        absolute = "/" + os.path.normpath(os.path.join(root, path)).lstrip("/")
        try:
            return absolute, text, os.stat(on_disk(absolute))
        except OSError:
            continue
    return ways[0][0]
