"""The layout of samples (mapping, tuple, single value): values by field, and fields inferred from samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packer.errors import SourceError, UsageError
from packer.format.fields import (
    COORDINATES,
    Field,
)
from packer.given_values import option_text
from packer.pixels.coordinate_units import check_unit
from packer.samples.field_plan import (
    IMAGE,
    PICTURES,
    Declared,
    FieldPlan,
    is_image_like,
    pixel_notes,
    plan_field,
    with_masks,
)
from packer.samples.values import ValueRefusedError, is_pillow


@dataclass(frozen=True)
class SampleLayout:
    """The members of a sample that become fields.

    members: field -> key or position in the sample; None: the sample itself. strict: further members are an
    error, since the user did not choose the fields. named: samples are mappings.
    """

    members: Mapping[str, Any]
    strict: bool
    named: bool

    def values(self, sample: Any) -> dict[str, Any]:
        """Return a sample's values by field. Raises ValueRefusedError if it differs from the first sample."""
        members = self.members
        if None in members.values():
            return dict.fromkeys(members, sample)
        values = _mapping(sample) if self.named else _tuple(sample)
        if values is None:
            kind = "mappings" if self.named else f"{len(members)} values"
            raise ValueRefusedError(
                f"is {_type_name(sample)}, but others are {kind}. Return samples of the same form"
            )
        given: Any = values if self.named else range(len(values))
        missing = [key for key in members.values() if key not in given]
        if missing or (self.strict and len(given) > len(members)):
            raise ValueRefusedError(
                f"has {', '.join(map(repr, given))}, but others have "
                f"{', '.join(map(repr, members.values()))}. Return the same members in every sample, or "
                "name the requested fields"
            )
        return {name: values[key] for name, key in members.items()}


@dataclass(frozen=True)
class SamplePlan:
    """The layout of samples, the plan of each field, and notes. ragged_bytes: mean ragged bytes per row."""

    layout: SampleLayout
    plans: Mapping[str, FieldPlan]
    notes: Sequence[str] = ()
    ragged_bytes: int = 0

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields, in order."""
        return tuple(plan.field for plan in self.plans.values())

    def rows(self, sample: Any) -> dict[str, Any]:
        """Return a sample's rows by field, as arrays and bytes. Raises ValueRefusedError."""
        return {name: row_of(self.plans[name], value) for name, value in self.layout.values(sample).items()}


def row_of(plan: FieldPlan, value: Any) -> Any:
    """Return a value as a row. Raises ValueRefusedError that names the field."""
    try:
        return plan.row(value)
    except ValueRefusedError as error:
        raise ValueRefusedError(f"field {plan.field.name!r} {error}") from None


def plan_samples(
    samples: Sequence[Any], subject: str, declared: Declared, *, some: bool = True
) -> SamplePlan:
    """Return the plan of a dataset, inferred from some samples.

    some: the samples represent the dataset, so check the unit of their boxes and keypoints. Raises
    UsageError, SourceError.
    """
    layout, notes = _layout(samples[0], subject, declared)
    try:
        values = [layout.values(sample) for sample in samples]
        columns = {name: [sample[name] for sample in values] for name in layout.members}
    except ValueRefusedError as error:
        raise SourceError(f"{subject}: a sample {error}.") from None
    plans, more = plan_fields(columns, subject, declared)
    ragged = 0
    for name, plan in plans.items():
        placed = some and name in COORDINATES and IMAGE in plans
        if not (plan.field.ragged or placed):
            continue  # a value that does not fit is refused later, when on_error can skip its sample
        try:
            rows = [row_of(plan, value) for value in columns[name]]
        except ValueRefusedError as error:
            raise SourceError(f"{subject}: {error}.") from None
        if plan.field.ragged:
            ragged += sum(map(len, rows)) // len(rows)
        if placed:
            dtype = plan.field.about.get("dtype", plan.field.dtype)
            parts = [np.frombuffer(row, dtype) if plan.field.ragged else row for row in rows]
            check_unit(subject, name, parts, None, None)
    return SamplePlan(layout, plans, (*notes, *more), ragged)


def plan_fields(
    columns: Mapping[str, Sequence[Any]], subject: str, declared: Declared
) -> tuple[dict[str, FieldPlan], list[str]]:
    """Return the plan of each field from some of its values, and notes. Raises SourceError."""
    plans: dict[str, FieldPlan] = {}
    notes: list[str] = []
    for name, values in columns.items():
        try:
            plans[name] = plan_field(name, values, declared)
        except ValueRefusedError as error:
            raise SourceError(f"{subject}: field {name!r} {error}.") from None
        notes += pixel_notes(plans[name].field)
        if not plans[name].color and any(is_pillow(value) and value.mode == "P" for value in values):
            notes.append(
                f"{name}: holds palette images, whose indices are stored, as for masks; to store their "
                "colours pass fields=Fields(channels='rgb')."
            )
    return with_masks(plans), notes


def _layout(sample: Any, subject: str, declared: Declared) -> tuple[SampleLayout, list[str]]:
    """Return the layout of samples like this one, and notes. Raises UsageError."""
    forms, rename, known, values = declared.forms, declared.rename, _mapping(sample), _tuple(sample)
    members: dict[str, Any]
    if known is not None:
        members = {str(key): key for key in known}
    elif values is not None:
        names = [*forms] if forms is not None else []
        names = names or default_names([_looks(v) for v in values], f"{subject}: its samples are tuples")
        if len(names) != len(values):
            raise UsageError(
                f"fields: the samples of {subject} have {len(values)} values, but {len(names)} fields are "
                "named. Name each value."
            )
        members = {name: at for at, name in enumerate(names)}
    elif forms is None and isinstance(sample, (str, bytes)):
        raise UsageError(
            f"{subject}: its samples are text or bytes. Name their field, for example fields=['text']; for "
            "image files use convert_images."
        )
    else:
        members = dict.fromkeys(forms or ["image" if is_image_like(sample) else "features"])
        if len(members) != 1:
            raise UsageError(
                f"fields: a sample of {subject} is a single value, but {len(members)} fields are named. Name "
                "one field."
            )
    for old in rename:
        if old not in members:
            raise UsageError(
                f"rename: the samples of {subject} have {', '.join(members)}, but no {old!r}. Pass one of "
                "these names."
            )
    fields = {rename.get(name, name): key for name, key in members.items()}
    if len(fields) < len(members):
        raise UsageError(f"rename={dict(rename)!r}: gives two values the same name. Pass different names.")
    if known is None:
        return SampleLayout(fields, values is not None, False), []
    for name in forms or ():
        if name not in fields:
            raise UsageError(
                f"fields: the samples of {subject} have {', '.join(fields)}, but no {name!r}. Pass these "
                "names, or rename."
            )
    fields = {name: fields[name] for name in forms or fields}
    return SampleLayout(fields, forms is None, True), _notes(fields, known)


def _notes(fields: Mapping[str, Any], sample: Mapping[Any, Any]) -> list[str]:
    """Return a note if the only images have a name other than `image`, which augment= needs."""
    images = [name for name, key in fields.items() if name in PICTURES and is_image_like(sample[key])]
    if "image" in fields or len(images) != 1:
        return []
    return [note_on_images(images[0])]


def note_on_images(name: str) -> str:
    """Return the note on images in a field that is not called `image`."""
    return (
        f"{name}: holds images; augment= and Normalize() work on the field 'image'. Pass "
        f"{option_text('Fields.rename', {name: 'image'})} to use them."
    )


def default_names(looks: Sequence[str], subject: str) -> list[str]:
    """Return default names of values, in order: (image or features, label); or (label, image).

    looks: for each value "image", "number" (a scalar), or "". subject: description of the values, the
    beginning of an error. Raises UsageError for more than two values.
    """
    if len(looks) > 2:
        raise UsageError(
            f"{subject} of {len(looks)} values without names. Pass fields, for example"
            f" {['image', 'label', 'mask', 'weight'][: len(looks)]}."
        )
    if list(looks) == ["number", IMAGE]:
        return ["label", IMAGE]
    return [IMAGE if looks[0] == IMAGE else "features", "label"][: len(looks)]


def _looks(value: Any) -> str:
    if is_image_like(value):
        return IMAGE
    return "number" if getattr(value, "ndim", 0 if isinstance(value, (int, float)) else 1) == 0 else ""


def _mapping(sample: Any) -> Mapping[Any, Any] | None:
    """Return a mapping, or a named tuple as a mapping of its fields; None for other samples."""
    if isinstance(sample, Mapping):
        return sample
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return dict(zip(sample._fields, sample, strict=True))
    return None


def _tuple(sample: Any) -> Sequence[Any] | None:
    """Return the values of a tuple, or of a list that does not hold only numbers; None for other samples."""
    if isinstance(sample, tuple):
        return sample
    if isinstance(sample, list) and not all(isinstance(v, (int, float, np.number)) for v in sample):
        return sample
    return None


def _type_name(sample: Any) -> str:
    return type(sample).__name__
