"""Waiting time of a training loop for a slow Python generator: packer, queues, DataLoader and Ray.

    python benchmarks/producer_consumer.py --rounds 5

The generator computes a batch of 64 x 3 x 256 x 256 float32 (48 MiB) from the seeds of its rows. Every lane
calls the same generator, in as many processes, and yields NumPy arrays in order (the queue: as they arrive).
The consumer sums each batch, which reads all of it, and sleeps for the rest of its step, as during GPU work.
The sums must be equal in all lanes. Two scenes:

    sleep    the generator also sleeps 0.5 s a batch (a download, a simulator); 6 processes, a step of 0.1 s:
             production can just keep up
    cpu      it only computes; 2 processes, a step of 0.01 s: production is the limit

Lanes take turns, each in a separate process; the clock starts after the imports and the start of Ray's local
cluster. tf.data is left out: its from_generator runs Python in the loop's process, under its lock, which is
the lane "serial" with a thread.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np
from lanes.origin import origin
from lanes.process import cpu_seconds
from numpy.typing import NDArray

from packer import PackedBatchDataset, PythonTransform, pack_dataset
from packer.bench.hardware_limits import load

Batch = NDArray[np.float32]


class Scene(NamedTuple):
    """sleep, step: seconds a batch, of the generator and of the consumer."""

    processes: int
    sleep: float
    step: float
    batches: int
    rows: int = 64

    def produce(self, seeds: NDArray[np.int64]) -> Batch:
        """Compute a batch from the seeds of its rows."""
        time.sleep(self.sleep * len(seeds) / self.rows)
        batch = np.empty((len(seeds), 3, 256, 256), np.float32)
        for sample, seed in zip(batch, seeds.tolist(), strict=True):
            np.random.default_rng(seed).random(out=sample, dtype=np.float32)
        return batch

    def make(self, number: int) -> Batch:
        """Compute a batch by its number."""
        return self.produce(np.arange(number * self.rows, (number + 1) * self.rows))


SCENES = {"sleep": Scene(6, 0.5, 0.1, 36), "cpu": Scene(2, 0.0, 0.01, 60)}


def _queue(scene: Scene, _: str) -> Iterator[Batch]:
    context = multiprocessing.get_context("fork")
    batches: Any = context.Queue(scene.processes)

    def put(first: int) -> None:
        for number in range(first, scene.batches, scene.processes):
            batches.put(scene.make(number))

    for first in range(scene.processes):
        context.Process(target=put, args=(first,), daemon=True).start()
    yield from (batches.get(timeout=60) for _ in range(scene.batches))


def _dataloader(scene: Scene, _: str) -> Iterator[Batch]:
    from torch import from_numpy
    from torch.utils.data import DataLoader

    options: Any = {"num_workers": scene.processes, "multiprocessing_context": "fork", "batch_size": None}
    options |= {"collate_fn": lambda number: from_numpy(scene.make(number))}
    numbers: Any = range(scene.batches)
    yield from map(np.asarray, DataLoader(numbers, **options))


def _packer(scene: Scene, pack: str) -> Iterator[Batch]:
    fn = PythonTransform(lambda of: {"made": scene.produce(of["seed"][None])[0]}, processes=scene.processes)
    with PackedBatchDataset(pack, scene.rows, output="numpy", transform=fn) as dataset:
        yield from (batch.made for batch in dataset)


def _ray_calls(scene: Scene, _: str, actors: bool = False) -> Iterator[Batch]:
    """Keep two calls a process in flight, as DataLoader and packer do."""
    import ray

    make: Any = ray.remote(lambda number: scene.make(number))
    if actors:
        producer = type("Producer", (), {"make": lambda _, number: scene.make(number)})
        actor: Any = ray.remote(num_cpus=1)(producer)
        made = [actor.remote() for _ in range(scene.processes)]
    pending = deque[Any]()
    for number in range(scene.batches + 2 * scene.processes):
        if number >= 2 * scene.processes:
            yield ray.get(pending.popleft())
        if number < scene.batches:
            pending.append(made[number % len(made)].make.remote(number) if actors else make.remote(number))


def _ray_data(scene: Scene, _: str) -> Iterator[Batch]:
    from ray.data import TaskPoolStrategy
    from ray.data import range as rows_of

    seeds = rows_of(scene.rows * scene.batches, override_num_blocks=scene.batches)
    made = seeds.map_batches(
        lambda rows: {"made": scene.produce(rows["id"])}, batch_size=scene.rows, compute=TaskPoolStrategy(scene.processes)
    )  # fmt: skip
    for batch in made.iter_batches(batch_size=scene.rows, prefetch_batches=scene.processes):
        yield batch["made"]


LANES: dict[str, Callable[[Scene, str], Iterator[Batch]]] = {
    "serial": lambda scene, _: map(scene.make, range(scene.batches)), "Queue": _queue, "DataLoader": _dataloader, "packer": _packer,
    "Ray tasks": _ray_calls, "Ray actors": partial(_ray_calls, actors=True), "Ray Data": _ray_data,
}  # fmt: skip


def consume(lane: str, scene: Scene, pack: str) -> dict[str, Any]:
    """Run a lane. Returns seconds waited for each batch, of all steps, of processors; and all sums."""
    __import__("torch")
    if lane.startswith("Ray"):
        import ray

        options: dict[str, Any] = {"include_dashboard": False, "_system_config": {"worker_niceness": 0}}
        ray.init("local", num_cpus=scene.processes, **options)  # niceness 15, its default, is no fair race
    waits, sums, used, batches = list[float](), list[float](), cpu_seconds(), LANES[lane](scene, pack)
    steps = list[float]()
    while True:
        asked = time.perf_counter()
        made = next(batches, None)
        got = time.perf_counter()
        if made is None:
            return {"waits": waits, "steps": steps, "cpu": cpu_seconds() - used, "sums": sorted(sums)}
        waits.append(round(got - asked, 5))
        sums.append(float(made.sum(dtype=np.float64)))
        del made
        time.sleep(max(0.0, scene.step - (time.perf_counter() - got)))
        steps.append(round(time.perf_counter() - asked, 5))


def figures(waits: list[float], steps: list[float], cpu: float) -> tuple[float, ...]:
    """Return figures in seconds.

    Mean, median and longest wait after the first, mean of the last half, the first; a step; of processors a
    batch.
    """
    later, half = waits[1:], waits[len(waits) // 2 :]
    return mean(later), median(later), max(later), mean(half), waits[0], mean(steps[1:]), cpu / len(waits)


def main(argv: list[str] | None = None) -> int:
    """Measure every lane in turn; print a table for each scene, medians of the rounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scene", choices=SCENES, action="append", help="default: both")
    parser.add_argument("--lanes", nargs="+", choices=LANES, default=list(LANES))
    parser.add_argument("--batches", type=int, help="default: 36 and 60")
    parser.add_argument("--rows", type=int, default=64, help="rows of a batch")
    parser.add_argument("--pack", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    everything: dict[str, Any] = {"conditions": origin(["ray"]) | {"rounds": options.rounds}}
    for name in options.scene or SCENES:
        scene = SCENES[name]._replace(batches=options.batches or SCENES[name].batches, rows=options.rows)
        if options.pack:
            print(json.dumps(consume(options.lanes[0], scene, options.pack)))
            return 0
        found: dict[str, list[dict[str, Any]]] = {lane: [] for lane in options.lanes}
        with tempfile.TemporaryDirectory() as folder:
            pack = os.path.join(folder, "seeds.h5")
            pack_dataset({"seed": np.arange(scene.batches * scene.rows)}, pack, shuffle=False)
            command = [sys.executable, "-W", "ignore", __file__, "--scene", name, "--pack", pack]
            command += ["--batches", str(scene.batches), "--rows", str(scene.rows), "--lanes"]
            for _ in range(options.rounds):
                for lane, runs in found.items():
                    done = subprocess.run([*command, lane], check=True, stdout=subprocess.PIPE, text=True)
                    runs.append(json.loads(done.stdout.splitlines()[-1]))
        if len({tuple(run.pop("sums")) for runs in found.values() for run in runs}) != 1:
            raise SystemExit(f"{name}: the lanes handed out different batches.")
        print(f"{name}: {scene}, {options.rounds} rounds, load {load():.1f}\n")
        print(
            "| ms | mean wait | median | longest | mean, 2nd half | first batch | a step, with the wait"
            " | CPU a batch |"
        )
        print(f"{'|---' * 8}|")
        for lane, runs in found.items():
            cells = [figures(run["waits"], run["steps"], run["cpu"]) for run in runs]
            print("|", lane, *(f"| {1e3 * median(cell):,.1f}" for cell in zip(*cells, strict=True)), "|")
        everything[name] = found
    print(json.dumps(everything))
    return 0


if __name__ == "__main__":
    sys.exit(main())
