"""How far an epoch is: what state_dict saves, what the next iterator goes on with, and the epochs of a DataLoader's workers.

To torch the dataset is an IterableDataset (`register`), so that ``DataLoader(ds, batch_size=None)`` iterates over it, and frameworks
do not shard it again: its passes are epochs, with any number of workers. Of W workers the k-th reads the batches k, k + W, ...: the
DataLoader asks them in turn, so the sequence stays the same. Workers are copies of the dataset, new ones for each pass or
(persistent_workers) the same ones; which epoch a pass is they agree on through a few bytes of shared memory (`Passes`), which the
dataset that they came from sees, too.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property
from multiprocessing import context, parent_process
from typing import Any, NamedTuple

from packer.arguments import whole
from packer.errors import UsageError
from packer.load import other_loaders
from packer.load.base_dataset import BaseDataset
from packer.load.order_choice import resumed_order
from packer.orders.epochs import Epoch, RowOrder, Share
from packer.starting import ForkSafeLock

Ended = Callable[[int], bool]
STATE_VERSION = 1


class Mark:
    """The position of one iterator: `handed` counts the positions of its epoch that it has handed out, without a lock.

    It yields the batches first, first + stride, ... of the rest of the epoch: all of them, or those of a DataLoader's worker. `handed` is
    then the position at which this worker's next batch begins, once it has handed out one (`own`).
    """

    __slots__ = ("epoch", "first", "handed", "own", "stride")

    def __init__(self, epoch: int, handed: int, first: int = 0, stride: int = 1, own: bool = False) -> None:
        self.epoch, self.handed = epoch, handed
        self.first, self.stride, self.own = first, stride, own


class EpochProgress:
    """The epoch of the latest iterator, and the positions of it that were handed out. Thread-safe.

    The argument `ended` of several methods takes a number of positions handed out and returns True if the epoch has no more
    batches, the same on every rank. It is not stored: a reference cycle with the dataset would keep its threads alive until the
    garbage collector runs.
    """

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._epoch, self._origin, self._begun = 0, 0, False
        self._own = False  # the origin is that of a DataLoader's worker, which goes on by itself
        self._latest: Mark | None = None
        self._before: tuple[int, int, bool, Mark | None] = 0, 0, False, None
        self._passes = Passes()
        self._passes.set(0)

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            self._absorb()
            return dict(self.__dict__)

    def share(self) -> None:
        """Make the memory by which workers of a DataLoader agree on epochs, after unpickling."""
        self._passes.share()

    @property
    def _elsewhere(self) -> int | None:
        """The epoch that a DataLoader's workers, copies of this process's dataset, began after all that began here."""
        return self._passes.latest if this_worker() is None else None

    def _absorb(self) -> None:
        """Take over the epoch that the workers began."""
        if (elsewhere := self._elsewhere) is not None:
            self._epoch, self._origin, self._begun, self._latest = elsewhere, 0, True, None

    def epoch(self, ended: Ended) -> int:
        """Return the epoch that the latest iterator began, or else the next one will."""
        with self._lock:
            if (elsewhere := self._elsewhere) is not None:
                return elsewhere
            return self._epoch if self._begun else self.coming(ended)[0]

    def coming(self, ended: Ended) -> tuple[int, int]:
        """Return the epoch of the next iterator, and the positions of it that were handed out before."""
        with self._lock:
            if (elsewhere := self._elsewhere) is not None:
                return elsewhere + 1, 0
            return self._coming_here(ended)

    def _coming_here(self, ended: Ended) -> tuple[int, int]:
        over = self._begun or (self._origin and not self._own and ended(self._origin))
        return (self._epoch + 1, 0) if over else (self._epoch, self._origin)

    def begin(self, ended: Ended) -> tuple[int, int, Mark]:
        """Begin the next epoch, or the rest of one. Returns the epoch, the positions handed out before, and the iterator's mark.

        Only what the latest one's mark says counts.
        """
        with self._lock:
            self._absorb()
            self._before = self._epoch, self._origin, self._begun, copy(self._latest)
            epoch, origin = self.coming(ended)
            worker = this_worker()
            if worker is None:
                self._passes.set(epoch + 1)
                mark = Mark(epoch, origin)
            else:
                number = self._passes.begin(worker, epoch)
                if number != epoch:
                    epoch, origin, self._own = number, 0, False
                own = self._own and not self._begun
                mark = Mark(epoch, origin, 0 if own else worker.number, worker.workers, own)
            self._epoch, self._origin = epoch, origin
            self._begun, self._latest = True, mark
            return epoch, origin, mark

    def undo(self, mark: Mark, ended: Ended) -> None:
        """Undo `begin` for the latest iterator if it failed before it handed anything out."""
        with self._lock:
            if self._latest is mark and mark.handed == self._origin:
                self._epoch, self._origin, self._begun, self._latest = self._before
                self._passes.set(self._coming_here(ended)[0])

    def set_epoch(self, epoch: int, ended: Ended) -> None:
        """Make `epoch` the next one; if the rest of it comes next anyway, keep that."""
        with self._lock:
            coming, origin = self.coming(ended)
            self._origin = origin if epoch == coming and not self._begun else 0
            self._epoch, self._begun, self._latest = epoch, False, None
            self._passes.set(epoch)

    def position(self) -> tuple[int, int, bool]:
        """Return epoch, positions handed out, and True if only this DataLoader worker handed them out. Raises UsageError."""
        with self._lock:
            if self._elsewhere is not None:
                raise UsageError(
                    "state_dict: batches are read by workers of a DataLoader, and only they know how far they are."
                    " Pass num_workers=0 (the dataset has threads), or take the state_dict() of torchdata's StatefulDataLoader."
                )
            if (latest := self._latest) is None:
                return self._epoch, self._origin, self._own
            return latest.epoch, latest.handed, latest.own

    def go_on(self, epoch: int, positions: int, ended: Ended, *, own: bool = False) -> None:
        """Make the rest of an epoch come next. own: True for the state of this DataLoader worker."""
        with self._lock:
            self._epoch, self._origin, self._own = epoch, positions, own
            self._begun, self._latest = False, None
            worker = this_worker()
            if worker is None:
                self._passes.set(self._coming_here(ended)[0], state=True)
            else:
                self._passes.load(worker, self.coming(ended)[0])


class ResumableEpochs(BaseDataset):
    """Base of PackedBatchDataset: which epoch comes next, how far it is, and the state that goes on with it."""

    order: RowOrder
    seed: int
    rows: int
    _chosen: bool
    """True if the order was chosen here."""
    _progress: EpochProgress

    @property
    def epoch(self) -> int:
        """The epoch that the last ``iter()`` began, or, before one, that the next begins or goes on with; ``ds[i]`` reads it."""
        return self._progress.epoch(self._ended)

    @property
    def batches_left(self) -> int:
        """Batches that the next ``iter()`` gives: ``len()``, but for an epoch that goes on after load_state_dict."""
        return self._share(self._progress.coming(self._ended)[1]).steps

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that ``ds[i]`` reads and the next ``iter()`` begins (or goes on with, after load_state_dict)."""
        other_loaders.refuse_caller()
        self._progress.set_epoch(whole("epoch", epoch, 0), self._ended)

    def state_dict(self) -> dict[str, Any]:
        """Return where the latest iterator is: seed, epoch, rows handed to all ranks together, and the order.

        The same on every rank, if all have been handed as many batches. JSON can hold it. Prefetched batches do not count.
        """
        epoch, rows, own = self._progress.position()
        worker = this_worker() if own else None
        return (
            {
                "version": STATE_VERSION,
                "seed": self.seed,
                "epoch": epoch,
                "rows": rows,
                "of": self.rows,
                "subset": self._fingerprint,
                "order": self.order.record(),
            }
            | self._sampled_state()
            | ({} if worker is None else {"worker": [worker.number, worker.workers]})
        )

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
        own = _check_worker(record.get("worker"))
        self._normalize_as(record.get("normalization"))
        self._reorder(order)
        self._progress.go_on(epoch, rows, self._ended, own=own)

    @cached_property
    def _fingerprint(self) -> str:
        return self.subset.fingerprint

    def _share(self, origin: int) -> Share:
        """Return this rank's batches of an epoch of which `origin` positions were handed out before."""
        raise NotImplementedError

    def _reorder(self, order: RowOrder) -> None:
        """Go on in another order."""
        raise NotImplementedError

    def _sampled_state(self) -> dict[str, Any]:
        """Return {"normalization": mean and std} if Normalize() means those of a sample, which the whole pack's differ from."""
        raise NotImplementedError

    def _normalize_as(self, normalization: Mapping[str, Any] | None) -> None:
        """Have Normalize() mean this mean and std, if there are any."""
        raise NotImplementedError

    def _sequence(self, epoch: int) -> Epoch:
        return Epoch(self.order, self.subset, self.seed, epoch)

    def _ended(self, origin: int) -> bool:
        # Every rank has to say the same: the first one has a batch for as long as any has.
        return not replace(self._share(origin), rank=0).steps


def _check_state(state: Any) -> dict[str, Any]:
    """Return the state as a dict. Raises UsageError for another version or missing entries."""
    if not isinstance(state, Mapping) or state.get("version") != STATE_VERSION:
        found = state.get("version") if isinstance(state, Mapping) else state
        raise UsageError(
            f"load_state_dict: the state's version is {found!r}; {STATE_VERSION} is allowed."
            " Pass what state_dict() of this packer gave."
        )
    if missing := [name for name in ("seed", "epoch", "rows", "of", "subset", "order") if name not in state]:
        raise UsageError(
            f"load_state_dict: the state lacks {', '.join(missing)}. Pass what state_dict() of this packer gave."
        )
    return dict(state)


def _check_worker(recorded: Any) -> bool:
    """Return True if the state is this DataLoader worker's own. Raises UsageError if it is another worker's."""
    worker = this_worker()
    if recorded is not None and (worker is None or list(recorded) != [worker.number, worker.workers]):
        here = "this is none" if worker is None else f"this is worker {worker.number} of {worker.workers}"
        raise UsageError(
            f"load_state_dict: the state is of a DataLoader's worker, {recorded!r} (number, of how many); {here}."
            " Load it into a StatefulDataLoader with as many workers."
        )
    return recorded is not None


class DataLoaderWorker(NamedTuple):
    """This process as a worker of a DataLoader. number: 0..workers-1. seed: the same in all workers started together."""

    number: int
    workers: int
    seed: int


def register(dataset: type, *, load: bool) -> None:
    """Register a class as an IterableDataset of torch. load: import torch if necessary; else do nothing until it is imported."""
    data = importlib.import_module("torch.utils.data") if load else sys.modules.get("torch.utils.data")
    if data is not None:
        data.IterableDataset.register(dataset)


def this_worker() -> DataLoaderWorker | None:
    """Return this process as a DataLoader worker, None if it is not one. Imports nothing."""
    data = sys.modules.get("torch.utils.data")
    found: Any = None if data is None else data.get_worker_info()
    return None if found is None else DataLoaderWorker(found.id, found.num_workers, found.seed - found.id)


class Passes:
    """Shared memory in which the workers of a DataLoader agree on the epoch of each pass.

    One word holds all of it, so that workers read and write it atomically, without a lock: which workers wrote last (a hash of
    the seed that the workers of a pass have in common), the epoch of their first pass, and the next epoch.
    Processes started for training (ranks) inherit the memory, too; each has its own slot of words.
    """

    def __init__(self) -> None:
        self._words: Any = (
            None  # slots of: process, the word, how often set() was called, how often of these with a state
        )
        self._joined, self._passes = 0, 0
        self._states = 0, 0  # process, states that it has loaded: those that this copy knows

    def __getstate__(self) -> dict[str, Any]:
        # Shared memory goes to processes that are being started, and nowhere else.
        starts = context.get_spawning_popen() is not None
        return self.__dict__ | ({} if starts else {"_words": None})

    @property
    def latest(self) -> int | None:
        """The epoch of the latest pass that workers of this process began since `set`, None if there was none."""
        if self._words is None:
            return None
        token, _, coming = _unpacked(self._words[self._slot(os.getpid()) + _WORD])
        return coming - 1 if token else None

    def share(self) -> None:
        """Make the memory, for processes that are started from now on. Does nothing before torch is imported."""
        if self._words is None and "torch.utils.data" in sys.modules:
            from multiprocessing.sharedctypes import RawArray

            with contextlib.suppress(OSError):  # a machine without /dev/shm and temporary files
                self._words = RawArray("q", _SLOTS * _WORDS)

    def set(self, epoch: int, *, state: bool = False) -> None:
        """Make `epoch` the one of the workers' next pass. state: a state was loaded, which workers that are there cannot know.

        Does nothing in a worker.
        """
        self.share()
        if self._words is None or this_worker() is not None:
            return
        slot = self._slot(os.getpid())
        self._words[slot + _SETS] += 1
        self._words[slot + _STATES] += state
        self._states = os.getpid(), self._words[slot + _STATES]
        self._words[slot + _WORD] = _packed(0, 0, epoch)

    def load(self, worker: DataLoaderWorker, epoch: int) -> None:
        """Make `epoch` the one of the pass that the workers begin now, as each of them finds it in a state of its own."""
        slot = self._slot_of_starter()
        self._words[slot + _WORD] = _packed(self._token(worker, slot), epoch, epoch)

    def begin(self, worker: DataLoaderWorker, epoch: int) -> int:
        """Return the epoch of a pass that a worker begins. epoch: that its copy of the dataset has for the next one."""
        slot = self._slot_of_starter()
        process, known = self._states
        if self._words[slot + _STATES] != (known if process == self._words[slot] else 0):
            raise UsageError(
                "load_state_dict: was called while workers of a DataLoader (persistent_workers=True) had copies of the dataset."
                " Call it before the first pass, or make the DataLoader anew."
            )
        token = self._token(worker, slot)
        if token != self._joined:
            self._joined, self._passes = token, 0
        word = self._words[slot + _WORD]
        latest, first, coming = _unpacked(word) if word else (0, 0, epoch)
        if token != latest:
            first = coming
        epoch = first + self._passes
        self._passes += 1
        self._words[slot + _WORD] = _packed(token, first, epoch + 1)
        return epoch

    def _slot_of_starter(self) -> int:
        """Return the slot of the process that started this worker."""
        parent = parent_process()
        if self._words is None or parent is None or parent.pid is None:
            raise UsageError(
                "DataLoader over PackedBatchDataset: its workers have no memory in common, to agree on the epoch."
                " Pass num_workers=0: the dataset has threads."
            )
        return self._slot(parent.pid)

    def _slot(self, process: int) -> int:
        """Return the index of a process's first word; a new slot is all zeros."""
        for k in range(process, process + _SLOTS):
            slot = k % _SLOTS * _WORDS
            if not self._words[slot]:
                self._words[slot] = process
            if self._words[slot] == process:
                return slot
        return process % _SLOTS * _WORDS

    def _token(self, worker: DataLoaderWorker, slot: int) -> int:
        """Return a hash, at least 1, of the workers' common seed and the number of calls of `set`."""
        return 1 + hash((worker.seed, self._words[slot + _SETS])) % ((1 << _TOKEN_BITS) - 1)


_SLOTS, _WORDS = 256, 4
_WORD, _SETS, _STATES = 1, 2, 3
_TOKEN_BITS, _EPOCH_BITS = 22, 20
_BEYOND = -1  # the word of an epoch that it has no room for


def _packed(token: int, first: int, coming: int) -> int:
    """Pack the three numbers into one word of 63 bits, never 0."""
    if coming >> _EPOCH_BITS:
        return _BEYOND
    return (((token << _EPOCH_BITS) + first << _EPOCH_BITS) + coming << 1) + 1


def _unpacked(word: int) -> tuple[int, int, int]:
    """Unpack a word: token, epoch of its first pass, next epoch. Raises UsageError for _BEYOND."""
    if word == _BEYOND:
        raise UsageError(
            f"DataLoader over PackedBatchDataset: its workers count epochs below {1 << _EPOCH_BITS:,}."
            " Pass num_workers=0: the dataset has threads."
        )
    below = (1 << _EPOCH_BITS) - 1
    return word >> 2 * _EPOCH_BITS + 1, word >> _EPOCH_BITS + 1 & below, word >> 1 & below
