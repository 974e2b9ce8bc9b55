"""What arrays look like, and errors for arrays that hold no samples as numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from packer.channels import COLORS
from packer.errors import SourceError, UsageError
from packer.samples.columns import Column, ListColumn
from packer.samples.field_plan import looks_like_image

_LISTED, _LETTERS = 8, 200
_READABLE = "biufOUST"  # kinds of dtypes
_LEAST_SIDE = 5  # pixels of a picture
_DECODED = "((PIL.Image.open(io.BytesIO(bytes(data))), label) for data, label in zip(images, labels))"


def some(texts: Sequence[str]) -> str:
    """Return the first few texts, up to some 200 characters, and how many more there are."""
    lengths = np.cumsum([len(text) for text in texts[:_LISTED]])
    listed = max(1, int(np.searchsorted(lengths, _LETTERS))) if texts else 0
    more = f" and {len(texts) - listed:,} more" if len(texts) > listed else ""
    return ", ".join(text[:_LETTERS] for text in texts[:listed]) + more


def listing(found: Sequence[Column]) -> str:
    """Return names, dtypes and shapes of the first few arrays, or "none"."""
    return some([one.described for one in found]) or "none"


def field_name(name: str) -> str:
    """Return a valid field name for an array's name."""
    text = re.sub(r"[^A-Za-z0-9_]+", "_", name.rpartition("/")[2]).strip("_")
    return text if text[:1].isalpha() else f"field_{text}"


def is_readable(one: Column) -> bool:
    """Return True for an array of numbers, text or lists of numbers."""
    return isinstance(one, ListColumn) or (type(one) is not Column and one.dtype.kind in _READABLE)


def check_readable(one: Column) -> None:
    """Raise SourceError for an array that is needed for a field but is not `is_readable`."""
    if is_readable(one):
        return
    found = f"{one.where}: {one.dtype.name}{list(one.shape)}"
    if one.dtype.hasobject and one.path.lower().endswith((".npy", ".npz")):
        raise SourceError(
            f"{found} holds Python objects, which are not unpickled. If you trust the file, load it with "
            "allow_pickle=True and pass the values as lists: array.tolist()."
        )
    raise SourceError(f"{found} holds no numbers or text. Store it as an array of numbers.")


def check_encoded(subject: str, found: Sequence[Column]) -> None:
    """Raise UsageError for arrays whose values are encoded images, as JPEG files are."""
    for one in found:
        if one.encoded:
            raise UsageError(
                f"{subject}: {one.described} holds encoded images, such as JPEG files; arrays hold pixels."
                f' Decode them: pack_dataset({_DECODED}, "out.h5", size=256).'
            )


def is_turned(one: Column) -> bool:
    """Return True for the shape [H, W, C, N] of images."""
    *rows, last = one.shape
    return len(rows) == 3 and rows[2] in COLORS and last not in COLORS and not _images(one)


def holds_images(one: Column) -> bool:
    """Return True for the shape of images: [N, H, W], [N, H, W, C], [N, C, H, W] or [H, W, C, N]."""
    return _images(one) or (is_turned(one) and one.dtype == np.uint8)


def _images(one: Column) -> bool:
    return not isinstance(one, ListColumn) and looks_like_image(one.dtype, one.shape[1:])


def is_picture(one: Column) -> bool:
    """Return True for an array that looks like a single picture in colour, [H, W, 3 or 4]."""
    *sides, last = one.shape
    return (
        len(sides) == 2
        and last in COLORS
        and last > 1
        and min(sides) >= _LEAST_SIDE
        and one.dtype.str in ("|u1", "<u2")
    )


def are_pictures(found: Sequence[Column]) -> bool:
    """Return True for several arrays of a picture each: in colour, or grey with the same name but digits."""
    gray = [one for one in found if one.dtype == np.uint8 and len(one.shape) == 2]
    numbered = len({re.sub(r"\d+", "", one.name) for one in gray}) < len(gray)
    return sum(map(is_picture, found)) > 1 or numbered


def flat_sides(one: Column) -> int:
    """Return the side of flattened square images of 8 bits, grey or colour; 0 for other arrays."""
    if one.dtype != np.uint8 or len(one.shape) != 2:
        return 0
    for channels in COLORS:
        side = math.isqrt(one.shape[1] // channels)
        if side * side * channels == one.shape[1] and side >= _LEAST_SIDE:
            return side
    return 0
