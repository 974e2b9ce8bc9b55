"""Splits as users write them: shares, numbers of rows, positions, ranges, a column; as packs record them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from packer.declared_types import checked_class
from packer.errors import PackerError, UsageError
from packer.given_values import option_text, shown
from packer.path_text import show_differences, simplify

Part = float | int | str | range
"""A share, a number of rows, "rest", "first:N", "last:N", or the rows themselves."""
EXAMPLE = "train=0.9,val=0.1"


@checked_class
@dataclass(frozen=True)
class Split:
    """Splits, as ``split=`` of every function that converts takes them.

    Parameters
    ----------
    shares
        Name -> share, as "train=0.9,val=0.1" or a mapping, drawn from the seed. Also numbers of rows;
        percentages, if they sum to 100; "rest"; "first:N" and "last:N", rows by their position in the source;
        in a mapping ranges of rows, as ``{"train": range(900), "val": range(900, 1000)}``.
    column
        Instead of shares, a column of the labels' CSV or of the table that names the split of each row.
    group
        A column of the CSV or table. Rows with equal values (images of a patient, frames of a video) are in
        one split.

    Examples
    --------
    >>> from packer import Split
    >>> Split("train=80,val=20", group="patient").parts
    {'train': 0.8, 'val': 0.2}
    """

    shares: str | Mapping[str, Part] | None = None
    column: str | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        """Check the values. Raises UsageError."""
        if self.shares is None and self.column is None:
            raise UsageError(
                f"split=Split(group={self.group!r}): groups need shares, or a column that names their"
                f" splits. Pass split={EXAMPLE!r}, or split=Split(column=); for rows in order"
                " sequence=Sequences(order=)."
            )
        if self.shares is not None and self.column is not None:
            raise UsageError(
                f"split=Split(column={self.column!r}): names the splits of rows, but split="
                " draws them. Pass only one."
            )
        object.__setattr__(self, "shares", None if self.shares is None else parse_shares(self.shares))
        if self.group is not None and self.counted:
            raise UsageError(
                f"split=Split(group={self.group!r}): groups are divided by shares, not by numbers of rows"
                f" or positions. Pass shares, as {EXAMPLE}."
            )

    @classmethod
    def parse(cls, given: str | Mapping[str, Part] | Split | None) -> Split | None:
        """Return the Split of an option that can be given as shares. Raises UsageError."""
        return given if given is None or isinstance(given, Split) else cls(given)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Split | None:
        """Return the Split that a pack records."""
        shares, column = record.get("split"), record.get("split_column")
        if shares is None and column is None:
            return None
        ranges = {name: range(*part) for name, part in (shares or {}).items() if isinstance(part, list)}
        return cls(shares and shares | ranges, column, record.get("split_group"))

    def record(self, seed: int) -> dict[str, Any]:
        """Return the values that a pack records; the seed, unless all splits are given as ranges."""
        parts = {name: [p.start, p.stop] if isinstance(p, range) else p for name, p in self.parts.items()}
        fixed = bool(parts) and all(isinstance(part, list) for part in parts.values())
        return {
            "split": parts or None,
            "split_column": self.column,
            "split_group": self.group,
            "split_seed": None if fixed else seed,
        }

    @property
    def parts(self) -> Mapping[str, Part]:
        """Name -> part, as parse_shares returns them; {} for a column."""
        return {} if self.shares is None or isinstance(self.shares, str) else self.shares

    @property
    def counted(self) -> bool:
        """True if splits are numbers of rows or positions, not only shares."""
        return any(not isinstance(part, float) and part != "rest" for part in self.parts.values())

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the split needs."""
        return tuple(dict.fromkeys(name for name in (self.column, self.group) if name is not None))

    def check_no_columns(self, noun: str) -> None:
        """Raise UsageError for columns; noun: what has none."""
        for option in self.about_columns():
            raise UsageError(
                f"{option}: applies to columns of a table or of a CSV of labels; {noun} have none. Pass"
                " shares, or the rows of each split."
            )

    def about_columns(self) -> list[str]:
        """Return the given options that name columns."""
        given = {"Split.column": self.column, "Split.group": self.group}
        return [option_text(name, column) for name, column in given.items() if column is not None]

    def check_growable(self, path: str, *, in_groups: bool = False) -> None:
        """Raise UsageError if new rows cannot be divided like those of a pack. in_groups: of sequences."""
        reason = ""
        if self.counted:
            reason = "are not shares of its rows, so new rows have no split"
        elif (self.group is not None or in_groups) and self.shares is not None:
            reason = f"have groups of {self.group or 'sequences'!r}, which new rows may divide"
        if reason:
            raise UsageError(
                f"{path}: has splits ({', '.join(self.parts)}) that {reason}; only packs without splits, or"
                " with splits by shares, can grow. Convert all rows into a new pack."
            )

    def portions(self, rows: int) -> tuple[dict[str, range], dict[str, float]]:
        """Return name -> rows of the splits at fixed positions, and name -> share of all other rows.

        Raises UsageError if there are too few rows, or some would be in no split or in two.
        """
        parts: Mapping[str, Any] = self.parts
        places = {name: at for name, part in parts.items() if (at := _place(part, rows)) is not None}
        rising = sorted((at.start, at.stop) for at in places.values() if at)
        numbers, share = (sum(x for x in parts.values() if isinstance(x, kind)) for kind in (int, float))
        left = rows - sum(map(len, places.values()))
        among = left - numbers
        needed, problem = max([rows - among, *(stop for _, stop in rising)]), ""
        if needed > rows:
            problem = f"needs {needed:,} rows; there are {rows:,}. Pass fewer, or shares, as {EXAMPLE}"
        elif any(stop > start for (_, stop), (start, _) in pairwise(rising)):
            problem = "has rows in two splits; each row is in one. Pass ranges that do not overlap"
        elif among and not share and "rest" not in parts.values():
            problem = f"leaves {among:,} of {rows:,} rows in no split. Add one with rest, as in train=rest"
        if problem:
            raise UsageError(f"split {self}: {problem}.")
        shares = {}
        for name, part in parts.items():
            if isinstance(part, int):
                shares[name] = part / left
            elif name not in places:
                shares[name] = (1 - share if part == "rest" else part) * (among / left if numbers else 1.0)
        return places, shares

    def __str__(self) -> str:
        """Return the shares in command line form, or the column."""
        if self.shares is None:
            return f"column {self.column}"
        return ",".join(
            f"{name}={part:g}" if isinstance(part, float) else f"{name}={part}"
            for name, part in self.parts.items()
        )


def parse_shares(given: object) -> dict[str, Part]:
    """Parse splits: "train=0.9,val=0.1", "train=80,val=20", "train=rest,test=last:500000" or a mapping.

    Numbers above 1 are percentages if there are only numbers and they sum to 100, else numbers of rows. A
    share applies to the rows that no number takes; "rest", for one split, is 1 minus the other shares.
    Returns: name -> part, sorted by name, since the rows must depend only on the pack's record of its
    options, which does not keep an order. Raises UsageError.
    """
    pairs: list[Any] = []
    if isinstance(given, (str, Mapping)):
        pairs = [part.split("=") for part in given.split(",")] if isinstance(given, str) else [*given.items()]
    parts = {str(pair[0]).strip(): _part(pair[1]) for pair in pairs if len(pair) == 2}
    numbers = {name: part for name, part in parts.items() if isinstance(part, float)}
    if max(numbers.values(), default=0) > 1:
        if len(numbers) == len(parts) and abs(math.fsum(numbers.values()) - 100) <= 1e-6:
            parts = {name: round(part / 100, 12) for name, part in numbers.items()}
        else:
            whole = all(part.is_integer() for part in numbers.values())
            above = {name: part for name, part in numbers.items() if whole or part > 1}
            parts |= {name: int(part) if part.is_integer() else None for name, part in above.items()}
    known = {name: part for name, part in sorted(parts.items()) if name and part is not None}
    words = [part.partition(":")[0] for part in known.values() if isinstance(part, str)]
    shares = [part for part in known.values() if isinstance(part, float)]
    full = sum(shares) < 1 - 1e-9 if "rest" in words else not shares or abs(sum(shares) - 1) <= 1e-6
    problem = ""
    if not known or len(known) < len(pairs) or len(set(words)) < len(words):
        problem = (
            "is not a list of names, each with a positive share, a number of rows, rest, first:N or last:N"
        )
    elif not full:
        problem = (
            f"the shares sum to {sum(shares):g}, but must sum to 1 (percentages to 100), or less with a rest"
        )
    said = given if isinstance(given, str) else shown(given)
    if problem:
        raise UsageError(
            f"split {said}: {problem}. Pass for example {EXAMPLE} or train=rest,test=last:500000."
        )
    refuse_alike(UsageError, f"split {said}:", "split", known)
    return known


def _part(value: Any) -> Part | None:
    """Return a positive number, "rest", "first:N", "last:N" or a range of rows; None for anything else."""
    if isinstance(value, range):
        return value if value.step == 1 and 0 <= value.start <= value.stop else None
    word, colon, number = (part.strip() for part in str(value).partition(":"))
    if colon:
        known = word in ("first", "last") and number.isdecimal() and int(number) > 0
        return f"{word}:{int(number)}" if known else None
    try:
        return word if word == "rest" else share if 0 < (share := float(word)) < math.inf else None
    except ValueError:
        return None


def _place(part: Part, rows: int) -> range | None:
    """Return the rows of a split at a fixed position; None for a share or a number of rows."""
    if isinstance(part, str) and part != "rest":
        end, _, number = part.partition(":")
        return range(int(number)) if end == "first" else range(rows - int(number), rows)
    return part if isinstance(part, range) else None


def refuse_alike(error: type[PackerError], subject: str, noun: str, names: Iterable[str]) -> None:
    """Raise an error for two names that differ only in case, spaces or the form of their letters.

    subject: beginning of the message; noun: what has the names.
    """
    seen: dict[str, str] = {}
    for name in sorted(names):
        if (first := seen.setdefault(simplify(name), name)) is not name:
            raise error(
                f"{subject} names the {noun}s {show_differences(first)} and {show_differences(name)}, which"
                f" differ only in case, spaces or variants of letters. Write one {noun} alike, two unlike."
            )
