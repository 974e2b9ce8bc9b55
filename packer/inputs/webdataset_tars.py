"""WebDataset: tars whose members belong together by name, up to the first dot of it, and the labels that stand beside images there.

    000.jpg  000.cls                 an image, and its label: a whole number or the name of a class, as text
    001.jpg  001.cls  001.json       with label="x": entry x of the .json instead; label="txt": the text of the .txt
    001.jpg  001.coarse.cls          with label="coarse.cls": the text of that field
    001.seg.png                      an image of more than one ending is a part of its sample (a mask, another view), and left out

As in the webdataset library, the key of a member is its path up to the first dot of its name, and what follows is the name of a field,
in lower case. A tar is one of these if it holds a .cls, or if a label is asked for; else its images are those of a folder. Several
tars follow each other as they are given; the words train, val, test ... at the beginning of their names are splits if there are
several. Whole numbers number the lines of classes.txt, where one lies beside several tars.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import ImageError, SourceError, UsageError
from packer.inputs.archive_members import Archive, archive_stem
from packer.inputs.file_names import as_text, shorten, split_begun
from packer.inputs.image_archives import open_archive
from packer.inputs.label_csv import read_lines
from packer.inputs.label_values import CheckedRows, number_labels
from packer.inputs.opened_source import SourceOptions
from packer.sentence import Option

CLASSES_FILE = "classes.txt"
_LARGEST_LABEL = 16 << 20
"""Bytes of a .cls, .json or .txt."""
_TEXTS = ("cls", "txt")
"""Last words of fields whose text is a label."""


def split_of(path: str) -> str | None:
    """Return the split that a file's name, or the folder it lies in, begins with: "data/train-00000.tar" -> "train"."""
    for word in reversed(path.split("/")[-2:]):
        if found := split_begun(word):
            return found
    return None


def file_splits(
    paths: Sequence[str], named: Sequence[str | None], owners: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    """Return the splits that files are, {} unless each is one and there are two or more.

    named: the split of each file, or None; owners: int64 [N], the file of each image. Raises: UsageError where files of training and of
    another split lie beside one of none.
    """
    names = list(dict.fromkeys(named))
    if None in names and "train" in names and len(names) > 2:
        raise UsageError(
            f"{paths[named.index(None)]}: is called as no split, and {paths[named.index('train')]} as train; all files are splits, or "
            "none. Pass those that belong together."
        )
    if None in names or len(names) < 2:
        return {}
    numbers = np.array([names.index(name) for name in named], np.int64)[owners]
    found = {str(name): np.flatnonzero(numbers == number) for number, name in enumerate(names)}
    return {name: members for name, members in found.items() if len(members)}


def is_label(label: str | None) -> Callable[[str], bool]:
    """Return what tells whether a member may hold a label. label: the column that was asked for, or None."""
    ending = f".{_last(label_field(label))}"
    return lambda name: name.lower().endswith(ending)


def label_field(label: str | None) -> str:
    """Return the field that holds the label: one of text by its name, or else the JSON that the label is an entry of.

    >>> label_field(None), label_field("coarse.cls"), label_field("txt"), label_field("weight")
    ('cls', 'coarse.cls', 'txt', 'json')
    """
    if label is None:
        return "cls"
    return label.lower() if _last(label.lower()) in _TEXTS else "json"


def _last(field: str) -> str:
    return field.rpartition(".")[2]


def split_sample(path: str) -> tuple[str, str]:
    """Split a member's path into the sample's key and its field, as WebDataset does: "a/b.seg.png" -> ("a/b", "seg.png")."""
    folder, slash, name = path.rpartition("/")
    stem, _, ending = name.partition(".")
    return f"{folder}{slash}{stem}", ending.lower()


class TarSamples(NamedTuple):
    """The images of tars, one a sample.

    keys: of each, unique; sizes: of their files; members: index of the tar, index of the image in it; labels: int64 or float32 [N], or
    None, classes: that they number; splits: as in FolderLayout; refused, skipped, notes: as in ImageSource.
    """

    keys: list[str]
    sizes: NDArray[np.int64]
    members: list[tuple[int, int]]
    labels: NDArray[Any] | None
    classes: list[str] | None
    splits: dict[str, NDArray[np.int64]]
    refused: dict[int, str]
    skipped: tuple[dict[str, str], ...]
    notes: list[str]


def open_tars(stack: ExitStack, paths: Sequence[str], options: SourceOptions) -> list[Archive]:
    """List several tars; stack closes them. Raises: SourceError, SpaceError."""
    archives = []
    for path in paths:
        archives.append(open_archive(path, "", options.spool_dir, is_label(options.label)))
        stack.callback(archives[-1].close)
    return archives


def group_samples(
    subject: str, archives: Sequence[Archive], options: SourceOptions, *, classes_file: str | None
) -> TarSamples:
    """Put images and labels of the same name together.

    subject: what to call the tars in messages; classes_file: names of the classes that whole numbers stand for, one a line, or None.
    options: with skip images without a label are refused, and labels without an image left out.
    Raises: SourceError.
    """
    label, labelled, skip = options.label, options.labelled, options.skip
    if not labelled:
        _check_field(subject, archives, label)
    keys: list[str] = []
    sizes: list[int] = []
    members: list[tuple[int, int]] = []
    texts: list[str | None] = []
    wrong: dict[int, str] = {}
    skipped: list[dict[str, str]] = []
    parts = 0
    for number, archive in enumerate(archives):
        found: dict[str, int] = {}
        own: list[int] = []
        for index, key in enumerate(archive.keys):
            sample, ending = split_sample(key)
            if "." in ending:
                parts += 1
                continue
            if sample in found:
                first = archive.keys[found[sample]]
                raise SourceError(
                    f"{archive.path}: {shorten(first)} and {shorten(key)} are two images of one sample; one is packed. "
                    "Make the tar without one of them, or call it otherwise (a.left.png)."
                )
            found[sample] = index
            own.append(index)
        beside = {} if labelled else _label_files(archive, label_field(label))
        for sample, path in beside.items():
            if sample not in found:
                if not skip:
                    raise SourceError(
                        f"{archive.path}: {shorten(path)} is the label of no image; each belongs to an image of the same name. "
                        "Make the tar anew, or pass ",
                        Option("on_error", "skip"),
                        ".",
                    )
                skipped.append(
                    {"key": f"{os.path.basename(archive.path)}/{path}", "reason": "is the label of no image."}
                )
        for index in own:
            key = archive.keys[index]
            if not labelled:
                text, reason = _label(archive, beside.get(split_sample(key)[0]), label)
                if reason:
                    if not skip:
                        raise SourceError(
                            f"{archive.path}: {shorten(key)} {reason} Make the tar anew, or pass ",
                            Option("on_error", "skip"),
                            ".",
                        )
                    wrong[len(keys)] = reason
                texts.append(text)
            keys.append(key)
            sizes.append(archive.sizes[index])
            members.append((number, index))
    owners = np.fromiter((number for number, _ in members), np.int64, len(members))
    if len(set(keys)) < len(keys):
        keys = [
            f"{as_text(archive_stem(archives[n].path))}/{key}"
            for key, (n, _) in zip(keys, members, strict=True)
        ]
        if len(set(keys)) < len(keys):
            raise SourceError(
                f"{subject}: several tars of one name hold images of one name; each image needs a path of its own. Rename the tars."
            )
    notes = (
        []
        if not parts
        else [
            f"{parts:,} images are parts of samples (their names have two endings, as a.seg.png), and are left out."
        ]
    )
    values, classes, refused = None, None, dict(wrong)
    if not labelled and keys:
        rows = CheckedRows(subject, range(1, len(keys) + 1), skip=skip, unit="sample")
        rows.refused.update(wrong)
        values, classes = number_labels(
            rows,
            [text or "" for text in texts],
            column=label or "the .cls",
            label_as=options.label_as,
            names=None if classes_file is None else read_classes(classes_file),
        )
        refused, notes = dict(rows.refused), [*notes, *rows.notes]
    paths = [archive.path for archive in archives]
    splits = file_splits(paths, [split_of(path) for path in paths], owners)
    return TarSamples(
        keys, np.array(sizes, np.int64), members, values, classes, splits, refused, tuple(skipped), notes
    )


def _check_field(subject: str, archives: Sequence[Archive], label: str | None) -> None:
    """Raise UsageError if there are fields of texts, and none is the one that is asked for, or "cls"."""
    field = label_field(label)
    fields = {split_sample(path)[1] for archive in archives for path in archive.others}
    texts = sorted(name for name in fields if _last(name) in _TEXTS)
    if texts and field not in fields:
        raise UsageError(
            f"{subject}: no image has a .{field} beside it; there are .{shorten(', .'.join(texts))}. Pass ",
            Option("Labels.column", texts[0]),
            ".",
        )


def _label_files(archive: Archive, field: str) -> dict[str, str]:
    """Return sample -> the path of its field. Raises: SourceError for a sample that has two of them."""
    found: dict[str, str] = {}
    for path in archive.others:
        sample, name = split_sample(path)
        if name != field:
            continue
        if sample in found:
            raise SourceError(
                f"{archive.path}: {shorten(found[sample])} and {shorten(path)} are two labels of one sample; one is packed. "
                "Make the tar without one of them."
            )
        found[sample] = path
    return found


def _label(archive: Archive, path: str | None, label: str | None) -> tuple[str | None, str]:
    """Return the label of a sample as text, and "" or why it has none, in words that follow the image's name."""
    field = label_field(label)
    if path is None:
        return None, f"has no .{field} beside it."
    called = path.rpartition("/")[2]
    if archive.others[path][1] > _LARGEST_LABEL:
        return None, f"has a {called} of {archive.others[path][1]:,} bytes, and {_LARGEST_LABEL:,} are read."
    try:
        text = archive.read_other(path).decode("utf-8").strip()
    except ImageError as error:
        return None, f"has a {called} that {error}"
    except UnicodeDecodeError:
        return None, f"has a {called} that is no text of UTF-8."
    if field != "json":
        return (text, "") if text else (None, f"has an empty {called}.")
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return None, f"has a {called} that is no JSON."
    value = told.get(label or "") if isinstance(told, dict) else None
    if isinstance(value, bool) or not isinstance(value, (int, float, str)) or value == "":
        return None, f"has a {called} without a number or text called {label}."
    return str(value).strip(), ""


def read_classes(path: str) -> list[str]:
    """Read names of classes, one a line. Raises: SourceError unless they are all different and not empty."""
    names = [
        line.rstrip("\n").strip() for line in read_lines(path, "names of classes are needed, one a line")
    ]
    while names and not names[-1]:
        names.pop()
    if not names or "" in names or len(set(names)) < len(names):
        raise SourceError(
            f"{path}: holds an empty name, a name twice, or none; one a line is needed. Correct it, or move it away."
        )
    return names
