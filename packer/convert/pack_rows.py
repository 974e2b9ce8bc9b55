"""Rows from packs: of several as if they were one, resized, or stored another way, without going back to the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.convert.row_maker import Block, RowMaker
from packer.convert.whole_pictures import RAW_BYTES, WholePicture, WholePictures, store_partner
from packer.errors import UsageError
from packer.format.header import Field
from packer.format.joined_pack import check_fields, joined
from packer.format.own_size import partner
from packer.format.pack import Pack
from packer.format.pack_writer import Rows
from packer.orders.runs import Runs, consecutive, one_run
from packer.pixels.decode_resize import DecodeResize, ImagePlacement, PixelSpec, place_soft
from packer.pixels.row_size import RowSize
from packer.read.array_store import PackStore
from packer.read.encoded_images import EncodedImages
from packer.sentence import Option

_OWN = ("size", "dtype", "channels")  # what fields of pictures of sizes of their own say of them
_PLACED = ("boxes", "box_label", "keypoints")  # fields that follow the picture


def together(packs: Sequence[Pack]) -> tuple[Pack, list[NDArray[np.int64]]]:
    """Return several packs as one, in memory.

    Returns: it, with the classes of all (different ones are sorted); and for each of its parts the number there of each of the part's
    classes ([] where all have the same, or none).
    Raises UsageError, naming the difference, when their fields differ, only some have classes, or labels of several classes each
    are of different ones.
    """
    first = packs[0]
    for pack in packs[1:]:
        for a, b in zip(first.fields, pack.fields, strict=False):
            # Columns that are classes are compared with the classes.
            check_fields(first, a, pack, b, columns=first.header.classes is None)
        if len(first.fields) != len(pack.fields):
            names = [", ".join(f.name for f in p.fields) for p in (first, pack)]
            raise UsageError(
                f"{pack.path}: has the fields {names[1]}, {first.path} has {names[0]}; equal fields go together."
            )
        if (pack.header.classes is None) != (first.header.classes is None):
            raise UsageError(f"{pack.path}, {first.path}: only one of them has class names; all or none may.")
    parts = [part for pack in packs for part in pack.parts]
    classes, numbers = first.header.classes, []
    if classes is not None and any(part.header.classes != classes for part in parts):
        other = next(pack for pack in packs if pack.header.classes != classes)
        if any(f.name == "label" and f.shape != () for f in first.fields):
            raise UsageError(
                f"{other.path}: its labels are columns of other classes than those of {first.path}; equal ones go together."
                " Convert the images of both at once."
            )
        classes = tuple(sorted({name for part in parts for name in part.header.classes or ()}))
        numbers = [
            # The last one is that of -1, the label of rows without one.
            np.array([*(classes.index(name) for name in part.header.classes or ()), -1])
            for part in parts
        ]
    pack = joined(packs)
    return replace(pack, header=replace(pack.header, classes=classes)), numbers


class PackRows(RowMaker):
    """Rows from those of a pack: what stays as it is comes as columns.

    Rows of JPEG files are passed on as they are when they stay JPEG files of the same size, and so are whole pictures and their masks.
    """

    def __init__(
        self,
        pack: Pack,
        numbers: Sequence[NDArray[np.int64]] = (),
        spec: PixelSpec | None = None,
        *,
        jpeg: bool = False,
        whole: WholePictures | None = None,
        verify: bool = False,
    ) -> None:
        """numbers: for each part, the label of each of its classes, [] to leave labels as they are; spec: the new size, None: as it
        is; jpeg: whether images are to be stored as JPEG files; whole: what makes other ones of pictures of sizes of their own, None to
        pass them on; verify: compare blocks with their checksums.
        """
        self.pack, self._numbers, self._spec, self._whole = pack, numbers, spec, whole
        self._reader = PackStore(pack, pack.fields, verify=verify)
        self._firsts = np.cumsum([0, *(part.rows for part in pack.parts)])
        self._image = image = next((f for f in pack.fields if f.name == "image"), None)
        self._anew = spec is not None or whole is not None  # heights and widths are others, or there are none
        self._own = None if image is None else image.own_size
        ragged = image is not None and image.ragged
        self._passed = ragged and spec is None and (jpeg or self._own is not None)
        made = None if image is None else self._made_image(image.loaded)
        self.fields: tuple[Field, ...] = tuple(
            self._made(f, made) for f in pack.fields if f.name != "key" and not (self._anew and f.measures)
        )
        self.fields += whole.sizes if whole is not None else ()
        # Of images of sizes of their own that are passed on, the new pack has mean and deviation if this one has.
        self._counted = made is not None and made.ragged and "image" in pack.header.statistics
        decoded = made is not None and not made.ragged and ragged
        names = {"image"} if self._anew or self._counted or decoded else set()
        names |= {f.name for f in self.fields if self._anew and (f.measures or self._moved(f))}
        self._bulk = [f for f in self.fields if f.name not in names]
        self.ragged_bytes = 0
        if made is None or made.ragged:
            own = [f for f in pack.fields if f.ragged and f.name != "key"]
            if made is not None:
                own = [f for f in own if f.own_size is not None or f.name == "image"]
            nbytes = sum(e.nbytes for f in own for e in pack.header.extents[f.name]) // pack.rows
            nbytes += 8 * len(own) if pack.header.table is not None else 0
            self.ragged_bytes = nbytes if whole is None else self._usual_bytes(whole, nbytes)

    def _made_image(self, loaded: Field) -> Field:
        """Return the field of images as it is made. loaded: as it is loaded. Raises UsageError."""
        if loaded.compressed:
            loaded = replace(loaded, codec=None)
        if (spec := self._spec) is not None:
            _check_shrinks(self.pack, loaded, spec)
            self._pixels = DecodeResize(spec, rgba=loaded.about.get("color") == "rgba")
            about = {**{k: v for k, v in loaded.about.items() if k not in _OWN}, "fit": spec.fit}
            dtype = np.dtype(spec.dtype).newbyteorder("<").str
            loaded = replace(loaded, dtype=dtype, shape=spec.shape, about=about, codec=None)
        elif loaded.ragged and not self._passed:
            raise UsageError(
                f"{self.pack.path}: its images have sizes of their own; they need one to be stored as "
                f"pixels. Pass {Option('size')}."
            )
        return loaded if self._whole is None else self._whole.image

    @property
    def remade(self) -> bool:
        """True if pictures of sizes of their own are made anew, as such."""
        return self._whole is not None

    def columns(self, samples: NDArray[np.int64]) -> Mapping[str, Rows]:
        """Return the fields that stay as they are."""
        found: dict[str, Any] = {}
        runs = consecutive(samples)
        parts = self._parts(samples) if self._numbers else np.empty(0, np.intp)
        for f in self._bulk:
            values: Any
            if not f.ragged:
                values = self._reader.array(f.name, runs)
            else:
                values = self._reader.ragged(f.name, runs) if len(samples) else []
            if self._numbers and f.name == "label":
                for part, number in enumerate(self._numbers):
                    values[parts == part] = number[values[parts == part]]
            elif self._numbers and f.name == "box_label":
                values = [
                    self._numbers[part][np.frombuffer(labels, "<i8")].tobytes()
                    for labels, part in zip(values, parts.tolist(), strict=True)
                ]
            found[f.name] = values
        return found

    def make(self, sample: int, at: int, block: Block) -> None:
        """Read the row, and place it anew if its size changes."""
        run, rows = one_run(sample, sample + 1), block.rows
        row = {name: values[at, ...] for name, values in rows.items() if isinstance(values, np.ndarray)}
        ragged = {
            f.name: self._reader.ragged(f.name, run)[0]
            for f in self.pack.fields
            if f.ragged and f.name in rows
        }
        if "box_label" in ragged and self._numbers:
            number = self._numbers[int(self._parts(run.starts)[0])]
            ragged["box_label"] = number[np.frombuffer(ragged["box_label"], "<i8")].tobytes()
        size = self._fill(run, row, ragged.get("image"), sample)
        geometry = ImagePlacement.of(self._spec.fit, size, self._spec.size) if self._spec else None
        pixels = None
        if self._whole is not None:
            picture = self._made_whole(self._whole, ragged["image"], sample)
            ragged["image"], pixels = picture.data, self._whole.fill(picture, rows, at)
            pixels = picture.pixels if self._counted else pixels
            geometry = ImagePlacement.of("stretch", picture.source, picture.size)
        for f in self.fields:
            if geometry is None or f.name == "image" or not self._moved(f):
                continue
            stored, field = None, self.pack.header.field(f.name)
            own = field.own_size
            if own is not None:
                stored = self._picture(f.name, ragged.pop(f.name), sample)
                out = row.get(f.name)
                placed = np.empty(own.shape(*geometry.result), own.dtype) if out is None else out
                _place(f, geometry, stored, ragged, placed)
                if out is None:
                    ragged[f.name] = store_partner(f, placed)
                continue
            if not f.ragged:
                stored = self._reader.array(f.name, run)[0]
            _place(f, geometry, stored, ragged, row.get(f.name))
        if self._counted and pixels is None:
            pixels = self._picture("image", ragged["image"], sample)
        if not self._passed:
            ragged.pop("image", None)
        for name, data in ragged.items():
            files = rows[name]
            if name in row:
                files = block.files.setdefault(name, [b""] * len(files))
            files[at] = data
        if pixels is not None:
            block.add_picture(pixels)
        block.bytes_read += sum(a.nbytes for a in row.values()) + sum(map(len, ragged.values()))

    def name(self, sample: int) -> str:
        """Return the pack, and the row in it."""
        part = int(self._parts(np.array([sample]))[0])
        return f"{self.pack.parts[part].path}, row {sample - int(self._firsts[part])}"

    def key(self, sample: int) -> str:
        """Return the row's own key, else its number."""
        if all(f.name != "key" for f in self.pack.fields):
            return str(sample)
        run = one_run(sample, sample + 1)
        return self._reader.ragged("key", run)[0].decode("utf-8", "surrogateescape")

    def _picture(self, name: str, data: bytes, sample: int) -> NDArray[Any]:
        """Decode a row of a field of pictures of sizes of their own."""
        run = one_run(sample, sample + 1)
        known = self._reader.sizes(run) if any(f.measures for f in self.pack.fields) else None
        return EncodedImages(self.pack, self.pack.header.field(name), [data], [sample], known).decode(0)

    def _made_whole(self, whole: WholePictures, data: bytes, sample: int) -> WholePicture:
        """Return a whole picture anew: of its file where that may be passed on or shrinks, else of its pixels."""
        if self._own is not None and self._own.codec == "jpeg" and whole.of_files:
            return whole(data)
        return whole.again(self._picture("image", data, sample))

    def _usual_bytes(self, whole: WholePictures, nbytes: int) -> int:
        """Return about how many bytes a row will have that has so many now."""
        raw = self._own is not None and self._own.codec is None
        return whole.usual_bytes(nbytes // (RAW_BYTES if raw else 1))

    def _fill(
        self, run: Runs, row: Mapping[str, NDArray[Any]], encoded: bytes | None, sample: int
    ) -> tuple[int, int]:
        """Fill in the row's picture; returns its (height, width) in the pack."""
        if "image" not in row:
            return 0, 0
        out: NDArray[Any] = row["image"]
        if self._spec is None:
            self._reader.copy(run, {"image": out.reshape(1, -1).view(np.uint8)})
            return 0, 0
        if encoded is not None and self._own is not None and self._own.codec is None:
            pixels = self._picture("image", encoded, sample)
            self._pixels.again(pixels, out)
            return pixels.shape[0], pixels.shape[1]
        if encoded is not None:
            return self._pixels(encoded, out)
        assert self._image is not None
        (stored,) = self._reader.array("image", run)
        self._pixels.again(stored, out)
        return stored.shape[0], stored.shape[1]

    def _parts(self, samples: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the number of the part in which each row lies."""
        return np.searchsorted(self._firsts, samples, "right") - 1

    def _moved(self, f: Field) -> bool:
        """Return True for a field that follows the picture when that is placed anew."""
        return self._anew and ("sampling" in f.about or f.name in _PLACED)

    def _made(self, f: Field, image: Field | None) -> Field:
        """Return a field as it is made."""
        if f.name == "image" and image is not None:
            return image
        if not self._anew or "sampling" not in f.about:
            return replace(f, codec=None) if f.compressed else f
        own, soft = f.own_size, f.about["sampling"] == "linear"
        if self._spec is None:
            assert own is not None
            assert self._whole is not None
            about, codec = partner(own.dtype, own.channels or 1, soft=soft, raw=self._whole.raw)
            return Field(f.name, "|u1", None, about, codec)
        if own is not None:
            about, _ = partner(own.dtype, own.channels or 1, soft=soft, raw=True)
            about = {"layout": about["layout"], "fit": self._spec.fit, "sampling": about["sampling"]}
            return Field(f.name, own.dtype, own.shape(*self._spec.size), about)
        return Field(
            f.name, f.dtype, (*self._spec.size, *(f.shape or ())[2:]), {**f.about, "fit": self._spec.fit}
        )


def _place(
    f: Field,
    geometry: ImagePlacement,
    stored: NDArray[Any] | None,
    ragged: dict[str, bytes],
    out: NDArray[Any] | None,
) -> None:
    """Move a field of one row with its picture: a mask, a soft map, keypoints, or boxes and their labels."""
    if f.name == "keypoints" and stored is not None and out is not None:
        out[...] = geometry.keypoints(stored.astype(np.float64))
    elif f.name == "boxes":
        boxes, seen = geometry.boxes(np.frombuffer(ragged["boxes"], "<f4").reshape(-1, 4).astype(np.float64))
        ragged["boxes"] = boxes[seen].tobytes()
        if "box_label" in ragged:
            ragged["box_label"] = np.frombuffer(ragged["box_label"], "<i8")[seen].tobytes()
    elif stored is not None and out is not None:
        out[...] = 0
        if f.about["sampling"] == "linear":
            place_soft(stored, geometry, out)
            return
        rows, columns = geometry.nearest(*stored.shape[:2])
        geometry.target.of(out)[...] = stored[np.ix_(rows, columns)]


def _check_shrinks(pack: Pack, image: Field, spec: PixelSpec) -> None:
    """Refuse a size that would have to be invented. Raises UsageError."""
    if image.shape is not None and (spec.size[0] > image.shape[0] or spec.size[1] > image.shape[1]):
        raise UsageError(
            f"size {spec.size[0]}x{spec.size[1]}: {pack.path} has images of {image.shape[0]}x{image.shape[1]}; they can only shrink."
            " Pass a smaller size, or convert the source again."
        )


def check_whole(pack: Pack, image: Field, rule: RowSize) -> None:
    """Raise UsageError unless images of a pack can shrink to sizes of their own by a rule."""
    if not rule.limits:
        found = "is about files that are packed, not about packs"
    elif image.shape is not None:
        found = f"is about images of sizes of their own; those of {pack.path} have {image.shape[0]}x{image.shape[1]}"
    else:
        return
    raise UsageError(f"size {rule.option}: {found}. Pass a number or HxW, for example 256, or leave it out.")
