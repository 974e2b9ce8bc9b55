"""Arrays that become the fields of a pack: which of them, their names, the axis of the samples, splits.

The rule for files: `x`, `image` or `images` is the image (`x` of other shapes: the features), `y`, `label` or
`labels` the label, in any group and letter case; `x_train`, `train_x`, `train/x` are those of a split. Other
arrays with a value for each sample keep their names. Files of which no array is named so, and whatever else
this leaves open, are an error that `rename` settles.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from packer.channels import COLORS
from packer.errors import PackerError, SourceError, UsageError
from packer.given_values import option_text
from packer.inputs.file_names import SPLIT_NAMES, split_word
from packer.samples.array_files import is_encoded, open_array_file
from packer.samples.array_problems import (
    are_pictures,
    check_encoded,
    check_readable,
    field_name,
    holds_images,
    is_picture,
    is_readable,
    is_turned,
    listing,
    some,
)
from packer.samples.columns import ArrayColumn, Column, JoinedColumn, ListColumn, TurnedColumn
from packer.samples.field_plan import IMAGE, LABEL, Declared, looks_like_image
from packer.samples.sample_layout import default_names, note_on_images
from packer.samples.values import ValueRefusedError, as_array
from packer.source_kinds import is_array_file

_IMAGES, _X, _LABELS = ("image", "images"), "x", ("y", "label", "labels")
_FEATURES = "features"
_FEW = 20  # samples
_TRIED = 5  # renames, before an error proposes none


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

    def select(self, names: Sequence[str]) -> ArraySource:
        """Return the source with some of its fields. Raises UsageError."""
        missing = [name for name in names if name not in self.fields]
        if missing:
            raise UsageError(
                f"fields: {self.subject} has {some([*self.fields])}; {some(missing)} are requested. Pass "
                "those names, or name the arrays by rename."
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
        found = [_as_column(str(name), value) for name, value in source.items()]
    elif isinstance(source, tuple):
        found = [_as_column(str(number), value) for number, value in enumerate(source)]
        _check_lengths(subject, {one.name: one for one in found})
        if names is None and not rename:
            names = default_names([_looks(one) for one in found], "arrays: are a tuple")
    elif isinstance(source, list) or is_array_file(source):
        paths = [os.fspath(path) for path in (source if isinstance(source, list) else [source])]
        subject = ", ".join(paths) if len(paths) < 4 else f"{paths[0]} and {len(paths) - 1:,} more"
        found = _open_files(paths)
        files = len(paths) == 1 < len(found)
    else:
        found = [_as_column("array", source)]
    _check_renamed(subject, found, rename)
    if names is not None and not rename and not set(names) <= {one.name for one in found}:
        if files:
            return _choose_source(subject, found, rename).select(names)
        if not isinstance(source, Mapping) and len(names) == len(found):
            rename = {one.name: name for one, name in zip(found, names, strict=True)}
    if isinstance(source, Mapping) or names is not None:
        return _source_by_names(subject, found, names, rename)
    return _choose_source(subject, found, rename)


def _open_files(paths: Sequence[str]) -> list[Column]:
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


def _as_column(name: str, value: Any) -> Column:
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


def _source_by_names(
    subject: str, found: Sequence[Column], names: Sequence[str] | None, rename: Mapping[str, str]
) -> ArraySource:
    """Return a source whose field names are the arrays' names, or those in `rename`. Raises UsageError."""
    fields = {rename.get(one.name, one.name): one for one in found}
    if len(fields) < len(found):
        raise UsageError(f"rename={dict(rename)!r}: gives two arrays the same name. Pass different names.")
    if names is not None:
        fields = ArraySource(subject, fields).select(names).fields
    else:
        check_encoded(subject, found)
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


def _choose_source(subject: str, found: list[Column], rename: Mapping[str, str]) -> ArraySource:
    """Choose the fields among the arrays of files. Raises UsageError, SourceError."""
    check_encoded(subject, found)
    if not found:
        raise SourceError(f"{subject}: holds no arrays of numbers or text. Check the file.")
    try:
        return _choose_splits(subject, found, rename)
    except _OpenChoiceError as error:
        remedy = _remedy(subject, found, rename)
        raise UsageError(f"{subject}: holds {listing(found)}; {error}. {remedy}.") from None


class _OpenChoiceError(UsageError):
    """Names that leave open which arrays are the fields; the text continues the list of the arrays."""


def _remedy(subject: str, found: Sequence[Column], rename: Mapping[str, str]) -> str:
    """Return the remedy for arrays that leave open what they are: a `rename` that was tried, or a join."""
    if are_pictures(found):
        return "An array holds all samples: pack pictures of an array each by a generator of (image, label)"
    ways = []
    proposals = _proposals(found, rename)
    if not any(map(_role, found)) and len({(one.dtype, one.shape[1:]) for one in found}) == 1 < len(found):
        ways.append("If each is a class or a part, pass (numpy.concatenate(arrays), labels)")
        proposals = iter([{one.name: field_name(one.name) for one in found}])
    for proposal in islice(proposals, _TRIED):
        with suppress(PackerError):
            _choose_splits(subject, found, {**rename, **proposal})
            ways.append(f"Name the fields: {option_text('Fields.rename', {**rename, **proposal})}")
            break
    return ". ".join(ways) or "Pass the arrays themselves, (images, labels)"


def _proposals(found: Sequence[Column], rename: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield names that may settle which arrays are the fields: images and labels, one group, one array."""
    free = [one for one in found if one.name not in rename and is_readable(one)]
    roles = {one.name: _role(one) for one in free if _role(one)}
    named = {*roles.values(), *rename.values()}
    images = sorted(filter(holds_images, free), key=lambda one: -one.shape[0])
    images = [] if IMAGE in named else images[:1]
    rows = {side for one in images or found for side in (one.shape[0], one.shape[-1])}
    labels = [] if LABEL in named else [one for one in free if one.shape[1:] in ((), (1,))]
    labels = [one for one in labels if one.shape[0] in rows]
    both = {one.name: IMAGE for one in images}
    if len(labels) == 1:
        both[labels[0].name] = LABEL
    if both:
        yield both
    for name in roles:
        group = name.rpartition("/")[0]
        yield {other: role for other, role in roles.items() if other.rpartition("/")[0] == group}
    for one in sorted(free, key=lambda one: -one.row_bytes * one.shape[0]):
        yield {one.name: roles.get(one.name) or field_name(one.name)}


def _choose_splits(subject: str, found: Sequence[Column], rename: Mapping[str, str]) -> ArraySource:
    """Choose the fields of each split, or of the only set of samples, and join them.

    Raises UsageError, SourceError.
    """
    several = len(set(rename.values())) < len(rename)  # arrays of several splits have one name
    splits = _splits(found, rename) if several or not rename else {}
    sets = {}
    for split, columns in (splits or {"": _arrays_of_one_set(found, rename)}).items():
        mine = {old: new for old, new in rename.items() if any(one.name == old for one in columns)}
        sets[split] = _choose(subject, columns, mine, of_split=bool(split))
    shared = _shared_fields(subject, sets)
    parts = {name: [fields[name] for fields in sets.values()] for name in shared}
    source, stop = _source(subject, {name: _one_after_another(parts[name]) for name in shared}), 0
    for split in splits:
        rows = sets[split][shared[0]].shape[0]
        source.spans[split] = range(stop, stop + rows)
        stop += rows
    source.notes += _notes(found, parts, rename)
    if splits:
        sizes = ", ".join(f"{split} {len(span):,}" for split, span in source.spans.items())
        source.notes.append(f"splits, by the names of the arrays: {sizes}.")
    return source


def _arrays_of_one_set(found: Sequence[Column], rename: Mapping[str, str]) -> list[Column]:
    """Return the arrays without those of splits and groups beside the arrays that `rename` names."""
    renamed = {_split_and_name(name)[0] for name in rename} - {""}
    names = {_own_name(name) for name in rename}
    return [
        one
        for one in found
        if one.name in rename
        or (
            _own_name(one.name) not in names
            and (not renamed or _split_and_name(one.name)[0] in {"", *renamed})
        )
    ]


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
    return _FEATURES if name == _FEATURES and rows and not holds_images(one) else ""


def _choose(
    subject: str, found: Sequence[Column], rename: Mapping[str, str], *, of_split: bool = False
) -> dict[str, Column]:
    """Return the fields of one set of samples. of_split: names tell a split. Raises UsageError."""
    roles = dict(rename)
    for one in found:
        role = _role(one)
        if role and one.name not in rename and role not in rename.values():
            if role in roles.values():
                names = some([other.name for other in found if _role(other) == role])
                raise _OpenChoiceError(f"of {names} each could be {role!r}; join parts by numpy.concatenate")
            roles[one.name] = role
    given = [one for one in found if one.name in roles]
    if not given:
        given = [one for one in found if is_readable(one)] or list(found)
        if len(given) > 1:
            raise _OpenChoiceError("none is called image, x, features, label or y")
        roles = {given[0].name: _lone_field(given[0])}
    try:
        rows = _count_samples(subject, {roles[one.name]: one for one in given})
    except UsageError:
        if not rename:
            raise
        given = [one for one in given if one.name in rename]
        rows = _count_samples(subject, {roles[one.name]: one for one in given})
    turned = any(one.shape[0] != rows for one in given)
    placed = [_placed(one, rows) if turned else one for one in found]
    held = [one for one in placed if one.shape[0] == rows and is_readable(one)]
    for one in given:
        check_readable(one)
    held.sort(key=lambda one: roles.get(one.name) != IMAGE)
    if len(rename) == len(held):
        held.sort(key=lambda one: [*rename].index(one.name))
    fields: dict[str, Column] = {}
    for one in held:
        name = roles.get(one.name) or field_name(_own_name(one.name) if of_split else one.name)
        if name in fields:
            raise _OpenChoiceError(f"two would be {name!r}")
        fields[name] = one
    _check_choice(found, fields, rename)
    return fields


def _lone_field(one: Column) -> str:
    """Return the field of an array that is alone and not named by the rule."""
    plain = _FEATURES if one.name == "array" or not _own_name(one.name) else field_name(one.name)
    return IMAGE if holds_images(one) else plain


def _check_choice(found: Sequence[Column], fields: Mapping[str, Column], rename: Mapping[str, str]) -> None:
    """Raise UsageError for a choice that lacks the images or labels that the arrays probably hold."""
    names = {one.name: field for field, one in fields.items()}
    rows, labelled = next(iter(fields.values())).shape[0], LABEL in fields
    for one in found:
        if one.name in rename:
            continue
        field, role = names.get(one.name), _role(one)
        single = one.shape[1:] in ((), (1,)) and not role
        if not labelled and is_picture(one) and (len(found) == 1 or role):
            raise _OpenChoiceError(f"{one.name} looks like one picture; images are [N, H, W, C]")
        if field and not role and len(found) > 1 and IMAGE not in fields and holds_images(one):
            raise _OpenChoiceError("none is called image")
        if field in _IMAGES and one.dtype.kind in "OUS":
            raise _OpenChoiceError(f"{one.name} holds no pixels; images are arrays of numbers")
        if (
            single
            and one.shape[0] == rows
            and len(found) == 2
            and IMAGE in fields
            and not (labelled or rename)
        ):
            raise _OpenChoiceError("none is called label")
        if field is None and one.shape[0] == rows and {*fields} == {LABEL}:
            check_readable(one)
        # Of few samples, anchors or means may have nearly as many.
        likely = (len(one.shape) > 1 and rows > _FEW) or (single and not labelled)
        near = field is None and 0 < abs(one.shape[0] - rows) <= max(1, rows // 100)
        if near and (role not in ("", *fields) or (likely and not rename)):
            raise _OpenChoiceError(
                f"{one.name} has nearly as many values as there are samples, of which one may lack it"
            )


def _count_samples(subject: str, fields: Mapping[str, Column]) -> int:
    """Return the number of samples, which is the first or the last side of all these arrays.

    The last one only if images or labels agree on no other, or if only so a lone array holds images. Raises
    UsageError.
    """
    if [*fields] == [IMAGE] and is_turned(fields[IMAGE]):
        return fields[IMAGE].shape[-1]
    if len({one.shape[0] for one in fields.values()}) > 1:
        ends = set.intersection(*({one.shape[0], one.shape[-1]} for one in fields.values()))
        turned = [(name, one) for name, one in fields.items() if one.shape[0] not in ends]
        meant = bool({IMAGE, LABEL} & {*fields}) and len(ends) == 1
        if meant and all(n != IMAGE or looks_like_image(o.dtype, o.shape[:-1]) for n, o in turned):
            return ends.pop()
        _check_lengths(subject, fields)
    return next(iter(fields.values())).shape[0]


def _placed(one: Column, rows: int) -> Column:
    """Return an array with its samples on the first axis."""
    axes = range(len(one.shape))
    if one.shape[0] == rows or one.shape[-1] != rows or not is_readable(one):
        return one
    return TurnedColumn(one, [axes[-1], *axes[:-1]])


def _shared_fields(subject: str, sets: Mapping[str, Mapping[str, Column]]) -> list[str]:
    """Return the fields that all splits have.

    Raises UsageError if one differs in dtype or shape, or if a split lacks the image, features or label.
    """
    [first, *_] = sets.values()
    shared = [name for name in first if all(name in fields for fields in sets.values())]
    for name in dict.fromkeys([*shared, IMAGE, _FEATURES, LABEL]):
        parts = {split: fields.get(name) for split, fields in sets.items()}
        forms = {s: f"{one.dtype.name}{list(one.shape[1:])}" if one else "none" for s, one in parts.items()}
        if len(set(forms.values())) > 1 and not any(isinstance(one, ListColumn) for one in parts.values()):
            said = ", ".join(f"{split} has {form}" for split, form in forms.items())
            raise UsageError(
                f"{subject}: {name!r} differs between the splits: {said} per sample. Make them alike, or pack"
                f" one set of arrays: {option_text('Fields.rename', {one.name: f for f, one in first.items()})}."
            )
    return shared


def _one_after_another(columns: Sequence[Column]) -> Column:
    if len(columns) > 1 and any(isinstance(one, ListColumn) for one in columns):
        values = [value for one in columns for value in one.take(np.arange(one.shape[0]))]
        return ListColumn(columns[0].name, columns[0].where, values)
    return JoinedColumn(columns) if len(columns) > 1 else columns[0]


def _notes(
    found: Sequence[Column], fields: Mapping[str, Sequence[Column]], rename: Mapping[str, str]
) -> list[str]:
    """Return notes on arrays that were named or left out, and on samples that lie on the last axis."""
    columns = [one for parts in fields.values() for one in parts]
    names = {one.name: field for field, parts in fields.items() for one in parts}
    others = [one for one in found if one.name not in names]
    mine = {old: new for old, new in names.items() if old not in rename}
    guessed = [f"{old} is {new!r}" for old, new in mine.items() if rename or old not in (new, "array")]
    notes: list[str] = []
    if guessed or others:
        chosen = some(guessed) or f"fields are {some([*fields])}"
        chosen += "" if rename or LABEL in fields else "; none is 'label'"
        left_out = f"; left out: {listing(others)}" if others else ""
        notes.append(
            f"found {listing(found)}: {chosen}{left_out}. To choose differently, pass fields=Fields(rename=)."
        )
    if turned := [one.name for one in columns if one not in found]:
        notes.append(f"{some(turned)}: the samples lie on the last axis, which becomes the first.")
    return notes


def _looks(one: Column) -> str:
    """Return what an array probably holds: "image", "number" or "", for `default_names`."""
    if isinstance(one, ListColumn):
        return "number" if one.dtype.kind == "i" else ""
    return IMAGE if looks_like_image(one.dtype, one.shape[1:]) else "number" if len(one.shape) == 1 else ""
