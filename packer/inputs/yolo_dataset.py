"""The file that describes a YOLO dataset (data.yaml): class names, and the images of each split.

    path: ../datasets/pets        folder of the dataset, relative to the file; default: the file's folder
    train: images/train           a folder, a list of folders, or a .txt file of image paths, one per line
    val: ../valid/images          Roboflow's form; a path of another machine: its end is looked for
    test:                         (no such split)
    names: {0: cat, 1: dog}       or a list
    kpt_shape: [17, 3]            points of a pose, and numbers per point

Splits may name the same images, as in coco128.yaml; these are packed once, in the split that comes first.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.errors import MissingDependencyError, SourceError, UsageError
from packer.inputs.file_names import SPLIT_NAMES, as_text, on_disk, shorten, split_in
from packer.inputs.findings import Findings
from packer.inputs.image_names import ImageNames
from packer.inputs.label_files import ABSENT, ListedFolder, read_list
from packer.inputs.text_files import read_bytes

ENDINGS = (".yaml", ".yml")
_NEEDED = "a YAML file of a YOLO dataset is needed"
_MOST = 4 << 20
"""Largest file in bytes."""
_SPLITS = re.compile(rb"^(train|val)\s*:", re.MULTILINE)
_NAMES = re.compile(rb"^(names|nc)\s*:", re.MULTILINE)
_NOTHING = (None, "", "null", "Null", "NULL", "~")
_LEVELS = 3
"""Folders above the images that may hold the description."""


class YoloDataset(NamedTuple):
    """The content of a data.yaml.

    path: of the file. root: `path` in it, or None. names: class names in order, or None. points: number of
    points of a pose, and numbers per point, or None. splits: name -> paths as written.
    """

    path: str
    root: str | None
    names: list[str] | None
    points: tuple[int, ...] | None
    splits: dict[str, list[str]]


def find_dataset(folder: ListedFolder, about: str | None = None) -> YoloDataset | None:
    """Return the dataset that a YAML file at the top of a folder describes, or None.

    about: an absolute path; only datasets with images in it count.
    Raises: UsageError if several do, SourceError for a damaged file, MissingDependencyError without PyYAML.
    """
    found = []
    for path in [f"{folder.name}/{name}" for name in folder.ending(*ENDINGS) if "/" not in name]:
        try:
            text = read_bytes(path, _NEEDED, most=_MOST)
        except SourceError:
            continue  # an unreadable file need not belong to the images
        dataset = _parse(path, text)
        if dataset is not None and (about is None or _describes(dataset, about)):
            found.append(dataset)
    others = [one for one in found if one._replace(path=found[0].path) != found[0]]
    if others:
        raise UsageError(
            f"{found[0].path}: describes a YOLO dataset, and so does {os.path.basename(others[0].path)}; one "
            "of them is read. Pass it as SRC."
        )
    return found[0] if found else None


def dataset_above(folder: str) -> YoloDataset | None:
    """Return the dataset that a YAML file above a folder, an absolute path, describes, or None."""
    place = folder
    for _ in range(_LEVELS):
        place = os.path.dirname(place)
        with suppress(OSError):
            others = [as_text(name) for name in os.listdir(on_disk(place))]
            if (found := find_dataset(ListedFolder(place, [], others), folder)) is not None:
                return found
    return None


def read_dataset(path: str) -> YoloDataset | None:
    """Read a YAML file; None if it does not describe a YOLO dataset. Raises: see `find_dataset`."""
    return _parse(path, read_bytes(path, _NEEDED, most=_MOST))


def _parse(path: str, text: bytes) -> YoloDataset | None:
    """Return the dataset that a text describes, or None."""
    if not (_SPLITS.search(text) and _NAMES.search(text)):
        return None
    try:
        import yaml
    except ImportError as error:
        raise MissingDependencyError("pyyaml", f"{path} (a YOLO dataset)", error) from None
    try:
        # BaseLoader leaves all values text: a class called "no" stays that.
        content = yaml.load(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise SourceError(
            f"{path}: damaged YAML; the description of a YOLO dataset is needed. Correct it."
        ) from None
    if not isinstance(content, dict):
        return None
    splits = {}
    for key, value in content.items():
        paths = value if isinstance(value, list) else [value]
        given = [_slashed(one) for one in paths if isinstance(one, str) and one not in _NOTHING]
        if isinstance(key, str) and SPLIT_NAMES.get(key) == key and given:
            splits[key] = given
    root, shape = _value(content, "path"), _value(content, "kpt_shape")
    points = None if shape is None else tuple(_integers(shape))
    if points is not None and (len(points) != 2 or points[0] < 1 or points[1] not in (2, 3)):
        raise SourceError(
            f"{path}: kpt_shape is {_shown(shape)}; the number of points and 2 or 3 numbers per point are "
            "needed. Correct it."
        )
    root = _slashed(root) if isinstance(root, str) else None
    return YoloDataset(path, root, _class_names(path, content), points, splits)


def _value(content: dict[Any, Any], key: str) -> Any:
    """Return the value of a key, None for none."""
    value = content.get(key)
    return None if value in _NOTHING else value


def _slashed(path: str) -> str:
    """Return a path, perhaps one of Windows, with slashes and without a drive."""
    return re.sub("^[A-Za-z]:/", "/", path.replace("\\", "/"))


def _shown(value: Any) -> str:
    """Return a value for messages; lists in lists may be endless."""
    texts = value if isinstance(value, list) else [value]
    return shorten(", ".join(one if isinstance(one, str) else "..." for one in texts))


def _integers(value: Any) -> list[int]:
    """Return the whole numbers in a text or list; -1 for anything else."""
    texts = value if isinstance(value, list) else [value]
    return [int(one) if isinstance(one, str) and re.fullmatch("[0-9]{1,9}", one) else -1 for one in texts]


def _class_names(path: str, content: dict[Any, Any]) -> list[str] | None:
    """Return the class names in the order of their numbers; None if only their number is given."""
    given, count = _value(content, "names"), _value(content, "nc")
    if given is None:
        return None
    numbers: list[Any] = list(given) if isinstance(given, dict) else list(map(str, range(len(given))))
    names = list(given.values()) if isinstance(given, dict) else given
    if not isinstance(names, list) or not all(isinstance(name, str) and name.strip() for name in names):
        raise SourceError(
            f"{path}: names are not a list of texts, or a text for each number; class names are. Correct "
            "them."
        )
    if sorted(numbers, key=lambda key: (len(str(key)), str(key))) != [str(k) for k in range(len(names))]:
        raise SourceError(
            f"{path}: its {len(names):,} names have the numbers {shorten(', '.join(map(str, numbers)))}; "
            f"classes are numbered 0 to {len(names) - 1:,}. Correct them."
        )
    ordered = [name for _, name in sorted(zip(map(int, numbers), names, strict=True))]
    check_unique(path, ordered)
    if count is not None and _integers(count) != [len(ordered)]:
        raise SourceError(
            f"{path}: nc is {_shown(count)}, but names holds {len(ordered):,}; nc is the number of classes. "
            "Correct it."
        )
    return ordered


def check_unique(path: str, names: Sequence[str]) -> None:
    """Raise SourceError if two classes have the same name."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise SourceError(f"{path}: two classes are called {shorten(twice)}; names are unique. Correct them.")


def dataset_root(dataset: YoloDataset) -> str:
    """Return the folder that holds all images and labels of a dataset: `path`, or one above both.

    Raises: UsageError if there is none.
    """
    found = [place for one in _paths(dataset) for place in _places(dataset, one)[:1]]
    for root in _roots(dataset):
        if all(_below(place, root) is not None for place in found):
            return root
    labels = ["/labels/".join(f"{place}/".rsplit("/images/", 1)).rstrip("/") for place in found]
    folders = [place if os.path.isdir(on_disk(place)) else os.path.dirname(place) for place in found]
    common = os.path.commonpath([*folders, *(one for one in labels if os.path.isdir(on_disk(one)))])
    if common == "/":
        raise UsageError(
            f"{dataset.path}: its images lie in {found[0]} and in other folders; one folder holds a dataset. "
            "Put them into one folder."
        )
    return common


def _paths(dataset: YoloDataset) -> list[str]:
    """Return the paths of all splits, as written."""
    return [one for given in dataset.splits.values() for one in given]


def assign_splits(dataset: YoloDataset, folder: ListedFolder, findings: Findings) -> NDArray[np.int64]:
    """Return the number of the split of each image of a folder, int64 [N], ABSENT for none.

    Raises: SourceError.
    """
    owners = np.full(len(folder.keys), ABSENT, np.int64)
    names = list(dataset.splits)
    for number, name in enumerate(names):
        given = dataset.splits[name]
        found = {k for one in given for k in _images(dataset, folder, name, one, findings)}
        indices = np.array(sorted(found), np.int64)
        taken = indices[owners[indices] != ABSENT]
        if len(taken):
            first, other = folder.keys[taken[0]], owners[taken[0]]
            subject = f"{dataset.path}: {units.count(len(taken), 'image')} of {name}, such as {first}"
            if not np.array_equal(np.flatnonzero(owners == other), indices):
                raise SourceError(
                    f"{subject}, are in {names[other]}, too; an image is in one split, or splits are equal. "
                    "Correct the paths."
                )
            findings.note(
                f"{subject}, are all images of {names[other]}, too; they are packed once, in {names[other]}."
            )
        owners[indices[owners[indices] == ABSENT]] = number
    return owners


def _images(
    dataset: YoloDataset, folder: ListedFolder, split: str, given: str, findings: Findings
) -> Iterator[int]:
    """Yield the images that a path of a split names."""
    root, places = as_text(os.path.abspath(folder.name)), _places(dataset, given)
    place = next((way for way in places if _below(way, root) is not None), "")
    if places and not place:
        raise UsageError(
            f"{dataset.path}: {split} is {places[0]}, outside {folder.name}; images lie in the folder that "
            f"is packed. Pass {dataset.path} as SRC."
        )
    if not place:
        found = f"{split} is {shorten(given)}, which does not exist"
        if split == "test":  # the images of COCO's test set are seldom downloaded
            findings.note(f"{dataset.path}: {found}; it is left out.")
        else:
            findings.leave_out(split, f"{found}.", f"{dataset.path}: {found}; splits are folders. Correct it")
    elif os.path.isdir(on_disk(place)):
        prefix = f"{_below(place, root)}/".lstrip("/")
        yield from (index for index, key in enumerate(folder.keys) if key.startswith(prefix))
    else:
        yield from _read_list(dataset, folder, place, findings)


def _read_list(dataset: YoloDataset, folder: ListedFolder, path: str, findings: Findings) -> Iterator[int]:
    """Yield the images in a list; paths are absolute, relative to it or to the dataset, or of elsewhere."""
    names, paths = ImageNames(folder.keys), {key: index for index, key in enumerate(folder.keys)}
    root, bases = as_text(os.path.abspath(folder.name)), (os.path.dirname(path), *_roots(dataset))

    def find(text: str) -> int:
        given = _slashed(text)
        ways = (_below(os.path.normpath(os.path.join(base, given)), root) for base in bases)
        return next((paths[way] for way in ways if way in paths), names.find_listed(given))

    yield from (index for _, index in read_list(path, os.path.basename(path), find, findings))


def _describes(dataset: YoloDataset, folder: str) -> bool:
    """Return True if a folder, an absolute path, is one of the splits, or above or below one."""
    places = [place for one in _paths(dataset) for place in _places(dataset, one)]
    return any(_below(place, folder) is not None or _below(folder, place) is not None for place in places)


def _roots(dataset: YoloDataset) -> Sequence[str]:
    """Return the folders that paths are relative to."""
    base = os.path.dirname(os.path.abspath(dataset.path))
    if dataset.root is None:
        return [base]
    parts = _path_parts(dataset.root)
    ways = [dataset.root, *("/".join(parts[k:]) for k in range(len(parts))), ""]
    return [root for way in ways if os.path.isdir(root := os.path.normpath(os.path.join(base, way)))]


def _places(dataset: YoloDataset, given: str) -> list[str]:
    """Return the existing absolute paths that a path of a split can mean, the best first."""
    roots = _roots(dataset)
    ways = [os.path.join(root, given) for root in roots]
    parts = _path_parts(given)
    if given.startswith("../"):  # Roboflow's form
        ways += [os.path.join(root, *parts) for root in roots]
    if given.startswith("/"):  # of another machine
        least = 1 if split_in(parts[-1]) else 2
        ways += [os.path.join(root, *parts[k:]) for root in roots for k in range(len(parts) - least + 1)]
    found = (as_text(os.path.normpath(way)) for way in ways)
    return [way for way in dict.fromkeys(found) if os.path.exists(on_disk(way))]


def _path_parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".", "..")] or [""]


def _below(path: str, root: str) -> str | None:
    """Return a path relative to a folder that contains it, "" for the folder itself; else None."""
    prefix = root.rstrip("/") + "/"
    return f"{path}/"[len(prefix) : -1] if f"{path}/".startswith(prefix) else None
