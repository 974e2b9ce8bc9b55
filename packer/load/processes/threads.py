"""Threads of this process that run a user's transform (``context="thread"``) with the processes' code."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from packer.format.fields import Field
from packer.load.batch import Bytes
from packer.load.fillers import Reading
from packer.load.processes.transforms import PythonTransform
from packer.load.processes.workerproc import NO_ROW, JobRunner, TransformJob
from packer.load.processes.workers import TransformFiller
from packer.starting import ForkSafeThreads


class ThreadFiller(TransformFiller):
    """A filler whose rows threads compute, instead of processes.

    A job that has begun cannot be ended: close() waits for it, and cancels the others.
    """

    def __init__(self, reading: Reading, fields: Sequence[Field], transform: PythonTransform) -> None:
        super().__init__(reading._replace(threads=ForkSafeThreads(transform.count)), fields, transform)
        self._local = threading.local()

    def _started(self, jobs: list[TransformJob], memory: Bytes | None = None) -> list[Future[Any]]:
        return [self.threads.submit(self._run, job, memory) for job in jobs]

    def _run(self, job: TransformJob, memory: Bytes | None) -> Any:
        """Run a job with this thread's runner. memory: the slot, held until then."""
        if not hasattr(self._local, "runner"):
            self._local.runner = JobRunner(self._work, self._memory, np.array([NO_ROW]))
        reply = self._local.runner.answer(job)
        try:
            if isinstance(reply, Exception):
                raise reply
            return reply
        finally:
            del reply, memory  # the traceback of `reply` refers to this frame
