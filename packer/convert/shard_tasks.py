"""One shard made by another process, perhaps of another machine: in a folder of its own, then given to the pack as a whole.

Attempts may overlap, as those of a machine that was given up for lost: their bytes are equal, and each shard gets its name, or its place
in a store, in one step.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np

from packer.convert.conversion_task import ConversionTask, NothingPackedError, RunOptions, RunResult
from packer.convert.part_run import write_part
from packer.convert.sample_order import SampleOrder
from packer.convert.shard_run import ShardWork
from packer.errors import PackerError, SourceError
from packer.format.file_io import fsync_path, remove
from packer.format.file_systems import remote_file_system
from packer.format.header import Header
from packer.format.listed_headers import seal_of
from packer.format.pack import read_seal
from packer.format.working_folder import difference, failure
from packer.remote.urls import is_url, join
from packer.version import __version__

if TYPE_CHECKING:
    from packer.convert.image_rows import ImageRows


@dataclass(frozen=True)
class ShardTask:
    """The task of another process. task: a shard's own, but for its samples, 0..rows-1; the other members: as ShardWork has them."""

    task: ConversionTask
    rows: int
    file: str
    folder: str
    scratch: str
    name: str
    skip: bool

    @classmethod
    def of(cls, work: ShardWork, number: int) -> ShardTask:
        """Take one shard of the work. Raises UsageError where its inputs cannot be read elsewhere."""
        shard, file = work.shard(number), work.file(number)
        maker = cast("ImageRows", shard.maker).part(shard.order.samples)
        order = SampleOrder(np.empty(0, np.int64), shard.order.splits)
        folder = work.folder if is_url(work.folder) else os.path.abspath(work.folder)
        return cls(
            replace(shard, maker=maker, order=order, plan=None, newest=None),
            len(shard.order.samples),
            file,
            folder,
            os.path.abspath(work.scratch),
            os.path.join(work.name, file),
            work.running.skip,
        )


def make_shard(given: ShardTask) -> RunResult:
    """Make a shard, and put it where the others are. Returns: the result, whose header is left out.

    Raises NothingPackedError, SourceError (an image, or the libraries of this machine), SpaceError, PackerError.
    """
    task = replace(given.task, order=replace(given.task.order, samples=np.arange(given.rows)))
    _check_versions(task)
    with _told_where(given.name), _scratch(given) as folder:
        path = os.path.join(folder, given.file)
        made = write_part(task, path, RunOptions(1, given.skip), given.name)
        seal = seal_of(read_seal(path))
        _publish(path, given)
    return replace(made, header=Header(0, 1, (), {}), seal=seal)


@contextmanager
def _told_where(name: str) -> Iterator[None]:
    """Say in errors on which machine they came. name: of what is written."""
    host = socket.gethostname()
    try:
        yield
    except OSError as error:
        raise failure(f"{name} (on {host})", error) from error
    except NothingPackedError:
        raise
    except PackerError as error:
        error.extend(f" (On {host}.)")
        raise


def _check_versions(task: ConversionTask) -> None:
    """Raise SourceError if this machine has other libraries than the pack was planned with."""
    from packer.convert.whole_pictures import partner_versions  # tables need not load the decoders
    from packer.pixels.decode_resize import decoder_versions

    planned = task.members["provenance"]["versions"]
    own = {"packer": __version__, **decoder_versions(), **task.storing.versions()}
    own |= partner_versions(task.maker.fields)
    differs = difference(dict(planned), own, words=("is", ", here it is"))
    if differs:
        raise SourceError(
            f"{socket.gethostname()}: has other libraries than the machine that planned the pack, so its rows could differ: {differs}."
            " Install the same on both."
        )


@contextmanager
def _scratch(given: ShardTask) -> Iterator[str]:
    """Make a folder for one attempt: beside the pack, or where that is on another machine in the folder for temporary files."""
    away = is_url(given.folder) or remote_file_system(given.scratch) is not None
    parent = tempfile.gettempdir() if away else given.scratch
    folder = os.path.join(parent, f"packer-{uuid.uuid4().hex}")
    os.mkdir(folder)  # not what holds it, which is gone when the pack is finished
    try:
        yield folder
    finally:
        remove(folder)


def _publish(path: str, given: ShardTask) -> None:
    """Give a shard its place: by one rename, or one write to the store. Raises OSError, RemoteError."""
    if is_url(given.folder):
        from packer.format.remote_pack import put_pack  # local conversions need not load it

        put_pack(join(given.folder, given.file), path)
        return
    os.stat(given.scratch)  # gone once the run is over that asked for the shard: another one may be at work
    place = os.path.join(given.folder, given.file)
    if os.stat(path).st_dev == os.stat(given.folder).st_dev:
        os.rename(path, place)
    else:
        copy = os.path.join(given.folder, f".{given.file}-{uuid.uuid4().hex}")
        try:
            shutil.copyfile(path, copy)
            fsync_path(copy)
            os.rename(copy, place)
        finally:
            remove(copy)
    fsync_path(given.folder)
