"""checks_arguments: arguments of a public function, checked by its annotations before it runs.

An annotation is a union of the names in `_KINDS`; one with another name (ArrayLike, Augment) accepts every
value, which the function then checks itself, as it checks whole numbers with their bounds. A parameter
annotated as a path and given data is answered with the function that packs such data.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from functools import partial, wraps
from inspect import Parameter, signature
from numbers import Real
from typing import Any, ParamSpec, TypeGuard, TypeVar

from packer.arguments import as_whole, whole
from packer.errors import UsageError
from packer.foreign_words import refuse_foreign_words
from packer.given_values import shown

P = ParamSpec("P")
T = TypeVar("T")
Class = TypeVar("Class", bound=type)

_ALIASES = {
    "os.PathLike[str]": "path",
    "PathLike": "path",
    "PackPath": "path | Pack",
    "PackPaths": "path | Pack | paths",
    "Source": "path | paths",
    "Classes": "path | names",
    "Engine": "Callable",
    "Forms": "Mapping",
}
_VALUES = ("Pack", "Labels", "Split", "Fields", "Padding", "Soft", "PythonTransform")


def _is_path(value: object) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(value, (str, os.PathLike))


def _is_list(value: object) -> bool:
    """Return True for a list, tuple, set, one axis of an array or a frame's index."""
    plain = isinstance(value, Iterable) and isinstance(value, Sized) and getattr(value, "ndim", 1) == 1
    return plain and not isinstance(value, (str, bytes, Mapping))


def _are_paths(value: object) -> bool:
    """Return True for a list of paths or packs, each perhaps with its weight or fields."""
    ones = value if isinstance(value, (list, tuple)) else [None]
    firsts = [one[0] if isinstance(one, tuple) and len(one) == 2 else one for one in ones]
    return all(_is_path(one) or _is_a(one, "Pack") for one in firsts)


def _are_names(value: object) -> bool:
    return _is_list(value) and all(isinstance(one, str) for one in value)  # type: ignore[attr-defined]


def _is_a(value: object, name: str) -> bool:
    return any(kind.__name__ == name for kind in type(value).__mro__)


Test = Callable[[Any], bool]
_KINDS: dict[str, tuple[str, Test]] = {
    "None": ("None", lambda value: value is None),
    "bool": ("True or False", lambda value: isinstance(value, bool) or type(value).__name__ == "bool_"),
    "int": ("a whole number", lambda value: as_whole(value) is not None),
    "float": ("a number", lambda value: isinstance(value, Real) and not isinstance(value, bool)),
    "str": ("text", lambda value: isinstance(value, str)),
    "path": ("a path", _is_path),
    "Callable": ("a function", callable),
    "Mapping": ("a mapping", lambda value: isinstance(value, Mapping)),
    "tuple": ("a pair", lambda value: isinstance(value, (tuple, list))),
    "names": ("a list of names", _are_names),
    "paths": ("a list of paths", _are_paths),
    **{name: (f"packer.{name}", partial(_is_a, name=name)) for name in _VALUES},
}
"""Name in an annotation -> words for a value, and its test."""
_OWN = ("split", "shares", "transform", "target_transform", "fn", "window")
"""Parameters about which their functions say more than these tests."""
_PARTS = re.compile(r"(?:[^|\[\]]|\[(?:[^\[\]]|\[(?:[^\[\]]|\[[^\[\]]*\])*\])*\])+")


def kinds_of(annotation: str) -> dict[str, tuple[str, Test]] | None:
    """Return the kinds of a union; None if it has a name that is not known here, or only whole numbers.

    >>> list(kinds_of("int | Callable[[int], None] | None")), kinds_of("int | ArrayLike"), kinds_of("int")
    (['int', 'Callable', 'None'], None, None)
    """
    kinds: dict[str, tuple[str, Test]] = {}
    for text in _PARTS.findall(annotation):
        name, _, of = text.strip().partition("[")
        if text.strip() in _ALIASES:
            kinds |= kinds_of(_ALIASES[text.strip()]) or {}
            continue
        if name == "Sequence":
            name = "names" if of == "str]" else "paths" if "Pa" in of else ""
        if name not in _KINDS:
            return None
        kinds[name] = _KINDS[name]
    if "path" in kinds:
        kinds.pop("str", None)
    return None if kinds.keys() <= {"int", "None"} else kinds


def checks_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a public function or ``__init__``: wrong keywords and wrong types raise UsageError.

    Keywords that resemble none of its parameters raise TypeError.
    """
    parameters = signature(function).parameters
    passes_on = any(
        one.kind is one.VAR_KEYWORD for one in parameters.values()
    )  # keywords of another function
    known = {one.name: kinds_of(str(one.annotation)) for one in parameters.values() if one.name not in _OWN}

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        if not passes_on and not kwargs.keys() <= parameters.keys():
            refuse_foreign_words(function, kwargs)
        given = {**dict(zip(parameters, args, strict=False)), **kwargs}
        for word, value in given.items():
            if word == "seed":
                whole(word, value)
            if (kinds := known.get(word)) is None:
                continue
            if "paths" in kinds and isinstance(value, Iterator) and not hasattr(value, "read"):
                given[word] = value = [*value]
            if not any(fits(value) for _, fits in kinds.values()):
                _refuse(parameters[word], kinds, value)
            if "path" in kinds and _is_path(value) and not _is_a(value, "Pack"):
                check_path(word, value)
        positional = (*[*given.values()][: len(args)], *args[len(parameters) :])
        return function(*positional, **{word: given[word] for word in kwargs})  # type: ignore[arg-type]

    return checked


def checked_class(cls: Class) -> Class:
    """Decorate a public data class: its ``__init__`` is checked by `checks_arguments`."""
    cls.__init__ = checks_arguments(cls.__init__)  # type: ignore[misc]
    return cls


def _refuse(parameter: Parameter, kinds: Mapping[str, tuple[str, Test]], value: object) -> None:
    """Raise UsageError for a value of another type than a parameter's."""
    name, default = parameter.name, parameter.default
    if "paths" in kinds and "path" not in kinds and isinstance(value, (str, os.PathLike)):
        raise UsageError(f"{name}={shown(value)}: is not a list of paths. Pass [{os.fspath(value)!r}, ...].")
    if ("path" in kinds or "paths" in kinds) and name != "classes":
        raise not_a_path(name, value, optional=default is None)
    if set(kinds) == {"bool"}:
        raise UsageError(f"{name}={shown(value)}: is neither True nor False. Pass one of them.")
    allowed = " or ".join(words for kind, (words, _) in kinds.items() if kind != "None")
    default = [value] if "names" in kinds and isinstance(value, str) else default
    such = f", such as {default!r}" if isinstance(default, (str, int, list)) and default != "" else ""
    out = "" if parameter.default is Parameter.empty else ", or leave it out"
    raise UsageError(f"{name}={shown(value)}: is not {allowed}. Pass {allowed}{such}{out}.")


def check_path(name: str, value: str | os.PathLike[str]) -> None:
    """Raise UsageError for a path that no file can have."""
    path = os.fspath(value)
    if not isinstance(path, str):
        raise UsageError(f"{name}={shown(value)}: is a path of bytes. Pass text: os.fsdecode(...).")
    if "\0" in path:
        raise UsageError(f"{name}={shown(path)}: holds a null character, as no path does. Correct it.")


_ROLES = {
    "out": "a path to write",
    "folder": "the path of a folder",
    "source": "the path of images or tables",
    "labels": "the path of a file of labels",
    "file": "the path of a file of labels",
    "cache": "the path of a folder",
}


def not_a_path(name: str, value: object, *, optional: bool = False) -> UsageError:
    """Return the error for data, or anything else, where a path is needed; the remedy is what takes it."""
    role = _ROLES.get(name, "the path of a pack")
    return UsageError(f"{name}={shown(value)}: is not {role}. {_remedy(name, value, optional)}")


def _remedy(name: str, value: object, optional: bool) -> str:
    """Return what to call for a value that was given instead of a path."""
    if name in ("out", "folder"):
        return "Pass a name, such as 'train.h5'." if name == "out" else "Pass its name."
    if name in ("labels", "file", "cache"):
        return f"Pass its name{', Labels(...)' * (name == 'labels')}, or leave it out."
    if _is_a(value, "BaseDataset"):
        return "Pass its pack: dataset.pack.path."
    if hasattr(value, "filename") and hasattr(value, "keys"):  # h5py.File
        return "Pass its name: file.filename."
    file = "'train.h5'"
    data, then = f"pack_dataset(data, {file})", "" if name == "source" else f", and pass {file}"
    writers = ("to_parquet", "write_parquet", "to_pandas")  # of pandas, polars, pyarrow
    if write := next((name for name in writers if hasattr(value, name)), ""):
        write += "().to_parquet" * (write == "to_pandas")
        table = "'table.parquet'"
        return f"Write it, frame.{write}({table}), pack that, convert_table({table}, {file}){then}."
    if hasattr(value, "dataset"):  # a DataLoader
        return f"Pack its data set, {data.replace('data,', 'loader.dataset,')}{then}."
    holds = hasattr(value, "__getitem__") or hasattr(value, "__iter__")
    if holds and not isinstance(value, (str, bytes, type)) and not hasattr(value, "read"):
        return f"Pack it, {data}{then}."
    return f"Pass a name, such as {'images/' if name == 'source' else 'train.h5'!r}" + (
        ", or leave it out." if optional else "."
    )
