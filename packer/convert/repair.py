"""repair_pack: damaged blocks made anew from the images they came from; nothing that is whole is touched."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.arguments import check_workers
from packer.codecs.block_codecs import codec_from_record
from packer.convert.block_workers import make_blocks
from packer.convert.conversion_run import ConversionTask
from packer.convert.image_conversion import plan_conversion
from packer.convert.repair_tables import repair_tables
from packer.convert.sample_order import fill
from packer.errors import FormatError, PackerError, SourceError, UsageError
from packer.format.block_spans import ArraySpans, BlockSpans, Span
from packer.format.checksums import block_checksum
from packer.format.file_io import check_inside, pwrite_all, pwrite_path
from packer.format.header import OFFSETS, Field
from packer.format.pack import Pack, PackFiles, check_own, open_pack
from packer.format.pack_writer import Rows, WriteRows
from packer.format.repair_metadata import STRUCTURES, restore_arrays, restore_structures, restore_table
from packer.format.shards import read_index
from packer.format.verify import Problem, verify_pack
from packer.format.working_folder import difference
from packer.progress import Progress

_PASSES = 3
_Overwritten = tuple[str, int, bytes]  # path, offset, the bytes that were there


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

    Nothing is written that differs from what was sealed; a repair that is interrupted is simply run again.

    Parameters
    ----------
    path : str or path
        A pack.
    source, labels, pairs
        What it was converted from; the options are in the pack. A table is converted again beside the pack, which takes as much
        space, and what is damaged is copied from there.
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
        return _repair(name, os.fspath(source), labels, pairs, workers, progress, on_progress)
    except OSError as error:
        raise PackerError(
            f"{error.filename or name}: cannot be repaired ({error.strerror}). Free some space, or change the permission."
        ) from error


def _repair(
    name: str,
    source: str,
    labels: str | os.PathLike[str] | None,
    pairs: Mapping[str, str | os.PathLike[str]] | None,
    workers: int | None,
    progress: bool,
    on_progress: Callable[[int], None] | None,
) -> Repair:
    found, bar = _Found(), Progress(progress, "rows", on_progress)
    check_own(name)
    for path_of_part in _parts(name):
        found.mended += restore_arrays(path_of_part)
    pack = open_pack(name)
    if pack.parts[0].header.table is not None:
        return _repair_table(pack, source, labels or pairs, workers, progress, on_progress, found)
    for number, part in enumerate(pack.parts):
        problems: Sequence[Problem] = verify_pack(part.path).problems
        # Some damage hides behind other: rows behind their offsets, a table behind the length of its file.
        for _ in range(_PASSES):
            if not problems:
                break
            with ExitStack() as stack:
                bar.start(None)
                stack.enter_context(bar)
                task = _task(stack, pack, number, source, labels, pairs or {})
                blocks, restored = _repair_part(part, task, problems, check_workers(workers), bar.move)
            found.blocks |= {(number, block) for block in blocks}
            found.mended += restored
            problems = verify_pack(part.path).problems
        if problems:
            raise FormatError(f"{name}: cannot be repaired whole; what is left: {problems[0].text}")
    return Repair(len(found.blocks), tuple(dict.fromkeys(found.mended)))


def _repair_table(
    pack: Pack,
    source: str,
    about_images: object,
    workers: int | None,
    progress: bool,
    on_progress: Callable[[int], None] | None,
    found: _Found,
) -> Repair:
    if about_images:
        raise UsageError(
            f"{pack.path}: was made of a table; labels and pairs are about images. Leave them out."
        )
    damaged = {number: verify_pack(part.path).problems for number, part in enumerate(pack.parts)}
    damaged = {number: problems for number, problems in damaged.items() if problems}
    if damaged:
        found.blocks = repair_tables(
            pack, damaged, source, workers=workers, progress=progress, on_progress=on_progress
        )
        if any(p.kind != "rows" for problems in damaged.values() for p in problems):
            found.mended.append(STRUCTURES)
    if problems := verify_pack(pack.path).problems:
        raise FormatError(f"{pack.path}: cannot be repaired whole; what is left: {problems[0].text}")
    return Repair(len(found.blocks), tuple(dict.fromkeys(found.mended)))


def _repair_part(
    part: Pack,
    task: ConversionTask,
    problems: Sequence[Problem],
    workers: int,
    progress: Callable[[int], None],
) -> tuple[list[int], list[str]]:
    """Make the damaged blocks and metadata of a part again. Returns the blocks, and the metadata in words."""
    kinds = {p.kind for p in problems}
    blocks = sorted({p.block for p in problems if p.kind == "rows" and p.block is not None})
    trusted, restored = "checksums" not in kinds, []
    misplaced = any((p.array or "").endswith(OFFSETS) for p in problems)
    # Without a table to trust, what is overwritten is kept until the new table proves to be the one sealed.
    undo: list[_Overwritten] = []
    # Where a block of rows of any length ends is told by the next one's offsets, so the last is done first.
    for group in [[b] for b in reversed(blocks)] if misplaced else [blocks] if blocks else []:
        undo += _make(part, task, group, trusted, workers if trusted else 1, progress)
    if not trusted:
        try:
            restore_table(part)
        except (PackerError, OSError):
            for path, offset, data in reversed(undo):
                pwrite_path(path, data, offset)
            raise
        restored.append("the checksum table")
    if kinds & {"metadata", "header", "checksums"}:
        planned = len(task.order.samples)
        restore_structures(part, planned, task.storing.block_rows(task.maker, planned))
        restored.append(STRUCTURES)
    return blocks, restored


class _Found:
    def __init__(self) -> None:
        self.blocks: set[tuple[int, int]] = set()
        self.mended: list[str] = []


def _parts(name: str) -> list[str]:
    """Return the paths of a pack's shards, or its own."""
    try:
        parts = [check_inside(name, shard.file) for shard in read_index(name).shards]
    except OSError:
        return [name]
    for part in parts:
        check_own(part)
    return parts


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
    if "source" not in provenance or {"repack", "merge", "shares"} & set(options):
        raise UsageError(f"{pack.path}: was made of other packs, not of images. Make it again from them.")
    made = plan_conversion(
        stack, source, options, out=pack.path, labels=labels, pairs=pairs, made=part, skip=True
    )
    differs = difference(dict(provenance), made.task.members["provenance"])
    if differs:
        raise UsageError(f"{source}: is not what {part.path} was made of: {differs}. Pass the same inputs.")
    if not pack.shards:
        return made.task
    alike = sum(p.header.provenance == provenance for p in pack.parts[:number])
    total = len(made.task.order.samples)
    rows = int(options.get("shard_rows") or total)
    # The same images may have been appended again: then their shards are there once more.
    return made.task.shard(alike % -(-total // rows), rows)


def _make(
    part: Pack,
    task: ConversionTask,
    blocks: Sequence[int],
    trusted: bool,
    workers: int,
    progress: Callable[[int], None],
) -> list[_Overwritten]:
    """Make some blocks anew, and write them. Returns, unless the checksum table could be trusted, what was there before."""
    samples, skipped = task.order.samples[:], {s["key"] for s in part.header.skipped}
    holes = [
        row for row, sample in enumerate(samples.tolist()) if skipped and task.maker.key(sample) in skipped
    ]
    moves, _, kept = fill(holes, task.order.splits, len(samples))
    if kept != part.rows:
        raise UsageError(
            f"{task.subject}: would give {kept} rows, {part.path} has {part.rows}. Pass the same inputs."
        )
    final = samples[:kept].copy()
    for row, origin in moves.items():
        if row < kept:
            final[row] = samples[origin]
    repairer = _BlockRepairer(part, task, final, blocks, trusted)
    try:
        make_blocks(task.maker, repairer, final, workers=workers, skip=False, progress=progress)
    finally:
        repairer.close()
    return repairer.overwritten


class _BlockRepairer:
    """Stands where a PackWriter does, and writes blocks into a pack that is there. Works in forked processes."""

    def __init__(
        self,
        part: Pack,
        task: ConversionTask,
        samples: NDArray[np.int64],
        blocks: Sequence[int],
        trusted: bool,
    ) -> None:
        """trusted: True if the checksum table tells whether a block is what it was."""
        self.out, self.fields = part.path, part.header.fields
        self.rows, self.block_rows, self.blocks = part.rows, part.header.block_rows, part.header.blocks
        wanted = set(blocks)
        self.done: dict[int, Any] = {b: [None, [], 0] for b in range(self.blocks) if b not in wanted}
        self._part, self._task, self._samples = part, task, samples
        self._table = part.checksums() if trusted else None
        self.overwritten: list[_Overwritten] = []
        self._files = PackFiles(part, write=True)

    def close(self) -> None:
        """Flush and close the files."""
        with self._files:
            self._files.flush()

    def record(self, block: int, note: Any) -> None:
        """Do nothing: verifying tells what is left to do."""

    @contextmanager
    def open_block(self, block: int) -> Iterator[WriteRows]:
        """Give a function that takes the block's rows; write what it should be. Raise SourceError if that is not what was sealed."""
        parts: dict[str, list[Any]] = {f.name: [] for f in self.fields}

        def write(given: Mapping[str, Rows]) -> None:
            for name, rows in given.items():
                parts[name].append(list(rows) if isinstance(rows, list) else np.array(rows))

        yield write
        start = block * self.block_rows
        chosen = self._samples[start : start + self.block_rows].tolist()
        parts["key"] = [[self._task.maker.key(s).encode("utf-8", "surrogateescape") for s in chosen]]
        for f in self.fields:
            if f.ragged:
                self._ragged(f, block, [row for part in parts[f.name] for row in part])
            else:
                self._fixed(f, block, np.concatenate(parts[f.name]))

    def _fixed(self, f: Field, block: int, rows: NDArray[Any]) -> None:
        data = rows.tobytes()
        if f.compressed:
            full = np.zeros((self.block_rows, *rows.shape[1:]), rows.dtype)
            full[: len(rows)] = rows
            data = codec_from_record(dict(f.codec or {})).compress(full)
        self._write(f.name, block, data, BlockSpans(self._part.header, f.name, self._files.read).spans(block))

    def _ragged(self, f: Field, block: int, rows: list[bytes]) -> None:
        blob = ArraySpans(self._part.header.extents[f.name])
        entries = ArraySpans(self._part.header.extents[f.name + OFFSETS])
        start, last = block * self.block_rows, block == self.blocks - 1
        lengths = np.fromiter(map(len, rows), "<i8", len(rows))
        # Where the block ends, the next one begins; if that was damaged too, it has been told by the one behind it.
        following = start + len(rows)
        end = blob.count if last else int(self._part.read(f.name + OFFSETS, following, following + 1)[0])
        first = end - int(lengths.sum())
        offsets = np.concatenate(([first], first + np.cumsum(lengths))).astype("<i8")
        own = offsets if last else offsets[:-1]
        data, spans = b"".join(rows), blob.elements(first, end)
        if spans is None:
            raise self._other(f.name, block)
        self._write(f.name + OFFSETS, block, own.tobytes(), entries.elements(start, start + len(own)))
        self._write(f.name, block, data, spans)

    def _write(self, array: str, block: int, data: bytes, spans: list[Span] | None) -> None:
        column = self._part.header.columns.index(array)
        checksum = block_checksum(np.frombuffer(data, np.uint8))
        if (
            spans is None
            or sum(span.nbytes for span in spans) != len(data)
            or (self._table is not None and checksum != self._table[block, column])
        ):
            raise self._other(array, block)
        at = 0
        for span in spans:
            if self._table is None:
                path = os.path.join(self.out, span.file) if span.file else self.out
                self.overwritten.append((path, span.offset, self._files.read(span)))
            pwrite_all(self._files[span.file], data[at : at + span.nbytes], span.offset)
            at += span.nbytes

    def _other(self, array: str, block: int) -> PackerError:
        return SourceError(
            f"{self._task.subject}: gives other rows than {self.out} had in block {block} of {array!r}; its files have changed since."
            " Bring back the old ones, or convert the images again."
        )
