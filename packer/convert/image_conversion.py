"""convert_images: a folder, list or archive of images becomes one pack."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from packer import native, units
from packer.arguments import choice, whole
from packer.convert.conversion_run import Conversion, Report
from packer.convert.conversion_task import ConversionTask, Engine
from packer.convert.engines import engine_of
from packer.convert.image_rows import ImageRows, survey
from packer.convert.publishing import published
from packer.convert.reference_pack import Classes, ReferencePack, parse_classes
from packer.convert.row_storage import RowStorage, StorageEstimate, estimate
from packer.convert.sample_order import SampleOrder, arrange, parse_split, stratified
from packer.convert.whole_pictures import check_stored, partner_versions
from packer.errors import ImageError, UsageError
from packer.foreign_words import refuses_foreign_words
from packer.format.header import NORMALIZE
from packer.format.pack import Pack
from packer.inputs.coco_annotations import read_labels
from packer.inputs.image_pairs import open_pair
from packer.inputs.image_sources import Source, open_source
from packer.inputs.image_targets import OPTIONS as TARGET_OPTIONS
from packer.inputs.image_targets import ImageTargets
from packer.inputs.label_values import BARS, LABEL_AS
from packer.inputs.opened_source import ImageSource
from packer.pixels.coordinate_units import UNITS
from packer.pixels.decode_resize import MAX_BANDS, MAX_PIXELS, PixelSpec, decoder_versions
from packer.pixels.deep_images import count_bands
from packer.pixels.image_decoder import MODES, without_pillow_warnings
from packer.pixels.row_size import RowSize, note_on_size
from packer.sentence import Option, Sentence
from packer.version import __version__

_TRIED = 16  # images that may be damaged before one tells how many bands there are
_GROWN = 1.25  # of what a file takes, by a sample: more is worth a word


@dataclass(frozen=True)
class ConversionPlan:
    """A conversion that is about to begin.

    rows: images; shape: (H, W, C) of each, None if they have their own; sizes: what these have in common, in words; bytes: of the
    pack, about; classes: how many, None without class names; splits: name -> rows; trades: how else the images could be stored,
    and at what size; notes: sentences about the source that a user should see.
    """

    rows: int
    shape: tuple[int, int, int] | None
    sizes: str
    bytes: int
    classes: int | None
    splits: Mapping[str, int]
    trades: tuple[StorageEstimate, ...]
    notes: tuple[str, ...]


@refuses_foreign_words
@published
def convert_images(
    source: Source,
    out: str | os.PathLike[str],
    *,
    size: int | str | tuple[int, int] | None = None,
    fit: str | None = None,
    channels: str | int | None = None,
    dtype: str | None = None,
    format: str | None = None,
    store: str = "raw",
    quality: int = 90,
    labels: str | os.PathLike[str] | None = None,
    label: str | Sequence[str] | None = None,
    label_file_column: str | None = None,
    label_as: str = "auto",
    multi_label: bool = False,
    label_separator: str | None = None,
    classes: Classes | None = None,
    like: str | os.PathLike[str] | None = None,
    boxes: str | Sequence[str] | None = None,
    keypoints: str | Sequence[str] | None = None,
    boxes_unit: str | None = None,
    pairs: Mapping[str, str | os.PathLike[str]] | None = None,
    soft: str | Sequence[str] | None = None,
    split: str | Mapping[str, float] | None = None,
    shuffle: bool = True,
    seed: int = 0,
    shards: int | str | None = None,
    workers: int | None = None,
    on_error: str = "stop",
    max_pixels: int = MAX_PIXELS,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool = False,
    on_plan: Callable[[ConversionPlan], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
    engine: str | Executor | Engine | None = None,
    address: str | None = None,
    only_shards: str | None = None,
) -> Report:
    """Pack images into one HDF5 file, one directory of .npy files, or a directory of such shards.

    Parameters
    ----------
    source
        A folder with one sub-folder a class, a folder of images, a text list of paths, or a .tar, .tar.gz or .zip archive of such a
        folder (a folder inside it is named by path: ``photos.tar/train``). Folders called train, val, valid, validation, dev, eval and
        test (also Training, TEST ...) are splits, each of the forms above. Or WebDataset's tars, or Parquet files
        of images in Hugging Face's layout (each: a folder, a sequence of paths, or ``"{000000..000009}.tar"``), or a folder laid out as
        COCO is (``annotations/instances_*.json``).
    out, format
        A name that ends in .h5 or .hdf5 becomes one HDF5 file, another one a directory; format "h5" or "npy" overrides that.
    size, fit
        Side, "HxW" or (H, W) in pixels, default 256; a note tells what is usual for other sizes than powers of two. Also whole
        pictures, each of a size of its own: "max=512", the longest side at most that, or "min=256", the shortest side: aspect kept,
        the other side rounded down, never enlarged; "keep": as they are. With store="jpeg" JPEG files that need not shrink keep
        their bytes.
        fit, of one size, is "crop" (shortest side to the size, centre crop; the default), "pad" or "stretch".
    channels
        "rgb" (the default), "gray" or "rgba". Or the number of bands that every file has, which are then kept as they are, each by
        itself: TIFF files of bands, ``.npy`` arrays [h, w, C] (in folders and lists; found then), or any image; "auto": as many as the
        first image has.
    dtype
        "uint8" (the default): of 16-bit images the high byte is stored. "uint16": their values are stored as they are, those of 8-bit
        images times 257 and those of TIFF files of 9 to 15 bits stretched, so that white is 65,535 in all; bands of another type than
        dtype are refused. Raw rows; rgb, gray or a number of bands.
    store, quality
        "raw" pixels; "jpeg": each row a JPEG file of that quality, decoded while loading; or blocks of rows compressed without loss by
        "gzip", "zstd" or "blosc2" (HDF5 only).
    labels, label, label_file_column
        A CSV file that says of each image (first column, or label_file_column) what its label is; label is its column, or columns
        (default: the second). Or COCO's JSON of boxes. Without labels: the label to take of WebDataset's tars or Parquet files.
    label_as, multi_label, label_separator
        "auto": class names are numbered, whole numbers are int64, other numbers float32; "classes": numbers are class names, too;
        "float": float32. With multi_label cells hold several class names, with label_separator between them (default: | or ;).
    boxes, keypoints, boxes_unit
        Columns with xmin, ymin, xmax, ymax, or x, y, x, y ..., in pixels of the original image; they move as the image is resized.
        boxes_unit "relative": they are shares of its width and height. Coordinates that all look like shares are refused without it.
    classes, like
        The classes that labels number: names, a file with one a line, or "a,b,c"; others are errors (or skipped). like is a pack
        whose classes these are to be, and whose size, fit and channels are taken where none are given; its mean and std are
        recorded, and ``augment="Normalize()"`` of the new pack means them.
    pairs, soft
        Field -> folder of masks and the like: to image cat/1.jpg belongs cat/1.png; placed as the image, nearest sampling. Those
        that soft names are no classes but mattes, depth and the like: resampled linearly, as images are, here and by
        ``augment=``; pixels that are sampled from NaN are NaN.
    split, shuffle, seed
        Name -> share ("train=0.9,val=0.1"): drawn from the seed, equal shares of each class, stored one after the other. shuffle
        stores the rows (of each split) in a random order; without it a class folder's pack is sorted by class.
    shards
        Begin another file after so many rows (100_000), or about so many bytes ("2GB", "512MiB"); out is then a directory.
    workers
        Processes (threads where forking is not safe); default: one for each core. The result does not depend on it.
    on_error, max_pixels
        "stop" at the first input that cannot be packed, or "skip" such inputs and list them. Larger inputs are refused undecoded.
    overwrite, resume
        Replace an existing pack. Go on only with an interrupted conversion of the same inputs and options: another one is refused
        instead of cleared, and a whole pack of the same is left as it is.
    progress, on_plan, on_progress
        Show a bar on stderr, or a line a minute where it is no terminal. on_plan is called once, before anything is written;
        on_progress now and then, with the images done so far.
    engine, address
        Who makes the shards: "local", processes of this machine (default); "ray", the cluster at ``address`` ("10.0.0.1:6379"; without
        one RAY_ADDRESS, or else this machine's cores); or a ``concurrent.futures.Executor`` of processes, wherever they
        are. A task makes a shard. All machines read the images and write the shards under the same names: on a shared file system, or in
        stores. The bytes are those that "local" writes.
    only_shards
        "2/8": of the shards the 2nd, 10th, 18th and so on, for machines that know nothing of each other, as in a SLURM array; when all
        eight have run, ``merge_shards(out)`` lists them, as would the same conversion without it.

    Returns
    -------
    Report
        Rows, seconds, bytes, skipped inputs and notes.

    Raises
    ------
    UsageError, SourceError, SpaceError, PackerError

    Notes
    -----
    Equal inputs and options give byte-identical packs, interrupted or not. Nothing is left under `out` unless the pack is whole;
    what an interrupted conversion has done is kept in ``<out>.packing`` and used by the next one of the same inputs and options.

    Examples
    --------
    >>> from packer import convert_images
    >>> report = convert_images("photos", "small.h5", size=32)
    >>> report.rows, report.skipped
    (24, ())
    """
    run = Conversion(
        out,
        "images",
        only=only_shards,
        workers=workers,
        on_error=on_error,
        overwrite=overwrite,
        resume=resume,
        progress=progress,
        on_progress=on_progress,
        engine=engine_of(engine, address),
    )
    out = run.out
    storing = RowStorage.parse(out, format, store, quality, shards)
    match = None if like is None else ReferencePack.of(like)
    if size is None:
        pixels: Any = [256, 256] if match is None else match.size
    else:
        given = RowSize.parse(size)
        pixels = given.option
        if given.ragged and fit is not None:
            raise UsageError(
                f"fit {fit}: is about rows of one size, and size {given.option} keeps whole pictures. Leave it out."
            )
    channels = _parse_channels(channels) or ("rgb" if match is None else match.channels)
    dtype = dtype or ("uint8" if match is None else match.dtype)
    options = {
        "size": pixels,
        "fit": fit or ("crop" if match is None else match.fit),
        "channels": channels,
        "dtype": None if dtype == "uint8" else dtype,
        "max_pixels": whole("max_pixels", max_pixels),
        "seed": whole("seed", seed) if shuffle else None,
        "split": None if split is None else parse_split(split),
        "split_seed": whole("seed", seed) if split is not None else None,
        "label": _columns(label),
        "label_file_column": label_file_column,
        "label_as": None if choice("label_as", label_as, LABEL_AS) == "auto" else label_as,
        "multi_label": multi_label or None,
        "label_separator": label_separator,
        "boxes": _columns(boxes),
        "keypoints": _columns(keypoints),
        "boxes_unit": None if boxes_unit is None else choice("boxes_unit", boxes_unit, UNITS),
        "soft": _soft(soft, pairs or {}),
        **storing.options(),
    }
    run.check_shards(storing)
    run.check_output()
    with ExitStack() as stack:
        task, plan = plan_conversion(
            stack,
            source,
            options,
            out=out,
            labels=labels,
            pairs=pairs or {},
            classes=None if classes is None else parse_classes(classes),
            like=match,
            skip=run.running.skip,
            compare=on_plan is not None,
        )
        found = run.found(task.members["provenance"], plan.rows + len(task.skipped), task.newest)
        if found is not None:
            return run.report(found, plan.notes, already=True)
        announce = partial(on_plan, plan) if on_plan is not None else lambda: None
        written = run.write(task, plan.bytes * (2 if task.gathered else 1), then=announce)
    return run.report(written, plan.notes)


class PreparedConversion(NamedTuple):
    """A conversion that can begin: the task, and what to tell of it."""

    task: ConversionTask
    plan: ConversionPlan


@without_pillow_warnings()
def plan_conversion(
    stack: ExitStack,
    source: Source,
    options: Mapping[str, Any],
    *,
    out: str,
    labels: str | os.PathLike[str] | None,
    pairs: Mapping[str, str | os.PathLike[str]],
    made: Pack | None = None,
    classes: Sequence[str] | None = None,
    like: ReferencePack | None = None,
    skip: bool = False,
    compare: bool = False,
) -> PreparedConversion:
    """Find out what there is to convert, and how: from arguments, or from what a pack recorded of them.

    stack: closes what is opened. options: as a pack's provenance holds them; those that are None, or missing, are not used.
    out: where the pack will be. made: a pack whose classes and fields the new rows are to have. like: one whose classes and labels
    they are to have. skip: leave out what cannot be used of labels and pairs. compare: find out how large the pack would be if it
    were stored otherwise. The others: as in convert_images.
    Raises UsageError, SourceError.
    """
    size = RowSize.of_option(options["size"])
    _check_deep(options)
    if size.ragged:
        check_stored(size, options["store"], options["channels"])
    spool = os.path.dirname(os.path.abspath(out))
    given = dict(options)
    fields = {} if made is None else {f.name: f for f in made.fields}
    label = fields.get("label") if like is None else like.label
    floats = label is not None and (label.dtype, label.shape) == ("<f4", ())
    options = {**given, "label_as": given.get("label_as") or ("float" if floats else None)}
    if made is not None and given.get("multi_label"):  # packs made before separators were recorded have bars
        options["label_separator"] = given.get("label_separator", BARS)
    if classes is None and made is not None:
        classes = made.header.classes
    if classes is None and like is not None:
        classes = like.classes
    opened = stack.enter_context(
        open_source(
            source,
            labelled=labels is not None,
            spool_dir=spool,
            label=_one_label(options),
            label_as=options["label_as"] or "auto",
            listed=classes or (),
            skip=skip,
            arrays=options["channels"] not in MODES,
        )
    )
    if options["channels"] == "auto":
        options["channels"] = given["channels"] = _bands_of_first(opened, options["max_pixels"])
    if like is not None:
        given[NORMALIZE] = like.normalize(options["channels"], options.get("dtype") or "uint8")
    spec = PixelSpec(
        (size.height, size.width),
        options["fit"],
        options["channels"],
        options["max_pixels"],
        options.get("dtype") or "uint8",
    )
    if labels is None and opened.classes is not None and given.get("label_as") in ("float", "number"):
        raise UsageError(
            f"label_as {given['label_as']}: is about labels that are numbers, and {opened.name} has classes. Leave it out."
        )
    targets = _targets(opened, labels, options, skip)
    targets.measured_in(options.get("boxes_unit"), opened.name if labels is None else os.fspath(labels))
    if classes is not None:
        if not targets.labelled and like is None and made is None:
            raise UsageError(
                f"{opened.name}: has no labels, and classes number them. Pass ",
                Option("labels"),
                ", or no ",
                Option("classes"),
                ".",
            )
        targets = targets.renumbered(classes, opened.name, skip=skip)
    if like is not None:
        like.check(next((f for f in targets.fields if f.name == "label"), None), opened.name)
    partners = [
        stack.enter_context(
            open_pair(
                name,
                folder,
                opened.keys,
                spec=spec,
                like=fields.get(name),
                spool_dir=spool,
                images=opened.folder,
                skip=skip,
                soft=name in (options.get("soft") or ()),
                whole=options["store"] if size.ragged else None,
            )
        )
        for name, folder in pairs.items()
    ]
    storing = RowStorage.of(options)
    maker = ImageRows(
        opened, spec, targets, partners, size=size, quality=storing.quality, raw=options["store"] == "raw"
    )
    order = _order(opened, targets, options)
    trades = estimate(maker, storing, order, compare=compare)
    storing = storing.with_rows(trades[0].row_bytes)
    said = {
        **given,
        "label_as": options["label_as"] if made is None else given.get("label_as"),
        "label_separator": targets.separator if made is None else given.get("label_separator"),
        "pairs": sorted(pairs) or None,
        "shard_rows": storing.shard_rows,
        "shard_bytes": None,
    }
    provenance = {
        "options": {name: value for name, value in said.items() if value is not None},
        "source": maker.fingerprint(),
        "versions": {
            "packer": __version__,
            **decoder_versions(),
            **storing.versions(),
            **partner_versions(maker.fields),
        },
    }
    members = {
        "classes": None if targets.classes is None else tuple(targets.classes),
        "seed": options.get("seed"),
        "provenance": provenance,
    }
    newest = maker.newest()
    changes = {"newest file": list(map(str, newest)), "digest of the files' times": maker.times()}
    left_out = (*opened.skipped, *targets.skipped)
    task = ConversionTask(
        opened.name,
        maker,
        order,
        storing,
        members,
        {**provenance, **changes},
        skipped=left_out,
        newest=max(newest, key=lambda file: file.time),
    )
    plan = ConversionPlan(
        rows=len(order.samples),
        shape=None if size.ragged else spec.shape,
        sizes=size.words,
        bytes=round(len(order.samples) * trades[0].row_bytes) + (1 << 16),
        classes=None if targets.classes is None else len(targets.classes),
        splits={name: b - a for name, (a, b) in order.splits.items()},
        trades=trades,
        notes=(
            *(
                ()
                if like is None
                else (
                    like.note(
                        options["size"],
                        options["fit"],
                        options["channels"],
                        options.get("dtype") or "uint8",
                        targets.classes,
                    ),
                )
            ),
            *(
                ()
                if size.ragged or like is not None or made is not None
                else note_on_size(size.height, size.width)
            ),
            *opened.notes,
            *maker.notes(),
            *(
                ()
                if size.rule == "keep" and storing.store == "jpeg"
                else [*survey(opened, spec, size), *_missing_loops(size, storing.store)]
            ),
            *_growth(size, storing.store, trades[0].row_bytes, float(opened.sizes.mean()), storing.quality),
        ),
    )
    return PreparedConversion(task, plan)


def _parse_channels(channels: str | int | None) -> str | int | None:
    """Return a name, or a number as a number. Raises UsageError."""
    if channels is None or channels in (*MODES, "auto"):
        return channels
    number = (
        int(channels)
        if isinstance(channels, str) and channels.isascii() and channels.isdecimal()
        else channels
    )
    if isinstance(number, int) and 1 <= number <= MAX_BANDS:
        return number
    raise UsageError(
        f"channels {channels}: is none of {', '.join(MODES)}, auto and 1 to {MAX_BANDS}. Pass one of them."
    )


def _check_deep(options: Mapping[str, Any]) -> None:
    """Refuse what 16-bit images, and bands, do not go with. Raises UsageError."""
    if options.get("dtype") is None and options["channels"] in MODES:
        return
    asked = (
        Option("dtype", options["dtype"]) if options.get("dtype") else Option("channels", options["channels"])
    )
    if options["store"] == "jpeg":
        raise UsageError(
            "store jpeg: JPEG files hold 8 bits and no bands. Pass ",
            Option("store", "raw"),
            ", or no ",
            asked,
            ".",
        )


def _bands_of_first(source: ImageSource, max_pixels: int) -> int:
    """Return how many bands the first image has that can be read. Raises UsageError if none can, with the first one's reason."""
    source.ahead(np.arange(1))
    reason: Sentence | None = None
    for index in range(min(len(source), _TRIED)):
        try:
            return count_bands(source.read(index), max_pixels)
        except ImageError as error:
            reason = reason or Sentence(
                f"channels auto: {source.name}/{source.keys[index]}: ", error.sentence
            )
    assert reason is not None
    raise UsageError(reason)


def _missing_loops(size: RowSize, store: str) -> list[str]:
    """Return a note where rows are made without the compiled loops."""
    markers = ["markers"] if size.limits and store == "jpeg" else []
    return [] if native.COMPILED else [native.without("pixels", *markers)]


def _growth(size: RowSize, store: str, row_bytes: float, file_bytes: float, quality: int) -> list[str]:
    """Return a note where whole pictures take more than the files they come from."""
    if not size.limits or store == "raw" or row_bytes < _GROWN * file_bytes:
        return []
    return [
        f"A row takes about {units.size(row_bytes)}, a file {units.size(file_bytes)}: pictures that shrink are encoded anew, with"
        f" quality {quality}. "
        "A smaller "
        + Option("size")
        + " or "
        + Option("quality")
        + " takes less, or "
        + Option("size", "keep")
        + "."
    ]


def _columns(names: str | Sequence[str] | None) -> list[str] | None:
    """Return ["a", "b"] from "a,b" or ("a", "b")."""
    if names is None:
        return None
    return [name.strip() for name in (names.split(",") if isinstance(names, str) else names)]


def _soft(names: str | Sequence[str] | None, pairs: Mapping[str, Any]) -> list[str] | None:
    """Return the names of soft pairs, sorted; None if there are none. Raises UsageError for one that is no pair."""
    found = sorted(set(_columns(names) or ()))
    for name in found:
        if name not in pairs:
            raise UsageError(
                f"soft {name}: is none of the pairs ({', '.join(pairs) or 'there are none'}); their names are allowed. Pass such, or ",
                Option("pairs", {name: "DIR"}),
                ", too.",
            )
    return found or None


def _one_label(options: Mapping[str, Any]) -> str | None:
    """Return the label that is asked for, if it is one."""
    chosen = options.get("label") or []
    return chosen[0] if len(chosen) == 1 else None


def _targets(
    source: ImageSource, labels: str | os.PathLike[str] | None, options: Mapping[str, Any], skip: bool
) -> ImageTargets:
    """Return what is known of each image: from the CSV, or else from the folders."""
    chosen: dict[str, Any] = {name: options.get(name) for name in TARGET_OPTIONS}
    if labels is not None:
        return read_labels(os.fspath(labels), source.keys, **chosen, skip=skip)
    for name, value in chosen.items():
        if value and name != "label_as" and not (name == "label" and source.label_chosen):
            raise UsageError(
                f"{name}: is about columns of a CSV, and there is none. Pass ", Option("labels", "FILE"), "."
            )
    return source.targets or ImageTargets(source.labels, source.classes, refused=source.refused)


def _order(source: ImageSource, targets: ImageTargets, options: Mapping[str, Any]) -> SampleOrder:
    """Return the rows: splits by folders, or drawn with equal shares of each class, or none."""
    count, shares, seed = len(source), options.get("split"), options.get("seed")
    if shares is not None and source.splits:
        raise UsageError(
            f"{source.name}: its folders are splits already ({', '.join(source.splits)}). Pass no ",
            Option("split"),
            ", or one of the folders.",
        )
    members = source.splits or {"": np.arange(count)}
    if shares is not None:
        members = stratified(targets.strata, count, shares, options["split_seed"])
    return arrange(members, shuffle=seed is not None, seed=seed or 0)
