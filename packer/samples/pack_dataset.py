"""pack_dataset: converts arrays, files of arrays, a dataset or a generator to a pack."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from packer import units
from packer.convert.conversion_run import Conversion, check_room
from packer.convert.conversion_task import ConversionTask, Engine, Report
from packer.convert.reference_pack import Classes
from packer.convert.splits import Part, Split
from packer.declared_types import checks_arguments
from packer.errors import PackerError, SourceError, UsageError
from packer.format.header import Field
from packer.format.working_folder import failure
from packer.progress import Progress
from packer.samples.array_problems import some
from packer.samples.array_sources import ArraySource, open_arrays
from packer.samples.columns import ColumnField, ColumnSamples, number_labels
from packer.samples.dataset_rows import (
    PROBED,
    Dataset,
    DatasetRows,
    SampleFailedError,
    class_names_of,
    in_child,
    is_map_style,
    probe,
    restored_generators,
    sample_error,
    with_dataset_cause,
)
from packer.samples.field_plan import LABEL, Forms, form_of, with_masks
from packer.samples.pack_builder import PackBuilder
from packer.samples.packing import Fields, PackingOptions
from packer.samples.sample_layout import plan_samples
from packer.samples.value_notes import check_classes, column_notes
from packer.samples.values import ValueRefusedError, copy_sample
from packer.sentence import Option
from packer.source_kinds import is_array_file
from packer.starting import forks_safely


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
    pack. Rows of generators and of compressed HDF5 datasets are written twice: staged in raw form beside the
    output, then in the order of the pack.

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
    options = PackingOptions.of(
        run.out, fields, size, fit, classes, store, quality, shuffle, seed, split, shards
    )
    run.check_paths(dataset if _is_arrays(dataset) else None)
    job = _Job(run, options, on_plan, progress is True, dry_run)
    try:
        if _is_arrays(dataset):
            return job.arrays(open_arrays(dataset, options.declared))
        _check_samples(dataset)
        if is_map_style(dataset):
            return job.dataset(dataset, _key(dataset, resume))
        return job.iterable(dataset)
    except _Planned as planned:
        return planned.report
    except PackerError as error:
        with_dataset_cause(error)
        raise


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
        rows = [len(one[0]) for one in dataset]
        joined = ", ".join(f"numpy.concatenate([s[{n}] for s in sets])" for n in range(len(dataset[0])))
        reason = (
            f"holds {len(rows)} sets of arrays, of {', '.join(f'{n:,}' for n in rows[:8])} samples. Join"
            f" them: pack_dataset(({joined}), \"out.h5\", split={{'train': range({rows[0]}), 'test':"
            f" range({rows[0]}, {sum(rows)})}})"
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


class _Planned(Exception):
    """Raised once a dry run has planned. report: its result."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.report = report


class _Job:
    """A conversion of samples with checked options."""

    def __init__(
        self,
        run: Conversion,
        options: PackingOptions,
        on_plan: Callable[[Sequence[str]], None] | None,
        shown: bool,
        dry_run: bool,
    ) -> None:
        self._run, self._options, self._on_plan, self._shown = run, options, on_plan, shown
        self._dry_run = dry_run

    def arrays(self, source: ArraySource) -> Report:
        """Pack arrays or files of arrays."""
        run, options = self._run, self._options
        compressed = any(column.decoded for column in source.fields.values())
        if compressed:
            self._refuse_resuming(f"{source.subject}: is compressed, so its rows are staged, and")
        options = options.for_splits(source.subject, source.spans)
        named = None if options.declared.form(LABEL) else number_labels(source.fields, options.classes)
        if options.classes is None:
            source.notes += check_classes(source.subject, source.fields.get(LABEL), source.spans, named)
        columns = {
            name: ColumnField.of(name, column, options.declared) for name, column in source.fields.items()
        }
        for name, marked in with_masks({name: column.plan for name, column in columns.items()}).items():
            columns[name].plan = marked
        options = options.for_fields(named, [column.plan.field for column in columns.values()])
        maker = ColumnSamples(columns, source.rows, options.classes)
        staged = [one for field in columns.values() if field.column for one in field.column.decoded]
        room = sum(one.row_bytes * one.shape[0] for one in staged)
        notes = [*source.notes, *column_notes(columns, named)]
        nbytes = maker.pack_bytes(source.rows)
        needed = room if run.engine else nbytes + room
        self._begin(source.subject, maker.fields, source.rows, needed, notes, nbytes)
        folder = os.path.dirname(os.path.abspath(run.out))
        with ExitStack() as stack:
            try:
                for column in staged:
                    column.decode(stack.enter_context(tempfile.TemporaryFile(dir=folder)))
            except OSError as error:
                raise failure(run.out, error) from error
            maker.check_pixels(source.subject)
            identity = None
            if not compressed and run.engine is None:
                with Progress(self._shown, "B") as bar:
                    bar.start(source.nbytes)
                    identity = maker.fingerprint(bar.move)
            task = options.task(maker, options.order(maker), source.subject, identity)
            return self._write(task, notes, source.nbytes)

    def dataset(self, dataset: Dataset, key: str | None) -> Report:
        """Pack a map-style dataset."""
        run, options, subject = self._run, self._options, type(dataset).__name__
        count = len(dataset)
        if count < 1:
            raise SourceError(f"{subject}: holds no samples; a pack has at least one.")
        if key is None:
            self._refuse_resuming(f"{subject}: its content cannot be identified, so")
        forks = run.running.workers > 1 and forks_safely()
        with restored_generators():
            plan = in_child(
                lambda: plan_samples(probe(dataset, subject, count, options.seed), subject, options.declared),
                forks=forks,
            )
            notes = [*plan.notes]
            options = options.for_fields(class_names_of(dataset, LABEL, options.declared.rename), plan.fields)
            classes = None if options.classes is None else len(options.classes)
            maker = DatasetRows(dataset, subject, plan, seed=options.seed, classes=classes)
            # Before any work that grows with the number of samples.
            nbytes = maker.pack_bytes(count)
            self._begin(subject, maker.fields, count, nbytes, notes, nbytes)
            identity = None if key is None else {"rows": count, "key": key, "seed of draws": options.seed}
            order = options.order(maker)
            return self._write(options.task(maker, order, subject, identity, forks=forks), notes)

    def _write(self, task: ConversionTask, notes: Sequence[str], bytes_read: int = 0) -> Report:
        """Write the pack, unless resuming finds it complete."""
        report = self._run.pack(task, task.nbytes, notes)
        return replace(report, bytes_read=bytes_read) if bytes_read and not report.already else report

    def iterable(self, samples: Iterable[Any]) -> Report:
        """Pack an iterable of samples."""
        subject = type(samples).__name__
        self._refuse_resuming(f"{subject}: can be read only once, in order, so")
        options = self._options
        skip = self._run.running.skip
        source = _numbered(samples, subject)
        first = [(number, copy_sample(sample)) for number, sample in itertools.islice(source, PROBED)]
        if not first:
            raise SourceError(f"{subject}: yields no samples; a pack has at least one.")
        plan = plan_samples([sample for _, sample in first], subject, options.declared, some=False)
        notes = [*plan.notes]
        self._begin(subject, plan.fields, None, 0, notes)
        options = options.for_fields(class_names_of(samples, LABEL, options.declared.rename), plan.fields)
        builder = PackBuilder(self._run, options, notes)
        self._run.bar.start(None, "rows")
        skipped: list[dict[str, str]] = []
        with builder:
            builder.plan(plan.plans)
            for number, sample in itertools.chain(first, source):
                try:
                    rows = plan.rows(sample)
                except ValueRefusedError as error:
                    if not skip:
                        raise SourceError(
                            f"{subject}, sample {number}: {error}. Correct it, or pass "
                            f"{Option('on_error', 'skip')}.",
                        ) from None
                    skipped.append({"key": str(number), "reason": f"{error}."})
                    continue
                builder.add_rows(rows)
            builder.skipped = tuple(skipped)
            return builder.finish()

    def _refuse_resuming(self, why: str) -> None:
        if self._run.running.resume:
            raise UsageError(
                f"{why} an interrupted run cannot be resumed. Leave out {Option('resume', True)}, or for a "
                f"dataset pass text that identifies its content, such as {Option('resume', 'birds v3')}."
            )

    def _begin(
        self,
        subject: str,
        fields: Sequence[Field],
        rows: int | None,
        needed: int,
        notes: Sequence[str],
        nbytes: int = 0,
    ) -> None:
        """Check the disk space and call `on_plan`, before any work that grows with the number of samples.

        rows: number of samples or None. needed: bytes on the disk. nbytes: uncompressed size of the pack.
        Raises SpaceError; _Planned if that was all.
        """
        if not self._run.running.resume:
            check_room(self._run.out, needed)
        if self._on_plan is not None:
            forms = some([f"{f.name} {form_of(f)}" for f in fields])
            many, size = "samples", ""
            if rows is not None:
                many, size = units.count(rows, "row"), f"; about {units.size(nbytes)}"
            out = "" if self._run.engine else f" -> {self._run.out}"
            self._on_plan([f"{subject}: {many}{out}: {forms}{size}", *notes])
        if self._dry_run:
            raise _Planned(Report(self._run.out, rows or 0, notes=tuple(notes)))


def _numbered(samples: Iterable[Any], subject: str) -> Iterator[tuple[int, Any]]:
    """Yield the samples with their numbers. Raises SourceError from the iterable's exception."""
    iterator = iter(samples)
    for number in itertools.count():
        try:
            sample = next(iterator)
        except StopIteration:
            return
        except PackerError:
            raise
        except Exception as error:
            raise sample_error(f"{subject}, sample {number}", SampleFailedError.of(error)) from error
        yield number, sample
