"""Classes and options that a conversion takes from a list of classes or from a reference pack (like=)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from packer.channels import COLORS
from packer.errors import UsageError
from packer.format.fields import Field
from packer.given_values import shown
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.path_text import compose

_ENDINGS = (".csv", ".lst", ".txt")
Classes = str | os.PathLike[str] | Sequence[str]
"""Names; a file with one name per line; or one text of names separated by commas."""


def parse_classes(given: Classes) -> list[str]:
    """Read a list of classes.

    Raises UsageError if it is empty, names a class twice, or its file cannot be read.
    """
    subject = "classes"
    if isinstance(given, (str, os.PathLike)):
        name = os.fspath(given)
        subject = f"classes {name}"
        if os.path.isfile(name):
            names = _read_class_names(name)
        elif isinstance(given, os.PathLike) or "/" in name or name.lower().endswith(_ENDINGS):
            raise UsageError(
                f"{subject}: no such file; allowed are a file with one name per line, or names separated by"
                " commas. Check the path."
            )
        else:
            names = [part.strip() for part in name.split(",")]
    elif isinstance(given, (set, frozenset)):
        raise UsageError(f"classes={shown(given)}: has no order, which numbers the classes. Pass a list.")
    else:
        names = list(given)
    if not names or not all(names):
        raise UsageError(f"{subject}: holds no name, or an empty name; class names are needed. Add them.")
    names = list(map(compose, names))
    if len(set(names)) < len(names):
        seen: set[str] = set()
        twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise UsageError(f"{subject}: holds {twice} twice; each class has one number. Remove one.")
    return names


def _read_class_names(path: str) -> list[str]:
    """Return the lines of a file that are not blank. Raises UsageError."""
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
            return [line.strip() for line in file if line.strip()]
    except OSError as error:
        raise UsageError(
            f"classes {path}: cannot be read ({error.strerror}); one name per line is needed."
        ) from None


class ReferencePack(NamedTuple):
    """A pack that a conversion has to match.

    size: [height, width] or a rule, as RowSize.option. mask_values: field -> values, as recorded.
    """

    pack: Pack
    size: list[int] | str
    fit: str
    channels: str | int
    dtype: str
    icc: str
    mask_values: Mapping[str, str]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> ReferencePack:
        """Open the pack. Raises UsageError if it has no images; FormatError."""
        pack = open_pack(path)
        image = next((f for f in pack.fields if f.name == "image"), None)
        if image is None:
            raise UsageError(
                f"like {pack.path}: has no images; a pack of images is needed. Pass another pack."
            )
        shape, about = image.loaded.shape, image.loaded.about
        size = str(about.get("size", "keep")) if shape is None else list(shape[:2])
        options = pack.parts[0].header.provenance.get("options", {})
        read = options.get("icc", "ignore"), options.get("mask_values", {})
        return cls(pack, size, str(about.get("fit", "crop")), *pixel_options(image), *read)

    def normalize(self, channels: str | int, dtype: str) -> dict[str, list[float]] | None:
        """Return the mean and std to record; None if there are none, or channels or dtype differ."""
        recorded = self.pack.header.normalization
        if not recorded or (channels, dtype) != (self.channels, self.dtype):
            return None
        return {name: list(recorded[name]) for name in ("mean", "std")}

    def check(self, label: Field | None, source: str) -> None:
        """Raise UsageError unless dtype and shape of labels are those of the pack.

        label: field of the new labels, as stored; None without labels.
        """
        known = next((f for f in self.pack.fields if f.name == "label"), None)
        if label is None or known is None or (label.dtype, label.shape) == (known.dtype, known.shape):
            return
        raise UsageError(
            f"{source}: its labels would be {_form(label)}, those of {self.pack.path} are {_form(known)};"
            " they have to be equal. Pass the label options of that pack."
        )


def pixel_options(image: Field) -> tuple[str | int, str]:
    """Return the options `channels` (a number for bands) and `dtype` of the images of a pack."""
    image = image.loaded
    color, shape = str(image.about.get("color", "rgb")), image.shape or ()
    count = shape[2] if len(shape) == 3 else 0  # images of different sizes are JPEG files, without bands
    named = not count or (COLORS.get(count) == color and (color != "rgba" or image.dtype == "|u1"))
    return color if named else count, np.dtype(image.dtype).name


def _form(field: Field) -> str:
    return f"{field.dtype.lstrip('<|')} {list(field.shape or ())}".replace(" []", "")
