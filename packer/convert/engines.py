"""Who makes the shards of a pack: this machine, the processes of an executor, or a cluster of Ray's."""

from __future__ import annotations

import os
import socket
import uuid
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
    wait,
)
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from packer.convert.conversion_task import ConversionTask, Engine, NothingPackedError, RunOptions, RunResult
from packer.convert.shard_run import MadeShard, ShardWork, write_shards
from packer.convert.shard_tasks import ShardTask, make_shard
from packer.errors import MissingDependencyError, PackerError, UsageError
from packer.format.file_io import remove
from packer.machine import cores
from packer.sentence import Option, Sentence

S = TypeVar("S")
R = TypeVar("R")

ENGINES = ("local", "ray")
_AHEAD = 2  # tasks handed out for each that can run
_TICK_SECONDS = 0.1
_PATIENCE_SECONDS = 10.0
_RETRIES = 4  # of a shard whose process or machine was lost


@dataclass(frozen=True)
class DistributedEngine:
    """An engine that has other processes make shards, a task each, and lists them itself.

    pool: gives the executor. url: of the pack in a store, to which the others take the shards; "": it is where the conversion has it.
    generation: of the shards' names there.
    """

    pool: Callable[[], AbstractContextManager[Executor]]
    url: str = ""
    generation: int = 1

    def __call__(
        self, task: ConversionTask, out: str, running: RunOptions, name: str | None = None
    ) -> RunResult:
        """See Engine. name: of the pack in messages, where `out` is one that users do not know."""
        rows = task.storing.shard_rows
        assert rows is not None
        return write_shards(
            task, out, running, self.url or name or out, rows, self._make, self.url, self.generation
        )

    def _make(self, work: ShardWork) -> Iterator[MadeShard]:
        if not work.numbers:
            return
        # Refuses inputs that cannot be read elsewhere, before anything is started.
        ShardTask.of(work, work.numbers[0])
        remove(work.scratch)  # of attempts that were interrupted
        # A name of this run's own: attempts of one that was killed find theirs gone, and end.
        own = replace(work, scratch=os.path.join(work.scratch, uuid.uuid4().hex))
        os.makedirs(own.scratch)
        with self.pool() as pool:
            yield from _hand_out(pool, own)
        remove(work.scratch)


def _hand_out(pool: Executor, work: ShardWork) -> Iterator[MadeShard]:
    """Have the shards made, a few more at once than can run."""
    most = _AHEAD * (getattr(pool, "_max_workers", None) or cores())
    coming, running, done = iter(work.numbers), dict[Future[RunResult], int](), 0
    try:
        while True:
            while len(running) < most and (following := next(coming, None)) is not None:
                running[_submit(pool, make_shard, ShardTask.of(work, following))] = following
            if not running:
                return
            finished, _ = wait(running, _TICK_SECONDS, FIRST_COMPLETED)
            # What is done is done, whatever stopped the others: failures come last.
            for future in sorted(finished, key=lambda one: (_failed(one), running[one])):
                number = running.pop(future)
                failing = f"{os.path.join(work.name, work.file(number))}: could not be made"
                try:
                    yield number, _result(future, failing)
                except NothingPackedError as error:
                    yield number, error
                done += work.rows_of(number)
            work.progress(done)
    finally:
        for future in running:
            future.cancel()


_NAME_IMAGE = Sentence(
    f"If an image crashes its decoder, the same conversion without {Option('engine')} names it."
)


def _failed(future: Future[RunResult]) -> bool:
    return future.cancelled() or future.exception() is not None


def _submit(pool: Executor, fn: Callable[[S], R], given: S) -> Future[R]:
    """Hand out one task. An executor that takes none any more gives one that has failed."""
    try:
        return pool.submit(fn, given)
    except Exception as error:  # BrokenExecutor, RuntimeError after a shutdown, and what others raise
        failed: Future[R] = Future()
        failed.set_exception(error)
        return failed


def _result(future: Future[R], failing: str) -> R:
    """Return what a task gave. failing: of the error if its process was lost. Raises PackerError."""
    try:
        return future.result()
    except (Exception, CancelledError) as error:
        cause = getattr(error, "cause", error)  # Ray's own errors carry it
        if isinstance(cause, PackerError):
            raise cause from None
        lost = isinstance(error, BrokenExecutor)
        said = (
            "a worker process died" if lost else (str(error).strip() or type(error).__name__).splitlines()[0]
        )
        raise PackerError(f"{failing} ({said}). ", _NAME_IMAGE) from error


# The choice


def engine_of(engine: str | Executor | Engine | None) -> Engine | None:
    """Return the engine that is meant; None for the processes of this machine.

    engine: "local" or None; "ray", or "ray:" and the address of a cluster; an executor of processes, or an engine itself. Raises
    UsageError.
    """
    if engine is None or engine == "local":
        return None
    if isinstance(engine, str) and engine.partition(":")[0] == "ray":
        return DistributedEngine(lambda: _ray(engine.partition(":")[2] or None))
    if isinstance(engine, ThreadPoolExecutor):
        raise UsageError(
            f"engine: is a pool of threads; processes are needed. Leave it out, or pass {Option('workers')}."
        )
    if isinstance(engine, Executor):
        return DistributedEngine(lambda: nullcontext(engine))
    if callable(engine):
        return engine
    raise UsageError(
        f"engine {engine!r}: is neither {' nor '.join(ENGINES)} nor an executor (concurrent.futures.Executor). Pass one of them."
    )


# Ray


@contextmanager
def _ray(address: str | None) -> Iterator[Executor]:
    """Connect to a cluster, or begin one on this machine. Raises MissingDependencyError, UsageError."""
    try:
        import ray
    except ImportError:
        raise MissingDependencyError("ray", Option("engine", "ray")) from None
    ours = not ray.is_initialized()
    if ours:
        # "local", as Ray would else look for clusters that ran here before, and wait for them.
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        _check_answers(address)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                ray.init(address=address, configure_logging=False, log_to_driver=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise _no_cluster(address, str(error).splitlines()[0]) from None
    executor = _RayExecutor(ray)
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)
        if ours:
            ray.shutdown()


def _check_answers(address: str) -> None:
    """Raise UsageError where nobody listens: Ray would try for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not (colon and port.isdecimal()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from None


def _no_cluster(address: str, why: str) -> UsageError:
    return UsageError(
        f"engine ray:{address}: no Ray cluster answers there ({why}). Start one (ray start --head), or leave the address out."
    )


def _call(fn: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    return fn(*args, **kwargs)


class _RayExecutor(Executor):
    """Ray's tasks as an executor."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._tasks: dict[Future[Any], Any] = {}
        # One for all tasks: Ray keeps each that it is given.
        self._call = ray.remote(num_cpus=1, max_retries=_RETRIES, scheduling_strategy="SPREAD")(_call)

    @property
    def _max_workers(self) -> int:
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function on one core of the cluster, again if its process, or machine, is lost."""
        task = self._call.remote(fn, *args, **kwargs)
        future: Future[Any] = task.future()
        self._tasks[future] = task
        future.add_done_callback(lambda done: self._tasks.pop(done, None))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel what still runs."""
        for task in list(self._tasks.values()):
            with suppress(Exception):
                self._ray.cancel(task, force=True)
