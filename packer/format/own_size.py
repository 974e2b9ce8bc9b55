"""Pixel format of ragged fields whose rows are pictures that keep their size (see header.py)."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from packer.channels import CHANNELS

DTYPES = ("|u1", "<u2", "<f4")
_PNG_DTYPES = ("|u1", "<u2")
_PNG_CHANNELS = (1, 3, 4)
_LAYOUTS = ("HW", "HWC")


class OwnSize(NamedTuple):
    """Pixel format of such rows.

    codec: "jpeg", "png", None for raw bytes; dtype: NumPy type string; channels: None for pixels [h, w].
    """

    codec: str | None
    dtype: str
    channels: int | None

    @classmethod
    def parse(cls, about: Mapping[str, Any], codec: Mapping[str, Any] | None) -> OwnSize | None:
        """Parse a ragged field's members; None if its rows are not such pictures.

        Raises ValueError, KeyError, TypeError.
        """
        name = None if codec is None else str(codec["name"])
        layout = about.get("layout", "HWC" if name == "jpeg" else None)
        if layout not in _LAYOUTS:
            return None
        channels = None
        if layout == "HWC":
            counted = "sampling" in about or "channels" in about
            channels = about["channels"] if counted else CHANNELS[about.get("color", "gray")].count
        found = cls(name, str(about.get("dtype", "|u1")), channels)
        found._check()
        return found

    def _check(self) -> None:
        allowed = {None: DTYPES, "png": _PNG_DTYPES, "jpeg": DTYPES[:1]}.get(self.codec, (self.dtype,))
        channels = 1 if self.channels is None else self.channels
        numbers = (
            type(channels) is int and channels > 0 and (self.codec != "png" or channels in _PNG_CHANNELS)
        )
        if self.dtype not in allowed or not numbers:
            raise ValueError(
                f"pictures of {self.dtype}, {self.channels} channels, are stored as {self.codec}"
            )

    def shape(self, height: int, width: int) -> tuple[int, ...]:
        """Return the shape of a row's pixels."""
        return (height, width) if self.channels is None else (height, width, self.channels)

    def nbytes(self, height: int, width: int) -> int:
        """Return the size of a raw row in bytes."""
        return prod(self.shape(height, width)) * int(self.dtype[2])


def partner_storage(dtype: str, channels: int, *, soft: bool) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the Field members `about` and `codec` of a field that accompanies the images, such as masks.

    Values that PNG cannot hold have no codec.
    """
    about: dict[str, Any] = {"layout": "HW" if channels == 1 else "HWC", "of": "image"}
    about["sampling"] = "linear" if soft else "nearest"
    about |= {"channels": channels} if channels > 1 else {}
    about |= {"dtype": dtype} if dtype != "|u1" else {}
    packed = dtype in _PNG_DTYPES and channels in _PNG_CHANNELS
    return about, {"name": "png", "shape": None} if packed else None
