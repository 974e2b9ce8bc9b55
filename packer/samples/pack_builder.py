"""create, PackBuilder: a pack written sample by sample, their number unknown beforehand; whole or not there."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np

from packer.convert.conversion_run import Conversion, check_room, interrupted
from packer.convert.conversion_task import Report
from packer.convert.pack_run import write_pack
from packer.convert.reference_pack import Classes
from packer.errors import PackerError, SourceError, UsageError
from packer.foreign_words import refuses_foreign_words
from packer.format.working_folder import WorkingFolder, check_output, writing
from packer.samples.field_plan import FieldPlan, Forms
from packer.samples.packing import Fields, PackingOptions
from packer.samples.sample_layout import plan_fields, row_of
from packer.samples.staged_samples import SampleStaging, StagedSamples
from packer.samples.values import ValueRefusedError, as_array, plain


class PackBuilder:
    """A pack being written sample by sample; made by ``create``, a context manager. For one thread.

    Rows are staged in raw form in ``<out>.packing`` beside the output, since neither their number nor the place of each is known
    before the last one. At the end of the ``with`` block they are laid out, shuffled, and the pack gets its name. If an exception
    leaves the block nothing is left; if the process is killed, the staged rows stay in ``<out>.packing`` until the next run of the
    same output, which starts anew.

    Attributes
    ----------
    report : Report or None
        What was written, once the pack is whole.
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
        self.in_block = False
        # A builder that is dropped, as in a notebook's cell that failed, holds neither its folder nor its files.
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
            The value of each field: a number, an array, a torch tensor, a Pillow image, text or bytes. The first sample fixes the
            fields, their dtypes and shapes, but for what was declared.

        Raises
        ------
        SourceError
            A value does not fit its field; the sample is left out, and the pack may be gone on with.
        SpaceError, PackerError
        """
        self._append({name: [value] for name, value in values.items()}, 1)

    def write_rows(self, **columns: Any) -> None:
        """Append several samples at once.

        Parameters
        ----------
        **columns
            The values of each field: an array or tensor [k, ...], or a list of k values, equally many for every field.

        Raises
        ------
        SourceError, SpaceError, PackerError
            None of the samples is written then.
        """
        columns = {
            name: column if isinstance(column, (list, tuple)) else _array(name, column)
            for name, column in columns.items()
        }
        counts = {name: len(column) for name, column in columns.items()}
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{name} has {count:,}" for name, count in counts.items())
            raise SourceError(
                f"samples from {self.rows} on: {told} values; all fields have equally many. Pass them so."
            )
        if count := next(iter(counts.values()), 0):
            self._append(columns, count)

    def _append(self, columns: Mapping[str, Any], count: int) -> None:
        """Append the values of some samples. Raises SourceError: none of them is appended then."""
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
                    rows[name] = plan.stored(column)
                    if rows[name].shape[1:] != plan.field.shape:
                        plan.row(column[0])  # says what is wrong
                    continue
                made = []
                for value in column:
                    made.append(row_of(plan, value))
                    at += 1
                rows[name] = made
            except ValueRefusedError as error:
                raise SourceError(f"sample {first + at}: {error}.") from None
        self._add(rows, count)

    def finish(self) -> Report:
        """Lay the rows out, seal the pack and give it its name; what the end of a ``with`` block does.

        Returns
        -------
        Report
            Rows, seconds, bytes and notes.

        Raises
        ------
        SourceError
            No sample was written.
        UsageError
            All boxes or keypoints look like shares of the image's sides, and no unit is given; or another option does not fit.
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
                for staging in self._opened:  # the disk would be no emptier while a notebook has the builder
                    staging.close()
        self.report = run.report(written, self._notes)
        return self.report

    def _lay_out(self) -> Report:
        """Write the staged rows in their order."""
        run, staged = self._run, self._staging
        if staged is None:
            raise SourceError(
                f"{run.out}: no samples were written; a pack has at least one. Nothing was made."
            )
        staged.flush()
        options = self._options.for_fields(None, staged.fields)
        maker = StagedSamples(staged, options.classes)
        maker.check_pixels(run.out)
        order, running = options.order(maker, staged.rows), run.running.anew
        check_room(self._place.pack, maker.pack_bytes(staged.rows), run.out)
        run.bar.start(staged.rows, "rows")
        with maker.in_order(order, shuffled=options.shuffle, workers=running.workers):
            task = replace(options.task(maker, order, run.out, None), skipped=self.skipped)
            written = write_pack(task, self._place.pack, running, run.out)
        with writing(run.out):
            self._place.publish()
        return replace(written, bytes_read=staged.nbytes)

    def discard(self) -> None:
        """Remove what was written; called again, or after finish, it does nothing."""
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
        """Begin with fields that were planned from samples already."""
        self._plans = dict(plans)
        fields = [plan.field for plan in plans.values()]
        self._options.for_fields(None, fields)
        self._staging = SampleStaging(self._place, fields, self._run.out)
        self._opened.append(self._staging)

    def add_rows(self, rows: Mapping[str, Any]) -> None:
        """Append one sample whose rows were made by the plans."""
        self._add({name: [row] for name, row in rows.items()}, 1)

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
            found = "is not given" if name in wanted else "is no field of this pack"
            raise SourceError(
                f"{which}: {name!r} {found}; every sample has {', '.join(sorted(wanted))}. Pass these."
            )

    def _add(self, rows: Mapping[str, Any], count: int) -> None:
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
                f"{self._run.out}: is finished or discarded; no samples can be added to it. Create another pack."
            )


_building: weakref.WeakValueDictionary[str, PackBuilder] = weakref.WeakValueDictionary()  # of create, by path


def _abandon(made_in: int, place: WorkingFolder, opened: Sequence[SampleStaging]) -> None:
    """Close and remove what a builder has left, except in a forked child. made_in: the process that made it."""
    if os.getpid() == made_in:
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
            f"{name}: is one value; write_rows takes those of several samples, [k, ...]. Use write."
        )
    return found.tolist() if found.dtype.kind in "OUST" else found


@refuses_foreign_words
def create(
    out: str | os.PathLike[str],
    *,
    fields: str | Sequence[str] | Forms | Fields | None = None,
    size: int | str | tuple[int, int] | None = None,
    fit: str = "crop",
    classes: Classes | None = None,
    store: str = "raw",
    quality: int = 90,
    split: str | Mapping[str, float] | Mapping[str, range] | None = None,
    shuffle: bool = True,
    seed: int = 0,
    shards: int | str | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    progress: bool | Callable[[int], None] = False,
) -> PackBuilder:
    """Begin a pack that is written sample by sample.

    Parameters
    ----------
    out, fields
        As in pack_dataset; fields have the names that `write` gives them. Default: as the first sample shows them.
    size, fit
        As in convert_images, of the field ``image``: its images of 8 bits may then differ in size. Default: stored as they are.
    classes, store, quality, split, shuffle, seed, shards, workers, overwrite, progress
        As in pack_dataset. Splits get equal shares of each label.

    Returns
    -------
    PackBuilder
        Its ``write(**values)`` and ``write_rows(**columns)`` append samples; the end of the ``with`` block seals the pack.

    Raises
    ------
    UsageError, PackerError

    Notes
    -----
    Samples are written twice, once as they come, once in their place, and need that room on the disk for the time. A run that was
    killed or left by an exception is not gone on with. Without ``with``, ``finish()`` seals the pack and ``discard()`` leaves nothing;
    a builder that is dropped is discarded, and so is an unfinished one of the same name when another is created (a notebook's cell
    that is run again).

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
    options = PackingOptions.of(
        run.out, fields, size, fit, classes, store, quality, shuffle, seed, split, shards
    )
    if options.declared.rename:
        raise UsageError(
            "rename: is about names in a dataset; create has the names that write gives. Leave it out."
        )
    path = os.path.abspath(run.out)
    earlier = _building.get(path)
    if earlier is not None and not earlier.in_block:
        earlier.discard()
    builder = _building[path] = PackBuilder(run, options, options.notes)
    run.bar.start(None, "rows")
    return builder
