"""external_source: the batches of a pack as the first nodes of an NVIDIA DALI pipeline, on DALI's CPU back end or a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from packer.arguments import choice
from packer.errors import MissingDependencyError, UsageError
from packer.load.batch import make_batch
from packer.load.batch_dataset import PackedBatchDataset

try:
    from nvidia.dali import fn
    from nvidia.dali.pipeline import Pipeline
except ImportError:
    raise MissingDependencyError("nvidia-dali-cuda120", "packer.integrations.dali") from None

if TYPE_CHECKING:
    from packer.format.header import Field
    from packer.load.pack_list import PackPaths


def external_source(
    pack: PackPaths | PackedBatchDataset,
    batch_size: int | None = None,
    *,
    cycle: str = "raise",
    **options: Any,
) -> Any:
    """Return the nodes of a DALI pipeline that give the batches of a pack, one for each field.

    Parameters
    ----------
    pack : str, path or Pack, a list of them, or a PackedBatchDataset
        As PackedBatchDataset takes them; or such a dataset, made with output="numpy", whose `state_dict` and `stats` are wanted.
    batch_size : int
        Rows of a batch; at most the pipeline's. Not given with a dataset, which has its own.
    cycle : str
        "raise": the pipeline raises StopIteration at the end of each epoch, and begins the next after ``reset()``, which DALI's
        iterators call where auto_reset=True. "quiet": one epoch follows the other. "no": it ends with the first.
    **options
        Other arguments of PackedBatchDataset: shuffle, order, seed, fields, split, rank, world_size, ends, ... but augment: the
        pipeline does that.

    Returns
    -------
    named tuple of DataNode
        One for each field, ``nodes.image, nodes.label``: images uint8 in layout "HWC"; masks, [H, W] in the pack, "HWC" with one channel;
        labels int64 scalars. Ragged fields have samples of different length; text is its UTF-8 bytes.

    Raises
    ------
    MissingDependencyError
        DALI is not installed (when this module is imported).
    UsageError
        An argument is wrong, or a batch is larger than the pipeline's.

    Notes
    -----
    Each epoch has every row once, in packer's order, and its last batch may be smaller than the others. DALI copies a batch when it
    takes it, some batches ahead of the loop (``prefetch_queue_depth``): ``state_dict`` of the dataset is as far ahead.

    Examples
    --------
    ::

        from nvidia.dali import fn, pipeline_def
        from packer.integrations.dali import external_source

        @pipeline_def(batch_size=64, num_threads=2, device_id=None)
        def training():
            images, labels = external_source("train.h5", 64, shuffle=True)
            return fn.crop_mirror_normalize(images, crop=(24, 24), mirror=fn.random.coin_flip()), labels
    """
    dataset = _dataset(pack, batch_size, options)
    pipeline = Pipeline.current()
    most = None if pipeline is None else pipeline.max_batch_size
    if most is not None and dataset.batch_size > most:
        raise UsageError(
            f"batch_size {dataset.batch_size}: the pipeline takes batches of at most {most} rows. Pass such, or"
            f" @pipeline_def(batch_size={dataset.batch_size})."
        )
    nodes = fn.external_source(
        source=_PassBatches(dataset),
        num_outputs=len(dataset.fields),
        layout=[_layout(field) for field in dataset.fields],
        cycle=choice("cycle", cycle, ("raise", "quiet", "no")),
        no_copy=False,  # the slot of a batch is used again as soon as DALI lets go of it
    )
    return make_batch(tuple(field.name for field in dataset.fields), nodes)


def _dataset(
    pack: PackPaths | PackedBatchDataset, batch_size: int | None, options: dict[str, Any]
) -> PackedBatchDataset:
    if isinstance(pack, PackedBatchDataset):
        if batch_size is not None or options:
            given = ", ".join(([] if batch_size is None else ["batch_size"]) + [*options])
            raise UsageError(f"{given}: of a dataset that is made already. Pass it to PackedBatchDataset.")
        dataset = pack
    elif batch_size is None:
        raise UsageError("batch_size: is missing. Pass the rows of a batch, at most the pipeline's.")
    else:
        dataset = PackedBatchDataset(pack, batch_size, **{"output": "numpy"} | options)
    if dataset.output != "numpy":
        raise UsageError(
            f"output={dataset.output!r}: DALI's CPU operators take NumPy arrays. Pass output='numpy'."
        )
    return dataset


class _PassBatches:
    """The epochs of a dataset: each ``iter()`` gives the batches of the next one, as DALI takes them."""

    def __init__(self, dataset: PackedBatchDataset) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for batch in self._dataset:
            yield tuple(
                [_samples(value, field) for value, field in zip(batch, self._dataset.fields, strict=True)]
            )
            del batch  # held here, the slot would come back one batch later


def _samples(values: Any, field: Field) -> Any:
    """Return a field of a batch as DALI takes it: an array [N, ...], or a list with an array a row."""
    if not isinstance(values, list):
        return values[..., None] if _is_plane(field) else values
    coded = (row.encode("utf-8", "surrogateescape") if isinstance(row, str) else row for row in values)
    return [np.frombuffer(row, np.uint8) if isinstance(row, bytes) else row for row in coded]


def _layout(field: Field) -> str:
    """Return DALI's layout of a field's rows, "" for none."""
    return "HWC" if field.about.get("layout") == "HWC" or _is_plane(field) else ""


def _is_plane(field: Field) -> bool:
    """Return True for [H, W] of 8 or 16 bits, such as masks: most of DALI's operators on images take three axes only."""
    return field.shape is not None and len(field.shape) == 2 and field.dtype in ("|u1", "<u2")
