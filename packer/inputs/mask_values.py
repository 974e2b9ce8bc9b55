"""MaskValues: the numbers of classes for the values, or the colors, of mask files (`mask_values`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import ImageError, UsageError
from packer.inputs.file_names import shorten
from packer.pixels.exact_values import MaskKind

Values = str | Sequence[int | str]
_VALUE = re.compile(r"[0-9]{1,5}|#[0-9a-f]{6}")
_MOST = 65_535
_GREY = 0x010101  # a grey value times this is its color


class MaskValues:
    """The values of masks in the order of their classes: the k-th becomes k.

    >>> MaskValues.parse("0,255").text
    '0,255'
    >>> MaskValues.parse(["#000000", "#FF0000"]).text
    '#000000,#ff0000'
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.text: str = ",".join(texts)
        """The values as the user lists them, and as packs record them."""
        self._colors = texts[0].startswith("#")
        codes = np.array([int(text.lstrip("#"), 16 if self._colors else 10) for text in texts])
        self._count, self._order = len(codes), np.argsort(codes)
        self._codes = codes[self._order]
        self._table = np.full(_MOST + 1, -1, np.int32)  # value -> class, of masks of one channel
        if not self._colors:
            self._table[codes] = np.arange(len(codes))

    @classmethod
    def parse(cls, given: Values) -> MaskValues:
        """Read values: whole numbers, or colors such as #ff0000. Raises UsageError."""
        parts: Iterable[object] = given.split(",") if isinstance(given, str) else given
        parts = parts if isinstance(parts, Iterable) else [given]
        texts = [str(part).strip().lower() for part in parts]
        colors = [text.startswith("#") for text in texts]
        numbers = [int(text, 10) for text in texts if text.isdecimal()]
        known = all(map(_VALUE.fullmatch, texts)) and max(numbers, default=0) <= _MOST
        if (
            not known
            or len(set(numbers or texts)) < len(texts)
            or any(colors) != all(colors)
            or len(texts) < 2
        ):
            raise UsageError(
                f"mask_values {shorten(','.join(texts))}: is not a list of two or more different values of "
                f"masks, in the order of their classes; whole numbers up to {_MOST:,}, or colors such as "
                "#ff0000, are allowed. Pass for example mask_values='0,255'."
            )
        return cls([str(int(text, 10)) if text.isdecimal() else text for text in texts])

    @classmethod
    def for_fields(
        cls, given: Values | Mapping[str, Values] | None, masks: Sequence[str]
    ) -> dict[str, MaskValues]:
        """Return the values of each field. given: for all masks, or by field. masks: fields but soft ones."""
        if given is None:
            return {}
        named = given if isinstance(given, Mapping) else dict.fromkeys(masks, given)
        strange = [str(name) for name in named if name not in masks]
        if strange or not (named or isinstance(given, Mapping)):
            subject = f"mask_values {shorten(strange[0])}" if strange else "mask_values"
            raise UsageError(
                f"{subject}: is about masks of classes, pairs that are not soft; "
                f"{', '.join(masks) or 'none'} is given. Pass for example pairs={{'mask': 'DIR'}} "
                "too."
            )
        return {name: cls.parse(values) for name, values in named.items()}

    def stored(self, kind: MaskKind) -> MaskKind:
        """Return the kind of stored masks. kind: of the files. Raises ImageError if it has no such values."""
        if kind not in (("|u1", 1), ("<u2", 1), ("|u1", 3)) or (self._colors and kind.channels == 1):
            more = ", which are 0 and 1 already" if kind.dtype == "|b1" else ""
            raise ImageError(
                f"holds {kind}{more}; mask_values={self.text!r} numbers"
                f" {'colors' if self._colors else 'whole numbers'}. Leave it out."
            )
        return MaskKind("|u1" if self._count <= 256 else "<u2", 1)

    def classes(self, values: NDArray[Any]) -> NDArray[np.integer[Any]]:
        """Return the class of each value: [h, w] or [h, w, 3] -> [h, w]. Raises ImageError for others."""
        if values.ndim == 2:
            classes: NDArray[np.integer[Any]] = self._table.take(values)
        else:
            sought, found = self._codes if self._colors else self._codes * _GREY, codes_of(values)
            at = np.minimum(np.searchsorted(sought, found), self._count - 1)
            classes = np.where(sought[at] == found, self._order[at], -1)
        if classes.min() < 0:
            other = int(codes_of(values)[classes < 0][0])
            text = f"#{other:06x}" if values.ndim == 3 else str(other)
            raise ImageError(f"holds {text}, which is none of mask_values={shorten(self.text)!r}.")
        return classes


def codes_of(values: NDArray[Any]) -> NDArray[np.int32]:
    """Return one number a pixel: the value of [h, w], or the color of [h, w, 3], 0xRRGGBB."""
    numbers = values.astype(np.int32)
    return numbers if values.ndim == 2 else (numbers[..., 0] << 16) | (numbers[..., 1] << 8) | numbers[..., 2]
