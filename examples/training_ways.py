"""Shared by lightning_train.py and torch_train.py: a network, the six ways as flags, their comparison.

With --table, a script runs itself once for each way, and prints the run's results beside a run without any of
them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from packer import PackedBatchDataset, open_pack
from packer.load.stats import Stats

# Name -> flags, and the CUDA devices needed. The first is the baseline.
WAYS: dict[str, tuple[str, int]] = {
    "none of them": ("", 0),
    "parallel loading": ("--threads 2 --prefetch 2", 0),
    "evaluation without gradients": ("--no-gradients", 0),
    "mixed precision, bfloat16": ("--precision bf16", 0),
    "mixed precision, float16": ("--precision fp16", 1),
    "several devices, DDP: 2 processes": ("--devices 2", 0),
    "several devices, DDP: 2 GPUs": ("--devices 2", 2),
    "sharded, FSDP2: 2 processes": ("--devices 2 --fsdp", 0),
    "sharded, FSDP2: 2 GPUs": ("--devices 2 --fsdp", 2),
    "early stopping": ("--patience 2", 0),
}


def parse(about: str | None) -> argparse.Namespace:
    """Parse the command line; with --table, print the table and exit."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("train", help="a pack with labels")
    parser.add_argument("val", help="a pack of the same classes for evaluation")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="rows of a batch on all devices together")
    parser.add_argument("--size", type=int, default=64, help="side of the network's input images")
    parser.add_argument("--seed", type=int, default=0)
    ways = parser.add_argument_group("the six ways")
    ways.add_argument("--threads", type=int, default=1, help="parallel loading: threads that read and decode")
    ways.add_argument(
        "--prefetch", type=int, default=0, help="parallel loading: batches read ahead of the loop"
    )
    ways.add_argument(
        "--devices", type=int, default=1, help="several devices, DDP: GPUs, or processes without"
    )
    ways.add_argument("--fsdp", action="store_true", help="sharded training: FSDP2 in place of DDP")
    ways.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32", help="mixed precision")
    ways.add_argument(
        "--patience", type=int, help="early stopping: most epochs without a lower validation loss"
    )
    ways.add_argument("--no-gradients", action="store_true", help="evaluation without gradients")
    table = parser.add_argument_group("the table")
    table.add_argument(
        "--table", type=int, metavar="RUNS", help="compare the ways: medians of this many runs"
    )
    options = parser.parse_args()
    if options.table:
        print_table(options.table, sys.argv[0], without_table(sys.argv[1:]), options.seed)
        sys.exit()
    options.classes = open_pack(options.train).header.classes
    if options.classes is None:
        sys.exit(f"{options.train}: its labels have no class names; this example needs them.")
    if options.batch_size % options.devices:
        sys.exit(f"--batch-size {options.batch_size}: --devices {options.devices} do not divide it.")
    options.batch_size //= options.devices
    options.augment = f"RandomResizedCrop({options.size}), RandomHorizontalFlip(), Normalize()"
    options.eval_augment = f"Resize({options.size}), Normalize()"
    return options


def network(classes: int, seed: int) -> nn.Sequential:
    """Return a network for images [N, 3, H, W] of any size; without batch norm, which differs by rank."""

    def layer(inputs: int, outputs: int, stride: int) -> nn.Module:
        convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
        return nn.Sequential(convolution, nn.GroupNorm(4, outputs), nn.ReLU())

    torch.manual_seed(seed)
    return nn.Sequential(
        *(layer(3, 16, 2), layer(16, 32, 2), layer(32, 64, 2), layer(64, 64, 1)),
        *(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * 64, classes)),
    )


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of both scripts."""
    return torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05)


def shard(model: nn.Sequential, **options: Any) -> None:
    """Shard the parameters of each layer, then the remaining ones, over all ranks."""
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, **options)
    fully_shard(model, **options)


def local_bytes(tensors: Iterable[Any]) -> int:
    """Return the bytes of tensors, possibly sharded, on this rank."""
    found = [
        one.to_local() if hasattr(one, "to_local") else one for one in tensors if isinstance(one, Tensor)
    ]
    return sum(one.nbytes for one in found)


def report(
    epochs: list[Stats],
    cpu_seconds: list[float],
    validations: list[tuple[float, float, float]],
    data: PackedBatchDataset,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Print a run's results on one line of JSON.

    epochs, cpu_seconds: statistics of each training epoch, and this process's processor time.
    validations: loss, accuracy and seconds of each validation.
    """
    warm = epochs[1:] or epochs
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    state = [value for one in optimizer.state.values() for value in one.values()]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if torch.cuda.is_available():
        memory = torch.cuda.max_memory_allocated()
    best = min(validations)
    found = {
        "epochs": len(epochs),
        "images_per_second": data.world_size * statistics.median(one.rows_per_second for one in warm),
        "cpu_ms": statistics.median(s / one.rows * 1e3 for s, one in zip(cpu_seconds, epochs, strict=True)),
        "waiting": statistics.median(one.wait_seconds / one.seconds for one in warm),
        "validation_loss": best[0],
        "accuracy": best[1],
        "validation_seconds": statistics.median(seconds for _, _, seconds in validations),
        "memory_mb": memory / 1e6,
        "state_mb": local_bytes([*parameters, *state]) / 1e6,
    }
    print(json.dumps(found), flush=True)


def without_table(arguments: list[str]) -> list[str]:
    """Return the command line without --table."""
    place = next(i for i, one in enumerate(arguments) if one.partition("=")[0] == "--table")
    return arguments[:place] + arguments[place + (2 if arguments[place] == "--table" else 1) :]


def print_table(runs: int, script: str, arguments: list[str], seed: int = 0) -> None:
    """Run the script for each way, `runs` times in turn, and print the medians as a table."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    here = torch.cuda.device_count()
    for run in range(runs):
        for name, (flags, gpus) in WAYS.items():
            if gpus <= here and not ("processes" in name and here):
                command = [sys.executable, script, *arguments, *flags.split(), "--seed", str(seed + run)]
                # A thread a process, so that two processes have twice as many as one.
                environment = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, env=os.environ | environment
                )
                if done.returncode:
                    sys.exit(f"{' '.join(command)}:\n{done.stderr}")
                found[name].append(json.loads(done.stdout.splitlines()[-1]))
    columns = (
        "epochs",
        "images/s",
        "CPU, an image",
        "waiting",
        "validation: loss",
        "accuracy",
        "seconds",
        "memory",
        "state",
    )
    print(f"| way | flags | {' | '.join(columns)} |")
    print("|---" * (2 + len(columns)) + "|")
    for name, (flags, gpus) in WAYS.items():
        start = f"| {name} | `{flags}` |".replace("``", "")
        if not found[name]:
            print(f"{start} needs {gpus} GPU{'s' if gpus > 1 else ''} |" + " |" * (len(columns) - 1))
            continue
        value = {key: statistics.median(one[key] for one in found[name]) for key in found[name][0]}
        print(
            f"{start} {value['epochs']:.0f} | {value['images_per_second']:,.0f} | {value['cpu_ms']:.2f} ms"
            f" | {value['waiting']:.1%}"
            f" | {value['validation_loss']:.3f} | {value['accuracy']:.1%} | {value['validation_seconds']:.2f}"
            f" | {value['memory_mb']:,.0f} MB | {value['state_mb']:.2f} MB |"
        )
