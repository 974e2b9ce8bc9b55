"""Keywords of other libraries, and of earlier designs, that a function does not take: one table, one decorator, one sentence."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from packer.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")

_HERE = "a table is packed by this machine: leave it out"
_STORAGE = {
    "compress": 'pass store="zstd", "gzip" or "blosc2"',
    "shard_rows": "pass shards=100_000, a number of rows",
    "shard_size": 'pass shards="2GB"',
}
_REMEDIES: dict[str, dict[str, str]] = {
    "convert_images": _STORAGE,
    "convert_table": {**_STORAGE, "engine": _HERE, "address": _HERE, "only_shards": _HERE},
    "create": _STORAGE,
    "pack_dataset": _STORAGE,
    "repack": _STORAGE,
    "Buckets": {
        "pixels": "its batches have batch_size rows. Pass a smaller batch_size to the dataset",
        "rows": "a bucket has the rows of 16 global batches. Leave it out",
    },
}
"""Class or function -> keyword -> remedy, which completes the sentence "<name>=: is no argument of <function>; ..."."""


def refuses_foreign_words(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function or ``__init__``: a foreign keyword raises UsageError with its remedy, any other wrong one TypeError."""
    name = function.__qualname__.partition(".")[0]
    taken, remedies = signature(function).parameters, _REMEDIES.get(name, {})

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        for word in kwargs:
            if word not in taken and word in remedies:
                raise UsageError(f"{word}=: is no argument of {name}; {remedies[word]}.")
        return function(*args, **kwargs)

    return checked
