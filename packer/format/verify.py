"""verify_pack: every byte of a pack against its checksums, and what is wrong by file, array, block and rows.

What covers what: the trailer covers itself, the header, the checksum table and all bytes outside the rows; the table
covers the rows, block by block. So each byte of a sealed pack is looked at, and HDF5 is not asked. The trailer's digest of
the table tells damaged rows from a damaged table: if the checksums computed from the rows have that digest, then the rows
are whole, and an entry that differs is itself damaged.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.arguments import whole
from packer.errors import FormatError
from packer.format.block_hashing import BlockHashes, ValueCheck, hash_blocks, value_checks
from packer.format.checksums import MAGIC, Trailer, digest, file_ranges, outside
from packer.format.file_io import check_inside, pread_all
from packer.format.header import (
    CHECKSUMS_FILE,
    HDF5_MAGIC,
    HEADER_FILE,
    OFFSETS,
    PACK_OPTIONS,
    PARTIAL_SUFFIX,
    TRAILER_FILE,
    Header,
)
from packer.format.listed_headers import seal_of
from packer.format.npy_container import PREAMBLE, array_head, preamble
from packer.format.pack import Pack, check_own, open_pack, open_part, read_seal, unreadable
from packer.format.shards import INDEX_FILE, read_index
from packer.format.verdict import Problem, Verdict
from packer.machine import cores
from packer.progress import Progress
from packer.remote.urls import is_url

_ROWS_AT_ONCE = 1 << 16

Table = NDArray[np.uint64]


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
        Threads that read; default: the cores at hand, at most 4.
    progress : bool
        Show a bar on stderr, or a line a minute where there is no terminal.
    on_progress : callable
        Called on this thread with the bytes of rows checked so far, out of Pack.nbytes.

    Returns
    -------
    Verdict
        What is wrong; of a pack that cannot be opened this one problem.

    Raises
    ------
    UsageError
        `threads` is not a whole number of at least 1.
    FormatError
        No pack at all: nothing there, another kind of file, a folder without any file of a pack, an unfinished conversion.

    Notes
    -----
    Rows of a ragged field in a block whose offsets are damaged cannot be found, so only the offsets are reported. A file that
    was opened for writing since it was sealed has this one problem, of kind "unsealed": `packer seal` makes it a pack again.
    Checksums find damage, not forgery.
    """
    name, begun = os.fspath(path), time.perf_counter()
    threads = min(4, cores()) if threads is None else whole("threads", threads, 1)
    if is_url(name):
        with Progress(progress, "B", on_progress) as bar:
            from packer.format.remote_verify import verify_remote  # converting need not load it: 20 ms

            return verify_remote(name, bar)
    check_own(name)
    with Progress(progress, "B", on_progress) as bar:
        if os.path.exists(os.path.join(name, INDEX_FILE)):
            return _verify_shards(name, threads, bar)
        return _verify_one(name, threads, bar, begun)


def _verify_one(name: str, threads: int, bar: Progress, begun: float) -> Verdict:
    """Verify one file, or one directory of .npy files."""
    try:
        pack = open_part(name)
    except FormatError as error:
        if not _meant_as_pack(name):
            raise
        return Verdict(
            (Problem(name, error.part or "header", error.sentence),), 0, time.perf_counter() - begun
        )
    checks = value_checks(pack.header)
    bar.start(pack.nbytes)
    found = hash_blocks(pack, threads=threads, progress=bar.move, checks=checks)
    check = _Check(pack)
    try:
        check.run(found, checks)
    except OSError as error:
        raise unreadable(name, error) from error
    return Verdict(tuple(check.problems), found.nbytes, time.perf_counter() - begun, frozenset(check.blocks))


def _verify_shards(name: str, threads: int, bar: Progress) -> Verdict:
    """Verify a directory of shards: its index and each shard."""
    begun = time.perf_counter()
    try:
        shards = read_index(name).shards
    except OSError as error:
        raise unreadable(name, error) from error
    except FormatError as error:
        return Verdict((Problem(os.path.join(name, INDEX_FILE), "index", error.sentence),), 0, 0.0)
    problems: list[Problem] = []
    nbytes = 0
    bar.start(None)
    for shard in shards:
        path = os.path.join(name, shard.file)
        try:
            check_own(check_inside(name, shard.file))
            inner = Progress(False, "B", lambda done, before=nbytes: bar.move(before + done))  # type: ignore[misc]
            own = _verify_one(path, threads, inner, begun)
            problems += own.problems
            nbytes += own.nbytes
            if own.ok and seal_of(read_seal(path)) != shard.seal:
                text = f"{path}: is not the shard that {INDEX_FILE} lists. Bring back the right one."
                problems.append(Problem(path, "index", text))
        except FormatError as error:
            problems.append(Problem(path, "index", error.sentence))
        except OSError as error:
            problems.append(Problem(path, "index", str(unreadable(path, error))))
    if not problems:
        try:
            open_pack(name).confirm()
        except FormatError as error:
            problems.append(Problem(name, "index", error.sentence))
    return Verdict(tuple(problems), nbytes, time.perf_counter() - begun)


class _Check:
    """One verification. problems: found so far; blocks: as in Verdict."""

    def __init__(self, pack: Pack) -> None:
        self.problems: list[Problem] = []
        self.blocks: Iterable[int] = range(pack.header.blocks)
        self._pack, self._header = pack, pack.header
        trailer = Trailer.from_bytes(pack.seal)
        assert trailer is not None
        self._trailer = trailer

    def run(self, found: BlockHashes, checks: Mapping[str, ValueCheck]) -> None:
        """Compare everything."""
        if self._pack.format == "npy":
            self._directory()
        else:
            self._container()
        stored = self._stored_table()
        sealed = self._sealed_table(stored, found)
        if sealed is not None and self._pack.format == "h5":
            self._rest(sealed)
        table = stored if sealed is None else sealed
        if table is not None:
            self._rows(table, found, checks)
        for name, row, text in () if self.problems else wrong_pictures(self._pack):
            self._add(
                "rows",
                self._header.extents[name][0].file,
                f"{text}, although the checksums agree",
                name,
                block=row // self._header.block_rows,
                rows=(row, row + 1),
            )

    def _add(self, kind: str, file: str, text: str, array: str | None = None, **place: Any) -> None:
        path = os.path.join(self._pack.path, file) if file else self._pack.path
        self.problems.append(Problem(path, kind, f"{path}: {text}. {_again(self._header)}.", array, **place))

    def _directory(self) -> None:
        """Check a directory's files: where they are, how long, and their npy headers."""
        trailer = self._trailer
        if trailer.to_bytes() != self._pack.seal or trailer.container_length or trailer.header_offset:
            self._add("trailer", TRAILER_FILE, "says what no directory's trailer says")
        size = os.path.getsize(os.path.join(self._pack.path, HEADER_FILE))
        if size != trailer.header_length:
            self._add("header", HEADER_FILE, f"is {size} bytes long; the header has {trailer.header_length}")
        heads: list[bytes] = []
        for name in self._header.columns:
            file, extents = f"{name}.npy", self._header.extents[name]
            entries = sum(e.rows for e in extents)
            if [(e.offset, e.rows) for e in extents] != [(PREAMBLE, entries)]:  # opening has seen the file
                self._add(
                    "header", HEADER_FILE, f"places the rows of {name!r} elsewhere than in {file}", name
                )
                continue
            try:
                heads.append(array_head(self._header, name))
            except ValueError as error:
                self._add("header", HEADER_FILE, f"describes {name!r} as no .npy file does ({error})", name)
                continue
            self._npy(file, name, extents[0].end, heads[-1])
        if len(heads) == len(self._header.columns) and digest(heads) != trailer.rest_digest:
            self._add("trailer", TRAILER_FILE, "its digest of the npy headers is not that of the arrays")

    def _npy(self, file: str, array: str | None, end: int, head: bytes) -> None:
        path = os.path.join(self._pack.path, file)
        size = os.path.getsize(path)
        if size != end:
            self._add("metadata", file, f"is {size} bytes long; its array ends at {end}", array)
        with open(path, "rb") as opened:
            if opened.read(PREAMBLE) != head:
                self._add(
                    "metadata", file, f"npy header is damaged; it was {head[10:].decode().strip()}", array
                )

    def _container(self) -> None:
        """Check a file's sections: inside HDF5's part of it, apart from each other."""
        trailer = self._trailer
        if trailer.to_bytes() != self._pack.seal:
            self._add("trailer", "", "says what no trailer says")
        sections = [
            (trailer.header_offset, trailer.header_length, "the header"),
            (trailer.checksums_offset, trailer.checksums_length, "the checksum table"),
        ]
        for name, extents in self._header.extents.items():
            sections += ((e.offset, e.nbytes, f"rows of {name!r}") for e in extents if e.nbytes)
        sections.sort()
        for (offset, nbytes, what), (start, _, following) in itertools.pairwise(sections):
            if offset + nbytes > start:
                self._add("header", "", f"places {what} and {following} in the same bytes")
        for offset, nbytes, what in sections:
            if offset + nbytes > trailer.container_length:
                self._add(
                    "header",
                    "",
                    f"places {what} behind byte {trailer.container_length}, where HDF5's part ends",
                )

    def _stored_table(self) -> Table | None:
        """Read the checksum table as it is stored; None, with a problem, if none of the right size is there."""
        shape = (self._header.blocks, len(self._header.columns))
        nbytes, file = 8 * prod(shape), CHECKSUMS_FILE if self._pack.format == "npy" else ""
        found, offset = self._trailer.checksums_length, self._trailer.checksums_offset
        if found != nbytes or (file and offset != PREAMBLE):
            self._add(
                "trailer",
                TRAILER_FILE if file else "",
                f"places a checksum table of {found} bytes at byte {offset};"
                f" {shape[0]} blocks of {shape[1]} arrays take {nbytes}",
            )
            return None
        try:
            if file:
                self._npy(file, None, PREAMBLE + nbytes, preamble("<u8", shape))
            with open(os.path.join(self._pack.path, file) if file else self._pack.path, "rb") as opened:
                size = os.fstat(opened.fileno()).st_size
                data = pread_all(opened.fileno(), nbytes, offset) if offset < size else b""
        except OSError as error:
            self._add("checksums", file, f"checksum table cannot be read ({error.strerror})")
            return None
        return np.frombuffer(data, "<u8").reshape(shape) if len(data) == nbytes else None

    def _sealed_table(self, stored: Table | None, found: BlockHashes) -> Table | None:
        """Return the checksum table as it was sealed, stored or computed; None, with a problem, if neither is that."""
        expected = self._trailer.checksums_digest
        file = CHECKSUMS_FILE if self._pack.format == "npy" else ""
        if stored is not None and digest([stored]) == expected:
            return stored
        if not found.unread and digest([found.table]) == expected:
            if stored is not None:
                entries = np.argwhere(stored != found.table).tolist()
                place: dict[str, Any] = {}
                if len(entries) == 1:
                    block, number = entries[0]
                    place = {"array": self._header.columns[number], "block": block}
                self._add(
                    "checksums",
                    file,
                    f"checksum table is damaged in {len(entries)} of its {stored.size} entries; the rows are whole",
                    **place,
                )
            return found.table
        if stored is not None:
            self._add("checksums", file, "checksum table is damaged; the rows named with it may be whole")
        else:
            self._add("rows", file, "rows are damaged; without the checksum table nothing tells which")
        return None

    def _rest(self, table: Table) -> None:
        """Check every byte outside the rows, the checksum table as it was sealed among them."""
        trailer = self._trailer
        extents = self._header.extents.values()
        taken = [(e.offset, e.end) for es in extents for e in es]
        first, last = trailer.checksums_offset, trailer.checksums_offset + trailer.checksums_length
        before = outside([*taken, (first, trailer.container_length)], trailer.container_length)
        after = outside([*taken, (0, last)], trailer.container_length)
        fd = os.open(self._pack.path, os.O_RDONLY)
        try:
            found = digest(itertools.chain(file_ranges(fd, before), [table], file_ranges(fd, after)))
        except (OSError, EOFError) as error:
            self._add("metadata", "", f"bytes outside the rows cannot be read ({error})")
            return
        finally:
            os.close(fd)
        if found != trailer.rest_digest:
            self._add(
                "metadata",
                "",
                "bytes outside the rows are damaged (their checksum differs); packer reads the rows without them,"
                " HDF5 may not",
            )

    def _rows(self, table: Table, found: BlockHashes, checks: Mapping[str, ValueCheck]) -> None:
        """Report blocks that differ from the table, then whole blocks whose values are impossible."""
        wrong = table != found.table
        for place in found.unread:
            wrong[place] = True
        self.blocks = np.flatnonzero(wrong.any(axis=1)).tolist()
        size, rows, names = self._header.block_rows, self._header.rows, self._header.columns
        for block, c in np.argwhere(wrong).tolist():
            name, reason = names[c], found.unread.get((block, c), "its checksum differs")
            if name + OFFSETS in names:
                bounds = wrong[block : block + 2, names.index(name + OFFSETS)]
                if bounds.any() or not reason:
                    continue  # where its bytes lie is what is wrong, and is reported
            span = (block * size, min((block + 1) * size, rows))
            self._add(
                "rows",
                self._header.extents[name][0].file,
                f"{span_text(span)} of {name!r} {'is' if span[1] - span[0] == 1 else 'are'} damaged (block {block}: {reason})",
                name,
                block=block,
                rows=span,
            )
        for name, watch in checks.items():
            c = names.index(name)
            for first, stop, what in sorted(watch.wrong()):
                if wrong[first // size : (min(stop, rows - 1) // size) + 1, c].any():
                    continue
                self._add(
                    "rows",
                    self._header.extents[name][0].file,
                    f"{name!r} {what} ({span_text((first, stop))}), although the checksums agree",
                    name,
                    block=first // size,
                    rows=(first, stop),
                )


def wrong_pictures(pack: Pack) -> Iterator[tuple[str, int, str]]:
    """Yield fields of raw pictures of sizes of their own, the first row whose bytes are not those of its height and width, and why."""
    raw = [(f, f.own_size) for f in pack.fields]
    for f, own in ((f, own) for f, own in raw if own is not None and own.codec is None):
        for start in range(0, pack.rows, _ROWS_AT_ONCE):
            stop = min(start + _ROWS_AT_ONCE, pack.rows)
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


def _again(header: Header) -> str:
    """Return what makes a pack again: of what it was made."""
    options = set(header.provenance.get("options", {}))
    if PACK_OPTIONS & options:
        return "Make it again from the packs it was made of"
    if "fields" in options:
        return "Pack the samples again"
    return "Convert the images again" if header.table is None else "Convert the table again"


def span_text(rows: tuple[int, int]) -> str:
    """Return rows [first, last + 1) in words."""
    return f"row {rows[0]:,}" if rows[1] - rows[0] == 1 else f"rows {rows[0]:,} to {rows[1] - 1:,}"


def _meant_as_pack(name: str) -> bool:
    """Return True if what cannot be opened bears marks of a pack."""
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
