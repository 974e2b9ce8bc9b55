"""Rows from packs: merged, resized, or stored another way, without reading the source again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.codecs import jpeg_parts
from packer.convert.row_maker import Block, RowMaker
from packer.convert.row_sequence import RowSequence
from packer.convert.split_assignment import Codes, Owners
from packer.convert.whole_pictures import (
    WholePicture,
    WholePictures,
    partner_versions,
    store_partner,
)
from packer.errors import UsageError, damaged
from packer.format.fields import Field
from packer.format.own_size import partner_storage
from packer.format.part_files import Rows
from packer.orders.runs import Runs, consecutive, one_run
from packer.packs.file_rows import SEQUENCE_ROW, counted_files, recounted
from packer.packs.pack import Pack
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

_SIZED = ("size", "dtype", "channels")  # members of `about` of fields of images of different sizes
_PLACED = ("boxes", "box_label", "keypoints")  # fields that move with the image


def split_owners(pack: Pack) -> Owners:
    """Return the split of each row, splits by their first row. Raises UsageError for rows in no split."""
    splits = sorted(pack.header.splits.items(), key=lambda item: item[1])
    within = sum(b - a for _, spans in splits for a, b in spans)
    if splits and within != pack.rows:
        raise UsageError(
            f"{pack.path}: {pack.rows - within:,} of its {pack.rows:,} rows are in no split; all rows need a"
            " split, or none. Merge only packs that all have splits, or only packs without."
        )
    none = np.empty(0, np.int64)
    members = {name: np.concatenate([none, *(np.arange(a, b) for a, b in spans)]) for name, spans in splits}
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
        spec: PixelSpec | None = None,
        *,
        jpeg: bool = False,
        whole: WholePictures | None = None,
        verify: bool = False,
    ) -> None:
        """spec: the new size; None to keep the size; jpeg: store images as JPEG files.

        whole: function that resizes or encodes images of different sizes; None to copy them; verify: compare
        blocks with their checksums.
        """
        self.pack, self._spec, self._whole = pack, spec, whole
        self._numbers = class_numbers(pack)
        self._keyed = pack.header.find("key") is not None
        self.count: int = pack.rows
        self.classed = pack.header.classes is not None or pack.header.table is None
        self._reader = PackStore(pack, pack.fields, verify=verify)
        self._firsts = np.cumsum([0, *(part.rows for part in pack.parts)])
        self._files = [counted_files([part.header]) for part in pack.parts]
        image = pack.header.find("image")
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
            self._new_field(f, new_image) for f in pack.fields if not (self._resized and f.measures)
        )
        if whole is not None:  # keys stay behind the sizes, as convert writes them
            self.fields = tuple(sorted((*self.fields, *whole.sizes), key=lambda f: f.name == "key"))
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
                "pixels. Pass size=."
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
        """Return the label of each row; None without one whole number per row."""
        label = self.pack.header.find("label")
        if label is None or (label.dtype, label.shape) != ("<i8", ()):
            return None
        return self._reader.array("label", one_run(0, self.pack.rows)).astype(np.int64)

    @property
    def sequence(self) -> RowSequence | None:
        """See RowSource."""
        if SEQUENCE_ROW not in self.pack.fields:
            return None
        places = self._reader.array(SEQUENCE_ROW.name, one_run(0, self.count))
        return RowSequence(*Codes.from_values(places >> 32), np.arange(self.count), places)

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
        runs, parts = consecutive(samples), self._part_numbers(samples)
        return {f.name: self._column(f, runs, parts) for f in self._bulk}

    def _column(self, f: Field, runs: Runs, parts: NDArray[np.intp]) -> Any:
        """Return rows of a field; labels and numbers of source rows are those of the new pack.

        parts: the part of each row. Raises FormatError.
        """
        if f.ragged:
            rows = self._reader.ragged(f.name, runs) if len(parts) else []
            if f.name == "box_label" and self._numbers:
                labels = (np.frombuffer(row, "<i8") for row in rows)
                rows = [self._recoded(*some).tobytes() for some in zip(parts.tolist(), labels, strict=True)]
            return rows
        values = self._reader.array(f.name, runs)
        renumber: Callable[[int, NDArray[Any]], NDArray[Any]] | None = None
        if f.name == "label" and self._numbers:
            renumber = self._recoded
        elif f.counts and any(files != self._files[0] for files in self._files):
            renumber = self._recounted
        if renumber is not None:
            for part in np.unique(parts).tolist():
                values[parts == part] = renumber(part, values[parts == part])
        return values

    def _recounted(self, part: int, numbers: NDArray[Any]) -> NDArray[np.int64]:
        """Return numbers of a part's source rows among the rows of all files. Raises FormatError."""
        files = list(dict.fromkeys(file for own in self._files for file in own))
        try:
            return recounted(numbers, self._files[part], files)
        except (ValueError, OverflowError) as error:
            path = self.pack.parts[part].path
            raise damaged(path, f"its row numbers are wrong ({error})") from None

    def _recoded(self, part: int, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return labels of a part as numbers of all classes. Raises FormatError for one without a class."""
        numbers = self._numbers[part]
        if len(labels) and not -1 <= labels.min() <= labels.max() < len(numbers) - 1:
            raise damaged(self.pack.parts[part].path, "it has labels without a class")
        return numbers[labels]

    def make(self, sample: int, at: int, block: Block) -> None:
        """Read the row; resize its image and move the other fields if the size changes."""
        run, rows = one_run(sample, sample + 1), block.rows
        parts, pixels = self._part_numbers(run.starts), None
        row = {name: values[at, ...] for name, values in rows.items() if isinstance(values, np.ndarray)}
        ragged = {
            f.name: self._column(f, run, parts)[0] for f in self.pack.fields if f.ragged and f.name in rows
        }
        if self._whole is not None:
            picture = self._new_picture(self._whole, ragged["image"], sample)
            ragged["image"], pixels = picture.data, self._whole.fill(picture, rows, at)
            pixels = picture.pixels if self._counted else pixels
            self._move(ImagePlacement.for_fit("stretch", picture.source, picture.size), row, ragged, sample)
        else:
            size = self._fill(run, row, ragged.get("image"), sample)
            if self._spec is not None:
                self._move(ImagePlacement.for_fit(self._spec.fit, size, self._spec.size), row, ragged, sample)
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

    def _move(
        self,
        geometry: ImagePlacement,
        row: Mapping[str, NDArray[Any]],
        ragged: dict[str, bytes],
        sample: int,
    ) -> None:
        """Move the fields of a row with its image: masks, soft maps, keypoints, boxes and their labels."""
        run = one_run(sample, sample + 1)
        if "boxes" in ragged:
            boxes, seen = geometry.boxes(np.frombuffer(ragged["boxes"], "<f4").reshape(-1, 4).astype(float))
            ragged["boxes"] = boxes[seen].tobytes()
            if "box_label" in ragged:
                ragged["box_label"] = np.frombuffer(ragged["box_label"], "<i8")[seen].tobytes()
        for f in self.fields:
            if f.name == "keypoints":
                points = self._reader.array(f.name, run)[0]
                row[f.name][...] = geometry.keypoints(points.astype(np.float64))
            elif "sampling" in f.about:
                sized, out = self.pack.header.field(f.name).own_size, row.get(f.name)
                if sized is None:
                    values = self._reader.array(f.name, run)[0]
                else:
                    values = self._picture(f.name, ragged.pop(f.name), sample)
                    out = np.empty(sized.shape(*geometry.result), sized.dtype) if out is None else out
                assert out is not None
                _place_mask(f, geometry, values, out)
                if f.ragged:
                    ragged[f.name] = store_partner(f, out)

    def name(self, sample: int) -> str:
        """Return the path of the pack and the row number in it."""
        part = int(self._part_numbers(np.array([sample]))[0])
        return f"{self.pack.parts[part].path}, row {sample - int(self._firsts[part])}"

    def key(self, sample: int) -> str:
        """Return the key of the row, or its number if the pack has no keys."""
        return (self.pack.keys(sample, sample + 1) if self._keyed else [str(sample)])[0]

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
        (stored,) = self._reader.array("image", run)
        self._pixels.again(stored, out)
        return stored.shape[0], stored.shape[1]

    def _part_numbers(self, samples: NDArray[np.int64]) -> NDArray[np.intp]:
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
            _, codec = partner_storage(sized.dtype, sized.channels or 1, soft=soft)
            return Field(f.name, "|u1", None, f.about, codec)
        if sized is not None:
            about = {"layout": f.about["layout"], "fit": self._spec.fit}
            about |= {name: f.about[name] for name in ("sampling", "bits") if name in f.about}
            return Field(f.name, sized.dtype, sized.shape(*self._spec.size), about)
        return Field(
            f.name, f.dtype, (*self._spec.size, *(f.shape or ())[2:]), {**f.about, "fit": self._spec.fit}
        )


def class_numbers(pack: Pack) -> list[NDArray[np.int64]]:
    """Return, for each part of a pack, the number of each of its classes in the pack; [] if all are equal."""
    classes = pack.header.classes
    if classes is None or all(part.header.classes == classes for part in pack.parts):
        return []
    number = {name: code for code, name in enumerate(classes)}
    # The last entry maps -1, the label of unlabelled rows, to itself.
    return [np.array([*(number[name] for name in part.header.classes or ()), -1]) for part in pack.parts]


def _place_mask(f: Field, geometry: ImagePlacement, values: NDArray[Any], out: NDArray[Any]) -> None:
    """Move a mask or a soft map with its image."""
    out[...] = 0
    if f.about["sampling"] == "linear":
        place_soft(values, geometry, out)
        return
    rows, columns = geometry.nearest(*values.shape[:2])
    geometry.target.cut_view(out)[...] = values[np.ix_(rows, columns)]


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
