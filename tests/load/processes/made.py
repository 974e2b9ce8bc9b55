"""Workers as a dataset uses them; without pytest, as new processes import it, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from packer.format.pack import Pack
from packer.load.batch import SlotLayout, Slots
from packer.load.processes.transforms import PythonTransform
from packer.load.processes.workers import Workers
from packer.orders.runs import consecutive
from packer.read.row_reader import RowReader
from packer.read.row_selection import select_fields


class Made:
    """What a dataset does with Workers: slots, and batches of rows."""

    def __init__(
        self,
        pack: Pack,
        fn: Callable[..., Any],
        *,
        names: tuple[str, ...] = ("image", "label"),
        **options: Any,
    ):
        fields = select_fields(pack, names)
        self.workers = Workers(
            PythonTransform(fn, **({"processes": 2} | options)), RowReader(pack, fields), fields
        )
        self.layout: SlotLayout | None = None

    def __enter__(self) -> Made:
        return self

    def __exit__(self, *exc: object) -> None:
        self.workers.close()

    def start(self, rows: list[int], first: int = 0, epoch: int = 0) -> tuple[Any, Any]:
        runs = consecutive(np.array(rows))
        if self.layout is None:
            self.fields = self.workers.probe(runs, seed=0, epoch=0)
            self.layout = SlotLayout(self.fields, 64)
            self.slots = Slots(self.layout.nbytes, self.workers.allocate, 4)
        slot = self.slots.lend()
        return self.workers.submit(slot, self.layout, first, runs, seed=0, epoch=epoch), self.layout.typed(
            slot, 64
        )

    def batch(self, rows: list[int], first: int = 0, epoch: int = 0) -> dict[str, Any]:
        future, arrays = self.start(rows, first, epoch)
        filled = future.result(120)
        return {n: a[first : first + len(rows)] for n, a in arrays.items()} | filled.ragged


def flipped(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "image": sample["image"][..., ::-1, :]}
