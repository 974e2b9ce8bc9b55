"""CIFAR's python version: pixels and labels of CIFAR-10 and CIFAR-100 in pickles, read without running anything that these hold.

    data_batch_1 .. 5   test_batch   batches.meta      CIFAR-10: data uint8 [n, 3 * s * s], red, green, blue; labels; filenames
    train               test         meta              CIFAR-100: the same with fine_labels and coarse_labels

A pickle is a program. The reader here knows the instructions that build arrays, bytes, texts, numbers, lists and dictionaries, and
refuses all others; of what a pickle may call it answers only to the names by which NumPy's arrays are stored, with stand-ins that
note the bytes. Images are given as PPM files, which are their pixels behind a line of sizes: nothing is encoded or decoded.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import struct
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.inputs.file_names import FolderLayout, shorten

_BATCH = re.compile(r"data_batch_[0-9]+")
_LARGEST = 2 << 30
_LABELS = {
    "fine": "fine_labels",
    "coarse": "coarse_labels",
    "fine_labels": "fine_labels",
    "coarse_labels": "coarse_labels",
}
_DAMAGE = (
    pickle.UnpicklingError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)


class CifarImages(NamedTuple):
    """Images of a CIFAR data set. keys, layout: as ImageSource has them; sizes: int64 [N], of what `read` gives; note: a sentence."""

    keys: list[str]
    layout: FolderLayout
    sizes: NDArray[np.int64]
    read: Callable[[int], bytes]
    note: str


def is_cifar_name(path: str) -> bool:
    """Say whether a file of this name may be one of CIFAR's pickles."""
    name = path.rpartition("/")[2]
    return name in ("train", "test", "meta", "test_batch", "batches.meta") or bool(_BATCH.fullmatch(name))


def find_cifar(paths: Collection[str]) -> list[str] | None:
    """Return which of some files are CIFAR's, None if they are not a set of them; paths: files, "/"-separated."""
    folders: dict[str, set[str]] = {}
    for path in filter(is_cifar_name, paths):
        folder, slash, name = path.rpartition("/")
        folders.setdefault(folder + slash, set()).add(name)
    for folder, names in sorted(folders.items()):
        ten = sorted((n for n in names if _BATCH.fullmatch(n)), key=lambda n: int(n[11:]))
        ten += ["test_batch"] if "test_batch" in names else []
        if ten and "batches.meta" in names:
            return [folder + name for name in (*ten, "batches.meta")]
        hundred = [name for name in ("train", "test") if name in names]
        if hundred and "meta" in names:
            return [folder + name for name in (*hundred, "meta")]
    return None


def read_cifar(
    subject: str, paths: Sequence[str], load: Callable[[str], bytes], label: str | None
) -> CifarImages:
    """Read the files that `find_cifar` found.

    subject: what to call the source in messages; load: gives the bytes of a path; label: "fine" or "coarse" of CIFAR-100, None: fine.
    Raises: SourceError for what is damaged or holds anything else; UsageError for another label.
    """
    *batches, meta = paths
    hundred = meta.endswith("/meta") or meta == "meta"
    if label is not None and (not hundred or label not in _LABELS):
        allowed = "fine and coarse are" if hundred else "CIFAR-10 has one label, and none is chosen"
        raise UsageError(f"label {label}: is not a label of {subject}; {allowed}. Pass one of them, or none.")
    column = _LABELS[label or "fine"] if hundred else "labels"
    names_of = column.replace("labels", "label_names") if hundred else "label_names"
    classes = _texts(f"{subject}/{meta}", _loaded(subject, meta, load), names_of)
    pixels, labels, names, owners = [], [], [], []
    for path in batches:
        where = f"{subject}/{path}"
        told = _loaded(subject, path, load)
        pixels.append(_pixels(where, told))
        count = len(pixels[-1])
        labels.append(_numbers(where, told, column, count, len(classes)))
        names.append(
            _texts(where, told, "filenames", count) if b"filenames" in told or "filenames" in told else None
        )
        owners.append("test" if path.rpartition("/")[2] in ("test", "test_batch") else "train")
    if len({part.shape[1] for part in pixels}) > 1:
        raise SourceError(f"{subject}: its files hold images of several sizes; one is needed. Get it again.")
    label_of = np.concatenate(labels)
    splits: dict[str, NDArray[np.int64]] = {}
    starts = np.cumsum([0, *map(len, pixels)])
    for name in ("train", "test"):
        members = [np.arange(starts[k], starts[k + 1]) for k, owner in enumerate(owners) if owner == name]
        if members:
            splits[name] = np.concatenate(members)
    keys = _keys(splits, [classes[n] for n in label_of.tolist()], names)
    side = math.isqrt(pixels[0].shape[1] // 3)
    header = b"P6\n%d %d\n255\n" % (side, side)

    def read(index: int) -> bytes:
        batch = int(np.searchsorted(starts, index, "right")) - 1
        planes = pixels[batch][index - starts[batch]].reshape(3, side, side)
        values: bytes = planes.transpose(1, 2, 0).tobytes()
        return header + values

    counts = " and ".join(f"{len(members):,} {name}" for name, members in splits.items())
    note = f"Read as CIFAR's pickles: {counts} images of {side}x{side} in {len(classes)} classes."
    sizes = np.full(int(starts[-1]), len(header) + 3 * side * side, np.int64)
    return CifarImages(
        keys, FolderLayout(label_of, classes, splits if len(splits) > 1 else {}), sizes, read, note
    )


def _keys(
    splits: dict[str, NDArray[np.int64]], classes: Sequence[str], names: Sequence[Sequence[str] | None]
) -> list[str]:
    """Return split/class/name of each image, as a folder of them would have it; numbers where names are missing or not unique."""
    given = [name for part in names for name in part or ()]
    keys = [""] * len(classes)
    for split, members in splits.items():
        for index in members.tolist():
            name = given[index] if len(given) == len(keys) else ""
            keys[index] = f"{split}/{classes[index]}/{name}"
    plain = all(name and "/" not in name and "\0" not in name and name[0] != "." for name in given)
    if len(given) < len(keys) or not plain or len(set(keys)) < len(keys):
        for split, members in splits.items():
            for place, index in enumerate(members.tolist()):
                keys[index] = f"{split}/{classes[index]}/{place:05d}.png"
    return keys


# The contents of one file


def _loaded(subject: str, path: str, load: Callable[[str], bytes]) -> dict[Any, Any]:
    where = f"{subject}/{path}"
    data = load(path)
    try:
        told = _PlainUnpickler(io.BytesIO(data)).load()
    except _ForeignError as error:
        raise SourceError(
            f"{where}: {error}; CIFAR's pickles hold arrays, lists, dictionaries and text, and nothing of another is run. "
            "Get it again, from its makers."
        ) from None
    except _DAMAGE:
        raise SourceError(
            f"{where}: a damaged or truncated pickle; a whole one is needed. Get it again."
        ) from None
    if not isinstance(told, dict):
        raise _other(where, "no dictionary")
    return told


def _other(where: str, found: str) -> SourceError:
    return SourceError(f"{where}: holds {found}, and so is not one of CIFAR's files. Get it again.")


def _get(where: str, told: dict[Any, Any], name: str) -> Any:
    """Return an entry, called by bytes (of Python 2) or text."""
    value = told.get(name.encode(), told.get(name))
    if value is None:
        raise _other(where, f"no {name}")
    return value


def _texts(where: str, told: dict[Any, Any], name: str, count: int | None = None) -> list[str]:
    values = _get(where, told, name)
    if not isinstance(values, list) or not values or (count is not None and len(values) != count):
        raise _other(where, f"no list of {'' if count is None else f'{count:,} '}{name}")
    try:
        texts = [value.decode("utf-8") if isinstance(value, bytes) else value for value in values]
    except UnicodeDecodeError:
        raise _other(where, f"{name} that are no text") from None
    if not all(isinstance(text, str) and 0 < len(text) < 256 for text in texts):
        raise _other(where, f"{name} that are no text")
    if count is None and (len(set(texts)) < len(texts) or any("/" in t or "\0" in t for t in texts)):
        raise _other(where, f"{name} that are equal, or no names")
    return texts


def _numbers(where: str, told: dict[Any, Any], name: str, count: int, classes: int) -> NDArray[np.int64]:
    values = _get(where, told, name)
    if not isinstance(values, list) or len(values) != count or not all(type(v) is int for v in values):
        raise _other(where, f"no list of {count:,} whole numbers called {name}")
    for value in values:
        if not 0 <= value < classes:
            raise _other(where, f"the label {shorten(str(value))}, of {classes} classes")
    return np.array(values, np.int64)


def _pixels(where: str, told: dict[Any, Any]) -> NDArray[np.uint8]:
    array = _get(where, told, "data")
    if not isinstance(array, _Array):
        raise _other(where, "no array called data")
    shape, data = array.shape, array.data
    side = math.isqrt(shape[1] // 3) if len(shape) == 2 and min(shape) > 0 else 0
    if (
        not side
        or shape[1] != 3 * side * side
        or array.dtype not in ("u1", "|u1")
        or len(data) != shape[0] * shape[1]
    ):
        raise _other(where, "no array uint8 [images, 3 x side x side] called data")
    return np.frombuffer(data, np.uint8).reshape(shape, order="F" if array.fortran else "C")


# The unpickler


class _ForeignError(Exception):
    """The pickle wants something that CIFAR's files do not hold; in words that follow the file's name."""


class _DType:
    """A stand-in for numpy.dtype."""

    __slots__ = ("name",)

    def __init__(self, name: object, *_: object) -> None:
        self.name = name.decode("ascii") if isinstance(name, bytes) else str(name)

    def __setstate__(self, state: object) -> None:
        """Take the byte order and the like, which say nothing of bytes."""


class _Array:
    """A stand-in for numpy.ndarray: what was stored of it."""

    __slots__ = ("data", "dtype", "fortran", "shape")

    def __init__(self) -> None:
        self.shape: tuple[int, ...] = ()
        self.dtype, self.fortran, self.data = "", False, b""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Take (version, shape, dtype, fortran, bytes)."""
        shape, dtype, fortran, data = state[-4:]
        self._take(data, dtype, shape, bool(fortran))

    def _take(self, data: object, dtype: object, shape: object, fortran: bool) -> None:
        if not isinstance(data, bytes) or not isinstance(dtype, _DType) or not isinstance(shape, tuple):
            raise pickle.UnpicklingError
        if not all(type(side) is int for side in shape):
            raise pickle.UnpicklingError
        self.data, self.dtype, self.shape, self.fortran = data, dtype.name, shape, fortran

    @classmethod
    def of_buffer(cls, data: object, dtype: object, shape: object, order: object) -> _Array:
        """Return what numpy's _frombuffer would."""
        array = cls()
        array._take(data, dtype, shape, order == "F")
        return array


class _StandIn:
    """Something that a pickle may call; nothing can be set on it."""

    __slots__ = ("_run",)

    def __init__(self, run: Callable[..., object]) -> None:
        self._run = run

    def __call__(self, *arguments: object) -> object:
        """Run the stand-in."""
        return self._run(*arguments)


def _encode(text: object, encoding: object) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError
    return text.encode("latin-1")


_KNOWN = {
    ("numpy", "ndarray"): _StandIn(_Array),
    ("numpy", "dtype"): _StandIn(_DType),
    ("_codecs", "encode"): _StandIn(_encode),
    ("__builtin__", "bytes"): _StandIn(lambda: b""),  # as Python 3 writes an empty text for Python 2
    **{
        (f"numpy.{core}.multiarray", "_reconstruct"): _StandIn(lambda *_: _Array())
        for core in ("core", "_core")
    },
    **{(f"numpy.{core}.numeric", "_frombuffer"): _StandIn(_Array.of_buffer) for core in ("core", "_core")},
}
# fmt: off
_INSTRUCTIONS = (
    pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK, pickle.DUP, pickle.NONE, pickle.NEWTRUE,
    pickle.NEWFALSE, pickle.INT, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG, pickle.LONG1, pickle.LONG4,
    pickle.BINFLOAT, pickle.STRING, pickle.BINSTRING, pickle.SHORT_BINSTRING, pickle.BINBYTES, pickle.BINBYTES8,
    pickle.SHORT_BINBYTES, pickle.UNICODE, pickle.BINUNICODE, pickle.BINUNICODE8, pickle.SHORT_BINUNICODE, pickle.EMPTY_TUPLE,
    pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.EMPTY_LIST, pickle.LIST, pickle.APPEND, pickle.APPENDS,
    pickle.EMPTY_DICT, pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE, pickle.GET, pickle.BINGET, pickle.LONG_BINGET, pickle.PUT,
    pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE,
)
# fmt: on
_Python: Any = pickle._Unpickler


def _refuse(_: Any) -> None:
    raise _ForeignError("holds objects of other kinds")


def _check_key(key: object) -> None:
    """Raise _ForeignError for a key that is no text: hashing tuples of tuples can take for ever."""
    if not isinstance(key, (str, bytes)):
        raise _ForeignError("holds dictionaries of other keys than texts")


def _set_item(self: Any) -> None:
    _check_key(self.stack[-2])
    _Python.dispatch[pickle.SETITEM[0]](self)


def _set_items(self: Any) -> None:
    for key in self.stack[::2]:
        _check_key(key)
    _Python.dispatch[pickle.SETITEMS[0]](self)


def _make_dict(self: Any) -> None:
    for key in self.stack[::2]:
        _check_key(key)
    _Python.dispatch[pickle.DICT[0]](self)


def _build(self: Any) -> None:
    """Set the state of a stand-in, and of nothing else: not of the functions that others use."""
    state = self.stack.pop()
    if not isinstance(self.stack[-1], (_Array, _DType)):
        _refuse(self)
    self.stack[-1].__setstate__(state)


def _bytes_of_bytearray(self: Any) -> None:
    """Take the bytes that there are; Python makes room for as many as are announced."""
    (size,) = struct.unpack("<Q", self.read(8))
    data = self.read(size)
    if len(data) != size:
        raise pickle.UnpicklingError
    self.append(data)


class _PlainUnpickler(_Python):  # type: ignore[misc]
    """Python's own unpickler, written in Python, with the instructions above alone.

    The one in C makes room for as many memos as a pickle names, 64 GB of them; the one in Python keeps those that there are.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **dict.fromkeys(_Python.dispatch, _refuse),
        **{code: _Python.dispatch[code] for code in (letter[0] for letter in _INSTRUCTIONS)},
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: _set_items,
        pickle.DICT[0]: _make_dict,
        pickle.BUILD[0]: _build,
        pickle.BYTEARRAY8[0]: _bytes_of_bytearray,
    }

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, encoding="bytes")

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in of a name. Raises: _ForeignError for any other name."""
        call = _KNOWN.get((module, name))
        if call is None:
            raise _ForeignError(f"asks for {shorten(f'{module}.{name}')}")
        return call
