"""A transform's processes as a dataset uses them; without pytest, as new processes import it, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from packer.format.fields import Field
from packer.load.batch import Filled, Host, LentSlot, SlotLayout, Slots
from packer.load.fillers import Reading
from packer.load.processes.threads import ThreadFiller
from packer.load.processes.transforms import THREAD, PythonTransform
from packer.load.processes.workers import TransformFiller
from packer.orders.epochs import RowOrder
from packer.orders.row_orders import Sequential
from packer.orders.runs import Runs, consecutive
from packer.packs.pack import Pack
from packer.read.array_store import PackStore
from packer.read.row_selection import select_fields
from packer.starting import ForkSafeThreads


def filler_of(transform: PythonTransform, store: PackStore, fields: Sequence[Field]) -> TransformFiller:
    reading = Reading(store, store, ForkSafeThreads(1), Host(tensors=False))
    return (ThreadFiller if transform.context == THREAD else TransformFiller)(reading, fields, transform)


class Asked(NamedTuple):
    """A request for rows, as far as a transform's processes look at it."""

    rows: Runs
    epoch: int
    order: RowOrder = Sequential().over(0)

    def within(self) -> Runs:
        return self.rows

    def counters(self) -> None:
        return None


def asked(rows: Runs, epoch: int = 0) -> Any:
    return Asked(rows, epoch)


class Parts:
    """The parts of a batch, that processes make, together."""

    def __init__(self, futures: list[Future[Filled]]) -> None:
        self._futures = futures

    def result(self, timeout: float | None = None) -> Filled:
        """Wait for all; return the rows of ragged fields of all."""
        done = [future.result(timeout) for future in self._futures]
        ragged = {name: [row for one in done for row in one.ragged[name]] for name in done[0].ragged}
        return Filled(ragged, 0.0)

    def exceptions(self, timeout: float) -> list[BaseException | None]:
        return [future.exception(timeout) for future in self._futures]

    def cancel(self) -> bool:
        return all(list(map(Future.cancel, self._futures)))


class Made:
    """What a dataset does with them: slots, and batches of rows."""

    def __init__(
        self,
        pack: Pack,
        fn: Callable[..., Any],
        *,
        names: tuple[str, ...] = ("image", "label"),
        **options: Any,
    ):
        fields = select_fields(pack, names)
        self.workers = filler_of(
            PythonTransform(fn, **({"processes": 2} | options)), PackStore(pack, fields), fields
        )
        self.layout: SlotLayout | None = None

    def __enter__(self) -> Made:
        return self

    def __exit__(self, *exc: object) -> None:
        self.workers.close()

    def start(self, rows: list[int], epoch: int = 0) -> tuple[Any, Any]:
        runs = consecutive(np.array(rows))
        if self.layout is None:
            self.fields = self.workers.probe(runs, seed=0, epoch=0)
            self.layout = SlotLayout(self.fields, 64)
            self.slots = Slots(self.layout.nbytes, self.workers.allocate, 4)
        slot = LentSlot(self.slots, self.layout, len(rows))
        return Parts(self.workers.tasks(asked(runs, epoch), slot)), slot.arrays

    def batch(self, rows: list[int], epoch: int = 0) -> dict[str, Any]:
        future, arrays = self.start(rows, epoch)
        return arrays | future.result(120).ragged


def flipped(sample: dict[str, Any], rng: Any = None) -> dict[str, Any]:
    return {**sample, "image": sample["image"][..., ::-1, :]}
