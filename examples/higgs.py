"""The HIGGS benchmark: a deep net on 21 low-level features, trained from a pack or by other loaders.

    python examples/higgs.py HIGGS.csv.gz                            UCI's file, or tools/make_higgs_like.py's
    python examples/higgs.py higgs.h5 --loader slices --epochs 5     an existing pack

The table is converted once (`packer.convert_table`): label and low-level features, the last 500,000 rows as
test. The
net: five layers of 300 tanh units, batches of 16,384, Adam, binary cross-entropy; evaluated by the area under
the ROC
curve of the test rows. Prints a line an epoch; TensorBoard also gets loss, AUC, seconds and the share of time
spent
waiting for data.

Source: P. Baldi, P. Sadowski, D. Whiteson, "Searching for exotic particles in high-energy physics with deep
learning", 2014.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

import packer
from packer import PackedBatchDataset, PackerError, open_pack

LAYERS, UNITS = 5, 300
LABEL, LOW_LEVEL = "0", [str(column) for column in range(1, 22)]
LOADERS = ("packer", "dataloader", "slices", "cached")
CACHED = 16  # batches


class ContiguousSlices:
    """Batches as slices of tensors in memory, which are copied by a permutation before each epoch."""

    def __init__(self, *tensors: Tensor, batch_size: int) -> None:
        self._tensors, self._batch_size = tensors, batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        permutation = torch.randperm(len(self._tensors[0]), device=self._tensors[0].device)
        self._tensors = tuple(tensor[permutation] for tensor in self._tensors)
        for first in range(0, len(permutation), self._batch_size):
            yield tuple(tensor[first : first + self._batch_size] for tensor in self._tensors)


class Cached:
    """The first few batches of a loader, repeated, as if loading took no time."""

    def __init__(self, dataset: PackedBatchDataset) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dataset.replay(CACHED))


def roc_auc(scores: NDArray[Any], labels: NDArray[Any]) -> float:
    """Return the share of (positive, negative) pairs whose positive row scores higher; ties count half.

    scores: float [N]; labels: bool [N], with both values. Source: the Mann-Whitney statistic, from ranks.
    """
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]  # from 1; equal scores get their mean rank
    positives = int(labels.sum())
    above = ranks[labels].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(labels) - positives)))


def make_net(features: int) -> nn.Module:
    """Return five layers of 300 tanh units, and one output."""
    layers: list[nn.Module] = []
    for inputs in (features, *[UNITS] * (LAYERS - 1)):
        linear = nn.Linear(inputs, UNITS)
        nn.init.xavier_normal_(linear.weight)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(UNITS, 1))


def packed(data: Path, test_rows: int) -> Path:
    """Return the pack of a table, written beside it if missing; an existing pack is used as it is."""
    table = {".csv", ".tsv"}.intersection(data.suffixes)
    if not table:
        return data
    pack = data.with_name(f"{data.name.split('.')[0]}.h5")
    if not pack.exists():
        began = time.perf_counter()
        packer.convert_table(
            data,
            pack,
            csv=packer.Csv(header=False),
            label=LABEL,
            features=LOW_LEVEL,
            split=f"train=rest,test=last:{test_rows}",
        )
        print(f"{pack}: converted in {time.perf_counter() - began:.1f} s", flush=True)
    return pack


def make_loader(
    name: str, pack: Path, batch_size: int, train_rows: int | None, device: str
) -> tuple[Iterable[Any], int]:
    """Return a loader of training rows, batches (features, label), and its rows an epoch."""
    splits = open_pack(pack).header.splits
    if not {"train", "test"} <= splits.keys():
        sys.exit(f"{pack}: has no splits train and test; this example needs them. Convert the table again.")
    numbers = np.concatenate([np.arange(*span) for span in splits["train"]])[:train_rows]
    rows: dict[str, Any] = {"split": "train", "subset": numbers, "fields": ["features", "label"]}
    if name in ("packer", "cached"):
        dataset = PackedBatchDataset(pack, batch_size, shuffle=True, device=device, **rows)
        return (Cached(dataset) if name == "cached" else dataset), len(numbers)
    with PackedBatchDataset(pack, len(numbers), prefetch=0, **rows) as everything:
        tensors = tuple(everything.batch(0))
    if name == "slices":
        return ContiguousSlices(*(t.to(device) for t in tensors), batch_size=batch_size), len(numbers)
    from torch.utils.data import DataLoader, TensorDataset

    pinned = device.startswith("cuda")
    return DataLoader(TensorDataset(*tensors), batch_size, shuffle=True, pin_memory=pinned), len(numbers)


def train_epoch(
    net: nn.Module, optimizer: torch.optim.Optimizer, loader: Iterable[Any], device: str
) -> tuple[float, float, float]:
    """Train one epoch. Returns mean loss of its batches, seconds, and seconds waited for data."""
    net.train()
    losses = []
    waited, began = 0.0, time.perf_counter()
    batches = iter(loader)
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        if batch is not None:
            features, label = (values.to(device, non_blocking=True) for values in batch)
        waited += time.perf_counter() - asked
        if batch is None:
            break
        loss = functional.binary_cross_entropy_with_logits(net(features)[:, 0], label.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())  # a tensor: reading a number would synchronise the GPU at every step
    mean = float(torch.stack(losses).mean())
    return mean, time.perf_counter() - began, waited


def test_auc(net: nn.Module, test: PackedBatchDataset) -> float:
    """Return the area under the ROC curve of the test rows."""
    net.eval()
    with torch.inference_mode():
        found = [(net(batch.features)[:, 0].cpu(), batch.label.cpu() > 0.5) for batch in test]
    scores, labels = (torch.cat(each).numpy() for each in zip(*found, strict=True))
    return roc_auc(scores, labels)


def make_writer(folder: str) -> Any:
    """Return TensorBoard's writer, or tensorboardX's; None if neither is installed, or without a folder."""
    if not folder:
        return None
    for module, needs in (("torch.utils.tensorboard", "tensorboard"), ("tensorboardX", "tensorboardX")):
        if find_spec(needs):
            return importlib.import_module(module).SummaryWriter(folder)
    print(
        "--logdir: neither tensorboard nor tensorboardX is installed; no scalars are written."
        " Install one of them."
    )
    return None


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description="Train the HIGGS net on low-level features.")
    parser.add_argument(
        "data", type=Path, help="HIGGS.csv.gz, or another table of its layout, or a pack of one"
    )
    parser.add_argument("--loader", choices=LOADERS, default="packer", help="cached: a few repeated batches")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=16_384)
    parser.add_argument("--train-rows", type=int, metavar="N", help="train on this many rows only")
    parser.add_argument(
        "--test-rows",
        type=int,
        default=500_000,
        metavar="N",
        help="test rows of a table to convert: its last ones",
    )
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto: cuda if available")
    parser.add_argument(
        "--logdir", default="runs/higgs", help="TensorBoard's folder; an empty text writes nothing"
    )
    options = parser.parse_args()
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(options.seed)
    try:
        pack = packed(options.data, options.test_rows)
        loader, rows = make_loader(options.loader, pack, options.batch_size, options.train_rows, device)
        test = PackedBatchDataset(pack, 65_536, split="test", fields=["features", "label"], device=device)
    except PackerError as error:
        sys.exit(str(error))
    net = make_net((open_pack(pack).header.field("features").shape or (0,))[0]).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=options.learning_rate)
    writer = make_writer(options.logdir)
    for epoch in range(1, options.epochs + 1):
        loss, seconds, waited = train_epoch(net, optimizer, loader, device)
        auc = test_auc(net, test)
        print(
            f"epoch {epoch}: loss {loss:.4f}, AUC {auc:.4f}, {seconds:.2f} s, {rows / seconds:,.0f} rows/s,"
            f" {waited / seconds:.2%} of the time waiting for data",
            flush=True,
        )
        if writer is not None:
            scalars = {
                "train/loss": loss,
                "test/auc": auc,
                "epoch/seconds": seconds,
                "epoch/waiting": waited / seconds,
            }
            for name, value in scalars.items():
                writer.add_scalar(name, value, epoch)
    if writer is not None:
        writer.close()


if __name__ == "__main__":
    main()
