"""The order that an argument means, and which one to take where none is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packer.errors import UsageError
from packer.orders.row_orders import BY_NAME, WINDOW_BYTES, Blocks, Context, RowOrder, Rows, Sequential
from packer.units import size

AUTO = "auto"
# Smaller rows are read in runs. Of rows read one by one from a cold disk came 0.1 of what runs of 1 MiB gave at 4 KiB, 0.7 at
# 16 KiB and all of it at 64 KiB (4 threads, a virtual disk); and in memory a row of 112 bytes costs more to find than to copy.
SMALL_BYTES = 16 << 10
# A table above this is not expected in memory where it is read anew each epoch.
LARGE_BYTES = 1 << 30
# Blocks of a window for each row of a batch, where a block holds one class: the class counts of batches vary 1 + 1 / 32 times as much
# as in a uniform shuffle.
MIXING_BLOCKS = 32
# Of the memory at hand: the rest is for batches, the model and the epochs' other reads.
CACHED_SHARE = 0.7


def parse(order: str | RowOrder | None, shuffle: bool, about: Context) -> tuple[RowOrder, str]:
    """Return the order that the arguments of a dataset mean, bound, and a sentence that says why if it was chosen here, else "".

    order: a name, "auto", an order, or None: "sequential", or with shuffle what the pack alone decides (`shuffled`).
    Raises UsageError for an unknown name, or shuffle=True with "sequential".
    """
    if order is None:
        return (shuffled(about) if shuffle else Sequential()).bind(about), ""
    if order == AUTO:
        chosen, why = choose(about)
        return chosen.bind(about), why
    if isinstance(order, str) and order in BY_NAME:
        order = BY_NAME[order]()
    if isinstance(order, type) or not isinstance(order, RowOrder):
        raise UsageError(
            f"order={order!r}: is not one of {', '.join(map(repr, (*BY_NAME, AUTO)))}. Pass one of them,"
            " or an order such as packer.Blocks(window='1GB')."
        )
    if shuffle and order.fixed:
        raise UsageError(
            f"shuffle=True with order={order.name!r}: they contradict each other. Pass one of them."
        )
    return order.bind(about), ""


def resume(bound: RowOrder, record: Mapping[str, Any], *, chosen: bool) -> RowOrder:
    """Return the order to go on with after a state was loaded.

    bound: this dataset's. record: of the state's order. chosen: whether bound was chosen here, by order="auto" or by shuffle
    without an order: then any order that is chosen so is taken from the state, since another machine may choose another.
    Raises UsageError if the state has an order that this dataset cannot have.
    """
    name = record.get("name") if isinstance(record, Mapping) else None
    if chosen and isinstance(name, str) and name in BY_NAME and not BY_NAME[name]().fixed:
        return BY_NAME[name]().resumed(record)
    return bound.resumed(record)


def shuffled(about: Context) -> RowOrder:
    """Return the order that shuffle=True means: as good as a uniform shuffle, on every machine the same, by the pack alone.

    A pack that was shuffled when it was made needs blocks: they read a disk as fast as slices, cost no more in memory, and
    batch-mates part each epoch, which those of a slice do not. Where rows are compressed, whole blocks, each decoded once.

    In any other pack neighbours are alike, often of one class, and a window would have to hold some twenty blocks for each row
    of a batch: that takes every row by itself. Small rows of a large pack are read from a disk in short runs then, in a
    window of as many as it takes.
    """
    if about.shuffled:
        return Blocks(whole=about.coded)
    if about.coded or about.row_bytes >= SMALL_BYTES or about.n * about.row_bytes <= LARGE_BYTES:
        return Rows()
    block = SMALL_BYTES // max(1, about.row_bytes)
    return Blocks(max(WINDOW_BYTES // about.row_bytes, MIXING_BLOCKS * about.global_batch * block), block)


def choose(about: Context) -> tuple[RowOrder, str]:
    """Return the best shuffle that rows can be read in at full speed, and a sentence that says why.

    "rows" where all stay in memory after the first epoch and are neither small nor compressed in blocks; else what
    shuffle=True means (`shuffled`). Depends on this machine's memory: a resumed epoch takes its order from the state.
    """
    nbytes, memory = size(about.n * about.row_bytes), size(about.memory_bytes)
    made = f"the pack was {'' if about.shuffled else 'not '}shuffled when it was made"
    rows = f"rows of {size(about.row_bytes)}"
    resident = about.medium == "memory" or about.n * about.row_bytes <= CACHED_SHARE * about.memory_bytes
    stay = f"{nbytes} stay in {memory} of memory" if about.memory_bytes else f"{nbytes} stay in memory"
    order = shuffled(about)
    if isinstance(order, Rows):
        why = f"{made}, so neighbours may be alike, and each row is drawn by itself"
    elif about.coded:
        why = f"rows are compressed in blocks of {about.block_rows:,}, which are decoded whole, and {made}"
    elif not resident:
        room = f"{memory} of memory" if about.memory_bytes else "an unknown amount of memory"
        source = "network file system" if about.medium == "network" else "disk"
        why = f"{nbytes} do not stay in {room}, so the {source} is read in long runs, and {made}"
    elif about.row_bytes >= SMALL_BYTES:
        order, why = Rows(), f"{stay}, where {rows} in any order cost no more than neighbours"
    else:
        why = f"{rows} come faster in runs than one by one, and {made}"
    return order, f"order={order.name!r}: {why}."
