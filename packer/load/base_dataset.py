"""BaseDataset: opening a pack, choosing rows and fields, and what both datasets tell of themselves."""

from __future__ import annotations

import math
import os
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any, TypeAlias

import numpy as np

from packer.errors import UsageError
from packer.format.header import Field
from packer.format.joined_pack import join_packs
from packer.format.pack import Pack
from packer.format.pack_opening import open_pack
from packer.orders.runs import Subset, one_run
from packer.read.array_store import PackStore
from packer.read.row_selection import (
    ALL,
    class_names,
    overlooked_splits,
    select,
    select_fields,
    select_rows,
    stored,
)
from packer.remote.urls import is_url

PackPath: TypeAlias = str | os.PathLike[str] | Pack
PackPaths: TypeAlias = PackPath | Sequence[PackPath] | Sequence[tuple[PackPath, float]]
"""One pack, a list of packs, or a list of (pack, weight)."""


@dataclass(frozen=True)
class ChosenRows:
    """Rows of a pack, or of several that are read as one, and the fields of them that a dataset loads.

    choice: the arguments that chose them, as text. weights: of the packs, where several were given with one each.
    overlooked: a warning of splits that are loaded without anyone having said so.
    """

    pack: Pack
    fields: tuple[Field, ...]
    subset: Subset
    choice: str
    weights: tuple[float, ...] = ()
    overlooked: str | None = None

    @classmethod
    def open(cls, path: PackPaths, fields: Sequence[str] | None, **chosen: Any) -> ChosenRows:
        """Open a pack or several, and choose fields and rows. chosen: split, classes and subset."""
        pack, weights = open_packs(path, fields, chosen["split"])
        names, rows = select_fields(pack, fields), select(pack, **chosen)
        overlooked = overlooked_splits(pack, chosen["split"], chosen["subset"])
        return cls(pack, names, rows, _described(chosen), weights, overlooked)

    def store(self) -> PackStore:
        """Return the store that reads them from the pack's files."""
        # Rows that have just been made need not be compared with checksums, which there are none of yet; those that come from a
        # store have been.
        verify = self.pack.verify and not self.pack.pending
        return PackStore(self.pack, stored(self.fields), self.subset, verify=verify)


class BaseDataset:
    """Base of the datasets: the rows of a pack that were chosen, and what they tell of themselves under torchvision's names.

    Classes, targets and keys are read when they are first asked for, in the order of the rows; changing them changes no row.
    """

    pack: Pack
    fields: tuple[Field, ...]
    subset: Subset

    def _keep(self, rows: ChosenRows) -> None:
        self.pack, self.fields, self.subset = rows.pack, rows.fields, rows.subset
        self._names, self._stored = tuple(f.name for f in rows.fields), stored(rows.fields)
        self._rows, self._store = rows, rows.store()

    def _settle(self) -> bool:
        """Take the whole pack in place of one that was being filled, once it is sealed; return True if its reader is another one, too.

        What is open stays: it is the same file, and mapping it anew would cost as much as the first epoch of a pack.
        """
        pack = self.pack.settled()
        if pack is self.pack:
            return False
        self.pack, self._rows = pack, replace(self._rows, pack=pack)
        if self._store.opened and not pack.verify:
            return False
        self._store.close()
        self._store = self._rows.store()
        return True

    def _summary(self, **lines: str) -> str:
        """Return the repr: name and pack, then one line for each property."""
        shapes = ", ".join(
            f"{f.name} {'of any length' if f.ragged else np.dtype(f.dtype)}{list(f.shape) if f.shape else ''}"
            for f in self.fields
        )
        rows = f"{self.subset.rows:,}"
        rows += f" of {self.pack.rows:,}" * (self.subset.rows != self.pack.rows)
        choice = self._rows.choice
        told = {"rows": f"{rows} ({choice})" if choice else rows, "fields": shapes, **lines}
        first = f"{type(self).__name__} of {self.pack.path}"
        return "\n".join([first, *(f"    {key}: {text}" for key, text in told.items())])

    @cached_property
    def classes(self) -> list[str]:
        """Names of the classes by number: all of the pack's, also where the dataset loads some of them only."""
        names = class_names(self.pack)
        if not names:
            raise AttributeError(
                f"{self.pack.path}: has no class names. Labels are in targets, if there are any."
            )
        return list(names)

    @cached_property
    def class_to_idx(self) -> dict[str, int]:
        """Numbers of the classes by name."""
        return {name: number for number, name in enumerate(self.classes)}

    @cached_property
    def targets(self) -> list[Any]:
        """The label of each row: numbers, or lists of numbers where a label holds several. Costs 10 to 100 ms a million."""
        if all(f.name != "label" or f.ragged for f in self.pack.fields):
            raise AttributeError(f"{self.pack.path}: has no field 'label' of one length, so no targets.")
        return list(self._store.column("label").tolist())

    @cached_property
    def keys(self) -> list[str]:
        """The path of each row's input, as its folder, list or archive named it."""
        self._settle()
        if all(f.name != "key" for f in self.pack.fields):
            raise AttributeError(f"{self.pack.path}: has no field 'key', so no keys.")
        return list(self._store.decoded("key", one_run(0, self.subset.rows)))


def _described(chosen: Mapping[str, Any]) -> str:
    """Return the arguments that choose rows as text, long ones shortened."""
    given = {name: value for name, value in chosen.items() if value is not None}
    return ", ".join(
        f"{name}={'...' if hasattr(value, 'dtype') else reprlib.repr(value)}" for name, value in given.items()
    )


def open_packs(
    given: PackPaths, fields: Sequence[str] | None, split: str | None
) -> tuple[Pack, tuple[float, ...]]:
    """Open what a dataset was given as its path. Return it as one pack, and the weights of its members, () if it has none.

    fields, split: as the dataset loads them; each of several packs needs them. Raises UsageError for a list that is none of packs,
    or of packs whose rows do not go together; FormatError.
    """
    if isinstance(given, (str, os.PathLike, Pack)):
        return _opened(given), ()
    if not isinstance(given, Sequence):
        raise UsageError(
            f"path={given!r}: is no path, and no list of them. Pass a pack's path, or a list such as"
            " ['a.h5', 'b.h5'] or [('a.h5', 0.7), ('b.h5', 0.3)]."
        )
    if not given:
        raise UsageError("path=[]: names no pack; one at least is needed. Pass their paths.")
    weights = [one[1] for one in given if isinstance(one, (tuple, list)) and len(one) == 2]
    if len(weights) not in (0, len(given)):
        raise UsageError(
            f"path: {len(weights)} of {len(given)} packs have a weight; all or none have one. Pass one for each, such as"
            " [('a.h5', 0.7), ('b.h5', 0.3)]."
        )
    paths: list[Any] = list(given)
    if weights:
        paths = [one[0] for one in paths]
    packs = [_opened(path) for path in paths]
    shares = tuple(_weight(pack.path, weight) for pack, weight in zip(packs, weights, strict=False))
    found: set[str] = set()
    for pack in packs:
        names = {part.path if is_url(part.path) else os.path.realpath(part.path) for part in pack.parts}
        if found & names:
            raise UsageError(
                f"{pack.path}: is in the list twice; each pack once is allowed. Give it a larger weight instead."
            )
        found |= names
    if split is not None:
        for pack in packs:
            select_rows(pack, None if split == ALL and ALL not in pack.header.splits else split)
    return join_packs(packs, fields, shares or None), shares


def _opened(one: PackPath) -> Pack:
    """Return an open pack for one dataset alone. Raises UsageError, FormatError."""
    if not isinstance(one, (str, os.PathLike, Pack)):
        raise UsageError(f"path: {one!r} is no path of a pack. Pass paths, or (path, weight) for each.")
    return one.own() if isinstance(one, Pack) else open_pack(one)


def _weight(path: str, weight: Any) -> float:
    if isinstance(weight, bool) or not isinstance(weight, Real) or not 0 < float(weight) < math.inf:
        raise UsageError(
            f"{path}: its weight is {weight!r}; finite numbers above 0 are allowed. Pass its share of the rows, or leave the pack out."
        )
    return float(weight)
