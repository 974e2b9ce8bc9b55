"""PackedBatchDataset: a pack as batches for a training loop.

A batch takes some positions of the epoch's sequence, those of this rank (orders/epochs.py). The order says which rows stand
there, threads read them into slots ahead of the loop (batch_engine.py), and on a GPU they are copied on a side stream and
augmented there. No worker processes, no pickling, no collating.
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
from typing import TYPE_CHECKING, Any, NoReturn

from packer.arguments import whole
from packer.errors import UsageError
from packer.foreign_words import refuses_foreign_words
from packer.load.base_dataset import BaseDataset, ChosenRows, PackPaths
from packer.load.batch import Batched
from packer.load.batch_engine import BatchEngine
from packer.load.epoch_progress import EpochProgress
from packer.load.load_plan import BatchArguments, EpochArguments, LoadPlan
from packer.load.padded_batches import Padding
from packer.load.processes.transforms import PythonTransform
from packer.load.ranks import AccelerateLoop
from packer.load.row_dataset import PackedDataset
from packer.load.stats import Stats
from packer.orders.epochs import RowOrder, Share, read_request, read_requests
from packer.starting import ForkSafeLock

if TYPE_CHECKING:
    import torch
    from numpy.typing import ArrayLike

    from packer.augment import Pipeline
    from packer.load.augmenting import Augment

PREFETCH = 2
_LOG = logging.getLogger("packer.load")


class PackedBatchDataset(BaseDataset):
    """Batches of a pack, in a chosen order, read ahead by threads.

    Iterating yields named tuples ``(image, label, ...)``: images are uint8 tensors [N, C, H, W] with channels_last strides, labels
    int64 [N], other fields [N, *shape]; or what `augment` or `transform` makes of them. A batch stays valid for as long as anything
    made from it is held. Each fresh ``iter()`` is the next epoch, also after a ``break``; ``len()`` is the number of batches of this
    rank, ``batch(i)`` is one of the present epoch. ``classes``, ``targets`` and ``keys`` tell of the rows, in the order of the pack.

    Parameters
    ----------
    path : str, path, Pack, or a list of them
        Pack or its URL; or what open_pack or fill_pack returned. A list is one pack that holds the rows of all, one after the other;
        a list of (path, weight) gives each batch these shares of them.
    batch_size : int
        Rows of a batch, per rank.
    shuffle : bool
        Choose an order as good as a uniform shuffle: "blocks" for a pack that was shuffled when it was made, else "rows".
    order : str or order, optional
        "sequential", "slices", "blocks", "rows", "regions", or Slices(rows=...), Blocks(window=...), Weighted(weights),
        Balanced("label"), Buckets(), Mixture(...). Wins over shuffle.
    seed : int
        Seed of the order and of the augmentations' draws; each epoch differs.
    device : str or torch.device
        "cpu", "cuda" (pinned memory, asynchronous copies), or "auto": CUDA where there is a device.
    placement : str
        Where rows are kept meanwhile: "disk", "ram" (shared by the processes of a node), "pinned", "gpu", or "auto", by size.
    output : "torch" or "numpy"
        Type of the batches; NumPy's images are [N, H, W, C].
    fields : sequence of str, optional
        Default: all but "key". Ragged ones, like "key" or "boxes", give a list with an entry a row; "row" the number in the pack.
    split, classes, subset : optional
        Rows of one split ("all" for every row); of some classes, names or numbers; row numbers, a slice, range or boolean array.
    augment : sequence of transforms, Pipeline, str or mapping, optional
        Transforms of packer.augment for ``image`` and its masks, boxes and keypoints, on the device, drawn from (seed, epoch, row).
        A mapping of names to such makes several views in place of ``image``. Normalize() means the pack's mean and std.
    transform : function or PythonTransform, optional
        Python function of a sample (a dict of arrays), run in processes.
    collate : "list", "pad" or Padding, optional
        Images that differ in size as a list, or padded to one tensor, with the fields ``pixel_mask`` and ``image_sizes``.
    ends : "even", "uneven", "drop" or "pad", optional
        Rows that do not fill a batch on every rank: the epoch's first rows again, until ranks have equally many ("even"), or batches are
        full ("pad"); none again ("uneven"), or left out ("drop", as drop_last=True). Default: "even", in sequential order "uneven".
    rank, world_size : int, optional
        Default: torch.distributed's, a Ray Train worker's or torchrun's, asked whenever an epoch begins, else 0 of 1.
    threads, prefetch : int, optional
        Threads that read and decode (default: the cores, at most 4 where nothing is decoded); batches read ahead of the loop.

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
    ) -> None:
        plan = LoadPlan.resolve(
            ChosenRows.open(path, fields, split=split, classes=classes, subset=subset),
            EpochArguments(batch_size, shuffle, order, seed, ends, drop_last, rank, world_size),
            BatchArguments(output, device, placement, augment, transform, collate, threads, prefetch),
        )
        self._keep(plan.rows)
        self._follow(plan)
        self._progress, self._stats, self._making = EpochProgress(plan), Stats(), ForkSafeLock()
        self._engine: BatchEngine | None = None
        self._dataset: PackedDataset | None = None
        self._warned, self._loops = False, 0  # loops under way
        _LOG.info("%s: placement %r: %s", self.pack.path, plan.placement, plan.reason)
        for text in filter(None, (plan.rows.overlooked, plan.slow_order())):
            warnings.warn(text, stacklevel=3)
        self._warn_of(plan.share(0), stacklevel=4)
        register(PackedBatchDataset, load=False)

    def _follow(self, plan: LoadPlan) -> None:
        """Tell of a plan by the attributes of the dataset."""
        self.rows, self.batch_size = plan.rows.subset.rows, plan.batch_size
        self.seed, self.order, self.ends = plan.order.seed, plan.order, plan.ends
        self.output, self.device, self.placement = plan.output, plan.device, plan.placement
        self.threads, self.prefetch = plan.threads, plan.prefetch

    @property
    def _plan(self) -> LoadPlan:
        return self._progress.plan

    @property
    def rank(self) -> int:
        """Rank of this process: as given, or found now."""
        return self._plan.ranks.now()[0]

    @property
    def world_size(self) -> int:
        """Processes that share an epoch: as given, or found now."""
        return self._plan.ranks.now()[1]

    @property
    def sampler(self) -> PackedBatchDataset:
        """Itself: Lightning looks here, and at `batch_sampler`, for the ``set_epoch`` that it calls before each epoch."""
        return self

    batch_sampler = sampler

    @property
    def views(self) -> Mapping[str, Pipeline]:
        """Pipelines that `augment` means for this pack, by the name of the field that each makes of ``image``."""
        return dict(self._plan.views)

    @property
    def resident(self) -> bool:
        """True once all rows are where `placement` keeps them by now; always False for "disk"."""
        return self._engine is not None and self._engine.store.ready

    @property
    def dataset(self) -> PackedDataset:
        """The same rows one by one: ``len(ds.dataset)`` is the number of rows, of all ranks together."""
        if self._dataset is None:
            self._dataset = PackedDataset.of_rows(self._rows)
        return self._dataset

    @property
    def epoch(self) -> int:
        """The epoch that the last ``iter()`` began, or, before one, that the next begins or goes on with; ``batch(i)`` reads it."""
        return self._progress.epoch

    @property
    def batches_left(self) -> int:
        """Batches that the next ``iter()`` gives: ``len()``, but for an epoch that goes on after load_state_dict."""
        return self._plan.share(self._progress.coming()[1]).steps

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that ``batch(i)`` reads and the next ``iter()`` begins (or goes on with, after load_state_dict)."""
        self._progress.set_epoch(whole("epoch", epoch, 0))

    def state_dict(self) -> dict[str, Any]:
        """Return where the latest iterator is: seed, epoch, rows handed to all ranks together, and the order.

        The same on every rank, if all have been handed as many batches. JSON can hold it. Prefetched batches do not count.
        """
        return self._progress.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state_dict was taken: the next ``iter()`` gives the rest of its epoch, on any number of ranks.

        Seed and lengths of slices are taken from the state. Raises UsageError if it is of other rows or another order.
        """
        old = self._plan
        self._progress.load(state)
        new = self._plan
        if new.order.length != old.order.length:
            self.close()  # batches may be larger than those that slots were made for
        elif new.views is not old.views:
            self._end_engine()  # which has the old ones
        self._follow(new)
        self._keep_blocks()

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch on this rank."""
        return self._plan.share(0).steps

    def __repr__(self) -> str:
        """Return a summary over several lines: rows, fields, order, placement, device and ranks."""
        return self._summary(**self._plan.lines(self.epoch))

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the next epoch, which begins when the first is asked for; of the rest of one after load_state_dict.

        So an iterator that is only made, as frameworks make one to see whether they can, begins none.
        """
        check_no_worker()
        mark = self._progress.begin()
        self._loops += 1
        told: AccelerateLoop | None = None
        try:
            plan = self._plan
            plan.ranks.check_own(self)
            share = plan.share(mark.handed)
            self._warn_of(share)
            plan.ranks.warn(self.rows, stacklevel=3)
            self._stats = stats = Stats(mark.epoch, readers=self.threads)
            if self._loops == 1 and self._settle():  # else the other loop reads from what is open
                self._end_engine()
            engine = self._running()
            requests = read_requests(self.order, mark.epoch, share, engine.batches, engine.store.ahead_rows)
            n, whole, positions = share.n, share.whole, share.origin
            end = positions + share.steps * whole
            ranks = share.rank, share.world_size
            told = AccelerateLoop.begun(ranks, n - end + whole, share.ends == "uneven")
            for batch in engine.batches_of(requests, stats):
                positions += whole
                if told is not None and positions >= end:
                    told.end_of_dataloader = True
                mark.handed = positions if positions < n else n
                yield batch
                del batch  # held here, the slot would come back one batch later
            mark.handed = n
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
        self._plan.ranks.warn(self.rows, stacklevel=3)
        share = self._plan.share(0)
        return self._batch(self.epoch, share, whole("number", number, 0, share.steps - 1))

    def _batch(self, epoch: int, share: Share, step: int) -> Any:
        """Return batch number `step` of a whole epoch, read now."""
        request = read_request(self.order, epoch, share, step, step + 1)
        return next(self._running().batches_of([request], Stats()))

    def __enter__(self) -> PackedBatchDataset:
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
        """Return the time spent in each stage since the latest ``iter()``; printed, it is one line."""
        return self._stats

    def replay(self, count: int = 8) -> Iterator[Any]:
        """Return the first `count` batches of the present epoch again and again, ``len()`` of them in all, from memory.

        What an infinitely fast loader would give: train on it, and what the step still takes is its own. The batches are
        kept as they are handed out, on their device; leave them unchanged. It begins no epoch.
        """
        epoch, share = self.epoch, self._plan.share(0)
        kept = [self._batch(epoch, share, step) for step in range(min(whole("count", count, 1), share.steps))]
        return (kept[step % len(kept)] for step in range(len(self)))

    def close(self) -> None:
        """End the threads and processes and close the files; batches handed out stay valid, and iterating again starts anew."""
        if (engine := self._engine) is not None:
            engine.drop()
        with ExitStack() as closing:  # first: threads may be waiting for rows
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
                f"{self.pack.path}: of {share.n:,} rows the last {(share.n - share.origin) % share.whole} are fewer than the"
                f" {share.world_size} ranks, so some ranks get a batch less; ranks that wait for each other would hang."
                " Pass ends='even', ends='pad' or ends='drop'.",
                stacklevel=stacklevel,
            )

    def _running(self) -> BatchEngine:
        """Return the engine of this process, making a new one after a fork, unpickling or close()."""
        with self._making:
            if self._engine is None or self._engine.pid != os.getpid():
                self._keep_blocks()
                self._engine = self._plan.engine(self._store)
            return self._engine

    def _keep_blocks(self) -> None:
        """Make the store keep the decoded blocks of two windows: the threads read ahead of the loop."""
        self._store.keep(self.order.mixed_rows(self.world_size))


def register(dataset: type, *, load: bool) -> None:
    """Register a class as an IterableDataset of torch, so that frameworks do not shard it again.

    torch's default_collate refuses its batches from then on. load: import torch if necessary; else do nothing until it is imported.
    """
    data = importlib.import_module("torch.utils.data") if load else sys.modules.get("torch.utils.data")
    if data is not None:
        data.IterableDataset.register(dataset)
        data._utils.collate.default_collate_fn_map[Batched] = _refuse_collating


def _refuse_collating(*_: Any, **__: Any) -> NoReturn:
    raise UsageError(
        "DataLoader over PackedBatchDataset: its items are batches already, and DataLoader's batch_size (1 unless given) would"
        " put batches of them together. Iterate over the dataset itself, pass DataLoader(ds, batch_size=None), or take PackedDataset,"
        " whose items are rows."
    )


def check_no_worker() -> None:
    """Raise UsageError in a DataLoader's worker, of which each would give all batches. Imports nothing."""
    data: Any = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        raise UsageError(
            "PackedBatchDataset: is iterated in a worker of a DataLoader; it reads ahead with threads of its own, in this process."
            " Pass num_workers=0 with batch_size=None, or take PackedDataset, whose items are rows."
        )
