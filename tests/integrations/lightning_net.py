"""A Lightning training that writes down which rows it was given; run as a script, with any number of devices."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from packer.integrations.lightning import CountAnew
from tests.integrations.rows import dataset_of, rows_of


class Net(lightning.LightningModule):
    """`given`: (epoch, number of the batch, rows) of each training step. `validated`: epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.given: list[tuple[int, int, list[int]]] = []
        self.validated: list[int] = []

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        self.given.append((self.current_epoch, number, rows_of(batch)))
        return self.layer(batch.label.float()[:, None] / 1000).mean()

    def validation_step(self, batch: Any, number: int) -> None:
        if number == 0 and not self.trainer.sanity_checking:
            self.validated.append(self.current_epoch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-3)


def fit(
    pack: Path,
    out: Path,
    *,
    resume: Path | None = None,
    every: int | None = None,
    order: str = "rows",
    **options: Any,
) -> Net:
    """Train on the pack; checkpoints of every `every` steps, or of each epoch's end, go to `out`, as <step>.ckpt."""
    net = Net()
    keep = ModelCheckpoint(
        out, "{step}", every_n_train_steps=every, save_top_k=-1, auto_insert_metric_name=False
    )
    trainer = lightning.Trainer(
        **{"accelerator": "cpu", "devices": 1, "callbacks": [keep, CountAnew()]} | options,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train, val = dataset_of(pack, ends="pad", order=order), dataset_of(pack, ends="pad", order="sequential")
    trainer.fit(net, train, val, ckpt_path=resume, weights_only=True)
    return net


if __name__ == "__main__":
    pack, resume, folder = map(Path, sys.argv[1:])
    net = fit(pack, folder, resume=resume, every=1, max_epochs=2, devices=2, strategy="ddp")
    (folder / f"{net.global_rank}.json").write_text(json.dumps([net.given, net.validated]))
