"""ImageNames: the image that a name in a label file means.

These names match image cat/1.jpg, unless they match a second image, in any Unicode form:

    cat/1.jpg  cat\\1.jpg     its path relative to the images' folder
    1.jpg                     the end of its path, beginning at a folder or at the file name
    1                         its name without folder and extension
    /data/photos/cat/1.jpg    its path after a prefix
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property

from packer.path_text import compose

UNKNOWN, AMBIGUOUS = -1, -2
"""Indices of names that match no image, or several."""


class ImageNames:
    """The names of images. keys: their paths, "/"-separated."""

    keys: Sequence[str]

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys, self._names = keys, list(map(compose, keys))
        self._paths = self._by(lambda name: name)
        self._ends: dict[int, dict[str, int]] = {}

    def find(self, name: str, *, loose: bool = True, prefixed: bool = True) -> tuple[int, str]:
        """Return the index of the image that a name matches, or UNKNOWN or AMBIGUOUS; and its prefix, or "".

        loose: match ends and stems, and if `prefixed` paths after a prefix, not only paths.
        """
        name = compose(name)
        path = name.removeprefix("./")
        if path not in self._paths:
            path = path.replace("\\", "/").removeprefix("./")
        index = self._paths.get(path, UNKNOWN)
        if not loose:
            return index, ""
        if index == UNKNOWN and os.path.splitext(path)[1]:
            index = self._ending(path)
        if index == UNKNOWN:
            index = self._stems.get(name, UNKNOWN)
        return self._behind_prefix(path) if index == UNKNOWN and prefixed else (index, "")

    def alike(self, name: str) -> list[str]:
        """Return the paths that differ from a name at most in case and Unicode form."""
        return [self.keys[index] for index in self._alike.get(compose(name).casefold(), ())]

    def _behind_prefix(self, path: str) -> tuple[int, str]:
        """Return the image whose path ends `path`, or UNKNOWN or AMBIGUOUS; and the prefix before it."""
        found: list[str] = []
        rest = path
        while "/" in rest:
            rest = rest.partition("/")[2]
            found += [rest] if rest in self._paths else []
        if len(found) != 1:
            return (AMBIGUOUS if found else UNKNOWN), ""
        return self._paths[found[0]], path.removesuffix(found[0])

    def _ending(self, path: str) -> int:
        """Return the image whose path ends in `path`, or UNKNOWN or AMBIGUOUS."""
        parts = path.count("/") + 1
        if parts not in self._ends:
            self._ends[parts] = self._by(lambda name: "/".join(name.split("/")[-parts:]))
        return self._ends[parts].get(path, UNKNOWN)

    @cached_property
    def _stems(self) -> dict[str, int]:
        """Name without folder and extension -> image, or AMBIGUOUS."""
        return self._by(lambda name: os.path.splitext(name.rpartition("/")[2])[0])

    @cached_property
    def _alike(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for index, name in enumerate(self._names):
            found.setdefault(name.casefold(), []).append(index)
        return found

    def _by(self, called: Callable[[str], str]) -> dict[str, int]:
        """Return an index, called(name) -> image or AMBIGUOUS. On demand: ten million images take 2 GB."""
        found: dict[str, int] = {}
        for index, path in enumerate(self._names):
            name = called(path)
            found[name] = AMBIGUOUS if name in found else index
        return found
