"""Preprocess: new images become rows by the conversion code, and batches by the loading code."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, overload

import numpy as np

from packer.codecs import jpeg
from packer.convert.whole_pictures import WholePictures
from packer.declared_types import checks_arguments
from packer.errors import ImageError, UsageError
from packer.format.fields import Field
from packer.format.header import Header
from packer.format.header_forms import OPTIONS, check_members, statistics
from packer.format.table_record import texts
from packer.load.augmenting import Augmenter, fit_views, normalizes, pipeline_of
from packer.load.batch import Batched, Host, as_tensor, make_batch
from packer.load.batch_types import Value
from packer.load.fillers import Reading
from packer.load.sampled_statistics import sampled_statistics
from packer.orders.epochs import Share, read_request
from packer.orders.row_orders import Sequential
from packer.orders.runs import Runs
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.pixels.decode_resize import DecodeResize, PixelSpec
from packer.pixels.row_size import RowSize
from packer.read.array_store import ArrayStore
from packer.read.encoded_images import EncodedImages
from packer.serving.given_images import decodable
from packer.starting import ForkSafeThreads

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from packer.augment import Pipeline
    from packer.load.augmenting import One

_OPTIONS = frozenset(("fit", "channels", "max_pixels"))
_MEMBERS = (
    "size",
    "fit",
    "channels",
    "dtype",
    "icc",
    "max_pixels",
    "quality",
    "classes",
    "normalization",
    "augment",
)
_FORMS: Mapping[str, Any] = {
    **{name: OPTIONS[f"{name}?"] for name in ("size", "fit", "channels", "dtype", "icc", "max_pixels")},
    "quality": (None, OPTIONS["quality?"]),
    "classes": (None, texts),
    "normalization": (statistics, lambda value: value == {}),
    "augment": (None, str),
}
_TRIED = 4096  # draws to compare: a transform with p=0.001 is missed 1 time in 60


class Preprocess(Generic[Value]):
    """A function from new images to the input of a model that was trained on a pack.

    Parameters
    ----------
    pack : Pack, path or mapping
        A pack that was converted from images; or the result of `to_dict`, which needs no pack.
    augment : text, list of transforms or Pipeline, optional
        Augmentation of validation, without randomness, such as ``"CenterCrop(224), Normalize()"``.
        Normalize() means the same as in PackedBatchDataset. Default: that of the mapping, if any.

    Attributes
    ----------
    classes : list of str or None
        Names of the classes by number.

    Raises
    ------
    UsageError
        The pack was not converted from images, or `augment` draws at random.

    Notes
    -----
    Picklable and thread-safe. Results equal the pack's bytes for equal versions of OpenCV, simplejpeg and
    Pillow.

    Examples
    --------
    >>> from packer import PackedDataset, Preprocess
    >>> preprocess = Preprocess("train.h5")
    >>> row = preprocess("photos/blue/0.jpg")
    >>> row.shape, row.dtype
    ((32, 32, 3), dtype('uint8'))
    >>> bool((PackedDataset("train.h5")["blue/0.jpg"].image.permute(1, 2, 0).numpy() == row).all())
    True
    >>> serve = Preprocess(preprocess.to_dict(), augment="CenterCrop(24), Normalize()")
    >>> serve(["photos/blue/0.jpg", "photos/red/0.jpg"]).shape
    torch.Size([2, 3, 24, 24])
    >>> serve.classes
    ['blue', 'green', 'red']
    """

    classes: Any

    @overload
    def __init__(
        self: Preprocess[torch.Tensor],
        pack: str | os.PathLike[str] | Pack | Mapping[str, Any],
        augment: One,
    ) -> None: ...
    @overload
    def __init__(
        self: Preprocess[NDArray[Any]], pack: str | os.PathLike[str] | Pack, augment: None = None
    ) -> None: ...
    @overload  # the mapping may have `augment`
    def __init__(self: Preprocess[Any], pack: Mapping[str, Any], augment: None = None) -> None: ...
    @checks_arguments
    def __init__(
        self, pack: str | os.PathLike[str] | Pack | Mapping[str, Any], augment: One | None = None
    ) -> None:
        if isinstance(pack, Mapping):
            record, self._name = _checked(pack), "record"
        else:
            opened = pack if isinstance(pack, Pack) else open_pack(pack)
            _check_converted(opened)
            record, self._name = record_of(opened, augment), opened.path
        size, quality = RowSize.from_record(record["size"]), record["quality"]
        spec = PixelSpec(
            (size.height, size.width),
            record["fit"],
            record["channels"],
            record["max_pixels"],
            record["dtype"],
            record["icc"],
        )
        self.classes, self._record, self._spec, self._quality = record["classes"], record, spec, quality
        self._whole, self._pixels = None, DecodeResize(spec)
        if size.ragged:
            self._whole = WholePictures(size, spec, quality)
            self._image = self._whole.image
        else:
            dtype, about = np.dtype(spec.dtype).newbyteorder("<").str, {"layout": "HWC", "color": spec.color}
            self._image = Field("image", dtype, spec.shape, about)
        augment = record["augment"] if augment is None else augment
        self._pipeline = None if augment is None else self._fitted(augment)

    def __call__(self, images: Any) -> Value:
        """Return an image as its row, or a list of images as a batch.

        Parameters
        ----------
        images : path, bytes, Pillow image or array, or a list of these
            Bytes are those of an image file. An array is uint8 [h, w, 3] in RGB order (grey: [h, w]; with
            alpha: [h, w, 4]; a pack's bands: [h, w, C]). Arrays and Pillow images are converted as PNG files.

        Returns
        -------
        array or tensor
            Of one image: uint8 or uint16 [H, W, C], the row that conversion would have stored, as it is
            loaded; with `augment` a tensor [C, H, W]. Of a list: [N, H, W, C] or [N, C, H, W]; a list of
            arrays if rows differ in size.

        Raises
        ------
        ImageError
            An image cannot be read or decoded; the message names it.
        UsageError
            The argument is something else.
        """
        several = isinstance(images, list | tuple)
        given: Sequence[Any] = images if several else [images]
        made: Any = self._rows(given) if self._whole is None else self._pictures(self._whole, given)
        result: Value = made if several else made[0]
        return result

    def to_dict(self) -> dict[str, Any]:
        """Return its settings as plain values, for JSON, or for a checkpoint beside the weights."""
        augment = None if self._pipeline is None else ", ".join(map(repr, self._pipeline.transforms))
        return {**self._record, "augment": augment}

    def __reduce__(self) -> tuple[Any, ...]:
        return Preprocess, (self._record, self._pipeline and list(self._pipeline.transforms))

    def __repr__(self) -> str:
        return f"Preprocess({self.to_dict()!r})"

    def _rows(self, given: Sequence[Any]) -> Any:
        """Return rows of a pack with images of one size."""
        rows = np.empty((len(given), *self._spec.shape), self._spec.dtype)
        for number, image in enumerate(given):
            with _named(image, number, len(given)):
                self._pixels(decodable(image, self._spec), rows[number])
            if self._quality is not None:
                jpeg.decode_into(jpeg.encode(rows[number], self._quality), rows[number])
        if self._pipeline is None:
            return rows
        return self._pipeline(as_tensor(rows, self._image), np.arange(len(rows)))

    def _pictures(self, whole: WholePictures, given: Sequence[Any]) -> Any:
        """Return rows of a pack with images that differ in size."""
        files, sizes = [], []
        for number, image in enumerate(given):
            with _named(image, number, len(given)):
                picture = whole(decodable(image, self._spec))
            files.append(picture.data)
            sizes.append(picture.size)
        pack = Pack(self._name, Header(0, 1, (self._image,), {}), b"")
        images = EncodedImages(pack, self._image, files, range(len(files)), np.array(sizes).reshape(-1, 2))
        if self._pipeline is None:
            return [images.decode(number) for number in range(len(files))]
        return _cropped(self._pipeline, pack, images)

    def _fitted(self, augment: One) -> Pipeline:
        """Return the pipeline for the rows. Raises UsageError if it draws, or does not take such images."""
        views = {"image": pipeline_of(augment, self._record["normalization"])}
        ragged = None if self._whole is None else "cpu"
        pipeline = fit_views(views, (self._image,), self._name, None, ragged)["image"]
        sizes = np.full((_TRIED, 2), 1 << 13) if pipeline.ragged else None
        drawn = pipeline.sample(np.arange(_TRIED), sizes=sizes)
        if pipeline.mixes or any((x != x[:1]).any() for draws in drawn for x in draws.values()):
            raise UsageError(
                f"augment: {', '.join(type(one).__name__ for one in pipeline.transforms)} changes images at"
                " random; only transforms without draws are allowed here. Pass the augmentation of"
                " validation, for example 'CenterCrop(224), Normalize()'."
            )
        return pipeline


def record_of(pack: Pack, augment: Any = None) -> dict[str, Any]:
    """Return how an image becomes a row of a pack that was converted from images: `Preprocess.to_dict`.

    augment: if it contains Normalize(), its numbers are recorded.
    """
    options, image = pack.header.provenance.get("options", {}), pack.header.field("image")
    known: Mapping[str, Sequence[float]] | None = pack.header.normalization
    if pack.filled and normalizes(augment):
        known = sampled_statistics(pack) or known  # as PackedBatchDataset
    shape, jpegs = image.loaded.shape, (image.codec or {}).get("name") == "jpeg"
    return {
        "size": str(image.about.get("size", "keep")) if shape is None else list(shape[:2]),
        "fit": options["fit"],
        "channels": options["channels"],
        "dtype": options.get("dtype", "uint8"),
        "icc": options.get("icc", "ignore"),
        "max_pixels": options["max_pixels"],
        "quality": (image.codec or {}).get("quality", options.get("quality", 90)) if jpegs else None,
        "classes": None if pack.header.classes is None else list(pack.header.classes),
        "normalization": {name: list(values) for name, values in (known or {}).items()},
        "augment": None,
    }


def _check_converted(pack: Pack) -> None:
    """Raise UsageError for a pack that does not record how an image becomes a row."""
    options = pack.header.provenance.get("options", {})
    if pack.header.table is not None:
        raise UsageError(f"{pack.path}: was made from a table, not of images. Take packer.tables.apply.")
    if not options.keys() >= _OPTIONS or pack.header.find("image") is None:
        raise UsageError(
            f"{pack.path}: does not record how an image becomes a row; packs that were converted from images"
            " do, but not those of samples from Python, nor joined packs. Pass one such pack, or make the row"
            " as your dataset does."
        )
    if "repack" in options:
        raise UsageError(
            f"{pack.path}: its rows were rewritten by packer repack, and may differ from the rows of one"
            " conversion. Pass the pack that they come from, or one converted with"
            f" like={pack.path!r}."
        )


def _checked(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record whose types JSON may have changed. Raises UsageError for other mappings."""
    record = {"icc": "ignore", **record}  # older versions did not record it
    if missing := [name for name in _MEMBERS if name not in record]:
        raise UsageError(
            f"pack: the mapping has no {missing[0]!r}; only the result of to_dict() is allowed. Pass that."
        )
    try:
        check_members(record, _FORMS, "the mapping")
    except ValueError as error:
        raise UsageError(f"pack: {error}; only the result of to_dict() is allowed. Pass that.") from None
    return {name: record[name] for name in _MEMBERS}


@contextmanager
def _named(image: Any, number: int, count: int) -> Iterator[None]:
    """Name an image in its error: by its path, or by its number if there are several."""
    try:
        yield
    except ImageError as error:
        name = os.fspath(image) if isinstance(image, str | os.PathLike) else f"image {number}" * (count > 1)
        raise ImageError((f"{name}: " if name else "") + str(error)) from None


class _GivenPictures(ArrayStore):
    """A store of images in memory, in place of a pack's."""

    def __init__(self, pack: Pack, images: EncodedImages) -> None:
        super().__init__(pack, pack.fields, len(images.sizes))
        self._images = images

    def pictures(self, name: str, rows: Runs, *, shared: bool = False) -> EncodedImages:
        """Return all images."""
        return self._images


def _cropped(pipeline: Pipeline, pack: Pack, images: EncodedImages) -> torch.Tensor:
    """Return images that differ in size, cropped and resized as the loader does while it reads them."""
    import torch

    from packer.load.ragged_rows import CropFiller

    count, store = len(images.sizes), _GivenPictures(pack, images)
    if not count:
        return torch.empty(0, *pipeline.output_shape, dtype=pipeline.output_dtype, device="cpu")
    augmenter = Augmenter({"image": pipeline}, pack.fields, None, count, 1)
    (made,) = augmenter.read_fields(pack.fields)
    reading: Any = Reading(store, store, ForkSafeThreads(1), Host())  # type: ignore[arg-type]
    out = np.empty((count, made.row_bytes), np.uint8)
    request = read_request(Sequential().over(count), 0, Share(count, count), 0, 1)
    filled = CropFiller(reading, pack.fields, augmenter).fill(request, 0, count, {"image": out})
    image = as_tensor(out.view(made.dtype).reshape(count, *(made.shape or ())), made)
    tensor: torch.Tensor = augmenter.apply(make_batch(("image",), [image], Batched), filled.draws, 0).image
    return tensor
