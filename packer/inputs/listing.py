"""Listing: a source of images as it is understood, before anything is written; Finding: a doubt about it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.inputs.file_names import sort_key
from packer.inputs.image_pairs import Pair
from packer.inputs.image_targets import ImageTargets
from packer.inputs.opened_source import ImageSource
from packer.sentence import Option, Sentence

SAMPLE = 64
"""Most files that a check reads."""
_LISTED = 12  # classes that a message lists


@dataclass(frozen=True)
class Finding:
    """A doubt about a listing.

    sentence: observation with counts and up to two examples, and the option that settles it. error: True if
    the pack would train wrongly and a mistake is more likely than not; False for a note. key: a folder that
    is left out instead if ``on_error="skip"``, with `reason`.
    """

    sentence: Sentence
    error: bool = False
    key: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Listing:
    """Images with classes, splits, targets and partners, as they would be packed.

    source: keys, sizes and bytes of the images; splits. targets: labels, classes, boxes and keypoints that
    would be stored. pairs: the partners of the images. accepted: the classes that the user listed; checks of
    folders pass if all classes are accepted. labels_given: labels come from a file.
    """

    source: ImageSource
    targets: ImageTargets
    pairs: Sequence[Pair] = ()
    accepted: Collection[str] = ()
    labels_given: bool = False

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
        classes = self.source.foldered
        return bool(classes) and not self.labels_given and not set(classes or ()) <= set(self.accepted)

    def index_of(self, key: str) -> int:
        """Return the index of an image of a folder, whose keys are in `sort_key` order."""
        return bisect_left(self.keys, sort_key(key), key=sort_key)

    def accepting(self, classes: Sequence[str]) -> str:
        """Return the option that says that these are the classes, for a sentence."""
        if len(classes) <= _LISTED:
            return f"{Option('classes', ','.join(classes))}"
        return f"{Option('classes')} with a file of their names"

    def parts(self) -> Iterator[tuple[str, str, list[str]]]:
        """Yield what holds class folders: the source, or each folder that is a split.

        Yields: name of the place for messages; prefix of its keys; its keys, without the prefix.
        """
        for prefix in self.source.class_parents:
            keys = [key.removeprefix(prefix) for key in self.keys if key.startswith(prefix)]
            yield f"{self.source.place}/{prefix}".rstrip("/"), prefix, keys

    def sample(self, most: int = SAMPLE) -> NDArray[np.int64]:
        """Return up to `most` indices of images, spread evenly over the listing."""
        spread = np.linspace(0, len(self.keys) - 1, min(most, len(self.keys))).astype(np.int64)
        return np.array(list(dict.fromkeys(spread.tolist())), np.int64)  # np.unique loads numpy.ma, in 0.03 s
