"""Packs from packs: merge, split, repack; each runs, and can be resumed, like a conversion."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from packer.arguments import one_of, whole
from packer.convert.conversion_run import Conversion
from packer.convert.conversion_task import ConversionTask, Report, provenance
from packer.convert.duplicate_keys import DUPLICATES, known_rows, leave_out, note_left_out, table_files
from packer.convert.pack_rows import PackRows, check_whole, split_owners
from packer.convert.recorded_shards import list_shards
from packer.convert.reference_pack import pixel_options
from packer.convert.row_storage import RowStorage, estimate
from packer.convert.sample_order import SampleOrder, arrange
from packer.convert.split_assignment import assign
from packer.convert.splits import Part, Split
from packer.convert.whole_pictures import WholePictures, check_stored
from packer.declared_types import checks_arguments
from packer.errors import UsageError
from packer.format.checksums import digest
from packer.format.fields import Field
from packer.format.file_io import InputFile, newest_file
from packer.format.header_forms import NORMALIZE
from packer.given_values import call_text
from packer.packs.file_rows import FILES, SEQUENCE_ROW, counted_files, to_json
from packer.packs.joined_pack import concatenate_packs
from packer.packs.pack import Pack
from packer.packs.pack_opening import check_order, is_pack, open_pack
from packer.path_text import on_disk
from packer.pixels.decode_resize import PixelSpec
from packer.pixels.row_placement import FITS
from packer.pixels.row_size import RowSize
from packer.remote.urls import check_local

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
    return run.report(Report.from_header(list_shards(run.out, overwrite=overwrite)))


@checks_arguments
def merge_packs(
    packs: Sequence[PathLike],
    out: PathLike,
    *,
    duplicates: str = "error",
    shuffle: bool | None = None,
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
        Shuffle the rows (of each split) with this seed: the default, but for packs of sequences; without
        shuffle rows follow pack after pack.
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
    one_of("duplicates", duplicates, DUPLICATES)
    opened = [open_pack(path) for path in packs]
    if len(opened) < 2:
        raise UsageError("merge: needs two or more packs. Pass their paths.")
    storing = RowStorage.like(opened[0], run.out)
    rows = _read_rows(opened, storing)
    shuffle = _is_shuffled(rows, shuffle, default=True)
    given_seed = seed if shuffle else None
    owners = split_owners(rows.pack)
    known = leave_out(duplicates, lambda: known_rows(opened, rows.pack))
    owners = owners.only(~np.isin(np.arange(rows.count), known))
    # None replaces what the first pack records: an interrupted merge of other rows must not be resumed.
    skipped = {"duplicates": "skip" if len(known) else None}
    how = {"merge": len(opened), "seed": given_seed, **storing.options(), **skipped}
    order = arrange(owners, shuffle=shuffle, seed=seed)
    notes = [*storing.notes(opened[0]), *note_left_out(len(known), "an earlier pack")]
    return _write(run, _plan(rows, storing, order, how, given_seed), notes)


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
    check_order(path, shares, call_text("split_pack", str(shares), os.fspath(path)))
    pack, given = open_pack(path), os.fspath(path).rstrip("/")
    split = shares if isinstance(shares, Split) else Split(shares)
    split.check_no_columns("packs")
    storing = RowStorage.kept(pack)
    rows = _read_rows([pack], storing)
    splits = split_owners(rows.pack)
    if taken := sorted(set(split.parts) & set(splits.names)):
        raise UsageError(
            f"split {taken[0]}: {os.fspath(path)} has a split of this name already; new packs get rows of"
            f" every split ({', '.join(splits.names)}) and need other names. Load its splits as they are,"
            " or pass other names."
        )
    owners, record = assign(split, rows, seed), split.record(seed)
    stem, dot, ending = os.path.basename(given).rpartition(".")
    stem, ending = (stem, dot + ending) if dot else (ending, "")
    folder = os.path.dirname(given) if out is None else os.fspath(out)
    parts = {}
    for number, name in enumerate(owners.names):
        if name in ("", ".", "..") or "/" in name or os.sep in name or not name.isprintable():
            raise UsageError(
                f"split {name!r}: cannot be part of a file name; letters, digits and signs other than / are"
                " allowed. Pass for example train=0.9,val=0.1."
            )
        to = os.path.join(folder, f"{stem}.{os.fsdecode(on_disk(name))}{ending}")
        run = Conversion(
            to,
            "rows",
            workers=workers,
            overwrite=overwrite,
            resume=not overwrite and is_pack(to),  # keep packs that an interrupted run has finished
            progress=progress,
            on_progress=on_progress,
        )
        how = {"part": {"name": name, "shares": record["split"], "seed": seed}, **storing.options()}
        order = arrange(splits.only(owners.numbers == number), shuffle=False, seed=seed)
        parts[name] = run, _plan(rows, storing, order, how, pack.header.seed)
    for run, task in parts.values():  # all names, before any pack is written
        run.check_paths(None)
        run.existing(task.provenance, len(task.order.samples) + len(task.skipped), task.newest, task)
    return {name: _write(run, task) for name, (run, task) in parts.items()}


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
    check_order(path, out, call_text("repack", run.out, os.fspath(path)))
    opened = open_pack(path)
    one_of("fit", fit, FITS)
    rule, spec = _new_size(opened, size, fit, store, quality)
    storing = RowStorage.like(
        opened,
        run.out,
        format=format,
        store=store,
        quality=None if quality is None else whole("quality", quality),
        shards=shards,
        layout=format is None,
    )
    rows = _read_rows([opened], storing, rule, spec, quality)
    shuffle = _is_shuffled(rows, shuffle, default=False)
    order = arrange(split_owners(rows.pack), shuffle=shuffle, seed=seed)
    how: dict[str, Any] = {"shuffle": shuffle, "seed": seed if shuffle else None}
    table = rows.pack.header.table is not None
    if not table:
        how = {"size": None if spec is None or rule is None else rule.option, "fit": fit} | (
            how if shuffle else {}
        )
    if storing.shard_bytes is not None:
        storing = storing.with_rows(rows.row_bytes if table else estimate(rows, storing, order))
    record = {"repack": how, **storing.options()}
    task = _plan(rows, storing, order, record, seed if shuffle else opened.header.seed)
    return _write(run, task, [] if store is not None else storing.notes(opened))


def _new_size(
    pack: Pack, size: int | str | tuple[int, int] | None, fit: str, store: str | None, quality: int | None
) -> tuple[RowSize | None, PixelSpec | None]:
    """Return the size rule of the new images and the options of their pixels; None if images keep their size.

    Raises UsageError for an option about images and a pack without images of 8 or 16 bits.
    """
    given = {"size": size, "store": "jpeg" if store == "jpeg" else None, "quality": quality}
    option = next((f"{name} {value}" for name, value in given.items() if value is not None), None)
    if option is None:
        return None, None
    if (stored := pack.header.find("image")) is None:
        raise UsageError(
            f"{option}: is about images of 8 or 16 bits; {pack.path} has no field 'image'. Leave it out."
        )
    image = stored.loaded
    if not (image.ragged or image.pixels):
        raise UsageError(
            f"{option}: is about images of 8 or 16 bits; {pack.path} has images"
            f" {np.dtype(image.dtype).name}{list(image.shape or ())}. Leave it out."
        )
    if size is None:
        return None, None
    rule = RowSize.parse(size)
    if rule.ragged:
        check_whole(pack, image, rule)
    channels, dtype = pixel_options(image)
    spec = PixelSpec((rule.height, rule.width), fit, channels, dtype=dtype)
    return rule, None if image.shape is not None and image.shape[:2] == spec.size else spec


def _is_shuffled(rows: PackRows, shuffle: bool | None, *, default: bool) -> bool:
    """Return True if rows are to be shuffled. Raises UsageError for those of sequences."""
    if SEQUENCE_ROW not in rows.pack.fields:
        return default if shuffle is None else shuffle
    if shuffle:
        raise UsageError(
            f"shuffle=True: {rows.pack.path} holds sequences, whose rows stay in order. Pass shuffle=False;"
            " Windows are shuffled when they are loaded."
        )
    return False


def _read_rows(
    packs: Sequence[Pack],
    storing: RowStorage,
    rule: RowSize | None = None,
    spec: PixelSpec | None = None,
    quality: int | None = None,
) -> PackRows:
    """Return the rows of several packs. rule, spec: the new size; quality: as given by the user."""
    pack = concatenate_packs(packs)
    image = pack.header.find("image")
    jpeg = storing.store == "jpeg" and quality in (None, ((image and image.codec) or {}).get("quality"))
    whole = None
    if image is not None and image.own_size is not None and (spec is None or (rule and rule.ragged)):
        whole, spec = _resizer(image, rule, storing, quality, pack), None
    return PackRows(pack, spec, jpeg=jpeg, whole=whole, verify=True)


def _resizer(
    image: Field, rule: RowSize | None, storing: RowStorage, quality: int | None, pack: Pack
) -> WholePictures | None:
    """Return the function that resizes or encodes images of different sizes; None to copy them.

    Raises UsageError if they cannot be stored this way.
    """
    encode_again = quality is not None and rule is None
    if rule is None and storing.store == "jpeg" and not encode_again:
        return None
    rule = rule or RowSize.from_record(image.about.get("size", "keep"))
    channels, _ = pixel_options(image) if "color" in image.about else ("gray", "")
    check_stored(rule, storing.store, channels)
    spec = PixelSpec((rule.height, rule.width), "stretch", channels)
    masks = any("sampling" in f.about for f in pack.fields)
    return WholePictures(rule, spec, storing.quality, sized=masks, encode_again=encode_again)


def _plan(
    rows: PackRows, storing: RowStorage, order: SampleOrder, given: Mapping[str, Any], seed: int | None
) -> ConversionTask:
    """Return the task of writing a new pack. given: options given for it; seed: seed of its order."""
    pack, table = rows.pack, rows.pack.header.table
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
    versions = [] if table is not None else rows.versions(storing.versions())
    skipped = {(s["key"], s["reason"]): dict(s) for s in pack.header.skipped}  # parts of a pack repeat them
    newest = _newest_file(pack)
    return ConversionTask(
        pack.path,
        rows,
        order,
        storing,
        provenance({**kept, **given}, source, storing, *versions),
        {} if newest is None else {"newest file": str(newest)},
        pack.header.classes,
        seed,
        table,
        keyed=False,
        skipped=tuple(skipped.values()),
        newest=newest,
    )


def _newest_file(pack: Pack) -> InputFile | None:
    """Return the newest file of a pack; None for packs in object stores, whose seals are compared."""
    if any("://" in part.path for part in pack.parts):
        return None
    extents = ((part, e) for part in pack.parts for held in part.header.extents.values() for e in held)
    names = sorted({part.file(extent) for part, extent in extents})
    return newest_file(names, np.array([os.stat(name).st_mtime_ns for name in names], np.int64))


def _write(run: Conversion, task: ConversionTask, notes: Sequence[str] = ()) -> Report:
    """Write a new pack from rows of packs, unless it exists already and resume is set."""
    run.check_paths(None)
    rows = task.maker
    assert isinstance(rows, PackRows)
    if rows.remade:
        row_bytes = 2 * estimate(rows, task.storing, task.order)
    else:
        row_bytes = min(rows.row_bytes, 2 * rows.pack.nbytes / rows.pack.rows)
    report = run.pack(task, round(row_bytes * len(task.order.samples)), notes)
    return replace(report, skipped=())  # the packs' conversions have reported these
