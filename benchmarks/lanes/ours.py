"""packer: each kind of pack in each order."""

from __future__ import annotations

from collections.abc import Callable

from lanes.lane import PACK_H5, PACK_JPEG, PACK_NPY, Epoch, Lane, Setting

ORDERS = ("sequential", "slices", "blocks", "rows")
SUBJECT = "packer h5 slices"


def _open(order: str) -> Callable[[str, Setting], Epoch]:
    def open_pack(path: str, setting: Setting) -> Epoch:
        from packer import PackedBatchDataset

        dataset = PackedBatchDataset(path, setting.batch, order=order, threads=setting.threads)
        return lambda: iter(dataset)

    return open_pack


LANES = (
    *(Lane(f"packer h5 {order}", PACK_H5, ("packer", "torch"), _open(order)) for order in ORDERS),
    *(Lane(f"packer npy {order}", PACK_NPY, ("packer", "torch"), _open(order)) for order in ORDERS),
    *(
        Lane(f"packer jpeg {order}", PACK_JPEG, ("packer", "torch"), _open(order), exact=False)
        for order in ORDERS[1:]
    ),
)
