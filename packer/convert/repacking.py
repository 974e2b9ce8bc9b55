"""From packs to packs: put together, split, stored another way, added to; each written like a conversion, and resumable as one."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.arguments import ON_ERROR, check_workers, choice, whole
from packer.convert.conversion_run import (
    ConversionTask,
    RunOptions,
    RunResult,
    already,
    append_shards,
    check_growable,
    check_room,
    interrupted,
    write_pack,
)
from packer.convert.image_conversion import ConversionPlan, Report, parse_size, plan_conversion, report_of
from packer.convert.pack_rows import PackRows, together
from packer.convert.row_storage import RowStorage, estimate
from packer.convert.sample_order import SampleOrder, arrange, parse_split, stratified
from packer.errors import PackerError, UsageError
from packer.format.header import NORMALIZE, Header
from packer.format.pack import Pack, open_pack
from packer.format.working_folder import check_output, check_space, format_of
from packer.pixels.decode_resize import PixelSpec, decoder_versions
from packer.progress import Progress
from packer.tables.table_packs import TablePackRows, is_table, strata, tables_together
from packer.version import __version__

PathLike = str | os.PathLike[str]


def merge_packs(
    packs: Sequence[PathLike],
    out: PathLike,
    *,
    shuffle: bool = True,
    seed: int = 0,
    workers: int | None = None,
    overwrite: bool = False,
    progress: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Report:
    """Put packs with equal fields together into one new pack.

    Parameters
    ----------
    packs
        Paths. Splits of one name are put together; classes are those of all, sorted, and labels are numbered anew. Packs of tables
        must map their columns alike, as `like` makes them; the record of the mapping, with its statistics, is that of the first.
    shuffle, seed
        Mix the rows (of each split), drawn from seed; else pack after pack.
    out, overwrite, workers, progress, on_progress
        As in convert_images.

    Raises
    ------
    UsageError
        The packs do not go together.
    FormatError, SpaceError, PackerError

    Examples
    --------
    >>> from packer import merge_packs
    >>> merge_packs(["train.h5", "train.h5"], "twice.h5").rows
    48
    """
    opened = [open_pack(path) for path in packs]
    if len(opened) < 2:
        raise UsageError("merge: takes two packs or more. Pass their names.")
    pack, classes, storing, rows = _opened(opened, os.fspath(out))
    order = arrange(_members(pack), shuffle=shuffle, seed=seed)
    work = _Work(
        pack, rows, order, storing, classes, seed if shuffle else None, {"merge": len(opened), "seed": seed}
    )
    return work.write(os.fspath(out), _running(workers, overwrite, on_progress), progress)


def split_pack(
    path: PathLike,
    shares: str | Mapping[str, float],
    *,
    out: PathLike | None = None,
    seed: int = 0,
    workers: int | None = None,
    overwrite: bool = False,
    progress: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> dict[str, Report]:
    """Deal the rows of a pack out to new packs, with equal shares of each class.

    Parameters
    ----------
    shares
        "train=0.9,val=0.1", or the same as a mapping.
    out
        A folder; default: that of the pack. The new packs are called like it, the split's name before the ending: photos.train.h5.
    seed
        Of the draw. Rows keep their order.
    workers, overwrite, progress, on_progress
        As in convert_images.

    Returns
    -------
    dict
        The report of each split.

    Raises
    ------
    UsageError, FormatError, SpaceError, PackerError

    Examples
    --------
    >>> from packer import split_pack
    >>> {name: report.rows for name, report in split_pack("train.h5", "a=0.75,b=0.25").items()}
    {'a': 18, 'b': 6}
    """
    opened = [open_pack(path)]
    stem, dot, ending = os.path.basename(os.fspath(path).rstrip("/")).rpartition(".")
    stem, ending = (stem, dot + ending) if dot else (ending, "")
    folder = os.path.dirname(os.fspath(path).rstrip("/")) if out is None else os.fspath(out)
    whole_pack, classes, _, _ = _opened(opened, os.fspath(path))
    labels = strata(whole_pack) if is_table(whole_pack) else _labels(whole_pack)
    members = stratified(labels, whole_pack.rows, parse_split(shares), seed)
    _check_names(members)
    outs = {name: os.path.join(folder, f"{stem}.{name}{ending}") for name in members}
    works = {}
    for name, samples in members.items():
        pack, _, storing, rows = _opened(opened, outs[name])
        said = {"split": name, "shares": parse_split(shares), "seed": seed}
        works[name] = _Work(pack, rows, SampleOrder(samples, {}), storing, classes, pack.header.seed, said)
    # Before an interruption some may have been finished: these are left.
    there = {name: work.found(outs[name]) for name, work in works.items() if not overwrite}
    for name in works:
        if there.get(name) is None:
            check_output(outs[name], overwrite=overwrite)
    running = _running(workers, overwrite, on_progress)
    return {
        name: there.get(name) or work.write(outs[name], running, progress) for name, work in works.items()
    }


def _check_names(names: Iterable[str]) -> None:
    """Refuse names of splits that would not be part of a file's name. Raises UsageError."""
    for name in names:
        if name in ("", ".", "..") or "/" in name or os.sep in name or not name.isprintable():
            raise UsageError(
                f"split {name!r}: is no part of a file's name; letters, digits and signs other than / are allowed."
                " Pass for example train=0.9,val=0.1."
            )


def append_images(
    path: PathLike,
    source: PathLike,
    *,
    labels: PathLike | None = None,
    pairs: Mapping[str, PathLike] | None = None,
    workers: int | None = None,
    on_error: str = "stop",
    on_plan: Callable[[ConversionPlan], None] | None = None,
    progress: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Report:
    """Convert more images with the options of a pack of shards, and add them to it as further shards.

    Parameters
    ----------
    path
        A pack of shards; it is as it was until the new ones are whole. The new images' classes must be among its classes.
    source, labels, pairs, workers, on_error, on_plan, progress, on_progress
        As in convert_images.

    Returns
    -------
    Report
        Its rows are the images added.

    Raises
    ------
    UsageError
        The pack is one file, has other classes, or no record of its options.
    SourceError, SpaceError, PackerError
    """
    began = time.perf_counter()
    name, pack = os.fspath(path).rstrip("/"), open_pack(path)
    if is_table(pack):
        raise UsageError(f"{name}: was made of a table; append_images adds images. Use append_table.")
    check_growable(pack, "append_images", [os.fspath(source)])
    options = pack.parts[0].header.provenance.get("options", {})
    if (
        not {"size", "fit", "channels", "max_pixels", "store", "format"} <= set(options)
        or options.get("repack", {}).get("size") is not None
    ):
        raise UsageError(
            f"{name}: does not say how it was converted. Convert the images by themselves, and packer merge the packs."
        )
    running = replace(
        _running(workers, False, on_progress), skip=choice("on_error", on_error, ON_ERROR) == "skip"
    )
    with ExitStack() as stack:
        made = plan_conversion(
            stack,
            os.fspath(source),
            options,
            out=name,
            labels=labels,
            pairs=pairs or {},
            made=pack,
            skip=running.skip,
        )
        check_space(name, made.plan.bytes)
        if on_plan is not None:
            on_plan(made.plan)
        bar = stack.enter_context(Progress(progress, "images", on_progress))
        bar.start(made.plan.rows)
        written = append_shards(made.task, pack, replace(running, progress=bar.move), made.task.skipped)
    report = report_of(written, name, began, running.workers, made.plan.notes)
    before = Counter((s["key"], s["reason"]) for s in pack.header.skipped)
    return replace(
        report,
        rows=report.rows - pack.rows,
        bytes_written=report.bytes_written - pack.nbytes,
        skipped=tuple(s for s in report.skipped if not _take(before, (s["key"], s["reason"]))),
    )


def repack(
    path: PathLike,
    out: PathLike,
    *,
    size: int | str | tuple[int, int] | None = None,
    any_size: bool = False,
    fit: str = "crop",
    format: str | None = None,
    store: str | None = None,
    quality: int | None = None,
    compress: str | None = None,
    shard_rows: int | None = None,
    shard_size: int | str | None = None,
    shuffle: bool = False,
    seed: int = 0,
    workers: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Report:
    """Write a pack anew: smaller images, another store, format or number of files.

    Parameters
    ----------
    size
        Images can only shrink; masks, boxes and keypoints follow.
    store, quality, compress
        Default: as the pack has them. Rows of JPEG files are passed on untouched unless size, store or quality change.
    shuffle, seed
        Mix the rows (of each split), drawn from seed; else they keep their order.
    out, any_size, fit, format, shard_rows, shard_size, workers, overwrite, resume, progress, on_progress
        As in convert_images. Of packs of tables size, store and quality are refused.

    Raises
    ------
    UsageError, FormatError, SpaceError, PackerError

    Examples
    --------
    >>> from packer import open_pack, repack
    >>> repack("train.h5", "smaller.h5", size=16).rows
    24
    >>> open_pack("smaller.h5").fields[0].shape
    (16, 16, 3)
    """
    opened = open_pack(path)
    if is_table(opened):
        for name, given in (("size", size), ("store", store), ("quality", quality)):
            if given is not None:
                raise UsageError(
                    f"{name} {given}: is about images; {opened.path} was made of a table. Leave it out."
                )
    sharded = shard_rows is not None or shard_size is not None
    format = format or format_of(os.fspath(out), sharded=sharded)
    rows_a_shard = None if shard_rows is None else whole("shard_rows", shard_rows)
    order_seed = seed if shuffle else opened.header.seed
    running = _running(workers, overwrite, on_progress, resume=resume)
    if is_table(opened):
        pack, classes, storing, table_rows = _opened([opened], os.fspath(out), format, compress, rows_a_shard)
        order = arrange(_members(pack), shuffle=shuffle, seed=seed)
        row_bytes = sum(f.row_bytes for f in table_rows.fields if not f.ragged) + table_rows.ragged_bytes
        storing = storing.sharded(row_bytes, shard_size)
        said = {"repack": {"shuffle": shuffle, "seed": seed if shuffle else None}, **storing.options()}
        work = _Work(pack, table_rows, order, storing, classes, order_seed, said)
        return work.write(os.fspath(out), running, progress)
    pack, classes, numbers = together([opened])
    spec = None
    image = pack.header.field("image").loaded
    if size is not None:
        spec = PixelSpec(parse_size(size, any_size=any_size), fit, str(image.about.get("color", "rgb")))
        if image.shape is not None and image.shape[:2] == spec.size:
            spec = None
    storing = _storing(
        pack,
        os.fspath(out),
        format=format,
        store=store,
        quality=quality,
        compress=compress,
        shard_rows=rows_a_shard,
    )
    stored = pack.header.field("image").codec or {}
    passes = storing.store == "jpeg" and quality in (None, stored.get("quality"))
    rows = PackRows(pack, numbers, spec, jpeg=passes)
    order = arrange(_members(pack), shuffle=shuffle, seed=seed)
    if shard_size is not None:
        storing = storing.sharded(estimate(rows, storing, order, compare=False)[0].row_bytes, shard_size)
    how: dict[str, Any] = {"size": None if spec is None else list(spec.size), "fit": fit}
    if shuffle:
        how |= {"shuffle": True, "seed": seed}
    said = {"repack": how, **storing.options()}
    work = _Work(pack, rows, order, storing, classes, order_seed, said)
    return work.write(os.fspath(out), running, progress)


def _take(counts: Counter[tuple[str, str]], item: tuple[str, str]) -> bool:
    """Take one of the items away, if there is one; returns whether there was."""
    if not counts[item]:
        return False
    counts[item] -= 1
    return True


@dataclass(frozen=True)
class _Work:
    """One pack to be made of another."""

    pack: Pack
    rows: PackRows | TablePackRows
    order: SampleOrder
    storing: RowStorage
    classes: tuple[str, ...] | None
    seed: int | None
    said: Mapping[str, Any]

    @property
    def provenance(self) -> dict[str, Any]:
        """Record of how the new pack is made, for its header."""
        first, *others = (part.header.provenance.get("options", {}) for part in self.pack.parts)
        kept = _kept_options(first)
        if any(other.get(NORMALIZE) != first.get(NORMALIZE) for other in others):
            kept.pop(
                NORMALIZE, None
            )  # the packs are normalised differently: the new one has its own mean and std
        pixels = {} if is_table(self.pack) else decoder_versions()
        return {
            "options": {**kept, **self.said},
            "source": self.rows.fingerprint(),
            "versions": {"packer": __version__, **pixels, **self.storing.versions()},
        }

    def found(self, out: str) -> Report | None:
        """Return a report of the pack under that name, if it is this one already."""
        try:
            header = already(out, self.provenance, len(self.order.samples), overwrite=False)
        except PackerError:
            return None
        if header is None:
            return None
        report = report_of(RunResult(header, resumed=header.rows), out, time.perf_counter(), 0)
        return replace(report, already=True)

    def write(self, out: str, running: RunOptions, progress: bool) -> Report:
        """Write it. progress: show it."""
        began = time.perf_counter()
        out, provenance = out.rstrip("/"), self.provenance
        table = is_table(self.pack)
        members: dict[str, Any] = {"classes": self.classes, "seed": self.seed, "provenance": provenance}
        if table:
            members["table"] = self.pack.header.table
        task = ConversionTask(
            self.pack.path, self.rows, self.order, self.storing, members, provenance, keyed=not table
        )
        check_output(out, overwrite=running.overwrite)
        raw = sum(f.row_bytes for f in self.rows.fields if not f.ragged) + self.rows.ragged_bytes
        check_room(out, round(min(raw, 2 * self.pack.nbytes / self.pack.rows) * len(self.order.samples)))
        with Progress(progress, "rows", running.progress) as bar, interrupted(out):
            bar.start(len(self.order.samples))
            written = write_pack(task, out, replace(running, progress=bar.move))
        return report_of(written, out, began, running.workers)


def _kept_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a source's options that still say something of the rows, not how they are stored."""
    stored = ("format", "store", "quality", "compress", "shard_rows", "shard_size")
    return {name: value for name, value in options.items() if name not in stored}


def _opened(
    opened: Sequence[Pack],
    out: str,
    format: str | None = None,
    compress: str | None = None,
    shard_rows: int | None = None,
) -> tuple[Pack, tuple[str, ...] | None, RowStorage, PackRows | TablePackRows]:
    """Return several packs as one, its classes, how it is stored under a name, and its rows."""
    if is_table(opened[0]):
        pack = tables_together(opened)
        storing = _table_storing(pack, out, format, compress, shard_rows)
        return pack, pack.header.classes, storing, TablePackRows(pack)
    pack, classes, numbers = together(opened)
    storing = _storing(pack, out)
    return pack, classes, storing, PackRows(pack, numbers, None, jpeg=storing.store == "jpeg")


def _table_storing(
    pack: Pack, out: str, format: str | None, compress: str | None, shard_rows: int | None
) -> RowStorage:
    """Return the storage that was asked for, else the pack's own."""
    format = format or format_of(out)
    codec = next((f.codec for f in pack.fields if f.compressed), None)
    if compress is None:
        compress = str(codec["name"]) if codec and format == "h5" else "none"
    return RowStorage(format, compress=compress, shard_rows=shard_rows)


def _running(
    workers: int | None, overwrite: bool, on_progress: Callable[[int], None] | None, *, resume: bool = False
) -> RunOptions:
    return RunOptions(
        check_workers(workers),
        overwrite=overwrite,
        resume=resume,
        progress=on_progress or (lambda done: None),
    )


def _members(pack: Pack) -> dict[str, NDArray[np.int64]]:
    """Return the rows of each split, in the order in which they begin, or all. Raises UsageError for rows in no split."""
    if not pack.header.splits:
        return {"": np.arange(pack.rows)}
    members = {
        name: np.concatenate([np.arange(a, b) for a, b in spans])
        for name, spans in sorted(pack.header.splits.items(), key=lambda item: item[1])
    }
    within = sum(map(len, members.values()))
    if within != pack.rows:
        raise UsageError(
            f"{pack.path}: {pack.rows - within:,} of its {pack.rows:,} rows are in no split; all of them or none can be."
            " Put packs together that all have splits, or none."
        )
    return members


def _labels(pack: Pack) -> NDArray[np.int64] | None:
    """Return the class of each row, if there are any."""
    header: Header = pack.header
    if not any(f.name == "label" and f.dtype == "<i8" and f.shape == () for f in header.fields):
        return None
    return pack.read("label").astype(np.int64)


def _storing(
    pack: Pack,
    out: str,
    *,
    format: str | None = None,
    store: str | None = None,
    quality: int | None = None,
    compress: str | None = None,
    shard_rows: int | None = None,
) -> RowStorage:
    """Return the storage that was asked for, else the pack's own."""
    image = pack.header.field("image")
    codec = dict(image.codec or {})
    store = store or ("jpeg" if image.ragged else "raw")
    format = format or format_of(out)
    if compress is None:
        kept = image.compressed and store == "raw" and format == "h5"
        compress = str(codec["name"]) if kept else "none"
    return RowStorage(format, store, quality or int(codec.get("quality", 90)), compress, shard_rows)
