"""Rank and world size of this process among those that train together."""

from __future__ import annotations

import os
import sys
import warnings
from copy import copy
from typing import Any, NamedTuple

from packer.arguments import as_whole
from packer.errors import UsageError
from packer.given_values import shown


class Ranks(NamedTuple):
    """Rank and world size of a process, and their source in words."""

    rank: int
    world_size: int
    source: str


def check_ranks(rank: int | None, world_size: int | None) -> Ranks | None:
    """Return the rank and world size that the user passed, None if neither. Raises UsageError."""
    if rank is None and world_size is None:
        return None
    size = as_whole(world_size, 1)
    number = None if size is None else as_whole(rank, 0, size - 1)
    if size is None or number is None:
        raise UsageError(
            f"rank={shown(rank)}, world_size={shown(world_size)}: are not two whole numbers, rank from 0 to "
            "world_size"
            " - 1. Pass both in that range, or neither."
        )
    return Ranks(number, size, "as given")


ALONE = "no process group, Ray Train or torchrun"
"""The source of the ranks of a process that trains alone."""


def found_ranks() -> Ranks:
    """Return rank and world size of this process now, 0 of 1 if it trains alone, and their source.

    In this order: torch.distributed, once it is initialised (by Lightning, Fabric, Accelerate or a torchrun
    script); a Ray Train worker's context; RANK and WORLD_SIZE of a process that torchrun started (it sets
    TORCHELASTIC_RUN_ID too), before anything is initialised. RANK and WORLD_SIZE alone are ignored: see
    `ignored_ranks`. Imports nothing.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Ranks(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")
    ray = sys.modules.get("ray.train")
    if ray is not None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Ray Train V1 warns outside of a worker, and returns 0 of 1
                context = ray.get_context()
                found = Ranks(context.get_world_rank(), context.get_world_size(), "Ray Train")
        except RuntimeError:  # V2 outside of a worker
            found = Ranks(0, 1, ALONE)
        if found.world_size > 1:
            return found
    named = _environment() if _by_torchrun() else None
    return Ranks(0, 1, ALONE) if named is None else Ranks(*named, "torchrun")


def ignored_ranks() -> tuple[int, int] | None:
    """Return the environment's RANK and WORLD_SIZE if ignored and of several processes, else None.

    Batch systems and old launchers set them for whole jobs: a script started by hand in such a shell, or the
    single process that evaluates, would silently read only a part of the rows.
    """
    named = None if _by_torchrun() else _environment()
    return named if named is not None and named[1] > 1 and found_ranks().source == ALONE else None


class TrainingRanks:
    """Rank and world size of a dataset, as passed or looked up at each call; warns of ignored ones."""

    def __init__(self, path: str, rank: int | None, world_size: int | None) -> None:
        """path: path of the pack, for messages. Raises UsageError for wrong ranks."""
        self._path, self._given = path, check_ranks(rank, world_size)
        self._warned = False

    def __str__(self) -> str:
        """Return rank, world size and their source."""
        if self._given is not None:
            return "rank {} of {}, {}".format(*self._given)
        rank, world_size, source = found_ranks()
        if (ignored := ignored_ranks()) is not None:
            return (
                f"rank 0 of 1: RANK={ignored[0]} and WORLD_SIZE={ignored[1]} are ignored, as there is"
                f" {source}"
            )
        found = "" if world_size == 1 else "found in "
        return f"rank {rank} of {world_size}{', ' if found else ': '}{found}{source}"

    def now(self) -> tuple[int, int]:
        """Return rank and world size."""
        return (self._given or found_ranks())[:2]

    def check_dispatch(self, dataset: object) -> None:
        """Raise UsageError if accelerate has one process read for all: it would read only its own share."""
        state = _gradient_state()
        if state is None or self.now()[1] == 1:
            return
        dispatcher = sys.modules["accelerate.data_loader"].DataLoaderDispatcher
        if any(
            isinstance(one, dispatcher) and one.dataset is dataset for one in state().dataloader_references
        ):
            raise UsageError(
                "accelerate's prepare(DataLoader(ds, ...)) over PackedBatchDataset: one process would read"
                " for all ranks, and only its own share. Iterate over the dataset itself, which needs no"
                " prepare, or make it with rank=0, world_size=1."
            )

    def carried(self) -> TrainingRanks:
        """Return a copy for pickling that keeps this process's ranks, which others cannot look up.

        If this process trains alone, the copy looks its ranks up: processes started for training have others.
        """
        kept = copy(self)
        if self._given is None and (ranks := self.now()) != (0, 1):
            kept._given = Ranks(*ranks, "found by the process that it came from")
        return kept

    def warn(self, rows: int, stacklevel: int) -> None:
        """Warn once if RANK and WORLD_SIZE are set but not used. rows: rows of the dataset."""
        if self._given is None and not self._warned and (ignored := ignored_ranks()) is not None:
            self._warned = True
            rank, world_size = ignored
            warnings.warn(
                f"{self._path}: the environment has RANK={rank} and WORLD_SIZE={world_size}, but there is"
                f" {ALONE}, so this process reads all {rows:,} rows. Pass rank={rank},"
                f" world_size={world_size} to read a share of them, or rank=0, world_size=1 for all.",
                stacklevel=stacklevel,
            )


def local_rank() -> int | None:
    """Return LOCAL_RANK, this process's number among torchrun's on this machine; None without torchrun."""
    try:
        return int(os.environ["LOCAL_RANK"]) if _by_torchrun() else None
    except (KeyError, ValueError):
        return None


def _by_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def _environment() -> tuple[int, int] | None:
    try:
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return None
    return (rank, world_size) if 0 <= rank < world_size else None


# Private members of accelerate's GradientState, by which its own loaders report their loops.
_HOOKS = ("_shared_state", "_add_dataloader", "_remove_dataloader", "dataloader_references", "initialized")


def _gradient_state() -> Any:
    """Return accelerate's GradientState in a process that accelerate trains, else None.

    Warns, and returns None, if this version of accelerate has no such hooks.
    """
    module = sys.modules.get("accelerate.state")
    state = getattr(module, "GradientState", None)
    if module is None or (state is not None and all(hasattr(state, name) for name in _HOOKS)):
        return state if state is not None and state._shared_state else None
    warnings.warn(
        f"accelerate {getattr(sys.modules.get('accelerate'), '__version__', '?')}: has no hooks for loops of"
        " others; gather_for_metrics does not cut off repeated rows. Pass ends='drop' or rank=0, world_size=1"
        " to evaluate, or install accelerate 1.0 or newer.",
        stacklevel=4,
    )
    return None


class AccelerateLoop:
    """A loop over a rank's batches, reported to accelerate from the first batch until `end`.

    ``gather_for_metrics`` cuts off the rows that were repeated to fill the last batches, and ``accumulate``
    makes a step there.

    end_of_dataloader: True at the last batch. remainder: rows in the last batches of all ranks without
    repeated ones, 0 if unknown.
    """

    end_of_dataloader: bool
    remainder: int

    def __init__(self, remainder: int) -> None:
        self.end_of_dataloader, self.remainder = False, remainder
        self._state: Any = sys.modules["accelerate.state"].GradientState()
        self._state._add_dataloader(self)

    @classmethod
    def begun(cls, ranks: tuple[int, int], remainder: int, uneven: bool) -> AccelerateLoop | None:
        """Return the loop of a process that accelerate trains; None for other processes, or other ranks.

        uneven: ranks may have unequal numbers of the remainder's rows. Warns if they do.
        """
        if _gradient_state() is None or ranks != found_ranks()[:2]:
            return None
        if uneven and remainder % ranks[1]:
            warnings.warn(
                f"ends='uneven': the {ranks[1]} ranks have unequal numbers of the last rows, and accelerate's"
                " gather_for_metrics fails, or waits for ever. Pass ends='even': repeated rows are cut off.",
                stacklevel=3,
            )
        return cls(remainder)

    def end(self) -> None:
        """Tell accelerate that the loop has ended."""
        if self._state.initialized:
            self._state._remove_dataloader(self)
