"""Our side of every comparison: batches of a pack, and the fields and files that they come from."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from packer.augment import Transform
from packer.format.header import Field
from packer.format.pack import Pack
from packer.load.batch_dataset import PackedBatchDataset

ORDERS = ("sequential", "slices", "blocks", "rows")


class Packed:
    """Our loader in one order, made once and measured again and again, as a training run uses it."""

    def __init__(
        self,
        pack: Pack,
        batch_size: int,
        order: str,
        *,
        threads: int,
        augment: Sequence[Transform] | None = None,
        fields: Sequence[str] | None = None,
    ) -> None:
        self.batches = PackedBatchDataset(
            pack,
            batch_size,
            order=order,
            augment=augment,
            fields=fields,
            subset=slice(None),  # every row, whatever the splits
            threads=threads,
            placement="disk",
        )
        self._warm = False

    def rate(self, seconds: float) -> float:
        """Rows a second until the time is over, the beginnings of epochs included."""
        if not self._warm:  # the first epoch pays once for threads, slots and mapped pages
            deque(self.batches, maxlen=0)
            self._warm = True
        rows, started = 0, time.perf_counter()
        while True:
            for batch in self.batches:
                rows += len(batch[0])
                if time.perf_counter() - started >= seconds:
                    return rows / (time.perf_counter() - started)


def first_epoch(make: Callable[[], Packed], seconds: float) -> float:
    """Rows a second of a new loader's first epoch, as far as the time allows."""
    with make().batches as batches:
        rows, started = 0, time.perf_counter()
        for batch in batches:
            rows += len(batch[0])
            if time.perf_counter() - started >= seconds:
                break
        return rows / (time.perf_counter() - started)


def fixed_fields(pack: Pack) -> list[Field]:
    """Return the fields of one length."""
    return [f for f in pack.fields if not f.ragged]


def row_bytes(pack: Pack) -> int:
    """Bytes of a row in a batch of these fields."""
    return sum(f.row_bytes for f in fixed_fields(pack))


def pack_files(pack: Pack) -> tuple[str, ...]:
    """Return the files that hold the rows of these fields, largest first."""
    sizes: dict[str, int] = {}
    for f in fixed_fields(pack):
        for extent in pack.header.extents[f.name]:
            sizes[pack.file(extent)] = sizes.get(pack.file(extent), 0) + extent.nbytes
    return tuple(sorted(sizes, key=lambda path: -sizes[path]))
