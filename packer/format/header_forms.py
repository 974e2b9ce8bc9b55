"""Forms of the JSON values of a header: types and ranges, checked once, when the header is read.

Code that uses a member later relies on its form here. Members that have no form may be anything.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from packer.channels import CHANNELS
from packer.format.table_record import READING, fits, numbers, texts

# NumPy's array-protocol type strings.
DTYPES = frozenset(("|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8", "|b1"))
MAX_RANK = 31  # axes of a row; HDF5 allows 32 in total
NORMALIZE = "normalize"  # provenance option: mean and std of the pack given as `like`
_MAX_SIDE, _MAX_JPEG_SIDE = 1 << 24, (1 << 16) - 1
_MOST = 1e100  # squares of means, times rows, are numbers
_RULE = re.compile(r"keep|(max|min)=[1-9]\d{0,7}")


def whole(least: int, most: int = (1 << 62) - 1) -> Callable[[Any], bool]:
    """Return the form of a whole number, least to most."""
    return lambda value: type(value) is int and least <= value <= most


count = whole(0)
"""Form of a size or a position."""


def shape(value: Any) -> bool:
    """Form of a row's shape."""
    return isinstance(value, list) and len(value) <= MAX_RANK and all(map(whole(1), value))


def rule(value: Any) -> bool:
    """Form of a rule for the size of pictures."""
    return isinstance(value, str) and _RULE.fullmatch(value) is not None


def statistics(value: Any) -> bool:
    """Form of mean and std."""
    return (
        fits(value, {"mean": numbers, "std": numbers})
        and len(value) == 2
        and len(value["mean"]) == len(value["std"])
        and all(abs(x) < _MOST for x in (*value["mean"], *value["std"]))
    )


def _sides(value: Any) -> bool:
    return shape(value) and len(value) == 2 and max(value) <= _MAX_SIDE


def _image(value: Any) -> bool:
    return shape(value) and len(value) == 3 and max(value) <= _MAX_JPEG_SIDE


def are_texts(value: Any) -> bool:
    """Form of an object whose values are texts."""
    return isinstance(value, Mapping) and all(isinstance(text, str) for text in value.values())


_FITS = ("crop", "pad", "stretch")
_NAMES = (str, texts)

SKIPPED = [{"key": str, "reason": str}]
ABOUT: Mapping[str, Any] = {
    "layout?": ("HW", "HWC"),
    "color?": (*CHANNELS, "bands"),
    "channels?": whole(1, 1 << 16),
    "sampling?": ("nearest", "linear"),
    "bits?": whole(1, 64),
    "of?": str,
    "size?": rule,
    "fit?": _FITS,
    "encoding?": "utf-8",
    "dtype?": tuple(DTYPES),
    "row_shape?": shape,
    "columns?": texts,
    "row_of?": ("files", "sequences"),
    "points?": texts,
    "flip_pairs?": [lambda value: texts(value) and len(value) == 2],
}
CODEC: Mapping[str, Any] = {"name": str, "shape?": (None, _image), "quality?": whole(1, 100)}
OPTIONS: Mapping[str, Any] = {  # those that packer reads again
    "size?": (rule, _sides),
    "fit?": _FITS,
    "channels?": (*CHANNELS, whole(1, 1 << 16)),
    "dtype?": str,
    "icc?": str,
    "max_pixels?": whole(1),
    "quality?": whole(1, 100),
    "format?": ("h5", "npy"),
    "store?": str,
    "shard_rows?": whole(1),
    "shard_bytes?": whole(1),
    "seed?": int,
    "split_seed?": int,
    "split?": (str, Mapping),
    **dict.fromkeys(("split_column?", "split_group?", "label_separator?", "label_file_column?"), str),
    **dict.fromkeys(("label_as?", "boxes_unit?"), str),
    **dict.fromkeys(("pairs?", "soft?"), texts),
    "mask_values?": are_texts,
    **dict.fromkeys(("label?", "boxes?", "keypoints?", "flip_pairs?", "unlabeled?"), _NAMES),
    **dict.fromkeys(("repack?", "fields?", "choices?"), Mapping),
    "sequence?": are_texts,
    f"{NORMALIZE}?": statistics,
}
_SOURCE: Mapping[str, Any] = {
    "names?": texts,
    "digests?": texts,
    "files?": [lambda value: texts(value) and len(value) == 2],
    "rows_of_files?": [lambda value: fits(value, [(str, count)]) and [*map(type, value)] == [str, int]],
    "images?": whole(0),
    "reading?": lambda value: isinstance(value, Mapping) and fits(value, READING),
}


def check_members(value: Any, forms: Mapping[str, Any], subject: str) -> None:
    """Raise ValueError, naming the member, unless an object's members have their forms."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{subject} is {reprlib.repr(value)}")
    for member, form in forms.items():
        if not fits(value, {member: form}):
            name = member.removesuffix("?")
            found = reprlib.repr(value[name]) if name in value else "missing"
            raise ValueError(f"{name} is {found} in {subject}")


def check_points(name: str, row: Sequence[int] | None, about: Mapping[str, Any]) -> None:
    """Raise ValueError unless a field's names and sides of points fit its rows. row: the shape of a row."""
    names = about.get("points", [])
    twice = len(set(names)) < len(names)
    if "points" in about and (twice or row is None or tuple(row) != (len(names), 2)):
        raise ValueError(f"field {name!r} of shape {row} has the points {reprlib.repr(names)}")
    sides = [name for pair in about.get("flip_pairs", ()) for name in pair]
    if len(set(sides)) < len(sides) or not set(sides) <= set(names):
        raise ValueError(f"field {name!r} has the sides {reprlib.repr(sides)}, and {reprlib.repr(names)}")


def check_provenance(value: Any) -> dict[str, Any]:
    """Return the header's member `provenance` once it is checked. Raises ValueError."""
    check_members(value, {"options?": Mapping, "source?": Mapping, "versions?": are_texts}, "provenance")
    check_members(value.get("options", {}), OPTIONS, "the options")
    check_members(value.get("source", {}), _SOURCE, "the source")
    return dict(value)
