"""PackedBatchDataset: a pack as batches for a training loop.

A batch is a few contiguous reads into one reused buffer, done by threads ahead of the loop; on a GPU it is then
copied on a side stream and augmented on the device. No worker processes, no pickling, no collating.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import MissingDependencyError, UsageError
from packer.format.pack import Pack, open_pack
from packer.load.batch import as_tensor, make_batch
from packer.load.prefetch import Threads, ahead
from packer.load.slots import Bytes, Layout, Slots, allocate
from packer.machine import cores
from packer.orders import order as orders
from packer.orders.runs import Runs
from packer.orders.spans import Spans
from packer.read.fields import decode_ragged, select_fields, select_rows
from packer.read.reader import Reader

if TYPE_CHECKING:
    import torch

    from packer.augment.pipeline import Transform
    from packer.load.device import Placement

SPLIT_BYTES = 4 << 20  # a batch this large is read by several threads at once
SPLIT_CODED_BYTES = 64 << 10  # and one this large is decoded by several
PREFETCH = 2


class PackedBatchDataset:
    """Batches of a pack, in a chosen order, read ahead by threads.

    Iterating yields named tuples ``(image, label, ...)``: images are uint8 tensors [N, C, H, W] with channels_last strides
    (a view of the [N, H, W, C] bytes in the file), labels int64 [N], other fields [N, *shape]; or what `augment` makes of the
    images. With ``output="numpy"`` they are arrays, images [N, H, W, C], and torch is not needed.

    A batch stays valid for as long as anything made from it is held; its memory is used again afterwards.
    Each fresh ``iter()`` is the next epoch, also after a ``break``. ``len()`` is the number of batches of this rank, and
    ``ds[i]`` is batch i of the present epoch, so that ``DataLoader(ds, batch_size=None)`` works; that asks for batches one by one
    and begins no epoch, so call ``set_epoch`` before each pass (and leave persistent_workers off).

    path: what ``packer convert`` wrote. batch_size: rows a batch, per rank.
    shuffle: True chooses ``order="slices"``. order: "sequential", "slices" (contiguous batches, permuted) or "rows" (every
        row on its own); wins over shuffle.
    seed: of the order and of the augmentations' draws; each epoch differs.
    device: where torch batches go, "cpu" or "cuda" (pinned memory, asynchronous copies).
    fields: names, default: all but "key"; ragged ones, like "key" or "boxes", give a list with an entry a row.
    split: the rows of one split only, as ``packer info`` lists them.
    augment: transforms of packer.augment, applied to ``image`` on the device, drawn per row from (seed, epoch, row).
    drop_last: leave out the rows at the end of an epoch that do not fill a batch on every rank.
    rank, world_size: default to torch.distributed where it is initialised, else 0 of 1. All ranks see one sequence, cut by global
        batch; without drop_last the last one is split evenly, and ranks may differ by one batch.
    threads: that read, and decode where rows are stored as JPEG or compressed; default: the cores at hand, at most 4 (all of
        them where they decode). prefetch: batches read ahead of the loop.
    verify: "blocks" compares each block with its checksum before its rows are first used.

    Raises FormatError (not a whole pack), UsageError (an argument is wrong), MissingDependencyError (torch).
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Pack,
        batch_size: int,
        *,
        shuffle: bool = False,
        order: str | None = None,
        seed: int = 0,
        device: str | torch.device = "cpu",
        output: str = "torch",
        fields: Sequence[str] | None = None,
        split: str | None = None,
        augment: Sequence[Transform] | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        threads: int | None = None,
        prefetch: int = PREFETCH,
        verify: str | None = None,
    ) -> None:
        self.pack = path if isinstance(path, Pack) else open_pack(path)
        self.order = _order(order, shuffle)
        self.seed, self.batch_size, self.drop_last = seed, batch_size, drop_last
        self.rank, self.world_size = _rank(rank, world_size)
        self.fields = select_fields(self.pack, fields)
        self._names = tuple(f.name for f in self.fields)
        self._spans = Spans(select_rows(self.pack, split))
        self.rows = self._spans.rows
        if verify not in (None, "blocks"):
            raise UsageError(f"verify={verify!r}: is neither None nor 'blocks'. Pass one of them.")
        _check_counts(batch_size=batch_size, prefetch=prefetch, threads=1 if threads is None else threads)
        if output not in ("torch", "numpy"):
            raise UsageError(f"output={output!r}: is not one of 'torch', 'numpy'. Pass one of them.")
        self.output, self.device, self.prefetch = output, str(device), prefetch
        self._augment = _pipeline(augment, output, self.pack, self._names)
        self._steps = orders.steps(self.rows, batch_size, self.world_size, self.rank, drop_last)
        if drop_last and not self._steps:
            raise UsageError(
                f"{self.pack.path}: has {self.rows} rows, fewer than one batch of {batch_size} on {self.world_size}"
                " ranks; drop_last=True leaves none. Pass a smaller batch_size, or drop_last=False."
            )
        decodes = any(self.pack.header.field(f.name).codec for f in self.fields)
        self._threads = Threads(threads or (cores() if decodes else min(4, cores())))
        self._split_bytes = SPLIT_CODED_BYTES if decodes else SPLIT_BYTES
        self._reader = Reader(self.pack, self.fields, verify=verify is not None)
        self._layout = Layout(self.fields, min(batch_size, self.rows))
        self._epoch, self._begun = 0, False
        self._placement: Placement | None = None
        self._slots: Slots | None = None
        self._results: tuple[Slots, torch.Tensor] | None = (
            None  # memory for augmented images, and one of them
        )
        if output == "torch":
            self._place()
        elif self.device != "cpu":
            raise UsageError(
                f"output='numpy': device is {self.device!r}; NumPy arrays live on 'cpu'. Pass output='torch'."
            )

    def __len__(self) -> int:
        """Batches an epoch, on this rank."""
        return self._steps

    def __iter__(self) -> Iterator[Any]:
        """Batches of the next epoch."""
        if self._begun:
            self._epoch += 1
        self._begun = True
        return self._batches(self._epoch)

    def __getitem__(self, index: int) -> Any:
        """Batch `index` of the present epoch, read now. Raises IndexError."""
        step = index + self._steps if index < 0 else index
        if not 0 <= step < self._steps:
            raise IndexError(f"batch {index} of {self._steps}")
        return self._start(self._epoch, step).result()

    def __enter__(self) -> PackedBatchDataset:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_placement": None, "_slots": None, "_results": None}

    @property
    def epoch(self) -> int:
        """The epoch that ``ds[i]`` reads, and that the last ``iter()`` began."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that ``ds[i]`` reads and the next ``iter()`` begins."""
        self._epoch, self._begun = epoch, False

    def close(self) -> None:
        """End the threads and close the files; batches handed out stay valid, and iterating again starts them anew."""
        self._threads.close()
        self._reader.close()

    def _batches(self, epoch: int) -> Iterator[Any]:
        starts = (partial(self._start, epoch, step) for step in range(self._steps))
        for loading in ahead(starts, self.prefetch):
            batch = loading.result()
            del loading
            yield batch
            del batch  # held here, the slot would come back one batch later

    def _start(self, epoch: int, step: int) -> _Loading:
        """Have the threads read a batch."""
        if self._slots is None:
            self._place()
        assert self._slots is not None
        start, stop = orders.span(step, self.rows, self.batch_size, self.world_size, self.rank)
        count, slot = stop - start, self._slots.lend()
        raw = self._layout.raw(slot, count)
        parts = min(self._threads.count, count) if self._layout.nbytes >= self._split_bytes else 1
        bounds = [count * k // parts for k in range(parts + 1)]
        reads = [
            self._threads.submit(
                self._read, epoch, start + a, start + b, {n: array[a:b] for n, array in raw.items()}
            )
            for a, b in itertools.pairwise(bounds)
        ]
        draws = self._threads.submit(self._draw, epoch, start, stop) if self._augment else None
        return _Loading(self._deliver, self._layout.typed(slot, count), reads, draws, self._placement)

    def _runs(self, epoch: int, start: int, stop: int) -> Runs:
        runs = orders.runs(
            self.order,
            self.rows,
            seed=self.seed,
            epoch=epoch,
            slice_rows=self.batch_size * self.world_size,
            start=start,
            stop=stop,
        )
        return self._spans.place(runs)

    def _read(self, epoch: int, start: int, stop: int, out: dict[str, Bytes]) -> dict[str, list[Any]]:
        """On a thread: read the fixed fields of a part of a batch into its slot; returns the ragged fields' rows."""
        runs = self._runs(epoch, start, stop)
        for name, array in out.items():
            self._reader.read(name, runs, array)
        ragged = [f for f in self.fields if f.ragged]
        numbers = runs.rows().tolist() if ragged else []
        return {
            f.name: decode_ragged(self.pack, f, self._reader.read_ragged(f.name, runs), numbers)
            for f in ragged
        }

    def _draw(self, epoch: int, start: int, stop: int) -> list[dict[str, NDArray[Any]]]:
        """On a thread: the augmentations' parameters for the batch's rows."""
        rows = self._runs(epoch, start, stop).rows()
        height, width, channels = self.pack.header.field("image").loaded.shape or ()
        parameters: list[dict[str, NDArray[Any]]] = self._augment.sample(
            rows, self.seed, epoch, (channels, height, width)
        )
        return parameters

    def _deliver(self, values: dict[str, Any], ragged: dict[str, list[Any]], parameters: Any) -> Any:
        """A batch from what was read: arrays, or tensors on the device."""
        if self.output == "torch":
            for f in self.fields:
                if f.about.get("layout") == "HWC" and not f.ragged:
                    values[f.name] = values[f.name].permute(0, 3, 1, 2)
            ragged = {
                n: [as_tensor(row, self.pack.header.field(n)) for row in rows] for n, rows in ragged.items()
            }
            if self._augment:
                values["image"] = self._augmented(values["image"], parameters)
        return make_batch(self._names, (ragged[n] if n in ragged else values[n] for n in self._names))

    def _augmented(self, images: torch.Tensor, parameters: Any) -> torch.Tensor:
        """The augmented images; on the CPU from the second batch on in memory used before, half the time of new memory."""
        import torch

        if self._results is None:
            made: torch.Tensor = self._augment.apply(images, parameters)
            if made.device.type == "cpu":
                row_bytes = made[0].numel() * made.itemsize
                self._results = (
                    Slots(row_bytes * min(self.batch_size, self.rows), allocate),
                    made[:1].clone(),
                )
            return made
        slots, like = self._results
        channels, height, width = like.shape[1:]
        memory = torch.from_numpy(slots.lend())[: len(images) * like.numel() * like.itemsize]
        out = memory.view(like.dtype).view(len(images), height, width, channels).permute(0, 3, 1, 2)
        result: torch.Tensor = self._augment.apply(images, parameters, out)
        return result

    def _place(self) -> None:
        """Choose where batches go; again in each process, since neither threads' slots nor streams travel."""
        if self.output == "torch":
            try:
                from packer.load import device
            except ImportError:
                raise MissingDependencyError(
                    "torch", "PackedBatchDataset with output='torch'", "torch"
                ) from None
            self._placement = device.placement(self.device)
        self._slots = Slots(self._layout.nbytes, self._placement.allocate if self._placement else allocate)


class _Loading:
    """A batch on its way: read by threads, then sent to the device, then received."""

    def __init__(
        self,
        deliver: Callable[[dict[str, Any], dict[str, list[Any]], Any], Any],
        arrays: dict[str, NDArray[np.generic]],
        reads: list[Future[dict[str, list[Any]]]],
        draws: Future[Any] | None,
        placement: Placement | None,
    ) -> None:
        self._deliver, self._arrays, self._reads, self._draws = deliver, arrays, reads, draws
        self._placement = placement
        self._sent: Any = None

    def cancel(self) -> None:
        """Drop reads that have not begun."""
        for future in self._reads:
            future.cancel()
        if self._draws is not None:
            self._draws.cancel()

    def advance(self) -> None:
        """Send the batch to the device if it has been read."""
        if (
            self._sent is None
            and self._placement
            and all(f.done() and not f.exception() for f in self._reads)
        ):
            self._sent = self._placement.send(self._arrays)

    def result(self) -> Any:
        """Wait for the batch; an error of a thread is raised here."""
        ragged: dict[str, list[Any]] = {}
        for future in self._reads:
            for name, rows in future.result().items():
                ragged.setdefault(name, []).extend(rows)
        parameters = self._draws.result() if self._draws is not None else None
        self.advance()
        values: dict[str, Any] = dict(
            self._placement.receive(self._sent) if self._placement else self._arrays
        )
        return self._deliver(values, ragged, parameters)


def _order(order: str | None, shuffle: bool) -> str:
    if order is None:
        return "slices" if shuffle else "sequential"
    if order not in orders.ORDERS:
        raise UsageError(
            f"order={order!r}: is not one of {', '.join(map(repr, orders.ORDERS))}. Pass one of them."
        )
    if shuffle and order == "sequential":
        raise UsageError(
            "shuffle=True with order='sequential': they contradict each other. Pass one of them."
        )
    return order


def _rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size: as given, else torch.distributed's, else 0 of 1."""
    if (rank is None) != (world_size is None):
        raise UsageError("rank and world_size: only one is given; both or none are allowed. Pass both.")
    if rank is None or world_size is None:
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return 0, 1
        return distributed.get_rank(), distributed.get_world_size()
    if not 0 <= rank < world_size:
        raise UsageError(
            f"rank={rank}: is not within world_size={world_size}; 0 to {world_size - 1} are allowed."
        )
    return rank, world_size


def _pipeline(augment: Sequence[Transform] | None, output: str, pack: Pack, names: tuple[str, ...]) -> Any:
    if not augment:
        return None
    if output != "torch" or "image" not in names:
        raise UsageError(
            "augment: works on the torch tensors of the field 'image'. Pass output='torch' and fields with 'image'."
        )
    from packer.augment import Pipeline

    pipeline = Pipeline(augment)
    shape = pack.header.field("image").loaded.shape
    if shape is None:
        raise UsageError(
            f"augment: works on images of one size; those of {pack.path} kept their own. Run packer repack with a --size first."
        )
    height, width, channels = shape
    pipeline.output_shape((channels, height, width))  # refuse now what cannot work on these images
    return pipeline


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        least = 0 if name == "prefetch" else 1
        if not isinstance(value, int) or value < least:
            raise UsageError(f"{name}={value!r}: is not a whole number of at least {least}.")
