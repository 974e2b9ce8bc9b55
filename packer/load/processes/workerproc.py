"""Main loop of a process that runs a user's transform; it ends on a message, or with its parent.

The process reads its rows itself, calls the user's function and copies the results into the slot; the
connection carries only a few numbers, and the rows of ragged fields.
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
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError, TransformError
from packer.format.fields import Field
from packer.load.batch import Filled, SlotLayout
from packer.load.processes import calling
from packer.load.processes.calling import Outputs, TransformCall, WrongReturn, described, message_of
from packer.load.processes.shared_slots import SharedSlots
from packer.load.processes.transforms import PythonTransform
from packer.orders.runs import Runs
from packer.read.array_store import PackStore, key_in_brackets

Work = tuple[PythonTransform, PackStore, tuple[Field, ...]]
"""The transform, the store of its input, and the input fields as they are loaded."""

READY = "ready"
NO_ROW = -1
# Bytes of rows read at once: few enough to be in the CPU cache when fn gets them.
_CHUNK_BYTES = 1 << 20
_CHUNK_ROWS = 1024
_LOOK_SECONDS = 5.0  # between checks that the parent lives
_TRACEBACK = 20_000  # characters
_OURS = (__file__, calling.__file__)  # frames that are left out of a user's traceback


class TransformJob(NamedTuple):
    """A request to a process: rows of the store to transform.

    counters: draw keys in place of the rows' numbers, if an order repeats rows. slot: (offset, bytes) in the
    shared memory; None to ask for the output fields, by the first row. form: pickled (SlotLayout, output
    fields). first: row of the slot where the rows begin.
    """

    rows: Runs
    seed: int
    epoch: int
    counters: Runs | None = None
    slot: tuple[int, int] | None = None
    form: bytes = b""
    first: int = 0


def run(connection: Connection[Any, Any], memory: SharedSlots, place: int, work: Work | bytes) -> None:
    """Serve jobs until the parent sends None, or has ended.

    place: index of this process in the first page of the memory, where it notes the row in fn; the parent
    reads it if the process dies. work: pickled if the process was not forked.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    gc.freeze()  # collecting inherited objects would copy the parent's pages and run its finalizers
    try:
        work = pickle.loads(work) if isinstance(work, bytes) else work
    except Exception as error:
        sentence = (
            f"transform: a new process cannot load the function ({type(error).__name__}:"
            f" {message_of(error)}); only"
            " importable functions are allowed. Move it into a module, or pass context='fork'."
        )
        connection.send_bytes(pickle.dumps(TransformError(sentence)))
        return
    runner = JobRunner(work, memory, memory.at(8 * place, 8).view(np.int64))
    connection.send_bytes(pickle.dumps(READY))  # torch changes the pickling of send(), to share memory
    for job in _jobs(connection):
        try:
            reply = pickle.dumps(runner.answer(job))
        except BaseException as error:  # the reply cannot be pickled
            reply = pickle.dumps(runner.blamed(error, job))
        with suppress(OSError):  # the parent has ended
            connection.send_bytes(reply)


def _jobs(connection: Connection[Any, Any]) -> Iterator[TransformJob]:
    parent, home = multiprocessing.parent_process(), os.getppid()
    gone = parent.sentinel if parent else -1
    # Other children may hold the other ends of both pipes open, so neither shows that the parent has ended.
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


class JobRunner:
    """Reads input rows, calls fn and stores its results."""

    def __init__(self, work: Work, memory: SharedSlots, at: NDArray[np.int64]) -> None:
        """at: int64 [1], note of the row that fn is called for."""
        self._transform, self._store, self._fields = work
        self._slots, self._at = memory, at
        self._call = TransformCall(self._transform, self._fields)
        row_bytes = sum(f.row_bytes for f in self._fields if not f.ragged)
        self._chunk_rows = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // max(row_bytes, 1)))
        self._input = SlotLayout(self._fields, self._chunk_rows)
        self._memory = np.empty(self._input.nbytes, np.uint8)
        self._forms: dict[bytes, tuple[SlotLayout, tuple[Field, ...]]] = {}

    def answer(self, job: TransformJob) -> Filled | tuple[Field, ...] | Exception:
        """Return the result of `make`, or its error."""
        try:
            return self.make(job)
        except BaseException as error:  # SystemExit too: fn must not end the process without a report
            return self.blamed(error, job)

    def make(self, job: TransformJob) -> Filled | tuple[Field, ...]:
        """Fill a job's rows of a slot; without a slot, return the output fields of fn for the first row."""
        outputs, total = self._outputs(job), job.rows.total
        read_seconds = transform_seconds = 0.0
        for begin in range(0, total, self._chunk_rows):
            started = time.perf_counter()
            runs = job.rows.part(begin, min(begin + self._chunk_rows, total))
            rows = self._store.place(runs).rows()
            columns = self._read(runs)
            read = time.perf_counter()
            keys = rows if job.counters is None else job.counters.part(begin, begin + len(rows)).rows()
            self._call.key(job.seed, job.epoch, keys)
            for i, row in enumerate(rows.tolist()):
                self._at[0] = row
                sample = _row(columns, i)
                if outputs is None:
                    result = self._call(i, dict(sample))
                    fields = described(result, sample, self._fields, self._transform, self._call.ragged)
                    self._at[0] = NO_ROW
                    return fields
                result = self._call(i, sample)
                if self._call.unlimited():
                    columns = self._read(runs)
                    result = self._call(i, _row(columns, i))
                outputs.put(job.first + begin + i, result)
            self._at[0] = NO_ROW
            read_seconds += read - started
            transform_seconds += time.perf_counter() - read
        return Filled(outputs.ragged if outputs else {}, read_seconds, transform_seconds)

    def blamed(self, error: BaseException, job: TransformJob) -> Exception:
        """Return the error of a job for the parent; errors of fn name the row."""
        row = int(self._at[0])
        self._at[0] = NO_ROW
        if row == NO_ROW and isinstance(error, FormatError):  # reading failed, not fn
            return error
        where = (
            "" if row == NO_ROW else f"row {row}{key_in_brackets(self._store.pack, row)} in epoch {job.epoch}"
        )
        if isinstance(error, WrongReturn):
            return TransformError(f"transform: for {where} it {error}.")
        while error.__traceback__ and error.__traceback__.tb_frame.f_code.co_filename in _OURS:
            error.__traceback__ = error.__traceback__.tb_next
        lines = "".join(traceback.format_exception(error))[-_TRACEBACK:]
        if not where:
            return TransformError(f"transform: process {os.getpid()} failed:\n\n{lines}")
        raised = f"{type(error).__name__}: {message_of(error)}"
        return TransformError(
            f"transform: for {where} it raised {raised}. In process {os.getpid()}:\n\n{lines}"
        )

    def _outputs(self, job: TransformJob) -> Outputs | None:
        """Return the buffer for the results of a job; None if it asks for the output fields."""
        if job.slot is None:
            return None
        if job.form not in self._forms:
            self._forms = {job.form: pickle.loads(job.form)}
        layout, fields = self._forms[job.form]
        return Outputs(fields, layout.typed(self._slots.at(*job.slot), job.first + job.rows.total))

    def _read(self, rows: Runs) -> dict[str, Any]:
        """Read the input fields of rows: arrays [n, *shape] in reused memory, ragged fields as lists of n."""
        total = rows.total
        self._store.copy(rows, self._input.raw(self._memory, total))
        arrays = self._input.typed(self._memory, total)
        return {
            f.name: list(self._store.decoded(f.name, rows)) if f.ragged else arrays[f.name]
            for f in self._fields
        }


def _row(columns: dict[str, Any], i: int) -> dict[str, Any]:
    return {name: column[i] for name, column in columns.items()}
