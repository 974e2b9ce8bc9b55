"""Checks of the classes: confusing names, folders without images, classes that the training split lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches

from packer import units
from packer.inputs.file_names import UNLABELED, first_few, shorten
from packer.inputs.listing import Finding, Listing
from packer.path_text import show_differences, simplify

_WORDS = re.compile(r"[^\W_]+")


def check_classes_of_splits(listing: Listing) -> Iterator[Finding]:
    """Yield an error for classes of a split that train lacks, and a note on classes that a split lacks."""
    labels, classes, splits = listing.labels, listing.classes, listing.splits
    if labels is None or classes is None or "train" not in splits:
        return
    held = {name: set(labels[members].tolist()) - {UNLABELED} for name, members in splits.items()}
    trained = held.pop("train")
    for name, found in held.items():
        strange = [classes[number] for number in sorted(found - trained)]
        absent = [classes[number] for number in sorted(trained - found)]
        if strange and not set(strange) <= set(listing.accepted):
            near = [close[0] for one in strange if (close := get_close_matches(one, absent, 1))]
            like = f" (train has {near[0]})" if near else ""
            looks = {simplify(one): show_differences(one) for one in absent}
            for one in strange:
                if simplify(one) in looks:
                    like = f" ({show_differences(one)}; train has {looks[simplify(one)]})"
                    break
            example = listing.keys[int(next(m for m in splits[name] if classes[labels[m]] == strange[0]))]
            yield Finding(
                f"{listing.name}: split {name} has {units.count(len(strange), 'class')} that train lacks: "
                f"{first_few(strange)}{like}, such as {example}; every class is trained. Sort its images "
                "into the class folders of train, pack it apart with labels= if a file has its "
                f"labels, pass labels=Labels(unlabeled={name!r}) if there are none, or, if all these are "
                f"classes, {listing.accepting(classes)}.",
                error=True,
            )
        elif absent and found:
            yield Finding(
                f"Split {name} has no images of {len(absent):,} of {units.count(len(trained), 'class')}: "
                f"{first_few(absent)}."
            )


def check_empty_classes(listing: Listing) -> Iterator[Finding]:
    """Yield an error for class folders without images."""
    source = listing.source
    one = source.layout.classes[0] if source.layout.classes and len(source.layout.classes) == 1 else ""
    for folder in source.layout.empty if listing.foldered else ():
        above, _, name = folder.rpartition("/")
        if name in listing.accepted:
            continue
        only = (
            f" If {one} is no class either, pass {source.place}/{above}{'/' * bool(above)}{one}."
            if one
            else ""
        )
        yield Finding(
            f"{source.place}/{folder}: a class folder without images; each needs at least one. Add some, "
            f"remove the folder, or pass on_error='skip'.{only}",
            error=True,
            key=folder,
            reason="a class folder without images.",
        )


def check_class_names(listing: Listing) -> Iterator[Finding]:
    """Yield notes on classes with nearly equal names, and on numbers that differ from the labels."""
    classes = listing.classes or ()
    seen: dict[str, str] = {}
    for name in classes:
        first = seen.setdefault(simplify(name), name)
        if first is not name:
            yield Finding(
                f"The classes {show_differences(first)} and {show_differences(name)} differ only in "
                "case, spaces or variants of letters; they are two classes."
            )
            break
    words = {name: set(_WORDS.findall(name)) - {"and"} for name in classes}
    composed = [name for name, parts in words.items() if len(parts) > 1 and parts <= words.keys()]
    if composed:
        parts = ", ".join(sorted(words[composed[0]]))
        yield Finding(
            f"The class {shorten(composed[0])} has the names of others ({parts}). If its images have several "
            "labels, pass labels= with a file that lists them."
        )
    numbers = [int(name[:20]) for name in classes if name.isascii() and name.isdecimal()]
    if len(numbers) == len(classes) and numbers != list(range(len(numbers))):
        place = next(k for k, number in enumerate(numbers) if number != k)
        yield Finding(
            f"The classes are numbers, sorted as text ({', '.join(classes[:3])} ...), so labels differ from "
            f"them: class {classes[place]} has the label {place}."
        )
