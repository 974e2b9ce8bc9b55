"""Names of files compared between folders: do files of two folders belong together in pairs?

Names are compared without the parts that are equal in all files of a folder: case_000_0000.png,
case_001_0000.png ... and case_000.png, case_001.png ... are the same cases.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from functools import cached_property
from itertools import islice

from packer.inputs.pair_names import common_beginning

_SHARE = 0.9
"""Least share of the files of the smaller folder that have a partner."""
_FEWEST = 2
"""Fewest files of a folder that is compared."""
_LOOKED_AT = 256  # names of a folder that are compared
_NUMBER = re.compile(r"[0-9]+")
_LAST_NUMBER = re.compile(r"[^A-Za-z0-9/]+[0-9]+\Z")


class FolderNames:
    """Names of the images in a folder, as they can be compared with those of other folders.

    files: name without the shared parts -> key of one of its images.
    """

    def __init__(self, top: str, keys: Iterable[str]) -> None:
        """top: the folder, with a trailing slash; keys: its images."""
        stems = {key[len(top) :].rpartition(".")[0]: key for key in keys}
        folders = {stem.rpartition("/")[0] for stem in stems}
        above = os.path.commonpath(folders) if folders else ""
        names = {stem.rpartition("/")[2] for stem in stems}
        before, after = _shared(names)
        self.files: dict[str, str] = {}
        for stem, key in stems.items():
            folder, _, name = stem[len(above) :].rpartition("/")
            self.files[f"{folder.lstrip('/')}/{name[before : len(name) - after]}"] = key

    @cached_property
    def samples(self) -> dict[str, str]:
        """Like `files`, without the number that ends each name: of several files of a sample, the first."""
        found: dict[str, str] = {}
        if all(_LAST_NUMBER.search(name) for name in self.files):
            for name, key in self.files.items():
                found.setdefault(_LAST_NUMBER.sub("", name), key)
        return found

    @cached_property
    def numbered(self) -> bool:
        """True if most names differ in numbers or single letters, as in folders with nothing in common."""
        names = [name.rpartition("/")[2] for name in islice(self.files, _LOOKED_AT)]
        forms = {_NUMBER.sub("0", name) if len(name) > 2 else "" for name in names}
        return len(forms) <= max(1, len(names) / 2)

    def partners(self, other: FolderNames) -> list[tuple[str, str]]:
        """Return some pairs of images if nearly all of the smaller folder's have a partner; else []."""
        for mine in filter(None, (self.files, self.samples)):
            for theirs in filter(None, (other.files, other.samples)):
                fewer, more = sorted((mine, theirs), key=len)
                some = list(islice(fewer, 0, None, -(-len(fewer) // _LOOKED_AT)))
                found = [name for name in some if name in more]
                if len(fewer) >= _FEWEST and len(found) >= _SHARE * len(some):
                    return [(mine[name], theirs[name]) for name in found]
        return []


def _shared(stems: Collection[str]) -> tuple[int, int]:
    """Return the lengths of the beginning and the end that all names share; digits are not cut off."""
    if len(stems) < _FEWEST:
        return 0, 0
    before = len(common_beginning(stems).rstrip("0123456789"))
    after = len(common_beginning([stem[before:][::-1] for stem in stems]).rstrip("0123456789"))
    return before, after
