"""Several packs as one, in memory: their rows follow each other like those of shards. Nothing is written.

`concatenate_packs` is for conversion, which needs equal fields; `join_packs` for loading, which takes those
that are alike. Both check that rows of all packs have the same meaning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.fields import (
    OFFSETS,
    Field,
    find_field,
)
from packer.format.header import Header
from packer.format.plan_differences import difference
from packer.format.table_record import MAX_SKIPPED
from packer.packs.file_rows import counted_files, fits, is_counted
from packer.packs.pack import Pack
from packer.packs.shards import merge_headers, pooled_statistics

_DROPPED = {"role": "drop"}
CLASS_FIELDS = ("label", "box_label")  # fields whose numbers stand for classes


@dataclass(frozen=True)
class PacksAsOne(Pack):
    """Packs that are loaded as one; they are its shards."""

    def __fspath__(self) -> str:
        """Raise UsageError, because joined packs are not a file."""
        raise UsageError(
            f"{self.path}: are packs that were joined for loading; a file is needed here. Pass each pack"
            " separately."
        )

    @property
    def packs(self) -> tuple[Pack, ...]:
        """See Pack."""
        return tuple(one for pack in self.shards for one in pack.packs)

    @property
    def ahead_bytes(self) -> int | None:
        """See Pack."""
        return max((pack.ahead_bytes for pack in self.shards if pack.ahead_bytes is not None), default=None)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.generic]:
        """See Pack."""
        if self.header.field(name.removesuffix(OFFSETS)).ragged:
            raise ValueError(f"{name!r} is not stored in one piece")
        dtype, shape = self.header.form(name)
        pieces = self.pieces(name, start, self.rows if stop is None else stop)
        found = [pack.read(own, low, high) for pack, own, low, high in pieces]
        return np.concatenate([np.empty((0, *shape), dtype), *found])


@dataclass(frozen=True)
class JoinedPack(PacksAsOne):
    """Packs whose rows are loaded as those of one pack. fields_asked, shares: see join_packs."""

    fields_asked: tuple[str, ...] | None = field(kw_only=True)
    shares: tuple[float, ...] | None = field(kw_only=True)

    @property
    def members(self) -> tuple[Pack, ...]:
        """See Pack."""
        return self.shards

    def settled(self) -> Pack:
        """See Pack."""
        packs = [pack.settled() for pack in self.shards]
        if all(now is before for now, before in zip(packs, self.shards, strict=True)):
            return self
        return join_packs(packs, self.fields_asked, self.shares)

    def origin(self, name: str) -> object:
        """See Pack."""
        return [pack.origin(name) for pack in self.shards]


def concatenate_packs(packs: Sequence[Pack]) -> Pack:
    """Return packs with equal fields as one, after checking every shard: conversion will read all of it.

    Its classes are those of all packs, sorted if they differ; labels keep the numbers of their own pack.
    Numbers of a table's rows are left out unless all packs have them; of mappings the first is recorded.
    Raises UsageError that names the first difference if fields or mappings differ, if only some packs have
    classes, or if packs with multi-label rows have different classes.
    """
    first, headers = packs[0], [part.header for pack in packs for part in pack.parts]
    counted = all(map(is_counted, headers)) and fits(counted_files(headers))
    fields, *others = ([f for f in pack.fields if counted or not f.counts] for pack in packs)
    for pack, theirs in zip(packs[1:], others, strict=True):
        _check_alike(first, fields, pack, theirs)
    for pack in packs:
        pack.confirm()
    merged = merge_headers([_reduced(pack.header, fields) for pack in packs])
    classes, table = first.header.classes, table_of(first)
    if other := next((pack for pack in packs if pack.header.classes != classes), None):
        if any(f.name == "label" and f.shape != () for f in fields):
            raise UsageError(
                f"{other.path}: its label columns are other classes than those of {first.path}; they have to"
                " be equal. Convert the images of both at once."
            )
        classes = tuple(sorted({name for pack in packs for name in pack.header.classes or ()}))
    skipped = [record for pack in packs if (record := (pack.parts[0].header.table or {}).get("skipped"))]
    if table is not None and skipped:
        table = {**table, "skipped": _merge_skipped(skipped)}
    header = replace(merged, classes=classes, table=table)
    return Pack(" + ".join(pack.path for pack in packs), header, b"", tuple(packs))


def _check_alike(first: Pack, fields: Sequence[Field], pack: Pack, theirs: Sequence[Field]) -> None:
    """Check that rows of two packs have the same meaning. fields, theirs: those that are compared."""
    if any(table_of(one) is not None for one in (first, pack)):
        check_mappings(first, pack)
    for own in fields:
        if (other := find_field(theirs, own.name)) is not None:
            # Label columns that are classes are compared with the classes.
            _check_fields(first, own, pack, other, columns=first.header.classes is None)
    names = [", ".join(f.name for f in some) for some in (theirs, fields)]
    if names[0] != names[1]:
        raise UsageError(
            f"{pack.path}: has the fields {names[0]}, {first.path} has {names[1]}; packs with equal fields"
            f" can be joined. Convert a source that has all of them, with like={first.path!r}."
        )
    if (pack.header.classes is None) != (first.header.classes is None):
        raise UsageError(
            f"{pack.path}, {first.path}: only one of them has class names; all packs need them, or none."
        )


def _merge_skipped(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the records of the rows that several conversions of tables left out as one record."""
    reasons: Counter[str] = Counter()
    for record in records:
        reasons.update(record["reasons"])
    listed = [skipped for record in records for skipped in record["first"]]
    return {"rows": sum(r["rows"] for r in records), "reasons": dict(reasons), "first": listed[:MAX_SKIPPED]}


def join_packs(
    packs: Sequence[Pack], fields: Sequence[str] | None = None, shares: Sequence[float] | None = None
) -> JoinedPack:
    """Return several packs as one for loading, after checking that their rows match.

    fields: fields that will be loaded, None for all but texts; these must be alike in all packs. The result
    also has the other fields that are alike.
    Class names, splits and seed are those that the packs have in common. Statistics are over all rows, or
    over rows drawn in proportion to `shares`. Raises UsageError that names the first difference.
    """
    first = packs[0]
    asked = {
        name
        for pack in packs
        for name in (_default_fields(pack) if fields is None else {f.name for f in pack.fields} & {*fields})
    }
    different: set[str] = set()
    for pack in packs[1:]:
        for f in first.fields:
            try:
                _check_loadable(first, f, pack, packs)
            except UsageError:
                if f.name in asked:
                    raise
                different.add(f.name)
        if any(table_of(one) is not None for one in (first, pack)):
            check_mappings(first, pack)
    for pack in packs:
        if lacking := asked - {f.name for f in pack.fields}:
            raise _field_missing(pack, min(lacking), packs)
    kept = [f for f in first.fields if f.name not in different]
    headers = [_reduced(pack.header, kept) for pack in packs]
    merged = merge_headers(headers)
    return JoinedPack(
        " + ".join(pack.path for pack in packs),
        _in_common(merged, packs, shares),
        b"",
        tuple(packs),
        verify=any(pack.verify for pack in packs),
        filled=any(pack.filled for pack in packs),
        fields_asked=None if fields is None else tuple(fields),
        shares=None if shares is None else tuple(shares),
    )


def _check_fields(first: Pack, own: Field, pack: Pack, other: Field, *, columns: bool) -> None:
    """Check that a field of two packs is stored alike and has the same meaning, except for the fit of
    pictures.

    columns: False to ignore names of columns, for fields whose class names are compared instead. Raises
    UsageError.
    """
    if (own.name, own.dtype, own.shape, own.codec) != (other.name, other.dtype, other.shape, other.codec):
        raise UsageError(
            f"{pack.path}: its field {other.name!r} is {_form(other)}, that of {first.path} is {own.name!r},"
            f" {_form(own)}; the packs must have equal fields. Run packer repack on one of them."
        )
    spared = {"fit": None} | ({} if columns else {"columns": None})
    if found := difference({**own.about, **spared}, {**other.about, **spared}, f"of {own.name!r},"):
        raise UsageError(
            f"{pack.path}, {first.path}: their fields mean different things ({found});"
            " the packs must have equal fields."
        )


def table_of(pack: Pack) -> Mapping[str, Any] | None:
    """Return the record of how a table's columns became fields; None for a pack of images."""
    return pack.header.table or pack.parts[0].header.table


def check_mappings(first: Pack, pack: Pack) -> None:
    """Raise UsageError if two packs map a table's columns differently, or only one comes from a table."""
    table, other = table_of(first), table_of(pack)
    if table is None or other is None:
        made = ("a table", "images") if other is None else ("images", "a table")
        raise UsageError(
            f"{pack.path}: was converted from {made[1]}, {first.path} from {made[0]};"
            " the packs must be of one kind. Leave one of them out."
        )
    own, theirs = (
        {c["name"]: {"role": c["role"], **c, "statistics": None} for c in one["columns"]}
        for one in (table, other)
    )
    compared: dict[str, tuple[Any, Any]] = {
        f"its column {name!r} is": (own.get(name, _DROPPED), theirs.get(name, _DROPPED))
        for name in {**own, **theirs}
    }
    rest = ("features", "categories", "dtype", "label")
    compared["it is"] = {name: table[name] for name in rest}, {name: other[name] for name in rest}
    for what, (here, there) in compared.items():
        roles = here.get("role"), there.get("role")
        # A column that only one pack keeps is compared as a field.
        ignored = "drop" in roles and set(roles) <= {"drop", "keep"}
        if not ignored and (found := difference(here, there, "", ("is", f" in {first.path}, and"))):
            raise UsageError(
                f"{pack.path}: {what} mapped differently ({found} here); the packs must have equal mappings."
                f" Convert its table again with like={first.path!r}."
            )


def _default_fields(pack: Pack) -> list[str]:
    """Return the fields that are loaded by default."""
    return [f.name for f in pack.fields if f.by_default]


def _check_loadable(first: Pack, own: Field, pack: Pack, packs: Sequence[Pack]) -> None:
    """Check that rows of a field of two packs can be loaded into one batch. Raises UsageError."""
    other = pack.header.find(own.name)
    if other is None:
        raise _field_missing(pack, own.name, packs)
    classes = own.name in CLASS_FIELDS
    if classes:
        first.check_classes(pack)
    _check_fields(
        first, _decoded(own), pack, _decoded(other), columns=not classes or first.header.classes is None
    )


def _decoded(field: Field) -> Field:
    """Return a field without the members that its decoder does not need."""
    codec = {name: value for name, value in (field.codec or {}).items() if name != "quality"}
    about = {name: value for name, value in field.about.items() if name != "size"}
    return replace(field, about=about, codec=codec or None)


def _field_missing(pack: Pack, name: str, packs: Sequence[Pack]) -> UsageError:
    """Return the error for a field that is missing here and present in another pack."""
    other = next(one for one in packs if one.header.find(name) is not None)
    common = [n for n in _default_fields(packs[0]) if all(one.header.find(n) is not None for one in packs)]
    remedy = f"Pass fields={common!r}, which all have." if common else "Leave one of them out."
    return UsageError(
        f"{pack.path}: has no field {name!r}, which {other.path} has; packs that are loaded together"
        f" have the same fields. {remedy}"
    )


def _reduced(header: Header, fields: Sequence[Field]) -> Header:
    """Return a header with these fields only, in this order."""
    arrays = [name for f in fields for name in f.arrays]
    extents = {name: header.extents[name] for name in arrays}
    return replace(header, fields=tuple(fields), extents=extents)


def _in_common(header: Header, packs: Sequence[Pack], shares: Sequence[float] | None) -> Header:
    """Return a header with the members that hold for rows of all packs, drawn in proportion to `shares`."""
    headers = [pack.header for pack in packs]
    normalizations = [own.normalization for own in headers]
    pooled = pooled_statistics(headers, shares)
    if all(n == normalizations[0] for n in normalizations) and normalizations[0]:
        pooled["statistics"]["image"] = {name: list(normalizations[0][name]) for name in ("mean", "std")}
        pooled["train_statistics"] = {}
    names = {f.name for f in header.fields}
    pooled = {member: {n: found[n] for n in found if n in names} for member, found in pooled.items()}
    return replace(
        header,
        classes=headers[0].classes if all(own.classes == headers[0].classes for own in headers) else None,
        seed=headers[0].seed if all(own.seed is not None for own in headers) else None,
        provenance={},
        **pooled,
    )


def _form(f: Field) -> str:
    shape = "any length" if f.shape is None else "x".join(map(str, f.shape)) or "scalar"
    return f"{f.dtype.lstrip('<|')} {shape}" + (f" {dict(f.codec)}" if f.codec else "")
