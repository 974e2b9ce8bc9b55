"""The folders around a source: labels of its images, or images of its labels, in a corresponding folder.

images/train   given; labels/train/1.txt belongs to images/train/1.jpg
JPEGImages     given; Annotations/1.xml belongs to JPEGImages/1.jpg
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import NamedTuple

from packer.inputs.coco_annotations import FOLDER as ANNOTATIONS
from packer.inputs.file_names import as_text, is_hidden, is_image, on_disk, split_in
from packer.inputs.label_files import LISTS_OF_SPLITS, ListedFolder, stem_of
from packer.source_kinds import LABELS

_LEVELS = 3
_MOST_FOLDERS = 100
_TRIED = 16


class _Corresponding(NamedTuple):
    """A folder above a source, the source's path below it, and the folders beside that path.

    files, folders: names in the folder above. beside: paths relative to the folder above; each differs
    from a folder of the source in its first part.
    """

    above: str
    within: str
    files: list[str]
    folders: list[str]
    beside: list[str]


def folders_above(folder: ListedFolder) -> Iterator[ListedFolder]:
    """Yield each folder above a flat source, with the source's images and files that may label them.

    A source with class folders is left as it is.
    """
    if not folder.keys or not all(all(map(split_in, key.split("/")[:-1])) for key in folder.keys):
        return
    stems = {stem_of(key) for key in folder.keys}
    for found in _corresponding(folder.name, {key.rpartition("/")[0] for key in folder.keys}):
        labels = [path for place in found.beside for path in _labels(found.above, place, stems)]
        if labels or ANNOTATIONS in found.folders:
            tops = [*sorted({label.partition("/")[0] for label in labels}), LISTS_OF_SPLITS]
            more = [f"{top}/{name}" for top in tops for name in _list_names(f"{found.above}/{top}", False)]
            coco = [
                name for name in _list_names(f"{found.above}/{ANNOTATIONS}", False) if name.endswith(".json")
            ]
            more += [f"{ANNOTATIONS}/{name}" for name in coco if stem_of(name) not in stems]
            keys = [f"{found.within}/{key}" for key in folder.keys]
            others = list(dict.fromkeys([*found.files, *labels, *more]))
            yield ListedFolder(found.above, keys, others, found.within)


def _labels(above: str, place: str, stems: Collection[str]) -> list[str]:
    """Return the files in a folder if they may be labels of images with these stems.

    They may not if images lie beside them, or if most belong to no image: it is a folder of another dataset.
    """
    names = _list_names(f"{above}/{place}", False)
    files = [name for name in names if name.lower().endswith(LABELS)]
    common = sum(stem_of(name) in stems for name in files)
    if 2 * common < max(len(files), 1) or any(map(is_image, names)):
        return []
    return [f"{place}/{name}" for name in files]


def images_beside(folder: ListedFolder) -> tuple[str, str] | None:
    """Return a label file of a folder without images, and the folder above it that holds its image, too."""
    labels = folder.ending(*LABELS)
    stems = {stem_of(path): path for path in labels[:: max(len(labels) // _TRIED, 1)]}
    for found in _corresponding(folder.name, {path.rpartition("/")[0] for path in labels}):
        for place in found.beside:
            for name in _list_names(f"{found.above}/{place}", False):
                if is_image(name) and stem_of(name) in stems:
                    return stems[stem_of(name)], found.above
    return None


def _corresponding(name: str, inner: Collection[str]) -> Iterator[_Corresponding]:
    """Yield the folders above a source, the nearest first. inner: its folders with files."""
    above, within = as_text(os.path.abspath(name)), ""
    for _ in range(_LEVELS):
        above, last = os.path.split(above)
        rest, within = within, f"{last}/{within}".rstrip("/")
        folders = _list_names(above, True)
        beside = [one for one in folders[:_MOST_FOLDERS] if one != last]
        places = [
            os.path.normpath(f"{one}/{rest}/{place}") for one in beside for place in sorted(inner)[:_TRIED]
        ]
        yield _Corresponding(above, within, _list_names(above, False), folders, places)


def _list_names(folder: str, folders: bool) -> list[str]:
    """Return the names of the visible folders, or else files, in a folder; [] if it cannot be listed."""
    try:
        with os.scandir(on_disk(folder)) as entries:
            found = [(as_text(entry.name), entry.is_dir()) for entry in entries]
    except OSError:
        return []
    return sorted(name for name, is_folder in found if is_folder == folders and not is_hidden(name))
