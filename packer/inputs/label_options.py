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

_SIZES = frozenset(("w", "width", "h", "height"))
_RECORDED = {
    "column": "label",
    "file_column": "label_file_column",
    "as_": "label_as",
    "separator": "label_separator",
    "boxes": "boxes",
    "keypoints": "keypoints",
    "boxes_unit": "boxes_unit",
    "unlabeled": "unlabeled",
}
"""Member of Labels -> the name by which packs record it."""


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
    unlabeled
        Splits whose images have no class, beside splits of class folders: their label is -1.

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
    unlabeled: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Check the words, and that the columns go together. Raises UsageError."""
        if self.file is not None and not isinstance(self.file, str | os.PathLike):
            raise UsageError(f"labels={self.file!r}: is no file. Pass its name, or Labels(...).")
        choice("as_", self.as_, LABEL_AS)
        if self.boxes_unit is not None:
            choice("boxes_unit", self.boxes_unit, UNITS)
        for name in ("column", "boxes", "keypoints", "unlabeled"):
            given = getattr(self, name)
            chosen = [word.strip() for word in (given.split(",") if isinstance(given, str) else given or ())]
            if given is not None and not (chosen and all(chosen)):
                raise UsageError(
                    f"{Option(f'Labels.{name}')} {given!r}: holds an empty name; names of "
                    f"{'splits' if name == 'unlabeled' else 'columns'} are needed. Pass for example {Option(f'Labels.{name}', 'a,b')}."
                )
            object.__setattr__(self, name, None if given is None else tuple(chosen))
        if self.unlabeled and self.file is not None:
            raise UsageError(
                f"{Option('Labels.unlabeled', ','.join(self.unlabeled))}: is about class folders, and labels are those of "
                f"{os.fspath(self.file)}. Leave one of them out."
            )
        self._check_columns(self.columns("column"), self.columns("boxes"), self.columns("keypoints"))

    def _check_columns(self, labels: list[str], corners: list[str], points: list[str]) -> None:
        """Refuse columns, and ways to take labels, that do not go together. Raises: UsageError."""
        chosen, separator = [*labels, *corners, *points], self.separator
        twice = next((name for name in chosen if chosen.count(name) > 1), None)
        if twice is not None:
            raise UsageError(f"column {twice}: chosen twice; each column is one thing. Pass it once.")
        if corners and (len(corners) != 4 or _SIZES.issuperset(name.lower() for name in corners[2:])):
            raise UsageError(
                f"boxes {','.join(corners)}: four columns are needed: left, top, right, bottom, no width and height. "
                "Pass for example xmin,ymin,xmax,ymax."
            )
        if len(points) % 2:
            raise UsageError(
                f"keypoints {','.join(points)}: {len(points)} columns; an x and a y for each point are needed. Pass both."
            )
        if len(labels) > 1 and (corners or separator is not None or self.as_ == "classes"):
            raise UsageError(
                f"label {','.join(labels)}: {len(labels)} columns; boxes, class names, and cells of several "
                "names, have one. Pass one."
            )
        if separator == "" or (corners and separator is not None):
            raise UsageError(
                f"{Option('Labels.separator', separator)}: stands between names in one column of labels, and of boxes each has "
                f"one label. Pass for example {Option('Labels.separator', 'space')}, or leave it out."
            )
        none = (corners or points) and not labels
        if self.as_ != "auto" and (separator is not None or none or (corners and self.as_ != "classes")):
            raise UsageError(
                f"{Option('Labels.as_', self.as_)}: is about labels that are numbers, and these are not. Leave it out."
            )

    def columns(self, name: str) -> list[str]:
        """Return the names that the member `name` holds, none if it is not given."""
        return list(getattr(self, name) or ())

    def _given(self) -> Iterator[tuple[str, Any]]:
        for name in _RECORDED:
            value = getattr(self, name)
            if value is not None and (name, value) != ("as_", "auto"):
                yield name, value

    def record(self) -> dict[str, Any]:
        """Return what a pack records, without the file's name and what is not given."""
        return {
            _RECORDED[n]: list(value) if isinstance(value, tuple) else value for n, value in self._given()
        }

    def about_csv(self) -> Iterator[Option]:
        """Yield what is given of the members that say something of a CSV."""
        for name, value in self._given():
            if name not in ("boxes_unit", "unlabeled"):
                yield Option(f"Labels.{name}", value if isinstance(value, str) else ",".join(value))

    @classmethod
    def of_record(cls, record: Mapping[str, Any], file: str | os.PathLike[str] | None) -> Labels:
        """Return the labels of which a pack has this record, now in that file."""
        return cls(file, **{name: record[told] for name, told in _RECORDED.items() if told in record})
