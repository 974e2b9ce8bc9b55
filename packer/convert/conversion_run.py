"""The frame of every conversion: existing output, progress, interruption, report."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from packer import units
from packer.arguments import ON_ERROR, check_workers, one_of
from packer.convert.conversion_task import NO_ROWS, ConversionTask, Engine, Report, RunOptions
from packer.convert.engines import PartsEngine
from packer.convert.pack_run import write_pack
from packer.convert.row_storage import RowStorage
from packer.convert.some_rows import SomeRows
from packer.errors import BusyError, PackerError, SourceError, UsageError
from packer.format.file_io import InputFile
from packer.format.header import PARTIAL_SUFFIX
from packer.format.plan_differences import difference
from packer.format.safe_folders import check_ours
from packer.given_values import call_text
from packer.packs.file_rows import FILES
from packer.packs.output_names import check_output, check_space
from packer.packs.pack_opening import is_pack, open_pack
from packer.progress import Progress
from packer.remote.urls import is_url
from packer.source_kinds import is_hdf5_name
from packer.writing.journal import read_journal
from packer.writing.working_folder import (
    WorkingFolder,
    clear_idle,
    locked,
    part_name,
)

_KEPT = "Finished work is kept"


class Conversion:
    """The frame of a conversion: checks options and existing output, shows progress, handles interruption.

    out: path of the pack, without a trailing slash; noun: name of the counted items; other arguments: as in
    convert_images. Raises UsageError.
    """

    running: RunOptions

    def __init__(
        self,
        out: str | os.PathLike[str],
        noun: str,
        *,
        workers: int | None,
        on_error: str = "stop",
        overwrite: bool = False,
        resume: bool = False,
        progress: bool = False,
        on_progress: Callable[[int], None] | None = None,
        engine: Engine | None = None,
        only: str | None = None,
    ) -> None:
        self.engine = engine
        self._began = time.perf_counter()
        self.out: str = os.fspath(out).rstrip("/")
        self.bar: Progress = Progress(progress, noun, on_progress)
        skip = one_of("on_error", on_error, ON_ERROR) == "skip"
        part = None if only is None else _parse_part(only)
        self.running = RunOptions(check_workers(workers), skip, overwrite, resume, self.bar.move, part)

    @property
    def url(self) -> str:
        """URL of the pack if other processes write its shards to an object store, else ""."""
        return self.engine.url if isinstance(self.engine, PartsEngine) else ""

    @property
    def work(self) -> str:
        """Name of the output whose working folder this run needs: that of a part is its own."""
        return self.out if self.running.only is None else part_name(self.out, self.running.only)

    def check_shards(self, storing: RowStorage) -> None:
        """Raise UsageError if other processes are to write shards, but the options do not allow it."""
        others = isinstance(self.engine, PartsEngine)
        if (others and self.running.only) or ((others or self.running.only) and not storing.sharded):
            raise UsageError(
                f"{self.url or self.out}: other processes write shards (engine=), or this machine"
                " some of them (only_shards=). Pass shards='1GB', and only one of"
                " these, or neither."
            )

    def check_paths(self, source: object) -> None:
        """Check that inputs exist and that the output can be written, before any work.

        source: path, list of paths, or data, which is not checked. Raises UsageError, PackerError.
        """
        _check_sources(source, self.out)
        try:
            check_output(self.out, overwrite=self.running.overwrite)
        except UsageError:
            # Test for existence only now: another process may have published the pack during the check.
            if not (self.running.resume and os.path.lexists(self.out)):
                raise

    def existing(
        self,
        provenance: Mapping[str, Any],
        rows: int | None,
        newest: InputFile | None,
        task: ConversionTask | None = None,
    ) -> Report | None:
        """Return the report of the requested pack if it exists and resume is set; see `already`.

        task: its plan, for other inputs than tables. Raises SourceError if it lacks inputs that are in its
        plan, and on_error is "stop".
        """
        if not self.running.resume:
            return None
        found = already(self.out, provenance, rows, newest, overwrite=self.running.overwrite)
        if found is None or self.running.skip:
            return found
        if task is None:
            left = (found.header.table or {})["skipped"]
            count, listed = left["rows"], left["first"]
        else:
            listed = [input for input in found.skipped if input not in task.skipped]
            count = len(listed)
        if not listed or self.running.overwrite:
            return None if listed else found
        first = listed[0]
        raise SourceError(
            f"{self.out}: is a complete pack without {units.count(count, 'input')} that could not"
            " be packed; the first:"
            f" {first['key']}: {first['reason'].rstrip('.')}. Correct it and pass"
            " overwrite=True, or pass on_error='skip'."
        )

    def pack(
        self,
        task: ConversionTask,
        nbytes: int,
        notes: Sequence[str] = (),
        *,
        then: Callable[[], None] = lambda: None,
    ) -> Report:
        """Write a planned pack, or leave it as it is if it exists already; see `existing`.

        nbytes: estimated size; notes: notes of the plan; then: called after the check for free space.
        Raises PackerError.
        """
        provenance, total = task.provenance, len(task.order.samples)
        existing = self.existing(provenance, total + len(task.skipped), task.newest, task)
        if existing is not None:
            return self.report(existing, notes, already=True)
        rows = total
        if self.running.only is not None:
            rows = task.rows_of(self.running.only)
        elif isinstance(self.engine, SomeRows):
            rows = min(total, self.engine.rows)
        nbytes = nbytes * rows // total
        if not self.url:
            check_room(self.work, nbytes)
        then()
        self.bar.start(rows)
        alone = os.path.lexists(self.out) or self.running.only is not None
        with self.bar, interrupted(self.work):
            try:
                written = (self.engine or write_pack)(task, self.out, self.running)
            except UsageError:
                # Another process may have published the same pack since the first call of `existing`.
                existing = None if alone else self.existing(provenance, None, task.newest, task)
                if existing is None:
                    raise
                written = existing
        return self.report(written, notes)

    def report(self, written: Report, notes: Sequence[str] = (), *, already: bool = False) -> Report:
        """Return the report of a written or existing pack. notes: notes of the plan."""
        if written.narrowed:
            notes = (*notes, _other_depth(written))
        if self.running.only is not None and not already:
            notes = (
                *notes,
                (
                    f"These are some of the shards; when all {self.running.only[1]} parts exist, index them: "
                    f"{call_text('merge_shards', self.out)}"
                ),
            )
        return replace(
            written,
            out=self.out,
            seconds=time.perf_counter() - self._began,
            workers=written.workers or self.running.workers,
            already=already,
            notes=tuple(notes),
            header=NO_ROWS,
        )


def _check_sources(source: object, out: str) -> None:
    """Raise UsageError for paths that do not exist, or that are the output's, swapped."""
    given = source if isinstance(source, (list, tuple)) else [source]
    names = [os.fspath(one) for one in given if isinstance(one, (str, os.PathLike))]
    if not given:
        raise UsageError("source=[]: names no file; at least one is needed. Pass their paths.")
    missing = [name for name in names if not (is_url(name) or re.search(r"[*?\[{]", name) or _is_there(name))]
    swapped = not is_hdf5_name(out) if missing else len(names) == 1 and _is_packed(names[0])
    if len(names) == 1 and swapped and _is_source(out):
        found = "no such file or folder" if missing else "is a pack"
        raise UsageError(
            f"{names[0]}: {found}, but {out} exists and is no pack; the source is given before the pack. Pass"
            f" {call_text('convert_images', out, names[0])}."
        )
    if missing:
        more = f" (and {len(missing) - 1:,} more of {len(names):,})" if len(missing) > 1 else ""
        raise UsageError(
            f"{missing[0]}{more}: no such file or folder; folders, lists, archives, tables and files of "
            "arrays"
            " are read. Check the path."
        )


def _is_there(name: str) -> bool:
    """Return True for an existing file or folder, or a path below a file, such as photos.tar/train."""
    while name not in ("", "/"):
        if os.path.exists(name):
            return True
        name = os.path.dirname(name.rstrip("/"))
        if os.path.isdir(name):
            return False
    return False


def _is_packed(name: str) -> bool:
    return not is_url(name) and is_pack(name)


def _is_source(out: str) -> bool:
    """Return True for an existing path that is no pack and not empty: it may be images, or a table."""
    if os.path.isdir(out) and not os.listdir(out):
        return False
    return os.path.exists(out) and not is_pack(out)


def _other_depth(written: Report) -> str:
    """Return a note on how many images changed their bit depth."""
    many = f"{written.narrowed:,} images have" if written.narrowed > 1 else "1 image has"
    if written.header.field("image").most > 255:
        return f"{many} 8 bits a channel; their values times 257 are stored, so that white stays white."
    return (
        f"{many} more than 8 bits a channel; the high byte is stored. To store all bits, pass dtype='uint16'."
    )


def _parse_part(text: str) -> tuple[int, int]:
    """Parse "2/8" as (2, 8). Raises UsageError."""
    number, slash, of = str(text).partition("/")
    if slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of):
        return int(number), int(of)
    raise UsageError(f"only_shards {text}: is not K/N with K from 1 to N. Pass for example 1/8.")


def check_room(out: str, needed: int, name: str | None = None) -> None:
    """Raise SpaceError if free space plus the space of an interrupted run is less than needed.

    name: name of the pack in messages, if it differs from `out`.
    """
    left = _nbytes(out.rstrip("/") + PARTIAL_SUFFIX)
    check_space(name or out, max(0, needed - left))


def already(
    out: str, provenance: Mapping[str, Any], rows: int | None, newest: InputFile | None, *, overwrite: bool
) -> Report | None:
    """Return the report of the pack at `out` if it is the requested pack; None if missing or to be replaced.

    rows: planned rows, skipped inputs included; None if unknown. newest: the newest input file.
    Raises UsageError if it is another pack (naming the difference) or older than an input (naming it),
    FormatError if it is not a pack, BusyError if another run is replacing it.
    """
    if not os.path.lexists(out):
        return None
    pack = open_pack(out)
    pack.confirm()
    header = pack.header
    provenance = _before_reading(provenance)
    differs = difference(_before_reading(header.provenance), provenance)
    if not differs and rows is not None:
        differs = difference(header.rows + len(header.skipped), rows, "the number of rows")
    last = pack.last_written
    edited = newest.name if newest is not None and newest.time > os.stat(last).st_mtime_ns else ""
    if (differs or edited) and overwrite:
        return None
    if edited and not differs:
        raise UsageError(
            f"{out}: is a complete pack, but {edited} was changed after it was written, or has a time in the"
            " future (touch it then); only a pack that is newer than its inputs is left as it is. Pass"
            " overwrite=True to write it again, or if no content has changed: touch"
            f" {shlex.quote(last)}"
        )
    if differs:
        raise UsageError(
            f"{out}: is a complete pack, but of other options or inputs: {differs}. Pass "
            "overwrite=True, or another name."
        )

    def same(plan: Any) -> bool:
        if not isinstance(plan, Mapping):  # the first line of the journal is damaged
            return False
        return not difference({name: _before_reading(plan).get(name) for name in provenance}, provenance)

    # A run with this plan was killed after it had published the pack, or is running and will replace the
    # pack.
    left = out.rstrip("/") + PARTIAL_SUFFIX
    if not clear_idle(out, same):
        with suppress(UsageError):  # somebody else's folder
            check_ours(left)
            if any(map(same, read_journal(os.path.join(left, "journal"))[:1])):
                with locked(left, out):
                    pass
    return Report.from_header(header, resumed=header.rows)


def _before_reading(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return a provenance as known before the input is read: without digests and rows of a table's files."""
    source = provenance.get("source")
    if isinstance(source, Mapping):
        return {**provenance, "source": {k: v for k, v in source.items() if k not in ("digests", FILES)}}
    return dict(provenance)


@contextmanager
def staging_folder(
    run: Conversion, out: str, plan: Mapping[str, Any], *, overwrite: bool = False, resume: bool = False
) -> Iterator[WorkingFolder]:
    """Yield the working folder for staged rows; keep its content if the work is interrupted."""
    with run.bar, interrupted(out):
        place = WorkingFolder(out, overwrite=overwrite, plan=plan, resume=resume, name=run.out)
        try:
            yield place
        except BaseException as error:
            place.close(keep=place.recorded and not isinstance(error, UsageError))
            raise
        place.close(keep=False)


@contextmanager
def interrupted(out: str) -> Iterator[None]:
    """Add to an error or interrupt that work is kept and how to continue, or that the pack is complete."""
    before = _identity(out)
    try:
        yield
    except (PackerError, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt) and _identity(out) not in (None, before):
            error.args = (f"{out} is complete; only temporary files beside it may remain.",)
            raise
        left = out.rstrip("/") + PARTIAL_SUFFIX
        if isinstance(error, (UsageError, BusyError)) or clear_idle(out) or _KEPT in str(error):
            raise
        done = units.size(_nbytes(left))
        sentence = f"{_KEPT} ({left}, {done}): run the same command again to continue."
        if isinstance(error, PackerError):
            error.extend(f" {sentence}")
        else:
            error.args = (sentence,)
        raise


def _identity(out: str) -> tuple[int, int] | None:
    """Return device and inode of a file or folder; None if it does not exist."""
    with suppress(OSError):
        status = os.stat(out)
        return status.st_dev, status.st_ino
    return None


def _nbytes(folder: str) -> int:
    """Return the bytes on disk below a folder; skip files that another process removes meanwhile."""
    nbytes = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                nbytes += os.lstat(os.path.join(where, name)).st_blocks * 512
    return nbytes
