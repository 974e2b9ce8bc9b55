"""Images to be packed, opened: one list of keys that any thread can read, wherever the images lie."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.format.file_io import newest_file
from packer.inputs.archive_members import Archive
from packer.inputs.file_names import (
    FolderLayout,
    class_folders,
    folder_splits,
    no_images,
    notes_on,
    notes_on_classes,
)
from packer.inputs.image_targets import ImageTargets


class SourceOptions(NamedTuple):
    """The options by which a source is read; as `open_source` (image_sources.py) has them."""

    labelled: bool = False
    spool_dir: str | None = None
    label: str | None = None
    label_as: str = "auto"
    listed: Collection[str] = ()
    skip: bool = False
    arrays: bool = False


class ImageFiles:
    """The bytes of images, by index; thread-safe, in any order."""

    def read(self, index: int) -> bytes:
        """Read an image file, whole. Raises: ImageError without the file's name."""
        raise NotImplementedError

    def ahead(self, indices: NDArray[np.int64]) -> None:
        """Begin to read images that will be read soon, where that helps."""

    def close(self) -> None:
        """Close what is open; closing again does nothing."""


class ArchiveImages(ImageFiles):
    """Members of archives. owners, members: int64 [N], the archive of each image, and its index in that."""

    def __init__(
        self, archives: Sequence[Archive], owners: NDArray[np.int64], members: NDArray[np.int64]
    ) -> None:
        self._archives, self._owners, self._members = archives, owners, members

    def read(self, index: int) -> bytes:
        """See ImageFiles."""
        archive = self._archives[int(self._owners[index])]
        return archive.read(int(self._members[index]))

    def close(self) -> None:
        """Close the archives."""
        for archive in self._archives:
            archive.close()


@dataclass(eq=False)
class ImageSource:
    """Images to be packed: their names, labels and bytes. A context manager; made by `open_source` (image_sources.py)."""

    name: str
    """What the user called it; perhaps an absolute path, so it belongs in messages and not in packs."""
    keys: list[str]
    """Paths below the source's folder, "/"-separated, as `as_text` has them."""
    images: ImageFiles
    """The files of ``keys``."""
    sizes: NDArray[np.int64]
    """int64 [N], bytes of the image files."""
    times: NDArray[np.int64]
    """int64, when each file was changed last, in nanoseconds since 1970: [N], or of each of ``files``."""
    layout: InitVar[FolderLayout]
    labelled: InitVar[bool]
    folder: str | None = None
    """Where the keys are files, as `as_text` has it; None in an archive."""
    files: tuple[str, ...] = ()
    """Where the keys are not files: the archives, or other files, in which they are."""
    refused: dict[int, str] = field(default_factory=dict)
    """Image -> why it cannot be packed, in words that follow its name."""
    skipped: tuple[dict[str, str], ...] = ()
    """What is no image and was left out: ({"key", "reason"}, ...)."""
    targets: ImageTargets | None = None
    """What the source itself says of each image, where that is more than one label."""
    label_chosen: bool = False
    """True if the source took its labels from the column that was asked for."""
    read: Callable[[int], bytes] = field(init=False)
    ahead: Callable[[NDArray[np.int64]], None] = field(init=False)
    close: Callable[[], None] = field(init=False)

    def __post_init__(self, layout: FolderLayout, labelled: bool) -> None:
        """Take what the folders, or the list, say; note what the user may not expect, a sentence each."""
        self.read, self.ahead, self.close = self.images.read, self.images.ahead, self.images.close
        self.newest = newest_file(list(map(os.path.basename, self.files)) or self.keys, self.times)
        """The file that was changed last: tells whether one has been changed since."""
        self.labels, self.classes, self.splits = layout
        self.notes = [
            *notes_on(self.keys, labelled or self.labels is not None, self.classes),
            *notes_on_classes(self.classes or ()),
        ]

    def __len__(self) -> int:
        """Count the images."""
        return len(self.keys)

    def __enter__(self) -> ImageSource:
        """Give the source itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def arrange(
    name: str, keys: list[str], folders: Iterable[str], options: SourceOptions
) -> tuple[FolderLayout, tuple[dict[str, str], ...]]:
    """Return what folders stand for, and class folders left out as they hold no images. Raises: SourceError, UsageError."""
    if not keys:
        raise no_images(name)
    if options.labelled:
        return FolderLayout(None, None, folder_splits(name, keys, set(folders))), ()
    empty: list[str] | None = [] if options.skip else None
    layout = class_folders(name, keys, set(folders), listed=options.listed, empty=empty)
    return layout, tuple({"key": key, "reason": "a class folder without images."} for key in empty or ())
