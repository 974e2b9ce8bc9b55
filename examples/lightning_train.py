"""Train with Lightning in six ways, each a flag.

Parallel loading, several devices, mixed precision, early stopping, FSDP2, evaluation without gradients:

    python examples/lightning_train.py train.h5 test.h5 --threads 2 --prefetch 2
    python examples/lightning_train.py train.h5 test.h5 --precision bf16 --patience 3 --no-gradients
    python examples/lightning_train.py train.h5 test.h5 --devices 2 --fsdp
    python examples/lightning_train.py train.h5 test.h5 --table 3       # compares the ways

Prints the run's results as JSON. torch_train.py does the same without Lightning.
"""

from __future__ import annotations

import time
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.nn.functional import cross_entropy
from torchmetrics import MeanMetric
from training_ways import network, optimizer_of, parse, report, shard

from packer.integrations.lightning import PackedDataModule
from packer.load.stats import Stats


class Classifier(lightning.LightningModule):  # type: ignore[misc]
    """A small network that learns classes."""

    def __init__(self, classes: int, seed: int, *, fsdp: bool, gradients: bool) -> None:
        super().__init__()
        self.model = network(classes, seed)
        self.fsdp, self.gradients = fsdp, gradients
        # Means over the rows of all devices. `sync_dist=True` divides by the mean number of rows per device,
        # which it rounds down: 7.5 / 7 if all of 15 rows on two devices are right.
        self.loss, self.accuracy = MeanMetric(), MeanMetric()

    def configure_model(self) -> None:
        if self.fsdp:
            shard(self.model, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: Any, number: int) -> Tensor:
        return cross_entropy(self.model(batch.image), batch.label)

    def validation_step(self, batch: Any, number: int) -> None:
        with torch.set_grad_enabled(
            self.gradients
        ):  # the Trainer has disabled gradients: enabling them is for comparison
            scores = self.model(batch.image)
        self.loss.update(cross_entropy(scores.detach(), batch.label, reduction="none"))
        self.accuracy.update((scores.argmax(1) == batch.label).float())
        self.log_dict({"val_loss": self.loss, "val_accuracy": self.accuracy})

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer_of(self.model)


class Measurements(lightning.Callback):  # type: ignore[misc]
    """A callback that keeps the statistics of each epoch."""

    def __init__(self) -> None:
        self.epochs: list[Stats] = []
        self.cpu_seconds: list[float] = []
        self.validations: list[tuple[float, float, float]] = []
        self._began = 0.0

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self._began = time.process_time()

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        self.cpu_seconds.append(time.process_time() - self._began)
        self._began = time.perf_counter()

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        found = trainer.callback_metrics
        seconds = time.perf_counter() - self._began
        self.validations.append((float(found["val_loss"]), float(found["val_accuracy"]), seconds))

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.epochs.append(trainer.train_dataloader.stats())

    def on_train_end(self, trainer: Any, module: Any) -> None:
        if trainer.is_global_zero:  # the data module closes its datasets afterwards
            report(
                self.epochs,
                self.cpu_seconds,
                self.validations,
                trainer.train_dataloader,
                trainer.optimizers[0],
            )


if __name__ == "__main__":
    options = parse(__doc__)
    data = PackedDataModule(
        train=options.train,
        val={"path": options.val, "batch_size": 4 * options.batch_size},
        batch_size=options.batch_size,
        augment=options.augment,
        eval_augment=options.eval_augment,
        threads=options.threads,
        prefetch=options.prefetch,
        seed=options.seed,
    )
    strategy: Any = "auto" if options.devices == 1 else "ddp"
    if options.fsdp:
        strategy = ModelParallelStrategy(data_parallel_size=options.devices, tensor_parallel_size=1)
    callbacks: list[Any] = [Measurements()]
    if options.patience:
        callbacks.append(EarlyStopping("val_loss", patience=options.patience))
    trainer = lightning.Trainer(
        max_epochs=options.epochs,
        devices=options.devices,
        strategy=strategy,
        precision={"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}[options.precision],
        callbacks=callbacks,
        inference_mode=False,  # --no-gradients means torch.no_grad, which the comparison can undo
        num_sanity_val_steps=0,
        **dict.fromkeys(
            ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
        ),
    )
    model = Classifier(
        len(options.classes), options.seed, fsdp=options.fsdp, gradients=not options.no_gradients
    )
    trainer.fit(model, data)
