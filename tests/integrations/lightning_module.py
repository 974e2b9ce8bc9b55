"""Trainings with PackedDataModule, on any number of devices, with DDP and FSDP2, that write down rows and losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy

from packer.integrations.lightning import PackedDataModule
from tests.integrations.rows import rows_of

QUIET = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
EVERY = 2  # steps between checkpoints


class Net(lightning.LightningModule):
    """`given`, `validated`: (epoch, number of the batch, rows) of each step. `losses`: of each training step."""

    def __init__(self, *, fsdp: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.layers.register_buffer("sent", torch.zeros(1))  # by DDP, at every step, also of a validation
        self.fsdp = fsdp
        self.given: list[tuple[int, int, list[int]]] = []
        self.validated: list[tuple[int, int, list[int]]] = []
        self.losses: list[float] = []

    def configure_model(self) -> None:
        if self.fsdp:
            from torch.distributed.fsdp import fully_shard

            fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        self.given.append((self.current_epoch, number, rows_of(batch)))
        loss = (self.layers(batch.label[:, None] / 1000) - batch.label[:, None] % 2).square().mean()
        self.losses.append(float(loss.detach()))
        return loss

    def validation_step(self, batch: Any, number: int) -> None:
        self.layers(batch.label[:, None] / 1000)  # under DDP and FSDP all ranks wait for each other here
        if not self.trainer.sanity_checking:
            self.validated.append((self.current_epoch, number, rows_of(batch)))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 0.1)


def module_of(pack: Path, batch_size: int = 10) -> PackedDataModule:
    """The data module of all runs."""
    return PackedDataModule(train=pack, val=pack, batch_size=batch_size, fields=("label",), seed=4)


def fit(pack: Path, out: Path, *, resume: Path | None = None, batch_size: int = 10, **options: Any) -> Net:
    """Train two epochs; checkpoints of every second step go to `out`, as <step>.ckpt."""
    keep = ModelCheckpoint(
        out, "{step}", every_n_train_steps=EVERY, save_top_k=-1, auto_insert_metric_name=False
    )
    fsdp = options.get("strategy") == "fsdp2"
    if fsdp:
        options["strategy"] = ModelParallelStrategy(
            data_parallel_size=options["devices"], tensor_parallel_size=1
        )
    net = Net(fsdp=fsdp)
    trainer = lightning.Trainer(
        **{"accelerator": "cpu", "devices": 1, "max_epochs": 2, "callbacks": [keep]} | QUIET | options
    )
    trainer.fit(net, module_of(pack, batch_size), ckpt_path=resume, weights_only=False)
    return net


def by_lightning_module(pack: Path, folder: Path, batch_size: int) -> dict[str, Any]:
    """What this rank of all was given, in each kind of run: training steps, validation steps, losses."""
    world = torch.distributed.get_world_size()
    ddp = {"devices": world, "strategy": "ddp", "batch_size": batch_size}
    fsdp = ddp | {"strategy": "fsdp2"}
    nets = {
        "sampler": fit(pack, folder / "ddp", **ddp, use_distributed_sampler=True),
        "no sampler": fit(pack, folder / "none", **ddp, use_distributed_sampler=False),
        "resumed": fit(pack, folder / "ddp2", **ddp, resume=folder / "ddp" / f"{EVERY}.ckpt"),
        "sharded": fit(pack, folder / "fsdp", **fsdp),
        "sharded, resumed": fit(pack, folder / "fsdp2", **fsdp, resume=folder / "fsdp" / f"{EVERY}.ckpt"),
    }
    return {name: [net.given, net.validated, net.losses] for name, net in nets.items()}
