"""The kind of a source by its name's suffix: a table, a file of arrays, images, archives of images."""

from __future__ import annotations

import os

TEXT_TABLES = (".csv", ".tsv", ".tab", ".psv", ".data")
PARQUET = (".parquet", ".pq")
ARROW_TABLES = (*PARQUET, ".arrow", ".feather", ".ipc")
COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")  # of text tables
ARRAYS = (".h5", ".hdf5", ".hdf", ".mat", ".npy", ".npz")
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
COMPRESSED_TARS = {
    **dict.fromkeys((".tar.gz", ".tgz"), "gzip"),
    **dict.fromkeys((".tar.bz2", ".tbz2"), "bz2"),
    **dict.fromkeys((".tar.xz", ".txz"), "lzma"),
}
"""Suffix -> Python module that decompresses it."""
TARS = (".tar", *COMPRESSED_TARS)
PLAIN_ARCHIVES = (".tar", ".zip")  # members are read in place
ARCHIVES = (*TARS, ".zip")


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
