"""Calls a user's transform with seeded generators, and checks its results."""

from __future__ import annotations

import keyword
import pickle
import random
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.format.fields import Field
from packer.format.header_forms import DTYPES
from packer.load.processes.transforms import THREAD, PythonTransform, adapted, with_rng


class WrongReturn(Exception):
    """The wrong value that fn returned, and what is allowed: text that continues a sentence about the row."""


class TransformCall:
    """A callable around fn that seeds the random generators by row.

    fields: of the samples. ragged: names of fields with a length per row.
    """

    def __init__(self, transform: PythonTransform, fields: Sequence[Field] = ()) -> None:
        adapter = adapted(transform, fields)
        fn = adapter or transform.fn
        self._fn = with_rng(fn) or (lambda sample, rng: fn(sample))
        self._threads = transform.context == THREAD
        self.ragged: frozenset[str] = adapter.ragged if adapter else frozenset()
        self._bits = np.random.Philox(0)
        self._state: Any = self._bits.state
        self._key, self._counters, self._seeds = 0, [0], [0]
        self._limited: set[str] = set()

    def key(self, seed: int, epoch: int, counters: NDArray[np.int64]) -> None:
        """Set the draw keys of the next calls, int64 [k]: rows, or positions if an order repeats rows."""
        self._key, self._counters = randomness.key(seed, epoch, "transform"), counters.tolist()
        self._seeds = randomness.integers(counters, self._key, 1 << 32).tolist()

    def __call__(self, i: int, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the result of fn for a sample as a dict. i: index of the row in `key`'s counters.

        Raises WrongReturn.
        """
        result = self._fn(sample, self._seeded(i))
        if isinstance(result, dict):
            return result
        if "image" in sample and (isinstance(result, np.ndarray) or _is_tensor(result)):
            return {**sample, "image": result}
        raise WrongReturn(
            f"returned a {type(result).__name__}; a dict of arrays and numbers, or an array in place of the"
            " image, is allowed. Return one of them"
        )

    def unlimited(self) -> bool:
        """Return True if the last call imported torch or OpenCV, unseeded: fn has to be called again."""
        return not self._threads and any(
            sys.modules.get(name) and name not in self._limited for name in ("torch", "cv2")
        )

    def _seeded(self, i: int) -> np.random.Generator:
        """Seed the global generators, unless threads share them, and return the row's generator.

        Takes 12 us, most of it in `random`.
        """
        state, seed = self._state, self._seeds[i]
        state["state"]["key"][:] = self._key, self._counters[i]
        self._bits.state = state
        if self._threads:
            return np.random.Generator(self._bits)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        modules = sys.modules
        if torch := modules.get("torch"):
            if "torch" not in self._limited:
                # The processes use the cores already; and OpenMP's threads do not survive a fork: waiting for
                # them would hang.
                torch.set_num_threads(1)
                self._limited.add("torch")
            torch.default_generator.manual_seed(seed)  # torch.manual_seed takes 200 us
        if cv2 := modules.get("cv2"):
            if "cv2" not in self._limited:
                cv2.setNumThreads(0)
                self._limited.add("cv2")
            cv2.setRNGSeed(seed & 0x7FFFFFFF)
        return np.random.Generator(self._bits)


class Outputs:
    """A buffer for results of fn: arrays of fixed fields, and `ragged`, lists of rows by field name."""

    def __init__(self, fields: tuple[Field, ...], arrays: Mapping[str, NDArray[Any]]) -> None:
        """arrays: [rows, *shape] of each fixed field."""
        self._fixed = [
            (f.name, arrays[f.name], f.shape or (), np.dtype(f.dtype)) for f in fields if not f.ragged
        ]
        self.ragged: dict[str, list[Any]] = {f.name: [] for f in fields if f.ragged}
        self._names = {f.name for f in fields}

    def put(self, at: int, result: Mapping[str, Any]) -> None:
        """Store the result of one call at a row. Raises WrongReturn."""
        if result.keys() != self._names:
            raise WrongReturn(
                f"returned {_names(result)}; for the first row it returned {_names(self._names)}, and only"
                " these are allowed. Return the same names for every row"
            )
        for name, target, shape, dtype in self._fixed:
            value = result[name]
            if type(value) is not np.ndarray:
                value = _as_array(value)
            if value.shape != shape or value.dtype != dtype:
                raise WrongReturn(
                    f"returned {name!r} as {value.dtype} {list(value.shape)}; {dtype} {list(shape)}, as for"
                    " the first row, is allowed. Return one dtype and shape, or pass PythonTransform(fn,"
                    f" ragged=[{name!r}])"
                )
            target[at] = value
        for name, values in self.ragged.items():
            values.append(_copied(name, result[name]))


def described(
    result: Mapping[str, Any],
    sample: Mapping[str, Any],
    fields: tuple[Field, ...],
    transform: PythonTransform,
    ragged: Collection[str] = (),
) -> tuple[Field, ...]:
    """Derive the output fields from the result of fn for a sample. Raises WrongReturn.

    fields: fields of the sample. ragged: names of ragged fields, in addition to the transform's.

    Masks stay masks and boxes stay boxes, so that later augmentation of the batch moves them.
    """
    given = {f.name: f for f in fields}
    missing = set(transform.ragged) - result.keys()
    if missing or not result:
        raise WrongReturn(
            f"returned {_names(result)}, but not {_names(missing)} of ragged=. Return it, or remove it from"
            " ragged="
            if missing
            else "returned an empty dict; a dict of arrays and numbers is allowed. Return some"
        )
    found: list[Field] = []
    for name, value in result.items():
        if not (
            isinstance(name, str)
            and name.isidentifier()
            and not name.startswith("_")
            and not keyword.iskeyword(name)
        ):
            raise WrongReturn(
                f"returned a field named {name!r}; only attribute names of Python are allowed. Rename it"
            )
        source = given.get(name)
        # Torch batches permute such fields.
        hwc = {"layout": "HWC"} if source and source.about.get("layout") == "HWC" else {}
        unchanged = source is not None and source.ragged and value is sample[name]
        if unchanged or name in transform.ragged or name in ragged or isinstance(value, (str, bytes)):
            lists = source.about if source and source.ragged and "row_shape" in source.about else hwc
            found.append(Field(name, "|u1", None, {} if isinstance(value, (str, bytes)) else lists))
            continue
        array = _as_array(value)
        shape = array.shape
        if array.dtype.str not in DTYPES or 0 in shape:
            raise WrongReturn(
                f"returned {name!r} as {array.dtype} {list(array.shape)}; texts, numbers, and arrays of"
                " numbers in this machine's byte order are allowed. Leave it out, or pass PythonTransform(fn,"
                f" ragged=[{name!r}])"
            )
        pixels = hwc if len(shape) == 3 and not _is_tensor(value) else {}
        sampling = source.about.get("sampling") if source and (pixels or len(shape) == 2) else None
        about = pixels | ({"sampling": sampling} if sampling else {})
        if source and source.name == "keypoints" and source.shape == shape:
            about = dict(source.about)  # names and sides of the points
        found.append(Field(name, array.dtype.str, shape, about))
    return tuple(found)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _as_array(value: Any) -> NDArray[Any]:
    return value.detach().numpy() if _is_tensor(value) else np.asarray(value)


def _copied(name: str, value: Any) -> Any:
    """Return a deep copy of a row of a ragged field: the next rows overwrite the input arrays of fn.

    Raises WrongReturn if it cannot be pickled.
    """
    if _is_tensor(value):
        value = value.detach().numpy()
    if type(value) in (str, bytes):
        return value
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    try:
        return pickle.loads(pickle.dumps(value))
    except Exception as error:
        raise WrongReturn(
            f"returned {name!r} as a {type(value).__name__} that cannot be pickled ({message_of(error)});"
            " arrays,"
            " numbers, texts, and lists and dicts of them are allowed. Return one of these"
        ) from None


def message_of(error: BaseException) -> str:
    """Return str(error), also for errors whose __str__ fails."""
    try:
        return str(error)
    except Exception:
        return "it cannot be printed"


def _names(names: Any) -> str:
    return ", ".join(sorted(map(repr, names))) or "nothing"
