"""COCO annotations (JSON): the boxes of each image, and their classes.

    images       [{"id": 7, "file_name": "a/1.jpg", "width": 640, "height": 480}, ...]
    annotations  [{"image_id": 7, "category_id": 3, "bbox": [left, top, width, height], "iscrowd": 0}, ...]
    categories   [{"id": 3, "name": "car"}, ...]

The fields equal those of boxes in a CSV (table_targets.py): boxes float32 [n, 4] (left, top, right, bottom),
box_label int64 [n]. The classes are all categories, in the order of their ids. A listed image without
annotations has no boxes; an unlisted image is an error. The reader skips, with a note, crowds (regions, not
objects), boxes without area, segmentations, and keypoints (several persons per image have no fixed shape).

    photos/annotations/instances_train2017.json   detected automatically; its images are in photos/train2017,
                                                  photos/images/train2017, photos/images or photos. Several
                                                  files named train, val, test ... become splits.
    photos/train/_annotations.coco.json           without these: any such file in photos or in a folder there;
                                                  its images are beside it, or in the folder of its split
    any other file                                passed as labels: JSON with two of the lists below
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from functools import partial
from mmap import ACCESS_READ, mmap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.inputs.boxes import BoxTable
from packer.inputs.coordinate_order import BoxColumns, read_coco_boxes
from packer.inputs.file_names import file_splits, shorten, split_of
from packer.inputs.findings import Findings
from packer.inputs.image_names import ImageNames
from packer.inputs.image_targets import ImageTargets, box_targets
from packer.inputs.label_files import ABSENT, BoxLayout, ListedFolder, stem_of
from packer.inputs.label_options import Labels
from packer.inputs.label_rows import read_json
from packer.inputs.opened_source import ImageSource, SourceOptions
from packer.inputs.table_targets import read_targets
from packer.inputs.text_files import open_bytes, read_bytes

FORM = "COCO annotations"
FOLDER, PREFIX, ENDING = "annotations", "instances_", ".json"
_LISTS = {"images": "image", "annotations": "annotation", "categories": "category"}
"""Lists of a file -> what messages call an entry."""
_TOLD = 2
"""Number of these lists that tells COCO annotations from other JSON."""
_NEEDED = "COCO annotations are needed"
_UNKNOWN = -2
_WORDS = tuple(f'"{word}"'.encode() for word in (*_LISTS, "bbox", "file_name"))
_MOST_FILES = 32
_NO_BOX = (math.nan,) * 4
_MOST = 1e9

Entries = list[dict[str, Any]]
"""A list of a file."""


class CocoPart(NamedTuple):
    """A COCO file. folder: of its images, relative to the source and with a trailing slash, or "".

    content: its parsed JSON; None to read the file.
    """

    path: str
    folder: str = ""
    split: str | None = None
    content: Any = None


def find_coco(folder: ListedFolder, options: SourceOptions) -> BoxLayout | None:
    """Return the COCO dataset that a folder holds, or None."""
    within = f"{folder.within}/".lstrip("/")
    parts = [part for part in _find_files(folder) if part.folder.startswith(within)]
    if not parts:
        return None
    places = tuple(part.folder for part in parts)
    images = np.flatnonzero([key.startswith(places) for key in folder.keys])
    inner = [
        part._replace(path=folder.path(part.path), folder=part.folder.removeprefix(within)) for part in parts
    ]
    return BoxLayout(FORM, parts[0].path, images, partial(read_coco, inner, options.labels, options.findings))


def _find_files(folder: ListedFolder) -> list[CocoPart]:
    """Return the annotation files of a folder with paths below it: by their names, else by their content."""
    paths = [path for path in folder.ending(ENDING) if path.count("/") < 2]
    usual = [path for path in paths if path.startswith(f"{FOLDER}/{PREFIX}")]
    if paths and not usual:
        stems = {stem_of(key) for key in folder.keys}
        others = [path for path in paths if stem_of(path) not in stems]
        usual = [path for path in others[:_MOST_FILES] if _is_coco(folder.path(path))]
    held = sorted({key.rpartition("/")[0] for key in folder.keys}) if usual else []
    return [CocoPart(path, _place_of_images(path, held), split_of(path)) for path in usual]


def _place_of_images(path: str, held: Sequence[str]) -> str:
    """Return the folder of a file's images with a trailing slash, or "". held: folders with images."""
    word, split = stem_of(path).removeprefix(PREFIX), split_of(path)
    named = [place for place in held if split is not None and split_of(place) == split]
    for place in (path.rpartition("/")[0], word, f"images/{word}", *named[: len(named) == 1], "images"):
        if place in held or any(other.startswith(f"{place}/") for other in held):
            return f"{place}/".lstrip("/")
    return ""


def _is_coco(path: str) -> bool:
    """Return True if a file holds the words of COCO annotations with boxes."""
    try:
        with open_bytes(path, _NEEDED) as (file, _), mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            return all(data.find(word) >= 0 for word in _WORDS)
    except (SourceError, ValueError):  # an empty file
        return False


def read_labels(labels: Labels, images: ImageSource, beside: Sequence[str] = ()) -> ImageTargets:
    """Read the labels and boxes of each image from a file. Arguments: see `read_targets`.

    Raises: SourceError, UsageError.
    """
    path = os.fspath(labels.file or "")
    content = read_json(path)
    if not isinstance(content, dict) or sum(isinstance(content.get(n), list) for n in _LISTS) < _TOLD:
        return read_targets(labels, images, beside, content)
    if beside:
        raise UsageError(f"{path}: has no columns, but column {beside[0]} is needed. Pass a CSV.")
    for option in labels.about_csv():
        raise UsageError(f"{option}: applies to columns, but {path} holds COCO annotations. Leave it out.")
    return read_coco([CocoPart(path, content=content)], labels, images.findings, images.keys)[0]


def read_coco(
    parts: Sequence[CocoPart], chosen: Labels, findings: Findings, keys: Sequence[str]
) -> tuple[ImageTargets, dict[str, NDArray[np.int64]]]:
    """Read the annotations of images; return their boxes with labels, and the splits.

    parts: files with equal categories. chosen: format of the boxes, and whether images that are not listed
    have none. keys: image paths relative to the source. findings: refuses images that are not listed or have
    invalid annotations, and skips entries whose image file is missing. Raises: SourceError.
    """
    reader = _Reader(keys, findings, chosen)
    tables = [reader.read(part) for part in parts]
    subject = " and ".join(reader.paths)
    unlisted = [] if chosen.unlisted == "empty" else np.flatnonzero(reader.listed < 0).tolist()
    findings.refuse_unlisted(
        unlisted,
        keys,
        f"is not listed in {' and '.join(map(os.path.basename, reader.paths))}.",
        f"{subject}: does not list",
        "images without objects are listed, too. Add them, or pass "
        "labels=Labels(unlisted='empty') if they have none",
    )
    columns = zip(*(table[:4] for table in tables), strict=True)
    xyxy, owners, labels, lines = map(np.concatenate, columns)
    table = BoxTable(xyxy, owners, labels, lines, subject, "annotation")
    targets = box_targets(FORM, table, reader.classes, len(keys), findings, reader.sizes)
    findings.note(
        f"{reader.crowds:,} annotations of crowds are left out." if reader.crowds else "",
        "Segmentations and keypoints of COCO annotations are left out." if reader.others else "",
    )
    return targets, file_splits(reader.paths, [part.split for part in parts], np.maximum(reader.listed, 0))


class _Reader:
    """Reads files one after the other.

    listed: the file that lists each image, -1 for none; sizes: height and width of each image, 0: unknown;
    crowds: annotations of crowds so far; others: True if any has a segmentation or keypoints.
    """

    def __init__(self, keys: Sequence[str], findings: Findings, chosen: Labels) -> None:
        self._keys, self._findings, self._format = keys, findings, chosen.boxes_format
        self.paths: list[str] = []
        self.classes: list[str] = []
        self.listed, self.sizes = np.full(len(keys), -1, np.int64), np.zeros((len(keys), 2), np.int64)
        self.crowds, self.others = 0, False

    def read(self, part: CocoPart) -> BoxTable:
        """Return the boxes of a file. Raises: SourceError."""
        entries = _entries(part)
        ids, names = _categories(part.path, entries["categories"])
        if self.paths and names != self.classes:
            raise SourceError(
                f"{part.path}: its categories differ from those of {self.paths[0]}; all files of a dataset "
                "have equal categories. Correct it."
            )
        self.classes = names
        self.paths.append(part.path)
        return self._boxes(part.path, entries["annotations"], self._images(part, entries["images"]), ids)

    def _images(self, part: CocoPart, entries: Entries) -> dict[Any, int]:
        """Return the index of each image id, ABSENT for a missing file; set `listed` and `sizes`."""
        below = ImageNames(self._keys, below=part.folder)
        images: dict[Any, int] = {}
        for place, entry in enumerate(entries, 1):
            identity, name = entry.get("id"), entry.get("file_name")
            wrong = ""
            if not _is_id(identity) or not isinstance(name, str) or not name:
                missing = "file_name" if _is_id(identity) else "id"
                wrong = f"image {place} has no {missing}; each has an id and a file_name"
            elif identity in images:
                wrong = f"two images have the id {shorten(str(identity))}; ids are unique"
            if wrong:
                raise SourceError(f"{part.path}: {wrong}. Correct it.")
            name = str(name)
            index = images[identity] = below.find_listed(name)
            if index == ABSENT:
                found = f"is called {shorten(name)}, a name that no file or several files have"
                self._refuse(part.path, f"image {place}", found)
                continue
            if self.listed[index] >= 0:
                raise SourceError(
                    f"{part.path}: {shorten(self._keys[index])} is listed twice, here or in "
                    f"{self.paths[self.listed[index]]}; each image is listed once. Correct it."
                )
            self.listed[index] = len(self.paths) - 1
            size = [entry.get("height"), entry.get("width")]
            if all(type(side) is int and 0 < side < 2**31 for side in size):
                self.sizes[index] = np.array(size)
        return images

    def _boxes(
        self, path: str, entries: Entries, images: Mapping[Any, int], classes: Mapping[Any, int]
    ) -> BoxTable:
        """Return the boxes of objects; count those of crowds."""
        owners, labels = _numbers(entries, "image_id", images), _numbers(entries, "category_id", classes)
        ids = np.array([_line(entry.get("id"), place) for place, entry in enumerate(entries, 1)], np.int64)
        given = np.array([_four_numbers(entry.get("bbox")) for entry in entries], np.float64).reshape(-1, 4)
        wrong = (owners == _UNKNOWN) | ((owners >= 0) & ((labels == _UNKNOWN) | np.isnan(given[:, 0])))
        for row in np.flatnonzero(wrong).tolist():
            found = "has no bbox of four finite numbers"
            for what, numbers in (("category", labels), ("image", owners)):
                if numbers[row] == _UNKNOWN:
                    value = shorten(str(entries[row].get(f"{what}_id")))
                    found = f"has the {what}_id {value}, which no {what} has"
            self._refuse(path, f"annotation {ids[row]}", found, int(owners[row]))
        crowds = np.array([bool(entry.get("iscrowd")) for entry in entries], np.bool_)
        self.others |= any(entry.get("segmentation") or entry.get("keypoints") for entry in entries)
        objects = (owners >= 0) & ~wrong
        self.crowds += int((objects & crowds).sum())
        objects &= ~crowds
        sides = np.where(self.sizes > 0, self.sizes, np.nan)[owners, ::-1]
        reading = read_coco_boxes(BoxColumns(path, (), given[objects], sides[objects]), self._format)
        return BoxTable(reading.corners(given), owners, labels, ids, path).taken(objects)

    def _refuse(self, path: str, called: str, found: str, image: int = ABSENT) -> None:
        """Refuse the image of an invalid entry, or leave out an entry without one. Raises SourceError."""
        file, error = os.path.basename(path), f"{path}: {called} {found}. Correct it"
        if image < 0:
            self._findings.leave_out(f"{file} {called}", f"{found}.", error)
        else:
            self._findings.refuse(image, f"its {called} ({file}) {found}.", error)


def _entries(part: CocoPart) -> dict[str, Entries]:
    """Return the lists `images`, `annotations` and `categories` of a file. Raises: SourceError."""
    path, content = part.path, part.content
    try:
        content = json.loads(read_bytes(path, _NEEDED)) if content is None else content
    except (ValueError, RecursionError):
        raise SourceError(f"{path}: damaged or truncated JSON; {_NEEDED}. Get it again.") from None
    for name, called in _LISTS.items():
        entries = content.get(name) if isinstance(content, dict) else None
        if not isinstance(entries, list):
            lists = "they hold images, annotations and categories"
            raise SourceError(f"{path}: has no list {name}; {_NEEDED}; {lists}. Check it.")
        wrong = [place for place, entry in enumerate(entries, 1) if not isinstance(entry, dict)]
        if wrong:
            found = f"{called} {wrong[0]} is not a JSON object"
            raise SourceError(f"{path}: {found}; COCO entries are. Correct it.")
    return {name: content[name] for name in _LISTS}


def _categories(path: str, entries: Entries) -> tuple[dict[Any, int], list[str]]:
    """Return the class number of each category id, and the class names, in the order of the ids."""
    found: dict[Any, str] = {}
    for place, entry in enumerate(entries, 1):
        identity, name = entry.get("id"), entry.get("name")
        if not _is_id(identity) or not isinstance(name, str) or not name.strip():
            raise SourceError(f"{path}: category {place} has no id or no name; each has both. Correct it.")
        if identity in found or name in found.values():
            raise SourceError(
                f"{path}: two categories have the id {identity} or the name {shorten(name)}; ids and names "
                "are unique. Correct it."
            )
        found[identity] = name
    if not found:
        raise SourceError(f"{path}: has no categories; the labels of boxes number them. Add them.")
    order = sorted(found, key=lambda identity: (isinstance(identity, str), identity))
    return {identity: number for number, identity in enumerate(order)}, [found[key] for key in order]


def _is_id(value: object) -> bool:
    return type(value) in (int, str)


def _line(identity: object, place: int) -> int:
    """Return an annotation's number in messages: its id if that is an int64, else its list position."""
    return identity if type(identity) is int and -(2**63) <= identity < 2**63 else place


def _numbers(entries: Entries, name: str, known: Mapping[Any, int]) -> NDArray[np.int64]:
    """Return the number of each id in a column, int64; _UNKNOWN for an id that `known` lacks."""
    column = (entry.get(name) for entry in entries)
    return np.array([known.get(value, _UNKNOWN) if _is_id(value) else _UNKNOWN for value in column], np.int64)


def _four_numbers(box: Any) -> Sequence[float]:
    """Return the numbers of a box; NaNs unless it is four finite numbers below _MOST."""
    plain = isinstance(box, list) and len(box) == 4 and all(type(side) in (int, float) for side in box)
    return box if plain and all(abs(side) < _MOST for side in box) else _NO_BOX
