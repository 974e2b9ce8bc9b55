"""Selects the fields to load, and the rows: those of a split, of some classes, or of a list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packer.arguments import as_whole
from packer.errors import UsageError
from packer.format.fields import Field
from packer.given_values import shown
from packer.orders.runs import Runs, Subset
from packer.packs.pack import Pack
from packer.packs.row_keys import as_keys
from packer.read.array_store import PackStore

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Splits = str | Sequence[str] | None
"""One split, several, or None for every row."""
ALL = "all"
"""Selects every row in place of a split's name, unless a split has that name."""
_NAMED = 12
"""Most classes, or ranges of rows, that a message lists."""


def select(
    pack: Pack,
    *,
    split: Splits = None,
    classes: str | int | Sequence[str | int] | None = None,
    subset: ArrayLike | slice | range | None = None,
) -> Subset:
    """Return the rows that split, classes and subset all select; None selects every row.

    split: a name from the header, or several; or "all" for every row, unless a split has that name.
    classes: one or several, by name or number, of the field "label"; if labels hold several classes a row
        (uint8 [N, C]), the rows that have any of these.
    subset: rows of the pack, counted over the full pack whatever the split, in one of these forms:
        a boolean for each row of the pack (list, array, tensor);
        a slice, as for a list;
        row numbers (list, array, tensor, range) or keys, each once. Their order is kept: position i of the
        subset is the i-th of them that split and classes select too, as with torch.utils.data.Subset, so that
        results of order="sequential" match the list. Sorted numbers read faster.
    Costs microseconds for a split; for classes it reads each label once: 10 to 100 ms a million rows.
    Raises UsageError for a split, a class or a row that the pack does not have, for a repeated row, and if no
    row is left.
    """
    spans = select_rows(pack, unless_all(pack, split))
    if subset is None and classes is None and spans:
        return Subset(spans)
    chosen = Subset(spans) if subset is None else _chosen(pack, spans, subset)
    if classes is not None:
        chosen = _of_classes(pack, chosen, classes)
    if not chosen.rows:
        given = {"split": split, "classes": classes, "subset": None if subset is None else ...}
        said = ", ".join(f"{k}={'...' if v is ... else shown(v)}" for k, v in given.items() if v is not None)
        where = ""
        if split is not None and subset is not None and 0 < len(spans) <= _NAMED:
            ranges = " and ".join(f"{a:,} to {b - 1:,}" for a, b in spans)
            where = f"; subset= counts through the pack, in which split {shown(split)} is rows {ranges}"
        raise UsageError(
            f"{pack.path}: none of its {pack.rows:,} rows is left by {said}{where}. Pass another selection of"
            " rows."
        )
    return chosen


def overlooked_splits(pack: Pack, split: Splits, subset: ArrayLike | slice | range | None) -> str | None:
    """Return a warning that names the splits of a pack if all are loaded and none was named; else None.

    Training on all of them would train on the validation rows too.
    """
    rows = {name: sum(b - a for a, b in spans) for name, spans in pack.header.splits.items()}
    if split is not None or subset is not None or all(n in (0, pack.rows) for n in rows.values()):
        return None
    named = ", ".join(f"{name!r} ({n:,} rows)" for name, n in rows.items())
    meant = "subset=slice(None)" if ALL in rows else f"split={ALL!r}"
    one = "train" if "train" in rows else next(iter(rows))
    return (
        f"{pack.path}: rows of all its splits are loaded: {named}. Pass split={one!r} for one of them, "
        f"or {meant} if every row is meant."
    )


def class_names(pack: Pack) -> tuple[str, ...]:
    """Return the names of a pack's classes by number, for multi-label packs too; () if there are none."""
    if pack.header.classes:
        return tuple(pack.header.classes)
    label = pack.header.find("label")
    if label is None or not _several(label):
        return ()
    return tuple(map(str, label.about.get("columns", ())))


def _several(label: Field) -> bool:
    """Return True for labels that hold several classes a row: a byte for each class."""
    return label.dtype == "|u1" and len(label.shape or ()) == 1


def _chosen(pack: Pack, spans: Sequence[tuple[int, int]], subset: Any) -> Subset:
    """Return the rows of the spans that a user's slice, mask or list selects."""
    rows = pack.rows
    if isinstance(subset, slice):
        start, stop, step = subset.indices(rows)
        if step == 1:
            return Subset([(max(a, start), min(b, stop)) for a, b in spans])
        return _among(np.arange(start, stop, step), spans)
    values = _array(subset)
    if values.ndim == 1 and (keys := as_keys(subset, values)) is not None:
        values = pack.rows_of(keys)
    if values.dtype == bool:
        if values.shape != (rows,):
            raise UsageError(
                f"subset: a mask of shape {list(values.shape)} was given; the pack has {rows:,} rows. "
                "Pass one boolean for each row of the pack, whatever the split."
            )
        return Subset(
            np.concatenate([np.empty((0, 2), np.int64)] + [a + _true(values[a:b]) for a, b in spans])
        )
    if values.ndim != 1 or (values.dtype.kind not in "iu" and values.size):
        raise UsageError(
            f"subset: {values.dtype} of shape {list(values.shape)} was given; row numbers, keys, a slice or a"
            " mask are allowed. Pass for example a list of row numbers."
        )
    # As unsigned numbers, negative ones are huge: one comparison checks both bounds, for every integer type.
    wrong = values[values.astype(np.uint64) >= rows]
    if wrong.size:
        raise UsageError(
            f"subset: row {int(wrong[0]):,} was given; the pack has rows 0 to {rows - 1:,}. Leave it out."
        )
    numbers = values.astype(np.int64)
    if (numbers[1:] <= numbers[:-1]).any():
        rising = np.sort(numbers)
        twice = rising[1:][rising[1:] == rising[:-1]]
        if twice.size:
            raise UsageError(
                f"subset: row {int(twice[0]):,} is given twice; each row is allowed once. "
                "Leave out the second, or draw rows more often with order=Weighted(...)."
            )
    return _among(numbers, spans)


def _array(subset: Any) -> NDArray[Any]:
    """Return a user's selection as an array; tensors may be on any device."""
    if hasattr(subset, "detach"):
        subset = subset.detach().cpu()
    try:
        return np.asarray(subset)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"subset: {type(subset).__name__} is no array of numbers ({error}). Pass a list of row numbers, a"
            " slice or a mask."
        ) from None


def _true(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the runs of True as [first, last + 1), int64 [k, 2]."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    return edges.reshape(-1, 2)


def _among(rows: NDArray[np.int64], spans: Sequence[tuple[int, int]]) -> Subset:
    """Return those of `rows` that lie in the spans, in their order. spans: ascending."""
    bounds = np.array(spans, np.int64).reshape(-1)  # even entries begin spans, odd entries end them
    return Subset.from_rows(rows[np.searchsorted(bounds, rows, "right") % 2 == 1])


def _of_classes(pack: Pack, chosen: Subset, classes: str | int | Sequence[str | int]) -> Subset:
    """Return the chosen rows with a label that is, or has, one of the classes."""
    field = pack.header.find("label")
    several = field is not None and _several(field)
    if field is None or not (several or (field.shape == () and field.dtype[1] in "iu")):
        found = (
            "has no field 'label'"
            if field is None
            else f"its labels are {field.dtype.lstrip('<|')} of shape {list(field.shape or ())}"
        )
        raise UsageError(f"{pack.path}: {found}; classes= needs class numbers there. Pass subset= instead.")
    names = class_names(pack)
    alone = isinstance(classes, str) or not isinstance(classes, Iterable) or getattr(classes, "ndim", 1) == 0
    given: list[str | int] = [classes] if alone else list(classes)  # type: ignore[list-item, arg-type]
    limit = field.shape[0] if several and field.shape else len(names) if pack.header.classes else None
    numbers = np.array([_class_number(pack, names, limit, one) for one in given], np.int64)
    kept, first = [np.empty((0, 2), np.int64)], 0
    for labels in PackStore(pack, [field], chosen).pieces(field.name):
        has = np.asarray(labels[:, numbers].any(axis=1)) if several else np.isin(labels, numbers)
        kept.append(_true(has) + first)
        first += len(labels)
    begins, ends = np.concatenate(kept).T
    rows = chosen.place(Runs(begins, ends - begins))
    return Subset(np.stack([rows.starts, rows.starts + rows.lengths], axis=1))


def _class_number(pack: Pack, names: Sequence[str], limit: int | None, given: str | int) -> int:
    """Return the number of a class given by name or number. limit: number of classes, None if unknown."""
    if isinstance(given, str) and given in names:
        return names.index(given)
    number = as_whole(given, 0, None if limit is None else limit - 1)
    if number is None:
        listed = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
        has = f"its {len(names):,} classes: {listed}" if names else "its classes are numbers from 0 on"
        raise UsageError(
            f"classes: {shown(given)} is not in {pack.path}; {has}. Pass some of these, by name or number."
        )
    return number


ROW = Field("row", "<i8", (), {"is": "the row's number in the pack"})
"""Each row's number in the pack; loaded on request, stored nowhere."""


def select_fields(pack: Pack, names: Sequence[str] | None) -> tuple[Field, ...]:
    """Return the named fields of a pack in their loaded form, in that order; None for the default fields.

    The name "row" means ROW, the row numbers, unless the pack has a field of that name.
    Raises UsageError for an unknown or repeated name, and if no field but ROW is named.
    """
    known = {f.name: f.loaded for f in pack.fields}
    if names is None:
        chosen = tuple(f for f in known.values() if f.by_default)
        if not chosen:
            raise UsageError(
                f"{pack.path}: holds only text, which is loaded if it is named. Pass fields={[*known]!r}."
            )
        return chosen
    if isinstance(names, str):
        raise UsageError(f"fields={names!r}: is one text. Pass a list of names, such as [{names!r}].")
    has = ", ".join(known)
    known.setdefault(ROW.name, ROW)
    for name in names:
        if name not in known:
            raise UsageError(f"{pack.path}: has no field {name!r}; it has {has}. Pass some of these.")
    if not names or len(set(names)) != len(names):
        raise UsageError(f"fields={list(names)!r}: is empty or repeats a name. Name each field once.")
    chosen = tuple(known[name] for name in names)
    if not stored(chosen):
        raise UsageError(
            f"fields={list(names)!r}: names no field of the pack, which has {has}. Add one of these."
        )
    return chosen


def stored(fields: Sequence[Field]) -> tuple[Field, ...]:
    """Return the fields that a pack stores: all but ROW."""
    return tuple(f for f in fields if f != ROW)


def is_mask(field: Field, size: Sequence[int | None], sampling: str = "nearest") -> bool:
    """Return True if a field holds one value, or several, for each pixel of images of this size (h, w).

    size: (None, None) for images that differ in size: each row has the size of its image. sampling: "nearest"
    for masks, "linear" for soft maps.
    """
    if field.ragged:
        return field.about.get("sampling") == sampling and tuple(size) == (None, None)
    shape = field.shape or ()
    layered = len(shape) == 3 and field.about.get("layout") == "HWC"
    alike = field.about.get("sampling") == sampling
    return alike and (len(shape) == 2 or layered) and tuple(shape[:2]) == tuple(size)


def unless_all(pack: Pack, split: Splits) -> Splits:
    """Return a choice of splits, with None for "all" unless a split has that name."""
    every = isinstance(split, str) and split == ALL and ALL not in pack.header.splits
    return None if every else split


def select_rows(pack: Pack, split: Splits) -> tuple[tuple[int, int], ...]:
    """Return the spans [first, last + 1) of a split's rows, or of several; of all rows for None.

    Rows of several splits are in the order of the pack, each once. Raises UsageError for an unknown split.
    """
    if split is None:
        return ((0, pack.rows),)
    names = [split] if isinstance(split, str) else list(split) if isinstance(split, (list, tuple)) else []
    has = ", ".join(pack.header.splits) or "none"
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise UsageError(
            f"split={shown(split)}: is not the name of a split, nor a list of different names; splits of"
            f" {pack.path}: {has}. Pass one of these, or several, such as ['fold0', 'fold1']."
        )
    for name in names:
        if name not in pack.header.splits:
            raise UsageError(f"{pack.path}: has no split {name!r}; its splits: {has}. Pass one of these.")
    spans: list[tuple[int, int]] = []
    for a, b in sorted(span for name in names for span in pack.header.splits[name]):
        if spans and a < spans[-1][1]:  # splits may share rows
            spans[-1] = spans[-1][0], max(b, spans[-1][1])
        elif a < b:
            spans.append((a, b))
    return tuple(spans)
