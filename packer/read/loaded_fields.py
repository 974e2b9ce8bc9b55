"""Which fields are loaded, which of them are masks, and what the rows of ragged ones are to a user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from packer.codecs import jpeg
from packer.errors import FormatError, UsageError
from packer.format.header import Field
from packer.format.pack import Pack

MAX_PIXELS = 1 << 30
"""Of a JPEG row that kept its own size: more is damage, not a picture."""

ROW = Field("row", "<i8", (), {"is": "the row's number in the pack"})
"""Each row's number in the pack: handed out where it is asked for, stored nowhere."""


def select_fields(pack: Pack, names: Sequence[str] | None) -> tuple[Field, ...]:
    """Return the named fields of a pack as they are loaded, in that order; None: all but texts.

    "row" means ROW, unless the pack has a field of that name.
    Raises UsageError for an unknown or repeated name, and for ROW alone.
    """
    known = {f.name: f.loaded for f in pack.fields}
    if names is None:
        return tuple(f for f in known.values() if "encoding" not in f.about)
    if isinstance(names, str):
        raise UsageError(f"fields={names!r}: is one text. Pass a list of names, such as [{names!r}].")
    has = ", ".join(known)
    known.setdefault(ROW.name, ROW)
    for name in names:
        if name not in known:
            raise UsageError(f"{pack.path}: has no field {name!r}; it has {has}. Pass some of these.")
    if not names or len(set(names)) != len(names):
        raise UsageError(f"fields={list(names)!r}: is empty or names one twice. Name each field once.")
    chosen = tuple(known[name] for name in names)
    if not stored(chosen):
        raise UsageError(
            f"fields={list(names)!r}: names no field of the pack, which has {has}. Add one of these."
        )
    return chosen


def stored(fields: Sequence[Field]) -> tuple[Field, ...]:
    """Return those that a pack holds: all but ROW."""
    return tuple(f for f in fields if f != ROW)


def is_mask(field: Field, size: Sequence[int]) -> bool:
    """Return True if a field holds a value, or several, for each pixel of images of this size (h, w)."""
    shape = field.shape or ()
    layered = len(shape) == 3 and field.about.get("layout") == "HWC"
    nearest = field.about.get("sampling") == "nearest"
    return nearest and (len(shape) == 2 or layered) and tuple(shape[:2]) == tuple(size)


def select_rows(pack: Pack, split: str | None) -> tuple[tuple[int, int], ...]:
    """Return the spans [first, last + 1) of rows of a split, of all rows for None. Raises UsageError for an unknown split."""
    if split is None:
        return ((0, pack.rows),)
    if split not in pack.header.splits:
        has = ", ".join(pack.header.splits) or "none"
        raise UsageError(f"{pack.path}: has no split {split!r}; its splits: {has}. Pass one of these.")
    return tuple((a, b) for a, b in pack.header.splits[split] if a < b)


def decode_ragged(pack: Pack, field: Field, rows: list[bytes], numbers: Sequence[int]) -> list[Any]:
    """Decode rows of a ragged field as a user gets them, by what the field says of itself.

    Text: str, undecodable bytes as surrogate escapes. ``dtype`` and ``row_shape``: arrays [n, *row_shape]. JPEG files of any
    size: uint8 [h, w, C]. Else the bytes. numbers: of the rows, for messages. Raises FormatError for damaged rows.
    """
    decoded: list[Any] = []
    for row, number in zip(rows, numbers, strict=True):
        try:
            decoded.append(_decoded(field, row))
        except (ValueError, TypeError, LookupError) as error:
            raise FormatError(
                f"{pack.path}: row {number} of {field.name!r} is damaged ({error})."
                " Run packer verify, or convert the images again."
            ) from None
    return decoded


def _decoded(field: Field, row: bytes) -> Any:
    about = field.about
    if "encoding" in about:
        return row.decode(about["encoding"], "surrogateescape")
    if "row_shape" in about:
        return np.frombuffer(row, about["dtype"]).reshape(-1, *about["row_shape"]).copy()
    if field.codec is not None and field.codec["name"] == "jpeg":
        return jpeg.decode(row, MAX_PIXELS, 3 if about.get("color") == "rgb" else 1)
    return row
