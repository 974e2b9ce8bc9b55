"""Arrays that leave open what they are: errors that say what was seen, and the line that settles it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from packer import units
from packer.channels import COLORS
from packer.errors import SourceError, UsageError
from packer.samples.columns import Column, ListColumn
from packer.samples.field_plan import IMAGE, LABEL, looks_like_image
from packer.sentence import Option

_LISTED, _LETTERS = 8, 200
_READABLE = "biufOUST"  # kinds of dtypes
_LEAST_SIDE = 5  # pixels of a picture
_FEW = 20  # samples
_OPENED = "PIL.Image.open(io.BytesIO(bytes({})))"
_REST = ' "out.h5", size=256)'

Role = Callable[[Column], str]


def some(texts: Sequence[str]) -> str:
    """Return the first few texts, up to some 200 characters, and how many more there are."""
    lengths = np.cumsum([len(text) for text in texts[:_LISTED]])
    listed = max(1, int(np.searchsorted(lengths, _LETTERS))) if texts else 0
    more = f" and {len(texts) - listed:,} more" if len(texts) > listed else ""
    return ", ".join(text[:_LETTERS] for text in texts[:listed]) + more


def listing(found: Sequence[Column]) -> str:
    """Return names, dtypes and shapes of the first few arrays, or "none"."""
    return some([one.described for one in found]) or "none"


def field_name(name: str) -> str:
    """Return a valid field name for an array's name."""
    text = re.sub(r"[^A-Za-z0-9_]+", "_", name.rpartition("/")[2]).strip("_")
    return text if text[:1].isalpha() else f"field_{text}"


def is_readable(one: Column) -> bool:
    """Return True for an array of numbers, text or lists of numbers."""
    return isinstance(one, ListColumn) or (type(one) is not Column and one.dtype.kind in _READABLE)


def check_readable(one: Column, field: str) -> None:
    """Raise SourceError for an array that is needed for a field but is not `is_readable`."""
    if is_readable(one):
        return
    path, remedy = one.path, "Store it as an array of numbers"
    read = f"numpy.load({path!r}, allow_pickle=True)"
    if one.dtype.hasobject and _is_hdf5(one):
        line = (
            f"f = h5py.File({path!r}); pack_dataset((f[r][()].T for r in {_expression(one)}[()].flat),{_REST}"
        )
        remedy = f"If it holds references to pictures, as of MATLAB's cells: {line}"
    if not one.dtype.hasobject or _is_hdf5(one):
        raise SourceError(
            f"{one.where}: {one.dtype.name}{list(one.shape)} holds no numbers or text. {remedy}."
        )
    if path.lower().endswith(".npz"):
        remedy = (
            'numpy.savez("text.npz", **{n: v.astype(str) if v.dtype == object else v'
            f" for n, v in {read}.items()}})"
        )
    elif field == LABEL:
        remedy = f"numpy.save({path!r}, {read}.astype(str))"
    else:
        remedy = f"pack_dataset(list({read}),{_REST}"
    raise SourceError(
        f"{one.where}: object{list(one.shape)} holds Python objects, which are not unpickled. If you"
        f" trust the file: {remedy}."
    )


def is_turned(one: Column) -> bool:
    """Return True for the shape [H, W, C, N] of images."""
    *rows, last = one.shape
    return len(rows) == 3 and rows[2] in COLORS and last not in COLORS and not _images(one)


def holds_images(one: Column) -> bool:
    """Return True for the shape of images: [N, H, W], [N, H, W, C], [N, C, H, W] or [H, W, C, N]."""
    return _images(one) or (is_turned(one) and one.dtype == np.uint8)


def _images(one: Column) -> bool:
    return not isinstance(one, ListColumn) and looks_like_image(one.dtype, one.shape[1:])


def _is_picture(one: Column) -> bool:
    """Return True for an array that looks like a single picture in colour, [H, W, 3 or 4]."""
    *sides, last = one.shape
    return (
        len(sides) == 2
        and last in COLORS
        and last > 1
        and min(sides) >= _LEAST_SIDE
        and one.dtype.str in ("|u1", "<u2")
    )


def check_one_picture(subject: str, one: Column) -> None:
    """Raise UsageError for an array that is one picture, whose lines would become samples."""
    if _is_picture(one):
        raise UsageError(
            f"{subject}: {one.described} looks like one picture; images are [N, H, W, C]. Pack image files as"
            f" a folder of them; rows of numbers by {Option('Fields.rename', {one.name: 'features'})}."
        )


def check_unnamed(subject: str, found: Sequence[Column]) -> None:
    """Raise UsageError for arrays, none named by the rule, that hold images or differ in length."""
    numbered = Counter(map(_without_digits, found))
    pictures = [
        one for one in found if _is_picture(one) or (_is_gray(one) and numbered[_without_digits(one)] > 1)
    ]
    if len(pictures) > 1:
        raise _apart(subject, found, pictures, "picture")
    images = any(holds_images(one) for one in found)
    differ = len({one.shape[0] for one in found}) > 1
    alike = len({(one.shape[1:], one.dtype) for one in found}) == 1 and len(found[0].shape) > 1
    if alike and (images or differ or flat_sides(found[0])):
        raise _one_class_each(subject, found)
    if images:
        raise _unnamed(subject, found, "none is called image or label", found)
    if differ:
        raise _unnamed(subject, found, "their lengths differ, and none is called image, x, label or y", ())


def _is_gray(one: Column) -> bool:
    """Return True for bytes [H, W], which may be a picture."""
    return one.dtype == np.uint8 and len(one.shape) == 2 and min(one.shape) >= _LEAST_SIDE


def _without_digits(one: Column) -> str:
    return re.sub(r"\d+", "", one.name)


def flat_sides(one: Column) -> int:
    """Return the side of flattened square images of 8 bits, grey or colour; 0 for other arrays."""
    if one.dtype != np.uint8 or len(one.shape) != 2:
        return 0
    for channels in COLORS:
        side = math.isqrt(one.shape[1] // channels)
        if side * side * channels == one.shape[1] and side >= _LEAST_SIDE:
            return side
    return 0


def _one_class_each(subject: str, found: Sequence[Column]) -> UsageError:
    """Return the error for arrays of one form, as of a file for each class."""
    few = found[:_LISTED]
    arrays = "[" + ", ".join(map(_expression, few)) + (", ...]" if len(found) > len(few) else "]")
    names = [field_name(one.name) for one in few]
    rename = dict(zip([one.name for one in few[:2]], names, strict=False))
    return UsageError(
        f"{subject}: {listing(found)} have one form, as of a class each. If they are classes: arrays ="
        f" {arrays}; pack_dataset((numpy.concatenate(arrays), numpy.repeat(range(len(arrays)), [len(a)"
        f' for a in arrays])), "out.h5", classes={names}). If they are fields:'
        f" {Option('Fields.rename', rename)}."
    )


def _unnamed(subject: str, found: Sequence[Column], what: str, free: Sequence[Column]) -> UsageError:
    """Return the error for arrays without names, of which `free` may be the images and labels."""
    images = sorted(filter(holds_images, free), key=lambda one: -one.shape[0])
    remedy = {images[0].name: IMAGE} if images else {}
    ends = {images[0].shape[0], images[0].shape[-1]} if images else {one.shape[0] for one in free}
    labels = [one for one in free if one.shape[1:] in ((), (1,)) and one.shape[0] in ends]
    if len(labels) == 1:
        remedy[labels[0].name] = LABEL
    if not remedy:
        largest = max(found, key=lambda one: one.row_bytes * one.shape[0])
        remedy = {largest.name: field_name(largest.name)}
    return UsageError(
        f"{subject}: holds {listing(found)}; {what}. Name those that are: {Option('Fields.rename', remedy)}."
    )


def same_role(subject: str, found: Sequence[Column], role: str, names: Sequence[str]) -> UsageError:
    """Return the error for several arrays that would be the same field."""
    pictures = [one for one in found if one.name in names and _is_picture(one)]
    if len(pictures) > 1:
        return _apart(subject, found, pictures, "picture", samples=True)
    parts = [one for one in found if one.name in names]
    joined = ""
    if len({(one.dtype, one.shape[1:]) for one in parts}) == 1 and parts[0].path:
        arrays = ", ".join(map(_expression, parts[:2])) + (", ..." if len(parts) > 2 else "")
        joined = f" If they are parts of one set, join those of each field: numpy.concatenate([{arrays}])."
    return UsageError(
        f"{subject}: holds {listing(found)}; {len(names)} could be {role!r}: {some(names)}. Name those of"
        f" one set of samples: {Option('Fields.rename', {names[0]: role})}.{joined}"
    )


def _apart(
    subject: str, found: Sequence[Column], parts: Sequence[Column], what: str, *, samples: bool = False
) -> UsageError:
    """Return the error for an HDF5 file with an array for each picture.

    parts: the pictures. what: "picture" or "encoded image". samples: groups are samples, not classes.
    """
    value, depth = "{}" if what == "picture" else _OPENED, {one.name.count("/") for one in found}
    line, options = "", ""
    if depth == {0}:
        line = f"{value.format('f[n][()]')} for n in f"
    elif depth == {1} and samples:
        line = "{n: v[()] for n, v in g.items()} for g in f.values()"
    elif depth == {1}:
        line = f"({value.format('f[c][n][()]')}, k) for k, c in enumerate(f) for n in f[c]"
        options = " classes=list(f),"
    remedy = "Pack a generator of its samples"
    if line:
        remedy += f': f = h5py.File({parts[0].path!r}); pack_dataset(({line}), "out.h5",{options} size=256)'
    groups = units.count(len({one.name.rpartition("/")[0] for one in found}), "group")
    count = f"{len(found):,} arrays in {groups}, such as {found[0].described}"
    return UsageError(
        f"{subject}: holds {count}: a dataset for each {what}; an array holds all samples. {remedy}."
    )


def check_encoded(subject: str, found: Sequence[Column], role: Role) -> None:
    """Raise UsageError for arrays whose values are encoded images, as JPEG files are."""
    encoded = [one for one in found if one.encoded]
    if not encoded:
        return
    if len(encoded) > 1 and any(
        not one.shape or (len(one.shape) == 1 and one.dtype == "u1") for one in encoded
    ):
        raise _apart(subject, found, encoded, "encoded image")
    [image, *_], label = encoded, next((one for one in found if role(one) == LABEL), None)
    line = f"{_OPENED.format('data')} for data in {_expression(image)}"
    if label is not None:
        line = f"({_OPENED.format('data')}, y) for data, y in zip({_expression(image)}, {_expression(label)})"
    raise UsageError(
        f"{image.where}: {image.described} holds encoded images, such as JPEG files; arrays hold pixels."
        f" Decode them: pack_dataset(({line}),{_REST}."
    )


def _expression(one: Column) -> str:
    """Return a Python expression of an array's values."""
    name = one.where[len(one.path) + 1 :]
    opened = f"{'h5py.File' if _is_hdf5(one) else 'numpy.load'}({one.path!r})"
    return one.name if not one.path else f"{opened}[{name!r}]" if name else opened


def _is_hdf5(one: Column) -> bool:
    return not one.path.lower().endswith((".npy", ".npz"))


def check_choice(
    subject: str,
    found: Sequence[Column],
    names: Mapping[str, str],
    fields: Mapping[str, Column],
    rename: Mapping[str, str],
    role: Role,
) -> None:
    """Raise UsageError for a choice that lacks the images or labels that the arrays probably hold.

    names: array -> field. role: the field that an array is by the rule.
    """
    others = [one for one in found if one.name not in names]
    free = [one for one in found if one.name in names and one.name not in rename and not role(one)]
    labelled = LABEL in fields
    for one in found:
        if not labelled and one.name not in rename and role(one) in (IMAGE, "features"):
            check_one_picture(subject, one)
    photos = [] if IMAGE in fields or len(found) == 1 else [one for one in free if holds_images(one)]
    if photos:
        raise _unnamed(subject, found, "none is called image", free)
    for one in free:
        if names[one.name] in ("image", "images") and one.dtype.kind in "OUS":
            raise UsageError(
                f"{subject}: {one.described} holds no pixels; images are arrays of numbers. If it names"
                " files, pass their folder to convert_images."
            )
    rows = next(iter(fields.values())).shape[0]
    lost = [one for one in others if one.shape[0] == rows]
    if lost and {*fields} == {LABEL}:
        check_readable(lost[0], "")
    single = [one for one in [*free, *others] if one.shape[1:] in ((), (1,))]
    for one in others:
        near = 0 < abs(one.shape[0] - rows) <= max(1, rows // 100)
        asked = role(one) == IMAGE and IMAGE not in rename.values()
        rowlike = len(one.shape) > 1 and rows > _FEW  # of few samples, anchors or means may have as many
        likely = role(one) or rowlike or (not labelled and one in single)
        if near and (asked if rename else likely):
            raise UsageError(
                f"{subject}: holds {listing(found)}; {one.name} has nearly as many values as there are"
                f" samples. Find the sample that lacks one, or choose the arrays by"
                f" {Option('Fields.rename')}."
            )
    single = [one for one in single if one.shape[0] == rows]
    if IMAGE in fields and not labelled and not rename and len(found) == 2 and single:
        raise _unnamed(subject, found, "none is called label", single)


def check_alike(
    subject: str, name: str, parts: Mapping[str, Column | None], arrays: Mapping[str, str]
) -> None:
    """Raise UsageError if a field differs in dtype or shape between two splits, or one lacks it."""
    forms = {
        split: "none" if one is None else f"{one.dtype.name}{list(one.shape[1:])}"
        for split, one in parts.items()
    }
    if len(set(forms.values())) > 1 and not any(isinstance(one, ListColumn) for one in parts.values()):
        said = ", ".join(f"{split} has {form}" for split, form in forms.items())
        raise UsageError(
            f"{subject}: {name!r} differs between the splits: {said} per sample. Make them alike, or pack one"
            f" set of arrays: {Option('Fields.rename', dict(arrays))}."
        )
