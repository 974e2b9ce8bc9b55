"""Packs that go together: a list of classes given beforehand, and options taken from another pack."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from packer.convert.image_rows import pixel_options
from packer.errors import UsageError
from packer.format.header import Field
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
    """A pack that a conversion is to match.

    size: [height, width] or a rule, as RowSize.option; label: its field, None if it has none; normalization: mean and std that its
    ``Normalize()`` as text means, empty if it has none.
    """

    path: str
    classes: tuple[str, ...] | None
    size: list[int] | str
    fit: str
    channels: str | int
    dtype: str
    label: Field | None
    normalization: Mapping[str, Sequence[float]]

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> ReferencePack:
        """Open the pack. Raises UsageError if it has no images; FormatError."""
        pack = open_pack(path)
        image = next((f for f in pack.fields if f.name == "image"), None)
        if image is None:
            raise UsageError(f"like {pack.path}: has no images; a pack of images is needed. Pass one.")
        shape = image.loaded.shape
        about = image.loaded.about
        channels, dtype = pixel_options(image)
        return cls(
            pack.path,
            pack.header.classes,
            str(about.get("size", "keep")) if shape is None else list(shape[:2]),
            str(about.get("fit", "crop")),
            channels,
            dtype,
            next((f for f in pack.fields if f.name == "label"), None),
            pack.header.normalization,
        )

    def normalize(self, channels: str | int, dtype: str) -> dict[str, list[float]] | None:
        """Return the mean and std to record, or None: the pack has none, or images of other channels, or of another type."""
        if not self.normalization or (channels, dtype) != (self.channels, self.dtype):
            return None
        return {name: list(self.normalization[name]) for name in ("mean", "std")}

    def note(
        self, size: Any, fit: str, channels: str | int, dtype: str, classes: Sequence[str] | None
    ) -> str:
        """Say what was taken, and what differs. The arguments: as they are used."""
        used = {
            "classes": classes and tuple(classes),
            "size": size,
            "fit": fit,
            "channels": channels,
            "dtype": dtype,
        }
        side = str(size) if isinstance(size, (str, int)) else "x".join(map(str, size))
        shown = {**used, "classes": f"{len(classes or ()):,}", "size": side}
        others = [f"{name} {shown[name]}" for name, value in used.items() if value != getattr(self, name)]
        alike = [words for name in used if (words := f"{name} {shown[name]}") not in others]
        taken = f"As in {self.path}: {', '.join(alike) or 'nothing'}."
        if others:
            taken += f" Other than there: {', '.join(others)}."
        if not self.normalization:
            return taken
        if self.normalize(channels, dtype) is None:
            differ = "channels" if channels != self.channels else "types"
            return (
                f"{taken} Normalize() as text means the new pack's own mean and std, as the {differ} differ."
            )
        return f"{taken} Normalize() as text means {self.path}'s mean and std."

    def check(self, label: Field | None, source: str) -> None:
        """Raise UsageError unless labels are of the same kind as the pack's. label: as it would be stored; None: there are none."""
        own = self.label
        if label is None or own is None or (label.dtype, label.shape) == (own.dtype, own.shape):
            return
        raise UsageError(
            f"{source}: its labels would be {_kind(label)}, those of {self.path} are {_kind(own)}; equal ones go together. "
            "Pass the label options that it was made with."
        )


def _kind(field: Field) -> str:
    return f"{field.dtype.lstrip('<|')} {list(field.shape or ())}".replace(" []", "")
