"""Checks of masks among the images."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from packer import units
from packer.inputs.checks.frame_evidence import why_partners
from packer.inputs.listing import Finding, Listing
from packer.sentence import Option, Sentence

_LAST_WORD = re.compile(r"(.*[^/])[^A-Za-z0-9/]+([A-Za-z][A-Za-z0-9]*)\Z", re.DOTALL)
_SHARE = 0.9
_FIRST = 256


def check_masks_among_images(listing: Listing) -> Iterator[Finding]:
    """Yield an error for masks in the folder of their images: 1_sat.png and 1_mask.png, or 1.png and 1_mask.png.

    Nearly all names have to belong to such pairs, and the pixels to show which side are masks. A list of
    images says which files are images, so it is not checked.
    """
    # Names of a pair stand side by side, so most listings are through after the first names.
    if not listing.source.scanned or not _pairs(listing.keys[:_FIRST]):
        return
    pairs = _pairs(listing.keys)
    found = why_partners(listing, pairs, {})
    if found.mask is not None:
        mask, image = pairs[0][found.mask], pairs[0][1 - found.mask]
        yield Finding(
            Sentence(
                f"{listing.name}: {units.count(len(pairs), 'image')} are named like masks of other images, such "
                f"as {mask} beside {image}{found.why}; they would be packed as images. Move them into a "
                f"separate folder, and pass it by {Option('pairs', {'mask': 'DIR'})}, or pass a list of the "
                "files that are images."
            ),
            error=True,
        )


def _pairs(keys: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs of keys whose names differ in the last word, the same two words in all; else []."""
    words: dict[str, dict[str, str]] = defaultdict(dict)
    for key in keys:
        stem = os.path.splitext(key)[0]
        match = _LAST_WORD.match(stem)
        name, word = (stem, "") if match is None else match.groups()
        words[name][word] = key
    kinds = Counter(frozenset(of) for of in words.values() if len(of) == 2)
    ((kind, count),) = kinds.most_common(1) or [(frozenset(), 0)]
    if not count or count < _SHARE * len(words):
        return []
    first, second = sorted(kind)
    return [(of[first], of[second]) for of in words.values() if of.keys() == kind]
