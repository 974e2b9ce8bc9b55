"""A process of test_ddp.py: trains on every step together with the others, and writes down what it was given."""

from __future__ import annotations

import json
import os
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from packer.load.batch_dataset import PackedBatchDataset
from tests.integrations.rows import dataset_of, rows_of, synchronous


def run(rank: int, world_size: int, folder: Path, pickled: PackedBatchDataset, state: dict[str, Any]) -> None:
    """Everything that needs `world_size` processes, in one go: starting them is what takes long."""
    warnings.simplefilter("error")
    found: dict[str, Any] = {}
    early = dataset_of(pickled.pack.path, ends="pad")
    found["alone"] = early.rank, early.world_size
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
    found["unvouched"] = early.rank, early.world_size
    os.environ["TORCHELASTIC_RUN_ID"] = "none"
    found["torchrun"] = early.rank, early.world_size
    del os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["TORCHELASTIC_RUN_ID"]
    meeting = f"file://{folder}/meeting-{world_size}"
    distributed.init_process_group(
        "gloo", meeting, timeout=timedelta(seconds=120), rank=rank, world_size=world_size
    )
    found["initialised"] = early.rank, early.world_size

    path = pickled.pack.path
    for name, dataset in {
        "pad": early,
        "pickled": pickled,
        "drop": dataset_of(path, ends="drop"),
        "uneven": dataset_of(path, ends="uneven"),
        "even": dataset_of(path),
    }.items():
        found[name] = [synchronous(dataset) for _ in range(2)]
    found["length"] = len(early)

    interrupted = dataset_of(path)
    found["head"], found["state"] = synchronous(interrupted, steps=2), interrupted.state_dict()
    again = dataset_of(path, ends="uneven")
    again.load_state_dict(state)
    found["tail"] = [synchronous(again) for _ in range(2)]

    # A row or three are left at the end: the first ranks alone get a batch of them, and `Join` covers for the others.
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        differing = dataset_of(path, 102 // world_size, ends="uneven")
    found["warned"] = [str(warning.message) for warning in said]
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    found["joined"] = []
    with Join([model]):
        for batch in differing:
            model(batch.label[:, None].float()).mean().backward()
            found["joined"].append(rows_of(batch))
    distributed.destroy_process_group()
    (folder / f"{world_size}-{rank}.json").write_text(json.dumps(found))
    # The model's group outlives destroy_process_group(): one of gloo's threads that is late, on a busy machine, to let go of a tensor
    # of Python's aborts a process whose interpreter is ending.
    os._exit(0)
