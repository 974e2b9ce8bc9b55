"""Checks of boxes and points: images without any or turned by EXIF, points outside or on a left or right "
"side."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from packer import units
from packer.given_values import option_text
from packer.inputs.file_names import examples, first_few, shorten
from packer.inputs.image_targets import ImageTargets
from packer.inputs.listing import Finding, Listing
from packer.inputs.point_names import exchanged, sides
from packer.pixels.coordinate_units import FRAMES
from packer.pixels.stored_size import StoredSize

_FRAME = "Labels.boxes_frame"
_SMALL_EXTENT = 0.5  # share of the images' sides that boxes of images of twice the size do not exceed
_LEAST_POINTS, _LEAST_IMAGES = 40, 5  # examined at least, before their extent tells
_SLACK = 0.02  # of the longer side: how far boxes may reach out of their image
_MANY_OUTSIDE = 0.01  # share of points outside their image that gives a note


def check_images_without_boxes(listing: Listing) -> Iterator[Finding]:
    """Yield a note with the number of boxes, and of images without any."""
    boxes = listing.targets.boxes
    if boxes is None:
        return
    packed = np.ones(len(listing.keys), np.bool_)
    packed[list(listing.source.findings.refused)] = False
    images = int(packed.sum())
    packed[boxes.with_boxes()] = False
    without = [listing.keys[index] for index in np.flatnonzero(packed).tolist()]
    told = f"{units.count(len(boxes.xyxy), 'box')} on {units.count(images - len(without), 'image')}; "
    rest = "every image has some"
    if without:
        rest = f"{units.count(len(without), 'image')} without boxes, such as {examples(without)}"
    yield Finding(f"{told}{rest}.")


def check_turned_images(listing: Listing) -> Iterator[Finding]:
    """Yield a note on images that EXIF turns, and an error if their boxes only fit the stored picture.

    Reads the headers of a sample.
    """
    targets, frames = listing.targets, listing.targets.frames
    if not (targets.needs_geometry or listing.pairs):
        return
    images = targets.located if targets.needs_geometry else np.arange(len(listing.keys))
    sample = listing.source.sample_sizes(images)
    turned = {index: size for index, size in sample.items() if size.orientation != 1}
    if not turned:
        return
    subject = (
        f"{len(turned):,} of {len(sample):,} images examined are turned upright by their EXIF orientation"
        f", such as {examples(listing.keys[index] for index in turned)}"
    )
    if targets.needs_geometry and frames.chosen is None:
        told = any(frames.told_by_size(index, size) for index, size in turned.items())
        upright, stored = (
            sum(_outside(targets, index, size, frame) for index, size in turned.items()) for frame in FRAMES
        )
        if not told and upright and not stored:
            yield Finding(
                f"{subject}; {upright:,} of their boxes and points lie outside the upright image, and none "
                f"outside the stored picture. Pass {option_text(_FRAME, 'stored')}, or "
                f"{option_text(_FRAME, 'upright')} if they are those of the upright image.",
                error=True,
            )
            return
        found = {frames.frame(index, size) for index, size in turned.items()}
        other = "upright" if found == {"stored"} else "stored"
        why = ", as the recorded sizes say" if told else ""
        yield Finding(
            f"{subject}; their boxes and points are read as those of the {' or the '.join(sorted(found))} "
            f"image{why}. If all are those of the {other} one, pass {option_text(_FRAME, other)}."
        )
    if listing.pairs:
        yield Finding(
            f"{subject}; their masks belong to the upright images. Masks made from pixels as stored have "
            "to be turned, too, unless they have that EXIF orientation themselves."
        )


def check_outside_points(listing: Listing) -> Iterator[Finding]:
    """Yield a note on keypoints outside their images, which become NaN. Reads the headers of a sample."""
    points = listing.targets.keypoints
    if points is None:
        return
    sample = listing.source.sample_sizes(listing.targets.located)
    outside = sum(_outside(listing.targets, index, size) for index, size in sample.items())
    seen = sum(int(np.isfinite(points[index, :, 0]).sum()) for index in sample)
    if outside > _MANY_OUTSIDE * seen:
        found = f"{outside:,} of {seen:,} keypoints examined lie outside their image"
        yield Finding(f"{found}; they are stored as NaN.")
    zero = int((points == 0).all(axis=2).sum())
    if zero > max(1, _MANY_OUTSIDE * np.isfinite(points[..., 0]).sum()):
        yield Finding(
            f"{zero:,} keypoints are 0,0: stored as points in the corner. If they are missing, leave their "
            "cells empty."
        )


def check_extent(listing: Listing) -> Iterator[Finding]:
    """Yield a note if all boxes and points lie in the upper left quarter of their images.

    Reads the headers of a sample.
    """
    targets = listing.targets
    if not targets.needs_geometry or targets.unit_chosen:
        return
    sample = listing.source.sample_sizes(targets.located)
    shares = [
        (points / size.upright[::-1]).reshape(-1, 2)
        for index, size in sample.items()
        for points in targets.points_of(index, size)
    ]
    count = sum(int(np.isfinite(share[:, 0]).sum()) for share in shares)
    if count < _LEAST_POINTS or len(sample) < _LEAST_IMAGES:
        return
    least, most = (float(find(np.concatenate(shares))) for find in (np.nanmin, np.nanmax))
    if most <= _SMALL_EXTENT and least < (1 - most) / 2:
        name = "points" if targets.boxes is None else "boxes"
        yield Finding(
            f"The {name} of {len(sample):,} images examined reach at most {most:.0%} of the width and "
            "height, like those of smaller images, or percentages. If they are, correct them; "
            "labels=Labels(boxes_unit='pixels') says that they are right."
        )


def check_sides(listing: Listing) -> Iterator[Finding]:
    """Yield a note on sides that were found by their names, or on several points without any."""
    about = next((f.about for f in listing.targets.fields if f.name == "keypoints"), {})
    names, pairs = about.get("points", ()), [*map(tuple, about.get("flip_pairs", ()))]
    none = "labels=Labels(flip_pairs='none')"
    if pairs and pairs == list(sides(names)):
        held = {name for pair in pairs for name in pair}
        lone = [name for name in names if name not in held and exchanged(name) != name]
        more = f"; {shorten(', '.join(lone))} has no partner" if lone else ""
        count = f"{units.count(len(pairs), 'pair')} of {len(names):,} points"
        yield Finding(
            "Points that are sides by their names exchange their numbers in mirrored images: "
            f"{count} ({first_few([*map(':'.join, pairs)])}){more}. Pass {none} if they are no sides."
        )
    elif len(names) > 1 and "flip_pairs" not in about:
        first = option_text("Labels.flip_pairs", f"{names[0]}:{names[1]}")
        yield Finding(
            f"The names of the {len(names):,} points ({shorten(', '.join(names))}) say no sides, so in "
            "mirrored "
            "images each keeps its number. If some are sides, such as left and right eye, pass them, for "
            f"example {first}; if none are, {none}."
        )


def _outside(targets: ImageTargets, index: int, size: StoredSize, frame: str | None = None) -> int:
    """Return how many boxes and points of an image reach out of it; frame: read them as of that frame."""
    height, width = size.upright
    slack = 1 + _SLACK * max(height, width)
    return sum(
        int((np.maximum(-xy, xy - (width, height)) > slack).any(axis=(1, 2)).sum())
        for xy in targets.points_of(index, size, frame)
    )
