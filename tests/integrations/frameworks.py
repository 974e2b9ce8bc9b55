"""Run by torchrun: each framework trains an epoch or two on a pack, wrapped in a DataLoader and not, and writes down its rows.

Every step waits for all ranks, as a training does, so a rank with a batch more would hang.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DataLoader

from tests.integrations.rows import dataset_of, rows_of

warnings.simplefilter("ignore")
EPOCHS = 2


def synchronous(batches: Iterable[Any]) -> list[list[int]]:
    """The rows of each batch; all ranks wait for each other at each."""
    given = []
    for batch in batches:
        total = torch.tensor(1)
        distributed.all_reduce(total)
        assert total == distributed.get_world_size()
        given.append(rows_of(batch))
    return given


def by_torchrun(pack: Path, batch: int) -> dict[str, Any]:
    """Loops of a script's own."""
    loaders = {
        "dataset": dataset_of(pack, batch),
        "DataLoader": DataLoader(dataset_of(pack, batch), batch_size=None),
    }
    return {
        f"torchrun, {name}": [len(loader), *(synchronous(loader) for _ in range(EPOCHS))]
        for name, loader in loaders.items()
    }


def by_accelerate(pack: Path, batch: int) -> dict[str, Any]:
    """Loops over what accelerate prepared."""
    from accelerate import Accelerator
    from accelerate.data_loader import skip_first_batches

    accelerator = Accelerator(cpu=True)
    found: dict[str, Any] = {}
    for name, made in {
        "dataset": dataset_of(pack, batch),
        "DataLoader": DataLoader(dataset_of(pack, batch, rank=0, world_size=1), batch_size=None),
    }.items():
        prepared = accelerator.prepare(made)
        found[f"accelerate, {name}"] = [len(prepared), *(synchronous(prepared) for _ in range(EPOCHS))]
    found["judged"] = {ends: judged(accelerator, pack, batch, ends) for ends in ("even", "pad", "drop")}
    prepared = accelerator.prepare(DataLoader(dataset_of(pack, batch, rank=0, world_size=1), batch_size=None))
    found["skipped"] = synchronous(skip_first_batches(prepared, 2))
    alone = dataset_of(pack, batch, rank=0, world_size=1)
    found["skipped alone"] = [
        rows_of(each) for each in skip_first_batches(DataLoader(alone, batch_size=None), 2)
    ]
    found["refused"] = []
    sharding = Accelerator(cpu=True, dataloader_config=_without_dispatching())
    unshared = accelerator.prepare(DataLoader(dataset_of(pack, batch), batch_size=None))
    unshared.begin()
    for attempt in (
        lambda: list(skip_first_batches(dataset_of(pack, batch), 2)),
        lambda: list(sharding.prepare(DataLoader(dataset_of(pack, batch), batch_size=None))),
        lambda: next(iter(unshared.dataset)),  # as the first process does, while the others wait for it
    ):
        try:
            attempt()
        except Exception as error:
            found["refused"].append(f"{type(error).__name__}: {error}")
    unshared.end()
    return found


def judged(accelerator: Any, pack: Path, batch: int, ends: str) -> list[Any]:
    """Rows that gather_for_metrics gives in an evaluation within another loop; after it; and those of the rest of an epoch."""
    options = {"order": "sequential", "ends": ends}
    outer, inner = (dataset_of(pack, batch, **options) for _ in range(2))
    found: list[Any] = [[], [], []]
    for number, given in enumerate(outer):
        if number == 1:
            state = outer.state_dict()
            found[0] = [row for each in inner for row in rows_of(_Gathered(accelerator, each))]
        found[1] += rows_of(_Gathered(accelerator, given))
    inner.load_state_dict(state)
    found[2] = [row for each in inner for row in rows_of(_Gathered(accelerator, each))]
    return found


class _Gathered:
    """The labels of all ranks."""

    def __init__(self, accelerator: Any, batch: Any) -> None:
        self.label = accelerator.gather_for_metrics(batch.label)


def _without_dispatching() -> Any:
    from accelerate import DataLoaderConfiguration

    return DataLoaderConfiguration(dispatch_batches=False)


def by_lightning(pack: Path, batch: int) -> dict[str, Any]:
    """A Trainer with strategy="ddp" and its default use_distributed_sampler=True."""
    import lightning

    from tests.integrations.lightning_net import Net

    found = {}
    for name in ("dataset", "DataLoader"):
        dataset = dataset_of(pack, batch)
        net = Net()
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=distributed.get_world_size(),
            strategy="ddp",
            max_epochs=EPOCHS,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(net, DataLoader(dataset, batch_size=None) if name == "DataLoader" else dataset)
        found[f"Lightning, {name}"] = [
            len(dataset),
            *([rows for epoch, _, rows in net.given if epoch == number] for number in range(EPOCHS)),
        ]
    return found


if __name__ == "__main__":
    pack, folder, batch = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    distributed.init_process_group("gloo", timeout=timedelta(seconds=120))
    rank = distributed.get_rank()
    found = by_torchrun(pack, batch) | by_lightning(pack, batch) | by_accelerate(pack, batch)
    from tests.integrations.lightning_module import by_lightning_module

    found |= by_lightning_module(pack, folder, batch) | {"folder": str(folder)}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()
    os._exit(0)  # as at the end of ranks.py: Lightning's model keeps gloo's threads
