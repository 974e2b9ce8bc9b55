"""Packs that go together: a list of classes given beforehand, and options taken from another pack."""

from __future__ import annotations

import os
from collections.abc import Sequence
from operator import eq
from typing import Any, NamedTuple

import numpy as np

from packer.channels import COLORS
from packer.convert.row_storage import RowStorage
from packer.errors import UsageError
from packer.format.header import Field
from packer.format.pack import Pack
from packer.format.pack_opening import open_pack

_ENDINGS = (".csv", ".lst", ".txt")
Classes = str | os.PathLike[str] | Sequence[str]
"""Names; a file with one a line; or one text in which they are parted by commas."""


def parse_classes(given: Classes) -> list[str]:
    """Read a list of classes. Raises UsageError if it is empty, names a class twice, or its file cannot be read."""
    subject = "classes"
    if isinstance(given, (str, os.PathLike)):
        name = os.fspath(given)
        subject = f"classes {name}"
        if os.path.isfile(name):
            names = _read(name)
        elif isinstance(given, os.PathLike) or "/" in name or name.lower().endswith(_ENDINGS):
            raise UsageError(
                f"{subject}: no such file; a file with one name a line, or names with commas between, are read. Check it."
            )
        else:
            names = [part.strip() for part in name.split(",")]
    else:
        names = list(given)
    if not names or not all(names):
        raise UsageError(f"{subject}: holds no name, or an empty one; names of classes are needed. Add them.")
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise UsageError(f"{subject}: holds {twice} twice; each class has one number. Remove one.")
    return names


def _read(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
            return [line.strip() for line in file if line.strip()]
    except OSError as error:
        raise UsageError(
            f"classes {path}: cannot be read ({error.strerror}); one name a line is needed."
        ) from None


class ReferencePack(NamedTuple):
    """A pack that a conversion is to match. size: [height, width] or a rule, as RowSize.option."""

    pack: Pack
    size: list[int] | str
    fit: str
    channels: str | int
    dtype: str

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> ReferencePack:
        """Open the pack. Raises UsageError if it has no images; FormatError."""
        pack = open_pack(path)
        image = next((f for f in pack.fields if f.name == "image"), None)
        if image is None:
            raise UsageError(f"like {pack.path}: has no images; a pack of images is needed. Pass one.")
        shape, about = image.loaded.shape, image.loaded.about
        size = str(about.get("size", "keep")) if shape is None else list(shape[:2])
        return cls(pack, size, str(about.get("fit", "crop")), *pixel_options(image))

    def normalize(self, channels: str | int, dtype: str) -> dict[str, list[float]] | None:
        """Return the mean and std to record, or None: the pack has none, or images of other channels, or of another type."""
        recorded = self.pack.header.normalization
        if not recorded or (channels, dtype) != (self.channels, self.dtype):
            return None
        return {name: list(recorded[name]) for name in ("mean", "std")}

    def note(
        self,
        size: Any,
        fit: str,
        channels: str | int,
        dtype: str,
        storing: RowStorage,
        classes: Sequence[str] | None,
    ) -> str:
        """Say what was taken, and what differs. The arguments: as they are used."""
        stored = RowStorage.like(self.pack, "", format=self.pack.format, layout=True).described
        side = str(size) if isinstance(size, (str, int)) else "x".join(map(str, size))
        own = self.pack.header.classes
        shown = {
            f"classes {len(classes or ()):,}": (classes and tuple(classes)) == own,
            f"size {side}": size == self.size,
            f"fit {fit}": fit == self.fit,
            f"channels {channels}": channels == self.channels,
            f"dtype {dtype}": dtype == self.dtype,
            **dict(zip(storing.described, map(eq, storing.described, stored), strict=True)),
        }
        if storing.described[1] == stored[1] == "one file":
            del shown["one file"]  # goes without saying
        alike, others = ([words for words, same in shown.items() if same is kind] for kind in (True, False))
        taken = f"As in {self.pack.path}: {', '.join(alike) or 'nothing'}."
        if others:
            taken += f" Other than there: {', '.join(others)}."
        if not self.pack.header.normalization:
            return taken
        if self.normalize(channels, dtype) is not None:
            return f"{taken} Normalize() as text means {self.pack.path}'s mean and std."
        differ = "channels" if channels != self.channels else "types"
        return f"{taken} Normalize() as text means the new pack's own mean and std, as the {differ} differ."

    def check(self, label: Field | None, source: str) -> None:
        """Raise UsageError unless labels are of the same kind as the pack's. label: as it would be stored; None: there are none."""
        own = next((f for f in self.pack.fields if f.name == "label"), None)
        if label is None or own is None or (label.dtype, label.shape) == (own.dtype, own.shape):
            return
        raise UsageError(
            f"{source}: its labels would be {_kind(label)}, those of {self.pack.path} are {_kind(own)}; equal ones go together. "
            "Pass the label options that it was made with."
        )


def pixel_options(image: Field) -> tuple[str | int, str]:
    """Return the options `channels` (of bands their number) and `dtype` by which images of a pack were made."""
    image, own = image.loaded, image.own_size
    color, shape = str(image.about.get("color", "rgb")), image.shape or ()
    if own is not None:
        count, dtype = own.channels or 1, own.dtype
    else:
        count, dtype = (shape[2] if len(shape) == 3 else 0), image.dtype
    named = not count or (COLORS.get(count) == color and (color != "rgba" or dtype == "|u1"))
    if own is not None and own.codec is not None:
        named = True  # grey files that were kept before there were others say no colour
    return color if named else count, np.dtype(dtype).name


def _kind(field: Field) -> str:
    return f"{field.dtype.lstrip('<|')} {list(field.shape or ())}".replace(" []", "")
