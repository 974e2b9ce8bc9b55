"""The plan of a pack to write; options of a run, and its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from packer.convert.row_maker import RowMaker
from packer.convert.row_storage import RowStorage
from packer.convert.sample_order import SampleOrder
from packer.errors import SourceError
from packer.format.fields import (
    Extent,
    Field,
)
from packer.format.file_io import InputFile
from packer.format.header import Header
from packer.version import __version__

NO_ROWS = Header(0, 1, (), {})
KEY = Field("key", "|u1", None, {"encoding": "utf-8"})


class NothingPackedError(SourceError):
    """Raised if every input was skipped. skipped: as in Header."""

    skipped: Sequence[dict[str, str]] = ()

    @classmethod
    def from_skipped(cls, subject: str, skipped: Sequence[dict[str, str]]) -> NothingPackedError:
        """Return the error for a source."""
        reason = skipped[0]["reason"]
        error = cls(f"{subject}: none of its {len(skipped)} images could be packed; the first: {reason}")
        error.skipped = skipped
        return error


def provenance(
    options: Mapping[str, Any],
    source: Mapping[str, Any],
    storing: RowStorage,
    *versions: Mapping[str, str],
) -> dict[str, Any]:
    """Return the provenance of a pack, as in Header.

    options: options that are None are left out; versions: versions of the libraries that determine the rows,
    beside packer and the storage.
    """
    libraries = {"packer": __version__}
    for more in (storing.versions(), *versions):
        libraries |= more
    given = {name: value for name, value in options.items() if value is not None}
    return {"options": given, "source": dict(source), "versions": libraries}


@dataclass(frozen=True)
class ConversionTask:
    """The plan of a pack.

    subject: the source, for messages; maker: makes the rows; order: the sample of each row; storing: storage
    of the fields, and number of shards; provenance, classes, seed, table: as in Header; keyed: the pack
    stores the maker's key of each row.
    inputs: values, beside the provenance, that an interrupted run must match to be resumed (times of files);
    None disables resuming.
    skipped: inputs left out in planning, as in Header. newest: the input that was changed last; None if
    inputs have no times.
    """

    subject: str
    maker: RowMaker
    order: SampleOrder
    storing: RowStorage
    provenance: Mapping[str, Any]
    inputs: Mapping[str, Any] | None
    classes: tuple[str, ...] | None = None
    seed: int | None = None
    table: Mapping[str, Any] | None = None
    keyed: bool = True
    skipped: tuple[dict[str, str], ...] = ()
    newest: InputFile | None = None

    @property
    def fields(self) -> tuple[Field, ...]:
        """Fields of the pack, as stored."""
        stored = self.storing.fields(self.maker.fields, len(self.order.samples))
        return (*stored, KEY) if self.keyed else stored

    @property
    def plan(self) -> dict[str, Any] | None:
        """Values that an interrupted run must match to be resumed; None disables resuming."""
        return None if self.inputs is None else {**self.provenance, **self.inputs}

    @property
    def members(self) -> dict[str, Any]:
        """Members of Header that are known before the rows are."""
        return {name: getattr(self, name) for name in ("classes", "seed", "provenance", "table")}

    @property
    def nbytes(self) -> int:
        """Estimated bytes of the pack before compression."""
        return self.maker.pack_bytes(len(self.order.samples))

    @property
    def gathered(self) -> bool:
        """True if blocks are written to separate files first, so that finishing needs twice the space."""
        return self.storing.gathered or any(f.own_size is not None for f in self.maker.fields)

    def rows_of(self, part: tuple[int, int]) -> int:
        """Return the number of rows in shards k, k + n, k + 2 n ... (counted from 1). part: (k, n)."""
        count, rows = len(self.order.samples), self.storing.shard_rows
        assert rows is not None
        firsts = range((part[0] - 1) * rows, count, part[1] * rows)
        return sum(min(rows, count - first) for first in firsts)

    def shard(self, number: int, rows: int) -> ConversionTask:
        """Return the task of one shard. rows: rows per shard."""
        first = number * rows
        stop = min(first + rows, len(self.order.samples))
        inputs = None if self.inputs is None else {**self.inputs, "shard": number}
        return replace(self, order=self.order.part(first, stop), inputs=inputs, skipped=())


@dataclass(frozen=True)
class Report:
    """The result of a conversion.

    rows: rows of the pack, or rows added to it; seconds: wall time, flush included; bytes_read: bytes of
    inputs read in this run; bytes_written: bytes of the rows as stored; skipped: ({"key": ..., "reason":
    ...}, ...) inputs left out (tables: the first 1,000 rows); workers: parallel workers; resumed: rows that
    an interrupted run had done (tables: rows that it had read); cleared: how a discarded interrupted run
    differed; already: the pack was complete and was left as it is; notes: sentences for the user, those of
    the plan included; skipped_rows: number of table rows left out; reasons: reason -> number of rows.

    narrowed: number of images whose bit depth changed; splits: name -> rows of the pack. While the pack is
    being written, workers: those of an engine, else 0; header: header of the rows.
    """

    out: str = ""
    rows: int = 0
    seconds: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0
    workers: int = 0
    skipped: tuple[Mapping[str, str], ...] = ()
    resumed: int = 0
    cleared: str = ""
    already: bool = False
    notes: tuple[str, ...] = ()
    skipped_rows: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    narrowed: int = field(default=0, repr=False)
    splits: Mapping[str, int] = field(default_factory=dict, repr=False)
    header: Header = field(default=NO_ROWS, repr=False)

    @classmethod
    def from_header(cls, header: Header, **others: Any) -> Report:
        """Return the report of a pack with that header."""
        nbytes = sum(extent.nbytes for extents in header.extents.values() for extent in extents)
        spans = sorted(header.splits.items(), key=lambda split: split[1])
        return cls(
            rows=header.rows,
            bytes_written=nbytes,
            skipped=tuple(header.skipped),
            splits={name: sum(b - a for a, b in parts) for name, parts in spans},
            header=header,
            **others,
        )

    @classmethod
    def merge(cls, header: Header, parts: Sequence[Report], resumed: int = 0, cleared: str = "") -> Report:
        """Combine the reports of parts written in this run. resumed: rows of the other parts."""
        return cls.from_header(
            header,
            bytes_read=sum(part.bytes_read for part in parts),
            resumed=resumed + sum(part.resumed for part in parts),
            narrowed=sum(part.narrowed for part in parts),
            cleared=cleared,
        )

    @property
    def rows_per_second(self) -> float:
        """Rows packed per second in this run, without resumed rows."""
        return max(0, self.rows - self.resumed) / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return {name: value for name, value in vars(self).items() if name not in ("narrowed", "header")}


Readable = Callable[[int, Mapping[str, tuple[Extent, ...]]], None]
"""Function that is told how many leading rows can be read before the pack is complete, and the extents of
arrays whose rows have fixed places; none for shards."""


@dataclass(frozen=True)
class RunOptions:
    """Options of a run; the content of the pack does not depend on them.

    workers: number of parallel workers; skip: leave bad inputs out instead of failing at the first;
    overwrite: replace an existing pack; resume: refuse unfinished work of another plan instead of discarding
    it; progress: called with the rows done so far; only: (k, n): write only every n-th shard from the k-th
    on, and no index; readable: called when further rows can be read.
    """

    workers: int
    skip: bool = False
    overwrite: bool = False
    resume: bool = False
    progress: Callable[[int], None] = field(default=lambda rows: None)
    only: tuple[int, int] | None = None
    readable: Readable = lambda rows, extents: None

    @property
    def for_staged(self) -> RunOptions:
        """Options for writing a pack from staged rows: only the staging is resumed, not the writing."""
        return replace(self, resume=False, overwrite=True)


Engine = Callable[[ConversionTask, str, RunOptions], Report]
"""Function that writes a planned pack, given the task, the output's name and the options of the run."""
