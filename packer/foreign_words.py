"""Keywords of other libraries, and of earlier designs, that a function does not take: one table, one decorator, one sentence."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from packer.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")

_CSV = {
    name: f"it is a member of Csv: pass csv=Csv({name}=...)"
    for name in (
        "header", "delimiter", "quote", "decimal", "thousands", "na", "encoding", "skip_rows", "comment"
    )
}  # fmt: skip
_ENCODE = {
    name: f"it is a member of Encode: pass encode=Encode({name}=...)"
    for name in ("log1p", "indicators", "max_categories")
}
_HERE = "a table is packed by this machine: leave it out"
_CONVERSION = {
    "compress": 'pass store="zstd", "gzip" or "blosc2"',
    "shard_rows": "pass shards=100_000, a number of rows",
    "shard_size": 'pass shards="2GB"',
    "num_workers": "pass workers=",
}
_ORDER = "pass order=, such as Weighted(weights) or Balanced('label'), or subset= with row numbers"
_PINNED = "pass device='cuda', whose buffers are pinned and copied asynchronously"
_SHUFFLE = "pass shuffle=True, or order=Blocks(window=...)"
_CACHE = "pass the pack that open_pack(url, cache=...) or fill_pack(images, out) returns"
_LOADER = "pass it to torch's DataLoader, or take PackedBatchDataset, which loads batches"
_PATH = "pass the pack's path as the first argument"
_DATASET = {"root": _PATH, "dataset": _PATH, "indices": "pass subset= with row numbers"} | {
    "train": "pass split='train'",
    "cache": _CACHE,
    "cache_size": _CACHE,
    "verify": "pass the pack that open_pack(path, verify='blocks') returns",
}
_SAMPLES = {
    **_CONVERSION,
    "boxes_unit": "pass fields=Fields(boxes_unit=...)",
    "channels": "pass fields=Fields(channels=...)",
    "format": "the ending of out decides: .h5 is HDF5. Or write it anew with repack(format=...)",
    "on_progress": "pass the function as progress=",
}
_REMEDIES: dict[str, dict[str, str]] = {
    "convert_images": {
        **_CONVERSION,
        "address": 'pass engine="ray:ADDRESS"',
        "boxes": 'pass labels=Labels("labels.csv", boxes="xmin,ymin,xmax,ymax")',
        "boxes_unit": 'pass labels=Labels("labels.csv", boxes_unit=...)',
        "keypoints": 'pass labels=Labels("labels.csv", keypoints="x,y")',
        "label": 'pass labels=Labels("labels.csv", column=...)',
        "label_as": "pass labels=Labels(as_=...)",
        "label_file_column": 'pass labels=Labels("labels.csv", file_column=...)',
        "label_separator": 'pass labels=Labels("labels.csv", separator=...)',
        "multi_label": 'pass labels=Labels("labels.csv", separator="|")',
        "soft": 'pass pairs={"alpha": Soft("mattes/")}',
    },
    "convert_table": {
        **_CONVERSION,
        **_CSV,
        **_ENCODE,
        "engine": _HERE,
        "address": _HERE,
        "only_shards": _HERE,
        "on_stage": "on_progress gets how much of a stage is done",
    },
    "create": _SAMPLES,
    "pack_dataset": {
        **_SAMPLES,
        "rename": "pass fields=Fields(rename={...})",
        "key": 'pass resume="birds v3", text that says what the dataset holds',
    },
    "repack": _CONVERSION,
    "Blocks": {"whole": "blocks begin where the pack's do, of every pack. Leave it out"},
    "Buckets": {
        "pixels": "its batches have batch_size rows. Pass a smaller batch_size to the dataset",
        "rows": "a bucket has the rows of 16 global batches. Leave it out",
    },
    "PackedBatchDataset": {
        **_DATASET,
        **dict.fromkeys(("num_workers", "workers", "persistent_workers"), "pass threads=, or leave it out"),
        **dict.fromkeys(("pin_memory", "non_blocking"), _PINNED),
        **dict.fromkeys(("sampler", "batch_sampler"), _ORDER),
        **dict.fromkeys(("shuffle_buffer", "shuffle_buffer_size", "buffer_size"), _SHUFFLE),
        **dict.fromkeys(("distributed", "num_replicas", "num_shards"), "pass rank= and world_size="),
        "collate_fn": "pass transform=, a function of a sample, or collate='pad'",
        "prefetch_factor": "pass prefetch=",
        "generator": "pass seed=",
        "target_transform": "pass transform=, a function of the whole sample",
        "convert": "pass the pack that fill_pack(images, out, **options) returns",
        "report": "print(dataset.stats()) says the same",
    },
    "PythonTransform": {
        "batched": "its function is given one sample. Call a function of batches in the loop"
    },
    "PackedDataset": {
        **_DATASET,
        **dict.fromkeys(("num_workers", "pin_memory", "collate_fn", "sampler", "batch_sampler"), _LOADER),
        **dict.fromkeys(("prefetch_factor", "generator", "drop_last", "shuffle", "batch_size"), _LOADER),
        **dict.fromkeys(("augment", "device", "order", "seed"), "PackedBatchDataset has it"),
        "transforms": "pass transform= and target_transform=",
    },
}
"""Class or function -> keyword -> remedy, which completes the sentence "<name>=: is no argument of <function>; ..."."""


def remedy(function: str, word: str) -> str | None:
    """Return what to pass in place of a keyword that a function does not take; None if nothing is known of it."""
    return _REMEDIES.get(function, {}).get(word)


def refuses_foreign_words(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function or ``__init__``: a foreign keyword raises UsageError with its remedy, any other wrong one TypeError."""
    name = function.__qualname__.partition(".")[0]
    taken = signature(function).parameters

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        for word in kwargs:
            if word not in taken and (instead := remedy(name, word)):
                raise UsageError(f"{word}=: is no argument of {name}; {instead}.")
        return function(*args, **kwargs)

    return checked
