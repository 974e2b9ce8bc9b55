"""Damage and forge packs, and check the results of opening, reading and verifying them.

    python tools/fuzz_packs.py PACK... [--count 1000] [--seed 0] [--jobs 1] [--kinds flip,header]
        [--out fuzz-defects]
    python tools/fuzz_packs.py --replay fuzz-defects/0-123

Each case is a mutation of one of the packs (use small ones: every case reads all rows several times), and
depends only on the seed and the case's number. A worker process with limits of time and memory opens it,
reads it in every way, and verifies it. Prints the counts of each kind of mutation and result:

    refused      opening, or reading, raised FormatError
    found        it could be read; verify found the damage
    same         its checksums were adapted, and reading gives the original rows
    forged       its checksums were adapted, and reading gives other rows: checksums do not detect forgery
    DEFECTS      undetected: verify, or reading with verify="blocks", missed damage.
                 exception: not a FormatError. crash, hang, memory: of the worker.
                 They are kept under --out for replay; exit code 1.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pack_mutations import KINDS, Files, Mutation, Original, mutation

from packer.errors import FormatError
from packer.load.batch_dataset import PackedBatchDataset
from packer.orders.runs import Runs
from packer.packs import hdf5_inspection
from packer.packs import unsealed_hdf5 as unsealed
from packer.packs.pack_opening import open_pack
from packer.packs.verify import verify_pack
from packer.read.array_store import PackStore

ENDS = ("refused", "found", "same", "forged")
DEFECTS = ("undetected", "exception", "crash", "hang", "memory")
CASE_SECONDS = 20.0
MEMORY_BYTES = 1 << 30  # in addition to a worker's memory before its first case


@dataclass(frozen=True)
class End:
    """The result of a case. how: one of ENDS or DEFECTS; detail: sentence or traceback; kind: of mutation."""

    how: str
    detail: str
    kind: str = ""


def write(files: Files, path: Path) -> None:
    """Write a pack's files under a name, replacing earlier ones."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if "" in files:
        path.write_bytes(files[""])
        return
    path.mkdir()
    for name, data in files.items():
        (path / name).write_bytes(data)


def contents(path: Path, *, verify: str | None = None) -> list[str]:
    """Return hashes of all that can be read from a pack, each field in each way. Raises reading's errors."""
    pack = open_pack(path)
    found = [f"{pack.rows} {[(f.name, f.dtype, f.shape) for f in pack.fields]}"]

    def note(what: str, values: Iterable[Any]) -> None:
        state = hashlib.sha256()
        for value in values:
            plain = (
                np.ascontiguousarray(value).data if isinstance(value, np.ndarray) else repr(value).encode()
            )
            state.update(plain)
        found.append(f"{what} {state.hexdigest()}")

    if verify is None:
        if any(f.name == "key" for f in pack.fields):
            note("keys", pack.keys())
        reader = PackStore(pack, pack.fields)
        back = Runs(np.arange(pack.rows)[::-1].copy(), np.ones(pack.rows, np.int64))
        for f in pack.fields:
            if f.loaded.ragged:
                note(f.name, reader.ragged(f.name, back))
            else:
                out = np.zeros((pack.rows, f.loaded.row_bytes), np.uint8)
                reader.copy(back, {f.name: out})
                note(f.name, [out])
            if not f.compressed:
                note(f"{f.name} stored", [pack.read(array) for array in f.arrays])
        reader.close()
    names = [f.name for f in pack.fields]
    for order in ("sequential", "rows"):
        with PackedBatchDataset(
            replace(pack, verify=verify is not None),
            4,
            order=order,
            output="numpy",
            fields=names,
            subset=slice(None),  # every row of all splits
            threads=1,
            prefetch=1,
            placement="disk",  # else a process is started for each pack that keeps its decoded rows
        ) as batches:
            for name, *columns in zip(names, *batches, strict=True):
                note(f"{name} {order}", columns)
    return found


def judge(path: Path, whole: Sequence[list[str]], *, fitted: bool) -> End:
    """Open, read and verify a mutated pack.

    whole: contents of the original, without and with verify="blocks".
    """
    try:
        return _judge(path, whole, fitted=fitted)
    except MemoryError:
        return End("memory", traceback.format_exc())
    except Exception:
        return End("exception", traceback.format_exc())


def _judge(path: Path, whole: Sequence[list[str]], *, fitted: bool) -> End:
    refusals: list[str] = []
    reads: list[list[str]] = []
    for verify in (None, "blocks"):
        try:
            reads.append(contents(path, verify=verify))
        except FormatError as error:
            reads.append([])
            refusals.append(str(error))
    try:
        found = [problem.text for problem in verify_pack(path, threads=2).problems]
    except FormatError as error:
        found = [str(error)]
    if not fitted and not found:
        return End("undetected", "; ".join(["verify found nothing", *refusals]))
    if not fitted and reads[1] and reads[1] != whole[1]:
        return End("undetected", "verify='blocks' let other rows pass")
    if not reads[0]:
        return End("refused", refusals[0])
    if found:
        return End("found", found[0])
    return End("same" if reads[0] == whole[0] else "forged", "")


def ask_hdf5_here() -> None:
    """Read unsealed files with HDF5 in this process: starting another takes long, and a worker may die."""
    unsealed._ask = _ask_hdf5


def _ask_hdf5(name: str) -> dict[str, Any]:
    try:
        return hdf5_inspection.described(name)
    except Exception:
        return {}  # as from a process that ended so


def case_of(packs: Sequence[Path], kinds: Sequence[str], seed: int, case: int) -> tuple[Path, str, Mutation]:
    """Return the pack, the kind and the mutation of a case."""
    path = packs[case % len(packs)]
    return path, *mutation(_original(path), kinds, seed, case)


@functools.cache
def _original(path: Path) -> Original:
    return Original.read(path)


def work(packs: Sequence[Path], kinds: Sequence[str], seed: int, folder: Path) -> None:
    """Answer each line of stdin, a case's number or a kept case, with a line of JSON."""
    ask_hdf5_here()
    wholes = {path: (contents(path), contents(path, verify="blocks")) for path in packs}
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print(flush=True)
    for line in sys.stdin:
        if line.startswith("{"):
            kept = json.loads(line)
            end = judge(Path(kept["mutated"]), kept["whole"], fitted=kept["fitted"])
        else:
            path, kind, mutated = case_of(packs, kinds, seed, int(line))
            if mutated.files == _original(path).files:
                end = End("same", "nothing was changed", kind)
            else:
                copy = folder / f"{os.getpid()}{path.suffix}"
                write(mutated.files, copy)
                end = replace(judge(copy, wholes[path], fitted=mutated.fitted), kind=kind)
        print(json.dumps(asdict(end)), flush=True)


def _address_space() -> int:
    """Return the bytes of address space of this process."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 4 << 30  # macOS, which ignores the limit


class Worker:
    """A process that answers each line with a line, restarted after it dies. Takes one line at a time."""

    def __init__(self, command: Sequence[str], *, seconds: float = CASE_SECONDS) -> None:
        self._command, self._seconds = command, seconds
        self._process: subprocess.Popen[str] | None = None

    def ask(self, line: str) -> End:
        """Return the answer to a line, or the way in which the process failed."""
        if self._process is None:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(self._seconds):
                self.close()
                return End("hang", f"no answer within {self._seconds:g} s")
        answer = process.stdout.readline()
        if answer:
            return End(**json.loads(answer))
        code = process.wait()
        self.close()
        return End("crash", signal.Signals(-code).name if code < 0 else f"exit code {code}")

    def close(self) -> None:
        """End the process if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdout is not None
        if not self._process.stdout.readline():  # its first line says that it is ready
            self.close()
            raise RuntimeError("a worker ended before its first case")


def run(workers: Sequence[Worker], cases: Iterable[int], note: Callable[[int, End], None]) -> None:
    """Let the workers answer all cases, each on a thread; calls of `note` are serialised."""
    queue, lock = iter(cases), threading.Lock()

    def serve(worker: Worker) -> None:
        try:
            while True:
                with lock:
                    case = next(queue, None)
                if case is None:
                    return
                end = worker.ask(str(case))
                with lock:
                    note(case, end)
        finally:
            worker.close()

    with ThreadPoolExecutor(len(workers)) as pool:
        list(pool.map(serve, workers))


def keep(folder: Path, path: Path, mutated: Mutation, end: End) -> None:
    """Write a defect to a folder for inspection and replay."""
    folder.mkdir(parents=True, exist_ok=True)
    write(mutated.files, folder / f"pack{path.suffix}")
    record = {
        "what": mutated.what,
        "fitted": mutated.fitted,
        "end": asdict(end),
        "whole": [contents(path), contents(path, verify="blocks")],
    }
    (folder / "case.json").write_text(json.dumps(record, indent=1))


def replay(folder: Path) -> int:
    """Check a kept defect again. Returns the exit code."""
    kept = json.loads((folder / "case.json").read_text())
    print(f"{kept['what']}\nthen: {kept['end']['how']}: {kept['end']['detail'].strip()}")
    worker = Worker([sys.executable, __file__, "--worker", str(folder)])
    try:
        end = worker.ask(json.dumps({**kept, "mutated": str(next(folder.glob("pack*")))}))
    finally:
        worker.close()
    print(f"now: {end.how}: {end.detail.strip()}")
    return int(end.how in DEFECTS)


def report(counts: dict[str, Counter[str]]) -> str:
    """Return the table: a line for each kind, a column for each result."""
    columns = [*ENDS, *DEFECTS]
    lines = [f"{'':10}" + "".join(f"{name:>11}" for name in ["cases", *columns])]
    for name, row in [*sorted(counts.items()), ("all", sum(counts.values(), Counter[str]()))]:
        lines.append(f"{name:10}" + "".join(f"{n:>11,}" for n in [row.total(), *(row[c] for c in columns)]))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code, 1 for defects."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packs", nargs="*", type=Path, metavar="PACK")
    parser.add_argument("--count", type=int, default=1000, help="cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of mutations; default: all")
    parser.add_argument("--out", type=Path, default=Path("fuzz-defects"), help="folder for defects")
    parser.add_argument("--replay", type=Path, help="folder of a kept defect")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    kinds = given.kinds.split(",")
    if set(kinds) - set(KINDS):
        parser.error(f"--kinds: {', '.join(KINDS)} are known")
    if given.worker:
        work(given.packs, kinds, given.seed, given.worker)
        return 0
    if given.replay:
        return replay(given.replay)
    if not given.packs:
        parser.error("PACK is missing")
    counts: dict[str, Counter[str]] = defaultdict(Counter)

    def note(case: int, end: End) -> None:
        if end.how in DEFECTS:
            path, kind, mutated = case_of(given.packs, kinds, given.seed, case)
            folder = given.out / f"{given.seed}-{case}"
            end = replace(end, kind=kind)
            keep(folder, path, mutated, end)
            print(f"{folder}: {kind}: {end.how}: {end.detail.strip().splitlines()[-1]}", flush=True)
        counts[end.kind][end.how] += 1

    began = time.monotonic()
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder:
        command = [
            sys.executable,
            __file__,
            "--worker",
            folder,
            "--kinds",
            given.kinds,
            "--seed",
            str(given.seed),
        ]
        run([Worker([*command, *map(str, given.packs)]) for _ in range(given.jobs)], range(given.count), note)
    seconds = time.monotonic() - began
    print(
        f"{report(counts)}\n{given.count:,} cases in {seconds:.0f} s, seed {given.seed},"
        f" {len(given.packs)} packs"
    )
    return int(any(row[end] for row in counts.values() for end in DEFECTS))


if __name__ == "__main__":
    sys.exit(main())
