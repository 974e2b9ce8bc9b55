"""FFCV: threads and reused buffers, as packer. Its batches are overwritten a few batches later; packer's stay."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from lanes.lane import BETON, JPEG, Epoch, Lane, Rows, Setting, Store

BETON_RAW, BETON_JPEG = "ffcv-raw.beton", "ffcv-jpeg.beton"
QUALITY = 90


class _Indexed:
    """What ffcv calls an indexed dataset."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = self._rows.images[index].copy()
        return image, int(self._rows.labels[index])


def _write(rows: Rows, out: str, *, mode: str) -> None:
    writer, fields = import_module("ffcv.writer"), import_module("ffcv.fields")
    image = fields.RGBImageField(write_mode=mode, jpeg_quality=QUALITY)
    columns = {"image": image, "label": fields.IntField()}
    writer.DatasetWriter(out, columns, num_workers=1).from_indexed_dataset(_Indexed(rows))


def _open(order: str) -> Callable[[str, Setting], Epoch]:
    def open_beton(path: str, setting: Setting) -> Epoch:
        loader, transforms = import_module("ffcv.loader"), import_module("ffcv.transforms")
        decoders = import_module("ffcv.fields.decoders")
        pipelines = {
            "image": [decoders.SimpleRGBImageDecoder(), transforms.ToTensor()],
            "label": [decoders.IntDecoder(), transforms.ToTensor()],
        }
        made = loader.Loader(
            path,
            batch_size=setting.batch,
            num_workers=setting.threads,
            order=getattr(loader.OrderOption, order),
            os_cache=True,  # QUASI_RANDOM knows no other; its own cache is for data that no memory holds
            drop_last=False,
            pipelines=pipelines,
        )
        return lambda: iter(made)

    return open_beton


MODULES = ("torch", "ffcv")
STORES = (
    Store(BETON_RAW, MODULES, partial(_write, mode="raw")),
    Store(BETON_JPEG, MODULES, partial(_write, mode="jpg")),
)
LANES = (
    Lane("ffcv raw", BETON, BETON_RAW, MODULES, _open("RANDOM")),
    Lane("ffcv jpeg", JPEG, BETON_JPEG, MODULES, _open("RANDOM"), exact=False),
)
