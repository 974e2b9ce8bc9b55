"""Checks of labels from a file: several in a cell, one for each image, other folders, numbers."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.given_values import option_text
from packer.inputs.file_names import UNLABELED, is_image, shorten
from packer.inputs.label_values import NUMBER, LabelColumn, split_names
from packer.inputs.listing import Finding, Listing

_SEPARATORS = {"|": "|", ";": ";", ",": "comma", "\t": "tab", "/": "/", "+": "+", "&": "&", " ": "space"}
"""Separator -> the value of the option."""
_PLAIN = "|;,\t"  # seldom part of a name
_AGAIN = 0.8
"""Fraction of the parts that come again in other cells, if blanks separate labels, not words."""
_AGAIN_PLAIN = 0.5
_OFTEN = 1.75  # occurrences of each part, on average
_MOVING = (
    0.15  # fraction of the parts that begin cells and come later, too: 7 % of the words of WordNet's nouns
)
_REPEATING = 0.02
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+(,[0-9]+)?")
_AMOUNT = re.compile(r"[$€£¥]?[+-]?[0-9]+(\.[0-9]+)?\s*[%‰°$€£¥]?")
_FEW = 20
"""Images below which labels that all differ may be classes."""
_FEW_NOTED = 10
_FEW_NUMBERS = 100  # as _FEW, of numbers that do not count
_NEARLY_ALL = 0.9
_FEW_NAMES = 2
_CAPTION_WORDS = 4
_CAPTIONS = 3


def check_label_texts(listing: Listing) -> Iterator[Finding]:
    """Yield an error for several labels in a cell, or texts that differ in each row; notes if they may be."""
    column = listing.targets.column
    if column is None or listing.accepted or column.as_ == "classes" or column.separated:
        return
    classes = listing.classes or ()
    boxes = "label" not in listing.targets.fixed
    several = _several_labels(column, classes, boxes) if len(classes) > 1 else None
    if several is not None:
        yield several
    elif listing.labels is not None:
        yield from _labels_that_differ(listing, column, listing.labels, classes)


def check_labels_of_folders(listing: Listing) -> Iterator[Finding]:
    """Yield a note on labels from a file that are the names of other folders than those of their images."""
    labels, classes = listing.labels, listing.classes
    if not listing.labels_given or labels is None or classes is None:
        return
    numbers = {name: number for number, name in enumerate(classes)}
    folders = [numbers.get(key.rpartition("/")[0].rpartition("/")[2], UNLABELED) for key in listing.keys]
    both = (np.array(folders) != UNLABELED) & (labels != UNLABELED)
    moved = np.flatnonzero(both & (labels != folders))
    if 0 < len(moved) < np.count_nonzero(both) / 2:
        key, label = listing.keys[moved[0]], classes[labels[moved[0]]]
        yield Finding(
            f"The file gives {units.count(len(moved), 'image')} the label of another folder, such as {key}: "
            f"{label}. Its labels are packed; correct it if the folders are right."
        )


def _several_labels(column: LabelColumn, classes: Sequence[str], boxes: bool) -> Finding | None:
    """Return an error for cells that hold several labels, a note if they may, or None.

    boxes: the labels are those of boxes.
    """
    meant = "labels=Labels(as_='classes') if each text is a class"
    if column.separator is not None:
        meant = "the separator of the cells"
    elif all(map(_DECIMAL_COMMA.fullmatch, classes)) and any("," in name for name in classes):
        return _column_error(
            column,
            f"holds numbers with commas, such as {_examples(classes, ',')}; decimals have a point. Correct "
            f"them, or pass {meant}",
        )
    for separator, named in _SEPARATORS.items():
        cells = {name: split_names(name, separator) for name in classes}
        if _is_vector(cells.values()):
            return _column_error(
                column,
                f"holds several numbers in a cell, such as {_examples(classes)}; one label is expected. "
                "Write each number into a column of its own, and pass labels=Labels(column='a,b,c'), "
                f"or pass {meant}",
            )
        if _are_several(cells, separator):
            labels = {label for parts in cells.values() for label in parts}
            remedy = "Write a row for each" if boxes else f"Pass labels=Labels(separator={named!r})"
            return _column_error(
                column,
                f"holds several labels in a cell, such as {_examples(classes, separator)}: each of its "
                f"{len(classes):,} different texts would be a class, made of {len(labels):,} labels; one "
                f"label is expected. {remedy}, or {'pass ' * boxes}{meant}",
            )
    if not boxes and all(map(_AMOUNT.fullmatch, classes)) and not all(map(NUMBER.fullmatch, classes)):
        return Finding(
            f"{column.subject}: the {len(classes):,} classes of {column.name} are numbers with a sign, such "
            f"as {_examples(classes)}. If they are amounts, write numbers alone."
        )
    several = [name for name in classes if any(mark in name for mark in "|;")]
    if not several or boxes:
        return None
    pass_separator = option_text("Labels.separator", next(mark for mark in "|;" if mark in several[0]))
    return Finding(
        f"{len(several):,} of {len(classes):,} classes contain | or ;, such as {_examples(several)}; each "
        f"is one class. Pass {pass_separator} if cells hold several."
    )


def _labels_that_differ(
    listing: Listing, column: LabelColumn, labels: NDArray[np.int64], classes: Sequence[str]
) -> Iterator[Finding]:
    """Yield an error for texts that differ in each row, such as captions and ids, a note if many do."""
    packed = np.delete(labels, list(listing.source.findings.refused))
    packed = packed[packed != UNLABELED]
    counts = np.bincount(packed, minlength=len(classes))
    images, different, alone = len(packed), int((counts > 0).sum()), int((counts == 1).sum())
    nearly_all = different >= _NEARLY_ALL * images and images >= _CAPTIONS
    texts = [classes[number] for number in packed.tolist()] if nearly_all else []
    several = nearly_all and _blanks_may_separate(texts)
    hint = "labels=Labels(separator='space') if a text holds several labels"
    if nearly_all and (images >= _FEW or _are_captions(texts) or _are_names(listing, texts)):
        yield _column_error(
            column,
            f"has {different:,} different texts for {images:,} images, such as {_examples(texts)}, so nearly "
            f"each image would be a class of its own; classes have several images. {_other(column)} "
            f"labels=Labels(as_='classes') if they are classes" + (f", {hint}" if several else ""),
        )
    elif different == 1 < images:
        yield Finding(f"All {images:,} images have the label {shorten(classes[packed[0]])}.")
    elif names := _names_among_numbers(classes):
        count, name = int(counts[classes.index(names[0])]), shorten(names[0])
        yield Finding(
            f"{len(classes) - len(names):,} of {len(classes):,} classes are numbers, but not {name} "
            f"({units.count(count, 'image')}), so all are class names. Leave out images without a label."
        )
    elif several or (images >= _FEW_NOTED and (2 * alone > different or 2 * different >= images)):
        example = shorten(classes[int((counts == 1).argmax())])
        yield Finding(
            f"{images:,} images have {different:,} classes, {images / different:.2g} for each"
            + (f"; {alone:,} of them, such as {example}, have one" if alone else "")
            + (f". Pass {hint}." if several else ".")
        )


def check_numbers(listing: Listing) -> Iterator[Finding]:
    """Yield an error for numbers that differ in each row, such as ids; a note on how numbers are stored."""
    column, label = listing.targets.column, listing.targets.fixed.get("label")
    if column is None or label is None or label.ndim > 1 or listing.classes is not None:
        return
    values = np.delete(label, list(listing.source.findings.refused))
    if any("unlabeled" in field.about for field in listing.targets.fields):
        values = values[values != UNLABELED]
    if column.as_ != "auto" or not len(values):
        return
    found, as_classes = np.unique(values), "labels=Labels(as_='classes')"
    counted = f"{len(found):,} different"
    if label.dtype != np.int64:
        yield Finding(
            f"Labels are numbers ({counted} from {found[0]:.6g} to {found[-1]:.6g}), stored as float32; "
            f"{as_classes} treats them as classes."
        )
        return
    as_float = "labels=Labels(as_='float')"
    if _are_ids(found, len(values)):
        yield _column_error(
            column,
            f"has {counted} numbers from {found[0]} to {found[-1]} for {len(values):,} images, as ids have, "
            f"or amounts; class numbers come again. {_other(column)} "
            f"{as_float} if they are amounts, {as_classes} if they are classes",
        )
        return
    gaps = found[0] not in (0, 1) or len(found) <= found[-1] - found[0]
    told = f"; class numbers would be 0 to {len(found) - 1:,}" if gaps else ""
    yield Finding(
        f"Labels are whole numbers ({counted} from {found[0]} to {found[-1]}), stored as int64{told}. "
        f"{as_float} stores amounts, such as ages, as float32; {as_classes} numbers classes from 0."
    )


def _column_error(column: LabelColumn, text: str) -> Finding:
    return Finding(f"{column.subject}: {column.name} {text}.", error=True)


def _other(column: LabelColumn) -> str:
    return "Pass" if column.alone else "Choose another column with labels=Labels(column=), or pass"


def _examples(texts: Sequence[str], separator: str = "") -> str:
    """Return two texts that hold the separator, quoted."""
    holding = [text for text in texts if separator in text or text[:1] == "["] or texts
    return " and ".join(repr(shorten(text)) for text in dict.fromkeys(holding[:: max(1, len(holding) - 1)]))


def _is_vector(cells: Collection[Sequence[str]]) -> bool:
    """Return True if all cells hold equally many numbers, and are no sets of numbered classes."""
    lengths = {len(parts) for parts in cells}
    if len(lengths) > 1 or lengths <= {0, 1} or not all(all(map(NUMBER.fullmatch, parts)) for parts in cells):
        return False
    return any(len(set(parts)) < len(parts) or not all(map(str.isdecimal, parts)) for parts in cells)


def _are_several(cells: dict[str, list[str]], separator: str) -> bool:
    """Return True if a separator divides cells into labels that come again. cells: text -> its parts."""
    several = [parts for parts in cells.values() if len(parts) > 1]
    listed = [text for text in cells if text[:1] == "[" and text[-1:] == "]"]
    if not several:
        return False
    if len(listed) == len(cells):
        return True
    alone = {parts[0] for parts in cells.values() if len(parts) == 1}
    counts = Counter(part for parts in cells.values() for part in set(parts))
    divided = [part for parts in several for part in parts]
    again = sum(counts[part] > 1 for part in divided) / len(divided)
    classes = sum(alone.issuperset(parts) for parts in several)  # "cat dog" beside "cat" and "dog"
    if 2 * classes > len(several) or (2 * classes == len(several) and again > _AGAIN_PLAIN):
        return True
    # The words of a name have their places ("red dress", "blue dress"), and those of a sentence repeat.
    moving = {parts[0] for parts in several}.intersection(part for parts in several for part in parts[1:])
    if separator in _PLAIN:
        varying = len(moving) or len(set(map(len, cells.values()))) > 1
        return again > _AGAIN_PLAIN and (separator != "," or bool(varying))
    often = sum(map(len, cells.values())) >= _OFTEN * len(counts)
    return again >= _AGAIN and often and len(moving) >= _MOVING * len(counts) and not _repeat(cells.values())


def _repeat(cells: Collection[Sequence[str]]) -> bool:
    """Return True if words come again in a cell, as in sentences."""
    return sum(len(set(parts)) < len(parts) for parts in cells) > _REPEATING * len(cells)


def _blanks_may_separate(texts: Sequence[str]) -> bool:
    """Return True if most texts have several words, many of which come again, but not in a text."""
    cells = list(map(str.split, texts))
    counts = Counter(part for parts in cells for part in parts)
    again = sum(count for count in counts.values() if count > 1)
    several = sum(len(parts) > 1 for parts in cells)
    return 2 * several > len(cells) and 2 * again > counts.total() and not _repeat(cells)


def _names_among_numbers(classes: Sequence[str]) -> list[str]:
    """Return the few classes that are no numbers, if most are."""
    names = [name for name in classes if not NUMBER.fullmatch(name)]
    return names if len(names) <= _FEW_NAMES and len(classes) > 2 * len(names) else []


def _are_captions(texts: Sequence[str]) -> bool:
    return float(np.median([len(text.split()) for text in texts])) >= _CAPTION_WORDS


def _are_names(listing: Listing, texts: Sequence[str]) -> bool:
    """Return True if most texts are names of image files, or of the images without extension."""
    stems = {os.path.splitext(os.path.basename(key))[0] for key in listing.keys}
    named = sum(is_image(text) or text in stems for text in texts)
    return named >= _NEARLY_ALL * len(texts) and not all(map(str.isdecimal, texts))


def _are_ids(found: NDArray[np.int64], images: int) -> bool:
    """Return True if distinct numbers are too many for classes: they count, or there are many images."""
    if images < _FEW or len(found) < _NEARLY_ALL * images:
        return False
    counting = int(found[-1]) - int(found[0]) < len(found) / _NEARLY_ALL
    return counting or images >= _FEW_NUMBERS
