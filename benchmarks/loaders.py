"""Loading photographs: packer, other loaders, and copies and gathers in memory, with every row compared.

    python benchmarks/loaders.py photos/ --work bench/                                   installed lanes only
    python benchmarks/loaders.py photos/ --work bench/ --python peers/bin/python --python ffcv/bin/python
    python benchmarks/loaders.py photos/ --work bench/ --images 24000 --only "packer h5","ffcv raw"

Peers are not dependencies of packer. They live in separate environments, whose interpreters are named with
--python; a lane runs in the first interpreter that has its modules. Install torch first, or another build of
it
is pulled in:

    python -m venv peers; peers/bin/pip install -r requirements.txt; echo torch==2.13.0 > pin
    peers/bin/pip install -c pin tensordict webdataset datasets grain litdata pylance spdl
    peers/bin/pip install -c pin mosaicml-streaming
    python -m venv ffcv; ffcv/bin/pip install torch==2.13.0; ffcv/bin/pip install -c pin ffcv pillow
    (ffcv is compiled: apt install pkg-config libopencv-dev libturbojpeg0-dev; SPDL needs: apt install ffmpeg)

Rows: `packer convert` packs JPEGs of any size; each photograph's label is its number. Every store holds the
same
pixels and labels, written once and kept in --work. Rotated photographs are added beyond the folder's number.
Stores of JPEGs have quality 90; only the lane `folder` decodes and resizes the photographs themselves.

Lanes: each has a separate process, which idles while another lane is measured. It first loads an epoch while
its
memory is sampled; then an epoch that is compared with the pack: all rows, once, each with its label, bit for
bit
(JPEGs: by PSNR). Where a lane has a choice of workers, the fastest count is kept. The rounds follow: complete
epochs until --seconds have passed, from iter() to the last batch; the consumer only takes the batches, or
reads each byte once (--touch). The stores do not fit in memory together, so lanes are measured in groups,
each
with the limits and packer's slices and rows: ratios are of the same group and round. The order of the lanes
rotates from round to round. Just before each lane, its store is read if the page cache has lost it, and the
copy limit is measured, which `x copy` refers to.

Columns: x slices: median ratio to packer's slices in the same round; CPU s/M: processor seconds of the lane
and
its workers for a million images; own MB: peak memory of both, without mapped files; first ms: from iter() to
the
first batch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from lanes import photos, report, residency
from lanes.client import Interpreter, LaneError, Running, interpreter_of, interpreters
from lanes.lane import PACK_NPY, Lane, Rows, Setting, files_of
from lanes.limits import COPY, GATHER
from lanes.origin import origin
from lanes.ours import ROWS, SLICES
from lanes.registry import PIP, STORES, lanes

from packer.bench.hardware_limits import load
from packer.errors import PackerError
from packer.machine import cores, memory

STARTED = time.perf_counter()
LIMIT_SECONDS = 0.2  # seconds of the copy limit before each lane
WATCHED_SECONDS = 0.5  # seconds of the first epochs, while memory is sampled
FITS = 0.75  # share of the memory that stores may fill


def say(text: str) -> None:
    """Print progress, with the seconds since the start."""
    print(f"{time.perf_counter() - STARTED:5.0f} s  {text}", file=sys.stderr, flush=True)


def in_every_group(threads: int) -> tuple[str, ...]:
    """Return the lanes that are measured in every group."""
    return COPY.format(threads), GATHER, SLICES, ROWS


def choose(every: Mapping[str, Lane], only: str | None, always: Sequence[str]) -> dict[str, Lane]:
    """Return lanes whose names contain one of the words, or all, and required lanes. Raises ValueError."""
    words = [word.strip() for word in only.split(",")] if only else [""]
    for word in words:
        if not any(word in name for name in every):
            raise ValueError(f"--only {word}: no lane has that in its name; there are {', '.join(every)}.")
    return {
        name: lane for name, lane in every.items() if name in always or any(word in name for word in words)
    }


def prepare(
    chosen: Mapping[str, Lane], given: Sequence[Interpreter], setting: Setting
) -> tuple[dict[str, Interpreter], dict[str, str]]:
    """Write missing stores. Returns the lanes' interpreters, and why lanes are missing."""
    pythons: dict[str, Interpreter] = {}
    without: dict[str, str] = {}
    for name, lane in chosen.items():
        needs = dict.fromkeys((*lane.modules, *STORES[lane.store].modules))
        python = interpreter_of(tuple(needs), given)
        if python is None:
            without[name] = f"not installed together: pip install {' '.join(PIP.get(m, m) for m in needs)}"
            continue
        store = Path(setting.work, lane.store)
        if not store.exists():
            part = store.with_name(f"part-{lane.store}")
            shutil.rmtree(part, ignore_errors=True)
            part.unlink(missing_ok=True)
            say(f"writing {lane.store}")
            try:
                with Running(python, lane, setting) as running:
                    running.ask("write")
            except LaneError as error:
                without[name] = f"could not be written: {error}"
                continue
        pythons[name] = python
    return pythons, without


def begin(
    lane: Lane, python: Interpreter, setting: Setting, workers_tried: Sequence[int]
) -> tuple[Running, report.Found]:
    """Start a lane with its fastest number of workers, and check its rows. Raises LaneError."""
    tried = [workers for workers in lane.workers if workers in workers_tried] or [0]

    def start(workers: int) -> tuple[Running, report.Found, float]:
        running = Running(python, lane, replace(setting, workers=workers))
        try:
            choice = workers if len(lane.workers) > 1 else None
            found = report.Found(choice, running.ask("open")["seconds"])
            seconds = 0.0 if lane.rate else WATCHED_SECONDS
            answer, (found.own, found.all) = running.watched("run", seconds=seconds, touch=False)
            found.fresh = answer["first"][0] if answer["first"] else None
        except LaneError:
            running.close()
            raise
        return running, found, answer["images"] / answer["seconds"]

    rates: dict[int, float] = {}
    for workers in tried:
        running, found, rates[workers] = start(workers)
        if workers != tried[-1]:
            running.close()
    best = max(rates, key=lambda workers: rates[workers])
    if best != tried[-1]:
        running.close()
        running, found, _ = start(best)
    try:
        found.fidelity = running.ask("check")
    except LaneError:
        running.close()
        raise
    return running, found


def rounds(
    running: Mapping[str, Running],
    found: Mapping[str, report.Found],
    files: Mapping[str, Sequence[str]],
    beside: Sequence[str],
    options: argparse.Namespace,
) -> None:
    """Measure the running lanes round by round; append the results to each lane's runs.

    files: of each lane's store; beside: the lanes in every group, the copy limit first.
    """
    names = list(running)
    for number in range(options.rounds):
        turn = number * len(names) // options.rounds
        for name in names[turn:] + names[:turn]:
            share = residency.warm(files[name])
            limit = running[beside[0]].ask("run", seconds=LIMIT_SECONDS, touch=False)
            answer = running[name].ask("run", seconds=options.seconds, touch=options.touch)
            run = report.Run(**answer, copy=limit["images"] / limit["seconds"], warm=share)
            found[name].runs.append(run)
        rates = {name: found[name].runs[-1].rate for name in beside if name in running}
        for name in names:
            found[name].runs[-1].beside.update(rates)


def measure(
    chosen: Mapping[str, Lane],
    pythons: Mapping[str, Interpreter],
    files: Mapping[str, Sequence[str]],
    setting: Setting,
    options: argparse.Namespace,
) -> tuple[dict[str, report.Found], dict[str, str]]:
    """Start, check and measure all lanes, group by group. Returns the results, and why lanes failed."""
    beside = in_every_group(setting.threads)
    running: dict[str, Running] = {}
    found: dict[str, report.Found] = {}
    failed: dict[str, str] = {}

    def start(name: str) -> None:
        try:
            running[name], found[name] = begin(chosen[name], pythons[name], setting, options.workers)
            say(f"{name}: checked")
        except LaneError as error:
            failed[name] = f"FAILED: {error}"
            say(f"{name}: {failed[name]}")

    try:
        for name in beside:
            start(name)
        if beside[0] in failed:
            raise ValueError(f"{beside[0]}: {failed[beside[0]]}")
        for group in dict.fromkeys(chosen[name].group for name in pythons):
            members = [name for name in pythons if chosen[name].group == group and name not in beside]
            for name in members:
                start(name)
            rounds(running, found, files, beside, options)
            say(f"{group}: measured")
            for name in members:
                if name in running:
                    running.pop(name).close()
    finally:
        for one in running.values():
            one.close()
    return {name: found[name] for name in chosen if name in found}, failed


def run(chosen: Mapping[str, Lane], setting: Setting, rows: int, options: argparse.Namespace) -> int:
    """Measure and print. Returns the exit code."""
    given = interpreters(options.python, chosen.values())
    pythons, without = prepare(chosen, given, setting)
    files = {name: files_of(os.path.join(setting.work, chosen[name].store)) for name in pythons}
    for group in {lane.group for lane in chosen.values()}:
        needed = {file for name, several in files.items() if chosen[name].group == group for file in several}
        size = sum(map(os.path.getsize, needed))
        if size > FITS * memory():
            raise ValueError(
                f"the stores of the group {group} hold {size / 1e9:.1f} GB,"
                f" more than {FITS:.0%} of the memory."
                " Pass --only, or fewer --images."
            )
    before = load()
    found, failed = measure(chosen, pythons, files, setting, options)
    without |= failed
    versions = {
        f"{module}{f' ({number})' if number else ''}": version
        for number, one in enumerate(given)
        for module, version in one.modules.items()
        if version and module != "packer"
    }
    about = origin() | versions | {"load_before": before}
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    consumer = "reads every byte once" if options.touch else "takes the batches"
    print(
        f"{rows:,} images of {options.size} px, batches of {setting.batch}, {setting.threads} threads,"
        f" {options.rounds} rounds,"
        f" interleaved; warm; the consumer {consumer}\n"
    )
    left_out = [f"{name}: {why}" for name, why in without.items()]
    print(report.table(found), "", *report.chills(found), *left_out, sep="\n")
    if options.json:
        names = ("images", "size", "batch", "threads", "workers", "rounds", "seconds", "touch")
        asked = {name: getattr(options, name) for name in names}
        record = {"conditions": about, "options": asked, "without": without}
        record["lanes"] = {name: asdict(one) for name, one in found.items()}
        Path(options.json).write_text(json.dumps(record, indent=2) + "\n")
    return int(bool(failed))


def main(argv: list[str] | None = None) -> int:
    """Measure and print. Returns the exit code, 1 if a lane failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", help="folder of JPEGs")
    parser.add_argument("--work", required=True, metavar="DIR", help="folder of the stores")
    parser.add_argument(
        "--python", action="append", default=[], metavar="PATH", help="another interpreter, for peers"
    )
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--size", type=int, default=256, help="side in pixels, a power of two")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--threads", type=int, default=min(2, cores()))
    parser.add_argument("--workers", default="0,1,2", metavar="N,...", help="worker counts to try")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="least seconds of each lane in each round")
    parser.add_argument("--only", metavar="WORD,...", help="lanes that have one of the words in their names")
    parser.add_argument("--touch", action="store_true", help="the consumer reads every byte once")
    parser.add_argument("--json", metavar="FILE", help="also write all measurements to this file")
    options = parser.parse_args(argv)
    every = lanes(options.threads)
    work = Path(options.work, f"{options.images}-{options.size}px")
    try:
        options.workers = [int(number) for number in options.workers.split(",")]
        work.mkdir(parents=True, exist_ok=True)
        chosen = choose(every, options.only, in_every_group(options.threads))
        if not (work / PACK_NPY).exists():
            say("packing the photographs")
        photos.gather(options.source, options.images, str(work), options.threads)
        photos.pack(str(work), options.size)
        rows = len(Rows.of(str(work)))
        setting = Setting(str(work.resolve()), options.batch, options.threads)
        return run(chosen, setting, rows, options)
    except (PackerError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
