"""ImageSource: an opened source of images, as a list of keys whose bytes any thread can read."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from packer.errors import ImageError, SourceError, UsageError
from packer.format.file_io import InputFile, newest_file
from packer.given_values import option_text
from packer.inputs.file_names import (
    UNLABELED,
    FolderLayout,
    class_folders,
    folder_splits,
    no_images,
    unlabeled_splits,
)
from packer.inputs.findings import Findings
from packer.inputs.image_archives import Archive
from packer.inputs.image_targets import ImageTargets
from packer.inputs.label_options import Labels
from packer.inputs.label_values import CheckedRows, LabelColumn, read_texts
from packer.pixels.stored_size import StoredSize, read_stored_size

SAMPLE = 64
"""Most images that a check reads."""
_MOST_BYTES = 256 << 20  # of a file that is read only for its size

Splits = dict[str, NDArray[np.int64]]
"""Split name -> indices of its images, int64, ascending; {} without splits."""


@dataclass(frozen=True)
class SourceOptions:
    """Options for reading a source.

    labels: which labels are read, and how. spool_dir: directory for temporary copies of images; None for the
    system's temporary directory. listed: classes that may be empty. arrays: include .npy files of folders.
    parts: fields of WebDataset samples that are wanted as partners of the images ("seg.png").
    partner: True for the key of a file that is no image, but belongs to one (image_pairs.py).
    sequence: folders that hold images are sequences; folders above them are the classes.
    findings: leaves out empty class folders and missing files of a list, refuses images with invalid labels.
    """

    labels: Labels = field(default_factory=Labels)
    spool_dir: str | None = None
    listed: Collection[str] = ()
    arrays: bool = False
    parts: Collection[str] = ()
    partner: Callable[[str], bool] | None = None
    findings: Findings = field(default_factory=Findings)
    sequence: bool = False

    @property
    def label(self) -> str | None:
        """The label to read from a WebDataset or Parquet dataset that has several; None: not chosen."""
        columns = self.labels.columns("column")
        return columns[0] if len(columns) == 1 else None

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
                f"{subject}: all of its images are named as partners by pairs=; their pattern must"
                " leave images. Pass patterns of both, such as"
                f" {option_text('pairs', {'mask': f'{subject}/*_mask.png from *_sat.jpg'})}."
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
        column: str = "the label",
        label_as: str | None = None,
        names: list[str] | None = None,
    ) -> ImageTargets:
        """Return targets from one text per image.

        lines: line numbers. unlabeled: True for images that get UNLABELED, whatever their text, [N]. column,
        label_as, names: see `number_labels`. Raises: SourceError, UsageError.
        """
        some = np.arange(len(texts)) if unlabeled is None else np.flatnonzero(~unlabeled)
        rows = CheckedRows(subject, np.asarray(lines, np.int64)[some], self.findings, unit=unit)
        rows.images = some
        rows.refused.update(np.flatnonzero(np.isin(some, list(self.findings.refused))).tolist())
        read, separator = [texts[k] for k in some.tolist()], None if names else self.labels.divider
        as_ = label_as or self.labels.as_
        origin = LabelColumn.from_texts(subject, column, read, as_, separator, alone=unit == "line")
        labels, classes, about = read_texts(rows, read, origin, column, names)
        if len(some) < len(texts):
            if labels.dtype != np.int64:
                raise UsageError(
                    f"{subject}: its labels are not classes, so images without a label have none to get. "
                    "Leave out labels=Labels(unlabeled=)."
                )
            numbers, labels = labels, np.full(len(texts), UNLABELED)
            labels[some], about = numbers, {"unlabeled": UNLABELED}
        targets = ImageTargets(labels, classes, about=about, findings=self.findings)
        targets.column = None if names else origin
        return targets

    def without_labels(self, subject: str, splits: Splits, count: int) -> NDArray[np.bool_]:
        """Return True for the images of the splits in `unlabeled`, bool [count]. Raises: UsageError."""
        mask = np.zeros(count, np.bool_)
        for name in unlabeled_splits(subject, splits, self.labels.columns("unlabeled")):
            mask[splits[name]] = True
        return mask


def evenly(count: int, most: int) -> NDArray[np.int64]:
    """Return up to `most` of the numbers below `count`, evenly spread.

    >>> evenly(10, 4).tolist()
    [0, 3, 6, 9]
    """
    some = min(most, count)
    return np.arange(some) * (count - 1) // max(1, some - 1)


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
    others: Sequence[str] = ()
    """Paths of visible files that are not images: in an archive, only those that may hold labels."""
    parts: Mapping[str, ImageSource] = MappingProxyType({})
    """Field of WebDataset samples -> the image of each sample that it holds, key "" for none."""
    left_out: Mapping[str, int] = MappingProxyType({})
    """Suffix -> number of files that are not images."""
    layout: FolderLayout = FolderLayout(None, None, {}, [""], [])
    """The class folders; without classes unless these are names of folders."""
    scanned: bool = False
    """True if a folder was searched for images, False if they were listed."""
    listed: bool = False
    """True if the user listed the images, in an order of choice."""

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
        self, name: str, folders: Collection[str], left_out: Mapping[str, int], options: SourceOptions
    ) -> ImageSource:
        """Set targets and splits from folders.

        folders: see `class_folders`. left_out: suffix -> number of files that are not images.
        Raises: SourceError, UsageError.
        """
        self.place = subject = self.place or name
        self.left_out, self.scanned, targets = left_out, True, ImageTargets(findings=options.findings)
        if not self.keys:
            raise no_images(subject, left_out)
        if options.labels.ignore_source or (options.sequence and self._folders_are_sequences(folders)):
            splits = folder_splits(subject, self.keys, folders)
        else:
            found = class_folders(
                subject,
                self.keys,
                folders,
                listed=options.listed,
                unlabeled=options.labels.columns("unlabeled"),
                findings=options.findings,
            )
            about = (
                {"unlabeled": UNLABELED} if options.labels.unlabeled and found.labels is not None else None
            )
            targets = ImageTargets(found.labels, found.classes, about=about, findings=options.findings)
            splits, self.layout = found.splits, found
        return self.describe(name, targets, splits)

    def _folders_are_sequences(self, folders: Collection[str]) -> bool:
        """Return True if the top folders, or those of splits, hold the frames of sequences, not of classes.

        Raises: SourceError if only some do.
        """
        level = 1 if folder_splits(self.place, self.keys, folders) else 0
        depths = {min(2, key.count("/") - level): key for key in self.keys}
        if depths.keys() == {1, 2}:
            raise SourceError(
                f"{self.place}: the folder of {depths[1]} would be a sequence, the one of {depths[2]} a"
                " sequence in a class; all have classes, or none. Move some, or pass"
                " labels=Labels(unlabeled='all')."
            )
        return depths.keys() == {1}

    def read(self, index: int) -> bytes:
        """Return all bytes of an image file. Raises: ImageError without the file's name."""
        raise NotImplementedError

    def ahead(self, indices: NDArray[np.int64]) -> None:
        """Start prefetching images that will be read soon, in that order; does nothing for local files."""

    def sample_sizes(self, images: NDArray[np.int64]) -> dict[int, StoredSize]:
        """Return the sizes of up to 64 of `images`, evenly spread; unreadable ones are left out.

        images: indices in ascending order. Each header is read once.
        """
        picked = images[evenly(len(images), SAMPLE)].tolist()
        new = [index for index in picked if index not in self._headers]
        self._headers.update(dict.fromkeys(new))
        for index, data in self.readable(new, _MOST_BYTES):
            self._headers[index] = read_stored_size(data)
        return {k: size for k in picked if (size := self._headers[k]) is not None}

    def readable(self, indices: Collection[int], most: int) -> Iterator[tuple[int, bytes]]:
        """Yield the bytes of images of up to `most` bytes; the conversion reports those that fail."""
        indices = [index for index in indices if self.sizes[index] <= most]
        self.ahead(np.array(indices, np.int64))
        for index in indices:
            try:
                data = self.read(index)
            except ImageError:
                continue
            yield index, data

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
