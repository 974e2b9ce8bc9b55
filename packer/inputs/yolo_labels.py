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
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.errors import SourceError, UsageError
from packer.inputs.boxes import BoxTable
from packer.inputs.file_names import as_text, examples, file_splits, shorten
from packer.inputs.findings import Findings
from packer.inputs.image_targets import ImageTargets, box_targets
from packer.inputs.label_files import (
    ABSENT,
    BoxLayout,
    ListedFolder,
    MatchedFiles,
    match_files,
    path_splits,
    stem_of,
)
from packer.inputs.opened_source import SourceOptions
from packer.inputs.text_files import read_bytes, read_lines
from packer.inputs.yolo_dataset import YoloDataset, assign_splits, check_unique, dataset_above, find_dataset

_NAME = "YOLO labels"
_USUAL = {"images": "labels"}
_NEEDED = "YOLO labels are needed"
_FORM = (
    "a line is a class number and 4 fractions of the image's width and height (centre x, centre y, "
    "width, height)"
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
    """Label files of the chosen images. paths: of each, or None."""

    files: MatchedFiles
    described: YoloDataset | None
    paths: list[str | None]
    splits: dict[str, NDArray[np.int64]]
    options: SourceOptions

    def refuse(self, image: int, line: int, found: str) -> None:
        """Refuse an image for a line of its label file. Raises: SourceError."""
        path = self.paths[image]
        error = f"{self.files.folder.name}/{path} line {line}: {found}; {_FORM}. Correct it"
        self.options.findings.refuse(image, f"line {line} of {path} {found}.", error)


def is_yolo(folder: ListedFolder, paths: Sequence[str]) -> bool:
    """Return True if most of these text files that are not empty hold YOLO labels."""
    kinds = [_holds_labels(folder.path(path)) for path in paths]
    return kinds.count(True) > kinds.count(False)


def _holds_labels(path: str) -> bool | None:
    """Return True if all lines of a text file are YOLO labels, None if it is empty."""
    found = None
    try:
        for line in read_lines(path, _NEEDED):
            if line.strip():
                found = True
                if isinstance(_parse(line), str):
                    return False
    except SourceError:
        return False
    return found


def find_yolo(
    folder: ListedFolder, options: SourceOptions, described: YoloDataset | None = None
) -> BoxLayout | None:
    """Return the YOLO dataset that a folder holds, or None.

    described: the content of its data.yaml, if that is elsewhere.
    Raises: UsageError, SourceError.
    """
    texts, home = folder.ending(".txt"), as_text(os.path.abspath(folder.name))
    if described is None and not folder.within:
        described = find_dataset(folder)
    if described is None:
        files = match_files(folder, texts, _USUAL, is_yolo)
        if not files.matched:
            return None
        described = dataset_above(f"{home}/{folder.within}".rstrip("/"))
        images = files.served(folder.keys)
        splits = path_splits([folder.keys[index] for index in images.tolist()])
    else:
        names, owners = list(described.splits), assign_splits(described, folder, options.findings)
        files = match_files(folder.taken(owners != ABSENT), texts, _USUAL, lambda folder, paths: True)
        images = _labelled(described, owners, files, folder.keys, options.findings)
        used = [name for number, name in enumerate(names) if (owners[images] == number).any()]
        splits = file_splits(names, names, owners[images]) if len(used) > 1 else {}
    paths = [files.matched.get(folder.keys[index]) for index in images.tolist()]
    stems = {stem_of(key) for key in folder.keys}
    spare = [path for path in files.spare if stem_of(path) not in stems]
    files = files._replace(accepts=is_yolo, spare=spare)
    dataset = _ChosenLabels(files, described, paths, splits, options)
    example = next(iter(files.matched.values()), "")
    if described is not None and as_text(os.path.abspath(os.path.dirname(described.path))) == home:
        example = os.path.basename(described.path)
    return BoxLayout(_NAME, example, images, partial(_read_yolo, dataset))


def _labelled(
    described: YoloDataset,
    owners: NDArray[np.int64],
    files: MatchedFiles,
    keys: Sequence[str],
    findings: Findings,
) -> NDArray[np.int64]:
    """Return the images of the splits that have label files; others are not images without objects."""
    matched = np.array([key in files.matched for key in keys], np.bool_)
    kept = np.zeros(len(owners), np.bool_)
    for number, name in enumerate(described.splits):
        own = owners == number
        if (matched & own).any():
            kept |= own
        elif own.any():
            found = f"none of the {units.count(int(own.sum()), 'image')} of {name} has a label file"
            if name == "test":
                findings.note(f"{described.path}: {found}; they are left out.")
                continue
            where = "labels lie in a folder labels beside images, or beside each image"
            findings.leave_out(name, f"{found}.", f"{described.path}: {found}; {where}. Add them")
    if not kept.any():
        found = "no image has a label file" if (owners != ABSENT).any() else "its splits hold no images"
        raise SourceError(f"{described.path}: {found}; {_NEEDED}. Correct its paths, or add them.")
    return np.flatnonzero(kept)


def _read_yolo(dataset: _ChosenLabels, keys: list[str]) -> tuple[ImageTargets, dict[str, NDArray[np.int64]]]:
    """Read the labels of the chosen images. Raises: SourceError, UsageError."""
    folder, described, findings = dataset.files.folder, dataset.described, dataset.options.findings
    given = classes = _class_names(dataset)
    points = None if described is None else described.points
    rows = _parse_files(dataset)
    posed = _posed(folder.name, rows, points)
    for row, found in _wrong(rows, posed, len(classes) if classes else _MOST_CLASSES, points is not None):
        dataset.refuse(int(rows[row, _OWNER]), int(rows[row, _LINE]), found)
    dataset.files.leave_out_spare(findings, "label file")
    kept = ~np.isin(rows[:, _OWNER], list(findings.refused))
    rows, posed = rows[kept], posed[kept]
    owners, labels, lines = rows[:, [_OWNER, _CLASS, _LINE]].astype(np.int64).T
    if classes is None:
        classes = [str(number) for number in range(int(labels.max(initial=-1)) + 1)]
    around = (rows[:, _COUNT] > 4) & ~posed
    centre, half = np.hsplit(rows[:, _BOX] * (1, 1, 0.5, 0.5), 2)
    xyxy = np.where(around[:, None], rows[:, _AROUND], np.hstack([centre - half, centre + half]))
    table = BoxTable(xyxy, owners, labels, lines, folder.holding(dataset.paths))
    targets = box_targets(_NAME, table, classes, len(keys), findings)
    if given is None:
        findings.note(
            "The labels name no classes: they are called by their numbers. Names can be given by "
            "classes=, or in a data.yaml or classes.txt."
        )
    if around.any():
        turned = units.count(int(around.sum()), "polygon")
        findings.note(f"{turned} of YOLO labels (segments or turned boxes): packed is the box around each.")
    if posed.any():
        poses = units.count(int(posed.sum()), "pose")
        findings.note(f"{poses} of YOLO labels: packed is the box of each, without its points.")
    missing = [key for key, path in zip(keys, dataset.paths, strict=True) if path is None]
    if missing:
        without = f"{units.count(len(missing), 'image')} without a label file, such as {examples(missing)}"
        findings.note(f"{without}: packed as images without objects.")
    return targets, dataset.splits


def _parse_files(dataset: _ChosenLabels) -> NDArray[np.float64]:
    """Return the lines of all label files, float64 [R, _COLUMNS]; refuse images of wrong ones."""
    values = array("d")
    for image, path in enumerate(dataset.paths):
        for line, text in (
            () if path is None else _lines(dataset.files.folder.path(path), image, dataset.options.findings)
        ):
            found = _parse(text)
            if isinstance(found, str):
                dataset.refuse(image, line, found)
            else:
                values.extend((image, line, *found))
    return np.array(values).reshape(-1, _COLUMNS)


def _lines(path: str, image: int, findings: Findings) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that is not blank; refuse the image of an unreadable file."""
    try:
        for line, text in enumerate(read_lines(path, _NEEDED), 1):
            if text.strip():
                yield line, text
    except SourceError as error:
        findings.refuse_file(image, "its label file", path, error)


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
    outside = [number for number in box if not -_SLACK <= number <= 1 + _SLACK]
    if outside:
        return f"has {outside[0]:.6g}, outside 0 to 1"
    if len(numbers) == 4:
        return [kind, 4, *box, *box, 0, 0]
    if not all(abs(number) < 1e9 for number in numbers):  # NaN, too
        return "has a number that is not finite"
    xs, ys = numbers[0::2], numbers[1::2]
    seen = len(numbers) % 3 == 1 and all(number in (0, 1, 2) for number in numbers[6::3])
    return [kind, len(numbers), *box, min(xs), min(ys), max(xs), max(ys), seen, _holds(numbers)]


def _holds(numbers: Sequence[float]) -> bool:
    """Return True if the box of the first four numbers holds the points after it; unseen points are 0, 0."""
    x, y, width, height = numbers[:4]
    return len(numbers) % 2 == 0 and all(
        (px == py == 0) or (abs(px - x) <= width / 2 + _SLACK and abs(py - y) <= height / 2 + _SLACK)
        for px, py in zip(numbers[4::2], numbers[5::2], strict=True)
    )


def _posed(subject: str, rows: NDArray[np.float64], points: tuple[int, ...] | None) -> NDArray[np.bool_]:
    """Return which rows are poses: a box and points. Raises: UsageError if they may be polygons.

    points: number of points, and numbers per point, of the description; without it the structure decides.
    """
    long = rows[:, _COUNT] > 4
    if points is not None:
        return np.asarray(rows[:, _COUNT] == 4 + points[0] * points[1])
    counts = np.unique(rows[long, _COUNT]).astype(np.int64).tolist()
    if len(counts) == 1 and rows[long, _POSE].all():
        return np.asarray(long)
    # Eight numbers are the corners of a turned box.
    if len(counts) == 1 and counts[0] % 2 == 0 and counts[0] > 8 and rows[long, _INSIDE].all():
        half = counts[0] // 2
        raise UsageError(
            f"{subject}: its YOLO labels have {counts[0]} numbers after the class, which may be a box and "
            f"{half - 2} points in it, or a polygon of {half} points. Write kpt_shape: [{half - 2}, 2] into "
            "data.yaml if they are points, or remove them."
        )
    return np.zeros(len(rows), np.bool_)


def _wrong(
    rows: NDArray[np.float64], posed: NDArray[np.bool_], classes: int, poses: bool
) -> Iterator[tuple[int, str]]:
    """Yield the rows that cannot be boxes, and what is wrong. poses: there are no polygons."""
    count = rows[:, _COUNT]
    polygon = (count > 4) & ~posed
    shape = polygon & ((count < 6) | (count % 2 == 1) | poses)
    outside = polygon & ((rows[:, _AROUND] < -_SLACK) | (rows[:, _AROUND] > 1 + _SLACK)).any(axis=1)
    unknown = rows[:, _CLASS] >= classes
    for row in np.flatnonzero(shape | outside | unknown).tolist():
        found = "has coordinates outside 0 to 1"
        if unknown[row]:
            found = f"has the class {int(rows[row, _CLASS])}, and there are {units.count(classes, 'class')}"
        elif shape[row]:
            more = ", perhaps a confidence, as predictions have" if count[row] == 5 else ""
            found = f"has {int(count[row])} numbers after the class{more}"
        yield row, found


def _class_names(dataset: _ChosenLabels) -> list[str] | None:
    """Return the class names, see the module; None if there are only numbers. Raises: UsageError."""
    folder, described = dataset.files.folder, dataset.described
    if described is not None and described.names is not None:
        return described.names
    labels = {os.path.dirname(path) for path in dataset.paths if path}
    places = {"", *labels, *map(os.path.dirname, labels)}
    found: dict[str, list[str]] = {}
    for path in folder.others:
        name = os.path.basename(path)
        if os.path.dirname(path) in places and (name in _NAMES or name.endswith(_NAMES_ENDING)):
            text = read_bytes(folder.path(path), "a list of class names is needed", most=_MOST)
            lines = text.decode("utf-8-sig", "replace").splitlines()
            found[path] = [line.strip() for line in lines if line.strip()]
            check_unique(f"{folder.name}/{path}", found[path])
    first = next(iter(found), "")
    for path, names in found.items():
        if names != found[first]:
            raise UsageError(
                f"{folder.name}/{path}: its class names differ from those of {first}; one list numbers all "
                f"classes. Remove one, or pass classes={path!r}."
            )
    return found.get(first) or list(dataset.options.listed) or None
