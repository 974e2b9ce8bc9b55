"""WebDataset: tars whose members form a sample (an image and its label) if names agree up to the first dot.

    000.jpg  000.cls                 an image and its label: a whole number or a class name, as text
    001.jpg  001.cls  001.json       with label="x": entry x of the .json; label="txt": the text of the .txt
    001.jpg  001.coarse.cls          with label="coarse.cls": the text of that field
    001.seg.png                      two extensions: another part of the sample (mask, second view), skipped

As in the webdataset library, a member's key is its path up to the first dot of its name; the rest, in lower
case, is the field name. A tar is read as WebDataset if it holds a .cls or if a label is requested; else like
a folder. Several tars are read in the given order; names that begin with different words among train, val,
test ... define splits. Whole numbers index the lines of a classes.txt beside the tars.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing

import numpy as np

from packer.errors import ImageError, SourceError
from packer.inputs.file_names import as_text, file_splits, no_images, shorten, split_of
from packer.inputs.image_archives import Archive, archive_stem, open_archive
from packer.inputs.image_targets import ImageTargets
from packer.inputs.opened_source import ArchiveImages, ImageSource, SourceOptions
from packer.inputs.text_files import read_lines

CLASSES_FILE = "classes.txt"
_LARGEST_LABEL = 16 << 20
"""Largest .cls, .json or .txt in bytes."""
_TEXTS = ("cls", "txt")
"""Last parts of the names of fields whose text is a label."""
_REMEDY = "Create the tar again"


def is_label(label: str | None, asked: bool = True) -> Callable[[str], bool]:
    """Return a predicate: True for names of members that may hold the label; never True if not `asked`."""
    ending = f".{_last(label_field(label))}"
    return lambda name: asked and name.lower().endswith(ending)


def label_field(label: str | None) -> str:
    """Return the field that holds the label: a text field of this name, or else the JSON with this entry.

    >>> label_field(None), label_field("coarse.cls"), label_field("txt"), label_field("weight")
    ('cls', 'coarse.cls', 'txt', 'json')
    """
    if label is None:
        return "cls"
    return label.lower() if _last(label.lower()) in _TEXTS else "json"


def _last(field: str) -> str:
    return field.rpartition(".")[2]


def split_sample(path: str) -> tuple[str, str]:
    """Split a member's path into the sample's key and the field: "a/b.seg.png" -> ("a/b", "seg.png")."""
    folder, slash, name = path.rpartition("/")
    stem, _, ending = name.partition(".")
    return f"{folder}{slash}{stem}", ending.lower()


def open_tars(paths: Sequence[str], options: SourceOptions) -> Iterator[Archive]:
    """Yield the listing of each tar in turn. Raises: SourceError, SpaceError."""
    return (open_archive(path, "", options.spool_dir, is_label(options.label)) for path in paths)


def open_samples(name: str, archives: Iterable[Archive], options: SourceOptions, folder: str) -> ImageSource:
    """Combine images and labels of the same key; the source, or an exception, closes the archives.

    name: name of the tars in messages. folder: folder that may hold classes.txt.
    options: options.findings refuses images without a label, and leaves out labels without an image.
    Raises: SourceError.
    """
    findings, targets = options.findings, ImageTargets(findings=options.findings)
    keys: list[str] = []
    texts: list[str] = []
    owners, members = array("q"), array("q")
    with ExitStack() as stack:
        tars = [stack.enter_context(closing(archive)) for archive in archives]
        for owner, tar in enumerate(tars):
            samples, read = _samples(tar, options)
            for sample, index in samples.items():
                if not options.labelled:
                    texts.append("")
                    try:
                        texts[-1] = read(sample)
                    except ImageError as error:
                        called = f"{tar.path}: {shorten(tar.keys[index])} {error} {_REMEDY}"
                        findings.refuse(len(keys), str(error), called)
                keys.append(tar.keys[index])
                owners.append(owner)
                members.append(index)
        if not keys:
            raise no_images(name)
        if texts:
            path = os.path.join(folder, CLASSES_FILE)
            names = read_classes(path) if os.path.isfile(path) else None
            column = options.label or "the .cls"
            lines = range(1, len(texts) + 1)
            targets = options.number(name, texts, lines, "sample", column=column, names=names)
        paths, called = [tar.path for tar in tars], "a tar" if len(tars) == 1 else f"{len(tars):,} tars"
        splits = file_splits(paths, [split_of(path) for path in paths], np.array(owners, np.int64))
        named = "" if targets.classes is None else f" in {len(targets.classes):,} classes"
        findings.notes.insert(0, f"Read as WebDataset: {len(keys):,} samples of {called}{named}.")
        if parts := sum(len(tar.keys) for tar in tars) - len(keys):
            findings.notes.append(
                f"{parts:,} images are parts of samples (their names have two extensions, as a.seg.png), "
                "and are left out."
            )
        places = np.array([owners, members], np.int64)
        images = ArchiveImages(_unique(name, keys, tars, owners), tars, *places)
        stack.pop_all()
    return images.describe(name, targets, splits, label_chosen=True)


def _samples(tar: Archive, options: SourceOptions) -> tuple[dict[str, int], Callable[[str], str]]:
    """Return sample -> index for the images of a tar, and a function that reads a sample's label.

    Leaves out labels without an image. Raises: SourceError.
    """
    field = label_field(options.label)
    labels: dict[str, str] = {}
    images: dict[str, int] = {}
    for path in () if options.labelled else tar.others:
        sample, found = split_sample(path)
        if found == field:
            _check_alone(tar, labels.setdefault(sample, path), path, "labels")
    for index, key in enumerate(tar.keys):
        sample, found = split_sample(key)
        if "." not in found:
            _check_alone(tar, tar.keys[images.setdefault(sample, index)], key, "images")
    for sample, path in labels.items():
        if sample not in images:
            reason = "is a label without an image."
            error = f"{tar.path}: {shorten(path)} {reason} {_REMEDY}"
            options.findings.leave_out(f"{os.path.basename(tar.path)}/{path}", reason, error)
    fields = {split_sample(path)[1] for path in tar.others}
    there = f" (there are .{shorten(', .'.join(sorted(fields)))})" if fields and field not in fields else ""

    def read(sample: str) -> str:
        if sample not in labels:
            raise ImageError(f"has no .{field} beside it{there}.")
        return _label(tar, labels[sample], options.label)

    return images, read


def _check_alone(tar: Archive, first: str, path: str, what: str) -> None:
    """Raise SourceError if a sample has two images or two labels."""
    if first != path:
        raise SourceError(
            f"{tar.path}: {shorten(first)} and {shorten(path)} are two {what} of one sample; one is packed. "
            "Create the tar without one of them, or rename it (a.left.png)."
        )


def _unique(name: str, keys: list[str], tars: Sequence[Archive], owners: Sequence[int]) -> list[str]:
    """Return unique image paths, prefixed with the tars' names if tars share a path. Raises: SourceError."""
    if len(set(keys)) < len(keys):
        stems = [as_text(archive_stem(tar.path)) for tar in tars]
        keys = [f"{stems[owner]}/{key}" for key, owner in zip(keys, owners, strict=True)]
    if len(set(keys)) < len(keys):
        raise SourceError(
            f"{name}: several tars with the same name hold images with the same name; image paths must be "
            "unique. Rename the tars."
        )
    return keys


def _label(tar: Archive, path: str, label: str | None) -> str:
    """Return a sample's label as text. Raises ImageError whose text continues the image's name."""
    called, (nbytes, *_) = path.rpartition("/")[2], tar.others[path]
    if nbytes > _LARGEST_LABEL:
        raise ImageError(f"has a {called} of {nbytes:,} bytes; at most {_LARGEST_LABEL:,} are read.")
    try:
        text = tar.read_other(path).decode("utf-8").strip()
        entries = json.loads(text) if label_field(label) == "json" else {label: text}
    except ImageError as error:
        raise ImageError(f"has a {called} that {error}") from None
    except UnicodeDecodeError:
        raise ImageError(f"has a {called} that is not UTF-8 text.") from None
    except (ValueError, RecursionError):
        raise ImageError(f"has a {called} that is not JSON.") from None
    value = entries.get(label) if isinstance(entries, dict) else None
    if value == "" and value == text:
        raise ImageError(f"has an empty {called}.")
    if isinstance(value, bool) or not isinstance(value, (int, float, str)) or value == "":
        raise ImageError(f"has a {called} without a number or text called {label}.")
    return str(value).strip()


def read_classes(path: str) -> list[str]:
    """Read class names, one per line. Raises: SourceError unless all names are distinct and not empty."""
    names = [line.rstrip("\n").strip() for line in read_lines(path, "class names are needed, one per line")]
    while names and not names[-1]:
        names.pop()
    if not names or "" in names or len(set(names)) < len(names):
        raise SourceError(
            f"{path}: holds no names, an empty name, or a name twice; distinct class names are needed, one "
            "per line. Correct it, or move it away."
        )
    return names
