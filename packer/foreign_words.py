"""Keywords of other libraries and earlier designs: a table of remedies; for misspelt ones the nearest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from difflib import get_close_matches
from inspect import signature, unwrap
from typing import Any

from packer.errors import UsageError

_ALIKE = 0.7  # least similarity of a misspelt keyword, 0 to 1
_CONVERSIONS = "convert_images convert_table create pack_dataset repack"
_DATASETS = "PackedBatchDataset PackedDataset"
_BATCHES, _ROWS = _DATASETS.split()
_LOADER = "pass it to torch's DataLoader, or take PackedBatchDataset, which loads batches"
_REMEDIES = (
    (_CONVERSIONS, "compress", 'pass store="zstd", "gzip" or "blosc2"'),
    (_CONVERSIONS, "shard_rows", "pass shards=100_000, a number of rows"),
    (_CONVERSIONS, "shard_size", 'pass shards="2GB"'),
    ("convert_images", "address", 'pass engine="ray:ADDRESS"'),
    ("convert_images", "label", 'pass labels=Labels("labels.csv", column=...)'),
    ("convert_images", "multi_label label_separator", 'pass labels=Labels("labels.csv", separator="|")'),
    ("convert_images convert_table", "group_column groups",
     'pass split=Split("train=0.8,val=0.2", group=...)'),
    ("convert_images convert_table", "split_column", "pass split=Split(column=...)"),
    ("convert_images", "soft", 'pass pairs={"alpha": Soft("mattes/")}'),
    ("convert_table", "engine address only_shards", "a table is packed by this machine: leave it out"),
    ("create pack_dataset", "boxes_unit",
     "boxes and keypoints are pixels: multiply shares by the image's width and height"),
    ("create pack_dataset", "format",
     "the ending of out decides: .h5 is HDF5. Or write it anew with repack(format=...)"),
    ("PythonTransform", "batched",
     "its function takes one sample. Call a function of batches in the loop"),
    (_DATASETS, "root dataset", "pass the pack's path as the first argument"),
    (_DATASETS, "indices", "pass subset= with row numbers"),
    (_DATASETS, "train", "pass split='train'"),
    (_DATASETS, "cache", "pass the pack that open_pack(url, cache=...) returns"),
    (_BATCHES, "num_workers workers persistent_workers", "pass threads=, or leave it out"),
    (_BATCHES, "pin_memory non_blocking",
     "pass device='cuda', whose buffers are pinned and copied asynchronously"),
    (_BATCHES, "sampler batch_sampler",
     "pass order=, such as Weighted(weights) or Weighted.balanced('label'), or subset= with row numbers"),
    (_BATCHES, "shuffle_buffer shuffle_buffer_size buffer_size",
     "pass shuffle=True, or order=Blocks(window=...)"),
    (_BATCHES, "distributed num_replicas num_shards", "pass rank= and world_size="),
    (_BATCHES, "collate_fn", "pass transform=, a function of a sample, or collate='pad'"),
    (_BATCHES, "prefetch_factor", "pass prefetch="),
    (_BATCHES, "generator", "pass seed="),
    (_BATCHES, "target_transform", "pass transform=, a function of the whole sample"),
    (_ROWS, "num_workers pin_memory collate_fn sampler batch_sampler", _LOADER),
    (_ROWS, "prefetch_factor generator drop_last shuffle batch_size", _LOADER),
    (_ROWS, "augment device order seed", "PackedBatchDataset has it"),
    (_ROWS, "transforms", "pass transform= and target_transform="),
)  # fmt: skip
"""Functions or classes, keywords, the remedy, which follows "<name>=: is not an argument of <function>; "."""


_OBJECTS = ("Csv", "Encode", "Fields", "Labels", "Padding", "Split")
"""Value objects, whose members are no parameters of the functions that take them."""


def remedy(function: Callable[..., Any], word: str) -> str | None:
    """Return what to do about a keyword that a function does not take; None if it resembles none it has."""
    name = function.__qualname__.removesuffix(".__init__")
    told = [said for of, words, said in _REMEDIES if name in of.split() and word in words.split()]
    parameters = signature(function).parameters
    for parameter in parameters.values():
        for kind in re.findall(r"\w+", str(parameter.annotation)):
            value = unwrap(function).__globals__.get(kind) if kind in _OBJECTS else None
            if value is not None and word in {one.name for one in fields(value)}:
                told.append(f"pass {parameter.name}={kind}({word}=...)")
    plain = {one.replace("_", ""): one for one in parameters}
    near = get_close_matches(word.replace("_", "").lower(), plain, 1, _ALIKE)
    return next(iter([*told, *(f"pass {plain[one]}=" for one in near)]), None)


def refuse_foreign_words(function: Callable[..., Any], given: Iterable[str]) -> None:
    """Raise UsageError for a keyword that a function does not take, with the remedy.

    A keyword without a remedy is left to Python.
    """
    for word in [one for one in given if one not in signature(function).parameters]:
        if instead := remedy(function, word):
            name = function.__qualname__.removesuffix(".__init__")
            raise UsageError(f"{word}=: is not an argument of {name}; {instead}.")
