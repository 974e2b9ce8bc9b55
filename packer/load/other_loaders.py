"""Words and habits of other loaders that a dataset refuses, each with what to write instead.

Three ways lead here: a keyword of torch's DataLoader, torchvision or FFCV given to a constructor; an attribute set on a dataset
that is already made; and torch's wrappers (``Subset``, ``random_split``, ``DataLoader(batch_size=4)``) around a dataset of batches.
All three would go unnoticed otherwise: what is set changes nothing, what is wrapped gives other rows than were asked for.
"""

from __future__ import annotations

import difflib
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, wraps
from inspect import signature, unwrap
from types import FrameType
from typing import Any, ClassVar, NoReturn, ParamSpec

import numpy as np

from packer.errors import UsageError
from packer.format.header import Field
from packer.format.pack import Pack, open_pack
from packer.orders.epochs import RowOrder
from packer.orders.runs import Subset, one_run
from packer.read.row_reader import RowReader, decode_ragged
from packer.read.row_selection import (
    class_names,
    overlooked_splits,
    read_column,
    select,
    select_fields,
    stored,
)

P = ParamSpec("P")
_THREADS = "threads read and decode, in this process. Pass threads=, or leave it out"
_WORKERS = (
    "threads outlive epochs, and processes are for PythonTransform(fn, processes=...) alone. Leave it out"
)
_RANKS = "ranks are found, or given. Pass rank= and world_size=, or leave it out"
_SAMPLER = "an order draws the rows. Pass order=, such as Weighted(weights) or Balanced('label'), or subset= with row numbers"
_PINNED = "device='cuda' pins the buffers and copies from them asynchronously. Pass device='cuda', or 'auto'"
_WRITTEN = 60  # letters of an argument that a description shows
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


_NO_FILES = "rows of a pack are no files. Ask for keys, the names of the files that they were, and targets, their labels"


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


class Fixed(list[Any]):
    """A read-only list, equal to a plain one: a change of it would not change the dataset, so it raises TypeError."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "a dataset's list is read-only: what is set in it changes no row. Change list(...) of it"
        )

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self),)


class RowsInfo:
    """Base of the datasets: the rows of a pack that were chosen, and what they tell of themselves under torchvision's names.

    Classes, targets and keys are read when they are first asked for, in the order of the rows, and are read-only.
    A subclass may set attributes of its own in its methods, also in place of these.
    """

    pack: Pack
    fields: tuple[Field, ...]
    subset: Subset
    _words: ClassVar[Mapping[str, str]]
    """Words of other loaders, and ours for them."""
    _settable: ClassVar[tuple[str, ...]] = ()
    """Attributes that take effect when they are set."""
    samples = Absent(_NO_FILES)
    imgs = Absent(_NO_FILES)

    def _open(
        self,
        path: str | os.PathLike[str] | Pack,
        fields: Sequence[str] | None,
        *,
        verify: bool = False,
        **chosen: Any,
    ) -> None:
        """Open a pack, and choose fields and rows. chosen: split, classes and subset."""
        pack = path if isinstance(path, Pack) else open_pack(path)
        self._keep(pack, select_fields(pack, fields), select(pack, **chosen), _described(chosen), verify)
        if overlooked := overlooked_splits(pack, chosen["split"], chosen["subset"]):
            warnings.warn(overlooked, stacklevel=4)

    def _keep(
        self, pack: Pack, fields: tuple[Field, ...], subset: Subset, choice: str, verify: bool = False
    ) -> None:
        self.pack, self.fields, self.subset, self._choice = pack, fields, subset, choice
        self._names, self._stored = tuple(f.name for f in fields), stored(fields)
        self._reader = RowReader(pack, self._stored, verify=verify)

    def _summary(self, **lines: str) -> str:
        """Return the repr: name and pack, then one line for each property."""
        shapes = ", ".join(
            f"{f.name} {'of any length' if f.ragged else np.dtype(f.dtype)}{list(f.shape) if f.shape else ''}"
            for f in self.fields
        )
        rows = f"{self.subset.rows:,}" + (
            "" if self.subset.rows == self.pack.rows else f" of {self.pack.rows:,}"
        )
        told = {"rows": f"{rows} ({self._choice})" if self._choice else rows, "fields": shapes, **lines}
        first = f"{type(self).__name__} of {self.pack.path}"
        return "\n".join([first, *(f"    {key}: {text}" for key, text in told.items())])

    def __setattr__(self, name: str, value: Any) -> None:
        # A dataset's methods set what they like, a user's subclass's too; from elsewhere only what takes effect, or is a note.
        if (
            not name.startswith("_")
            and name not in self._settable
            and not _in_method_of(type(self), sys._getframe(1))
        ):
            _refuse_attribute(own_class(type(self)), name)
        super().__setattr__(name, value)

    @cached_property
    def classes(self) -> list[str]:
        """Names of the classes by number: all of the pack's, also where the dataset loads some of them only."""
        names = class_names(self.pack)
        if not names:
            raise AttributeError(
                f"{self.pack.path}: has no class names. Labels are in targets, if there are any."
            )
        return Fixed(names)

    @cached_property
    def class_to_idx(self) -> dict[str, int]:
        """Numbers of the classes by name."""
        return {name: number for number, name in enumerate(self.classes)}

    @cached_property
    def targets(self) -> list[Any]:
        """The label of each row: numbers, or lists of numbers where a label holds several. Costs 10 to 100 ms a million."""
        if all(f.name != "label" or f.ragged for f in self.pack.fields):
            raise AttributeError(f"{self.pack.path}: has no field 'label' of one length, so no targets.")
        return Fixed(read_column(self.pack, "label", self.subset).tolist())

    @cached_property
    def keys(self) -> list[str]:
        """The path of each row's input, as its folder, list or archive named it."""
        field = next((f for f in self.pack.fields if f.name == "key"), None)
        if field is None:
            raise AttributeError(f"{self.pack.path}: has no field 'key', so no keys.")
        runs, reader = self.subset.place(one_run(0, self.subset.rows)), RowReader(self.pack, [field])
        try:
            rows = reader.read_ragged(field.name, runs)
        finally:
            reader.close()
        return Fixed(decode_ragged(self.pack, field, rows, runs.rows().tolist()))


def _described(chosen: Mapping[str, Any]) -> str:
    """Return the arguments that choose rows as text, long ones shortened."""
    said = []
    for name, value in chosen.items():
        if value is not None:
            short = isinstance(value, str | int | slice | range) or (
                isinstance(value, list | tuple) and len(value) <= _WRITTEN
            )
            text = repr(value) if short else "..."
            said.append(f"{name}={text if len(text) <= _WRITTEN else '...'}")
    return ", ".join(said)


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
        if named.keys() - allowed:
            _refuse_keyword(own_class(type(given[0])), next(name for name in named if name not in allowed))
        if missing := [name for name in needed[len(given) - 1 :] if name not in named]:
            own = own_class(type(given[0])).__name__
            raise UsageError(
                f"{missing[0]}=: is missing; {own}({', '.join(needed)}) needs it. {_MISSING[missing[0]]}."
            )
        make(*given, **named)

    return made


def _refuse_keyword(dataset: type, name: str) -> NoReturn:
    words, known = vars(dataset)["_words"], arguments(dataset)
    remedy = words.get(name)
    if remedy is None:
        close = difflib.get_close_matches(name, known, 1)
        remedy = (
            f"the nearest is {close[0]}=. Pass that"
            if close
            else f"its arguments: {', '.join(known)}. Pass some of these"
        )
    raise UsageError(f"{name}=: is no argument of {dataset.__name__}; {remedy}.")


def _refuse_attribute(dataset: type, name: str) -> None:
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


def _in_method_of(kind: type, frame: FrameType) -> bool:
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
