"""PackedBatchDataset: a pack as batches for a training loop.

Positions of the epoch's sequence are this rank's (epochs), stand for rows (row_orders, runs), are read by threads into
slots ahead of the loop (prefetcher), and handed out as batches; on a GPU copied on a side stream and augmented there. No
worker processes, no pickling, no collating.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from packer.arguments import whole
from packer.errors import MissingDependencyError, UsageError
from packer.foreign_words import refuses_foreign_words
from packer.load import augmenting, dataset_options, order_choice
from packer.load.batch import allocate
from packer.load.epoch_progress import EpochProgress, ResumableEpochs, check_no_worker, register
from packer.load.filled_packs import is_made, open_cached, sampled_statistics
from packer.load.pack_list import PackPaths
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
from packer.load.ranks import AccelerateLoop, TrainingRanks
from packer.load.row_dataset import PackedDataset
from packer.load.stats import Stats
from packer.machine import cores
from packer.orders.epochs import RowOrder, Share, read_request, read_requests
from packer.orders.mixture import Mixture, single_orders
from packer.orders.regions import Regions
from packer.orders.row_orders import Blocks, Rows
from packer.orders.runs import one_run
from packer.read.row_selection import ROW
from packer.sentence import Option
from packer.starting import ForkSafeLock, ForkSafeThreads

if TYPE_CHECKING:
    import torch
    from numpy.typing import ArrayLike

    from packer.augment import Pipeline
    from packer.format.header import Field
    from packer.load.augmenting import Augment
    from packer.load.device import Device
    from packer.load.processes.workers import Workers

PREFETCH = 2
_LOG = logging.getLogger("packer.load")


class PackedBatchDataset(ResumableEpochs):
    """Batches of a pack, in a chosen order, read ahead by threads.

    Iterating yields named tuples ``(image, label, ...)``: images are uint8 tensors [N, C, H, W] with channels_last strides
    (a view of the [N, H, W, C] bytes in the file), labels int64 [N], other fields [N, *shape]; or what `augment` makes of the
    images, or what `transform` makes of all. With ``output="numpy"`` they are arrays, images [N, H, W, C], and torch is not needed.

    A batch stays valid for as long as anything made from it is held; its memory is used again afterwards.
    Each fresh ``iter()`` is the next epoch, also after a ``break``. ``len()`` is the number of batches of this rank in a whole epoch, and
    ``ds[i]`` is batch i of the present epoch. ``DataLoader(ds, batch_size=None)`` works, too: each pass is the next epoch, and of
    several workers each reads its part.

    ``classes``, ``class_to_idx``, ``targets`` and ``keys`` tell of the rows loaded, in the order of the pack, or of `subset`; ``dataset``
    is a PackedDataset of them. What is set on a dataset that is made is refused, but for ``report``.

    Parameters
    ----------
    path : str, path or Pack, or a list of them
        Pack that ``packer convert`` wrote, or its URL (s3://, gs://, az://, https://); or, with `cache`, images or a table. Several
        packs are one dataset: a list of paths is
        read as one pack that holds the rows of all, one after the other, and a list of (path, weight) gives each batch these
        shares of them (`Mixture`). Fields and classes have to be alike in all; only the fields that are loaded count.
    batch_size : int
        Rows of a batch, per rank.
    shuffle : bool
        True chooses "blocks" for a pack that was shuffled when it was made (of compressed rows those that are decoded whole),
        else "rows": as good as a uniform shuffle (`order_quality` scores 0.95 and more), by the pack alone.
    order : str or order, optional
        "sequential", "slices", "blocks", "rows", "regions", or Slices(rows=...), Blocks(window=...), Weighted(weights),
        Balanced("label"), or Buckets() for images that differ in size. Wins over shuffle.
        Of packs with weights, the order of each pack's rows; Mixture(order, rows=...) says how long an epoch is, too.
    seed : int
        Seed of the order and of the augmentations' draws; each epoch differs. A Pipeline's own seed is added for its draws.
    device : str or torch.device
        Device of torch batches: "cpu", "cuda" (torch's current device; pinned memory, asynchronous copies), or "auto": CUDA where
        there is a device (of torchrun's processes the one of LOCAL_RANK, unless torch.cuda.set_device chose), else "cpu".
    placement : str
        Where rows are kept meanwhile: "disk"; "ram" (shared by the processes of a node); "pinned" (the same, for copies to
        a GPU); "gpu" (resident there, gathered there); "auto" chooses by size and logs why. Filled while training runs.
    output : "torch" or "numpy"
        Type of the batches.
    fields : sequence of str, optional
        Names; default: all but "key". Ragged ones, like "key" or "boxes", give a list with an entry a row. "row" is each
        row's number in the pack (of several, counted on from one to the next), int64 [N], unless the pack has a field of that name.
    split : str, optional
        Rows of one split only, as ``packer info`` lists them; "all" for every row. A pack with splits of which none is named
        gets a warning.
    classes : sequence of str or int, optional
        Rows of these classes only, names or numbers.
    subset : array-like, slice or range, optional
        These rows only: row numbers, a slice or range, or a boolean for each row of the pack.
    augment : sequence of transforms, Pipeline, str or mapping, optional
        Transforms of packer.augment, or a text that names them (Normalize() without numbers means the pack's mean and std, or those of the
        pack it was converted like), applied to ``image`` on the device, drawn from (seed, epoch, row), or the place in the epoch
        where an order repeats rows. Images that kept their own size are made alike by the first that can, such as RandomResizedCrop, each
        cut from its own pixels as it is read. Masks, boxes and keypoints move with the image; boxes of which nothing is left are left out,
        with their labels. MixUp and CutMix make labels float32 [N, classes]. A mapping of names to such,
        {"view1": [...], "view2": [...]}, makes fields of these names in place of ``image``, each of the same images with draws of
        its own; masks, boxes and keypoints go with the first, and none may mix.
    transform : function or PythonTransform, optional
        Python function of a sample (a dict of arrays), run in processes. "row" comes last in its batches.
    collate : "list", "pad" or Padding, optional
        Images that differ in size, where `augment` does not make them alike, as a list with an entry a row (default), or "pad" in
        one tensor of the largest height and width of the batch, each in its upper left corner, zeros beyond it. Then two fields
        come last: ``pixel_mask``, bool [N, H, W], True where a pixel is the image's own, and ``image_sizes``, int64 [N, 2],
        heights and widths. Padding(multiple=32) rounds H and W up.
    ends : "even", "uneven", "drop" or "pad", optional
        What becomes of the rows at the end of an epoch that do not fill a batch on every rank. "even" gives each rank equally
        many, the few that are missing being the epoch's first again (on one rank: a short batch); "uneven" repeats none, and
        ranks may differ by a row and so by a batch; "drop" leaves them out; "pad" fills whole batches with the epoch's first rows.
        Default: "even", in sequential order "uneven".
    drop_last : bool
        True means ends="drop".
    rank, world_size : int, optional
        Default: torch.distributed's, a Ray Train worker's or torchrun's, asked whenever an epoch begins, else 0 of 1.
        All ranks see one sequence, cut by global batch. Where one rank evaluates alone, pass rank=0, world_size=1.
    threads : int, optional
        Threads that read, and decode where rows are stored as JPEG or compressed; default: the cores at hand, at most 4 (all of
        them where they decode).
    prefetch : int
        Batches read ahead of the loop.
    verify : "blocks", optional
        Compare each block with its checksum before its rows are first used.
    report : function, optional
        Called with a line of statistics at the end of each epoch, for example print.
    cache : str or path, optional
        Pack to be made of the images, or the table, that `path` names. The first epoch makes its rows in the order in which they are
        needed, and trains meanwhile; all processes of a node share it; interrupted, it goes on; once whole it is the pack that ``packer
        convert`` makes, and is read as one. It is made before the first batch where rows cannot be made one by one: of a table, in
        shards, as JPEG or compressed, with boxes or keypoints, or with on_error="skip". Then ``Normalize()`` without numbers means the
        mean and std of a sample of 512 rows, which state_dict carries.

        Of a pack at a URL: a folder on a disk of this machine, in which its rows are kept when they first come, for all processes of
        the node and all later runs. Without it rows come anew in each epoch.
    cache_size : int or str, optional
        Bytes, such as "200GB", that all packs in that folder take together; default "100GB". What does not fit comes anew in each
        epoch. Packs there that nobody has open make room for others, those first that were opened the longest ago.
    convert : mapping, optional
        With `cache`: options of convert_images, or convert_table, that are named as arguments of this dataset are (split, classes,
        shuffle, seed).
    **options
        With `cache`: any other option of convert_images, or convert_table, such as size=256. Without, none is allowed; words of other
        loaders, like num_workers, are errors that name ours.

    Raises
    ------
    FormatError
        The path is not a whole pack.
    UsageError
        An argument is wrong.
    MissingDependencyError
        torch is not installed.

    Examples
    --------
    >>> from packer import PackedBatchDataset
    >>> dataset = PackedBatchDataset("train.h5", batch_size=8, shuffle=True)
    >>> for images, labels in dataset:
    ...     print(list(images.shape), labels.dtype)
    [8, 3, 32, 32] torch.int64
    [8, 3, 32, 32] torch.int64
    [8, 3, 32, 32] torch.int64
    >>> dataset.classes, len(dataset)
    (['blue', 'green', 'red'], 3)
    >>> state = dataset.state_dict()
    >>> state["epoch"], state["rows"]
    (0, 24)
    >>> dataset.close()
    """

    @refuses_foreign_words
    def __init__(
        self,
        path: PackPaths,
        batch_size: int,
        *,
        shuffle: bool = False,
        order: str | RowOrder | None = None,
        seed: int = 0,
        device: str | torch.device = "cpu",
        placement: str = "auto",
        output: str = "torch",
        fields: Sequence[str] | None = None,
        split: str | None = None,
        classes: Sequence[str | int] | str | int | None = None,
        subset: ArrayLike | slice | range | None = None,
        augment: Augment | None = None,
        transform: Callable[..., Any] | PythonTransform | None = None,
        collate: str | Padding = "list",
        ends: str | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        threads: int | None = None,
        prefetch: int = PREFETCH,
        verify: str | None = None,
        report: Callable[[str], object] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | str | None = None,
        convert: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        dataset_options.check_simple(shuffle, verify, report)
        self._open(
            open_cached(path, cache, cache_size, convert, options),
            fields,
            split=split,
            classes=classes,
            subset=subset,
            verify=verify is not None,
        )
        self.rows = self.subset.rows
        self.batch_size = whole("batch_size", batch_size, 1)
        self.prefetch = whole("prefetch", prefetch, 0)
        self.seed = whole("seed", seed)
        self.report = report
        self.output, self.device = dataset_options.check_output(output, device)
        self._ranks = TrainingRanks(self.pack.path, rank, world_size)
        whole_batch = self.batch_size * self.world_size
        about = order_choice.context(self._reader, self.subset, whole_batch, self._weights)
        self.order = order_choice.parse_order(order, shuffle, about)
        self.ends = dataset_options.parse_ends(ends, drop_last, ordered=self.order.fixed)
        self._chosen = shuffle and (order.order if isinstance(order, Mixture) else order) is None
        if transform is not None and not isinstance(transform, PythonTransform):
            transform = PythonTransform(transform)
        self._transform = transform
        if transform is not None:
            adapted(transform, self._stored)  # raises if it cannot move what belongs to the image
        self._augment = augment
        self._normalization: dict[str, list[float]] | None = None
        header, sampled = self.pack.header, augmenting.normalizes(augment) and is_made(self.pack, cache)
        found = sampled_statistics(self.pack) if sampled else None
        if found:
            self._normalization, header = found, replace(header, statistics={"image": found})
        self._views = augmenting.parse_views(augment, self.output, header)
        ragged = ""
        if (padding := parse_collate(collate)) is not None:
            check_padded(
                self.fields,
                self.pack.path,
                padding,
                transformed=transform is not None,
                augmented=bool(self._views),
            )
            ragged = "collate='pad'"
        self._padding = padding
        if self._views and self._transform is None:
            fitted = self._fitted(self.fields)
            ragged = "augment" * any(one.ragged for one in fitted.values())
            augmenting.check_sizes(fitted, self.pack, self.subset)
        decodes = any(f.codec for f in self._reader.fields)
        most = cores() if decodes else min(4, cores())
        self.threads = most if threads is None else whole("threads", threads, 1)
        self._progress = EpochProgress()
        self._stats = Stats()
        self._warned = False
        self._loops = 0  # under way
        self._prefetcher: Prefetcher | None = None
        self._making = ForkSafeLock()
        self._dataset: PackedDataset | None = None
        if self.output == "torch":
            self._device()  # what this machine lacks is said now
        self.placement, why = parse_placement(
            placement,
            self.device,
            self._reader,
            self._stored,
            self.subset,
            transformed=self._transform is not None,
            ragged=ragged,
        )
        _LOG.info("%s: placement %r: %s", self.pack.path, self.placement, why)
        by_row = any(isinstance(one, Rows) for one in single_orders(self.order))
        if self._chosen and by_row and about.coded and self.placement == "disk":
            warnings.warn(
                f"{self.pack.path}: its rows are compressed in blocks of {about.block_rows:,} and were not shuffled when it was made, so"
                " a shuffled epoch decodes a block for almost every row. Convert it again without "
                + Option("shuffle", False)
                + ", or pass placement='ram', or order='slices' for speed.",
                stacklevel=3,
            )
        self._placement_why = why
        if not len(self) and self.ends == "drop":
            raise UsageError(
                f"{self.pack.path}: has {self.rows} rows, fewer than one batch of {batch_size} on {self.world_size}"
                " ranks; drop_last=True leaves none. Pass a smaller batch_size, or drop_last=False."
            )
        self._warn_of(self._share(0), stacklevel=4)
        self._ranks.log(self.rows)
        register(PackedBatchDataset, load=False)

    @property
    def rank(self) -> int:
        """Rank of this process: as given, or found now."""
        return self._ranks.now()[0]

    @property
    def world_size(self) -> int:
        """Processes that share an epoch: as given, or found now."""
        return self._ranks.now()[1]

    @property
    def sampler(self) -> PackedBatchDataset:
        """Itself: Lightning looks here, and at `batch_sampler`, for the ``set_epoch`` that it calls before each epoch."""
        return self

    batch_sampler = sampler

    @property
    def views(self) -> Mapping[str, Pipeline]:
        """Pipelines that `augment` means for this pack, by the name of the field that each makes of ``image``."""
        return dict(self._views)

    @property
    def resident(self) -> bool:
        """True once all rows are where `placement` keeps them by now; always False for "disk"."""
        return self._prefetcher is not None and self._prefetcher.resident

    @property
    def dataset(self) -> PackedDataset:
        """The same rows one by one: ``len(ds.dataset)`` is the number of rows, of all ranks together."""
        if self._dataset is None:
            self._dataset = PackedDataset.of_rows(self.pack, self.fields, self.subset, self._choice)
        return self._dataset

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch on this rank."""
        return self._share(0).steps

    def __repr__(self) -> str:
        """Return a summary over several lines: rows, fields, order, placement, device and ranks."""
        rank, world_size = self.rank, self.world_size
        share = Share(self.order.length(self.rows), self.batch_size, world_size, rank, self.ends)
        order = f"{self.order!r}, seed {self.seed}, epoch {self.epoch}"
        return self._summary(
            batches=f"{share.steps:,} of {self.batch_size:,} rows on this rank, ends {self.ends!r}",
            order=f"{order} (shuffle=True)" if self._chosen else order,
            placement=f"{self.placement!r}: {self._placement_why}",
            device=f"{self.device!r}, output {self.output!r}",
            ranks=str(self._ranks),
        )

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the next epoch, which begins when the first is asked for; of the rest of one after load_state_dict.

        So an iterator that is only made, as frameworks make one to see whether they can, begins none.
        """
        check_no_worker()
        mark = self._progress.begin(self._ended)
        self._loops += 1
        told: AccelerateLoop | None = None
        try:
            self._ranks.check_own(self)
            share = self._share(mark.handed)
            self._warn_of(share)
            self._ranks.warn(self.rows, stacklevel=3)
            self._stats = stats = Stats(mark.epoch, readers=self.threads)
            if (
                self._loops == 1 and self._settle()
            ):  # else it goes on as it is for the other loop, which reads from it
                self._end_prefetcher()
            prefetcher = self._made()
            requests = read_requests(self._sequence(mark.epoch), share, prefetcher.batches)
            n, whole, positions = share.n, share.whole, share.origin
            end = positions + share.steps * whole
            told = AccelerateLoop.begun((share.rank, share.world_size), n - end + whole)
            for batch in prefetcher.batches_of(requests, stats):
                positions += whole
                if told is not None and positions >= end:
                    told.end_of_dataloader = True
                mark.handed = positions if positions < n else n
                yield batch
                del batch  # held here, the slot would come back one batch later
            mark.handed = n
            if self.report is not None:
                self.report(str(stats))
        except GeneratorExit:  # it has handed batches out; at the end of Python there is nothing left to call
            raise
        except BaseException:  # Ctrl-C too
            self._progress.undo(mark)
            raise
        finally:
            self._loops -= 1
            if told is not None:
                told.end()

    def batch(self, number: int) -> Any:
        """Return one batch of the present epoch, read now; it begins no epoch. number: 0..len()-1. Raises UsageError."""
        self._ranks.warn(self.rows, stacklevel=3)
        share = self._share(0)
        return self._batch(self.epoch, share, whole("number", number, 0, share.steps - 1))

    def _batch(self, epoch: int, share: Share, step: int) -> Any:
        """Return batch number `step` of a whole epoch, read now."""
        return self._made().batch_of(read_request(self._sequence(epoch), share, step, step + 1))

    def __enter__(self) -> PackedBatchDataset:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_ranks": self._ranks.carried(), "_prefetcher": None, "_loops": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        register(PackedBatchDataset, load=self.output == "torch")

    @property
    def _num_classes(self) -> int | None:
        return len(self.pack.header.classes or ()) or None

    def stats(self) -> Stats:
        """Return the time spent in each stage since the latest ``iter()``."""
        return self._stats

    def replay(self, count: int = 8) -> Iterator[Any]:
        """Return the first `count` batches of the present epoch again and again, ``len()`` of them in all, from memory.

        What an infinitely fast loader would give: train on it, and what the step still takes is its own. The batches are
        kept as they are handed out, on their device; leave them unchanged. It begins no epoch.
        """
        epoch, share = self.epoch, self._share(0)
        kept = [self._batch(epoch, share, step) for step in range(min(whole("count", count, 1), share.steps))]
        return (kept[step % len(kept)] for step in range(len(self)))

    def close(self) -> None:
        """End the threads and processes and close the files; batches handed out stay valid, and iterating again starts anew."""
        if (prefetcher := self._prefetcher) is not None:
            prefetcher.drop()
        with ExitStack() as closing:  # first: threads may be waiting for rows
            for pack in self.pack.members or (self.pack,):
                closing.enter_context(pack.closing())
            self._end_prefetcher()
        self._reader.close()

    def _end_prefetcher(self) -> None:
        with self._making:
            prefetcher, self._prefetcher = self._prefetcher, None
        if prefetcher is not None:
            prefetcher.close()

    def _reorder(self, order: RowOrder) -> None:
        if order.length(self.rows) != self.order.length(self.rows):
            self.close()  # batches may be larger than those that slots were made for
        self.order = order
        self._keep_blocks()

    def _sampled_state(self) -> dict[str, Any]:
        return {"normalization": self._normalization} if self._normalization else {}

    def _normalize_as(self, normalization: Mapping[str, Any] | None) -> None:
        if normalization and normalization != self._normalization and augmenting.normalizes(self._augment):
            header = replace(self.pack.header, statistics={"image": normalization})
            self._views = augmenting.parse_views(self._augment, self.output, header)
            self._normalization = dict(normalization)
            self._end_prefetcher()  # which has the old ones

    def _share(self, origin: int) -> Share:
        rank, world_size = self._ranks.now()
        n = self.order.length(self.rows)
        return Share(n, self.batch_size, world_size, rank, self.ends, origin)

    def _warn_of(self, share: Share, stacklevel: int = 3) -> None:
        if share.differs and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.pack.path}: of {share.n:,} rows the last {(share.n - share.origin) % share.whole} are fewer than the"
                f" {share.world_size} ranks, so some ranks get a batch less; ranks that wait for each other would hang."
                " Pass ends='even', ends='pad' or ends='drop'.",
                stacklevel=stacklevel,
            )

    def _made(self) -> Prefetcher:
        """Return the prefetcher of this process, making a new one after a fork, unpickling or close()."""
        with self._making:
            if self._prefetcher is None or self._prefetcher.pid != os.getpid():
                self._prefetcher = self._make()
            return self._prefetcher

    def _make(self) -> Prefetcher:
        fields, batch_rows = self.fields, self.batch_size
        if self.ends != "pad":  # whose batches are full even where there are fewer rows
            batch_rows = max(1, min(self.batch_size, self.order.length(self.rows)))
        workers: Workers | None = None
        if self._transform is not None and self.rows:
            from packer.load.processes.workers import Workers

            workers = Workers(self._transform, self._reader, self._stored)
            fields = workers.probe(self.subset.place(one_run(0, 1)), seed=self.seed, epoch=0)
            if ROW in self.fields and all(f.name != ROW.name for f in fields):
                fields = (*fields, ROW)
        augmenter = None
        if self._views:
            views = self._fitted(fields)
            augmenter = augmenting.Augmenter(views, fields, self._num_classes, batch_rows, self.prefetch + 2)
        self._keep_blocks()
        device = self._device() if self.output == "torch" else None
        threads = ForkSafeThreads(self.threads)
        if augmenter is not None and augmenter.ragged:
            from packer.load.ragged_rows import AugmentedFileRows

            image = next(f for f in fields if f.name == "image")
            fields = augmenter.read_fields(fields)
            files: FileRows = AugmentedFileRows(self._reader, fields, threads, augmenter, image)
        elif self._padding is not None:
            memory = device.allocate if device is not None else allocate
            files = PaddedFileRows(self._reader, fields, threads, self._padding, self.prefetch + 2, memory)
            fields = (*fields, PIXEL_MASK, IMAGE_SIZES)
        else:
            files = FileRows(self._reader, fields, threads)
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

    def _fitted(self, fields: tuple[Field, ...]) -> dict[str, Pipeline]:
        """Return the pipelines for the fields that they get."""
        ragged = self.device if self._transform is None else None
        return augmenting.fit_views(self._views, fields, self.pack.path, self._num_classes, ragged)

    def _source(
        self, files: FileRows, fields: tuple[Field, ...], device: Device | None, workers: Workers | None
    ) -> RowSource | None:
        """Return the source of rows that is asked before the files."""
        if workers is not None:
            from packer.load.processes.workers import TransformedRows

            return TransformedRows(workers, files)
        if self.placement in ("ram", "pinned"):
            from packer.load.caches.memory_cache import MemoryRows

            pinned = self.device if self.placement == "pinned" else None
            copied = device is not None and not device.on_host
            return MemoryRows(files, fields, self._stored, self.subset, pinned=pinned, copied=copied)
        if self.placement == "gpu" and device is not None:
            from packer.load.caches.gpu_cache import GpuCache, GpuRows

            gpu = GpuCache(self._reader, self._stored, self.subset, self.device)
            # The pass that augments takes images from where they lie: no batch of them is put together before.
            return GpuRows(gpu, files, fields, device, leave=("image",) if self._views else ())
        return None

    def _keep_blocks(self) -> None:
        """Make the reader cache the decoded blocks of two windows: the threads read ahead of the loop."""
        mixed = 0
        for order in single_orders(self.order):
            if isinstance(order, Blocks):
                mixed += order.mixed_blocks
            elif isinstance(order, Regions):
                mixed += -(-order.mixed_rows // (self.world_size * self.pack.header.block_rows))
        self._reader.keep(2 * mixed + bool(mixed))  # a split may begin inside of a block

    def _device(self) -> Device:
        try:
            from packer.load.device import device_of
        except ImportError:
            raise MissingDependencyError("torch", "PackedBatchDataset with output='torch'") from None
        return device_of(self.device)
