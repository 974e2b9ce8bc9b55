"""One array of several packs that are read as one, of which some rows come from elsewhere or are still being made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packer.format.header import Extent
from packer.format.joined_pack import JoinedPack
from packer.format.pack import Pack
from packer.orders.runs import Runs
from packer.read.gather import Bytes, ExtentArray, by_part, read_part
from packer.read.sharded_array import FEW_FILES, ShardedArray


class JoinedArray:
    """The arrays of the packs, each read by itself: rows of one may come in another way than those of the next. Thread-safe."""

    def __init__(self, pack: JoinedPack, array: str, extents: Sequence[Extent]) -> None:
        self._arrays = [open_array(member, array, own) for member, own in pack.by_member(extents)]
        rows = [sum(extent.rows for extent in own) for _, own in pack.by_member(extents)]
        self._firsts = np.cumsum([0, *rows])

    def read(self, runs: Runs, out: Bytes) -> None:
        """See ExtentArray."""
        for number, own, places in by_part(self._firsts, runs):
            read_part(self._arrays[number].read, own, places, out.reshape(runs.total, -1))

    def willneed(self, runs: Runs) -> None:
        """See ExtentArray."""
        for number, own, _ in by_part(self._firsts, runs):
            self._arrays[number].willneed(own)


def open_array(
    pack: Pack, array: str, extents: Sequence[Extent] | None = None
) -> ExtentArray | ShardedArray | JoinedArray:
    """Open an array of a pack; of packs whose rows all lie in local files as that of one.

    extents: where its elements lie, if they are not rows: the stored bytes of compressed blocks (see Arrival).
    """
    extents = pack.header.extents[array] if extents is None else extents
    if isinstance(pack, JoinedPack) and any(one.arrival(array) is not None for one in pack.shards):
        return JoinedArray(pack, array, extents)
    kind = ShardedArray if len({e.file for e in extents if e.rows}) > FEW_FILES else ExtentArray
    return kind(pack, extents, arrival=pack.arrival(array))
