"""COCO's JSON of annotations: the boxes of each image, and the classes that their labels number.

    images       [{"id": 7, "file_name": "a/1.jpg", "width": 640, "height": 480}, ...]
    annotations  [{"image_id": 7, "category_id": 3, "bbox": [left, top, width, height], "iscrowd": 0}, ...]
    categories   [{"id": 3, "name": "car"}, ...]

Fields are those of boxes in a CSV (image_targets.py): boxes float32 [n, 4] (left, top, right, bottom), box_label int64 [n]. Classes are
all categories, in the order of their ids. An image that is listed and has no annotations has no boxes; one that is not listed is an
error, as nothing is known of it. Crowds, which are regions and no objects, and boxes without area are left out, with a note;
segmentations and keypoints too, several persons an image having no one shape.

    photos/annotations/instances_train2017.json     and images in photos/train2017, photos/images/train2017, photos/images or photos:
                                                    found by itself; several are splits if they are called train, val, test ...
    any other place                                 passed as labels
"""

from __future__ import annotations

import json
import math
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.inputs.file_names import as_text, shorten, split_of
from packer.inputs.findings import Findings
from packer.inputs.image_targets import Boxes, ImageTargets, read_targets
from packer.inputs.label_csv import read_whole
from packer.inputs.label_options import Labels

FOLDER, PREFIX, ENDING = "annotations", "instances_", ".json"


class CocoPart(NamedTuple):
    """A JSON of annotations. path: its path; folder: of its images below the source, a slash behind it, or ""; split: or None."""

    path: str
    folder: str = ""
    split: str | None = None


def find_annotations(folder: str) -> list[CocoPart]:
    """Return the annotations of a folder that is laid out as COCO is; [] of any other one."""
    place = os.path.join(folder, FOLDER)
    try:
        names = sorted(
            name for name in os.listdir(place) if name.startswith(PREFIX) and name.endswith(ENDING)
        )
    except OSError:
        return []
    parts = []
    for name in names:
        word = name[len(PREFIX) : -len(ENDING)]
        ways = (word, f"images/{word}", "images")
        inner = next((way for way in ways if word and os.path.isdir(os.path.join(folder, way))), "")
        below = f"{as_text(inner)}/" if inner else ""
        parts.append(CocoPart(os.path.join(place, name), below, split_of(word)))
    return parts


def read_labels(labels: Labels, keys: list[str], findings: Findings) -> ImageTargets:
    """Read what a CSV, or COCO's JSON, says of each image. Raises: SourceError, UsageError."""
    path = os.fspath(labels.file or "")
    if not path.lower().endswith(ENDING):
        return read_targets(labels, keys, findings)
    for option in labels.about_csv():
        raise UsageError(f"{option}: is about columns of a CSV, and {path} is JSON. Leave it out.")
    return read_coco([CocoPart(path)], keys, findings)[0]


def read_coco(
    parts: Sequence[CocoPart], keys: Sequence[str], findings: Findings
) -> tuple[ImageTargets, NDArray[np.int64]]:
    """Read annotations of images.

    parts: files with equal categories; keys: paths of the images below the source; findings: images that are not listed, or whose
    annotations cannot be used, are refused; what is listed and is not there is left out.
    Returns: boxes and their labels; int64 [N], the part that lists each image, 0 of those that none lists.
    Raises: SourceError.
    """
    reading = _Reading(keys, findings)
    classes = reading.add(0, parts[0])
    for number, part in enumerate(parts[1:], 1):
        if reading.add(number, part) != classes:
            raise SourceError(
                f"{part.path}: has other categories than {parts[0].path}; the files of one data set have equal ones. Correct it."
            )
    return reading.targets(classes)


class _Reading:
    """The annotations read so far."""

    def __init__(self, keys: Sequence[str], findings: Findings) -> None:
        self._keys, self._findings = keys, findings
        self._corners = array("d")
        self._owners, self._labels, self._ids = array("q"), array("q"), array("q")
        self._parts = np.full(len(keys), -1, np.int64)
        self._sizes = np.zeros((len(keys), 2), np.int64)
        self._paths: list[str] = []
        self._left_out = {"of crowds": 0, "whose boxes have no area": 0}

    def add(self, number: int, part: CocoPart) -> list[str]:
        """Read a file, and return its classes. Raises: SourceError."""
        path = part.path
        self._paths.append(path)
        told = _told(path)
        ids, classes = _categories(path, told["categories"])
        images = self._images(number, part, told["images"])
        for place, entry in _dictionaries(path, "annotation", told["annotations"]):
            identity = entry.get("id")
            name = identity if type(identity) is int and -(2**63) <= identity < 2**63 else place
            self._annotation(path, name, entry, images, ids)
        return classes

    def _images(self, number: int, part: CocoPart, entries: list[Any]) -> dict[Any, int]:
        """Note which images are listed. Returns: id -> index of the image, -1 of one that is not there."""
        below = {
            key[len(part.folder) :]: k for k, key in enumerate(self._keys) if key.startswith(part.folder)
        }
        by_name: dict[str, int] = {}
        for key, index in below.items():
            last = key.rpartition("/")[2]
            by_name[last] = -1 if last in by_name else index
        images: dict[Any, int] = {}
        for place, entry in _dictionaries(part.path, "image", entries):
            identity, name = entry.get("id"), entry.get("file_name")
            if not _is_id(identity) or not isinstance(name, str) or not name:
                missing = "file_name" if _is_id(identity) else "id"
                raise SourceError(
                    f"{part.path}: image {place} has no {missing}; each has an id and a file_name. Correct it."
                )
            if identity in images:
                raise SourceError(
                    f"{part.path}: two images have the id {shorten(str(identity))}; each has its own. Correct it."
                )
            normal = os.path.normpath(name)
            index = below.get(normal, -1)
            if index < 0:
                index = by_name.get(normal.rpartition("/")[2], -1)
            images[identity] = index
            if index < 0:
                found = f"is called {shorten(name)}, and no file is, or several are"
                self._leave_out(part.path, f"image {place}", found)
                continue
            if self._parts[index] >= 0:
                raise SourceError(
                    f"{part.path}: {shorten(self._keys[index])} is listed twice, here or in {self._paths[self._parts[index]]}; "
                    "each image is listed once. Correct it."
                )
            self._parts[index] = number
            height, width = entry.get("height"), entry.get("width")
            if type(height) is type(width) is int and 0 < min(height, width) <= max(height, width) < 2**31:
                self._sizes[index] = height, width
        return images

    def _leave_out(self, path: str, called: str, found: str, image: int = -1) -> None:
        """Refuse the image of an entry, or leave out the entry of none. Raises SourceError unless such are skipped."""
        file, error = os.path.basename(path), f"{path}: {called} {found}. Correct it"
        if image < 0:
            self._findings.leave_out(f"{file} {called}", f"{found}.", error)
        else:
            self._findings.refuse(image, f"its {called} ({file}) {found}.", error)

    def _annotation(
        self,
        path: str,
        name: int,
        entry: Mapping[str, Any],
        images: Mapping[Any, int],
        ids: Mapping[Any, int],
    ) -> None:
        image, category = entry.get("image_id"), entry.get("category_id")
        index = images.get(image) if _is_id(image) else None
        label = ids.get(category) if _is_id(category) else None
        corners = _corners(entry.get("bbox"))
        found = ""
        if index is None:
            found = f"has the image_id {shorten(str(image))}, which no image has"
        elif label is None:
            found = f"has the category_id {shorten(str(category))}, which no category has"
        elif corners is None:
            found = "has no bbox of four finite numbers"
        if index is None or label is None or corners is None:
            if index is None or index >= 0:
                self._leave_out(path, f"annotation {name}", found, -1 if index is None else index)
        elif index < 0:
            return
        elif entry.get("iscrowd"):
            self._left_out["of crowds"] += 1
        elif corners[2] <= corners[0] or corners[3] <= corners[1]:
            self._left_out["whose boxes have no area"] += 1
        else:
            self._corners.extend(corners)
            self._owners.append(index)
            self._labels.append(label)
            self._ids.append(name)

    def targets(self, classes: list[str]) -> tuple[ImageTargets, NDArray[np.int64]]:
        """Return what `read_coco` does."""
        subject = " and ".join(self._paths)
        unlisted = np.flatnonzero(self._parts < 0).tolist()
        more = f" and {len(unlisted) - 1:,} more" if len(unlisted) > 1 else ""
        for index in unlisted:
            self._findings.refuse(
                index,
                f"is not listed in {' and '.join(map(os.path.basename, self._paths))}.",
                f"{subject}: does not list {self._keys[index]}{more}; images without objects are listed, too. Add them",
            )
        owners = np.array(self._owners, np.int64)
        boxes = Boxes(
            subject,
            np.array(self._corners).reshape(-1, 4),
            owners,
            np.array(self._ids, np.int64),
            np.array(self._labels, np.int64),
            len(self._keys),
            unit="annotation",
            sizes=self._sizes,
        )
        listed = len(self._keys) - len(unlisted)
        self._findings.notes.append(
            f"Read as COCO's annotations: {len(owners):,} boxes of {len(classes):,} classes on {listed:,} images, "
            f"{listed - len(np.unique(owners)):,} of them without any; segmentations and keypoints are left out."
        )
        for what, count in self._left_out.items():
            if count:
                self._findings.notes.append(f"{count:,} annotations {what} are left out.")
        targets = ImageTargets(None, classes, boxes=boxes, findings=self._findings)
        return targets, np.maximum(self._parts, 0)


def _is_id(value: object) -> bool:
    return type(value) in (int, str)


def _told(path: str) -> dict[str, list[Any]]:
    """Return the lists of a file. Raises: SourceError."""
    try:
        told = json.loads(read_whole(path, "COCO's annotations are needed"))
    except (ValueError, RecursionError):
        raise SourceError(
            f"{path}: a damaged or truncated JSON; COCO's annotations are needed. Get it again."
        ) from None
    lists = ("images", "annotations", "categories")
    wrong = [name for name in lists if not isinstance(told, dict) or not isinstance(told.get(name), list)]
    if wrong:
        raise SourceError(
            f"{path}: has no list {wrong[0]}; COCO's annotations are needed, which hold images, annotations and categories. Check it."
        )
    return {name: told[name] for name in lists}


def _dictionaries(path: str, what: str, entries: list[Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for place, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise SourceError(f"{path}: {what} {place} is no object with names; COCO's are. Correct it.")
        yield place, entry


def _categories(path: str, entries: list[Any]) -> tuple[dict[Any, int], list[str]]:
    """Return id -> number of the class, and the names of the classes, in the order of their ids."""
    found: dict[Any, str] = {}
    for place, entry in _dictionaries(path, "category", entries):
        identity, name = entry.get("id"), entry.get("name")
        if not _is_id(identity) or not isinstance(name, str) or not name.strip():
            raise SourceError(f"{path}: category {place} has no id or no name; each has both. Correct it.")
        if identity in found or name in found.values():
            raise SourceError(
                f"{path}: two categories have the id {identity} or the name {shorten(name)}; each has its own. Correct it."
            )
        found[identity] = name
    if not found:
        raise SourceError(f"{path}: has no categories; the labels of boxes number them. Add them.")
    order = sorted(found, key=lambda identity: (isinstance(identity, str), identity))
    return {identity: number for number, identity in enumerate(order)}, [
        found[identity] for identity in order
    ]


def _corners(box: Any) -> tuple[float, float, float, float] | None:
    """Return left, top, right, bottom of a box given as left, top, width, height; None unless these are four finite numbers."""
    if not isinstance(box, list) or len(box) != 4 or not all(type(side) in (int, float) for side in box):
        return None
    try:
        left, top, width, height = map(float, box)
    except OverflowError:
        return None
    corners = left, top, left + width, top + height
    return corners if all(map(math.isfinite, corners)) and max(map(abs, corners)) < 1e9 else None
