"""A batch (``batch.image``, or ``images, labels = batch``): its named tuple, and its buffers.

New memory for every batch costs more than the copy into it (the kernel clears each page first: 9,400 against
36,500 images/s at 256 px), so buffers are reused. A batch in use must not be overwritten, so a buffer is free
once the last array, tensor or view of it is gone. Nothing waits for a buffer: if all are held, another is
allocated.

A loop that keeps the labels of an epoch must not hold its images: fields that take a small share of a row are
copied out of the slot when the batch is handed out (SlotLayout.small).
"""

from __future__ import annotations

import mmap
import reprlib
import threading
import weakref
from collections import deque, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError, UsageError
from packer.format.fields import Field
from packer.units import size

if TYPE_CHECKING:
    import torch

Bytes = NDArray[np.uint8]
ALIGNMENT = 64
_HUGE_BYTES = 2 << 20
SMALL_SHARE = 16  # a field of at most this share of a row is small


class Batched:
    """Base of the batches of a PackedBatchDataset, which default_collate refuses (batch_dataset.register)."""

    __slots__ = ()


def batch_type(fields: tuple[str, ...], base: type, lists: bool = False) -> type[tuple[Any, ...]]:
    """Return the named tuple class with these fields: one class for each tuple of names, picklable.

    Its constructor takes values one by one, as any named tuple does, or in one iterable, as ``tuple`` does:
    fastai and the Trainer of transformers rebuild a tuple as ``type(batch)(values)``. A list of one tensor is
    taken as the values, `_make` takes it as the value.

    base: Batched for the batches of a PackedBatchDataset, else object. lists: True if values are lists, with
    an entry for each row; it tells ``type(batch)([values])`` from ``type(batch)(values)`` for a single field.
    """
    return _batch_type(fields, base, lists and len(fields) == 1)


@cache
def _batch_type(fields: tuple[str, ...], base: type, lists: bool) -> type[tuple[Any, ...]]:
    fields_of = namedtuple("Batch", fields)  # type: ignore[misc]
    several = len(fields) > 1

    def new(cls: type, *values: Any, **named: Any) -> Any:
        together = len(values) == 1 and not named and (several or _encloses(values[0], lists))
        return fields_of.__new__(cls, *(values[0] if together else values), **named)

    own = {"__slots__": (), "__new__": new, "__reduce__": _reduce, "__module__": __name__, "_lists": lists}
    own |= {"__repr__": _repr, "__getitem__": _getitem}
    own |= {} if "to" in fields else {"to": _to}
    return type("Batch", (fields_of, base), own)


def _encloses(given: Any, lists: bool) -> bool:
    """Return True if the argument for a single field is an iterable with its value, not the value itself."""
    if isinstance(given, Iterator):
        return True
    if not isinstance(given, list | tuple) or len(given) != 1:
        return False
    return isinstance(given[0], list) if lists else hasattr(given[0], "shape")


def make_batch(
    fields: tuple[str, ...], values: Iterable[Any], base: type = object, lists: bool = False
) -> Any:
    """Return a row or a batch with these values. Unpickling calls it too."""
    return batch_type(fields, base, lists)._make(values)  # type: ignore[attr-defined]


def _reduce(self: Any) -> tuple[Any, ...]:
    return make_batch, (self._fields, tuple(self), type(self).__bases__[1], self._lists)


def _getitem(self: Any, index: Any) -> Any:
    """Return a field by its name, or by its index as any tuple does. Raises KeyError, IndexError."""
    if not isinstance(index, str):
        return tuple.__getitem__(self, index)
    if index not in self._fields:
        raise KeyError(f"{index!r} is no field; the fields are {', '.join(self._fields)}")
    return getattr(self, index)


def _repr(self: Any) -> str:
    return f"Batch({', '.join(f'{n}={_shown(v)}' for n, v in zip(self._fields, self, strict=True))})"


def _shown(value: Any) -> str:
    """Return a short text for a value: dtype, shape and device of an array or tensor that has axes."""
    if isinstance(value, list) and value:
        return f"list of {len(value):,}, first {_shown(value[0])}"
    if not getattr(value, "shape", ()):
        return reprlib.repr(value)
    device = getattr(value, "device", "cpu")  # NumPy's since 2.0
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}" + f" on {device}" * (
        str(device) != "cpu"
    )


def _to(self: Any, device: Any, *, non_blocking: bool = False) -> Any:
    """Return the batch with its tensors on a device, as ``Tensor.to`` puts them there.

    device: "cuda", 0, a torch.device. non_blocking: as in ``Tensor.to``. Lists of tensors move; texts stay.
    Tensors that are on the device already are not copied: they share the memory of this batch, which stays
    valid as long as either batch is held. Raises UsageError for a batch of NumPy arrays.
    """
    import torch

    where = torch.device(device)  # refuses a dtype, which would change the labels too

    def moved(value: Any) -> Any:
        if isinstance(value, list):
            return list(map(moved, value))
        if isinstance(value, np.ndarray):
            raise UsageError("to: the batch holds NumPy arrays; only tensors can move. Pass output='torch'.")
        return value.to(where, non_blocking=non_blocking) if isinstance(value, torch.Tensor) else value

    return type(self)._make(map(moved, self))


def as_tensor(row: Any, field: Field) -> Any:
    """Convert a decoded row to a tensor; pixels [h, w, C] become [C, h, w].

    str and bytes stay as they are.
    """
    if not isinstance(row, np.ndarray):
        return row
    import torch

    tensor = torch.from_numpy(row)
    return tensor.movedim(-1, -3) if field.about.get("layout") == "HWC" else tensor


class _Lent(weakref.ref[Bytes]):
    """A weak reference to a lent array, with the memory behind it."""

    __slots__ = ("memory",)

    memory: Bytes


class Slots:
    """Buffers of one size, which may grow. Thread-safe."""

    allocated: int

    def __init__(self, nbytes: int, allocate: Callable[[int], Bytes], spare: int) -> None:
        """nbytes: size of a slot. allocate: returns a slot, uint8 [nbytes].

        spare: most free slots to keep.
        """
        self._nbytes, self._allocate, self._spare = nbytes, allocate, spare
        self._free: deque[_Lent] = deque()
        # By id. It keeps the weak references alive, or their callbacks would not run.
        self._lent: dict[int, _Lent] = {}
        self.allocated = 0

    def lend(self, nbytes: int = 0) -> Bytes:
        """Return an uninitialized buffer, uint8; it is reused once the last view of it is gone.

        nbytes: least size; if it is more than before, buffers grow to it, or by a quarter.

        Notes: the returned array is new and based on a memoryview. On a view of an ndarray the finalizer
        would fire early, since NumPy lets views of views skip their intermediate bases.
        """
        if nbytes > self._nbytes:
            self._nbytes = max(nbytes, self._nbytes * 5 // 4)
        try:
            while len(self._free) > self._spare:  # a loop held many, and released them
                self._lent.pop(id(self._free.popleft()), None)
            while len((back := self._free.pop()).memory) < nbytes:
                self._lent.pop(id(back), None)
        except IndexError:
            memory = self._allocate(max(self._nbytes, nbytes))
            self.allocated += 1
        else:
            self._lent.pop(id(back), None)
            memory = back.memory
        array = np.frombuffer(memoryview(memory), np.uint8)
        # The callback may run inside the garbage collector, on any thread: it only appends, which takes no
        # lock. It runs once a batch, between two lines of the loop, so it is not a Python function
        # (weakref.finalize is): Ctrl-C inside of one would be dropped by Python, and the loop would go on.
        lent = _Lent(array, self._free.append)
        lent.memory = memory
        self._lent[id(lent)] = lent
        return array


def allocate(nbytes: int) -> Bytes:
    """Allocate host memory, on huge pages where the system has them (they save a page fault every 4 KiB).

    Raises PackerError if the system or a limit of the process refuses.
    """
    try:
        return _allocated(nbytes)
    except (MemoryError, OSError, OverflowError) as error:
        raise PackerError(
            f"batch: takes {size(nbytes)}, and the system refuses so much memory"
            f" ({getattr(error, 'strerror', None) or error}). Pass a smaller batch_size, or fewer fields."
        ) from None


def _allocated(nbytes: int) -> Bytes:
    if nbytes < _HUGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.empty(nbytes, np.uint8)
    # Private: pages that a forked child holds or writes must not be those of the parent's next batch.
    memory = mmap.mmap(-1, nbytes + _HUGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # kernels without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    first = -whole.ctypes.data % _HUGE_BYTES
    return whole[first : first + nbytes]


def typed_tensor(stored: torch.Tensor, field: Field) -> torch.Tensor:
    """View the bytes of rows of a field, of any dtype, as a tensor [rows, *shape] of its dtype."""
    import torch

    dtype = torch.from_numpy(np.empty(0, field.dtype)).dtype
    return stored.view(dtype).view(-1, *(field.shape or ()))


def size_of(fields: Sequence[Field], rows: int) -> int:
    """Return the bytes of `rows` rows as loaded, without ragged fields (they stay on the disk)."""
    return rows * sum(f.row_bytes for f in fields if not f.ragged)


class SlotLayout:
    """The sections of a slot, one for each fixed field of a batch, each aligned.

    nbytes: size of a slot for `rows` rows. row_bytes: bytes of a row, all fields together. small: names of
    the fields that take at most a 16th of a row.
    """

    nbytes: int

    def __init__(self, fields: Sequence[Field], rows: int) -> None:
        self._fields = [f for f in fields if not f.ragged]
        self.row_bytes: int = sum(f.row_bytes for f in self._fields)
        self.small: set[str] = {f.name for f in self._fields if f.row_bytes * SMALL_SHARE <= self.row_bytes}
        self._offsets: list[int] = []
        self.nbytes = 0
        for f in self._fields:
            self._offsets.append(self.nbytes)
            self.nbytes += -(-rows * f.row_bytes // ALIGNMENT) * ALIGNMENT

    def raw(self, slot: Bytes, rows: int) -> dict[str, Bytes]:
        """Return each field's section as uint8 [rows, row bytes]."""
        return {
            f.name: slot[at : at + rows * f.row_bytes].reshape(rows, f.row_bytes)
            for f, at in zip(self._fields, self._offsets, strict=True)
        }

    def typed(self, slot: Bytes, rows: int) -> dict[str, NDArray[np.generic]]:
        """Return each field's section as an array [rows, *shape] of its dtype."""
        return {
            f.name: slot[at : at + rows * f.row_bytes].view(f.dtype).reshape(rows, *(f.shape or ()))
            for f, at in zip(self._fields, self._offsets, strict=True)
        }

    def tensors(self, buffer: torch.Tensor, rows: int) -> dict[str, torch.Tensor]:
        """Return each field's section of a copy of a slot as a tensor [rows, *shape] of its dtype."""
        return {
            f.name: typed_tensor(buffer[at : at + rows * f.row_bytes], f)
            for f, at in zip(self._fields, self._offsets, strict=True)
        }


class LentSlot:
    """A slot for the rows of a request, lent when its memory is first used.

    A filler may set another layout and memory instead.
    """

    layout: SlotLayout
    rows: int

    def __init__(self, slots: Slots, layout: SlotLayout, rows: int) -> None:
        self._slots, self.layout, self.rows = slots, layout, rows

    @cached_property
    def memory(self) -> Bytes:
        """The slot's buffer, uint8 [layout.nbytes]."""
        return self._slots.lend()

    @property
    def raw(self) -> dict[str, Bytes]:
        """Each field's section, uint8 [rows, row bytes]."""
        return self.layout.raw(self.memory, self.rows)

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Each fixed field, [rows, *shape] of its dtype."""
        return self.layout.typed(self.memory, self.rows)


class Scratch(threading.local):
    """A reusable decode buffer for each thread."""

    _memory: Bytes = np.empty(0, np.uint8)

    def memory(self, nbytes: int) -> Bytes:
        """Return this thread's buffer, uint8 [nbytes]."""
        if len(self._memory) < nbytes:
            self._memory = np.empty(nbytes, np.uint8)
        return self._memory[:nbytes]


class Filled(NamedTuple):
    """Result of a task that fills rows of a slot.

    ragged: rows of ragged fields by name. The seconds are those of one thread or process.
    draws: augmentation parameters, if the task drew them for its images.
    """

    ragged: dict[str, list[Any]]
    read_seconds: float
    transform_seconds: float = 0.0
    draws: Any = None


class Host:
    """Host memory as the device of batches, which share the memory of the slots; base class of the devices.

    name: the device, as the user names it. tensors: True for batches of tensors, False for NumPy arrays.
    copy_seconds: seconds spent in copies to the device so far.
    """

    name: str
    copy_seconds: float

    name, copy_seconds = "cpu", 0.0

    def __init__(self, tensors: bool = True) -> None:
        self.tensors = tensors

    def allocate(self, nbytes: int) -> Bytes:
        """Return memory for a slot, uint8 [nbytes]."""
        return allocate(nbytes)

    def adopt(self, memory: Bytes) -> Bytes:
        """Prepare memory that `allocate` did not return for use as a slot; the base class does nothing."""
        return memory

    def send(self, slot: LentSlot) -> Any:
        """Start to copy a filled slot; return a handle for `receive` at once."""
        return slot

    def receive(self, sent: Any) -> Mapping[str, Any]:
        """Return the fields as tensors that the current stream may use; on the host, as arrays.

        Fields are views of one buffer, small ones copies.
        """
        small = sent.layout.small
        return {name: a.copy() if name in small else a for name, a in sent.arrays.items()}

    def move(self, rows: list[Any]) -> list[Any]:
        """Return a ragged field with its tensors on the device."""
        return rows

    def finish(self) -> None:
        """Wait for pending copies."""
