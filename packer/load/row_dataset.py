"""PackedDataset: a pack as rows, for those who keep torch's DataLoader."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from packer.declared_types import checks_arguments
from packer.errors import UsageError
from packer.format.fields import Field
from packer.given_values import shown
from packer.load.base_dataset import BaseDataset, ChosenRows, PackPaths
from packer.load.batch import SlotLayout, allocate, as_tensor, batch_type, make_batch
from packer.load.batch_types import RowDataset, Value
from packer.load.row_windows import find_windows, group_frames
from packer.orders.runs import consecutive, one_run
from packer.orders.windows import WindowOrder, Windows
from packer.packs.row_keys import RowKeys, as_keys
from packer.pytorch import import_torch
from packer.read.array_store import PackStore
from packer.read.row_selection import ROW

if TYPE_CHECKING:
    import torch
    from numpy.typing import ArrayLike
    from typing_extensions import Self

    from packer.load.batch_types import Batch

ARGUMENTS = {"image": "transform", "label": "target_transform"}
"""Field -> name of the argument with its function."""


class PackedDataset(BaseDataset, RowDataset[Value]):
    """Rows of a pack, a map-style dataset for torch's DataLoader under fork, spawn and forkserver.

    ``len(ds)`` is the number of rows. ``ds[i]`` is one row as a named tuple ``(image, label, ...)``: image
    uint8 [C, H, W] (a view of [H, W, C] bytes), label an int64 scalar, other fields in their shape.
    ``ds[a:b]`` and ``ds[[i, j, ...]]`` are batches, images [N, C, H, W] with channels_last strides, read
    together into new memory. Keys work as indices too: ``ds["cat/1.jpg"]``.

    ``classes``, ``class_to_idx``, ``targets`` and ``keys`` describe the rows, in their order. ``transform``
    and ``target_transform`` can be set later; DataLoader workers that have started keep the old ones.

    Parameters
    ----------
    path : str, path or Pack, or a list of them
        Pack that ``packer convert`` wrote. A list of packs is read as one dataset, their rows one after the
        other; their fields and classes must be alike.
    fields : sequence of str, optional
        Names; default: all but texts, such as "key", which yield str. "row" is each row's number in the pack,
        int64, unless the pack has a field of that name.
    split : str or sequence of str, optional
        Rows of one split, or of several, in the order of the pack; "all" for every row. Without it, a pack
        with splits gives a warning.
    classes, subset : optional
        Rows of some classes, or of a selection, as in PackedBatchDataset.
    window : int or Windows, optional
        Samples of so many consecutive rows, as in PackedBatchDataset: ``ds[i]`` has images [window, C, H, W].
    transform : function, optional
        Function of an image, uint8 tensor [C, H, W], such as a Compose of torchvision.transforms.v2; its
        result replaces the image. It gets only the image, so it is refused beside masks, boxes and keypoints,
        which would not move with it.
    target_transform : function, optional
        Function of a label: a Python number, or a tensor if a label is several numbers. Its result replaces
        the label. Batches, ``ds[a:b]``, stack the results of both functions as torch's default_collate does.

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
    >>> from packer import PackedDataset
    >>> rows = PackedDataset("train.h5")
    >>> image, label = rows[0]
    >>> len(rows), list(image.shape), label.dtype
    (24, [3, 32, 32], torch.int64)
    >>> list(rows[[3, 1, 2]].image.shape)
    [3, 3, 32, 32]

    With a BatchSampler, torch's DataLoader reads a batch in one call and collates nothing:

    >>> from torch.utils.data import BatchSampler, DataLoader, RandomSampler
    >>> sampler = BatchSampler(RandomSampler(rows), batch_size=10, drop_last=False)
    >>> [len(labels) for images, labels in DataLoader(rows, sampler=sampler, batch_size=None)]
    [10, 10, 4]
    """

    _functions: dict[str, Callable[[Any], Any]]

    @overload
    def __init__(
        self: PackedDataset[torch.Tensor],
        path: PackPaths,
        *,
        split: str | Sequence[str] | None = None,
        classes: Sequence[str | int] | str | int | None = None,
        subset: ArrayLike | slice | range | None = None,
        window: Windows | int | None = None,
    ) -> None: ...
    @overload  # texts among the fields are str, and functions return anything
    def __init__(
        self: PackedDataset[Any],
        path: PackPaths,
        *,
        fields: Sequence[str] | None = None,
        split: str | Sequence[str] | None = None,
        classes: Sequence[str | int] | str | int | None = None,
        subset: ArrayLike | slice | range | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        window: Windows | int | None = None,
    ) -> None: ...
    @checks_arguments
    def __init__(
        self,
        path: PackPaths,
        *,
        fields: Sequence[str] | None = None,
        split: str | Sequence[str] | None = None,
        classes: Sequence[str | int] | str | int | None = None,
        subset: ArrayLike | slice | range | None = None,
        window: Windows | int | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        import_torch("PackedDataset")
        rows = ChosenRows.open(path, fields, split=split, classes=classes, subset=subset)
        if rows.weights:
            raise UsageError(
                "path: its packs have weights, by which batches are drawn; PackedDataset has each row once."
                " Pass a list of paths without weights, or take PackedBatchDataset."
            )
        self._keep(rows)
        self._windows = find_windows(window, rows)
        if rows.overlooked:
            warnings.warn(rows.overlooked, stacklevel=3)
        self._functions = {}
        self.transform, self.target_transform = transform, target_transform

    @property
    def transform(self) -> Callable[[Any], Any] | None:
        """Function of an image, or None. Can be set, as timm's create_loader does."""
        return self._functions.get("image")

    @transform.setter
    def transform(self, function: Callable[[Any], Any] | None) -> None:
        self._set_function("image", function)

    @property
    def target_transform(self) -> Callable[[Any], Any] | None:
        """Function of a label, or None. Can be set."""
        return self._functions.get("label")

    @target_transform.setter
    def target_transform(self, function: Callable[[Any], Any] | None) -> None:
        self._set_function("label", function)

    def _set_function(self, name: str, function: Callable[[Any], Any] | None) -> None:
        if function is None:
            self._functions.pop(name, None)
        else:
            _check_function(name, function, self.fields, self.pack.path)
            self._functions[name] = function

    @classmethod
    def from_rows(cls, rows: ChosenRows, windows: WindowOrder | None = None) -> Self:
        """Return the dataset of chosen rows, or of their windows. Imports torch only when rows are read."""
        made = cls.__new__(cls)
        made._keep(rows)
        made._functions, made._windows = {}, windows
        return made

    @cached_property
    def _row_keys(self) -> RowKeys:
        self.pack.check_keyed()
        if self._windows is not None:
            raise UsageError(f"{self.pack.path}: windows have no keys. Ask for them by number.")
        return RowKeys(self.pack.path, len(self), partial(_keys, self._store))

    def __len__(self) -> int:
        """Return the number of rows, or of windows."""
        return self.subset.rows if self._windows is None else self._windows.count

    def __repr__(self) -> str:
        """Return a summary over several lines: rows, fields and transforms."""
        made = {ARGUMENTS[name]: " ".join(repr(one).split()) for name, one in self._functions.items()}
        return self._summary(**made, placement="'disk': read when asked for")

    def __getitem__(
        self, index: int | str | slice | Sequence[int] | Sequence[str] | NDArray[Any]
    ) -> Batch[Value]:
        """Return a row for a number or key, or a batch for a slice, list or array of numbers or keys.

        Arrays may be NumPy's or torch's. Raises IndexError for wrong numbers, and UsageError for keys that no
        row of the dataset has, or several have.
        """
        if isinstance(index, slice):
            return self._batch(np.arange(*index.indices(len(self))))
        numbers = self._numbers(index)
        if numbers.size and numbers.dtype.kind not in "iu":
            raise IndexError(f"rows are picked by whole numbers or keys, not by {numbers.dtype}")
        if not numbers.ndim:
            return self._each(np.array([numbers], np.int64))[0]
        return self._batch(np.atleast_1d(numbers.astype(np.int64)))

    def __getitems__(self, indices: Sequence[int] | Sequence[str]) -> list[Batch[Value]]:
        """Return a list of rows that are read together; DataLoader collates them. Raises as __getitem__."""
        return self._each(self._numbers(indices).astype(np.int64))

    def _each(self, rows: NDArray[np.int64]) -> list[Batch[Value]]:
        columns = self._transformed(self._read(rows))
        every = zip(*columns.values(), strict=True)
        return list(map(batch_type(tuple(columns), object)._make, every))  # type: ignore[attr-defined]

    def _numbers(self, index: Any) -> NDArray[Any]:
        """Return an index as an array, keys replaced by row numbers."""
        numbers = np.asarray(index)
        # An array of several axes: accelerate's skip_first_batches mistakes batches for lists of row numbers.
        if numbers.ndim > 1:
            shape = list(numbers.shape)
            raise IndexError(f"rows are picked by a list of whole numbers, not by an array {shape}")
        keys = as_keys(index, numbers)
        return numbers if keys is None else self._row_keys.rows(keys).reshape(numbers.shape)

    def close(self) -> None:
        """Close the files; reading opens them again."""
        self.pack.close()
        self._store.close()

    def _batch(self, rows: NDArray[np.int64]) -> Batch[Value]:
        columns = self._read(rows)
        if len(rows):
            columns = self._transformed(columns)
            for name in self._functions:
                columns[name] = _stack(columns[name], ARGUMENTS[name])
        lists = all(isinstance(column, list) for column in columns.values())
        batch: Batch[Value] = make_batch(tuple(columns), columns.values(), lists=lists)
        return batch

    def _transformed(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Apply the user's functions: each of their fields becomes a list of results."""
        for name, function in self._functions.items():
            if name == "label":
                columns[name] = [function(_plain(value)) for value in columns[name]]
            else:
                columns[name] = _images(function, columns[name])
        return columns

    def _read(self, rows: NDArray[np.int64]) -> dict[str, Any]:
        """Read all fields of some rows, or windows, into new memory: arrays [n, ...], ragged as lists."""
        n = len(self)
        if rows.size and not (-n <= rows.min() and rows.max() < n):
            raise IndexError(f"row {rows.min() if rows.min() < -n else rows.max()} of {n}")
        rows = np.where(rows < 0, rows + n, rows)
        if self._windows is None:
            return self._frames(rows)
        frames = self._frames(self._windows.frames(rows)[0].reshape(-1))
        batch = make_batch(tuple(frames), frames.values())
        return dict(group_frames(batch, self._windows, rows)._asdict())

    def _frames(self, rows: NDArray[np.int64]) -> dict[str, Any]:
        runs = consecutive(rows)
        layout = SlotLayout(self._stored, max(len(rows), 1))
        memory = allocate(layout.nbytes)
        self._store.copy(runs, layout.raw(memory, len(rows)))
        arrays, store = layout.typed(memory, len(rows)), self._store
        if ROW in self.fields:
            arrays[ROW.name] = store.place(runs).rows()
        return {
            f.name: [as_tensor(row, f) for row in store.decoded(f.name, runs)]
            if f.ragged
            else as_tensor(arrays[f.name], f)
            for f in self.fields
        }


def _keys(reader: PackStore, start: int, stop: int) -> list[bytes]:
    return reader.ragged("key", one_run(start, stop))


def _check_function(name: str, function: Any, fields: Sequence[Field], path: str) -> None:
    """Raise UsageError unless `function` fits a field, and no mask or box must move with the image."""
    argument = ARGUMENTS[name]
    if type(function).__module__.partition(".")[0] == "packer":
        batches = "transform=..." if type(function).__name__ == "PythonTransform" else "augment=[...]"
        raise UsageError(
            f"{argument}: {type(function).__name__} of packer works on batches; functions of one {name} are"
            f" allowed. Pass it to PackedBatchDataset({batches})."
        )
    if not callable(function) or (isinstance(function, type) and name == "image"):
        raise UsageError(
            f"{argument}={shown(function)}: cannot be called with "
            f"{'an image' if name == 'image' else 'a label'}."
            " Pass a function."
        )
    names = [f.name for f in fields]
    if name not in names:
        raise UsageError(
            f"{argument}: works on the field {name!r}, and the fields {', '.join(names)} of {path} have none."
            " Leave it out."
        )
    beside = [
        f.name
        for f in fields
        if f.name in ("boxes", "keypoints") or (f.name != "image" and "sampling" in f.about)
    ]
    if beside and name == "image":
        raise UsageError(
            f"transform: gets only the image, and {', '.join(beside)} of {path} would not move with it. Name"
            " fields without these, or take PackedBatchDataset(augment=...), which moves them together."
        )


def _images(function: Callable[[Any], Any], images: Any) -> list[Any]:
    """Apply a function to each image.

    Raises UsageError if it fails as functions of Pillow images fail on tensors.
    """
    try:
        return [function(image) for image in images]
    except (AttributeError, TypeError) as error:
        raise UsageError(
            f"transform: raised {type(error).__name__} ({error}) on an image; images are tensors [C, H, W]."
            " If it takes Pillow images, put torchvision's ToPILImage() before it:"
            " transform=Compose([ToPILImage(), ...])."
        ) from error


def _plain(label: Any) -> Any:
    """Return a label as torchvision passes it to a target_transform: a number, or a tensor of several."""
    return label.item() if getattr(label, "ndim", None) == 0 else label


def _stack(values: list[Any], argument: str) -> Any:
    """Collate the results of a function into one batch. Raises UsageError if they cannot be collated."""
    import torch
    from torch.utils.data import default_collate

    try:
        with torch.device("cpu"):  # numbers become tensors on torch's default device
            return default_collate(values)
    except (RuntimeError, TypeError) as error:
        raise UsageError(
            f"{argument}: its results for {len(values)} rows cannot be collated ({error}); tensors of one"
            " shape, or numbers, are allowed. Return these, or read rows one by one."
        ) from None
