"""The process that fills a pack: an ordinary conversion that says how many rows can be read.

A reader starts it (packs/filling_pack.py). It ends when the pack is sealed, when it cannot be made, or when
nobody reads any more; its work is kept. Nothing can be read before the pack is sealed where rows have no
fixed place (JPEG, compressed or ragged rows without shards), or may be left out (``on_error="skip"``), and of
tables, which are parsed first.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

from packer.errors import PackerError, UsageError, error_record
from packer.filling.job_options import options_of
from packer.foreign_words import remedy
from packer.format.fields import Extent
from packer.format.file_io import inode_of
from packer.format.frontier import COMPLETE, FAILED, PLANNING, READABLE, Frontier
from packer.format.header import (
    PARTIAL_SUFFIX,
    Header,
)
from packer.format.write_errors import writing
from packer.inputs.image_sources import holds_images
from packer.packs.shards import shard_name
from packer.source_kinds import is_table
from packer.starting import detach
from packer.writing.working_folder import clear_idle

if TYPE_CHECKING:  # the converter is imported once the frontier is locked
    from packer.convert.conversion_task import ConversionTask, Report, RunOptions

_LOOK_SECONDS = 0.2  # interval between looks whether anybody reads


def main() -> None:
    """Convert the job on the standard input, unless another process has locked the frontier."""
    job = json.loads(sys.stdin.buffer.read())
    frontier = Frontier(sys.argv[1])
    if not frontier.lock():
        return
    frontier.begin(PLANNING)
    detach()
    try:
        with writing(job["out"]):
            _FrontierRun(frontier, job).convert()
        frontier.begin(COMPLETE, job=job)
        return
    except KeyboardInterrupt:  # nobody reads
        pass
    except PackerError as error:
        frontier.begin(FAILED, error=error_record(error))
    clear_idle(job["out"])


class _FrontierRun:
    """A conversion that raises a frontier."""

    def __init__(self, frontier: Frontier, job: Mapping[str, Any]) -> None:
        self._frontier, self._job = frontier, job
        self._total, self._looked = 0, time.monotonic()

    def convert(self) -> None:
        """Convert, or compare a complete pack. Raises PackerError; KeyboardInterrupt if nobody reads."""
        from packer.convert.image_conversion import convert_images
        from packer.tables.table_conversion import convert_table

        source, out, options = self._job["source"], self._job["out"], options_of(self._job["options"])
        common: dict[str, Any] = {"resume": os.path.lexists(out)}
        convert: Callable[..., Report] = convert_images
        if is_table(source) and not holds_images(source):
            convert, common["on_progress"] = convert_table, self._move
        else:
            common["engine"] = self._write
        known = [name for name, p in signature(convert).parameters.items() if p.kind is p.KEYWORD_ONLY]
        for name in options:
            if name not in known:
                instead = remedy(convert, name) or "leave it out"
                raise UsageError(f"{name}=: is not an option of {convert.__name__}; {instead}.")
        if why := convert(source, out, **options, **common).cleared:
            logging.getLogger("packer.filling").warning(
                "%s: earlier work on it was discarded, because the source or the options changed: %s",
                out,
                why,
            )

    def _write(self, task: ConversionTask, out: str, running: RunOptions) -> Report:
        """Write the planned pack, as the conversion's engine."""
        from packer.convert.pack_run import write_pack

        self._total = len(task.order.samples)
        running = replace(running, progress=self._move)
        placed = not any(f.ragged or f.compressed for f in task.fields if f.name != "key")
        if not running.skip and (placed or task.storing.shard_rows is not None):
            running = replace(running, readable=partial(self._rise, task))
        return write_pack(task, out, running)

    def _rise(self, task: ConversionTask, rows: int, extents: Mapping[str, tuple[Extent, ...]]) -> None:
        """Raise the frontier; describe the pack when the first rows can be read."""
        if rows and not self._frontier.rows:
            shards, total, format = task.storing.shard_rows, self._total, task.storing.format
            size = min(shards or total, total)
            header = Header(
                total,
                min(task.storing.block_rows(task.maker, size), size),
                task.fields,
                {array: extents.get(array, ()) for f in task.fields for array in f.arrays},
                splits={name: ((a, b),) for name, (a, b) in task.order.splits.items()},
                **task.members,
            )
            self._frontier.begin(
                READABLE,
                job=self._job,
                header=json.loads(header.to_bytes()),
                files=[shard_name(k, format) for k in range(-(-total // size))] if shards else [],
                shard_rows=size,
                # It tells these files from later ones of the same name, which no reader may take for them.
                inode=inode_of(os.path.join(self._job["out"] + PARTIAL_SUFFIX, "pack")),
            )
        self._frontier.rise(rows)

    def _move(self, done: int) -> None:
        """Report progress; raise KeyboardInterrupt if nobody reads any more."""
        self._frontier.move(done, self._total)
        now = time.monotonic()
        if now - self._looked > _LOOK_SECONDS:
            self._looked = now
            if not self._frontier.has_readers:
                raise KeyboardInterrupt
