"""Train with Hugging Face's accelerate, in any number of processes; resume from a checkpoint in mid-epoch.

    accelerate launch --num_processes 2 examples/accelerate_train.py train.h5 --epochs 3
    accelerate launch --num_processes 4 examples/accelerate_train.py train.h5 --epochs 3     # resumes on four

Prints a line an epoch: the rows of all processes, and their mean loss since the start or the resume.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy
from training_ways import network, optimizer_of

from packer import PackedBatchDataset, open_pack


def train(options: argparse.Namespace) -> None:
    """Train all remaining epochs; every process runs this."""
    accelerator = Accelerator(cpu=options.cpu)
    classes = open_pack(options.train).header.classes or ()
    # Not passed to prepare(): the dataset finds its rank, splits the epoch, and moves batches to the device.
    data = PackedBatchDataset(
        options.train,
        options.batch_size,
        shuffle=True,
        device=accelerator.device if accelerator.device.type == "cuda" else "cpu",
        augment="RandomHorizontalFlip(), Normalize()",
    )
    model = network(len(classes), seed=0)
    model, optimizer = accelerator.prepare(model, optimizer_of(model))
    accelerator.register_for_checkpointing(data)  # it has state_dict() and load_state_dict()
    if options.checkpoint.exists():
        accelerator.load_state(str(options.checkpoint))

    step = 0
    for epoch in range(data.epoch, options.epochs):
        losses = []
        for images, labels in data:
            with accelerator.autocast():
                loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.detach())
            step += 1
            if step == options.stop_after:
                accelerator.save_state(str(options.checkpoint))
                return
        mean = accelerator.reduce(torch.stack(losses).mean(), "mean")
        accelerator.print(f"epoch {epoch}: {data.state_dict()['rows']:,} rows, loss {mean:.4f}", flush=True)
        accelerator.save_state(str(options.checkpoint))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train", help="a pack with labels")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="rows of a batch in each process")
    parser.add_argument(
        "--checkpoint", type=Path, default=Path("accelerated"), help="checkpoint to resume from, if it exists"
    )
    parser.add_argument(
        "--stop-after", type=int, metavar="STEPS", help="save a checkpoint after this step, and exit"
    )
    parser.add_argument("--cpu", action="store_true", help="train on the CPU")
    train(parser.parse_args())
