"""convert_images: convert a folder, list or archive of images to a pack."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from packer import native, units
from packer.channels import CHANNELS
from packer.convert.conversion_run import Conversion
from packer.convert.conversion_task import ConversionTask, Engine, Report, provenance
from packer.convert.copied_images import notes_on_copies
from packer.convert.engines import published
from packer.convert.image_options import ImageOptions, Pairs, PathLike
from packer.convert.image_rows import ImageRows
from packer.convert.plan_contents import PlanContents
from packer.convert.reference_pack import Classes, ReferencePack, parse_classes
from packer.convert.row_storage import RowStorage, estimate
from packer.convert.sample_order import SampleOrder, arrange
from packer.convert.splits import Split, check_groups, group_owners, names_of, note_on_groups
from packer.convert.whole_pictures import partner_versions
from packer.declared_types import checks_arguments
from packer.errors import ImageError, UsageError
from packer.format.pack import Pack
from packer.inputs.checks.examine import examine
from packer.inputs.coco_annotations import read_labels
from packer.inputs.findings import Findings
from packer.inputs.image_pairs import Pair, Soft, folder_of, open_pair, partners_among
from packer.inputs.image_sources import Source, check_bytes, open_source
from packer.inputs.image_targets import ImageTargets
from packer.inputs.label_options import ALL, Labels
from packer.inputs.listing import Finding, Listing
from packer.inputs.mask_values import Values
from packer.inputs.opened_source import ImageSource, SourceOptions
from packer.inputs.pair_names import PairPlace
from packer.inputs.webdataset_tars import is_part
from packer.pixels.decode_resize import MAX_PIXELS, codec_builds, decoder_versions
from packer.pixels.exact_values import count_bands
from packer.pixels.image_decoder import without_pillow_warnings
from packer.sentence import Option, Sentence

_TRIED = 16  # images tried until a readable one tells the number of bands
_MANY_TIMES = 4  # size of the pack relative to its files above which a note advises JPEG rows
_LARGE = 64 << 20  # bytes of a pack below which there is no such note


@dataclass(frozen=True)
class ConversionPlan:
    """The plan of a conversion, passed to ``on_plan``.

    rows: number of images; shape: (H, W, C) of each, None if sizes differ; sizes: the rule of the sizes, in
    words; bytes: estimated size of the pack; classes: names of the classes, or None; splits: name -> rows;
    notes: sentences about the source for the user; contents: with dry_run, what is packed.
    """

    rows: int
    shape: tuple[int, int, int] | None
    sizes: str
    bytes: int
    classes: tuple[str, ...] | None
    splits: Mapping[str, int]
    notes: tuple[str, ...]
    contents: PlanContents = field(default_factory=PlanContents, repr=False)


@checks_arguments
@published
def convert_images(
    source: Source,
    out: str | os.PathLike[str],
    *,
    size: int | str | tuple[int, int] | None = None,
    fit: str | None = None,
    channels: str | int | None = None,
    dtype: str | None = None,
    icc: str | None = None,
    format: str | None = None,
    store: str | None = None,
    quality: int | None = None,
    labels: PathLike | Labels | None = None,
    classes: Classes | None = None,
    like: PathLike | None = None,
    pairs: Pairs | None = None,
    mask_values: Values | Mapping[str, Values] | None = None,
    split: str | Mapping[str, float | str] | Split | None = None,
    shuffle: bool = True,
    seed: int = 0,
    shards: int | str | None = None,
    workers: int | None = None,
    on_error: str = "stop",
    max_pixels: int = MAX_PIXELS,
    overwrite: bool = False,
    resume: bool = False,
    dry_run: bool = False,
    progress: bool = False,
    on_plan: Callable[[ConversionPlan], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
    engine: str | Executor | Engine | None = None,
    only_shards: str | None = None,
) -> Report:
    """Pack images into one HDF5 file, a directory of .npy files, or a directory of such shards.

    Parameters
    ----------
    source
        A folder with one sub-folder per class, a folder of images, a text file that lists paths, or an
        archive of such a folder, as .tar or .zip (``photos.tar/train`` names a folder in it). Folders called
        train, val, valid, validation, dev, eval and test (also Training, TEST ...) are splits, each in a form
        above. Or WebDataset tars, or Parquet files of images in Hugging Face's layout (each: a folder, a
        sequence of paths, or ``"{000000..000009}.tar"``), or a folder of COCO, YOLO or
        Pascal VOC annotations, or a YOLO dataset's data.yaml.
    out, format
        A path that ends in .h5, .hdf5, .hdf or .he5 becomes one HDF5 file, another path a directory; format
        "h5" or "npy" overrides that. Suffixes of other files, such as .zip, are refused without a format.
    size, fit
        Side, "HxW" or (H, W) in pixels, default 256; a note advises another size if this one enlarges images,
        turns the shape of most, or is no power of two (training usually crops larger rows). Images of
        different sizes: "max=512" limits the longest side, "min=256" the shortest side; they keep their
        aspect ratio, the other side is rounded down, and they are never enlarged; "keep" stores the original
        size. With store="jpeg", JPEG files that need not shrink keep their bytes. fit, for rows of one size:
        "crop" (resize the shortest side, then centre crop; the default), "pad" or "stretch".
    channels
        "rgb" (the default), "gray" or "rgba". Or the number of bands of every file, which are stored
        unchanged: TIFF files of bands, ``.npy`` arrays [h, w, C] (in folders and lists; accepted only then),
        or any image; "auto": the number of the first image.
    dtype
        "uint8" (the default): the high byte of 16-bit images is stored. "uint16": values of 16-bit images are
        stored unchanged, values of 8-bit images times 257, and TIFF files of 9 to 15 bits are scaled, so that
        white is 65,535 in all of them; bands of another type than dtype are refused. Needs raw rows; rgb,
        gray or a number of bands.
    icc
        "ignore" (the default): color profiles (ICC) of the files are ignored, and a note counts images with
        another profile than sRGB. "srgb": the colors of such images are converted to sRGB, by LittleCMS; for
        rgb, gray and rgba of uint8.
    store, quality
        "raw" pixels, the default; "jpeg": each row is a JPEG file of that quality (90), decoded at loading;
        or blocks of rows compressed losslessly by "gzip", "zstd" or another codec (HDF5 only; ``--compress``
        in `packer convert --help` lists all).
    labels
        A file of image names and labels, such as a CSV (``Labels`` describes the formats), or
        ``Labels("labels.csv", column="species", separator="|")`` to choose columns of labels, boxes and
        keypoints, and how they are read. Default: the folders are the classes.
    classes, like
        The classes, in the order of their numbers: names, a file with one per line, or "a,b,c"; other classes
        are errors (or skipped). like is a pack whose classes are used, and whose size, fit, channels, dtype,
        store, quality and shards are the defaults (not its shards if out is a single HDF5 file); its mean and
        std are recorded, and ``augment="Normalize()"`` uses them for the new pack.
    pairs
        Field -> folder of masks: cat/1.png belongs to image cat/1.jpg and is placed like it, with nearest
        sampling; it may have another size, but must show the same frame. ``Soft("mattes/")``: continuous
        values such as mattes or depth, resampled linearly, here and by ``augment=``.
    mask_values
        The values of the masks in the order of their classes: "0,255" stores 0 and 1; other values are
        errors. Colors: "#000000,#ff0000". For one of several pairs: ``{"mask": "0,255"}``.
    split, shuffle, seed
        Name -> share ("train=0.9,val=0.1"): random splits drawn from the seed, with equal shares of each
        class, stored one after the other. ``Split(...)`` offers more: numbers of rows, a column of labels,
        groups such as patients. shuffle stores the rows (of each split) in a random order; without it the
        pack of class folders is sorted by class.
    shards
        Start a new file after this many rows (100_000), or about this many bytes ("2GB", "512MiB"); out is a
        directory.
    workers
        Processes (threads where forking is not safe); default: one per core. The result does not depend on
        it.
    on_error, max_pixels
        "stop" at the first input that cannot be packed, or "skip" such inputs and list them. Images of more
        than max_pixels are refused before decoding.
    overwrite, resume
        Replace an existing pack. Continue only an interrupted conversion of the same inputs and options:
        unfinished work of another is refused instead of discarded, and a complete pack of the same is left as
        it is.
    dry_run
        Write nothing: list and check the inputs, call on_plan with the contents of the pack that would be
        made, and return a report of its rows. It fails where the conversion would fail before it reads all
        images.
    progress, on_plan, on_progress
        Show a bar on stderr, or a line a minute if stderr is no terminal. on_plan is called once, before
        anything is written; on_progress now and then, with the images done so far.
    engine
        Processes that write the shards: "local", of this machine (default); "ray", of a Ray cluster:
        "ray:10.0.0.1:6379" (without an address RAY_ADDRESS, else this machine's cores); or a
        ``concurrent.futures.Executor`` of processes on any machine. Each task writes a part of the shards.
        All machines read the images and write the shards under the same paths: on a shared file system, or in
        an object store. The bytes are equal to those of "local".
    only_shards
        "2/8": write only the 2nd, 10th, 18th ... shard, for machines without contact to each other, as in a
        SLURM array; after all eight, ``merge_shards(out)`` writes the index, as would the same conversion
        without only_shards.

    Returns
    -------
    Report
        Rows, seconds, bytes, skipped inputs and notes.

    Raises
    ------
    UsageError, SourceError, SpaceError, PackerError

    Notes
    -----
    Equal inputs and options give byte-identical packs, interrupted or not. `out` exists only once the pack is
    complete; the work of an interrupted conversion is kept in ``<out>.packing`` and reused by the next
    conversion of the same inputs and options.

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
        engine=engine if callable(engine) else None,
    )
    match = None if like is None else ReferencePack.of(like)
    options = ImageOptions.of(
        match,
        size=size,
        fit=fit,
        channels=channels,
        dtype=dtype,
        icc=icc,
        max_pixels=max_pixels,
        labels=labels,
        split=split,
        seed=seed,
        pairs=pairs,
        mask_values=mask_values,
        shuffle=shuffle,
        storing=RowStorage.like(
            match and match.pack,
            run.out,
            format=format,
            store=store,
            quality=quality,
            shards=shards,
        ),
    )
    run.check_shards(options.storing)
    run.check_paths(source)
    with ExitStack() as stack:
        names = None if classes is None else parse_classes(classes)
        task, plan = plan_conversion(
            stack,
            source,
            options,
            out=run.out,
            classes=names,
            like=match,
            skip=run.running.skip,
            dry_run=dry_run,
        )
        announce: Callable[[], None] = (lambda: None) if on_plan is None else partial(on_plan, plan)
        if dry_run:
            announce()
            _refuse(plan.contents.findings)
            return Report(run.out, plan.rows, skipped=tuple(plan.contents.skipped), notes=plan.notes)
        report = run.pack(task, plan.bytes * (2 if task.gathered else 1), plan.notes, then=announce)
        rows = report.rows if only_shards is None else len(task.order.samples)
        return replace(report, notes=(*report.notes, *notes_on_copies(task, report, rows)))


@without_pillow_warnings()
def plan_conversion(
    stack: ExitStack,
    source: Source,
    options: ImageOptions,
    *,
    out: str,
    existing: Pack | None = None,
    classes: Sequence[str] | None = None,
    like: ReferencePack | None = None,
    skip: bool = False,
    dry_run: bool = False,
) -> tuple[ConversionTask, ConversionPlan]:
    """Open the inputs and plan their conversion.

    stack: closes the opened inputs. out: path of the pack. existing: the pack that these options are from,
    whose classes and fields the new rows must have. like: reference pack, whose classes and labels they must
    have. skip: leave out unusable labels and pairs. dry_run: describe the contents, and leave the errors
    among their findings to the caller. Raises UsageError, SourceError.
    """
    asked, model = options, existing if like is None else like.pack
    label = None if model is None else next((f for f in model.fields if f.name == "label"), None)
    if label is not None and (label.dtype, label.shape) == ("<f4", ()):
        options = options.read_as("float")
    if classes is None and model is not None:
        classes = model.header.classes
    spool = os.path.dirname(os.path.abspath(out))
    opened = stack.enter_context(_open(source, options, spool, classes or (), Findings(skip)))
    if options.channels == "auto":
        options = replace(options, channels=_bands_of_first(opened, options.max_pixels))
    if like is not None:
        options = replace(options, normalize=like.normalize(options.channels, options.dtype))
    targets = _targets(opened, options, asked, classes, numbered=model is None)
    if model is not None:
        targets.column = None  # labels are those of a pack, whose labels were examined
    if like is not None:
        like.check(next((f for f in targets.fields if f.name == "label"), None), opened.name)
    options = replace(options, labels=targets.read_as or options.labels)
    if existing is not None:
        targets.named_as_in(existing.fields)
    partners = _partners(stack, opened, options, spool, existing)
    listing = Listing(
        opened,
        targets,
        partners,
        accepted=classes or (),
        labels_given=options.labels.file is not None or options.labels.unwanted,
        spec=options.spec,
        sized=model is None and not options.size.ragged,
    )
    found = examine(listing)
    if not dry_run:
        _refuse(found)
    maker = ImageRows(opened, options, targets, partners)
    order = _order(opened, targets, options)
    row_bytes = estimate(maker, options.storing, order)
    options = replace(options, storing=options.storing.with_rows(row_bytes))
    recorded, newest = asked if existing is not None else options, maker.newest()
    versions = decoder_versions(), codec_builds(), partner_versions(maker.fields)
    task = ConversionTask(
        opened.name,
        maker,
        order,
        recorded.storing,
        provenance(recorded.record(), maker.fingerprint(), recorded.storing, *versions),
        {"newest file": list(map(str, newest)), "digest of the files' times": maker.times()},
        None if targets.classes is None else tuple(targets.classes),
        recorded.seed if recorded.shuffle else None,
        skipped=tuple(opened.findings.skipped),
        newest=max(newest, key=lambda file: file.time),
    )
    plan = ConversionPlan(
        rows=len(order.samples),
        shape=None if options.size.ragged else options.spec.shape,
        sizes=options.size.words,
        bytes=round(len(order.samples) * row_bytes) + (1 << 16),
        classes=task.classes,
        splits={name: b - a for name, (a, b) in order.splits.items()},
        notes=tuple(_notes(listing, found, options, row_bytes, like)),
        contents=PlanContents.of(listing, order, task.fields, found) if dry_run else PlanContents(),
    )
    return task, plan


def _refuse(findings: Sequence[Finding]) -> None:
    """Raise UsageError for the first finding that is an error."""
    for finding in findings:
        if finding.error:
            raise UsageError(finding.sentence)


def _open(
    source: Source, options: ImageOptions, spool: str, classes: Sequence[str], findings: Findings
) -> ImageSource:
    """Open the images. spool: folder for decompressed archives."""
    columns, unlabeled = options.labels.columns("column"), options.labels.columns("unlabeled")
    opening = SourceOptions(
        labelled=options.labels.file is not None or options.labels.unwanted,
        spool_dir=spool,
        label=columns[0] if len(columns) == 1 else None,
        label_as=options.labels.as_,
        separator=options.labels.separator,
        listed=classes,
        arrays=options.channels not in CHANNELS,
        boxes=options.labels,
        partner=partners_among(source, options.pairs.values()) if options.pairs else None,
        unlabeled=unlabeled,
        parts=[folder for folder in map(str, map(folder_of, options.pairs.values())) if is_part(folder)],
        findings=findings,
    )
    return open_source(source, opening)


def _partners(
    stack: ExitStack, opened: ImageSource, options: ImageOptions, spool: str, existing: Pack | None
) -> list[Pair]:
    """Open the folders of pairs. existing: a pack whose fields they must match."""
    fields = {} if existing is None else {f.name: f for f in existing.fields}
    return [
        stack.enter_context(
            open_pair(
                name,
                str(PairPlace.of(os.fspath(folder_of(given))).at(opened.folder or opened.name)),
                opened.keys,
                spec=options.spec,
                like=fields.get(name),
                spool_dir=spool,
                images=opened.folder,
                findings=opened.findings,
                parts=opened.parts,
                soft=isinstance(given, Soft),
                mask_values=options.mask_values.get(name),
                whole=options.storing.store if options.size.ragged else None,
            )
        )
        for name, given in options.pairs.items()
    ]


def _notes(
    listing: Listing,
    found: Sequence[Finding],
    options: ImageOptions,
    row_bytes: float,
    like: ReferencePack | None,
) -> Iterator[str]:
    """Yield notes for the user, shown before the conversion begins. found: the notes of checks."""
    opened, size, store = listing.source, options.size, options.storing.store
    if like is not None:
        pixels = size.option, options.fit, options.channels, options.dtype
        yield like.note(*pixels, options.storing, listing.classes)
    yield from opened.findings.notes
    yield from (finding.sentence for finding in found if not finding.error)
    if not native.COMPILED and (size.rule != "keep" or store != "jpeg"):
        yield native.without("pixels", *(["markers"] if size.limits and store == "jpeg" else []))
    allowed = not options.spec.deep and options.channels in (
        ("rgb",) if size.rule == "keep" else ("rgb", "gray")
    )
    pack_bytes, file_bytes = row_bytes * len(opened), float(opened.sizes.mean())
    if store != "jpeg" and allowed and pack_bytes > max(_LARGE, _MANY_TIMES * file_bytes * len(opened)):
        yield Sentence(
            f"A row takes about {units.size(row_bytes)}, a file {units.size(file_bytes)}, all rows "
            f"{units.size(pack_bytes)}; {Option('store', 'jpeg')} stores rows as JPEG files, in about a tenth"
            " of that."
        )


def _bands_of_first(source: ImageSource, max_pixels: int) -> int:
    """Return the number of bands of the first readable image. Raises UsageError if none is readable."""
    source.ahead(np.arange(1))
    reason: Sentence | None = None
    for index in range(min(len(source), _TRIED)):
        try:
            check_bytes(int(source.sizes[index]), max_pixels)
            return count_bands(source.read(index), max_pixels)
        except ImageError as error:
            reason = reason or Sentence(
                f"channels auto: {source.name}/{source.keys[index]}: ", error.sentence
            )
    assert reason is not None
    raise UsageError(reason)


def _targets(
    source: ImageSource,
    options: ImageOptions,
    asked: ImageOptions,
    classes: Sequence[str] | None,
    numbered: bool,
) -> ImageTargets:
    """Return the labels of each image, from the CSV or else from the folders.

    asked: the options as given; classes: classes of the labels, in order; numbered: raise UsageError if there
    are classes but no labels.
    """
    labels, columns = options.labels, () if options.split is None else options.split.columns
    if labels.file is not None:
        targets = read_labels(labels, source.keys, source.findings, columns, source.name, source.sample_sizes)
    else:
        for option in () if options.split is None else options.split.about_columns():
            raise UsageError(
                f"{option}: is about columns of a CSV, but none is given. Pass {Option('labels', 'FILE')}."
            )
        for option in labels.about_csv():
            if option.name != "Labels.as_" and not (
                (option.name == "Labels.column" and source.label_chosen)
                or (option.name == "Labels.separator" and source.targets.column is not None)
            ):
                raise UsageError(
                    f"{option}: is about columns of a CSV, but none is given. Pass "
                    f"{Option('labels', 'FILE')}."
                )
        if source.targets.classes is not None and asked.labels.as_ == "float":
            raise UsageError(
                f"{Option('Labels.as_', asked.labels.as_)}: is about numeric labels, but "
                f"{source.name} has classes. Leave it out."
            )
        targets = source.targets
    unlabeled = labels.columns("unlabeled")
    if unlabeled and not labels.unwanted and not any("unlabeled" in f.about for f in targets.fields):
        raise UsageError(
            f"{source.name}: has no splits with labels beside {', '.join(unlabeled)}, the splits without labels."
            f" Leave out {Option('Labels.unlabeled')}, or pass {Option('Labels.unlabeled', ALL)}."
        )
    for option in labels.about_coordinates() if not targets.needs_geometry else ():
        raise UsageError(
            f"{option}: applies to boxes and keypoints, but there are none. Pass {Option('Labels.boxes')} or "
            f"{Option('Labels.keypoints')}, or leave it out."
        )
    targets.measured_in(labels.boxes_unit, source.name if labels.file is None else os.fspath(labels.file))
    targets.frames.settle(
        labels.boxes_frame, {} if targets.frames.sizes is None else source.sample_sizes(targets.located)
    )
    if classes is None:
        return targets
    if numbered and not targets.labelled:
        raise UsageError(
            f"{source.name}: has no labels for the given classes. Pass {Option('labels')}, or no"
            f" {Option('classes')}."
        )
    return targets.renumbered(classes, source.name)


def _order(source: ImageSource, targets: ImageTargets, options: ImageOptions) -> SampleOrder:
    """Return the order of the rows: splits by folders, drawn splits, or no splits."""
    count = len(source)
    if options.split is not None and source.splits:
        raise UsageError(
            f"{source.name}: its folders are splits already ({', '.join(source.splits)}). Pass no "
            f"{Option('split')}, or only one of the folders as source."
        )
    members = source.splits or {"": np.arange(count)}
    if options.split is not None:
        members = _dealt(options.split, source, targets, options.seed)
    return arrange(members, shuffle=options.shuffle, seed=options.seed)


def _dealt(
    split: Split, source: ImageSource, targets: ImageTargets, seed: int
) -> dict[str, NDArray[np.int64]]:
    """Return the images of each split. Raises UsageError, SourceError."""
    count, cells = len(source), targets.beside.get(split.column or "", [])
    if split.columns == ():
        return split.members(count, seed, strata=targets.strata)
    called, groups = np.unique(targets.beside.get(split.group or "", [""] * count), return_inverse=True)
    if split.column is None:
        _, _, shares = split.portions(count)
        strata = np.zeros(count) if targets.strata is None else targets.strata
        dealt = group_owners(groups, np.unique(strata, return_inverse=True)[1], shares, seed)
        source.findings.notes.append(note_on_groups(split, shares, dealt, dealt[groups]))
        return {name: np.flatnonzero(dealt[groups] == number) for number, name in enumerate(shares)}
    kept = np.ones(count, np.bool_)
    kept[list(source.findings.refused)] = False
    names = names_of(
        source.name, split, (cell for cell, packed in zip(cells, kept.tolist(), strict=True) if packed)
    )
    # The split of refused images does not matter: they do not become rows.
    owners = np.array([names.index(cell) if cell in names else 0 for cell in cells], np.int64)
    if split.group is not None:
        check_groups(source.name, split, names, owners[kept], groups[kept], called.__getitem__)
    return {name: np.flatnonzero(owners == number) for number, name in enumerate(names)}
