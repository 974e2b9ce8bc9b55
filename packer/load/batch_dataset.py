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
from typing import TYPE_CHECKING, Any

from packer.arguments import whole
from packer.errors import UsageError
from packer.foreign_words import refuses_foreign_words
from packer.load import order_choice
from packer.load.base_dataset import PackPaths
from packer.load.batch_plan import BatchPlan
from packer.load.epoch_progress import EpochProgress, ResumableEpochs, check_no_worker, register
from packer.load.padded_batches import Padding
from packer.load.prefetcher import Prefetcher
from packer.load.processes.transforms import PythonTransform
from packer.load.ranks import AccelerateLoop, TrainingRanks
from packer.load.row_dataset import PackedDataset
from packer.load.stats import Stats
from packer.orders.epochs import Context, RowOrder, Share, read_request, read_requests
from packer.orders.mixture import Mixture, single_orders
from packer.orders.row_orders import Rows
from packer.sentence import Option, Sentence
from packer.starting import ForkSafeLock

if TYPE_CHECKING:
    import torch
    from numpy.typing import ArrayLike

    from packer.augment import Pipeline
    from packer.load.augmenting import Augment

PREFETCH = 2
_LOG = logging.getLogger("packer.load")


class PackedBatchDataset(ResumableEpochs):
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
        if not isinstance(shuffle, bool):
            raise UsageError(
                f"shuffle={shuffle!r}: is neither True nor False. Pass one of them, or order={shuffle!r}."
            )
        self._open(path, fields, split=split, classes=classes, subset=subset)
        self.rows = self.subset.rows
        self.batch_size, self.seed = whole("batch_size", batch_size, 1), whole("seed", seed)
        self._ranks = TrainingRanks(self.pack.path, rank, world_size)
        whole_batch = self.batch_size * self.world_size
        about = order_choice.context(self._reader, self.subset, whole_batch, self._weights)
        self.order = order_choice.parse_order(order, shuffle, about)
        self._chosen = shuffle and (order.order if isinstance(order, Mixture) else order) is None
        self.ends = order_choice.parse_ends(ends, drop_last, ordered=self.order.fixed)
        self._plan = BatchPlan.resolve(
            self._reader,
            self.fields,
            self.subset,
            output=output,
            device=device,
            prefetch=prefetch,
            threads=threads,
            augment=augment,
            transform=transform,
            collate=collate,
            placement=placement,
        )
        self.output, self.device, self.placement = self._plan.output, self._plan.device, self._plan.placement
        self.threads, self.prefetch = self._plan.threads, self._plan.prefetch
        self._progress, self._stats, self._making = EpochProgress(), Stats(), ForkSafeLock()
        self._prefetcher: Prefetcher | None = None
        self._dataset: PackedDataset | None = None
        self._warned, self._loops = False, 0  # loops under way
        self._say(about)
        register(PackedBatchDataset, load=False)

    def _say(self, about: Context) -> None:
        """Log what was chosen, and warn of what is slow or differs between ranks. Raises UsageError if nothing is left to load."""
        path = self.pack.path
        _LOG.info("%s: placement %r: %s", path, self.placement, self._plan.reason)
        by_row = any(isinstance(one, Rows) for one in single_orders(self.order))
        if self._chosen and by_row and about.coded and self.placement == "disk":
            warnings.warn(
                Sentence(
                    f"{path}: its rows are compressed in blocks of {about.block_rows:,} and were not shuffled "
                    "when it was made, so a shuffled epoch decodes a block for almost every row. Convert it "
                    f"again without {Option('shuffle', False)}, or pass placement='ram', or order='slices' for "
                    "speed."
                ),
                stacklevel=4,
            )
        if not len(self) and self.ends == "drop":
            raise UsageError(
                f"{path}: has {self.rows} rows, fewer than one batch of {self.batch_size} on {self.world_size}"
                " ranks; drop_last=True leaves none. Pass a smaller batch_size, or drop_last=False."
            )
        self._warn_of(self._share(0), stacklevel=5)

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
        return dict(self._plan.views)

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
            placement=f"{self.placement!r}: {self._plan.reason}",
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
            requests = read_requests(
                self._sequence(mark.epoch), share, prefetcher.batches, prefetcher.ahead_rows
            )
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

    def stats(self) -> Stats:
        """Return the time spent in each stage since the latest ``iter()``; printed, it is one line."""
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

    def _resume(self, order: RowOrder, plan: BatchPlan) -> None:
        if order.length(self.rows) != self.order.length(self.rows):
            self.close()  # batches may be larger than those that slots were made for
        elif plan is not self._plan:
            self._end_prefetcher()  # which has the old one
        self.order, self._plan = order, plan
        self._keep_blocks()

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
                batch_rows = self.batch_size
                if self.ends != "pad":  # whose batches are full even where there are fewer rows
                    batch_rows = max(1, min(batch_rows, self.order.length(self.rows)))
                self._keep_blocks()
                self._prefetcher = self._plan.prefetcher(self._reader, batch_rows, self.seed)
            return self._prefetcher

    def _keep_blocks(self) -> None:
        """Make the reader cache the decoded blocks of two windows: the threads read ahead of the loop."""
        mixed = -(-self.order.mixed_rows(self.world_size) // self.pack.header.block_rows)
        self._reader.keep(2 * mixed + bool(mixed))  # a split may begin inside of a block
