"""Values of samples as NumPy arrays, text or bytes; tensors and Pillow images need no imports here."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.channels import CHANNELS
from packer.errors import UsageError
from packer.format.header_forms import DTYPES

Value = NDArray[Any] | str | bytes
"""A value that fields can hold."""
# Pillow modes whose values are stored unchanged: bilevel, 16 and 32 bits, floats.
_PLAIN_MODES = frozenset(("1", "I", "F", "I;16", "I;16L", "I;16B", "I;16N"))
_GRAY_MODES = frozenset(("L", "LA", "La"))
_ALPHA_MODES = frozenset(("RGBA", "LA", "PA", "La", "RGBa"))
DAMAGE = (OSError, SyntaxError, ValueError)
"""Exceptions of Pillow for a damaged file, and for a mode that it cannot convert."""
_SHOWN = 60  # longest value in a message, in characters


class ValueRefusedError(ValueError):
    """A value that does not fit a field; the text continues a sentence that names sample and field."""


def is_pillow(value: object) -> bool:
    """Return True for a Pillow image, recognised by its attributes."""
    return hasattr(value, "getbands") and hasattr(value, "convert") and hasattr(value, "mode")


def color_of(image: Any) -> str:
    """Return the color of a Pillow image: "gray", "rgb" or "rgba"; "" if its values are stored unchanged."""
    if image.mode in _PLAIN_MODES:
        return ""
    if image.mode in _GRAY_MODES:
        return "gray"
    return "rgba" if image.mode == "RGBA" else "rgb"


def pillow_pixels(image: Any, color: str, *, asked: bool = False) -> NDArray[Any]:
    """Return a Pillow image as an array [H, W, C], or [H, W] if its values are stored unchanged (color "").

    Alpha is composited on white unless `color` has alpha. asked: the user chose the color. Raises
    ValueRefusedError for a colored image among gray images unless the user chose gray, and for a mode that
    Pillow cannot convert.
    """
    found = color_of(image)
    if bool(found) != bool(color) and (color or image.mode != "P"):
        raise ValueRefusedError(
            f"is an image of mode {image.mode}, but others are {color or 'of one plain channel'}; a field "
            "holds one kind of image. Convert the images in the dataset"
        )
    if color == "gray" and found != "gray" and not asked:
        raise ValueRefusedError(
            f"is an image of mode {image.mode}, but others are gray; colors are dropped only on request. "
            "Pass channels='rgb'"
        )
    try:
        if not color:
            return np.asarray(image)
        if image.mode == "La":
            image = image.convert("LA")  # Pillow's only conversion of this mode
        if color != "rgba" and (image.mode in _ALPHA_MODES or "transparency" in image.info):
            layered = image.convert("RGBA")
            image = layered.convert("RGB")
            image.paste((255, 255, 255), (0, 0, *layered.size))
            image.paste(layered, mask=layered.getchannel("A"))  # as image_decoder.py does
        pixels = np.asarray(image.convert(CHANNELS[color].pillow))
    except DAMAGE as error:
        raise ValueRefusedError(
            f"is an image of mode {image.mode} that Pillow cannot read or convert ({error}). Correct it"
        ) from None
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def copy_sample(value: Any) -> Any:
    """Return a copy of a sample for later use: a dataset may reuse its buffer, list or dict."""
    if isinstance(value, Mapping):
        return {key: copy_sample(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        members = [copy_sample(member) for member in value]
        if hasattr(value, "_fields"):
            return type(value)(*members)
        return members if isinstance(value, list) else tuple(members)
    if isinstance(value, memoryview):
        return bytes(value)
    if hasattr(value, "detach") and hasattr(value, "clone"):  # a tensor of torch
        return value.detach().clone()
    if isinstance(value, (np.ndarray, bytearray)) or is_pillow(value) or hasattr(value, "iloc"):  # a frame
        # Pillow reads the file now and may find damage, which is reported when the sample becomes a row.
        with suppress(*DAMAGE):
            return value.copy()
    return value


def as_value(value: Any) -> Value:
    """Return a value as an array, str or bytes; a Pillow image as its pixels. Raises ValueRefusedError."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if value is None:
        raise ValueRefusedError(
            "is None; every sample needs a value in every field. Fill it, or leave the field out"
        )
    if isinstance(value, Mapping):
        raise ValueRefusedError(
            "is a mapping; a field holds one value. Return its members as separate fields"
        )
    if is_pillow(value):
        return pillow_pixels(value, color_of(value))
    array = as_array(value)
    if array.dtype.kind == "U" and array.ndim == 0:
        return str(array)
    if array.dtype.kind == "S" and array.ndim == 0:
        return bytes(array[()])
    return plain(array)


def as_array(value: Any) -> NDArray[Any]:
    """Convert a value, such as a torch tensor, to a NumPy array. Raises ValueRefusedError."""
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # a tensor of torch
        try:
            value = value.detach().cpu().numpy()
        except (TypeError, RuntimeError) as error:  # bfloat16, sparse, meta
            raise ValueRefusedError(
                f"is a tensor that NumPy cannot represent ({error}). Convert it, for example with .float()"
            ) from None
    if hasattr(value, "iloc") and hasattr(value, "columns"):  # a data frame; `fit` refuses to round integers
        rows = np.asarray(value)
        if rows.dtype.kind == "f":
            columns = [value.iloc[:, at].to_numpy() for at in range(rows.shape[1])]
            rows = np.stack([fit(plain(column), rows.dtype) for column in columns], axis=1)
        return rows
    if isinstance(value, np.ma.MaskedArray):
        raise ValueRefusedError(
            "is a masked array, whose mask cannot be stored. Fill it, or store the mask as a separate field"
        )
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        raise ValueRefusedError(
            f"is not an array ({error}); numbers, arrays, tensors, images, text and bytes are stored. "
            "Convert it in the dataset"
        ) from None


def plain(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in little-endian order. Raises ValueRefusedError for a dtype that packs cannot hold."""
    dtype = array.dtype.newbyteorder("<")
    if dtype.str not in DTYPES:
        kind = type(array[()]).__name__ if array.ndim == 0 and array.dtype == object else array.dtype
        raise ValueRefusedError(
            f"is of type {kind}; integers, floats up to 64 bits, booleans, text and bytes are stored. "
            "Convert it"
        )
    return array.astype(dtype, copy=False)


def fit(array: NDArray[Any], dtype: np.dtype[Any], *, rounds: bool = False) -> NDArray[Any]:
    """Convert an array to the dtype of its field without changing any value.

    rounds: floats may be rounded to a smaller float. Raises ValueRefusedError for values that the dtype
    cannot hold.

    >>> fit(np.array([1, 2]), np.dtype("u1"))
    array([1, 2], dtype=uint8)
    """
    # NumPy also calls int64 to float64 safe, although it rounds above 2**53.
    wide = array.dtype.kind in "iu" and dtype.kind == "f" and array.dtype.itemsize >= dtype.itemsize
    if array.dtype == dtype or (np.can_cast(array.dtype, dtype, "safe") and not wide):
        return array.astype(dtype, copy=False)
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        if array.dtype.kind == dtype.kind == "f":
            same = (np.isfinite(cast) if rounds else cast == array) | ~np.isfinite(array)
        else:
            same = (cast == array) & ((cast < 0) == (array < 0)) & (cast.astype(array.dtype) == array)
    if same.all():
        return cast
    wrong = array[np.unravel_index(int(np.argmin(same)), array.shape)] if array.ndim else array[()]
    raise ValueRefusedError(
        f"has the value {shown(wrong)}, but the field is {dtype.name}. Declare a dtype that holds it"
    )


def shown(value: Any) -> str:
    """Return a value as text for a message, truncated."""
    text = str(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def check_color(channels: str | None) -> str | None:
    """Return `channels` if it is None or a key of CHANNELS. Raises UsageError."""
    if channels is not None and channels not in CHANNELS:
        raise UsageError(f"channels {channels!r}: is not one of {', '.join(CHANNELS)}. Pass one of them.")
    return channels
