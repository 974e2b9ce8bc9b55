"""create, PackBuilder: a pack written sample by sample, without knowing their number; complete or absent."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np

from packer.arguments import absolute
from packer.convert.conversion_run import Conversion, check_room, interrupted
from packer.convert.conversion_task import Report
from packer.convert.pack_run import write_pack
from packer.convert.reference_pack import Classes
from packer.convert.splits import Part, Split
from packer.declared_types import checks_arguments
from packer.errors import PackerError, SourceError, UsageError
from packer.format.write_errors import writing
from packer.packs.output_names import check_output
from packer.samples.field_plan import FieldPlan, Forms
from packer.samples.packing import Fields, PackingOptions
from packer.samples.sample_layout import plan_fields, row_of
from packer.samples.staged_samples import SampleStaging, StagedSamples
from packer.samples.values import ValueRefusedError, as_array, plain
from packer.writing.working_folder import WorkingFolder


class PackBuilder:
    """A pack being written sample by sample; a context manager, created by ``create``. Not thread-safe.

    Rows are staged in raw form in ``<out>.packing`` beside the output, since their number and final order are
    unknown until the last sample. The end of the ``with`` block shuffles the rows, writes the pack and
    renames it to its final name. If an exception leaves the block, everything is removed. If the process is
    killed, ``<out>.packing`` remains until the next run with the same output, which starts from the
    beginning.

    Attributes
    ----------
    report : Report or None
        Summary of the finished pack; None until then.
    """

    def __init__(self, run: Conversion, options: PackingOptions, notes: Sequence[str] = ()) -> None:
        self._run, self._options = run, options
        self._plans: dict[str, FieldPlan] = {}
        self._staging: SampleStaging | None = None
        self._notes = list(notes)
        self.skipped: tuple[dict[str, str], ...] = ()
        self.report: Report | None = None
        self._ended = False
        check_output(run.out, overwrite=run.running.overwrite)
        self._place = WorkingFolder(run.out, overwrite=run.running.overwrite)
        self._opened: list[SampleStaging] = []
        self.in_block: bool = False
        # A builder without references, for example after a failed notebook cell, removes its folder and
        # files.
        self._abandon = weakref.finalize(self, _abandon, os.getpid(), self._place, self._opened)

    @property
    def rows(self) -> int:
        """Samples written so far."""
        return 0 if self._staging is None else self._staging.samples

    def write(self, **values: Any) -> None:
        """Append one sample.

        Parameters
        ----------
        **values
            The value of each field: a number, an array, a torch tensor, a Pillow image, text or bytes. The
            first sample determines fields, dtypes and shapes that were not declared.

        Raises
        ------
        SourceError
            A value does not fit its field; the sample is not written, and more samples may follow.
        SpaceError, PackerError
        """
        self._append({name: [value] for name, value in values.items()}, 1)

    def write_rows(self, **columns: Any) -> None:
        """Append several samples at once.

        Parameters
        ----------
        **columns
            The values of each field: an array or tensor [k, ...], or a list of k values, with the same k for
            all fields.

        Raises
        ------
        SourceError, SpaceError, PackerError
            None of the samples is written.
        """
        columns = {
            name: column if isinstance(column, (list, tuple)) else _array(name, column)
            for name, column in columns.items()
        }
        counts = {name: len(column) for name, column in columns.items()}
        if len(set(counts.values())) > 1:
            lengths = ", ".join(f"{name} has {count:,}" for name, count in counts.items())
            raise SourceError(
                f"samples from {self.rows} on: {lengths} values; all fields need the same number. Pass equal "
                "numbers."
            )
        if count := next(iter(counts.values()), 0):
            self._append(columns, count)

    def _append(self, columns: Mapping[str, Any], count: int) -> None:
        """Append the values of some samples. If it raises SourceError, none of them is appended."""
        self._check_open()
        first = self.rows
        if self._staging is None:
            self._begin({name: list(column[:2]) for name, column in columns.items()}, first)
        self._check_names(
            columns, f"samples from {first} on" if count > 1 else f"sample {first}", self._plans
        )
        rows: dict[str, Any] = {}
        for name, plan in self._plans.items():
            column, at = columns[name], 0
            try:
                if isinstance(column, np.ndarray) and not plan.field.ragged:
                    with suppress(ValueRefusedError):  # raised below for the sample that it is about
                        rows[name] = plan.stored(column)
                        if rows[name].shape[1:] == plan.field.shape:
                            continue
                converted = []
                for value in column:
                    converted.append(row_of(plan, value))
                    at += 1
                rows[name] = converted
            except ValueRefusedError as error:
                raise SourceError(f"sample {first + at}: {error}.") from None
        self.add_rows(rows, count)

    def finish(self) -> Report:
        """Write the pack from the staged rows and rename it to its final name, as the end of ``with`` does.

        Returns
        -------
        Report
            Rows, seconds, bytes and notes.

        Raises
        ------
        SourceError
            No sample was written.
        UsageError
            All boxes or keypoints look like fractions of the image's sides; or an option does not fit the
            fields.
        SpaceError, PackerError
        """
        self._check_open()
        self._ended = True
        run = self._run
        with run.bar, interrupted(run.out):
            try:
                written = self._lay_out()
            except BaseException:
                self._place.close(keep=False)
                raise
            finally:
                for staging in self._opened:  # or the disk stays full while a notebook keeps the builder
                    staging.close()
        self.report = run.report(written, self._notes)
        return self.report

    def _lay_out(self) -> Report:
        """Write the staged rows in the order of the pack."""
        run, staged = self._run, self._staging
        if staged is None:
            raise SourceError(
                f"{run.out}: no samples were written; a pack has at least one. No file was created."
            )
        staged.flush()
        options = self._options.for_fields(None, staged.fields)
        maker = StagedSamples(staged)
        maker.name_classes(options.classes)
        maker.check_pixels()
        order, running = options.order(maker), run.running.for_staged
        check_room(self._place.pack, maker.pack_bytes(staged.rows), run.out)
        run.bar.start(staged.rows, "rows")
        with maker.in_order(order, shuffled=options.shuffle, workers=running.workers):
            task = replace(options.task(maker, order, run.out, None), skipped=self.skipped)
            written = write_pack(task, self._place.pack, running, run.out)
        with writing(run.out):
            self._place.publish()
        return replace(written, bytes_read=staged.nbytes)

    def discard(self) -> None:
        """Remove the staged rows; does nothing after finish or an earlier discard."""
        if not self._ended:
            self._ended = True
            self._abandon()

    def __enter__(self) -> PackBuilder:
        self.in_block = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.discard()
        elif not self._ended:
            self.finish()

    def plan(self, plans: Mapping[str, FieldPlan]) -> None:
        """Start staging with fields that were planned from samples."""
        self._plans = dict(plans)
        fields = [plan.field for plan in plans.values()]
        self._options.for_fields(None, fields)
        self._staging = SampleStaging(self._place, fields, self._run.out)
        self._opened.append(self._staging)

    def _begin(self, first: Mapping[str, Sequence[Any]], number: int) -> None:
        """Plan the fields from the first samples."""
        declared = self._options.declared
        names = declared.forms or first
        self._check_names(first, f"sample {number}", names)
        if not first:
            raise SourceError(f"sample {number}: has no fields. Pass at least one, for example image=...")
        plans, notes = plan_fields({name: first[name] for name in names}, f"sample {number}", declared)
        self._notes += notes
        self.plan(plans)

    def _check_names(self, given: Iterable[str], which: str, wanted: Iterable[str]) -> None:
        for name in sorted(set(wanted) ^ set(given)):
            found = "is missing" if name in wanted else "is not a field of this pack"
            raise SourceError(
                f"{which}: {name!r} {found}; every sample has {', '.join(sorted(wanted))}. Pass these."
            )

    def add_rows(self, rows: Mapping[str, Any], count: int) -> None:
        """Append samples that the plans have converted to rows: for each field an array or a list."""
        assert self._staging is not None
        try:
            self._staging.add(rows, count)
        except PackerError:
            self.discard()
            raise
        self._run.bar.move(self._staging.samples)

    def _check_open(self) -> None:
        if self._ended:
            raise UsageError(
                f"{self._run.out}: is finished or discarded; no samples can be added to it. Create another "
                "pack."
            )


_building: weakref.WeakValueDictionary[str, PackBuilder] = weakref.WeakValueDictionary()  # path -> builder


def _abandon(pid: int, place: WorkingFolder, opened: Sequence[SampleStaging]) -> None:
    """Close and remove the files of an abandoned builder, but not in a forked child. pid: its process."""
    if os.getpid() == pid:
        for staging in opened:
            staging.close()
        place.close(keep=False)


def _array(name: str, column: Any) -> Any:
    try:
        found = as_array(column)
        found = found if found.dtype.kind in "OUST" else plain(found)
    except ValueRefusedError as error:
        raise SourceError(f"{name}: {error}.") from None
    if not found.ndim:
        raise SourceError(
            f"{name}: is a single value; write_rows needs the values of several samples, [k, ...]. Use write."
        )
    return found.tolist() if found.dtype.kind in "OUST" else found


@checks_arguments
def create(
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
    overwrite: bool = False,
    progress: bool | Callable[[int], None] = False,
) -> PackBuilder:
    """Create a pack that is written sample by sample.

    Parameters
    ----------
    out, fields
        As in pack_dataset; field names are the keywords of `write`. Default: inferred from the first sample.
    size, fit
        As in convert_images, for the field ``image``, whose 8-bit images may then differ in size. Default: no
        resizing.
    classes, store, quality, split, shuffle, seed, shards, workers, overwrite, progress
        As in pack_dataset. Splits are stratified by label.

    Returns
    -------
    PackBuilder
        Its ``write(**values)`` and ``write_rows(**columns)`` append samples; the end of the ``with`` block
        writes the pack.

    Raises
    ------
    UsageError, PackerError

    Notes
    -----
    Samples are written twice, first to a staging file, then to the pack, and temporarily need twice the disk
    space. A run that was killed or ended by an exception cannot be resumed. Without ``with``, ``finish()``
    writes the pack and ``discard()`` removes everything. A builder without references is discarded, and so is
    an unfinished builder of the same output when ``create`` is called again (a notebook cell that runs
    again).

    Examples
    --------
    >>> import numpy as np
    >>> from packer import create, open_pack
    >>> with create("squares.h5", fields={"image": "uint8[8,8,3]", "label": "int64"}) as pack:
    ...     for number in range(10):
    ...         pack.write(image=np.full((8, 8, 3), number), label=number)
    >>> open_pack("squares.h5").rows, pack.report.rows
    (10, 10)
    """
    run = Conversion(
        out,
        "rows",
        workers=workers,
        overwrite=overwrite,
        progress=progress is True,
        on_progress=progress if callable(progress) else None,
    )
    options = PackingOptions.parse(
        run.out, fields, size, fit, classes, store, quality, shuffle, seed, split, shards
    )
    if options.declared.rename:
        raise UsageError(
            "rename: applies to names in a dataset; create uses the names passed to write. Leave it out."
        )
    path = absolute(run.out)
    earlier = _building.get(path)
    if earlier is not None and not earlier.in_block:
        earlier.discard()
    builder = _building[path] = PackBuilder(run, options)
    run.bar.start(None, "rows")
    return builder
