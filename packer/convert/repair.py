"""repair_pack: a damaged pack is made again beside, from its source and its own whole blocks; what differs is copied from there.

Equal inputs and options give equal bytes, so the seal of the new pack tells that it is what the damaged one was. Before that is known,
the damaged one is only given back the length of its files. A damaged header, trailer or index is not repaired.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from packer.arguments import check_workers
from packer.convert.block_workers import make_blocks
from packer.convert.conversion_task import ConversionTask
from packer.convert.image_conversion import plan_conversion
from packer.convert.image_options import ImageOptions
from packer.convert.sample_order import fill
from packer.errors import FormatError, PackerError, SourceError, UsageError
from packer.format.file_io import pread_all, pwrite_all, remove
from packer.format.header import OFFSETS, PACK_OPTIONS, Header
from packer.format.pack import Pack, open_damaged, open_pack
from packer.format.pack_writer import PackWriter, Rows
from packer.format.verdict import Verdict
from packer.format.verify import verify_pack
from packer.format.working_folder import check_output, difference
from packer.orders.runs import one_run
from packer.progress import Progress
from packer.read.row_reader import RowReader
from packer.sentence import Option
from packer.tables.reading.table_source import ReadOptions, open_table
from packer.tables.table_conversion import convert_table

SUFFIX = ".repairing"
"""Of the name of a pack, for the one that is made again beside it."""
_CHUNK = 1 << 20
_GIVEN = ("rows", "block_rows", "fields", "extents")  # members of a header that PackWriter knows itself


@dataclass(frozen=True)
class Repair:
    """Result of a repair: blocks made anew, and other parts of the files, in words."""

    blocks: int
    mended: tuple[str, ...]


def repair_pack(
    path: str | os.PathLike[str],
    source: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str] | None = None,
    pairs: Mapping[str, str | os.PathLike[str]] | None = None,
    workers: int | None = None,
    progress: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Repair:
    """Bring a damaged pack back to the bytes it had, in place.

    It is made again beside (of a pack of shards, one damaged shard after the other), which takes as much space for a while: damaged
    blocks from the source, the others from the pack itself; a table is converted again. Nothing is written that differs from
    what was sealed; a repair that is interrupted is simply run again.

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
        The blocks made anew, and other parts of the files.

    Raises
    ------
    UsageError
        Other inputs, or other versions of what makes the pixels.
    FormatError
        The header, the trailer or the index is damaged, or more than the source can undo.
    PackerError
        The repair could not be completed.
    """
    name = os.fspath(path).rstrip("/")
    try:
        return _repair(name, os.fspath(source), labels, pairs or {}, workers, progress, on_progress)
    except OSError as error:
        raise PackerError(
            f"{error.filename or name}: cannot be repaired ({error.strerror}). Free some space, or change the permission."
        ) from error


def _repair(
    name: str,
    source: str,
    labels: str | os.PathLike[str] | None,
    pairs: Mapping[str, str | os.PathLike[str]],
    workers: int | None,
    progress: bool,
    on_progress: Callable[[int], None] | None,
) -> Repair:
    pack = open_damaged(name)
    tabular = pack.parts[0].header.table is not None
    if tabular and (labels or pairs):
        raise UsageError(f"{name}: was made of a table; labels and pairs are about images. Leave them out.")
    words = [word for part in pack.parts for word in _lengthen(part)]
    verdicts = {number: verify_pack(part.path) for number, part in enumerate(pack.parts)}
    damaged = {number: verdict for number, verdict in verdicts.items() if not verdict.ok}
    if not damaged:
        return Repair(0, tuple(words))
    again = _free(name + SUFFIX)
    try:
        for number, made in (
            _of_table(pack, damaged, source, again, workers, progress, on_progress)
            if tabular
            else _of_images(
                pack, damaged, source, again, workers, Progress(progress, "rows", on_progress), labels, pairs
            )
        ):
            part = pack.parts[number]
            if _same_layout(part, open_pack(made), source, "table" if tabular else "images"):
                _copy(made, part.path)
            else:
                _copy_blocks(open_pack(made), part, damaged[number].blocks)
    finally:
        remove(again)
    for number in damaged:
        if not (verdict := verify_pack(pack.parts[number].path)).ok:
            raise _left(name, verdict)
    kinds = {problem.kind for verdict in damaged.values() for problem in verdict.problems}
    if "checksums" in kinds:
        words.append("the checksum table")
    if kinds & {"metadata", "header", "checksums"}:
        words.append("what describes the arrays")
    return Repair(sum(len(verdict.blocks) for verdict in damaged.values()), tuple(dict.fromkeys(words)))


def _left(name: str, verdict: Verdict) -> FormatError:
    return FormatError(f"{name}: cannot be repaired whole; what is left: {verdict.problems[0].text}")


def _free(again: str) -> str:
    """Return the name for the pack that is made again. Raises UsageError if there is something that no repair has left."""
    try:
        check_output(again, overwrite=True)
    except UsageError:
        raise UsageError(
            f"{again}: is in the way; the pack is made again under this name. Move it away."
        ) from None
    return again


def _lengthen(part: Pack) -> Iterator[str]:
    """Give files that were cut short or are gone the length they had, so that whole blocks can be read; what is missing reads as zero.

    Yields what will have been mended by then, in words.
    """
    for extent in (e for extents in part.header.extents.values() for e in extents if e.file):
        path = part.file(extent)
        size = os.path.getsize(path) if os.path.exists(path) else -1
        if size < extent.end:
            with open(path, "ab"):  # made if it is gone
                pass
            os.truncate(path, extent.end)
            yield f"the length of {extent.file}" if size >= 0 else f"the file {extent.file}"


def _of_images(
    pack: Pack,
    damaged: Mapping[int, Verdict],
    source: str,
    again: str,
    workers: int | None,
    bar: Progress,
    labels: str | os.PathLike[str] | None,
    pairs: Mapping[str, str | os.PathLike[str]],
) -> Iterator[tuple[int, str]]:
    """Make each damaged part of a pack of images again. Yields its number, and the name of the new one."""
    for number, verdict in damaged.items():
        with ExitStack() as stack:
            bar.start(None)
            stack.enter_context(bar)
            task = _task(stack, pack, number, source, labels, pairs)
            _make(pack.parts[number], task, again, verdict.blocks, check_workers(workers), bar.move)
        yield number, again


def _task(
    stack: ExitStack,
    pack: Pack,
    number: int,
    source: str,
    labels: str | os.PathLike[str] | None,
    pairs: Mapping[str, str | os.PathLike[str]],
) -> ConversionTask:
    """Return the task that made a part of the pack. Raises UsageError unless inputs and versions are those it was made of."""
    part = pack.parts[number]
    provenance = part.header.provenance
    options = provenance.get("options", {})
    if "source" not in provenance or PACK_OPTIONS & set(options):
        raise UsageError(f"{pack.path}: was made of other packs, not of images. Make it again from them.")
    if "duplicates" in options:
        raise UsageError(
            f"{part.path}: was appended without the images that the pack had then; nothing tells which. Bring back a copy of it, or"
            " convert all images anew."
        )
    if "fields" in options:
        raise UsageError(
            f"{pack.path}: was made of samples from Python; blocks of images and tables are made anew. Pack the samples again."
        )
    task, _ = plan_conversion(
        stack, source, ImageOptions.of_record(options, labels, pairs), out=pack.path, made=part, skip=True
    )
    differs = difference(dict(provenance), task.members["provenance"])
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


def _make(
    part: Pack,
    task: ConversionTask,
    again: str,
    damaged: frozenset[int],
    workers: int,
    progress: Callable[[int], None],
) -> None:
    """Write a part of a pack again, its damaged blocks by the task that made it, the others as they are."""
    header, planned = part.header, len(task.order.samples)
    samples, skipped = task.order.samples[:], {s["key"] for s in header.skipped}
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
        if row < kept:
            final[row] = samples[origin]
    final[kept:] = final[kept - 1]  # rows that were planned, and are cut off again
    with PackWriter(
        again,
        fields=header.fields,
        rows=planned,
        block_rows=task.storing.block_rows(task.maker, planned),
        format=part.format,
        overwrite=True,
    ) as writer:
        whole = [block for block in range(writer.blocks) if block not in damaged]
        with ThreadPoolExecutor(workers) as pool:
            reader, done = RowReader(part, header.fields), 0
            copied = pool.map(lambda block: writer.write_block(block, _read(reader, writer, block)), whole)
            for block, _ in zip(whole, copied, strict=True):
                done += min(writer.block_rows, planned - block * writer.block_rows)
                progress(done)
        writer.done = {block: [None, [], 0, 0] for block in whole}
        make_blocks(task.maker, writer, final, workers=workers, skip=False, progress=progress)
        keys = (task.maker.key(s).encode("utf-8", "surrogateescape") for s in final[:kept].tolist())
        members = {f.name: getattr(header, f.name) for f in dataclasses.fields(Header)}
        writer.finish(
            rows=kept, ragged={"key": keys}, **{k: v for k, v in members.items() if k not in _GIVEN}
        )


def _read(reader: RowReader, writer: PackWriter, block: int) -> dict[str, Rows]:
    """Read a block of a pack as its writer is given it, but for the keys; rows behind the pack's end are empty."""
    start = block * writer.block_rows
    count = min(writer.block_rows, writer.rows - start)
    runs = one_run(min(start, reader.pack.rows), min(start + count, reader.pack.rows))
    rows: dict[str, Rows] = {}
    for f in reader.fields:
        if f.ragged and f.name != "key":
            rows[f.name] = reader.read_ragged(f.name, runs) + [b""] * (count - runs.total)
        elif f.shape is not None:
            data = np.zeros((count, f.row_bytes), np.uint8)
            reader.read(f.name, runs, data[: runs.total])
            rows[f.name] = data.view(f.dtype).reshape(count, *f.shape)
    return rows


def _of_table(
    pack: Pack,
    damaged: Mapping[int, Verdict],
    source: str,
    again: str,
    workers: int | None,
    progress: bool,
    on_progress: Callable[[int], None] | None,
) -> Iterator[tuple[int, str]]:
    """Convert a table again. Yields the numbers of the damaged parts, and the names of the new ones.

    A block of a table cannot be made by itself: which rows stand in it, and what fills their missing cells, is known when all rows
    have been read.
    """
    made_of = _converted(pack, damaged)
    options, read = made_of["options"], made_of["source"]["reading"]
    found = open_table([source], ReadOptions(**{**read, "na": tuple(read["na"])})).fingerprint()
    # Files of other content give other rows, which is told when there are some.
    differs = difference(
        {name: value for name, value in made_of["source"].items() if name != "digests"}, found
    )
    if differs:
        raise UsageError(f"{source}: is not what {pack.path} was made of: {differs}. Pass the same inputs.")
    choices = dict(options.get("choices", {}))
    encode = {
        name: choices.pop(name) for name in ("log1p", "indicators", "max_categories") if name in choices
    }
    convert_table(
        source,
        again,
        **choices,
        encode=encode,
        types=read["types"],
        csv={name: value for name, value in read.items() if name != "types"},
        format=options["format"],
        store=options["store"],
        split=options.get("split"),
        shuffle="seed" in options,
        seed=options.get("seed", options.get("split_seed", 0)),
        shards=options.get("shard_rows")
        or (f"{options['shard_bytes']}B" if "shard_bytes" in options else None),
        workers=workers,
        on_error="skip" if (pack.parts[0].header.table or {})["skipped"]["rows"] else "stop",
        overwrite=True,
        resume=True,
        progress=progress,
        on_progress=on_progress,
    )
    made = open_pack(again)
    now = dict(made.parts[0].header.provenance)
    if made_of["source"].get("digests", now["source"]["digests"]) != now["source"]["digests"]:
        raise _changed(source, pack.path, "", "table")
    differs = difference(made_of, now)
    if differs:
        raise UsageError(
            f"{pack.path}: cannot be made again: {differs}. Install what it was made with, or convert the table anew."
        )
    for number in damaged:
        if number >= len(made.parts):
            raise _changed(source, pack.path, "", "table")
        yield number, made.parts[number].path


def _converted(pack: Pack, damaged: Mapping[int, Verdict]) -> Mapping[str, Any]:
    """Return how the damaged parts were converted from a table. Raises UsageError if they were not, or are not by these options alone."""
    for number in damaged:
        provenance = pack.parts[number].header.provenance
        options = provenance.get("options", {})
        if "append" in options:
            raise UsageError(
                f"{pack.parts[number].path}: was appended; rows that packer convert wrote are repaired. Convert all tables anew."
            )
        if PACK_OPTIONS & set(options):
            raise UsageError(
                f"{pack.path}: was made of other packs, not of a table. Make it again from them."
            )
        if "like" in options:
            raise UsageError(
                f"{pack.path}: was mapped as another pack; packs that were mapped by themselves are "
                f"repaired. Make it again: packer convert SRC {pack.path} {Option('like', 'THAT')} "
                f"{Option('overwrite', True)}, with the options it was made with."
            )
        reading = provenance.get("source", {}).get("reading")
        if not isinstance(reading, dict) or "format" not in options:
            raise UsageError(f"{pack.path}: does not say how it was converted. Convert the table anew.")
    return provenance


def _same_layout(part: Pack, made: Pack, source: str, what: str) -> bool:
    """Return True if a part made again has the seal of the damaged one, False if only its bytes lie elsewhere in the file.

    So they do in a file of another version of HDF5. Raises SourceError if its rows are others. what: "images" or "table".
    """
    if made.seal == part.seal:
        return True
    place = ""
    try:
        before, now = part.checksums(), made.checksums()
    except FormatError:  # of the damaged part: then nothing tells where
        before = now = np.empty((0, 1), np.uint64)
    if before.shape == now.shape and before.size:
        differs = np.argwhere(before != now).tolist()
        if not differs:
            return False
        block, column = differs[0]
        place = f" in block {block} of {part.header.columns[column]!r}"
    raise _changed(source, part.path, place if what == "images" else "", what)


def _changed(source: str, path: str, place: str, what: str) -> SourceError:
    return SourceError(
        f"{source}: gives other rows than {path} had{place}; its files have changed since. Bring back the old ones, or convert the"
        f" {what} again."
    )


def _copy_blocks(made: Pack, part: Pack, blocks: frozenset[int]) -> None:
    """Copy damaged blocks to where they lie in the damaged part."""
    for array in sorted(
        part.header.columns, key=lambda name: not name.endswith(OFFSETS)
    ):  # those say where rows lie
        for block in sorted(blocks):
            stored, at = b"".join(made.stored_block(array, block, _CHUNK)), 0
            for file, offset, nbytes in part.spans_of_block(array, block):
                path = os.path.join(part.path, file) if file else part.path
                target = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    pwrite_all(target, stored[at : at + nbytes], offset)
                    os.fsync(target)
                finally:
                    os.close(target)
                at += nbytes


def _copy(new: str, old: str) -> None:
    """Give a file, or all files of a folder, the bytes of another; what is equal is not written."""
    if os.path.isdir(new):
        for name in sorted(os.listdir(new)):
            _copy(os.path.join(new, name), os.path.join(old, name))
        return
    source = os.open(new, os.O_RDONLY | os.O_CLOEXEC)
    try:
        target = os.open(old, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            size = os.fstat(source).st_size
            for at in range(0, size, _CHUNK):
                data = pread_all(source, min(_CHUNK, size - at), at)
                with suppress(OSError):  # of a bad sector, which is written anew
                    if pread_all(target, len(data), at) == data:
                        continue
                pwrite_all(target, data, at)
            if os.fstat(target).st_size != size:
                os.ftruncate(target, size)
            os.fsync(target)
        finally:
            os.close(target)
    finally:
        os.close(source)
