"""Options that all samples are packed by, checked; from rows that can be made to the task of writing their pack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from packer.arguments import choice, whole
from packer.convert.conversion_task import ConversionTask, provenance
from packer.convert.reference_pack import Classes, parse_classes
from packer.convert.row_maker import RowMaker
from packer.convert.row_storage import RowStorage, estimate
from packer.convert.sample_order import SampleOrder, arrange
from packer.convert.splits import Split, members_of, parse_spans
from packer.errors import UsageError
from packer.format.checksums import digest
from packer.format.header import COORDINATES, Field
from packer.pixels.decode_resize import FITS
from packer.pixels.row_size import note_on_size, parse_size
from packer.samples.dataset_rows import in_child
from packer.samples.field_plan import (
    IMAGE,
    KEY,
    LABEL,
    Declared,
    Forms,
    Sized,
    check_name,
    form_of,
    parse_fields,
)
from packer.samples.values import check_color
from packer.sentence import Option

_MOST_STRATA = 1000  # different labels of which splits get equal shares each


@dataclass(frozen=True)
class Fields:
    """The fields that samples become, as ``pack_dataset(fields=...)`` and ``create`` take them.

    Parameters
    ----------
    forms
        Names: of the values of a tuple, in order, or those wanted of a mapping. Or a mapping of names to forms: a dtype with or without
        a shape ("uint8[32,32,3]", "float32"), "int32[*]" for rows of any length, "text", "bytes" or None. Default: all, as the samples
        show them; a tuple of two is (image, label), or (features, label).
    rename
        Name in the dataset, or path in the HDF5 file -> name of the field.
    channels
        "rgb", "gray" or "rgba": what a pixel of Pillow images holds. Default: gray or rgba where all samples looked at are so, else
        rgb, alpha composited on white; of palette images that are not called as images are (masks) the indices.

    Examples
    --------
    >>> import numpy as np
    >>> from packer import Fields, pack_dataset
    >>> columns = {"x_train": np.zeros((9, 4, 4, 3), np.uint8), "y_train": np.arange(9)}
    >>> pack_dataset(columns, "renamed.h5", fields=Fields(rename={"x_train": "image", "y_train": "label"})).rows
    9
    """

    forms: str | Sequence[str] | Forms | None = None
    rename: Mapping[str, str] | None = None
    channels: str | None = None

    def __post_init__(self) -> None:
        """Check the words. Raises UsageError."""
        check_color(self.channels)


@dataclass(frozen=True)
class PackingOptions:
    """The options of pack_dataset and create, checked. storing: how rows are stored; spans: samples of each split."""

    declared: Declared
    classes: tuple[str, ...] | None
    storing: RowStorage
    shuffle: bool
    seed: int
    split: Split | None
    spans: dict[str, range] | None

    @classmethod
    def of(
        cls,
        out: str,
        fields: str | Sequence[str] | Forms | Fields | None,
        size: int | str | tuple[int, int] | None,
        fit: str,
        classes: Classes | None,
        store: str,
        quality: int,
        shuffle: bool,
        seed: int,
        split: str | Mapping[str, float] | Mapping[str, range] | None,
        shards: int | str | None,
    ) -> PackingOptions:
        """Check them all. Raises UsageError."""
        storing = RowStorage.parse(out, None, store, quality, shards)
        if not isinstance(shuffle, bool):
            raise UsageError(f"shuffle={shuffle!r}: is neither True nor False. Pass one of them.")
        fields = fields if isinstance(fields, Fields) else Fields(fields)
        forms = parse_fields(fields.forms)
        sized = Sized(parse_size(size), choice("fit", fit, FITS)) if size is not None else None
        form = (forms or {}).get(IMAGE)
        if sized is not None and form is not None and form.shape is not None:
            raise UsageError(
                f"size {size}: 'image' is declared as {form.text}, which has a size too. Leave one of them out."
            )
        rename = {str(old): str(new) for old, new in (fields.rename or {}).items()}
        for name in rename.values():
            check_name(name)
        spanned = isinstance(split, Mapping) and not all(map(np.isscalar, split.values()))
        return cls(
            Declared(forms, rename, fields.channels, sized),
            None if classes is None else tuple(parse_classes(classes)),
            storing,
            shuffle,
            whole("seed", seed),
            None if spanned else _without_columns(Split.of(split)),
            parse_spans(split) if spanned else None,  # type: ignore[arg-type]
        )

    @property
    def notes(self) -> list[str]:
        """Notes on the options, a sentence each."""
        sized = self.declared.sized
        return [] if sized is None else [*note_on_size(*sized.size)]

    def for_fields(self, found: tuple[str, ...] | None, fields: Sequence[Field]) -> PackingOptions:
        """Return the options with the names of classes that a source tells, where none are given.

        Raises UsageError for options that these fields cannot be packed by.
        """
        for f in fields:
            check_name(f.name)
        self.storing.fields(fields)
        if self.storing.store == "jpeg" and all(f.name != IMAGE for f in fields):
            raise UsageError(
                "store jpeg: is about the field 'image', and there is none. Name it by fields or "
                f"rename, or pass {Option('store', 'raw')}."
            )
        key = next((f for f in fields if f.name == KEY), None)
        if key is not None and "encoding" not in key.about:
            raise UsageError(
                f"field 'key': is {form_of(key)}; it names the input of a row, as text. Give it another name by fields or rename."
            )
        names = {f.name for f in fields}
        if self.declared.sized is not None and IMAGE in names and names.intersection(COORDINATES):
            raise UsageError(
                "size: boxes and keypoints do not move with images that are resized here. Resize both in the dataset, and leave it out."
            )
        label = next((f for f in fields if f.name == LABEL), None)
        numbers = (
            label is not None
            and not label.ragged
            and np.dtype(label.dtype).kind in "iu"
            and label.shape == ()
        )
        if self.classes is not None and not numbers:
            raise UsageError(
                "classes: number the labels, and there is no field 'label' of one whole number a sample. Leave them out, name the"
                " labels by rename, or convert them to int64."
            )
        return self if self.classes is not None or not numbers else replace(self, classes=found)

    def order(self, maker: RowMaker, count: int) -> SampleOrder:
        """Return which sample stands in which row. Raises UsageError."""
        labels = maker.labels() if self.split is not None else None
        if labels is not None and len(np.unique(labels)) > _MOST_STRATA:
            labels = None
        members = {"": np.arange(count)}
        if self.split is not None:
            members = self.split.members(count, self.seed, strata=labels)
        elif self.spans is not None:
            members = members_of(self.spans, count)
        return arrange(members, shuffle=self.shuffle, seed=self.seed)

    def task(
        self,
        maker: RowMaker,
        order: SampleOrder,
        subject: str,
        source: Mapping[str, Any] | None,
        *,
        forks: bool = False,
    ) -> ConversionTask:
        """Return the task of writing a pack of samples.

        source: what tells whether they are still the same, recorded; None: nothing does, and an interrupted run is not gone on with.
        forks: the maker's rows are looked at in a forked process. Raises UsageError.
        """
        storing = self.storing
        if storing.shard_bytes is not None:
            row = in_child(lambda: estimate(maker, storing, order), forks=forks)
            storing = storing.with_rows(row)
        options = {
            "seed": self.seed if self.shuffle else None,
            "split": (None if self.split is None else self.split.shares)
            if self.spans is None
            else {name: [span.start, span.stop] for name, span in self.spans.items()},
            "split_seed": None if self.split is None else self.seed,
            "channels": self.declared.channels,
            "fit": None if self.declared.sized is None else self.declared.sized.fit,
            "fields": {f.name: form_of(f) for f in maker.fields},
            "classes": None if self.classes is None else digest(name.encode() for name in self.classes).hex(),
            **storing.options(),
        }
        keyed = any(f.name == IMAGE for f in maker.fields) and all(f.name != KEY for f in maker.fields)
        return ConversionTask(
            subject,
            maker,
            order,
            storing,
            provenance(options, {"rows": len(order.samples)} if source is None else source, storing),
            None if source is None else {},
            self.classes,
            options["seed"],
            keyed=keyed,
        )


def _without_columns(split: Split | None) -> Split | None:
    """Return it. Raises UsageError for one by columns."""
    for option in () if split is None else split.about_columns():
        raise UsageError(
            f"{option}: is about columns of a table or of a CSV of labels; samples have none. Pass shares, or the rows of each split."
        )
    return split
