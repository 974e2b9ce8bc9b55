"""The process that fills a pack: an ordinary conversion that says which rows can be read.

A reader starts it, with source and options as JSON on its standard input, and hears on its standard output
whether it fills the pack. It ends when the pack is sealed, cannot be made, or nobody reads any more. With
``on_error="skip"`` rows may be left out, so the readers wait until the pack is sealed.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from inspect import signature
from typing import Any

import numpy as np

from packer.convert.conversion_task import WATCH, ConversionTask, Report
from packer.convert.image_conversion import convert_images
from packer.convert.pack_run import row_keys
from packer.errors import BusyError, PackerError, UsageError
from packer.filling.job_options import options_of
from packer.foreign_words import remedy
from packer.format.file_io import inode_of, make_folder, remove
from packer.format.filling_pack import digest_of
from packer.format.frontier import (
    DESCRIBED,
    FILES,
    FRONTIER,
    JOB,
    KNOWN,
    PART,
    READERS,
    Frontier,
    Readers,
    write_private,
)
from packer.format.header import OFFSETS, PARTIAL_SUFFIX, Extent, Field, Header
from packer.format.pack_writer import PackWriter
from packer.format.shards import shard_name
from packer.format.working_folder import check_output, clear_idle, difference, filling_folder, read_journal
from packer.inputs.image_sources import holds_images
from packer.service import failure
from packer.source_kinds import is_table

_LOOK_SECONDS = 0.2  # interval between looks whether anybody reads
_START_SECONDS = 10.0  # for the reader that has started this process, to join before an end


def main() -> None:
    """Fill the pack of the job on the standard input."""
    sent = sys.stdin.buffer.readline().rstrip()
    job = json.loads(sent)
    out = job["out"]
    try:
        options = options_of(job["options"])
        if os.path.lexists(out):
            _convert(job["source"], out, options, resume=True)
            _answer("complete")
            return
        with suppress(KeyboardInterrupt):
            _FrontierRun(out, sent).run(job["source"], options)
    except PackerError as error:
        _answer("error", *failure(error)[1])
    except OSError as error:
        _answer("error", *failure(_unusable(error, out))[1])


def _unusable(error: OSError, out: str) -> PackerError:
    """Return the error for a limit, or for a file system without locks."""
    cure = "Raise the limits (ulimit -n, -u, -v), or pass a name on another disk"
    return PackerError(f"{error.filename or out}: cannot be used ({error.strerror or error}). {cure}.")


def _answer(*words: str) -> None:
    """Tell the reader that has started this process, once; then its standard output leads nowhere."""
    with suppress(OSError):  # it has gone
        os.write(1, json.dumps(words).encode())
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _starter_waits(seconds: float = 0.0) -> bool:
    """Return True while the reader that has started this process has neither joined nor ended."""
    return not select.select([0], [], [], seconds)[0]


class _FrontierRun:
    """A run that fills a pack which does not exist yet. Raises BusyError if another process does."""

    def __init__(self, out: str, job: bytes) -> None:
        self.out = out
        check_output(out, overwrite=False)
        self._folder = filling_folder(out)
        self._frontier = Frontier(self._path(FRONTIER), create=True)
        if not self._frontier.lock():
            raise BusyError(f"{out}: is being filled by another process. Wait for it.")
        if not os.path.exists(self._path(FRONTIER)) or os.path.lexists(out):
            raise BusyError(f"{out}: another process has just written it. Open it.")
        self._frontier.begin()
        self._readers = Readers(self._path(READERS))
        write_private(self._path(JOB), job)
        self._plan: Any = next(iter(read_journal(self._path("journal"))), None)
        self._looked, self._skip = 0.0, False
        self._pack = ""

    def run(self, source: str, options: Mapping[str, Any]) -> None:
        """Convert. Raises KeyboardInterrupt if nobody reads any more."""
        _answer("filling")
        self._skip = options.get("on_error") == "skip"
        WATCH.set(self)
        error: PackerError | None = None
        try:
            _convert(source, self.out, options, resume=False, on_progress=self._move)
        except PackerError as raised:
            error = raised
        except OSError as raised:
            error = _unusable(raised, self.out)
        except KeyboardInterrupt:
            self._clear()
            return
        self._frontier.end(error)
        _starter_waits(_START_SECONDS)
        if error is not None:
            self._clear()

    def begin(self, task: ConversionTask, out: str) -> None:
        """Describe the pack, before anything of it is written; see Watch."""
        rows = len(task.order.samples)
        self._frontier.move(0, rows)
        if self._skip:
            return
        step = min(task.storing.shard_rows or rows, rows)
        block_rows = min(task.storing.block_rows(task.maker, step), step)
        parts = [("", rows)]
        if task.storing.shard_rows is not None:
            firsts = enumerate(range(0, rows, step))
            parts = [(shard_name(k, task.storing.format), min(step, rows - first)) for k, first in firsts]
        known = dict(self._known(task))
        splits = {name: ((a, b),) for name, (a, b) in task.order.splits.items()}
        header = Header(
            rows, block_rows, task.fields, _extents(task, rows, block_rows, known), splits=splits,
            **task.members,
        )  # fmt: skip
        self._pack = os.path.join(out + PARTIAL_SUFFIX, "pack")
        root = os.path.relpath(out, os.path.dirname(self.out))
        plan = digest_of(json.dumps(task.plan, sort_keys=True, default=str).encode())
        more = json.dumps({"root": root, "parts": parts, "known": sorted(known), "plan": plan})
        data = header.to_bytes() + b"\n" + more.encode()
        write_private(self._path(DESCRIBED), data)
        self._frontier.describe(digest_of(data))

    def part(self, task: ConversionTask, writer: PackWriter) -> Callable[[int], None]:
        """Describe a part that is about to be written; see Watch."""
        if self._plan is not None:
            now = next(iter(read_journal(self._path("journal"))), None)
            if differs := difference(self._plan, now):
                self._frontier.say(differs)
            self._plan = None
        if self._skip:
            return lambda rows: None
        rows, block_rows = writer.rows, min(writer.block_rows, writer.rows)
        header = Header(rows, block_rows, task.fields, _extents(task, rows, block_rows, writer.extents))
        self._frontier.place(inode_of(self._pack))
        write_private(os.path.join(writer.folder, PART), header.to_bytes())
        return lambda rows: self._frontier.rise(task.first + rows)

    def look(self) -> None:
        """Raise KeyboardInterrupt if nobody reads any more."""
        now = time.monotonic()
        if now - self._looked > _LOOK_SECONDS:
            self._looked = now
            if not _starter_waits() and self._readers.leave():
                raise KeyboardInterrupt

    def _move(self, done: int) -> None:
        self._frontier.move(done)
        self.look()

    def _known(self, task: ConversionTask) -> Iterable[tuple[str, tuple[Extent, ...]]]:
        """Write the arrays that are known before the rows are made; yield their extents."""
        folder, samples = self._path(KNOWN), task.order.samples
        if not task.maker.made_fields:
            return
        remove(folder)
        make_folder(folder)
        arrays: dict[str, Any] = {}
        plain = {f.name for f in task.fields if not f.ragged and not f.compressed}
        for name, values in task.maker.columns(samples).items():
            if name in plain:
                arrays[name] = values
        if task.keyed:
            keys = list(row_keys(task, len(samples), {}))
            offsets = np.zeros(len(keys) + 1, "<i8")
            np.cumsum(np.fromiter(map(len, keys), np.int64, len(keys)), out=offsets[1:])
            arrays |= {"key": np.frombuffer(b"".join(keys), np.uint8), "key" + OFFSETS: offsets}
        for name, values in arrays.items():
            write_private(os.path.join(folder, name), values.tobytes())
            yield name, (Extent(name, 0, len(values), values.nbytes // max(1, len(values)) or 1),)

    def _clear(self) -> None:
        """Remove the files of this run, and the folder if there is nothing to resume."""
        for name in FILES:
            remove(self._path(name))
        clear_idle(self.out)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)


def _convert(source: str, out: str, options: Mapping[str, Any], **ours: Any) -> Report:
    """Run the conversion. Raises PackerError."""
    convert: Callable[..., Report] = convert_images
    if is_table(source) and not os.path.isdir(source) and not holds_images(source):
        from packer.tables.table_conversion import convert_table

        convert = convert_table
    known = [name for name, p in signature(convert).parameters.items() if p.kind is p.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            instead = remedy(convert.__name__, name) or "leave it out"
            raise UsageError(f"{name}=: is not an option of {convert.__name__}; {instead}.")
    return convert(source, out, **options, **ours)


def _extents(
    task: ConversionTask, rows: int, block_rows: int, exact: Mapping[str, tuple[Extent, ...]]
) -> dict[str, tuple[Extent, ...]]:
    """Return the extents of all arrays: those that are known, and estimated sizes of the others."""
    return {
        array: exact.get(array) or _estimated(task, f, array, rows, block_rows)
        for f in task.fields
        for array in f.arrays
    }


def _estimated(task: ConversionTask, f: Field, array: str, rows: int, block_rows: int) -> tuple[Extent, ...]:
    file = f"{array}.npy" if task.storing.format == "npy" else ""
    if f.compressed:
        counts = (min(block_rows, rows - first) for first in range(0, rows, block_rows))
        return tuple(Extent(file, 0, count, f.row_bytes, count * f.row_bytes) for count in counts)
    if array != f.name:
        return (Extent(file, 0, rows + 1, 8),)
    if f.ragged:
        return (Extent(file, 0, rows * (f.loaded.row_bytes // 10 or task.maker.ragged_bytes), 1),)
    return (Extent(file, 0, rows, f.row_bytes),)
