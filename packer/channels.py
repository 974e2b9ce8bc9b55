"""Kinds of channels: their names, their number, and their names in Pillow and simplejpeg.

Imports nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ChannelKind:
    """The channels of 8-bit images.

    count: number of channels; pillow: Pillow's mode; jpeg, jpeg_bytes: simplejpeg's colour space and its
    bytes per pixel. simplejpeg writes four bytes 10 % faster than three; the fourth is dropped later.
    """

    count: int
    pillow: str
    jpeg: str
    jpeg_bytes: int


CHANNELS = {
    "rgb": ChannelKind(3, "RGB", "RGBX", 4),
    "gray": ChannelKind(1, "L", "GRAY", 1),
    "rgba": ChannelKind(4, "RGBA", "RGBA", 4),
}
"""User's and pack's name of the channels -> kind."""

COLORS = {kind.count: name for name, kind in CHANNELS.items()}
"""Number of channels -> name."""
