"""Words and habits of other loaders that a dataset refuses, each with what to write instead.

Three ways lead here: a keyword of torch's DataLoader, torchvision or FFCV given to a constructor; an attribute set on a dataset
that is already made; and torch's wrappers (``Subset``, ``random_split``, ``DataLoader(batch_size=4)``) around a dataset of batches.
All three would go unnoticed otherwise: what is set changes nothing, what is wrapped gives other rows than were asked for.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature, unwrap
from types import FrameType
from typing import Any, NoReturn, ParamSpec

from packer.errors import UsageError
from packer.orders.epochs import RowOrder

P = ParamSpec("P")
_THREADS = "threads read and decode, in this process. Pass threads=, or leave it out"
_WORKERS = (
    "threads outlive epochs, and processes are for PythonTransform(fn, processes=...) alone. Leave it out"
)
_RANKS = "ranks are found, or given. Pass rank= and world_size=, or leave it out"
_SAMPLER = "an order draws the rows. Pass order=, such as Weighted(weights) or Balanced('label'), or subset= with row numbers"
_PINNED = "device='cuda' pins the buffers and copies from them asynchronously. Pass device='cuda', or 'auto'"
_CLOSEST = 0.85
"""Likeness of a name to the one that is meant, as difflib counts."""

BATCHES: dict[str, str] = {
    "num_workers": _THREADS,
    "workers": _THREADS,
    "pin_memory": _PINNED,
    "pin_memory_device": _PINNED,
    "non_blocking": _PINNED,
    "collate_fn": "batches are read whole, and nothing is collated."
    " Pass transform=PythonTransform(fn, batched=True), whose fn gets and returns batches",
    "sampler": _SAMPLER,
    "batch_sampler": f"batch_size= cuts the batches, and {_SAMPLER}",
    "persistent_workers": _WORKERS,
    "worker_init_fn": _WORKERS,
    "multiprocessing_context": "only Python transforms run in processes. Pass transform=PythonTransform(fn, context=...)",
    "prefetch_factor": "batches are read ahead of the loop. Pass prefetch=",
    "batches_ahead": "batches are read ahead of the loop. Pass prefetch=",
    "generator": "one number decides order and draws. Pass seed=",
    "timeout": "nothing is waited for without end. Leave it out",
    "in_order": "batches always come in order. Leave it out",
    "shuffle_buffer": "an order shuffles, without a buffer. Pass shuffle=True, or order=Blocks(window=...)",
    "shuffle_buffer_size": "an order shuffles, without a buffer. Pass shuffle=True, or order=Blocks(window=...)",
    "buffer_size": "an order shuffles, without a buffer. Pass shuffle=True, or order=Blocks(window=...)",
    "transforms": "one function gets the sample, the image and all that belongs to it."
    " Pass augment= (on the device), or transform= (a Python function of the sample)",
    "target_transform": "one function gets the sample, labels too."
    " Pass transform=lambda sample: {**sample, 'label': f(sample['label'])}",
    "pipelines": "names of transforms make a pipeline. Pass augment=, or transform= (a Python function of the sample)",
    "indices": "subset= names the rows. Pass subset= with row numbers",
    "os_cache": "placement= says where rows are kept. Pass placement=, or leave it out",
    "distributed": _RANKS,
    "num_replicas": _RANKS,
    "num_shards": _RANKS,
    "shard_id": _RANKS,
    "dataset": "the pack is the first argument. Pass its path",
    "root": "the pack is the first argument. Pass its path",
    "train": "split= names a split of the pack. Pass split='train'",
    "batch": "batch_size= is the rows of a batch. Pass batch_size=",
}
"""Words of other loaders, and what stands for each in PackedBatchDataset."""

_CONVERTS = frozenset(("workers",))
"""Words of other loaders that are options of a conversion, too."""

_LOADER = "it is an argument of the loader. Pass it to torch's DataLoader"
ROWS: dict[str, str] = {
    **dict.fromkeys(
        (
            *("num_workers", "pin_memory", "pin_memory_device", "collate_fn", "sampler", "batch_sampler"),
            *("persistent_workers", "prefetch_factor", "worker_init_fn", "multiprocessing_context"),
            *("generator", "timeout", "drop_last", "shuffle", "batch_size"),
        ),
        f"{_LOADER}, or take PackedBatchDataset(path, batch_size), which loads batches",
    ),
    "transforms": "an image has transform=, a label target_transform=."
    " Pass these, or take PackedBatchDataset(augment=...), which moves masks and boxes with the image",
    "augment": "it works on batches. Pass augment= to PackedBatchDataset, or transform= here",
    "device": "rows stay on the CPU. Take PackedBatchDataset(device=...), or move the batch in the loop",
    "order": "the DataLoader's sampler orders rows. Take PackedBatchDataset(order=...), or leave it out",
    "seed": "the DataLoader's generator orders rows. Take PackedBatchDataset(seed=...), or leave it out",
    "indices": BATCHES["indices"],
    "dataset": BATCHES["dataset"],
    "root": BATCHES["root"],
    "train": BATCHES["train"],
    "loader": "rows of a pack need no decoder of files. Leave it out",
    "download": "a pack is a file that is there. Leave it out",
}
"""Words of other loaders, and what stands for each in PackedDataset."""

_CHANGES = {
    "epoch": "Call set_epoch(e)",
    "targets": "Convert with other labels, or map them with a transform",
    "labels": "Convert with other labels, or map them with a transform",
    "class_to_idx": "Convert with other labels, or map them with a transform",
    "samples": "Pass subset= with row numbers when it is made",
    "imgs": "Pass subset= with row numbers when it is made",
    "data": "Pass subset= with row numbers when it is made",
    "rows": "Pass split=, classes= or subset= when it is made",
    "pack": "Make another dataset",
    "dataset": "Make another dataset",
    "keys": "Make another dataset",
    "resident": "Pass placement= when it is made",
    "batches_left": "Call load_state_dict(state)",
}
"""Attributes that are no arguments, with the remedy for who sets them."""

_MISSING = {
    "path": "Pass the pack's path first",
    "batch_size": "Pass batch_size=, the rows of a batch, or take PackedDataset(path), whose items are rows",
}
"""Arguments that have no default, with the remedy for who leaves them out."""


class Absent:
    """An attribute that datasets of other loaders have and ours lack: reading it raises an AttributeError that names ours.

    It takes the place of no attribute: ``hasattr`` is False, and a subclass may set one of that name.
    """

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, dataset: object, owner: type) -> NoReturn:
        raise AttributeError(
            f"{owner.__name__}.{self._name}: there is no such attribute; {self._remedy}.",
            name=self._name,
            obj=dataset,
        )


def own_class(kind: type) -> type:
    """Return packer's own class of a user's subclass, whose arguments are the user's."""
    return next(base for base in kind.__mro__ if "_words" in base.__dict__)


def arguments(dataset: type) -> list[str]:
    """Return the argument names of a dataset's constructor."""
    return [
        name
        for name, parameter in signature(dataset).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]


def checked(make: Callable[P, None]) -> Callable[P, None]:
    """Decorate a dataset's ``__init__``: keywords that it does not have, then arguments that are missing, are a UsageError."""
    _, *parameters = signature(make).parameters.values()
    allowed = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
    needed = [p.name for p in parameters if p.name in allowed and p.default is p.empty]

    @wraps(make)
    def made(*given: P.args, **named: P.kwargs) -> None:
        for name in named:
            if name not in allowed:
                _check_keyword(own_class(type(given[0])), name, named)
        if missing := [name for name in needed[len(given) - 1 :] if name not in named]:
            own = own_class(type(given[0])).__name__
            raise UsageError(
                f"{missing[0]}=: is missing; {own}({', '.join(needed)}) needs it. {_MISSING[missing[0]]}."
            )
        make(*given, **named)

    return made


def _check_keyword(dataset: type, name: str, named: Mapping[str, Any]) -> None:
    """Raise UsageError for a keyword that a dataset does not have, but for options of the conversion where there is one."""
    words, known = vars(dataset)["_words"], arguments(dataset)
    if named.get("cache") is not None and "cache" in known and (name not in words or name in _CONVERTS):
        return
    remedy = words.get(name)
    if remedy is None:
        close = difflib.get_close_matches(name, known, 1)
        remedy = (
            f"the nearest is {close[0]}=. Pass that"
            if close
            else f"its arguments: {', '.join(known)}. Pass some of these"
        )
    raise UsageError(f"{name}=: is no argument of {dataset.__name__}; {remedy}.")


def refuse_attribute(dataset: type, name: str) -> None:
    """Raise UsageError if setting this attribute on a dataset that is made would change nothing.

    Refused are arguments of the constructor, what a dataset tells of itself, words of other loaders, and names like these: any
    other name is a note of the user's own.
    """
    words, known = vars(dataset)["_words"], arguments(dataset)
    called = f"{dataset.__name__}.{name}: was set on a dataset that is made, where it would not take effect"
    for meant in (name, *difflib.get_close_matches(name, [*known, *words, *_CHANGES], 1, _CLOSEST)):
        if meant in known:
            raise UsageError(f"{called}. Pass {meant}= to {dataset.__name__}(...).")
        if meant in _CHANGES:
            raise UsageError(f"{called}. {_CHANGES[meant]}.")
        if meant in words:
            raise UsageError(f"{called}; {words[meant]}.")


def in_method_of(kind: type, frame: FrameType) -> bool:
    """Return True if the frame runs a method of the class or of a base class.

    Reads no local variables of the frame: that would keep all of them alive.
    """
    code = frame.f_code
    for base in kind.__mro__:
        found: Any = base.__dict__.get(code.co_name)
        function: Any = getattr(found, "fget", None) or getattr(found, "func", None) or found
        if getattr(unwrap(function), "__code__", None) is code:
            return True
    return False


COLLATING = (
    "DataLoader over PackedBatchDataset: its items are batches already, and DataLoader's batch_size (1 unless given) would"
    " put batches of them together. Iterate over the dataset itself, pass DataLoader(ds, batch_size=None), or take PackedDataset,"
    " whose items are rows."
)
_BY_NUMBER = (
    "{} over PackedBatchDataset: it would pick batches by number, those of one epoch"
    " again and again. Make one pack of several with packer merge, or join PackedDataset, whose items are rows."
)
_PARTS = (
    "{} over PackedBatchDataset: it would pick whole batches, whose rows are others in each epoch, so that parts share"
    " rows. Pass split=, classes= or subset= with row numbers to PackedBatchDataset, or take PackedDataset, whose items are rows."
)
_CALLERS: dict[str, dict[str, str]] = {
    "torch.utils.data.dataset": {
        "ChainDataset": "",  # iterates over one dataset after the other
        "StackDataset": _BY_NUMBER,
        "ConcatDataset": _BY_NUMBER,
        "cumsum": _BY_NUMBER.format(
            "ConcatDataset"
        ),  # which takes no IterableDataset, unless Python leaves assertions out
        "": _PARTS,
    },
    "accelerate.data_loader": {
        "skip_first_batches": "skip_first_batches over PackedBatchDataset: it takes batches for lists of row numbers. Pass"
        " skip_first_batches(DataLoader(ds, batch_size=None), n), or call ds.load_state_dict(state), which reads nothing twice.",
        "IterableDatasetShard": "accelerate's dispatch_batches=False over PackedBatchDataset: it would shard batches that are each"
        " rank's own already. Iterate over the dataset itself, which needs no prepare, or leave dispatch_batches out.",
    },
}
"""Functions and classes that would take batches for rows, or shard them again: module -> name -> sentence; "": any other name."""


def refuse_caller() -> None:
    """Raise UsageError if the function that called the dataset's method takes batches for something else."""
    frame = sys._getframe(2)
    module = frame.f_globals.get("__name__")
    if module in _CALLERS:
        caller = frame.f_locals.get("self")
        name = frame.f_code.co_name if caller is None else type(caller).__name__
        if sentence := _CALLERS[module].get(name, _CALLERS[module].get("")):
            raise UsageError(sentence.format(name))
    elif module == "torch.utils.data._utils.fetch":
        fetcher: Any = frame.f_locals.get("self")
        if getattr(fetcher, "auto_collation", False):
            raise UsageError(COLLATING)


def refuse_overfitting(order: RowOrder) -> None:
    """Raise for Lightning's overfit_batches, which looks for a `dataset` to give it another sampler.

    A dataset in sequence reads the same batches in each epoch, and is left as it is (AttributeError); in a shuffled one the first
    batches differ from epoch to epoch. Raises UsageError for that.
    """
    frame = sys._getframe(2)
    module = str(frame.f_globals.get("__name__"))
    while frame.f_code.co_name == "<listcomp>" and frame.f_back is not None:
        frame = frame.f_back
    if not module.endswith("connectors.data_connector") or frame.f_code.co_name != "_resolve_overfit_batches":
        return
    if order.fixed:
        raise AttributeError("dataset: a sequence needs no other sampler to be overfitted.")
    raise UsageError(
        f"overfit_batches: the order {order.name!r} has other batches first in each epoch; only 'sequential' has the same."
        " Pass shuffle=False, or subset=range(n) with the rows to overfit, without overfit_batches."
    )


def shared_out_by_accelerate(frame: FrameType | None) -> bool:
    """Return True if accelerate's DataLoaderDispatcher is on the call stack.

    One process then reads for all: it takes one batch per process, concatenates them, and sends each process a part.
    """
    accelerate = sys.modules.get("accelerate.data_loader")
    while accelerate is not None and frame is not None:
        if frame.f_code.co_filename == accelerate.__file__ and isinstance(
            frame.f_locals.get("self"), accelerate.DataLoaderDispatcher
        ):
            return True
        frame = frame.f_back
    return False
