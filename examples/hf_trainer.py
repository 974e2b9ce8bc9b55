"""Train with Hugging Face's Trainer on a pack; resume from a checkpoint in mid-epoch.

    python examples/hf_trainer.py train.h5 test.h5 --epochs 3 --out results
    torchrun --nproc-per-node 2 examples/hf_trainer.py train.h5 test.h5
    python examples/hf_trainer.py train.h5 test.h5 --out results --resume      # from the latest checkpoint

Prints the Trainer's metrics: loss and accuracy on the second pack.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from training_ways import network
from transformers import Trainer, TrainerCallback, TrainingArguments

from packer import PackedBatchDataset

STATE = "packer.json"  # in a checkpoint's folder, beside what the Trainer saves


class Classifier(nn.Module):
    """A network with the interface of transformers' models."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.model = network(classes, seed=0)

    def forward(self, pixel_values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        scores = self.model(pixel_values)
        return {"loss": cross_entropy(scores, labels), "logits": scores}


class Batches:
    """A dataset's batches under the names that transformers' models expect."""

    def __init__(self, data: PackedBatchDataset) -> None:
        self.data, self.set_epoch = data, data.set_epoch  # the Trainer calls set_epoch before each epoch

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for images, labels in self.data:
            yield {"pixel_values": images, "labels": labels}


class SaveState(TrainerCallback):  # type: ignore[misc]
    """A callback that saves the dataset's position in the epoch with each checkpoint."""

    def __init__(self, data: PackedBatchDataset) -> None:
        self.data = data

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            (folder / STATE).write_text(json.dumps(self.data.state_dict()))


class PackTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose loaders are PackedBatchDatasets: without DataLoader, sampler and collation."""

    def get_train_dataloader(self) -> Batches:
        return Batches(self.train_dataset)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Batches:
        return Batches(eval_dataset or self.eval_dataset)


def train(options: argparse.Namespace) -> dict[str, float]:
    """Train and evaluate. Returns the metrics."""
    arguments = TrainingArguments(
        options.out,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=options.batch_size,
        max_steps=options.stop_after or -1,
        save_steps=options.save_every,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        ignore_data_skip=True,  # the dataset resumes by itself, and reads nothing twice
        report_to="none",
        disable_tqdm=True,
        use_cpu=options.cpu,
    )
    device = str(arguments.device)
    train = PackedBatchDataset(
        options.train,
        options.batch_size,
        shuffle=True,
        device=device,
        augment="RandomHorizontalFlip(), Normalize()",
    )
    # Equally many rows on all ranks; the Trainer's metrics skip repeated rows.
    test = PackedBatchDataset(
        options.test, options.batch_size, ends="even", device=device, augment="Normalize()"
    )

    def metrics(found: Any) -> dict[str, float]:
        return {"accuracy": float(np.mean(found.predictions.argmax(1) == found.label_ids))}

    trainer = PackTrainer(
        Classifier(len(train.pack.header.classes or ())),
        arguments,
        train_dataset=train,
        eval_dataset=test,
        compute_metrics=metrics,
        callbacks=[SaveState(train)],
    )
    latest = None
    if options.resume:
        latest = max(Path(options.out).glob("checkpoint-*"), key=lambda one: int(one.name.split("-")[1]))
        train.load_state_dict(json.loads((latest / STATE).read_text()))
    trainer.train(resume_from_checkpoint=latest and str(latest))
    found: dict[str, float] = trainer.evaluate()
    if trainer.is_world_process_zero():
        print(json.dumps(found), flush=True)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train", help="a pack with labels")
    parser.add_argument("test", help="a pack of the same classes for evaluation")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="rows of a batch in each process")
    parser.add_argument("--out", default="results", help="folder for checkpoints")
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    parser.add_argument("--stop-after", type=int, metavar="STEPS", help="end there")
    parser.add_argument("--resume", action="store_true", help="resume from the latest checkpoint")
    parser.add_argument("--cpu", action="store_true", help="train on the CPU")
    train(parser.parse_args())
