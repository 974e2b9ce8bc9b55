"""BaseDataset: opens packs, chooses rows and fields, and describes them (classes, targets, keys, repr)."""

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
from packer.format.fields import Field
from packer.orders.runs import Subset, one_run
from packer.packs.joined_pack import join_packs
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.read.array_store import PackStore
from packer.read.row_selection import (
    Splits,
    class_names,
    overlooked_splits,
    select,
    select_fields,
    select_rows,
    stored,
    unless_all,
)
from packer.remote.urls import is_url

PackPath: TypeAlias = str | os.PathLike[str] | Pack
PackPaths: TypeAlias = PackPath | Sequence[PackPath] | Sequence[tuple[PackPath, float]]
"""One pack, a list of packs, or a list of (pack, weight)."""


@dataclass(frozen=True)
class ChosenRows:
    """Chosen rows of a pack, or of several that are read as one, and the fields that a dataset loads.

    choice: the arguments that chose them, as text. weights: of the packs, if given.
    overlooked: a warning about splits that are loaded together because none was named.
    """

    pack: Pack
    fields: tuple[Field, ...]
    subset: Subset
    choice: str
    weights: tuple[float, ...] = ()
    overlooked: str | None = None

    @classmethod
    def open(cls, path: PackPaths, fields: Sequence[str] | None, **chosen: Any) -> ChosenRows:
        """Open the packs, and choose fields and rows. chosen: split, classes and subset."""
        pack, weights = open_packs(path, fields, chosen["split"])
        names, rows = select_fields(pack, fields), select(pack, **chosen)
        overlooked = overlooked_splits(pack, chosen["split"], chosen["subset"])
        return cls(pack, names, rows, _described(chosen), weights, overlooked)

    def store(self) -> PackStore:
        """Return the store that reads them from the pack's files."""
        # Rows of a pack that is being filled have no checksums yet; a remote pack verifies its downloads.
        verify = self.pack.verify and not self.pack.pending
        return PackStore(self.pack, stored(self.fields), self.subset, verify=verify)


class BaseDataset:
    """Base of the datasets: chosen rows of a pack; classes, targets and keys under torchvision's names.

    Classes, targets and keys are read on first access, in row order; changing them changes no row.
    """

    pack: Pack
    fields: tuple[Field, ...]
    subset: Subset

    def _keep(self, rows: ChosenRows) -> None:
        self.pack, self.fields, self.subset = rows.pack, rows.fields, rows.subset
        self._names, self._stored = tuple(f.name for f in rows.fields), stored(rows.fields)
        self._rows, self._store = rows, rows.store()

    def _settle(self) -> bool:
        """Replace a pack that was being filled by the sealed one; return True if the reader changed too.

        Open files stay open: mapping the same file again would cost as much as the first epoch.
        """
        pack = self.pack.settled()
        if pack is self.pack:
            return False
        self.pack, self._rows = pack, replace(self._rows, pack=pack)
        if self._store.opened and not pack.verify and not pack.shards:
            return False
        self._store.close()
        self._store = self._rows.store()
        return True

    def _summary(self, **lines: str) -> str:
        """Return the repr: class and pack, then one line for each property."""
        shapes = ", ".join(
            f"{f.name} {'of any length' if f.ragged else np.dtype(f.dtype)}{list(f.shape) if f.shape else ''}"
            for f in self.fields
        )
        loaded = {"key", *self._names}
        texts = [f.name for f in self.pack.fields if "encoding" in f.about and f.name not in loaded]
        if texts:
            shapes += f" (not loaded: {', '.join(texts)}; name them by fields=)"
        rows = f"{self.subset.rows:,}"
        rows += f" of {self.pack.rows:,}" * (self.subset.rows != self.pack.rows)
        choice = self._rows.choice
        told = {"rows": f"{rows} ({choice})" if choice else rows, "fields": shapes, **lines}
        first = f"{type(self).__name__} of {self.pack.path}"
        return "\n".join([first, *(f"    {key}: {text}" for key, text in told.items())])

    @cached_property
    def classes(self) -> list[str]:
        """Names of the classes by number: all classes of the pack, even if the dataset loads only some."""
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
        """Label of each row: a number, or a list where a label holds several.

        Costs 10 to 100 ms a million rows.
        """
        if all(f.name != "label" or f.ragged for f in self.pack.fields):
            raise AttributeError(f"{self.pack.path}: has no field 'label' of one length, so no targets.")
        return list(self._store.column("label").tolist())

    @cached_property
    def keys(self) -> list[str]:
        """Path of each row's input, as its folder, list or archive named it."""
        self._settle()
        if self.pack.header.find("key") is None:
            raise AttributeError(f"{self.pack.path}: has no field 'key', so no keys.")
        return list(self._store.decoded("key", one_run(0, self.subset.rows)))


def _described(chosen: Mapping[str, Any]) -> str:
    """Return the arguments that choose rows as text, long ones shortened."""
    given = {name: value for name, value in chosen.items() if value is not None}
    return ", ".join(
        f"{name}={'...' if hasattr(value, 'dtype') else reprlib.repr(value)}" for name, value in given.items()
    )


def open_packs(
    given: PackPaths, fields: Sequence[str] | None, split: Splits
) -> tuple[Pack, tuple[float, ...]]:
    """Open the packs of the argument `path`.

    Return them as one pack, and their weights, () if they have none.
    fields, split: as the dataset loads them; each pack needs them. Raises UsageError for a list of anything
    but packs, or of packs with incompatible rows; FormatError.
    """
    if isinstance(given, (str, os.PathLike, Pack)):
        return _opened(given), ()
    if not given:
        raise UsageError("path=[]: names no pack; at least one is needed. Pass their paths.")
    weights = [one[1] for one in given if isinstance(one, (tuple, list)) and len(one) == 2]
    if len(weights) not in (0, len(given)):
        raise UsageError(
            f"path: {len(weights)} of {len(given)} packs have a weight; all or none must have one. Pass a"
            " weight for each, such as [('a.h5', 0.7), ('b.h5', 0.3)]."
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
                f"{pack.path}: is in the list twice; each pack is allowed once. Give it a larger weight"
                " instead."
            )
        found |= names
    if split is not None:
        for pack in packs:
            select_rows(pack, unless_all(pack, split))
    return join_packs(packs, fields, shares or None), shares


def _opened(one: PackPath) -> Pack:
    """Return a pack opened for one dataset alone. Raises FormatError."""
    return one.exclusive() if isinstance(one, Pack) else open_pack(one)


def _weight(path: str, weight: Any) -> float:
    if isinstance(weight, bool) or not isinstance(weight, Real) or not 0 < float(weight) < math.inf:
        raise UsageError(
            f"{path}: its weight is {weight!r}; finite numbers above 0 are allowed. Pass its share of the"
            " rows, or leave the pack out."
        )
    return float(weight)
