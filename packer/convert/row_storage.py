"""Storage of rows: raw, JPEG or compressed blocks, a single file or shards; estimates of their size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.arguments import as_bytes, as_whole, one_of, whole
from packer.codecs import NAMES, jpeg
from packer.codecs.block_codecs import block_codec, codec_record
from packer.convert.row_maker import RowMaker
from packer.convert.sample_order import SampleOrder
from packer.errors import UsageError
from packer.format.fields import (
    Field,
    find_field,
)
from packer.format.header import (
    BLOCK_BYTES,
    CODED_BLOCK_BYTES,
    block_rows,
)
from packer.format.npy_container import preamble
from packer.given_values import shown
from packer.packs.output_names import format_of
from packer.packs.pack import Pack
from packer.source_kinds import is_hdf5_name
from packer.writing.pack_writer import FORMATS

STORES = ("raw", "jpeg", *NAMES)
_LEAST_ROW_BYTES = 256  # fields with smaller rows, such as labels, are not compressed beside larger ones


@dataclass(frozen=True)
class RowStorage:
    """Options of storage.

    store: "raw", "jpeg", or the codec of compressed blocks; quality: of JPEG rows, 1 to 100; shard_rows: rows
    per shard; shard_bytes: bytes per shard, until the size of a row is known. Without both the pack has a
    single part.
    """

    format: str
    store: str = "raw"
    quality: int = 90
    shard_rows: int | None = None
    shard_bytes: int | None = None

    def __post_init__(self) -> None:
        """Check every value. Raises: UsageError."""
        one_of("format", self.format, FORMATS)
        one_of("store", self.store, STORES)
        if not 1 <= self.quality <= 100:
            raise UsageError(f"quality {self.quality}: is not within 1 to 100. Pass for example 90.")
        if self.compressed:
            self.versions()  # raises an error if the codec's library is missing
            if self.format == "npy":
                raise UsageError(
                    f"store={self.store!r}: .npy files are never compressed. Pass an output that ends in .h5."
                )

    @classmethod
    def parse(
        cls, out: str, format: str | None, store: str, quality: int = 90, shards: int | str | None = None
    ) -> RowStorage:
        """Return the storage for options of convert_images. Raises UsageError."""
        sharded = shards is not None
        rows, nbytes = parse_shards(shards)
        return cls(_format(format, out, sharded=sharded), store, whole("quality", quality), rows, nbytes)

    @classmethod
    def like(
        cls,
        pack: Pack | None,
        out: str,
        *,
        format: str | None = None,
        store: str | None = None,
        quality: int | None = None,
        shards: int | str | None = None,
        layout: bool = True,
    ) -> RowStorage:
        """Return the given storage, with missing options from a pack; without a pack rows are raw.

        A name that ends in .h5 asks for one HDF5 file; other outputs keep the pack's shards with `layout`,
        and its format if that has shards or no such name either. Raises UsageError.
        """
        record = {} if pack is None else pack.parts[0].header.provenance.get("options", {})
        if pack is not None and shards is None and not is_hdf5_name(out):
            shards = shard_rows_of(pack) if layout else None
            if shards is not None or not is_hdf5_name(pack.path):
                format = pack.format if format is None else format
        fields = () if pack is None else pack.fields
        image = find_field(fields, "image")
        main = image or next((f for f in fields if f.compressed), None)
        codec = dict((main and main.codec) or {})
        format = _format(format, out, sharded=shards is not None)
        if store is None:
            kept = main is not None and main.compressed and format == "h5"
            store = str(codec["name"]) if kept else "jpeg" if image and image.ragged else "raw"
        if quality is None:
            quality = int(codec.get("quality") or record.get("quality") or 90)
        elif store != "jpeg":
            raise UsageError(
                f"quality {shown(quality)}: is about JPEG rows, but rows of {out} are raw. Pass "
                "store='jpeg', or leave it out."
            )
        return cls.parse(out, format, store, quality, shards)

    @classmethod
    def kept(cls, pack: Pack) -> RowStorage:
        """Return the storage of a pack."""
        return cls.like(pack, "", format=pack.format, shards=shard_rows_of(pack))

    @classmethod
    def from_record(cls, options: Mapping[str, Any]) -> RowStorage:
        """Read options as a pack records them. Raises UsageError."""
        quality = options.get("quality")
        return cls(
            options["format"],
            options["store"],
            90 if quality is None else quality,
            options.get("shard_rows"),
            options.get("shard_bytes"),
        )

    @property
    def compressed(self) -> bool:
        """True if blocks of rows are compressed losslessly."""
        return self.store in NAMES

    @property
    def sharded(self) -> bool:
        """True if the pack has shards."""
        return self.shard_rows is not None or self.shard_bytes is not None

    def notes(self, pack: Pack) -> list[str]:
        """Return a note if rows of a pack lose their compression because .npy files have none."""
        codecs = {str(f.codec["name"]) for f in pack.fields if f.codec is not None and f.compressed}
        if self.store != "raw" or self.format != "npy" or not codecs:
            return []
        return [
            f"Rows of {pack.path} are compressed ({', '.join(sorted(codecs))}); .npy files are not, so they"
            " are"
            " stored raw. An output that ends in .h5 keeps the compression."
        ]

    @property
    def gathered(self) -> bool:
        """True if blocks are written to separate files first, so that finishing needs twice the space."""
        return self.store != "raw"

    def with_rows(self, row_bytes: float) -> RowStorage:
        """Return the storage with shard_rows computed from shard_bytes. row_bytes: bytes of a stored row."""
        if self.shard_bytes is None:
            return self
        return replace(self, shard_rows=max(1, int(self.shard_bytes / row_bytes)), shard_bytes=None)

    def versions(self) -> dict[str, str]:
        """Return the versions of the libraries that encode rows."""
        if self.store == "jpeg":
            return jpeg.versions()
        return block_codec(self.store, (), np.dtype("u1")).versions() if self.compressed else {}

    def fields(self, unstored: Sequence[Field], rows: int = 1) -> tuple[Field, ...]:
        """Return the stored form of fields. Raises UsageError for rows that the files cannot hold."""
        for f in unstored if self.format == "npy" else ():
            try:
                preamble(f.dtype, (rows, *(f.shape or ())))
            except ValueError:
                raise UsageError(
                    f"{f.name}: rows have {len(f.shape or ())} axes, too many for the header of a .npy file."
                    " Pass"
                    " an output that ends in .h5, or reshape them."
                ) from None
        largest = max((f.row_bytes for f in unstored if not f.ragged), default=0)
        return tuple(self._field(f, min(_LEAST_ROW_BYTES, largest)) for f in unstored)

    def block_rows(self, maker: RowMaker, rows: int) -> int:
        """Return the number of rows per block."""
        coded = self.compressed or maker.row_bytes < 2 * maker.ragged_bytes
        return block_rows(rows, maker.row_bytes, CODED_BLOCK_BYTES if coded else BLOCK_BYTES)

    def options(self) -> dict[str, Any]:
        """Return the options that a pack records: format, store, and others that apply."""
        options: dict[str, Any] = {"format": self.format, "store": self.store}
        if self.store == "jpeg":
            options["quality"] = self.quality
        for name in ("shard_rows", "shard_bytes"):
            if (count := getattr(self, name)) is not None:
                options[name] = count
        return options

    def _field(self, f: Field, least: int) -> Field:
        """Return the stored form of a field. least: bytes of the smallest rows that are compressed."""
        if f.ragged or "row_of" in f.about:
            return f
        if self.store == "jpeg" and f.name == "image":
            if f.shape is None or f.dtype != "|u1" or len(f.shape) != 3 or f.shape[2] not in (1, 3, 4):
                raise UsageError(
                    "store jpeg: needs images of 8 bits, [H, W, 1 or 3], and 'image' is "
                    f"{np.dtype(f.dtype).name}{list(f.shape or ())}. Pass store='raw'."
                )
            if f.shape[2] == 4:
                raise UsageError("store jpeg: JPEG has no transparency. Pass channels='rgb', or store='raw'.")
            return Field(
                f.name,
                f.dtype,
                None,
                f.about,
                {"name": "jpeg", "shape": list(f.shape), "quality": self.quality},
            )
        if self.compressed and f.row_bytes >= least:
            codec = block_codec(self.store, f.shape or (), np.dtype(f.dtype))
            return replace(f, codec=codec_record(codec))
        return f


def _format(format: str | None, out: str, *, sharded: bool) -> str:
    return format_of(out, sharded=sharded) if format is None else format


def parse_shards(shards: int | str | None) -> tuple[int | None, int | None]:
    """Return (rows, None) or (None, bytes) per shard, from 100_000 or "2GB".

    Raises UsageError for other values, including text without a unit.

    >>> parse_shards(100_000), parse_shards("2GB"), parse_shards(None)
    ((100000, None), (None, 2000000000), (None, None))
    """
    rows = as_whole(shards, least=1)
    nbytes = as_bytes(shards, unit=True) if isinstance(shards, str) else None
    if shards is not None and rows is None and nbytes is None:
        raise UsageError(
            f"shards={shards!r}: is neither a number of rows nor a size with its unit. Pass "
            "for example shards=100000 or shards='2GB'."
        )
    return rows, nbytes


def shard_rows_of(pack: Pack) -> int | None:
    """Return the rows of a pack's shards; None for a pack without shards."""
    if not pack.shards:
        return None
    recorded = pack.parts[0].header.provenance.get("options", {}).get("shard_rows")
    return int(recorded or max(shard.rows for shard in pack.shards))


_SAMPLES = 16


def estimate(maker: RowMaker, storing: RowStorage, order: SampleOrder) -> float:
    """Return the estimated bytes of a stored row.

    Exact for raw rows of one size; else measured on up to 16 samples, evenly spread, the same ones for equal
    inputs and options. Raises UsageError if the rows cannot be stored this way.
    """
    storing.fields(maker.fields)
    rows = len(order.samples)
    picked = order.samples[np.linspace(0, rows - 1, min(rows, _SAMPLES)).astype(np.int64)]
    keys = 8 + sum(len(maker.key(sample)) for sample in picked.tolist()) / len(picked)
    image = next((f for f in maker.fields if f.name == "image" and f.pixels), None)
    other = keys + sum(f.row_bytes for f in maker.fields if not f.ragged and f is not image)
    if image is None or image.shape is None:
        if any(f.own_size is not None and (f.name != "image" or "size" in f.about) for f in maker.fields):
            ragged = [f for f in maker.fields if f.ragged and f.name != "key"]
            sizes = [sum(map(len, row)) for row in _row_values(maker, picked, ragged)]
            return other + (sum(sizes) / len(sizes) if sizes else maker.ragged_bytes) + 8 * len(ragged)
        return other + maker.ragged_bytes + 8
    other += maker.ragged_bytes
    pixels = [row for (row,) in _row_values(maker, picked, [image])] if storing.gathered else []
    if not pixels:
        return image.row_bytes + other
    if storing.store == "jpeg":
        return 8 + other + sum(len(jpeg.encode(row, storing.quality)) for row in pixels) / len(pixels)
    codec = block_codec(storing.store, image.shape, np.dtype(image.dtype))
    return other + len(codec.compress(np.stack(pixels))) / len(pixels)


def _row_values(maker: RowMaker, samples: NDArray[np.int64], fields: Sequence[Field]) -> Iterator[list[Any]]:
    """Yield some fields of each row, without rows that cannot be made."""
    for at in range(len(samples)):
        (block,) = maker.read(samples[at : at + 1])
        if not block.reasons:
            yield [block.rows[f.name][0] for f in fields]
