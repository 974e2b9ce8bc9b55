"""Who makes the shards of a pack: this machine, or the processes of an executor, or of a cluster of Ray's, a part k/N each."""

from __future__ import annotations

import json
import os
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping
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
from dataclasses import dataclass
from functools import partial
from pkgutil import resolve_name
from typing import Any, TypeVar

from packer.convert.conversion_task import ConversionTask, Report, RunOptions
from packer.convert.shard_run import RecordedShards, list_recorded
from packer.errors import MissingDependencyError, PackerError, SourceError, UsageError
from packer.format.checksums import digest
from packer.format.file_io import own_folder, remove
from packer.format.header import PARTIAL_SUFFIX
from packer.format.working_folder import WorkingFolder, difference, parts_of
from packer.machine import cores
from packer.remote.urls import is_url, join, name_of
from packer.sentence import Option
from packer.version import __version__

R = TypeVar("R")

ENGINES = ("local", "ray")
_ROUNDS = (
    2  # parts for each process: more, and inputs are listed more often; fewer, and the last one is waited for
)
_TICK_SECONDS = 0.5
_PATIENCE_SECONDS = 10.0
_RETRIES = 4  # of a part whose process or machine was lost
_CALLERS = ("engine", "only_shards", "on_plan", "on_progress", "progress", "resume", "workers")


@dataclass(frozen=True)
class PartsEngine:
    """An engine that has other processes convert the parts k/N of a pack of shards, and lists them itself.

    pool: gives the executor; convert: the name of convert_images; source, options: as it was given them; url: of the pack in a
    store, to which the processes take the shards; "": it is where the conversion has it.
    """

    pool: Callable[[], AbstractContextManager[Executor]]
    convert: str
    source: Any
    options: Mapping[str, Any]
    url: str = ""

    def __call__(self, task: ConversionTask, out: str, running: RunOptions) -> Report:
        """See Engine."""
        rows, total = task.storing.shard_rows, len(task.order.samples)
        assert rows is not None
        count = -(-total // rows)
        resumed, reports = 0, list[Report]()
        with self.pool() as pool:
            parts = min(count, _ROUNDS * (getattr(pool, "_max_workers", None) or cores()))
            # Processes that are forked meanwhile must not hold its lock; its journal says of which plan all parts have to be.
            begin = partial(WorkingFolder, out, plan=task.plan, overwrite=running.overwrite or bool(self.url))
            place = begin(resume=running.resume, clear_parts=True)
            place.close(keep=True)
            cleared, todo = place.cleared, [*range(parts)]
            if self.url:
                there = RecordedShards(place.resumed).there(self.url)
                resumed = sum(min(rows, total - number * rows) for number in there)
                todo = [k for k in range(parts) if not there.issuperset(range(k, count, parts))]

            def finished() -> int:
                with suppress(OSError):
                    return rows * sum(not name.endswith(PARTIAL_SUFFIX) for name in os.listdir(place.pack))
                return 0

            for report, made in self._make(pool, task, self.url or out, todo, parts, running, finished):
                reports.append(report)
                if made:
                    own = begin()
                    for record in made:
                        own.record(record)
                    own.close(keep=True)
            whole, name = begin(), self.url or out
            try:
                header = list_recorded(whole, name, name, self.url)
            finally:
                whole.close(keep=True)
        running.progress(total)
        return Report.of_parts(header, reports, resumed, cleared)

    def _make(
        self,
        pool: Executor,
        task: ConversionTask,
        out: str,
        todo: list[int],
        parts: int,
        running: RunOptions,
        finished: Callable[[], int],
    ) -> Iterator[tuple[Any, list[Any]]]:
        """Have parts made; yields of each its report and what its journal tells. finished: rows that are done by now."""
        options = {name: value for name, value in self.options.items() if name not in _CALLERS}
        plan = digest([json.dumps(task.plan).encode()]).hex()
        given = (
            self.convert,
            os.getcwd(),
            self.source,
            out,
            options,
            task.provenance["versions"],
            plan,
        )
        coming = {_submit(pool, f"{number + 1}/{parts}", *given): number + 1 for number in todo}
        most = 0
        try:
            while coming:
                ended, _ = wait(coming, _TICK_SECONDS, FIRST_COMPLETED)
                # What is done is done, whatever stopped the others: failures come last.
                for future in sorted(ended, key=lambda one: (_failed(one), coming[one])):
                    part = coming.pop(future)
                    yield _result(future, f"{out}: part {part}/{parts} could not be made")
                most = max(most, min(finished(), len(task.order.samples)))
                running.progress(most)
        finally:
            for future in coming:
                future.cancel()


def make_part(
    part: str,
    convert: str,
    folder: str,
    source: Any,
    out: str,
    options: Mapping[str, Any],
    versions: Mapping[str, str],
    plan: str,
) -> tuple[Any, list[Any]]:
    """Convert a part of a pack in this process, perhaps of another machine; into a store, where `out` is the URL of one.

    convert: the name of convert_images; folder: the working directory of who asks; versions: of what the pack was planned with;
    plan: a digest of it.
    Returns: the report; of a part in a store, what its journal tells of the shards.
    """
    from packer.pixels.decode_resize import decoder_versions

    before, host = os.getcwd(), socket.gethostname()
    try:
        own = {"packer": __version__, **decoder_versions()}
        if differs := difference({k: versions.get(k) for k in own}, own, words=("is", ", here it is")):
            raise SourceError(
                f"{host}: has other libraries than the machine that planned the pack, so its rows could differ: {differs}."
                " Install the same on both."
            )
        with suppress(OSError):
            os.chdir(folder)
        if not is_url(out):
            return resolve_name(convert)(source, out, only_shards=part, workers=1, **options), []
        from packer.format.remote_pack import put_pack

        local = local_name(out, part, plan)
        options = {**options, "format": "h5", "overwrite": True}
        report = resolve_name(convert)(source, local, only_shards=part, workers=1, **options)
        (records,) = parts_of(local).values()
        for file, made, *_ in records[1:]:
            if isinstance(made, str):
                put_pack(join(out, file), os.path.join(local + PARTIAL_SUFFIX, "pack", file))
        remove(os.path.dirname(local))
        return report, records[1:]
    except PackerError as error:
        error.extend(f" (On {host}.)")
        raise
    finally:
        os.chdir(before)


def local_name(url: str, *more: str) -> str:
    """Return where the pack for a URL is made: in this user's folder in that for temporary files. more: of which others differ."""
    name = digest(text.encode("utf-8", "surrogateescape") for text in (url, *more)).hex()[:16]
    folder = os.path.join(own_folder(), name)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return os.path.join(folder, name_of(url))


def _failed(future: Future[Any]) -> bool:
    return future.cancelled() or future.exception() is not None


def _submit(pool: Executor, *given: Any) -> Future[Any]:
    """Hand out one part. An executor that takes none any more gives one that has failed."""
    try:
        return pool.submit(make_part, *given)
    except Exception as error:  # BrokenExecutor, RuntimeError after a shutdown, and what others raise
        failed: Future[Any] = Future()
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
        raise PackerError(
            f"{failing} ({said}). If an image crashes its decoder, the same conversion without {Option('engine')} names it."
        ) from error


def pool_of(engine: Any) -> Callable[[], AbstractContextManager[Executor]] | None:
    """Return what gives the executor that is meant; None for this machine, and for functions that write a pack themselves.

    engine: "local" or None; "ray", or "ray:" and the address of a cluster; an executor of processes. Raises UsageError.
    """
    if engine is None or engine == "local":
        return None
    if isinstance(engine, str) and engine.partition(":")[0] == "ray":
        return lambda: _ray(engine.partition(":")[2] or None)
    if isinstance(engine, ThreadPoolExecutor):
        raise UsageError(
            f"engine: is a pool of threads; processes are needed. Leave it out, or pass {Option('workers')}."
        )
    if isinstance(engine, Executor):
        return lambda: nullcontext(engine)
    if callable(engine):
        return None
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
