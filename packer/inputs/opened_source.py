"""ImageSource: an opened source of images, as a list of keys whose bytes any thread can read."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import ImageError, UsageError
from packer.format.file_io import InputFile, newest_file
from packer.inputs.file_names import (
    UNLABELED,
    class_folders,
    folder_splits,
    no_images,
    unlabeled_splits,
)
from packer.inputs.findings import Findings
from packer.inputs.image_archives import Archive
from packer.inputs.image_targets import ImageTargets
from packer.inputs.label_options import Labels
from packer.inputs.label_values import SEPARATORS, CheckedRows, LabelColumn, multi_hot, number_labels
from packer.pixels.stored_size import StoredSize, read_stored_size
from packer.sentence import Option

_SAMPLE = 64
_MOST_BYTES = 256 << 20  # of a file that is read only for its size

Splits = dict[str, NDArray[np.int64]]
"""Split name -> indices of its images, int64, ascending; {} without splits."""


@dataclass(frozen=True)
class SourceOptions:
    """Options for reading a source.

    labelled: labels come from a separate file, or are not wanted, so folders are not classes.
    spool_dir: directory for temporary copies of images; None for the system's temporary directory.
    label: label to read from a WebDataset or Parquet dataset that has several.
    label_as, separator: how labels are parsed, see label_values.py. listed: classes that may be empty.
    boxes: options of the source's own boxes: their format, and whether it lists all images.
    arrays: include .npy files of folders. unlabeled: splits without labels, beside splits with labels.
    parts: fields of WebDataset samples that are wanted as partners of the images ("seg.png").
    partner: True for the key of a file that is no image, but belongs to one (image_pairs.py).
    findings: leaves out empty class folders and missing files of a list, refuses images with invalid labels.
    """

    labelled: bool = False
    spool_dir: str | None = None
    label: str | None = None
    label_as: str = "auto"
    separator: str | None = None
    listed: Collection[str] = ()
    arrays: bool = False
    unlabeled: Collection[str] = ()
    boxes: Labels = field(default_factory=Labels)
    parts: Collection[str] = ()
    partner: Callable[[str], bool] | None = None
    findings: Findings = field(default_factory=Findings)

    def images_among(
        self, keys: Sequence[str], folders: Collection[str], subject: str
    ) -> tuple[NDArray[np.int64], Collection[str]]:
        """Return the indices of keys that are no partners, and the folders that do not hold only partners.

        subject: name of the source. Raises UsageError if all are partners.
        """
        if self.partner is None or not keys:
            return np.arange(len(keys)), folders
        images = [index for index, key in enumerate(keys) if not self.partner(key)]
        if not images:
            raise UsageError(
                f"{subject}: all of its images are named as partners by {Option('pairs')}; their pattern must"
                " leave images. Pass patterns of both, such as"
                f" {Option('pairs', {'mask': f'{subject}/*_mask.png from *_sat.jpg'})}."
            )
        held, kept = _parents(keys), _parents(keys[index] for index in images)
        return np.array(images), [folder for folder in folders if folder in kept or folder not in held]

    def number(
        self,
        subject: str,
        texts: Sequence[str],
        lines: Sequence[int],
        unit: str,
        *,
        unlabeled: NDArray[np.bool_] | None = None,
        **more: Any,
    ) -> ImageTargets:
        """Return targets from one text per image.

        lines: line numbers. unlabeled: True for images that get UNLABELED, whatever their text, [N]. more:
        options of `number_labels`. Raises: SourceError, UsageError.
        """
        some = np.arange(len(texts)) if unlabeled is None else np.flatnonzero(~unlabeled)
        rows = CheckedRows(subject, np.asarray(lines, np.int64)[some], self.findings, unit=unit)
        rows.images = some
        rows.refused.update(np.flatnonzero(np.isin(some, list(self.findings.refused))).tolist())
        read, more = (
            [texts[k] for k in some.tolist()],
            {"label_as": self.label_as, "column": "the label", **more},
        )
        separator = SEPARATORS.get(self.separator or "", self.separator)
        separator = None if more.get("names") else separator
        column = LabelColumn.of(
            subject, more["column"], read, more["label_as"], separator, alone=unit == "line"
        )
        about: dict[str, Any] = {}
        labels: NDArray[Any]
        classes: list[str] | None
        if separator is None:
            labels, classes = number_labels(rows, read, **more)
        else:
            labels, classes = multi_hot(subject, read, column.name, separator, self.findings)
            about = {"columns": classes}
        if len(some) < len(texts):
            if labels.dtype != np.int64:
                raise UsageError(
                    f"{subject}: its labels are not classes, so images without a label have none to get. Leave "
                    f"out {Option('Labels.unlabeled')}."
                )
            numbers, labels = labels, np.full(len(texts), UNLABELED)
            labels[some], about = numbers, {"unlabeled": UNLABELED}
        targets = ImageTargets(labels, classes, about=about, findings=self.findings)
        targets.column = None if more.get("names") else column
        return targets

    def without_labels(self, subject: str, splits: Splits, count: int) -> NDArray[np.bool_]:
        """Return True for the images of the splits in `unlabeled`, bool [count]. Raises: UsageError."""
        mask = np.zeros(count, np.bool_)
        for name in unlabeled_splits(subject, splits, self.unlabeled):
            mask[splits[name]] = True
        return mask


def _parents(keys: Iterable[str]) -> set[str]:
    """Return the folders that hold files, directly or deeper."""
    return {key[:at] for key in keys for at, letter in enumerate(key) if letter == "/"}


class ImageSource(AbstractContextManager["ImageSource"]):
    """Images of a source with targets and splits; `read` is thread-safe, in any order. A context manager.

    Created by `open_source` (image_sources.py). Each kind of storage has a subclass that reads the bytes;
    `describe` and `arrange` set targets and splits.

    keys: paths relative to the source, "/"-separated, decoded by `as_text`. sizes: bytes of each image file,
    int64 [N]. times: modification times in nanoseconds since 1970, int64: of each image, or of each of
    `files`. folder: folder of the keys if they are files, decoded by `as_text`; else None. files: archives or
    other files that hold the images.
    """

    keys: list[str]
    sizes: NDArray[np.int64]
    times: NDArray[np.int64]
    folder: str | None
    files: tuple[str, ...]

    name: str
    """The source as the user wrote it, for messages; packs do not record it, since it may be absolute."""
    targets: ImageTargets
    """Labels and boxes that the source itself defines."""
    splits: Splits
    label_chosen: bool
    """True if the labels come from the chosen column."""
    findings: Findings
    """Findings of all readers of the source."""
    place: str = ""
    """Path that the keys are relative to, for messages."""
    folders: Collection[str] = ()
    """Visible folders of the first two levels, with or without images; () unless folders were read."""
    others: Sequence[str] = ()
    """Paths of visible files that are not images: in an archive, only those that may hold labels."""
    parts: Mapping[str, ImageSource] = MappingProxyType({})
    """Field of WebDataset samples -> the image of each sample that it holds, key "" for none."""
    left_out: Mapping[str, int] = MappingProxyType({})
    """Suffix -> number of files that are not images."""
    foldered: Sequence[str] | None = None
    """The classes if they are names of folders, else None."""
    class_parents: Sequence[str] = ("",)
    """Paths of the folders that hold the class folders, with a trailing slash; "" for the source itself."""
    scanned: bool = False
    """True if a folder was searched for images, False if they were listed."""
    empty_folders: Sequence[str] = ()
    """Class folders without images."""

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
        self._headers: dict[int, StoredSize | None] = {}
        self.folder, self.files = folder, tuple(files)
        self.newest: InputFile = newest_file(list(map(os.path.basename, files)) or keys, times)
        """The most recently changed file, which shows later whether a file has changed since."""

    def describe(
        self, name: str, targets: ImageTargets, splits: Splits, *, label_chosen: bool = False
    ) -> ImageSource:
        """Set name, targets and splits."""
        self.name, self.targets, self.splits, self.label_chosen = name, targets, splits, label_chosen
        self.place, self.findings = self.place or name, targets.findings
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
        """Set targets and splits from folders.

        folders: see `class_folders`. left_out: suffix -> number of files that are not images. subject: path
        that the keys are relative to, if not ``name``. Raises: SourceError, UsageError.
        """
        subject, targets = subject or name, ImageTargets(findings=options.findings)
        self.place, self.folders, self.left_out, self.scanned = subject, folders, left_out, True
        if not self.keys:
            raise no_images(subject)
        if options.labelled:
            splits = folder_splits(subject, self.keys, folders)
        else:
            found = class_folders(
                subject,
                self.keys,
                folders,
                listed=options.listed,
                unlabeled=options.unlabeled,
                findings=options.findings,
            )
            about = {"unlabeled": UNLABELED} if options.unlabeled and found.labels is not None else None
            targets = ImageTargets(found.labels, found.classes, about=about, findings=options.findings)
            splits, self.foldered = found.splits, found.classes
            self.class_parents, self.empty_folders = found.parts, found.empty
        self.describe(name, targets, splits)
        return self

    def read(self, index: int) -> bytes:
        """Return all bytes of an image file. Raises: ImageError without the file's name."""
        raise NotImplementedError

    def ahead(self, indices: NDArray[np.int64]) -> None:
        """Start prefetching images that will be read soon, in that order; does nothing for local files."""

    def sample_sizes(self, images: NDArray[np.int64]) -> dict[int, StoredSize]:
        """Return the sizes of up to 64 of `images`, evenly spread; unreadable ones are left out.

        images: indices in ascending order. Each header is read once.
        """
        places = np.linspace(0, len(images) - 1, min(len(images), _SAMPLE)).astype(np.int64)
        picked = images[np.unique(places)] if len(images) else images
        self.ahead(np.array([k for k in picked.tolist() if k not in self._headers], np.int64))
        for index in picked.tolist():
            if index not in self._headers:
                self._headers[index] = self._stored_size(index)
        return {k: size for k in picked.tolist() if (size := self._headers[k]) is not None}

    def _stored_size(self, index: int) -> StoredSize | None:
        if self.sizes[index] > _MOST_BYTES:
            return None
        try:
            return read_stored_size(self.read(index))
        except ImageError:
            return None  # the conversion reports the error

    def close(self) -> None:
        """Close the open files; further calls do nothing."""

    def __len__(self) -> int:
        """Count the images."""
        return len(self.keys)

    def __exit__(self, *_: object) -> None:
        """Close the source."""
        self.close()


class ArchiveImages(ImageSource):
    """Images that are members of archives.

    owners, members: int64 [N], the archive of each image and its index in the archive; 0 and -1 for a key
    without one.
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
