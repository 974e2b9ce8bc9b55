"""repair_pack: write a damaged pack again from its source and its intact blocks, then replace it.

Equal inputs and options give equal bytes, so equal seals prove that the new pack is what the damaged pack
was. Until then packer changes nothing but the length of the damaged pack's files, which it restores. A
damaged header, trailer or index cannot be repaired.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

import numpy as np

from packer.arguments import check_workers
from packer.convert.conversion_task import ConversionTask, RunOptions
from packer.convert.image_conversion import plan_conversion
from packer.convert.image_options import ImageOptions
from packer.convert.pack_run import write_part
from packer.convert.row_maker import Block
from packer.convert.sample_order import SampleOrder, fill
from packer.convert.splits import Split
from packer.errors import PackerError, SourceError, UsageError
from packer.format.file_io import PRIVATE, fsync_path, make_folder, open_own, remove
from packer.format.header import PACK_OPTIONS, PARTIAL_SUFFIX
from packer.format.pack import Pack, read_seal
from packer.format.pack_opening import open_damaged, open_pack
from packer.format.pack_writer import PackWriter, Rows
from packer.format.verify import verify_pack
from packer.format.working_folder import WorkingFolder, difference
from packer.orders.runs import one_run
from packer.progress import Progress
from packer.read.array_store import PackStore
from packer.tables.reading.table_opening import open_table
from packer.tables.reading.table_source import ReadOptions
from packer.tables.table_conversion import convert_table

SUFFIX = ".repairing"
"""Suffix of the pack's name for the new pack beside it."""
_OTHERWISE = PACK_OPTIONS | {"append", "duplicates", "fields", "like"}
"""Options of packs that are not the conversion of a single source."""
PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Repair:
    """Result of a repair. blocks: number of damaged blocks of rows; 0 if no rows were damaged."""

    blocks: int


def repair_pack(
    path: PathLike,
    source: PathLike,
    *,
    labels: PathLike | None = None,
    pairs: Mapping[str, PathLike] | None = None,
    workers: int | None = None,
    progress: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Repair:
    """Restore a damaged pack to its original bytes.

    The function writes the pack (or each damaged shard in turn) again beside the old one, so the disk needs
    room for both. Damaged blocks come from the source, intact blocks from the pack; a table is converted
    again. A new file replaces the old one if their seals are equal. After an interruption run the repair
    again.

    Parameters
    ----------
    path : str or path
        A pack.
    source, labels, pairs
        The inputs that the pack was made from. The options are read from the pack.
    workers, progress
        As in convert_images.
    on_progress : callable
        Called with the rows done so far.

    Returns
    -------
    Repair
        The number of damaged blocks of rows.

    Raises
    ------
    UsageError
        Other inputs, or other versions of the libraries that determine the pixels.
    FormatError
        The header, the trailer or the index is damaged, or damage that the source cannot undo.
    PackerError
        The repair could not be completed.
    """
    name, source = os.fspath(path).rstrip("/"), os.fspath(source)
    bar = Progress(progress, "rows", on_progress)
    run = RunOptions(check_workers(workers), overwrite=True, progress=bar.move)
    beside = os.path.realpath(name) + SUFFIX  # a link is followed: its target is written again
    try:
        pack = open_damaged(name)
        tabular = pack.parts[0].header.table is not None
        if tabular and (labels or pairs):
            raise UsageError(
                f"{name}: was made from a table; labels and pairs are about images. Leave them out."
            )
        for part in pack.parts:
            _lengthen(part)
        blocks = {n: v.blocks for n, part in enumerate(pack.parts) if not (v := verify_pack(part.path)).ok}
        for number in blocks:
            check_converted(pack.parts[number])
        if not blocks and os.path.isdir(beside + PARTIAL_SUFFIX):
            with suppress(PackerError):  # remains of a killed repair that had finished; a running one is left
                WorkingFolder(beside, name=name).close(keep=False)
        if blocks:
            place = WorkingFolder(beside, name=name)
            again, new_parts = os.path.join(place.pack, "again"), list[str]()
            try:
                make_folder(place.pack)
                with bar:
                    if tabular:
                        new_parts = _of_table(pack, min(blocks), source, again, run)
                    for number, damaged in blocks.items():
                        if not tabular:
                            bar.start(None)
                            with ExitStack() as stack:
                                task = _task(stack, pack, number, source, labels, pairs or {})
                                _write_again(pack.parts[number], task, again, damaged, run)
                        new = new_parts[min(number, len(new_parts) - 1)] if tabular else again
                        _replace(new, pack.parts[number], source)
            finally:
                place.close(keep=False)
    except OSError as error:
        raise PackerError(
            f"{error.filename or name}: cannot be repaired ({error.strerror}). Free some space, or change the"
            " permissions."
        ) from error
    return Repair(sum(map(len, blocks.values())))


def check_converted(part: Pack) -> None:
    """Raise UsageError unless a part is the result of a single conversion of a single source."""
    provenance = part.header.provenance
    options, source = provenance.get("options", {}), provenance.get("source")
    if source is None or _OTHERWISE & set(options) or (part.header.table and "reading" not in source):
        raise UsageError(
            f"{part.path}: was made from other packs, from samples in Python, like another table, or appended"
            " with a comparison of rows; only the result of a single conversion of images or of a table can"
            " be repaired. Write the pack again from its inputs."
        )


def _lengthen(part: Pack) -> None:
    """Restore the length of truncated or missing files with zeros, so that intact blocks can be read."""
    for extent in (e for extents in part.header.extents.values() for e in extents if e.file):
        path = part.file(extent)
        with open(open_own(path, mode=PRIVATE), "ab") as file:  # created if it is missing
            if file.tell() < extent.end:
                file.truncate(extent.end)


def _replace(new_part: str, part: Pack, source: str) -> None:
    """Replace a damaged part by the new part if their seals are equal. Raises SourceError."""
    path = os.path.realpath(part.path)
    if read_seal(new_part) != part.seal:
        differs = difference(dict(part.header.provenance), dict(open_pack(new_part).header.provenance))
        raise SourceError(
            f"{source}: gives other bytes than {path} had{differs and f' ({differs})'}: its content has"
            " changed since, or this HDF5 library lays files out differently. Restore the inputs and"
            " libraries of the pack, or convert it again."
        )
    for name in os.listdir(new_part) if os.path.isdir(new_part) else [""]:
        new, old = (os.path.join(folder, name) if name else folder for folder in (new_part, path))
        if os.path.exists(old):
            shutil.copymode(old, new)
        os.replace(new, old)
    remove(new_part)
    fsync_path(os.path.dirname(path))


def _task(
    stack: ExitStack,
    pack: Pack,
    number: int,
    source: str,
    labels: PathLike | None,
    pairs: Mapping[str, PathLike],
) -> ConversionTask:
    """Return the task that wrote a part of the pack. Raises UsageError if inputs or versions differ."""
    part = pack.parts[number]
    provenance = part.header.provenance
    options = provenance.get("options", {})
    task, _ = plan_conversion(
        stack, source, ImageOptions.of_record(options, labels, pairs), out=pack.path, existing=part, skip=True
    )
    differs = difference(dict(provenance), task.provenance)
    if differs:
        raise UsageError(f"{source}: is not the input of {part.path}: {differs}. Pass the same inputs.")
    if not pack.shards:
        return task
    alike = sum(p.header.provenance == provenance for p in pack.parts[:number])
    total = len(task.order.samples)
    rows = int(options.get("shard_rows") or total)
    # Shards whose inputs were all skipped do not exist; the shard's name tells how many are missing before
    # it.
    name = os.path.basename(part.path).partition(".")[0]
    original = provenance == pack.parts[0].header.provenance and name.isdecimal()
    missing = int(name) - number if original else 0
    # Images that were appended again have their shards twice.
    return task.shard((alike + missing) % -(-total // rows), rows)


def _write_again(
    part: Pack, task: ConversionTask, again: str, damaged: frozenset[int], run: RunOptions
) -> None:
    """Write a part of a pack again: copy its intact blocks, and make the damaged ones from the task."""
    planned, samples = len(task.order.samples), task.order.samples[:]
    skipped = {s["key"] for s in part.header.skipped}
    holes = [
        row for row, sample in enumerate(samples.tolist()) if skipped and task.maker.key(sample) in skipped
    ]
    moves, _, kept = fill(holes, task.order.splits, planned)
    if kept != part.rows:
        raise UsageError(
            f"{task.subject}: would give {kept} rows, {part.path} has {part.rows}. Pass the same inputs."
        )
    final = samples.copy()
    for row, origin in moves.items():
        final[row] = samples[origin]
    final[kept:] = final[kept - 1]  # planned rows that are cut off at the end

    def copy(writer: PackWriter) -> Block:
        intact = [block for block in range(writer.blocks) if block not in damaged]
        with ThreadPoolExecutor(run.workers) as pool:
            reader = PackStore(part, task.fields)
            copied = pool.map(lambda block: writer.write_block(block, _read(reader, writer, block)), intact)
            for number, _ in enumerate(copied, 1):
                run.progress(min(writer.rows, number * writer.block_rows))
        writer.done = dict.fromkeys(intact, Block().to_note())
        return Block(reasons=dict.fromkeys(range(kept, planned), ""))

    task_again = replace(task, order=SampleOrder(final, {}), inputs=None, header=part.header)
    write_part(task_again, again, run, part.path, begin=copy)


def _read(reader: PackStore, writer: PackWriter, block: int) -> dict[str, Rows]:
    """Read a block of a pack as input of a PackWriter, without keys; rows after the pack's end are empty."""
    start = block * writer.block_rows
    count = min(writer.block_rows, writer.rows - start)
    runs = one_run(min(start, reader.pack.rows), min(start + count, reader.pack.rows))
    rows: dict[str, Rows] = {}
    for f in reader.fields:
        if f.ragged and f.name != "key":
            rows[f.name] = reader.ragged(f.name, runs) + [b""] * (count - runs.total)
        elif f.shape is not None:
            data = np.zeros((count, f.row_bytes), np.uint8)
            reader.copy(runs, {f.name: data[: runs.total]})
            rows[f.name] = data.view(f.dtype).reshape(count, *f.shape)
    return rows


def _of_table(pack: Pack, damaged: int, source: str, again: str, run: RunOptions) -> list[str]:
    """Convert a table again with the options of a damaged part. Returns the paths of the new parts.

    A single block of a table cannot be made: its rows, and the values for missing cells, are known only after
    all rows have been read.
    """
    provenance = pack.parts[damaged].header.provenance
    options, read = provenance["options"], provenance["source"]["reading"]
    actual = open_table([source], ReadOptions(**{**read, "na": tuple(read["na"])})).fingerprint()
    # Files of other content give other rows; comparing the seals detects that.
    expected = {name: value for name, value in provenance["source"].items() if name != "digests"}
    if differs := difference(expected, actual):
        raise UsageError(f"{source}: is not the input of {pack.path}: {differs}. Pass the same inputs.")
    choices = dict(options.get("choices", {}))
    rarer = choices.keys() & {"log1p", "indicators", "max_categories"}
    nbytes = options.get("shard_bytes")
    convert_table(
        source,
        again,
        encode={name: choices.pop(name) for name in rarer},
        **choices,
        types=read["types"],
        csv={name: value for name, value in read.items() if name != "types"},
        format=options["format"],
        store=options["store"],
        split=Split.of_record(options),
        shuffle="seed" in options,
        seed=options.get("seed", options.get("split_seed", 0)),
        shards=f"{nbytes}B" if nbytes else options.get("shard_rows"),
        workers=run.workers,
        on_error="skip" if (pack.parts[0].header.table or {})["skipped"]["rows"] else "stop",
        overwrite=True,
        on_progress=run.progress,
    )
    return [part.path for part in open_pack(again).parts]
