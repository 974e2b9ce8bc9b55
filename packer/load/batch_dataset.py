"""PackedBatchDataset: a pack as batches for a training loop.

A batch takes this rank's positions in the epoch's sequence (orders/epochs.py). The order maps positions to
rows, threads read them into slots ahead of the loop (batch_engine.py), and for a GPU a side stream copies
them there, where they are augmented. No worker processes, no pickling, no collating.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

from packer.arguments import whole
from packer.declared_types import checks_arguments
from packer.errors import UsageError
from packer.load.base_dataset import BaseDataset, ChosenRows, PackPaths
from packer.load.batch import Batched
from packer.load.batch_engine import BatchEngine
from packer.load.batch_types import BatchDataset, Value
from packer.load.epoch_progress import EpochProgress
from packer.load.load_plan import BatchArguments, EpochArguments, LoadPlan
from packer.load.padded_batches import Padding
from packer.load.processes.transforms import PythonTransform
from packer.load.ranks import AccelerateLoop
from packer.load.row_dataset import PackedDataset
from packer.load.stats import Stats
from packer.orders.epochs import RowOrder, Share, read_request, read_requests
from packer.orders.row_orders import order_of_epoch
from packer.orders.windows import WindowOrder, Windows
from packer.starting import ForkSafeLock

if TYPE_CHECKING:
    import torch
    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Self, Unpack

    from packer.augment import Pipeline
    from packer.load.augmenting import Augment
    from packer.load.batch_types import Batch, Options

PREFETCH = 2
_LOG = logging.getLogger("packer.load")


class PackedBatchDataset(BaseDataset, BatchDataset[Value]):
    """Batches of a pack, in a chosen order, read ahead by threads.

    Iterating yields named tuples ``(image, label, ...)``: images are uint8 tensors [N, C, H, W] with
    channels_last strides, labels int64 [N], other fields [N, *shape]; or the results of `augment` or
    `transform`. A batch stays valid as long as anything that shares its memory is held. Each fresh ``iter()``
    begins the next epoch, also after a ``break``; ``len()`` is the number of batches of this rank,
    ``batch(i)`` is batch i of the current epoch. ``classes``, ``targets`` and ``keys`` describe the rows, in
    the order of the pack.

    Parameters
    ----------
    path : str, path, Pack, or a list of them
        Path or URL of a pack, or the result of open_pack or fill_pack. A list of packs is read as one, their
        rows one after the other; a list of (path, weight) gives each pack its share of every batch.
    batch_size : int
        Rows of a batch, per rank.
    shuffle : bool
        Choose an order as good as a uniform shuffle: "blocks" for a pack that was shuffled when it was
        written, else "rows".
    order : str or order, optional
        "sequential", "slices", "blocks", "rows", "regions", or Slices(rows=...), Blocks(window=...),
        Weighted(weights), Weighted.balanced("label"), Buckets(), Mixture(...). Overrides shuffle.
    seed : int
        Seed of the order and of the augmentations' draws; each epoch differs.
    device : str or torch.device
        "cpu", "cuda" (pinned memory, asynchronous copies), or "auto": "cuda" if torch sees a CUDA device,
        else "cpu".
    placement : str
        Where rows are kept between epochs: "disk", "ram" (shared by the processes of a node), "gpu", or
        "auto", which chooses by size.
    output : "torch" or "numpy"
        Type of the batches; NumPy images are [N, H, W, C].
    fields : sequence of str, optional
        Names; default: all but texts, such as "key". A ragged field, like "key" or "boxes", is a list with
        one entry per row; "row" is each row's number in the pack.
    split, classes, subset : optional
        Rows of one split, or of several, ["fold0", "fold1"], in the order of the pack ("all" for every row);
        of some classes, by name or number; row numbers, a slice, a range or a boolean array.
    augment : sequence of transforms, Pipeline, str or mapping, optional
        Transforms of packer.augment for ``image`` and its masks, boxes and keypoints, run on the device,
        drawn from (seed, epoch, row). A mapping of names to them makes several views in place of ``image``.
        Normalize() without numbers uses mean and std of the pack's split train, or of all rows without one.
    transform : function or PythonTransform, optional
        Python function of a sample (a dict of arrays), run in processes.
    collate : "list", "pad" or Padding, optional
        Images that differ in size as a list, or padded to one tensor, with the fields ``pixel_mask`` and
        ``image_sizes``.
    window : int or Windows, optional
        Samples of so many consecutive rows, such as clips: images [N, window, C, H, W]; batch_size and
        weights then count windows. For packs converted with shuffle=False.
    ends : "even", "uneven", "drop" or "pad", optional
        Rows that do not fill a batch on every rank. "even" repeats the epoch's first rows until all ranks
        have equally many; "pad" repeats them until batches are full; "uneven" repeats none; "drop" (or
        drop_last=True) leaves them out. Default: "even", in sequential order "uneven".
    rank, world_size : int, optional
        Default: those of torch.distributed, a Ray Train worker or torchrun, looked up when an epoch begins;
        else 0 of 1.
    threads, prefetch : int, optional
        Threads that read and decode (default: one per core, at most 4 where nothing is decoded); batches read
        ahead of the loop.

    Raises
    ------
    FormatError
        The path is not a complete pack.
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
    >>> dataset.close()
    """

    rows: int
    batch_size: int
    seed: int
    order: RowOrder
    ends: str
    output: str
    device: str
    placement: str
    threads: int
    prefetch: int

    @overload
    def __init__(
        self: PackedBatchDataset[torch.Tensor],
        path: PackPaths,
        batch_size: int,
        *,
        output: Literal["torch"] = "torch",
        fields: None = None,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: PackedBatchDataset[NDArray[Any]],
        path: PackPaths,
        batch_size: int,
        *,
        output: Literal["numpy"],
        fields: None = None,
        **options: Unpack[Options],
    ) -> None: ...
    @overload  # texts among the fields are str
    def __init__(
        self: PackedBatchDataset[Any],
        path: PackPaths,
        batch_size: int,
        *,
        output: str = "torch",
        fields: Sequence[str] | None = None,
        **options: Unpack[Options],
    ) -> None: ...
    @checks_arguments
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
        split: str | Sequence[str] | None = None,
        classes: Sequence[str | int] | str | int | None = None,
        subset: ArrayLike | slice | range | None = None,
        augment: Augment | None = None,
        transform: Callable[..., Any] | PythonTransform | None = None,
        collate: str | Padding = "list",
        window: Windows | int | None = None,
        ends: str | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        threads: int | None = None,
        prefetch: int = PREFETCH,
    ) -> None:
        plan = LoadPlan.resolve(
            ChosenRows.open(path, fields, split=split, classes=classes, subset=subset),
            EpochArguments(batch_size, shuffle, order, seed, ends, drop_last, rank, world_size, window),
            BatchArguments(output, device, placement, augment, transform, collate, threads, prefetch),
        )
        self._keep(plan.rows)
        self._follow(plan)
        self._progress, self._stats, self._making = EpochProgress(plan), Stats(), ForkSafeLock()
        self._engine: BatchEngine | None = None
        self._dataset: PackedDataset[Value] | None = None
        self._warned, self._loops = False, 0  # loops under way
        _LOG.info("%s: placement %r: %s", self.pack.path, plan.placement, plan.reason)
        for text in filter(None, (plan.rows.overlooked, plan.slow_order(), plan.unknown_sides())):
            warnings.warn(text, stacklevel=3)
        self._warn_of(plan.share(0), stacklevel=4)
        register(PackedBatchDataset, load=False)

    def _follow(self, plan: LoadPlan) -> None:
        """Set the public attributes from a plan."""
        self.rows, self.batch_size = plan.rows.subset.rows, plan.batch_size
        self.seed, self.order, self.ends = plan.order.seed, plan.order, plan.ends
        self.output, self.device, self.placement = plan.output, plan.device, plan.placement
        self.threads, self.prefetch = plan.threads, plan.prefetch

    @property
    def _plan(self) -> LoadPlan:
        return self._progress.plan

    @property
    def rank(self) -> int:
        """Rank of this process: the argument, or looked up now."""
        return self._plan.ranks.now()[0]

    @property
    def world_size(self) -> int:
        """Number of processes that share an epoch: the argument, or looked up now."""
        return self._plan.ranks.now()[1]

    @property
    def sampler(self) -> Self:
        """The dataset itself: Lightning calls ``set_epoch`` on `sampler` and `batch_sampler` each epoch."""
        return self

    batch_sampler = sampler

    @property
    def views(self) -> Mapping[str, Pipeline]:
        """Pipelines of `augment`, bound to this pack, by the name of the view that each makes."""
        return dict(self._plan.views)

    @property
    def resident(self) -> bool:
        """True once all rows are where `placement` keeps them; always False for "disk"."""
        return self._engine is not None and self._engine.store.ready

    @property
    def dataset(self) -> PackedDataset[Value]:
        """The same rows as a PackedDataset: ``len(ds.dataset)`` is the number of rows on all ranks."""
        if self._dataset is None:
            order = self.order if isinstance(self.order, WindowOrder) else None
            self._dataset = PackedDataset.from_rows(self._rows, order)
        return self._dataset

    @property
    def epoch(self) -> int:
        """Epoch of the last ``iter()``, or of the next before the first; ``batch(i)`` reads it."""
        return self._progress.epoch

    @property
    def batches_left(self) -> int:
        """Number of batches of the next ``iter()``: ``len()``, or fewer if it resumes an epoch."""
        return self._plan.share(self._progress.coming()[1]).steps

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that ``batch(i)`` reads and the next ``iter()`` begins (or resumes, once loaded)."""
        self._progress.set_epoch(whole("epoch", epoch, 0))

    def state_dict(self) -> dict[str, Any]:
        """Return the latest iterator's position: seed, epoch, rows handed to all ranks, and the order.

        It is the same on every rank, if all have received equally many batches, and can be stored as JSON.
        Prefetched batches do not count. Inside the loop, and after `break`, the batch in hand counts. It does
        not if an exception ended its step: while that is handled (`except`, `finally`, a callback), and after
        it has left a `for` loop over the dataset. An iterator that something else holds, such as a variable
        or torchdata's loader, does not see the exception leave: call this in the handler.
        """
        return self._progress.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state_dict: the next ``iter()`` yields the rest of its epoch, on any number of ranks.

        Seed and slice lengths are taken from the state. Raises UsageError for a state of other rows or
        another order.
        """
        old = self._plan
        self._progress.load(state)
        new = self._plan
        if new.order.length != old.order.length:
            self.close()  # batches may be larger than the slots that were allocated
        elif new.views is not old.views:
            self._end_engine()  # it has the old views
        self._follow(new)
        self._keep_blocks()

    def __getitem__(self, index: Any) -> NoReturn:
        """Raise UsageError: torch's random_split and Subset read rows by number."""
        raise UsageError(
            "PackedBatchDataset: yields batches and has no ds[i], which random_split and Subset need. Choose"
            " rows by split= or subset=, or take PackedDataset."
        )

    def __len__(self) -> int:
        """Return the number of batches of a full epoch on this rank."""
        return self._plan.share(0).steps

    def __repr__(self) -> str:
        """Return a summary over several lines: rows, fields, order, placement, device and ranks."""
        return self._summary(**self._plan.lines(self.epoch))

    def __iter__(self) -> Iterator[Batch[Value]]:
        """Yield the batches of the next epoch, or, after load_state_dict, of the rest of an epoch.

        The epoch begins when the first batch is requested: an iterator that is created but never advanced, as
        some frameworks do as a test, begins none.
        """
        check_no_worker()
        mark = self._progress.begin()
        self._loops += 1
        told: AccelerateLoop | None = None
        try:
            plan = self._plan
            plan.ranks.check_dispatch(self)
            share = plan.share(mark.handed)
            self._warn_of(share)
            plan.ranks.warn(self.rows, stacklevel=3)
            self._stats = stats = Stats(mark.epoch, readers=self.threads)
            if self._loops == 1 and self._settle():  # another loop would still read from the open files
                self._end_engine()
            engine = self._running()
            requests = read_requests(
                order_of_epoch(self.order, mark.epoch),
                mark.epoch,
                share,
                engine.batches,
                engine.store.ahead_rows,
            )
            n, whole, positions = share.n, share.global_batch, share.origin
            end = positions + share.steps * whole
            ranks = share.rank, share.world_size
            told = AccelerateLoop.begun(ranks, n - end + whole, share.ends == "uneven")
            for batch in engine.batches_of(requests, stats):
                positions += whole
                if told is not None and positions >= end:
                    told.end_of_dataloader = True
                mark.hand(positions if positions < n else n)
                yield batch
                mark.done = mark.handed
                del batch  # held here, the slot would come back one batch later
            mark.handed = mark.done = n
        except GeneratorExit:  # batches were handed out
            mark.leave()
            raise
        except BaseException:  # Ctrl-C too
            mark.handed = mark.done
            self._progress.undo(mark)
            raise
        finally:
            self._loops -= 1
            if told is not None:
                told.end()

    def batch(self, number: int) -> Batch[Value]:
        """Read one batch of the current epoch; begins no epoch. number: 0..len()-1. Raises UsageError."""
        self._plan.ranks.warn(self.rows, stacklevel=3)
        share = self._plan.share(0)
        return self._batch(self.epoch, share, whole("number", number, 0, share.steps - 1))

    def _batch(self, epoch: int, share: Share, step: int) -> Batch[Value]:
        """Return batch `step` of a full epoch, read now."""
        request = read_request(order_of_epoch(self.order, epoch), epoch, share, step, step + 1)
        return next(self._running().batches_of([request], Stats()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        progress = copy(self._progress)
        progress.plan = replace(self._plan, ranks=self._plan.ranks.carried())
        return self.__dict__ | {"_progress": progress, "_engine": None, "_loops": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        register(PackedBatchDataset, load=self.output == "torch")

    def stats(self) -> Stats:
        """Return the time spent in each stage since the latest ``iter()``; prints as one line."""
        return self._stats

    def replay(self, count: int = 8) -> Iterator[Batch[Value]]:
        """Return ``len()`` batches from memory: the first `count` of the current epoch, over and over.

        They measure a training step alone, as with an infinitely fast loader. The batches stay on their
        device; do not modify them. Begins no epoch.
        """
        epoch, share = self.epoch, self._plan.share(0)
        kept = [self._batch(epoch, share, step) for step in range(min(whole("count", count, 1), share.steps))]
        return (kept[step % len(kept)] for step in range(len(self)))

    def close(self) -> None:
        """End threads and processes, close the files. Batches stay valid; iterating opens the files again."""
        if (engine := self._engine) is not None:
            engine.close(wait=False)
        with ExitStack() as closing:  # first: threads may be blocked waiting for rows
            for pack in self.pack.packs:
                closing.enter_context(pack.closing())
            self._end_engine()
        self._store.close()

    def _end_engine(self) -> None:
        with self._making:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _warn_of(self, share: Share, stacklevel: int = 3) -> None:
        if share.differs and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.pack.path}: of {share.n:,} rows the last"
                f" {(share.n - share.origin) % share.global_batch} are"
                f" fewer than the {share.world_size} ranks, so some ranks get a batch less; ranks that wait"
                " for each other would hang. Pass ends='even', ends='pad' or ends='drop'.",
                stacklevel=stacklevel,
            )

    def _running(self) -> BatchEngine:
        """Return the engine of this process; build one after a fork, unpickling or close()."""
        with self._making:
            if self._engine is None or self._engine.pid != os.getpid():
                self._keep_blocks()
                self._engine = self._plan.engine(self._store)
            return self._engine

    def _keep_blocks(self) -> None:
        """Let the store keep the decoded blocks of two windows: the threads read ahead of the loop."""
        self._store.cache_blocks(self.order.mixed_rows(self.world_size))


def register(dataset: type, *, load: bool) -> None:
    """Register a class as torch's IterableDataset, so that frameworks do not shard it a second time.

    Also makes torch's default_collate refuse the batches. load: import torch if necessary; else do nothing
    until it is imported.
    """
    data = importlib.import_module("torch.utils.data") if load else sys.modules.get("torch.utils.data")
    if data is not None:
        data.IterableDataset.register(dataset)
        data._utils.collate.default_collate_fn_map[Batched] = _refuse_collating


def _refuse_collating(*_: Any, **__: Any) -> NoReturn:
    raise UsageError(
        "DataLoader over PackedBatchDataset: its items are batches already, and DataLoader's batch_size (1"
        " unless given) would collate several of them. Iterate over the dataset itself, pass DataLoader(ds,"
        " batch_size=None), or take PackedDataset, whose items are rows."
    )


def check_no_worker() -> None:
    """Raise UsageError in a DataLoader worker: each worker would yield all batches. Imports nothing."""
    data: Any = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        raise UsageError(
            "PackedBatchDataset: is iterated in a worker of a DataLoader; it reads ahead with threads in the"
            " main process. Pass num_workers=0 with batch_size=None, or take PackedDataset, whose items are"
            " rows."
        )
