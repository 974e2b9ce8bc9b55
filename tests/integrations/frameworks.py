"""Run by torchrun: each framework trains an epoch or two on a pack, wrapped in a DataLoader and not, and writes down its rows.

Every step waits for all ranks, as a training does, so a rank with a batch more would hang.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed
from torch.utils.data import DataLoader

from tests.integrations.rows import dataset_of, synchronous

warnings.simplefilter("ignore")
EPOCHS = 2


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
    found = by_torchrun(pack, batch) | by_lightning(pack, batch)
    from tests.integrations.lightning_module import by_lightning_module

    found |= by_lightning_module(pack, folder, batch) | {"folder": str(folder)}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()
    os._exit(0)  # as at the end of ranks.py: Lightning's model keeps gloo's threads
