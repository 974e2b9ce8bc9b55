"""Kinds of channels: what a user calls them, how many they are, and what Pillow and simplejpeg call them. Loads nothing else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ChannelKind:
    """The channels of 8-bit images.

    count: how many; pillow: Pillow's mode; jpeg, jpeg_bytes: simplejpeg's colour space, and its bytes a pixel: four are written 10 %
    faster than three, and the fourth is left out later.
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
"""By the name that a user and a pack give them."""

COLORS = {kind.count: name for name, kind in CHANNELS.items()}
"""Number of channels -> the name."""
