"""Listing: a source of images as it is understood, before anything is written; Finding: a doubt about it."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.given_values import option_text
from packer.inputs.file_names import sort_key
from packer.inputs.image_pairs import Pair
from packer.inputs.image_sources import MOST_BYTES_A_PIXEL
from packer.inputs.image_targets import ImageTargets
from packer.inputs.opened_source import SAMPLE, ImageSource, evenly
from packer.pixels.decode_resize import PixelSpec
from packer.pixels.image_files import ImageHeader, largest_value, read_image_header
from packer.pixels.image_pages import has_more_pages

_LISTED = 12  # classes that a message lists

Folders = Mapping[str, Sequence[str]]
"""Class folder -> its images, both relative to the folder that holds the class folders."""


@dataclass(frozen=True)
class Finding:
    """A doubt about a listing.

    sentence: observation with counts and up to two examples, and the option that settles it. error: True if
    the pack would train wrongly and a mistake is more likely than not; False for a note. key: a folder that
    is left out instead if ``on_error="skip"``, with `reason`.
    """

    sentence: str
    error: bool = False
    key: str = ""
    reason: str = ""


class ExaminedImage(NamedTuple):
    """The header of an image. largest: largest value of its pixels if it has more than 8 bits, or None."""

    key: str
    header: ImageHeader
    largest: int | None


class ExaminedImages(NamedTuple):
    """A sample of images.

    read: number of files; images: those whose header can be read; several: keys of files of several pages.
    """

    read: int
    images: list[ExaminedImage]
    several: list[str]


@dataclass(frozen=True)
class Listing:
    """Images with classes, splits, targets and partners, as they would be packed.

    source: keys, sizes and bytes of the images; splits. targets: labels, classes, boxes and keypoints that
    would be stored. pairs: the partners of the images. accepted: the classes that the user listed; checks of
    folders pass if all classes are accepted. labels_given: labels come from a file. spec: how the images
    become pixels, None if they are not examined; sized: the user chose the size of the rows, one for all.
    sequence: each folder of images is a sequence.
    """

    source: ImageSource
    targets: ImageTargets
    pairs: Sequence[Pair] = ()
    accepted: Collection[str] = ()
    labels_given: bool = False
    spec: PixelSpec | None = None
    sized: bool = False
    sequence: bool = False

    @property
    def name(self) -> str:
        """The source as the user wrote it, for messages."""
        return self.source.name

    @property
    def keys(self) -> Sequence[str]:
        """Paths of the images, "/"-separated."""
        return self.source.keys

    @property
    def splits(self) -> Mapping[str, NDArray[np.int64]]:
        """Split name -> indices of its images; {} without splits of the source."""
        return self.source.splits

    @property
    def classes(self) -> Sequence[str] | None:
        """Class names, or None."""
        return self.targets.classes

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """Class number of each image, int64 [N], UNLABELED included; None unless each image has one class."""
        label = self.targets.fixed.get("label")
        return label if self.classes is not None and label is not None and label.ndim == 1 else None

    @property
    def foldered(self) -> bool:
        """True if the classes are the names of folders, and the user has not listed them all."""
        classes = self.source.layout.classes
        return bool(classes) and not self.labels_given and not set(classes or ()) <= set(self.accepted)

    def index_of(self, key: str) -> int:
        """Return the index of an image of a folder, whose keys are in `sort_key` order."""
        return bisect_left(self.keys, sort_key(key), key=sort_key)

    def accepting(self, classes: Sequence[str]) -> str:
        """Return the option that says that these are the classes, for a sentence."""
        if len(classes) <= _LISTED:
            return option_text("classes", ",".join(classes))
        return "classes= with a file of their names"

    @cached_property
    def parts(self) -> list[tuple[str, str, Folders]]:
        """The places of class folders: the source, or each folder that is a split; none unless `foldered`.

        Each: name of the place for messages; prefix of its keys; its class folders.
        """
        found: list[tuple[str, str, Folders]] = []
        for prefix in self.source.layout.parts if self.foldered else ():
            folders: dict[str, list[str]] = defaultdict(list)
            for key in self.keys:
                if key.startswith(prefix):
                    inner = key[len(prefix) :]
                    folders[inner.partition("/")[0]].append(inner)
            found.append((f"{self.source.place}/{prefix}".rstrip("/"), prefix, folders))
        return found

    def sample(self) -> NDArray[np.int64]:
        """Return the indices of images that checks read, spread evenly over the listing."""
        return evenly(len(self.keys), SAMPLE)

    @cached_property
    def forms(self) -> dict[str, Any]:
        """Key -> the ImageForm of an image that was compared with others (checks/frame_evidence.py)."""
        return {}

    @cached_property
    def examined(self) -> ExaminedImages:
        """The headers of the sampled images; the conversion reports those that cannot be read."""
        spec, source = self.spec, self.source
        read, found, several = 0, list[ExaminedImage](), list[str]()
        if spec is None:
            return ExaminedImages(read, found, several)
        picked = [index for index in self.sample().tolist() if index not in source.findings.refused]
        for index, data in source.readable(picked, MOST_BYTES_A_PIXEL * spec.max_pixels):
            read += 1
            if has_more_pages(data):
                several.append(self.keys[index])
            header = read_image_header(data)
            if (
                header is not None
                and min(header[:2]) >= 1
                and header.height * header.width <= spec.max_pixels
            ):
                largest = largest_value(data, spec.max_pixels) if header.narrowed and not spec.deep else None
                found.append(ExaminedImage(self.keys[index], header, largest))
        return ExaminedImages(read, found, several)
