"""Damage and forge packs, and see what opening, reading and verifying make of them.

    python tools/fuzz_packs.py PACK... [--count 1000] [--seed 0] [--jobs 1] [--kinds flip,header] [--out fuzz-defects]
    python tools/fuzz_packs.py --replay fuzz-defects/0-123

Each case is one mutation of one of the packs (small ones: every case reads all of its rows several times), drawn from
the seed and the case's number alone. It is opened, read by every way there is, and verified, in a worker process with a
limit on time and memory. Prints how often each kind of mutation came to which end:

    refused      opening, or reading, raised FormatError
    found        it could be read; verify found the damage
    same         the checksums were made to fit, and nothing that is read differs
    forged       the checksums were made to fit, and other rows come out: checksums find damage, not forgery
    DEFECTS      undetected: verify, or reading with verify="blocks", let damage pass. exception: another one than FormatError.
                 crash, hang, memory: of the worker. They are kept under --out, to be looked at and replayed; exit code 1.
"""

from __future__ import annotations

import argparse
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
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packer.errors import FormatError
from packer.format.pack import open_pack
from packer.format.verify import verify_pack
from packer.load.batches import PackedBatchDataset
from packer.load.order import Runs
from packer.load.reader import Reader
from pack_mutations import KINDS, Files, Original, mutation

ENDS = ("refused", "found", "same", "forged")
DEFECTS = ("undetected", "exception", "crash", "hang", "memory")
CASE_SECONDS = 20.0
MEMORY_BYTES = 1 << 30  # beyond what a worker takes before its first case


# --- what becomes of them ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class End:
    """What became of a case. how: one of ENDS or DEFECTS; detail: the sentence, or the traceback."""

    how: str
    detail: str


def write(files: Files, path: Path) -> None:
    """Write a pack's files under that name, anew."""
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
    """Hashes of all that can be read of a pack, each field by each way. Raises what reading raises."""
    pack = open_pack(path)
    found = [f"{pack.rows} {[(f.name, f.dtype, f.shape) for f in pack.fields]}"]

    def note(what: str, *values: Any) -> None:
        state = hashlib.sha256()
        for value in values:
            state.update(
                np.ascontiguousarray(value).data if isinstance(value, np.ndarray) else repr(value).encode()
            )
        found.append(f"{what} {state.hexdigest()}")

    if verify is None:
        if any(f.name == "key" for f in pack.fields):
            note("keys", *pack.keys())
        reader = Reader(pack, pack.fields)
        back = Runs(np.arange(pack.rows)[::-1].copy(), np.ones(pack.rows, np.int64))
        for f in pack.fields:
            loaded = f.loaded
            if loaded.ragged:
                note(f.name, *reader.read_ragged(f.name, back))
            else:
                out = np.zeros((pack.rows, loaded.row_bytes), np.uint8)
                reader.read(f.name, back, out)
                note(f.name, out)
            if not f.compressed:
                for array in f.arrays:
                    note(array, pack.read(array))
        reader.close()
    for order in ("sequential", "rows"):
        with PackedBatchDataset(
            pack, 4, order=order, output="numpy", fields=[f.name for f in pack.fields], threads=1, prefetch=1, verify=verify
        ) as batches:  # fmt: skip
            for name, *columns in zip(batches._names, *batches, strict=True):
                note(f"{order} {name}", *columns)
    return found


def judge(path: Path, expected: list[str], checked: list[str], *, fitted: bool) -> End:
    """Open, read and verify a mutated pack. expected, checked: contents of the whole one, without and with verify="blocks"."""
    try:
        end = _judge(path, expected, checked, fitted=fitted)
    except MemoryError:
        return End("memory", traceback.format_exc())
    except Exception:
        return End("exception", traceback.format_exc())
    return end


def _judge(path: Path, expected: list[str], checked: list[str], *, fitted: bool) -> End:
    refusal = ""
    read: list[str] = []
    try:
        read = contents(path)
    except FormatError as error:
        refusal = str(error)
    try:
        blocks = contents(path, verify="blocks")
    except FormatError as error:
        blocks, refusal = [], refusal or f"with verify='blocks': {error}"
    try:
        verdict = verify_pack(path, threads=2)
        problems = [problem.text for problem in verdict.problems]
    except FormatError as error:
        problems = [str(error)]
    if not fitted and not problems:
        return End(
            "undetected",
            refusal or f"verify found nothing; rows are {'the same' if read == expected else 'others'}",
        )
    if not fitted and blocks and blocks != checked:
        return End("undetected", "verify='blocks' let other rows pass")
    if not read:
        return End("refused", refusal)
    if problems:
        return End("found", problems[0])
    return End("same" if read == expected else "forged", refusal)


# --- workers ----------------------------------------------------------------------------------------------------------


def work(packs: Sequence[Path], kinds: Sequence[str], seed: int) -> None:
    """Answer each line of stdin, a case's number or the path of a kept one, by a line of JSON."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    originals = [Original.read(path) for path in packs]
    wholes = [(contents(path), contents(path, verify="blocks")) for path in packs]
    import h5py  # noqa: F401  # so that its own memory does not count

    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        print("{}", flush=True)
        for line in sys.stdin:
            if line.startswith("{"):
                kept = json.loads(line)
                path = Path(kept["mutated"])
                end = judge(path, kept["expected"], kept["checked"], fitted=kept["fitted"])
                print(json.dumps(vars(end)), flush=True)
                continue
            case = int(line)
            original = originals[case % len(packs)]
            kind, mutated = mutation(original, kinds, seed, case)
            path = folder / ("pack" if original.directory else "pack.h5")
            if mutated.files == original.files:
                end = End("same", "nothing was changed")
            else:
                write(mutated.files, path)
                end = judge(path, *wholes[case % len(packs)], fitted=mutated.fitted)
            print(json.dumps({"kind": kind, **vars(end)}), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _address_space() -> int:
    """Bytes of address space this process has taken."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 4 << 30  # macOS, which does not enforce the limit anyway


class Worker:
    """A process that answers lines, started anew after it died."""

    def __init__(self, command: Sequence[str], *, seconds: float = CASE_SECONDS) -> None:
        self._command, self._seconds = command, seconds
        self._process: subprocess.Popen[str] | None = None
        self._deadline = 0.0

    def fileno(self) -> int:
        """For selectors."""
        return self._stdout.fileno()

    def start(self) -> None:
        """Start it if it is not running; wait until it is ready. Raises RuntimeError if it never is."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
            assert self._process.stdout is not None
            if not self._process.stdout.readline():
                raise RuntimeError("a worker ended before its first case")

    def send(self, line: str) -> None:
        """Hand it a case."""
        self.start()
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        self._deadline = time.monotonic() + self._seconds

    @property
    def late(self) -> bool:
        """Whether its time is up."""
        return time.monotonic() > self._deadline

    def receive(self) -> dict[str, Any]:
        """Its answer, once there is one to read; or how it died."""
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        code = self._process.wait()
        self._process = None
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return {"how": "crash", "detail": name}

    def kill(self) -> dict[str, Any]:
        """End it; that is the answer."""
        self.close()
        return {"how": "hang", "detail": f"no answer within {self._seconds:g} s"}

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None


def run(workers: Sequence[Worker], cases: Sequence[int], note: Callable[[int, dict[str, Any]], None]) -> None:
    """Have the workers answer all cases."""
    queue, busy = list(reversed(cases)), dict[Worker, int]()
    try:
        while queue or busy:
            for worker in workers:
                if queue and worker not in busy:
                    busy[worker] = queue.pop()
                    worker.send(str(busy[worker]))
            with selectors.DefaultSelector() as selector:
                for worker in busy:
                    selector.register(worker, selectors.EVENT_READ)
                ready = [key.fileobj for key, _ in selector.select(1.0)]
            for worker in list(busy):
                if worker in ready:
                    note(busy.pop(worker), worker.receive())
                elif worker.late:
                    note(busy.pop(worker), worker.kill())
    finally:
        for worker in workers:
            worker.close()


def keep(
    folder: Path, path: Path, kinds: Sequence[str], seed: int, case: int, answer: dict[str, Any]
) -> None:
    """Write a defect where it can be looked at and replayed."""
    original = Original.read(path)
    kind, mutated = mutation(original, kinds, seed, case)
    own = folder / f"{seed}-{case}"
    own.mkdir(parents=True, exist_ok=True)
    write(mutated.files, own / ("pack" if original.directory else "pack.h5"))
    record = {
        "pack": str(path),
        "kind": kind,
        "what": mutated.what,
        "fitted": mutated.fitted,
        "answer": answer,
        "expected": contents(path),
        "checked": contents(path, verify="blocks"),
    }
    (own / "case.json").write_text(json.dumps(record, indent=1))


def replay(folder: Path) -> int:
    """Judge a kept defect once more. Returns the exit code."""
    kept = json.loads((folder / "case.json").read_text())
    mutated = next(folder.glob("pack*"))
    print(
        f"{kept['kind']}: {kept['what']}\nthen: {kept['answer']['how']}: {kept['answer']['detail'].strip()}"
    )
    worker = Worker([sys.executable, __file__, "--worker"])
    try:
        worker.send(json.dumps({**kept, "mutated": str(mutated)}))
        with selectors.DefaultSelector() as selector:
            selector.register(worker, selectors.EVENT_READ)
            answer = worker.receive() if selector.select(CASE_SECONDS) else worker.kill()
    finally:
        worker.close()
    print(f"now: {answer['how']}: {answer['detail'].strip()}")
    return answer["how"] in DEFECTS


def report(counts: dict[str, Counter[str]]) -> str:
    """The table: a line a kind, a column an end."""
    columns = [*ENDS, *DEFECTS]
    total: Counter[str] = sum(counts.values(), Counter())
    lines = [f"{'':10}" + "".join(f"{name:>11}" for name in ["cases", *columns])]
    for name, row in [*sorted(counts.items()), ("all", total)]:
        lines.append(f"{name:10}" + "".join(f"{n:>11,}" for n in [row.total(), *(row[c] for c in columns)]))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code: 1 if there are defects."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packs", nargs="*", type=Path, metavar="PACK")
    parser.add_argument("--count", type=int, default=1000, help="cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of mutations, default: all")
    parser.add_argument("--out", type=Path, default=Path("fuzz-defects"), help="where defects are kept")
    parser.add_argument("--replay", type=Path, help="a kept defect")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    kinds = given.kinds.split(",")
    if set(kinds) - set(KINDS):
        parser.error(f"--kinds: {', '.join(KINDS)} are known")
    if given.worker:
        work(given.packs, kinds, given.seed)
        return 0
    if given.replay:
        return replay(given.replay)
    if not given.packs:
        parser.error("PACK is missing")
    counts: dict[str, Counter[str]] = defaultdict(Counter)

    def note(case: int, answer: dict[str, Any]) -> None:
        path = given.packs[case % len(given.packs)]
        if answer["how"] in DEFECTS:
            keep(given.out, path, kinds, given.seed, case, answer)
            last = answer["detail"].strip().splitlines()[-1]
            print(f"{given.out}/{given.seed}-{case}: {answer['how']}: {last}", flush=True)
        kind = answer.get("kind") or mutation(Original.read(path), kinds, given.seed, case)[0]
        counts[kind][answer["how"]] += 1

    command = [sys.executable, __file__, "--worker", *map(str, given.packs), "--kinds", given.kinds, "--seed", str(given.seed)]  # fmt: skip
    began = time.monotonic()
    run([Worker(command) for _ in range(given.jobs)], range(given.count), note)
    print(report(counts))
    seconds = time.monotonic() - began
    print(f"{given.count:,} cases in {seconds:.0f} s, seed {given.seed}, {len(given.packs)} packs")
    return any(row[end] for row in counts.values() for end in DEFECTS)


if __name__ == "__main__":
    sys.exit(main())
