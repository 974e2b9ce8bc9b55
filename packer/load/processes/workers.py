"""Processes that run a user's transform and write what it returns into shared slots: the parent's side.

Batches are not pickled: a job names rows and a place in the shared memory, and is answered with a few numbers. One thread
sends the jobs, hears the answers, and notices the death of a process at once; nothing else touches the connections, so
that neither Ctrl-C nor the garbage collector can leave half a message behind.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import selectors
import signal
import socket
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from packer.errors import TransformError, UsageError
from packer.format.header import Field
from packer.load.batch import Bytes, SlotLayout
from packer.load.prefetcher import FetchedRows, FileRows, Lend, ReadResult, RowSource
from packer.load.processes.calling import said
from packer.load.processes.shared_slots import SharedSlots
from packer.load.processes.transforms import PythonTransform
from packer.load.processes.workerproc import NO_ROW, READY, TransformJob, run
from packer.orders.epochs import ReadRequest
from packer.orders.runs import Runs
from packer.read.row_reader import RowReader
from packer.starting import held_back, start, start_process

_LOG = logging.getLogger("packer.load")
_PATIENCE = 2.0  # seconds for a process to end by itself
# A process that has its next job already does not wait for this process's attention; but that job waits for it, even if
# others are idle, so it is given only where jobs are short, and fits what a connection takes without being read (8 KiB on macOS):
# this process would wait to be read by one that waits for its answer to be read.
_SHORT_SECONDS = 0.02
_SHORT_MESSAGE = 4 << 10
_REMEDIES = {
    "SIGKILL": " The system does that when memory runs out: pass fewer processes, or smaller batches.",
    "SIGSEGV": " Compiled code that it calls has crashed.",
    "SIGABRT": " Compiled code that it calls has given up.",
    "SIGBUS": " A file that it maps has shrunk, or memory has run out.",
}


class Workers:
    """The processes of a transform, made when first used.

    Made again after close, after the death of one (which ends them all), in a forked child, and after unpickling.
    Thread-safe. They end with close(), when this object is collected, and when this process ends, however it does.

    processes: how many. ahead: batches to have under way, so that all of them have work, and a late one holds nobody up.
    """

    def __init__(self, transform: PythonTransform, reader: RowReader, fields: Sequence[Field]) -> None:
        """reader: of the input fields. fields: the input fields as they are loaded, ragged ones too."""
        self._transform, self._reader, self._fields = transform, reader, tuple(fields)
        self.processes = transform.count
        self.ahead = 2 * self.processes if transform.batched else 2
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._memory: SharedSlots | None = None
        self._pool: _ProcessPool | None = None
        self._ended: Any = None  # calls the pool's stop when this object goes
        self._outputs: tuple[Field, ...] = ()
        self._form: tuple[SlotLayout | None, bytes] = None, b""

    def __getstate__(self) -> tuple[Any, ...]:
        return self._transform, self._reader, self._fields, self._outputs

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state[:3])  # type: ignore[misc]
        self._outputs = state[3]

    def probe(self, runs: Runs, *, seed: int, epoch: int) -> tuple[Field, ...]:
        """Run fn on the first of these rows, or on all of them if it takes batches; return the output fields.

        Ragged ones have shape None. Raises what the Futures of submit raise, and UsageError where processes cannot be started.
        """
        batch = _TransformBatch(None, 1)
        self._started([_TransformTask(batch, 0, pickle.dumps(TransformJob(runs, seed, epoch)))])
        self._outputs = batch.future.result()
        return self._outputs

    def allocate(self, nbytes: int) -> Bytes:
        """Allocate a page-aligned slot, uint8 [nbytes], in memory shared with the processes; freed when its last view is gone.

        Forked children of this process see the same memory, not a copy: they must not use its slots.
        Raises MemoryError when slots as large as the machine's memory, or as what this process may map of it, are held.
        """
        return self._shared().allocate(nbytes)

    def submit(
        self,
        slot: Bytes,
        layout: SlotLayout,
        first: int,
        runs: Runs,
        *,
        seed: int,
        epoch: int,
        counters: Runs | None = None,
    ) -> Future[ReadResult]:
        """Fill rows first..first+runs.total-1 of a slot, after probe.

        slot: what allocate gave, or an array over the whole of it; held until the processes are done with it. layout: of the
        output fields. runs: rows of the pack, at least one; for a transform of batches they are one batch.
        counters: what keys the draws of each row, None: the row.
        The Future can be cancelled until a process begins. It raises TransformError (fn raised, or returned something else than
        for the first row; its process died; close was called) and FormatError (the pack cannot be read).
        """
        if self._form[0] is not layout:
            self._form = layout, pickle.dumps((layout, self._outputs))
        form, place = self._form[1], (self._shared().offset(slot), layout.nbytes)
        total = runs.total
        parts = 1 if self._transform.batched else min(self.processes, total)
        bounds = [total * k // parts for k in range(parts + 1)]
        batch = _TransformBatch(slot, parts)
        tasks = []
        for k in range(parts):
            begin, end = bounds[k], bounds[k + 1]
            part = runs.part(begin, end) if parts > 1 else runs
            keyed = None if counters is None else counters.part(begin, end)
            job = TransformJob(part, seed, epoch, place, form, first + begin, keyed)
            tasks.append(_TransformTask(batch, k, pickle.dumps(job)))
        self._started(tasks)
        return batch.future

    def close(self) -> None:
        """End the processes; slots stay valid."""
        with self._lock_here():
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()
            pool.join()

    def _lock_here(self) -> threading.Lock:
        """Return the lock; in a forked child first drop the parent's lock, memory and pool."""
        if self._pid != os.getpid():
            self._pid, self._lock = os.getpid(), threading.Lock()
            self._memory = self._pool = None
        return self._lock

    def _shared(self) -> SharedSlots:
        with self._lock_here():
            if self._memory is None:
                self._memory = SharedSlots()
            return self._memory

    def _started(self, tasks: list[_TransformTask]) -> None:
        """Submit tasks to the processes; start these if there are none."""
        memory = self._shared()
        with self._lock_here():
            if self._pool is None or not self._pool.submit(tasks):
                self._pool = _ProcessPool(self._transform, self._reader, self._fields, memory)
                if self._ended is not None:
                    self._ended.detach()
                self._ended = weakref.finalize(self, self._pool.stop)
                self._pool.submit(tasks)


class TransformedRows(RowSource):
    """Output rows of a Python transform, written into slots by worker processes."""

    def __init__(self, workers: Workers, files: FileRows) -> None:
        self._workers, self._files = workers, files

    def fetch(self, request: ReadRequest, lend: Lend) -> FetchedRows:
        """Start to fill a slot by the worker processes."""
        slot = lend()
        self._files.look_ahead(request)
        epoch = request.epoch
        made = self._workers.submit(
            slot.memory,
            slot.layout,
            0,
            request.rows(),
            seed=epoch.seed,
            epoch=epoch.number,
            counters=request.counters(),
        )
        return FetchedRows(slot.typed, [made])

    def close(self) -> None:
        """End the processes."""
        self._workers.close()


class _TransformBatch:
    """A batch under way: the number of its unfinished tasks, and the answers of the others."""

    def __init__(self, slot: Bytes | None, tasks: int) -> None:
        self.future: Future[Any] = Future()
        self._slot, self._left = slot, tasks
        self._parts: list[Any] = [None] * tasks
        self._begun = self._failed = False

    def begin(self) -> bool:
        """Return True if its tasks are still wanted."""
        if not self._begun:
            self._begun = True
            self._failed = not self.future.set_running_or_notify_cancel()
        return not self._failed

    def answer(self, number: int, reply: Any) -> None:
        """Store the answer of a task; complete the Future with the last one."""
        self._parts[number] = reply
        self._left -= 1
        if isinstance(reply, Exception):
            self.fail(reply)
        elif not self._left and not self._failed:
            self.future.set_result(_joined(self._parts))

    def fail(self, error: Exception) -> None:
        """Set the error on the Future; only the first one counts."""
        if self.begin():
            self._failed = True
            self.future.set_exception(error)


class _TransformTask:
    """A part of a batch that one process makes. message: pickled TransformJob."""

    __slots__ = ("batch", "message", "number")

    def __init__(self, batch: _TransformBatch, number: int, message: bytes) -> None:
        self.batch, self.number, self.message = batch, number, message


class _TransformProcess:
    """A process, and the tasks that it has been sent."""

    def __init__(self, process: Any, connection: Connection[Any, Any]) -> None:
        self.process, self.connection = process, connection
        self.ready = False
        self.tasks: deque[_TransformTask] = deque()
        # A connection's end is no sure sign of death, since children that others fork hold it open.
        self.descriptor = -1
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):
                self.descriptor = os.pidfd_open(process.pid)


class _ProcessPool:
    """Processes, and the thread that talks to them. Everything without an underscore may be called by any thread."""

    def __init__(
        self, transform: PythonTransform, reader: RowReader, fields: tuple[Field, ...], memory: SharedSlots
    ) -> None:
        self._owner = os.getpid()
        self._notes = memory.at(0, 8 * transform.count).view(np.int64)
        self._lock = threading.Lock()
        self._inbox: deque[_TransformTask] | None = deque()
        self._queue: deque[_TransformTask] = deque()
        self._seconds = 0.0  # of a task, lately
        self._stopping = False
        self._bell, self._ringer = socket.socketpair()
        self._bell.setblocking(False)
        self._ringer.setblocking(False)
        self._workers: list[_TransformProcess] = []
        self._thread = threading.Thread(target=self._serve, name="packer-transform", daemon=True)
        try:
            with held_back():  # else it is dropped where it comes during a fork, and the loop goes on
                try:
                    self._start(transform, reader, fields, memory)
                    start(self._thread)
                except BaseException:
                    self._end()
                    raise
        except BaseException:  # nobody will know of this pool
            self.stop()
            raise

    def submit(self, tasks: list[_TransformTask]) -> bool:
        """Queue tasks; False if the processes have ended."""
        with self._lock:
            if self._inbox is None or self._stopping:
                return False
            self._inbox.extend(tasks)
        self._ring()
        return True

    def stop(self) -> None:
        """Ask the thread to end everything; takes no lock, since the garbage collector calls it."""
        self._stopping = True
        self._ring()

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join()

    def _ring(self) -> None:
        if self._owner == os.getpid():  # a forked child holds the same socket
            with suppress(OSError):  # full: it will be heard; closed: all has ended
                self._ringer.send(b"!")

    def _start(
        self, transform: PythonTransform, reader: RowReader, fields: tuple[Field, ...], memory: SharedSlots
    ) -> None:
        if multiprocessing.current_process().daemon:
            raise UsageError(
                "transform: this is a process, such as a DataLoader's, that may not start others; the transform needs some."
                " Pass num_workers=0: the dataset brings its own."
            )
        method = transform.context or ("fork" if sys.platform == "linux" else "spawn")
        context: Any = multiprocessing.get_context(method)
        work: Any = (transform, reader, fields)
        if method != "fork":
            try:
                work = pickle.dumps(work)
            except Exception as error:
                raise UsageError(
                    f"transform: {transform.fn!r} cannot be pickled ({said(error)}), which context={method!r} needs."
                    " Define it in a module, without a lambda, or pass context='fork'."
                ) from None
        for place in range(transform.count):
            ours, theirs = context.Pipe()
            inherited = (*(worker.connection for worker in self._workers), ours) if method == "fork" else ()
            process = context.Process(
                target=run,
                args=(theirs, memory, place, work, os.getpid(), inherited),
                name=f"packer-transform-{place}",
                daemon=True,
            )
            try:
                with warnings.catch_warnings():
                    # The child runs the transform only, with one thread for OpenCV and torch.
                    warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
                    start_process(process)
                self._workers.append(_TransformProcess(process, ours))
            finally:
                theirs.close()

    def _serve(self) -> None:
        """Run the thread: send tasks, receive answers, notice dead processes."""
        error: Exception = TransformError("transform: it was closed while batches were being made.")
        try:
            with selectors.PollSelector() as selector:
                selector.register(self._bell, selectors.EVENT_READ)
                for worker in self._workers:
                    selector.register(worker.connection, selectors.EVENT_READ, worker)
                    if worker.descriptor >= 0:
                        selector.register(worker.descriptor, selectors.EVENT_READ, worker)
                while not self._stopping:
                    for key, _ in selector.select():
                        if key.data is None:
                            self._take()
                        elif key.fileobj is key.data.connection:
                            self._hear(key.data)
                        else:
                            raise self._death(key.data)
                    self._dispatch()
        except TransformError as death:
            error = death.with_traceback(None)  # whoever keeps the error must not keep all this with it
        except Exception as bug:
            error = bug
        finally:
            asked, self._stopping = self._stopping, True
            self._end()
            if (
                not self._fail(error) and not asked
            ):  # it was idle, and others will be started when there is work
                _LOG.warning("%s", str(error))

    def _take(self) -> None:
        """Move what was submitted to the queue."""
        with suppress(BlockingIOError):
            while len(self._bell.recv(4096)) == 4096:
                pass
        assert self._inbox is not None
        while self._inbox:
            self._queue.append(self._inbox.popleft())

    def _hear(self, worker: _TransformProcess) -> None:
        """Receive the answer of a process."""
        message = b""
        with suppress(EOFError, OSError):
            message = worker.connection.recv_bytes()
        if not message:
            raise self._death(worker)
        reply = pickle.loads(message)
        if not worker.ready:
            if reply != READY:
                raise reply
            worker.ready = True
            return
        task = worker.tasks.popleft()
        if isinstance(reply, ReadResult):
            self._seconds += (reply.read_seconds + reply.transform_seconds - self._seconds) / 8
        task.batch.answer(task.number, reply)

    def _dispatch(self) -> None:
        """Send a task to each idle process; if tasks are short, queue one more at each process."""
        while self._queue:
            task = self._queue[0]
            short = self._seconds < _SHORT_SECONDS and len(task.message) < _SHORT_MESSAGE
            worker = min((w for w in self._workers if w.ready), key=lambda w: len(w.tasks), default=None)
            if worker is None or len(worker.tasks) > short:
                return
            self._queue.popleft()
            if task.batch.begin():
                worker.tasks.append(task)
                with suppress(OSError):  # it has died, as will be heard
                    worker.connection.send_bytes(task.message)

    def _death(self, worker: _TransformProcess) -> TransformError:
        """Return the error for a process that has died."""
        until = time.monotonic() + _PATIENCE
        # Again and again: another thread may have been told the exit code, and be about to note it.
        while (code := worker.process.exitcode) is None and time.monotonic() < until:
            worker.process.join(0.01)
        how, remedy = "closed its connection", ""
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            how, remedy = f"was killed by {name}", _REMEDIES.get(name, "")
        elif code is not None:
            how = f"ended with exit code {code}" + ("" if worker.ready else " before it began")
        row = int(self._notes[self._workers.index(worker)])
        at = "" if row == NO_ROW or not worker.tasks else f" while it ran the function for row {row}"
        return TransformError(f"transform: process {worker.process.pid} {how}{at}.{remedy}")

    def _fail(self, error: Exception) -> int:
        """Fail all pending tasks with the error; return their number."""
        with self._lock:
            inbox, self._inbox = self._inbox or (), None
        asked = [task for tasks in (*(w.tasks for w in self._workers), self._queue, inbox) for task in tasks]
        for task in asked:
            task.batch.fail(error)
        self._queue.clear()
        self._workers.clear()  # which closes what multiprocessing opened; its own exit may be waiting for them just now
        return len(asked)

    def _end(self) -> None:
        """End the processes, idle ones by a message, others by a signal; close every descriptor."""
        for worker in self._workers:
            if worker.ready and not worker.tasks:
                with suppress(OSError):
                    worker.connection.send_bytes(pickle.dumps(None))
            else:
                worker.process.terminate()
        until = time.monotonic() + _PATIENCE
        for worker in self._workers:
            worker.process.join(max(0.0, until - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.connection.close()
            if worker.descriptor >= 0:
                os.close(worker.descriptor)
        self._bell.close()
        self._ringer.close()


def _joined(parts: list[Any]) -> Any:
    """Merge the answers of all parts into one; output fields are returned unchanged."""
    if len(parts) == 1:
        return parts[0]
    ragged = {name: [row for part in parts for row in part.ragged[name]] for name in parts[0].ragged}
    read, transform = (sum(p.read_seconds for p in parts), sum(p.transform_seconds for p in parts))
    return ReadResult(ragged, read, transform)
