"""Listings of images that need not exist, for the checks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import pytest

from packer.inputs.checks.examine import examine
from packer.inputs.file_names import image_order
from packer.inputs.label_options import Labels
from packer.inputs.listing import Listing
from packer.inputs.opened_source import ImageSource, SourceOptions

Files = Sequence[str] | Mapping[str, bytes]
Examine = Callable[..., list[str]]


class Images(ImageSource):
    """Images in memory, or names without images."""

    def __init__(self, files: Files) -> None:
        keys = list(files)
        keys = [keys[index] for index in image_order(keys)]
        self._files = files
        sizes = np.array([len(files[key]) if isinstance(files, Mapping) else 1 for key in keys])
        super().__init__(keys, sizes, np.zeros(len(keys), np.int64))

    def read(self, index: int) -> bytes:
        return self._files[self.keys[index]] if isinstance(self._files, Mapping) else b""


def list_folder(
    files: Files, empty: Collection[str] = (), accepted: Collection[str] = (), **options: object
) -> Listing:
    """Return the listing of a folder `pets`. empty: folders without images, besides those of the keys."""
    parents = {"/".join(key.split("/")[:depth]) for key in files for depth in range(1, key.count("/") + 1)}
    folders = {*(one for one in parents if one.count("/") < 2), *empty}
    given = SourceOptions(Labels(**options), listed=accepted)  # type: ignore[arg-type]
    source = Images(files).arrange("pets", folders, {}, given)
    return Listing(source, source.targets, accepted=accepted, labels_given=given.labels.ignore_source)


@pytest.fixture
def errors() -> Examine:
    """A function: files, and options of `list_folder` -> the errors of all checks."""
    return lambda files, *given, **options: [
        one.sentence for one in examine(list_folder(files, *given, **options)) if one.error
    ]


@pytest.fixture
def notes() -> Examine:
    """A function: files, and options of `list_folder` -> the notes of all checks."""
    return lambda files, *given, **options: [
        one.sentence for one in examine(list_folder(files, *given, **options)) if not one.error
    ]
