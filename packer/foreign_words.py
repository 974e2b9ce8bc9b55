"""Keywords of other libraries and earlier designs: a table of remedies; misspelt keywords: the nearest one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from packer.errors import UsageError

_ALIKE = 0.7  # least similarity of a misspelt keyword, 0 to 1
_PACKS = "create pack_dataset"
_CONVERSIONS = "convert_images convert_table create pack_dataset repack"
_DATASETS = "PackedBatchDataset PackedDataset"
_BATCHES, _ROWS = _DATASETS.split()
_LOADER = "pass it to torch's DataLoader, or take PackedBatchDataset, which loads batches"
_REMEDIES = (
    (_CONVERSIONS, "compress", 'pass store="zstd", "gzip" or "blosc2"'),
    (_CONVERSIONS, "shard_rows", "pass shards=100_000, a number of rows"),
    (_CONVERSIONS, "shard_size", 'pass shards="2GB"'),
    ("convert_images", "address", 'pass engine="ray:ADDRESS"'),
    ("convert_images", "boxes", 'pass labels=Labels("labels.csv", boxes="xmin,ymin,xmax,ymax")'),
    ("convert_images", "keypoints", 'pass labels=Labels("labels.csv", keypoints="x,y")'),
    ("convert_images", "flip_pairs", 'pass labels=Labels(..., flip_pairs="left_eye:right_eye")'),
    ("convert_images", "label", 'pass labels=Labels("labels.csv", column=...)'),
    ("convert_images", "label_as", "pass labels=Labels(as_=...)"),
    ("convert_images", "label_file_column", 'pass labels=Labels("labels.csv", file_column=...)'),
    ("convert_images", "label_separator", 'pass labels=Labels("labels.csv", separator=...)'),
    ("convert_images", "boxes_unit", 'pass labels=Labels("labels.csv", boxes_unit=...)'),
    ("convert_images", "multi_label", 'pass labels=Labels("labels.csv", separator="|")'),
    ("convert_images convert_table", "group group_column groups",
     'pass split=Split("train=0.8,val=0.2", group=...)'),
    ("convert_images convert_table", "split_column", "pass split=Split(column=...)"),
    ("convert_images", "soft", 'pass pairs={"alpha": Soft("mattes/")}'),
    ("convert_table", "header delimiter quote decimal thousands na encoding skip_rows comment",
     "it is a member of Csv: pass csv=Csv(WORD=...)"),
    ("convert_table", "log1p indicators max_categories",
     "it is a member of Encode: pass encode=Encode(WORD=...)"),
    ("convert_table", "engine address only_shards", "a table is packed by this machine: leave it out"),
    ("convert_table", "on_stage", "on_progress gets how much of a stage is done"),
    (_PACKS, "channels", "pass fields=Fields(channels=...)"),
    (_PACKS, "boxes_unit", "boxes and keypoints are pixels: multiply shares by the image's width and height"),
    (_PACKS, "format", "the ending of out decides: .h5 is HDF5. Or write it anew with repack(format=...)"),
    (_PACKS, "on_progress", "pass the function as progress="),
    ("pack_dataset", "rename", "pass fields=Fields(rename={...})"),
    ("pack_dataset", "key", 'pass resume="birds v3", text that says what the dataset holds'),
    ("PythonTransform", "batched",
     "its function takes one sample. Call a function of batches in the loop"),
    (_DATASETS, "root dataset", "pass the pack's path as the first argument"),
    (_DATASETS, "indices", "pass subset= with row numbers"),
    (_DATASETS, "train", "pass split='train'"),
    (_DATASETS, "cache cache_size cache_shared",
     "pass the pack that open_pack(url, cache=...) or fill_pack(images, out) returns"),
    (_DATASETS, "verify", "pass the pack that open_pack(path, verify='blocks') returns"),
    (_BATCHES, "num_workers workers persistent_workers", "pass threads=, or leave it out"),
    (_BATCHES, "pin_memory non_blocking",
     "pass device='cuda', whose buffers are pinned and copied asynchronously"),
    (_BATCHES, "sampler batch_sampler",
     "pass order=, such as Weighted(weights) or Balanced('label'), or subset= with row numbers"),
    (_BATCHES, "shuffle_buffer shuffle_buffer_size buffer_size",
     "pass shuffle=True, or order=Blocks(window=...)"),
    (_BATCHES, "distributed num_replicas num_shards", "pass rank= and world_size="),
    (_BATCHES, "collate_fn", "pass transform=, a function of a sample, or collate='pad'"),
    (_BATCHES, "prefetch_factor", "pass prefetch="),
    (_BATCHES, "generator", "pass seed="),
    (_BATCHES, "target_transform", "pass transform=, a function of the whole sample"),
    (_BATCHES, "mask_fill", "pass augment=packer.augment.Pipeline(..., mask_fill=...), or"
     " collate=Padding(mask_fill=...)"),
    (_BATCHES, "soft_fill", "pass augment=packer.augment.Pipeline(..., soft_fill=...)"),
    (_BATCHES, "convert", "pass the pack that fill_pack(images, out, **options) returns"),
    (_BATCHES, "report", "print(dataset.stats()) says the same"),
    (_ROWS, "num_workers pin_memory collate_fn sampler batch_sampler", _LOADER),
    (_ROWS, "prefetch_factor generator drop_last shuffle batch_size", _LOADER),
    (_ROWS, "augment device order seed", "PackedBatchDataset has it"),
    (_ROWS, "transforms", "pass transform= and target_transform="),
)  # fmt: skip
"""Functions or classes, keywords, and the remedy.

The remedy follows "<name>=: is not an argument of <function>; ...". WORD in a remedy stands for the keyword.
"""


def remedy(function: str, word: str) -> str | None:
    """Return the remedy for a keyword that a function does not take; None if the table has none."""
    found = (said for of, words, said in _REMEDIES if function in of.split() and word in words.split())
    return next((said.replace("WORD", word) for said in found), None)


def refuse_foreign_words(name: str, given: Iterable[str], taken: Collection[str]) -> None:
    """Raise UsageError for a keyword that a function does not take, with the remedy.

    name: the function, or Class for the ``__init__`` of a class; taken: its parameters. A keyword of no
    remedy that resembles none of them is left to Python.
    """
    for word in given:
        if word in taken:
            continue
        plain = {one.replace("_", ""): one for one in taken}
        near = get_close_matches(word.replace("_", "").lower(), plain, 1, _ALIKE)
        instead = remedy(name, word) or (f"pass {plain[near[0]]}=" if near else None)
        if instead:
            raise UsageError(f"{word}=: is not an argument of {name}; {instead}.")
