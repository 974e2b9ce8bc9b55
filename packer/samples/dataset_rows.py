"""Rows from a map-style dataset (``len`` and ``[i]``), read by any number of workers, or from an iterable."""

from __future__ import annotations

import fcntl
import itertools
import multiprocessing
import os
import pickle
import random
import signal
import stat
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.convert.row_maker import Block
from packer.errors import ImageError, PackerError, SourceError
from packer.samples.columns import SampleRows
from packer.samples.field_plan import LABEL, Declared
from packer.samples.sample_layout import SamplePlan, plan_samples
from packer.samples.values import ValueRefusedError, copy_sample, shown
from packer.starting import ForkSafeLock, die_with, forks_safely

T = TypeVar("T")
PROBED = 16  # samples read to infer the fields


class Dataset(Protocol):
    """A map-style dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class SampleFailedError(ImageError):
    """A failed sample of the user's dataset. original: the dataset's exception, if it can be pickled."""

    original: BaseException | None = None

    @classmethod
    def from_exception(cls, error: Exception) -> SampleFailedError:
        """Return the error for an exception of the dataset."""
        failed = cls(f"raised {type(error).__name__}: {shown(error) or 'no message'}.")
        with suppress(Exception):
            failed.original = pickle.loads(pickle.dumps(error))
        return failed


class DatasetRows(SampleRows):
    """Rows from a map-style dataset.

    The global generators of Python, NumPy and torch are seeded by (seed, sample) before each sample, so that
    random transforms give the same rows for any number of workers. Worker threads read one sample at a time,
    because they share these generators and any buffer that the dataset reuses.
    """

    def __init__(
        self, dataset: Dataset, declared: Declared, *, seed: int, key: str | None, workers: int
    ) -> None:
        """Plan the fields from a few samples. key: identifies the content. Raises UsageError, SourceError."""
        subject, count, self.forks = type(dataset).__name__, len(dataset), workers > 1 and forks_safely()
        if count < 1:
            raise SourceError(f"{subject}: holds no samples; a pack has at least one.")
        self._plan: SamplePlan = in_child(
            lambda: plan_samples(probe(dataset, subject, count, seed), subject, declared), forks=self.forks
        )
        super().__init__(subject, self._plan.plans, count, self._plan.ragged_bytes)
        self.notes = self._plan.notes
        self.named = class_names_of(dataset, LABEL, declared.rename)
        self.once = "" if key is not None else f"{subject}: its content cannot be identified, so"
        self._dataset, self._seed, self._key = dataset, seed, key
        self._parent = os.getpid()
        self._isolated = False
        self._alone = ForkSafeLock()

    def identity(self) -> Mapping[str, Any] | None:
        """See SampleRows."""
        named = {"rows": self.count, "key": self._key, "seed of draws": self._seed}
        return None if self._key is None else named

    def make(self, sample: int, at: int, block: Block) -> None:
        """Read a sample from the dataset into row `at` of a block. Raises ImageError."""
        if os.getpid() != self._parent and not self._isolated:
            isolate_child()
            self._isolated = True
        with self._alone:
            try:
                rows = self._plan.rows(get(self._dataset, sample, self._seed))
            except ValueRefusedError as error:
                raise ImageError(f"{error}.") from None
            if wrong := self.wrong_label(rows.get(LABEL)):
                raise ImageError(wrong[1])
            for name, value in rows.items():
                block.rows[name][at] = value
        block.bytes_read += sum(len(v) if isinstance(v, bytes) else v.nbytes for v in rows.values())

    def labels(self) -> NDArray[np.int64] | None:
        """Return the label of each sample from the dataset's ``targets`` (as in torchvision), or None."""
        targets = getattr(self._dataset, "targets", None)
        if targets is None or not hasattr(targets, "__len__") or len(targets) != len(self._dataset):
            return None
        found = np.asarray(targets)
        return found.astype(np.int64) if found.ndim == 1 and found.dtype.kind in "iub" else None

    def name(self, sample: int) -> str:
        """Return the sample's name for messages: dataset[number]."""
        return f"{self.subject}[{sample}]"


class IterableRows(SampleRows):
    """Rows from an iterable of samples, to be staged. skipped: samples left out, if `skip`."""

    def __init__(self, samples: Iterable[Any], declared: Declared, *, skip: bool) -> None:
        """Plan the fields from the first samples. Raises UsageError, SourceError."""
        subject, self._skip = type(samples).__name__, skip
        numbered = _numbered(samples, subject)
        first = [(number, copy_sample(sample)) for number, sample in itertools.islice(numbered, PROBED)]
        if not first:
            raise SourceError(f"{subject}: yields no samples; a pack has at least one.")
        self._plan = plan_samples([sample for _, sample in first], subject, declared, some=False)
        super().__init__(subject, self._plan.plans, 0, self._plan.ragged_bytes)
        self.notes = self._plan.notes
        self.named = class_names_of(samples, LABEL, declared.rename)
        self.once = f"{subject}: can be read only once, in order, so"
        self.skipped: list[dict[str, str]] = []
        self._numbered = itertools.chain(first, numbered)

    def pieces(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """See SampleRows. Raises SourceError."""
        for number, sample in self._numbered:
            try:
                rows = self._plan.rows(sample)
            except ValueRefusedError as error:
                if not self._skip:
                    raise SourceError(
                        f"{self.subject}, sample {number}: {error}. Correct it, or pass on_error='skip'.",
                    ) from None
                self.skipped.append({"key": str(number), "reason": f"{error}."})
            else:
                yield 1, {name: [row] for name, row in rows.items()}


def _numbered(samples: Iterable[Any], subject: str) -> Iterator[tuple[int, Any]]:
    """Yield the samples with their numbers. Raises SourceError from the iterable's exception."""
    iterator = iter(samples)
    for number in itertools.count():
        try:
            sample = next(iterator)
        except StopIteration:
            return
        except PackerError:
            raise
        except Exception as error:
            raise sample_error(
                f"{subject}, sample {number}", SampleFailedError.from_exception(error)
            ) from error
        yield number, sample


def get(dataset: Dataset, sample: int, seed: int) -> Any:
    """Return a sample, with random draws seeded by (seed, sample). Raises SampleFailedError."""
    seed_draws(randomness.key(seed, "sample", sample))
    try:
        return dataset[sample]
    except MemoryError:
        raise
    except Exception as error:
        raise SampleFailedError.from_exception(error) from error


def seed_draws(key: int) -> None:
    """Seed the global generators of Python, NumPy, and torch if it is imported."""
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)  # noqa: NPY002
    torch = sys.modules.get("torch")
    if torch is not None:
        # torch.manual_seed also seeds every kind of device: 83 us per call instead of 1 us.
        torch.default_generator.manual_seed(key & 0x7FFFFFFFFFFFFFFF)


@contextmanager
def restored_generators() -> Iterator[None]:
    """Restore the state of the global generators at the end of the block."""
    torch = sys.modules.get("torch")
    torch_state = None if torch is None else torch.get_rng_state()
    states = random.getstate(), np.random.get_state(), torch_state  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(states[2])


def isolate_child() -> None:
    """Make a forked process independent of its parent: separate positions in open files, one torch thread.

    A file that the dataset opened before the fork (as an unread Pillow image does) shares its position with
    the other workers, which would read each other's samples. Torch's thread pool does not survive a fork, and
    the workers are parallel already.
    """
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            fd = int(name)
            flags = fcntl.fcntl(fd, fcntl.F_GETFL)
            if not stat.S_ISREG(os.fstat(fd).st_mode) or flags & (os.O_WRONLY | os.O_RDWR):
                continue
            again = os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)
            os.lseek(again, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(again, fd, os.get_inheritable(fd))
            os.close(again)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def probe(dataset: Dataset, subject: str, count: int, seed: int) -> list[Any]:
    """Return PROBED evenly spaced samples, without those that fail. Raises SourceError if all fail."""
    samples: list[Any] = []
    failed: SourceError | None = None
    for sample in np.unique(np.linspace(0, count - 1, min(count, PROBED)).astype(np.int64)).tolist():
        try:
            samples.append(copy_sample(get(dataset, sample, seed)))
        except SampleFailedError as error:
            failed = failed or sample_error(f"{subject}[{sample}]", error)
    if failed is not None and not samples:
        raise failed
    return samples


def sample_error(name: str, error: SampleFailedError) -> SourceError:
    """Return the user's error for a failed sample, with the dataset's exception as its cause."""
    failed = SourceError(f"{name}: {error}")
    failed.__dict__["original"] = error.original
    failed.__cause__ = error.__cause__
    return failed


def with_dataset_cause(error: PackerError) -> PackerError:
    """Set the dataset's exception as the cause of a worker's error; its cause is the worker's traceback."""
    original = error.__dict__.get("original")
    if original is not None and type(error.__cause__) is not type(original):
        original.__cause__ = error.__cause__
        error.__cause__ = original
    return error


def in_child(work: Callable[[], T], *, forks: bool) -> T:
    """Return work(), run in a forked process if `forks`: workers then inherit no files that it opens."""
    if not forks:
        return work()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
        try:
            context = multiprocessing.get_context("fork")
            with ProcessPoolExecutor(
                1, mp_context=context, initializer=_adopt, initargs=(work, os.getpid())
            ) as pool:
                found: T = pool.submit(_work).result()
                return found
        except BrokenProcessPool:
            raise PackerError(
                "dataset: the process died while it read some of the samples. Check whether dataset[0] "
                "works by itself."
            ) from None
        except OSError:  # no semaphores: /dev/shm is missing or full
            return work()


_adopted: list[Callable[[], Any]] = []


def _adopt(work: Callable[[], Any], parent: int) -> None:
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    _adopted[:] = [work]
    isolate_child()


def _work() -> Any:
    return _adopted[0]()


def is_map_style(dataset: object) -> bool:
    """Return True if an object has ``len`` and ``[i]``, and is not an IterableDataset."""
    if any(kind.__name__ == "IterableDataset" for kind in type(dataset).__mro__):
        return False
    return hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")


def class_names_of(dataset: object, field: str, rename: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return a dataset's class names: its ``classes`` (torchvision), ``features`` (Hugging Face) or None."""
    features = getattr(dataset, "features", None)
    if isinstance(features, Mapping):
        source = next((old for old, new in rename.items() if new == field), field)
        names: Any = getattr(features.get(source), "names", None)
    else:
        names = getattr(dataset, "classes", None)
    if (
        isinstance(names, Sequence)
        and names
        and all(isinstance(name, str) for name in names)
        and not isinstance(names, str)
    ):
        return tuple(names)
    return None
