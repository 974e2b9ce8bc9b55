"""Which order the arguments of a dataset mean, and which is chosen where none is given: by the pack, by size and by the free memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import machine
from packer.errors import UsageError
from packer.format.file_systems import remote_file_system
from packer.format.header import Field
from packer.format.pack import Pack
from packer.format.remote_pack import RemotePack
from packer.orders.epochs import Context, Member, RowOrder
from packer.orders.mixture import Mixture
from packer.orders.regions import Regions
from packer.orders.row_orders import BY_NAME, WINDOW_BYTES, Blocks, Rows, Sequential
from packer.orders.runs import Subset, one_run
from packer.read.gather import cut
from packer.read.row_reader import RowReader
from packer.read.row_selection import read_column
from packer.sentence import Option
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
# Of packs without weights that were all shuffled when they were made, so many are dealt evenly to batches, each in an order of its own.
# Each takes some 10 us of a batch.
DEALT_PACKS = 16


def context(
    reader: RowReader, subset: Subset, global_batch: int, weights: Sequence[float] = (), ranks: int = 1
) -> Context:
    """Return the properties of the pack and the machine that an order is bound to.

    weights: of its members, if they have any. ranks: that share a global batch.
    """
    pack, fields = reader.pack, reader.fields

    def labels(name: str) -> NDArray[np.int64]:
        found = next((f for f in pack.fields if f.name == name), None)
        if found is None or found.shape != () or np.dtype(found.dtype).kind not in "iu":
            raise UsageError(
                f"{pack.path}: has no field {name!r} of one whole number a row. Pass another field."
            )
        return read_column(pack, name, subset).astype(np.int64)

    memory = machine.available_memory()
    about = _facts(pack, fields, subset.rows, global_batch, memory)
    members: list[Member] = []
    if weights or 1 < len(pack.members) <= DEALT_PACKS:
        for number, (member, places) in enumerate(zip(pack.members, _places(pack, subset), strict=True)):
            own = memory * places.rows // max(1, subset.rows)
            facts = _facts(member, fields, places.rows, global_batch, own)
            members.append(Member(weights[number] if weights else places.rows, places, facts))
        members = [member for member in members if weights or member.places.rows]
    about = replace(about, labels=labels, pack_rows=pack.rows, place=subset.place, ranks=ranks)
    if not weights:
        about = replace(about, sizes=partial(_sizes, pack, subset))
    return replace(about, members=tuple(members), weighted=bool(weights))


def _sizes(pack: Pack, subset: Subset) -> NDArray[np.integer[Any]]:
    """Return height and width of each row's image, [n, 2]. Raises UsageError if the pack does not hold them."""
    known = {f.name: f for f in pack.fields}
    if (image := known.get("image")) is not None and not image.loaded.ragged:
        raise UsageError(
            f"Buckets: images of {pack.path} have one size, so there is nothing to sort by. Pass another order."
        )
    if not {"height", "width"} <= known.keys():
        raise UsageError(
            f"Buckets: {pack.path} has no fields 'height' and 'width', which it needs. Convert the images again with a ",
            Option("size", "max=65500"),
            ", which keeps all of their pixels.",
        )
    return np.stack([read_column(pack, name, subset) for name in ("height", "width")], axis=1)


def _facts(pack: Pack, fields: Sequence[Field], n: int, global_batch: int, memory: int) -> Context:
    """Return what an order of n rows of a pack is chosen by. memory: bytes that they may take."""
    stored = sum(
        extent.nbytes
        for part in pack.parts
        for f in fields
        for name in f.arrays
        for extent in part.header.extents[name]
    )
    return Context(
        n=n,
        row_bytes=stored // max(1, pack.rows),
        block_rows=pack.header.block_rows,
        global_batch=global_batch,
        # Rows of a pack joined of several lie as each of these has them: neighbours are of one pack.
        shuffled=pack.header.seed is not None and len(pack.members) < 2,
        coded=any(f.compressed for f in fields),
        medium=_medium(pack),
        memory_bytes=memory,
    )


def _medium(pack: Pack) -> str:
    """Return where the rows of a pack come from: see Context."""
    packs = pack.members or (pack,)
    if any(isinstance(one, RemotePack) for one in packs):
        return "remote"
    return "network" if any(remote_file_system(one.path) for one in packs) else "disk"


def _places(pack: Pack, subset: Subset) -> list[Subset]:
    """Return, for each member of a joined pack, its rows of a subset as numbers 0..subset.rows-1."""
    firsts = np.cumsum([0, *(member.rows for member in pack.members)])
    runs, owners = cut(firsts, subset.place(one_run(0, subset.rows)))
    ends = np.cumsum(runs.lengths)
    spans = np.stack([ends - runs.lengths, ends], axis=1)
    return [Subset(spans[owners == number]) for number in range(len(pack.members))]


def parse_order(order: str | RowOrder | None, shuffle: bool, about: Context) -> tuple[RowOrder, str]:
    """Return the order that the arguments of a dataset mean, bound, and a sentence that says why if it was chosen here, else "".

    order: a name, "auto", an order, or None: "sequential", or with shuffle what the pack alone decides (`shuffled_order`); of packs that
    have weights, the order of each.
    Raises UsageError for an unknown name, or shuffle=True with "sequential".
    """
    dealt = bool(about.members) and all(member.about.shuffled for member in about.members)
    if about.weighted or isinstance(order, Mixture) or (dealt and chosen_here(order, shuffle)):
        return _mixture(order, shuffle, about)
    if order is None:
        return (shuffled_order(about) if shuffle else Sequential()).bind(about), ""
    if order == AUTO:
        chosen, why = choose_order(about)
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


def _mixture(order: str | RowOrder | None, shuffle: bool, about: Context) -> tuple[Mixture, str]:
    """Return the mixture of packs that have weights, each in the order that the arguments mean for it; see parse_order."""
    mixture = order if isinstance(order, Mixture) else Mixture(order)
    if not about.weighted and isinstance(order, Mixture):
        raise UsageError(
            "order=Mixture(...): the dataset has no packs with weights. Pass a list such as [('a.h5', 0.7), ('b.h5', 0.3)],"
            " or another order."
        )
    whys: list[str] = []

    def choose(member: Context) -> RowOrder:
        chosen, why = parse_order(mixture.order, shuffle, member)
        whys.append(why)
        return chosen

    bound = mixture.of(about.members, about.global_batch, choose)
    return bound, " ".join(f"Pack {number + 1}: {why}" for number, why in enumerate(whys) if why)


def chosen_here(order: str | RowOrder | None, shuffle: bool) -> bool:
    """Return True if the arguments of a dataset leave the choice of an order to `parse_order`."""
    own = order.order if isinstance(order, Mixture) else order
    return own == AUTO or (own is None and shuffle)


def order_by_pack(order: str | RowOrder | None, about: Context) -> RowOrder | None:
    """Return the order that several ranks take instead of "auto", which looks at the machine; None for any other order."""
    if isinstance(order, Mixture) and order.order == AUTO:
        return parse_order(replace(order, order=None), True, about)[0]
    return parse_order(None, True, about)[0] if order == AUTO else None


def resumed_order(bound: RowOrder, record: Mapping[str, Any], *, chosen: bool) -> RowOrder:
    """Return the order to go on with after a state was loaded.

    bound: this dataset's. record: of the state's order. chosen: whether bound was chosen here, by order="auto" or by shuffle
    without an order: then any order that is chosen so is taken from the state, since another machine may choose another.
    Raises UsageError if the state has an order that this dataset cannot have.
    """
    name = record.get("name") if isinstance(record, Mapping) else None
    if isinstance(bound, Mixture):
        return bound.resumed(record, partial(resumed_order, chosen=chosen))
    if chosen and isinstance(name, str) and name in BY_NAME and not BY_NAME[name]().fixed:
        return BY_NAME[name]().resumed(record)
    return bound.resumed(record)


def shuffled_order(about: Context) -> RowOrder:
    """Return the order that shuffle=True means: as good as a uniform shuffle, on every machine the same, by the pack alone.

    A pack that was shuffled when it was made needs blocks: they read a disk as fast as slices, cost no more in memory, and
    batch-mates part each epoch, which those of a slice do not. Where rows are compressed, whole blocks, each decoded once. A pack
    at a URL is read in regions, so that each rank fetches its own part of it alone.

    In any other pack neighbours are alike, often of one class, and a window would have to hold some twenty blocks for each row
    of a batch: that takes every row by itself. Small rows of a large pack are read from a disk in short runs then, in a
    window of as many as it takes.
    """
    if about.medium == "remote":
        return Regions()
    if about.shuffled:
        return Blocks(whole=about.coded)
    if about.coded or about.row_bytes >= SMALL_BYTES or about.n * about.row_bytes <= LARGE_BYTES:
        return Rows()
    block = SMALL_BYTES // max(1, about.row_bytes)
    return Blocks(max(WINDOW_BYTES // about.row_bytes, MIXING_BLOCKS * about.global_batch * block), block)


def choose_order(about: Context) -> tuple[RowOrder, str]:
    """Return the best shuffle that rows can be read in at full speed, and a sentence that says why.

    "rows" where all stay in memory after the first epoch and are neither small nor compressed in blocks, unless they come
    from elsewhere; else what shuffle=True means (`shuffled_order`). Depends on this machine's memory: a resumed epoch takes its order
    from the state.
    """
    nbytes, memory = size(about.n * about.row_bytes), size(about.memory_bytes)
    made = f"the pack was {'' if about.shuffled else 'not '}shuffled when it was made"
    rows = f"rows of {size(about.row_bytes)}"
    resident = about.medium == "memory" or about.n * about.row_bytes <= CACHED_SHARE * about.memory_bytes
    stay = f"{nbytes} stay in {memory} of memory" if about.memory_bytes else f"{nbytes} stay in memory"
    order = shuffled_order(about)
    if isinstance(order, Regions):
        why = f"{nbytes} are fetched from elsewhere, each rank its own part of them alone"
    elif isinstance(order, Rows):
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
