"""Images to be packed, opened: one list of keys that any thread can read, wherever the images lie."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import InitVar, dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.file_io import InputFile
from packer.inputs.file_names import FolderLayout, notes_on, notes_on_classes, notes_on_splits
from packer.inputs.image_targets import ImageTargets
from packer.sentence import Option


class SourceOptions(NamedTuple):
    """The options by which a source is read; as `open_source` (image_sources.py) has them."""

    labelled: bool = False
    spool_dir: str | None = None
    label: str | None = None
    label_as: str = "auto"
    skip: bool = False


class SomeImages(Protocol):
    """The bytes of some images of a source, which other processes can be given: it can be pickled."""

    def read(self, index: int) -> bytes:
        """See ImageSource."""

    def ahead(self, indices: NDArray[np.int64]) -> None:
        """See ImageSource."""

    def close(self) -> None:
        """See ImageSource."""


@dataclass(eq=False)
class ImageSource:
    """Images to be packed: their names, labels and bytes. A context manager; made by `open_source` (image_sources.py)."""

    name: str
    """What the user called it; perhaps an absolute path, so it belongs in messages and not in packs."""
    keys: list[str]
    """Paths below the source's folder, "/"-separated, as `as_text` has them."""
    layout: InitVar[FolderLayout]
    sizes: NDArray[np.int64]
    """int64 [N], bytes of the image files."""
    times: NDArray[np.int64]
    """int64 [N], when each was changed last, in nanoseconds since 1970; [1] of an archive."""
    newest: InputFile
    """The file that was changed last: tells whether one has been changed since."""
    folder: str | None
    """Where the keys are files, as `as_text` has it; None in an archive."""
    read: Callable[[int], bytes]
    """Reads the image file of ``keys[index]``, whole; thread-safe, in any order. Raises ImageError without the file's name."""
    labelled: InitVar[bool]
    close: Callable[[], None] = lambda: None
    """Closes what is open; closing again does nothing."""
    ahead: Callable[[NDArray[np.int64]], None] = lambda indices: None
    """Begins to read images that will be read soon, where that helps."""
    refused: dict[int, str] = field(default_factory=dict)
    """Image -> why it cannot be packed, in words that follow its name."""
    skipped: tuple[dict[str, str], ...] = ()
    """What is no image and was left out: ({"key", "reason"}, ...)."""
    files: tuple[str, ...] = ()
    """Where the keys are not files: the archives, or other files, in which their bytes lie; none if these are compressed whole."""
    targets: ImageTargets | None = None
    """What the source itself says of each image, where that is more than one label."""
    some: Callable[[NDArray[np.int64]], SomeImages] | None = None
    """Takes some of the images, by index; None where only this process, or this machine, can read them."""
    label_chosen: bool = False
    """True if the source took its labels from the column that was asked for."""

    def __post_init__(self, layout: FolderLayout, labelled: bool) -> None:
        """Take what the folders, or the list, say; note what the user may not expect, a sentence each."""
        self.labels, self.classes, self.splits = layout
        self.notes = [
            *notes_on(self.keys, labelled or self.labels is not None, self.classes),
            *notes_on_classes(self.classes or ()),
            *notes_on_splits(layout),
        ]

    def part(self, indices: NDArray[np.int64]) -> ImageSource:
        """Return a source of some of the images, in that order, which can be pickled; without labels and notes.

        Raises UsageError where the images cannot be read elsewhere.
        """
        if self.some is None:
            raise UsageError(
                f"{self.name}: its images lie in other files, which only this process reads; folders, lists and folders in stores can be"
                " read by others. Unpack them, or leave out ",
                Option("engine"),
                ".",
            )
        made, images = copy(self), self.some(indices)
        made.keys = [self.keys[index] for index in indices.tolist()]
        made.sizes, made.times = self.sizes[indices], self.times[indices]
        made.read, made.ahead, made.close = images.read, images.ahead, images.close
        made.labels = made.targets = made.some = None
        made.newest = InputFile("", 0)
        made.splits, made.refused, made.skipped, made.notes = {}, {}, (), []
        return made

    def __len__(self) -> int:
        """Count the images."""
        return len(self.keys)

    def __enter__(self) -> ImageSource:
        """Give the source itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()
