"""LoadPlan: the checked arguments of a PackedBatchDataset, with reasons for choices; builds the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from packer.arguments import one_of, whole
from packer.errors import UsageError
from packer.format.fields import Field
from packer.given_values import shown
from packer.load import order_choice
from packer.load.augmenting import Augmenter, check_sizes, fit_views, normalizes, parse_views, unknown_sides
from packer.load.base_dataset import ChosenRows
from packer.load.batch import Host, size_of
from packer.load.batch_engine import BatchEngine
from packer.load.fillers import Reading, RowFiller
from packer.load.padded_batches import PaddedFiller, Padding, check_padded, parse_collate
from packer.load.placement_choice import free_device_memory, no_room, place_rows
from packer.load.processes.transforms import THREAD, PythonTransform, adapted, flip_of
from packer.load.ranks import TrainingRanks
from packer.load.row_windows import check_with_windows, find_windows
from packer.load.sampled_statistics import sampled_statistics
from packer.machine import cores
from packer.orders.epochs import RowOrder, Share
from packer.orders.row_orders import Rows, order_of_epoch
from packer.orders.runs import one_run
from packer.orders.windows import WindowOrder, Windows
from packer.pytorch import import_torch
from packer.read.array_store import ArrayStore, PackStore
from packer.read.row_selection import stored
from packer.starting import ForkSafeThreads
from packer.units import size

if TYPE_CHECKING:
    import torch

    from packer.augment import Pipeline
    from packer.load.augmenting import Augment

_LOG = logging.getLogger("packer.load")


class EpochArguments(NamedTuple):
    """Arguments of a PackedBatchDataset that choose the rows of its batches."""

    batch_size: int
    shuffle: bool
    order: str | RowOrder | None
    seed: int
    ends: str | None
    drop_last: bool
    rank: int | None
    world_size: int | None
    window: Windows | int | None


class BatchArguments(NamedTuple):
    """Arguments of a PackedBatchDataset that turn rows into batches."""

    output: str
    device: str | int | torch.device
    placement: str
    augment: Augment | None
    transform: Callable[..., Any] | PythonTransform | None
    collate: str | Padding
    threads: int | None
    prefetch: int


@dataclass(frozen=True)
class LoadPlan:
    """The resolved plan from the rows of a pack to batches.

    threads: number of reading threads. views: field name -> pipeline that makes it from "image".
    normalization: mean and std for Normalize() without numbers, if sampled. reason: why this placement.
    asked: False for placement="auto".
    """

    rows: ChosenRows
    ranks: TrainingRanks
    batch_size: int
    order: RowOrder
    ends: str
    output: str
    device: str
    augment: Augment | None
    views: Mapping[str, Pipeline]
    transform: PythonTransform | None
    padding: Padding | None
    threads: int
    prefetch: int
    normalization: Mapping[str, list[float]] | None
    placement: str = "disk"
    reason: str = ""
    asked: bool = False

    @classmethod
    def resolve(cls, rows: ChosenRows, epochs: EpochArguments, batches: BatchArguments) -> LoadPlan:
        """Return the plan for the arguments of a PackedBatchDataset.

        Raises UsageError, MissingDependencyError.
        """
        pack, shuffle, store = rows.pack, epochs.shuffle, rows.store()
        batch_size, seed = whole("batch_size", epochs.batch_size, 1), whole("seed", epochs.seed)
        ranks = TrainingRanks(pack.path, epochs.rank, epochs.world_size)
        about = order_choice.context(store, rows.subset, batch_size * ranks.now()[1], rows.weights, seed)
        windows = find_windows(epochs.window, rows)
        if windows is None:
            order = order_choice.parse_order(epochs.order, shuffle, about)
        else:
            order = windows.ordered(order_choice.parse_order(epochs.order, shuffle, windows.context(about)))
        ends = order_choice.parse_ends(epochs.ends, epochs.drop_last, ordered=order.fixed)
        output, device = batches.output, host_of(batches.output, batches.device).name
        transform = parse_transform(batches.transform, rows.fields)
        decoded = any(f.codec for f in store.fields)
        threads = cores() if decoded else min(4, cores())
        sample = sampled_statistics(pack) if normalizes(batches.augment) and pack.filled else None
        plan = cls(
            rows,
            ranks,
            batch_size,
            order,
            ends,
            output,
            device,
            batches.augment,
            parse_views(batches.augment, output, sample or pack.header.normalization),
            transform,
            parse_collate(batches.collate),
            threads if batches.threads is None else whole("threads", batches.threads, 1),
            whole("prefetch", batches.prefetch, 0),
            sample,
        )
        plan = plan._placed(store, batches.placement)
        if ends == "drop" and not plan.share(0).steps:
            raise UsageError(
                f"{pack.path}: has {store.rows} rows, fewer than one batch of {batch_size} on"
                f" {ranks.now()[1]} ranks; drop_last=True leaves none. Pass a smaller batch_size, or"
                " drop_last=False."
            )
        return plan

    def _placed(self, store: PackStore, placement: str) -> LoadPlan:
        """Return this plan with a placement. Raises UsageError for images that do not fit the arguments."""
        fields, path = self.rows.fields, store.pack.path
        alone = "" if self.transform is None else "transform"
        if isinstance(self.order, WindowOrder):
            fitted = self._fitted(fields) if self.views and not alone else {}
            check_with_windows(bool(alone), self.padding is not None, fitted)
        if self.padding is not None:
            check_padded(fields, path, self.padding, bool(alone), bool(self.views))
            alone = "collate='pad'"
        if self.views and self.transform is None:
            fitted = self._fitted(fields)
            alone = "augment" if any(one.ragged for one in fitted.values()) else ""
            check_sizes(fitted, store.pack, self.rows.subset)
        chosen, reason = place_rows(placement, self.device, store, alone)
        return replace(self, placement=chosen, reason=reason, asked=placement != "auto")

    def slow_order(self) -> str | None:
        """Return a warning if the chosen order reads this pack slowly, else None."""
        header = self.rows.pack.header
        coded = any(header.field(f.name).compressed for f in stored(self.rows.fields))
        by_row = any(one.chosen and isinstance(one, Rows) for one in self.order.orders)
        if not (by_row and coded and self.placement == "disk"):
            return None
        if isinstance(self.order, WindowOrder):
            return (
                f"{self.rows.pack.path}: its rows are compressed in blocks of {header.block_rows:,}, so"
                " shuffled windows decode a block for almost every window. Convert it again without"
                " compression, or pass placement='ram', or order='slices' for speed."
            )
        return (
            f"{self.rows.pack.path}: its rows are compressed in blocks of {header.block_rows:,} and were not"
            " shuffled when it was made, so a shuffled epoch decodes a block for almost every row. Convert it"
            " again without shuffle=False, or pass placement='ram', or order='slices' for "
            "speed."
        )

    def unknown_sides(self) -> str | None:
        """Return a warning if mirrored points may be sides that are not exchanged, else None."""
        fields, path = self.rows.fields, self.rows.pack.path
        flip = None if self.transform is None else flip_of(self.transform.fn, fields)
        if flip is not None:
            return (
                f"transform: {flip} of torchvision moves the keypoints of {path}, but does not exchange left "
                "and"
                f" right ones. Exchange them in a function of the sample, or pass augment='{flip}()'."
            )
        return unknown_sides(self.views, fields, path)

    def share(self, origin: int) -> Share:
        """Return this rank's batches of an epoch after its first `origin` positions."""
        rank, world_size = self.ranks.now()
        return Share(self.order.length, self.batch_size, world_size, rank, self.ends, origin)

    def lines(self, epoch: int) -> dict[str, str]:
        """Return the lines of the dataset's repr in an epoch, by subject."""
        own = order_of_epoch(self.order, epoch)
        order = f"{own!r}, seed {own.seed}, epoch {epoch}"
        steps = self.share(0).steps
        return {
            "batches": f"{steps:,} of {self.batch_size:,} rows on this rank, ends {self.ends!r}",
            "order": f"{order} (shuffle=True)" if self.order.orders[0].chosen else order,
            "placement": f"{self.placement!r}: {self.reason}",
            "device": f"{self.device!r}, output {self.output!r}",
            "ranks": str(self.ranks),
        }

    def normalized(self, normalization: Mapping[str, Any] | None) -> LoadPlan:
        """Return this plan with the mean and std of a state for Normalize() without numbers."""
        if not normalization or normalization == self.normalization or not normalizes(self.augment):
            return self
        views = parse_views(self.augment, self.output, normalization)
        return replace(self, views=views, normalization=dict(normalization))

    def engine(self, files: PackStore) -> BatchEngine:
        """Return the engine: threads, processes and memory that turn rows of these files into batches."""
        batch_rows = self.batch_size
        if self.ends != "pad":  # its batches are full even if the pack has fewer rows
            batch_rows = max(1, min(batch_rows, self.order.length))
        batch_rows *= self.order.span
        threads, device = ForkSafeThreads(self.threads), host_of(self.output, self.device)
        reading = Reading(files, self._cache(files, threads, device), threads, device)
        fields, augmenter = self.rows.fields, None
        filler = RowFiller(reading, fields)
        if self.transform is not None and files.rows:
            from packer.load.processes.threads import ThreadFiller
            from packer.load.processes.workers import TransformFiller

            kind = ThreadFiller if self.transform.context == THREAD else TransformFiller
            filler = kind(reading, fields, self.transform)
            fields = filler.probe(one_run(0, 1), seed=self.order.seed, epoch=0)
        if self.views:
            views = self._fitted(fields)
            augmenter = Augmenter(views, fields, self._classes, batch_rows, self.prefetch + 2)
        if augmenter is not None and augmenter.ragged:
            from packer.load.ragged_rows import CropFiller

            filler = CropFiller(reading, fields, augmenter)
        elif self.padding is not None:
            filler = PaddedFiller(reading, fields, self.padding, self.prefetch + 2)
        return BatchEngine(filler, augmenter, batch_rows=batch_rows, prefetch=self.prefetch)

    def _cache(self, files: PackStore, threads: ForkSafeThreads, device: Any) -> ArrayStore:
        """Return the store that caches rows of the files at the placement; the files for "disk".

        Raises UsageError if the GPU that was asked for has no room.
        """
        if self.placement == "ram":
            from packer.load.caches.memory_cache import MemoryStore

            return MemoryStore(files)
        if self.placement == "gpu":
            from torch.cuda import OutOfMemoryError

            from packer.load.caches.gpu_cache import GpuStore

            try:
                return GpuStore(files, self.rows.fields, device, threads)
            except OutOfMemoryError:
                free = free_device_memory(str(device.place))
            nbytes = size_of(files.fixed, files.rows)
            if self.asked:
                raise no_room("gpu", nbytes, free, f"free on {device.place}")
            _LOG.warning(
                "%s: rows are read from the disk: they take %s; there are %s free on %s",
                *(files.pack.path, size(nbytes), size(free), device.place),
            )
        return files

    def _fitted(self, fields: Sequence[Field]) -> dict[str, Pipeline]:
        """Return the pipelines bound to the fields that they get."""
        ragged = self.device if self.transform is None else None
        return fit_views(self.views, fields, self.rows.pack.path, self._classes, ragged)

    @property
    def _classes(self) -> int | None:
        return len(self.rows.pack.header.classes or ()) or None


def parse_transform(
    transform: Callable[..., Any] | PythonTransform | None, fields: Sequence[Field]
) -> PythonTransform | None:
    """Return the transform of samples.

    Raises UsageError if it cannot move the fields that belong to the image.
    """
    if transform is None:
        return None
    made = transform if isinstance(transform, PythonTransform) else PythonTransform(transform)
    adapted(made, stored(fields))
    return made


def host_of(output: str, device: str | int | torch.device) -> Host:
    """Return the device of the batches. Raises UsageError if this machine lacks it, MissingDependencyError.

    device: as torch takes it (a number is a CUDA device), or "auto": this process's CUDA device, else "cpu".
    """
    one_of("output", output, ("torch", "numpy"))
    named = isinstance(device, str) or type(device).__name__ == "device"  # torch's, not yet imported
    name = f"cuda:{device}" if isinstance(device, int) else str(device) if named else shown(device)
    if output == "numpy":
        if name not in ("auto", "cpu"):
            raise UsageError(
                f"output='numpy': device is {name!r}; NumPy arrays live on 'cpu'. Pass output='torch'."
            )
        return Host(tensors=False)
    import_torch("PackedBatchDataset with output='torch'")
    from packer.load.device import device_of

    return device_of(name)
