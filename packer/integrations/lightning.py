"""PackedDataModule: the packs of a training as Lightning's DataModule.

Its loaders are PackedBatchDatasets: Lightning saves their state in checkpoints, and calls their ``set_epoch``
before each epoch. This module only chooses their arguments: device and ranks of the Trainer, and no
randomness in evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from packer.errors import MissingDependencyError, UsageError
from packer.load.batch_dataset import PackedBatchDataset

try:
    import lightning
except ImportError:
    raise MissingDependencyError("lightning", "PackedDataModule") from None

if TYPE_CHECKING:
    import torch

    from packer.augment import Pipeline
    from packer.load.augmenting import Augment
    from packer.load.base_dataset import PackPaths

    Source = PackPaths | Mapping[str, Any]

_TRAIN_ONLY = ("order", "ends", "drop_last")


class CountAnew(lightning.Callback):  # type: ignore[misc]
    """A callback that corrects Lightning's batch count if an epoch resumes on other devices or batch sizes.

    PackedDataModule adds it; pass it to the Trainer if you pass datasets to ``fit`` directly.
    """

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Set the number of finished batches to the epoch's length minus the batches left."""
        data = trainer.train_dataloader
        if isinstance(data, PackedBatchDataset):
            current = trainer.fit_loop.epoch_loop.batch_progress.current
            # A step that raised has started, and was not processed; the dataset hands its batch out again.
            shift = len(data) - data.batches_left - current.processed
            for name in ("ready", "started", "processed", "completed"):
                setattr(current, name, getattr(current, name) + shift)


class PackedDataModule(lightning.LightningDataModule):  # type: ignore[misc]
    """A LightningDataModule whose loaders are `PackedBatchDataset`.

    Under every strategy each rank loads its part, whatever `use_distributed_sampler` says. Checkpoints hold
    the position in the epoch, and ``fit(..., ckpt_path=...)`` resumes with the next row, on any number of
    devices.

    Training rows are shuffled and augmented. Evaluation reads rows in stored order, each once, with
    `eval_augment`, so metrics summed over the ranks are exact. (All ranks get equally many batches: if the
    last global batch would have fewer rows than there are ranks, the batch size is changed.)

    Parameters
    ----------
    train, val, test, predict : path, Pack, list of them, or mapping, optional
        Packs, as PackedBatchDataset takes them; or a mapping with ``"path"`` and arguments for this loader
        alone: ``val={"path": "photos.h5", "split": "val", "batch_size": 512}``.
    batch_size : int
        Rows of a batch, per device.
    augment : sequence of transforms, Pipeline, str or mapping, optional
        Augmentation of the training images. Normalize() without numbers uses mean and std of `train` for all.
    eval_augment : the same, optional
        Augmentation of the other loaders; required with `augment`. ``[]``: images as stored.
    shuffle : bool
        Shuffle the training rows.
    device : str or torch.device, optional
        Device of the batches; default: the Trainer's, if it is a CPU or a CUDA device. Lightning moves
        batches to other devices.
    **options
        Other arguments of PackedBatchDataset, for all four; `order`, `ends` and `drop_last` only for `train`.

    Raises
    ------
    MissingDependencyError
        Lightning is not installed (when this module is imported).
    UsageError
        An argument is wrong; raised when the loader is created.

    Examples
    --------
    ::

        from packer.integrations.lightning import PackedDataModule

        data = PackedDataModule("train.h5", batch_size=8, augment="RandomHorizontalFlip(), Normalize()",
                                val="train.h5", eval_augment="Normalize()")
        lightning.Trainer(max_epochs=2).fit(model, data)
    """

    def __init__(
        self,
        train: Source | None = None,
        val: Source | None = None,
        test: Source | None = None,
        predict: Source | None = None,
        *,
        batch_size: int,
        augment: Augment | None = None,
        eval_augment: Augment | None = None,
        shuffle: bool = True,
        device: str | torch.device | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.batch_size = batch_size  # Lightning's Tuner sets it
        self._sources = {"train": train, "val": val, "test": test, "predict": predict}
        self._augment, self._eval_augment = augment, eval_augment
        self._shuffle, self._device, self._options = shuffle, device, options
        self._made: dict[str, PackedBatchDataset] = {}
        # Lightning looks for these methods, and warns of those that have no matching step
        for role, source in self._sources.items():
            if source is not None:
                setattr(self, f"{role}_dataloader", partial(self.loader, role))

    def setup(self, stage: str) -> None:
        """Add CountAnew to the Trainer's callbacks."""
        if stage == "fit" and not any(isinstance(one, CountAnew) for one in self.trainer.callbacks):
            self.trainer.callbacks.append(CountAnew())

    def teardown(self, stage: str) -> None:
        """End the loaders' threads and close their files."""
        for dataset in self._made.values():
            dataset.close()
        self._made.clear()

    def loader(self, role: str) -> PackedBatchDataset:
        """Return the batches of "train", "val", "test" or "predict"; ``train_dataloader()`` etc. call it."""
        arguments = self._arguments(role)
        if role == "train":
            dataset = PackedBatchDataset(**arguments)
        else:
            if "augment" not in arguments:
                arguments["augment"] = self._eval_views(role)
            dataset = _every_row(arguments)
        if role in self._made:
            self._made[role].close()
        self._made[role] = dataset
        return dataset

    def _arguments(self, role: str) -> dict[str, Any]:
        """Return the arguments of a dataset, without the augmentation for evaluation."""
        source = self._sources[role]
        own = dict(source) if isinstance(source, Mapping) else {"path": source}
        common: dict[str, Any] = {"batch_size": self.batch_size, "device": str(self._device or "cpu")}
        if self.trainer is not None:
            root = self.trainer.strategy.root_device
            if self._device is None and root is not None and root.type == "cuda":
                common["device"] = str(root)
            found = self.trainer.distributed_sampler_kwargs  # the strategy's number of model replicas
            if found:
                common |= {"rank": found["rank"], "world_size": found["num_replicas"]}
        if role == "train":
            shuffle = {} if "order" in self._options or "order" in own else {"shuffle": self._shuffle}
            return common | shuffle | {"augment": self._augment} | self._options | own
        if "transform" in self._options and "transform" not in own:
            raise UsageError(
                f"transform: is given for all, and may draw; {role} needs a transform without draws, or none."
                f" Pass {role}={{'path': ..., 'transform': ...}}."
            )
        shared = {name: value for name, value in self._options.items() if name not in _TRAIN_ONLY}
        return common | shared | own

    def _eval_views(self, role: str) -> Mapping[str, Pipeline] | Pipeline | None:
        """Return the augmentation of an evaluation pack, with the normalization of `train`."""
        reference = self._arguments("train" if self._sources["train"] is not None else role)
        given = self._eval_augment
        if given is None and reference.get("augment", self._augment):
            raise UsageError(
                "eval_augment: is missing, and augment is only for the training images; evaluation needs"
                " images of the same size and normalization, without draws. Pass for example"
                " eval_augment='CenterCrop(224), Normalize()', or [] for none."
            )
        if not given:
            return None
        with PackedBatchDataset(**reference | {"augment": given}) as dataset:
            views = dataset.views
        return views if isinstance(given, Mapping) else views.get("image")


def _every_row(arguments: dict[str, Any]) -> PackedBatchDataset:
    """Return a dataset in stored order, each row once, with equally many batches on all ranks.

    If the last global batch would have fewer rows than there are ranks, the function takes the nearest batch
    size that leaves enough for all.
    """
    if "ends" in arguments or "drop_last" in arguments:
        return PackedBatchDataset(**arguments)
    even = PackedBatchDataset(**arguments, ends="even")
    rows, ranks, size = even.order.length, even.world_size, even.batch_size
    if rows % (size * ranks) == 0 or rows < ranks:  # with fewer rows than ranks some must be repeated
        return even
    even.close()
    return PackedBatchDataset(**arguments | {"batch_size": _even_size(size, rows, ranks)}, ends="uneven")


def _even_size(size: int, rows: int, ranks: int) -> int:
    """Return the nearest batch size, smaller first, whose last global batch has rows for all ranks."""
    sizes = chain(range(size, 0, -1), range(size, rows))
    return next(b for b in sizes if not 0 < rows % (b * ranks) < ranks)
