"""The working folder ``<out>.packing``, locked while its process lives; checks of the output's name.

<out>.packing/pack        the pack; one rename gives it its final name when it is complete
              journal     the work done so far, one record per line, from which an interrupted run resumes
              part-1-of-8 the journal of a process that converts some of the shards, concurrently with others
              attempts/   shards that other processes are converting, each in its folder
              blocks/     blocks of fields whose stored size is unknown in advance (block_files.py)
              staging/    of a table, or of samples: raw rows, until their number is known
              pack.packing/  of a table: the working folder of its pack
              old         the pack that is being replaced, between two renames
              frontier, readers  of a pack that is read while it is made (frontier.py)
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import xxhash

from packer import units
from packer.arguments import absolute
from packer.errors import BusyError, FormatError, PackerError, SpaceError, UsageError
from packer.format.file_io import (
    FULL,
    PRIVATE,
    PROBE,
    exchange,
    foreign,
    fsync_path,
    make_folder,
    open_own,
    publish_modes,
    remove,
    usual_mode,
)
from packer.format.frontier import FILES as FRONTIER_FILES
from packer.format.header import (
    CHECKSUMS_FILE,
    HEADER_FILE,
    INDEX_FILE,
    PARTIAL_SUFFIX,
    TRAILER_FILE,
    read_json,
)
from packer.format.pack import Pack, read_seal
from packer.format.pack_opening import open_pack
from packer.format.shards import NEXT_INDEX_FILE, read_index
from packer.sentence import Option
from packer.source_kinds import is_hdf5_name, is_other_file
from packer.standard_streams import open_closed

_ENTRIES = frozenset(
    ("pack", "pack.created", "pack.packing", "journal", "blocks", "staging", "old", "attempts")
)
_PART = re.compile(r"part-[1-9][0-9]*-of-[1-9][0-9]*")
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
        part: str = "",
        clear_parts: bool = False,
        edited: bool = False,
    ) -> None:
        """Create the folder, or take over the remains of an interrupted run, and lock it.

        plan: identity of the conversion, plain JSON values; None: clear remains, journal nothing.
        resume: refuse an interrupted run of another plan instead of clearing it; parts of another plan are
        always refused.
        name: of the output in messages.
        part: name of this process's journal, such as "part-1-of-8", if others convert other parts
        concurrently; then nothing is cleared. clear_parts: clear parts of another plan too. edited: the
        output was edited in place, so it need not be a pack to be replaced; its mode is kept.
        Raises UsageError (the output exists; another plan, with resume or part, or of parts), PackerError
        (another process is writing it, the folder cannot be created).
        """
        open_closed()
        self.out, self._overwrite, self._name, self._part = out, overwrite, name or out, part
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
                    self._lock = _lock(self.path, self._name, shared=bool(part))
                except OSError as error:
                    raise PackerError(
                        f"{self._name}: cannot be written ({error.strerror}). Pass another name."
                    ) from error
                # again: the previous holder of the lock may just have finished it
                self._check_output()
                self._mode = usual_mode(self.path)  # now: later the disk may be full
                if not part:
                    self._bring_back()
                if edited:
                    self._mode = os.stat(out).st_mode & 0o777
                self._take_over(plan, resume, clear_parts)
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
                f"{Option('overwrite', True)}, or another name."
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
            if not (keep or self._part) and _same_folder(self._lock, self.path):
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

    def _take_over(self, plan: Mapping[str, Any] | None, resume: bool, clear_parts: bool) -> None:
        journals = {name: records for name, records in _journals(self.path).items() if plan is not None}
        differences = [difference(records[0], plan) for records in journals.values()]
        self.cleared = next(filter(None, differences), "")
        same = bool(journals) and not self.cleared
        if self.cleared and (self._part or (any(map(_PART.fullmatch, journals)) and not clear_parts)):
            raise UsageError(
                f"{self.out}: {self.path} holds parts of another conversion: {self.cleared}."
                f" {'Install the same' if self.cleared.startswith('versions ') else 'Remove that folder'}, or"
                " pass another name."
            )
        if self.cleared and resume:
            raise UsageError(
                f"{self.out}: {Option('resume', True)} cannot continue the work in {self.path}: "
                f"{self.cleared}. Undo that, or start over without {Option('resume', True)}."
            )
        if same:
            self.resumed = [record for records in journals.values() for record in records[1:]]
        elif not self._part:
            # Attempts first: processes that outlived their run can then put nothing into the pack.
            for entry in sorted(os.scandir(self.path), key=lambda entry: entry.name != "attempts"):
                if entry.name not in FRONTIER_FILES:
                    remove(entry.path)
        make_folder(self.blocks)
        if plan is not None:
            own = self._part or "journal"
            if own not in journals:
                remove(os.path.join(self.path, own))  # its first line, the plan, was damaged
            self._journal = Journal(os.path.join(self.path, own))
            if own not in journals:
                self._journal.add(dict(plan))
            self.recorded = bool(self.resumed)


def _journals(path: str) -> dict[str, list[Any]]:
    """Return name -> records for the journals in a working folder that begin with a plan."""
    found = {
        name: read_journal(os.path.join(path, name)) for name in sorted(os.listdir(path)) if _is_journal(name)
    }
    return {name: records for name, records in found.items() if records and isinstance(records[0], Mapping)}


def parts_of(out: str) -> dict[str, list[Any]]:
    """Return name -> records of the journals of a pack's parts.

    Raises UsageError if there is no working folder.
    """
    path = out.rstrip("/") + PARTIAL_SUFFIX
    if not os.path.isdir(path):
        found = "exists already, and no" if os.path.lexists(out) else "no"
        raise UsageError(f"{out}: {found} shards wait to be listed ({path} does not exist). Check the name.")
    check_ours(path)
    return {name: records for name, records in _journals(path).items() if name != "journal"}


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
            kept = (where for where, _, files in os.walk(path) if any(map(_is_journal, files)))
            found = (records for where in kept for records in _journals(where).values())
            if all(len(records) == 1 or done(records[0]) for records in found):
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


def is_locked(folder: str) -> bool:
    """Return True if a process is working in a folder."""
    try:
        os.close(_lock(folder, folder, shared=True, patience=0))
    except BusyError:
        return True
    except OSError:
        pass
    return False


def check_ours(path: str, *, inside: bool = True) -> None:
    """Raise UsageError for a working folder that is not this user's alone: a link, or with links, pipes or
    others' files. inside: look at every level; needless where all of it is removed.
    """
    if os.path.islink(path) or not os.path.isdir(path):
        raise UsageError(
            f"{path}: is needed as the working folder, but is not a folder. Move it away, or pass another"
            " output."
        )
    if not (found := foreign(path, inside=False)):
        with os.scandir(path) as entries:
            strange = sorted(
                entry.name
                for entry in entries
                if not (
                    (
                        (entry.name in _ENTRIES | FRONTIER_FILES or _is_journal(entry.name))
                        and (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False))
                    )
                    or entry.name.startswith(PROBE)
                )
            )
        if strange:
            raise UsageError(
                f"{path}: is needed as the working folder, but holds {strange[0]}, which is not packer's."
                " Move it away, or pass another output."
            )
        found = foreign(path, inside=inside)
    if found:
        raise UsageError(
            f"{found}; a working folder is used only if nobody else can have written there."
            f" Remove {path}, or pass another output."
        )


def check_pack_folder(path: str) -> None:
    """Raise UsageError for the folder of a pack to be written, if others could have put something there."""
    if found := foreign(path, private=False):
        raise UsageError(
            f"{found}; packer writes only into packs of its user, without links. If you trust this one, copy"
            f" it, and write to the copy: cp -rL {shlex.quote(path)} COPY."
        )


def difference(before: Any, now: Any, what: str = "", words: tuple[str, str] = ("was", ", now it is")) -> str:
    """Return the first difference between two values (JSON or options) as text; "" if they are equal.

    before: recorded; now: requested; what: path of names to the value, separated by spaces; words: texts
    before each value.
    """
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys((*before, *now)):
            found = difference(before.get(key), now.get(key), f"{what} {key}".strip(), words)
            if found:
                return found
        return ""
    before, now = _plain(before), _plain(now)
    if before == now:
        return ""
    return f"{what} {words[0]} {_shown(before)}{words[1]} {_shown(now)}"


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    value = value.tolist() if hasattr(value, "tolist") else value  # NumPy's, which compare number by number
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def _shown(value: Any) -> str:
    if value is None:
        return "not given"
    if isinstance(value, list):
        value = ("x" if all(isinstance(v, int) for v in value) else ", ").join(map(str, value)) or "none"
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _is_journal(name: str) -> bool:
    return name == "journal" or _PART.fullmatch(name) is not None


def _lock(path: str, out: str, *, shared: bool = False, patience: float = _DYING_SECONDS) -> int:
    """Lock an existing folder and return the lock's descriptor; the lock ends with this process.

    shared: together with other shared locks; patience: seconds to wait for another process to end. Raises
    BusyError, OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # O_NONBLOCK: a pipe would block
    end = time.monotonic() + patience
    try:
        while True:
            try:
                fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
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


class Journal:
    """A file to which records are appended, one per line. For one thread.

    A line is the hexadecimal XXH3-64 of its text, a space, the text (JSON), a newline. The first line is the
    plan. Each further line is appended after its block's bytes and checksum have been written. Nothing is
    flushed to disk here: after a power cut there may be lines whose blocks are missing, so a resuming run
    compares each block with its recorded checksum.
    """

    def __init__(self, path: str) -> None:
        """Open or create the journal at `path`."""
        self._fd = open_own(path, mode=PRIVATE, flags=os.O_WRONLY | os.O_APPEND)
        size = os.fstat(self._fd).st_size
        with open(path, "rb") as file:
            file.seek(max(0, size - 1))
            # The writer died, or the disk became full, in the middle of a line.
            self._torn = size > 0 and file.read(1) != b"\n"

    def add(self, record: Any) -> None:
        """Append a record (plain JSON values) by one write. Raises OSError, also for a full disk."""
        text = json.dumps(record, separators=(",", ":"))
        if self._torn:
            os.write(self._fd, b"\n")
        self._torn = True
        line = f"{xxhash.xxh3_64_hexdigest(text.encode('ascii'))} {text}\n".encode("ascii")
        written = os.write(self._fd, line)
        while written < len(line):
            written += os.write(self._fd, line[written:])
        self._torn = False

    def close(self) -> None:
        """Close the file; closing again does nothing."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def read_journal(path: str) -> list[Any]:
    """Return the records of a journal in order, [] if there is none. Skips incomplete and foreign lines."""
    records = []
    try:
        with open(path, "rb") as file:
            for line in file:
                digest, _, text = line.rstrip(b"\n").partition(b" ")
                if xxhash.xxh3_64_hexdigest(text).encode() == digest:
                    with suppress(ValueError):
                        records.append(read_json(text))
    except FileNotFoundError:
        pass
    return records


def format_of(out: str, *, sharded: bool = False) -> str:
    """Return the format for a name: "h5" or "npy".

    "h5" for the suffixes of HDF5 in any case, and for shards; else "npy", a directory. Raises UsageError for
    a name with the suffix of another kind of file.
    """
    stem, ending = os.path.splitext(out.rstrip("/"))
    if is_other_file(out):
        raise UsageError(
            f"{out}: ends in {ending}, which packer does not write; it writes an HDF5 file (.h5) or a "
            f"directory of .npy files (no ending). Pass {stem}.h5 or {stem}, or "
            f"{Option('format')}."
        )
    return "h5" if sharded or is_hdf5_name(out) else "npy"


def check_output(out: str, *, overwrite: bool) -> None:
    """Raise UsageError or PackerError, before any work, for an output that cannot be written."""
    if not out:
        raise UsageError("OUT: is empty. Pass the name of a file or folder.")
    if out.rstrip("/").endswith(PARTIAL_SUFFIX):
        raise UsageError(f"{out}: ends in {PARTIAL_SUFFIX}, as unfinished work does. Pass another name.")
    check_name(
        out, overwrite=overwrite, ours=_is_pack, other="is not a pack, or holds other files", kinds="packs"
    )


def check_name(out: str, *, overwrite: bool, ours: Callable[[str], bool], other: str, kinds: str) -> None:
    """Raise UsageError or PackerError for a name that cannot be written.

    ours: returns True for an existing path that may be replaced; other: message for a path that may not;
    kinds: noun for paths that may.
    """
    parent = os.path.dirname(absolute(out))
    if os.path.lexists(out):
        if not overwrite:
            raise UsageError(
                f"{out}: exists; nothing is overwritten unasked. Pass {Option('overwrite', True)}, or "
                "another name."
            )
        if not ours(out):
            raise UsageError(
                f"{out}: {other}; {Option('overwrite', True)} replaces only {kinds}. Pass another name."
            )
    if not os.path.isdir(parent):
        raise UsageError(f"{out}: its folder {parent} does not exist. Create it, or pass another name.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise PackerError(
            f"{out}: no permission to write in {parent}. Pass another name, or change the permission."
        )


def check_space(out: str, needed: int) -> None:
    """Raise SpaceError if the disk has less than `needed` bytes free."""
    parent = os.path.dirname(os.path.abspath(out))
    free = shutil.disk_usage(parent).free
    if needed > free:
        raise SpaceError(
            f"{out}: needs {units.size(needed)}; {parent} has {units.size(free)} free."
            " Free some space, or pass a smaller size or another disk."
        )


@contextmanager
def writing(out: str) -> Iterator[None]:
    """Convert errors of writing with `failure`. out: output, for messages. Raises SpaceError, PackerError."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # h5py raises RuntimeErrors when it closes a file
        if isinstance(error, RuntimeError) and "errno = " not in str(error):
            raise
        raise failure(out, error) from error


def failure(out: str, error: OSError | RuntimeError) -> PackerError:
    """Return the error for a failed write: SpaceError if the disk is full, else PackerError."""
    inner = re.search(r"errno = ([0-9]+)", str(error))  # h5py's errors contain it in their text
    number = int(inner[1]) if inner else getattr(error, "errno", None)
    reason = os.strerror(number) if number else "the HDF5 library could not write to the disk"
    if number == errno.ENOENT:
        return PackerError(f"{out}: writing failed, because its folder was removed meanwhile. Run it again.")
    kind = SpaceError if number in FULL else PackerError
    remedies = {
        errno.EMFILE: "Raise ulimit -n",
        errno.ENFILE: "Raise ulimit -n",
        errno.ENAMETOOLONG: "Take shorter names of files and folders",
    }
    remedy = remedies.get(number or 0, "Free some space, or pass another disk")
    return kind(f"{out}: writing failed ({reason}). {remedy}.")


def _is_pack(path: str) -> bool:
    """Return True for a pack. A folder must hold nothing else: a typo must not delete anyone's photos."""
    try:
        pack = open_pack(path)
        pack.confirm()
    except FormatError:
        return False
    return _holds_nothing_else(pack)


def unlisted_shards(path: str) -> list[Pack]:
    """Return shards that a killed append had moved into a pack of shards and not yet listed."""
    try:
        coming = read_index(path, NEXT_INDEX_FILE).shards
        listed = {(shard.name, shard.seal) for shard in read_index(path).shards}
    except (OSError, FormatError):
        return []
    return [shard for shard in coming if (shard.name, shard.seal) not in listed and _has_seal(shard)]


def _has_seal(shard: Pack) -> bool:
    try:
        return read_seal(shard.path) == shard.seal
    except OSError:
        return False


def _holds_nothing_else(pack: Pack) -> bool:
    if not os.path.isdir(pack.path):
        return not os.path.islink(pack.path)
    if pack.shards:
        ours = {INDEX_FILE, NEXT_INDEX_FILE, *(shard.name for shard in pack.shards)}
        ours |= {shard.name for shard in unlisted_shards(pack.path)}
    else:
        ours = {HEADER_FILE, TRAILER_FILE, CHECKSUMS_FILE, *(f"{c}.npy" for c in pack.header.columns)}
    return set(os.listdir(pack.path)) <= ours and all(map(_holds_nothing_else, pack.shards))
