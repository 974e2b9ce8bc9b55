"""verify_pack: compares every byte of a pack with its checksums; locates damage by file, array, block, rows.

The trailer covers itself, the header, the checksum table and all bytes outside the rows; the table covers the
rows, block by block. So every byte of a sealed pack is checked, without HDF5. The trailer's digest of the
table distinguishes damaged rows from a damaged table: if the checksums computed from the rows have that
digest, the rows are intact, and a table entry that differs is damaged.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.arguments import whole
from packer.declared_types import checks_arguments
from packer.errors import FormatError
from packer.format.checksums import MAGIC, digest, file_ranges, outside
from packer.format.fields import OFFSETS
from packer.format.file_io import check_inside, pread_path
from packer.format.header import (
    CHECKSUMS_FILE,
    HDF5_MAGIC,
    HEADER_FILE,
    INDEX_FILE,
    PACK_OPTIONS,
    PARTIAL_SUFFIX,
    TRAILER_FILE,
)
from packer.format.npy_container import PREAMBLE, preamble
from packer.machine import cores
from packer.orders.runs import pieces
from packer.packs.block_hashing import BlockHashes, ValueCheck, hash_blocks, value_checks
from packer.packs.pack import (
    Pack,
    read_seal,
    unreadable,
)
from packer.packs.pack_checks import (
    check_own,
    wrong_heads,
)
from packer.packs.pack_opening import open_part
from packer.packs.shards import not_listed, read_index
from packer.progress import Progress
from packer.remote.urls import is_url

_ROWS_AT_ONCE = 1 << 16
_CONNECTIONS = 16

Table = NDArray[np.uint64]


@dataclass(frozen=True)
class Problem:
    """A defect.

    file: path of the file that holds it; text: the sentence.
    kind: "rows", "header", "trailer", "checksums" (the table), "metadata" (descriptions of the arrays for
        HDF5 or NumPy), "unsealed" (another program has opened the file for writing since it was sealed), or
        "index" (of shards, or a shard that differs from its entry).
    array: name of the array, None if unknown or not applicable.
    block, rows: the block, and its rows [first, last + 1) or the wrong ones among them; None if no block is
        concerned.
    """

    file: str
    kind: str
    text: str
    array: str | None = None
    block: int | None = None
    rows: tuple[int, int] | None = None


@dataclass(frozen=True)
class Verdict:
    """Result of verifying.

    nbytes: bytes of rows read and compared; seconds: duration.
    """

    problems: tuple[Problem, ...]
    nbytes: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True if there are no problems."""
        return not self.problems


@checks_arguments
def verify_pack(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    progress: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Verdict:
    """Compare every byte of a pack, .h5 or directory, with its checksums, and its header with its arrays.

    Parameters
    ----------
    path : str or path
        A pack, or its URL.
    threads : int, optional
        Number of reading threads; default: the available cores, at most 4; 16 for a pack at a URL.
    progress : bool
        Show a bar on stderr, or a line per minute if it is not a terminal.
    on_progress : callable
        Called on this thread with the bytes of rows checked so far, out of Pack.nbytes.

    Returns
    -------
    Verdict
        The problems. A pack that cannot be opened has this single problem.

    Raises
    ------
    UsageError
        `threads` is not a whole number of at least 1.
    FormatError
        Not a pack at all: nothing there, another kind of file, a folder without a pack's files, an unfinished
        conversion.

    Notes
    -----
    Rows of a ragged field in a block whose offsets are damaged cannot be located, so only the offsets are
    reported. A file that was opened for writing after it was sealed has this single problem, of kind
    "unsealed"; `packer seal` seals it again. Checksums detect damage, not forgery.
    """
    name, begun = os.fspath(path), time.perf_counter()
    most = _CONNECTIONS if is_url(name) else min(4, cores())
    threads = most if threads is None else whole("threads", threads, 1)
    with Progress(progress, "B", on_progress) as bar:
        verdict = _verify(name, threads, bar)
    return replace(verdict, seconds=time.perf_counter() - begun)


def _verify(name: str, threads: int, bar: Progress) -> Verdict:
    if not is_url(name):
        check_own(name)
    try:
        total, parts = _part_openers(name)
    except OSError as error:
        raise unreadable(name, error) from error
    except FormatError as error:
        if error.part != "index" and not (error.part if is_url(name) else _meant_as_pack(name)):
            raise
        file = os.path.join(name, INDEX_FILE) if error.part == "index" else name
        return Verdict((Problem(file, error.part or "header", str(error)),))
    bar.start(total)
    problems: list[Problem] = []
    nbytes = 0
    for path, opener in parts.items():
        try:
            found = _verify_part(opener, threads, partial(_move, bar, nbytes))
        except (FormatError, OSError) as error:
            if path == name:
                raise
            wrong = error if isinstance(error, FormatError) else unreadable(path, error)
            problems.append(Problem(path, getattr(error, "part", "") or "index", str(wrong)))
        else:
            problems += found.problems
            nbytes += found.nbytes
    return Verdict(tuple(problems), nbytes)


def _verify_part(opener: Callable[[], Pack], threads: int, progress: Callable[[int], None]) -> Verdict:
    pack = opener()
    checks = value_checks(pack.header)
    found = hash_blocks(pack, threads=threads, progress=progress, checks=checks)
    check = _Check(pack, found)
    try:
        check.run(checks)
    except OSError as error:
        raise unreadable(pack.path, error) from error
    return Verdict(tuple(check.problems), found.nbytes)


def _move(bar: Progress, before: int, done: int) -> None:
    bar.move(before + done)


def _part_openers(name: str) -> tuple[int, dict[str, Callable[[], Pack]]]:
    """Return the bytes of a pack's rows, and path -> opener for its parts.

    Raises FormatError, RemoteError, OSError.
    """
    if is_url(name):
        from packer.packs.remote_pack import open_remote  # conversion does not need it: 20 ms

        pack = open_remote(name)
        named = {name if part is pack else part.path: part for part in pack.parts}
        return pack.nbytes, {path: partial(_confirmed, part) for path, part in named.items()}
    if os.path.exists(os.path.join(name, INDEX_FILE)):
        shards = read_index(name).shards
        return sum(shard.nbytes for shard in shards), {s.path: partial(_open_listed, s) for s in shards}
    part = open_part(name)
    return part.nbytes, {name: lambda: part}


def _confirmed(part: Pack) -> Pack:
    part.confirm()
    return part


def _open_listed(listed: Pack) -> Pack:
    """Open a shard and check that it is the listed one."""
    check_own(check_inside(*os.path.split(listed.path)))
    pack = open_part(listed.path)
    if pack.seal != listed.seal or pack.header != listed.header:
        raise not_listed(listed.path)
    return pack


class _Check:
    """Verification of a part. found: checksums of its blocks; problems: those so far."""

    def __init__(self, pack: Pack, found: BlockHashes) -> None:
        self.problems: list[Problem] = []
        self._pack, self._header, self._found = pack, pack.header, found
        self._directory = pack.format == "npy"
        self._trailer = pack.trailer

    def run(self, checks: Mapping[str, ValueCheck]) -> None:
        """Compare everything."""
        trailer = self._trailer
        places = trailer.container_length or trailer.header_offset
        if trailer.to_bytes() != self._pack.seal or (self._directory and places):
            self._add("trailer", TRAILER_FILE if self._directory else "", "holds values that no trailer has")
        if self._directory:
            self._heads()
        table, sealed = self._table()
        if table is not None:
            self._report_rows(table, checks)
        if sealed and not self._directory:
            self._rest(table)
        for name, row, text in () if self.problems else wrong_pictures(self._pack):
            block, file = row // self._header.block_rows, self._header.extents[name][0].file
            text = f"{text}, although the checksums agree"
            self._add("rows", file, text, name, block=block, rows=(row, row + 1))

    def _add(self, kind: str, file: str, text: str, array: str | None = None, **place: Any) -> None:
        path = os.path.join(self._pack.path, file) if file else self._pack.path
        self.problems.append(Problem(path, kind, f"{path}: {text}. {_again(self._pack)}.", array, **place))

    def _heads(self) -> None:
        """Check a directory's files outside the rows: npy headers, and no bytes after the array."""
        size = os.path.getsize(os.path.join(self._pack.path, HEADER_FILE))
        if size != self._trailer.header_length:
            text = f"is {size} bytes long; the header has {self._trailer.header_length}"
            self._add("header", HEADER_FILE, text)
        for name in self._header.columns:
            self._length(f"{name}.npy", name, sum(e.nbytes for e in self._header.extents[name]))
        for name, why in wrong_heads(self._pack):
            self._add("metadata", f"{name}.npy", why, name)

    def _length(self, file: str, array: str | None, nbytes: int) -> None:
        size = os.path.getsize(os.path.join(self._pack.path, file))
        if size != PREAMBLE + nbytes:
            text = f"is {size} bytes long; its array ends at {PREAMBLE + nbytes}"
            self._add("metadata", file, text, array)

    def _table(self) -> tuple[Table | None, bool]:
        """Return the checksum table, stored or computed, and True if it is the sealed one."""
        computed = self._found.table
        file = CHECKSUMS_FILE if self._directory else ""
        stored = None
        try:
            if self._directory:
                self._length(file, None, computed.nbytes)
                head = pread_path(os.path.join(self._pack.path, file), PREAMBLE, 0)
                if head != preamble("<u8", computed.shape):
                    self._add("metadata", file, "its .npy header is damaged")
            stored = self._pack.stored_checksums()
        except OSError as error:
            self._add("checksums", file, f"checksum table cannot be read ({error.strerror})")
        expected = self._trailer.checksums_digest
        if stored is not None and digest([stored]) == expected:
            return stored, True
        whole = not self._found.unread and digest([computed]) == expected
        if stored is not None:
            which = "the rows are intact" if whole else "the rows named with it may be intact"
            self._add("checksums", file, f"checksum table is damaged; {which}")
        elif not whole:
            self._add("rows", file, "rows are damaged; only the checksum table could show which")
        return (computed, True) if whole else (stored, False)

    def _rest(self, table: Table | None) -> None:
        """Check every byte outside the rows of a file, with the checksum table as it was sealed."""
        trailer, read = self._trailer, partial(self._pack.read_bytes, "")
        rows = [(e.offset, e.end) for extents in self._header.extents.values() for e in extents]
        end = trailer.container_length
        first = min(trailer.checksums_offset, end)
        last = min(first + trailer.checksums_length, end)

        before, after = (file_ranges(read, outside([*rows, part], end)) for part in ((first, end), (0, last)))
        try:
            found = digest(itertools.chain(before, [table], after))  # type: ignore[list-item]
        except (OSError, EOFError) as error:
            self._add("metadata", "", f"bytes outside the rows cannot be read ({error})")
            return
        if found != trailer.rest_digest:
            text = "bytes outside the rows are damaged (their checksum differs); packer reads the rows"
            self._add("metadata", "", f"{text} nevertheless, HDF5 may not")

    def _report_rows(self, table: Table, checks: Mapping[str, ValueCheck]) -> None:
        """Report blocks whose checksums differ from the table, then intact blocks with impossible values."""
        wrong = table != self._found.table
        for place in self._found.unread:
            wrong[place] = True
        size, rows, names = self._header.block_rows, self._header.rows, self._header.columns
        for block, c in np.argwhere(wrong).tolist():
            name, reason = names[c], self._found.unread.get((block, c), "its checksum differs")
            if name + OFFSETS in names:
                bounds = wrong[block : block + 2, names.index(name + OFFSETS)]
                if bounds.any() or not reason:
                    continue  # the block's place is wrong, which is reported already
            span = (block * size, min((block + 1) * size, rows))
            are = "is" if span[1] - span[0] == 1 else "are"
            text = f"{span_text(span)} of {name!r} {are} damaged (block {block}: {reason})"
            self._add("rows", self._header.extents[name][0].file, text, name, block=block, rows=span)
        for name, watch in checks.items():
            c = names.index(name)
            for first, stop, what in sorted(watch.wrong()):
                if wrong[first // size : (min(stop, rows - 1) // size) + 1, c].any():
                    continue
                text = f"{name!r} {what} ({span_text((first, stop))}), although the checksums agree"
                file = self._header.extents[name][0].file
                self._add("rows", file, text, name, block=first // size, rows=(first, stop))


def wrong_pictures(pack: Pack) -> Iterator[tuple[str, int, str]]:
    """Yield (field, row, reason) for the first row of each raw picture field that does not fit height and
    width.
    """
    raw = [(f, f.own_size) for f in pack.fields]
    for f, own in ((f, own) for f, own in raw if own is not None and own.codec is None):
        for start, stop in pieces(pack.rows, _ROWS_AT_ONCE):
            nbytes = np.diff(pack.read(f.name + OFFSETS, start, stop + 1).astype(np.int64))
            height, width = (pack.read(name, start, stop).astype(np.int64) for name in ("height", "width"))
            wrong = (height < 1) | (width < 1) | (nbytes != height * width * own.nbytes(1, 1))
            if wrong.any():
                row = int(wrong.argmax())
                yield (
                    f.name,
                    start + row,
                    f"row {start + row:,} of {f.name!r} has {nbytes[row]:,} bytes, not those of its height"
                    f" {height[row]:,} and width {width[row]:,}",
                )
                break


def _again(pack: Pack) -> str:
    """Return the remedy for damage: repeat what created the pack."""
    if is_url(pack.path):
        return "Copy the pack there again"
    header = pack.header
    options = set(header.provenance.get("options", {}))
    if PACK_OPTIONS & options:
        return "Create it again from the packs that it was made from"
    if "fields" in options:
        return "Pack the samples again"
    return "Convert the images again" if header.table is None else "Convert the table again"


def span_text(rows: tuple[int, int]) -> str:
    """Return rows [first, last + 1) as text."""
    return f"row {rows[0]:,}" if rows[1] - rows[0] == 1 else f"rows {rows[0]:,} to {rows[1] - 1:,}"


def _meant_as_pack(name: str) -> bool:
    """Return True if an unreadable file or folder has marks of a pack."""
    if name.endswith(PARTIAL_SUFFIX):
        return False
    if os.path.isdir(name):
        files = (HEADER_FILE, TRAILER_FILE, CHECKSUMS_FILE)
        return sum(os.path.exists(os.path.join(name, file)) for file in files) > 1
    try:
        with open(name, "rb") as file:
            return file.read(8) == HDF5_MAGIC or read_seal(name)[-8:] == MAGIC
    except OSError:
        return False
