"""Rows of a pack as files: what they are called, and what packer convert will make of a folder that holds them.

A file is called as the row's key, its ending replaced: cat/1.jpg -> cat/1.png. Keys come from the pack, and a pack from anywhere:
each is checked before it is used as a path. Names without their endings are unique, so that masks can be called alike:

    cat/1.jpg, cat/1.bmp          cat/1.jpg.png, cat/1.bmp.png: keys that differ only in their endings keep them
    cat/1.jpg twice               cat/1.jpg.png, cat/1~2.png: packs that were merged may hold a key twice
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.convert.order import arrange
from packer.errors import FormatError, SourceError
from packer.inputs.layout import (
    SPLITS,
    Layout,
    class_folders,
    folder_splits,
    image_order,
    is_hidden,
    is_image,
)

MOST_FOLDERS = 100
"""Folders within each other that a key may name: Python makes and removes them by calls within each other."""

Spans = Sequence[tuple[int, int]]


def check_keys(subject: str, keys: Sequence[str], rows: NDArray[np.int64]) -> None:
    """See that every key is a plain path below a folder. subject: the pack; rows: int64 [N], of the keys.

    Raises: FormatError for an empty or absolute one, one that holds a NUL, one of whose parts is empty, "." or "..",
        and one of MOST_FOLDERS folders or more.
    """
    for key, row in zip(keys, rows.tolist(), strict=True):
        if "\0" in key or not {"", ".", ".."}.isdisjoint(key.split("/")):
            raise FormatError(
                f"{subject}: the key of row {row} is {key!r}; only plain paths below a folder are made into files."
                " Nothing was written."
            )
        if key.count("/") >= MOST_FOLDERS:
            raise FormatError(
                f"{subject}: the key of row {row} lies {key.count('/'):,} folders deep; below {MOST_FOLDERS} are made."
                " Nothing was written."
            )


def check_lengths(
    subject: str, root: str, names: Sequence[str], keys: Sequence[str], rows: NDArray[np.int64], *, spare: int
) -> None:
    """See that the disk takes names of such a length.

    root: an existing folder below which they will lie; spare: bytes of the folders between. Raises: FormatError.
    """
    longest, path = os.pathconf(root, "PC_NAME_MAX"), os.pathconf(root, "PC_PATH_MAX")
    room = path - len(os.fsencode(os.path.abspath(root))) - spare
    for name, key, row in zip(names, keys, rows.tolist(), strict=True):
        found = os.fsencode(name)
        if len(found) > room or max(map(len, found.split(b"/"))) > longest:
            shown = key if len(key) <= 80 else key[:77] + "..."
            raise FormatError(
                f"{subject}: the key of row {row} is {shown!r}, {len(key):,} characters; {root} takes names of {longest} bytes,"
                f" and paths of {path:,}. Pass a shorter folder, or convert the images under shorter names."
            )


def in_split_folders(
    keys: Sequence[str], rows: NDArray[np.int64], splits: Mapping[str, Spans]
) -> Sequence[str]:
    """Put the split's folder before each key, unless all keys begin with it already.

    Splits that packer convert would not know as folders, or that share or leave out rows, are left alone. rows: int64 [N], rising.
    """
    owners = np.full(len(rows), -1)
    shared = False
    for number, spans in enumerate(splits.values()):
        for start, stop in spans:
            own = slice(*np.searchsorted(rows, (start, stop)).tolist())
            shared = shared or bool((owners[own] >= 0).any())
            owners[own] = number
    if shared or not splits or (owners < 0).any() or not SPLITS.issuperset(splits):
        return keys
    names = [list(splits)[owner] for owner in owners.tolist()]
    if all(key.startswith(f"{name}/") for key, name in zip(keys, names, strict=True)):
        return keys
    return [f"{name}/{key}" for key, name in zip(keys, names, strict=True)]


def file_stems(keys: Sequence[str], ending: str) -> list[str]:
    """The names of files without their endings, of checked keys, all different, none that of a folder once it has its ending."""
    shared = Counter(map(stem_of, keys))
    folders = {key[:at] for key in keys for at, letter in enumerate(key) if letter == "/"}
    used: set[str] = set()
    numbers: Counter[str] = Counter()
    stems = []
    for key in keys:
        own = stem_of(key)
        stem = own if shared[own] == 1 else key
        while stem in used or stem + ending in folders:
            numbers[own] += 1
            stem = f"{own}~{numbers[own] + 1}"
        used.add(stem)
        stems.append(stem)
    return stems


def file_names(keys: Sequence[str], stems: Sequence[str], endings: Sequence[str]) -> list[str]:
    """The stems with the endings that their keys have, if they are among ``endings``, else with the first of these."""
    names = []
    for key, stem in zip(keys, stems, strict=True):
        own = key[len(stem) :] if key.startswith(stem) else ""
        names.append(stem + (own if own.lower() in endings else endings[0]))
    return names


class Seen(NamedTuple):
    """What packer convert makes of a folder. order: int64 [N], the files as it sorts them; layout: of those, in that order."""

    order: NDArray[np.int64]
    layout: Layout

    def labels(self) -> NDArray[np.int64] | None:
        """The label of each file, int64 [N], in the order of the names; None if folders are no classes."""
        if self.layout.labels is None:
            return None
        labels = np.empty_like(self.layout.labels)
        labels[self.order] = self.layout.labels
        return labels

    def rows(self, seed: int | None) -> tuple[NDArray[np.int64], dict[str, tuple[int, int]]]:
        """Which file each row of the new pack will hold, int64 [N], and the rows of its splits. seed: None: not shuffled."""
        members = self.layout.splits or {"": np.arange(len(self.order))}
        arranged = arrange(members, shuffle=seed is not None, seed=seed or 0)
        return self.order[arranged.samples[:]], arranged.splits


def seen_by_convert(names: list[str], *, labelled: bool) -> Seen | None:
    """What packer convert will make of files of these names. labelled: with --labels. None if it would refuse them."""
    order = image_order(names)
    keys = [names[index] for index in order.tolist()]
    parents = {key.rpartition("/")[0] for key in keys}
    parts = [parent.split("/") for parent in parents if parent]
    folders = {"/".join(part[:depth]) for part in parts for depth in (1, 2)}
    if labelled:
        return Seen(order, Layout(None, None, folder_splits("", keys, folders)))
    try:
        return Seen(order, class_folders("", keys, folders))
    except SourceError:
        return None


def hidden(names: Sequence[str]) -> list[str]:
    """Those that packer convert passes over."""
    return [name for name in names if any(map(is_hidden, name.split("/")))]


def stem_of(key: str) -> str:
    """A key without the ending of an image."""
    return os.path.splitext(key)[0] if is_image(key.rpartition("/")[2]) else key
