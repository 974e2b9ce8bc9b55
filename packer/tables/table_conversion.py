"""convert_table: pack the CSV, Parquet or Arrow files of one table. append_table: add rows to such a pack."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from packer.arguments import one_of, whole
from packer.convert.conversion_run import Conversion, check_room, staging_folder
from packer.convert.conversion_task import Report
from packer.convert.duplicate_keys import DUPLICATES, leave_out, table_files
from packer.convert.engines import published
from packer.convert.pack_run import write_pack
from packer.convert.reference_pack import Classes, parse_classes
from packer.convert.row_sequence import Sequences, columns_of
from packer.convert.row_storage import STORES, RowStorage
from packer.convert.shard_appending import adding, adding_place, append_shards, open_growable
from packer.convert.splits import Part, Split
from packer.declared_types import check_path, checks_arguments, not_a_path
from packer.errors import FormatError, UsageError
from packer.format.checksums import digest
from packer.garbage import paused
from packer.packs.file_rows import counted_files, is_counted
from packer.packs.output_names import check_space
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.tables.reading.table_opening import open_table
from packer.tables.reading.table_source import Csv, ReadOptions, TableSource, expand, file_digest
from packer.tables.staging import StagedTable, stage
from packer.tables.table_options import Encode, read_alike, value
from packer.tables.table_run import TableJob, mapped, source_notes
from packer.tables.transform.column_plan import ColumnChoices, plan_columns, with_dealing, with_kept
from packer.tables.transform.column_types import DEALING
from packer.tables.transform.table_transform import TableTransform
from packer.writing.working_folder import clear_idle

_STORES = tuple(store for store in STORES if store != "jpeg")


@dataclass(frozen=True)
class TablePlan:
    """The plan of a conversion, before rows are read.

    columns: number of columns of the input; bytes: size of the input; rows: number of rows, None if not known
    yet; roles: role of columns ("features", "categories", "label", "kept", "dropped", "splits or orders
    by") -> names; notes: sentences about the input for the user; types: column -> its type.
    """

    columns: int
    bytes: int
    rows: int | None
    roles: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]
    types: Mapping[str, str] = field(default_factory=dict)


@checks_arguments
@published
def convert_table(
    source: Any,
    out: str | os.PathLike[str],
    *,
    label: str | Sequence[str] | None = None,
    label_as: str = "auto",
    label_separator: str | None = None,
    classes: Classes | None = None,
    features: str | Sequence[str] | None = None,
    drop: str | Sequence[str] | None = (),
    keep: str | Sequence[str] | None = (),
    types: Mapping[str, str] | None = None,
    missing: str = "nan",
    one_hot: str | Sequence[str] | None = (),
    standardize: bool = False,
    dtype: str = "float32",
    encode: Encode | Mapping[str, Any] | None = None,
    like: str | os.PathLike[str] | None = None,
    csv: Csv | Mapping[str, Any] | None = None,
    format: str | None = None,
    store: str | None = None,
    split: str | Mapping[str, Part] | Split | None = None,
    shuffle: bool | None = None,
    seed: int = 0,
    sequence: bool | Sequences = False,
    shards: int | str | None = None,
    workers: int | None = None,
    on_error: str = "stop",
    overwrite: bool = False,
    resume: bool = False,
    dry_run: bool = False,
    progress: bool = False,
    on_plan: Callable[[TablePlan], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Report:
    """Pack a table into one HDF5 file, one directory of .npy files, or a directory of such shards.

    The pack has `features` [N, F] of dtype, `categories` int64 [N, C] (codes of texts; 0: missing, or in no
    train row), `label`, and a field for each column in keep. A first column without a name, which pandas
    writes for its index, is left out. The header (`table`) records how each column was mapped;
    packer.tables.apply maps new rows in the same way.

    Parameters
    ----------
    source : path, glob or sequence of them, or data frame
        Files, read one after the other: text (.csv, .tsv, .psv, .txt), .xlsx or JSON lines, each also packed
        alone as .gz, .zst, .bz2, .xz, .zip or .tar; .parquet, .arrow, .feather. A folder of tables is its
        files; folders named `column=value` add a column. Or a frame in memory: pandas, polars, pyarrow, a
        dict of columns, a list of dicts, a database cursor after a query.
    out, format, store, seed, shards, workers, overwrite, resume, progress
        As in convert_images.
    shuffle : bool, optional
        Store the rows (of each split) in a random order. Default: True, but False without a label, and with
        `like` or `sequence`, so that predictions are in the file's order. ``Pack.source_rows`` has the rows'
        numbers in it.
    label : str or sequence of str, optional
        Column to predict, or several. Texts become classes (int64 codes, names in the header), whole numbers
        (also written as 1.0) int64, other numbers float32. Several columns: [N, k].
    label_as : {"auto", "classes", "number"}
        "classes": numbers become classes too; "number": float32.
    label_separator : str, optional
        Separator of several class names in a cell of the label, which becomes uint8 [C], 1 for each; also
        "space", "tab", "comma", "semicolon", "bar". An empty cell has no class.
    classes : path or sequence of str, optional
        The classes of the label, in the order of their numbers: names, a file with one per line, or "a,b,c".
        Rows of other classes are bad.
    features, drop, keep : sequence of str, optional
        Columns that become features (default: all others), are left out, become fields.
    types : mapping, optional
        Column -> type, for columns whose first rows are misleading: "number", "category", "date" and so on,
        or a notation of numbers or dates, such as "percent". `packer convert --help` lists all at ``--type``.
    missing : {"nan", "error", "mean", "median", "zero"}
        Value of missing features; mean and median are computed over the train rows.
    one_hot : sequence of str or "all"
        Columns whose categories become 0/1 features.
    standardize : bool, default False
        Map numbers to mean 0 and standard deviation 1 over the train rows, after missing values are filled.
    dtype : str, default "float32"
        Dtype of the features.
    encode : Encode, optional
        Rarer encodings of features: ``Encode(log1p=, indicators=, max_categories=)``.
    like : path, optional
        Pack whose mapping, categories and statistics are used; the options above that define a mapping are
        then refused, but `keep` takes columns that it drops or does not have. A label that is missing, or
        empty in every row, is left out. Its store and shards are the defaults.
    csv : Csv, optional
        How text files are read: ``Csv(header=, delimiter=, quote=, decimal=, thousands=, na=, encoding=,
        skip_rows=, comment=, keep_spaces=, escape=)``.
    split : str, mapping or Split, optional
        "train=0.9,val=0.1": drawn from the seed, with equal shares of each class.
        "train=rest,test=last:500000": the last rows of the input. ``Split(...)``: a column that names the
        split of each row, or groups that stay together. Statistics are computed over the split named train,
        or over all rows if there is none.
    sequence : bool or Sequences, default False
        Rows are steps of a series, for ``window=`` of the datasets: stored in order, and no split divides
        them. ``Sequences(group="episode", order="step")``: rows with equal values of a column are a series,
        sorted by the other column. Both are no features, unless `features` or `keep` names them.
    on_error : {"stop", "skip"}
        Stop at the first bad row, or skip bad rows; rows without a label are bad.
    dry_run
        Write nothing: open the files, infer the columns, call on_plan, and return a report of the rows, as
        far as their number is known.
    on_plan, on_progress : callable, optional
        Called once before rows are read; called repeatedly with the bytes read, then with the rows written.

    Returns
    -------
    Report

    Raises
    ------
    UsageError, SourceError, SpaceError, PackerError

    Notes
    -----
    Memory does not grow with the table. Equal inputs and options give byte-identical packs, also after an
    interruption.
    """
    run = Conversion(
        out,
        "rows",
        workers=workers,
        on_error=on_error,
        overwrite=overwrite,
        resume=resume,
        progress=progress,
        on_progress=on_progress,
    )
    columns: Any = (label, label_as, features, drop, keep, missing, one_hot, standardize, dtype)
    names = () if classes is None else tuple(parse_classes(classes))
    more = {**vars(value(Encode, encode)), "classes": names, "label_separator": label_separator}
    choices = ColumnChoices(*columns, **more)
    model = None if like is None else open_pack(os.fspath(like))
    store = None if store is None else one_of("store", store, _STORES)
    storing = RowStorage.like(model, run.out, format=format, store=store, shards=shards)
    reading = ReadOptions(**vars(value(Csv, csv)), types=dict(types or {}))
    dealt = Split.parse(split), shuffle, whole("seed", seed), Sequences.parse(sequence, shuffle)
    source = _source(source)
    run.check_paths(source)
    job = _new_job(run, source, reading, choices, storing, model, *dealt)
    return _write_new(job, on_plan, dry_run=dry_run, overwrite=overwrite, resume=resume)


@paused()
def _new_job(
    run: Conversion,
    sources: Any,
    reading: ReadOptions,
    choices: ColumnChoices,
    storing: RowStorage,
    like: Pack | None,
    split: Split | None,
    shuffle: bool | None,
    seed: int,
    sequence: Sequences | None,
) -> TableJob:
    """Return the checked conversion of a table into a new pack. Raises UsageError, SourceError.

    split, shuffle (None for the default), seed, sequence: as in convert_table.
    """
    transform, digested = None, None
    if like is not None:
        transform = _transform_of(like, "like ")
        if given := sorted({*choices.record(), *(["types"] if reading.types else [])} - {"keep"}):
            raise UsageError(
                f"like {like.path}: defines the mapping of the columns; {given[0]} is given, too."
                " Leave one of them out."
            )
        digested = digest([json.dumps(transform.to_json()).encode()]).hex()
        reading = read_alike(reading, transform, "like")
    table = open_table(sources, reading)
    dealing = columns_of(split, sequence)
    indexes: tuple[str, ...] = ()
    if transform is None and choices.features is None:
        named = {*reading.types, *dealing, *(name for _, _, names in choices.lists() for name in names)}
        indexes = tuple(name for name in table.indexes if name not in named)
        choices = replace(choices, drop=(*choices.drop, *indexes))
    notes = [] if like is None else storing.notes(like)
    if transform is None:
        plan = plan_columns(table.columns, choices, dealing)
    else:
        transform = with_kept(transform, table.columns, choices.keep)
        plan = transform.plan_for(table.columns)
        if empty := table.empty_label(plan.layout):
            plan = transform.plan_for(table.columns, labeled=False)
            notes.append(f"column {empty!r}, the label, is empty in every row: the rows have no label.")
        plan = with_dealing(plan, table.columns, dealing)
    shuffle, told = _row_order(shuffle, sequence, table, like, labeled=bool(choices.label))
    record = {
        "choices": choices.record() if like is None or choices.keep else None,
        "like": digested,
        **({} if split is None else split.record(seed)),
        **({} if sequence is None else sequence.record()),
        "seed": seed if shuffle else None,
        **storing.options(),
    }
    record = {name: value for name, value in record.items() if value is not None}
    return TableJob(
        *(run, table, plan, transform, storing, split, shuffle, seed, record),
        indexes=indexes,
        notes=(*notes, *told),
        sequence=sequence,
    )


def _row_order(
    shuffle: bool | None, sequence: Sequences | None, table: TableSource, like: Pack | None, *, labeled: bool
) -> tuple[bool, list[str]]:
    """Return whether the rows are shuffled, and notes. shuffle: as given, None for the default."""
    files = len(table.names)
    if sequence is not None:
        if sequence.group is not None or files == 1:
            return False, []
        return False, [
            f"The rows of {files:,} files are one sequence, and windows reach from file to file. If each file"
            " is one, add a column that tells them apart, and pass sequence=Sequences(group='COLUMN')."
        ]
    if shuffle is not None or (like is None and labeled):
        return shuffle is not False, []
    where = "their table" if files == 1 else "their tables"
    why = "no label is given" if like is None else "they are packed like another pack"
    return False, [f"the rows keep the order of {where}, since {why}. For a random order, pass shuffle=True."]


def _write_new(
    job: TableJob,
    on_plan: Callable[[TablePlan], None] | None,
    *,
    dry_run: bool,
    overwrite: bool,
    resume: bool,
) -> Report:
    """Stage, map, write and publish the rows of a pack, unless it exists. Raises SourceError, PackerError."""
    run = job.run
    if (found := run.existing(job.provenance, None, job.table.newest())) is not None:
        return _report(job, found, already=True)
    if on_plan is not None:
        on_plan(_plan(job))
    if dry_run:
        return Report(run.out, job.table.rows or 0, notes=tuple(source_notes(job)))
    with staging_folder(run, run.out, job.identity, overwrite=overwrite, resume=resume) as place:
        staged = stage(job.table, job.plan, place, run)
        with mapped(job, staged) as (task, notes):
            check_room(place.pack, task.nbytes, place.out)
            written = write_pack(task, place.pack, run.running.for_staged, place.out)
        place.publish()
    return _report(job, replace(written, cleared=place.cleared), staged, notes)


@checks_arguments
def append_table(
    path: str | os.PathLike[str],
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    duplicates: str = "error",
    workers: int | None = None,
    on_error: str = "stop",
    progress: bool = False,
    on_plan: Callable[[TablePlan], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Report:
    """Map more rows like those of a pack of shards, and add them to it as further shards.

    Splits given as shares are drawn for the new rows in the same way. The pack's mapping and its statistics
    do not change.

    Parameters
    ----------
    path : path
        Pack of shards that was converted from a table. It stays unchanged until the new shards are complete.
    source : path, glob or sequence of them
        Files with its columns, matched by name; text is read with the pack's options.
    duplicates : {"error", "skip", "keep"}
        Files with the same bytes as a file of the pack, under any name: refuse them, leave them out, or add
        their rows again.
    workers, on_error, progress, on_plan, on_progress
        As in convert_table.

    Returns
    -------
    Report
        Counts only the added rows.

    Raises
    ------
    UsageError
        The pack is a single file or has no table; columns are missing; its splits are defined by position.
    SourceError, SpaceError, PackerError
    """
    run = Conversion(
        path, "rows", workers=workers, on_error=on_error, progress=progress, on_progress=on_progress
    )
    names = _names(source)
    one_of("duplicates", duplicates, DUPLICATES)
    pack = open_growable(run.out, "append_table", source, names)
    known = {} if duplicates == "keep" else _known_files(pack, expand(names))
    if known:  # maybe by an append that was killed after it had listed them
        clear_idle(adding(run.out), lambda plan: plan.get("pack") != pack.seal.hex())
    leave_out(duplicates, lambda: (([], f"{name}: {where}") for name, where in known.items()))
    names = [name for name in expand(names) if name not in known]
    left = [f"{name}: {where}, and were left out." for name, where in known.items()]
    if not names:
        return run.report(Report(), left)
    job = _appending_job(run, pack, names)
    if on_plan is not None:
        on_plan(_plan(job))
    with adding_place(run, pack, job.identity) as place:
        staged = stage(job.table, job.plan, place, run)
        with mapped(job, staged, pack.parts[0].header.table) as (task, notes):
            check_space(run.out, task.nbytes)
            task = replace(task, skipped=tuple(staged.skipped))
            written = append_shards(task, pack, place, run.running)
    return _report(job, written, staged, [*left, *notes])


def _appending_job(run: Conversion, pack: Pack, names: list[str]) -> TableJob:
    """Return the checked conversion of more rows for a pack. Raises UsageError, SourceError."""
    transform, first = _transform_of(pack, ""), pack.parts[0].header
    reading = read_alike(ReadOptions(), transform, "append")
    table = open_table(names, reading)
    recorded = first.provenance.get("options", {})
    split = Split.from_record(recorded) if first.splits else None
    sequence = Sequences.from_record(recorded)
    if split is not None:
        split.check_growable(run.out, in_groups=sequence is not None)
    elif first.splits:
        raise UsageError(
            f"{run.out}: has splits ({', '.join(sorted(first.splits))}), but no record of how rows were"
            " assigned to them. Convert all rows into a new pack."
        )
    fields = {f.name for f in pack.fields}
    needed = [
        *(transform.label if "label" in fields else ()),
        *(c.name for c in transform.columns if c.field in fields),
    ]
    lacking = [name for name in needed if name not in {c.name for c in table.columns}]
    if lacking:
        raise UsageError(
            f"{table.names[0]}: has no column {lacking[0]!r}; {run.out} has a field for it, and new rows need"
            " all fields. Add the column."
        )
    store = next((str(f.codec["name"]) for f in pack.fields if f.codec), "raw")
    storing = RowStorage(pack.format, store, shard_rows=pack.shards[0].rows)
    seed = int(recorded.get("split_seed", first.seed or 0))
    plan = with_dealing(transform.plan_for(table.columns), table.columns, columns_of(split, sequence))
    record = {**recorded, "append": True}
    shuffle = first.seed is not None
    return TableJob(
        *(run, table, plan, transform, storing, split, shuffle, seed, record),
        sequence=sequence,
        given=run.out,
        counted=is_counted(first),
        earlier=counted_files(part.header for part in pack.parts),
    )


def _transform_of(pack: Pack, prefix: str) -> TableTransform:
    """Return the transform of a table's pack. Raises UsageError.

    prefix: text before the pack's name in messages.
    """
    if pack.header.table is None:
        raise UsageError(f"{prefix}{pack.path}: is not a pack of a table. Pass a pack of a table.")
    try:
        return TableTransform.from_json(pack.header.table)
    except ValueError as error:
        raise FormatError(f"{pack.path}: {error}. Convert its table again.") from None


def _known_files(pack: Pack, names: Sequence[str]) -> dict[str, str]:
    """Return the files whose rows a pack already has, compared by their bytes, and a sentence about each."""
    known = {file.digest: file.name for part in pack.parts for file in table_files(part.header)}
    sentences = {}
    for name in names if known else ():
        if (packed := known.get(file_digest(name))) is not None:
            other = "" if packed == os.path.basename(name) else f" as {packed}"
            sentences[name] = f"its rows are in {pack.path} already{other}"
    return sentences


def _source(given: Any) -> Any:
    """Return a table's source: its paths, or columns or rows in memory. Raises UsageError for others."""
    if hasattr(given, "collect_schema") and not hasattr(given, "__arrow_c_stream__"):  # lazy, of polars
        given = given.collect()
    columns = any(hasattr(given, name) for name in ("__arrow_c_stream__", "fetchall", "items"))
    if columns and not hasattr(given, "to_frame"):  # a Series has it
        return given
    if isinstance(given, Iterator) and not hasattr(given, "read"):
        given = list(given)
    listed = given if isinstance(given, (list, tuple)) else [given]
    if isinstance(given, list) and given and all(isinstance(one, Mapping) for one in given):
        return given
    for one in listed:
        if not isinstance(one, (str, os.PathLike)):
            raise not_a_path("source", given)
        check_path("source", one)
    return _names(listed)


def _names(source: Any) -> list[str]:
    """Return the inputs' paths. Raises UsageError if there is none."""
    names = [os.fspath(one) for one in ([source] if isinstance(source, (str, os.PathLike)) else source)]
    if not names:
        raise UsageError("source=[]: names no file; at least one is needed. Pass their paths.")
    return names


def _plan(job: TableJob) -> TablePlan:
    """Return the plan as users see it."""
    words = {"label": "label", "keep": "kept", "drop": "dropped", DEALING: "splits or orders by"}
    roles: dict[str, list[str]] = {name: [] for name in ("features", "categories", *words.values())}
    table, plan = job.table, job.plan
    for column in plan.columns:
        roles[words.get(column.role) or ("categories" if column.coded else "features")].append(column.name)
    roles["label"] = [*plan.label]
    named = {word: tuple(names) for word, names in roles.items() if names}
    types = {column.name: column.notation or column.type for column in plan.columns}
    return TablePlan(len(plan.columns), table.nbytes, table.rows, named, tuple(source_notes(job)), types)


def _report(
    job: TableJob,
    written: Report,
    staged: StagedTable | None = None,
    notes: Sequence[str] = (),
    *,
    already: bool = False,
) -> Report:
    """Return the report of a conversion. already: the pack existed."""
    left = (written.header.table or {})["skipped"] if staged is None else staged.to_json()
    if staged is not None:
        written = replace(written, bytes_read=staged.bytes_read, resumed=staged.resumed)
        notes = [*source_notes(job), *notes]
    first, rows, reasons = tuple(left["first"]), left["rows"], left["reasons"]
    written = replace(written, skipped=first, skipped_rows=rows, reasons=reasons)
    return job.run.report(written, notes, already=already)
