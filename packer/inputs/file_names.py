"""Names of files: as text, whatever the locale; which are images; and what a folder, or a folder in an archive, means.

Names are UTF-8, so that a pack does not depend on the locale. Bytes that are not are lone surrogates in the text (Python's
``surrogateescape``), and come back as they were. What folders mean is decided here alone:

    cat/1.jpg  dog/a/2.jpg       class folders, by the rules of torchvision's ImageFolder: the classes are the
                                 sorted names of the folders at the top, their images lie below them at any depth
    1.jpg  2.jpg                 a flat folder: no classes
    train/cat/1.jpg  test/...    splits (also Training, TEST, seg_train ...), where no other folder lies beside them: each is one of
                                 the above, and their classes are put together

Folders that would make wrong classes are an error: train and test beside other folders, images beside masks, and folders that all
hold the same folders (fold1/cat, fold1/dog, fold2/cat, fold2/dog).

Hidden files and folders (their names begin with a dot) are skipped, and what systems leave behind: __MACOSX, Thumbs.db, desktop.ini.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.errors import SourceError, UsageError
from packer.path_text import as_text as as_text
from packer.path_text import on_disk as on_disk
from packer.sentence import Option, Sentence
from packer.source_kinds import IMAGES

IMAGE_EXTENSIONS: frozenset[str] = frozenset(chain(*IMAGES.values()))
"""What an image's name ends in, whichever the case."""

SPLIT_NAMES = {
    **{"train": "train", "training": "train"},
    **{name: name for name in ("val", "valid", "validation", "dev", "eval")},
    **{"test": "test", "testing": "test"},
}
"""Names of folders that are parts of a data set, not classes, in lower case, and of their splits; in the order of the splits."""

_SPLIT_BEGUN = re.compile(rf"({'|'.join(SPLIT_NAMES)})(?![A-Za-z])", re.IGNORECASE)
_SPLIT_PREFIX = "seg_"  # of the Intel scenes, seg_train and seg_test
_PICTURES = frozenset(("image", "images", "img", "imgs", "jpegimages"))
_MASKS = frozenset(
    ("annotations", "ground_truth", "gt", "labels", "mask", "masks", "segmentation", "trimaps")
)
_LEFT_BEHIND = frozenset(("__MACOSX", "Thumbs.db", "desktop.ini"))
_SHOWN = 120
_SHOWN_SUFFIXES = 8
_MASK_SUFFIXES = ("_mask", "_masks", "_seg", "_segmentation", "_gt", "_matte")
_LONGEST_SUFFIX = 12


def changed(path: str) -> SourceError:
    """Make the error for a file that was another one when reading it began."""
    return SourceError(f"{path}: was changed while it was read. Run the same command again when it is whole.")


def shorten(text: str) -> str:
    """Cut a text from a file, so that a message which quotes it stays one that can be read."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text):,} characters)"


def is_hidden(name: str) -> bool:
    """Say whether a file or folder of this name, without its path, is skipped."""
    return name.startswith(".") or name in _LEFT_BEHIND


def split_called(folder: str) -> str | None:
    """Return the split that a folder of this name is, None if it is none: "Training" -> "train", "seg_test" -> "test"."""
    return SPLIT_NAMES.get(folder.lower().removeprefix(_SPLIT_PREFIX))


def split_begun(name: str) -> str | None:
    """Return the split that a name begins with, None if it does with none: "train-00000.tar" -> "train", "trainers" -> None."""
    found = _SPLIT_BEGUN.match(name)
    return None if found is None else SPLIT_NAMES[found[1].lower()]


def split_of(path: str) -> str | None:
    """Return the split that a file's name, or the folder it lies in, begins with: "data/train-00000.tar" -> "train"."""
    for word in reversed(path.split("/")[-2:]):
        if found := split_begun(word):
            return found
    return None


def file_splits(
    paths: Sequence[str], named: Sequence[str | None], owners: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    """Return the splits that files are, {} unless each is one and there are two or more.

    named: the split of each file, or None; owners: int64 [N], the file of each image. Raises: UsageError where files of training and of
    another split lie beside one of none.
    """
    names = list(dict.fromkeys(named))
    if None in names and "train" in names and len(names) > 2:
        raise UsageError(
            f"{paths[named.index(None)]}: is called as no split, and {paths[named.index('train')]} as train; all files are splits, or "
            "none. Pass those that belong together."
        )
    if None in names or len(names) < 2:
        return {}
    numbers = np.array([names.index(name) for name in named], np.int64)[owners]
    found = {str(name): np.flatnonzero(numbers == number) for number, name in enumerate(names)}
    return {name: members for name, members in found.items() if len(members)}


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
    paths below it. Raises: SourceError when a split has no images, UsageError when two folders are one split.
    """
    folder_of = _split_folders(subject, folders)
    if not folder_of or any("/" not in key for key in keys):
        return {}
    number = {folder: k for k, folder in enumerate(folder_of.values())}
    owners = np.fromiter((number[key.partition("/")[0]] for key in keys), np.int64, len(keys))
    splits = {name: np.flatnonzero(owners == number[folder]) for name, folder in folder_of.items()}
    empty = next((name for name, members in splits.items() if not len(members)), None)
    if empty is not None:
        raise SourceError(
            f"{subject}/{folder_of[empty]}: a split without images; each needs some. Add some, or remove the folder."
        )
    return splits


def _split_folders(subject: str, folders: Collection[str]) -> dict[str, str]:
    """Return split -> its folder, in the order of splits; {} unless every folder at the top is one. Raises: UsageError."""
    tops = sorted(folder for folder in folders if "/" not in folder)
    found: dict[str, str] = {}
    for top in tops:
        name = split_called(top)
        if name is None:
            return {}
        if name in found:
            raise UsageError(
                f"{subject}: its folders {found[name]} and {top} are both the split {name}; each split is one folder. "
                "Put their images into one."
            )
        found[name] = top
    return {name: found[name] for name in dict.fromkeys(SPLIT_NAMES.values()) if name in found}


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
        splits have class folders and others none. UsageError when folders are parts of a data set, or of samples, and no classes.
    """
    if not keys:
        raise no_images(subject)
    splits = folder_splits(subject, keys, folders)
    if not splits:
        tops = {f for f in folders if "/" not in f}
        _check_beside(subject, tops)
        labels, classes = _classes(subject, "", keys, tops, listed, empty)
        return FolderLayout(labels, classes, {})
    classes_found: set[str] = set()
    flat: list[str] = []
    for members in splits.values():
        folder = keys[members[0]].partition("/")[0]
        inner = [keys[index].partition("/")[2] for index in members]
        below = {f.partition("/")[2] for f in folders if f.startswith(folder + "/") and f.count("/") == 1}
        _, found = _classes(subject, f"{folder}/", inner, below, listed, empty)
        if found is not None and len(found) == 1 and split_called(found[0]):
            raise UsageError(
                f"{subject}/{folder}: holds a folder {found[0]} and nothing else, which would be its only class; the folders in a "
                f"split are classes. Move what is in {folder}/{found[0]} up into {folder}."
            )
        classes_found.update(found or ())
        flat += [] if found else [folder]
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


def _check_beside(subject: str, tops: Collection[str]) -> None:
    """Raise UsageError if training and test folders lie beside folders that are no splits, or all are called nearly as splits are."""
    words = {top: split_begun(top) for top in sorted(tops)}
    if len(set(words.values())) > 1 and "train" in words.values() and None not in words.values():
        shown = list(words)[:3]
        raise UsageError(
            f"{subject}: its folders {' and '.join(shown)} are called nearly as splits are; they would be classes. "
            f"Call them {' and '.join(str(words[top]) for top in shown)}, or pass one of them."
        )
    called = {top: split_called(top) for top in sorted(tops)}
    parts = [top for top, name in called.items() if name]
    others = [top for top, name in called.items() if not name]
    if others and "train" in called.values() and len(parts) > 1:
        raise UsageError(
            f"{subject}: holds {' and '.join(parts)}, which are splits, and {others[0]} beside them; splits have no other folders "
            f"beside them. Pass {subject}/{parts[-1]} alone, or move {' and '.join(others[:3])} away."
        )


def _check_classes(place: str, keys: list[str], tops: Collection[str], listed: Collection[str]) -> None:
    """Raise UsageError if folders are parts of samples, or of the data set, and no classes.

    place: what holds the folders; keys: of its images, tops: of folders, both below it; all images lie in folders. listed: what the
    user calls classes.
    """
    held = sorted({key.partition("/")[0] for key in keys})
    if set(held) <= set(listed):
        return
    are_classes = Option("classes", ",".join(held))
    pictures = next((top for top in held if top.lower() in _PICTURES), None)
    if pictures is not None and len(held) == 1 < len({*held, *tops}):
        beside = min(top for top in tops if top != pictures)
        raise UsageError(
            f"{place}: {pictures} lies beside {beside}, which holds no images, and would be the only "
            f"class. Pass {place}/{pictures}, or {are_classes}."
        )
    masks = _masks_of(pictures, keys) if pictures is not None else None
    if masks is not None:
        raise UsageError(
            f"{place}: {pictures} lies beside {masks}, as images beside their masks do; they would be "
            f"classes. Pass {place}/{pictures}, and masks by "
            f"{Option('pairs', {'mask': f'{place}/{masks}'})}, or {are_classes}."
        )
    if any(key.count("/") < 2 for key in keys):
        return
    inner: dict[str, set[str]] = {top: set() for top in held}
    for key in keys:
        top, name, _ = key.split("/", 2)
        inner[top].add(name)
    first, *rest = inner.values()
    if not rest and len(first) > 1 and all(map(split_called, first)):
        raise UsageError(
            f"{place}: holds the folder {held[0]} alone, which would be the only class, and its folders "
            f"({', '.join(sorted(first))}) are splits. Pass {place}/{held[0]}."
        )
    # One folder in each ("n01443537/images") says nothing: the folders above it are the classes then.
    if rest and len(first) > 1 and all(names == first for names in rest):
        some = ", ".join(sorted(first)[:2]) + (" ..." if len(first) > 2 else "")
        raise UsageError(
            f"{place}: {held[0]} and {held[1]} hold the same folders ({some}), as parts of a data set, "
            "or images and their masks, do; classes are the folders at the top. Put the parts into "
            f"one folder, and draw splits with {Option('split', 'train=0.9,val=0.1')}, or pass one of "
            f"them, with masks by {Option('pairs', {'mask': f'{place}/{held[1]}'})}, or if they are "
            f"the classes, {are_classes}."
        )


def _masks_of(pictures: str, keys: list[str]) -> str | None:
    """Return the folder that holds masks of the images in `pictures`: it is called so, or has files of the same names."""
    stems = {os.path.splitext(key)[0].partition("/")[2] for key in keys if key.startswith(pictures + "/")}
    for key in keys:
        top, _, name = key.partition("/")
        if top != pictures and (top.lower() in _MASKS or os.path.splitext(name)[0] in stems):
            return top
    return None


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
            f"{Option('labels')}.",
        )
    _check_classes(f"{subject}/{split}".rstrip("/"), keys, folders, listed)
    classes = sorted(set(tops))
    without = sorted(set(folders).difference(classes, listed))
    if without and empty is None:
        raise SourceError(
            f"{subject}/{split}{without[0]}: a class folder without images; each needs at least one. "
            f"Add some, remove the folder, or pass {Option('on_error', 'skip')}."
        )
    if empty is not None:
        empty += [split + name for name in without]
    numbers = {name: number for number, name in enumerate(classes)}
    return np.fromiter((numbers[top] for top in tops), np.int64, len(keys)), classes


def no_images(subject: str) -> SourceError:
    """Make the error for a source in which nothing is taken for an image."""
    endings = ", ".join(sorted(IMAGE_EXTENSIONS))
    return SourceError(f"{subject}: no images found; files ending in {endings} are read. Check the path.")


def suffix_of(name: str) -> str:
    """Return what a file's name ends in, in lower case, dot included; "" without one, or with none that is short."""
    ending = os.path.splitext(name)[1].lower()
    return ending if len(ending) <= _LONGEST_SUFFIX else ""


def note_left_out(counts: Mapping[str, int]) -> list[str]:
    """Say which files of a folder are no images that are read; none if there are none. counts: suffix -> files."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{count:,} {suffix or 'without a suffix'}" for suffix, count in ordered[:_SHOWN_SUFFIXES]]
    if rest := sum(count for _, count in ordered[_SHOWN_SUFFIXES:]):
        shown.append(f"{rest:,} others")
    return [f"Not read as images: {', '.join(shown)}."] if shown else []


def notes_on(keys: list[str], labels_given: bool, classes: list[str] | None) -> list[str]:
    """Collect what a user may not expect about these images, a sentence each."""
    notes: list[str] = []
    if not labels_given:
        notes.append(
            Sentence(
                f"The images are not in class folders, so the pack has no labels; pass {Option('labels')} to add "
                "some."
            )
        )
    if classes is not None and len(classes) == 1:
        notes.append(f"All images are in one class folder ({classes[0]}).")
    stems: dict[str, str] = {}
    twins = []
    for key in keys:
        folder, slash, name = key.rpartition("/")
        first = stems.setdefault(f"{folder}{slash}{name.rpartition('.')[0]}", key)
        if first is not key:
            twins.append(f"{first} and {key}")
    if twins:
        more = f"; there are {len(twins):,} such pairs" if len(twins) > 1 else ""
        notes.append(f"{twins[0]} differ only in their extension, and both are packed{more}.")
    masks = [
        (key, stems[image])
        for stem, key in stems.items()
        if stem.endswith(_MASK_SUFFIXES) and (image := stem.rpartition("_")[0]) in stems
    ]
    if masks:
        mask, image = masks[0]
        notes.append(
            Sentence(
                f"{units.count(len(masks), 'image')} called as another with a word for masks behind it, such as "
                f"{mask} beside {image}: packed as images. If they are masks, move them into a folder of their "
                f"own, and pass it by {Option('pairs', {'mask': 'DIR'})}."
            )
        )
    return notes


def notes_on_classes(classes: Sequence[str]) -> list[str]:
    """Say which classes a user may take for others, a sentence each: by their spelling, or their number."""
    notes: list[str] = []
    seen: dict[str, str] = {}
    for name in classes:
        first = seen.setdefault(same_for_people(name), name)
        if first is not name:
            notes.append(
                f"The classes {first!r} and {name!r} differ only in case, in spaces or in how Unicode writes them; they are two classes."
            )
            break
    numbers = [int(name[:20]) for name in classes if name.isascii() and name.isdecimal()]
    if len(numbers) == len(classes) and numbers != list(range(len(numbers))):
        place = next(k for k, number in enumerate(numbers) if number != k)
        notes.append(
            f"The classes are numbers in the order of texts ({', '.join(classes[:3])} ...), and labels are other ones: class "
            f"{classes[place]} has the label {place}."
        )
    return notes


def notes_on_splits(layout: FolderLayout) -> list[str]:
    """Say which classes splits have that the first of them has not."""
    labels, classes, splits = layout
    if labels is None or classes is None or len(splits) < 2:
        return []
    (first, members), *others = splits.items()
    known = set(np.unique(labels[members]).tolist())
    for name, rows in others:
        new = sorted(set(np.unique(labels[rows]).tolist()) - known)
        if new:
            more = f" and {len(new) - 1:,} more" if len(new) > 1 else ""
            return [
                f"The split {name} has the class {classes[new[0]]}{more}, of which {first} has no images."
            ]
    return []


def same_for_people(name: str) -> str:
    """Return a text that is equal for names which people read as the same."""
    return " ".join(unicodedata.normalize("NFC", name).casefold().split())
