"""Who am I among the processes that train together?"""

from __future__ import annotations

import operator
import os
import sys
import warnings

from packer.errors import UsageError


def check_ranks(rank: int | None, world_size: int | None) -> tuple[int, int] | None:
    """Rank and world size as a user gave them; None if neither. Raises UsageError."""
    if (rank is None) != (world_size is None):
        raise UsageError("rank and world_size: only one is given; both or none are allowed. Pass both.")
    if rank is None or world_size is None:
        return None
    try:
        rank, world_size = operator.index(rank), operator.index(world_size)
    except TypeError:
        raise UsageError(
            f"rank={rank!r}, world_size={world_size!r}: are not both whole numbers. Pass such."
        ) from None
    if not 0 <= rank < world_size:
        raise UsageError(
            f"rank={rank}: is not within world_size={world_size}; 0 to {world_size - 1} are allowed."
        )
    return rank, world_size


def present_ranks() -> tuple[int, int]:
    """Rank and world size of this process now, 0 of 1 if it trains alone.

    In this order: torch.distributed, once it is initialised (Lightning, Fabric, Accelerate and torchrun scripts do that); a Ray
    Train worker's context; RANK and WORLD_SIZE, which torchrun sets before anything is initialised. Imports nothing.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    ray = sys.modules.get("ray.train")
    if ray is not None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Ray Train V1 outside of a worker warns, and says 0 of 1
                context = ray.get_context()
                found = context.get_world_rank(), context.get_world_size()
        except RuntimeError:  # V2 outside of a worker
            found = 0, 1
        if found[1] > 1:
            return found
    try:
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return 0, 1
    return (rank, world_size) if 0 <= rank < world_size else (0, 1)
