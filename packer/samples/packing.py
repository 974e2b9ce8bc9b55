"""Options of pack_dataset and create, and the task of writing a pack of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from packer.arguments import one_of, whole
from packer.convert.conversion_task import ConversionTask, provenance
from packer.convert.reference_pack import Classes, parse_classes
from packer.convert.row_maker import RowMaker
from packer.convert.row_storage import RowStorage, estimate
from packer.convert.sample_order import SampleOrder, arrange
from packer.convert.split_assignment import Owners, assign
from packer.convert.splits import Part, Split
from packer.declared_types import checked_class
from packer.errors import UsageError
from packer.format.checksums import digest
from packer.format.fields import (
    COORDINATES,
    Field,
    find_field,
)
from packer.pixels.decode_resize import decoder_versions
from packer.pixels.row_placement import FITS
from packer.pixels.row_size import parse_size
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


@checked_class
@dataclass(frozen=True)
class Fields:
    """Fields of samples, for ``fields=`` of ``pack_dataset`` and ``create``.

    Parameters
    ----------
    forms
        Names for the values of a tuple, in order, or the requested names of a mapping. Or a mapping of names
        to forms: a dtype with or without a shape ("uint8[32,32,3]", "float32"), "int32[*]" for rows of any
        length, "text", "bytes" or None. Default: all values, inferred from samples; a tuple of two is (image,
        label), or (features, label).
    rename
        Mapping of a name in the dataset, or a path in the HDF5 file, to the name of its field. Other values
        keep their names. Of files, other arrays of equal length are fields too: ``x``, ``image``, ``images``
        is the image, ``y``, ``label``, ``labels`` the label, others keep their names; a note says how.
    channels
        "rgb", "gray" or "rgba": channels of Pillow images. Default: gray or rgba if all inspected samples
        are, else rgb, with alpha composited on white. Palette images in fields that are not named like
        images, such as masks, are stored as indices.

    Examples
    --------
    >>> import numpy as np
    >>> from packer import Fields, pack_dataset
    >>> columns = {"x_train": np.zeros((9, 4, 4, 3), np.uint8), "y_train": np.arange(9)}
    >>> fields = Fields(rename={"x_train": "image", "y_train": "label"})
    >>> pack_dataset(columns, "renamed.h5", fields=fields).rows
    9
    """

    forms: str | Sequence[str] | Forms | None = None
    rename: Mapping[str, str] | None = None
    channels: str | None = None

    def __post_init__(self) -> None:
        """Check `channels`. Raises UsageError."""
        check_color(self.channels)


@dataclass(frozen=True)
class PackingOptions:
    """Checked options of pack_dataset and create. storing: rows on disk; spans: splits of the source."""

    declared: Declared
    classes: tuple[str, ...] | None
    storing: RowStorage
    shuffle: bool
    seed: int
    split: Split | None
    spans: Mapping[str, range] = field(default_factory=dict)

    @classmethod
    def parse(
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
        split: str | Mapping[str, Part] | Split | None,
        shards: int | str | None,
    ) -> PackingOptions:
        """Check all options. Raises UsageError."""
        storing = RowStorage.parse(out, None, store, quality, shards)
        fields = fields if isinstance(fields, Fields) else Fields(fields)
        forms = parse_fields(fields.forms)
        one_of("fit", fit, FITS)
        sized = Sized(parse_size(size), fit) if size is not None else None
        form = (forms or {}).get(IMAGE)
        if sized is not None and form is not None and form.shape is not None:
            raise UsageError(
                f"size {size}: 'image' is declared as {form.text}, which includes a size. Leave one of them "
                "out."
            )
        rename = {str(old): str(new) for old, new in (fields.rename or {}).items()}
        for name in rename.values():
            check_name(name)
        parsed = Split.parse(split)
        if parsed is not None:
            parsed.check_no_columns("samples")
        return cls(
            Declared(forms, rename, fields.channels, sized),
            None if classes is None else tuple(parse_classes(classes)),
            storing,
            shuffle,
            whole("seed", seed),
            parsed,
        )

    def for_splits(self, subject: str, spans: Mapping[str, range]) -> PackingOptions:
        """Return the options with the splits of the source, if any. Raises UsageError for others beside."""
        if spans and self.split is not None:
            raise UsageError(
                f"split=: the arrays of {subject} are splits already: {', '.join(spans)}. Leave it"
                " out, or name the arrays of one of them by fields=Fields(rename=)."
            )
        return replace(self, spans=spans)

    def for_fields(self, found: tuple[str, ...] | None, fields: Sequence[Field]) -> PackingOptions:
        """Return the options for these fields; `found`, the source's class names, replaces missing `classes`.

        Raises UsageError for options that do not fit the fields.
        """
        for f in fields:
            check_name(f.name)
        self.storing.fields(fields)
        if self.storing.store == "jpeg" and find_field(fields, IMAGE) is None:
            raise UsageError(
                "store jpeg: applies to the field 'image', but there is no such field. Name it by fields or "
                "rename, or pass store='raw'."
            )
        key = find_field(fields, KEY)
        if key is not None and "encoding" not in key.about:
            raise UsageError(
                f"field 'key': is {form_of(key)}; this field names the input of a row, as text. Give it "
                "another name by fields or rename."
            )
        names = {f.name for f in fields}
        if self.declared.sized is not None and IMAGE in names and names.intersection(COORDINATES):
            raise UsageError(
                "size: boxes and keypoints are not transformed with images that are resized here. Resize "
                "both in the dataset, and leave it out."
            )
        label = find_field(fields, LABEL)
        numbers = (
            label is not None
            and not label.ragged
            and np.dtype(label.dtype).kind in "iu"
            and label.shape == ()
        )
        if self.classes is not None and not numbers:
            raise UsageError(
                "classes: apply to a field 'label' with one whole number per sample; " + _unfit(label)
            )
        return self if self.classes is not None or not numbers else replace(self, classes=found)

    def order(self, maker: RowMaker) -> SampleOrder:
        """Return the order of the samples in the pack. Raises UsageError."""
        spans = {name: np.arange(span.start, span.stop) for name, span in self.spans.items()}
        known = Owners.from_splits(spans, maker.count)
        owners = known if self.split is None else assign(self.split, maker, self.seed)
        return arrange(owners, shuffle=self.shuffle, seed=self.seed)

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

        source: recorded identity of the samples, compared when a run is resumed; None: the run cannot be
        resumed. forks: read sample rows for the size estimate in a forked process. Raises UsageError.
        """
        storing = self.storing
        if storing.shard_bytes is not None:
            row = in_child(lambda: estimate(maker, storing, order), forks=forks)
            storing = storing.with_rows(row)
        options = {
            "seed": self.seed if self.shuffle else None,
            "split": {name: [span.start, span.stop] for name, span in self.spans.items()} or None,
            **({} if self.split is None else self.split.record(self.seed)),
            "channels": self.declared.channels,
            "fit": None if self.declared.sized is None else self.declared.sized.fit,
            "fields": {f.name: form_of(f) for f in maker.fields},
            "classes": None if self.classes is None else digest(name.encode() for name in self.classes).hex(),
            **storing.options(),
        }
        sizer = {} if self.declared.sized is None else decoder_versions()
        keyed = find_field(maker.fields, IMAGE) is not None and find_field(maker.fields, KEY) is None
        return ConversionTask(
            subject,
            maker,
            order,
            storing,
            provenance(options, {"rows": len(order.samples)} if source is None else source, storing, sizer),
            None if source is None else {},
            self.classes,
            options["seed"],
            keyed=keyed,
        )


def _unfit(label: Field | None) -> str:
    """Return why a field cannot hold class numbers, and a remedy."""
    if label is None:
        return "there is none. Leave them out, or name the labels by rename."
    several = len(label.shape or ()) == 1 and label.shape != (1,)
    remedy = "Of one-hot labels pass y.argmax(1)." if several else "Convert them to int64."
    return f"label is {form_of(label).removesuffix('[]')}. {remedy}"
