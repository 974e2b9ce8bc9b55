"""Labels: where the labels of images stand, and how they are read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packer.arguments import choice
from packer.errors import UsageError
from packer.inputs.label_values import LABEL_AS
from packer.pixels.coordinate_units import UNITS
from packer.sentence import Option


@dataclass(frozen=True)
class Labels:
    """The labels of images, as ``convert_images(labels=...)`` takes them.

    Parameters
    ----------
    file
        A CSV file that says of each image (first column, or `file_column`) what its label is; or COCO's JSON of
        boxes. Without a file `column` is the label to take of WebDataset's tars or of Parquet files.
    column
        Column of the label, or several columns (default: the second): names, or one text with commas between.
    separator
        Cells hold several class names with this between them; also "space", "tab", "comma".
    file_column
        Column that names the files. Default: the first.
    as_
        "auto": class names are numbered, whole numbers are int64, other numbers float32; "classes": numbers are
        class names, too; "float": float32.
    boxes, keypoints
        Columns with xmin, ymin, xmax, ymax, or x, y, x, y ..., in pixels of the original image; they move as the
        image is resized.
    boxes_unit
        "relative": they are shares of the image's width and height. Coordinates that all look like shares are
        refused without it.

    Examples
    --------
    >>> from packer import Labels
    >>> Labels("labels.csv", column="species", separator="|").record()
    {'label': ['species'], 'label_separator': '|'}
    """

    file: str | os.PathLike[str] | None = None
    column: str | Sequence[str] | None = None
    separator: str | None = None
    file_column: str | None = None
    as_: str = "auto"
    boxes: str | Sequence[str] | None = None
    keypoints: str | Sequence[str] | None = None
    boxes_unit: str | None = None

    def __post_init__(self) -> None:
        """Check the words. Raises UsageError."""
        if self.file is not None and not isinstance(self.file, str | os.PathLike):
            raise UsageError(f"labels={self.file!r}: is no file. Pass its name, or Labels(...).")
        choice("as_", self.as_, LABEL_AS)
        if self.boxes_unit is not None:
            choice("boxes_unit", self.boxes_unit, UNITS)

    def record(self) -> dict[str, Any]:
        """Return what a pack records, without the file's name and what is not given."""
        said = {
            "label": _columns(self.column),
            "label_file_column": self.file_column,
            "label_as": None if self.as_ == "auto" else self.as_,
            "label_separator": self.separator,
            "boxes": _columns(self.boxes),
            "keypoints": _columns(self.keypoints),
            "boxes_unit": self.boxes_unit,
        }
        return {name: value for name, value in said.items() if value is not None}

    def about_csv(self) -> Iterator[Option]:
        """Yield what is given of the members that say something of a CSV."""
        for name in ("column", "file_column", "separator", "as_", "boxes", "keypoints"):
            value = getattr(self, name)
            if value is not None and (name, value) != ("as_", "auto"):
                yield Option(f"Labels.{name}", value if isinstance(value, str) else ",".join(value))

    @classmethod
    def of_record(cls, record: Mapping[str, Any], file: str | os.PathLike[str] | None) -> Labels:
        """Return the labels of which a pack has this record, now in that file."""
        return cls(
            file,
            record.get("label"),
            record.get("label_separator"),
            record.get("label_file_column"),
            record.get("label_as", "auto"),
            record.get("boxes"),
            record.get("keypoints"),
            record.get("boxes_unit"),
        )


def _columns(names: str | Sequence[str] | None) -> list[str] | None:
    """Return ["a", "b"] from "a,b" or ("a", "b")."""
    if names is None:
        return None
    return [name.strip() for name in (names.split(",") if isinstance(names, str) else names)]
