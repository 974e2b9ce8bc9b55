"""torch's DataLoader(ds, batch_size=None) around a dataset of batches: its passes are epochs, with any number of workers.

To torch the dataset is an IterableDataset (`register`), so that a DataLoader iterates over it, and frameworks do not shard it
again. Of W workers the k-th reads the batches k, k + W, ...: the DataLoader asks them in turn, so the sequence stays the same.
Workers are copies of the dataset, new ones for each pass or (persistent_workers) the same ones; which epoch a pass is they agree
on through a few bytes of shared memory (`Passes`), which the dataset that they came from sees, too.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from multiprocessing import context, parent_process
from types import FrameType
from typing import Any, NamedTuple

from packer.errors import UsageError


class DataLoaderWorker(NamedTuple):
    """A DataLoader's worker: this process. number: 0..workers-1. seed: the same in all workers that were started together."""

    number: int
    workers: int
    seed: int


def register(dataset: type, *, load: bool) -> None:
    """Make torch's DataLoader iterate over datasets of this class. load: import torch for it; else nothing is done before it is."""
    data = importlib.import_module("torch.utils.data") if load else sys.modules.get("torch.utils.data")
    if data is not None:
        data.IterableDataset.register(dataset)


def this_worker() -> DataLoaderWorker | None:
    """Return the DataLoader's worker that this process is, None if it is none. Imports nothing."""
    data = sys.modules.get("torch.utils.data")
    found: Any = None if data is None else data.get_worker_info()
    return None if found is None else DataLoaderWorker(found.id, found.num_workers, found.seed - found.id)


class Passes:
    """The epochs that passes of a DataLoader's workers are: a few words of memory that its process shares with them.

    One word holds all that workers have to agree on, so that it is read and written at once, without a lock: who came last
    (a hash of the seed that is common to the workers of a pass), the epoch of their first pass, and the epoch that comes next.
    Processes that were started to train (ranks) inherit the memory, too; each has words of its own in it.
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
        """The slot of the process that started this worker."""
        parent = parent_process()
        if self._words is None or parent is None or parent.pid is None:
            raise UsageError(
                "DataLoader over PackedBatchDataset: its workers have no memory in common, to agree on the epoch."
                " Pass num_workers=0: the dataset has threads."
            )
        return self._slot(parent.pid)

    def _slot(self, process: int) -> int:
        """Where a process's words begin; they are zeros at first."""
        for k in range(process, process + _SLOTS):
            slot = k % _SLOTS * _WORDS
            if not self._words[slot]:
                self._words[slot] = process
            if self._words[slot] == process:
                return slot
        return process % _SLOTS * _WORDS

    def _token(self, worker: DataLoaderWorker, slot: int) -> int:
        """A number from 1 that tells apart workers started together, and what they do before and after a `set`."""
        return 1 + hash((worker.seed, self._words[slot + _SETS])) % ((1 << _TOKEN_BITS) - 1)


_SLOTS, _WORDS = 256, 4
_WORD, _SETS, _STATES = 1, 2, 3
_TOKEN_BITS, _EPOCH_BITS = 22, 20
_BEYOND = -1  # the word of an epoch that it has no room for


def _packed(token: int, first: int, coming: int) -> int:
    """A word of 63 bits, not 0."""
    if coming >> _EPOCH_BITS:
        return _BEYOND
    return (((token << _EPOCH_BITS) + first << _EPOCH_BITS) + coming << 1) + 1


def _unpacked(word: int) -> tuple[int, int, int]:
    """Token, epoch of its first pass, epoch that comes next."""
    if word == _BEYOND:
        raise UsageError(
            f"DataLoader over PackedBatchDataset: its workers count epochs below {1 << _EPOCH_BITS:,}."
            " Pass num_workers=0: the dataset has threads."
        )
    below = (1 << _EPOCH_BITS) - 1
    return word >> 2 * _EPOCH_BITS + 1, word >> _EPOCH_BITS + 1 & below, word >> 1 & below


def shared_out_by_accelerate(frame: FrameType | None) -> bool:
    """True if accelerate's DataLoaderDispatcher asks, further up the stack: one process then reads for all of them.

    It takes as many batches as there are processes, joins them, and hands a part to each.
    """
    accelerate = sys.modules.get("accelerate.data_loader")
    while accelerate is not None and frame is not None:
        if frame.f_code.co_filename == accelerate.__file__ and isinstance(
            frame.f_locals.get("self"), accelerate.DataLoaderDispatcher
        ):
            return True
        frame = frame.f_back
    return False
