"""Orders: which rows stand where in an epoch, and which of them go to which rank.

An order is a sequence of all n rows, a pure function of (n, seed, epoch, slice length), computed where it is
asked for and never stored. It knows nothing of ranks: `span` cuts the sequence into global batches and these
into the ranks' shares, so the sequence is the same on one GPU and on sixty-four.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from packer import randomness
from packer.errors import UsageError
from packer.orders.runs import Runs


def runs(order: str, n: int, *, seed: int, epoch: int, slice_rows: int, start: int, stop: int) -> Runs:
    """Return the rows at the positions start..stop-1 of an epoch's sequence.

    order: one of ORDERS. n: rows in the pack, 0 <= n <= 2**62.
    seed, epoch: any integers; each pair gives another sequence, but for "sequential".
    slice_rows: rows in a slice, at least 1; only "slices" looks at it. 0 <= start <= stop <= n.
    Raises UsageError for an argument out of range.
    """
    if order not in ORDERS:
        raise UsageError(f"order: {order!r} is not one; {', '.join(ORDERS)} are. Pass one of them.")
    if slice_rows < 1:
        raise UsageError(f"slice_rows: it is {slice_rows}; 1 or more is allowed. Pass the global batch size.")
    if not 0 <= start <= stop <= n:
        raise UsageError(
            f"order: positions {start:,} to {stop:,} were asked for; the epoch has {n:,} rows. "
            "Ask for positions inside it."
        )
    if start == stop:
        return Runs(np.empty(0, np.int64), np.empty(0, np.int64))
    return ORDERS[order](n, seed, epoch, slice_rows, start, stop)


def sequential(n: int, seed: int, epoch: int, slice_rows: int, start: int, stop: int) -> Runs:
    """Rows as they lie in the pack: the fastest read, one run a batch, and the same batches in every epoch.

    For evaluation and inference. Training on it sees the same neighbours in the same batch for ever, which
    "slices" avoids in part and "rows" in full.
    """
    return Runs(np.array([start]), np.array([stop - start]))


def slices(n: int, seed: int, epoch: int, slice_rows: int, start: int, stop: int) -> Runs:
    """Contiguous slices in a random order: reads like "sequential", shuffles well a pack shuffled when made.

    The rows form a ring, which is cut at a random place, then every slice_rows; the slices are permuted, but
    a shorter one comes last. So batches of slice_rows start where slices start (one run a batch, two where
    the ring closes), every epoch cuts elsewhere, and dropping the last batch drops other rows each time.
    Rows next to each other in the pack do meet in most epochs: where that matters, take "rows", which
    costs one read a row instead of one a batch.

    Measured: 13 us for a batch that is one slice, 1 us for each further slice.
    """
    key = randomness.key(seed, epoch, "slices")
    rotation = key % n
    whole = n // slice_rows
    first, last = start // slice_rows, (stop - 1) // slice_rows
    numbers: list[int] = []
    if first < whole:
        numbers = randomness.permute(np.arange(first, min(last + 1, whole)), whole, key).tolist()
    if last == whole:
        numbers.append(whole)
    starts: list[int] = []
    lengths: list[int] = []
    for slice_start, number in zip(range(first * slice_rows, stop, slice_rows), numbers, strict=True):
        begin, end = max(start, slice_start), min(stop, slice_start + slice_rows)
        row = (number * slice_rows + begin - slice_start + rotation) % n
        length = min(end - begin, n - row)
        beyond = end - begin - length
        if starts and row == starts[-1] + lengths[-1]:
            lengths[-1] += length
        else:
            starts.append(row)
            lengths.append(length)
        if beyond:
            starts.append(0)
            lengths.append(beyond)
    return Runs(np.array(starts), np.array(lengths))


def rows(n: int, seed: int, epoch: int, slice_rows: int, start: int, stop: int) -> Runs:
    """A full permutation of the rows: the best shuffle, at one read a row.

    As fast as the others where rows are resident (RAM, page cache, GPU); from a cold disk "slices" reads
    several times faster. Computed position by position, so a billion rows need no memory.
    """
    numbers = randomness.permute(np.arange(start, stop), n, randomness.key(seed, epoch, "rows"))
    heads = np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1] + 1)))
    return Runs(numbers[heads], np.diff(heads, append=len(numbers)))


ORDERS: dict[str, Callable[[int, int, int, int, int, int], Runs]] = {
    "sequential": sequential,
    "slices": slices,
    "rows": rows,
}


def steps(n: int, batch_size: int, world_size: int, rank: int, drop_last: bool) -> int:
    """Count the batches that a rank gets from an epoch of n rows.

    batch_size: rows a rank and batch, at least 1. 0 <= rank < world_size.
    drop_last: leave out a last global batch of fewer than batch_size * world_size rows.

    Notes: without drop_last the last global batch may have fewer rows than there are ranks; the ranks that
    would get none of it get no such batch, so the ranks' counts differ by one. Ranks that wait for each other
    at every step (DistributedDataParallel) want drop_last.
    """
    full, rest = divmod(n, batch_size * world_size)
    # `rank < rest`: an even split in rank order hands the first `rest` ranks a row before any gets two.
    return full + (not drop_last and rank < rest)


def span(step: int, n: int, batch_size: int, world_size: int, rank: int) -> tuple[int, int]:
    """Return the positions (start, stop) of the sequence that are a rank's batch number `step`.

    Global batch `step` holds the next batch_size * world_size positions, rank after rank. A last, shorter one
    is split as evenly as possible, the first ranks getting the odd rows.
    Raises UsageError if the rank has no such batch.
    """
    count = steps(n, batch_size, world_size, rank, drop_last=False)
    if not 0 <= step < count:
        raise UsageError(
            f"batch {step:,}: rank {rank} of {world_size} has {count:,} batches; "
            "numbers from 0 to one less are allowed. Ask for one of these."
        )
    whole = batch_size * world_size
    begin = step * whole
    share, odd = divmod(min(whole, n - begin), world_size)
    start = begin + rank * share + min(rank, odd)
    return start, start + share + (rank < odd)
