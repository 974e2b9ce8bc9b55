"""Rows from packs: merged, resized, or stored another way, without reading the source again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.codecs import jpeg_parts
from packer.convert.row_maker import Block, RowMaker
from packer.convert.split_assignment import Codes, Owners
from packer.convert.whole_pictures import (
    WholePicture,
    WholePictures,
    partner_versions,
    store_partner,
)
from packer.errors import UsageError, damaged
from packer.format.file_rows import counted_files, recounted
from packer.format.header import Field
from packer.format.joined_pack import check_fields, joined
from packer.format.own_size import partner
from packer.format.pack import Pack
from packer.format.part_files import Rows
from packer.orders.runs import Runs, consecutive, one_run
from packer.pixels.decode_resize import (
    DecodeResize,
    PixelSpec,
    codec_builds,
    decoder_versions,
)
from packer.pixels.resampling import place_soft
from packer.pixels.row_placement import ImagePlacement
from packer.pixels.row_size import RowSize
from packer.read.array_store import PackStore
from packer.read.encoded_images import EncodedImages
from packer.sentence import Option

_SIZED = ("size", "dtype", "channels")  # members of `about` of fields of images of different sizes
_PLACED = ("boxes", "box_label", "keypoints")  # fields that move with the image


def together(packs: Sequence[Pack]) -> tuple[Pack, list[NDArray[np.int64]]]:
    """Join several packs to one pack in memory.

    Returns: the pack, with the classes of all packs (sorted if they differ); and for each of its parts the
    new number of each of the part's classes ([] if all packs have equal classes, or none). Raises UsageError,
    naming the difference, if fields differ, if only some packs have classes, or if packs with multi-label
    rows have different classes.
    """
    first = packs[0]
    for pack in packs[1:]:
        for a, b in zip(first.fields, pack.fields, strict=False):
            # Label columns that are classes are compared below, with the classes.
            check_fields(first, a, pack, b, columns=first.header.classes is None)
        if len(first.fields) != len(pack.fields):
            names = [", ".join(f.name for f in p.fields) for p in (first, pack)]
            raise UsageError(
                f"{pack.path}: has the fields {names[1]}, {first.path} has {names[0]}; the fields have to be"
                " equal."
            )
        if (pack.header.classes is None) != (first.header.classes is None):
            raise UsageError(
                f"{pack.path}, {first.path}: only one of them has class names; all packs need them, or none."
            )
    parts = [part for pack in packs for part in pack.parts]
    classes, numbers = first.header.classes, []
    if classes is not None and any(part.header.classes != classes for part in parts):
        other = next(pack for pack in packs if pack.header.classes != classes)
        if any(f.name == "label" and f.shape != () for f in first.fields):
            raise UsageError(
                f"{other.path}: its label columns are other classes than those of {first.path}; they have to"
                " be equal. Convert the images of both at once."
            )
        classes = tuple(sorted({name for part in parts for name in part.header.classes or ()}))
        number = {name: code for code, name in enumerate(classes)}
        numbers = [
            # The last entry maps -1, the label of unlabelled rows, to itself.
            np.array([*(number[name] for name in part.header.classes or ()), -1])
            for part in parts
        ]
    pack = joined(packs)
    return replace(pack, header=replace(pack.header, classes=classes)), numbers


def split_owners(pack: Pack) -> Owners:
    """Return the split of each row, splits by their first row. Raises UsageError for rows in no split."""
    splits = sorted(pack.header.splits.items(), key=lambda item: item[1])
    within = sum(b - a for _, spans in splits for a, b in spans)
    if splits and within != pack.rows:
        raise UsageError(
            f"{pack.path}: {pack.rows - within:,} of its {pack.rows:,} rows are in no split; all rows need a"
            " split, or none. Merge only packs that all have splits, or only packs without."
        )
    members = {name: np.concatenate([np.arange(a, b) for a, b in spans]) for name, spans in splits}
    return Owners.from_splits(members, pack.rows)


class PackRows(RowMaker):
    """Rows of a new pack from rows of a pack; unchanged fields are read as columns.

    JPEG rows are copied unchanged if they stay JPEG files of the same size; so are images of different sizes
    and their masks.
    """

    pack: Pack

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
        """numbers: for each part, the new number of each of its classes; [] to keep labels.

        spec: the new size; None to keep the size; jpeg: store images as JPEG files; whole: function that
        resizes or encodes images of different sizes; None to copy them; verify: compare blocks with their
        checksums.
        """
        self.pack, self._numbers, self._spec, self._whole = pack, numbers, spec, whole
        self.count: int = pack.rows
        self.classed = pack.header.classes is not None or pack.header.table is None
        self._reader = PackStore(pack, pack.fields, verify=verify)
        self._firsts = np.cumsum([0, *(part.rows for part in pack.parts)])
        self._files = [counted_files([part.header]) for part in pack.parts]
        self._image = image = next((f for f in pack.fields if f.name == "image"), None)
        self._resized = spec is not None or whole is not None  # the size fields change, or are dropped
        sized = None if image is None else image.own_size
        if sized is not None and sized.codec is None:
            raise UsageError(
                f"{pack.path}: its images of different sizes are raw, which packer no longer writes. Convert"
                " the images again."
            )
        ragged = image is not None and image.ragged
        self._copied = ragged and spec is None and (jpeg or sized is not None)
        new_image = None if image is None else self._new_image(image.loaded)
        self.fields: tuple[Field, ...] = tuple(
            self._new_field(f, new_image)
            for f in pack.fields
            if f.name != "key" and not (self._resized and f.measures)
        )
        self.fields += whole.sizes if whole is not None else ()
        # Statistics of copied images of different sizes are computed if this pack has them.
        self._counted = new_image is not None and new_image.ragged and "image" in pack.header.statistics
        decoded = new_image is not None and not new_image.ragged and ragged
        names = {"image"} if self._resized or self._counted or decoded else set()
        names |= {f.name for f in self.fields if self._resized and (f.measures or self._moved(f))}
        self._bulk = [f for f in self.fields if f.name not in names]
        self.ragged_bytes = 0
        if new_image is None or new_image.ragged:
            fields = [f for f in pack.fields if f.ragged and f.name != "key"]
            if new_image is not None:
                fields = [f for f in fields if f.own_size is not None or f.name == "image"]
            nbytes = sum(e.nbytes for f in fields for e in pack.header.extents[f.name]) // pack.rows
            nbytes += 8 * len(fields) if pack.header.table is not None else 0
            self.ragged_bytes: int = nbytes if whole is None else whole.size.usual_bytes(nbytes)

    def _new_image(self, loaded: Field) -> Field:
        """Return the image field of the new rows.

        loaded: the image field in loaded form. Raises UsageError.
        """
        if loaded.compressed:
            loaded = replace(loaded, codec=None)
        if (spec := self._spec) is not None:
            _check_shrinks(self.pack, loaded, spec)
            self._pixels = DecodeResize(spec, rgba=loaded.about.get("color") == "rgba")
            about = {**{k: v for k, v in loaded.about.items() if k not in _SIZED}, "fit": spec.fit}
            dtype = np.dtype(spec.dtype).newbyteorder("<").str
            loaded = replace(loaded, dtype=dtype, shape=spec.shape, about=about, codec=None)
        elif loaded.ragged and not self._copied:
            raise UsageError(
                f"{self.pack.path}: its images have different sizes; one size is needed to store them as "
                f"pixels. Pass {Option('size')}."
            )
        return loaded if self._whole is None else self._whole.image

    def versions(self, storage: Mapping[str, str]) -> list[Mapping[str, str]]:
        """Return the versions of the libraries that made the pixels: those of the packs, if rows are copied.

        storage: versions of the libraries that would encode rows.
        """
        copied = self._copied and self._whole is None
        here = decoder_versions() | codec_builds() | partner_versions(self.fields)
        kept = {*here, jpeg_parts.NO_MARKERS} if copied else here.keys()
        found: dict[str, set[str]] = {}
        for part in self.pack.parts:
            for name, version in part.header.provenance.get("versions", {}).items():
                if name in kept:
                    found.setdefault(name, set()).add(version)
        before = {name: ", ".join(sorted(versions)) for name, versions in found.items()}
        return [storage, before] if copied else [before, here if self.made_fields else {}, storage]

    def labels(self) -> NDArray[np.int64] | None:
        """Return the label of each row, of packs with one whole number a row."""
        if not any(f.name == "label" and f.dtype == "<i8" and f.shape == () for f in self.pack.fields):
            return None
        labels: NDArray[np.int64] = self._reader.array("label", one_run(0, self.count))
        return labels

    def codes(self, column: str | None) -> Codes | None:
        """Return the label of each row in its split, so that new packs get equal shares of each."""
        label, splits = super().codes(column), split_owners(self.pack)
        if len(splits.names) < 2:
            return label
        labels = 0 if label is None else label.numbers.astype(np.int64)
        return Codes.from_values(labels * np.int64(len(splits.names)) + splits.numbers)

    @property
    def remade(self) -> bool:
        """True if images of different sizes are resized or encoded, and keep different sizes."""
        return self._whole is not None

    def columns(self, samples: NDArray[np.int64]) -> Mapping[str, Rows]:
        """Return the unchanged fields."""
        columns: dict[str, Any] = {}
        runs = consecutive(samples)
        parts = self._parts(samples) if self._numbers else np.empty(0, np.intp)
        for f in self._bulk:
            values: Any
            if not f.ragged:
                values = self._reader.array(f.name, runs)
            else:
                values = self._reader.ragged(f.name, runs) if len(samples) else []
            if f.counts and any(files != self._files[0] for files in self._files):
                values = self._recounted(values, samples)
            if self._numbers and f.name == "label":
                for part in range(len(self._numbers)):
                    values[parts == part] = self._recoded(part, values[parts == part])
            elif self._numbers and f.name == "box_label":
                values = [
                    self._recoded(part, np.frombuffer(labels, "<i8")).tobytes()
                    for labels, part in zip(values, parts.tolist(), strict=True)
                ]
            columns[f.name] = values
        return columns

    def _recounted(self, numbers: NDArray[Any], samples: NDArray[np.int64]) -> NDArray[Any]:
        """Return numbers of source rows as numbers among the rows of all files. Raises FormatError."""
        files, parts = list(dict.fromkeys(file for own in self._files for file in own)), self._parts(samples)
        numbers = numbers.copy()
        for part in np.unique(parts).tolist():
            rows = parts == part
            try:
                numbers[rows] = recounted(numbers[rows], self._files[part], files)
            except (ValueError, OverflowError) as error:
                path = self.pack.parts[part].path
                raise damaged(path, f"its row numbers are wrong ({error})") from None
        return numbers

    def _recoded(self, part: int, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return labels of a part as numbers of all classes. Raises FormatError for one without a class."""
        numbers = self._numbers[part]
        if len(labels) and not -1 <= labels.min() <= labels.max() < len(numbers) - 1:
            raise damaged(self.pack.parts[part].path, "it has labels without a class")
        return numbers[labels]

    def make(self, sample: int, at: int, block: Block) -> None:
        """Read the row; resize its image and move the other fields if the size changes."""
        run, rows = one_run(sample, sample + 1), block.rows
        row = {name: values[at, ...] for name, values in rows.items() if isinstance(values, np.ndarray)}
        ragged = {
            f.name: self._reader.ragged(f.name, run)[0]
            for f in self.pack.fields
            if f.ragged and f.name in rows
        }
        if "box_label" in ragged and self._numbers:
            labels = np.frombuffer(ragged["box_label"], "<i8")
            ragged["box_label"] = self._recoded(int(self._parts(run.starts)[0]), labels).tobytes()
        size = self._fill(run, row, ragged.get("image"), sample)
        geometry = ImagePlacement.of(self._spec.fit, size, self._spec.size) if self._spec else None
        pixels = None
        if self._whole is not None:
            picture = self._new_picture(self._whole, ragged["image"], sample)
            ragged["image"], pixels = picture.data, self._whole.fill(picture, rows, at)
            pixels = picture.pixels if self._counted else pixels
            geometry = ImagePlacement.of("stretch", picture.source, picture.size)
        for f in self.fields:
            if geometry is None or f.name == "image" or not self._moved(f):
                continue
            stored, field = None, self.pack.header.field(f.name)
            sized = field.own_size
            if sized is not None:
                stored = self._picture(f.name, ragged.pop(f.name), sample)
                out = row.get(f.name)
                placed = np.empty(sized.shape(*geometry.result), sized.dtype) if out is None else out
                _place(f, geometry, stored, ragged, placed)
                if out is None:
                    ragged[f.name] = store_partner(f, placed)
                continue
            if not f.ragged:
                stored = self._reader.array(f.name, run)[0]
            _place(f, geometry, stored, ragged, row.get(f.name))
        if self._counted and pixels is None:
            pixels = self._picture("image", ragged["image"], sample)
        if not self._copied:
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
        """Return the path of the pack and the row number in it."""
        part = int(self._parts(np.array([sample]))[0])
        return f"{self.pack.parts[part].path}, row {sample - int(self._firsts[part])}"

    def key(self, sample: int) -> str:
        """Return the key of the row, or its number if the pack has no keys."""
        if all(f.name != "key" for f in self.pack.fields):
            return str(sample)
        run = one_run(sample, sample + 1)
        return self._reader.ragged("key", run)[0].decode("utf-8", "surrogateescape")

    def _picture(self, name: str, data: bytes, sample: int) -> NDArray[Any]:
        """Decode a row of a field of images of different sizes."""
        run = one_run(sample, sample + 1)
        known = self._reader.sizes(run) if any(f.measures for f in self.pack.fields) else None
        return EncodedImages(self.pack, self.pack.header.field(name), [data], [sample], known).decode(0)

    def _new_picture(self, whole: WholePictures, data: bytes, sample: int) -> WholePicture:
        """Return the new row of an image: its JPEG file, copied or shrunk, if possible, else from pixels."""
        if whole.of_files:
            return whole(data)
        return whole.again(self._picture("image", data, sample))

    def _fill(
        self, run: Runs, row: Mapping[str, NDArray[Any]], encoded: bytes | None, sample: int
    ) -> tuple[int, int]:
        """Write the row's image to `row`; return its (height, width) in the pack; (0, 0) if unchanged."""
        if "image" not in row:
            return 0, 0
        out: NDArray[Any] = row["image"]
        if self._spec is None:
            self._reader.copy(run, {"image": out.reshape(1, -1).view(np.uint8)})
            return 0, 0
        if encoded is not None:
            return self._pixels(encoded, out)
        assert self._image is not None
        (stored,) = self._reader.array("image", run)
        self._pixels.again(stored, out)
        return stored.shape[0], stored.shape[1]

    def _parts(self, samples: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the number of the part that holds each row."""
        return np.searchsorted(self._firsts, samples, "right") - 1

    def _moved(self, f: Field) -> bool:
        """Return True for a field that moves with a resized image."""
        return self._resized and ("sampling" in f.about or f.name in _PLACED)

    def _new_field(self, f: Field, image: Field | None) -> Field:
        """Return a field of the new rows. image: the image field of the new rows."""
        if f.name == "image" and image is not None:
            return image
        if not self._resized or "sampling" not in f.about:
            return replace(f, codec=None) if f.compressed else f
        sized = f.own_size
        if self._spec is None:
            assert sized is not None
            soft = f.about["sampling"] == "linear"
            _, codec = partner(sized.dtype, sized.channels or 1, soft=soft)
            return Field(f.name, "|u1", None, f.about, codec)
        if sized is not None:
            about = {"layout": f.about["layout"], "fit": self._spec.fit}
            about |= {name: f.about[name] for name in ("sampling", "bits") if name in f.about}
            return Field(f.name, sized.dtype, sized.shape(*self._spec.size), about)
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
    """Move a field of a row with its image: a mask, a soft map, keypoints, or boxes and their labels."""
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
    """Raise UsageError if the new size would enlarge images."""
    if image.shape is not None and (spec.size[0] > image.shape[0] or spec.size[1] > image.shape[1]):
        raise UsageError(
            f"size {spec.size[0]}x{spec.size[1]}: {pack.path} has images of"
            f" {image.shape[0]}x{image.shape[1]}; they can only shrink. Pass a smaller size, or convert the"
            " source again."
        )


def check_whole(pack: Pack, image: Field, rule: RowSize) -> None:
    """Raise UsageError unless images of a pack can shrink by a rule to different sizes."""
    if not rule.limits:
        problem = "applies to image files, not to packs"
    elif image.shape is not None:
        problem = (
            f"is for images of different sizes; those of {pack.path} have {image.shape[0]}x{image.shape[1]}"
        )
    else:
        return
    raise UsageError(
        f"size {rule.option}: {problem}. Pass a number or HxW, for example 256, or leave it out."
    )
