"""Labels: the file and columns of the labels of images, and how they are parsed."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packer.arguments import one_of
from packer.declared_types import checked_class
from packer.errors import UsageError
from packer.given_values import option_text
from packer.inputs.coordinate_names import point_order
from packer.inputs.label_values import LABEL_AS, SEPARATORS
from packer.inputs.point_names import point_names, read_pairs
from packer.pixels.coordinate_units import FORMATS, FRAMES, UNITS

UNLISTED = ("error", "empty")
_CHOICES = {"boxes_unit": UNITS, "boxes_format": FORMATS, "boxes_frame": FRAMES, "unlisted": UNLISTED}
_RECORDED = {
    "column": "label",
    "file_column": "label_file_column",
    "as_": "label_as",
    "separator": "label_separator",
    **{name: name for name in ("boxes", "keypoints", "flip_pairs", *_CHOICES, "unlabeled")},
}
"""Attribute of Labels -> its name in the header of a pack."""

ALL = "all"
"""Value of `unlabeled` for all images."""


@checked_class
@dataclass(frozen=True)
class Labels:
    """Labels of images, for ``convert_images(labels=...)``.

    Parameters
    ----------
    file
        A file with the name and label of each image: CSV or other text, JSON, JSON lines, .xlsx or Parquet,
        told by its contents; or a COCO JSON file of boxes. Without a file, `column` chooses the label of
        WebDataset tars or of Parquet files, and `separator` and `as_` apply to labels in lists, too.
    column
        Label column, or several columns: a list of names, or names joined by commas; "0", "1" ... without a
        header. Default: the only column besides the file names; of boxes and keypoints the one that holds
        classes, "" for none.
    separator
        Separator of several class names in a label; also "space", "tab", "comma". Lists (``['a', 'b']``)
        are separated by "comma".
    file_column
        Column of file names. Default: the one that names most images.
    as_
        "auto": class names are numbered, whole numbers become int64, other numbers float32. "classes":
        numbers are class names, too, and texts that look like several labels, captions or ids are classes.
        "float": float32.
    boxes, keypoints
        Columns of xmin, ymin, xmax, ymax, or of x, y, x, y ..., in pixels of the original image. Names that
        tell another order are believed (ymin, xmin, ymax, xmax), as are cx, cy, w, h. Or for boxes one
        column of lists, "[12, 5, 40, 30]". Coordinates are transformed with the image.
    flip_pairs
        Points that exchange their numbers when augmentation mirrors an image: "left_eye:right_eye,...", or
        "none". Default: the points whose names are sides, as left_eye and right_eye are. A point's name is
        what its columns have in common: left_eye_x, left_eye_y.
    boxes_unit
        "relative": coordinates are fractions of the image's width and height. Without it, coordinates that
        all look like fractions are an error.
    boxes_format
        "xyxy" (left, top, right, bottom), "xywh" (left, top, width, height) or "cxcywh" (centre): the columns
        of `boxes` are these, in this order. Default: by their names, else by their values.
    boxes_frame
        "upright" or "stored": boxes and keypoints are in the frame of the image turned upright by its EXIF
        orientation, or of the picture before that. Default: the one with the width and height that the file
        of labels records, else "upright".
    unlisted
        "empty": images that the file of boxes or keypoints does not list have none. Default: an error.
    unlabeled
        Splits without labels, beside splits with labels: their images get the label -1. "all": the labels of
        the source are not wanted, so the pack has none.

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
    flip_pairs: str | Sequence[str] | None = None
    boxes_unit: str | None = None
    boxes_format: str | None = None
    boxes_frame: str | None = None
    unlisted: str | None = None
    unlabeled: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Check the values and the combination of columns. Raises UsageError."""
        one_of("as_", self.as_, LABEL_AS)
        for name, allowed in _CHOICES.items():
            if getattr(self, name) is not None:
                one_of(name, getattr(self, name), allowed)
        for name in ("column", "boxes", "keypoints", "unlabeled"):
            given = getattr(self, name)
            chosen = [word.strip() for word in (given.split(",") if isinstance(given, str) else given or ())]
            if name == "column" and chosen in ([], [""]) and (self.boxes or self.keypoints):
                chosen = []  # no column
            elif given is not None and not (chosen and all(chosen)):
                raise UsageError(
                    f"{option_text(f'Labels.{name}')} {given!r}: holds an empty name; names of "
                    f"{'splits' if name == 'unlabeled' else 'columns'} are needed. Pass for example "
                    f"{option_text(f'Labels.{name}', 'a,b')}."
                )
            object.__setattr__(self, name, None if given is None else tuple(chosen))
        if self.unlabeled and self.file is not None:
            raise UsageError(
                f"labels=Labels(unlabeled={','.join(self.unlabeled)!r}): applies to class folders, but the "
                f"labels come from {os.fspath(self.file)}. Leave one of them out."
            )
        self._check_columns(self.columns("column"), self.columns("boxes"), self.columns("keypoints"))
        if self.flip_pairs is not None:
            self._check_sides(self.flip_pairs)

    def _check_sides(self, given: str | Sequence[str]) -> None:
        """Set `flip_pairs` to a tuple of texts. Raises UsageError for what are no pairs of points."""
        if isinstance(given, str):
            given = [] if given.strip() in ("", "none") else given.split(",")
        pairs = tuple(word.strip() for word in given)
        if not self.keypoints:
            raise UsageError(
                f"labels=Labels(flip_pairs={','.join(pairs)!r}): applies to points, but there are none. Pass"
                " labels=Labels(keypoints=), or leave it out."
            )
        object.__setattr__(self, "flip_pairs", pairs)
        columns = self.columns("keypoints")
        order = point_order(columns)
        read_pairs(pairs, point_names(columns if order is None else [columns[place] for place in order]))

    def _check_columns(self, labels: list[str], corners: list[str], points: list[str]) -> None:
        """Raise UsageError for columns or options that cannot be combined."""
        chosen, separator = [*labels, *corners, *points], self.separator
        twice = next((name for name in chosen if chosen.count(name) > 1), None)
        if twice is not None:
            raise UsageError(f"column {twice}: chosen twice; each column has one role. Pass it once.")
        if len(corners) not in (0, 1, 4):
            raise UsageError(
                f"boxes {','.join(corners)}: four columns are needed: left, top, right, bottom, or a corner "
                "or the centre, width and height; or one, of lists. Pass for example xmin,ymin,xmax,ymax."
            )
        if self.boxes_format is not None and points and not corners:
            raise UsageError(
                f"labels=Labels(boxes_format={self.boxes_format!r}): applies to columns of boxes, but none "
                "are given. Pass labels=Labels(boxes=), or leave it out."
            )
        if len(points) % 2:
            raise UsageError(
                f"keypoints {','.join(points)}: {len(points)} columns; an x and a y for each point are "
                "needed. Pass both."
            )
        if len(labels) > 1 and (corners or separator is not None or self.as_ == "classes"):
            raise UsageError(
                f"label {','.join(labels)}: {len(labels)} columns; one column is allowed with boxes, with "
                "class names and with a separator. Pass one column."
            )
        if separator == "" or (corners and separator is not None):
            raise UsageError(
                f"labels=Labels(separator={separator!r}): separates class names in a label column; it may "
                "not be empty, and boxes have one label each. Pass for example "
                "labels=Labels(separator='space'), or leave it out."
            )
        none = (corners or points) and self.column == ()
        if self.as_ != "auto" and (separator is not None or none or (corners and self.as_ != "classes")):
            raise UsageError(
                f"labels=Labels(as_={self.as_!r}): applies to labels that are numbers, but these are not. "
                "Leave it out."
            )

    def columns(self, name: str) -> list[str]:
        """Return the columns in attribute `name`; [] if it is None."""
        return list(getattr(self, name) or ())

    @property
    def divider(self) -> str | None:
        """The separator in the form of `split_names`."""
        return SEPARATORS.get(self.separator or "", self.separator)

    @property
    def unwanted(self) -> bool:
        """True if the labels of the source are not wanted."""
        return self.unlabeled == (ALL,)

    @property
    def ignore_source(self) -> bool:
        """True if the labels of the source are not used: others are in a file, or none are wanted."""
        return self.file is not None or self.unwanted

    def _options(self) -> Iterator[tuple[str, Any]]:
        for name in _RECORDED:
            value = getattr(self, name)
            if value is not None and (name, value) != ("as_", "auto"):
                yield name, value

    def record(self) -> dict[str, Any]:
        """Return the record for the header of a pack: all given options but the file's name."""
        return {
            _RECORDED[n]: list(value) if isinstance(value, tuple) else value for n, value in self._options()
        }

    def about_csv(self, used: Collection[str] = ()) -> list[str]:
        """Return the given options that apply only to a CSV, but for those of the names in `used`."""
        return self._option_texts(_RECORDED.keys() - {*_CHOICES, "unlabeled", *used})

    def about_coordinates(self) -> list[str]:
        """Return the given options that apply only to boxes and keypoints."""
        return self._option_texts(_CHOICES)

    def _option_texts(self, names: Collection[str]) -> list[str]:
        given = {f"Labels.{name}": value for name, value in self._options() if name in names}
        return [option_text(name, v if isinstance(v, str) else ",".join(v)) for name, v in given.items()]

    @classmethod
    def from_record(cls, record: Mapping[str, Any], file: str | os.PathLike[str] | None) -> Labels:
        """Return the Labels of a pack's record, with labels in `file`.

        Packs of boxes or keypoints that record no label column have none.
        """
        given = {name: record[told] for name, told in _RECORDED.items() if told in record}
        if "boxes" in given or "keypoints" in given:
            given.setdefault("column", ())
        return cls(file, **given)
