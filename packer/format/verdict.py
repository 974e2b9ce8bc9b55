"""What verifying a pack found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    file: path of the file that holds it; text: the sentence.
    kind: "rows", "header", "trailer", "checksums" (the table), "metadata" (what describes the arrays to HDF5 or NumPy), or
        "unsealed" (another program has opened the file for writing since), or "index" (of shards, or a shard it does not list so).
    array: the array, None if none or not known which. block, rows: the block, and its rows [first, last + 1) or those of
        them that are wrong; None where it concerns no block.
    """

    file: str
    kind: str
    text: str
    array: str | None = None
    block: int | None = None
    rows: tuple[int, int] | None = None


@dataclass(frozen=True)
class Verdict:
    """Result of verifying.

    nbytes: of rows that were read and compared; seconds: how long it took; blocks: of a pack of one part, those that are damaged
    or of which nothing tells that they are whole, whether or not a problem names them.
    """

    problems: tuple[Problem, ...]
    nbytes: int
    seconds: float
    blocks: frozenset[int] = frozenset()

    @property
    def ok(self) -> bool:
        """True if nothing is wrong."""
        return not self.problems
