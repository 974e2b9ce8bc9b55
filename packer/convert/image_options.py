"""Options of convert_images that decide the content of a pack: checked, and recorded in the pack."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from packer.arguments import as_whole, whole
from packer.channels import CHANNELS
from packer.convert.reference_pack import ReferencePack
from packer.convert.row_sequence import Sequences
from packer.convert.row_storage import RowStorage
from packer.convert.splits import Part, Split
from packer.convert.whole_pictures import check_stored
from packer.errors import UsageError
from packer.format.header_forms import NORMALIZE
from packer.given_values import option_text, shown
from packer.inputs.image_pairs import Soft, folder_of
from packer.inputs.label_options import Labels
from packer.inputs.mask_values import MaskValues, Values
from packer.pixels.decode_resize import PixelSpec
from packer.pixels.row_size import RowSize

PathLike = str | os.PathLike[str]
Pairs = Mapping[str, PathLike | Soft]


@dataclass(frozen=True)
class ImageOptions:
    """Options for making rows from images; equal options and inputs give equal packs.

    channels: a name, a number of bands, or "auto"; normalize: mean and std of a reference pack, which
    ``Normalize()`` uses for this pack.
    """

    size: RowSize
    fit: str
    channels: str | int
    dtype: str
    max_pixels: int
    storing: RowStorage
    labels: Labels = field(default_factory=Labels)
    pairs: Pairs = field(default_factory=dict)
    split: Split | None = None
    shuffle: bool = True
    seed: int = 0
    normalize: Mapping[str, Any] | None = None
    icc: str = "ignore"
    mask_values: Mapping[str, MaskValues] = field(default_factory=dict)
    sequence: Sequences | None = None

    def __post_init__(self) -> None:
        """Check that the options can be combined. Raises UsageError."""
        if self.channels != "auto":
            _ = self.spec  # checks its values
        store = self.storing.store
        if self.size.ragged:
            check_stored(self.size, store, self.channels, self.dtype)
        if store == "jpeg" and (self.dtype != "uint8" or self.channels not in CHANNELS):
            deep = self.dtype != "uint8"
            raise UsageError(
                "store jpeg: JPEG files hold 8 bits and no bands. Pass store='raw', or "
                f"no {option_text('dtype', self.dtype) if deep else option_text('channels', self.channels)}."
            )

    @classmethod
    def from_arguments(
        cls,
        like: ReferencePack | None,
        *,
        size: int | str | tuple[int, int] | None,
        fit: str | None,
        channels: str | int | None,
        dtype: str | None,
        max_pixels: int,
        labels: PathLike | Labels | None,
        split: str | Mapping[str, Part] | Split | None,
        seed: int,
        shuffle: bool | None = None,
        sequence: bool | Sequences = False,
        pairs: Pairs | None = None,
        icc: str | None = None,
        mask_values: Values | Mapping[str, Values] | None = None,
        **others: Any,
    ) -> ImageOptions:
        """Return options from the arguments of convert_images. Raises UsageError.

        like: reference pack, for arguments that are None.
        """
        pairs, sequences = _checked_pairs(pairs), Sequences.parse(sequence, shuffle)
        if size is None:
            rows = RowSize("one", 256, 256) if like is None else RowSize.from_record(like.size)
        else:
            rows = RowSize.parse(size)
            if rows.ragged and fit is not None:
                raise UsageError(
                    f"fit {fit}: is for rows of one size; with size {rows.option} images keep different"
                    " sizes. Leave it out."
                )
        masks = [name for name, given in pairs.items() if not isinstance(given, Soft)]
        if mask_values is None and like is not None:
            mask_values = {name: text for name, text in like.mask_values.items() if name in masks}
        if isinstance(channels, str) and channels.isascii() and channels.isdecimal():
            channels = int(channels)
        bands = as_whole(channels)  # of any type of whole number
        channels = channels if bands is None else bands
        return cls(
            rows,
            fit if fit is not None else "crop" if like is None else like.fit,
            channels if channels is not None else "rgb" if like is None else like.channels,
            dtype if dtype is not None else "uint8" if like is None else like.dtype,
            whole("max_pixels", max_pixels),
            labels=labels if isinstance(labels, Labels) else Labels(labels),
            pairs=pairs,
            split=Split.parse(split),
            shuffle=sequences is None and shuffle is not False,
            seed=whole("seed", seed),
            icc=icc or ("ignore" if like is None else like.icc),
            mask_values=MaskValues.for_fields(mask_values, masks),
            sequence=sequences,
            **others,
        )

    @classmethod
    def from_record(
        cls, record: Mapping[str, Any], labels: PathLike | None, pairs: Pairs | None
    ) -> ImageOptions:
        """Return the options that a pack records. labels, pairs: their current paths. Raises UsageError."""
        pairs = _checked_pairs(pairs)
        soft = record.get("soft", ())
        return cls(
            RowSize.from_record(record["size"]),
            record["fit"],
            record["channels"],
            record.get("dtype", "uint8"),
            record["max_pixels"],
            RowStorage.from_record(record),
            Labels.from_record(record, labels),
            {name: Soft(folder_of(given)) if name in soft else given for name, given in pairs.items()},
            Split.from_record(record),
            "seed" in record,
            record.get("seed", record.get("split_seed", 0)),
            record.get(NORMALIZE),
            record.get("icc", "ignore"),
            {
                name: MaskValues.parse(text)
                for name, text in record.get("mask_values", {}).items()
                if name in pairs
            },
            Sequences.from_record(record),
        )

    def record(self) -> dict[str, Any]:
        """Return the options that a pack records, without file names and values that are not given."""
        values = {
            "size": self.size.option,
            "fit": self.fit,
            "channels": self.channels,
            "dtype": None if self.dtype == "uint8" else self.dtype,
            "icc": None if self.icc == "ignore" else self.icc,
            "max_pixels": self.max_pixels,
            "seed": self.seed if self.shuffle else None,
            **({} if self.split is None else self.split.record(self.seed)),
            **({} if self.sequence is None else self.sequence.record()),
            "pairs": sorted(self.pairs) or None,
            "soft": sorted(name for name, given in self.pairs.items() if isinstance(given, Soft)) or None,
            "mask_values": {name: one.text for name, one in self.mask_values.items()} or None,
            NORMALIZE: self.normalize,
            **self.labels.record(),
            **self.storing.options(),
        }
        return {name: value for name, value in values.items() if value is not None}

    @property
    def spec(self) -> PixelSpec:
        """Options of the pixels."""
        size = self.size.height, self.size.width
        return PixelSpec(size, self.fit, self.channels, self.max_pixels, self.dtype, self.icc)

    def read_as(self, kind: str) -> ImageOptions:
        """Return options that read labels as this kind, unless the user has chosen one."""
        if self.labels.as_ != "auto":
            return self
        return replace(self, labels=replace(self.labels, as_=kind))


def _checked_pairs(pairs: Pairs | None) -> Pairs:
    """Return the pairs, {} for None. Raises UsageError unless they are a mapping of fields to folders."""
    given = {} if pairs is None else pairs
    if not isinstance(given, Mapping) or not all(
        isinstance(x, str | os.PathLike | Soft) for x in given.values()
    ):
        raise UsageError(
            f"pairs={shown(given)}: is not a mapping of fields to folders. Pass for example"
            " {'mask': 'masks/'}."
        )
    return given
