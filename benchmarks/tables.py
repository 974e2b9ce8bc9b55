"""Converting a numeric table: packer, and bare parsers that only bring the text into memory as float32.

    python tools/make_higgs_like.py higgs.csv --rows 1000000
    python benchmarks/tables.py higgs.csv                       no header, all columns numeric
    python benchmarks/tables.py higgs.csv.gz --rounds 3 --json out.json

A lane is a fresh process whose clock starts after its imports. The parsers stop when the columns are in
memory; packer goes on to statistics and a shuffled pack with checksums, and flushes it to the disk. polars
and pandas read a .gz file themselves; "isal" is its bare decompression.

polars and isal are not dependencies of packer; missing lanes are listed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from statistics import median
from typing import Any

from lanes.process import cpu_seconds

from packer.bench.hardware_limits import machine, versions

SUBJECT = "packer"


def columns(path: str) -> list[str]:
    """Return names for the columns of a file without a header."""
    opener: Callable[..., Any] = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt") as file:
        return [f"c{i}" for i in range(file.readline().count(",") + 1)]


def run_polars(path: str, out: str, workers: int) -> int:
    """Run polars.read_csv on the complete file."""
    polars = import_module("polars")
    return len(polars.read_csv(path, has_header=False, schema=dict.fromkeys(columns(path), polars.Float32)))


def run_isal(path: str, out: str, workers: int) -> int:
    """Decompress in pieces, and discard them."""
    igzip, lines, piece = import_module("isal.igzip"), 0, bytearray(8 << 20)
    with igzip.open(path, "rb") as file:
        while count := file.readinto(piece):
            lines += piece.count(b"\n", 0, count)
    return lines


def run_pandas(path: str, out: str, workers: int) -> int:
    """Run pandas' C parser."""
    return len(import_module("pandas").read_csv(path, header=None, dtype="float32"))


def run_packer(path: str, out: str, workers: int) -> int:
    """Run the complete conversion: the first column is the label, rows are shuffled."""
    packer = import_module("packer")
    return int(packer.convert_table(path, out, label="0", csv=packer.Csv(header=False), workers=workers).rows)


LANES: dict[str, tuple[Callable[[str, str, int], int], tuple[str, ...]]] = {
    "isal": (run_isal, ("isal.igzip",)),
    "polars": (run_polars, ("polars",)),
    "pandas": (run_pandas, ("pandas",)),
    SUBJECT: (run_packer, ("packer.tables.table_conversion", "h5py")),
}
BARE = ("isal",)  # lanes that parse nothing


def lane(name: str, path: str, out: str, workers: int) -> None:
    """Run one lane in this process, and print its time."""
    run, modules = LANES[name]
    for module in modules:
        import_module(module)
    began = time.perf_counter()
    rows = run(path, out, workers)
    found = {"rows": rows, "seconds": time.perf_counter() - began, "cpu": cpu_seconds()}
    usage = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(json.dumps(found | {"peak_mb": max(usage) / 1024}))


def installed(name: str) -> bool:
    """Return True if all modules of a lane can be imported."""
    try:
        for module in LANES[name][1]:
            import_module(module)
    except ImportError as error:
        print(f"{name}: left out, {error}", file=sys.stderr)
        return False
    return True


def measure(path: str, out: str, names: list[str], rounds: int, workers: int) -> dict[str, dict[str, Any]]:
    """Run every lane in turn, several times. Returns medians."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            Path(out).unlink(missing_ok=True)
            os.sync()
            command = [
                sys.executable,
                __file__,
                path,
                "--lane",
                name,
                "--out",
                out,
                "--workers",
                str(workers),
            ]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            runs[name].append(json.loads(done.stdout.splitlines()[-1]))
    (rows,) = {run["rows"] for name in names for run in runs[name]}
    limits = [name for name in names if name != SUBJECT and name not in BARE]
    fastest = [min(runs[name][i]["seconds"] for name in limits) for i in range(rounds)] if limits else []
    return {
        name: {
            "seconds": median(run["seconds"] for run in runs[name]),
            "of_fastest_parser": median(r["seconds"] / f for r, f in zip(runs[name], fastest, strict=True))
            if fastest
            else None,
            "rows": rows,
            "peak_mb": max(run["peak_mb"] for run in runs[name]),
            "cpu_seconds": median(run["cpu"] for run in runs[name]),
            "all_seconds": [run["seconds"] for run in runs[name]],
        }
        for name in names
    }


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("table", help=".csv or .csv.gz without a header, all numbers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--lanes", help="names, separated by commas; default: all that fit")
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--out", help=argparse.SUPPRESS)
    parser.add_argument("--lane", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.lane:
        lane(args.lane, args.table, args.out, args.workers)
        return
    packed = args.table.endswith(".gz")
    fitting = [n for n in LANES if packed or not n.startswith("isal")]
    names = [n for n in (args.lanes.split(",") if args.lanes else fitting) if installed(n)]
    folder = os.path.dirname(os.path.abspath(args.table))
    with tempfile.TemporaryDirectory(dir=folder) as work:
        figures = measure(args.table, os.path.join(work, "out.h5"), names, args.rounds, args.workers)
    print(
        f"{os.path.basename(args.table)}, {os.path.getsize(args.table) / 1e6:,.0f} MB, {args.workers} workers"
    )
    print(f"{'':<14}{'seconds':>9}{'x fastest':>11}{'rows/s':>13}{'peak MB':>9}{'CPU s':>8}")
    for name, f in figures.items():
        ratio = "" if f["of_fastest_parser"] is None else f"{f['of_fastest_parser']:.2f}"
        speed = f["rows"] / f["seconds"]
        print(
            f"{name:<14}{f['seconds']:>9.2f}{ratio:>11}{speed:>13,.0f}{f['peak_mb']:>9.0f}"
            f"{f['cpu_seconds']:>8.2f}"
        )
    if args.json:
        record = {
            "file": os.path.basename(args.table),
            "bytes": os.path.getsize(args.table),
            "workers": args.workers,
            **machine(),
            "versions": versions()
            | {n: metadata.version(n) for n in figures if n in ("pandas", "polars", "isal")},
            "lanes": figures,
        }
        Path(args.json).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
