"""A process of test_accelerate.py: loops that accelerate prepared, or that tell it of themselves; it writes down the rows."""

from __future__ import annotations

import json
import os
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from packer import PackedDataset
from tests.integrations.rows import dataset_of, rows_of, synchronous


def run(rank: int, world_size: int, folder: Path, pack: str, batch: int) -> None:
    """Everything that needs several processes, in one go: starting them is what takes long."""
    warnings.simplefilter("ignore")
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "none",
    }
    distributed.init_process_group(
        "gloo", f"file://{folder}/meeting", timeout=timedelta(seconds=120), rank=rank, world_size=world_size
    )
    found = loops(pack, batch) | {"rows": metrics_of_rows(pack, batch), "judged": {}}
    for ends in ("even", "pad", "drop"):
        found["judged"][ends] = metrics_of_batches(pack, batch, ends)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            found["uneven"] = rows_of(next(iter(dataset_of(pack, batch, ends="uneven"))))
        found["warned"] = [str(warning.message) for warning in said]
    (folder / f"{rank}.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


def loops(pack: str, batch: int) -> dict[str, Any]:
    """Epochs, rests of epochs, and what is refused."""
    from accelerate import Accelerator, DataLoaderConfiguration
    from accelerate.data_loader import skip_first_batches

    def alone() -> DataLoader[Any]:
        return DataLoader(dataset_of(pack, batch, rank=0, world_size=1), batch_size=None)

    accelerator = Accelerator(cpu=True)
    found: dict[str, Any] = {}
    for name, made in {"dataset": dataset_of(pack, batch), "DataLoader": alone()}.items():
        prepared = accelerator.prepare(made)
        found[name] = [len(prepared), *(synchronous(prepared) for _ in range(2))]
    found["skipped"] = synchronous(skip_first_batches(accelerator.prepare(alone()), 2))
    found["skipped alone"] = [rows_of(each) for each in skip_first_batches(alone(), 2)]
    found["refused"] = []
    sharding = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
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


def metrics_of_rows(pack: str, batch: int) -> dict[str, list[int]]:
    """Rows that gather_for_metrics gives of a PackedDataset, in an epoch of each kind of DataLoader."""
    from accelerate import Accelerator, DataLoaderConfiguration

    rows = PackedDataset(pack, fields=("label",))
    sampler = BatchSampler(SequentialSampler(rows), batch, drop_last=False)
    found = {}
    for name, made, options in (
        ("DataLoader", DataLoader(rows, batch), {}),
        ("shuffled", DataLoader(rows, batch, shuffle=True), {}),
        ("of batches", DataLoader(rows, sampler=sampler, batch_size=None), {}),
        ("split", DataLoader(rows, 3 * batch), {"split_batches": True}),
        ("dispatched", DataLoader(rows, batch), {"dispatch_batches": True}),
    ):
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))
        prepared = accelerator.prepare(made)
        found[name] = [row for each in prepared for row in rows_of(accelerator.gather_for_metrics(each))]
    return found


def metrics_of_batches(pack: str, batch: int, ends: str) -> list[list[int]]:
    """Rows that gather_for_metrics gives in an evaluation within another loop; after it; and those of the rest of an epoch."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    options = {"order": "sequential", "ends": ends}
    outer, inner = (dataset_of(pack, batch, **options) for _ in range(2))
    found: list[list[int]] = [[], [], []]
    for number, given in enumerate(outer):
        if number == 1:
            state = outer.state_dict()
            found[0] = [row for each in inner for row in rows_of(accelerator.gather_for_metrics(each))]
        found[1] += rows_of(accelerator.gather_for_metrics(given))
    inner.load_state_dict(state)
    found[2] = [row for each in inner for row in rows_of(accelerator.gather_for_metrics(each))]
    return found
