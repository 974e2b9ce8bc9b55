"""seal_pack: check, measure and write again a pack whose arrays were edited in place."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from packer.convert.conversion_task import ConversionTask, RunOptions
from packer.convert.pack_rows import PackRows, split_owners
from packer.convert.pack_run import write_pack
from packer.convert.row_storage import RowStorage
from packer.convert.sample_order import arrange
from packer.declared_types import checks_arguments
from packer.errors import BusyError, FormatError, PackerError, UsageError
from packer.format import file_io
from packer.format.fields import OFFSETS
from packer.format.header import (
    CHECKSUMS_FILE,
    HEADER_FILE,
    INDEX_FILE,
    MAX_HEADER_BYTES,
    PARTIAL_SUFFIX,
    TRAILER_FILE,
    Header,
)
from packer.format.safe_folders import check_pack_folder
from packer.machine import cores
from packer.packs.block_hashing import value_checks
from packer.packs.output_names import check_space
from packer.packs.pack import Pack
from packer.packs.pack_checks import (
    check_extents,
    check_heads,
    check_own,
)
from packer.packs.pack_opening import open_pack, open_part
from packer.packs.shards import not_listed, read_index, write_index
from packer.packs.unsealed_hdf5 import read_unsealed
from packer.packs.verify import span_text, verify_pack, wrong_pictures
from packer.progress import Progress
from packer.read.row_pieces import read_pieces
from packer.remote.urls import is_url
from packer.writing.working_folder import (
    WorkingFolder,
    clear_idle,
    locked,
)


@checks_arguments
def seal_pack(
    path: str | os.PathLike[str],
    *,
    progress: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Pack:
    """Seal a pack whose arrays were edited in place, with h5py or in .npy files.

    The function compares labels and offsets with the header, computes mean and std of the images again, and
    writes the pack again beside itself, which then takes its name; of shards only those that were edited. It
    cannot know what was edited: whoever seals a pack vouches for its content.

    Parameters
    ----------
    path : str or path
        A pack: a file, a directory of .npy files, or a directory of shards. A sealed pack stays unchanged.
    progress : bool
        Show a bar on stderr, or a line a minute if stderr is no terminal.
    on_progress : callable
        Called with the rows written so far.

    Returns
    -------
    Pack
        The sealed pack, as returned by open_pack.

    Raises
    ------
    FormatError
        Arrays are missing, added, or of another shape or dtype; values are not allowed in a pack.
    BusyError
        Another program has the file open.
    SpaceError
        The disk has no space for a second copy of the file, or of the shard.

    Notes
    -----
    The mapping of a table's columns, with its statistics, stays unchanged. A killed process leaves the edited
    pack or the sealed one.
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
        with Progress(progress, "rows", on_progress) as bar:
            if os.path.exists(os.path.join(name, INDEX_FILE)):
                _seal_shards(name, bar)
            else:
                _seal_part(name, bar)
    except FormatError:
        raise
    except OSError as error:
        raise PackerError(
            f"{error.filename or name}: cannot be sealed ({error.strerror}). Free some space, or change the"
            " permissions."
        ) from error
    return open_pack(name)


def _seal_shards(name: str, bar: Progress) -> None:
    """Seal the shards that need it. The index lists the sealed shard before that takes the edited one's name.

    So a sealed shard that the index does not list belongs to another pack.
    """
    with locked(name, name):
        index = read_index(name)
        shards = list(index.shards)
        for number, listed in enumerate(index.shards):

            def publish(shard: Pack, number: int = number) -> None:
                if not _alike(shard.header, shards[number].header):
                    raise not_listed(shard.path)
                shards[number] = shard
                write_index(name, shards, index.skipped)

            _seal_part(file_io.check_inside(name, listed.name), bar, publish)
    open_pack(name).confirm()


def _alike(header: Header, other: Header) -> bool:
    """Return True if headers differ only in members that edited rows, or writing them again, change."""
    bare = (
        replace(one, statistics={}, train_statistics={}, extents={}, block_rows=1) for one in (header, other)
    )
    return next(bare) == next(bare)


def _seal_part(name: str, bar: Progress, publish: Callable[[Pack], None] = lambda pack: None) -> None:
    """Write an edited file, or directory of .npy files, again and replace it; leave a sealed one as it is.

    publish: called with the sealed part before it is renamed, under its final name.
    """
    path = os.path.realpath(name)
    replacing = os.path.exists(path + PARTIAL_SUFFIX) and not os.path.exists(path)  # killed between renames
    if not replacing and _is_sealed(name):
        clear_idle(path)  # left by a process that was killed after it had replaced the part
        return
    place = WorkingFolder(path, overwrite=True, name=name, edited=True)
    try:
        pack = _open_edited(name)
        _check_values(pack)
        check_space(name, pack.nbytes)
        header = pack.header
        task = ConversionTask(
            name,
            PackRows(pack, jpeg=True),
            arrange(split_owners(pack), shuffle=False, seed=0),
            RowStorage.kept(pack),
            header.provenance,
            None,
            header.classes,
            header.seed,
            header.table,
            keyed=False,
            skipped=tuple(map(dict, header.skipped)),
        )
        bar.start(pack.rows)
        with file_io.locked(
            path, patience=0
        ) as alone:  # HDF5 also holds this lock while it has the file open
            if not alone:
                raise BusyError(f"{name}: is open in another program. Close it there, then seal it.")
            write_pack(task, place.pack, RunOptions(cores(), overwrite=True, progress=bar.move), name)
            publish(replace(open_part(place.pack), path=name))
            place.publish()
    finally:
        place.close(keep=False)


def _is_sealed(name: str) -> bool:
    """Return True for a part with a trailer; for a directory, which keeps it when edited, if it is intact."""
    try:
        return open_part(name).format == "h5" or verify_pack(name).ok
    except FormatError as error:
        strange = os.path.isdir(name) and not os.path.exists(os.path.join(name, HEADER_FILE))
        if strange or error.part not in ("unsealed", "trailer"):
            raise
        return False


def _open_edited(path: str) -> Pack:
    """Open a part as it is. HDF5 tells where the rows of a file are.

    Raises FormatError unless its arrays are those in its header, with the same form; OSError.
    """
    if not os.path.isdir(path):
        header, others = read_unsealed(path)
    else:
        check_own(path)
        with open(os.path.join(path, HEADER_FILE), "rb") as file:
            header = Header.from_bytes(file.read(MAX_HEADER_BYTES), path)
        ours = {HEADER_FILE, CHECKSUMS_FILE, TRAILER_FILE, *(f"{name}.npy" for name in header.columns)}
        others = sorted(set(os.listdir(path)) - ours)
    if others:
        raise FormatError(
            f"{path}: holds {others[0]!r}, which its header does not name; a pack holds nothing else. Remove"
            " it."
        )
    pack = Pack(path, header, b"")
    check_extents(pack)
    check_heads(pack)
    return pack


def _check_values(pack: Pack) -> None:
    """Raise FormatError for offsets, labels, categories or raw image sizes that the header does not allow."""
    problems: list[str] = []
    for name, check in value_checks(pack.header).items():
        found = [(0, [pack.read(name)])] if name.endswith(OFFSETS) else read_pieces(pack, name)
        for start, (rows,) in found:
            check.look(start, np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
        problems += (f"{name!r} {what} ({span_text((first, stop))})" for first, stop, what in check.wrong())
    problems += (text for _, _, text in (() if problems else wrong_pictures(pack)))
    if "box_label" in pack.header.columns and pack.header.classes:
        codes = pack.read("box_label").view("<i8")
        if len(codes) and not 0 <= codes.min() <= codes.max() < len(pack.header.classes):
            problems.append(f"'box_label' are not all within 0 to {len(pack.header.classes) - 1}")
    if problems:
        raise FormatError(f"{pack.path}: {problems[0]}. Correct that, then seal it: packer seal {pack.path}.")
