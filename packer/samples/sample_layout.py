"""The values of a sample (a dict, a tuple, one value) by the names of their fields; the fields as the first samples show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packer.errors import SourceError, UsageError
from packer.format.header import Field
from packer.samples.coordinates import Coordinates
from packer.samples.field_plan import (
    PICTURES,
    FieldPlan,
    Form,
    is_image_like,
    plan_field,
    with_masks,
)
from packer.samples.values import ValueRefusedError, is_pillow
from packer.sentence import Option, Sentence


@dataclass(frozen=True)
class SampleLayout:
    """The members of a sample that become fields.

    members: field -> key or position in the sample; None: the sample itself. strict: other members than these are an error, since
    nobody said that they are to be left out. named: samples are mappings.
    """

    members: Mapping[str, Any]
    strict: bool
    named: bool

    def values(self, sample: Any) -> dict[str, Any]:
        """Return the values of a sample by field. Raises ValueRefusedError for a sample of another form than the first."""
        members = self.members
        if None in members.values():
            return dict.fromkeys(members, sample)
        if self.named:
            known = _mapping(sample)
            if known is None:
                raise ValueRefusedError(
                    f"is {_kind(sample)}, and others are mappings. Return one form of sample"
                )
            for name, key in members.items():
                if key not in known:
                    raise ValueRefusedError(
                        f"has no {key!r}, of which the field {name!r} is made. Return it in every sample"
                    )
            if self.strict and len(known) > len(members):
                extra = next(key for key in known if key not in members.values())
                raise ValueRefusedError(
                    f"has {extra!r}, which the first samples had not. Return it in every sample, or name the fields that are wanted"
                )
            return {name: known[key] for name, key in members.items()}
        values = _tuple(sample)
        if values is None or (self.strict and len(values) != len(members)) or len(values) < len(members):
            found = _kind(sample) if values is None else f"{len(values)} values"
            raise ValueRefusedError(
                f"is {found}, and others are {len(members)} values. Return one form of sample"
            )
        return {name: values[position] for name, position in members.items()}


@dataclass(frozen=True)
class SamplePlan:
    """The layout of samples, the plan of each field, and what to tell of them.

    ragged_bytes: a row's, about; coordinates: how boxes and keypoints are read and moved.
    """

    layout: SampleLayout
    plans: Mapping[str, FieldPlan]
    coordinates: Coordinates
    ragged_bytes: int = 0
    notes: tuple[str, ...] = ()

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields, in order."""
        return tuple(plan.field for plan in self.plans.values())

    def rows(self, sample: Any) -> dict[str, Any]:
        """Return a sample's rows by field, arrays and bytes. Raises ValueRefusedError."""
        rows = {}
        given = self.layout.values(sample)
        for name, value in self.coordinates.move(given).items():
            try:
                rows[name] = self.plans[name].row(value)
            except ValueRefusedError as error:
                raise ValueRefusedError(f"field {name!r} {error}") from None
        self.coordinates.see({name: [value] for name, value in given.items()})
        return rows


def plan_samples(
    samples: Sequence[Any],
    subject: str,
    forms: Mapping[str, Form | None] | None,
    rename: Mapping[str, str],
    channels: str | None,
    coordinates: Coordinates,
) -> SamplePlan:
    """Return the plan that some samples of a dataset show. forms: as declared; coordinates: see these samples.

    Raises UsageError, SourceError.
    """
    layout, notes = _layout(samples[0], subject, forms, rename)
    try:
        given = [layout.values(sample) for sample in samples]
        values = [coordinates.move(sample) for sample in given]
    except ValueRefusedError as error:
        raise SourceError(f"{subject}: a sample {error}.") from None
    plans, ragged = {}, 0
    for name in layout.members:
        column = [sample[name] for sample in values]
        try:
            plans[name] = plan_field(
                name,
                column,
                (forms or {}).get(name),
                channels,
                coordinates.sized,
                shortened=coordinates.shortens(name, layout.members),
            )
            notes += notes_on(name, plans[name], column)
            if plans[name].field.ragged:
                ragged += sum(len(plans[name].row(value)) for value in column) // len(column)
        except ValueRefusedError as error:
            raise SourceError(f"{subject}: field {name!r} {error}.") from None
    coordinates.see({name: [sample[name] for sample in given] for name in layout.members})
    return SamplePlan(layout, with_masks(plans), coordinates, ragged, tuple(notes))


def notes_on(name: str, plan: FieldPlan, values: Sequence[Any]) -> list[str]:
    """Say that palette images are stored as their indices."""
    if plan.color or not any(is_pillow(value) and value.mode == "P" for value in values):
        return []
    return [
        Sentence(
            f"{name}: holds palette images, whose indices are stored, as of masks; for their colours pass "
            f"{Option('Fields.channels', 'rgb')}."
        )
    ]


def _layout(
    sample: Any, subject: str, forms: Mapping[str, Form | None] | None, rename: Mapping[str, str]
) -> tuple[SampleLayout, list[str]]:
    known, values = _mapping(sample), _tuple(sample)
    if known is not None:
        fields = {rename.get(str(key), str(key)): key for key in known}
        _check_rename(rename, list(map(str, known)), subject)
        if forms is not None:
            for name in forms:
                if name not in fields:
                    raise UsageError(
                        f"fields: the samples of {subject} have {', '.join(fields)}, and no {name!r}. Pass these, or rename."
                    )
            fields = {name: fields[name] for name in forms}
        return SampleLayout(fields, forms is None, True), _notes(fields, known)
    if values is not None:
        names = [*forms] if forms is not None else _default_names(values, subject)
        if len(names) != len(values):
            raise UsageError(
                f"fields: the samples of {subject} have {len(values)} values, and {len(names)} fields are named. Name each."
            )
        _check_rename(rename, names, subject)
        return SampleLayout({rename.get(name, name): at for at, name in enumerate(names)}, True, False), []
    if forms is None and isinstance(sample, (str, bytes)):
        raise UsageError(
            f"{subject}: its samples are text or bytes. Name their field, for example fields=['text']; image files are converted by"
            " convert_images."
        )
    names = [*forms] if forms is not None else ["image" if is_image_like(sample) else "features"]
    if len(names) != 1:
        raise UsageError(
            f"fields: a sample of {subject} is one value, and {len(names)} fields are named. Name one."
        )
    _check_rename(rename, names, subject)
    return SampleLayout({rename.get(names[0], names[0]): None}, False, False), []


def _check_rename(rename: Mapping[str, str], names: Sequence[str], subject: str) -> None:
    for old in rename:
        if old not in names:
            raise UsageError(
                f"rename: the samples of {subject} have {', '.join(names)}, and no {old!r}. Pass one of these names."
            )
    if len({rename.get(name, name) for name in names}) != len(names):
        raise UsageError(f"rename={dict(rename)!r}: gives one name to two values. Pass different ones.")


def _notes(fields: Mapping[str, Any], sample: Mapping[Any, Any]) -> list[str]:
    """Say that augment= looks for `image`, where images are called otherwise."""
    images = [name for name, key in fields.items() if name in PICTURES and is_image_like(sample[key])]
    if "image" in fields or len(images) != 1:
        return []
    return [
        Sentence(
            f"{images[0]}: holds images; augment= and Normalize() work on the field 'image'. Pass "
            f"{Option('Fields.rename', {images[0]: 'image'})} for these."
        )
    ]


def _default_names(values: Sequence[Any], subject: str) -> list[str]:
    """Return the names of a tuple's values where nobody gave them: (image or features, label)."""
    if len(values) > 2:
        raise UsageError(
            f"{subject}: its samples are tuples of {len(values)} values without names. Pass fields, for example"
            f" {['image', 'label', 'mask', 'weight'][: len(values)]}."
        )
    names = ["image" if is_image_like(values[0]) else "features", "label"]
    return names[: len(values)]


def _mapping(sample: Any) -> Mapping[Any, Any] | None:
    """Return a sample as a mapping: of a named tuple its fields; None of others."""
    if isinstance(sample, Mapping):
        return sample
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return dict(zip(sample._fields, sample, strict=True))
    return None


def _tuple(sample: Any) -> Sequence[Any] | None:
    """Return the values of a tuple, or of a list that is no list of numbers; None of others."""
    if isinstance(sample, tuple):
        return sample
    if isinstance(sample, list) and not all(isinstance(v, (int, float, np.number)) for v in sample):
        return sample
    return None


def _kind(sample: Any) -> str:
    return type(sample).__name__
