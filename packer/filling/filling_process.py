"""The process that fills a pack: a conversion that produces rows in the order in which its clients need them.

A client starts it. It serves any number of clients, and ends when the pack is sealed or all clients have
left. Where rows cannot be produced one by one (tables; JPEG, compressed or ragged rows; shards;
``on_error="skip"``, which may leave rows out), the conversion runs first, and the clients receive its
progress.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

import numpy as np

from packer.convert.conversion_task import ConversionTask, Report, RunOptions
from packer.convert.image_conversion import convert_images
from packer.convert.pack_run import part_writer, row_keys, seal, write_pack
from packer.convert.row_filling import RowFilling, fillable
from packer.errors import BusyError, PackerError, UsageError
from packer.filling.filling_server import TASK_SECONDS, FillingServer
from packer.filling.job_options import options_of
from packer.foreign_words import remedy
from packer.format.checksums import digest
from packer.format.file_io import create_anew, inodes, remove
from packer.format.header import OFFSETS, PARTIAL_SUFFIX, Extent, Header
from packer.format.pack_writer import PackWriter
from packer.format.unit_states import KEYS, SOCKET, STATES, map_states
from packer.format.working_folder import difference
from packer.inputs.image_sources import holds_images
from packer.remote.urls import is_url
from packer.service import connect, failure, listen, receive, send
from packer.source_kinds import is_table

_FAR_TASK_SECONDS = 0.25  # for images in a store, which a worker reads over several connections at once
_PROGRESS_SECONDS = 0.2


def main(fd: int) -> None:
    """Fill the pack that the client at a socket's descriptor names."""
    first = socket.socket(fileno=fd)
    with suppress(EOFError, OSError):  # the client has disconnected
        (_, name), data = receive(first)
        filling = _Filling(first, name)
        try:
            filling.run(data)
        except (_LeftError, KeyboardInterrupt):
            pass
        except PackerError as error:
            filling.fail(error)
        except OSError as error:  # a limit, or a file system without sockets
            cure = "Raise the limits (ulimit -n, -u, -v), or pass a name on another disk"
            where = error.filename or filling.out
            filling.fail(PackerError(f"{where}: cannot be used ({error.strerror or error}). {cure}."))


class _LeftError(Exception):
    """All clients left before the pack was complete."""


class _Filling:
    """A run of this process.

    first: connection of the client that started it; name: of that client; out: the pack.
    """

    out = "the pack"

    def __init__(self, first: socket.socket, name: str) -> None:
        self._first, self._name = first, name
        self._server: FillingServer | None = None
        self._reported = 0.0

    def run(self, sent: bytearray) -> None:
        """Convert, and tell the clients when the pack has its final name.

        sent: the job as JSON, {"source", "out", "options"}.
        """
        self._sent, self._job = sent, json.loads(sent)
        self.out = self._job["out"]
        if (other := connect(os.path.join(self.out + PARTIAL_SUFFIX, SOCKET))) is not None:
            other.close()
            raise BusyError(f"{self.out}: is being filled by another process. Wait for it.")
        there = os.path.lexists(self.out)
        try:
            report = self._convert(resume=there)
        except UsageError:
            if there or not os.path.lexists(self.out):
                raise
            raise BusyError(f"{self.out}: another process has just written it. Open it.") from None
        if self._server is not None:
            self._server.finish()
        else:
            send(self._first, [True, [None, report.cleared]])

    def fail(self, error: PackerError) -> None:
        """Send an error to all clients, or to the first."""
        if self._server is not None:
            self._server.finish(error)
        else:
            send(self._first, failure(error))

    def _convert(self, *, resume: bool) -> Report:
        """Run the conversion.

        resume: keep a complete pack of this job; otherwise remains of another job are cleared.
        """
        source, options = self._job["source"], options_of(self._job["options"])
        if is_table(source) and not holds_images(source):
            from packer.tables.table_conversion import convert_table

            _check_options(convert_table, options)
            return convert_table(source, self.out, **options, resume=resume, on_progress=self._progress)
        _check_options(convert_images, options)
        return convert_images(source, self.out, **options, resume=resume, engine=self._write)

    def _progress(self, done: int, total: int = 0) -> None:
        """Report the progress of a conversion that runs before reading; stop it if the client has left."""
        now = time.monotonic()
        if now - self._reported > _PROGRESS_SECONDS:
            self._reported = now
            try:
                send(self._first, [None, [done, total]])
            except OSError:
                raise KeyboardInterrupt from None

    def _write(self, task: ConversionTask, out: str, running: RunOptions) -> Report:
        """Write the planned pack, as the conversion's engine."""
        rows = len(task.order.samples)
        if running.skip or not fillable(task):
            return write_pack(task, out, replace(running, progress=lambda done: self._progress(done, rows)))
        with part_writer(task, out, running) as writer:
            writer.record_rows()
            states = map_states(os.path.join(writer.folder, STATES), rows + 1, "<u8", writable=True)
            with RowFilling(task, writer, running.workers, states[:-1]) as source:
                header = _header(task, writer)
                files = {extent.file for extents in writer.extents.values() for extent in extents}
                ready = {
                    "units": rows,
                    "made": sorted(source.made_fields),
                    # Identifies these files among others of the same name: all readers must use the same
                    # ones.
                    "header": digest([header]).hex(),
                    "files": inodes(os.path.join(writer.folder, "pack"), files),
                }
                told = [ready, writer.cleared]
                path = os.path.join(writer.folder, SOCKET)
                remove(path)
                with listen(path) as listener:
                    seconds = _FAR_TASK_SECONDS if is_url(self._job["source"]) else TASK_SECONDS
                    hello = partial(self._hello, (told, header))
                    self._server = FillingServer(states, source, hello, seconds)
                    self._server.attend(self._first, self._name)
                    with suppress(OSError):  # the client has disconnected
                        send(self._first, [True, told], header)
                    if not self._server.run(listener):
                        raise _LeftError
            return seal(task, writer, source.outcome, 0)

    def _hello(self, told: tuple[Any, bytes], data: bytearray) -> tuple[Any, bytes]:
        """Return the answer to a client that opens the pack. Raises UsageError if it wants another pack."""
        if data != self._sent and (differs := difference(self._job, json.loads(data))):
            raise UsageError(
                f"{self.out}: is being filled from other images, or with other options: {differs}."
                " Pass the same, or another name."
            )
        return told


def _check_options(convert: Callable[..., object], options: Mapping[str, Any]) -> None:
    """Raise UsageError for an option that the conversion does not have."""
    known = [name for name, p in signature(convert).parameters.items() if p.kind is p.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            instead = remedy(convert, name) or "leave it out"
            raise UsageError(f"{name}=: is not an option of {convert.__name__}; {instead}.")


def _header(task: ConversionTask, writer: PackWriter) -> bytes:
    """Return the header, without statistics, for readers during filling; write the keys of all rows."""
    rows, extents = writer.rows, dict(writer.extents)
    if task.keyed:
        keys = list(row_keys(task, rows, {}))
        offsets = np.zeros(rows + 1, "<i8")
        np.cumsum(np.fromiter(map(len, keys), np.int64, rows), out=offsets[1:])
        for name, data in ((KEYS, b"".join(keys)), (KEYS + OFFSETS, offsets.tobytes())):
            with open(create_anew(os.path.join(writer.folder, name)), "wb") as file:
                file.write(data)
        extents["key"] = (Extent(KEYS, 0, int(offsets[-1]), 1),)
        extents["key" + OFFSETS] = (Extent(KEYS + OFFSETS, 0, rows + 1, 8),)
    splits = {name: ((a, b),) for name, (a, b) in task.order.splits.items()}
    block_rows = min(writer.block_rows, rows)
    return Header(rows, block_rows, task.fields, extents, splits=splits, **task.members).to_bytes()
