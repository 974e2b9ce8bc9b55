"""Images to be packed, opened: one list of keys that any thread can read, wherever the images lie."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.format.file_io import newest_file
from packer.inputs.file_names import (
    UNLABELED,
    class_folders,
    folder_splits,
    no_images,
    note_left_out,
    notes_on,
    notes_on_classes,
)
from packer.inputs.findings import Findings
from packer.inputs.image_archives import Archive
from packer.inputs.image_targets import ImageTargets
from packer.inputs.label_values import CheckedRows, number_labels

Splits = dict[str, NDArray[np.int64]]
"""Name -> its images, int64, rising; {} without splits."""


@dataclass(frozen=True)
class SourceOptions:
    """The options by which a source is read.

    labelled: labels come from elsewhere, so that folders stand for no classes.
    spool_dir: where a compressed tar is decompressed to; None for the system's temporary directory.
    label: of a data set in a layout of its own, the label that is taken where there are several.
    label_as: how labels beside images are taken, see label_values.py. listed: classes that may have no images.
    arrays: look for .npy files in folders, too. unlabeled: splits whose images have no class, beside others.
    findings: empty class folders and lines of a list that name no file are left out, and images refused whose label cannot be used.
    """

    labelled: bool = False
    spool_dir: str | None = None
    label: str | None = None
    label_as: str = "auto"
    listed: Collection[str] = ()
    arrays: bool = False
    unlabeled: Collection[str] = ()
    findings: Findings = field(default_factory=Findings)

    def number(
        self, subject: str, texts: Sequence[str], lines: Sequence[int], unit: str, **more: Any
    ) -> ImageTargets:
        """Return labels given as text, one an image. lines: where they stand in the subject; more: as `number_labels` has it."""
        rows = CheckedRows(subject, lines, self.findings, unit=unit)
        rows.refused.update(self.findings.refused)
        labels, classes = number_labels(rows, texts, **{"label_as": self.label_as, **more})
        return ImageTargets(labels, classes, findings=self.findings)


class ImageSource(AbstractContextManager["ImageSource"]):
    """Images to be packed: their bytes by index, and what is known of each; thread-safe, in any order. A context manager.

    Made by `open_source` (image_sources.py): where the images lie, a class of its own reads them, and `describe` says what they are.

    keys: paths below the source's folder, "/"-separated, as `as_text` has them. sizes: int64 [N], bytes of each file.
    times: int64, when each file was changed last, in nanoseconds since 1970: [N], or of each of `files`.
    folder: where the keys are files, as `as_text` has it; None where they are not. files: in which the keys are then, such as archives.
    """

    name: str
    """What the user called it; perhaps an absolute path, so it belongs in messages and not in packs."""
    targets: ImageTargets
    """What the source itself says of each image."""
    splits: Splits
    label_chosen: bool
    """True if it took its labels from the column that was asked for."""

    def __init__(
        self,
        keys: list[str],
        sizes: NDArray[np.int64],
        times: NDArray[np.int64],
        *,
        folder: str | None = None,
        files: Sequence[str] = (),
    ) -> None:
        self.keys, self.sizes, self.times = keys, sizes, times
        self.folder, self.files = folder, tuple(files)
        self.newest = newest_file(list(map(os.path.basename, files)) or keys, times)
        """The file that was changed last: tells whether one has been changed since."""

    def describe(
        self, name: str, targets: ImageTargets, splits: Splits, *, labelled: bool, label_chosen: bool = False
    ) -> ImageSource:
        """Set what is known of the images, and note what the user may not expect. labelled: nothing is to be said of missing labels."""
        self.name, self.targets, self.splits, self.label_chosen = name, targets, splits, label_chosen
        self.findings = targets.findings
        foldered = targets.classes if "label" in targets.fixed else None
        self.findings.notes += notes_on(self.keys, labelled or targets.labelled, foldered)
        self.findings.notes += notes_on_classes(targets.classes or ())
        return self

    def arrange(
        self,
        name: str,
        folders: Collection[str],
        left_out: Mapping[str, int],
        options: SourceOptions,
        *,
        subject: str = "",
    ) -> ImageSource:
        """Describe the images by the folders that they lie in; class folders that hold no images are left out.

        folders: as `class_folders` has them; left_out: suffix -> files that are no images; subject: what holds the keys, if not ``name``.
        Raises: SourceError, UsageError.
        """
        subject, targets = subject or name, ImageTargets(findings=options.findings)
        if not self.keys:
            raise no_images(subject)
        if options.labelled:
            splits = folder_splits(subject, self.keys, folders)
        else:
            found = class_folders(
                subject,
                self.keys,
                folders,
                options.findings,
                listed=options.listed,
                unlabeled=options.unlabeled,
            )
            about = {"unlabeled": UNLABELED} if options.unlabeled and found.labels is not None else None
            targets = ImageTargets(found.labels, found.classes, about=about, findings=options.findings)
            splits = found.splits
        self.describe(name, targets, splits, labelled=options.labelled)
        self.findings.notes += note_left_out(left_out)
        return self

    def read(self, index: int) -> bytes:
        """Read an image file, whole. Raises: ImageError without the file's name."""
        raise NotImplementedError

    def ahead(self, indices: NDArray[np.int64]) -> None:
        """Begin to read images that will be read soon, where that helps."""

    def close(self) -> None:
        """Close what is open; closing again does nothing."""

    def __len__(self) -> int:
        """Count the images."""
        return len(self.keys)

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


class ArchiveImages(ImageSource):
    """Members of archives.

    owners, members: int64 [N], the archive of each image, and its index in that; -1, of archive 0, of a key that has none.
    """

    def __init__(
        self,
        keys: list[str],
        archives: Sequence[Archive],
        owners: NDArray[np.int64],
        members: NDArray[np.int64],
    ) -> None:
        self._archives, self._owners, self._members = archives, owners, members
        held = [archive.sizes for archive in archives]
        firsts = np.cumsum([0, *map(len, held)])[owners]
        sizes = np.concatenate([*held, np.zeros(1, np.int64)])[firsts + members]
        times = np.array([archive.time for archive in archives])
        super().__init__(keys, sizes, times, files=[archive.path for archive in archives])

    def read(self, index: int) -> bytes:
        """See ImageSource."""
        return self._archives[int(self._owners[index])].read(int(self._members[index]))

    def close(self) -> None:
        """Close the archives."""
        for archive in self._archives:
            archive.close()
