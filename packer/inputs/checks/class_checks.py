"""Checks of the classes: confusing names, folders without images, classes that the training split lacks."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from packer.inputs.listing import Finding, Listing
from packer.sentence import Option, Sentence


def check_classes_of_splits(listing: Listing) -> Iterator[Finding]:
    """Yield an error for classes of a split that the training split lacks."""
    return iter(())


def check_empty_classes(listing: Listing) -> Iterator[Finding]:
    """Yield an error for class folders without images."""
    for folder in listing.source.empty_folders if listing.foldered else ():
        if folder.rpartition("/")[2] in listing.accepted:
            continue
        yield Finding(
            Sentence(
                f"{listing.source.place}/{folder}: a class folder without images; each needs at least one. Add "
                f"some, remove the folder, or pass {Option('on_error', 'skip')}."
            ),
            error=True,
            key=folder,
            reason="a class folder without images.",
        )


def check_class_names(listing: Listing) -> Iterator[Finding]:
    """Yield notes on classes with nearly equal names, and on numbers that differ from the labels."""
    classes = listing.classes or ()
    seen: dict[str, str] = {}
    for name in classes:
        read = " ".join(unicodedata.normalize("NFC", name).casefold().split())  # equal if they look equal
        first = seen.setdefault(read, name)
        if first is not name:
            yield Finding(
                Sentence(
                    f"The classes {first!r} and {name!r} differ only in case, spaces or Unicode form; they "
                    "are two classes."
                )
            )
            break
    numbers = [int(name[:20]) for name in classes if name.isascii() and name.isdecimal()]
    if len(numbers) == len(classes) and numbers != list(range(len(numbers))):
        place = next(k for k, number in enumerate(numbers) if number != k)
        yield Finding(
            Sentence(
                f"The classes are numbers, sorted as text ({', '.join(classes[:3])} ...), so labels differ from "
                f"them: class {classes[place]} has the label {place}."
            )
        )
