"""Types of batches and datasets for type checkers: tensors or arrays, and torch's base classes.

At run time there is no `Batch` class (batch.py makes a named tuple for each list of fields), and torch is not
imported: its base classes are stood in for by Generic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, SupportsIndex, TypedDict, overload

    import torch
    from numpy.typing import ArrayLike
    from torch.utils.data import Dataset, IterableDataset
    from typing_extensions import Self, TypeVar

    from packer.load.augmenting import Augment
    from packer.load.padded_batches import Padding
    from packer.load.processes.transforms import PythonTransform
    from packer.orders.epochs import RowOrder
    from packer.orders.windows import Windows

    Value = TypeVar("Value", default=torch.Tensor)

    class Batch(tuple[Value, ...]):
        """A row or a batch: a named tuple of its fields. A ragged field of a batch is a list."""

        _fields: tuple[str, ...]
        boxes: Any  # of a batch a list, of a row a value; texts are str, whatever the other fields are
        box_label: Any
        key: Any

        def __getattr__(self, name: str) -> Value: ...
        @overload
        def __getitem__(self, index: SupportsIndex | str) -> Value: ...
        @overload
        def __getitem__(self, index: slice) -> tuple[Value, ...]: ...
        def __getitem__(self, index: Any) -> Any: ...
        def to(self, device: str | int | torch.device, *, non_blocking: bool = False) -> Self:
            """Return the batch with its tensors on a device."""

        def _asdict(self) -> dict[str, Value]: ...
        def _replace(self, **values: Any) -> Self: ...

    class RowDataset(Dataset[Batch[Value]]):
        """A map-style dataset of torch."""

        def __iter__(self) -> Iterator[Batch[Value]]: ...  # by __getitem__

    class BatchDataset(IterableDataset[Batch[Value]]):
        """A dataset of torch that yields batches."""

    class Options(TypedDict, total=False):
        """Keywords of PackedBatchDataset on which the types of its batches do not depend."""

        shuffle: bool
        order: str | RowOrder | None
        seed: int
        device: str | torch.device
        placement: str
        split: str | Sequence[str] | None
        classes: Sequence[str | int] | str | int | None
        subset: ArrayLike | slice | range | None
        augment: Augment | None
        transform: Callable[..., Any] | PythonTransform | None
        collate: str | Padding
        window: Windows | int | None
        ends: str | None
        drop_last: bool
        rank: int | None
        world_size: int | None
        threads: int | None
        prefetch: int

else:
    from typing import Generic, TypeVar

    Value = TypeVar("Value")
    RowDataset = BatchDataset = Generic
