"""ImageNames: the image that a name in a label file means.

These names match image cat/1.jpg, unless they match a second image, in any Unicode form:

    cat/1.jpg  cat\\1.jpg     its path relative to the images' folder
    1.jpg                     the end of its path, beginning at a folder or at the file name
    1                         its name without folder and extension
    /data/photos/cat/1.jpg    its path behind the name of the images' folder, or of their archive

A name that matches no image is compared without its case.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property

from packer.inputs.image_archives import archive_stem
from packer.path_text import compose
from packer.source_kinds import is_archive

UNKNOWN, AMBIGUOUS = -1, -2
"""Indices of names that match no image, or several."""


class ImageNames:
    """The names of images. keys: their paths, "/"-separated. source: their folder or archive.

    below: prefix of the paths that count, with a trailing slash; the names are those behind it.
    """

    def __init__(self, keys: Sequence[str], source: str = "", below: str = "") -> None:
        self._source, called = source, compose(os.path.basename(os.path.abspath(source)))
        self._folders = (
            {called, archive_stem(called)} if is_archive(called) else {called} if source else set()
        )
        self.keys = keys
        self._names = [compose(key[len(below) :]) if key.startswith(below) else "\0" for key in keys]
        self._paths = self._by(lambda name: name)
        self._ends: dict[int, dict[str, int]] = {}

    def find(self, name: str, *, loose: bool = True) -> int:
        """Return the index of the image that a name matches, or UNKNOWN or AMBIGUOUS.

        loose: match not only paths.
        """
        name = compose(name)
        path = name.removeprefix("./")
        if path not in self._paths:
            path = path.replace("\\", "/").removeprefix("./")
        index = self._paths.get(path, UNKNOWN)
        if not loose:
            return index
        if index == UNKNOWN and os.path.splitext(path)[1]:
            index = self._ending(path)
        if index == UNKNOWN:
            index = self._stems.get(name, UNKNOWN)
        return self._below_source(path) if index == UNKNOWN else index

    def find_in_any_case(self, name: str) -> int:
        """Return the index of the image that a name matches but for its case, or UNKNOWN or AMBIGUOUS."""
        return self._folded.find(compose(name).casefold())

    @cached_property
    def _folded(self) -> ImageNames:
        return ImageNames([name.casefold() for name in self._names], self._source.casefold())

    def find_listed(self, name: str) -> int:
        """Return the index of the image with a path, or else the only one with its file name, or UNKNOWN."""
        path = compose(os.path.normpath(name))
        index = self._paths.get(path)
        return max(self._ending(path.rpartition("/")[2]) if index is None else index, UNKNOWN)

    def alike(self, name: str) -> list[str]:
        """Return the paths that differ from a name at most in case and Unicode form."""
        return [self.keys[index] for index in self._alike.get(compose(name).casefold(), ())]

    def _below_source(self, path: str) -> int:
        """Return the image whose path stands behind the source's name, or UNKNOWN or AMBIGUOUS."""
        parts = path.split("/")
        rests = ["/".join(parts[at:]) for at, part in enumerate(parts, 1) if part in self._folders]
        found = {self._paths[rest] for rest in rests if rest in self._paths}
        return UNKNOWN if not found else found.pop() if len(found) == 1 else AMBIGUOUS

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
