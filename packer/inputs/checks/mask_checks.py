"""Checks of masks among the images."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from packer import units
from packer.given_values import option_text
from packer.inputs.checks.frame_evidence import why_partners
from packer.inputs.file_names import shorten
from packer.inputs.image_pairs import RESERVED
from packer.inputs.listing import Finding, Listing
from packer.inputs.pair_names import beside

_LAST_WORD = re.compile(r"(.*[^/])[^A-Za-z0-9/]+([A-Za-z][A-Za-z0-9]*)\Z", re.DOTALL)
_FIRST_WORDS = re.compile(r"([A-Za-z][A-Za-z_ -]*?)[^A-Za-z0-9]*[0-9]+[^A-Za-z]*\.[A-Za-z]+\Z")
_NUMBERS = re.compile(r"[0-9]+")
_FEWEST_A_WORD = 2  # images a word
_SHARE = 0.9
_FIRST = 256


def check_masks_among_images(listing: Listing) -> Iterator[Finding]:
    """Yield an error for masks beside their images: 1_mask.png, or 1.png, beside 1.jpg or 1_sat.jpg.

    Nearly all names have to belong to such groups, and the pixels of pairs to show which side are masks; a
    note without that. Three or more files of a name are an error, a note if they differ in a number. A list
    of images says which files are images, so it is not checked.
    """
    # Names of a group stand side by side, so most listings are through after the first names.
    if not listing.source.scanned or not _groups(listing.keys[:_FIRST]):
        return
    groups = _groups(listing.keys)
    if not groups:
        return
    shown = f"{listing.name}: nearly all names belong to {len(groups):,} groups of {len(groups[0])} files"
    if len(groups[0]) > 2:
        example = ", ".join(groups[0])
        frames = len({_NUMBERS.sub("", key) for key in groups[0]}) == 1  # frames of a video, or bands
        yield Finding(
            f"{shown}, such as {example}; each {'is packed as' if frames else 'would be'} an image. Pass "
            f"{_patterns(listing, groups[0])} to pack one kind as the images and the others beside them, or "
            "pass a list of the files that are images.",
            error=not frames,
        )
        return
    pairs = [(group[0], group[1]) for group in groups]
    found = why_partners(listing, pairs)
    if found.mask is None:
        example = " and ".join(pairs[0])
        yield Finding(f"{shown}, such as {example}; each is packed as an image.")
        return
    mask, image = pairs[0][found.mask], pairs[0][1 - found.mask]
    place = str(beside(listing.source.place, image, mask))
    yield Finding(
        f"{listing.name}: {units.count(len(pairs), 'image')} are named like masks of other images, such as "
        f"{mask} beside {image}{found.why}; they would be packed as images. Pass "
        f"{option_text('pairs', {'mask': shorten(place)})}, or, if they are images, a list of the files.",
        error=True,
    )


def _patterns(listing: Listing, group: Sequence[str]) -> str:
    """Return the options that name the files of a group, but for the first, as partners of the first."""
    pairs = {}
    for number, key in enumerate(group[1:], 2):
        match = _LAST_WORD.match(os.path.splitext(key)[0])
        name = "" if match is None else match[2].lower()
        name = name if name.isidentifier() and name not in RESERVED else f"kind{number}"
        pairs[name] = str(beside(listing.source.place, group[0], key))
    return option_text("pairs", pairs)


def check_labels_in_names(listing: Listing) -> Iterator[Finding]:
    """Yield a note on images without labels whose names begin with few words: cat.0.jpg, dog.0.jpg."""
    if listing.labels_given or listing.targets.labelled or listing.pairs or not listing.source.scanned:
        return
    counts: Counter[str] = Counter()
    for key in listing.keys:
        match = _FIRST_WORDS.match(key.rpartition("/")[2])
        if match is None:
            return
        counts[match[1]] += 1
    if 1 < len(counts) <= len(listing.keys) / _FEWEST_A_WORD:
        shown = ", ".join(f"{word} {count:,}" for word, count in counts.most_common(3))
        more = ", ..." if len(counts) > 3 else ""
        yield Finding(
            f"The names begin with {len(counts):,} words ({shown}{more}). If these are the classes, sort the "
            "images into folders called by them, or write them into a CSV for labels=."
        )


def _groups(keys: Sequence[str]) -> list[list[str]]:
    """Return the keys whose names differ in the last word or suffix only, alike in all groups; else []."""
    words: dict[str, dict[str, str]] = defaultdict(dict)
    for key in keys:
        stem, suffix = os.path.splitext(key)
        match = _LAST_WORD.match(stem)
        name, word = (stem, "") if match is None else match.groups()
        words[name][f"{word}{suffix}" if word in words[name] else word] = key
    kinds = Counter(frozenset(of) for of in words.values() if len(of) > 1)
    ((kind, count),) = kinds.most_common(1) or [(frozenset(), 0)]
    if not count or count < _SHARE * len(words):
        return []
    return [[of[word] for word in sorted(kind)] for of in words.values() if of.keys() == kind]
