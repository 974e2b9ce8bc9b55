"""A user's Python function as a step of loading: the value that ``transform=`` takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from packer.errors import UsageError
from packer.machine import cores

CONTEXTS = ("fork", "spawn", "forkserver")
MAX_PROCESSES = 512  # each has eight bytes of one page (see workers.py)
_DEFAULT_PROCESSES = 8


@dataclass(frozen=True)
class PythonTransform:
    """A Python function from rows of a pack to rows of a batch, run in processes.

    ``transform=fn`` is short for ``transform=PythonTransform(fn)``.

    fn: ``fn(sample)`` or ``fn(sample, rng)``. sample: a dict of the row's fields: ``image`` uint8 [H, W, C], ``label`` an int64
        scalar, ``key`` a str, others as the dataset gives them in NumPy. They lie in memory that the next rows overwrite: change
        them in place, but copy what you keep. Returns a dict of arrays, torch tensors and numbers, of the same names, shapes and
        dtypes for every row; or an array alone, which takes the place of the image. Arrays of ``image`` stay [H, W, C] and reach
        torch batches as [C, H, W]; tensors are handed out in the shape they have. Transforms of torchvision (v2, nn.Sequential of
        them, v1) and albumentations are passed as they are: they are given what they take elsewhere, tv_tensors or named arrays,
        and masks, boxes and keypoints move with the image (docs/python.md).
    batched: fn takes and returns a whole batch, arrays [n, ...] and lists of n; one process makes it, and as many batches as there
        are processes are made at once. Else a batch is shared out among the processes.
    ragged: names of the fields that fn returns in a shape of their own for each row, such as boxes: batches hold them as lists.
        Texts, and ragged fields of the pack that fn passes on unchanged, need not be named.
    processes: default: the cores at hand, at most 8.
    context: how they are started: "fork" (the default on Linux: fn may be a lambda or come from a notebook), "spawn" or
        "forkserver" (fn must be importable: give it a module).

    rng is a numpy.random.Generator keyed by (seed, epoch, row), row being the row's number in the pack; of a batch, the first one's.
    The generators of ``random``, ``numpy.random``, torch's CPU and OpenCV are seeded likewise before each call, so that what fn
    draws depends neither on the batch, nor on the number of processes, nor on a restart. A Compose used inside fn draws from
    generators of its own: ``compose.set_random_state(rng, random.Random(int(rng.integers(2**32))))`` ties them to the row.

    OpenCV and torch run one thread a process; fn is called again for the row whose call imported one of them, since it could not
    be seeded before. In a forked child of the training process the parent's batches are the same memory, not a copy: one held
    across a fork may change. Raises UsageError for arguments out of range.
    """

    fn: Callable[..., Any]
    batched: bool = False
    ragged: Sequence[str] = ()
    processes: int | None = None
    context: str | None = None

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise UsageError(
                f"transform: {self.fn!r} is no function. Pass one that takes a sample, or PythonTransform(fn, ...)."
            )
        if self.processes is not None and (
            not isinstance(self.processes, int) or not 1 <= self.processes <= MAX_PROCESSES
        ):
            raise UsageError(
                f"transform: processes={self.processes!r} is not a whole number from 1 to {MAX_PROCESSES}."
            )
        if self.context not in (None, *CONTEXTS):
            raise UsageError(
                f"transform: context={self.context!r} is not one of {', '.join(map(repr, CONTEXTS))}. Pass one of them."
            )
        if isinstance(self.ragged, str):
            raise UsageError(
                f"transform: ragged={self.ragged!r} is a text. Pass a list of names: [{self.ragged!r}]."
            )

    @property
    def count(self) -> int:
        """Number of processes that run it."""
        return self.processes or min(cores(), _DEFAULT_PROCESSES)


def as_transform(transform: PythonTransform | Callable[..., Any]) -> PythonTransform:
    """Return the argument ``transform=`` as a PythonTransform. Raises UsageError."""
    return transform if isinstance(transform, PythonTransform) else PythonTransform(transform)
