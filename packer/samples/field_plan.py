"""Fields of a pack of samples: declared ("uint8[32,32,3]", "int32[*]", "text") or inferred from samples."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer import given_values
from packer.channels import COLORS
from packer.errors import UsageError
from packer.format.fields import (
    Field,
    beside_images,
    is_field_name,
)
from packer.format.header_forms import DTYPES, MAX_RANK
from packer.samples.values import (
    Value,
    ValueRefusedError,
    as_value,
    color_of,
    fit,
    is_pillow,
    pillow_pixels,
    shown,
)

IMAGE, LABEL, KEY = "image", "label", "key"
PICTURES = frozenset(("image", "img", "images", "pixel_values", "pixels", "picture", "photo"))
"""Names of fields that hold images."""
_PIXELS = ("|u1", "<u2")
_FORM = re.compile(r"([a-z]+[0-9]*)\s*(?:\[([0-9*,\s]*)\])?\Z")
_TEXTS: dict[str, dict[str, Any]] = {"text": {"encoding": "utf-8"}, "bytes": {}}

Forms = Mapping[str, str | None]


class Sized(NamedTuple):
    """The target size of images, (height, width), and the way to fit them: "crop", "pad" or "stretch"."""

    size: tuple[int, int]
    fit: str

    def apply(self, images: NDArray[Any]) -> NDArray[Any]:
        """Resize images, uint8 or uint16 [N, h, w, C], as convert_images does.

        The fourth channel is alpha, which weights the colours.
        """
        from packer.pixels.decode_resize import DecodeResize, PixelSpec  # a late import: it loads OpenCV

        count, dtype = images.shape[3], images.dtype.name
        channels = COLORS[count] if dtype == "uint8" else count
        resizing = DecodeResize(PixelSpec(self.size, self.fit, channels, dtype=dtype), rgba=count == 4)
        found = np.zeros((len(images), *self.size, count), images.dtype)
        for image, out in zip(images, found, strict=True):
            resizing.again(np.ascontiguousarray(image), out)
        return found

    def plan(self, plan: FieldPlan) -> FieldPlan:
        """Return the plan of an image field with resizing. Raises ValueRefusedError for other fields."""
        f = plan.field
        if not f.pixels:
            raise ValueRefusedError(
                f"is {plan.described}; only images of 8 or 16 bits and 1, 3 or 4 channels can be resized. "
                "Convert it, or leave out size"
            )
        shape = (*self.size, (f.shape or ())[2])
        return replace(plan, field=Field(f.name, f.dtype, shape, {**f.about, "fit": self.fit}), sized=self)


def pixel_notes(field: Field) -> list[str]:
    """Return a note if a field named image holds images that augment= does not take, such as floats."""
    if field.name != IMAGE or field.ragged or field.pixels or len(field.shape or ()) not in (2, 3):
        return []
    return [
        f"image: rows are {form_of(field)} and load in this shape; augment= and batches [N, C, H, W] need"
        " integers of 8 or 16 bits and 1, 3 or 4 channels. Pack uint8 images to have both."
    ]


@dataclass(frozen=True)
class FieldPlan:
    """A field, and the conversion of a sample's value to a row of the field.

    color: for Pillow images a key of CHANNELS, else "". asked: the user chose the color. channels_first:
    values are [C, H, W] and stored [H, W, C]. gray: values are [H, W] and stored [H, W, 1]. single: values
    are [1] and stored as scalars. sized: target size of images, or None. rounds: the dtype was declared, so
    floats are rounded to it.
    """

    field: Field
    color: str = ""
    channels_first: bool = False
    gray: bool = False
    single: bool = False
    sized: Sized | None = None
    asked: bool = False
    rounds: bool = False

    def row(self, value: Any) -> NDArray[Any] | bytes:
        """Return a value as a row: an array of the field's shape and dtype, or bytes for a ragged field.

        Raises ValueRefusedError.
        """
        if is_pillow(value):
            value = pillow_pixels(value, self.color, asked=self.asked)
        found = as_value(value)
        about = self.field.about
        if not isinstance(found, np.ndarray):
            wanted = str if "encoding" in about else bytes
            if not self.field.ragged or "row_shape" in about or not isinstance(found, wanted):
                raise ValueRefusedError(f"is {_value_text(found)}, but the field is {self.described}")
            return _encoded(found) if isinstance(found, str) else found
        if not self.field.ragged:
            rows = self.stored(found[None])
            if rows.shape[1:] != self.field.shape:
                raise self._wrong_shape(found.shape)
            row: NDArray[Any] = rows[0]
            return row
        if "row_shape" not in about:
            raise ValueRefusedError(f"is {_value_text(found)}, but the field is {self.described}")
        if found.shape == (0,):  # an empty list, which NumPy makes float64
            return b""
        if found.ndim == 0 or list(found.shape[1:]) != list(about["row_shape"]):
            raise self._wrong_shape(found.shape)
        if not found.size:
            return b""
        return self._fit(found, about["dtype"]).tobytes()

    def stored(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return values [N, ...] of a fixed field in its dtype, channels last. Raises ValueRefusedError."""
        given = rows.shape[1:]
        if self.channels_first and rows.ndim == 4:
            rows = rows.transpose(0, 2, 3, 1)
        elif self.gray and rows.ndim == 3:
            rows = rows[..., None]
        elif self.single and set(given) == {1}:
            rows = rows.reshape(len(rows))
        if self.sized is not None:
            channels = (self.field.shape or ())[-1]
            dtype = np.dtype(self.field.dtype)
            if rows.ndim != 4 or rows.shape[3] != channels or rows.dtype != dtype or 0 in given:
                raise ValueRefusedError(
                    f"is {rows.dtype.name}{list(given)}; images of {dtype.itemsize * 8} bits and {channels} "
                    "channels are needed for resizing. Convert it"
                )
            return self.sized.apply(rows)
        return self._fit(rows, self.field.dtype)

    def _fit(self, values: NDArray[Any], dtype: str) -> NDArray[Any]:
        """Return values in the field's dtype. Raises ValueRefusedError that suggests a wider dtype."""
        try:
            return fit(values, np.dtype(dtype), rounds=self.rounds)
        except ValueRefusedError as error:
            wider = "int64" if dtype == "<f8" else "float64"
            name, target = self.field.name, np.dtype(dtype)
            message = f"{error}, for example fields={{{name!r}: {wider!r}}}"
            if values.dtype.kind == target.kind == "f" and not self.rounds:
                message += f", or {target.name!r}, to which floats are rounded"
            raise ValueRefusedError(message) from None

    @property
    def described(self) -> str:
        """The text that declares the field, such as "uint8[32,32,3]"."""
        return form_of(self.field)

    def _wrong_shape(self, shape: tuple[int, ...]) -> ValueRefusedError:
        hint = "Convert all to the same shape"
        if self.field.ragged or len(shape) == len(self.field.shape or ()) == 1:
            hint += f", or declare rows of any length: fields={{{self.field.name!r}: 'int64[*]'}}"
        return ValueRefusedError(f"has the shape {list(shape)}, but the field is {self.described}. {hint}")


def form_of(field: Field) -> str:
    """Return the text that declares a field, the inverse of `parse_form`.

    >>> form_of(Field("tokens", "|u1", None, {"dtype": "<i4", "row_shape": []}))
    'int32[*]'
    """
    if not field.ragged:
        return f"{np.dtype(field.dtype).name}{list(field.shape or ())}".replace(" ", "")
    if "row_shape" in field.about:
        inner = ",".join(["*", *map(str, field.about["row_shape"])])
        return f"{np.dtype(field.about['dtype']).name}[{inner}]"
    return "text" if "encoding" in field.about else "bytes"


@dataclass(frozen=True)
class Form:
    """A declared form of a field.

    dtype: None for text and bytes. shape: of a row, or of an entry of a row if ragged; None: taken from the
    first sample.
    """

    text: str
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...] | None = None
    ragged: bool = False


@dataclass(frozen=True)
class Declared:
    """The user's declarations of fields.

    forms: name -> form or None; None: no fields are named. rename: name in the dataset -> field name.
    channels: color of Pillow images. sized: target size of `image`.
    """

    forms: dict[str, Form | None] | None = None
    rename: Mapping[str, str] = dataclass_field(default_factory=dict)
    channels: str | None = None
    sized: Sized | None = None

    def form(self, name: str) -> Form | None:
        """Return the declared form of a field, or None."""
        return (self.forms or {}).get(name)


def parse_form(name: str, form: str) -> Form:
    """Parse a form: a dtype with an optional shape, whose first side may be *; "text"; or "bytes".

    Raises UsageError.
    """
    text = str(form).strip()
    if text in _TEXTS:
        return Form(text, None, None, True)
    found = _FORM.match(text)
    try:
        if not found:
            raise ValueError
        dtype = np.dtype(found[1])
        if dtype.str not in DTYPES:
            raise ValueError
        if found[2] is None:
            return Form(text, dtype)
        sides = [side.strip() for side in found[2].split(",") if side.strip()]
        ragged = sides[:1] == ["*"]
        shape = tuple(int(side) for side in sides[ragged:])
        if any(side < 1 for side in shape) or len(shape) > MAX_RANK:
            raise ValueError
        return Form(text, dtype, shape, ragged)
    except (ValueError, TypeError):
        raise UsageError(
            f"fields: {name!r} is declared as {given_values.shown(form)}; a dtype with or without a shape"
            " (uint8[32,32,3], float32, int32[*] for rows of any length), text or bytes is allowed. Pass one "
            "of them."
        ) from None


def parse_fields(fields: str | Sequence[str] | Forms | None) -> dict[str, Form | None] | None:
    """Return the declared fields, name -> form or None; None if `fields` is None. Raises UsageError."""
    if fields is None:
        return None
    if isinstance(fields, str):
        fields = [name.strip() for name in fields.split(",")]
    given: dict[str, str | None] = (
        dict(fields) if isinstance(fields, Mapping) else dict.fromkeys(map(str, fields))
    )
    if not given or (not isinstance(fields, Mapping) and len(given) != len(fields)):
        raise UsageError(
            f"fields={given_values.shown(fields)}: is empty, or holds a name twice. Pass for example "
            "['image', 'label']."
        )
    for name in given:
        check_name(name)
    return {name: None if text is None else parse_form(name, text) for name, text in given.items()}


def check_name(name: str) -> None:
    """Raise UsageError for a name that is not a valid field name."""
    if not is_field_name(str(name)):
        raise UsageError(
            f"field {name!r}: not a valid field name; letters, digits and _ are allowed, beginning with a "
            "letter, but no Python keyword. Give it another name, for example by rename."
        )


def plan_field(name: str, values: Sequence[Any], declared: Declared) -> FieldPlan:
    """Return the plan of a field from the values of some samples (at least one). Raises ValueRefusedError."""
    form, channels, sized = declared.form(name), declared.channels, declared.sized
    color, asked = "", channels is not None
    if any(map(is_pillow, values)):
        color = _color(name, values, channels)
        values = [pillow_pixels(v, color, asked=asked) if is_pillow(v) else v for v in values]
    if form is not None and form.dtype is None:
        return FieldPlan(Field(name, "|u1", None, dict(_TEXTS[form.text])))
    found = [as_value(value) for value in values]
    if len({type(value) for value in found}) > 1:
        raise ValueRefusedError(
            f"is {' and '.join(sorted(map(_value_text, found)))}; a field holds one kind of value"
        )
    arrays = [value for value in found if isinstance(value, np.ndarray)]
    if not arrays:
        if form is not None:
            raise ValueRefusedError(f"is {_value_text(found[0])}, but declared as {form.text}")
        kind = "text" if isinstance(found[0], str) else "bytes"
        return FieldPlan(Field(name, "|u1", None, dict(_TEXTS[kind])))
    if sized is not None and name == IMAGE:
        plan = sized.plan(plan_rows(name, arrays[0].dtype, arrays[0].shape, color=color))
    else:
        plan = _plan_arrays(name, arrays, form, color)
    return replace(plan, asked=asked, rounds=form is not None)


def _plan_arrays(name: str, arrays: Sequence[NDArray[Any]], form: Form | None, color: str) -> FieldPlan:
    shapes = list(dict.fromkeys(array.shape for array in arrays))
    filled = [array.dtype for array in arrays if array.size] or [arrays[0].dtype]
    dtype = form.dtype if form is not None and form.dtype is not None else np.result_type(*filled)
    inner, declared = shapes[0][1:], None if form is None else form.shape
    if form is not None and form.ragged:
        inner = form.shape or ()
    elif declared is not None or len(shapes) == 1:
        return plan_rows(name, dtype, shapes[0], color=color, declared=declared)
    elif len({shape[1:] for shape in shapes}) > 1 or not all(shapes):
        raise ValueRefusedError(
            f"has the shape {list(shapes[1])} in one sample and {list(shapes[0])} in another; rows have "
            "equal shapes, or differ only in the first side. Resize in the dataset, for example by a "
            "transform"
        )
    about = {"dtype": np.dtype(dtype).str, "row_shape": [*inner]}
    return FieldPlan(Field(name, "|u1", None, about), color)


def plan_rows(
    name: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    *,
    color: str = "",
    declared: tuple[int, ...] | None = None,
) -> FieldPlan:
    """Return the plan of a fixed field from the dtype and shape of its values.

    Fields named image, of 8 or 16 bits, are stored [H, W, C]; [H, W] and [C, H, W] are converted. Integers
    and booleans named label with shape [1] (as in Keras) are stored as scalars. declared: the declared shape,
    or None.
    """
    about: dict[str, Any] = {}
    channels_first = gray = False
    row = shape
    single = name == LABEL and set(shape) == {1} and np.dtype(dtype).kind in "iub" and declared != shape
    if single:
        row = ()
    elif (name == IMAGE or color) and np.dtype(dtype).str in _PIXELS:
        if len(shape) == 2:
            gray, row = True, (*shape, 1)
        elif is_channels_first(shape):
            channels_first, row = True, (shape[1], shape[2], shape[0])
        if len(row) == 3 and row[2] in COLORS:
            about = {"layout": "HWC", "color": COLORS[row[2]]}
    if declared is not None and declared != row:
        if declared == shape:
            return FieldPlan(Field(name, np.dtype(dtype).str, shape, {}))
        raise ValueRefusedError(
            f"has the shape {list(shape)}, but {list(declared)} is declared. Correct one of them"
        )
    if any(side < 1 for side in row):
        raise ValueRefusedError(f"has the shape {list(shape)}, which holds no values. Leave it out")
    if len(row) > MAX_RANK:
        raise ValueRefusedError(f"has {len(row)} axes; at most {MAX_RANK} are stored. Reshape it")
    return FieldPlan(Field(name, np.dtype(dtype).str, row, about), color, channels_first, gray, single)


def is_channels_first(shape: Sequence[int]) -> bool:
    """Return True if a shape is that of an image [C, H, W]."""
    return len(shape) == 3 and shape[2] not in COLORS and shape[0] in COLORS


def with_masks(plans: Mapping[str, FieldPlan]) -> dict[str, FieldPlan]:
    """Return the plans; fields with a value per pixel of `image` are marked as masks for augmentation."""
    image = plans[IMAGE].field if IMAGE in plans else None
    return {name: replace(plan, field=beside_images(plan.field, image)) for name, plan in plans.items()}


def is_image_like(value: Any) -> bool:
    """Return True for a Pillow image, or an array that looks like an image (see `looks_like_image`)."""
    if is_pillow(value):
        return True
    try:
        found = as_value(value)
    except ValueRefusedError:
        return False
    return isinstance(found, np.ndarray) and looks_like_image(found.dtype, found.shape)


def looks_like_image(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Return True if rows of this dtype and shape are probably images: [H, W], [H, W, C] or [C, H, W]."""
    if len(shape) == 2:
        return np.dtype(dtype).newbyteorder("<").str in _PIXELS and min(shape) > 4
    return len(shape) == 3 and (shape[2] in COLORS or shape[0] in COLORS) and dtype.kind in "uf"


def _color(name: str, values: Sequence[Any], channels: str | None) -> str:
    """Return the color of stored Pillow images: `channels`, else gray or rgba if all images are, else rgb.

    Palette images in fields without an image's name, such as Pascal VOC masks, are stored as indices: "".
    """
    found = {color_of(value) for value in values if is_pillow(value)}
    if channels is None and name not in PICTURES and {v.mode for v in values if is_pillow(v)} == {"P"}:
        return ""
    if "" in found:
        if len(found) > 1 or channels is not None:
            modes = sorted({value.mode for value in values if is_pillow(value)})
            raise ValueRefusedError(
                f"holds images of mode {', '.join(modes)}, whose values are stored unchanged; they need one "
                "mode, and no channels="
            )
        return ""
    if channels is not None:
        return channels
    return found.pop() if len(found) == 1 else "rgb"


def _encoded(text: str) -> bytes:
    """Encode text as UTF-8; escaped bytes of file names are restored. Raises ValueRefusedError."""
    with suppress(UnicodeEncodeError):
        data = text.encode("utf-8", "surrogateescape")
        if data.decode("utf-8", "surrogateescape") == text:
            return data
    raise ValueRefusedError(
        f"is text with lone surrogates, which UTF-8 cannot encode ({text!a:.60}). Correct it"
    )


def _value_text(value: Value) -> str:
    if isinstance(value, np.ndarray):
        return (
            f"an array {value.dtype.name}{list(value.shape)}" if value.ndim else f"the number {shown(value)}"
        )
    return "text" if isinstance(value, str) else "bytes"
