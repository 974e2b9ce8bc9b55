"""Processes that run a user's transform and write its results into shared slots: the parent side.

Batches are not pickled: a job names rows and an offset in the shared memory; the reply is a few numbers. Each
process has a thread here that sends it one job after the other and notices its death at once. Only that
thread uses the connection, so neither Ctrl-C nor the garbage collector can leave half a message behind.

concurrent.futures.ProcessPoolExecutor is no substitute: at exit and on close it waits for functions that
hang; its processes outlive a killed parent; and it does not report which process died, and why.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from packer.errors import TransformError, UsageError
from packer.format.fields import (
    Field,
    find_field,
)
from packer.load.batch import Bytes, Filled, LentSlot, SlotLayout
from packer.load.fillers import Reading, RowFiller
from packer.load.processes.calling import message_of
from packer.load.processes.shared_slots import SharedSlots
from packer.load.processes.transforms import PythonTransform
from packer.load.processes.workerproc import NO_ROW, READY, TransformJob, Work, run
from packer.orders.epochs import ReadRequest
from packer.orders.runs import Runs
from packer.read.row_selection import ROW, stored
from packer.starting import held_back, program, start, start_process

_LOG = logging.getLogger("packer.load")
_PATIENCE = 2.0  # seconds for a process to end by itself
_LOOK_SECONDS = 0.5  # between checks of a process that was asked to end
_REMEDIES = {
    "SIGKILL": " The system does that when memory runs out: pass fewer processes, or smaller batches.",
    "SIGSEGV": " Compiled code that it calls has crashed.",
    "SIGABRT": " Compiled code that it calls has given up.",
    "SIGBUS": " A file that it maps has shrunk, or memory has run out.",
}


class TransformFiller(RowFiller):
    """A filler whose rows the processes of a Python transform compute and write into slots.

    Processes start at the first use, and again after close() or after one of them died, which ends all. They
    end with close(), when this object is collected, and when this process ends, for whatever reason. Only
    the process that created the filler may use it; thread-safe.
    """

    slow: bool
    ahead: int

    slow, ahead = True, 2  # pending batches, so that a late process delays no other

    def __init__(self, reading: Reading, fields: Sequence[Field], transform: PythonTransform) -> None:
        """fields: the input fields as loaded, ragged ones too; after `probe` those of the batches.

        Raises UsageError if processes cannot share memory.
        """
        super().__init__(reading, fields)
        self._work: Work = transform, self.files, stored(fields)
        self.processes: int = transform.count
        self._lock = threading.Lock()
        self._memory = SharedSlots()
        self._pool: _ProcessPool | None = None
        self._ended: Any = None  # stops the pool when this object is collected
        self._outputs: tuple[Field, ...] = ()
        self._form: tuple[SlotLayout | None, bytes] = None, b""

    def probe(self, rows: Runs, *, seed: int, epoch: int) -> tuple[Field, ...]:
        """Return the fields of the batches, as fn returns them for the first of these rows.

        Ragged ones have shape None. Raises the errors of the Futures of `tasks`, and UsageError if processes
        cannot be started.
        """
        made = self._outputs = self._started([TransformJob(rows.part(0, 1), seed, epoch)])[0].result()
        numbered = ROW in self.fields and find_field(made, ROW.name) is None
        self.fields: tuple[Field, ...] = (*made, ROW) if numbered else made
        return self.fields

    def allocate(self, nbytes: int) -> Bytes:
        """Allocate a page-aligned slot, uint8 [nbytes], shared with the processes; freed when its last view
        is gone.

        Raises MemoryError if the held slots fill the machine's memory, or what this process may map of it.
        """
        return self.device.adopt(self._memory.allocate(nbytes))

    def tasks(self, request: ReadRequest, slot: LentSlot) -> list[Future[Filled]]:
        """Fill a slot with the rows of a request, after probe: a part by each process.

        slot: from `allocate`, with the output fields, held until the processes are done with it. Draws are
        keyed by the order's seed, the epoch and each row's number, or the request's `counters`.
        A Future can be cancelled until a process begins. It raises TransformError (fn raised, or returned
        something else than for the first row; its process died; close was called) and FormatError (the pack
        cannot be read).
        """
        layout, rows, counters = slot.layout, request.within(), request.counters()
        if ROW in self.fields:
            slot.arrays[ROW.name][:] = request.rows().rows()
        if self._form[0] is not layout:
            self._form = layout, pickle.dumps((layout, self._outputs))
        place = self._memory.offset(slot.memory), layout.nbytes
        parts = min(self.processes, rows.total)
        jobs = [
            TransformJob(
                rows.part(begin, end),
                request.order.seed,
                request.epoch,
                None if counters is None else counters.part(begin, end),
                place,
                self._form[1],
                begin,
            )
            for begin, end in pairwise(rows.total * k // parts for k in range(parts + 1))
        ]
        return self._started(jobs, slot.memory)

    def close(self, wait: bool = True) -> None:
        """End the threads and processes; slots stay valid. wait: see RowFiller."""
        super().close(wait)
        if not wait:
            return
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            self._ended()
            pool.join()

    def _started(self, jobs: list[TransformJob], memory: Bytes | None = None) -> list[Future[Any]]:
        """Pass jobs to the processes; start the processes first if there are none."""
        tasks = [_Task(Future(), pickle.dumps(job), memory) for job in jobs]
        with self._lock:
            if self._pool is None or not self._pool.submit(tasks):
                if self._ended is not None:
                    self._ended()
                self._pool = _ProcessPool(self._work, self._memory, tasks)
                self._ended = weakref.finalize(self, self._pool.stop)
        return [task.future for task in tasks]


class _Task(NamedTuple):
    """A job as it is sent, and the memory that its process writes to."""

    future: Future[Any]
    message: bytes
    memory: Bytes | None


class _ProcessPool:
    """Processes, and a thread for each that talks to it.

    Any thread may call methods without an underscore.
    """

    def __init__(self, work: Work, memory: SharedSlots, tasks: list[_Task]) -> None:
        self._owner, self._lock, self._stopping = os.getpid(), threading.Lock(), False
        self._error: Exception = TransformError("transform: it was closed while batches were being made.")
        self._notes = memory.at(0, 8 * work[0].count).view(np.int64)
        self._notes[:] = NO_ROW  # before they start: a process that dies at its start has called nothing
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        for task in tasks:  # before the processes start: if one dies, the tasks left in the queue fail
            self._tasks.put(task)
        self._workers: list[_TransformProcess] = []
        self._threads: list[threading.Thread] = []
        try:
            with held_back():  # Ctrl-C during a fork would be dropped, and the loop would go on
                self._start(work, memory)
                for worker in self._workers:
                    name = "packer-transform"
                    thread = threading.Thread(target=self._serve, args=(worker,), name=name, daemon=True)
                    start(thread)
                    self._threads.append(thread)
        except BaseException:  # nobody else has a reference to this pool
            self.stop()
            for worker in self._workers[len(self._threads) :]:
                worker.end()
            raise

    def submit(self, tasks: list[_Task]) -> bool:
        """Queue tasks; False if a process has ended."""
        with self._lock:
            if self._stopping:
                return False
            if dead := [worker for worker in self._workers if worker.process.exitcode is not None]:
                _LOG.warning("%s", self._death(dead[0]))  # it was idle; others are started
                return False
            for task in tasks:
                self._tasks.put(task)
        return True

    def stop(self) -> None:
        """Ask everything to end; takes no lock, since the garbage collector calls it."""
        if self._owner != os.getpid() or self._stopping:  # a forked child does not have them
            return
        self._stopping = True
        for worker in self._workers:
            if worker.busy:
                worker.process.terminate()
                worker.until = time.monotonic() + _PATIENCE
            self._tasks.put(None)

    def join(self) -> None:
        """Wait until all threads and processes have ended."""
        for thread in self._threads:
            thread.join()

    def _start(self, work: Work, memory: SharedSlots) -> None:
        transform = work[0]
        if multiprocessing.current_process().daemon:
            raise UsageError(
                "transform: this is a process, such as a DataLoader's, that may not start others; the"
                " transform needs some. Pass num_workers=0: the dataset starts its own."
            )
        method = transform.context or ("fork" if sys.platform == "linux" else "spawn")
        context: Any = multiprocessing.get_context(method)
        given: Work | bytes = work
        if method != "fork":
            program()
            try:
                given = pickle.dumps(work)
            except Exception as error:
                raise UsageError(
                    f"transform: {transform.fn!r} cannot be pickled ({message_of(error)}),"
                    f" which context={method!r}"
                    " needs. Define it in a module, without a lambda, or pass context='fork'."
                ) from None
        for place in range(transform.count):
            ours, theirs = context.Pipe()
            name = f"packer-transform-{place}"
            process = context.Process(target=run, args=(theirs, memory, place, given), name=name, daemon=True)
            try:
                with warnings.catch_warnings():
                    # The child runs only the transform, with one thread for OpenCV and torch.
                    warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
                    start_process(process)
                self._workers.append(_TransformProcess(process, ours))
            finally:
                theirs.close()

    def _serve(self, worker: _TransformProcess) -> None:
        """Run a thread: pass tasks to a process until both are to end; after a death, fail the remaining
        tasks.
        """
        if (reply := worker.answer()) != READY:
            self._fail(reply or self._death(worker))
        worker.busy = False
        while (task := self._tasks.get()) is not None:
            if not task.future.set_running_or_notify_cancel():
                continue
            worker.busy = True  # before the check: stop() reads it after it has set its flag
            try:
                reply = self._error if self._stopping else worker.answer(task.message)
                if reply is None:
                    reply = self._fail(self._death(worker))
            except Exception as error:  # no memory for a reply, or this process cannot unpickle it
                reply = self._fail(error)
            worker.busy = False
            if isinstance(reply, Exception):
                task.future.set_exception(reply)
            else:
                task.future.set_result(reply)
            del task, reply  # they hold the slot while this thread waits for the next task
        worker.end()

    def _fail(self, error: Exception) -> Exception:
        """End all processes because one has failed, unless they are ending; return the error of remaining
        tasks.
        """
        with self._lock:
            if not self._stopping:
                self._error = error
            self.stop()
        return self._error

    def _death(self, worker: _TransformProcess) -> TransformError:
        """Return the error for a dead process."""
        until = time.monotonic() + _PATIENCE
        # In a loop: another thread may have received the exit code without having stored it yet.
        while (code := worker.process.exitcode) is None and time.monotonic() < until:
            worker.process.join(0.01)
        how, remedy = "closed its connection", ""
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            how, remedy = f"was killed by {name}", _REMEDIES.get(name, "")
        elif code is not None:
            how = f"ended with exit code {code}"
        row = int(self._notes[self._workers.index(worker)])
        at = "" if row == NO_ROW else f" while it ran the function for row {row}"
        return TransformError(f"transform: process {worker.process.pid} {how}{at}.{remedy}")


class _TransformProcess:
    """A process, and its connection.

    busy: True while it runs a task; only terminating it ends it at once. until: time after which it is
    killed.
    """

    def __init__(self, process: Any, connection: Connection[Any, Any]) -> None:
        self.process, self._connection, self.busy, self.until = process, connection, True, math.inf

    def answer(self, message: bytes = b"") -> Any:
        """Send a message, if any, and return the reply; None if the process has died."""
        with suppress(EOFError, OSError):
            if message:
                self._connection.send_bytes(message)
            # A closed connection is no sure sign of death: children that others fork hold it open.
            while not (ready := wait([self._connection, self.process.sentinel], _LOOK_SECONDS)):
                if time.monotonic() > self.until:
                    self.process.kill()
            if self._connection in ready:
                return pickle.loads(self._connection.recv_bytes())
        return None

    def end(self) -> None:
        """End the process, by a message if it is waiting for one."""
        with suppress(OSError):
            self._connection.send_bytes(pickle.dumps(None))
        self.process.join(_PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self._connection.close()
