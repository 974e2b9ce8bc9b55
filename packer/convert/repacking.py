"""Packs from packs: merge, split, repack, append; each runs, and can be resumed, like a conversion."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from packer.arguments import choice, whole
from packer.convert.conversion_run import Conversion, already, staging_folder
from packer.convert.conversion_task import ConversionTask, Report, provenance
from packer.convert.duplicate_keys import (
    DUPLICATES,
    are_named,
    duplicate_parts,
    duplicate_rows,
    duplicate_samples,
    left_out,
    refuse,
    table_files,
)
from packer.convert.image_options import ImageOptions, Pairs
from packer.convert.image_planning import ConversionPlan, plan_conversion
from packer.convert.pack_rows import PackRows, check_whole, split_owners, together
from packer.convert.recorded_shards import list_shards
from packer.convert.reference_pack import pixel_options
from packer.convert.row_storage import RowStorage, estimate
from packer.convert.sample_order import SampleOrder, arrange
from packer.convert.sealing import check_values
from packer.convert.shard_appending import adding, append_shards, check_alike, check_growable, take_back
from packer.convert.split_assignment import assign
from packer.convert.splits import Part, Split
from packer.convert.whole_pictures import WholePictures, check_stored
from packer.declared_types import checks_arguments
from packer.errors import FormatError, UsageError
from packer.format.checksums import digest
from packer.format.edited_pack import open_unsealed
from packer.format.file_io import InputFile, newest_file
from packer.format.file_rows import FILES, counted_files, to_json
from packer.format.header import Field
from packer.format.header_forms import NORMALIZE
from packer.format.output_names import check_output, check_space
from packer.format.pack import Pack
from packer.format.pack_opening import check_order, open_pack
from packer.path_text import on_disk
from packer.pixels.decode_resize import PixelSpec
from packer.pixels.row_placement import FITS
from packer.pixels.row_size import RowSize
from packer.remote.urls import check_local
from packer.sentence import Call
from packer.tables.table_packs import is_table, tables_together

PathLike = str | os.PathLike[str]


@checks_arguments
def merge_shards(out: PathLike, *, overwrite: bool = False) -> Report:
    """Write the index of a pack whose shards several machines wrote, and publish the pack.

    Parameters
    ----------
    out
        As passed to each ``convert_images(source, out, shards="1GB", only_shards="K/N")``.
    overwrite
        Replace an existing pack.

    Returns
    -------
    Report
        Rows, bytes and skipped inputs of the pack, which is byte-identical to that of a single conversion.

    Raises
    ------
    UsageError
        No shards exist, or some are missing; the message names the first.
    PackerError

    Examples
    --------
    >>> from packer import convert_images, merge_shards
    >>> for part in ("1/2", "2/2"):
    ...     made = convert_images("photos", "parts", size=32, shards=6, only_shards=part)
    >>> merge_shards("parts").rows
    24
    """
    run = Conversion(out, "shards", workers=1, overwrite=overwrite)
    return run.report(Report.of(list_shards(run.out, overwrite=overwrite)))


@checks_arguments
def merge_packs(
    packs: Sequence[PathLike],
    out: PathLike,
    *,
    duplicates: str = "error",
    shuffle: bool = True,
    seed: int = 0,
    workers: int | None = None,
    overwrite: bool = False,
    progress: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Report:
    """Merge packs with equal fields into a new pack.

    Parameters
    ----------
    packs
        Paths. Splits of equal name are merged; the classes are those of all packs, sorted, and labels are
        renumbered. Packs of tables must map their columns alike, as with `like`; the mapping of the first,
        with its statistics, is recorded.
    duplicates
        Rows whose key (the path of the image below its source) an earlier pack has, whatever the rows hold:
        "error" refuses them, "skip" leaves them out, "keep" stores both. Samples and tables have no such
        keys; there, packs or shards of equal content and tables made from the same file are duplicates.
    shuffle, seed
        Shuffle the rows (of each split) with this seed; without shuffle rows follow pack after pack.
    out, overwrite, workers, progress, on_progress
        As in convert_images.

    Raises
    ------
    UsageError
        The packs cannot be merged.
    FormatError, SpaceError, PackerError

    Examples
    --------
    >>> from packer import merge_packs
    >>> merge_packs(["train.h5", "train.h5"], "twice.h5", duplicates="keep").rows
    48
    """
    run = Conversion(
        out, "rows", workers=workers, overwrite=overwrite, progress=progress, on_progress=on_progress
    )
    check_local(out, *packs)
    opened = [open_pack(path) for path in packs]
    if len(opened) < 2:
        raise UsageError("merge: needs two or more packs. Pass their paths.")
    rows, storing = _opened(opened, run.out)
    owners = split_owners(rows.pack)
    how: dict[str, Any] = {"merge": len(opened), "seed": seed if shuffle else None, **storing.options()}
    left: list[int] = []
    if choice("duplicates", duplicates, DUPLICATES) != "keep":
        left = _known_rows(opened, rows.pack, duplicates)
    if left:
        owners = owners.only(~np.isin(np.arange(rows.count), left))
        how["duplicates"] = "skip"
    order = arrange(owners, shuffle=shuffle, seed=seed)
    report = _write(run, rows, _task(rows, storing, order, how, how["seed"]), storing.notes(opened[0]))
    return replace(report, notes=(*report.notes, *left_out(len(left), "an earlier pack")))


def _known_rows(packs: Sequence[Pack], together: Pack, duplicates: str) -> list[int]:
    """Return the rows, numbered over all packs in order, that an earlier pack already has.

    Raises UsageError for the first duplicate unless duplicates are skipped.
    """
    firsts = np.cumsum([0, *(pack.rows for pack in packs)])
    if are_named(packs):
        repeated = duplicate_rows(packs, together)
        if len(repeated) and duplicates == "error":
            number = int(np.searchsorted(firsts, repeated[0], "right")) - 1
            row = int(repeated[0] - firsts[number])
            key = packs[number].keys(row, row + 1)[0]
            refuse(
                iter(
                    [f"{packs[number].path}: its row {row:,} has the key {key}, which is in an earlier pack"]
                )
            )
        return [int(row) for row in repeated]
    known = duplicate_parts(packs)
    if duplicates == "error":
        refuse(sentence for _, _, sentence in known)
    return [int(row) for number, rows, _ in known for row in firsts[number] + np.arange(*rows)]


@checks_arguments
def split_pack(
    path: PathLike,
    shares: str | Mapping[str, Part] | Split,
    *,
    out: PathLike | None = None,
    seed: int = 0,
    workers: int | None = None,
    overwrite: bool = False,
    progress: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> dict[str, Report]:
    """Split the rows of a pack into new packs, with equal shares of each class.

    A pack that has splits is divided split by split, and each new pack has the same splits.

    Parameters
    ----------
    shares
        "train=0.9,val=0.1", or a mapping; names must differ from the pack's splits.
    out
        A folder; default: that of the pack. New packs are named like the pack, with the name before the
        suffix: photos.train.h5.
    seed
        Seed of the draw. Rows keep their order.
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
    check_local(path, *(() if out is None else (out,)))
    check_order(path, shares, Call("split_pack", (str(shares), os.fspath(path))))
    opened = [open_pack(path)]
    stem, dot, ending = os.path.basename(os.fspath(path).rstrip("/")).rpartition(".")
    stem, ending = (stem, dot + ending) if dot else (ending, "")
    folder = os.path.dirname(os.fspath(path).rstrip("/")) if out is None else os.fspath(out)
    rows, _ = _opened(opened, os.fspath(path))
    split = shares if isinstance(shares, Split) else Split(shares)
    split.check_no_columns("packs")
    splits = split_owners(rows.pack)
    if taken := sorted(set(split.parts) & set(splits.names)):
        raise UsageError(
            f"split {taken[0]}: {os.fspath(path)} has a split of this name already; new packs get rows of"
            f' every split ({", ".join(splits.names)}) and need other names. Load it with split="{taken[0]}",'
            " or pass other names."
        )
    parts = assign(split, rows, seed)
    for name in parts.names:
        if name in ("", ".", "..") or "/" in name or os.sep in name or not name.isprintable():
            raise UsageError(
                f"split {name!r}: cannot be part of a file name; letters, digits and signs other than / are"
                " allowed. Pass for example train=0.9,val=0.1."
            )
    begin = partial(
        Conversion,
        noun="rows",
        workers=workers,
        overwrite=overwrite,
        progress=progress,
        on_progress=on_progress,
    )
    reports, unfinished = {}, {}
    for number, name in enumerate(parts.names):
        to = os.path.join(folder, f"{stem}.{os.fsdecode(on_disk(name))}{ending}")
        order = arrange(splits.only(parts.numbers == number), shuffle=False, seed=seed)
        storing, record = RowStorage.kept(opened[0]), split.record(seed)
        how = {"part": {"name": name, "shares": record["split"], "seed": seed}, **storing.options()}
        task = _task(rows, storing, order, how, rows.pack.header.seed)
        # Keep packs that an interrupted run has finished.
        if not overwrite and (finished := _finished(to, task)) is not None:
            reports[name] = begin(to).report(replace(finished, skipped=()), already=True)
        else:
            check_output(to, overwrite=overwrite)
            unfinished[name] = to, task
    reports |= {name: _write(begin(to), rows, task) for name, (to, task) in unfinished.items()}
    return {name: reports[name] for name in parts.names}


@checks_arguments
def append_images(
    path: PathLike,
    source: PathLike,
    *,
    labels: PathLike | None = None,
    pairs: Pairs | None = None,
    duplicates: str = "error",
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
        A pack of shards; it stays unchanged until the new shards are complete. The new images' classes must
        be among its classes.
    duplicates
        Images whose key (the path below `source`) the pack already has, whatever they show: "error" refuses
        them, "skip" leaves them out, "keep" adds them.
    source, labels, pairs, workers, on_error, on_plan, progress, on_progress
        As in convert_images.

    Notes
    -----
    The work of an interrupted append is kept in ``<path>.adding.packing`` and reused by the next append of
    the same images.

    Returns
    -------
    Report
        `rows` counts the added images.

    Raises
    ------
    UsageError
        The pack is a single file, has other classes, or does not record its options.
    SourceError, SpaceError, PackerError
    """
    run = Conversion(
        path, "images", workers=workers, on_error=on_error, progress=progress, on_progress=on_progress
    )
    choice("duplicates", duplicates, DUPLICATES)
    name = run.out
    check_local(path)
    check_order(path, source, Call("append_images", (os.fspath(source), name)))
    take_back(name)
    pack = open_pack(path)
    if is_table(pack):
        raise UsageError(f"{name}: was made from a table; append_images adds images. Use append_table.")
    check_growable(pack, "append_images", [os.fspath(source)])
    record = pack.parts[0].header.provenance.get("options", {})
    if (
        not {"size", "fit", "channels", "max_pixels", "store", "format"} <= set(record)
        or record.get("repack", {}).get("size") is not None
    ):
        raise UsageError(
            f"{name}: does not record its options. Convert the images to a new pack, then run packer merge on"
            " both."
        )
    options = ImageOptions.of_record(record, labels, pairs)
    if options.split is not None:
        options.split.check_growable(name)
    with ExitStack() as stack:
        task, plan = plan_conversion(
            stack, os.fspath(source), options, name, existing=pack, skip=run.running.skip
        )
        check_alike(task, pack)
        check_space(name, plan.bytes)
        if on_plan is not None:
            on_plan(plan)
        assert task.plan is not None
        how = {**task.plan, "pack": pack.seal.hex(), "duplicates": duplicates}
        with staging_folder(run, adding(name), how) as place:
            run.bar.start(plan.rows)
            left = [] if duplicates == "keep" else duplicate_samples(task, pack).tolist()
            if left and duplicates == "error":
                refuse(iter([f"{task.maker.name(left[0])}: its key is in {pack.path} already"]))
            notes = [*plan.notes, *left_out(len(left), name)]
            if len(left) == plan.rows:
                return run.report(Report(cleared=place.cleared), notes)
            written = append_shards(_without(task, left), pack, place, run.running)
    return run.report(written, notes)


def _without(task: ConversionTask, left: Sequence[int]) -> ConversionTask:
    """Return a task without some of its samples; its provenance records that duplicates were skipped."""
    if not left:
        return task
    samples = task.order.samples[:]
    kept = ~np.isin(samples, left)
    before = np.cumsum([0, *kept])
    splits = {name: (int(before[a]), int(before[b])) for name, (a, b) in task.order.splits.items()}
    recorded = {**task.provenance, "options": {**task.provenance["options"], "duplicates": "skip"}}
    return replace(task, order=SampleOrder(samples[kept], splits), provenance=recorded)


@checks_arguments
def repack(
    path: PathLike,
    out: PathLike,
    *,
    size: int | str | tuple[int, int] | None = None,
    fit: str = "crop",
    format: str | None = None,
    store: str | None = None,
    quality: int | None = None,
    shards: int | str | None = None,
    shuffle: bool = False,
    seed: int = 0,
    workers: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Report:
    """Write a pack again: smaller images, another store, format or number of files.

    Parameters
    ----------
    size
        Images can only shrink; masks, boxes and keypoints are resized too. Images of different sizes accept
        "max=256" and "min=256" too.
    store, quality
        Default: as in the pack; "raw" also removes compression. JPEG rows are copied unchanged unless size,
        store or quality change. Images of different sizes are JPEG files.
    shuffle, seed
        Shuffle the rows (of each split) with this seed; without shuffle they keep their order.
    out, fit, format, shards, workers, overwrite, resume, progress, on_progress
        As in convert_images. For packs of tables, size, quality and store="jpeg" are refused.

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
    run = Conversion(
        out,
        "rows",
        workers=workers,
        overwrite=overwrite,
        resume=resume,
        progress=progress,
        on_progress=on_progress,
    )
    check_local(path, out)
    check_order(path, out, Call("repack", (run.out, os.fspath(path))))
    opened = _open_sealed_or_edited(path)
    choice("fit", fit, FITS)
    table = is_table(opened)
    if table:
        about_images = {"size": size, "store": store if store == "jpeg" else None, "quality": quality}
        _refuse_image_options(opened, about_images)
    rule, spec = (None, None) if table else _new_size(opened, size, fit, store)
    rows, storing = _opened(
        [opened],
        run.out,
        spec=spec,
        rule=rule,
        format=format,
        store=store,
        quality=None if quality is None else whole("quality", quality),
        shards=shards,
        layout=format is None,
    )
    order = arrange(split_owners(rows.pack), shuffle=shuffle, seed=seed)
    how: dict[str, Any] = {"shuffle": shuffle, "seed": seed if shuffle else None}
    if not table:
        how = {"size": None if spec is None or rule is None else rule.option, "fit": fit} | (
            how if shuffle else {}
        )
    if storing.shard_bytes is not None:
        storing = storing.with_rows(rows.row_bytes if table else estimate(rows, storing, order))
    record = {"repack": how, **storing.options()}
    notes = [] if store is not None else storing.notes(opened)
    task = _task(rows, storing, order, record, seed if shuffle else opened.header.seed)
    return _write(run, rows, task, notes)


def _refuse_image_options(table: Pack, options: Mapping[str, Any]) -> None:
    """Raise UsageError for an option about images that is given for a pack of a table."""
    for name, given in options.items():
        if given is not None:
            raise UsageError(
                f"{name} {given}: is about images; {table.path} was made from a table. Leave it out."
            )


def _open_sealed_or_edited(path: PathLike) -> Pack:
    """Open a pack, also an unsealed pack whose rows another program has moved."""
    try:
        opened = open_pack(path)
        opened.confirm()
        return opened
    except FormatError as error:
        if error.part != "unsealed":
            raise
        opened = open_unsealed(os.fspath(path))
        for part in opened.parts:
            check_values(part)
        return opened


def _new_size(
    pack: Pack, size: int | str | tuple[int, int] | None, fit: str, store: str | None
) -> tuple[RowSize | None, PixelSpec | None]:
    """Return the size rule of the new images and the options of their pixels; None if images keep their size.

    Raises UsageError for a pack without images of 8 or 16 bits.
    """
    if size is None and store != "jpeg":
        return None, None
    option = "store jpeg" if size is None else f"size {size}"
    image = next((f.loaded for f in pack.fields if f.name == "image"), None)
    if image is None or not (image.ragged or image.pixels):
        present = (
            "no field 'image'"
            if image is None
            else f"images {np.dtype(image.dtype).name}{list(image.shape or ())}"
        )
        raise UsageError(
            f"{option}: is about images of 8 or 16 bits; {pack.path} has {present}. Leave it out."
        )
    if size is None:
        return None, None
    rule = RowSize.parse(size)
    if rule.ragged:
        check_whole(pack, image, rule)
    channels, dtype = pixel_options(image)
    spec = PixelSpec((rule.height, rule.width), fit, channels, dtype=dtype)
    return rule, None if image.shape is not None and image.shape[:2] == spec.size else spec


def _task(
    rows: PackRows, storing: RowStorage, order: SampleOrder, given: Mapping[str, Any], seed: int | None
) -> ConversionTask:
    """Return the task of writing a new pack. given: options given for it; seed: seed of its order."""
    pack, table = rows.pack, is_table(rows.pack)
    first, *others = (part.header.provenance.get("options", {}) for part in pack.parts)
    # The new pack keeps the options that describe rows, not those of storage.
    stored = ["format", "store", "quality", "shard_rows", "shard_bytes"]
    if any(other.get(NORMALIZE) != first.get(NORMALIZE) for other in others):
        stored.append(NORMALIZE)  # the packs are normalised differently: use mean and std of the new pack
    seals = digest(part.seal for part in pack.parts).hex()
    source: dict[str, Any] = {"rows": pack.rows, "digest of the packs": seals}
    files = dict.fromkeys(file for part in pack.parts for file in table_files(part.header))
    if files and "part" not in given:  # split_pack: a part has only a share of the files' rows
        source["files"] = [list(file) for file in files]
    if any(f.counts for f in pack.fields):
        source[FILES] = to_json(counted_files(part.header for part in pack.parts))
    kept = {name: value for name, value in first.items() if name not in stored}
    skipped = {(s["key"], s["reason"]): dict(s) for s in pack.header.skipped}  # parts of a pack repeat them
    newest = _newest(pack)
    return ConversionTask(
        pack.path,
        rows,
        order,
        storing,
        provenance({**kept, **given}, source, storing, *([] if table else rows.versions(storing.versions()))),
        {} if newest is None else {"newest file": str(newest)},
        pack.header.classes,
        seed,
        pack.header.table,
        keyed=not table and any(f.name == "key" for f in pack.fields),
        skipped=tuple(skipped.values()),
        newest=newest,
    )


def _newest(pack: Pack) -> InputFile | None:
    """Return the newest file of a pack; None for packs in object stores, whose seals are compared."""
    if any("://" in part.path for part in pack.parts):
        return None
    extents = ((part, e) for part in pack.parts for held in part.header.extents.values() for e in held)
    names = sorted({part.file(extent) for part, extent in extents})
    return newest_file(names, np.array([os.stat(name).st_mtime_ns for name in names], np.int64))


def _opened(
    opened: Sequence[Pack],
    out: str,
    *,
    spec: PixelSpec | None = None,
    rule: RowSize | None = None,
    quality: int | None = None,
    **given: Any,
) -> tuple[PackRows, RowStorage]:
    """Return the rows of several packs joined, and the storage of a new pack at `out`.

    spec, rule: the new size; quality, given: as for RowStorage.like.
    """
    if is_table(opened[0]):
        pack, storing = tables_together(opened), RowStorage.like(opened[0], out, **given)
        return PackRows(pack, verify=all(part.sealed for part in pack.parts)), storing
    pack, numbers = together(opened)
    storing = RowStorage.like(opened[0], out, quality=quality, **given)
    image = next((f for f in pack.fields if f.name == "image"), None)
    passes = storing.store == "jpeg" and quality in (None, ((image and image.codec) or {}).get("quality"))
    resizer = None
    if image is not None and image.own_size is not None and (spec is None or (rule and rule.ragged)):
        resizer, spec = _resizer(image, rule, storing, quality, pack), None
    return PackRows(pack, numbers, spec, jpeg=passes, whole=resizer), storing


def _resizer(
    image: Field, rule: RowSize | None, storing: RowStorage, quality: int | None, pack: Pack
) -> WholePictures | None:
    """Return the function that resizes or encodes images of different sizes; None to copy them.

    Raises UsageError if they cannot be stored this way.
    """
    encode_again = quality is not None and rule is None
    if rule is None and storing.store == "jpeg" and not encode_again:
        return None
    rule = rule or RowSize.of_option(image.about.get("size", "keep"))
    channels, _ = pixel_options(image) if "color" in image.about else ("gray", "")
    check_stored(rule, storing.store, channels)
    spec = PixelSpec((rule.height, rule.width), "stretch", channels)
    masks = any("sampling" in f.about for f in pack.fields)
    return WholePictures(rule, spec, storing.quality, sized=masks, encode_again=encode_again)


def _write(run: Conversion, rows: PackRows, task: ConversionTask, notes: Sequence[str] = ()) -> Report:
    """Write a new pack from rows of packs, unless it exists already and resume is set."""
    run.check_paths(None)
    if rows.remade:
        row_bytes = 2 * estimate(rows, task.storing, task.order)
    else:
        row_bytes = min(rows.row_bytes, 2 * rows.pack.nbytes / rows.pack.rows)
    report = run.pack(task, round(row_bytes * len(task.order.samples)), notes)
    return replace(report, skipped=())  # the packs' conversions have reported these


def _finished(out: str, task: ConversionTask) -> Report | None:
    """Return the report of the pack at `out` if it is that of the task; None if it is missing or no pack.

    Raises UsageError if it is another pack, or older than its input.
    """
    try:
        rows = len(task.order.samples) + len(task.skipped)
        return already(out, task.provenance, rows, task.newest, overwrite=False)
    except FormatError:
        return None  # no pack
