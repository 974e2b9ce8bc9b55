"""The kind of a source by its name's suffix: a table, a file of arrays, images, archives of images."""

from __future__ import annotations

import os

TEXT_TABLES = (".csv", ".tsv", ".tab", ".psv", ".data")
PARQUET = (".parquet", ".pq")
ARROW_TABLES = (*PARQUET, ".arrow", ".feather", ".ipc")
COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")  # of text tables
HDF5 = (".h5", ".hdf5", ".hdf", ".he5", ".hd5")
ARRAYS = (*HDF5, ".mat", ".npy", ".npz")
IMAGES = {
    "JPEG": (".jpg", ".jpeg", ".jpe"),
    "PNG": (".png",),
    "WebP": (".webp",),
    "BMP": (".bmp",),
    "TIFF": (".tif", ".tiff"),
    "GIF": (".gif",),
    "AVIF": (".avif",),
    "PPM": (".ppm", ".pgm"),
}
"""Format of image files -> suffixes."""
LISTS = (".lst", ".txt")  # of images
LABELS = (".json", ".txt", ".xml")  # of one image
COMPRESSED_TARS = {
    **dict.fromkeys((".tar.gz", ".tgz"), "gzip"),
    **dict.fromkeys((".tar.bz2", ".tbz2"), "bz2"),
    **dict.fromkeys((".tar.xz", ".txz"), "lzma"),
}
"""Suffix -> Python module that decompresses it."""
TARS = (".tar", *COMPRESSED_TARS)
PLAIN_ARCHIVES = (".tar", ".zip")  # members are read in place
ARCHIVES = (*TARS, ".zip")
_UNREAD = (
    ".beton .ffcv .lmdb .mdb .rec .tfrecord .zarr .nc .pt .pth .pkl .pickle .safetensors .json .jsonl .xls"
    " .xlsx .db .sqlite .7z .rar .hdf4"
)


def is_hdf5_name(name: str) -> bool:
    """Return True for the name of an HDF5 file."""
    return name.rstrip("/").lower().endswith(HDF5)


def is_other_file(name: str) -> bool:
    """Return True for a name with the suffix of a file that packer does not write.

    >>> is_other_file("out.zip"), is_other_file("out.h5"), is_other_file("imagenet.2012")
    (True, False, False)
    """
    known = (*ARRAYS, *TEXT_TABLES, *ARROW_TABLES, *COMPRESSIONS, *LISTS, *ARCHIVES, *_UNREAD.split())
    suffixes = (*known, *(suffix for kind in IMAGES.values() for suffix in kind))
    return name.rstrip("/").lower().endswith(suffixes) and not is_hdf5_name(name)


def compression(name: str) -> str:
    """Return the suffix of a compressed text file; "" for others."""
    return next((suffix for suffix in COMPRESSIONS if name.lower().endswith(suffix)), "")


def table_suffix(name: str) -> str:
    """Return the suffix of a table, one of TEXT_TABLES or ARROW_TABLES; "" for other files."""
    name = name.lower()
    plain = name.removesuffix(compression(name))
    text = next((suffix for suffix in TEXT_TABLES if plain.endswith(suffix)), "")
    return text or next((suffix for suffix in ARROW_TABLES if name.endswith(suffix)), "")


def is_table(name: str) -> bool:
    """Return True if a file, or the files of a glob, are tables by name."""
    return bool(table_suffix(name))


def is_array_file(name: object) -> bool:
    """Return True for a path with the suffix of an array file."""
    return isinstance(name, (str, os.PathLike)) and os.fspath(name).lower().endswith(ARRAYS)


def is_archive(path: str) -> bool:
    """Return True if a file of this name is read as an archive."""
    return path.lower().endswith(ARCHIVES)
