"""Compressed blocks of rows: the codec protocol, and the available codecs.

Each codec's blocks are chunks of a registered HDF5 filter, so that other programs read them; packer
decompresses them itself, outside HDF5's lock. Every block is a full chunk: the last block's missing rows are
zeros.

                                       256 px photos on one core            masks
    name      readable by              ratio   packed/s   unpacked/s        ratio
    gzip      any HDF5                  1.50        250          800           40
    zstd      h5py with hdf5plugin      1.31      1,680        4,400           89
    blosc2    h5py with hdf5plugin      1.94      1,230        2,740           86

(Blocks of 1 MiB, a Xeon; blocks of 0.5 to 8 MiB differ by 1 % in size.) gzip is offered because every program
reads it, zstd for masks and speed, blosc2 for photographs. Not offered: bitshuffle with Zstandard (1.27; only
HDF5 decodes it), lz4 (1.0 to 1.2), Zstandard 3 and 9 (1.42, at half and a sixth of the packing speed),
Blosc2's default for images (shuffle, 1.24 to 1.33).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from packer.codecs import NAMES
from packer.codecs.blosc2 import Blosc2
from packer.codecs.zstd import Zstd
from packer.errors import UsageError


class BlockCodec(Protocol):
    """A codec between blocks of rows and bytes. A value: frozen, picklable, safe to share between threads."""

    name: ClassVar[str]  # known to users and HDF5 tools
    setting: ClassVar[tuple[str, int]]  # the only attribute: its name and its maximum; the minimum is 1

    @classmethod
    def for_rows(cls, row: Sequence[int], dtype: np.dtype[Any]) -> BlockCodec:
        """Return the codec for such rows.

        row: () for scalars, [H, W, C] for images, whose pixels blosc2 compares with their neighbours.
        """

    def hdf5_filter(self, chunk: Sequence[int], dtype: np.dtype[Any]) -> tuple[int, tuple[int, ...]]:
        """Return the number of the HDF5 filter, and the filter's values for a dataset with such chunks.

        They are meant for an optional filter. An installed filter would fill in the same values, so files
        are equal with and without it.
        """

    def compress(self, array: NDArray[Any]) -> bytes:
        """Compress a C-contiguous block; equal blocks give equal bytes under equal versions().

        Raises: MissingDependencyError; ValueError if the block has incomplete items or is over 2 GiB
        (blosc2).
        """

    def decompress_into(self, data: bytes | memoryview, out: NDArray[np.uint8]) -> None:
        """Decompress a block into out, uint8 [n], C-contiguous, writable.

        Raises: ValueError, with a short reason, if data is damaged or does not have exactly n bytes;
        MissingDependencyError. Additional memory is at most 16 MiB, for zstd at most the window that the
        frame announces, which is no larger than out.
        """

    def versions(self) -> dict[str, str]:
        """Return names and versions of the libraries that produce the bytes."""


@dataclass(frozen=True)
class Gzip:
    """Blocks as zlib streams, HDF5's built-in filter 1.

    level: 1 to 9; 4 takes a third longer than 1 and saves 1 %.
    """

    level: int = 1
    name: ClassVar[str] = "gzip"
    setting: ClassVar[tuple[str, int]] = "level", 9

    @classmethod
    def for_rows(cls, row: Sequence[int], dtype: np.dtype[Any]) -> Gzip:
        """See BlockCodec."""
        return cls()

    def hdf5_filter(self, chunk: Sequence[int], dtype: np.dtype[Any]) -> tuple[int, tuple[int, ...]]:
        """See BlockCodec."""
        return 1, (self.level,)

    def compress(self, array: NDArray[Any]) -> bytes:
        """See BlockCodec."""
        return zlib.compress(array.data, self.level)

    def decompress_into(self, data: bytes | memoryview, out: NDArray[np.uint8]) -> None:
        """Fill out, uint8 [n], C-contiguous.

        Raises: ValueError if data is not a complete stream of exactly n bytes.
        """
        stream, done, more = zlib.decompressobj(), 0, b""
        try:
            for start in range(0, max(len(data), 1), _PIECE_BYTES):
                rest: bytes | memoryview = data[start : start + _PIECE_BYTES]
                most = found = min(len(out) - done, _PIECE_BYTES)
                while done < len(out) and (rest or found == most):  # the stream may hold more without input
                    most = min(len(out) - done, _PIECE_BYTES)
                    unpacked = stream.decompress(rest, most)
                    found, rest = len(unpacked), stream.unconsumed_tail
                    out[done : done + found] = np.frombuffer(unpacked, np.uint8)
                    done += found
                more = more or stream.decompress(rest, 1)
        except zlib.error as error:
            raise ValueError(f"a damaged zlib stream ({error})") from None
        if done < len(out):
            raise ValueError(f"a zlib stream of {done:,} bytes; {len(out):,} are expected")
        if more or not stream.eof or stream.unused_data:
            raise ValueError(f"a zlib stream of more than {len(out):,} bytes, or one without its end")

    def versions(self) -> dict[str, str]:
        """See BlockCodec."""
        return {"zlib": zlib.ZLIB_RUNTIME_VERSION}


_PIECE_BYTES = 8 << 20  # at once, packed and unpacked; most blocks are one piece


_CODECS: dict[str, type[BlockCodec]] = {codec.name: codec for codec in (Gzip, Zstd, Blosc2)}


def block_codec(name: str, row: Sequence[int], dtype: np.dtype[Any]) -> BlockCodec:
    """Return the codec of that name for rows of this shape and dtype.

    Raises: UsageError for a name that is not in NAMES.
    """
    if name not in _CODECS:
        raise UsageError(f"store={name!r}: unknown; {', '.join(NAMES)} are known. Pass one of them.")
    return _CODECS[name].for_rows(row, dtype)


def codec_record(codec: BlockCodec) -> dict[str, Any]:
    """Return plain JSON, name and setting, from which codec_from_record creates an equal codec."""
    return {"name": codec.name, **vars(codec)}


def codec_from_record(record: Mapping[str, Any]) -> BlockCodec:
    """Return the codec of a record. Raises: ValueError for any other mapping."""
    settings = dict(record)
    name = settings.pop("name", None)
    codec = _CODECS.get(name) if isinstance(name, str) else None
    if codec is not None:
        key, most = codec.setting
        if set(settings) == {key} and type(settings[key]) is int and 1 <= settings[key] <= most:
            return codec(**settings)
    raise ValueError(f"compression {dict(record)!r} is unknown; {', '.join(NAMES)} are known")
