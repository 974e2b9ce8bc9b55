"""FillingPack: an unfinished pack, read while a process of its own converts it (packer/filling)."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError, PackerError, UsageError, error_from_record
from packer.format.file_io import inode_of, make_folder
from packer.format.frontier import COMPLETE, FAILED, Frontier
from packer.format.header import PARTIAL_SUFFIX
from packer.format.plan_differences import difference
from packer.format.safe_folders import check_ours
from packer.format.write_errors import writing
from packer.packs.output_names import check_output
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.starting import ForkSafeLock, python_command

_ATTEMPTS = 4  # processes in succession that end without a word, and without rows that are waited for
_TICK_SECONDS, _ALIVE_SECONDS = 0.004, 0.2  # between looks at the frontier, and at its process
_PATIENCE_SECONDS = 10.0  # until the log says what is waited for

_LOG = logging.getLogger(__name__)


class Filling:
    """A reader's access to the process that converts a pack; see Units. Thread-safe; works after fork and
    unpickling.

    out: the pack's name; module: its ``main`` converts; job: source, out and options, JSON; cwd: folder that
    names in them lead from; plan, inode: identify the opened pack, and its file or folder; 0 until then.
    """

    ahead_bytes = None

    def __init__(self, out: str, module: str, job: str, cwd: str, plan: int = 0, inode: int = 0) -> None:
        self.out, self.folder = out, out + PARTIAL_SUFFIX
        self._module, self._job, self._cwd, self._plan, self._inode = module, job, cwd, plan, inode
        self._frontier: Frontier | None = None
        self._lock = ForkSafeLock()
        self._sealed = self._told = False
        self._starts = 0
        self._closing = 0  # process that is closing it

    def __reduce__(self) -> tuple[Any, ...]:
        return Filling, (self.out, self._module, self._job, self._cwd, self._plan, self._inode)

    @property
    def sealed(self) -> bool:
        """True once the pack is complete under its name. Raises FormatError if another pack has its name."""
        if not self._sealed and os.path.lexists(self.out):
            if self._inode not in (0, inode_of(self.out)):
                raise self._changed()
            self._sealed = True
        return self._sealed

    def open(self, progress: Callable[[int, int], object]) -> dict[str, Any]:
        """Return the description of the pack once rows can be read; without a header if it is complete.

        progress: called with items done and their total until then. Raises PackerError.
        """
        while True:
            with ExitStack() as stack:
                # A complete pack is only compared with the job.
                folder = stack.enter_context(TemporaryDirectory()) if self.sealed else self.folder
                while (frontier := self._attached(folder)) is not None:
                    described, plan = frontier.described, frontier.plan
                    # A dead process may have left a frontier whose rows a power cut has taken.
                    if described and (frontier.state == COMPLETE or (plan and frontier.alive)):
                        if differs := difference(described["job"], json.loads(self._job)):
                            raise UsageError(
                                f"{self.out}: is being filled from other images, or with other options:"
                                f" {differs}. Pass the same, or another name."
                            )
                        self._plan, self._inode = plan, described.get("inode", 0)
                        return described
                    progress(*frontier.progress)
                    self._pause(frontier)

    def wait(self, rows: int) -> None:
        """Wait until rows [0, rows) can be read, or until the pack is complete.

        Raises PackerError if they cannot be converted, or another pack is made in their place.
        """
        patience = time.monotonic() + _PATIENCE_SECONDS
        while not self.sealed:
            frontier = self._attached(self.folder)
            if frontier is None:
                continue
            made = frontier.rows
            if made >= rows and frontier.plan == self._plan:
                self._starts = 0
                return
            self._pause(frontier)
            if time.monotonic() > patience and not self._told:
                self._told = True
                _LOG.warning(
                    "%s: waits for row %d; %d rows are converted, in the order of the pack, which"
                    " shuffle=True takes in epoch 0",
                    self.out,
                    rows - 1,
                    made,
                )

    def arrival(self, array: str) -> Filling:
        """See Units."""
        return self

    def take(self, starts: NDArray[np.int64], lengths: NDArray[np.int64], out: NDArray[np.uint8]) -> bool:
        """Wait for rows; see Arrival."""
        self.wait(int((starts + lengths).max(initial=0)))
        return False

    def ahead(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Do nothing: rows that were just converted are in the page cache. See Arrival."""

    def path(self, file: str) -> str:
        """Return the path of a file of the pack, which moves when the pack gets its name; see Units."""
        work = os.path.join(self.folder, "pack")
        return os.path.join(work if os.path.lexists(work) else self.out, file).rstrip("/")

    def exclusive(self) -> Filling:
        """See Units."""
        return copy(self)

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Stop reading, and refuse to wait until the end of the block, in which waiting threads are ended."""
        self.close()
        self._closing = os.getpid()
        try:
            yield
        finally:
            self._closing = 0

    def close(self) -> None:
        """Stop reading; wait for the pack's name if all rows are converted.

        A process without readers ends, and the next reader goes on with its work.
        """
        frontier = self._frontier
        if frontier is not None and 0 < frontier.rows == frontier.progress[1]:
            try:
                self.wait(frontier.rows + 1)
            except PackerError as error:  # rows can be read
                _LOG.warning("%s", error)
        self._frontier = None

    def _changed(self) -> FormatError:
        return FormatError(
            f"{self.out}: was replaced or started over after it was opened; its images changed, or"
            f" {self.folder} was removed. Open it again."
        )

    def _pause(self, frontier: Frontier) -> None:
        """Wait a moment for the frontier to move; raise the error of its process, or leave a dead one."""
        before, until = (frontier.rows, frontier.state), time.monotonic() + _ALIVE_SECONDS
        while (frontier.rows, frontier.state) == before and time.monotonic() < until:
            if self._closing == os.getpid():
                raise PackerError(f"{self.out}: was closed while its rows were converted. Iterate again.")
            time.sleep(_TICK_SECONDS)
        alive = frontier.alive
        if frontier.state == FAILED:
            self._frontier, self._starts = None, 0
            raise error_from_record(frontier.described["error"])
        if self._plan and frontier.plan not in (0, self._plan):
            raise self._changed()
        if not alive and frontier.state != COMPLETE and self._frontier is frontier:
            self._frontier = None

    def _attached(self, folder: str) -> Frontier | None:
        """Return the frontier of a process that converts the pack, started if there is none.

        Returns None if that is to be tried again, because the pack got its name, or its folder was removed.
        """
        with self._lock, writing(self.out):
            if self._frontier is None:
                try:
                    if folder == self.folder:
                        check_output(self.out, overwrite=False)
                        if not os.path.lexists(folder):
                            make_folder(folder)
                        check_ours(folder)
                    self._frontier = self._start(folder)
                except FileNotFoundError:
                    return None
                except UsageError:
                    if self.sealed:
                        return None
                    raise
            return self._frontier

    def _start(self, folder: str) -> Frontier:
        """Return the frontier in a folder; start the process unless one has locked it. Raises OSError."""
        frontier = Frontier(folder)
        frontier.join()
        while frontier.state == FAILED and frontier.alive:  # it is ending; its job may have been another
            time.sleep(_TICK_SECONDS)
        if not frontier.alive:
            if self._starts == _ATTEMPTS:
                self._starts = 0
                raise PackerError(
                    f"{self.out}: the process that fills it died {_ATTEMPTS} times. Finished rows are kept."
                    " Check its message on stderr, the limits on files and processes (ulimit -n, ulimit -u),"
                    " and whether memory ran out."
                )
            self._starts += 1
            command = python_command(f"from {self._module} import main; main()", folder)
            cwd = self._cwd if os.path.isdir(self._cwd) else None
            data = self._job.encode("ascii")
            subprocess.run(command, input=data, cwd=cwd, stdout=subprocess.DEVNULL, check=False)
        return frontier


@dataclass(frozen=True)
class FillingPack(Pack):
    """An unfinished pack: its header, and rows as they are converted. path: its future name.

    Rows of arrays whose extents are known can be read once they are converted; other rows once their shard is
    complete, or the pack, if it has no shards. files: its shards; shard_rows: rows of each but the last.
    """

    units: Filling = field(kw_only=True)
    files: tuple[str, ...] = field(kw_only=True)
    shard_rows: int = field(kw_only=True)

    @property
    def pending(self) -> bool:
        """See Pack."""
        return not self.units.sealed

    def shard(self, number: int) -> Pack:
        """Return a shard once it is complete; it moves when the pack gets its name. Raises PackerError."""
        self.units.wait(min((number + 1) * self.shard_rows, self.rows))
        return open_pack(self.units.path(self.files[number]))

    def complete(self) -> Pack:
        """Return the complete pack once it has its name. Raises PackerError."""
        self.units.wait(self.rows + 1)
        return self.settled()

    def settled(self) -> Pack:
        """See Pack."""
        return self if self.pending else replace(open_pack(self.path), filled=self.filled)

    def check_same(self) -> None:
        """See Pack."""
        self.units.wait(0)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.generic]:
        """See Pack; waits for the complete pack."""
        return self.complete().read(name, start, stop)

    def read_blob(self, name: str, start: int, stop: int) -> tuple[NDArray[np.int64], bytes]:
        """See Pack; waits for the complete pack."""
        return self.complete().read_blob(name, start, stop)
