"""The working folder ``<out>.packing``, locked while its process lives.

<out>.packing/pack        the pack; one rename gives it its final name when it is complete
              journal     the work done so far, one record per line, from which an interrupted run resumes
              blocks/     blocks of fields whose stored size is unknown in advance (block_files.py)
              staging/    of a table, or of samples: raw rows, until their number is known
              pack.packing/  of a table: the working folder of its pack
              parts/      shards that other processes are converting for this one (engines.py)
              old         the pack that is being replaced, between two renames
              frontier, readers  of a pack that is read while it is made (frontier.py)

<out>.part-2-of-8.packing  the working folder of a part of the shards, which another process may write
"""

from __future__ import annotations

import fcntl
import glob
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from packer.errors import BusyError, PackerError, UsageError
from packer.format.file_io import (
    exchange,
    fsync_path,
    make_folder,
    publish_modes,
    remove,
    usual_mode,
)
from packer.format.frontier import FILES as FRONTIER_FILES
from packer.format.header import PARTIAL_SUFFIX
from packer.format.plan_differences import difference
from packer.format.safe_folders import check_ours
from packer.format.write_errors import writing
from packer.packs.output_names import check_output
from packer.standard_streams import open_closed
from packer.writing.journal import Journal, read_journal

_DYING_SECONDS = 1.0  # how long workers of a killed process may keep its lock


class WorkingFolder:
    """The working folder of an unfinished pack.

    resumed: records of an interrupted run of the same plan, [] if there is none;
    cleared: why an earlier unfinished run was discarded (the difference between the plans), "" if none was;
    recorded: True if there is work to resume.
    """

    out: str

    def __init__(
        self,
        out: str,
        *,
        overwrite: bool = False,
        plan: Mapping[str, Any] | None = None,
        resume: bool = False,
        name: str | None = None,
        edited: bool = False,
    ) -> None:
        """Create the folder, or take over the remains of an interrupted run, and lock it.

        plan: identity of the conversion, plain JSON values; None: clear remains, journal nothing.
        resume: refuse an interrupted run of another plan instead of clearing it; name: of the output in
        messages; edited: the output was edited in place, so it need not be a pack to be replaced; its mode is
        kept.
        Raises UsageError (the output exists; another plan), PackerError (another process is writing it, the
        folder cannot be created).
        """
        open_closed()
        self.out, self._overwrite, self._name = out, overwrite, name or out
        self._edited = edited
        self._check_output()
        self.path: str = out.rstrip("/") + PARTIAL_SUFFIX
        self.pack: str = os.path.join(self.path, "pack")
        self.blocks: str = os.path.join(self.path, "blocks")
        self.resumed: list[Any] = []
        self.cleared = ""
        self.recorded = False
        self._journal: Journal | None = None
        self._lock = -1
        self._published = made = False
        try:
            with writing(self._name):
                try:
                    if not os.path.lexists(self.path):
                        make_folder(self.path)
                        made = True
                    check_ours(self.path, inside=plan is not None)
                    self._lock = _lock(self.path, self._name)
                except OSError as error:
                    raise PackerError(
                        f"{self._name}: cannot be written ({error.strerror}). Pass another name."
                    ) from error
                # again: the previous holder of the lock may just have finished it
                self._check_output()
                self._mode = usual_mode(self.path)  # now: later the disk may be full
                self._bring_back()
                if edited:
                    self._mode = os.stat(out).st_mode & 0o777
                self._take_over(plan, resume)
        except BaseException:
            self.close(keep=not made or self._lock < 0)  # unlocked, it may belong to another process by now
            raise

    def record(self, record: Any) -> None:
        """Append to the journal, if there is one. Raises SpaceError, PackerError."""
        if self._journal is not None:
            with writing(self._name):
                self._journal.add(record)
            self.recorded = True

    def begin_anew(self) -> None:
        """Discard the remains of an interrupted run, except the plan."""
        for name in ("pack", "blocks"):
            remove(os.path.join(self.path, name))
        self.resumed = []

    def publish(self) -> None:
        """Give the pack its final name and remove the folder.

        Raises UsageError if the name was taken meanwhile; OSError.
        """
        if self._lock >= 0 and not _same_folder(self._lock, self.path):
            raise PackerError(
                f"{self._name}: cannot be finished, because {self.path} was removed or replaced meanwhile."
                " Run it again."
            )
        if PARTIAL_SUFFIX + os.sep not in os.path.abspath(self.out):  # else it is part of unfinished work
            self.open_up()
        taken = os.path.lexists(self.out)
        if taken and not self._overwrite:
            raise UsageError(
                f"{self.out}: has appeared meanwhile; nothing is overwritten unasked. Pass "
                "overwrite=True, or another name."
            )
        old = os.path.join(self.path, "old")
        if taken and exchange(self.out, self.pack):
            pass  # the old pack is removed with the folder
        elif taken and (os.path.isdir(self.out) or os.path.isdir(self.pack)):
            os.rename(self.out, old)
            try:
                os.rename(self.pack, self.out)
            except BaseException:
                os.rename(old, self.out)
                raise
        else:
            os.replace(self.pack, self.out)
        self._published = True
        fsync_path(os.path.dirname(os.path.abspath(self.out)))
        self.close(keep=False)

    def open_up(self) -> None:
        """Give the pack the modes that the umask gives to new files."""
        publish_modes(self.pack, self._mode)

    def close(self, *, keep: bool) -> None:
        """Release the folder, and remove it without `keep` or once the pack has its final name."""
        keep = keep and not self._published
        if self._journal is not None:
            self._journal.close()
        if self._lock >= 0:
            if not keep and _same_folder(self._lock, self.path):
                # The journal first: if this is killed, nobody resumes with half of the replaced pack.
                remove(os.path.join(self.path, "journal"))
                remove(self.path)
            # In this order: Ctrl-C may come between any two lines, and this method is then called again.
            lock, self._lock = self._lock, -1
            os.close(lock)

    def _bring_back(self) -> None:
        """Undo a replacement that was interrupted between its two renames."""
        old = os.path.join(self.path, "old")
        if os.path.lexists(old) and not os.path.lexists(self.out):
            os.rename(old, self.out)
            self._check_output()
        remove(old)

    def _check_output(self) -> None:
        if not self._edited:
            check_output(self.out, overwrite=self._overwrite)

    def _take_over(self, plan: Mapping[str, Any] | None, resume: bool) -> None:
        before = None if plan is None else plan_of(self.path)
        if before is not None:
            self.cleared = difference(before, plan)
        if self.cleared and resume:
            raise UsageError(
                f"{self.out}: resume=True cannot continue the work in {self.path}: "
                f"{self.cleared}. Undo that, or start over without resume=True."
            )
        same = before is not None and not self.cleared
        if same:
            self.resumed = read_records(self.path)
        else:
            # Parts first: processes that outlived their run can then put nothing into the pack.
            for entry in sorted(os.scandir(self.path), key=lambda entry: entry.name != "parts"):
                if entry.name not in FRONTIER_FILES:
                    remove(entry.path)
        make_folder(self.blocks)
        if plan is not None:
            self._journal = Journal(os.path.join(self.path, "journal"))
            if not same:
                self._journal.add(dict(plan))
            self.recorded = bool(self.resumed)


def plan_of(path: str) -> Mapping[str, Any] | None:
    """Return the plan of the work in a working folder; None without one, or if the record is damaged."""
    plan = next(iter(read_journal(os.path.join(path, "journal"))), None)
    return plan if isinstance(plan, Mapping) else None


def read_records(path: str) -> list[Any]:
    """Return the records of the work in a working folder."""
    return [] if plan_of(path) is None else read_journal(os.path.join(path, "journal"))[1:]


def part_name(out: str, part: tuple[int, int]) -> str:
    """Return the name of a part of a pack's shards. part: (k, n).

    >>> part_name("train", (2, 8))
    'train.part-2-of-8'
    """
    return f"{out.rstrip('/')}.part-{part[0]}-of-{part[1]}"


def parts_of(out: str) -> list[str]:
    """Return the working folders of the parts of a pack's shards. Raises UsageError for others' folders."""
    stem = out.rstrip("/")
    named = re.compile(r"\.part-[1-9][0-9]*-of-[1-9][0-9]*" + re.escape(PARTIAL_SUFFIX))
    found = sorted(glob.glob(f"{glob.escape(stem)}.part-*{PARTIAL_SUFFIX}"))
    parts = [path for path in found if named.fullmatch(path, len(stem))]
    for path in parts:
        check_ours(path, inside=False)
    return parts


def check_parts(out: str, plan: Mapping[str, Any]) -> None:
    """Raise UsageError if a part of a pack belongs to another conversion."""
    for path in parts_of(out):
        before = plan_of(path)
        if before is not None and (differs := difference(before, plan)):
            raise UsageError(
                f"{out}: {path} holds a part of another conversion: {differs}."
                f" {'Install the same' if differs.startswith('versions ') else 'Remove that folder'}, or"
                " pass another name."
            )


def clear_idle(out: str, done: Callable[[Any], bool] = lambda plan: False) -> bool:
    """Remove the folder of a process that was stopped before it recorded anything; return True if it is gone.

    Keeps a folder that is in use, that has work to resume, or that is not packer's.
    done: returns True for a journal's plan whose result exists, so that nobody will resume it.
    """
    path = out.rstrip("/") + PARTIAL_SUFFIX
    if not os.path.lexists(path):
        return True
    with suppress(PackerError, OSError):
        check_ours(path)
        with locked(path, out):
            journals = (os.path.join(where, "journal") for where, _, _ in os.walk(path))
            found = filter(None, map(read_journal, journals))
            if all(not isinstance(plan, Mapping) or not rest or done(plan) for plan, *rest in found):
                remove(path)
                return True
    return False


@contextmanager
def locked(folder: str, out: str) -> Iterator[None]:
    """Hold the lock of an existing folder. out: output, for messages.

    Raises PackerError if another process holds it.
    """
    try:
        lock = _lock(folder, out)
    except OSError as error:
        raise PackerError(
            f"{out}: cannot be written ({error.strerror}). Check the name and the permissions."
        ) from error
    try:
        yield
    finally:
        os.close(lock)


def _lock(path: str, out: str) -> int:
    """Lock an existing folder and return the lock's descriptor; the lock ends with this process.

    Waits a moment for a process that is ending. Raises BusyError, OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # O_NONBLOCK: a pipe would block
    end = time.monotonic() + _DYING_SECONDS
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
        # A process that ended between open and flock has removed the folder, and others may have created it
        # again.
        taken = not _same_folder(fd, path)
    except (BlockingIOError, FileNotFoundError):
        taken = True
    except OSError:
        taken = False  # a file system without locks
    except BaseException:  # interrupted: release the lock
        os.close(fd)
        raise
    if taken:
        os.close(fd)
        # No other name helps when the lock is on a pack that is added to, or on <out>.adding.packing.
        named = path != out and os.path.splitext(path)[0] == out.rstrip("/")
        raise BusyError(
            f"{out}: another packer is writing it ({path} is locked). Wait for"
            f" it{', or pass another name' if named else ''}."
        )
    return fd


def _same_folder(fd: int, path: str) -> bool:
    """Return True if an open folder still has this name."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
