"""Images as a baseline: a check that the pack holds their pixels, and a dataset that decodes on every access.

Images of one size, raw or JPEG, are loaded as they are. Images that keep their size are cut and flipped on
both sides by RandomResizedCrop and a random flip. Both sides use the pack's labels.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from packer import units
from packer.augment import RandomHorizontalFlip, RandomResizedCrop
from packer.bench.hardware_limits import CopyLimit, DecodeLimit
from packer.bench.lanes import Baseline, held_tensors
from packer.codecs.jpeg import swaps_sides, upright
from packer.errors import ImageError, PackerError, UsageError
from packer.format.fields import Field
from packer.inputs.file_names import on_disk
from packer.inputs.findings import Findings
from packer.inputs.image_sources import open_source
from packer.inputs.label_options import ALL, Labels
from packer.inputs.opened_source import ImageSource, SourceOptions
from packer.load.batch_dataset import PackedBatchDataset
from packer.machine import cores
from packer.opencv import cv2
from packer.packs.pack import Pack
from packer.pixels.decode_resize import (
    DecodeResize,
    PixelSpec,
    decoder_versions,
)
from packer.pixels.image_decoder import ScratchBuffers, decode
from packer.pixels.resampling import resize
from packer.pixels.row_placement import Box
from packer.pixels.row_size import RowSize
from packer.serving.preprocess import Preprocess, record_of
from packer.source_kinds import PLAIN_ARCHIVES

SAMPLED_IMAGES = 20_000  # images in the dataset at most, evenly spread: bounds the time for a huge folder
HELD_IMAGES = 256  # images decoded repeatedly to measure decoding alone
CHECKED_ROWS = 32
CROP_SIDE = 224  # pixels, for images that keep their size; less if the pack's limit is smaller
Decode: TypeAlias = Callable[[bytes], NDArray[np.uint8]]


@contextmanager
def image_baseline(images: Any, pack: Pack, batch_size: int, threads: int) -> Iterator[Baseline]:
    """Open the images that a pack was converted from and compare them with it. Limits OpenCV to a thread.

    Raises UsageError (the pack cannot be compared), SourceError, PackerError (the pack has other images).
    """
    image_field(pack)
    opencv_threads = cv2.getNumThreads()
    cv2.setNumThreads(1)  # OpenCV's threads can hang a forked process, and the workers are parallel
    try:
        options = SourceOptions(Labels(unlabeled=ALL), findings=Findings(True))
        with open_source(images, options) as source:
            yield _baseline(source, pack, batch_size, threads)
    finally:
        cv2.setNumThreads(opencv_threads)


def _baseline(source: ImageSource, pack: Pack, batch_size: int, threads: int) -> Baseline:
    image = image_field(pack)
    indices = source_indices(source, pack)
    checked = check_same(source, pack, indices)
    size = RowSize.from_record(image.about.get("size", "keep"))
    kind = "raw" if image.codec is None else "JPEG"
    loading: dict[str, Any] = {"fields": ["image"]}
    labels = np.full(pack.rows, -1, np.int64)
    if any(f.name == "label" and not f.loaded.ragged for f in pack.fields):
        loading["fields"] = ["image", "label"]
        labels = held_tensors(pack, ["label"], pack.rows, threads)[0].numpy()
    every = slice(None, None, max(1, pack.rows // max(SAMPLED_IMAGES, 4 * batch_size)))
    indices, labels = indices[every], labels[every]
    if image.own_size is None:
        height, width, channels = image.loaded.shape or (0, 0, 0)
        make: Decode = Resized(pixel_spec(pack, (height, width)))
        heading = f"images of {height}x{width}x{channels} ({kind})"
    else:
        height = width = min([CROP_SIDE, *([size.height] if size.limits else [])])
        make = CroppedAndFlipped(pixel_spec(pack, (height, width)))
        channels = make.spec.shape[2]
        heading = (
            f"whole pictures ({kind}, {size.words}) cut to {height}x{width}x{channels}"
            " by RandomResizedCrop and flip"
        )
        loading["augment"] = [RandomResizedCrop((height, width)), RandomHorizontalFlip()]
    if image.codec is None:
        row_bytes = height * width * channels + labels[:1].nbytes
        limit, limit_name = CopyLimit(batch_size * row_bytes, pack.rows * row_bytes, threads).rate, "memcpy"
    else:
        limit = DecodeLimit(pack, batch_size, threads).rate
        limit_name = "decode" if image.own_size is None else "whole decode"
    return Baseline(
        source=source.name,
        unit="images",
        heading=f"{pack.rows:,} {heading}",
        name=f"{'folder' if os.path.isdir(source.name) else 'source'}, DataLoader",
        items=RawImages(source, indices, labels, make),
        limit_name=limit_name,
        limit=limit,
        loading=loading,
        files=_files(source, indices),
        stages=_stages(source, indices, make),
        notes=[
            f"compared: pixels of {units.count(checked, 'row')}, each equal to its image converted again."
        ],
        conditions={
            "decoders": decoder_versions(),
            "encoded_bytes": int(source.sizes.sum()),
            "images_sampled": len(indices),
            "rows_compared": checked,
        },
    )


class RawImages(Dataset[tuple[torch.Tensor, Any]]):
    """A dataset that reads, decodes and resizes an image on every access, as torchvision's ImageFolder does.

    source: open; indices: int64 [N], the source's index of each item; labels: [N, ...];
    make: image file -> pixels, thread-safe.
    """

    def __init__(
        self, source: ImageSource, indices: NDArray[np.int64], labels: NDArray[Any], make: Decode
    ) -> None:
        self._source, self._indices, self._labels, self._make = source, indices, labels, make

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._indices)

    def __getitem__(self, item: int) -> tuple[torch.Tensor, Any]:
        """Return the pixels, uint8 [H, W, C], and the label."""
        return torch.from_numpy(self._make(self._source.read(int(self._indices[item])))), self._labels[item]


class Resized:
    """Pixels of an image file after the decoder and resize of conversion."""

    spec: PixelSpec

    def __init__(self, spec: PixelSpec) -> None:
        self.spec, self._make = spec, DecodeResize(spec)

    def __call__(self, data: bytes) -> NDArray[np.uint8]:
        """Return the pixels [H, W, C]. Thread-safe."""
        pixels = np.empty(self.spec.shape, np.uint8)
        self._make(data, pixels)
        return pixels


class CroppedAndFlipped:
    """RandomResizedCrop of an image file to the spec's size, and a random flip.

    Rectangles follow torchvision's defaults, decoder and filter are those of conversion. A JPEG is decoded at
    1/2, 1/4 or 1/8 where its rectangle needs no more, as in packer's loader.
    """

    spec: PixelSpec

    def __init__(self, spec: PixelSpec) -> None:
        self.spec, self._local = spec, threading.local()

    def __call__(self, data: bytes) -> NDArray[np.uint8]:
        """Return the pixels [H, W, C]. Thread-safe."""
        spec, box = self.spec, None

        def ratio(height: int, width: int) -> float:
            nonlocal box
            box = random_box(height, width)
            return min(box.height / spec.size[0], box.width / spec.size[1])

        scratch = vars(self._local).setdefault("scratch", ScratchBuffers())
        image = decode(data, str(spec.channels), spec.max_pixels, ratio, scratch)
        swapped = swaps_sides(image.orientation)
        if box is None:  # no JPEG
            box = random_box(*((image.width, image.height) if swapped else (image.height, image.width)))
        if swapped:  # the transposed rectangle is equally likely
            box = Box(box.left, box.top, box.width, box.height)
        pixels = np.empty(spec.shape, np.uint8)
        resize(image.pixels, box, pixels, image.shrunk)
        pixels = upright(pixels, image.orientation)
        return np.ascontiguousarray(pixels[:, ::-1] if int(torch.randint(2, ())) else pixels)


def random_box(height: int, width: int) -> Box:
    """Draw a rectangle as torchvision's RandomResizedCrop does: 8 to 100 % of the area, ratio 3:4 to 4:3."""
    least, most = 3 / 4, 4 / 3
    for _ in range(10):
        area, proportion = torch.rand(2, dtype=torch.float32, device="cpu").tolist()
        area = (0.08 + 0.92 * area) * height * width
        proportion = least * (most / least) ** proportion
        down, across = round(math.sqrt(area / proportion)), round(math.sqrt(area * proportion))
        if 0 < down <= height and 0 < across <= width:
            top, left = (int(torch.randint(n, ())) for n in (height - down + 1, width - across + 1))
            return Box(top, left, down, across)
    proportion = min(max(width / height, least), most)
    down = min(height, max(1, round(width / proportion)))
    across = min(width, max(1, round(height * proportion)))
    return Box((height - down) // 2, (width - across) // 2, down, across)


def image_field(pack: Pack) -> Field:
    """Return a pack's image field. Raises UsageError if it cannot be compared with image files."""
    image = pack.header.find("image")
    from_files = {"fit", "channels", "max_pixels"} <= _options(pack).keys()
    if image is None or image.compressed or image.deep or not from_files:
        raise UsageError(
            f"{pack.path}: bench compares images of 8 bits, raw or JPEG, with the files that packer convert"
            " read; this pack has none. Pass another pack."
        )
    return image


def pixel_spec(pack: Pack, size: tuple[int, int]) -> PixelSpec:
    """Return the options that a pack's images were converted with, except for their size."""
    options = _options(pack)
    icc = options.get("icc", "ignore")
    return PixelSpec(size, options["fit"], options["channels"], options["max_pixels"], icc=icc)


def _options(pack: Pack) -> Mapping[str, Any]:
    options: Mapping[str, Any] = pack.header.provenance.get("options", {})
    return options


def source_indices(source: ImageSource, pack: Pack) -> NDArray[np.int64]:
    """Return the source's index of each row of a pack, by the field "key": int64 [N].

    Raises PackerError if the source lacks a key.
    """
    known = {key: index for index, key in enumerate(source.keys)}
    keys = pack.keys()
    for row, key in enumerate(keys):
        if key not in known:
            raise PackerError(
                f"{pack.path}: row {row} is {key!r}, which {source.name} does not hold;"
                " bench needs the images that the pack was converted from. Pass those."
            )
    return np.array([known[key] for key in keys], np.int64)


def check_same(source: ImageSource, pack: Pack, indices: NDArray[np.int64]) -> int:
    """Compare size and pixels of loaded rows, spread over the pack, with the source, byte for byte.

    indices: from source_indices. Returns the number of compared rows.
    Raises PackerError for the first difference.
    """
    again = Preprocess(record_of(pack))
    rows = np.unique(np.linspace(0, pack.rows - 1, CHECKED_ROWS).astype(np.int64)).tolist()
    with PackedBatchDataset(pack, 1, fields=("image",), subset=slice(None), output="numpy") as single:
        for row in rows:
            key = source.keys[int(indices[row])]
            try:
                expected = again(source.read(int(indices[row])))
            except ImageError as error:
                raise ImageError(f"{source.name}/{key}: {error}") from None
            if not np.array_equal(single.batch(row).image[0], expected):
                raise PackerError(
                    f"{pack.path}: row {row} has other pixels than {key!r} in {source.name} gives now;"
                    " a comparison needs the same pixels on both sides. Convert the images again."
                )
    return len(rows)


def _stages(
    source: ImageSource, indices: NDArray[np.int64], make: Decode
) -> dict[str, Callable[[float], float]]:
    """Return measurements of reading alone and of decoding alone, on all cores, from a warm page cache."""
    some = indices[:: -(-len(indices) // HELD_IMAGES)].tolist()

    def rate(work: Callable[[Any], object], items: list[Any], seconds: float) -> float:
        rows, began = 0, time.perf_counter()
        with ThreadPoolExecutor(cores()) as pool:
            while time.perf_counter() - began < seconds:
                deque(pool.map(work, items), maxlen=0)
                rows += len(items)
        return rows / (time.perf_counter() - began)

    def decoding(seconds: float) -> float:
        return rate(make, [source.read(index) for index in some], seconds)

    return {"reading": partial(rate, source.read, some), "decoding": decoding}


def _files(source: ImageSource, indices: NDArray[np.int64]) -> tuple[str, ...]:
    """Return the image files, or the archives that hold them; empty for a compressed archive."""
    if source.folder is not None:
        paths = (os.path.join(source.folder, source.keys[index]) for index in indices.tolist())
        return tuple(os.fsdecode(on_disk(path)) for path in paths)
    return source.files if all(path.lower().endswith(PLAIN_ARCHIVES) for path in source.files) else ()
