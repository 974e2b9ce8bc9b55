"""Arrays that become the fields of a pack: which of them, their names, the axis of the samples, splits.

The rule for files: `x`, `image` or `images` is the image (`x` of other shapes: the features), `y`, `label` or
`labels` the label, in any group and letter case; `x_train`, `train_x`, `train/x` are those of a split. Other
arrays with a value for each sample keep their names. What this leaves open is an error, settled by `rename`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from packer.channels import COLORS
from packer.errors import SourceError, UsageError
from packer.inputs.file_names import SPLIT_NAMES, split_word
from packer.samples.array_files import is_encoded, open_array_file
from packer.samples.array_problems import (
    check_alike,
    check_choice,
    check_encoded,
    check_one_picture,
    check_readable,
    check_unnamed,
    field_name,
    holds_images,
    is_readable,
    is_turned,
    listing,
    same_role,
    some,
)
from packer.samples.columns import ArrayColumn, Column, JoinedColumn, ListColumn, TurnedColumn
from packer.samples.field_plan import IMAGE, LABEL, Declared, looks_like_image
from packer.samples.sample_layout import default_names, note_on_images
from packer.samples.values import ValueRefusedError, as_array
from packer.sentence import Option, Sentence
from packer.source_kinds import is_array_file

_IMAGES, _X, _LABELS = ("image", "images"), "x", ("y", "label", "labels")
_FEATURES = "features"
_BY_POSITION = ["arr_0", "arr_1"]  # names that numpy.savez(file, x, y) gives


@dataclass
class ArraySource:
    """Arrays of equal length that become the fields of a pack.

    subject: name of the source in messages. fields: field name -> array. notes: which arrays were chosen as
    which fields, where the user did not name them. spans: the rows of each split, {} without splits.
    """

    subject: str
    fields: dict[str, Column]
    notes: list[str] = field(default_factory=list)
    spans: dict[str, range] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of samples."""
        return next(iter(self.fields.values())).shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self.rows * sum(column.row_bytes for column in self.fields.values())

    def of(self, names: Sequence[str]) -> ArraySource:
        """Return the source with some of its fields. Raises UsageError."""
        missing = [name for name in names if name not in self.fields]
        if missing:
            raise UsageError(
                f"fields: {self.subject} has {some([*self.fields])}; {some(missing)} are requested. Name"
                " them by rename."
            )
        return replace(self, fields={name: self.fields[name] for name in names})


def open_arrays(source: Any, declared: Declared) -> ArraySource:
    """Return the arrays of a source with the names of their fields.

    source: an array; a mapping of names to arrays, lists or .npy paths; a tuple of arrays; a path or a list
    of paths. Raises UsageError, SourceError.
    """
    names = None if declared.forms is None else [*declared.forms]
    rename, subject, files = dict(declared.rename), "arrays", False
    if isinstance(source, Mapping):
        found = [_given(str(name), value) for name, value in source.items()]
    elif isinstance(source, tuple):
        found = [_given(str(number), value) for number, value in enumerate(source)]
        _check_lengths(subject, {one.name: one for one in found})
        if names is None and not rename:
            names = default_names([_looks(one) for one in found], "arrays: are a tuple")
    elif isinstance(source, list) or is_array_file(source):
        paths = [os.fspath(path) for path in (source if isinstance(source, list) else [source])]
        subject = ", ".join(paths) if len(paths) < 4 else f"{paths[0]} and {len(paths) - 1:,} more"
        found = _of_files(paths)
        files = len(paths) == 1 < len(found)
    else:
        found = [_given("array", source)]
    _check_renamed(subject, found, rename)
    if names is not None and not rename and not set(names) <= {one.name for one in found}:
        if files:
            return _chosen(subject, found, rename).of(names)
        if isinstance(source, Mapping) or len(names) != len(found):
            raise UsageError(
                f"fields: {subject} holds {listing(found)}; {some(names)} are requested. Pass these names, or"
                " name them by rename."
            )
        rename = {one.name: name for one, name in zip(found, names, strict=True)}
    if isinstance(source, Mapping) or names is not None:
        return _named(subject, found, names, rename)
    return _chosen(subject, found, rename)


def _of_files(paths: Sequence[str]) -> list[Column]:
    """Return the arrays of files; those of several files with the same names are called file/array."""
    files = [(os.path.splitext(os.path.basename(path))[0], open_array_file(path)) for path in paths]
    found = [one for _, columns in files for one in columns]
    if len({one.name for one in found}) < len(found):
        for stem, columns in files:
            for one in columns:
                one.name = f"{stem}/{one.name}"
    [(twice, times)] = Counter(one.name for one in found).most_common(1) or [("", 0)]
    if times > 1:
        raise UsageError(f"{twice}: two files hold an array of this name. Pass a mapping of names to files.")
    return found


def _given(name: str, value: Any) -> Column:
    """Return the column of an array in a mapping or tuple."""
    if is_array_file(value):
        (found, *more) = open_array_file(os.fspath(value))
        if more:
            raise UsageError(
                f"{value}: holds several arrays; one is needed for {name!r}. Pass the file alone."
            )
        found.name = name
        return found
    if isinstance(value, (list, tuple)):
        listed = ListColumn(name, name, value)
        listed.encoded = len(value) > 0 and isinstance(value[0], bytes) and is_encoded(value[0][:16])
        return listed
    try:
        array = as_array(value)
    except ValueRefusedError as error:
        raise UsageError(f"{name}: {error}.") from None
    if array.ndim < 1:
        raise UsageError(
            f"{name}: is a single value; an array of all samples' values is needed. Pass [N, ...]."
        )
    return ArrayColumn(name, name, array)


def _check_renamed(subject: str, found: Sequence[Column], rename: Mapping[str, str]) -> None:
    """Raise UsageError if `rename` names a missing array, or a field of a split twice."""
    for old in rename:
        if all(one.name != old for one in found):
            raise UsageError(
                f"rename: {subject} has no {old!r}; it holds {listing(found)}. Pass one of these names."
            )
    if len({(_split_and_name(old)[0], new) for old, new in rename.items()}) < len(rename):
        raise UsageError(f"rename={dict(rename)!r}: gives two arrays the same name. Pass different names.")


def _named(
    subject: str, found: Sequence[Column], names: Sequence[str] | None, rename: Mapping[str, str]
) -> ArraySource:
    """Return a source whose field names are the arrays' names, or those in `rename`. Raises UsageError."""
    fields = {rename.get(one.name, one.name): one for one in found}
    if len(fields) < len(found):
        raise UsageError(f"rename={dict(rename)!r}: gives two arrays the same name. Pass different names.")
    for name in names or ():
        if name not in fields:
            raise UsageError(
                f"fields: {subject} has no {name!r}; it holds {listing(found)}. Pass one of these names, or"
                " rename."
            )
    if names is not None:
        fields = {name: fields[name] for name in names}
    else:
        check_encoded(subject, found, lambda one: one.name)
    if not fields:
        raise UsageError(f"{subject}: holds no arrays. Pass at least one.")
    _check_lengths(subject, fields)
    source = _source(subject, fields)
    images = [name for name, one in fields.items() if holds_images(one) and one.dtype == np.uint8]
    if names is None and IMAGE not in fields and len(images) == 1:
        source.notes.append(note_on_images(images[0]))
    return source


def _source(subject: str, fields: dict[str, Column]) -> ArraySource:
    """Return a source of these fields. Raises SourceError for one without samples."""
    source = ArraySource(subject, fields)
    if not source.rows:
        raise SourceError(f"{subject}: holds no samples; a pack has at least one.")
    return source


def _check_lengths(subject: str, fields: Mapping[str, Column]) -> None:
    """Raise UsageError unless all arrays have the same length."""
    counts = {name: one.shape[0] for name, one in fields.items()}
    if len(set(counts.values())) > 1:
        first = {count: name for name, count in reversed(counts.items())}  # an example of each length
        lengths = some([f"{name} has {count:,}" for count, name in reversed(first.items())])
        raise UsageError(
            f"{subject}: {lengths} values; all fields have a value for each sample. Pass as many "
            "values of each, in the same order."
        )


def _chosen(subject: str, found: list[Column], rename: Mapping[str, str]) -> ArraySource:
    """Choose the fields among the arrays of files. Raises UsageError, SourceError."""
    check_encoded(subject, found, _role)
    if not found:
        raise SourceError(f"{subject}: holds no arrays of numbers or text. Check the file.")
    if not rename and [one.name for one in found] == _BY_POSITION:
        rename = dict(zip(_BY_POSITION, default_names([_looks(one) for one in found], ""), strict=True))
    several = len(set(rename.values())) < len(rename)  # arrays of several splits have one name
    splits = _splits(found, rename) if several or not rename else {}
    if splits:
        return _joined(subject, found, splits, rename)
    renamed = {_split_and_name(name)[0] for name in rename} - {""}
    names = {_own_name(name) for name in rename}
    mine = [
        one
        for one in found
        if one.name in rename
        or (
            _own_name(one.name) not in names
            and (not renamed or _split_and_name(one.name)[0] in {"", *renamed})
        )
    ]
    choice = _choose(subject, mine, rename)
    source = _source(subject, choice.fields)
    source.notes += _notes(found, choice, rename)
    return source


def _splits(found: Sequence[Column], rename: Mapping[str, str]) -> dict[str, list[Column]]:
    """Return the arrays of each split if two splits or more have an image, features or a label; else {}."""
    splits: dict[str, list[Column]] = {}
    for one in found:
        splits.setdefault(_split_and_name(one.name)[0], []).append(one)
    named = [
        split
        for split, columns in splits.items()
        if split and any(_role(one) or one.name in rename or not _own_name(one.name) for one in columns)
    ]
    return {s: splits[s] for s in dict.fromkeys(SPLIT_NAMES.values()) if s in named} if len(named) > 1 else {}


def _split_and_name(name: str) -> tuple[str, str]:
    """Return the split that an array's name tells, and the rest.

    "train/x" and "x_train" -> ("train", "x"), "train" -> ("train", ""), "x" -> ("", "x").
    """
    word = split_word(name)
    return (SPLIT_NAMES[word.lower()], name.replace(word, "", 1).strip("/_-. ")) if word else ("", name)


def _own_name(name: str) -> str:
    """Return an array's name without its group and its split."""
    return _split_and_name(name)[1].rpartition("/")[2]


def _role(one: Column) -> str:
    """Return the field that an array is by the rule: "image", "features", "label"; "" for others."""
    name, rows = _own_name(one.name).lower(), one.shape[1:]
    if name in _LABELS and (len(rows) < 2 or set(rows) == {1}):
        return LABEL
    if name in _IMAGES and rows:
        return IMAGE if len(rows) > 1 else _FEATURES
    if name == _X:
        colored = len(rows) == 3 and bool({rows[0], rows[2]} & COLORS.keys())
        pixels = len(rows) == 3 and looks_like_image(one.dtype, one.shape[:3]) and one.dtype == np.uint8
        return IMAGE if colored or pixels or looks_like_image(one.dtype, rows) else _FEATURES
    return ""


@dataclass(frozen=True)
class _Choice:
    """Fields of a set of arrays. names: array -> field; turned: arrays whose samples lie on the last axis."""

    names: dict[str, str]
    fields: dict[str, Column]
    turned: list[str]


def _choose(
    subject: str, found: Sequence[Column], rename: Mapping[str, str], *, of_split: bool = False
) -> _Choice:
    """Choose the arrays of one set of samples. of_split: names tell a split. Raises UsageError."""
    roles = dict(rename)
    for one in found:
        role = _role(one)
        if role and one.name not in rename and role not in rename.values():
            if role in roles.values():
                raise same_role(subject, found, role, [o.name for o in found if _role(o) == role])
            roles[one.name] = role
    given = [one for one in found if one.name in roles]
    if not given:
        given = [one for one in found if is_readable(one)] or list(found)
        roles = _without_names(subject, given)
    try:
        rows = _rows(subject, {roles[one.name]: one for one in given})
    except UsageError:
        if not rename:
            raise
        given = [one for one in given if one.name in rename]
        rows = _rows(subject, {roles[one.name]: one for one in given})
    turned = any(one.shape[0] != rows for one in given)
    placed = {one.name: _placed(one, rows) if turned else one for one in found}
    held = {name: one for name, one in placed.items() if one.shape[0] == rows and is_readable(one)}
    for one in given:
        check_readable(placed[one.name], roles[one.name])
    names = {name: roles.get(name) or field_name(_own_name(name) if of_split else name) for name in held}
    fields: dict[str, Column] = {}
    order = [*rename] if len(rename) == len(names) else sorted(names, key=lambda n: names[n] != IMAGE)
    names = {name: names[name] for name in order}
    for name in names:
        if names[name] in fields:
            raise UsageError(
                f"{held[name].where}: its field would be {names[name]!r}, like that of another array. Name"
                " them by rename."
            )
        fields[names[name]] = held[name]
    check_choice(subject, found, names, fields, rename, _role)
    return _Choice(names, fields, [one.name for one in found if one.name in names and one.shape[0] != rows])


def _without_names(subject: str, found: Sequence[Column]) -> dict[str, str]:
    """Return the names of arrays of which none is named by the rule: a lone array's, or their own.

    Raises UsageError.
    """
    if len(found) == 1:
        [one] = found
        check_one_picture(subject, one)
        plain = _FEATURES if one.name == "array" or not _own_name(one.name) else field_name(one.name)
        return {one.name: IMAGE if holds_images(one) else plain}
    check_unnamed(subject, found)
    return {one.name: field_name(one.name) for one in found}


def _rows(subject: str, fields: Mapping[str, Column]) -> int:
    """Return the number of samples, which is the first or the last side of all these arrays.

    The last one only if the arrays agree on no other, or if only so a lone array holds images. Raises
    UsageError.
    """
    if [*fields] == [IMAGE] and is_turned(fields[IMAGE]):
        return fields[IMAGE].shape[-1]
    if len({one.shape[0] for one in fields.values()}) > 1:
        ends = set.intersection(*({one.shape[0], one.shape[-1]} for one in fields.values()))
        turned = [(name, one) for name, one in fields.items() if one.shape[0] not in ends]
        if len(ends) == 1 and all(n != IMAGE or looks_like_image(o.dtype, o.shape[:-1]) for n, o in turned):
            return ends.pop()
        _check_lengths(subject, fields)
    return next(iter(fields.values())).shape[0]


def _placed(one: Column, rows: int) -> Column:
    """Return an array with its samples on the first axis."""
    axes = range(len(one.shape))
    if one.shape[0] == rows or one.shape[-1] != rows or not is_readable(one):
        return one
    return TurnedColumn(one, [axes[-1], *axes[:-1]])


def _joined(
    subject: str, found: Sequence[Column], splits: Mapping[str, list[Column]], rename: Mapping[str, str]
) -> ArraySource:
    """Return the arrays of several splits, one after the other. Raises UsageError."""
    sets = {}
    for split, columns in splits.items():
        mine = {one.name: rename[one.name] for one in columns if one.name in rename}
        sets[split] = _choose(subject, columns, mine, of_split=True)
    [(first, model), *others] = sets.items()
    for split, choice in others:
        for name in {**model.fields, **choice.fields}:
            parts = [model.fields.get(name), choice.fields.get(name)]
            if name in (IMAGE, _FEATURES, LABEL) or None not in parts:
                check_alike(subject, name, {first: parts[0], split: parts[1]}, sets[first].names)
    shared = [name for name in model.fields if all(name in one.fields for one in sets.values())]
    source = _source(subject, {n: _one_after_another([s.fields[n] for s in sets.values()]) for n in shared})
    stop = 0
    for split, choice in sets.items():
        rows = choice.fields[shared[0]].shape[0]
        source.spans[split] = range(stop, stop + rows)
        stop += rows
    names = {array: name for one in sets.values() for array, name in one.names.items() if name in shared}
    turned = [name for one in sets.values() for name in one.turned]
    source.notes += _notes(found, _Choice(names, source.fields, turned), rename)
    splits_found = ", ".join(f"{split} {len(span):,}" for split, span in source.spans.items())
    source.notes.append(f"splits, by the names of the arrays: {splits_found}.")
    return source


def _one_after_another(columns: Sequence[Column]) -> Column:
    if any(isinstance(one, ListColumn) for one in columns):
        values = [value for one in columns for value in one.take(np.arange(one.shape[0]))]
        return ListColumn(columns[0].name, columns[0].where, values)
    return JoinedColumn(columns)


def _notes(found: Sequence[Column], choice: _Choice, rename: Mapping[str, str]) -> list[str]:
    """Return a note on arrays that were named or left out, and on samples that lie on the last axis."""
    names = choice.names
    others = [one for one in found if one.name not in names]
    guessed = {old: new for old, new in names.items() if old not in rename}
    said = [f"{old} is {new!r}" for old, new in guessed.items() if rename or old not in (new, "array")]
    notes: list[str] = []
    if said or others:
        chosen = some(said) or f"fields are {some([*names.values()])}"
        left_out = f"; left out: {listing(others)}" if others else ""
        notes.append(
            Sentence(
                f"found {listing(found)}: {chosen}{left_out}. To choose differently, pass "
                f"{Option('Fields.rename')}."
            )
        )
    single = [n for n, one in choice.fields.items() if one.shape[1:] in ((), (1,)) and is_readable(one)]
    example = {array: LABEL for array, name in names.items() if name == single[0]} if single else {}
    if single and LABEL not in choice.fields and not rename and {IMAGE, _FEATURES} & choice.fields.keys():
        notes.append(
            Sentence(
                f"no array is called label, so the pack has none. Candidates: {some(single)}. Pass for"
                f" example {Option('Fields.rename', example)}."
            )
        )
    if choice.turned:
        notes.append(f"{some(choice.turned)}: the samples lie on the last axis, which becomes the first.")
    return notes


def _looks(one: Column) -> str:
    """Return what an array probably holds: "image", "number" or "", for `default_names`."""
    if isinstance(one, ListColumn):
        return "number" if one.dtype.kind == "i" else ""
    return IMAGE if looks_like_image(one.dtype, one.shape[1:]) else "number" if len(one.shape) == 1 else ""
