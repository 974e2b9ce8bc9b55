"""Several packs as one dataset: a list of paths, perhaps each with a weight."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from numbers import Real
from typing import Any, TypeAlias

from packer.errors import UsageError
from packer.format.joined_pack import join_packs
from packer.format.pack import Pack, open_pack
from packer.read.row_selection import ALL, select_rows
from packer.remote.urls import is_url

PackPath: TypeAlias = str | os.PathLike[str] | Pack
PackPaths: TypeAlias = PackPath | Sequence[PackPath] | Sequence[tuple[PackPath, float]]
"""One pack, a list of packs, or a list of (pack, weight)."""


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
    weighted = [_is_pair(one) for one in given]
    if any(weighted) != all(weighted):
        raise UsageError(
            f"path: {sum(weighted)} of {len(given)} packs have a weight; all or none have one. Pass one for each, such as"
            " [('a.h5', 0.7), ('b.h5', 0.3)]."
        )
    pairs: list[Any] = [one if paired else (one, 1.0) for one, paired in zip(given, weighted, strict=True)]
    packs = []
    for one, _ in pairs:
        if not isinstance(one, (str, os.PathLike, Pack)):
            raise UsageError(f"path: {one!r} is no path of a pack. Pass paths, or (path, weight) for each.")
        packs.append(_opened(one))
    weights = tuple(_weight(pack.path, weight) for pack, (_, weight) in zip(packs, pairs, strict=True))
    _check_once(packs)
    if split is not None:
        for pack in packs:
            select_rows(pack, None if split == ALL and ALL not in pack.header.splits else split)
    shares = weights if all(weighted) else None
    return join_packs(packs, fields, shares), shares or ()


def _opened(one: PackPath) -> Pack:
    """Return an open pack for one dataset alone."""
    return one.own() if isinstance(one, Pack) else open_pack(one)


def _is_pair(one: Any) -> bool:
    return isinstance(one, (tuple, list)) and len(one) == 2


def _weight(path: str, weight: Any) -> float:
    if isinstance(weight, bool) or not isinstance(weight, Real) or not 0 < float(weight) < math.inf:
        raise UsageError(
            f"{path}: its weight is {weight!r}; finite numbers above 0 are allowed. Pass its share of the rows, or leave the pack out."
        )
    return float(weight)


def _check_once(packs: Sequence[Pack]) -> None:
    found: set[str] = set()
    for pack in packs:
        for name in (part.path if is_url(part.path) else os.path.realpath(part.path) for part in pack.parts):
            if name in found:
                raise UsageError(
                    f"{pack.path}: is in the list twice; each pack once is allowed. Give it a larger weight instead."
                )
            found.add(name)
