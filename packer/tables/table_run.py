"""From a checked conversion of a table to its pack: fit the transform, map and write the staged rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from packer import native
from packer.convert.conversion_run import Conversion
from packer.convert.conversion_task import ConversionTask, provenance
from packer.convert.row_sequence import Sequences
from packer.convert.row_storage import RowStorage
from packer.convert.sample_order import SampleOrder, arrange
from packer.convert.split_assignment import assign, notes_on_classes
from packer.convert.splits import Split
from packer.errors import UsageError
from packer.format.header import TRAIN
from packer.format.write_errors import writing
from packer.garbage import paused
from packer.given_values import option_text
from packer.packs.file_rows import FILES, CountedFile, fits, to_json
from packer.tables.measuring import MeasuredRows, measure, note_on_classes, notes_on_rounding
from packer.tables.reading.table_source import TableSource
from packer.tables.staged_columns import StagedColumns
from packer.tables.staging import StagedTable, TableRows
from packer.tables.suspect_columns import notes_on_suspects
from packer.tables.transform.column_types import TableColumn, note_on
from packer.tables.transform.fitting import fit, measured
from packer.tables.transform.row_mapper import RowMapper
from packer.tables.transform.table_transform import TableTransform

_FEW, _MANY = 1, 100  # a column with more categories than _MANY may have only new ones in further rows


@dataclass(frozen=True)
class TableJob:
    """A conversion whose options have been checked.

    like: the given mapping, None to fit one; split, shuffle, seed, sequence: as in convert_table; record:
    options as the pack records them; indexes: columns left out as the index of a data frame; given: name
    of the mapping's source in messages; notes: notes on the options; counted: store the rows' numbers;
    earlier: files whose rows are counted before these.
    """

    run: Conversion
    table: TableSource
    plan: TableTransform
    like: TableTransform | None
    storing: RowStorage
    split: Split | None
    shuffle: bool
    seed: int
    record: Mapping[str, Any]
    indexes: tuple[str, ...] = ()
    given: str = "the pack given as like"
    counted: bool = True
    earlier: Sequence[CountedFile] = ()
    notes: tuple[str, ...] = ()
    sequence: Sequences | None = None

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Provenance, as in Header."""
        return provenance(self.record, self.table.fingerprint(), self.storing)

    @property
    def identity(self) -> dict[str, Any]:
        """Values that an interrupted run must match to be resumed."""
        return {
            **self.provenance,
            "newest file": str(self.table.newest()),
            "times of the files": [time for _, time in self.table.state],
        }


def _fit(
    job: TableJob, staged: StagedTable, order: SampleOrder, rows: MeasuredRows
) -> tuple[TableTransform, list[str]]:
    """Fit the transform, or give the statistics of the rows to the given one. Return it, and notes."""
    notes: list[str] = []
    texts = staged.dictionaries
    if job.like is not None:
        transform = measured(job.like, job.plan, rows.sums, rows.sample, texts, rows.fit)
    else:
        reading = _reading_of(job.table)
        transform = fit(job.plan, rows.sums, rows.sample, texts, rows.fit, reading)
        if rows.whole_label:
            transform = replace(transform, label_dtype="<i8")
            notes.append(
                f"column {job.plan.label[0]!r} holds only whole numbers, as classes do, so "
                "the label is stored as int64. For float32 pass label_as='float'."
            )
        notes += notes_on_rounding(job.plan, rows.sums, transform.label_dtype)
        if job.plan.label_kind == "number" and transform.label_dtype == "<i8":
            notes += note_on_classes(job.plan, rows.sample)
        features = [c for c in transform.columns if c.role == "feature"]
        fitted = any(c.coded or c.standardize or c.missing in ("mean", "median") for c in features)
        if order.splits and rows.fit != TRAIN and fitted:
            named = " and ".join(order.splits)
            notes.append(
                f"no split is named train (the splits are {named}): means, deviations and categories are"
                " computed over all rows."
            )
    missing, unknown = [], []
    for w in (w for w in job.plan.layout.members if w.column.role == "feature"):
        c = transform.column(w.column.name)
        if c.type == "category":
            if count := len(set(texts[w.index]).difference(c.categories or ())):
                unknown.append(f"{c.name} {count:,}")
                if job.like and _FEW < len(c.categories or ()) < _MANY and 1 < count == len(texts[w.index]):
                    raise _none_known(job, c, texts[w.index])
        elif c.missing == "nan" and rows.missing[w.index]:
            missing.append(f"{c.name} {rows.missing[w.index] / staged.rows:.1%}")
    way = f"map them otherwise in {job.given}" if job.like else "pass missing='median', mean or zero"
    notes += note_on(missing, f"missing values, stored as NaN. A network needs numbers: {way}.")
    whose = f"{job.given} does not have" if job.like else "no train row has"
    notes += note_on(unknown, f"categories that {whose}; their code is 0, like missing cells.")
    return transform, notes


def _reading_of(table: TableSource) -> dict[str, Any]:
    """Return the record of how the texts of a table are read, and its columns' notations.

    Markers of missing values are not recorded for files that have nulls.
    """
    reading = table.fingerprint()["reading"] if table.unit == "line" else {}
    written = {c.name: c.notation for c in table.columns if c.notation}
    return {**reading, "types": {**reading.get("types", {}), **written}} if written else reading


def _none_known(job: TableJob, column: TableColumn, texts: Sequence[str]) -> UsageError:
    """Return the error for a column of few categories of which the new rows have none."""
    here, there = (
        ", ".join(repr(text[:40]) for text in some[:2]) for some in (texts, column.categories or ())
    )
    return UsageError(
        f"{job.table.names[0]}: column {column.name!r} holds none of the {len(column.categories or ()):,} "
        "categories of"
        f" {job.given}: {here} here, {there} there. Write them alike, or convert all rows into a new pack."
    )


@contextmanager
def mapped(
    job: TableJob, staged: StagedTable, table: Mapping[str, Any] | None = None
) -> Iterator[tuple[ConversionTask, list[str]]]:
    """Yield the task of writing the staged rows, mapped and in their order, and notes.

    table: record of the mapping; None: the record of the transform that fits the rows.
    """
    digests = job.table.digests()
    source = {**job.provenance["source"], "digests": digests}
    own = [(digest, rows, 0) for digest, rows in zip(digests, staged.rows_of_files.values(), strict=True)]
    files = [*job.earlier, *own]
    counted = job.counted and fits(files)
    if counted:
        source[FILES] = to_json(files)
    with writing(job.run.out):
        columns = StagedColumns(job.plan, staged, job.table.names[0], job.sequence)
        order, split_notes = _order(job, columns, staged)
    workers = job.run.running.workers
    with paused():
        rows = measure(staged, order, job.plan, all_rows=job.like is not None, workers=workers)
        transform, notes = _fit(job, staged, order, rows)
        notes += split_notes
        notes += notes_on_suspects(job.plan, staged, rows.sampled) if job.like is None else ()
    job.run.bar.start(staged.rows, "rows")
    sequence = columns.sequence
    shuffled = job.shuffle or sequence is not None
    with staged.in_order(order.samples, shuffled=shuffled, workers=workers) as records:
        mapper = RowMapper(transform, staged.layout, staged.dictionaries)
        number = sum(rows for _, rows, _ in job.earlier) if counted else None
        maker = TableRows(staged, records, mapper, number=number, sequence=sequence)
        task = ConversionTask(
            job.table.names[0],
            maker,
            order,
            job.storing.with_rows(maker.row_bytes),
            {**job.provenance, "source": source},
            {},
            None if job.plan.label_kind is None else transform.classes,
            job.record.get("seed"),
            table or {**transform.to_json(), "skipped": staged.to_json()},
            keyed=False,
        )
        yield task, notes


def _order(job: TableJob, columns: StagedColumns, staged: StagedTable) -> tuple[SampleOrder, list[str]]:
    """Return the order of the rows in the pack, and notes on the splits."""
    owners, folder = assign(job.split, columns, job.seed), os.path.dirname(staged.path)
    order = arrange(owners, shuffle=job.shuffle, seed=job.seed, folder=folder, sequence=columns.sequence)
    label, classed = None if job.split is None else columns.label, job.plan.label_kind == "classes"
    if label is None or not (classed or len(label.names) ** 2 <= columns.count):
        return order, [*owners.notes]  # numbers, not classes
    what = f"{'classes' if classed else 'values'} of {job.plan.label[0]!r}"
    return order, [*owners.notes, *notes_on_classes(owners, label, what)]


def source_notes(job: TableJob) -> list[str]:
    """Return the notes on the input; notes on inferred types only for columns without a given type."""
    notes, texts = [*job.notes, *job.table.notes], []
    for given, column in zip(job.table.columns, job.plan.columns, strict=True):
        if job.like is not None:
            break
        if column.role in ("keep", "label") and given.digits and column.type in ("category", "text"):
            texts.append(_as_text(given, column.role))
        elif column.role == "feature" or (column.role == "label" and not job.plan.separator):
            found = job.table.column_notes.get(column.name, ())
            notes += found
            if found and column.role == "feature" and given.type == "category":
                notes[-1] += f" If it is not a feature, pass {option_text('drop', column.name)}."
    notes += texts
    for name in job.indexes:
        notes.append(
            f"column {name!r} is taken for the names of the rows and left out. To use it, pass "
            f"keep={name!r}, or {option_text('types', {name: 'number'})} for a feature."
        )
    if job.like is None and not job.plan.label and "features" not in job.record["choices"]:
        notes.append(
            "no label is given: every column without another role is a feature. Pass "
            "label='COLUMN' to set one."
        )
    if not native.COMPILED:
        notes.append(native.without("csv", "sums") if job.table.unit == "line" else native.without("sums"))
    return notes


def _as_text(column: TableColumn, role: str) -> str:
    """Return the note on a label or a kept column that stays text because numbers would lose its digits."""
    becomes = "it is kept as text" if role == "keep" else "its texts are the classes"
    way = f" For numbers, pass {option_text('types', {column.name: column.type})}."
    what = "whole numbers with leading zeros"
    if column.type == "number" and "." in (column.digits or ""):
        what, becomes = "numbers with zeros at their end", f"that numbers do not keep: {becomes}"
        return f"column {column.name!r} holds {what}, as {column.digits!r}, {becomes}.{way}"
    if column.type == "number":
        what, way = "whole numbers that float64 rounds", ""
    return f"column {column.name!r} holds {what}, as {column.digits!r}: {becomes}.{way}"
