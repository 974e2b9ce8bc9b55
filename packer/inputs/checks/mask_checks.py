"""Checks of masks among the images."""

from __future__ import annotations

import os
from collections.abc import Iterator

from packer import units
from packer.inputs.listing import Finding, Listing
from packer.sentence import Option, Sentence

_MASK_SUFFIXES = ("_mask", "_masks", "_seg", "_segmentation", "_gt", "_matte")


def check_mask_names(listing: Listing) -> Iterator[Finding]:
    """Yield a note on images named like masks of other images."""
    stems = {os.path.splitext(key)[0]: key for key in listing.keys}
    masks = [
        (key, stems[image])
        for stem, key in stems.items()
        if stem.endswith(_MASK_SUFFIXES) and (image := stem.rpartition("_")[0]) in stems
    ]
    if masks:
        mask, image = masks[0]
        yield Finding(
            Sentence(
                f"{units.count(len(masks), 'image')} named like masks of other images, such as {mask} "
                f"beside {image}: packed as images. If they are masks, move them into a separate folder, "
                f"and pass it by {Option('pairs', {'mask': 'DIR'})}."
            )
        )
