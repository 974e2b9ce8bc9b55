"""Names of files: as text, whatever the locale; which are images; and what a folder, or a folder in an archive, means.

Names are UTF-8, so that a pack does not depend on the locale. Bytes that are not are lone surrogates in the text (Python's
``surrogateescape``), and come back as they were. What folders mean is decided here alone:

    cat/1.jpg  dog/a/2.jpg       class folders, by the rules of torchvision's ImageFolder: the classes are the
                                 sorted names of the folders at the top, their images lie below them at any depth
    1.jpg  2.jpg                 a flat folder: no classes
    train/cat/1.jpg  test/...    splits, where no other folder lies beside them: each is one of the above, and
                                 their classes are put together

Hidden files and folders (their names begin with a dot) are skipped, and __MACOSX, which macOS adds to zip
files.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.pixels.image_decoder import FORMATS
from packer.sentence import Option

IMAGE_EXTENSIONS: frozenset[str] = frozenset(ending for known in FORMATS for ending in known.endings)
"""What an image's name ends in, whichever the case."""

_SPLIT_ORDER = ("train", "val", "valid", "validation", "test")
SPLITS = frozenset(_SPLIT_ORDER)
"""Names of folders that are parts of a data set, not classes."""

_SHOWN = 120


def as_text(name: str | bytes) -> str:
    """Decode a file name, or a word of the command line, as UTF-8; a str is one that Python has decoded by the locale."""
    try:
        data = os.fsencode(name)
    except UnicodeEncodeError:
        data = on_disk(str(name))  # typed in a program: no locale has decoded it
    return data.decode("utf-8", "surrogateescape")


def on_disk(path: str) -> bytes:
    """Encode a path for the system; path: as `as_text` gives it."""
    return path.encode("utf-8", "surrogateescape")


def changed(path: str) -> SourceError:
    """Make the error for a file that was another one when reading it began."""
    return SourceError(f"{path}: was changed while it was read. Run the same command again when it is whole.")


def shorten(text: str) -> str:
    """Cut a text from a file, so that a message which quotes it stays one that can be read."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text):,} characters)"


def is_hidden(name: str) -> bool:
    """Say whether a file or folder of this name, without its path, is skipped."""
    return name.startswith(".") or name == "__MACOSX"


def is_image(name: str) -> bool:
    """Say whether a file of this name is taken for an image."""
    dot = name.rfind(".")
    return dot > 0 and name[dot:].lower() in IMAGE_EXTENSIONS


def is_array(name: str) -> bool:
    """Say whether a file of this name is taken for an array, where arrays are looked for."""
    return name[1:].lower().endswith(".npy")


def image_order(keys: list[str]) -> NDArray[np.int64]:
    """Sort as ImageFolder does: by class, then folder, then name. Returns: int64 [N], indices of keys."""

    # NUL sorts before everything that a name may hold, so one string sorts like the three.
    def parts(index: int) -> str:
        folder, _, name = keys[index].rpartition("/")
        return f"{folder.partition('/')[0]}\0{folder}\0{name}"

    return np.fromiter(sorted(range(len(keys)), key=parts), np.int64, len(keys))


class FolderLayout(NamedTuple):
    """Labels, classes and splits that folders stand for.

    labels: int64 [N], numbering classes, or None for both; splits: name -> its images, int64, rising.
    """

    labels: NDArray[np.int64] | None
    classes: list[str] | None
    splits: dict[str, NDArray[np.int64]]


def folder_splits(subject: str, keys: list[str], folders: Collection[str]) -> dict[str, NDArray[np.int64]]:
    """Return the splits that the folders at the top are, {} if they are none.

    subject: what to call the source in messages; keys: the images' paths, in `image_order`; folders: at the top, not hidden, as
    paths below it. Raises: SourceError when a split has no images.
    """
    tops = {folder for folder in folders if "/" not in folder}
    if not tops or not SPLITS.issuperset(tops) or any("/" not in key for key in keys):
        return {}
    names = sorted(tops, key=_SPLIT_ORDER.index)
    number = {name: k for k, name in enumerate(names)}
    owners = np.fromiter((number[key.partition("/")[0]] for key in keys), np.int64, len(keys))
    splits = {name: np.flatnonzero(owners == k) for name, k in number.items()}
    empty = next((name for name, members in splits.items() if not len(members)), None)
    if empty is not None:
        raise SourceError(
            f"{subject}/{empty}: a split without images; each needs some. Add some, or remove the folder."
        )
    return splits


def class_folders(
    subject: str,
    keys: list[str],
    folders: Collection[str],
    *,
    listed: Collection[str] = (),
    empty: list[str] | None = None,
) -> FolderLayout:
    """Decide whether images lie in class folders or in one flat folder, in each split if there are some.

    subject: what to call the source in messages; keys: the images' paths below it, in `image_order`.
    folders: paths of the folders below it that are not hidden, whether or not they hold images; only the first level matters,
        and under splits the second. listed: classes that may have no images.
    empty: takes the paths of class folders without images that are not listed; None: the first of them is an error.
    Raises: SourceError when there are no images, some class or split has none, they lie both at the top and in folders, or some
        splits have class folders and others none.
    """
    if not keys:
        raise no_images(subject)
    splits = folder_splits(subject, keys, folders)
    if not splits:
        labels, classes = _classes(subject, "", keys, {f for f in folders if "/" not in f}, listed, empty)
        return FolderLayout(labels, classes, {})
    classes_found: set[str] = set()
    flat: list[str] = []
    for name, members in splits.items():
        inner = [keys[index].partition("/")[2] for index in members]
        below = {f.partition("/")[2] for f in folders if f.startswith(name + "/") and f.count("/") == 1}
        _, found = _classes(subject, f"{name}/", inner, below, listed, empty)
        classes_found.update(found or ())
        flat += [] if found else [name]
    if not classes_found:
        return FolderLayout(None, None, splits)
    if flat:
        raise SourceError(
            f"{subject}/{flat[0]}: holds no class folders, as other splits do; all or none may. Sort its images into classes."
        )
    classes = sorted(classes_found)
    numbers = {name: number for number, name in enumerate(classes)}
    labels = np.fromiter((numbers[key.split("/", 2)[1]] for key in keys), np.int64, len(keys))
    return FolderLayout(labels, classes, splits)


def _classes(
    subject: str,
    split: str,
    keys: list[str],
    folders: Collection[str],
    listed: Collection[str],
    empty: list[str] | None,
) -> tuple[NDArray[np.int64] | None, list[str] | None]:
    """Return labels, int64 [N], and the classes they number; (None, None) for a flat folder. split: its path, or ""."""
    tops = [key.partition("/")[0] for key in keys if "/" in key]
    if not tops:
        return None, None
    if len(tops) < len(keys):
        loose = next(key for key in keys if "/" not in key)
        raise SourceError(
            f"{subject}/{split}".rstrip("/")
            + f": holds images at its top ({loose}) and in folders ({tops[0]}); all or none may be in "
            "class folders. Move some, or pass ",
            Option("labels"),
            ".",
        )
    classes = sorted(set(tops))
    without = sorted(set(folders).difference(classes, listed))
    if without and empty is None:
        raise SourceError(
            f"{subject}/{split}{without[0]}: a class folder without images; "
            "each needs at least one. Add some, remove the folder, or pass ",
            Option("on_error", "skip"),
            ".",
        )
    if empty is not None:
        empty += [split + name for name in without]
    numbers = {name: number for number, name in enumerate(classes)}
    return np.fromiter((numbers[top] for top in tops), np.int64, len(keys)), classes


def no_images(subject: str) -> SourceError:
    """Make the error for a source in which nothing is taken for an image."""
    endings = ", ".join(sorted(IMAGE_EXTENSIONS))
    return SourceError(f"{subject}: no images found; files ending in {endings} are read. Check the path.")


def notes_on(keys: list[str], labels_given: bool, classes: list[str] | None) -> list[str]:
    """Collect what a user may not expect about these images, a sentence each."""
    notes: list[str] = []
    if not labels_given:
        notes.append(
            "The images are not in class folders, so the pack has no labels; pass "
            + Option("labels")
            + " to add some."
        )
    if classes is not None and len(classes) == 1:
        notes.append(f"All images are in one class folder ({classes[0]}).")
    stems: dict[str, str] = {}
    twins = 0
    pair = ("", "")
    for key in keys:
        folder, slash, name = key.rpartition("/")
        first = stems.setdefault(f"{folder}{slash}{name.rpartition('.')[0]}", key)
        if first is not key:
            twins += 1
            pair = pair if twins > 1 else (first, key)
    if twins:
        notes.append(
            f"{pair[0]} and {pair[1]} differ only in their extension, and both are packed; "
            f"there are {twins:,} such pairs."
            if twins > 1
            else f"{pair[0]} and {pair[1]} differ only in their extension, and both are packed."
        )
    return notes
