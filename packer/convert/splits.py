"""Splits: the samples of each split, by share, number, position, column or group."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import randomness, units
from packer.declared_types import checked_class
from packer.errors import SourceError, UsageError
from packer.given_values import shown
from packer.path_text import show_differences, simplify
from packer.sentence import Option

Ints = NDArray[np.int64]
_AT_ONCE = 1 << 20  # positions drawn at once
_MOST_SPLITS = 100  # most splits that a column can name
_EXAMPLE = "train=0.9,val=0.1"
_NAMES = ("train", "val", "test")  # of shares given without names


@checked_class
@dataclass(frozen=True)
class Split:
    """Splits, as ``convert_images(split=...)`` and ``convert_table(split=...)`` take them.

    Parameters
    ----------
    shares
        Name -> share, as "train=0.9,val=0.1" or a mapping, drawn from the seed. Also numbers of rows;
        percentages, if they sum to 100; "rest"; "first:N" and "last:N", rows by their position in the source.
    column
        Instead of shares, a column of the labels' CSV or of the table that names the split of each row.
    group
        A column of the CSV or table. Rows with equal values (images of a patient, frames of a video) are in
        one split.

    Examples
    --------
    >>> from packer import Split
    >>> Split("train=80,val=20", group="patient").record()
    {'split': {'train': 0.8, 'val': 0.2}, 'split_group': 'patient'}
    """

    shares: str | Mapping[str, float | str] | None = None
    column: str | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        """Check the values. Raises UsageError."""
        if self.shares is None and self.column is None:
            raise UsageError(
                f"{Option('Split.group', self.group)}: groups need shares, or a column that names their"
                f" splits. Pass {Option('split', _EXAMPLE)}, or {Option('Split.column')}."
            )
        if self.shares is not None and self.column is not None:
            raise UsageError(
                f"{Option('Split.column', self.column)}: names the splits of rows, but {Option('split')}"
                " draws them. Pass only one."
            )
        if self.column is not None and self.column == self.group:
            raise UsageError(
                f"column {self.column}: is both column and group; they have to differ. Pass it once."
            )
        if self.shares is None:
            return
        object.__setattr__(self, "shares", parse_parts(self.shares))
        if self.group is not None and any(
            isinstance(part, int) or ":" in str(part) for part in self.parts.values()
        ):
            raise UsageError(
                f"{Option('Split.group', self.group)}: groups are divided by shares, not by numbers of rows"
                f" or positions. Pass shares, as {_EXAMPLE}."
            )

    @classmethod
    def of(cls, given: str | Mapping[str, Any] | Split | None) -> Split | None:
        """Return the Split of an option that can be given as shares. Raises UsageError."""
        return given if given is None or isinstance(given, Split) else cls(given)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Split | None:
        """Return the Split that a pack records."""
        given = record.get("split"), record.get("split_column"), record.get("split_group")
        return None if given[:2] == (None, None) else cls(*given)

    def record(self) -> dict[str, Any]:
        """Return the values that a pack records, without those that are None."""
        values = {"split": self.shares, "split_column": self.column, "split_group": self.group}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def parts(self) -> Mapping[str, float | int | str]:
        """Name -> share, number of rows, "rest", "first:N" or "last:N", as parse_parts returns them."""
        return {} if self.shares is None or isinstance(self.shares, str) else self.shares

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the split needs."""
        return tuple(name for name in (self.column, self.group) if name is not None)

    def about_columns(self) -> Iterator[str]:
        """Yield the given options that name columns."""
        for name in ("column", "group"):
            if (value := getattr(self, name)) is not None:
                yield Option(f"Split.{name}", value)

    def check_growable(self, path: str) -> None:
        """Raise UsageError if new rows cannot be divided like those of a pack."""
        reason = ""
        if any(isinstance(part, int) or ":" in str(part) for part in self.parts.values()):
            reason = "are not shares of its rows, so new rows have no split"
        elif self.group is not None and self.shares is not None:
            reason = f"have groups of {self.group!r}, which new rows may divide"
        if reason:
            raise UsageError(
                f"{path}: has splits ({', '.join(self.parts)}) that {reason}; only packs without splits, or"
                " with splits by shares, can grow. Convert all rows into a new pack."
            )

    def portions(self, rows: int) -> tuple[int, int, dict[str, float]]:
        """Return the number of first and last rows that splits take, and name -> share of the rows between.

        Raises UsageError if there are too few rows, or some would be in no split.
        """
        if self.column is not None:
            return 0, 0, {}
        ends = {end: int(n) for end, _, n in (str(part).partition(":") for part in self.parts.values()) if n}
        first, last = ends.get("first", 0), ends.get("last", 0)
        left = rows - first - last
        numbers = [part for part in self.parts.values() if isinstance(part, int)]
        among = left - sum(numbers)
        if among < 0:
            where = " from the ends" if left < 0 else ""
            raise UsageError(
                f"split {self}: needs {rows - among:,} rows{where}; there are {rows:,}. Pass fewer, or"
                f" shares, as {_EXAMPLE}."
            )
        shares = [part for part in self.parts.values() if isinstance(part, float)]
        if among and not shares and "rest" not in self.parts.values():
            raise UsageError(
                f"split {self}: leaves {among:,} of {rows:,} rows in no split. Add one with rest, as in"
                " train=rest."
            )
        scale, portions = among / left if numbers else 1.0, {}
        for name, part in self.parts.items():
            if isinstance(part, int):
                portions[name] = part / left
            elif isinstance(part, float):
                portions[name] = part * scale
            elif part == "rest":
                portions[name] = (1 - sum(shares)) * scale
        return first, last, portions

    def __str__(self) -> str:
        """Return the shares in command line form, or the column."""
        if self.shares is None:
            return f"column {self.column}"
        return ",".join(
            f"{name}={part:g}" if isinstance(part, float) else f"{name}={part}"
            for name, part in self.parts.items()
        )

    def members(self, count: int, seed: int, *, strata: Ints | None = None) -> dict[str, Ints]:
        """Return name -> samples, int64, ascending, sorted by name; every sample is in exactly one split.

        strata: class of each sample; each split gets its share of every class. Raises UsageError if a split
        would be empty.
        """
        first, last, shares = self.portions(count)
        strata = None if strata is None else strata[first : count - last]
        drawn = stratified(strata, count - first - last, shares, seed) if shares else {}
        places = {"first": np.arange(first), "last": np.arange(count - last, count)}
        return {
            name: drawn[name] + first if name in shares else places[str(part).partition(":")[0]]
            for name, part in self.parts.items()
        }


def parse_parts(text: str | Mapping[str, Any]) -> dict[str, float | int | str]:
    """Parse splits: "train=0.9,val=0.1", "train=80,val=20", "train=rest,test=last:500000" or a mapping.

    Numbers above 1 are percentages if there are only numbers and they sum to 100, else numbers of rows. A
    share applies to the rows that no number takes; "rest", for one split, is 1 minus the other shares.
    Returns: name -> share, number of rows, "rest", "first:N" or "last:N", as plain JSON values, sorted by
    name, since the rows must depend only on the pack's record of its options, which does not keep an order.
    Raises UsageError.
    """
    pairs: list[Any] = []
    if isinstance(text, str):
        pairs = [part.split("=") for part in text.split(",")]
    elif isinstance(text, Mapping):
        pairs = list(text.items())
    _check_named(text, pairs)
    parts = {str(pair[0]).strip(): _part(pair[1]) for pair in pairs if len(pair) == 2}
    named = len(parts) == len(pairs) > 0 and all(parts) and None not in parts.values()
    plain = {name: part for name, part in parts.items() if isinstance(part, float)}
    if any(part > 1 for part in plain.values()):
        if len(plain) == len(parts) and abs(math.fsum(plain.values()) - 100) <= 1e-6:
            parts = {name: round(part / 100, 12) for name, part in plain.items()}
        else:
            integers = all(part.is_integer() for part in plain.values())
            named = named and all(part.is_integer() for part in plain.values() if part > 1)
            parts |= {name: int(part) for name, part in plain.items() if integers or part > 1}
    shares = [part for part in parts.values() if isinstance(part, float)]
    ends = [str(part).partition(":")[0] for part in parts.values() if isinstance(part, str)]
    full = sum(shares) < 1 - 1e-9 if "rest" in ends else not shares or abs(sum(shares) - 1) <= 1e-6
    example = f"Pass for example {_EXAMPLE} or train=rest,test=last:500000."
    if not named or len(set(ends)) < len(ends):
        raise UsageError(
            f"split {_said(text)}: is not a list of names, each with a positive share, a number of rows, "
            "rest,"
            f" first:N or last:N. {example}"
        )
    if not full:
        raise UsageError(
            f"split {_said(text)}: the shares sum to {sum(shares):g}, but must sum to 1 (percentages to "
            "100), or less"
            f" with a rest. {example}"
        )
    return {name: part for name, part in sorted(parts.items()) if part is not None}


def _check_named(given: object, pairs: Sequence[Any]) -> None:
    """Raise UsageError for shares without names, with the names that they probably stand for."""
    numbers = [pair[0] for pair in pairs] if all(len(pair) == 1 for pair in pairs) else []
    if not pairs:
        numbers = list(given) if isinstance(given, (list, tuple)) else [given]
    if not numbers or not all(isinstance(one, (str, Real)) and _part(one) for one in numbers):
        if pairs or isinstance(given, Mapping):
            return
        raise UsageError(
            f"split {_said(given)}: is neither text nor a mapping of names to shares. Pass for example"
            f" {Option('split', _EXAMPLE)}."
        )
    first = float(numbers[0]) if len(numbers) == 1 and _part(numbers[0]) != "rest" else 1
    if first < 1:  # test_size of scikit-learn
        numbers = sorted((f"{first:g}", f"{1 - first:g}"), reverse=True)
    meant = ",".join(f"{name}={number}" for name, number in zip(_NAMES, numbers, strict=False))
    try:
        parse_parts(meant)
    except UsageError:
        meant = _EXAMPLE
    if len(numbers) > len(_NAMES) or len(numbers) == 1:
        meant = _EXAMPLE
    raise UsageError(
        f"split {_said(given)}: names no splits; each share needs a name. Pass {Option('split', meant)}."
    )


def _said(given: object) -> str:
    return given if isinstance(given, str) else shown(given)


def _part(value: Any) -> float | str | None:
    """Return a positive number, "rest", "first:N" or "last:N"; None for anything else."""
    word, colon, number = (part.strip() for part in str(value).partition(":"))
    if colon:
        known = word in ("first", "last") and number.isdecimal() and int(number) > 0
        return f"{word}:{int(number)}" if known else None
    try:
        return word if word == "rest" else share if 0 < (share := float(word)) < math.inf else None
    except ValueError:
        return None


def parse_spans(split: Mapping[str, Any]) -> dict[str, range]:
    """Check splits given as ranges of samples, and sort them by name.

    Raises UsageError unless they partition samples.
    """
    ranges = [span for span in split.values() if isinstance(span, range) and span.step == 1]
    spans = sorted((span for span in ranges if span), key=lambda span: span.start)
    ends = [0, *(span.stop for span in spans)]
    each_once = len(ranges) == len(split) and ends[:-1] == [span.start for span in spans]
    if not spans or not each_once or not all(str(name).strip() for name in split):
        given = {
            name: part if isinstance(part, range) or np.isscalar(part) else type(part).__name__
            for name, part in split.items()
        }
        raise UsageError(
            f"split {given}: is not a set of ranges that hold each sample once. Pass for example"
            " {'train': range(900), 'val': range(900, 1000)}, of samples in the order of their splits."
        )
    return {str(name).strip(): split[name] for name in sorted(split)}


def members_of(spans: Mapping[str, range], count: int) -> dict[str, Ints]:
    """Return name -> samples of splits given as ranges.

    Raises UsageError unless they hold `count` samples.
    """
    total = sum(map(len, spans.values()))
    if total != count:
        raise UsageError(
            f"split: has {total:,} samples in all, but there are {count:,}. Pass ranges that hold each sample"
            " once."
        )
    return {name: np.arange(span.start, span.stop) for name, span in spans.items()}


def names_of(subject: str, split: Split, cells: Iterable[str]) -> tuple[str, ...]:
    """Return the splits that a column names, sorted.

    cells: values of the column; subject: the source, for messages. Raises SourceError for more than 100
    splits, and for two that look alike.
    """
    names = tuple(sorted(set(cells)))
    if len(names) > _MOST_SPLITS:
        raise SourceError(
            f"{subject}: column {split.column} has {len(names):,} different values, as"
            f" {', '.join(names[:3])}; at most {_MOST_SPLITS} splits are allowed. Pass another column, or for"
            f" groups {Option('split', _EXAMPLE)} and {Option('Split.group', split.column)}."
        )
    seen: dict[str, str] = {}
    for name in names:
        if (first := seen.setdefault(simplify(name), name)) is not name:
            raise SourceError(
                f"{subject}: column {split.column} names the splits {show_differences(first)} and"
                f" {show_differences(name)}, which differ only in case, spaces or variants of letters. Write "
                "the"
                " cells of one split alike."
            )
    return names


def check_groups(
    subject: str,
    split: Split,
    names: Sequence[str],
    owners: NDArray[Any],
    groups: Ints,
    called: Callable[[int], str],
) -> None:
    """Raise SourceError if rows of one group are in two splits.

    names: names of the splits; owners: split number of each row; groups: group number of each row; called:
    returns the name of a group.
    """
    cells = np.unique(groups * len(names) + owners)
    group, owner = np.divmod(cells, len(names))
    for at in np.flatnonzero(group[1:] == group[:-1])[:1].tolist():
        raise SourceError(
            f"{subject}: {split.group} {called(int(group[at]))} is in the splits {names[owner[at]]} and"
            f" {names[owner[at + 1]]} of column {split.column}; a group has to be in one split. Correct the"
            f" column, or leave out {Option('Split.group')}."
        )


def note_on_groups(split: Split, names: Iterable[str], owners: Ints, rows: NDArray[Any]) -> str:
    """Return a note on the number of groups and rows in each split.

    names: names of the splits; owners: split number of each group; rows: split number of each row.
    """
    shown = ", ".join(
        f"{name} {np.count_nonzero(owners == k):,} ({units.count(int(np.count_nonzero(rows == k)), 'row')})"
        for k, name in enumerate(names)
    )
    return f"Groups of {split.group} in each split: {shown}."


def counts_of(shares: Mapping[str, float], rows: int) -> dict[str, int]:
    """Return the number of rows of each split. Raises UsageError if a split would be empty.

    Rows left by rounding go, one each, to the splits with the largest deficits.
    """
    share = np.array(list(shares.values()))
    counts = np.floor(share * rows + 1e-9).astype(np.int64)
    most = np.argsort(counts - share * rows, kind="stable")[: rows - int(counts.sum())]
    counts[most] += 1
    check_filled(shares, counts.tolist(), rows, "rows")
    return dict(zip(shares, counts.tolist(), strict=True))


def check_filled(shares: Mapping[str, float], counts: Iterable[int], rows: int, noun: str) -> None:
    """Raise UsageError if a split is empty. rows: total number; noun: name of the counted items."""
    for name, count in zip(shares, counts, strict=True):
        if not count:
            raise UsageError(
                f"split {name}={shares[name]:g}: gets none of {rows:,} {noun}. Pass a larger share."
            )


class StrataDraw:
    """A random draw of splits, stratified, for samples that come in order.

    A stratum's samples left by rounding go, one each, to the splits with the largest deficits so far. So the
    split of each stratum is exact to within one sample, and that of all samples nearly so.
    """

    def __init__(self, sizes: Sequence[int], shares: Mapping[str, float], seed: int) -> None:
        """sizes: samples of each stratum; shares: name -> share, sum 1.

        Raises UsageError if a split would be empty.
        """
        share = np.array(list(shares.values()))
        self._starts = np.cumsum([0, *sizes])
        self._owners = np.empty(int(self._starts[-1]), np.min_scalar_type(len(share)))
        self._next = self._starts[:-1].copy()
        owed, total = np.zeros(len(share)), np.zeros(len(share), np.int64)
        # Visit strata in random order: the order decides the splits of very small strata.
        numbers = randomness.permute(np.arange(len(sizes)), len(sizes), randomness.key(seed, "split"))
        for number in numbers.tolist():
            size = sizes[number]
            counts = np.floor(share * size + 1e-9).astype(np.int64)
            owed += share * size - counts
            most = np.argsort(-owed, kind="stable")[: size - int(counts.sum())]
            counts[most] += 1
            owed[most] -= 1
            total += counts
            self._draw(number, size, np.cumsum(counts), randomness.key(seed, "split", number))
        check_filled(shares, total.tolist(), len(self._owners), "samples")

    def _draw(self, number: int, size: int, stops: Ints, key: int) -> None:
        owners = self._owners[self._starts[number] : self._starts[number + 1]]
        for start in range(0, size, _AT_ONCE):
            positions = np.arange(start, min(start + _AT_ONCE, size))
            owners[randomness.permute(positions, size, key)] = np.searchsorted(stops, positions, "right")

    def next(self, strata: Ints) -> NDArray[Any]:
        """Return the split numbers of the next samples. strata: stratum of each of them."""
        order = np.argsort(strata, kind="stable")
        sizes = np.bincount(strata, minlength=len(self._next))
        places = np.arange(len(strata)) + np.repeat(self._next - (np.cumsum(sizes) - sizes), sizes)
        owners = np.empty(len(strata), self._owners.dtype)
        owners[order] = self._owners[places]
        self._next += sizes
        return owners


def stratified(strata: Ints | None, count: int, shares: Mapping[str, float], seed: int) -> dict[str, Ints]:
    """Draw splits so that each holds its share of every stratum.

    strata: int [count], class of each sample; None for a single stratum. shares: name -> share, sum 1.
    Returns: name -> samples, int64, rising; every sample is in exactly one split. Raises UsageError if a
    split would be empty.
    """
    codes = np.zeros(count, np.int64) if strata is None else np.unique(strata, return_inverse=True)[1]
    owners = StrataDraw(np.bincount(codes, minlength=1).tolist(), shares, seed).next(codes)
    return {name: np.flatnonzero(owners == k) for k, name in enumerate(shares)}


def group_owners(group: Ints, stratum: Ints, shares: Mapping[str, float], seed: int) -> Ints:
    """Return the split number of each group, so that each split has about its share of every stratum.

    group, stratum: numbers of each sample, from 0. Groups are visited in random order; each goes to the split
    where the sum of (rows - wanted)^2 / wanted, over the strata and over all rows, grows least. Raises
    UsageError if a split would be empty.
    """
    width = int(stratum.max()) + 1
    cells, counts = np.unique(group * width + stratum, return_counts=True)
    groups, kind = np.divmod(cells, width)
    # The last column counts all strata together.
    wanted = np.outer(list(shares.values()), [*np.bincount(stratum, minlength=width), len(stratum)])
    rows = np.zeros(wanted.shape)
    starts = np.searchsorted(groups, np.arange(int(groups[-1]) + 2))
    owners = np.empty(len(starts) - 1, np.int64)
    for number in randomness.permute(
        np.arange(len(owners)), len(owners), randomness.key(seed, "split")
    ).tolist():
        part = slice(starts[number], starts[number + 1])
        at, more = np.append(kind[part], width), np.append(counts[part], counts[part].sum())
        grown = (more * (2 * (rows[:, at] - wanted[:, at]) + more) / wanted[:, at]).sum(axis=1)
        owners[number] = best = int(np.argmin(grown))
        rows[best, at] += more
    check_filled(shares, np.bincount(owners, minlength=len(shares)).tolist(), len(owners), "groups")
    return owners
