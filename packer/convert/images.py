"""convert_images: a folder, list or archive of images becomes one pack."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from operator import index
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

import packer
from packer import loops
from packer.convert.estimate import Trade, estimate
from packer.convert.imagerows import ImageRows
from packer.convert.options import ON_ERROR, check_workers, choice, whole
from packer.convert.order import Order, arrange, parse_split, stratified
from packer.convert.packing import Running, Task, Written, write_pack
from packer.convert.resuming import already, check_room, interrupted
from packer.convert.storing import Storing
from packer.errors import UsageError
from packer.format.output import check_output, format_of
from packer.format.pack import Pack
from packer.inputs.pairs import open_pair
from packer.inputs.sources import Source, open_source
from packer.inputs.targets import Targets, read_targets
from packer.pixels import kernels
from packer.pixels.maker import MAX_PIXELS, PixelSpec, decoder_versions
from packer.progress import Progress

KEEP = "keep"


@dataclass(frozen=True)
class Plan:
    """What a conversion is about to write.

    rows: images; shape: (H, W, C) of each, None if they keep their own; bytes: of the pack, about; classes: how many, None without
    class names; splits: name -> rows; trades: how else the images could be stored, and at what size; notes: sentences about the
    source that a user should see.
    """

    rows: int
    shape: tuple[int, int, int] | None
    bytes: int
    classes: int | None
    splits: Mapping[str, int]
    trades: tuple[Trade, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """What a conversion did.

    rows: images in the pack; seconds: wall time, flushing included; bytes_read: of inputs; bytes_written: of the pack;
    skipped: ({"key": ..., "reason": ...}, ...) inputs left out; workers: that decoded; resumed: rows that an interrupted run had
    done; cleared: how an interrupted run differed whose work was cleared; already: the pack was there and whole, and was left.
    """

    out: str
    rows: int
    seconds: float
    bytes_read: int
    bytes_written: int
    workers: int
    skipped: tuple[dict[str, str], ...]
    resumed: int = 0
    cleared: str = ""
    already: bool = False

    @property
    def rows_per_second(self) -> float:
        """Images packed a second, those not counted that had been done before."""
        return max(0, self.rows - self.resumed) / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


def convert_images(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    size: int | str | tuple[int, int] = 256,
    any_size: bool = False,
    fit: str = "crop",
    channels: str = "rgb",
    format: str | None = None,
    store: str = "raw",
    quality: int = 90,
    compress: str = "none",
    labels: str | os.PathLike[str] | None = None,
    label: str | Sequence[str] | None = None,
    multi_label: bool = False,
    boxes: str | Sequence[str] | None = None,
    keypoints: str | Sequence[str] | None = None,
    pairs: Mapping[str, str | os.PathLike[str]] | None = None,
    split: str | Mapping[str, float] | None = None,
    shuffle: bool = True,
    seed: int = 0,
    shard_rows: int | None = None,
    shard_size: int | str | None = None,
    workers: int | None = None,
    on_error: str = "stop",
    max_pixels: int = MAX_PIXELS,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool = False,
    on_plan: Callable[[Plan], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Report:
    """Pack images into one HDF5 file, one directory of .npy files, or a directory of such shards.

    source: a folder with one sub-folder a class, a folder of images, a text list of paths, or a .tar, .tar.gz or
        .zip archive of such a folder (a folder inside it is named by path: ``photos.tar/train``). Where its folders are called
        train, val, valid, validation and test, they are splits, each of the forms above.
    out: ends in .h5 or .hdf5: one HDF5 file; else a directory. format: "h5" or "npy" overrides that.
    size: side, "HxW" or (H, W) in pixels; powers of two unless any_size; "keep": with store="jpeg", the original files' bytes.
    fit: "crop" (shortest side to the size, centre crop), "pad" or "stretch". channels: "rgb", "gray", "rgba".
    store: "raw" pixels, or "jpeg": each row a JPEG file of that quality, decoded while loading.
    compress: "none", or the codec through which blocks of raw rows are stored (HDF5 only).
    labels: a CSV file that says of each image (first column) what its label is, where folders do not. label: its column, or
        columns (default: the second); multi_label: its cells hold several class names. boxes, keypoints: columns with xmin, ymin,
        xmax, ymax, or x, y, x, y ..., in pixels of the original image; they are moved as the image is resized.
    pairs: field -> folder of masks and the like: to image cat/1.jpg belongs cat/1.png; placed as the image, nearest sampling.
    split: name -> share ("train=0.9,val=0.1"): drawn from the seed, equal shares of each class, stored one after the other.
    shuffle: store the rows (of each split) in a random order, drawn from seed. Without it a class folder's pack is sorted by class.
    shard_rows, shard_size: begin another file after so many rows, or about so many bytes ("2GB"); out is then a directory.
    workers: processes (threads where forking is not safe); default: the cores at hand. The result does not
        depend on it.
    on_error: "stop" at the first input that cannot be packed, or "skip" such inputs and list them.
    max_pixels: larger inputs are refused undecoded. overwrite: replace an existing pack.
    resume: go on only with an interrupted conversion of the same inputs and options: another one is refused instead of
        cleared, and a whole pack of the same is left as it is.
    progress: show a bar on stderr (on a terminal, in a notebook), or a line a minute elsewhere.
    on_plan: called once, before anything is written; on_progress: called now and then with the images done so far.

    Equal inputs and options give byte-identical packs, interrupted or not. Nothing is left under `out` unless the pack is whole;
    what an interrupted conversion has done is kept in ``<out>.packing`` and used by the next one of the same inputs and options.
    Raises UsageError, SourceError (ImageError's parent), SpaceError, PackerError.
    """
    began = time.perf_counter()
    source, out = os.fspath(source), os.fspath(out).rstrip("/")
    sharded = shard_rows is not None or shard_size is not None
    options = {
        "size": KEEP if size == KEEP else list(parse_size(size, any_size=any_size)),
        "fit": fit,
        "channels": channels,
        "max_pixels": whole("max_pixels", max_pixels),
        "seed": whole("seed", seed) if shuffle else None,
        "split": None if split is None else parse_split(split),
        "split_seed": whole("seed", seed) if split is not None else None,
        "label": _columns(label),
        "multi_label": multi_label or None,
        "boxes": _columns(boxes),
        "keypoints": _columns(keypoints),
        "format": format or ("h5" if sharded else format_of(out)),
        "store": store,
        "quality": whole("quality", quality) if store == "jpeg" else None,
        "compress": None if compress == "none" else compress,
        "shard_rows": None if shard_rows is None else whole("shard_rows", shard_rows),
    }
    bar = Progress(progress, "images", on_progress)
    running = Running(
        check_workers(workers),
        skip=choice("on_error", on_error, ON_ERROR) == "skip",
        overwrite=overwrite,
        resume=resume,
        progress=bar.move,
    )
    Storing.of(options)
    if not (resume and os.path.lexists(out)):
        check_output(out, overwrite=overwrite)
    with ExitStack() as stack:
        made = prepare(
            stack,
            source,
            options,
            out=out,
            labels=labels,
            pairs=pairs or {},
            shard_size=shard_size,
            compare=on_plan is not None,
        )
        task = made.task
        found = None
        if resume:
            found = already(out, task.members["provenance"], made.plan.rows, overwrite=overwrite)
        if found is not None:
            report = report_of(Written(found, resumed=found.rows), out, began, running.workers)
            return replace(report, already=True)
        check_room(out, made.plan.bytes * (2 if task.storing.gathered else 1))
        if on_plan is not None:
            on_plan(made.plan)
        bar.start(made.plan.rows)
        stack.enter_context(bar)
        with interrupted(out):
            written = write_pack(task, out, running)
    return report_of(written, out, began, running.workers)


class Prepared(NamedTuple):
    """A conversion that can begin: the task, and what to tell of it."""

    task: Task
    plan: Plan


def prepare(
    stack: ExitStack,
    source: str,
    options: Mapping[str, Any],
    *,
    out: str,
    labels: str | os.PathLike[str] | None,
    pairs: Mapping[str, str | os.PathLike[str]],
    shard_size: int | str | None = None,
    made: Pack | None = None,
    compare: bool = False,
) -> Prepared:
    """Find out what there is to convert, and how: from arguments, or from what a pack recorded of them.

    stack: closes what is opened. options: as a pack's provenance holds them; those that are None, or missing, are not used.
    out: where the pack will be. made: a pack whose classes and fields the new rows are to have. compare: find out how large the pack
    would be if it were stored otherwise. The others: as in convert_images.
    Raises UsageError, SourceError.
    """
    keep = options["size"] == KEEP
    if keep and (options["store"] != "jpeg" or options["channels"] != "rgb" or pairs):
        raise UsageError(
            "size keep: needs --store jpeg, and goes with neither --channels nor --pair. Pass a size."
        )
    size = (1, 1) if keep else (int(options["size"][0]), int(options["size"][1]))
    spec = PixelSpec(size, options["fit"], options["channels"], options["max_pixels"])
    spool = os.path.dirname(os.path.abspath(out))
    opened = stack.enter_context(open_source(source, labelled=labels is not None, spool_dir=spool))
    targets = _targets(opened, labels, options)
    like = {} if made is None else {f.name: f for f in made.fields}
    if made is not None and made.header.classes is not None:
        targets = targets.renumbered(made.header.classes, source)
    partners = [
        stack.enter_context(
            open_pair(name, folder, opened.keys, spec=spec, like=like.get(name), spool_dir=spool)
        )
        for name, folder in pairs.items()
    ]
    storing = Storing.of(options)
    maker = ImageRows(opened, spec, targets, partners, keep=keep, quality=storing.quality)
    order = _order(opened, targets, options)
    trades = estimate(maker, storing, order, compare=compare)
    storing = storing.sharded(trades[0].row_bytes, shard_size)
    said = {**options, "pairs": sorted(pairs) or None, "shard_rows": storing.shard_rows}
    provenance = {
        "options": {name: value for name, value in said.items() if value is not None},
        "source": maker.fingerprint(),
        "versions": {"packer": packer.__version__, **decoder_versions(), **storing.versions()},
    }
    members = {
        "classes": None if targets.classes is None else tuple(targets.classes),
        "seed": options.get("seed"),
        "provenance": provenance,
    }
    changes = {"newest file": maker.newest(), "digest of the files' times": maker.times()}
    task = Task(source, maker, order, storing, members, {**provenance, **changes})
    plan = Plan(
        rows=len(order.samples),
        shape=None if keep else spec.shape,
        bytes=round(len(order.samples) * trades[0].row_bytes) + (1 << 16),
        classes=None if targets.classes is None else len(targets.classes),
        splits={name: b - a for name, (a, b) in order.splits.items()},
        trades=trades,
        notes=(*opened.notes, *maker.notes(), *_missing_loops(keep)),
    )
    return Prepared(task, plan)


def _missing_loops(keep: bool) -> list[str]:
    """A note where pixels are made without the compiled loops."""
    return [] if keep or kernels.COMPILED else [loops.without("packer.pixels._kernels")]


def parse_size(size: int | str | tuple[int, int], *, any_size: bool) -> tuple[int, int]:
    """(height, width) from 256, "256", "128x256" or (128, 256). Raises UsageError."""
    sides: list[int]
    try:
        if isinstance(size, str):
            sides = [int(side) for side in size.lower().split("x")]
        else:
            sides = [index(side) for side in ((size,) if isinstance(size, SupportsIndex) else size)]
        height, width = sides * 2 if len(sides) == 1 else sides
    except (ValueError, TypeError):
        raise UsageError(f"size {size}: is not a number or HxW. Pass for example 256 or 128x256.") from None
    for side in (height, width):
        if side < 1:
            raise UsageError(f"size {size}: {side} is too small; 1 is the least. Pass for example 256.")
        if side > 1 << 16:
            raise UsageError(f"size {size}: {side} is too large; 65536 is the most. Pass for example 256.")
        if side & (side - 1) and not any_size:
            below = 1 << (side.bit_length() - 1)
            raise UsageError(
                f"size {size}: {side} is not a power of two; the nearest are {below} and {2 * below}."
                " Pass one of them, or --any-size."
            )
    return height, width


def _columns(names: str | Sequence[str] | None) -> list[str] | None:
    """["a", "b"] from "a,b" or ("a", "b")."""
    if names is None:
        return None
    return [name.strip() for name in (names.split(",") if isinstance(names, str) else names)]


def _targets(source: Source, labels: str | os.PathLike[str] | None, options: Mapping[str, Any]) -> Targets:
    """What is known of each image: from the CSV, or else from the folders."""
    chosen = {name: options.get(name) for name in ("label", "boxes", "keypoints")}
    multi = bool(options.get("multi_label"))
    if labels is not None:
        return read_targets(os.fspath(labels), source.keys, **chosen, multi_label=multi)
    for name, value in (*chosen.items(), ("multi_label", multi)):
        if value:
            raise UsageError(f"{name}: is about columns of a CSV, and there is none. Pass --labels FILE.")
    return Targets.of_labels(source.labels, source.classes)


def _order(source: Source, targets: Targets, options: Mapping[str, Any]) -> Order:
    """The rows: splits by folders, or drawn with equal shares of each class, or none."""
    count, shares, seed = len(source), options.get("split"), options.get("seed")
    if shares is not None and source.splits:
        raise UsageError(
            f"{source.name}: its folders are splits already ({', '.join(source.splits)}). Pass no --split, or one of the folders."
        )
    members = source.splits or {"": np.arange(count)}
    if shares is not None:
        members = stratified(targets.strata, count, shares, options["split_seed"])
    return arrange(members, shuffle=seed is not None, seed=seed or 0)


def report_of(written: Written, out: str, began: float, workers: int) -> Report:
    """What was written, and since `began`, of time.perf_counter()."""
    header = written.header
    nbytes = sum(e.nbytes for extents in header.extents.values() for e in extents)
    return Report(
        out,
        header.rows,
        time.perf_counter() - began,
        written.bytes_read,
        nbytes,
        workers,
        tuple(dict(s) for s in header.skipped),
        written.resumed,
        written.cleared,
    )
