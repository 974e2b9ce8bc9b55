"""A pack that is to be written, as it was planned; options of a run, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from packer.convert.row_maker import RowMaker
from packer.convert.row_storage import RowStorage
from packer.convert.sample_order import SampleOrder
from packer.errors import SourceError
from packer.format.file_io import InputFile
from packer.format.header import Field, Header
from packer.format.pack import Pack

NO_ROWS = Header(0, 1, (), {})
KEY = Field("key", "|u1", None, {"encoding": "utf-8"})


class NothingPackedError(SourceError):
    """Every input was skipped. skipped: as in Header."""

    skipped: Sequence[dict[str, str]] = ()

    @classmethod
    def of(cls, subject: str, skipped: Sequence[dict[str, str]]) -> NothingPackedError:
        """Say so of a source."""
        error = cls(
            f"{subject}: none of its {len(skipped)} images could be packed; the first: ", skipped[0]["reason"]
        )
        error.skipped = skipped
        return error


@dataclass(frozen=True)
class ConversionTask:
    """A pack that is to be written.

    maker: of the rows; order: of its samples; storing: how fields are stored, and in how many shards; members: those of Header
    that are known beforehand (classes, seed, provenance); plan: what an interrupted run must have been about to be resumed, None: it
    is not.
    subject: the source, for messages. keyed: whether the pack says of each row what the maker calls it. skipped: what was left out
    when the task was planned, as in Header. newest: of the inputs the one that was changed last, None where these have no times.
    """

    subject: str
    maker: RowMaker
    order: SampleOrder
    storing: RowStorage
    members: Mapping[str, Any]
    plan: Mapping[str, Any] | None
    keyed: bool = True
    skipped: tuple[dict[str, str], ...] = ()
    newest: InputFile | None = None

    @property
    def fields(self) -> tuple[Field, ...]:
        """Fields of the pack, as they are stored."""
        stored = self.storing.fields(self.maker.fields)
        return (*stored, KEY) if self.keyed else stored

    @property
    def gathered(self) -> bool:
        """True if blocks lie in files of their own until the end, and so for a moment twice on the disk."""
        return self.storing.gathered or any(f.own_size is not None for f in self.maker.fields)

    def rows_of(self, part: tuple[int, int]) -> int:
        """Return how many rows are in the shards k, k + n, k + 2 n ... (from 1) of (k, n)."""
        count, rows = len(self.order.samples), self.storing.shard_rows
        assert rows is not None
        firsts = range((part[0] - 1) * rows, count, part[1] * rows)
        return sum(min(rows, count - first) for first in firsts)

    def shard(self, number: int, rows: int) -> ConversionTask:
        """Return the part of the task that is one shard, of so many rows."""
        first = number * rows
        stop = min(first + rows, len(self.order.samples))
        plan = None if self.plan is None else {**self.plan, "shard": number}
        return replace(self, order=self.order.part(first, stop), plan=plan, skipped=())


@dataclass
class RunResult:
    """The result of a run.

    header: of the whole pack; before: the pack that was added to; skipped: inputs left out, those that it listed before aside;
    bytes_read: of inputs, this time; resumed: rows taken over; narrowed: images whose depth was changed.
    """

    header: Header
    bytes_read: int = 0
    resumed: int = 0
    cleared: str = ""
    narrowed: int = 0
    before: Pack | None = None
    added_skipped: list[Mapping[str, str]] = field(default_factory=list)

    def add(self, part: RunResult) -> None:
        """Count what a shard gave."""
        self.bytes_read += part.bytes_read
        self.resumed += part.resumed
        self.narrowed += part.narrowed

    @property
    def rows(self) -> int:
        """Rows written, or added."""
        return self.header.rows - (self.before.rows if self.before else 0)

    @property
    def nbytes(self) -> int:
        """Bytes of these rows, as they are stored."""
        whole = sum(e.nbytes for extents in self.header.extents.values() for e in extents)
        return whole - (self.before.nbytes if self.before else 0)

    @property
    def skipped(self) -> Sequence[Mapping[str, str]]:
        """Inputs left out."""
        return self.added_skipped if self.before else self.header.skipped


@dataclass(frozen=True)
class RunOptions:
    """Options of a run; the result does not depend on them.

    workers: in parallel; skip: bad inputs are left out, else the first one ends the run; overwrite: replace an existing pack;
    resume: refuse what an interrupted run of another plan has left; progress: called with the rows done so far; only: (k, of n), of the
    shards each n-th from the k-th on, without listing them.
    """

    workers: int
    skip: bool = False
    overwrite: bool = False
    resume: bool = False
    progress: Callable[[int], None] = field(default=lambda rows: None)
    only: tuple[int, int] | None = None


Engine = Callable[[ConversionTask, str, RunOptions], RunResult]
"""What writes a planned pack: it gets the task, the output's name and the options of the run."""
