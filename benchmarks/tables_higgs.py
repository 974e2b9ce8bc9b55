"""The HIGGS net trained with each loader: seconds an epoch, compared with cached batches, and the AUC.

    python benchmarks/tables_higgs.py higgs.h5 --train-rows 1000000 --epochs 5
    python benchmarks/tables_higgs.py higgs.h5 --loaders packer,cached --device cuda --json found.json

examples/higgs.py writes the pack. Each loader trains a separate net with the same first weights; epochs take
turns,
so that all meet the same machine. Ratios are medians of paired epochs, without the first. "cached" repeats a
few
batches: the time of an epoch without loading (its AUC is of these rows only).
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch

from packer import PackedBatchDataset
from packer.bench.hardware_limits import load, machine, versions

sys.path.append(str(Path(__file__).parents[1] / "examples"))
higgs: Any = import_module("higgs")

CEILING = "cached"


def train(
    loaders: list[str], pack: Path, options: argparse.Namespace
) -> tuple[dict[str, list[dict[str, float]]], int]:
    """Train all nets, epochs in turn. Returns the figures of each epoch and loader, and an epoch's rows."""
    nets, optimizers, given = {}, {}, {}
    test = PackedBatchDataset(pack, 65_536, split="test", fields=["features", "label"], device=options.device)
    for name in loaders:
        given[name], rows = higgs.make_loader(
            name, pack, options.batch_size, options.train_rows, options.device
        )
        torch.manual_seed(options.seed)
        nets[name] = higgs.make_net((test.pack.header.field("features").shape or (0,))[0]).to(options.device)
        optimizers[name] = torch.optim.Adam(nets[name].parameters(), lr=options.learning_rate)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in loaders}
    for epoch in range(options.epochs):
        turn = epoch % len(loaders)
        for name in loaders[turn:] + loaders[:turn]:
            loss, seconds, waited = higgs.train_epoch(
                nets[name], optimizers[name], given[name], options.device
            )
            auc = higgs.test_auc(nets[name], test)
            found[name].append({"loss": loss, "seconds": seconds, "waited": waited, "auc": auc})
    return found, rows


def show(found: dict[str, list[dict[str, float]]], rows: int) -> str:
    """Return the table."""
    shown = [f"loader      s an epoch  waiting  x {CEILING}  rows/s     AUC, epoch by epoch"]
    for name, epochs in found.items():
        timed = epochs[1:] or epochs
        seconds = median(each["seconds"] for each in timed)
        waiting = median(each["waited"] / each["seconds"] for each in timed)
        beside = [each["seconds"] for each in (found.get(CEILING) or epochs)][-len(timed) :]
        ratio = median(each["seconds"] / other for each, other in zip(timed, beside, strict=True))
        aucs = " ".join(f"{each['auc']:.4f}" for each in epochs)
        shown.append(
            f"{name:10}  {seconds:10.2f}  {waiting:7.2%}  {ratio:8.3f}  {rows / seconds:<9,.0f}  {aucs}"
        )
    return "\n".join(shown)


def main(argv: list[str] | None = None) -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pack", type=Path)
    parser.add_argument("--loaders", default=",".join(higgs.LOADERS), metavar="NAME,...")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16_384)
    parser.add_argument("--train-rows", type=int, metavar="N")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    loaders = options.loaders.split(",")
    for name in loaders:
        if name not in higgs.LOADERS:
            parser.error(f"--loaders {name}: is not one of {', '.join(higgs.LOADERS)}. Pass some of these.")
    found, rows = train(loaders, options.pack, options)
    print(f"{rows:,} rows, batches of {options.batch_size:,}, {options.device}\n\n{show(found, rows)}\n")
    about: dict[str, Any] = machine() | versions() | {"load_after": load()}
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    if options.json:
        asked = {name: getattr(options, name) for name in ("batch_size", "learning_rate", "seed", "device")}
        record = {"conditions": about, "options": asked | {"train_rows": rows}, "epochs": found}
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
