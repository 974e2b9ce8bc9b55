"""Names of the files that rows of a pack are exported to.

A file is called as the row's key, its ending replaced: cat/1.jpg -> cat/1.png. Keys come from the pack, and a pack from anywhere:
each is checked before it is used as a path. Names without their endings are unique, so that masks can be called alike:

    cat/1.jpg, cat/1.bmp          cat/1.jpg.png, cat/1.bmp.png: keys that differ only in their endings keep them
    cat/1.jpg twice               cat/1.jpg.png, cat/1~2.png: packs that were merged may hold a key twice
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError
from packer.inputs.class_folders import SPLITS, is_hidden, is_image

MOST_FOLDERS = 100
"""Folders within each other that a key may name: Python makes and removes them by calls within each other."""

Spans = Sequence[tuple[int, int]]


def check_keys(subject: str, keys: Sequence[str], rows: NDArray[np.int64]) -> None:
    """Check that every key is a plain path below a folder. subject: the pack; rows: int64 [N], of the keys.

    Raises FormatError for an empty or absolute one, one that holds a NUL, one of whose parts is empty, "." or "..",
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
    """Check that the disk takes names of such a length.

    root: an existing folder below which they will lie; spare: bytes of the folders between. Raises FormatError.
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

    Splits whose folders packer convert does not know, or that share or leave out rows, change nothing. rows: int64 [N], rising.
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
    """Return file names without endings for checked keys: all different, and none a folder's name once it has its ending."""
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
    """Return the stems with the endings of their keys if ``endings`` has those, else with the first of these."""
    names = []
    for key, stem in zip(keys, stems, strict=True):
        own = key[len(stem) :] if key.startswith(stem) else ""
        names.append(stem + (own if own.lower() in endings else endings[0]))
    return names


def inner_folders(names: Sequence[str]) -> tuple[set[str], list[str]]:
    """Return the split folders at the top, empty if there are none, and for each file the folder below that it lies in, or ""."""
    parts = [name.split("/") for name in names]
    tops = {part[0] if len(part) > 1 else "" for part in parts}
    splits = tops if SPLITS.issuperset(tops) else set()
    depth = 1 if splits else 0
    return splits, [part[depth] if len(part) > depth + 1 else "" for part in parts]


def hidden(names: Sequence[str]) -> list[str]:
    """Return the names that packer convert passes over."""
    return [name for name in names if any(map(is_hidden, name.split("/")))]


def stem_of(key: str) -> str:
    """Return a key without the ending of an image."""
    return os.path.splitext(key)[0] if is_image(key.rpartition("/")[2]) else key
