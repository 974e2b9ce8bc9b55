"""Arrays from memory or from .npy, .npz and HDF5 files, and the choice of arrays that become fields."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile

from packer.errors import SourceError, UsageError
from packer.format.hdf5_arrays import Hdf5Array, list_arrays, read_array
from packer.format.header import Extent
from packer.samples.columns import ArrayColumn, Column, DecodedColumn, FileColumn, ListColumn
from packer.samples.field_plan import IMAGE, LABEL, looks_like_image
from packer.samples.sample_layout import default_names
from packer.samples.values import ValueRefusedError, as_array
from packer.sentence import Option, Sentence
from packer.source_kinds import is_array_file, is_hdf5_name

_DECODED_BYTES = 256 << 20  # a larger compressed dataset is decoded to a temporary file instead of memory
_LISTED = 12
_LABELS = re.compile(
    r"(y|labels?|targets?|class(es)?|class_?ids?|categor(y|ies))\Z|.*(_y|_labels?|_targets?)\Z|y_.*\Z", re.I
)


@dataclass
class ArraySource:
    """Arrays of equal length that become the fields of a pack.

    subject: name of the source in messages. fields: field name -> array. notes: which arrays were chosen as
    which fields, where the user did not name them.
    """

    subject: str
    fields: dict[str, Column]
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Number of samples."""
        return next(iter(self.fields.values())).shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self.rows * sum(column.row_bytes for column in self.fields.values())

    @property
    def decoded(self) -> list[DecodedColumn]:
        """The compressed datasets, which must be decoded in order."""
        return [column for column in self.fields.values() if isinstance(column, DecodedColumn)]


def open_arrays(source: Any, names: Sequence[str] | None, rename: Mapping[str, str]) -> ArraySource:
    """Return the arrays of a source with the names of their fields.

    source: an array; a mapping of names to arrays, lists or .npy paths; a tuple of arrays; a path or a list
    of paths. names: the requested fields, None for all. rename: array name -> field name. Raises UsageError,
    SourceError.
    """
    if isinstance(source, Mapping):
        subject, found = "arrays", [_given(str(name), value) for name, value in source.items()]
    elif isinstance(source, tuple):
        found = [_given(str(number), value) for number, value in enumerate(source)]
        _check_lengths("arrays", {one.name: one for one in found})
        if names is None and not rename:
            named = default_names([_looks(one) for one in found], "arrays: are a tuple")
            rename = {one.name: name for one, name in zip(found, named, strict=True)}
        return _chosen("arrays", found, names, rename, ordered=True)
    elif isinstance(source, list) or is_array_file(source):
        paths = [os.fspath(path) for path in (source if isinstance(source, list) else [source])]
        subject, found = ", ".join(paths), [one for path in paths for one in _opened(path)]
    else:
        return _chosen("array", [_given("array", source)], names, rename, ordered=True)
    held = [one.name for one in found]
    twice = next((name for name in held if held.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice}: two files hold an array of this name. Pass a mapping of names to files.")
    if isinstance(source, Mapping):
        return _named(subject, found, names, rename)
    several = isinstance(source, list) and len(source) > 1
    if several:
        _check_lengths(subject, {one.name: one for one in found})
    return _chosen(subject, found, names, rename, ordered=several or len(found) == 1)


def _given(name: str, value: Any) -> Column:
    """Return the column of an array in a mapping or tuple."""
    if is_array_file(value):
        (found, *more) = _opened(os.fspath(value))
        if more:
            raise UsageError(
                f"{value}: holds several arrays; one is needed for {name!r}. Pass the file alone."
            )
        found.name = name
        return found
    if isinstance(value, (list, tuple)):
        return ListColumn(name, name, value)
    try:
        array = as_array(value)
    except ValueRefusedError as error:
        raise UsageError(f"{name}: {error}.") from None
    if array.ndim < 1:
        raise UsageError(
            f"{name}: is a single value; an array of all samples' values is needed. Pass [N, ...]."
        )
    return ArrayColumn(name, name, array)


def _opened(path: str) -> list[Column]:
    """Return the arrays of a file; a .npy file's array has the file's name. Raises SourceError."""
    lower = path.lower()
    if not os.path.isfile(path):
        raise SourceError(f"{path}: is not a file. Check the path.")
    if is_hdf5_name(path):
        return [_of_hdf5(path, one) for one in list_arrays(path) if one.shape]
    stem = os.path.splitext(os.path.basename(path))[0]
    try:
        if lower.endswith(".npz"):
            # np.load would leave a file open that is not an archive.
            with open(path, "rb") as file, NpzFile(file) as members:
                arrays = {name: members[name] for name in members.files}
            return [ArrayColumn(n, f"{path}/{n}", array) for n, array in arrays.items() if np.shape(array)]
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError, BadZipFile, zlib.error) as error:
        raise SourceError(
            f"{path}: NumPy cannot read it ({error}). Write it again with np.save, without objects."
        ) from None
    if not mapped.ndim:
        raise SourceError(f"{path}: holds a single value; an array [N, ...] is needed. Check the file.")
    if mapped.flags.c_contiguous and mapped.size and isinstance(mapped, np.memmap):
        extent = Extent("", int(mapped.offset), len(mapped), mapped.nbytes // len(mapped))
        return [FileColumn(stem, path, path, mapped.dtype, mapped.shape, (extent,))]
    return [ArrayColumn(stem, path, mapped)]


def _of_hdf5(path: str, one: Hdf5Array) -> Column:
    where = f"{path}/{one.name}"
    if one.text:
        return ListColumn(one.name, where, list(read_array(path, one.name)))
    if one.extents is not None and one.shape[0]:
        return FileColumn(one.name, where, path, one.dtype, one.shape, one.extents)
    column = DecodedColumn(where, path, one.name, one.dtype, one.shape)
    if column.row_bytes * column.shape[0] <= _DECODED_BYTES:
        return ArrayColumn(one.name, where, np.asarray(read_array(path, one.name)))
    return column


def _named(
    subject: str, found: list[Column], names: Sequence[str] | None, rename: Mapping[str, str]
) -> ArraySource:
    """Return a source whose field names are the arrays' names, or those in `rename`. Raises UsageError."""
    known = {one.name: one for one in found}
    _check_renamed(subject, found, rename)
    fields = {rename.get(name, name): one for name, one in known.items()}
    if len(fields) != len(known):
        raise UsageError(f"rename={dict(rename)!r}: gives two arrays the same name. Pass different names.")
    if names is not None:
        for name in names:
            if name not in fields:
                raise UsageError(
                    f"fields: {subject} has no {name!r}; it holds {_listing(found)}. Pass one of these "
                    "names, or rename."
                )
        fields = {name: fields[name] for name in names}
    elif not fields:
        raise UsageError(f"{subject}: holds no arrays. Pass at least one.")
    _check_lengths(subject, fields)
    source = ArraySource(subject, fields)
    if not source.rows:
        raise SourceError(f"{subject}: holds no samples; a pack has at least one.")
    return source


def _check_renamed(subject: str, found: Sequence[Column], rename: Mapping[str, str]) -> None:
    """Raise UsageError if `rename` names an array that the source does not hold."""
    for old in rename:
        if all(one.name != old for one in found):
            raise UsageError(
                f"rename: {subject} has no {old!r}; it holds {_listing(found)}. Pass one of these names."
            )


def _check_lengths(subject: str, fields: Mapping[str, Column]) -> None:
    """Raise UsageError unless all arrays have the same length."""
    counts = {name: one.shape[0] for name, one in fields.items()}
    if len(set(counts.values())) > 1:
        lengths = ", ".join(f"{name} has {count:,}" for name, count in counts.items())
        raise UsageError(
            f"{subject}: {lengths} values; all fields have a value for each sample. Cut them to the same "
            "length."
        )


def _chosen(
    subject: str,
    found: list[Column],
    names: Sequence[str] | None,
    rename: Mapping[str, str],
    *,
    ordered: bool,
) -> ArraySource:
    """Choose the arrays that are fields: as requested, else by their shapes, dtypes and names.

    Arrays that `rename` does not name are chosen too, if they have as many rows as those that it names.
    ordered: the arrays have an order, so `names` may name them by position. Raises UsageError, SourceError.
    """
    if names is not None:
        if rename:
            return _named(subject, found, names, rename)
        held = {one.name for one in found}
        if set(names) <= held:
            return _named(subject, found, names, {})
        if ordered and len(names) == len(found):
            return _named(
                subject, found, names, {one.name: name for one, name in zip(found, names, strict=True)}
            )
        raise UsageError(
            f"fields: {subject} holds {_listing(found)}; {', '.join(names)} are requested. Name them by "
            "rename."
        )
    _check_renamed(subject, found, rename)
    requested = [one for one in found if one.name in rename]
    _check_lengths(subject, {rename[one.name]: one for one in requested})
    usable = [one for one in found if isinstance(one, ListColumn) or one.dtype.kind in "biufOUST"]
    if not usable and not requested:
        raise SourceError(
            f"{subject}: holds no arrays of numbers or text, but: {_listing(found) or 'none'}. Check the "
            "file."
        )
    main = max(requested or usable, key=lambda one: one.row_bytes * one.shape[0])
    rows = main.shape[0]
    members = [one for one in found if one in requested or (one in usable and one.shape[0] == rows)]
    others = [one for one in found if one not in members]
    twins = [
        one
        for one in others
        if one.shape[1:] == main.shape[1:] and one.dtype == main.dtype and len(one.shape) > 1
    ]
    if twins and not rename:
        raise UsageError(
            f"{subject}: holds {_listing(found)}: several sets of samples; a pack holds one set. Name the "
            f"arrays of a set: {Option('Fields.rename', {_safe(main.name): IMAGE})}."
        )
    fields = _names_of(members, rename)
    source = _named(subject, members, [*fields.values()], fields)
    guessed = {old: new for old, new in fields.items() if old not in rename}
    said = [f"{old} is {new!r}" for old, new in guessed.items() if rename or old not in (new, "array")]
    if said or others:
        chosen = ", ".join(said) or f"fields are {', '.join(fields.values())}"
        left_out = f"; left out: {_listing(others)}" if others else ""
        source.notes.append(
            Sentence(
                f"found {_listing(found)}: {chosen}{left_out}. To choose differently, pass "
                f"{Option('Fields.rename')}."
            )
        )
    return source


def _names_of(members: Sequence[Column], rename: Mapping[str, str]) -> dict[str, str]:
    """Return each array's field name, and thereby the fields' order.

    An array that `rename` does not name is image or label if only that array looks like it, and no other is
    renamed so; else it keeps its name. The order is that of `rename` if it names all arrays, else that of the
    arrays, with image first.
    """
    images = [one for one in members if _looks(one) == IMAGE]
    flat = [
        one
        for one in members
        if one.shape[1:] in ((), (1,)) and (not isinstance(one, ListColumn) or one.dtype.kind == "i")
    ]
    called = [one for one in members if _LABELS.fullmatch(_base(one.name))]
    # Labels with one value per row, or else with several (one-hot, or several numbers).
    labels = [one for one in flat if one in called] or [one for one in called if len(one.shape) == 2]
    if not labels and len(members) == 2:
        labels = [one for one in flat if one.dtype.kind in "iu"]
    names = dict(rename)
    for one in members:
        if one.name in rename:
            continue
        if images == [one] and IMAGE not in rename.values():
            name = IMAGE
        elif labels == [one] and LABEL not in rename.values():
            name = LABEL
        elif one.name == "array":
            name = "features"
        else:
            name = _safe(one.name)
        if name in names.values():
            raise UsageError(
                f"{one.where}: its field would be {name!r}, like that of another array. Name them by rename."
            )
        names[one.name] = name
    if len(rename) == len(names):
        return names
    return {one.name: names[one.name] for one in sorted(members, key=lambda one: names[one.name] != IMAGE)}


def _looks(one: Column) -> str:
    """Return what an array probably holds: "image", "number" or "", for `default_names`."""
    if isinstance(one, ListColumn):
        return "number" if one.dtype.kind == "i" else ""
    return IMAGE if looks_like_image(one.dtype, one.shape[1:]) else "number" if len(one.shape) == 1 else ""


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _safe(name: str) -> str:
    """Return a valid field name for an array's name."""
    text = re.sub(r"[^A-Za-z0-9_]+", "_", _base(name)).strip("_")
    return text if text[:1].isalpha() else f"field_{text}"


def _listing(found: Sequence[Column]) -> str:
    more = ", ..." if len(found) > _LISTED else ""
    return ", ".join(one.described for one in found[:_LISTED]) + more
