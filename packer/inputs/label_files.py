"""Label files of images: one text or XML file per image, matched by equal names in corresponding folders.

    images/train/1.jpg   labels/train/1.txt      the folders differ in one part
    JPEGImages/1.jpg     Annotations/1.xml
    train/1.jpg          train/1.xml             the same folder
    1.jpg                labels/1.txt            one folder deeper

The content of the files decides whether they are label files; each is that of one image.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.inputs.file_names import (
    SPLIT_NAMES,
    as_text,
    is_image,
    on_disk,
    shorten,
    split_folders,
    split_in,
)
from packer.inputs.findings import Findings
from packer.inputs.image_targets import ImageTargets
from packer.inputs.text_files import read_lines
from packer.path_text import compose

ABSENT = -1
SPLITS = tuple(dict.fromkeys(SPLIT_NAMES.values()))
"""Names of splits, in order."""
LISTS_OF_SPLITS = "ImageSets/Main"
"""Folder of Pascal VOC's lists."""
AS_TABLE = "write these into a CSV or COCO's JSON, and pass labels='FILE'"
"""The remedy for labels in a form that is not read."""
_TRIED = 16
"""Files of a folder that are read to find out what they are."""
_REJECTED = 8
"""Folders of other content after which the remaining ones are not tried."""


class ListedFolder(NamedTuple):
    """A folder with the paths of all its visible files, "/"-separated: images in `image_order`, and others.

    within: the source, a path below the folder, if not all of the folder is packed: `keys` are its images.
    """

    name: str
    keys: list[str]
    others: list[str]
    within: str = ""

    def path(self, inner: str) -> str:
        """Return the path to open one of the files."""
        return os.fsdecode(on_disk(f"{as_text(self.name)}/{inner}"))

    def holding(self, paths: Iterable[str | None]) -> str:
        """Return the folder of the first of some files, for messages."""
        return f"{self.name}/{os.path.dirname(next(filter(None, paths), ''))}".rstrip("/")

    def taken(self, chosen: NDArray[np.bool_]) -> ListedFolder:
        """Return the folder with some of its images."""
        return self._replace(keys=[self.keys[index] for index in np.flatnonzero(chosen).tolist()])

    def ending(self, *suffixes: str) -> list[str]:
        """Return the other files with one of these suffixes."""
        return [path for path in self.others if path.lower().endswith(suffixes)]


class BoxLayout(NamedTuple):
    """A dataset of boxes, found in a folder.

    form: name for messages. example: a file that shows the form. images: indices of its images, int64. read:
    function of their keys that returns their targets and splits.
    """

    form: str
    example: str
    images: NDArray[np.int64]
    read: Callable[[list[str]], tuple[ImageTargets, dict[str, NDArray[np.int64]]]]


Accepts = Callable[[ListedFolder, Sequence[str]], bool]
"""A predicate on some label files of a folder, by their content."""


class MatchedFiles(NamedTuple):
    """Label files of images. matched: image -> label file. spare: files beside them that match no image."""

    folder: ListedFolder
    accepts: Accepts
    matched: dict[str, str]
    spare: list[str]

    def leave_out_spare(self, findings: Findings, called: str) -> None:
        """Leave out label files without an image. Raises: SourceError."""
        for path in sorted(self.spare):
            if self.accepts(self.folder, [path]):
                found = "no image of this name is there"
                error = f"{self.folder.name}/{path}: {found}; each {called} has one. Add it"
                findings.leave_out(path, f"{found}.", error)

    def served(self, keys: Sequence[str]) -> NDArray[np.int64]:
        """Return the images in folders that have label files; their others have no file of their own."""
        folders = {key.rpartition("/")[0] for key in self.matched}
        return np.flatnonzero([key.rpartition("/")[0] in folders for key in keys])


def stem_of(path: str) -> str:
    """Return a file's name without folder and extension; "1.jpg.json" belongs to 1.jpg, too."""
    stem = os.path.splitext(compose(path.rpartition("/")[2]))[0]
    return os.path.splitext(stem)[0] if is_image(stem) else stem


class _Match(NamedTuple):
    """A folder of images and one of label files with common stems; `nearness` is small for a good match."""

    nearness: tuple[bool, int]
    common: int
    images: str
    labels: str


def match_files(
    folder: ListedFolder, paths: Iterable[str], usual: Mapping[str, str], accepts: Accepts
) -> MatchedFiles:
    """Match label files to images by their names.

    usual: name of a folder of images -> of its folder of labels, which is preferred.
    Raises: UsageError if two folders of images, or of label files, match equally well.
    """
    found, labels = MatchedFiles(folder, accepts, {}, []), _by_folder(paths)
    images = _by_folder(folder.keys if labels else ())
    accepted: dict[str, bool] = {}
    served: dict[str, _Match] = {}
    owners: dict[str, _Match] = {}
    for match in _matches(images, labels, usual):
        held = labels[match.labels]
        pairs = [(keys, held[stem][0]) for stem, keys in images[match.images].items() if stem in held]
        if match.labels not in accepted:
            if len(accepted) >= _REJECTED and not any(accepted.values()):
                break
            chosen = pairs[:: max(len(pairs) // _TRIED, 1)][:_TRIED]
            accepted[match.labels] = accepts(folder, [text for _, text in chosen])
        if not accepted[match.labels]:
            continue
        if earlier := served.get(match.images):
            if earlier.nearness == match.nearness:
                raise _ambiguous(folder, match.images, earlier.labels, match.labels)
            continue
        if earlier := next((owners[text] for _, text in pairs if text in owners), None):
            if _compete(earlier, match):
                raise _ambiguous(folder, match.labels, earlier.images, match.images)
            continue
        served[match.images] = match
        for keys, text in pairs:
            if len(keys) > 1:
                raise UsageError(
                    f"{folder.name}/{text}: belongs to {keys[0]} and to {keys[1]}; a label file is that of "
                    "one image. Rename one of them."
                )
            owners[text] = match
            found.matched[keys[0]] = text
    for place in {match.labels for match in served.values()}:
        found.spare.extend(path for held in labels[place].values() for path in held if path not in owners)
    return found


def _by_folder(paths: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """Return folder -> stem -> paths there."""
    found: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for path in paths:
        found[path.rpartition("/")[0]].setdefault(stem_of(path), []).append(path)
    return found


def _compete(one: _Match, two: _Match) -> bool:
    """Return True if it is not clear which of two folders of images belongs to label files.

    Photos and their masks have equal names; images of another split may have.
    """
    if one.nearness[0] != two.nearness[0] or min(one.nearness[1], 1) != min(two.nearness[1], 1):
        return False
    splits = [next(filter(None, map(split_in, path.split("/"))), None) for path in (one.labels, two.images)]
    return None in splits or splits[0] == splits[1]


def _matches(
    images: Mapping[str, Mapping[str, object]],
    labels: Mapping[str, Mapping[str, object]],
    usual: Mapping[str, str],
) -> list[_Match]:
    """Return the folders with common stems, the best match first."""
    where: dict[str, list[str]] = defaultdict(list)
    for place, stems in labels.items():
        for stem in stems:
            where[stem].append(place)
    found = []
    for place, stems in images.items():
        preferred = "/".join(usual.get(part, part) for part in place.split("/"))
        if labels.get(place, {}).keys() & stems.keys():  # numbered files have equal names in many folders
            near = {place, preferred} & labels.keys()
            shared = Counter({other: len(labels[other].keys() & stems.keys()) for other in near})
        else:
            shared = Counter(other for stem in stems for other in where.get(stem, ()))
        for other, common in shared.items():
            apart = _distance(place, other)
            if common and (apart < 2 or 2 * common >= min(len(stems), len(labels[other]))):
                found.append(_Match((place == preferred or other != preferred, apart), common, place, other))
    return sorted(found, key=lambda match: (match.nearness, -match.common, match.images, match.labels))


def _distance(one: str, two: str) -> int:
    """Return how many parts of two folders' paths differ, between their common ends."""
    first, second = (path.split("/") if path else [] for path in (one, two))
    for end in (0, -1):
        while first and second and first[end] == second[end]:
            del first[end], second[end]
    return max(len(first), len(second))


def _ambiguous(folder: ListedFolder, place: str, one: str, two: str) -> UsageError:
    names = [f"{folder.name}/{path}".rstrip("/") for path in (place, one, two)]
    return UsageError(
        f"{names[0]}: its files have the names of those in {names[1]} and in {names[2]}; one of the folders "
        "belongs to it. Move the other one away."
    )


def path_splits(keys: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """Return the images of each split that a folder in their paths names, such as images/train/1.jpg.

    {} unless all images lie in folders of two or more splits, at the same level.
    """
    folders = [key.split("/")[:-1] for key in keys]
    for level in range(min(map(len, folders), default=0)):
        names = [parts[level] for parts in folders]
        called = split_folders(set(names))
        if len(called) > 1 and len(set(called.values())) == len(called):
            owners = np.array([called[name] for name in names])
            return {split: np.flatnonzero(owners == split) for split in SPLITS if split in called.values()}
    return {}


def read_list(
    path: str, called: str, find: Callable[[str], int], findings: Findings, *, quiet: bool = False
) -> Iterator[tuple[int, int]]:
    """Yield number and image of each line of a list; leave out lines that name no image.

    called: the list in reports. find: text of a line -> image, or ABSENT. quiet: say nothing of these lines.
    """
    for line, text in enumerate(read_lines(path, "a list of images is needed"), 1):
        index = find(text.strip()) if text.strip() else ABSENT
        if index != ABSENT:
            yield line, index
        elif text.strip() and not quiet:
            found = f"no image, or several, are called {shorten(text.strip())}"
            error = f"{path} line {line}: {found}; a list names images. Correct it"
            findings.leave_out(f"{called} line {line}", f"{found}.", error)
