"""YOLO labels: a text file per image with a line per object, as Ultralytics and Darknet write them.

    0 0.5 0.5 0.2 0.4              class, and the box: centre x, centre y, width, height; fractions of the
                                   upright image, as Ultralytics decodes it
    0 0.1 0.1 0.9 0.1 0.5 0.8      class, and a polygon of 3 or more points, or the 4 corners of a turned box:
                                   packed is the box around it
    0 0.5 0.5 0.2 0.4 0.1 0.2 2    class, box, and the points of a pose: packed is the box

An empty or missing file means that the image has no objects. The fields equal those of COCO annotations.
Class names are those of data.yaml (yolo_dataset.py), also of one in a folder above, of classes.txt or a
.names file beside the labels or above them, or the classes that the user lists; else the numbers.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.errors import SourceError, UsageError
from packer.inputs.box_table import BoxTable, box_targets
from packer.inputs.file_names import as_text, file_splits, shorten
from packer.inputs.findings import Findings
from packer.inputs.image_targets import ImageTargets
from packer.inputs.label_files import (
    ABSENT,
    BoxLayout,
    ListedFolder,
    MatchedFiles,
    match_files,
    path_splits,
    refuse_file,
    stem_of,
)
from packer.inputs.text_files import read_bytes, read_lines
from packer.inputs.yolo_dataset import YoloDataset, assign_splits, check_unique, describes, find_dataset
from packer.sentence import Option, Sentence

USUAL = {"images": "labels"}
_NEEDED = "YOLO labels are needed"
_FORM = (
    "a line is a class number and 4 fractions of the image's width and height (centre x, centre y, width, "
    "height)"
)
_NAMES, _NAMES_ENDING = ("classes.txt", "_darknet.labels"), ".names"
_MOST = 1 << 20
_MOST_CLASSES = 100_000
_SLACK = 0.01
"""Coordinates may exceed the image by this much, as Ultralytics allows; boxes are clipped."""
_OWNER, _LINE, _CLASS, _COUNT, _BOX, _AROUND, _POSE, _INSIDE = 0, 1, 2, 3, slice(4, 8), slice(8, 12), 12, 13
_COLUMNS = 14
"""Columns of a parsed line: image, line, class, count of further numbers; the first four; left, top, right
and bottom of all numbers as points; 1 if every third number after the box is 0, 1 or 2, as of poses; 1 if the
box holds the points after it."""


class _ChosenLabels(NamedTuple):
    """Label files of the chosen images. paths: of each, or None. listed: classes that the user lists."""

    folder: ListedFolder
    described: YoloDataset | None
    files: MatchedFiles
    paths: list[str | None]
    splits: dict[str, NDArray[np.int64]]
    listed: Collection[str]


def is_yolo(folder: ListedFolder, paths: Sequence[str]) -> bool:
    """Return True if most of these text files that are not empty hold YOLO labels."""
    wrong = right = 0
    for path in paths:
        kind: list[float] | str | None = None
        try:
            for line in read_lines(folder.path(path), _NEEDED):
                kind = _parse(line) if line.strip() else kind
                if isinstance(kind, str):
                    break
        except SourceError as error:
            kind = str(error)
        right, wrong = right + isinstance(kind, list), wrong + isinstance(kind, str)
    return right > wrong


def find_yolo(
    folder: ListedFolder, listed: Collection[str], findings: Findings, described: YoloDataset | None = None
) -> BoxLayout | None:
    """Return the YOLO dataset that a folder holds, or None.

    listed: classes that the user lists. described: the content of its data.yaml, if that is elsewhere.
    Raises: UsageError, SourceError.
    """
    described = described or find_dataset(folder)
    if described is not None and folder.within:
        source = as_text(os.path.abspath(f"{folder.name}/{folder.within}"))
        described = described if describes(described, source) else None
    if described is None or folder.within:
        files = match_files(folder, folder.ending(".txt"), USUAL, partial(is_yolo, folder))
        if not files.matched:
            return None
        images = files.served(folder.keys)
        splits = path_splits([folder.keys[index] for index in images.tolist()])
    else:
        names, owners = assign_splits(described, folder, findings)
        files = match_files(folder.taken(owners != ABSENT), folder.ending(".txt"), USUAL, lambda paths: True)
        images = _labelled(described, names, owners, files, folder.keys, findings)
        used = [name for number, name in enumerate(names) if (owners[images] == number).any()]
        splits = file_splits(names, names, owners[images]) if len(used) > 1 else {}
    paths = [files.matched.get(folder.keys[index]) for index in images.tolist()]
    dataset = _ChosenLabels(folder, described, files, paths, splits, listed)
    example = os.path.basename(described.path) if described else next(iter(files.matched.values()))
    return BoxLayout("YOLO labels", example, images, partial(_read, dataset))


def _labelled(
    described: YoloDataset,
    names: Sequence[str],
    owners: NDArray[np.int64],
    files: MatchedFiles,
    keys: Sequence[str],
    findings: Findings,
) -> NDArray[np.int64]:
    """Return the images of the splits that have label files; others are not images without objects."""
    matched = np.array([key in files.matched for key in keys], np.bool_)
    kept = np.zeros(len(owners), np.bool_)
    for number, name in enumerate(names):
        own = owners == number
        if (matched & own).any():
            kept |= own
        elif own.any():
            found = f"none of the {units.count(int(own.sum()), 'image')} of {name} has a label file"
            if name == "test":
                findings.notes.append(f"{described.path}: {found}; they are left out.")
                continue
            where = "labels lie in a folder labels beside images, or beside each image"
            findings.leave_out(name, f"{found}.", f"{described.path}: {found}; {where}. Add them")
    if not kept.any():
        found = "no image has a label file" if (owners != ABSENT).any() else "its splits hold no images"
        raise SourceError(f"{described.path}: {found}; {_NEEDED}. Correct its paths, or add them.")
    return np.flatnonzero(kept)


def _read(
    dataset: _ChosenLabels, keys: list[str], findings: Findings
) -> tuple[ImageTargets, dict[str, NDArray[np.int64]]]:
    """Read the labels of the chosen images. Raises: SourceError, UsageError."""
    folder, described = dataset.folder, dataset.described
    classes = _class_names(dataset)
    values = array("d")
    for image, path in enumerate(dataset.paths):
        for line, text in () if path is None else _lines(folder, path, keys[image], image, findings):
            found = _parse(text)
            if isinstance(found, str):
                _refuse(folder, path or "", line, found, image, findings)
            else:
                values.extend((image, line, *found))
    rows = np.array(values).reshape(-1, _COLUMNS)
    points = None if described is None else described.points
    posed = _posed(folder.name, rows, points)
    for row, found in _wrong(rows, posed, len(classes) if classes else _MOST_CLASSES, points is not None):
        image = int(rows[row, _OWNER])
        _refuse(folder, dataset.paths[image] or "", int(rows[row, _LINE]), found, image, findings)
    _spare(dataset, findings)
    kept = ~np.isin(rows[:, _OWNER], list(findings.refused))
    rows, posed = rows[kept], posed[kept]
    owners, labels, lines = rows[:, [_OWNER, _CLASS, _LINE]].astype(np.int64).T
    unnamed = None
    if classes is None:
        classes = [str(number) for number in range(int(labels.max(initial=-1)) + 1)]
        unnamed = Sentence(
            "The labels name no classes: they are called by their numbers. Names can be given by "
            f"{Option('classes')}, "
            "or in a data.yaml or classes.txt."
        )
    around = (rows[:, _COUNT] > 4) & ~posed
    half = rows[:, _BOX][:, 2:] / 2
    centred = np.hstack([rows[:, _BOX][:, :2] - half, rows[:, _BOX][:, :2] + half])
    xyxy = np.where(around[:, None], rows[:, _AROUND], centred)
    targets = box_targets(
        "YOLO labels",
        described.path if described else folder.name,
        BoxTable(xyxy, owners, labels, lines),
        classes,
        len(keys),
        findings,
        unit="line",
        relative=True,
    )
    findings.notes += [] if unnamed is None else [unnamed]
    findings.notes += _told(dataset, keys, int(around.sum()), int(posed.sum()))
    return targets, dataset.splits


def _told(dataset: _ChosenLabels, keys: Sequence[str], around: int, posed: int) -> Iterator[str]:
    """Yield notes on lines that become boxes, and on images without a label file."""
    if around:
        yield (
            f"{units.count(around, 'polygon')} of YOLO labels (segments or turned boxes): packed is the box "
            "around each."
        )
    if posed:
        yield f"{units.count(posed, 'pose')} of YOLO labels: packed is the box of each, without its points."
    missing = [key for key, path in zip(keys, dataset.paths, strict=True) if path is None]
    if missing:
        yield (
            f"{units.count(len(missing), 'image')} without a label file, such as "
            f"{' and '.join(missing[:2])}: packed "
            "as images without objects."
        )


def _lines(
    folder: ListedFolder, path: str, key: str, image: int, findings: Findings
) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that is not blank; refuse the image of an unreadable file."""
    try:
        for line, text in enumerate(read_lines(folder.path(path), _NEEDED), 1):
            if text.strip():
                yield line, text
    except SourceError as error:
        refuse_file(findings, image, "its label file", folder.path(path), error)


def _refuse(folder: ListedFolder, path: str, line: int, found: str, image: int, findings: Findings) -> None:
    findings.refuse(
        image,
        f"line {line} of {path} {found}.",
        f"{folder.name}/{path} line {line}: {found}; {_FORM}. Correct it",
    )


def _parse(text: str) -> list[float] | str:
    """Return the columns of a line from _CLASS on; or what is wrong."""
    try:
        kind, *numbers = map(float, text.split())
    except ValueError:
        return f"is {shorten(text.strip())!r}"
    if not 0 <= kind < _MOST_CLASSES or kind != int(kind):
        return f"begins with {text.split()[0]}, which is not the number of a class"
    if len(numbers) < 4:
        return f"has {len(numbers) + 1} numbers"
    box = numbers[:4]
    if len(numbers) == 4:
        outside = [number for number in box if not -_SLACK <= number <= 1 + _SLACK]
        return [kind, 4, *box, 0, 0, 0, 0, 0, 0] if not outside else f"has {outside[0]:.6g}, outside 0 to 1"
    xs, ys = numbers[0::2], numbers[1::2]
    around = (min(xs), min(ys), max(xs), max(ys))
    if not all(abs(number) < 1e9 for number in numbers):  # NaN, too
        return "has a number that is not finite"
    if not -_SLACK <= min(box) <= max(box) <= 1 + _SLACK:
        outside = [number for number in box if not -_SLACK <= number <= 1 + _SLACK]
        return f"has {outside[0]:.6g}, outside 0 to 1"
    seen = len(numbers) % 3 == 1 and all(number in (0, 1, 2) for number in numbers[6::3])
    return [kind, len(numbers), *box, *around, seen, _holds(numbers)]


def _holds(numbers: Sequence[float]) -> bool:
    """Return True if the box of the first four numbers holds the points after it; unseen points are 0, 0."""
    x, y, width, height = numbers[:4]
    return len(numbers) % 2 == 0 and all(
        (px == py == 0) or (abs(px - x) <= width / 2 + _SLACK and abs(py - y) <= height / 2 + _SLACK)
        for px, py in zip(numbers[4::2], numbers[5::2], strict=True)
    )


def _posed(subject: str, rows: NDArray[np.float64], points: tuple[int, int] | None) -> NDArray[np.bool_]:
    """Return which rows are poses: a box and points. Raises: UsageError if they may be polygons.

    points: number of points, and numbers per point, of the description; without it the structure decides.
    """
    long = rows[:, _COUNT] > 4
    if points is not None:
        return np.asarray(rows[:, _COUNT] == 4 + points[0] * points[1])
    counts = np.unique(rows[long, _COUNT])
    if len(counts) != 1:
        return np.zeros(len(rows), np.bool_)
    if rows[long, _POSE].all():
        return np.asarray(long)
    # Eight numbers are the corners of a turned box.
    if counts[0] % 2 == 0 and counts[0] > 8 and rows[long, _INSIDE].all():
        count = int(counts[0])
        raise UsageError(
            f"{subject}: its YOLO labels have {count} numbers after the class, which may be a box and "
            f"{count // 2 - 2} points in it, or a polygon of {count // 2} points. Write kpt_shape: "
            f"[{count // 2 - 2}, 2] "
            "into data.yaml if they are points, or remove them."
        )
    return np.zeros(len(rows), np.bool_)


def _wrong(
    rows: NDArray[np.float64], posed: NDArray[np.bool_], classes: int, poses: bool
) -> Iterator[tuple[int, str]]:
    """Yield the rows that cannot be boxes, and what is wrong. poses: there are no polygons."""
    count = rows[:, _COUNT]
    polygon = (count > 4) & ~posed
    shape = polygon & ((count < 6) | (count % 2 == 1) | poses)
    outside = polygon & ~shape & ((rows[:, _AROUND] < -_SLACK) | (rows[:, _AROUND] > 1 + _SLACK)).any(axis=1)
    unknown = rows[:, _CLASS] >= classes
    for row in np.flatnonzero(shape | outside | unknown).tolist():
        if unknown[row]:
            yield (
                row,
                f"has the class {int(rows[row, _CLASS])}, and there are {units.count(classes, 'class')}",
            )
        elif shape[row]:
            more = ", perhaps a confidence, as predictions have" if count[row] == 5 else ""
            yield row, f"has {int(count[row])} numbers after the class{more}"
        else:
            yield row, "has coordinates outside 0 to 1"


def _spare(dataset: _ChosenLabels, findings: Findings) -> None:
    """Leave out label files whose image is missing."""
    stems = {stem_of(key) for key in dataset.folder.keys}
    for path in sorted(dataset.files.spare):
        called = path.rpartition("/")[2]
        if called in _NAMES or stem_of(path) in stems or not is_yolo(dataset.folder, [path]):
            continue
        found = "no image of this name is there"
        findings.leave_out(
            path, f"{found}.", f"{dataset.folder.name}/{path}: {found}; each label file has one. Add it"
        )


def _class_names(dataset: _ChosenLabels) -> list[str] | None:
    """Return the class names, see the module; None if there are only numbers. Raises: UsageError."""
    folder, described = dataset.folder, dataset.described
    if described is not None and described.names is not None:
        return described.names
    above = None if described is not None else _described_above(folder)
    if above is not None:
        return above
    labels = {path.rpartition("/")[0] for path in dataset.paths if path}
    places = {"", *labels, *(place.rpartition("/")[0] for place in labels)}
    found: dict[str, list[str]] = {}
    for path in folder.others:
        place, _, name = path.rpartition("/")
        if place in places and (name in _NAMES or name.endswith(_NAMES_ENDING)):
            text = read_bytes(folder.path(path), "a list of class names is needed", most=_MOST)
            found[path] = [
                line.strip() for line in text.decode("utf-8-sig", "replace").splitlines() if line.strip()
            ]
    first = next(iter(found), None)
    for path, names in found.items():
        if first is not None and names != found[first]:
            raise UsageError(
                f"{folder.name}/{path}: its class names differ from those of {first}; one list numbers all "
                f"classes. Remove one, or pass {Option('classes', path)}."
            )
        check_unique(f"{folder.name}/{path}", names)
    return (found[first] if first is not None else None) or list(dataset.listed) or None


def _described_above(folder: ListedFolder) -> list[str] | None:
    """Return the class names of a data.yaml in one of the two folders above that describes this one."""
    place = os.path.abspath(folder.name)
    for _ in range(2):
        place = os.path.dirname(place)
        try:
            others = [as_text(name) for name in os.listdir(place)]
        except OSError:
            return None
        described = find_dataset(ListedFolder(place, [], others))
        if described is not None:
            return described.names if describes(described, as_text(os.path.abspath(folder.name))) else None
    return None
