"""One part of a pack: its blocks made on parallel workers, then sealed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from packer.convert.block_workers import make_blocks
from packer.convert.conversion_task import ConversionTask, NothingPackedError, Report, RunOptions
from packer.convert.row_maker import Block
from packer.convert.sample_order import fill
from packer.format.pack_writer import PackWriter


def write_part(
    task: ConversionTask,
    out: str,
    running: RunOptions,
    name: str,
    before: int = 0,
    begin: Callable[[PackWriter], Block] = lambda writer: Block(),
) -> Report:
    """Write a pack of one part.

    before: rows that other parts have; begin: may write blocks first, and note them as done; it returns what they add to the outcome.
    """

    def progress(rows: int) -> None:
        running.progress(before + rows)

    with part_writer(task, out, running, name, progress) as writer:
        resumed = sum(min(writer.block_rows, writer.rows - b * writer.block_rows) for b in writer.done)
        begun = begin(writer)
        outcome = make_blocks(
            task.maker,
            writer,
            task.order.samples,
            workers=running.workers,
            skip=running.skip,
            progress=progress,
        )
        outcome.merge(begun)
        return seal(task, writer, outcome, resumed)


def part_writer(
    task: ConversionTask,
    out: str,
    running: RunOptions,
    name: str | None = None,
    checked: Callable[[int], None] = lambda rows: None,
) -> PackWriter:
    """Begin, or go on with, a pack of one part. name, checked: as PackWriter takes them. Raises what it raises."""
    rows = len(task.order.samples)
    return PackWriter(
        out,
        name=name,
        fields=task.fields,
        rows=rows,
        block_rows=task.storing.block_rows(task.maker, rows),
        format=task.storing.format,
        overwrite=running.overwrite,
        plan=task.plan,
        resume=running.resume,
        checked=checked,
    )


def seal(task: ConversionTask, writer: PackWriter, outcome: Block, resumed: int) -> Report:
    """Close the holes of skipped inputs in a pack whose blocks are all done, and give it its name.

    resumed: rows that were done before. Raises NothingPackedError if every input was skipped.
    """
    rows = len(task.order.samples)
    if len(outcome.reasons) == rows:
        writer.forget()
        raise NothingPackedError.of(task.subject, _skipped(task, outcome))
    moves, splits, kept = fill(sorted(outcome.reasons), task.order.splits, rows)
    writer.move_rows(moves.items())
    members = task.members
    if task.header is None:
        sums, skipped = outcome.sums, _skipped(task, outcome)
        statistics = {} if sums is None else {"image": sums.mean_std(_most(task))}
        spans = {name: ((a, b),) for name, (a, b) in splits.items()}
        members |= {"splits": spans, "statistics": statistics, "skipped": skipped}
    ragged = {"key": row_keys(task, kept, moves)} if task.keyed else {}
    header = writer.finish(rows=kept, ragged=ragged, **members)
    return Report.of(
        header,
        bytes_read=outcome.bytes_read,
        resumed=resumed,
        cleared=writer.cleared,
        narrowed=outcome.narrowed,
    )


def _most(task: ConversionTask) -> int:
    """Return the most that a pixel of the images can be."""
    return next(f for f in task.fields if f.name == "image").most


def row_keys(task: ConversionTask, kept: int, moves: Mapping[int, int]) -> Iterator[bytes]:
    """Yield each kept row's key, in the order of the rows."""
    for row in range(kept):
        sample = int(task.order.samples[moves.get(row, row)])
        yield task.maker.key(sample).encode("utf-8", "surrogateescape")


def _skipped(task: ConversionTask, outcome: Block) -> tuple[dict[str, str], ...]:
    found = (
        {"key": task.maker.key(int(task.order.samples[row])), "reason": why}
        for row, why in outcome.reasons.items()
    )
    return tuple(sorted((*found, *task.skipped), key=lambda s: s["key"]))
