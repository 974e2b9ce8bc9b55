"""File names as text; which files are images; which folders are classes and splits, on disk and in archives.

Names are decoded as UTF-8, so a pack does not depend on the locale. Invalid bytes become lone surrogates
(Python's ``surrogateescape``) and are encoded back unchanged. Only this module interprets folders:

    cat/1.jpg  dog/a/2.jpg       class folders, by the rules of torchvision's ImageFolder: the classes are the
                                 sorted names of the top folders, whose images lie at any depth
    1.jpg  2.jpg                 a flat folder: no classes
    train/cat/1.jpg  test/...    splits (also Training, TEST, or train_images and test_images ...), if all top
                                 folders with images are splits; each is one of the above, and the classes of
                                 all splits are merged

checks/ finds folders that would become wrong classes.

Hidden files and folders (names that begin with a dot) are skipped, as are those that operating systems and
network drives leave behind (__MACOSX, @eaDir, lost+found, Thumbs.db ...).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.inputs.findings import Findings
from packer.path_text import as_text as as_text
from packer.path_text import compose
from packer.path_text import on_disk as on_disk
from packer.source_kinds import FRAMES_FIRST, IMAGES, VIDEOS
from packer.split_names import SPLIT_NAMES as SPLIT_NAMES
from packer.split_names import split_in as split_in
from packer.split_names import split_of as split_of
from packer.split_names import split_word as split_word

IMAGE_EXTENSIONS: frozenset[str] = frozenset(chain(*IMAGES.values()))
"""File extensions of images, in lower case; names may use any case."""

UNLABELED = -1
"""The label of an unlabeled image beside labeled ones, as in Hugging Face datasets."""

_LEFT_BEHIND = frozenset(
    (
        *("#recycle", "#snapshot", "$RECYCLE.BIN", "@Recently-Snapshot", "@Recycle", "@eaDir", "__MACOSX"),
        *("System Volume Information", "Thumbs.db", "desktop.ini", "lost+found"),
    )
)
"""Files and folders that operating systems and network drives leave behind."""
_SHOWN = 120
_LONGEST_SUFFIX = 12
_SHOWN_SUFFIXES = 3


def changed(path: str) -> SourceError:
    """Return the error for a file that changed while it was read."""
    return SourceError(
        f"{path}: was changed while it was read. Run the same command again once it is complete."
    )


def shorten(text: str) -> str:
    """Truncate text that a message quotes from a file."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text):,} characters)"


def examples(names: Iterable[str]) -> str:
    """Return two names for a message: "a.png and b.png"."""
    return " and ".join(map(shorten, islice(names, 2)))


def first_few(names: Sequence[str], most: int = 3) -> str:
    """Return the first names for a message: "ant, bee, cat ..."."""
    return ", ".join(map(shorten, names[:most])) + (" ..." if len(names) > most else "")


def is_hidden(name: str) -> bool:
    """Return True if a file or folder of this name (without its path) is skipped."""
    return name.startswith(".") or name in _LEFT_BEHIND


def split_folders(folders: Collection[str]) -> dict[str, str]:
    """Return folder -> split, if all folders say a split and are otherwise called alike; else {}.

    A single folder has to be called by the word alone.

    >>> split_folders(["train_images", "TEST_images"])
    {'train_images': 'train', 'TEST_images': 'test'}
    >>> split_folders(["trainA", "trainB", "testA", "testB"])
    {}
    """
    named = {folder: split for folder in folders if (split := split_in(folder))}
    others = {_without_split(folder) for folder in folders}
    alone = len(folders) == 1 and others != {""}
    return {} if alone or len(named) < len(folders) or len(others) > 1 else named


def _without_split(name: str) -> str:
    return name.replace(split_word(name), "", 1).lower()


def file_splits(
    paths: Sequence[str], named: Sequence[str | None], owners: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    """Return the images of each split, if every file is a split and there are two or more; else {}.

    named: the split of each file, or None. owners: the file of each image, int64 [N].
    Raises: UsageError if only some files are splits.
    """
    names = list(dict.fromkeys(named))
    if None in names and len(names) > 1:
        split = next(filter(None, names))
        raise UsageError(
            f"{paths[named.index(None)]}: its name is not that of a split, but {paths[named.index(split)]} "
            f"is called {split}; all files are splits, or none. Pass the files that belong together."
        )
    if len(names) < 2:
        return {}
    numbers = np.array([names.index(name) for name in named], np.int64)[owners]
    found = {str(name): np.flatnonzero(numbers == number) for number, name in enumerate(names)}
    return {name: members for name, members in found.items() if len(members)}


def is_image(name: str) -> bool:
    """Return True if a file of this name counts as an image."""
    dot = name.rfind(".")
    return dot > 0 and name[dot:].lower() in IMAGE_EXTENSIONS


def is_array(name: str) -> bool:
    """Return True if a file of this name counts as an array, in sources that may hold arrays."""
    return name[1:].lower().endswith(".npy")


def image_order(keys: list[str]) -> NDArray[np.int64]:
    """Return the order of ImageFolder: by class, then folder, then name; int64 [N], indices of `keys`."""
    order = sorted(range(len(keys)), key=lambda index: sort_key(keys[index]))
    return np.fromiter(order, np.int64, len(keys))


def sort_key(key: str) -> str:
    """Return the text by which `image_order` sorts a key."""
    # NUL sorts before every character of a name, so the joined string sorts like the three parts.
    folder, _, name = key.rpartition("/")
    return f"{folder.partition('/')[0]}\0{folder}\0{name}"


class FolderLayout(NamedTuple):
    """Labels, classes and splits that folders define.

    labels: class numbers, int64 [N], or UNLABELED; None, as `classes`, for flat folders.
    splits: name -> indices of its images, int64, ascending. parts: paths of the folders that hold class
    folders, with a trailing slash: [""], or folders of splits. empty: paths of class folders without images.
    """

    labels: NDArray[np.int64] | None
    classes: list[str] | None
    splits: dict[str, NDArray[np.int64]]
    parts: list[str]
    empty: list[str]


def folder_splits(
    subject: str, keys: list[str], folders: Collection[str], unlabeled: Collection[str] = ()
) -> dict[str, NDArray[np.int64]]:
    """Return the splits that top folders define; {} unless all top folders with images are splits.

    subject: name of the source in messages. keys: the images' paths, in `image_order`. folders: paths of the
    visible folders; only those at the top count. unlabeled: folders that are splits, whatever they are
    called. Raises: SourceError for a split without images, UsageError for two folders of the same split.
    """
    if any("/" not in key for key in keys):
        return {}
    held = {key.partition("/")[0] for key in keys}
    others = sorted(
        one for one in held.intersection(unlabeled) if not split_in(one) or not split_folders(held)
    )
    called = split_folders(held.difference(others))
    alike = set(map(_without_split, called))
    empty = {f for f in folders if "/" not in f and split_in(f) and _without_split(f) in alike}
    tops = sorted(held | empty)
    named = [top if top in others else str(split_in(top)) for top in tops]
    if not called:
        return {}
    if len(set(named)) < len(named):
        raise UsageError(
            f"{subject}: two of its folders ({', '.join(tops)}) are the same split. Put their images "
            "into one folder."
        )
    owners = np.fromiter((tops.index(key.partition("/")[0]) for key in keys), np.int64, len(keys))
    splits = {}
    for name in dict.fromkeys((*SPLIT_NAMES.values(), *others)):
        if name in named:
            splits[name] = np.flatnonzero(owners == named.index(name))
            if not len(splits[name]):
                folder = tops[named.index(name)]
                raise SourceError(
                    f"{subject}/{folder}: a split without images; each needs at least one. Add some, or "
                    "remove the folder."
                )
    return splits


def class_folders(
    subject: str,
    keys: list[str],
    folders: Collection[str],
    *,
    listed: Collection[str] = (),
    unlabeled: Collection[str] = (),
    findings: Findings | None = None,
) -> FolderLayout:
    """Return the labels, classes and splits that class folders, or a flat folder, define; in each split.

    subject: name of the source in messages. keys: the images' relative paths, in `image_order`.
    folders: relative paths of the visible folders, with or without images; only the first level matters, and
        below splits the second. listed: classes that may be empty. unlabeled: splits whose images all get
        UNLABELED. findings: notes folders that are one class, as their names differ in Unicode form.
    Raises: SourceError if there are no images, a split is empty, images lie both at the top and in folders,
        or only some splits have class folders. UsageError for an unknown split.
    """
    if not keys:
        raise no_images(subject)
    splits = folder_splits(subject, keys, folders, unlabeled)
    level = 1 if splits else 0
    unknown = unlabeled_splits(subject, splits, unlabeled)
    parts = [
        keys[members[0]].partition("/")[0] + "/" for name, members in splits.items() if name not in unknown
    ] or [""] * (not splits)
    classes: set[str] = set()
    flat: list[str] = []
    empty: list[str] = []
    for part in parts:
        inner = [key.removeprefix(part) for key in keys if key.startswith(part)]
        below = {f.removeprefix(part) for f in folders if f.startswith(part) and f.count("/") == level}
        found = _classes(f"{subject}/{part}".rstrip("/"), inner)
        full = set(map(compose, (*found, *listed)))
        empty += sorted(part + name for name in below if compose(name) not in full) if found else []
        classes |= found
        flat += [] if found else [part.rstrip("/")]
    if not classes:
        return FolderLayout(None, None, splits, parts, [])
    if flat:
        raise SourceError(
            f"{subject}/{flat[0]}: holds no class folders, but other splits do; all or no splits may. Sort "
            f"its images into class folders, or pass labels=Labels(unlabeled={split_in(flat[0])!r})."
        )
    forms = (findings or Findings()).compose_classes(sorted(classes))
    numbers = {name: number for number, name in enumerate(sorted(set(forms.values())))}
    labelled = np.ones(len(keys), np.bool_)
    for name in unknown:
        labelled[splits[name]] = False
    labels = np.full(len(keys), UNLABELED)
    for index in np.flatnonzero(labelled).tolist():
        labels[index] = numbers[forms[keys[index].split("/", level + 1)[level]]]
    return FolderLayout(labels, list(numbers), splits, parts, empty)


def unlabeled_splits(subject: str, splits: Collection[str], unlabeled: Collection[str]) -> set[str]:
    """Return the names of the splits that have no labels. Raises: UsageError for one that is no split."""
    unknown = {name if name in splits else split_in(name) or name for name in unlabeled}
    for name in sorted(unknown.difference(splits)):
        held = f"its splits are {', '.join(splits)}" if splits else "it has no splits, such as train and test"
        raise UsageError(
            f"{subject}: labels=Labels(unlabeled={name!r}) is not one of its splits; {held}. Pass one of "
            "its splits, or labels=Labels(unlabeled='all')."
        )
    return unknown


def _classes(place: str, keys: list[str]) -> set[str]:
    """Return the class folders of `place`; empty for a flat folder. Raises: SourceError."""
    held = {key.partition("/")[0] for key in keys if "/" in key}
    loose = next((key for key in keys if "/" not in key), None)
    if held and loose is not None:
        raise SourceError(
            f"{place}: holds images at its top ({loose}) and in folders ({min(held)}); all or none may be "
            "in class folders. Move some, or pass labels=."
        )
    return held


def no_images(subject: str, left_out: Mapping[str, int] | None = None) -> SourceError:
    """Return the error for a source without images. left_out: suffix -> number of its other files."""
    endings = ", ".join(sorted(IMAGE_EXTENSIONS))
    held = ", ".join(count_suffixes(left_out or {})[:_SHOWN_SUFFIXES])
    more = f" It holds {held}." if held else ""
    remedy = FRAMES_FIRST if {*VIDEOS}.intersection(left_out or ()) else "Check the path."
    return SourceError(f"{subject}: no images found; files ending in {endings} are read.{more} {remedy}")


def count_suffixes(left_out: Mapping[str, int]) -> list[str]:
    """Return counts of suffixes for messages, the most frequent first: "9 .txt"."""
    counts = sorted(left_out.items(), key=lambda item: (-item[1], item[0]))
    return [f"{count:,} {suffix or 'without a suffix'}" for suffix, count in counts]


def suffix_of(name: str) -> str:
    """Return a file's extension in lower case, with its dot; "" if it has none or a very long one."""
    ending = os.path.splitext(name)[1].lower()
    return ending if len(ending) <= _LONGEST_SUFFIX else ""
