"""Proof that both sides of a comparison do the same work: the images and the pack hold the same pixels and labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.codecs import jpeg
from packer.convert.whole_pictures import WholePictures
from packer.errors import ImageError, PackerError, UsageError
from packer.format.header import Field
from packer.format.pack import Pack
from packer.inputs.opened_source import ImageSource
from packer.load.batch_dataset import PackedBatchDataset
from packer.pixels.decode_resize import DecodeResize, PixelSpec
from packer.pixels.row_size import RowSize
from packer.read.picture_rows import decode_picture
from packer.sentence import Option

CHECKED_ROWS = 32
LABELS_AT_ONCE = 1 << 16


def source_indices(source: ImageSource, pack: Pack) -> NDArray[np.int64]:
    """Return the source's index of each row of a pack, by the field "key": int64 [N].

    Raises PackerError if the source lacks one of them.
    """
    known = {key: index for index, key in enumerate(source.keys)}
    indices = np.empty(pack.rows, np.int64)
    for row, key in enumerate(pack.keys()):
        if key not in known:
            raise PackerError(
                f"{pack.path}: row {row} is {key!r}, which {source.name} does not hold;"
                " a pack is compared with the images it was made from. Pass those."
            )
        indices[row] = known[key]
    return indices


def image_field(pack: Pack) -> Field:
    """Return a pack's field of images. Raises UsageError for one that cannot be compared with image files."""
    image = next((f for f in pack.fields if f.name == "image"), None)
    if image is None:
        raise UsageError(
            f"{pack.path}: has no field 'image'; bench compares images with the pack made from them. Pass another pack."
        )
    if image.compressed:
        raise UsageError(
            f"{pack.path}: its images are compressed in blocks ({(image.codec or {}).get('name')}); bench compares raw and"
            " JPEG rows. Repack it with ",
            Option("store", "raw"),
            ", or pass another pack.",
        )
    if not {"fit", "channels", "max_pixels"} <= _options(pack).keys():
        raise UsageError(
            f"{pack.path}: does not say how its images were made from files; bench compares packs made by packer convert."
            " Pass another pack."
        )
    if image.deep:
        raise UsageError(
            f"{pack.path}: its images have 16 bits or are bands; bench compares gray, rgb and rgba of 8 bits. Pass another pack."
        )
    return image


def pixel_spec(pack: Pack, size: tuple[int, int]) -> PixelSpec:
    """Return how images of such a pack were made, but for their size."""
    options = _options(pack)
    return PixelSpec(size, options["fit"], options["channels"], options["max_pixels"])


def pixels_again(pack: Pack) -> Callable[[bytes], NDArray[np.uint8]]:
    """Return a function from image files to the pixels that a row of such a pack is loaded as: JPEG rows are encoded and decoded.

    It raises ImageError with the reason, but not the file's name.
    """
    image = image_field(pack)
    own, encoded, options = image.own_size, image.codec, _options(pack)
    if own is not None:
        size = RowSize.of_option(image.about.get("size", "keep"))
        spec = pixel_spec(pack, (size.height, size.width))
        whole = WholePictures(size, spec, options.get("quality", 90), raw=encoded is None)

        def of_whole(data: bytes) -> NDArray[np.uint8]:
            picture = whole(data)
            return decode_picture(own, picture.data, picture.size)

        return of_whole
    height, width, _ = image.loaded.shape or (0, 0, 0)
    make = DecodeResize(pixel_spec(pack, (height, width)))

    def of_one_size(data: bytes) -> NDArray[np.uint8]:
        pixels = np.empty(make.spec.shape, np.uint8)
        make(data, pixels)
        if encoded is not None:
            jpeg.decode_into(jpeg.encode(pixels, encoded.get("quality", 90)), pixels)
        return pixels

    return of_one_size


def _options(pack: Pack) -> dict[str, Any]:
    return dict(pack.header.provenance.get("options", {}))


def check_same(source: ImageSource, pack: Pack, indices: NDArray[np.int64]) -> int:
    """Compare what loading hands out with the source: all labels, and size and pixels of rows spread over the pack.

    indices: of source_indices. Returns how many rows' pixels were compared, byte for byte. Raises PackerError for the first difference.
    """
    if source.labels is not None:
        if all(field.name != "label" for field in pack.fields):
            raise PackerError(
                f"{pack.path}: has no labels, and {source.name} is given some; a comparison needs the same on both"
                " sides. Drop ",
                Option("labels"),
                ", or convert the images again.",
            )
        with PackedBatchDataset(
            pack, LABELS_AT_ONCE, fields=("label",), subset=slice(None), output="numpy"
        ) as batches:
            loaded = np.concatenate([batch.label for batch in batches])
        wrong = np.flatnonzero(source.labels[indices] != loaded)
        if len(wrong):
            remedy = "Pass the CSV it was made with as " + Option("labels") + ", or convert the images again."
            raise _differs(source, pack, int(wrong[0]), int(indices[wrong[0]]), "another label", remedy)
    again = pixels_again(pack)
    rows = np.unique(np.linspace(0, pack.rows - 1, CHECKED_ROWS).astype(np.int64)).tolist()
    with PackedBatchDataset(pack, 1, fields=("image",), subset=slice(None), output="numpy") as single:
        for row in rows:
            index = int(indices[row])
            try:
                expected = again(source.read(index))
            except ImageError as error:
                raise ImageError(f"{source.name}/{source.keys[index]}: ", *error.args) from None
            loaded = single.batch(row).image[0]
            if loaded.shape != expected.shape:
                raise _differs(source, pack, row, index, "another size")
            if not np.array_equal(loaded, expected):
                raise _differs(source, pack, row, index, "other pixels")
    return len(rows)


def _differs(
    source: ImageSource,
    pack: Pack,
    row: int,
    index: int,
    what: str,
    remedy: str = "Convert the images again.",
) -> PackerError:
    return PackerError(
        f"{pack.path}: row {row} has {what} than {source.keys[index]!r} in {source.name} gives now;"
        " a comparison needs the same on both sides. ",
        remedy,
    )
