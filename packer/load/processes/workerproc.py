"""Main loop of a process that runs a user's transform. It ends when its parent tells it to, or has ended.

It reads its rows itself, calls the user's function, and copies what that returns into the slot: what goes back through the
connection is a few numbers, and the rows of ragged fields.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError, TransformError
from packer.format.header import Field
from packer.load.batch import Bytes, Filled, SlotLayout
from packer.load.processes import calling
from packer.load.processes.calling import Store, TransformCall, WrongReturn, described, said
from packer.load.processes.shared_slots import SharedSlots
from packer.load.processes.transforms import PythonTransform
from packer.orders.runs import Runs
from packer.read.array_store import PackStore, key_in_brackets

Work = tuple[PythonTransform, PackStore, tuple[Field, ...]]

READY = "ready"
NO_ROW = -1
_CHUNK_BYTES = (
    1 << 20
)  # of rows read at once: so few that they are still in the processor's cache when fn sees them
_CHUNK_ROWS = 1024
_LOOK_SECONDS = 5.0  # between looks at whether the parent is gone
_TRACEBACK = 20_000  # characters
_OURS = (__file__, calling.__file__)  # whose frames tell a user nothing


class TransformJob(NamedTuple):
    """A request to a process: the rows to transform.

    slot: (offset, bytes) in the shared memory, None when only the output fields are asked for. form: pickled (SlotLayout, output
    fields). first: row of the slot where the rows begin. counters: what keys the draws in place of the
    rows, where an order repeats rows.
    """

    runs: Runs
    seed: int
    epoch: int
    slot: tuple[int, int] | None = None
    form: bytes = b""
    first: int = 0
    counters: Runs | None = None


def run(connection: Connection[Any, Any], memory: SharedSlots, place: int, work: Work | bytes) -> None:
    """Serve jobs until the parent says None, or is gone.

    place: of this process in the first page of the memory, where it notes the row that fn is called for, for the parent to read
    when the process dies. work: pickled where the process was not forked.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    gc.freeze()  # what was inherited is the parent's: collecting it here would copy its pages and run its finalizers
    try:
        transform, reader, fields = pickle.loads(work) if isinstance(work, bytes) else work
    except Exception as error:
        sentence = (
            f"transform: a new process cannot load the function ({type(error).__name__}: {said(error)}); one that can be imported"
            " there is allowed. Move it into a module, or pass context='fork'."
        )
        connection.send_bytes(_message(TransformError(sentence)))
        return
    maker = _Maker(transform, reader, fields, memory.at(8 * place, 8).view(np.int64))
    connection.send_bytes(_message(READY))
    for job in _jobs(connection):
        try:
            reply = _message(
                maker.outputs(job) if job.slot is None else maker.fill(job, memory.at(*job.slot))
            )
        except (TransformError, FormatError) as error:
            reply = _message(error)
        except Exception as error:
            lines = "".join(traceback.format_exception(error))[-_TRACEBACK:]
            reply = _message(TransformError(f"transform: process {os.getpid()} failed:\n\n{lines}"))
        with suppress(OSError):  # the parent is gone
            connection.send_bytes(reply)


def _jobs(connection: Connection[Any, Any]) -> Iterator[TransformJob]:
    parent, home = multiprocessing.parent_process(), os.getppid()
    gone = parent.sentinel if parent else -1
    # Other children may hold the other ends of both open, so that neither tells that the parent is gone.
    while os.getppid() == home and gone not in (ready := wait([connection, gone], _LOOK_SECONDS)):
        if not ready:
            continue
        try:
            job = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        if job is None:
            return
        yield job


def _message(reply: Any) -> bytes:
    return pickle.dumps(reply)  # send() pickles in a way that torch changes, to share memory


class _Maker:
    """A reader of input rows that calls fn and stores its results."""

    def __init__(
        self, transform: PythonTransform, reader: PackStore, fields: tuple[Field, ...], at: NDArray[np.int64]
    ) -> None:
        self._transform, self._reader, self._fields, self._at = transform, reader, fields, at
        self._call = TransformCall(transform, fields)
        row_bytes = sum(f.row_bytes for f in fields if not f.ragged)
        self._chunk_rows = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // max(row_bytes, 1)))
        self._scratch: dict[str, Bytes] = {}
        self._forms: dict[bytes, tuple[SlotLayout, tuple[Field, ...]]] = {}

    def outputs(self, job: TransformJob) -> tuple[Field, ...]:
        """Derive the output fields from a call of fn with the first row."""
        runs = job.runs.part(0, 1)
        with self._blamed(job):
            columns = self._read(runs)
            rows = self._reader.place(runs).rows()
            self._call.key(job.seed, job.epoch, rows)
            self._at[0] = rows[0]
            sample = _row(columns, 0)
            result = self._call(0, dict(sample))
            self._at[0] = NO_ROW
            return described(result, sample, self._fields, self._transform, self._call.ragged)

    def fill(self, job: TransformJob, slot: Bytes) -> Filled:
        """Fill a job's rows of a slot."""
        if job.form not in self._forms:
            self._forms = {job.form: pickle.loads(job.form)}
        layout, fields = self._forms[job.form]
        total = job.runs.total
        store = Store(fields, layout.typed(slot, job.first + total))
        read_seconds = transform_seconds = 0.0
        with self._blamed(job):
            for begin in range(0, total, self._chunk_rows):
                started = time.perf_counter()
                runs = job.runs.part(begin, min(begin + self._chunk_rows, total))
                rows = self._reader.place(runs).rows()
                columns = self._read(runs)
                read = time.perf_counter()
                counters = (
                    rows if job.counters is None else job.counters.part(begin, begin + len(rows)).rows()
                )
                self._call.key(job.seed, job.epoch, counters)
                for i, row in enumerate(rows.tolist()):
                    self._at[0] = row
                    result = self._call(i, _row(columns, i))
                    if self._call.unlimited():
                        columns = self._read(runs)
                        result = self._call(i, _row(columns, i))
                    store.put(job.first + begin + i, result)
                self._at[0] = NO_ROW
                read_seconds += read - started
                transform_seconds += time.perf_counter() - read
        return Filled(store.ragged, read_seconds, transform_seconds)

    def _read(self, runs: Runs) -> dict[str, Any]:
        """Read the input fields of rows: arrays [n, *shape] in reused memory, ragged fields as lists of n."""
        total = runs.total
        columns: dict[str, Any] = {}
        for f in self._fields:
            if f.ragged:
                columns[f.name] = list(self._reader.decoded(f.name, runs))
                continue
            nbytes = total * f.row_bytes
            if f.name not in self._scratch or len(self._scratch[f.name]) < nbytes:
                self._scratch[f.name] = np.empty(nbytes, np.uint8)
            raw = self._scratch[f.name][:nbytes]
            self._reader.copy(runs, {f.name: raw.reshape(total, f.row_bytes)})
            columns[f.name] = raw.view(f.dtype).reshape(total, *(f.shape or ()))
        return columns

    @contextmanager
    def _blamed(self, job: TransformJob) -> Iterator[None]:
        """Turn errors of fn into TransformErrors that name the row."""
        try:
            yield
        except BaseException as error:  # SystemExit too: nothing that fn does may end the process unheard
            row = int(self._at[0])
            self._at[0] = NO_ROW
            if row == NO_ROW:  # reading failed, which is none of fn's doing
                raise
            where = f"row {row}{key_in_brackets(self._reader.pack, row)} in epoch {job.epoch}"
            if isinstance(error, WrongReturn):
                raise TransformError(f"transform: for {where} it {error}.") from None
            while error.__traceback__ and error.__traceback__.tb_frame.f_code.co_filename in _OURS:
                error.__traceback__ = error.__traceback__.tb_next
            lines = "".join(traceback.format_exception(error))[-_TRACEBACK:]
            raise TransformError(
                f"transform: for {where} it raised {type(error).__name__}: {said(error)}. In process {os.getpid()}:\n\n{lines}"
            ) from None


def _row(columns: dict[str, Any], i: int) -> dict[str, Any]:
    return {name: column[i] for name, column in columns.items()}
