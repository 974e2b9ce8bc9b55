"""Sources of images: `open_source` lists a folder, a list file, an archive or a dataset as one list of keys.

file_names.py interprets folders, table_targets.py reads labels, image_archives.py reads archives. Datasets in
these layouts are recognised by their contents:

    a folder with annotations/instances_*.json                           COCO (coco_annotations.py)
    a folder with YOLO labels, or their data.yaml                        YOLO (yolo_labels.py)
    a folder with an XML file of boxes per image                         Pascal VOC (voc_annotations.py)
    .parquet files, or a folder of them, at most one level deep          Parquet (parquet_images.py)
    several tars, a folder of tars (as above), a tar with .cls files     WebDataset (webdataset_tars.py)

Several files are given as a sequence of paths, a list in braces ("{000000..000009}.tar") or a pattern
("train-*.tar").
"""

from __future__ import annotations

import glob
import os
import re
import stat
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import product
from typing import NamedTuple
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.errors import ImageError, MissingDependencyError, SourceError, UsageError
from packer.inputs.box_layouts import find_boxes
from packer.inputs.file_names import (
    as_text,
    examples,
    image_order,
    is_array,
    is_hidden,
    is_image,
    no_images,
    on_disk,
    shorten,
    suffix_of,
)
from packer.inputs.image_archives import open_archive
from packer.inputs.image_targets import ImageTargets
from packer.inputs.label_files import ListedFolder
from packer.inputs.opened_source import ArchiveImages, ImageSource, SourceOptions
from packer.inputs.parquet_images import find_images, read_parquet
from packer.inputs.surroundings import images_beside
from packer.inputs.text_files import read_lines
from packer.inputs.webdataset_tars import are_samples, is_label, open_samples, open_tars, split_sample
from packer.inputs.yolo_dataset import ENDINGS, YoloDataset, dataset_root, read_dataset
from packer.packs.pack_opening import is_pack
from packer.remote.urls import is_url
from packer.source_kinds import (
    ARCHIVES,
    FRAMES_FIRST,
    LISTS,
    PARQUET,
    TARS,
    VIDEOS,
    folder_tables,
    is_archive,
    is_array_file,
)

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)")
_MOST_FILES = 1_000_000


def open_source(path: Source, options: SourceOptions | None = None) -> ImageSource:
    """List the images of a source.

    path: a folder, or the URL of a folder in an object store; a list of image paths (.txt or .lst, one per
        line, optionally with a label); an archive; a folder in an archive, as in "photos.tar/train"; or a
        dataset (see the module), perhaps in several files. A list's paths are absolute or relative to its
        folder. Keys are paths relative to that folder, or, if an image lies elsewhere, to the deepest folder
        that holds all images, so keys do not depend on the machine. An archive equals the folder that
        unpacking it gives; if all members lie in one folder of the archive's name (pets.tar.gz:
        pets/cat/1.jpg), it equals that folder.
    Raises: SourceError if the source cannot be packed, UsageError if a different source should be passed.
    """
    options = options or SourceOptions()
    given = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    names = [os.fspath(one).rstrip("/") or "/" for one in given]
    paths = [found for one in names for found in _files_of(one)]
    name = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"
    if len(paths) == 1:
        name = paths[0]  # the only match of a pattern
    if is_url(name):
        from packer.inputs.remote_images import open_remote_folder

        return open_remote_folder(name, options)
    if len(paths) == 1 and os.path.isdir(name):
        return _open_folder(name, options)
    if all(one.lower().endswith(PARQUET) for one in paths):
        return read_parquet(name, paths, options)
    if paths and all(map(is_array_file, paths)):
        if is_pack(paths[0]):
            raise UsageError(f"{name}: is a pack; images are files of their own. Pass their folder.")
        raise UsageError(
            f"{name}: is a file of arrays; images are files of their own. Pass it to pack_dataset."
        )
    if len(paths) > 1:
        if all(one.lower().endswith(TARS) for one in paths):
            return open_samples(name, open_tars(paths, options), options, os.path.dirname(paths[0]))
        raise UsageError(
            f"{paths[1]}: is a second SRC; images come from one source. Put the folders into one folder, or "
            "run packer merge."
        )
    archive, inside = split_archive(name)
    if archive is not None:
        return _open_archive(name, archive, inside, options)
    if not os.path.exists(name):
        raise UsageError(
            f"{name}: no such file or folder; folders, lists and archives are read. Check the path."
        )
    if name.lower().endswith(LISTS):
        return _open_list(name, options)
    if name.lower().endswith(ENDINGS):
        return _open_described(name, options)
    if name.lower().endswith(VIDEOS):
        raise UsageError(f"{name}: is a video. {FRAMES_FIRST}")
    endings = ", ".join((*LISTS, *ARCHIVES))
    raise UsageError(
        f"{name}: not a source of images; folders and files ending in {endings} are. Pass one of them."
    )


def _files_of(name: str) -> list[str]:
    """Expand a list in braces or a pattern into file names; return the name itself if no such file exists.

    Numbers of a range get as many digits as its first number. Raises: UsageError for an invalid range.
    """
    if os.path.exists(name):
        return [name]
    parts = _BRACES.split(name)
    choices = [[part] if number % 2 == 0 else _choices(name, part) for number, part in enumerate(parts)]
    names = ["".join(words) for words in product(*choices)]
    if glob.has_magic(name):
        names = [found for pattern in names for found in sorted(glob.glob(pattern))]
    return names if any(map(os.path.exists, names)) else [name]


def _choices(text: str, part: str) -> list[str]:
    found = _RANGE.fullmatch(part)
    if found is None:
        return part.split(",")
    first, last = int(found[1]), int(found[2])
    if not 0 <= last - first < _MOST_FILES:
        raise UsageError(
            f"{text}: {{{part}}} is not a range of files; the first number must be the smaller one. Correct "
            "it."
        )
    return [f"{number:0{len(found[1])}d}" for number in range(first, last + 1)]


def holds_images(source: str) -> bool:
    """Return True if a Parquet file (a pattern's or folder's first) has an image column and pyarrow is there.

    Raises: SourceError for a damaged file.
    """
    first = (folder_tables(source) or _files_of(source))[0]
    if not first.lower().endswith(PARQUET) or not os.path.isfile(first):
        return False
    try:
        return bool(find_images(first))
    except MissingDependencyError:
        return False


# Folders


def _open_folder(name: str, options: SourceOptions, described: YoloDataset | None = None) -> ImageSource:
    """Open a folder. described: the YOLO dataset in it."""
    found = scan_folder(as_text(name), options.arrays)
    indices, folders = options.images_among(found.images.keys, found.folders, name)
    if len(indices) < len(found.images.keys):
        found = found._replace(images=found.images.taken(indices), folders=list(folders))
    folder = ListedFolder(name, found.images.keys, sorted(found.others))
    boxes = None if options.labels.ignore_source else find_boxes(folder, options, described)
    if boxes is not None:
        if not len(boxes.images):
            raise no_images(name)
        images = found.images.taken(boxes.images)
        targets, splits = boxes.read(images.keys)
        if len(images.keys) < len(folder.keys):
            outside = np.delete(np.arange(len(folder.keys)), boxes.images)
            shown = examples(folder.keys[index] for index in outside.tolist())
            options.findings.note(
                "Left out, outside the folders and lists of the annotations: "
                f"{units.count(len(outside), 'image')}, such as {shown}."
            )
        return images.describe(name, targets, splits)
    packed = folder.ending(*TARS, *PARQUET)
    packed = packed if all(path.count("/") < 2 for path in packed) else []
    if packed and not found.images.keys:
        files = [os.fsdecode(on_disk(os.path.join(as_text(name), path))) for path in sorted(packed)]
        tars = [path for path in files if path.lower().endswith(TARS)]
        if tars:
            return open_samples(name, open_tars(tars, options), options, name)
        if find_images(files[0]):
            return read_parquet(name, files, options)
    if not found.images.keys and (beside := images_beside(folder)):
        raise SourceError(
            f"{name}: holds no images, but files such as {beside[0]}, whose images are in another folder. "
            f"Pass {beside[1]}, the folder that holds both."
        )
    found.images.others = folder.others
    return found.images.arrange(name, found.folders, Counter(map(suffix_of, found.others)), options)


def _open_described(name: str, options: SourceOptions) -> ImageSource:
    """Open the YOLO dataset that a YAML file describes."""
    dataset = read_dataset(name)
    if dataset is None:
        raise SourceError(
            f"{name}: describes no YOLO dataset; train, val and names are needed. Pass the folder of the "
            "images."
        )
    if options.labels.file is not None:
        raise UsageError(
            f"{name}: describes labels, but labels= is given too; only one of them can be used. Drop one."
        )
    return _open_folder(os.fsdecode(on_disk(dataset_root(dataset))), options, dataset)


class FolderImages(ImageSource):
    """Image files below a folder; reading a file that changed since the listing fails. Path "": no file."""

    def taken(self, indices: NDArray[np.int64]) -> FolderImages:
        """Return the images at `indices`, in that order."""
        keys = [self.keys[index] for index in indices.tolist()]
        return FolderImages(keys, self.sizes[indices], self.times[indices], folder=self.folder)

    def read(self, index: int) -> bytes:
        """See ImageSource."""
        listed = int(self.sizes[index]), int(self.times[index])
        return _read_file(on_disk(f"{self.folder}/{self.keys[index]}"), listed)


class ScannedFolder(NamedTuple):
    """Contents of a folder: images in `image_order`, top folders and other files."""

    images: FolderImages
    folders: list[str]
    others: list[str]


def scan_folder(root: str, arrays: bool = False) -> ScannedFolder:
    """Walk a folder, following links."""
    keys: list[str] = []
    sizes, times = array("q"), array("q")
    tops: list[str] = []
    others: list[str] = []
    waiting: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", (_identity(os.stat(on_disk(root))),))]
    while waiting:
        folder, above = waiting.pop()
        for name, entry, identity in _entries_of(root, folder):
            key = folder + name
            if identity is not None:
                if identity in above:
                    target = "/".join([root, *folder.split("/")[: above.index(identity)]])
                    raise SourceError(
                        f"{root}/{key}: a link back to {target}, which contains it; links may not form a "
                        "loop. Remove the link."
                    )
                waiting.append((key + "/", (*above, identity)))
                if len(above) <= 2:
                    tops.append(key)
            elif is_image(name) or (arrays and is_array(name)):
                size, time = _file_state(entry)
                keys.append(key)
                sizes.append(size)
                times.append(time)
            else:
                others.append(key)
    images = FolderImages(keys, np.asarray(sizes, np.int64), np.asarray(times, np.int64), folder=root)
    return ScannedFolder(images.taken(image_order(keys)), tops, others)


def _entries_of(root: str, folder: str) -> Iterator[tuple[str, os.DirEntry[bytes], tuple[int, int] | None]]:
    """Yield name, directory entry and identity (None for a file) of each visible file and folder in a folder.

    root, folder: the folder's path, in two parts.
    Raises: SourceError for a folder that cannot be listed.
    """
    try:
        with os.scandir(on_disk(os.path.join(root, folder))) as entries:
            for entry in entries:
                name = as_text(entry.name)
                if not is_hidden(name):
                    yield name, entry, _identity(entry.stat()) if entry.is_dir() else None
    except OSError as error:
        where = os.path.join(root, folder).rstrip("/")
        raise SourceError(
            f"{where}: cannot be listed ({error.strerror}); its files would be missing. Make it readable."
        ) from None


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _file_state(entry: os.DirEntry[bytes]) -> tuple[int, int]:
    """Return a file's size in bytes and its modification time in nanoseconds; (0, 0) for a dangling link."""
    try:
        status = entry.stat()
    except OSError:
        return 0, 0  # reading it reports the dangling link
    return status.st_size, status.st_mtime_ns


MOST_BYTES_A_PIXEL = 16
"""Largest file size in bytes per pixel of max_pixels (four floats): protects against endless files."""


def check_bytes(nbytes: int, max_pixels: int) -> None:
    """Raise ImageError for a file too large to be read."""
    most = MOST_BYTES_A_PIXEL * max_pixels
    if nbytes > most:
        raise ImageError(
            f"{nbytes:,} bytes; at most {most:,} are read. Raise max_pixels= if the size is correct."
        )


def _read_file(path: str | bytes, listed: tuple[int, int]) -> bytes:
    """Read a file in few system calls: `open(path, "rb").read()` takes seven.

    listed: size in bytes and modification time in nanoseconds when the file was listed.
    Raises: ImageError for a file that is unreadable, changed since it was listed, or not regular (pipe,
    device).
    """
    fd = -1
    try:
        # Without O_NONBLOCK, opening a pipe waits for its writer; the flag does not affect regular files.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ImageError("not a regular file.")
        # One byte more than the size shows that a file grew, and stops an endless file.
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
    """Split "photos.tar/train" into the archive and the folder in it; (None, "") without an archive."""
    archive, inside = name, ""
    while archive not in ("", "/"):
        if os.path.isfile(archive):
            return (archive, inside) if is_archive(archive) else (None, "")
        archive, _, last = archive.rpartition("/")
        inside = f"{last}/{inside}" if inside else last
    return None, ""


def _open_archive(name: str, path: str, inside: str, options: SourceOptions) -> ImageSource:
    tar = path.lower().endswith(TARS) and not options.labels.ignore_source
    archive = open_archive(path, as_text(inside), options.spool_dir, is_label(options.label, asked=tar))
    try:
        beside = {split_sample(other)[0] for other in archive.others}
        parts = options.parts or (path.lower().endswith(TARS) and are_samples(archive.keys))
        if parts or any(split_sample(key)[0] in beside for key in archive.keys):
            return open_samples(name, [archive], options, os.path.dirname(path))
        base = archive.base
        order = image_order(archive.keys)
        keys = [archive.keys[index].removeprefix(base) for index in order]
        folders = [folder.removeprefix(base) for folder in archive.folders if folder.startswith(base)]
        tops: Collection[str] = {folder for folder in folders if folder and folder.count("/") < 2}
        chosen, tops = options.images_among(keys, tops, name)
        order, keys = order[chosen], [keys[index] for index in chosen.tolist()]
        images = ArchiveImages(keys, [archive], np.zeros_like(order), order)
        images.place = f"{name}/{base}".rstrip("/")
        images.others = [path.removeprefix(base) for path in archive.unread]
        return images.arrange(name, tops, archive.left_out, options)
    except BaseException:
        archive.close()
        raise


# Lists


def _open_list(name: str, options: SourceOptions) -> ImageSource:
    root, called = as_text(os.path.abspath(os.path.dirname(name))), os.path.basename(name)
    findings, before = options.findings, len(options.findings.skipped)
    texts: list[str | None] = []
    seen: dict[str, int] = {}
    states = array("q")
    for line, row in enumerate(read_lines(name, "a list of paths is needed"), 1):
        if not row.strip():
            continue
        found = _split_row(root, row.rstrip("\n"))
        if isinstance(found, str):
            shown = shorten(os.path.basename(found) if found.startswith("/") else found)
            error = (
                f"{name} line {line}: no file {shorten(found)}; paths are absolute, or relative to the "
                "list's folder. Correct it"
            )
            findings.leave_out(f"{called} line {line}", f"no file {shown}.", error)
            continue
        path, text, status = found
        if path in seen:
            raise SourceError(
                f"{name} line {line}: {row.strip()} is also in line {seen[path]}; each image is packed "
                "once. Remove one line."
            )
        seen[path] = line
        texts.append(text)
        states.extend((status.st_size, status.st_mtime_ns))
    if not seen:
        problem = "names no images; a list holds one path per line. Check the file."
        raise SourceError(f"{name}: {findings.none_used(before, 'lines names a file') or problem}")
    targets = ImageTargets(findings=findings)
    if any(text is not None for text in texts) and not options.labels.unwanted:
        if options.labels.ignore_source:
            raise UsageError(
                f"{name}: has labels, but labels= is given too; only one of them can be used. Drop one."
            )
        targets = options.number(name, [text or "" for text in texts], [*seen.values()], "line")
    folder = _common_folder(root, list(seen))
    sizes, times = np.array(states, np.int64).reshape(-1, 2).T.copy()
    images = FolderImages([path[len(folder) :] for path in seen], sizes, times, folder=folder)
    images.listed = True
    return images.describe(name, targets, {})


def _common_folder(root: str, paths: list[str]) -> str:
    """Return the deepest folder that holds all paths, with a trailing slash; `root` if all lie below it."""
    first, last = min(paths), max(paths)  # a common prefix of these two is one of all paths
    below = root.rstrip("/") + "/"
    if first.startswith(below) and last.startswith(below):
        return below
    return os.path.commonpath([os.path.dirname(first), os.path.dirname(last)]).rstrip("/") + "/"


def _split_row(root: str, row: str) -> tuple[str, str | None, os.stat_result] | str:
    """Split a line into absolute path, label or None, and file status; or only the path of a missing file."""
    ways: list[tuple[str, str | None]] = [(row.strip(), None)]
    if "\t" in row:
        path, _, last = row.rpartition("\t")
        ways = [(path.strip(), last.strip())]
    elif len(words := row.rsplit(None, 1)) == 2:
        ways.append((words[0].strip(), words[1]))
    for path, text in ways:
        # normpath keeps two leading slashes; POSIX permits a special meaning, which no current system has.
        absolute = "/" + os.path.normpath(os.path.join(root, path)).lstrip("/")
        for form in dict.fromkeys((absolute, normalize("NFC", absolute), normalize("NFD", absolute))):
            with suppress(OSError):
                return form, text, os.stat(on_disk(form))
    return ways[0][0]
