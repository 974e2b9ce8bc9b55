"""The kind of a source, by the suffix of its name, or where that is not decisive by its content.

A table, a file of arrays, images, archives of images.
"""

from __future__ import annotations

import os
import re
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator

JSON_LINES = (".jsonl", ".ndjson")
TEXT_TABLES = (".csv", ".tsv", ".tab", ".psv", ".data", ".xlsx", ".xlsm", ".xls", *JSON_LINES)
PARQUET = (".parquet", ".pq")
ARROW_TABLES = (*PARQUET, ".arrow", ".feather", ".ipc")
COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz", ".zip")  # of text tables
HDF5_BEGIN = b"\x89HDF"
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
VIDEOS = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm", ".wmv")
FRAMES_FIRST = (
    "Videos are not read: make frames of each first, as mkdir -p clips/a && ffmpeg -i a.mp4 clips/a/%05d.jpg,"
    " then convert clips/ with sequence=True."
)
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


_SAMPLE = 64 << 10  # bytes of a text file that show whether it is a table
_LINES = 20
_IMAGE_NAME = re.compile(
    rb"\.(?:" + "|".join(suffix[1:] for all in IMAGES.values() for suffix in all).encode() + rb")\b", re.I
)
_NO_TABLES = (*LISTS, *ARRAYS, ".json", *(suffix for all in IMAGES.values() for suffix in all))
_DESCRIBING = ("README", "LICENSE", "LICENCE", "CITATION")


def compression(name: str) -> str:
    """Return the suffix of a compressed text file; "" for others."""
    return next((suffix for suffix in COMPRESSIONS if name.lower().endswith(suffix)), "")


def table_suffix(name: str) -> str:
    """Return the suffix of a table, one of TEXT_TABLES, ARROW_TABLES, or .txt if packed; else ""."""
    name = name.lower()
    plain = name.removesuffix(compression(name))
    text = next((suffix for suffix in TEXT_TABLES if plain.endswith(suffix)), "")
    if plain != name and plain.endswith(".txt"):  # lists of images are not compressed
        return ".txt"
    return text or next((suffix for suffix in ARROW_TABLES if name.endswith(suffix)), "")


def is_table(name: str) -> bool:
    """Return True for a table, a glob of tables, a folder of nothing but tables, an archive of tables.

    Lists of images end in .txt as well; they name images, and tables have several columns.
    """
    if os.path.isdir(name):
        return bool(folder_tables(name))
    if table_suffix(name) or not os.path.isfile(name):
        return bool(table_suffix(name))
    lower = name.lower()
    try:
        if lower.endswith(ARCHIVES):
            held = list(_archived(name))
            return bool(held) and all(map(table_suffix, held))
        if lower.endswith(".txt") or not lower.endswith(_NO_TABLES):
            with open(name, "rb") as file:
                return _has_columns(file.read(_SAMPLE))
    except (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError):
        pass  # the reader of images says why
    return False


def folder_tables(folder: str) -> list[str]:
    """Return the files of a folder and its sub-folders in order of name; [] if any of them is not a table.

    Hidden files, files that begin with "_" (as _SUCCESS of Spark), and files that describe the others are
    passed over.
    """
    found: list[str] = []
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    name = entry.name
                    if name[0] in "._" or name.upper().startswith(_DESCRIBING):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file() and table_suffix(name):
                        found.append(entry.path)
                    else:
                        return []
        except OSError:  # whoever reads it says why
            return []
    return sorted(found)


def _has_columns(begin: bytes) -> bool:
    """Return True if a text's first lines have the same number of a delimiter, and name no images."""
    lines = [line for line in begin.splitlines()[:_LINES] if line.strip()]
    if any(_IMAGE_NAME.search(line) for line in lines) or b"\0" in begin:
        return False
    for mark in (b"\t", b";", b"|", b","):
        ((count, times),) = Counter(line.count(mark) for line in lines).most_common(1) or [(0, 0)]
        if count and 2 * times > len(lines) > 1:
            return True
    return False


def _archived(name: str) -> Iterator[str]:
    """Yield the files of an archive, of a tar at most two: the second shows what the others are."""
    if name.lower().endswith(".zip"):
        with zipfile.ZipFile(name) as archive:
            yield from (one for one in archive.namelist() if not one.endswith("/") and not in_passing(one))
        return
    with tarfile.open(name, "r|*") as tar:
        files = (member.name for member in tar if not member.isdir() and not in_passing(member.name))
        for one, _ in zip(files, range(2), strict=False):
            yield one
            if not table_suffix(one):
                return


def in_passing(path: str) -> bool:
    """Return True for what systems add to archives, such as __MACOSX/._t.csv and .DS_Store."""
    return os.path.basename(path).startswith(".") or path.startswith("__MACOSX/")


def is_array_file(name: object) -> bool:
    """Return True for the path of an array file: by its suffix, or of an HDF5 file under any other name."""
    if not isinstance(name, (str, os.PathLike)):
        return False
    path = os.fspath(name)
    return path.lower().endswith(ARRAYS) or (not table_suffix(path) and is_hdf5(path))


def is_hdf5(path: str) -> bool:
    """Return True for a file that begins as HDF5 files do."""
    if not os.path.isfile(path):  # a pipe would wait for a writer
        return False
    try:
        with open(path, "rb") as file:
            return file.read(len(HDF5_BEGIN)) == HDF5_BEGIN
    except OSError:
        return False


def is_archive(path: str) -> bool:
    """Return True if a file of this name is read as an archive."""
    return path.lower().endswith(ARCHIVES)
