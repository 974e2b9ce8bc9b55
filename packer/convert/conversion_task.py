"""A pack that is to be written, as it was planned; options of a run, and its report."""

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
from packer.version import __version__

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


def provenance(
    options: Mapping[str, Any],
    source: Mapping[str, Any],
    storing: RowStorage,
    *versions: Mapping[str, str],
) -> dict[str, Any]:
    """Return the provenance of a pack, as in Header.

    options: those that are None are left out; versions: of what makes the rows, beside packer and the storage.
    """
    made_by = {"packer": __version__}
    for more in (*versions, storing.versions()):
        made_by |= more
    said = {name: value for name, value in options.items() if value is not None}
    return {"options": said, "source": dict(source), "versions": made_by}


@dataclass(frozen=True)
class ConversionTask:
    """A pack that is to be written.

    subject: the source, for messages; maker: makes the rows; order: of its samples; storing: how fields are stored, and in how many
    shards; provenance, classes, seed, table: as in Header; keyed: the pack stores the maker's key of each row.
    inputs: what an interrupted run must match to be resumed, beside the provenance (times of files); None disables resuming.
    skipped: inputs left out when the task was planned, as in Header. newest: the input that was changed last, None where inputs have
    no times. header: that of a pack of the same rows, whose members the new one gets; None: they are found while rows are made.
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
    header: Header | None = None

    @property
    def fields(self) -> tuple[Field, ...]:
        """Fields of the pack, as they are stored."""
        stored = self.storing.fields(self.maker.fields)
        return (*stored, KEY) if self.keyed else stored

    @property
    def plan(self) -> dict[str, Any] | None:
        """Values that an interrupted run must match to be resumed, None: it is not resumed."""
        return None if self.inputs is None else {**self.provenance, **self.inputs}

    @property
    def members(self) -> dict[str, Any]:
        """Members of Header that are known before rows are made."""
        known = ["classes", "seed", "provenance", "table"]
        if self.header is not None:
            known += ["splits", "statistics", "skipped"]
        return {name: getattr(self.header or self, name) for name in known}

    @property
    def nbytes(self) -> int:
        """Bytes of the pack, about, before they are compressed."""
        return self.maker.pack_bytes(len(self.order.samples))

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
        inputs = None if self.inputs is None else {**self.inputs, "shard": number}
        return replace(self, order=self.order.part(first, stop), inputs=inputs, skipped=())


@dataclass(frozen=True)
class Report:
    """The result of a conversion.

    rows: in the pack, or added to it; seconds: wall time, flushing included; bytes_read: of inputs, this time; bytes_written: of these
    rows, as they are stored; skipped: ({"key": ..., "reason": ...}, ...) inputs left out, of a table the first 1,000 rows; workers: that
    made rows; resumed: rows that an interrupted run had done, of a table those that it had read; cleared: how an interrupted run
    differed whose work was cleared; already: the pack was there and whole, and was left; notes: sentences that a user should see, those
    of the plan among them; skipped_rows: of a table how many were left out; reasons: why -> how many.

    While the pack is being written, narrowed: images whose depth was changed; header: that of the rows.
    """

    out: str = ""
    rows: int = 0
    seconds: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0
    workers: int = 1
    skipped: tuple[Mapping[str, str], ...] = ()
    resumed: int = 0
    cleared: str = ""
    already: bool = False
    notes: tuple[str, ...] = ()
    skipped_rows: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    narrowed: int = field(default=0, repr=False)
    header: Header = field(default=NO_ROWS, repr=False)

    @classmethod
    def of(cls, header: Header, **others: Any) -> Report:
        """Return the report of a pack with that header."""
        nbytes = sum(extent.nbytes for extents in header.extents.values() for extent in extents)
        return cls(
            rows=header.rows, bytes_written=nbytes, skipped=tuple(header.skipped), header=header, **others
        )

    @classmethod
    def of_parts(cls, header: Header, parts: Sequence[Report], resumed: int = 0, cleared: str = "") -> Report:
        """Return the report of a pack of parts that were made now. resumed: rows of the others."""
        return cls.of(
            header,
            bytes_read=sum(part.bytes_read for part in parts),
            resumed=resumed + sum(part.resumed for part in parts),
            narrowed=sum(part.narrowed for part in parts),
            cleared=cleared,
        )

    @property
    def rows_per_second(self) -> float:
        """Rows packed a second, those not counted that had been done before."""
        return max(0, self.rows - self.resumed) / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return {name: value for name, value in vars(self).items() if name not in ("narrowed", "header")}


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

    @property
    def anew(self) -> RunOptions:
        """Options of writing a pack from rows that were staged: it is not resumed, since its rows are."""
        return replace(self, resume=False, overwrite=True)


Engine = Callable[[ConversionTask, str, RunOptions], Report]
"""What writes a planned pack: it gets the task, the output's name and the options of the run."""
