"""COCO annotations (JSON): the boxes of each image, and their classes.

    images       [{"id": 7, "file_name": "a/1.jpg", "width": 640, "height": 480}, ...]
    annotations  [{"image_id": 7, "category_id": 3, "bbox": [left, top, width, height], "iscrowd": 0}, ...]
    categories   [{"id": 3, "name": "car"}, ...]

The fields equal those of boxes in a CSV (image_targets.py): boxes float32 [n, 4] (left, top, right, bottom),
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
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from mmap import ACCESS_READ, mmap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.inputs.box_table import BoxTable, box_targets
from packer.inputs.coordinate_columns import SizeSample
from packer.inputs.coordinate_order import read_coco_boxes
from packer.inputs.file_names import as_text, file_splits, shorten, split_of
from packer.inputs.findings import Findings
from packer.inputs.image_targets import ImageTargets, read_targets
from packer.inputs.label_files import ABSENT, BoxLayout, ListedFolder, names_of_images, stem_of
from packer.inputs.label_options import Labels
from packer.inputs.label_rows import read_json
from packer.inputs.text_files import read_bytes
from packer.sentence import Option

FORM = "COCO annotations"
FOLDER, PREFIX, ENDING = "annotations", "instances_", ".json"
_LISTS = {"images": "image", "annotations": "annotation", "categories": "category"}
"""Lists of a file -> what messages call an entry."""
_TOLD = 2
"""Number of these lists that tells COCO annotations from other JSON."""
_UNKNOWN = -2
_WORDS = tuple(f'"{word}"'.encode() for word in (*_LISTS, "bbox", "file_name"))
_MOST_FILES = 32
_NO_BOX = (math.nan,) * 4
_MOST = 1e9
_DEFAULT = Labels()


class CocoPart(NamedTuple):
    """A COCO file. folder: of its images, relative to the source and with a trailing slash, or "".

    content: its parsed JSON; None to read the file.
    """

    path: str
    folder: str = ""
    split: str | None = None
    content: Any = None


def find_annotations(folder: str) -> list[CocoPart]:
    """Return the annotation files of a folder in COCO layout; [] for any other folder."""
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


def find_coco(folder: ListedFolder, chosen: Labels) -> BoxLayout | None:
    """Return the dataset that a folder in COCO layout holds; None for any other. chosen: see `read_coco`."""
    within = f"{folder.within}/".lstrip("/")
    parts = find_annotations(folder.name) or _find_elsewhere(folder)
    parts = [part for part in parts if part.folder.startswith(within)]
    places = tuple(part.folder for part in parts)
    if not parts:
        return None
    images = np.flatnonzero([key.startswith(places) for key in folder.keys])
    inner = [part._replace(folder=part.folder.removeprefix(within)) for part in parts]
    example = os.path.relpath(parts[0].path, folder.name)
    return BoxLayout(FORM, as_text(example), images, partial(_read_parts, inner, chosen))


def _find_elsewhere(folder: ListedFolder) -> list[CocoPart]:
    """Return the annotation files at the top of a folder or one level deeper, by their content."""
    paths = [path for path in folder.ending(ENDING) if path.count("/") < 2]
    stems = {stem_of(key) for key in folder.keys} if paths else set()
    paths = [path for path in paths if stem_of(path) not in stems]
    places = sorted({key.rpartition("/")[0] for key in folder.keys})
    parts = []
    for path in paths[:_MOST_FILES]:
        if _is_coco(folder.path(path)):
            own = path.rpartition("/")[0]
            split = split_of(path)
            named = [place for place in places if split is not None and split_of(place) == split]
            images = own if own in places else named[0] if len(named) == 1 else "images"
            below = f"{images}/" if any(key.startswith(f"{images}/") for key in folder.keys) else ""
            parts.append(CocoPart(folder.path(path), below, split))
    return parts


def _is_coco(path: str) -> bool:
    """Return True if a file holds the words of COCO annotations with boxes."""
    try:
        with (
            open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file,
            mmap(file.fileno(), 0, access=ACCESS_READ) as data,
        ):
            return all(data.find(word) >= 0 for word in _WORDS)
    except (OSError, ValueError):  # an empty file
        return False


def _read_parts(
    parts: Sequence[CocoPart], chosen: Labels, keys: Sequence[str], findings: Findings
) -> tuple[ImageTargets, dict[str, NDArray[np.int64]]]:
    """Return the targets and splits of images."""
    targets, owners = read_coco(parts, keys, findings, chosen)
    return targets, file_splits([part.path for part in parts], [part.split for part in parts], owners)


def read_labels(
    labels: Labels,
    keys: list[str],
    findings: Findings,
    beside: Sequence[str] = (),
    folder: str = "",
    sample: SizeSample | None = None,
) -> ImageTargets:
    """Read the labels and boxes of each image from a file. Other arguments: see `read_targets`.

    Raises: SourceError, UsageError.
    """
    path = os.fspath(labels.file or "")
    content = read_json(path)
    if not isinstance(content, dict) or sum(isinstance(content.get(n), list) for n in _LISTS) < _TOLD:
        return read_targets(labels, keys, findings, beside, folder, sample, content)
    if beside:
        raise UsageError(f"{path}: has no columns, but column {beside[0]} is needed. Pass a CSV.")
    for option in labels.about_csv():
        raise UsageError(f"{option}: applies to columns, but {path} holds COCO annotations. Leave it out.")
    return read_coco([CocoPart(path, content=content)], keys, findings, labels)[0]


def read_coco(
    parts: Sequence[CocoPart], keys: Sequence[str], findings: Findings, chosen: Labels = _DEFAULT
) -> tuple[ImageTargets, NDArray[np.int64]]:
    """Read the annotations of images.

    parts: files with equal categories. keys: image paths relative to the source. findings: refuses images
    that are not listed or have invalid annotations, and skips entries whose image file is missing.
    chosen: format of the boxes, and whether images that are not listed have none.
    Returns: boxes and their labels; the index in `parts` of the file that lists each image, int64 [N], 0 if
    no file does. Raises: SourceError.
    """
    paths, listed = [part.path for part in parts], np.full(len(keys), -1, np.int64)
    sizes, left_out = np.zeros((len(keys), 2), np.int64), Counter[str]()
    classes: list[str] = []
    columns = []
    for number, part in enumerate(parts):
        entries = _entries(part)
        ids, names = _categories(part.path, entries["categories"])
        if number and names != classes:
            raise SourceError(
                f"{part.path}: its categories differ from those of {paths[0]}; all files of a dataset have "
                "equal categories. Correct it."
            )
        classes, images = names, _images(part, keys, entries["images"], sizes, findings)
        for index in [index for index in images.values() if index != ABSENT]:
            if listed[index] >= 0:
                raise SourceError(
                    f"{part.path}: {shorten(keys[index])} is listed twice, here or in "
                    f"{paths[listed[index]]}; each image is listed once. Correct it."
                )
            listed[index] = number
        told = sizes, chosen.boxes_format
        columns.append(_boxes(part.path, entries["annotations"], images, ids, told, findings, left_out))
    subject, unlisted = " and ".join(paths), np.flatnonzero(listed < 0).tolist()
    more = f" and {len(unlisted) - 1:,} more" if len(unlisted) > 1 else ""
    for index in () if chosen.unlisted == "empty" else unlisted:
        findings.refuse(
            index,
            f"is not listed in {' and '.join(map(os.path.basename, paths))}.",
            f"{subject}: does not list {keys[index]}{more}; images without objects are listed, too. Add them, "
            f"or pass {Option('Labels.unlisted', 'empty')} if they have none",
        )
    targets = box_targets(
        FORM,
        subject,
        BoxTable(*map(np.concatenate, zip(*columns, strict=True))),
        classes,
        len(keys),
        findings,
        unit="annotation",
        sizes=sizes,
        dropped="; segmentations and keypoints are left out",
        left_out=left_out,
    )
    return targets, np.maximum(listed, 0)


def _entries(part: CocoPart) -> dict[str, list[dict[str, Any]]]:
    """Return the lists `images`, `annotations` and `categories` of a file. Raises: SourceError."""
    path, content = part.path, part.content
    try:
        if content is None:
            content = json.loads(read_bytes(path, "COCO annotations are needed"))
    except (ValueError, RecursionError):
        raise SourceError(
            f"{path}: damaged or truncated JSON; COCO annotations are needed. Get it again."
        ) from None
    for name, called in _LISTS.items():
        if not isinstance(content, dict) or not isinstance(content.get(name), list):
            raise SourceError(
                f"{path}: has no list {name}; COCO annotations are needed, which hold images, annotations "
                "and categories. Check it."
            )
        for place, entry in enumerate(content[name], 1):
            if not isinstance(entry, dict):
                raise SourceError(
                    f"{path}: {called} {place} is not a JSON object; COCO entries are. Correct it."
                )
    return {name: content[name] for name in _LISTS}


def _categories(path: str, entries: list[dict[str, Any]]) -> tuple[dict[Any, int], list[str]]:
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


def _images(
    part: CocoPart,
    keys: Sequence[str],
    entries: list[dict[str, Any]],
    sizes: NDArray[np.int64],
    findings: Findings,
) -> dict[Any, int]:
    """Return the index of each image id, ABSENT for a missing file; fill `sizes` with height and width."""
    below = names_of_images(keys, part.folder)
    images: dict[Any, int] = {}
    for place, entry in enumerate(entries, 1):
        identity, name = entry.get("id"), entry.get("file_name")
        if not _is_id(identity) or not isinstance(name, str) or not name:
            missing = "file_name" if _is_id(identity) else "id"
            raise SourceError(
                f"{part.path}: image {place} has no {missing}; each has an id and a file_name. Correct it."
            )
        if identity in images:
            raise SourceError(
                f"{part.path}: two images have the id {shorten(str(identity))}; ids are unique. Correct it."
            )
        index = images[identity] = below.find(name)
        if index == ABSENT:
            _refuse(
                findings,
                part.path,
                f"image {place}",
                f"is called {shorten(name)}, a name that no file or several files have",
            )
        height, width = entry.get("height"), entry.get("width")
        if index >= 0 and type(height) is type(width) is int and 0 < height < 2**31 and 0 < width < 2**31:
            sizes[index] = height, width
    return images


def _boxes(
    path: str,
    entries: list[dict[str, Any]],
    images: Mapping[Any, int],
    classes: Mapping[Any, int],
    told: tuple[NDArray[np.int64], str | None],
    findings: Findings,
    left_out: Counter[str],
) -> BoxTable:
    """Return the boxes of objects; count those of crowds.

    told: height and width of each image, 0: unknown; the format of the boxes, if it is chosen.
    """
    owners, labels = _numbers(entries, "image_id", images), _numbers(entries, "category_id", classes)
    ids = np.array([_line(entry.get("id"), place) for place, entry in enumerate(entries, 1)], np.int64)
    given = np.array([_four_numbers(entry.get("bbox")) for entry in entries], np.float64).reshape(-1, 4)
    wrong = (owners == _UNKNOWN) | ((owners >= 0) & ((labels == _UNKNOWN) | np.isnan(given[:, 0])))
    for row in np.flatnonzero(wrong).tolist():
        found = "has no bbox of four finite numbers"
        for what, numbers in (("category", labels), ("image", owners)):
            if numbers[row] == _UNKNOWN:
                found = (
                    f"has the {what}_id {shorten(str(entries[row].get(f'{what}_id')))}, which no {what} has"
                )
        _refuse(findings, path, f"annotation {ids[row]}", found, int(owners[row]))
    there = (owners >= 0) & ~wrong
    crowds = there & np.array([bool(entry.get("iscrowd")) for entry in entries], np.bool_)
    left_out["of crowds"] += int(crowds.sum())
    sides = np.where(told[0] > 0, told[0], np.nan)[owners, ::-1]
    xyxy = read_coco_boxes(path, given, sides, there & ~crowds, told[1])
    return BoxTable(xyxy, owners, labels, ids).taken(there & ~crowds)


def _refuse(findings: Findings, path: str, called: str, found: str, image: int = ABSENT) -> None:
    """Refuse the image of an invalid entry, or leave out an entry without one. Raises SourceError."""
    file, error = os.path.basename(path), f"{path}: {called} {found}. Correct it"
    if image < 0:
        findings.leave_out(f"{file} {called}", f"{found}.", error)
    else:
        findings.refuse(image, f"its {called} ({file}) {found}.", error)


def _is_id(value: object) -> bool:
    return type(value) in (int, str)


def _line(identity: object, place: int) -> int:
    """Return an annotation's number in messages: its id if that is an int64, else its list position."""
    return identity if type(identity) is int and -(2**63) <= identity < 2**63 else place


def _numbers(entries: list[dict[str, Any]], name: str, known: Mapping[Any, int]) -> NDArray[np.int64]:
    """Return the number of each id in a column, int64; _UNKNOWN for an id that `known` lacks."""
    column = (entry.get(name) for entry in entries)
    return np.array([known.get(value, _UNKNOWN) if _is_id(value) else _UNKNOWN for value in column], np.int64)


def _four_numbers(box: Any) -> Sequence[float]:
    """Return the numbers of a box; NaNs unless it is four finite numbers below _MOST."""
    plain = isinstance(box, list) and len(box) == 4 and all(type(side) in (int, float) for side in box)
    return box if plain and all(abs(side) < _MOST for side in box) else _NO_BOX
