"""Train on a pack in Ray Train's workers, and resume from the last checkpoint when a worker dies.

    python examples/ray_train.py train.h5                  # two workers here, or at RAY_ADDRESS
    python examples/ray_train.py train.h5 --kill-at 7      # worker 1 kills itself after step 7, once

The checkpoint holds the dataset's state beside the model's: restarted workers, in any number, continue with
the next row. It also counts how often each row was used for training. Prints the last loss and these counts:
once for each row and epoch.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train.torch import TorchTrainer, get_device, prepare_model
from torch import distributed, nn
from torch.nn.functional import cross_entropy

from packer import PackedBatchDataset, open_pack


def report(parts: dict[str, Any], seen: torch.Tensor, metrics: dict[str, Any]) -> None:
    """Report figures and a checkpoint. All workers call this at the same step; the first writes."""
    everywhere = seen.clone()
    distributed.all_reduce(everywhere)
    counts, rows = everywhere.unique(return_counts=True)
    metrics["rows by count"] = dict(zip(counts.tolist(), rows.tolist(), strict=True))
    if distributed.get_rank():
        ray.train.report(metrics)
        return
    with tempfile.TemporaryDirectory() as folder:
        states = {name: part.state_dict() for name, part in parts.items()}
        torch.save(states | {"seen": everywhere}, Path(folder, "states.pt"))
        ray.train.report(metrics, ray.train.Checkpoint.from_directory(folder))


def train(config: dict[str, Any]) -> None:
    """Train all remaining epochs; every worker runs this."""
    pack, device = open_pack(config["pack"]), get_device()
    fields = ("image", "label", "row")  # the last is each row's number in the pack
    data = PackedBatchDataset(pack, config["batch_size"], shuffle=True, device=device, fields=fields)
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 32, 7, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()),
        nn.Linear(512, len(pack.header.classes or ())),
    ).to(device)
    model = prepare_model(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    parts: dict[str, Any] = {"net": net, "optimizer": optimizer, "data": data}
    seen = torch.zeros(pack.rows, dtype=torch.int32, device=device)
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder, "states.pt"), map_location=device)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        if not distributed.get_rank():  # the counts are of all workers together
            seen.copy_(saved["seen"])

    step = 0
    for epoch in range(data.epoch, config["epochs"]):
        for images, labels, rows in data:
            loss = cross_entropy(model(images / 255), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen[rows] += 1
            step += 1
            if step % config["save_every"] == 0:
                report(parts, seen, {"epoch": epoch, "loss": loss.item()})
            killed = Path(config["pack"] + ".killed")
            if step == config["kill_at"] and distributed.get_rank() == 1 and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        report(parts, seen, {"epoch": epoch, "loss": loss.item()})
    data.close()


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Start the workers, restarting them from the last checkpoint when one dies. Returns the last figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pack", help="a path that all workers can read")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="of each worker")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    parser.add_argument("--results", default="ray_results", help="folder of the checkpoints")
    parser.add_argument("--kill-at", type=int, metavar="STEP", help="step after which worker 1 is killed")
    options = parser.parse_args(argv)
    config = vars(options) | {"pack": os.path.abspath(options.pack)}
    found = TorchTrainer(
        train,
        train_loop_config=config,
        scaling_config=ray.train.ScalingConfig(
            num_workers=options.workers, use_gpu=torch.cuda.is_available()
        ),
        run_config=ray.train.RunConfig(
            storage_path=os.path.abspath(options.results),
            failure_config=ray.train.FailureConfig(max_failures=3),
        ),
    ).fit()
    metrics = dict(found.metrics or {})
    print(
        f"epoch {metrics['epoch']}: loss {metrics['loss']:.4f};"
        f" rows by times trained: {metrics['rows by count']}"
    )
    return metrics


if __name__ == "__main__":
    main()
