"""Train in several processes, and resume from a checkpoint in any number of them.

    torchrun --nproc-per-node 4 examples/torchrun_ddp.py train.h5
    torchrun --nproc-per-node 2 examples/torchrun_ddp.py train.h5 --batch-size 128   # resumes, in equal order

Prints a line an epoch: the rows of all processes, and their mean loss since the start or the resume.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from packer import PackedBatchDataset, open_pack


def train(options: argparse.Namespace, device: torch.device) -> None:
    """Train all remaining epochs; every process runs this."""
    pack, first = open_pack(options.pack), distributed.get_rank() == 0
    split = options.split or ("train" if "train" in pack.header.splits else None)
    # The dataset finds its rank. All ranks get equally many batches unless ends="uneven"; "pad" fills the last.
    data = PackedBatchDataset(pack, options.batch_size, shuffle=True, split=split, ends="pad", device=device)
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 32, 7, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()),
        nn.Linear(512, len(pack.header.classes or ())),
    ).to(device)
    model = DistributedDataParallel(net)
    # Losses use a separate group, whose threads destroy_process_group() ends. The model's group would outlive
    # it, and gloo aborts the process if a thread still holds a Python tensor when the interpreter ends.
    losses_group = distributed.new_group()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    parts: dict[str, Any] = {"net": net, "optimizer": optimizer, "data": data}
    if options.checkpoint.exists():
        saved = torch.load(options.checkpoint, map_location=device)
        for name, part in parts.items():
            part.load_state_dict(saved[name])

    step = 0
    for epoch in range(data.epoch, options.epochs):
        losses = []
        for images, labels in data:
            loss = cross_entropy(model(images / 255), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            step += 1
            if first and step % options.save_every == 0:
                unfinished = options.checkpoint.with_suffix(".part")
                torch.save({name: part.state_dict() for name, part in parts.items()}, unfinished)
                unfinished.replace(options.checkpoint)
        mean = torch.stack(losses).mean()
        distributed.all_reduce(mean, group=losses_group)
        if first:
            rows = data.state_dict()["rows"]
            print(f"epoch {epoch}: {rows:,} rows, loss {mean / data.world_size:.4f}", flush=True)
    data.close()  # ends its threads before the interpreter ends


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pack")
    parser.add_argument(
        "--split", help='split to train on (default: "train" if the pack has it, else all rows)'
    )
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="rows of a batch in each process")
    parser.add_argument(
        "--checkpoint", type=Path, default="checkpoint.pt", help="checkpoint to resume from, if it exists"
    )
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    arguments = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    place = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    train(arguments, place)
    distributed.destroy_process_group()
