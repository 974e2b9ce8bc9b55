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
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np

from packer.errors import ImageError, SourceError
from packer.inputs.file_names import as_text, file_splits, shorten, split_of
from packer.inputs.image_archives import Archive, archive_stem, open_archive
from packer.inputs.image_targets import ImageTargets
from packer.inputs.label_csv import read_lines
from packer.inputs.opened_source import ArchiveImages, ImageSource, SourceOptions

CLASSES_FILE = "classes.txt"
_LARGEST_LABEL = 16 << 20
"""Bytes of a .cls, .json or .txt."""
_TEXTS = ("cls", "txt")
"""Last words of fields whose text is a label."""


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


def open_tars(paths: Sequence[str], options: SourceOptions) -> list[Archive]:
    """List several tars. Raises: SourceError, SpaceError."""
    with ExitStack() as stack:
        archives = []
        for path in paths:
            archives.append(open_archive(path, "", options.spool_dir, is_label(options.label)))
            stack.callback(archives[-1].close)
        stack.pop_all()
    return archives


def open_samples(
    name: str, archives: Sequence[Archive], options: SourceOptions, folder: str | None = None
) -> ImageSource:
    """Put images and labels of the same name together; the archives are closed with the source, or where it is not made.

    name: what to call the tars in messages; folder: where names of the classes that whole numbers stand for may lie, or None.
    options: images without a label are refused, and labels without an image left out.
    Raises: SourceError.
    """
    with ExitStack() as stack:
        for archive in archives:
            stack.callback(archive.close)
        source = _TarSamples(name, archives, options).source(folder)
        stack.pop_all()
    return source


class _TarSamples:
    """The images of tars, one a sample, with the texts of their labels."""

    def __init__(self, name: str, archives: Sequence[Archive], options: SourceOptions) -> None:
        self._name, self._archives, self._options = name, archives, options
        self._keys: list[str] = []
        self._texts: list[str] = []
        self._owners, self._members = array("q"), array("q")
        self._parts = 0
        for number, archive in enumerate(archives):
            self._add(number, archive)

    def _add(self, number: int, archive: Archive) -> None:
        """Take the samples of one tar."""
        field, findings = label_field(self._options.label), self._options.findings
        labels: dict[str, str] = {}
        images: dict[str, int] = {}
        fields = {split_sample(path)[1] for path in archive.others}
        for path in () if self._options.labelled else archive.others:
            sample, found = split_sample(path)
            if found == field:
                self._check_alone(archive, labels.setdefault(sample, path), path, "labels")
        for index, key in enumerate(archive.keys):
            sample, found = split_sample(key)
            if "." in found:
                self._parts += 1
            else:
                self._check_alone(archive, archive.keys[images.setdefault(sample, index)], key, "images")
        remedy = "Make the tar anew"
        for sample, path in labels.items():
            if sample not in images:
                reason = "is the label of no image."
                error = f"{archive.path}: {shorten(path)} {reason} {remedy}"
                findings.leave_out(f"{os.path.basename(archive.path)}/{path}", reason, error)
        there = ""
        if fields and field not in fields:
            there = f" (there are .{shorten(', .'.join(sorted(fields)))})"
        for sample, index in images.items():
            key = archive.keys[index]
            if not self._options.labelled:
                text, reason = "", f"has no .{field} beside it{there}."
                if sample in labels:
                    text, reason = _label(archive, labels[sample], self._options.label)
                if reason:
                    error = f"{archive.path}: {shorten(key)} {reason} {remedy}"
                    findings.refuse(len(self._keys), reason, error)
                self._texts.append(text)
            self._keys.append(key)
            self._owners.append(number)
            self._members.append(index)

    def _check_alone(self, archive: Archive, first: str, path: str, what: str) -> None:
        """Raise SourceError where a sample has two members of one kind."""
        if first != path:
            raise SourceError(
                f"{archive.path}: {shorten(first)} and {shorten(path)} are two {what} of one sample; one is packed. "
                "Make the tar without one of them, or call it otherwise (a.left.png)."
            )

    def source(self, folder: str | None) -> ImageSource:
        """Return the images of all tars."""
        options, archives = self._options, self._archives
        findings, targets = options.findings, ImageTargets(findings=options.findings)
        if self._texts:
            path = os.path.join(folder or "", CLASSES_FILE)
            names = read_classes(path) if folder is not None and os.path.isfile(path) else None
            column = options.label or "the .cls"
            lines = range(1, len(self._texts) + 1)
            targets = options.number(self._name, self._texts, lines, "sample", column=column, names=names)
        paths = [archive.path for archive in archives]
        owners, members = np.array(self._owners, np.int64), np.array(self._members, np.int64)
        splits = file_splits(paths, [split_of(path) for path in paths], owners)
        images = ArchiveImages(self._unique_keys(), archives, owners, members)
        tars = "a tar" if len(archives) == 1 else f"{len(archives):,} tars"
        named = "" if targets.classes is None else f" in {len(targets.classes):,} classes"
        findings.notes.insert(0, f"Read as WebDataset: {len(owners):,} samples of {tars}{named}.")
        if self._parts:
            findings.notes.append(
                f"{self._parts:,} images are parts of samples (their names have two endings, as a.seg.png), and are left out."
            )
        return ImageSource(self._name, images, targets, splits, labelled=options.labelled, label_chosen=True)

    def _unique_keys(self) -> list[str]:
        """Return the images' paths, below the tars' names where several tars hold the same. Raises: SourceError."""
        keys = self._keys
        if len(set(keys)) < len(keys):
            stems = [as_text(archive_stem(archive.path)) for archive in self._archives]
            keys = [f"{stems[owner]}/{key}" for key, owner in zip(keys, self._owners, strict=True)]
        if len(set(keys)) < len(keys):
            raise SourceError(
                f"{self._name}: several tars of one name hold images of one name; each image needs a path of its own. Rename the tars."
            )
        return keys


def _label(archive: Archive, path: str, label: str | None) -> tuple[str, str]:
    """Return the label of a sample as text, and "" or why it has none, in words that follow the image's name."""
    field = label_field(label)
    called = path.rpartition("/")[2]
    if archive.others[path][1] > _LARGEST_LABEL:
        return "", f"has a {called} of {archive.others[path][1]:,} bytes, and {_LARGEST_LABEL:,} are read."
    try:
        text = archive.read_other(path).decode("utf-8").strip()
    except ImageError as error:
        return "", f"has a {called} that {error}"
    except UnicodeDecodeError:
        return "", f"has a {called} that is no text of UTF-8."
    if field != "json":
        return (text, "") if text else ("", f"has an empty {called}.")
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return "", f"has a {called} that is no JSON."
    value = told.get(label or "") if isinstance(told, dict) else None
    if isinstance(value, bool) or not isinstance(value, (int, float, str)) or value == "":
        return "", f"has a {called} without a number or text called {label}."
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
