"""python frameworks.py RANKS PACK FOLDER BATCH: each framework trains an epoch or two, with a DataLoader and without one.

Each rank writes down its rows. Every step waits for all ranks, as a training does, so a rank with a batch more would hang.
"""

from __future__ import annotations

import json
import os
import signal
import socket
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


def train(pack: Path, folder: Path, batch: int) -> None:
    """Be one rank of all."""
    from tests.integrations.lightning_module import by_lightning_module

    distributed.init_process_group("gloo", timeout=timedelta(seconds=120))
    found = by_torchrun(pack, batch) | by_lightning(pack, batch)
    found |= by_lightning_module(pack, folder, batch) | {"folder": str(folder)}
    (folder / f"{distributed.get_rank()}.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


def main(world: int, pack: Path, folder: Path, batch: int) -> None:
    """Fork the ranks in the environment that torchrun gives them, from a process that has imported Lightning for all of them."""
    import torch._dynamo  # noqa: F401

    import tests.integrations.lightning_module  # noqa: F401

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    os.environ |= {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    ranks = []
    for rank in range(world):
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"}
        if not (child := os.fork()):
            try:
                train(pack, folder, batch)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)  # as at the end of ranks.py: Lightning's model keeps gloo's threads
        ranks.append(child)
    while ranks:
        ended, status = os.wait()
        ranks.remove(ended)
        if status:  # the others would wait for it
            for rank in ranks:
                os.kill(rank, signal.SIGKILL)
            sys.exit("a rank failed")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
