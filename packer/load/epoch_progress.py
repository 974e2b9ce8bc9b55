"""How far an epoch is: what state_dict saves, and what the next iterator goes on with."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any, NoReturn

from packer.arguments import whole
from packer.errors import UsageError
from packer.load.base_dataset import BaseDataset
from packer.load.batch import Batched
from packer.load.batch_plan import BatchPlan
from packer.load.order_choice import resumed_order
from packer.orders.epochs import Epoch, RowOrder, Share
from packer.starting import ForkSafeLock

Ended = Callable[[int], bool]
STATE_VERSION = 1


class Mark:
    """The position of one iterator: `handed` counts the positions of its epoch that it has handed out, without a lock."""

    __slots__ = ("epoch", "handed")

    def __init__(self, epoch: int, handed: int) -> None:
        self.epoch, self.handed = epoch, handed


class EpochProgress:
    """The epoch of the latest iterator, and the positions of it that were handed out. Thread-safe.

    The argument `ended` of several methods takes a number of positions handed out and returns True if the epoch has no more
    batches, the same on every rank. It is not stored: a reference cycle with the dataset would keep its threads alive until the
    garbage collector runs.
    """

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._epoch, self._origin, self._begun = 0, 0, False
        self._latest: Mark | None = None
        self._before: tuple[int, int, bool, Mark | None] = 0, 0, False, None

    def epoch(self, ended: Ended) -> int:
        """Return the epoch that the latest iterator began, or else the next one will."""
        with self._lock:
            return self._epoch if self._begun else self.coming(ended)[0]

    def coming(self, ended: Ended) -> tuple[int, int]:
        """Return the epoch of the next iterator, and the positions of it that were handed out before."""
        with self._lock:
            over = self._begun or (self._origin and ended(self._origin))
            return (self._epoch + 1, 0) if over else (self._epoch, self._origin)

    def begin(self, ended: Ended) -> Mark:
        """Begin the next epoch, or the rest of one; return the iterator's mark.

        Only what the latest one's mark says counts.
        """
        with self._lock:
            self._before = self._epoch, self._origin, self._begun, copy(self._latest)
            self._epoch, self._origin = self.coming(ended)
            self._begun, self._latest = True, Mark(self._epoch, self._origin)
            return self._latest

    def undo(self, mark: Mark) -> None:
        """Undo `begin` for the latest iterator if it failed before it handed anything out."""
        with self._lock:
            if self._latest is mark and mark.handed == self._origin:
                self._epoch, self._origin, self._begun, self._latest = self._before

    def set_epoch(self, epoch: int, ended: Ended) -> None:
        """Make `epoch` the next one; if the rest of it comes next anyway, keep that."""
        with self._lock:
            coming, origin = self.coming(ended)
            self.go_on(epoch, origin if epoch == coming and not self._begun else 0)

    def position(self) -> tuple[int, int]:
        """Return epoch, and positions handed out."""
        with self._lock:
            latest = self._latest
            return (self._epoch, self._origin) if latest is None else (latest.epoch, latest.handed)

    def go_on(self, epoch: int, positions: int) -> None:
        """Make the rest of an epoch come next."""
        with self._lock:
            self._epoch, self._origin = epoch, positions
            self._begun, self._latest = False, None


class ResumableEpochs(BaseDataset):
    """Base of PackedBatchDataset: which epoch comes next, how far it is, and the state that goes on with it."""

    order: RowOrder
    seed: int
    rows: int
    _chosen: bool
    """True if the order was chosen here."""
    _progress: EpochProgress
    _plan: BatchPlan

    @property
    def epoch(self) -> int:
        """The epoch that the last ``iter()`` began, or, before one, that the next begins or goes on with; ``batch(i)`` reads it."""
        return self._progress.epoch(self._ended)

    @property
    def batches_left(self) -> int:
        """Batches that the next ``iter()`` gives: ``len()``, but for an epoch that goes on after load_state_dict."""
        return self._share(self._progress.coming(self._ended)[1]).steps

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that ``batch(i)`` reads and the next ``iter()`` begins (or goes on with, after load_state_dict)."""
        self._progress.set_epoch(whole("epoch", epoch, 0), self._ended)

    def state_dict(self) -> dict[str, Any]:
        """Return where the latest iterator is: seed, epoch, rows handed to all ranks together, and the order.

        The same on every rank, if all have been handed as many batches. JSON can hold it. Prefetched batches do not count.
        """
        epoch, rows = self._progress.position()
        return {
            "version": STATE_VERSION,
            "seed": self.seed,
            "epoch": epoch,
            "rows": rows,
            "of": self.rows,
            "subset": self._fingerprint,
            "order": self.order.record(),
        } | ({"normalization": self._plan.normalization} if self._plan.normalization else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state_dict was taken: the next ``iter()`` gives the rest of its epoch, on any number of ranks.

        Seed and lengths of slices are taken from the state. Raises UsageError if it is of other rows or another order.
        """
        record = _check_state(state)
        if (record["of"], record["subset"]) != (self.rows, self._fingerprint):
            raise UsageError(
                f"load_state_dict: the state is of {record['of']} rows of a pack; this dataset has {self.rows}, or others."
                " Pass a state of the same pack, split, classes and subset."
            )
        order = resumed_order(self.order, record["order"], chosen=self._chosen)
        rows = whole("load_state_dict: rows", record["rows"], 0, order.length(self.rows))
        epoch = whole("load_state_dict: epoch", record["epoch"], 0)
        self.seed = whole("load_state_dict: seed", record["seed"])
        self._resume(order, self._plan.normalized(self._reader, record.get("normalization")))
        self._progress.go_on(epoch, rows)

    @cached_property
    def _fingerprint(self) -> str:
        return self.subset.fingerprint

    def _share(self, origin: int) -> Share:
        """Return this rank's batches of an epoch of which `origin` positions were handed out before."""
        raise NotImplementedError

    def _resume(self, order: RowOrder, plan: BatchPlan) -> None:
        """Go on in another order, and with a plan that normalizes as a state says."""
        raise NotImplementedError

    def _sequence(self, epoch: int) -> Epoch:
        return Epoch(self.order, self.subset, self.seed, epoch)

    def _ended(self, origin: int) -> bool:
        # Every rank has to say the same: the first one has a batch for as long as any has.
        return not replace(self._share(origin), rank=0).steps


def _check_state(state: Any) -> Mapping[str, Any]:
    """Return the state. Raises UsageError for another version or missing entries."""
    names = {"seed", "epoch", "rows", "of", "subset", "order"}
    if not isinstance(state, Mapping) or state.get("version") != STATE_VERSION or not names <= state.keys():
        raise UsageError(
            "load_state_dict: is no state of a PackedBatchDataset of this packer. Pass what state_dict() gave."
        )
    return state


def register(dataset: type, *, load: bool) -> None:
    """Register a class as an IterableDataset of torch, so that frameworks do not shard it again.

    torch's default_collate refuses its batches from then on. load: import torch if necessary; else do nothing until it is imported.
    """
    data = importlib.import_module("torch.utils.data") if load else sys.modules.get("torch.utils.data")
    if data is not None:
        data.IterableDataset.register(dataset)
        data._utils.collate.default_collate_fn_map[Batched] = _refuse_collating


def _refuse_collating(*_: Any, **__: Any) -> NoReturn:
    raise UsageError(
        "DataLoader over PackedBatchDataset: its items are batches already, and DataLoader's batch_size (1 unless given) would"
        " put batches of them together. Iterate over the dataset itself, pass DataLoader(ds, batch_size=None), or take PackedDataset,"
        " whose items are rows."
    )


def check_no_worker() -> None:
    """Raise UsageError in a DataLoader's worker, of which each would give all batches. Imports nothing."""
    data: Any = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        raise UsageError(
            "PackedBatchDataset: is iterated in a worker of a DataLoader; it reads ahead with threads of its own, in this process."
            " Pass num_workers=0 with batch_size=None, or take PackedDataset, whose items are rows."
        )
