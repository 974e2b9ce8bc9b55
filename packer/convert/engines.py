"""Engines: write the shards of a pack on this machine, or on processes of an executor or a Ray cluster.

Each process writes a part k/N of the shards. A pack for an object store is written to a disk of this machine
first, then uploaded as complete objects, the index of shards last.
"""

from __future__ import annotations

import json
import os
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from functools import partial, wraps
from pkgutil import resolve_name
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from packer.convert.conversion_task import ConversionTask, Report, RunOptions
from packer.convert.pack_run import write_pack
from packer.convert.recorded_shards import RecordedShards, index_shards, plan_of_shards, shard_names
from packer.errors import (
    FormatError,
    MissingDependencyError,
    MissingObjectError,
    PackerError,
    SourceError,
    UsageError,
)
from packer.format.checksums import digest
from packer.format.file_io import make_folder, own_folder, remove
from packer.format.header import INDEX_FILE, PARTIAL_SUFFIX
from packer.format.plan_differences import difference
from packer.given_values import shown
from packer.machine import cores
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.remote.urls import is_url, join_url, name_of
from packer.writing.working_folder import (
    WorkingFolder,
    parts_of,
    read_records,
)

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")
Out = str | os.PathLike[str]

ENGINES = ("local", "ray")
# Parts per process: with more, inputs are listed more often; with fewer, processes idle at the end.
_ROUNDS = 2
_PATIENCE_SECONDS = 10.0
_RETRIES = 4  # retries of a part whose process or machine was lost
_CALLERS = ("engine", "only_shards", "on_plan", "on_progress", "progress", "resume", "workers")


@dataclass(frozen=True)
class PartsEngine:
    """An engine whose processes convert the parts k/N of a pack of shards; this process writes the index.

    pool: returns the executor; convert: qualified name of convert_images; source, options: its arguments;
    url: URL of the pack in an object store, to which the processes upload shards; "" for the path of the
    conversion.
    """

    pool: Callable[[], AbstractContextManager[Executor]]
    convert: str
    source: Any
    options: Mapping[str, Any]
    url: str = ""

    def __call__(self, task: ConversionTask, out: str, running: RunOptions) -> Report:
        """See Engine."""
        rows, total, name = task.storing.shard_rows, len(task.order.samples), self.url or out
        assert rows is not None
        assert task.plan is not None
        count = -(-total // rows)

        def rows_of(numbers: Iterable[int]) -> int:
            return sum(min(rows, total - number * rows) for number in numbers)

        reports, again = list[Report](), replace(running, resume=False)
        with self.pool() as pool:
            workers = getattr(pool, "_max_workers", None) or cores()
            parts = min(count, _ROUNDS * workers)
            with self._recorded(task, out, running) as shards:
                there = {k for k, file in enumerate(shards.files) if shards.is_done(file, skip=running.skip)}
                cleared = shards.place.cleared
                make_folder(shards.place.pack)
            todo = [k for k in range(parts) if not there.issuperset(range(k, count, parts))]
            done = resumed = rows_of(there.difference(*(range(k, count, parts) for k in todo)))
            options = {option: value for option, value in self.options.items() if option not in _CALLERS}
            options["format"] = task.storing.format
            given = self.convert, os.getcwd(), self.source, name, options, task.plan
            shares = [f"{k + 1}/{parts}" for k in todo]
            calls = {share: partial(pool.submit, make_part, share, *given) for share in shares}
            for report, records in _results(calls, name):
                reports.append(report)
                with self._recorded(task, out, again) as shards:
                    for file, found in records:
                        shards.record(file, found)
                done = min(total, done + report.rows + len(report.skipped))
                running.progress(done)
            with self._recorded(task, out, again) as shards:
                header = index_shards(shards, name, name)
        written = Report.merge(header, reports, resumed, cleared)
        return replace(written, workers=min(workers, parts))

    @contextmanager
    def _recorded(self, task: ConversionTask, out: str, running: RunOptions) -> Iterator[RecordedShards]:
        """Yield the finished shards, in the locked folder: processes forked meanwhile inherit the lock."""
        overwrite = running.overwrite or bool(self.url)
        count = -(-len(task.order.samples) // (task.storing.shard_rows or 1))
        plan = plan_of_shards(task, count)
        place = WorkingFolder(out, plan=plan, overwrite=overwrite, resume=running.resume)
        try:
            yield RecordedShards(place, shard_names(count, task.storing.format), task.skipped, self.url)
        finally:
            place.close(keep=True)


def make_part(
    part: str,
    convert: str,
    folder: str,
    source: Any,
    out: str,
    options: Mapping[str, Any],
    plan: Mapping[str, Any],
) -> tuple[Any, list[Any]]:
    """Convert a part of a pack in this process, possibly on another machine, and hand its shards over.

    part: "k/N"; convert: qualified name of convert_images; folder: working directory of the caller; out: the
    pack, whose shards go to its working folder, or its URL, to which they are uploaded; plan: the caller's.
    Returns: the report, and the journal's records of the shards.
    """
    before, host = os.getcwd(), socket.gethostname()

    def write(task: ConversionTask, out: str, running: RunOptions) -> Report:
        if differs := difference(plan, task.plan, words=("is", ", here it is")):
            raise SourceError(
                f"{host}: made other rows than the machine that planned the pack: {differs}. Install the"
                " same versions on both, and give both the same files."
            )
        return write_pack(task, out, running)

    try:
        with suppress(OSError):
            os.chdir(folder)
        if is_url(out):
            local = local_name(out, part, digest([json.dumps(plan).encode()]).hex())
        else:  # overlapping attempts meet at its lock
            folders = out + PARTIAL_SUFFIX, "parts", part.replace("/", "-of-"), os.path.basename(out)
            local = os.path.join(*folders)
        make_folder(os.path.dirname(local))
        run = partial(resolve_name(convert), source, local, only_shards=part, workers=1, engine=write)
        report = run(**{**options, "overwrite": True})
        (made,) = parts_of(local)
        records = read_records(made)
        for file, found in records:
            if isinstance(found, str):
                hand_over(os.path.join(made, "pack", file), out, file)
        remove(os.path.dirname(local))
        return report, records
    except PackerError as error:
        error.extend(f" (On {host}.)")
        raise
    finally:
        os.chdir(before)


def hand_over(path: str, out: str, file: str) -> None:
    """Move a shard into the working folder of its pack, or upload it. out: the pack, or its URL."""
    if is_url(out):
        from packer.packs.remote_pack import put_pack

        put_pack(join_url(out, file), path)
    elif os.path.exists(path):  # else an earlier attempt has moved it
        to = os.path.join(out + PARTIAL_SUFFIX, "pack", file)
        remove(to)
        os.rename(path, to)


def published(convert: Callable[Concatenate[S, Out, P], R]) -> Callable[Concatenate[S, Out, P], R]:
    """Decorate a conversion so that its output can be a URL, and its engine other processes.

    The pack is written to this user's folder for temporary files (in TMPDIR), under a name derived from the
    URL, so that ``resume`` finds it again, and removed once it is uploaded. Stores get HDF5 packs; existing
    names are refused.
    """

    @wraps(convert)
    def convert_or_upload(source: S, out: Out, *args: P.args, **options: P.kwargs) -> R:
        url, given = str(out).rstrip("/") if is_url(out) else "", cast("dict[str, Any]", options)
        if (pool := pool_of(given.get("engine"))) is not None:
            name = f"{convert.__module__}:{convert.__qualname__}"
            given["engine"] = PartsEngine(pool, name, source, dict(given), url)
        if not url:
            return convert(source, out, *args, **options)
        if given.get("format") == "npy" or given.get("only_shards") is not None:
            raise UsageError(
                f"{url}: stores get complete HDF5 packs. Leave out format='npy' and"
                " only_shards=, or pass a folder."
            )
        from packer.remote import access  # local conversions need not load it

        for name in (url, join_url(url, INDEX_FILE)):
            with suppress(MissingObjectError):
                access.stat(name)
                raise UsageError(f"{name}: exists already. Pass another name, or remove it.")
        local = local_name(url)
        given |= {"format": "h5", "overwrite": not given.get("resume")}
        report = convert(source, local, *args, **options)
        if pool is None and not given.get("dry_run"):
            _write(open_pack(local), url)
        remove(os.path.dirname(local))
        changed: R = replace(report, out=url)  # type: ignore[type-var]
        return changed

    return cast("Callable[Concatenate[S, Out, P], R]", convert_or_upload)


def _write(pack: Pack, url: str) -> None:
    """Upload the files of a pack and compare its seal in the store.

    Raises RemoteError, FormatError, UsageError.
    """
    from packer.packs.remote_pack import open_object, open_shards, put_pack
    from packer.remote import access

    for shard in pack.shards:
        put_pack(join_url(url, os.path.basename(shard.path)), shard.path)
    if pack.shards:
        index = os.path.join(pack.path, INDEX_FILE)
        access.put_file(join_url(url, INDEX_FILE), index, patience=access.ROWS_PATIENCE)
    else:
        put_pack(url, pack.path)
    written = open_shards(url) if pack.shards else open_object(url)
    written.confirm()
    if written.seal != pack.seal:
        raise FormatError(f"{url}: holds another pack than was uploaded. Find the other writer of this URL.")


def local_name(url: str, *more: str) -> str:
    """Return the temporary local path of the pack for a URL. more: further texts that distinguish paths."""
    name = digest(text.encode("utf-8", "surrogateescape") for text in (url, *more)).hex()[:16]
    folder = os.path.join(own_folder(), name)
    make_folder(folder)
    return os.path.join(folder, name_of(url))


def _results(calls: Mapping[str, Callable[[], Future[R]]], name: str) -> Iterator[R]:
    """Yield the results of tasks as they end. Raises PackerError.

    calls: part -> function that submits it; name: the pack, for messages.
    """
    coming: dict[Future[R], str] = {}
    try:
        for part, call in calls.items():
            coming[_result(call, name, part)] = part
        while coming:
            # Yield successful results before raising the first failure.
            ended = wait(coming, None, FIRST_COMPLETED).done
            for future in sorted(ended, key=lambda done: done.cancelled() or bool(done.exception())):
                yield _result(future.result, name, coming.pop(future))
    finally:
        for future in coming:
            future.cancel()


def _result(call: Callable[[], R], name: str, part: str) -> R:
    """Return the result of a call for a part of a pack. Raises PackerError, also if a process died."""
    try:
        return call()
    except (Exception, CancelledError) as error:  # any executor's errors
        cause = getattr(error, "cause", error)  # errors of Ray wrap the original
        if isinstance(cause, PackerError):
            raise cause from None
        lost = isinstance(error, BrokenExecutor)
        reason = (
            "a worker process died" if lost else (str(error).strip() or type(error).__name__).splitlines()[0]
        )
        raise PackerError(
            f"{name}: part {part} failed ({reason}). If an image crashes its decoder, the same conversion"
            " without engine= names it."
        ) from error


def pool_of(engine: Any) -> Callable[[], AbstractContextManager[Executor]] | None:
    """Return a function that returns the executor; None for this machine, or if the engine is a function.

    engine: "local" or None; "ray" or "ray:ADDRESS"; an executor of processes; an Engine function. Raises
    UsageError.
    """
    if engine is None or (isinstance(engine, str) and engine == "local"):
        return None
    if isinstance(engine, str) and engine.partition(":")[0] == "ray":
        return lambda: _ray(engine.partition(":")[2] or None)
    if isinstance(engine, ThreadPoolExecutor):
        raise UsageError(
            "engine: is a pool of threads; processes are needed. Leave it out, or pass workers=."
        )
    if isinstance(engine, Executor):
        return lambda: nullcontext(engine)
    if callable(engine):
        return None
    raise UsageError(
        f"engine {shown(engine)}: is neither {' nor '.join(ENGINES)} nor an executor"
        " (concurrent.futures.Executor). Pass one of them."
    )


# Ray


@contextmanager
def _ray(address: str | None) -> Iterator[Executor]:
    """Connect to a Ray cluster, or start one on this machine. Raises MissingDependencyError, UsageError."""
    try:
        import ray
    except ImportError:
        raise MissingDependencyError("ray", "engine='ray'") from None
    ours = not ray.is_initialized()
    if ours:
        # "local" by default: otherwise Ray would wait for clusters that ran here before.
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        host, colon, port = address.rpartition("://")[2].rpartition(":")
        try:
            if colon and port.isdecimal():  # Ray would try for minutes to reach a closed port
                socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_SECONDS).close()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ray.init(address=address, configure_logging=False, log_to_driver=False)
        except (OSError, OverflowError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"engine ray:{address}: no Ray cluster answers there ({str(error).splitlines()[0]})."
                " Start one (ray start --head), or leave the address out."
            ) from None
    executor = _RayExecutor(ray)
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)
        if ours:
            ray.shutdown()


def _call(fn: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    return fn(*args, **kwargs)


class _RayExecutor(Executor):
    """An executor that runs functions as Ray tasks."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._tasks: dict[Future[Any], Any] = {}
        # Created once: Ray keeps every remote function it gets.
        self._call = ray.remote(num_cpus=1, max_retries=_RETRIES, scheduling_strategy="SPREAD")(_call)

    @property
    def _max_workers(self) -> int:
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function on one core of the cluster; retry it if its process or machine is lost."""
        task = self._call.remote(fn, *args, **kwargs)
        future: Future[Any] = task.future()
        self._tasks[future] = task
        future.add_done_callback(lambda done: self._tasks.pop(done, None))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel the tasks that still run."""
        for task in list(self._tasks.values()):
            with suppress(Exception):
                self._ray.cancel(task, force=True)
