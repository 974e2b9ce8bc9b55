"""Row numbers of a table's files: which row each pack row was, also after shuffling, merging, appending.

A pack of a table has the field SOURCE_ROW, and lists the files whose rows it counts, with their digests and
numbers of rows, in ``provenance.source.rows_of_files``. Packs and shards made from other files count other
rows; as one, they count the rows of all their files, one file after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.format.fields import Field
from packer.format.header import Header

SOURCE_ROW = Field("source_row", "<i4", (), {"row_of": "files"})
"""Each row's number among the rows of the table's files, from 0, without headers, with skipped rows."""

SEQUENCE_ROW = Field("sequence_row", "<i8", (), {"row_of": "sequences"})
"""Each row's place in its sequence: rows that follow each other there have numbers that differ by 1."""

FILES = "rows_of_files"
"""Member of ``provenance.source``: [[digest, rows], ...] of the files."""

CountedFile = tuple[str, int, int]
"""Digest of a file, its rows, and how many equal files precede it in the same list."""


def is_counted(header: Header) -> bool:
    """Return True if a pack has the row numbers of its files."""
    return SOURCE_ROW in header.fields


def counted_files(headers: Iterable[Header]) -> list[CountedFile]:
    """Return the files whose rows some packs count, each once, in order."""
    files: dict[CountedFile, None] = {}
    for header in headers:
        before: Counter[tuple[str, int]] = Counter()
        for digest, rows in header.provenance.get("source", {}).get(FILES, ()):
            files[digest, rows, before[digest, rows]] = None
            before[digest, rows] += 1
    return list(files)


def to_json(files: Iterable[CountedFile]) -> list[list[Any]]:
    """Return the files as the header lists them."""
    return [[digest, rows] for digest, rows, _ in files]


def fits(files: Iterable[CountedFile]) -> bool:
    """Return True if SOURCE_ROW holds the numbers of all rows of some files."""
    return sum(rows for _, rows, _ in files) <= np.iinfo(SOURCE_ROW.dtype).max


def recounted(
    numbers: NDArray[Any], own: Sequence[CountedFile], files: Sequence[CountedFile]
) -> NDArray[np.int64]:
    """Return numbers among the rows of the files `own` as numbers among those of `files`, which include them.

    Raises ValueError, OverflowError for a number that `own` does not have.
    """
    ends = np.array([*accumulate(rows for _, rows, _ in own)], np.int64)
    if not len(ends) or not 0 <= numbers.min(initial=0) <= numbers.max(initial=0) < ends[-1]:
        raise ValueError("not all are below the number of rows")
    first = dict(zip(files, accumulate((rows for _, rows, _ in files), initial=0), strict=False))
    moved = np.array([first[file] - (end - file[1]) for file, end in zip(own, ends.tolist(), strict=True)])
    result: NDArray[np.int64] = numbers + moved[np.searchsorted(ends, numbers, "right")]
    return result
