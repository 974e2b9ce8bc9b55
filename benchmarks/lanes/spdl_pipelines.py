"""SPDL: a pipeline of threads, a batch a task, as its documentation advises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any

from lanes.lane import JPEG, PACK_NPY, PHOTOS, PLAIN, Batch, Epoch, Lane, Rows, Setting, random_batches

AHEAD = 3  # prefetched batches, as in its examples


def pipeline(source: Iterable[Any], make: Callable[[Any], Any], threads: int) -> Iterator[Any]:
    """Yield the results of `make` for the items of the source, called by several threads."""
    builder = import_module("spdl.pipeline").PipelineBuilder().add_source(source)
    made = builder.pipe(make, concurrency=threads).add_sink(AHEAD).build(num_threads=threads)
    with made.auto_stop():
        yield from made


def open_rows(path: str, setting: Setting) -> Epoch:
    """Return epochs of random rows of a mapped array."""
    import torch

    rows = Rows.of(setting.work)

    def take(numbers: list[int]) -> Batch:
        return torch.from_numpy(rows.images[numbers]), torch.from_numpy(rows.labels[numbers])

    batches = random_batches(len(rows), setting.batch)
    return lambda: pipeline(batches, take, setting.threads)


def open_photos(path: str, setting: Setting) -> Epoch:
    """Return epochs of photographs, decoded and resized by FFmpeg into one buffer a batch."""
    import torch

    media = import_module("spdl.io")
    rows = Rows.of(setting.work)
    size = rows.images.shape[1]
    to_size = (
        f"crop=min(iw\\,ih):min(iw\\,ih):exact=1,scale={size}:{size}:flags=bilinear,format=pix_fmts=rgb24"
    )

    def load(numbers: list[int]) -> Batch:
        files = [f"{path}/{number}.jpg" for number in numbers]
        buffer = media.load_image_batch(files, width=None, height=None, filter_desc=to_size)
        return media.to_torch(buffer), torch.tensor(numbers)

    batches = random_batches(len(rows), setting.batch)
    return lambda: pipeline(batches, load, setting.threads)


NEEDS = ("torch", "spdl")
LANES = (
    Lane("spdl over npy", PLAIN, PACK_NPY, NEEDS, open_rows),
    # FFmpeg's resizing reaches at least 19.2 dB.
    Lane("spdl, folder", JPEG, PHOTOS, NEEDS, open_photos, exact=False, least_db=17.0),
)
