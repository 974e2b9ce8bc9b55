"""verify_pack of a pack in a store: every byte of it is read once and compared, over several connections."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from packer.errors import FormatError
from packer.format.checksums import Trailer, digest, outside
from packer.format.remote_pack import RemotePack, open_remote
from packer.format.stretch_window import CONNECTIONS
from packer.format.stretches import STRETCH_BYTES, StretchMap
from packer.format.verdict import Problem, Verdict
from packer.progress import Progress

_AT_ONCE = 4096  # stretches that are handed to the threads; a pack may have millions


def verify_remote(url: str, bar: Progress) -> Verdict:
    """Compare a pack by its URL with its checksums. Raises FormatError if there is no pack; RemoteError."""
    begun = time.perf_counter()
    try:
        pack = open_remote(url)
        pack.confirm()
        stretches = StretchMap(pack)
        blobs = [(part, name) for part in range(len(pack.parts)) for name in stretches.blobs]
        stretches.find_blobs(blobs, stretches.fetch)
    except FormatError as error:
        if not error.part:
            raise
        return Verdict((Problem(url, error.part, error.sentence),), 0, time.perf_counter() - begun)
    problems: list[Problem] = []
    damaged: set[int] = set()
    nbytes = 0
    bar.start(pack.nbytes)
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        try:
            for first in range(0, stretches.count, _AT_ONCE):
                some = range(first, min(first + _AT_ONCE, stretches.count))
                for number, (size, wrong) in zip(some, pool.map(stretches.check, some), strict=True):
                    for block in wrong:
                        problems.append(_problem(pack, stretches, number, block))
                        damaged.add(block)
                    nbytes += size
                    bar.move(nbytes)
            problems += filter(None, pool.map(_check_rest, pack.parts))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    blocks = frozenset() if pack.shards else frozenset(damaged)
    return Verdict(tuple(problems), nbytes, time.perf_counter() - begun, blocks)


def _problem(pack: RemotePack, stretches: StretchMap, number: int, block: int) -> Problem:
    part, array = stretches.part(number), stretches.array(number)
    rows = block * part.header.block_rows, min((block + 1) * part.header.block_rows, part.rows)
    text = (
        f"{part.path}: rows {rows[0]:,} to {rows[1] - 1:,} of {array!r} are damaged (block {block}: its checksum differs)."
        " Copy the pack there again."
    )
    return Problem(part.path, "rows", text, array, block, rows)


def _check_rest(part: RemotePack) -> Problem | None:
    """Compare the bytes outside the rows with the trailer's digest."""
    trailer = Trailer.from_bytes(part.seal)
    assert trailer is not None
    taken = [(extent.offset, extent.end) for extents in part.header.extents.values() for extent in extents]

    def pieces() -> Iterator[bytes]:
        for start, stop in outside(taken, trailer.container_length):
            for at in range(start, stop, STRETCH_BYTES):
                yield bytes(part.files[""].read(at, min(STRETCH_BYTES, stop - at)))

    if digest(pieces()) == trailer.rest_digest:
        return None
    text = f"{part.path}: bytes outside the rows are damaged (their checksum differs). Copy the pack there again."
    return Problem(part.path, "metadata", text)
