"""preview() and show(): contact sheets of a pack or a batch, as the network sees it."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.arguments import whole
from packer.declared_types import check_path, checks_arguments
from packer.errors import UsageError
from packer.format.file_io import write_file
from packer.given_values import option_text
from packer.packs.pack import Pack
from packer.packs.pack_opening import is_pack, open_pack
from packer.path_text import visible
from packer.previews.drawing import MARK, arrange_tiles, draw_sheet, words_height
from packer.previews.preview_batch import (
    OVERLAYS,
    PreviewBatch,
    batch_of,
    captions,
    drawn_fields,
    first_rows,
    image_of,
    label_columns,
    origins,
    pictures,
    point_names,
    read_batch,
    undrawn_fields,
    unlabeled_of,
)

if TYPE_CHECKING:
    from packer.load.augmenting import One
    from packer.load.batch_dataset import PackedBatchDataset

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
_MOST_ROWS = 5000
_LARGEST_TILE = (224, 224)  # for stored images of different sizes


class Preview(NamedTuple):
    """The result of preview().

    size: (width, height) of the sheet in pixels.
    transforms: their names, () without augmentation.
    overlaid: fields drawn over the images.
    text: a description of the pictures.
    notes, skipped: of a source, as in Report; of the inputs that were chosen.
    """

    path: str
    rows: int
    columns: int
    repeat: int
    size: tuple[int, int]
    nbytes: int
    transforms: tuple[str, ...]
    overlaid: tuple[str, ...]
    text: str
    notes: tuple[str, ...] = ()
    skipped: tuple[Mapping[str, str], ...] = ()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Return the sheet for notebooks; only the text if the file no longer exists."""
        shown: dict[str, Any] = {"text/plain": repr(self)}
        with suppress(OSError), open(self.path, "rb") as file:
            shown[f"image/{_format(self.path).lower()}"] = base64.b64encode(file.read()).decode()
        return shown


@dataclass(frozen=True)
class Shown:
    """A contact sheet in memory, displayed by notebooks. png: the file; text: describes the pictures."""

    png: bytes = field(repr=False)
    text: str

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the .png file. Raises PackerError if it cannot be written."""
        write_file(os.fspath(path), self.png)

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.png).decode()
        text = escape(visible(self.text))
        return f'<img alt="{text}" src="data:image/png;base64,{data}"><p>{text}</p>'


@checks_arguments
def preview(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Pack,
    out: str | os.PathLike[str],
    *,
    augment: One | None = None,
    rows: int = 64,
    columns: int | None = None,
    repeat: int = 1,
    seed: int = 0,
    epoch: int = 0,
    order: str = "sequential",
    split: Any = None,
    overwrite: bool = False,
    **options: Any,
) -> Preview:
    """Write a contact sheet of a pack, or of images or arrays before they are packed.

    Of a pack: the first rows that a PackedBatchDataset with these arguments yields. Of a source: the rows
    that a conversion with these options would write; some of each split and class, with the split and the end
    of the key under each label. They are packed into a temporary folder (in TMPDIR), which is removed.

    Labels stand under the images. Masks are overlaid half transparent, with a colour for each value except 0
    and a legend in the lower margin. Boxes and points are drawn. 16-bit images are scaled so that the
    sheet's largest value is white; of images with more bands the first three are shown. Images, masks,
    boxes and points are shown after augmentation. The random draws are the loader's, by (seed, epoch, row).
    MixUp and CutMix mix the rows of the sheet as they mix the rows of a batch.

    path: a pack; or a source: what convert_images takes, or files of arrays as pack_dataset takes them.
    out: .png, .jpg or .jpeg; replaces an earlier sheet, and any other file only with overwrite.
    augment: transforms of packer.augment, a Pipeline, or a text,
        ``"RandomCrop(32, padding=4), Normalize()"``. Normalize() has the same defaults as in
        PackedBatchDataset, and is undone for display. None: the images as stored.
    rows: maximum number of rows.
    columns: maximum number of images side by side; None: an approximately square sheet.
    repeat: number of epochs drawn side by side, starting with `epoch`.
    seed, epoch, order, split: as in PackedBatchDataset. Of a source: no order; seed and split as in the
        conversion, or split is the name of one of the source's splits.
    options: of a source, the other keywords of convert_images or pack_dataset, such as size, labels, pairs;
        those about the output, such as shards, change nothing.
    Returns a Preview, which notebooks display as its picture.
    Raises UsageError (an argument is wrong, out is another file, or there are no images), FormatError,
    SourceError, MissingDependencyError (augment needs torch), PackerError (out cannot be written).

    Examples
    --------
    >>> sheet = preview("photos", "sheet.png", rows=6, size=64)
    >>> sheet.rows, sheet.text
    (6, 'images as they would be stored')
    """
    out = os.fspath(out)
    format = _checked_format(out, overwrite)
    for name, value, least in (("rows", rows, 1), ("repeat", repeat, 1), ("epoch", epoch, 0)):
        whole(name, value, least, _MOST_ROWS)
    if columns is not None:
        whole("columns", columns, 1, _MOST_ROWS)
    if repeat > 1 and augment is None:
        raise UsageError(
            f"repeat: it is {repeat}, and without augment all draws are alike. Pass augment too."
        )
    epochs = range(epoch, epoch + repeat)
    if isinstance(path, Pack) or (isinstance(path, str | os.PathLike) and is_pack(path)):
        pack = path if isinstance(path, Pack) else open_pack(path)
        for name in options:
            raise UsageError(f"{pack.path}: is a pack; {option_text(name)} is about sources. Leave it out.")
        image_of(pack)
        chosen = first_rows(pack, rows, order=order, seed=seed, epoch=epoch, split=split)
        return _written(out, format, pack, chosen, augment, seed, epochs, columns)
    from packer.previews.source_rows import some_packed  # loads what converts

    if order != "sequential":
        raise UsageError(f"order={order!r}: is about packs; a source has no order. Leave it out.")
    with some_packed(path, out, rows, split, {**options, "seed": seed}) as (pack, report):
        chosen = np.arange(pack.rows)
        made = _written(out, format, pack, chosen, augment, seed, epochs, columns, origins(pack))
        return made._replace(notes=report.notes, skipped=report.skipped)


def _written(
    out: str,
    format: str,
    pack: Pack,
    chosen: NDArray[np.int64],
    augment: One | None,
    seed: int,
    epochs: Sequence[int],
    columns: int | None,
    sources: Sequence[tuple[str, str]] | None = None,
) -> Preview:
    """Draw rows of a pack and write the sheet. sources: see PreviewBatch.origins."""
    image, names = image_of(pack), tuple[str, ...]()
    if augment is None:
        text = "images as stored" if sources is None else "images as they would be stored"
        batch = read_batch(pack, chosen)
        draws = [replace(batch, images=pictures(batch.images, image)[0])]
    else:
        draws, names, text = augmented(augment, pack, chosen, seed, epochs)
    draws = [replace(draw, origins=sources) for draw in draws]
    if sources is not None and (left_out := undrawn_fields(pack)):
        text += f"; not drawn: {', '.join(left_out)}"
    one_size = _LARGEST_TILE if augment is None and image.shape is None else None
    columns_used, size, data = _sheet(draws, pack, columns, one_size, format)
    write_file(out, data)
    drawn = {"boxes": draws[0].boxes, "keypoints": draws[0].points}
    overlaid = (*draws[0].masks, *(name for name, what in drawn.items() if what is not None))
    return Preview(out, len(chosen), columns_used, len(epochs), size, len(data), names, overlaid, text)


@checks_arguments
def show(
    what: Any,
    dataset: PackedBatchDataset | None = None,
    *,
    predicted: Any = None,
    rows: int = 16,
    columns: int | None = None,
) -> Shown:
    """Draw a batch as a network sees it; notebooks display the result of a cell's last line.

    what: a batch with a field ``image``: uint8, uint16 or float, [N, C, H, W] from torch or [N, H, W, C]
        from NumPy, or a list of N images of different sizes; or a PackedBatchDataset, for its first batch;
        or a pack or its path, for its first rows.
    dataset: the dataset that the batch comes from. With it, Normalize is undone, classes are named and masks
        are drawn. Without it, floats are scaled so that the smallest is black and the largest white.
    predicted: labels that a network gave to the batch, [N] or [N, K] as the label, such as
        ``scores.argmax(1)``; named below it.
    rows: maximum number of rows.
    columns: images side by side; None: an approximately square sheet.

    Returns an object with `save(path)`, `png` and `text`. Raises UsageError (no batch with images),
    FormatError (no pack).

    Examples
    --------
    >>> sheet = show("train.h5")
    >>> sheet.text
    '16 images 32x32x3 uint8; images as stored'
    >>> sheet.save("sheet.png")
    """
    whole("rows", rows, 1)
    if columns is not None:
        whole("columns", columns, 1, _MOST_ROWS)
    pack: Pack | None = None
    if isinstance(what, str | os.PathLike):
        check_path("what", what)
    if predicted is not None and (isinstance(what, str | os.PathLike | Pack) or hasattr(what, "replay")):
        raise UsageError("show: predicted is about a batch. Pass the batch that was predicted.")
    if isinstance(what, str | os.PathLike | Pack):
        pack = what if isinstance(what, Pack) else open_pack(what)
        batch = read_batch(pack, first_rows(pack, rows, order="sequential", seed=0, epoch=0, split=None))
        drawn, text = pictures(batch.images, image_of(pack))[0], "images as stored"
    else:
        if hasattr(what, "replay"):
            what, dataset = what.batch(0), what
        batch = batch_of(what, dataset, rows, predicted)
        pack = None if dataset is None else dataset.pack
        views = () if dataset is None else dataset.views.values()
        drawn, text = pictures(batch.images, None if pack is None else image_of(pack), views)
    _, _, png = _sheet([replace(batch, images=drawn)], pack, columns, None, "PNG")
    first, alike = batch.images[0], len({image.shape for image in batch.images}) == 1
    shape = "x".join(map(str, first.shape)) if alike else "of different sizes"
    return Shown(png, f"{len(drawn)} images {shape} {first.dtype}; {text}")


def _checked_format(out: str, overwrite: bool) -> str:
    """Return Pillow's name of the format of a sheet. Raises UsageError for a name that it cannot have."""
    format = _format(out)
    if not format:
        raise UsageError(
            f"{out}: its ending is no picture's; .png, .jpg and .jpeg are allowed. Pass another name."
        )
    if not overwrite and os.path.lexists(out) and not _is_sheet(out):
        raise UsageError(
            f"{out}: exists, and is not a contact sheet by packer; only those are replaced by default. Pass "
            "overwrite=True, or another name."
        )
    return format


def _format(path: str) -> str:
    """Return Pillow's name of the format; "" for an ending that is not supported."""
    return FORMATS.get(os.path.splitext(path)[1].lower(), "")


def _is_sheet(path: str) -> bool:
    """Return True for a file written by `draw_sheet`."""
    if os.path.isfile(path):
        with suppress(OSError), open(path, "rb") as file:
            return MARK.encode() in file.read(1024)
    return False


def augmented(
    augment: One, pack: Pack, rows: NDArray[np.int64], seed: int, epochs: Sequence[int]
) -> tuple[list[PreviewBatch], tuple[str, ...], str]:
    """Return a pack's rows as a loader yields them in some epochs; the transforms' names; the scaling.

    Leaves out masks, boxes and points that cannot be mixed, where a transform mixes images. Raises
    UsageError, MissingDependencyError.
    """
    from packer.load.augmenting import pipeline_of  # raises the error for missing torch

    pipeline = pipeline_of(augment, pack.header.normalization)
    from packer.augment.mixing import MixPart
    from packer.load.batch_dataset import PackedBatchDataset

    fields = drawn_fields(pack)
    if mixing := [one for one in pipeline.transforms if isinstance(one, MixPart)]:
        left_out = (
            set(fields) - {"image", "label"} if any(one.blends for one in mixing) else {*OVERLAYS} - {"label"}
        )
        fields = [name for name in fields if name not in left_out]
    draws = []
    with PackedBatchDataset(
        pack, len(rows), order="sequential", subset=rows, fields=fields, augment=augment, seed=seed
    ) as dataset:
        for epoch in epochs:
            dataset.set_epoch(epoch)
            batch = batch_of(next(iter(dataset)), dataset, len(rows))
            drawn, text = pictures(batch.images, image_of(pack), dataset.views.values())
            draws.append(replace(batch, rows=rows, images=drawn))
    text = "augmented" if text == "images as they are" else text
    return draws, tuple(type(one).__name__ for one in pipeline.transforms), text


def _sheet(
    draws: Sequence[PreviewBatch],
    pack: Pack | None,
    columns: int | None,
    tile: tuple[int, int] | None,
    format: str,
) -> tuple[int, tuple[int, int], bytes]:
    """Return columns, size and file of a sheet.

    draws: pictures, side by side; tile: (h, w), None: as large as the largest picture.
    """
    classes = None if pack is None else pack.header.classes
    texts = [captions(draw, classes, label_columns(pack), unlabeled_of(pack)) for draw in draws]
    shapes = [one.shape for one in draws[0].images]
    tile = tile or (max(shape[0] for shape in shapes), max(shape[1] for shape in shapes))
    source = draws[0].origins is not None
    words = words_height(max(len(lines) for each in texts for lines in each), source=source)
    grid = arrange_tiles(len(shapes), len(draws), tile, columns, words)
    return (
        grid.columns,
        grid.size,
        draw_sheet(grid, draws, texts, classes, format, point_names(draws[0], pack)),
    )
