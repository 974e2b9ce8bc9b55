"""repair_pack: a damaged pack is made again beside, from its source and its own whole blocks, and takes its place.

Equal inputs and options give equal bytes, so the seal of the new pack tells that it is what the damaged one was. Before that is known,
the damaged one is only given back the length of its files. A damaged header, trailer or index is not repaired.
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
from packer.format.file_io import fsync_path, remove
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
"""Of the name of a pack, for the one that is made again beside it."""
_OTHERWISE = PACK_OPTIONS | {"append", "duplicates", "fields", "like"}
"""Options of packs that one source does not make."""
PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Repair:
    """Result of a repair. blocks: of rows that were damaged; 0 where there were none, or what describes them was."""

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
    """Bring a damaged pack back to the bytes it had.

    It is made again beside (of a pack of shards, one damaged shard after the other), which takes as much space for a while: damaged
    blocks from the source, the others from the pack itself; a table is converted again. Each new file replaces the old one if it
    has the seal of that; a repair that is interrupted is simply run again.

    Parameters
    ----------
    path : str or path
        A pack.
    source, labels, pairs
        What it was converted from; the options are in the pack.
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
        Other inputs, or other versions of what makes the pixels.
    FormatError
        The header, the trailer or the index is damaged, or more than the source can undo.
    PackerError
        The repair could not be completed.
    """
    name, source = os.fspath(path).rstrip("/"), os.fspath(source)
    bar = Progress(progress, "rows", on_progress)
    run = RunOptions(check_workers(workers), overwrite=True, progress=bar.move)
    beside = os.path.realpath(name) + SUFFIX  # of a link to a pack what it leads to is made again
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
            with suppress(PackerError):  # of a repair that was killed when it was done; others' are left
                WorkingFolder(beside, name=name).close(keep=False)
        if blocks:
            place = WorkingFolder(beside, name=name)
            again, made = os.path.join(place.pack, "again"), list[str]()
            try:
                os.mkdir(place.pack)
                with bar:
                    if tabular:
                        made = _of_table(pack, min(blocks), source, again, run)
                    for number, damaged in blocks.items():
                        if not tabular:
                            bar.start(None)
                            with ExitStack() as stack:
                                task = _task(stack, pack, number, source, labels, pairs or {})
                                _write_again(pack.parts[number], task, again, damaged, run)
                        new = made[min(number, len(made) - 1)] if tabular else again
                        _replace(new, pack.parts[number], source)
            finally:
                place.close(keep=False)
    except OSError as error:
        raise PackerError(
            f"{error.filename or name}: cannot be repaired ({error.strerror}). Free some space, or change the permission."
        ) from error
    return Repair(sum(map(len, blocks.values())))


def check_converted(part: Pack) -> None:
    """Raise UsageError unless the options of one conversion of one source tell what is in a part."""
    provenance = part.header.provenance
    options, source = provenance.get("options", {}), provenance.get("source")
    if source is None or _OTHERWISE & set(options) or (part.header.table and "reading" not in source):
        raise UsageError(
            f"{part.path}: was made of other packs, of samples from Python, like another table, or appended to rows that it was"
            " compared with; what one conversion makes of images or a table is made anew. Make the pack again from those."
        )


def _lengthen(part: Pack) -> None:
    """Give files that were cut short or are gone the length they had, so that whole blocks can be read; what is missing is zero."""
    for extent in (e for extents in part.header.extents.values() for e in extents if e.file):
        path = part.file(extent)
        with open(path, "ab") as file:  # made if it is gone
            if file.tell() < extent.end:
                file.truncate(extent.end)


def _replace(made: str, part: Pack, source: str) -> None:
    """Replace a damaged part by the one that was made again, if that is what it was. Raises SourceError."""
    path = os.path.realpath(part.path)
    if read_seal(made) != part.seal:
        differs = difference(dict(part.header.provenance), dict(open_pack(made).header.provenance))
        raise SourceError(
            f"{source}: gives another file than {path} was{differs and f' ({differs})'}: its content has changed since, or this"
            " HDF5 library lays files out otherwise. Bring back what the pack was made with, or convert it again."
        )
    for name in os.listdir(made) if os.path.isdir(made) else [""]:
        new, old = (os.path.join(folder, name) if name else folder for folder in (made, path))
        if os.path.exists(old):
            shutil.copymode(old, new)
        os.replace(new, old)
    remove(made)
    fsync_path(os.path.dirname(path))


def _task(
    stack: ExitStack,
    pack: Pack,
    number: int,
    source: str,
    labels: PathLike | None,
    pairs: Mapping[str, PathLike],
) -> ConversionTask:
    """Return the task that made a part of the pack. Raises UsageError unless inputs and versions are those it was made of."""
    part = pack.parts[number]
    provenance = part.header.provenance
    options = provenance.get("options", {})
    task, _ = plan_conversion(
        stack, source, ImageOptions.of_record(options, labels, pairs), out=pack.path, made=part, skip=True
    )
    differs = difference(dict(provenance), task.provenance)
    if differs:
        raise UsageError(f"{source}: is not what {part.path} was made of: {differs}. Pass the same inputs.")
    if not pack.shards:
        return task
    alike = sum(p.header.provenance == provenance for p in pack.parts[:number])
    total = len(task.order.samples)
    rows = int(options.get("shard_rows") or total)
    # Shards all of whose inputs were skipped do not exist, which the names of the others tell.
    name = os.path.basename(part.path).partition(".")[0]
    original = provenance == pack.parts[0].header.provenance and name.isdecimal()
    missing = int(name) - number if original else 0
    # The same images may have been appended again: then their shards are there once more.
    return task.shard((alike + missing) % -(-total // rows), rows)


def _write_again(
    part: Pack, task: ConversionTask, again: str, damaged: frozenset[int], run: RunOptions
) -> None:
    """Write a part of a pack again: its whole blocks are done once they are copied, the task makes the damaged ones."""
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
    final[kept:] = final[kept - 1]  # rows that were planned, and are cut off again

    def copy(writer: PackWriter) -> Block:
        whole = [block for block in range(writer.blocks) if block not in damaged]
        with ThreadPoolExecutor(run.workers) as pool:
            reader = PackStore(part, task.fields)
            copied = pool.map(lambda block: writer.write_block(block, _read(reader, writer, block)), whole)
            for number, _ in enumerate(copied, 1):
                run.progress(min(writer.rows, number * writer.block_rows))
        writer.done = dict.fromkeys(whole, Block().to_note())
        return Block(reasons=dict.fromkeys(range(kept, planned), ""))

    anew = replace(task, order=SampleOrder(final, {}), inputs=None, header=part.header)
    write_part(anew, again, run, part.path, begin=copy)


def _read(reader: PackStore, writer: PackWriter, block: int) -> dict[str, Rows]:
    """Read a block of a pack as its writer is given it, but for the keys; rows behind the pack's end are empty."""
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
    """Convert a table again as a damaged part was. Returns the names of the new parts.

    A block of a table cannot be made by itself: which rows stand in it, and what fills their missing cells, is known when all rows
    have been read.
    """
    made_of = pack.parts[damaged].header.provenance
    options, read = made_of["options"], made_of["source"]["reading"]
    found = open_table([source], ReadOptions(**{**read, "na": tuple(read["na"])})).fingerprint()
    # Files of other content give other rows, which is told when there are some.
    before = {name: value for name, value in made_of["source"].items() if name != "digests"}
    if differs := difference(before, found):
        raise UsageError(f"{source}: is not what {pack.path} was made of: {differs}. Pass the same inputs.")
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
