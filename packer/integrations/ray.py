"""dataset: a pack as a Ray Dataset, for those who go on with Ray Data's operators.

For training, give the pack itself to the workers of Ray Train (docs/python.md): PackedBatchDataset reads faster, and its order, ranks and
state are exact. Blocks here are runs of rows, each read by the task that needs it, on its node; only they go through the object store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from packer.errors import MissingDependencyError
from packer.load.batch_dataset import PackedBatchDataset

try:
    import ray.data
    from ray.data.block import BlockAccessor, BlockMetadata
except ImportError:
    raise MissingDependencyError("ray[train]", "packer.integrations.ray") from None

_BLOCK_BYTES = 32 << 20


def dataset(
    path: str | os.PathLike[str],
    *,
    fields: Sequence[str] | None = None,
    split: str | None = None,
    classes: Sequence[str | int] | str | int | None = None,
    **options: Any,
) -> ray.data.Dataset:
    """Return the rows of a pack as a Ray Dataset.

    Parameters
    ----------
    path : str or path
        Pack, or its URL; each node has to find it there.
    fields, split, classes
        As in PackedBatchDataset. Columns are tensors [*shape] of the pack's dtypes, images uint8 [H, W, C]; text is text, and boxes
        and other rows of a length of their own are tensors of that length.
    **options
        Arguments of ray.data.read_datasource, such as override_num_blocks and concurrency.

    Returns
    -------
    ray.data.Dataset
        Each row once. Ray hands out blocks as they are done: in the pack's order only where its
        DataContext.execution_options.preserve_order is set. The field "row" tells each row's number.

    Raises
    ------
    FormatError
        The path is not a whole pack.
    UsageError
        An argument is wrong.
    MissingDependencyError
        Ray is not installed.

    Examples
    --------
    ``dataset("train.h5").map_batches(embed).write_parquet("embedded/")``
    """
    where = os.fspath(path)
    where = where if "://" in where else os.path.abspath(where)
    made = _ReadTasks(where, {"fields": fields, "split": split, "classes": classes})
    found: ray.data.Dataset = ray.data.read_datasource(made, **options)
    return found


class _ReadTasks(ray.data.Datasource):
    """Read tasks for runs of a pack's blocks."""

    def __init__(self, path: str, selection: dict[str, Any]) -> None:
        with _opened(path, 1, selection) as rows:
            self._rows, self._block_rows = rows.rows, rows.pack.header.block_rows
            row_bytes = sum(f.row_bytes for f in rows.fields if not f.ragged)
        # Whole blocks of the pack, which may be checked and decoded as a whole.
        self._batch = max(1, _BLOCK_BYTES // max(row_bytes, 1) // self._block_rows) * self._block_rows
        self._row_bytes, self._path = row_bytes, path
        self._open: Callable[[int], PackedBatchDataset] = partial(_opened, path, selection=selection)

    def get_name(self) -> str:
        """Return the name that Ray shows."""
        return "Pack"

    def estimate_inmemory_data_size(self) -> int:
        """Return the bytes of all rows, without fields whose rows have a length of their own."""
        return self._rows * self._row_bytes

    def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[ray.data.ReadTask]:
        """Return tasks that read equally many batches each, at most `parallelism`."""
        batch = min(self._batch, max(1, -(-self._rows // max(parallelism, 1))))
        batches = -(-self._rows // batch)
        tasks = max(1, min(parallelism, batches))
        bounds = [batches * k // tasks for k in range(tasks + 1)]
        return [self._task(batch, bounds[k], bounds[k + 1]) for k in range(tasks)]

    def _task(self, batch: int, first: int, stop: int) -> ray.data.ReadTask:
        count = min(stop * batch, self._rows) - first * batch
        about = BlockMetadata(count, count * self._row_bytes, input_files=(self._path,), exec_stats=None)
        return ray.data.ReadTask(partial(_blocks, self._open, batch, first, stop), about)


def _opened(path: str, batch: int, selection: dict[str, Any]) -> PackedBatchDataset:
    # Rank 0 of 1, also where a worker of Ray Train asks.
    return PackedBatchDataset(
        path, batch, order="sequential", output="numpy", rank=0, world_size=1, **selection
    )


def _blocks(opened: Callable[[int], PackedBatchDataset], batch: int, first: int, stop: int) -> Iterator[Any]:
    """Yield batches first..stop-1 as Ray's blocks."""
    with opened(batch) as rows:
        for number in range(first, stop):
            yield BlockAccessor.batch_to_block(rows[number]._asdict())
