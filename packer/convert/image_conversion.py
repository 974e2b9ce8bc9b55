"""convert_images: convert a folder, list or archive of images to a pack."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from packer.convert.conversion_run import Conversion
from packer.convert.conversion_task import Engine, Report
from packer.convert.copied_images import notes_on_copies
from packer.convert.engines import published
from packer.convert.image_options import ImageOptions, Pairs, PathLike
from packer.convert.image_planning import ConversionPlan, plan_conversion, refuse
from packer.convert.reference_pack import Classes, ReferencePack, parse_classes
from packer.convert.row_sequence import Sequences
from packer.convert.row_storage import RowStorage
from packer.convert.splits import Part, Split
from packer.declared_types import checks_arguments
from packer.inputs.image_sources import Source
from packer.inputs.label_options import Labels
from packer.inputs.mask_values import Values
from packer.pixels.decode_resize import MAX_PIXELS
from packer.pixels.row_size import RowSize


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
    split: str | Mapping[str, Part] | Split | None = None,
    shuffle: bool | None = None,
    seed: int = 0,
    sequence: bool | Sequences = False,
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
        size. They are stored as JPEG files; JPEG files that need not shrink keep their pixels. fit, for rows
        of one size: "crop" (resize the shortest side, then centre crop; the default), "pad" or "stretch".
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
        "raw" pixels, the default for one size; "jpeg": each row is a JPEG file of that quality (90), decoded
        at loading; or blocks of rows compressed losslessly by "gzip", "zstd" or another codec (HDF5 only;
        ``--compress`` in `packer convert --help` lists all).
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
        groups such as patients. shuffle stores the rows (of each split) in a random order (default); without
        it the pack of class folders is sorted by class.
    sequence
        The images of a folder are frames of a sequence, such as a clip: they are stored together, in the
        order of the numbers in their names, and no split divides them, for ``window=`` of the datasets. The
        classes are the folders above, if there are any. ``Sequences(...)`` takes columns of the labels' CSV
        instead.
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
    match = None if like is None else ReferencePack.open(like)
    if store is None and size is not None and RowSize.parse(size).ragged:
        store = "jpeg"
    options = ImageOptions.from_arguments(
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
        sequence=sequence,
        storing=RowStorage.like(
            match and match.pack, run.out, format=format, store=store, quality=quality, shards=shards
        ),
    )
    run.check_shards(options.storing)
    run.check_paths(source)
    with ExitStack() as stack:
        names = None if classes is None else parse_classes(classes)
        task, plan = plan_conversion(
            stack, source, options, run.out, classes=names, like=match, skip=run.running.skip, dry_run=dry_run
        )
        announce: Callable[[], None] = (lambda: None) if on_plan is None else partial(on_plan, plan)
        if dry_run:
            announce()
            refuse(plan.contents.findings)
            return Report(run.out, plan.rows, skipped=tuple(plan.contents.skipped), notes=plan.notes)
        report = run.pack(task, plan.bytes * (2 if task.gathered else 1), plan.notes, then=announce)
        rows = report.rows if only_shards is None else len(task.order.samples)
        notes = [*report.notes, *notes_on_copies(task, report, rows)]
        if options.sequence is not None and len(report.skipped) > len(task.skipped):
            notes.append(
                "Windows do not reach over skipped images, nor over images from the end of a split or shard,"
                " which fill their places. For whole sequences, remove these files and convert again."
            )
        return replace(report, notes=tuple(notes))
