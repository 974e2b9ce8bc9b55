"""Pascal VOC annotations: an XML file per image, with the objects' names and boxes.

    <annotation>
      <size><width>500</width><height>375</height></size>
      <object>
        <name>dog</name> <difficult>0</difficult> <truncated>0</truncated>
        <bndbox><xmin>48</xmin><ymin>240</ymin><xmax>195</xmax><ymax>371</ymax></bndbox>
      </object>
    </annotation>

    VOC2007/JPEGImages/1.jpg  Annotations/1.xml   or any folders of equal file names, see label_files.py;
                                                  several such roots are read together
    VOC2007/ImageSets/Main/{train,val,test}.txt   the splits; trainval.txt only without train.txt and val.txt

Coordinates are the first and last pixel of a box, counted from 1; the first becomes a left and a top edge by
subtracting 1. If a box begins before pixel 1, the set counts from 0, and its numbers are edges. The fields
equal those of COCO annotations; the classes are the sorted names. Every image needs an annotation; one
without objects says that there are none.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import NamedTuple
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.inputs.boxes import BoxTable
from packer.inputs.file_names import SPLIT_NAMES, file_splits, shorten
from packer.inputs.findings import Findings
from packer.inputs.image_names import ImageNames
from packer.inputs.image_targets import ImageTargets, box_targets
from packer.inputs.label_files import (
    ABSENT,
    LISTS_OF_SPLITS,
    SPLITS,
    BoxLayout,
    ListedFolder,
    MatchedFiles,
    match_files,
    path_splits,
    read_list,
)
from packer.inputs.opened_source import SourceOptions
from packer.inputs.text_files import read_bytes

_FORM = "Pascal VOC annotations"
_USUAL = {"JPEGImages": "Annotations", "images": "annotations"}
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_MARKS = ("difficult", "truncated", "occluded")
_MOST = 16 << 20
_LONGEST_SIDE, _LARGEST = 2**31 - 1, 1e9
_NEEDED = "a Pascal VOC annotation is needed"


class _Doctype(TreeBuilder):
    """A builder that refuses document types, whose entities could fill the memory."""

    def doctype(self, *_: object) -> None:
        """Raise ValueError."""
        raise ValueError("it has a document type")


class _Object(NamedTuple):
    """An object: index of its image; its position in the file, from 1; corners as written; `_MARKS` it "
    "has."""

    image: int
    place: int
    name: str
    corners: list[float]
    marks: list[str]


def read_annotation(path: str) -> Element:
    """Read an XML file. Raises: SourceError if it is damaged or not an annotation."""
    data = read_bytes(path, _NEEDED, most=_MOST)
    try:
        parser = XMLParser(target=_Doctype())
        parser.feed(data)
        root = parser.close()
    except (ParseError, ValueError, LookupError, RecursionError) as error:
        raise SourceError(f"{path}: damaged XML ({shorten(str(error))}); {_NEEDED}. Correct it.") from None
    if root.tag != "annotation":
        raise SourceError(f"{path}: holds <{shorten(root.tag)}>, not <annotation>; {_NEEDED}. Correct it.")
    return root


def is_voc(folder: ListedFolder, paths: Sequence[str]) -> bool:
    """Return True if most of these XML files are Pascal VOC annotations, and one of them has a box."""
    right = boxes = 0
    for path in paths:
        try:
            objects = read_annotation(folder.path(path)).findall("object")
        except SourceError:
            continue
        held = sum(one.find("bndbox/xmin") is not None for one in objects)
        right, boxes = right + (held == len(objects)), boxes + held
    return 2 * right > len(paths) and boxes > 0


def find_voc(folder: ListedFolder, options: SourceOptions) -> BoxLayout | None:
    """Return the dataset of Pascal VOC annotations that a folder holds, or None.

    Raises: UsageError, SourceError.
    """
    files = match_files(folder, folder.ending(".xml"), _USUAL, is_voc)
    if not files.matched:
        return None
    kept = files.served(folder.keys)
    keys = [folder.keys[index] for index in kept.tolist()]
    lists = _lists(folder, {key.rpartition("/")[0].rpartition("/")[0] for key in keys})
    splits = {} if lists else path_splits(keys)
    if lists:
        owners = _owners(folder, keys, lists, options.findings)
        kept, owners = kept[owners != ABSENT], owners[owners != ABSENT]
        splits = file_splits([path for path, _ in lists], [split for _, split in lists], owners)
    paths = [files.matched.get(folder.keys[index]) for index in kept.tolist()]
    example = next(iter(files.matched.values()))
    return BoxLayout(_FORM, example, kept, partial(_read_voc, files, paths, splits, options))


def _lists(folder: ListedFolder, roots: Collection[str]) -> list[tuple[str, str]]:
    """Return path and split of the lists of images to read."""
    found = []
    for root in sorted(roots):
        prefix = f"{root}/{LISTS_OF_SPLITS}/".lstrip("/")
        texts = {path.removeprefix(prefix).lower(): path for path in folder.others if path.startswith(prefix)}
        splits = {split: path for name, path in texts.items() if (split := SPLIT_NAMES.get(name[:-4]))}
        if not splits.keys() & {"train", "val"} and "trainval.txt" in texts:
            splits["train"] = texts["trainval.txt"]
        found += [(splits[split], split) for split in SPLITS if split in splits]
    return found


def _owners(
    folder: ListedFolder, keys: Sequence[str], lists: Sequence[tuple[str, str]], findings: Findings
) -> NDArray[np.int64]:
    """Return the list that names each image, int64 [N], ABSENT for none. Raises: SourceError."""
    owners = np.full(len(keys), ABSENT, np.int64)
    for number, (path, _) in enumerate(lists):
        root = path[: path.rindex(LISTS_OF_SPLITS)]
        names = ImageNames([os.path.splitext(key)[0] for key in keys], below=root)
        find = partial(_find, names)
        for line, index in read_list(folder.path(path), path, find, findings, quiet=bool(folder.within)):
            if owners[index] not in (ABSENT, number):
                raise SourceError(
                    f"{folder.name}/{path} line {line}: {keys[index]} is in {lists[owners[index]][0]}, too; "
                    "an image is in one split. Correct one of them."
                )
            owners[index] = number
    return owners


def _find(names: ImageNames, text: str) -> int:
    """Return the image that a line names: by all of it, or by its first word, perhaps with an extension."""
    word = text.split()[0]
    found = map(names.find_listed, (text, word, os.path.splitext(word)[0]))
    return next((index for index in found if index != ABSENT), ABSENT)


def _read_voc(
    files: MatchedFiles,
    paths: Sequence[str | None],
    splits: dict[str, NDArray[np.int64]],
    options: SourceOptions,
    keys: list[str],
) -> tuple[ImageTargets, dict[str, NDArray[np.int64]]]:
    """Read the annotations of the chosen images. paths: of each, or None. Raises: SourceError."""
    folder, findings, sizes = files.folder, options.findings, np.zeros((len(keys), 2), np.int64)
    findings.refuse_unlisted(
        [index for index, path in enumerate(paths) if path is None and options.labels.unlisted != "empty"],
        keys,
        "has no annotation.",
        f"{folder.name}: no annotation for",
        "images without objects have one, too. Add them, or pass "
        "labels=Labels(unlisted='empty') if they have none",
    )
    files.leave_out_spare(findings, "annotation")
    annotated = [(image, path) for image, path in enumerate(paths) if path]
    found = [one for image, path in annotated for one in _objects(folder, path, image, sizes, findings)]
    found = [one for one in found if one.image not in findings.refused]
    classes = sorted({one.name for one in found})
    numbers = {name: number for number, name in enumerate(classes)}
    columns = [(one.image, numbers[one.name], one.place) for one in found]
    owners, labels, lines = np.array(columns, np.int64).reshape(-1, 3).T
    xyxy = np.array([one.corners for one in found]).reshape(-1, 4)
    below = np.any(xyxy[:, :2] < 1, axis=1)
    if not below.any():
        xyxy[:, :2] -= 1
    table = BoxTable(xyxy, owners, labels, lines, folder.holding(paths), "object")
    targets = box_targets(_FORM, table, classes, len(keys), findings, sizes)
    if below.any():
        findings.note(
            f"{int(below.sum()):,} boxes, such as one of {keys[found[int(below.argmax())].image]}, begin "
            "before pixel 1, the first of Pascal VOC: coordinates are read as edges that count from 0."
        )
    marks = Counter(mark for one in found for mark in one.marks)
    told = ", ".join(f"{marks[mark]:,} {mark}" for mark in _MARKS if marks[mark])
    findings.note(f"Objects are marked {told}: packed like the others." if told else "")
    return targets, splits


def _objects(
    folder: ListedFolder, path: str, image: int, sizes: NDArray[np.int64], findings: Findings
) -> Iterator[_Object]:
    """Yield the objects of an annotation; set the size of its image, and refuse an image of a wrong one."""
    where = folder.path(path)
    try:
        root = read_annotation(where)
    except SourceError as error:
        findings.refuse_file(image, "its annotation", where, error)
        return
    width, height = (_number(root, f"size/{side}") for side in ("width", "height"))
    if 0 < width <= _LONGEST_SIDE and 0 < height <= _LONGEST_SIDE:
        sizes[image] = round(height), round(width)
    for place, entry in enumerate(root.findall("object"), 1):
        name = " ".join((entry.findtext("name") or "").split())
        corners = [_number(entry, f"bndbox/{corner}") for corner in _CORNERS]
        left, top, right, bottom = corners
        wrong = "has no name" if not name else ""
        if not all(abs(value) < _LARGEST for value in corners):  # NaN, too
            wrong = "has no bndbox of four finite numbers"
        elif right < left or bottom < top:
            wrong = f"ends at {right:.6g}, {bottom:.6g}, before it begins at {left:.6g}, {top:.6g}"
        if wrong:
            findings.refuse(
                image,
                f"object {place} of {path} {wrong}.",
                f"{folder.name}/{path}: object {place} {wrong}; each has a name, and a bndbox of xmin, "
                "ymin, xmax and ymax. Correct it",
            )
            return
        marks = [mark for mark in _MARKS if _number(entry, mark) == 1]
        yield _Object(image, place, name, corners, marks)


def _number(entry: Element, path: str) -> float:
    """Return the number in an element, NaN if there is none."""
    try:
        return float(entry.findtext(path) or "nan")
    except ValueError:
        return math.nan
