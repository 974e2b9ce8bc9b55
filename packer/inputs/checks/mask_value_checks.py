"""Check of the values in a sample of masks: scaled to be seen, with soft edges, or colors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.inputs.file_names import shorten
from packer.inputs.image_pairs import ExaminedMask, Pair
from packer.inputs.listing import Finding, Listing
from packer.inputs.mask_values import codes_of

_MOST_PIXELS = 32 << 20  # of all masks that are examined; a file of 2048x1024 takes about 20 ms
_COUNTED = 1 << 16  # pixels of a mask that are counted
_MOST_LISTED = 16  # values or colors that a note lists
_MOST_COLORS = 256  # more are not colors of classes
_MOST_VALUES = 64  # in a mask of classes
_SOFT = "if they are amounts, such as mattes or depth, pass them as soft"
_LEAST_GAP = 8  # between values that were scaled to be seen; ids of classes have smaller ones
_EDGE_VALUES = 18  # more in a mask are soft edges even if these are a tenth of it


def check_mask_values(listing: Listing) -> Iterator[Finding]:
    """Yield notes on masks whose values are probably not the numbers of classes."""
    for pair in listing.pairs:
        if pair.soft or pair.mask_values is not None:
            continue
        masks = list(_examined(pair, listing))
        whole = [mask for mask in masks if mask.values.dtype.kind == "u"]
        jpegs = [mask for mask in whole if mask.format == "JPEG"]
        colored = [mask for mask in whole if mask.values.ndim == 3 and mask.format != "npy"]
        grey = [mask for mask in whole if mask.values.ndim == 2]
        if jpegs:
            sentence = _on_jpegs(jpegs)
        elif colored:
            sentence = _on_colors(colored)
        else:
            sentence = _on_values(grey) if grey else ""
        if sentence:
            yield Finding(f"{pair.field.name}: of {units.count(len(masks), 'file')} examined, {sentence}")


def _examined(pair: Pair, listing: Listing) -> Iterator[ExaminedMask]:
    pixels = 0
    for index in listing.sample().tolist():
        mask = pair.examine(index) if pixels < _MOST_PIXELS else None
        if mask is not None:
            pixels += mask.values.size
            step = 1 + int((mask.values.size / _COUNTED) ** 0.5)
            yield mask._replace(values=mask.values[::step, ::step])


def _on_jpegs(masks: list[ExaminedMask]) -> str:
    found = len(np.unique(masks[0].values))
    return (
        f"{len(masks):,} are JPEG files, which store values only approximately, such as "
        f"{shorten(masks[0].path)} ({found:,} different values). Save masks as PNG if they are classes; "
        f"{_SOFT}."
    )


def _on_colors(masks: list[ExaminedMask]) -> str:
    """Return the end of a sentence on masks of several channels."""
    channels = masks[0].values.shape[2]
    begin = f"{len(masks):,} have {channels} channels, such as {shorten(masks[0].path)}"
    if channels == 3:
        colors = np.unique(np.concatenate([np.unique(codes_of(mask.values)) for mask in masks])).tolist()
        texts = _texts(colors)
        if texts:
            kind = units.count(len(texts), "color" if texts[0].startswith("#") else "grey value")
            return (
                f"{begin}: {kind}. Class masks have one channel of numbers: pass"
                f" mask_values={','.join(texts)!r}, in the order of the classes."
            )
        if len(colors) <= _MOST_COLORS:
            return (
                f"{begin}: {units.count(len(colors), 'color')}. Class masks have one channel of numbers: "
                "list the colors of the classes by mask_values=, or save masks as grey or "
                "palette PNG."
            )
    return f"{begin}; class masks have one. Save masks as grey or palette PNG if they are classes."


def _texts(colors: list[int]) -> list[str]:
    """Return colors, or grey values, as in `mask_values`; [] for many, or similar ones, as of lossy files."""
    if len(colors) > _MOST_LISTED:
        return []
    channels = np.array([[color >> 16, color >> 8 & 255, color & 255] for color in colors])
    grey = channels[:, 0]
    if (channels == grey[:, None]).all():
        return [*map(str, grey.tolist())] if _are_scaled(grey, 255) or grey[-1] < _MOST_LISTED else []
    apart = abs(channels[:, None] - channels).max(axis=2)
    similar = (apart < _LEAST_GAP).sum() > len(colors)  # each color with itself
    return [] if similar else [f"#{color:06x}" for color in colors]


def _on_values(masks: list[ExaminedMask]) -> str:
    """Return the end of a sentence on grey masks whose values were scaled to be seen, or are amounts."""
    counted = [np.unique(mask.values, return_counts=True) for mask in masks]
    values = np.unique(np.concatenate([found for found, _ in counted])).astype(np.int64)
    most = int(np.iinfo(masks[0].values.dtype).max)
    such = f"such as {shorten(masks[0].path)}"
    if _are_scaled(values, most):
        texts, numbers = ([*map(str, part)] for part in (values.tolist(), range(len(values))))
        return (
            f"all hold the values {_and(texts)}, {such}; a network's classes are numbered {_and(numbers)}. "
            f"Pass mask_values={','.join(texts)!r} to store these."
        )
    if 2 * sum(_has_soft_edges(found, counts, most) for found, counts in counted) > len(masks):
        return (
            f"most hold 0, {most:,} and values between, as soft edges have, {such}; as classes these are"
            f" {len(values):,}. Save masks without them; {_SOFT}."
        )
    if 2 * sum(_varies(mask.values) for mask in masks) > len(masks):
        return (
            f"most hold values that change from pixel to pixel, as depth does, {such}; as classes these are"
            f" {len(values):,}, and resizing picks the nearest; {_SOFT}."
        )
    return ""


def _varies(values: NDArray[Any]) -> bool:
    """Return True if values are many, and most differ from their neighbour."""
    return bool((values[:, 1:] != values[:, :-1]).mean() > 0.5 and len(np.unique(values)) > _MOST_VALUES)


def _are_scaled(values: NDArray[np.int64], most: int) -> bool:
    """Return True for a few values, evenly spread over the range of the type: 0, 255 or 0, 128, 255."""
    gaps = np.diff(values)
    return bool(
        2 <= len(values) <= _MOST_LISTED
        and 2 * values[-1] > most
        and gaps.min() >= _LEAST_GAP
        and gaps.max() <= 2 * gaps.min()
    )


def _has_soft_edges(values: NDArray[np.generic], counts: NDArray[np.int64], most: int) -> bool:
    """Return True if nearly all pixels of a mask are 0 or the largest value, and the others between."""
    ends, total = counts[(values == 0) | (values == most)], counts.sum()
    if len(ends) < 2 or len(values) == 2 or ends.min() < 0.01 * total:
        return False
    return bool(ends.sum() > (0.9 if len(values) > _EDGE_VALUES else 0.995) * total)


def _and(texts: list[str]) -> str:
    return f"{', '.join(texts[:-1])} and {texts[-1]}"
