"""A look at a few inputs before the work begins, for what a user should know then: images that are enlarged, or lose bits."""

from __future__ import annotations

from collections import Counter

import numpy as np

from packer import units
from packer.errors import ImageError
from packer.inputs.sources import Source
from packer.pixels.maker import PixelSpec
from packer.pixels.peek import largest_value, peek
from packer.pixels.resize import place
from packer.sentence import Option

_LOOKED_AT = 64
_ENLARGED_SHARE = 0.1  # of fewer nothing is said
_ALIKE_SHARE = 0.9  # of images of one size: that size is what to pass


def survey(source: Source, spec: PixelSpec) -> list[str]:
    """Say what up to 64 images, evenly spread, give reason to say, a sentence each: the same ones whenever the source is the same."""
    picked = np.unique(
        np.linspace(0, len(source) - 1, min(len(source), _LOOKED_AT)).astype(np.int64)
    ).tolist()
    sizes: list[tuple[int, int]] = []
    enlarged = narrowed = 0
    largest: int | None = None
    for index in picked:
        if source.sizes[index] > 16 * spec.max_pixels:
            continue
        try:
            data = source.read(index)
        except ImageError:
            continue  # what is wrong with it is said when it is packed
        seen = peek(data)
        if seen is None or seen.height * seen.width > spec.max_pixels or min(seen[:2]) < 1:
            continue
        box, target = place(spec.fit, (seen.height, seen.width), spec.size)
        enlarged += box.height < target.height or box.width < target.width
        sizes.append((seen.height, seen.width))
        if seen.narrowed:
            narrowed += 1
            largest = max(filter(None, (largest, largest_value(data, spec.max_pixels))), default=None)
    notes = []
    if sizes and enlarged >= _ENLARGED_SHARE * len(sizes):
        notes.append(_enlarged(enlarged, sizes, spec, len(source)))
    if narrowed:
        notes.append(_narrowed(narrowed, len(sizes), largest))
    return notes


def _enlarged(enlarged: int, sizes: list[tuple[int, int]], spec: PixelSpec, images: int) -> str:
    height, width = spec.size
    usual, count = Counter(sizes).most_common(1)[0]
    alike = count >= _ALIKE_SHARE * len(sizes)
    side = int(np.median([min(size) for size in sizes]))
    whole = alike and usual[0] == usual[1]
    even = 1 << (side.bit_length() - 1)
    passed: str | Option = Option("size", side if whole else even)
    if whole and side != even:
        passed += " " + Option("any_size", True)
    side = side if whole else even
    shown = f"{usual[0]}x{usual[1]}" if alike else f"shorter side {side} and more at the median"
    many = "All" if enlarged == len(sizes) else f"{enlarged:,} of the"
    verb = "are smaller than" if enlarged > 1 else "is smaller than"
    text = f"{many} {len(sizes):,} images looked at {verb} {height}x{width} ({shown}) and enlarged"
    if side >= min(height, width):
        return f"{text}; a smaller " + Option("size") + " would not."
    channels = spec.shape[2]
    now, then = images * height * width * channels, images * side * side * channels
    return f"{text}; " + passed + f" takes {units.size(then)} of pixels instead of {units.size(now)}."


def _narrowed(narrowed: int, looked_at: int, largest: int | None) -> str:
    shown = "" if largest is None else f", so the largest value seen, {largest:,}, becomes {largest >> 8}"
    return (
        f"{narrowed:,} of the {looked_at:,} images looked at have more than 8 bits a channel, and only the high byte is stored{shown}. "
        "Scale them to 8 bits first, or keep their values in a field of their own: "
        + Option("pairs", {"NAME": "DIR"})
        + "."
    )
