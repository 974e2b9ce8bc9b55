"""Train in plain PyTorch in six ways, each a flag.

Parallel loading, several devices, mixed precision, early stopping, FSDP2, evaluation without gradients:

    python examples/torch_train.py train.h5 test.h5 --threads 2 --prefetch 2
    python examples/torch_train.py train.h5 test.h5 --precision bf16 --patience 3 --no-gradients
    python examples/torch_train.py train.h5 test.h5 --devices 2 --fsdp
    python examples/torch_train.py train.h5 test.h5 --table 3       # compares the ways

Prints the run's results as JSON. lightning_train.py does the same with Lightning.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from training_ways import network, optimizer_of, parse, report, shard

from packer import PackedBatchDataset
from packer.load.stats import Stats


def judged(
    model: nn.Module, data: PackedBatchDataset, precision: Any, gradients: bool
) -> tuple[float, float, float]:
    """Return mean loss, accuracy and seconds, equal on all ranks."""
    began = time.perf_counter()
    sums = torch.zeros(3, device=data.device)  # loss, right, rows
    model.eval()
    with torch.set_grad_enabled(gradients), precision:
        for images, labels in data:
            scores = model(images)
            right = (scores.argmax(1) == labels).sum()
            loss = cross_entropy(scores, labels, reduction="sum").detach()
            sums += torch.stack([loss, right, torch.tensor(len(labels), device=data.device)])
    model.train()
    if distributed.is_initialized():
        distributed.all_reduce(sums)
    loss, right, rows = sums.tolist()
    return loss / rows, right / rows, time.perf_counter() - began


def train(options: argparse.Namespace) -> None:
    """Train, in each process alike; the first prints the results."""
    common = {
        "device": "auto",
        "threads": options.threads,
        "prefetch": options.prefetch,
        "seed": options.seed,
    }
    data = PackedBatchDataset(
        options.train, options.batch_size, shuffle=True, augment=options.augment, **common
    )
    # FSDP's forward waits for all ranks, so all get equally many batches: a few rows are evaluated twice.
    val = PackedBatchDataset(
        options.val, 4 * options.batch_size, ends="even", augment=options.eval_augment, **common
    )
    device = torch.device(data.device)
    net = network(len(options.classes), options.seed).to(device)
    model: nn.Module = net
    if options.fsdp:
        shard(net)
    elif options.devices > 1:
        model = DistributedDataParallel(net)
    optimizer = optimizer_of(net)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[options.precision]
    precision = torch.autocast(device.type, dtype, enabled=dtype != torch.float32)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)

    epochs: list[Stats] = []
    cpu_seconds: list[float] = []
    validations: list[tuple[float, float, float]] = []
    for _ in range(options.epochs):
        began = time.process_time()
        for images, labels in data:
            with precision:
                loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        epochs.append(data.stats())
        cpu_seconds.append(time.process_time() - began)
        validations.append(judged(model, val, precision, gradients=not options.no_gradients))
        # Early stopping, when the best loss is older than the patience. Losses are equal on all ranks.
        losses = [loss for loss, _, _ in validations]
        if options.patience and len(losses) - 1 - losses.index(min(losses)) >= options.patience:
            break
    if data.rank == 0:
        report(epochs, cpu_seconds, validations, data, optimizer)
    data.close()
    val.close()


if __name__ == "__main__":
    options = parse(__doc__)
    if options.devices > 1 and not distributed.is_torchelastic_launched():
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.devices)]
        os.execv(sys.executable, [sys.executable, *torchrun, *sys.argv])
    if options.devices > 1:
        on_gpu = torch.cuda.is_available()
        if on_gpu:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        distributed.init_process_group("nccl" if on_gpu else "gloo")
    train(options)
    if distributed.is_initialized():
        distributed.destroy_process_group()
