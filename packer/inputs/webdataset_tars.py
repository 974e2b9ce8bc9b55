"""WebDataset: tars whose members form a sample (an image and its label) if names agree up to the first dot.

    000.jpg  000.cls                 an image and its label: a whole number or a class name, as text
    001.jpg  001.cls  001.json       with label="x": entry x of the .json; label="txt": the text of the .txt
    001.jpg  001.coarse.cls          with label="coarse.cls": the text of that field
    001.seg.png                      two extensions: another part of the sample (mask, second view), packed
                                     with pairs={"mask": "seg.png"}; if all images have two (001.input.jpg,
                                     001.output.png), the one that is not in pairs is the image

As in the webdataset library, a member's key is its path up to the first dot of its name; the rest, in lower
case, is the field name. A tar is read as WebDataset if it holds a .cls, or if a label or a part is requested;
else like a folder. Several tars are read in the given order; words of their names (train, val, test ...)
define splits. Whole numbers index the lines of a classes.txt beside the tars.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import ImageError, SourceError, UsageError
from packer.given_values import option_text
from packer.inputs.file_names import as_text, file_splits, no_images, shorten, split_of
from packer.inputs.image_archives import Archive, archive_stem, open_archive
from packer.inputs.image_targets import ImageTargets
from packer.inputs.opened_source import ArchiveImages, ImageSource, SourceOptions, Splits
from packer.inputs.text_files import read_lines

CLASSES_FILE = "classes.txt"
_LARGEST_LABEL = 16 << 20
"""Largest .cls, .json or .txt in bytes."""
_TEXTS = ("cls", "txt")
"""Last parts of the names of fields whose text is a label."""
_REMEDY = "Create the tar again"


def is_label(label: str | None, asked: bool = True) -> Callable[[str], bool]:
    """Return a predicate: True for names of members that may hold the label; never True if not `asked`."""
    ending = f".{label_field(label).rpartition('.')[2]}"
    return lambda name: asked and name.lower().endswith(ending)


def label_field(label: str | None) -> str:
    """Return the field that holds the label: a text field of this name, or else the JSON with this entry.

    >>> label_field(None), label_field("coarse.cls"), label_field("txt"), label_field("weight")
    ('cls', 'coarse.cls', 'txt', 'json')
    """
    if label is None:
        return "cls"
    return label.lower() if label.lower().rpartition(".")[2] in _TEXTS else "json"


def split_sample(path: str) -> tuple[str, str]:
    """Split a member's path into the sample's key and the field: "a/b.seg.png" -> ("a/b", "seg.png")."""
    folder, slash, name = path.rpartition("/")
    stem, _, ending = name.partition(".")
    return f"{folder}{slash}{stem}", ending.lower()


def are_samples(keys: Sequence[str]) -> bool:
    """Return True if the images are samples of several images each: 0.in.png, 0.out.png, 1.in.png ...

    >>> are_samples(["0.a.png", "0.b.png", "1.a.png", "1.b.png"]), are_samples(["cat.0.png", "cat.1.png"])
    (True, False)
    """
    samples: dict[str, set[str]] = {}
    for key in keys:
        sample, field = split_sample(key)
        if "." not in field or part_name(field).isdecimal():
            return False
        samples.setdefault(sample, set()).add(field)
    return len(keys) > len(samples) and len(set(map(frozenset, samples.values()))) == 1


def is_field(path: str) -> bool:
    """Return True if pairs= names a field of WebDataset samples, such as "seg.png", rather than a folder.

    >>> is_field("seg.png"), is_field("masks/")
    (True, False)
    """
    return os.sep not in path and "*" not in path and "." in path.strip(".") and not os.path.exists(path)


def open_tars(paths: Sequence[str], options: SourceOptions) -> Iterator[Archive]:
    """Yield the listing of each tar in turn. Raises: SourceError, SpaceError."""
    return (open_archive(path, "", options.spool_dir, is_label(options.label)) for path in paths)


def open_samples(name: str, archives: Iterable[Archive], options: SourceOptions, folder: str) -> ImageSource:
    """Combine images and labels of the same key; the source, or an exception, closes the archives.

    name: name of the tars in messages. folder: folder that may hold classes.txt.
    options: options.findings refuses images without a label, and leaves out labels without an image.
    Raises: SourceError, UsageError.
    """
    findings, targets = options.findings, ImageTargets(findings=options.findings)
    with ExitStack() as stack:
        tars = [stack.enter_context(closing(archive)) for archive in archives]
        listed = [_Samples.scan(tar, options) for tar in tars]
        image = _image_field(name, listed, options)
        for samples in listed:
            samples.leave_out_labels(image, options)
        keys, owners, members = _locate_field(listed, image, image)
        if not keys:
            raise no_images(name)
        paths, called = [tar.path for tar in tars], "a tar" if len(tars) == 1 else f"{len(tars):,} tars"
        splits = file_splits(paths, [split_of(path) for path in paths], owners)
        if not options.labels.ignore_source:
            targets = _read_labels(name, listed, image, splits, options, folder)
        named = "" if targets.classes is None else f" in {len(targets.classes):,} classes"
        findings.notes.insert(0, f"Read as WebDataset: {len(keys):,} samples of {called}{named}.")
        for field in sorted(
            {field for samples in listed for field in samples.images} - {image, *options.parts}
        ):
            count = sum(len(samples.images.get(field, ())) for samples in listed)
            findings.note(
                f"{count:,} images called .{field} are parts of samples, and are left out; "
                f"{option_text('pairs', {part_name(field): field})} packs them."
            )
        images = ArchiveImages(_unique(name, keys, tars, owners), tars, owners, members)
        images.parts = {
            field: ArchiveImages(partners, tars, *places)
            for field in options.parts
            for partners, *places in [_locate_field(listed, image, field)]
        }
        stack.pop_all()
    return images.describe(name, targets, splits, label_chosen=True)


class _Samples(NamedTuple):
    """The members of a tar by field: images, field -> sample -> index; labels, sample -> path."""

    tar: Archive
    images: dict[str, dict[str, int]]
    labels: dict[str, str]

    @classmethod
    def scan(cls, tar: Archive, options: SourceOptions) -> _Samples:
        """List the members of a tar. Images with a plain extension are the field "". Raises: SourceError."""
        wanted = label_field(options.label)
        images: dict[str, dict[str, int]] = {}
        labels: dict[str, str] = {}
        for path in () if options.labels.ignore_source else tar.others:
            sample, field = split_sample(path)
            if field == wanted:
                _check_alone(tar, labels.setdefault(sample, path), path, "labels")
        for index, key in enumerate(tar.keys):
            sample, field = split_sample(key)
            members = images.setdefault(field if "." in field else "", {})
            _check_alone(tar, tar.keys[members.setdefault(sample, index)], key, "images")
        return cls(tar, images, labels)

    def leave_out_labels(self, image: str, options: SourceOptions) -> None:
        """Leave out labels without an image. Raises: SourceError."""
        for sample, path in self.labels.items():
            if sample not in self.images.get(image, {}):
                reason = "is a label without an image."
                error = f"{self.tar.path}: {shorten(path)} {reason} {_REMEDY}"
                options.findings.leave_out(f"{os.path.basename(self.tar.path)}/{path}", reason, error)

    def read_label(self, sample: str, options: SourceOptions) -> str:
        """Return a sample's label as text. Raises ImageError whose text continues the image's name."""
        wanted, label = label_field(options.label), options.label
        if sample not in self.labels:
            fields = {split_sample(path)[1] for path in self.tar.others}
            there = f" (there are .{shorten(', .'.join(sorted(fields)))})" if fields - {wanted} else ""
            raise ImageError(f"has no .{wanted} beside it{there}.")
        path = self.labels[sample]
        called, (nbytes, *_) = path.rpartition("/")[2], self.tar.others[path]
        if nbytes > _LARGEST_LABEL:
            raise ImageError(f"has a {called} of {nbytes:,} bytes; at most {_LARGEST_LABEL:,} are read.")
        try:
            text = self.tar.read_other(path).decode("utf-8").strip()
            entries = json.loads(text) if wanted == "json" else {label: text}
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


def _image_field(name: str, listed: Sequence[_Samples], options: SourceOptions) -> str:
    """Return the field of the images: "" for a plain extension, else the only one that is not in `parts`."""
    fields = {field for samples in listed for field in samples.images}
    for part in options.parts:
        if part not in fields:
            there = ", ".join(f".{field}" for field in sorted(fields) if field)
            raise UsageError(
                f"{name}: its samples have no image called .{part}; they have "
                f"{shorten(there) or 'one image each'}. Pass one of them."
            )
    left = sorted(fields - set(options.parts))
    if "" in fields or not fields:
        return ""
    if len(left) == 1:
        return left[0]
    raise UsageError(
        f"{name}: its samples have several images, .{shorten(', .'.join(left))}; one is the image. Pass the "
        f"others as partners of it, such as {option_text('pairs', {part_name(left[-1]): left[-1]})}."
    )


def part_name(field: str) -> str:
    """Return the name of a part of samples: "seg.png" -> "seg"."""
    return field.partition(".")[0]


def _read_labels(
    name: str, listed: Sequence[_Samples], image: str, splits: Splits, options: SourceOptions, folder: str
) -> ImageTargets:
    """Return the label of each image. Raises: SourceError, UsageError."""
    texts: list[str] = []
    count = sum(len(samples.images.get(image, {})) for samples in listed)
    unlabeled = options.without_labels(name, splits, count)
    for samples in listed:
        for sample, index in samples.images.get(image, {}).items():
            texts.append("")
            if not unlabeled[len(texts) - 1]:
                try:
                    texts[-1] = samples.read_label(sample, options)
                except ImageError as error:
                    called = f"{samples.tar.path}: {shorten(samples.tar.keys[index])} {error}"
                    none = ", pass labels=Labels(unlabeled='all')" if not samples.labels else ""
                    options.findings.refuse(len(texts) - 1, str(error), f"{called} {_REMEDY}{none}")
    path = os.path.join(folder, CLASSES_FILE)
    names = read_classes(path) if os.path.isfile(path) else None
    column, lines = options.label or "the .cls", range(1, len(texts) + 1)
    return options.number(name, texts, lines, "sample", column=column, names=names, unlabeled=unlabeled)


def _locate_field(
    listed: Sequence[_Samples], image: str, field: str
) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """Return a field of each sample with an image: its key, tar and index in it; "" and -1 without one."""
    keys, owners, members = [], array("q"), array("q")
    for owner, samples in enumerate(listed):
        parts = samples.images.get(field, {})
        for sample in samples.images.get(image, {}):
            index = parts.get(sample, -1)
            keys.append(samples.tar.keys[index] if index >= 0 else "")
            owners.append(owner)
            members.append(index)
    return keys, np.array(owners, np.int64), np.array(members, np.int64)


def _check_alone(tar: Archive, first: str, path: str, what: str) -> None:
    """Raise SourceError if a sample has two images or two labels."""
    if first != path:
        raise SourceError(
            f"{tar.path}: {shorten(first)} and {shorten(path)} are two {what} of one sample; one is packed. "
            "Create the tar without one of them, or rename it (a.left.png)."
        )


def _unique(name: str, keys: list[str], tars: Sequence[Archive], owners: NDArray[np.int64]) -> list[str]:
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
