"""Crop small demo photographs from the large ones in scikit-image's wheel, without a download.

    python tools/make_demo_images.py OUT

Writes OUT/train/<photo>/000.jpg … and OUT/test/<photo>/000.jpg …: 400x300 JPEGs of quality 90, a class for
each photograph, random crops of random scale. Train crops come from the left or upper 60 % of a photograph,
test crops from the rest, so no pixel is in both. Deterministic.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import skimage
from PIL import Image

# Colour photographs in the wheel (no drawings or stains), with the axis that splits them best: both parts
# still show the class.
PHOTOS = {
    "astronaut": ("astronaut.png", "down"),
    "cat": ("chelsea.png", "across"),
    "coffee": ("coffee.png", "across"),
    "motorcycle": ("motorcycle_left.png", "across"),
    "retina": ("retina.jpg", "down"),
    "rocket": ("rocket.jpg", "down"),
}
SIZE = (400, 300)  # width, height
TRAIN_SHARE = 0.6
COUNTS = {"train": 80, "test": 20}
SCALES = (0.45, 1.0)  # of the largest 4:3 crop that fits
SEED = 0


def region(photo: Image.Image, axis: str, split: str) -> Image.Image:
    """Return the part of a photograph that a split may use."""
    width, height = photo.size
    if axis == "across":
        cut = round(width * TRAIN_SHARE)
        box = (0, 0, cut, height) if split == "train" else (cut, 0, width, height)
    else:
        cut = round(height * TRAIN_SHARE)
        box = (0, 0, width, cut) if split == "train" else (0, cut, width, height)
    return photo.crop(box)


def random_crop(part: Image.Image, draws: np.random.Generator) -> Image.Image:
    """Return a random crop of SIZE's shape, resized to SIZE."""
    aspect = SIZE[0] / SIZE[1]
    largest = min(part.width, part.height * aspect)
    width = largest * draws.uniform(*SCALES)
    height = width / aspect
    left = draws.uniform(0, part.width - width)
    top = draws.uniform(0, part.height - height)
    return part.resize(SIZE, Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))


def main(out: Path) -> None:
    """Write every crop of every photograph under out."""
    folder = Path(skimage.__file__).parent / "data"
    draws = np.random.default_rng(SEED)
    for name, (file, axis) in PHOTOS.items():
        photo = Image.open(folder / file).convert("RGB")
        for split, count in COUNTS.items():
            part = region(photo, axis, split)
            target = out / split / name
            target.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                random_crop(part, draws).save(target / f"{number:03}.jpg", quality=90)
    print(
        f"{out}: {len(PHOTOS)} classes,"
        f" {' + '.join(f'{n} {split}' for split, n in COUNTS.items())} images each"
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/make_demo_images.py OUT")
    main(Path(sys.argv[1]))
