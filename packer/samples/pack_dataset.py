"""pack_dataset: converts arrays, files of arrays, a dataset or a generator to a pack."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from packer import units
from packer.convert.conversion_run import Conversion, check_room
from packer.convert.conversion_task import Engine, Report
from packer.convert.reference_pack import Classes
from packer.convert.splits import Part, Split
from packer.declared_types import checks_arguments
from packer.errors import PackerError, UsageError
from packer.samples.array_problems import some
from packer.samples.array_sources import ArraySource, open_arrays
from packer.samples.columns import ColumnField, ColumnSamples, SampleRows, number_labels
from packer.samples.dataset_rows import (
    DatasetRows,
    IterableRows,
    is_map_style,
    restored_generators,
    with_dataset_cause,
)
from packer.samples.field_plan import LABEL, Forms, form_of, with_masks
from packer.samples.pack_builder import PackBuilder
from packer.samples.packing import Fields, PackingOptions
from packer.samples.value_notes import check_classes, column_notes
from packer.source_kinds import is_array_file


@checks_arguments
def pack_dataset(
    dataset: Any,
    out: str | os.PathLike[str],
    *,
    fields: str | Sequence[str] | Forms | Fields | None = None,
    size: int | str | tuple[int, int] | None = None,
    fit: str = "crop",
    classes: Classes | None = None,
    store: str = "raw",
    quality: int = 90,
    split: str | Mapping[str, Part] | Split | None = None,
    shuffle: bool = True,
    seed: int = 0,
    shards: int | str | None = None,
    workers: int | None = None,
    on_error: str = "stop",
    overwrite: bool = False,
    resume: bool | str = False,
    dry_run: bool = False,
    progress: bool | Callable[[int], None] = False,
    on_plan: Callable[[Sequence[str]], None] | None = None,
    engine: Engine | None = None,
) -> Report:
    """Pack arrays, files of arrays, a map-style dataset, or an iterable of samples.

    Parameters
    ----------
    dataset
        An array [N, ...]; a mapping of names to arrays, or a tuple (images, labels); a .npy, .npz, .mat or
        HDF5 file, or a list of such files, whose arrays' names tell image, label and split; an object with
        ``len`` and ``[i]`` (a torchvision or Hugging Face dataset, a list of samples); or a generator or
        other iterable of any length. Samples are mappings, tuples, named tuples or single values; values are
        numbers, NumPy arrays, torch tensors, Pillow images, text or bytes.
    out
        A name that ends in .h5 gives an HDF5 file; any other name gives a directory of .npy files, or of
        shards.
    fields
        Names for the values of a tuple, in order, or the requested names of a mapping; a mapping of names to
        forms ("uint8[32,32,3]", "int32[*]", "text" ...); or ``Fields(forms, rename=..., channels=...)`` with
        more options.
    size, fit
        As in convert_images, for the field ``image``, whose 8-bit images may then differ in size. Default: no
        resizing.
    classes
        Class names, indexed by the labels, as in convert_images. Default: those of the dataset.
    store, quality, split, shuffle, seed, shards, overwrite
        As in convert_images. Splits are stratified by label if labels are an array. `split` in a mapping may
        also give ranges of samples: ``{"train": range(50000), "test": range(50000, 60000)}``. The global
        generators of Python, NumPy and torch are seeded by (seed, sample) for each sample of a dataset.
    workers
        Processes that read a dataset (threads where forking is unsafe); default: one per core. The result
        does not depend on it. A generator runs in this process.
    on_error
        "stop": raise for the first sample that fails or does not fit its field; "skip": leave such samples
        out and report them.
    resume
        As in convert_images. For a dataset pass text that identifies its content, for example "birds v3":
        equal text means equal samples. Arrays and files are compared by their values.
    dry_run
        Write nothing: plan the fields, call on_plan, and return a report of the rows, as far as their number
        is known.
    progress
        True shows a progress bar; a function is called repeatedly with the number of finished samples.
    on_plan
        Called once, before writing, with a line on fields and approximate size, and with notes on the input.
    engine
        Function that writes the planned rows of arrays, files of arrays or a dataset; nothing is resumed.

    Returns
    -------
    Report
        Rows, seconds, bytes, skipped samples and notes.

    Raises
    ------
    SourceError
        A sample raised, or does not fit its field; the dataset's exception is the cause.
    UsageError, SpaceError, PackerError

    Notes
    -----
    Values are stored exactly, but floats are rounded to a declared dtype. `out` only ever holds a complete
    pack. Rows of generators and of large compressed HDF5 datasets are written twice: staged in raw form
    beside the output, then in the order of the pack.

    A field named ``image`` of 8 or 16 bits is stored [H, W, C]: [C, H, W] is transposed, [H, W] gets one
    channel. Packs with images have a field ``key``, the number of the sample.

    Examples
    --------
    >>> import numpy as np
    >>> from packer import open_pack, pack_dataset
    >>> images = np.zeros((20, 8, 8, 3), np.uint8)
    >>> report = pack_dataset((images, np.arange(20)), "arrays.h5")
    >>> [field.name for field in open_pack("arrays.h5").fields]
    ['image', 'label', 'key']
    """
    run = Conversion(
        out,
        "rows",
        workers=workers,
        on_error=on_error,
        overwrite=overwrite,
        resume=resume is not False,
        progress=progress is True,
        on_progress=progress if callable(progress) else None,
        engine=engine,
    )
    options = PackingOptions.parse(
        run.out, fields, size, fit, classes, store, quality, shuffle, seed, split, shards
    )
    arrays = _is_arrays(dataset)
    run.check_paths(dataset if arrays else None)
    map_style = not arrays and is_map_style(dataset)
    try:
        with restored_generators() if map_style else nullcontext():
            if arrays:
                rows: SampleRows = array_rows(open_arrays(dataset, options.declared), options, run.engine)
            else:
                _check_samples(dataset)
                if map_style:
                    key, workers = _key(dataset, resume), run.running.workers
                    rows = DatasetRows(dataset, options.declared, seed=options.seed, key=key, workers=workers)
                else:
                    rows = IterableRows(dataset, options.declared, skip=run.running.skip)
            return _pack(rows, options, run, on_plan, dry_run)
    except PackerError as error:
        with_dataset_cause(error)
        raise


def array_rows(source: ArraySource, options: PackingOptions, engine: Engine | None) -> ColumnSamples:
    """Return the rows of arrays, with notes on their values. Raises UsageError, SourceError."""
    named = None if options.declared.form(LABEL) else number_labels(source.fields, options.classes)
    if options.classes is None:
        source.notes += check_classes(source.subject, source.fields.get(LABEL), source.spans, named)
    columns = {
        name: ColumnField.from_column(name, column, options.declared)
        for name, column in source.fields.items()
    }
    for name, plan in with_masks({name: column.plan for name, column in columns.items()}).items():
        columns[name].plan = plan
    rows = ColumnSamples(source.subject, columns, source.rows)
    rows.notes = [*source.notes, *column_notes(columns, named)]
    rows.named, rows.spans, rows.nbytes = named, source.spans, source.nbytes
    if engine is None and (slab := max(column.slab for column in source.fields.values())):
        rows.slab, rows.once = slab, f"{source.subject}: is compressed, so its rows are staged, and"
    return rows


def _pack(
    source: SampleRows,
    options: PackingOptions,
    run: Conversion,
    on_plan: Callable[[Sequence[str]], None] | None,
    dry_run: bool,
) -> Report:
    """Pack samples; those of unknown number, or that can only be read in order, are staged first."""
    if source.once and run.running.resume:
        raise UsageError(
            f"{source.once} an interrupted run cannot be resumed. Leave out resume=True, or for "
            "a dataset pass text that identifies its content, such as resume='birds v3'."
        )
    options = options.for_splits(source.subject, source.spans).for_fields(source.named, source.fields)
    source.name_classes(options.classes)
    rows, pieces, notes, nbytes = source.count, source.pieces(), source.notes, 0
    if rows:
        nbytes = source.pack_bytes(rows)
        if not run.running.resume:
            check_room(run.out, 0 if run.engine else nbytes * (2 if pieces else 1))
    # Before any work that grows with the number of samples.
    if on_plan is not None:
        forms = some([f"{f.name} {form_of(f)}" for f in source.fields])
        many, size = (
            ("samples", "") if not rows else (units.count(rows, "row"), f"; about {units.size(nbytes)}")
        )
        out = "" if run.engine else f" -> {run.out}"
        on_plan([f"{source.subject}: {many}{out}: {forms}{size}", *notes])
    if dry_run:
        return Report(run.out, rows, notes=tuple(notes))
    if pieces is not None:
        run.bar.start(None, "rows")
        with PackBuilder(run, options, notes) as builder:
            builder.plan(source.plans)
            for count, columns in pieces:
                builder.add_rows(columns, count)
            builder.skipped = tuple(source.skipped)
            return builder.finish()
    source.check_pixels()
    with run.bar:
        if source.nbytes:
            run.bar.say("reading all values, to identify them")
        identity = source.identity() if run.engine is None else None
    order = options.order(source)
    task = options.task(source, order, source.subject, identity, forks=source.forks)
    report = run.pack(task, task.nbytes, notes)
    return replace(report, bytes_read=source.nbytes) if source.nbytes and not report.already else report


def _is_arrays(dataset: Any) -> bool:
    """Return True for arrays and for files of arrays. Raises UsageError for other paths."""
    if isinstance(dataset, (str, os.PathLike)):
        if is_array_file(dataset):
            return True
        raise UsageError(
            f"{os.fspath(dataset)}: is not a file of arrays (.npy, .npz, .h5); images and tables have "
            "separate functions. Use convert_images or convert_table."
        )
    if isinstance(dataset, list):
        others = [one for one in dataset if not is_array_file(one)]
        if others and len(others) < len(dataset):
            raise UsageError(
                f"{others[0]}: is not a file of arrays (.h5, .mat, .npy, .npz), but others are; all have"
                " to be. Leave it out."
            )
        return bool(dataset) and not others
    if isinstance(dataset, tuple):
        columns = (isinstance(value, list) or _is_array(value) for value in dataset)
        return not hasattr(dataset, "_fields") and any(map(_is_array, dataset)) and all(columns)
    if type(dataset).__module__.partition(".")[0] == "datasets":
        return False  # Hugging Face's DatasetDict is a mapping
    return isinstance(dataset, Mapping) or (_is_array(dataset) and not _is_frame(dataset))


def _is_array(value: Any) -> bool:
    return is_array_file(value) or (
        hasattr(value, "__array__")
        and hasattr(value, "shape")
        and (hasattr(value, "dtype") or _is_frame(value))
    )


def _is_frame(value: Any) -> bool:
    return type(value).__name__ == "DataFrame"


def _check_samples(dataset: Any) -> None:
    """Raise UsageError for an object that does not yield samples, such as a DataLoader or a data frame."""
    reason = ""
    if any(kind.__name__ == "DataLoader" for kind in type(dataset).__mro__):
        reason = "yields batches; samples are packed. Pass its dataset"
    elif _is_frame(dataset):
        reason = (
            "is a table. Pass its columns, for example "
            "{'features': frame[names].to_numpy(), 'label': frame['y'].to_numpy()}"
        )
    elif isinstance(dataset, tuple) and dataset and all(isinstance(value, list) for value in dataset):
        reason = (
            "holds only lists, which may be columns or samples. Pass columns by name, "
            "{'features': X, 'label': y}, or samples as a list"
        )
    elif _are_splits(dataset):
        ranges, stop = {}, 0
        for name, (images, *_) in zip(("train", "test"), dataset, strict=False):
            ranges[name], stop = range(stop, stop + len(images)), stop + len(images)
        reason = (
            f"holds {len(dataset)} sets of arrays. Join them: pack_dataset(tuple(map(numpy.concatenate, "
            f'zip(*sets))), "out.h5", split={ranges})'
        )
    elif isinstance(dataset, Mapping):
        reason = (
            f"holds several datasets ({', '.join(map(str, dataset))}); a pack holds one dataset. Pass one "
            "of them"
        )
    elif isinstance(dataset, type) or not (is_map_style(dataset) or isinstance(dataset, Iterable)):
        reason = (
            "is neither arrays nor a dataset; objects with len() and [i], and iterables, are packed. Pass "
            "one of these"
        )
    if reason:
        raise UsageError(f"{type(dataset).__name__}: {reason}.")


def _are_splits(dataset: Any) -> bool:
    """Return True for tuples of arrays of equal length, such as (x_train, y_train), (x_test, y_test)."""
    return (
        type(dataset) is tuple
        and len(dataset) > 1
        and all(type(one) is tuple and len(one) > 1 and all(map(_is_array, one)) for one in dataset)
        and all(len({np.shape(array)[:1] for array in one}) == 1 and np.shape(one[0]) for one in dataset)
    )


def _key(dataset: Any, resume: bool | str) -> str | None:
    """Return a dataset's identity for resuming: the given text, or a Hugging Face fingerprint, or None."""
    if isinstance(resume, str):
        return resume
    if type(dataset).__module__.partition(".")[0] == "datasets":
        found = getattr(dataset, "_fingerprint", None)
        return None if found is None else f"fingerprint {found}"
    return None
