"""seal_pack: check, hash, measure and seal a pack whose arrays were edited in place."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import numpy as np

from packer.convert.pixel_sums import PixelSums, statistics_of
from packer.declared_types import checks_arguments
from packer.errors import FormatError, PackerError, UsageError
from packer.format.block_hashing import hash_blocks, value_checks
from packer.format.edited_pack import Publish, open_edited
from packer.format.file_io import check_inside
from packer.format.header import HEADER_FILE, INDEX_FILE, OFFSETS, TRAIN, Field, Header
from packer.format.pack import Pack
from packer.format.pack_opening import open_pack, open_part
from packer.format.shards import not_listed, read_index, write_index
from packer.format.verify import span_text, wrong_pictures
from packer.format.working_folder import check_pack_folder, locked
from packer.machine import cores
from packer.orders.runs import one_run
from packer.progress import Progress
from packer.read.array_store import PackStore
from packer.remote.urls import is_url

_STEP_BYTES = 4 << 20  # rows of one size that a thread decodes at once
_PICTURES = 64  # images of different sizes that a thread decodes at once
_ROWS_AT_ONCE = 1 << 16


@checks_arguments
def seal_pack(
    path: str | os.PathLike[str],
    *,
    progress: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Pack:
    """Seal a pack whose arrays were edited in place, with h5py or in .npy files.

    The function hashes every block, computes mean and std of changed images again, and compares labels and
    offsets with the header. It cannot know what was edited: whoever seals a pack vouches for its content.

    Parameters
    ----------
    path : str or path
        A pack: a file, a directory of .npy files, or a directory of shards. A sealed file stays unchanged.
    progress : bool
        Show a bar on stderr, or a line a minute if stderr is no terminal.
    on_progress : callable
        Called with the bytes of rows hashed so far.

    Returns
    -------
    Pack
        The sealed pack, as returned by open_pack.

    Raises
    ------
    FormatError
        Arrays are missing, added, or of another shape or dtype; rows were moved; values are not allowed in a
        pack.
    BusyError
        Another program has the file open.

    Notes
    -----
    The mapping of a table's columns, with its statistics, stays unchanged. A killed process leaves a pack
    that is sealed, or that can be sealed again.
    """
    name = os.fspath(path).rstrip("/")
    folder = os.path.dirname(name)
    if is_url(name):
        raise UsageError(f"{name}: is in a store. Download it, seal that file, and upload it again.")
    if os.path.exists(os.path.join(folder, INDEX_FILE)):
        raise UsageError(f"{name}: is a shard of a pack. Seal the pack: packer seal {folder or '.'}.")
    try:
        if os.path.isdir(name):
            check_pack_folder(name)
        with Progress(progress, "B", on_progress) as bar:
            if os.path.exists(os.path.join(name, INDEX_FILE)):
                _seal_shards(name, bar)
            else:
                _seal_part(name, bar, 0)
    except FormatError:
        raise
    except OSError as error:
        raise PackerError(
            f"{error.filename or name}: cannot be sealed ({error.strerror}). Free some space, or change the"
            " permissions."
        ) from error
    return open_pack(name)


def _seal_shards(name: str, bar: Progress) -> None:
    """Seal the shards that need it. A shard is added to the index before its trailer is written.

    So a sealed shard that the index does not list belongs to another pack.
    """
    with locked(name, name):
        index, done = read_index(name), 0
        shards = list(index.shards)
        for number, listed in enumerate(index.shards):

            def publish(shard: Pack, number: int = number) -> None:
                if not _alike(shard.header, shards[number].header):
                    raise not_listed(shard.path)
                shards[number] = shard
                write_index(name, shards, index.skipped)

            done += _seal_part(check_inside(name, listed.name), bar, done, publish)
    open_pack(name).confirm()


def _alike(header: Header, other: Header) -> bool:
    """Return True if headers differ only in members that edited rows change."""
    bare = (replace(one, statistics={}, train_statistics={}, extents={}) for one in (header, other))
    return next(bare) == next(bare)


def _seal_part(name: str, bar: Progress, before: int, publish: Publish = lambda pack: None) -> int:
    """Seal a file, or a directory of .npy files, if necessary; return the bytes of its rows.

    before: bytes of earlier parts, for the progress; publish: see EditedFile.
    """
    try:
        sealed = open_part(name)
        if sealed.format == "h5":
            return sealed.nbytes
    except FormatError as error:
        strange = os.path.isdir(name) and not os.path.exists(os.path.join(name, HEADER_FILE))
        if strange or error.part not in ("unsealed", "trailer"):
            raise
        sealed = None
    edited = open_edited(name)
    pack, stored = edited.pack, edited.table()
    check_values(pack)
    bar.start(pack.nbytes)
    hashed = hash_blocks(pack, threads=cores(), progress=lambda done: bar.move(before + done), checks={})
    for (block, column), why in hashed.unread.items():
        array = pack.header.columns[column]
        raise FormatError(f"{name}: block {block} of {array!r} cannot be read ({why}). Check the disk.")
    wrong = (hashed.table != stored).any(axis=0)
    changed = {array for array, differs in zip(pack.header.columns, wrong.tolist(), strict=True) if differs}
    header = pack.header
    for f in pack.fields:
        measured = f.name == "image" and f.name in header.statistics
        if (measured or f.compressed) and changed & {*f.arrays, "height", "width"}:
            sums = _sums(pack, f)
            if measured:
                header = replace(header, **statistics_of(f.name, sums, f.most))
    if sealed is None or changed:
        edited.seal(header, hashed.table, publish)
    return pack.nbytes


def check_values(pack: Pack) -> None:
    """Raise FormatError for offsets, labels, categories or raw image sizes that the header does not allow."""
    problems: list[str] = []
    for name, check in value_checks(pack.header).items():
        f = pack.header.field(name.removesuffix(OFFSETS))
        reader, entries = PackStore(pack, [f]), pack.rows + f.ragged
        for start in range(0, entries, _ROWS_AT_ONCE):
            stop = min(start + _ROWS_AT_ONCE, entries)
            rows = pack.read(name, start, stop) if f.ragged else reader.array(f.name, one_run(start, stop))
            check.look(start, np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
        problems += (f"{name!r} {what} ({span_text((first, stop))})" for first, stop, what in check.wrong())
    problems += (text for _, _, text in (() if problems else wrong_pictures(pack)))
    if "box_label" in pack.header.columns and pack.header.classes:
        codes = pack.read("box_label").view("<i8")
        if len(codes) and not 0 <= codes.min() <= codes.max() < len(pack.header.classes):
            problems.append(f"'box_label' are not all within 0 to {len(pack.header.classes) - 1}")
    if problems:
        raise FormatError(f"{pack.path}: {problems[0]}. Correct that, then seal it: packer seal {pack.path}.")


def _sums(pack: Pack, f: Field) -> dict[str, PixelSums]:
    """Read and decode all rows of a field; return the sums of its pixels, as Block.sums. Raises FormatError.

    For fields without pixels, only decode the rows; the sums are empty.
    """
    loaded, reader = f.loaded, PackStore(pack, [f])
    step = _PICTURES if loaded.ragged else max(1, _STEP_BYTES // loaded.row_bytes)

    def decode(start: int, stop: int) -> PixelSums:
        runs = one_run(start, stop)
        if not loaded.ragged:
            rows = reader.array(f.name, runs)
            sums = PixelSums(rows.shape[-1] if loaded.pixels else 0)
            if loaded.pixels:
                sums.add(rows, len(rows))
            return sums
        pictures = list(reader.decoded(f.name, runs))
        sums = PixelSums(pictures[0].shape[-1])
        for picture in pictures:
            sums.add_mean(np.ascontiguousarray(picture))
        return sums

    spans = pack.header.splits.get(TRAIN, ())
    ends = sorted({0, pack.rows, *(end for span in spans for end in span)})
    starts = [start for a, b in pairwise(ends) for start in range(a, b, step)]
    names = [TRAIN if any(a <= start < b for a, b in spans) else "" for start in starts]
    found: dict[str, PixelSums] = {}
    with ThreadPoolExecutor(cores()) as pool:
        for name, sums in zip(names, pool.map(decode, starts, [*starts[1:], pack.rows]), strict=True):
            found.setdefault(name, PixelSums(sums.channels)).merge(sums)
    return found
