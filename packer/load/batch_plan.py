"""BatchPlan: what the arguments of a PackedBatchDataset mean for its batches, checked once; it makes the prefetcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from packer.arguments import whole
from packer.errors import MissingDependencyError, UsageError
from packer.format.header import Field
from packer.load.augmenting import Augmenter, check_sizes, fit_views, normalizes, parse_views
from packer.load.batch import allocate
from packer.load.padded_batches import (
    IMAGE_SIZES,
    PIXEL_MASK,
    PaddedFileRows,
    Padding,
    check_padded,
    parse_collate,
)
from packer.load.placement_choice import parse_placement
from packer.load.prefetcher import FileRows, Prefetcher, RowSource
from packer.load.processes.transforms import PythonTransform, adapted
from packer.load.ranks import local_rank
from packer.load.sampled_statistics import sampled_statistics
from packer.machine import cores
from packer.orders.runs import Subset, one_run
from packer.read.array_store import PackStore
from packer.read.row_selection import ROW, stored
from packer.starting import ForkSafeThreads

if TYPE_CHECKING:
    import torch

    from packer.augment import Pipeline
    from packer.load.augmenting import Augment
    from packer.load.device import Device
    from packer.load.processes.workers import Workers


@dataclass(frozen=True)
class BatchPlan:
    """The way from rows of a pack to batches.

    fields, subset: of the batches. threads: that read. views: field name -> pipeline that makes it from "image". normalization: mean
    and std that Normalize() without numbers means, where they are those of a sample. reason: for the placement.
    """

    fields: tuple[Field, ...]
    subset: Subset
    output: str
    device: str
    prefetch: int
    threads: int
    augment: Augment | None
    transform: PythonTransform | None
    padding: Padding | None
    views: Mapping[str, Pipeline]
    normalization: Mapping[str, list[float]] | None = None
    placement: str = "disk"
    reason: str = ""

    @classmethod
    def resolve(
        cls,
        reader: PackStore,
        fields: tuple[Field, ...],
        subset: Subset,
        *,
        output: str,
        device: str | int | torch.device,
        prefetch: int,
        threads: int | None,
        augment: Augment | None,
        transform: Callable[..., Any] | PythonTransform | None,
        collate: str | Padding,
        placement: str,
    ) -> BatchPlan:
        """Return the plan for the arguments of a PackedBatchDataset. Raises UsageError, MissingDependencyError."""
        output, device = check_output(output, device)
        if transform is not None:
            transform = transform if isinstance(transform, PythonTransform) else PythonTransform(transform)
            adapted(transform, stored(fields))  # raises if it cannot move what belongs to the image
        most = cores() if any(f.codec for f in reader.fields) else min(4, cores())
        pack = reader.pack
        sample = sampled_statistics(pack) if normalizes(augment) and pack.filled else None
        header = replace(pack.header, statistics={"image": sample}) if sample else pack.header
        plan = cls(
            fields,
            subset,
            output,
            device,
            whole("prefetch", prefetch, 0),
            most if threads is None else whole("threads", threads, 1),
            augment,
            transform,
            parse_collate(collate),
            parse_views(augment, output, header),
            sample,
        )
        return plan._placed(reader, placement)

    def normalized(self, reader: PackStore, normalization: Mapping[str, Any] | None) -> BatchPlan:
        """Return this plan, or one in which Normalize() without numbers means the mean and std of a state."""
        if not normalization or normalization == self.normalization or not normalizes(self.augment):
            return self
        header = replace(reader.pack.header, statistics={"image": normalization})
        views = parse_views(self.augment, self.output, header)
        return replace(self, views=views, normalization=dict(normalization))

    def prefetcher(self, reader: PackStore, batch_rows: int, seed: int) -> Prefetcher:
        """Return the threads, processes and caches that make batches of up to so many rows."""
        fields, workers = self.fields, None
        if self.transform is not None and self.subset.rows:
            from packer.load.processes.workers import Workers

            workers = Workers(self.transform, reader, stored(fields))
            fields = workers.probe(one_run(0, 1), seed=seed, epoch=0)
            if ROW in self.fields and all(f.name != ROW.name for f in fields):
                fields = (*fields, ROW)
        augmenter = None
        if self.views:
            views = self._fitted(reader, fields)
            augmenter = Augmenter(views, fields, _classes(reader), batch_rows, self.prefetch + 2)
        device = self._device() if self.output == "torch" else None
        threads = ForkSafeThreads(self.threads)
        if augmenter is not None and augmenter.ragged:
            from packer.load.ragged_rows import AugmentedFileRows

            image = next(f for f in fields if f.name == "image")
            fields = augmenter.read_fields(fields)
            files: FileRows = AugmentedFileRows(reader, fields, threads, augmenter, image)
        elif self.padding is not None:
            memory = device.allocate if device is not None else allocate
            files = PaddedFileRows(reader, fields, threads, self.padding, self.prefetch + 2, memory)
            fields = (*fields, PIXEL_MASK, IMAGE_SIZES)
        else:
            files = FileRows(reader, fields, threads)
        return Prefetcher(
            files,
            fields,
            batch_rows=batch_rows,
            prefetch=self.prefetch,
            device=device,
            augmenter=augmenter,
            source=self._source(files, fields, device, workers),
            workers=workers,
        )

    def _placed(self, reader: PackStore, placement: str) -> BatchPlan:
        """Return this plan with a placement; raise what is wrong with the images, or this machine, now."""
        ragged = ""
        if self.padding is not None:
            check_padded(
                self.fields,
                reader.pack.path,
                self.padding,
                transformed=self.transform is not None,
                augmented=bool(self.views),
            )
            ragged = "collate='pad'"
        if self.views and self.transform is None:
            fitted = self._fitted(reader, self.fields)
            ragged = "augment" * any(one.ragged for one in fitted.values())
            check_sizes(fitted, reader.pack, self.subset)
        if self.output == "torch":
            self._device()
        chosen, reason = parse_placement(
            placement,
            self.device,
            reader,
            stored(self.fields),
            self.subset,
            transformed=self.transform is not None,
            ragged=ragged,
        )
        return replace(self, placement=chosen, reason=reason)

    def _fitted(self, reader: PackStore, fields: Sequence[Field]) -> dict[str, Pipeline]:
        """Return the pipelines for the fields that they get."""
        ragged = self.device if self.transform is None else None
        return fit_views(self.views, fields, reader.pack.path, _classes(reader), ragged)

    def _source(
        self, files: FileRows, fields: tuple[Field, ...], device: Device | None, workers: Workers | None
    ) -> RowSource | None:
        """Return the source of rows that is asked before the files."""
        if workers is not None:
            workers.look_ahead = files.look_ahead
            return workers
        kept = stored(self.fields)
        if self.placement in ("ram", "pinned"):
            from packer.load.caches.memory_cache import MemoryRows

            pinned = self.device if self.placement == "pinned" else None
            copied = device is not None and not device.on_host
            return MemoryRows(files, fields, kept, pinned=pinned, copied=copied)
        if self.placement == "gpu" and device is not None:
            from packer.load.caches.gpu_cache import GpuRows

            # The pass that augments takes images from where they lie: no batch of them is put together before.
            leave = ("image",) if self.views else ()
            return GpuRows(files, fields, kept, device, self.device, leave)
        return None

    def _device(self) -> Device:
        try:
            from packer.load.device import device_of
        except ImportError:
            raise MissingDependencyError("torch", "PackedBatchDataset with output='torch'") from None
        return device_of(self.device)


def _classes(reader: PackStore) -> int | None:
    return len(reader.pack.header.classes or ()) or None


def check_output(output: str, device: str | int | torch.device) -> tuple[str, str]:
    """Return the output and the name of the device.

    A number means a CUDA device, as in torch. "auto" means this process's CUDA device, or "cpu" without one.
    """
    if isinstance(device, int):
        device = f"cuda:{device}"
    if device == "auto":
        device = auto_device() if output == "torch" else "cpu"
    if output not in ("torch", "numpy"):
        raise UsageError(f"output={output!r}: is not one of 'torch', 'numpy'. Pass one of them.")
    if output == "numpy" and str(device) != "cpu":
        raise UsageError(
            f"output='numpy': device is {str(device)!r}; NumPy arrays live on 'cpu'. Pass output='torch'."
        )
    return output, str(device)


def auto_device() -> str:
    """Return the device that "auto" means: "cuda" where torch sees one, else "cpu".

    "cuda" is torch's current device, where a model goes that is moved to "cuda". A process of torchrun that has not chosen one
    would share the first with all others: there it is that of LOCAL_RANK.
    """
    try:
        import torch
    except ImportError:
        return "cpu"  # the dataset says what is missing
    if not torch.cuda.is_available():
        return "cpu"
    local = local_rank() or 0
    chosen = torch.cuda.current_device() != 0 or not 0 < local < torch.cuda.device_count()
    return "cuda" if chosen else f"cuda:{local}"
