"""Options of convert_table that are value objects, and the conversion of mappings into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from inspect import signature
from typing import Any, TypeVar

from packer.arguments import whole
from packer.declared_types import checked_class
from packer.errors import UsageError
from packer.given_values import shown
from packer.tables.reading.table_source import Csv, ReadOptions
from packer.tables.transform.column_plan import column_names
from packer.tables.transform.table_transform import TableTransform

__all__ = ["Csv", "Encode"]
T = TypeVar("T")


@checked_class
@dataclass(frozen=True)
class Encode:
    """Rarer encodings of features.

    log1p: columns mapped by log(1 + x); indicators: add a 0/1 feature for each column with missing values;
    max_categories: most categories of a column.

    >>> Encode(log1p="fare,distance").log1p
    ('fare', 'distance')
    """

    log1p: str | Sequence[str] | None = ()
    indicators: bool = False
    max_categories: int = 100_000

    def __post_init__(self) -> None:
        object.__setattr__(self, "log1p", column_names(self.log1p or ()))
        whole("max_categories", self.max_categories, 1)


def read_alike(reading: ReadOptions, transform: TableTransform, alike: str) -> ReadOptions:
    """Return the reading options of a pack, overridden by the given ones; its columns keep their types.

    alike: as in ReadOptions.
    """
    record = transform.reading
    rule = asdict(ReadOptions())
    before = {name: value for name, value in record.items() if name in rule}
    if before.keys() - {"types"} and "keep_spaces" not in before:
        before["keep_spaces"] = True  # older versions kept them
    types = {c.name: c.notation or c.type for c in transform.columns if c.role != "drop"}
    before |= {"types": {**types, **before.get("types", {})}, "alike": alike, "words": "na" in record}
    return ReadOptions(**rule | before | {k: v for k, v in asdict(reading).items() if v != rule[k]})


def value(kind: type[T], given: T | Mapping[str, Any] | None) -> T:
    """Return an option's value, which may be given as a mapping (by other processes). Raises UsageError."""
    if isinstance(given, kind):
        return given
    members = signature(kind).parameters
    if given is None or (isinstance(given, Mapping) and given.keys() <= members.keys()):
        return kind(**(given or {}))
    name = kind.__name__
    raise UsageError(
        f"{name.lower()}={shown(given)}: is not of type {name}. Pass {name}(...), with {', '.join(members)}."
    )
