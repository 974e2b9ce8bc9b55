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
from typing import Any

from packer.convert.conversion_task import ConversionTask, Engine, NothingPackedError, RunOptions, RunResult
from packer.convert.shard_run import MadeShard, ShardWork, write_shards
from packer.errors import MissingDependencyError, PackerError, UsageError
from packer.format.file_io import remove
from packer.sentence import Option
from packer.starting import cores

ENGINES = ("local", "ray")
_AHEAD = 2  # tasks handed out for each that can run
_TICK_SECONDS = 0.1
_PATIENCE_SECONDS = 10.0
_RETRIES = 4  # of a shard whose process or machine was lost


@dataclass(frozen=True)
class SharedOut:
    """An engine that has other processes make shards, a task each, and lists them itself.

    pool: opens the executor. url: of the pack in a store, to which the others take the shards; "": it is where the conversion has it.
    """

    pool: Callable[[], AbstractContextManager[Executor]]
    url: str = ""

    def __call__(self, task: ConversionTask, out: str, running: RunOptions) -> RunResult:
        """See Engine."""
        rows = task.storing.shard_rows
        if rows is None or task.storing.format == "npy":
            raise UsageError(
                f"{self.url or out}: other processes make one shard of HDF5 each. Pass ",
                Option("shard_size", "1GB"),
                ", or leave out ",
                Option("engine"),
                ".",
            )
        return write_shards(task, out, running, self.url or out, rows, self._make, self.url)

    def _make(self, work: ShardWork) -> Iterator[MadeShard]:
        from packer.convert.shard_tasks import (
            ShardTask,
        )  # it decodes images, which conversions of tables need not load

        if not work.numbers:
            return
        ShardTask.of(
            work, work.numbers[0]
        )  # refuses inputs that cannot be read elsewhere before anything is started
        remove(work.scratch)  # of attempts that were interrupted
        # A name of this run's own: attempts of one that was killed find theirs gone, and end.
        own = replace(work, scratch=os.path.join(work.scratch, uuid.uuid4().hex))
        os.makedirs(own.scratch)
        with self.pool() as pool:
            yield from _hand_out(pool, own)
        remove(work.scratch)


def _hand_out(pool: Executor, work: ShardWork) -> Iterator[MadeShard]:
    """Have the shards made, a few more at once than can run."""
    from packer.convert.shard_tasks import ShardTask, make_shard

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
                try:
                    yield number, _result(future, work, number)
                except NothingPackedError as error:
                    yield number, error
                done += work.rows_of(number)
            work.progress(done)
    finally:
        for future in running:
            future.cancel()


def _failed(future: Future[RunResult]) -> bool:
    return future.cancelled() or future.exception() is not None


def _submit(pool: Executor, fn: Callable[..., RunResult], given: object) -> Future[RunResult]:
    """Hand out one task. An executor that takes none any more gives one that has failed."""
    try:
        return pool.submit(fn, given)
    except Exception as error:  # BrokenExecutor, RuntimeError after a shutdown, and what others raise
        failed: Future[RunResult] = Future()
        failed.set_exception(error)
        return failed


def _result(future: Future[RunResult], work: ShardWork, number: int) -> RunResult:
    """Return what a task gave. Raises PackerError."""
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
        raise PackerError(
            f"{os.path.join(work.name, work.file(number))}: could not be made ({said}). If an image crashes its decoder, the same"
            " conversion without ",
            Option("engine"),
            " names it.",
        ) from error


# The choice


def engine_of(engine: str | Executor | Engine | None, address: str | None = None) -> Engine | None:
    """Return the engine that is meant; None for the processes of this machine.

    engine: "local" or None, "ray", an executor of processes, or an engine itself. address: of a cluster of Ray's. Raises UsageError.
    """
    if address is not None and engine != "ray":
        raise UsageError("address: is of a Ray cluster. Pass ", Option("engine", "ray"), ", or leave it out.")
    if engine is None or engine == "local":
        return None
    if engine == "ray":
        return SharedOut(lambda: _ray(address))
    if isinstance(engine, ThreadPoolExecutor):
        raise UsageError(
            "engine: is a pool of threads; processes are needed. Leave it out, or pass ",
            Option("workers"),
            ".",
        )
    if isinstance(engine, Executor):
        return SharedOut(lambda: nullcontext(engine))
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
        raise MissingDependencyError("ray", Option("engine", "ray"), "ray") from None
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
        f"address {address}: no Ray cluster answers there ({why}). Start one (ray start --head), or leave the address out."
    )


class _RayExecutor(Executor):
    """Ray's tasks as an executor."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._tasks: dict[Future[Any], Any] = {}

    @property
    def _max_workers(self) -> int:
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function on one core of the cluster, again if its process, or machine, is lost."""
        remote = self._ray.remote(num_cpus=1, max_retries=_RETRIES, scheduling_strategy="SPREAD")(fn)
        task = remote.remote(*args, **kwargs)
        future: Future[Any] = task.future()
        self._tasks[future] = task
        future.add_done_callback(lambda done: self._tasks.pop(done, None))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel what still runs."""
        for task in list(self._tasks.values()):
            with suppress(Exception):
                self._ray.cancel(task, force=True)
