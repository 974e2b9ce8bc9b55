"""packer: each kind of pack in each order."""

from __future__ import annotations

from collections.abc import Callable

from lanes.lane import JPEG, OURS, PACK_H5, PACK_JPEG, PACK_NPY, Epoch, Lane, Setting

ORDERS = ("sequential", "slices", "blocks", "rows")
SLICES, ROWS = "packer h5 slices", "packer h5 rows"


def _open(order: str, placement: str = "disk") -> Callable[[str, Setting], Epoch]:
    """placement: "disk", as JPEG rows would otherwise be decoded once into memory, which is another lane."""

    def open_pack(path: str, setting: Setting) -> Epoch:
        from packer import PackedBatchDataset

        dataset = PackedBatchDataset(
            path, setting.batch, order=order, threads=setting.threads, placement=placement
        )
        return lambda: iter(dataset)

    return open_pack


NEEDS = ("packer", "torch")
LANES = (
    *(Lane(f"packer h5 {order}", OURS, PACK_H5, NEEDS, _open(order)) for order in ORDERS),
    *(Lane(f"packer npy {order}", OURS, PACK_NPY, NEEDS, _open(order)) for order in ORDERS),
    *(
        Lane(f"packer jpeg {order}", JPEG, PACK_JPEG, NEEDS, _open(order), exact=False)
        for order in ORDERS[1:]
    ),
    Lane("packer jpeg in memory", JPEG, PACK_JPEG, NEEDS, _open("rows", "ram"), exact=False),
)
