"""Train a small ResNet from a pack, on a CPU or a GPU.

    packer convert photos/train train.h5
    packer convert photos/test test.h5 --like train.h5
    python examples/train_images.py train.h5 --test test.h5 --epochs 3

Or use one pack, from a folder with train/ and val/ or with --split: it trains on the split "train", and
evaluates on "test" or "val".

    packer convert photos photos.h5 --split train=0.9,val=0.1
    python examples/train_images.py photos.h5 --test photos.h5

Prints a line an epoch: loss and accuracy, images a second, and the share of time spent waiting for data.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from torch import Tensor, nn
from torch.nn import functional

from packer import PackedBatchDataset, PackerError, open_pack
from packer.augment import Normalize, RandomCrop, RandomHorizontalFlip
from packer.format.header import Header


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut: [N, inputs, H, W] -> [N, outputs, H / stride, W / stride]."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        self.shortcut = (
            nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.shortcut(x) + self.norms[1](self.second(y)))


def small_resnet(side: int, channels: int, classes: int) -> nn.Module:
    """Return a ResNet for a CPU: its first convolution reduces images of any side to about 32x32."""
    stride = max(1, side // 32)
    return nn.Sequential(
        nn.Conv2d(channels, 32, max(3, stride), stride, padding=1 if stride < 3 else 0, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        Block(32, 32, 1),
        Block(32, 64, 2),
        Block(64, 128, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, classes),
    )


def accuracy(model: nn.Module, batches: PackedBatchDataset) -> float:
    """Return the share of rows that the model labels correctly."""
    model.eval()
    right, rows = 0, 0
    with torch.inference_mode():
        for images, labels in batches:
            right += int((model(images).argmax(1) == labels).sum())
            rows += len(labels)
    model.train()
    return right / rows


def split_of(header: Header, *names: str) -> str | None:
    """Return the first name that is a split of the pack; None if there is none."""
    return next((name for name in names if name in header.splits), None)


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description="Train a small ResNet from a pack.")
    parser.add_argument("train", help="a pack with labels")
    parser.add_argument("--test", help="a pack of the same classes for evaluation")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto: cuda if available")
    options = parser.parse_args()

    torch.manual_seed(0)

    header = open_pack(options.train).header
    if header.classes is None:
        sys.exit(f"{options.train}: its labels have no class names; this example needs them.")
    height, width, channels = header.field("image").shape or ()
    statistics = header.normalization
    normalize = Normalize(statistics["mean"], statistics["std"])
    train = PackedBatchDataset(
        options.train,
        options.batch_size,
        shuffle=True,
        split=split_of(header, "train"),
        device=options.device,
        augment=[RandomHorizontalFlip(), RandomCrop((height, width), padding=height // 8), normalize],
    )
    test = None
    if options.test:
        judged = open_pack(options.test)
        try:
            train.pack.check_classes(judged)
        except PackerError as error:
            sys.exit(str(error))
        part = split_of(judged.header, "test", "val")
        test = PackedBatchDataset(judged, 256, split=part, device=options.device, augment=[normalize])

    model = small_resnet(height, channels, len(header.classes))
    model = model.to(train.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=4e-3, total_steps=options.epochs * len(train)
    )

    for epoch in range(1, options.epochs + 1):
        started = time.perf_counter()
        waited = 0.0
        losses, right = [], []
        batches = iter(train)
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            waited += time.perf_counter() - asked
            if batch is None:
                break
            scores = model(batch.image)
            loss = functional.cross_entropy(scores, batch.label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            # Sum tensors: reading a number would synchronise the GPU at every step.
            losses.append(loss.detach())
            right.append((scores.argmax(1) == batch.label).sum())
        line = f"epoch {epoch}: loss {torch.stack(losses).mean():.3f}"
        line += f", accuracy {float(torch.stack(right).sum()) / train.rows:.1%}"
        seconds = time.perf_counter() - started
        line += f", {train.rows / seconds:,.0f} images/s, {waited / seconds:.1%} of the time waiting for data"
        if test:
            line += f", accuracy on {options.test} {accuracy(model, test):.1%}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
