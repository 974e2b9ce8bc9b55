"""The order that the arguments of a dataset mean; shuffle=True chooses by the pack alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.arguments import one_of
from packer.errors import UsageError
from packer.format.fields import Field
from packer.given_values import shown
from packer.orders.blocks import WINDOW_BYTES, Blocks
from packer.orders.epochs import ENDS, Context, RowOrder
from packer.orders.mixture import Mixture
from packer.orders.regions import Regions
from packer.orders.row_orders import BY_NAME, Rows, Sequential
from packer.orders.runs import Subset, cut, one_run
from packer.packs.pack import Pack
from packer.packs.remote_pack import RemotePack
from packer.read.array_store import PackStore

_CHOSEN = {name: make for name, make in BY_NAME.items() if name != Sequential.name}
# Smaller rows are read in runs. Reading rows one by one from a cold disk gave 0.1 of the rate of 1 MiB runs
# at 4 KiB, 0.7 at 16 KiB and all of it at 64 KiB (4 threads, a virtual disk); in memory, a row of 112 bytes
# costs more to locate than to copy.
SMALL_BYTES = 16 << 10
# A larger table, read again each epoch, is not expected to stay in memory.
LARGE_BYTES = 1 << 30
_RAGGED_BYTES = 64 << 10  # assumed for rows of any length in a pack that is being filled
# Blocks of a window for each row of a batch, if a block holds one class: class counts of batches then vary
# 1 + 1 / 32 times as much as in a uniform shuffle.
MIXING_BLOCKS = 32


def context(
    reader: PackStore, subset: Subset, global_batch: int, weights: Sequence[float] = (), seed: int = 0
) -> Context:
    """Return the properties of the pack that an order is bound to. weights: of its members, if any."""
    pack, fields = reader.pack, reader.fields

    def labels(name: str) -> NDArray[np.int64]:
        found = pack.header.find(name)
        if found is None or found.shape != () or np.dtype(found.dtype).kind not in "iu":
            raise UsageError(
                f"{pack.path}: has no field {name!r} of one whole number a row. Pass another field."
            )
        return PackStore(pack, (), subset).column(name).astype(np.int64)

    members = (
        [
            replace(_facts(member, fields, places, global_batch), weight=weight)
            for weight, member, places in zip(weights, pack.members, _places(pack, subset), strict=True)
        ]
        if weights
        else []
    )
    filled = pack.filled and pack.header.seed is not None and not pack.members and subset.ascending
    return replace(
        _facts(pack, fields, subset, global_batch),
        filled=filled,
        seed=seed,
        labels=labels,
        pack_rows=pack.rows,
        members=tuple(members),
        sizes=None if weights else partial(_sizes, pack, subset),
    )


def _sizes(pack: Pack, subset: Subset) -> NDArray[np.integer[Any]]:
    """Return height and width of each row's image, [n, 2]. Raises UsageError if the pack lacks them."""
    known = {f.name: f for f in pack.fields}
    if (image := known.get("image")) is not None and not image.loaded.ragged:
        raise UsageError(
            f"Buckets: images of {pack.path} have one size, so there is nothing to sort by. Pass another"
            " order."
        )
    if not {"height", "width"} <= known.keys():
        raise UsageError(
            f"Buckets: {pack.path} lacks the fields 'height' and 'width', which it needs. Convert the "
            "images again with size='max=65500', which keeps all of their pixels."
        )
    store = PackStore(pack, (), subset)
    return np.stack([store.column(name) for name in ("height", "width")], axis=1)


def _facts(pack: Pack, fields: Sequence[Field], subset: Subset, global_batch: int) -> Context:
    """Return the properties of a pack that shuffle=True chooses an order by."""
    stored = sum(extent.nbytes for f in fields for name in f.arrays for extent in pack.header.extents[name])
    if pack.filled:  # the same before and after all rows are made
        stored = pack.rows * sum(_RAGGED_BYTES if f.loaded.ragged else f.loaded.row_bytes for f in fields)
    coded = any(f.compressed for f in fields)
    return Context(
        subset,
        row_bytes=stored // max(1, pack.rows),
        block_rows=pack.header.block_rows,
        global_batch=global_batch,
        # A list of packs keeps rows of one pack together, so it is no shuffled pack. Yet blocks that are
        # decoded as a unit cannot be read row by row.
        shuffled=pack.header.seed is not None and (coded or len(pack.members) < 2),
        coded=coded,
        remote=any(isinstance(one, RemotePack) for one in pack.packs),
    )


def _places(pack: Pack, subset: Subset) -> list[Subset]:
    """Return, for each member of a joined pack, its rows in a subset, numbered 0..subset.rows-1."""
    firsts = np.cumsum([0, *(member.rows for member in pack.members)])
    runs, owners = cut(firsts, subset.place(one_run(0, subset.rows)))
    ends = np.cumsum(runs.lengths)
    spans = np.stack([ends - runs.lengths, ends], axis=1)
    return [Subset(spans[owners == number]) for number in range(len(pack.members))]


def parse_order(order: str | RowOrder | None, shuffle: bool, about: Context) -> RowOrder:
    """Return the order that the arguments of a dataset mean, bound.

    order: a name, an order, or None. None means "sequential"; with shuffle the order that suits the pack
    (`shuffled_order`); for packs with weights a mixture of the orders of each.
    Raises UsageError for an unknown name, or shuffle=True with "sequential".
    """
    if about.members:
        mixture = order if isinstance(order, Mixture) else Mixture(order)
        return mixture.bind_packs(about, lambda member: parse_order(mixture.order, shuffle, member))
    if isinstance(order, Mixture):
        raise UsageError(
            "order=Mixture(...): the dataset has no packs with weights. Pass a list such as [('a.h5', 0.7),"
            " ('b.h5', 0.3)], or another order."
        )
    if order is None:
        return (
            (shuffled_order(about) if shuffle else Sequential())
            .bind(about)
            .having(chosen=_CHOSEN if shuffle else {}, stored_first=shuffle and about.filled)
        )
    if isinstance(order, str) and order in BY_NAME:
        order = BY_NAME[order]()
    if isinstance(order, type) or not isinstance(order, RowOrder):
        raise UsageError(
            f"order={shown(order)}: is not one of {', '.join(map(repr, BY_NAME))}. Pass one of them, an "
            "order such"
            " as packer.Blocks(window='1GB'), or shuffle=True, which chooses by the pack."
        )
    if shuffle and order.fixed:
        raise UsageError(
            f"shuffle=True with order={order.name!r}: they contradict each other. Pass one of them."
        )
    return order.bind(about)


def shuffled_order(about: Context) -> RowOrder:
    """Return the order for shuffle=True: as good as a uniform shuffle.

    The pack alone decides, so the order is the same on every machine. Epoch 0 of a shuffled pack that
    fill_pack returned takes the pack's own order, a permutation, whether the pack is complete or not.
    A pack that was shuffled when it was written gets "blocks": they read a disk as fast as slices, cost no
    more in memory, and separate batch-mates each epoch, which slices do not. Compressed blocks are used as a
    unit, each decoded once. A pack at a URL gets "regions", so that each rank fetches only its own part.

    In any other pack neighbours are alike, often of one class, and a window would need some twenty blocks for
    each row of a batch, so every row is drawn by itself. Small rows of a large pack are read from a disk in
    short runs, in a window of as many runs as needed.
    """
    if about.remote:
        return Regions()
    if about.shuffled:
        return Blocks()
    if about.coded or about.row_bytes >= SMALL_BYTES or about.subset.rows * about.row_bytes <= LARGE_BYTES:
        return Rows()
    block = SMALL_BYTES // max(1, about.row_bytes)
    return Blocks(max(WINDOW_BYTES // about.row_bytes, MIXING_BLOCKS * about.global_batch * block), block)


def parse_ends(ends: str | None, drop_last: bool, *, ordered: bool) -> str:
    """Return one of ENDS.

    Default: "even"; "uneven" if `ordered`, so that a sequential pass repeats no row.
    """
    if ends is None:
        return "drop" if drop_last else "uneven" if ordered else "even"
    one_of("ends", ends, ENDS)
    if drop_last and ends != "drop":
        raise UsageError(f"drop_last=True with ends={ends!r}: they contradict each other. Pass one of them.")
    return ends
