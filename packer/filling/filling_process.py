"""The process that fills a pack: a conversion whose rows are made in the order in which its clients need them.

It is started by a client, serves any number of them, and ends when the pack is sealed, or all clients have left. Where rows cannot
be made one by one (tables; JPEG rows, compressed or ragged ones; shards; ``on_error="skip"``, which may leave rows out), the
conversion runs first, and its clients see its progress.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from inspect import signature
from typing import Any

import numpy as np

from packer.convert.conversion_task import ConversionTask, Report, RunOptions
from packer.convert.image_conversion import convert_images
from packer.convert.pack_run import part_writer, row_keys, seal, write_pack
from packer.convert.row_filling import RowFilling, fillable
from packer.errors import BusyError, PackerError, UsageError
from packer.filling.filling_client import KEYS, SOCKET, inodes
from packer.filling.filling_server import TASK_SECONDS, FillingServer
from packer.foreign_words import remedy
from packer.format.checksums import digest
from packer.format.file_io import remove
from packer.format.header import OFFSETS, PARTIAL_SUFFIX, Extent, Header
from packer.format.pack_writer import PackWriter
from packer.format.unit_states import STATES, map_states
from packer.format.working_folder import difference
from packer.inputs.image_pairs import Soft
from packer.inputs.label_options import Labels
from packer.remote.urls import is_url
from packer.service import connect, failure, listen, receive, send
from packer.tables.table_options import Csv, Encode

_FAR_TASK_SECONDS = 0.25  # of images in a store, which a worker reads over several connections at once
_PROGRESS_SECONDS = 0.2


def main(fd: int) -> None:
    """Fill the pack that the client at a socket's descriptor names."""
    first = socket.socket(fileno=fd)
    with suppress(EOFError, OSError):  # it has gone
        job, _ = receive(first)
        filling = _Filling(first, job)
        try:
            filling.run()
        except (_LeftError, KeyboardInterrupt):
            pass
        except PackerError as error:
            filling.fail(error)
        except OSError as error:  # a limit; a file system without sockets
            limit = error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
            cure = (
                "Raise the limits (ulimit -n, -u, -v)"
                if limit
                else "Pass a shorter name, or one on another disk"
            )
            where = error.filename or filling.folder
            filling.fail(PackerError(f"{where}: cannot be used ({error.strerror or error}). {cure}."))


class _LeftError(Exception):
    """All clients have left before the pack was whole."""


class _Filling:
    """One run of this process. first: the client that has started it; job: {"source", "out", "options"}."""

    def __init__(self, first: socket.socket, job: Mapping[str, Any]) -> None:
        self._first, self._job = first, job
        self._server: FillingServer | None = None
        self._told = 0.0
        self.folder = job["out"] + PARTIAL_SUFFIX

    def run(self) -> None:
        """Convert, and tell the clients when the pack has its name."""
        out = self._job["out"]
        if (other := connect(os.path.join(self.folder, SOCKET))) is not None:
            other.close()
            raise BusyError(f"{out}: is being filled by another process. Wait for it.")
        there = os.path.lexists(out)
        try:
            report = self._convert(resume=there)
        except UsageError:
            if there or not os.path.lexists(out):
                raise
            raise BusyError(f"{out}: another process has just made it. Look at it.") from None
        if self._server is not None:
            self._server.finish()
        else:
            send(self._first, [True, {"sealed": True, "cleared": report.cleared}])

    def fail(self, error: PackerError) -> None:
        """Tell all clients, or the one that there is."""
        if self._server is not None:
            self._server.finish(error)
        else:
            send(self._first, failure(error))

    def _convert(self, *, resume: bool) -> Report:
        """Run the conversion. resume: leave a whole pack of the same as it is; else what is left of another is cleared."""
        source, out, options = self._job["source"], self._job["out"], self._job["options"]
        if _is_table(source):
            from packer.tables.table_conversion import convert_table

            _check_options(convert_table, options)
            return convert_table(
                source, out, **_with_values(options), resume=resume, on_progress=self._progress
            )
        _check_options(convert_images, options)
        return convert_images(source, out, **_with_values(options), resume=resume, engine=self._write)

    def _progress(self, done: int, total: int = 0) -> None:
        """Tell how far a conversion is that runs before anything can be read; end it if the client has left."""
        now = time.monotonic()
        if now - self._told > _PROGRESS_SECONDS:
            self._told = now
            try:
                send(self._first, [None, [done, total]])
            except OSError:
                raise KeyboardInterrupt from None

    def _write(self, task: ConversionTask, out: str, running: RunOptions) -> Report:
        """Write the planned pack: the engine of the conversion."""
        if running.skip or not fillable(task):
            total = len(task.order.samples)
            return write_pack(task, out, replace(running, progress=lambda done: self._progress(done, total)))
        rows = len(task.order.samples)
        with part_writer(task, out, running) as writer:
            writer.record_rows()
            states = map_states(os.path.join(writer.folder, STATES), rows + 1, "<u8", writable=True)
            with RowFilling(task, writer, running.workers, states[:-1]) as source:
                header = _header(task, writer)
                ready = {
                    "units": rows,
                    "made": sorted(source.made),
                    "cleared": writer.cleared,
                    "place": _place(writer, header),
                }
                path = os.path.join(writer.folder, SOCKET)
                remove(path)
                with listen(path) as listener:
                    seconds = _FAR_TASK_SECONDS if is_url(self._job["source"]) else TASK_SECONDS
                    self._server = FillingServer(
                        states, source, lambda job: self._hello(job, ready), header, task_seconds=seconds
                    )
                    self._server.attend(self._first)
                    if not self._server.run(listener):
                        raise _LeftError
            return seal(task, writer, source.outcome, 0)

    def _hello(self, job: Mapping[str, Any], ready: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what a client is told. Raises UsageError if it wants another pack."""
        if job != self._job and (differs := difference(self._job, job)):
            raise UsageError(
                f"{self._job['out']}: is being filled from other images, or with other options: {differs}. Pass the same, or another name."
            )
        return ready


def _is_table(source: str) -> bool:
    """Return True for a table; folders are images."""
    if os.path.isdir(source):
        return False
    from packer.inputs.image_sources import holds_images
    from packer.source_kinds import is_table

    return is_table(source) and not holds_images(source)


_VALUES: dict[str, type[Any]] = {"Csv": Csv, "Encode": Encode, "Labels": Labels, "Soft": Soft}


def _with_values(given: Any) -> Any:
    """Return options in which {"Soft": {...}} and the like are values of these classes again."""
    if not isinstance(given, dict):
        return given
    for name, members in given.items():
        if len(given) == 1 and name in _VALUES and isinstance(members, dict):
            return _VALUES[name](**members)
    return {name: _with_values(value) for name, value in given.items()}


def _check_options(convert: Callable[..., object], options: Mapping[str, Any]) -> None:
    """Raise UsageError for an option that a conversion does not have."""
    known = [name for name, p in signature(convert).parameters.items() if p.kind is p.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            instead = remedy(convert.__name__, name) or "leave it out"
            raise UsageError(f"{name}=: is no option of {convert.__name__}; {instead}.")


def _header(task: ConversionTask, writer: PackWriter) -> bytes:
    """Return the header, without statistics, for readers while it is filled; write the keys of all rows."""
    rows, extents = writer.rows, dict(writer.extents)
    if task.keyed:
        keys = list(row_keys(task, rows, {}))
        offsets = np.zeros(rows + 1, "<i8")
        np.cumsum(np.fromiter(map(len, keys), np.int64, rows), out=offsets[1:])
        for name, data in ((KEYS, b"".join(keys)), (KEYS + OFFSETS, offsets.tobytes())):
            with open(os.path.join(writer.folder, name), "wb") as file:
                file.write(data)
        extents["key"] = (Extent(KEYS, 0, int(offsets[-1]), 1),)
        extents["key" + OFFSETS] = (Extent(KEYS + OFFSETS, 0, rows + 1, 8),)
    splits = {name: ((a, b),) for name, (a, b) in task.order.splits.items()}
    block_rows = min(writer.block_rows, rows)
    return Header(rows, block_rows, task.fields, extents, splits=splits, **task.members).to_bytes()


def _place(writer: PackWriter, header: bytes) -> dict[str, Any]:
    """Return what tells these files from others of the same name: all that read from them have to mean the same."""
    files = {extent.file for extents in writer.extents.values() for extent in extents}
    return {
        "header": digest([header]).hex(),
        "files": inodes(os.path.join(writer.folder, "pack"), files),
    }
