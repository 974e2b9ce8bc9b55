"""preview(): a contact sheet of one batch of a pack, as the network will see it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from packer.arguments import as_whole
from packer.errors import MissingDependencyError, PackerError, UsageError
from packer.format.pack import Pack, open_pack
from packer.previews.drawing import arrange_tiles, draw_sheet, words_height
from packer.previews.preview_batch import brightest, captions, first_rows, image_of, read_batch, shown

if TYPE_CHECKING:
    from packer.load.augmenting import One
    from packer.previews.augmented import Previewer

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
_OF_ANY_SIZE = (224, 224)  # tiles of images that kept their own size


class Preview(NamedTuple):
    """The result of preview().

    size: (width, height) of the sheet. transforms: their names, () without augmentation. stages: for each step of the pipeline "pass", or
    the name of the transform between passes. mixed: True if images of the sheet were mixed with each other. normalized: True if
    normalization was undone. overlaid: fields drawn over the images.
    """

    path: str
    rows: int
    columns: int
    repeat: int
    size: tuple[int, int]
    nbytes: int
    transforms: tuple[str, ...]
    stages: tuple[str, ...]
    mixed: bool
    normalized: bool
    overlaid: tuple[str, ...]


def preview(
    path: str | os.PathLike[str] | Pack,
    out: str | os.PathLike[str],
    *,
    augment: One | None = None,
    rows: int = 64,
    columns: int | None = None,
    repeat: int = 1,
    seed: int = 0,
    epoch: int = 0,
    order: str = "sequential",
    split: str | None = None,
) -> Preview:
    """Write a contact sheet of the rows that a PackedBatchDataset with these arguments hands out first.

    Labels stand under the images; masks lie over them, half transparent, in a colour for each value but 0; boxes and points
    are drawn. Images of 16 bits are scaled so that the largest number of the sheet is white; of bands the first three are shown. All
    are what the augmentation makes of them. Draws are the loader's: of (seed, epoch, row). MixUp and CutMix mix
    the rows of the sheet, as they mix those of a batch.

    out: .png, .jpg or .jpeg; replaced if it is there. augment: transforms of packer.augment, a Pipeline, or a text that names them,
        ``"RandomCrop(32, padding=4), Normalize()"``; Normalize() without arguments means what it does in PackedBatchDataset, and
        is undone to be seen. None: the images as stored.
    rows: at most; columns: images side by side, at most, None: so that the sheet is about square. repeat: draws of so many
        epochs, from `epoch` on, next to each other.
    seed, epoch, order, split: as PackedBatchDataset has them.
    Raises UsageError (an argument is wrong, or the pack has no images), FormatError, MissingDependencyError (augment needs torch),
    PackerError (out cannot be written).
    """
    out = os.fspath(out)
    format = FORMATS.get(os.path.splitext(out)[1].lower())
    if format is None:
        raise UsageError(
            f"{out}: its ending is no picture's; .png, .jpg and .jpeg are allowed. Pass another name."
        )
    wholes = {"rows": (rows, 1), "repeat": (repeat, 1), "epoch": (epoch, 0), "columns": (columns, 1)}
    for name, (value, least) in wholes.items():
        if (name != "columns" or value is not None) and as_whole(value, least) is None:
            raise UsageError(f"{name}: it is {value!r}; whole numbers from {least} up are allowed. Pass one.")
    if repeat > 1 and augment is None:
        raise UsageError(
            f"repeat: it is {repeat}, and without augment all draws are alike. Pass augment too."
        )
    pack = path if isinstance(path, Pack) else open_pack(path)
    image = image_of(pack)
    previewer = None if augment is None else _previewer(augment, pack, seed)
    tile = _OF_ANY_SIZE if image.shape is None else (image.shape[0], image.shape[1])
    tile = tile if previewer is None else previewer.pipeline.output_shape[1:]
    chosen = first_rows(pack, rows, order=order, seed=seed, epoch=epoch, split=split)
    # Too many are refused before they are read.
    grid = arrange_tiles(len(chosen), repeat, tile, columns, words_height(1))
    batch = read_batch(pack, chosen)
    white = brightest(batch.images, image)
    plain = replace(batch, images=shown(batch.images, image, white))
    draws = [plain] if previewer is None else [previewer(batch, epoch + k, white) for k in range(repeat)]
    names: Any = next((f.about.get("columns") for f in pack.fields if f.name == "label"), None)
    texts = [captions(draw, pack.header.classes, names and [str(name) for name in names]) for draw in draws]
    grid = grid._replace(words=words_height(max(len(lines) for each in texts for lines in each)))
    data = draw_sheet(grid, draws, texts, pack.header.classes, format)
    try:
        with open(out, "wb") as file:
            file.write(data)
    except OSError as error:
        raise PackerError(f"{out}: cannot be written ({error.strerror}). Pass another name.") from error
    pipeline = None if previewer is None else previewer.pipeline
    drawn = {"boxes": draws[0].boxes, "keypoints": draws[0].points}
    return Preview(
        path=out,
        rows=len(chosen),
        columns=grid.columns,
        repeat=repeat,
        size=grid.size,
        nbytes=len(data),
        transforms=() if pipeline is None else tuple(type(one).__name__ for one in pipeline.transforms),
        stages=() if pipeline is None else pipeline.stages,
        mixed=pipeline is not None and pipeline.mixes,
        normalized=previewer is not None and previewer.normalizes,
        overlaid=(*draws[0].masks, *(name for name, what in drawn.items() if what is not None)),
    )


def _previewer(augment: One, pack: Pack, seed: int) -> Previewer:
    try:
        from packer.previews.augmented import Previewer
    except ImportError:
        raise MissingDependencyError("torch", "packer preview with augment") from None
    return Previewer(augment, pack, seed)
