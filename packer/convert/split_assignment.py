"""assign: the split of each row, drawn by shares or in groups, given by position, or named by a column.

Also the notes on the classes of the splits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer import randomness, units
from packer.convert.row_sequence import RowSequence
from packer.convert.splits import EXAMPLE, Split, refuse_alike
from packer.errors import SourceError, UsageError
from packer.format.header import TRAIN

Ints = NDArray[np.int64]
MOST_STRATA = 1000
"""Most different whole numbers, without class names, of which each split gets its share."""
_MOST_SPLITS = 100  # most splits that a column can name
_AT_ONCE = 1 << 20  # rows drawn, counted or dealt at once
_SHOWN, _LETTERS = 3, 40  # most classes and splits named in a note; letters of each


class Codes(NamedTuple):
    """A column as numbers. numbers: number of each row's value, from 0; names: text of each value."""

    numbers: NDArray[Any]
    names: Sequence[str]

    @classmethod
    def from_values(cls, values: ArrayLike) -> Codes:
        """Return the codes of values, numbered in their order."""
        distinct, numbers = np.unique(np.asarray(values), return_inverse=True)
        return cls(numbers.astype(np.min_scalar_type(len(distinct))), list(map(str, distinct.tolist())))


class RowSource:
    """Base of rows that splits are drawn from: images, samples, rows of packs, staged rows of tables.

    subject: name of the source in messages; count: number of rows; kept: the rows that will be packed, others
    are refused already; classed: labels are classes with names.
    """

    subject: str = ""
    count: int = 0
    kept: NDArray[np.bool_] | slice = slice(None)
    classed: bool = False

    @property
    def sequence(self) -> RowSequence | None:
        """The sequences that splits do not cut; None if rows are not in sequences."""
        return None

    def labels(self) -> NDArray[np.int64] | None:
        """Return the label of each row; None without labels."""
        return None

    def codes(self, column: str | None) -> Codes | None:
        """Return the values of a column; of None those of the label of which splits get equal shares."""
        labels = None if column is not None else self.labels()
        codes = None if labels is None else Codes.from_values(labels)
        return codes if codes is None or self.classed or len(codes.names) <= MOST_STRATA else None


class Owners(NamedTuple):
    """The split of each row.

    names: splits in the order of the pack; ("",) without splits. numbers: split number of each row;
    len(names) for rows that are left out. notes: for the user.
    """

    names: tuple[str, ...]
    numbers: NDArray[Any]
    notes: tuple[str, ...] = ()

    @classmethod
    def from_splits(cls, splits: Mapping[str, Ints], count: int) -> Owners:
        """Return the owners for known splits, name -> rows; {}: no splits. count: number of rows."""
        names = tuple(splits) or ("",)
        numbers = np.full(count, len(splits), np.min_scalar_type(len(names)))
        for number, rows in enumerate(splits.values()):
            numbers[rows] = number
        return cls(names, numbers)

    def only(self, kept: NDArray[np.bool_]) -> Owners:
        """Return these owners with all other rows left out."""
        return self._replace(numbers=np.where(kept, self.numbers, len(self.names)))


def assign(split: Split | None, rows: RowSource, seed: int) -> Owners:
    """Return the split of each row.

    Rows at fixed positions go to their splits; the seed draws the others, so that each split has its share of
    every value of the label. Raises UsageError if a split would be empty, there are too few rows, or some
    would be in no split; SourceError for a column that names no splits, or divides groups.
    """
    if split is None:
        return Owners.from_splits({}, rows.count)
    if split.column is not None:
        return _splits_of_column(split, split.column, rows)
    places, shares = split.portions(rows.count)
    sequence, groups = rows.sequence, None
    if split.group is not None:
        groups, called = _groups(split.group, rows), f"Groups of {split.group}"
    elif sequence is not None:
        groups, called = Codes(sequence.groups, sequence.names), "Sequences"
        _check_divisible(split, groups, rows.subject)
    numbered = {name: number for number, name in enumerate(split.parts)}
    numbers = np.full(rows.count, len(numbered), np.min_scalar_type(len(numbered)))
    for name, place in places.items():
        at = slice(place.start, place.stop)
        numbers[at if sequence is None else sequence.order[at]] = numbered[name]
    if not shares:
        return Owners(tuple(numbered), numbers)
    free = numbers == len(numbered) if places else slice(None)
    label = rows.codes(None) if len(shares) > 1 else None
    strata = np.zeros(rows.count, np.uint8) if label is None else label.numbers
    notes: tuple[str, ...] = ()
    if groups is None or places:
        drawn = draw_rows(strata[free], shares, seed)
        among = units.count(len(drawn), "row")
    else:
        owners = draw_groups(groups.numbers, strata, shares, seed)
        drawn, among = owners[groups.numbers], units.count(len(owners), "group")
        notes = (_note_on_groups(called, shares, owners, drawn),)
    for number, (name, share) in enumerate(shares.items()):
        if not (drawn == number).any():
            raise UsageError(f"split {name}={share:g}: gets none of {among}. Pass a larger share.")
    numbers[free] = np.array([numbered[name] for name in shares], numbers.dtype)[drawn]
    return Owners(tuple(numbered), numbers, notes)


def _splits_of_column(split: Split, column: str, rows: RowSource) -> Owners:
    """Return the splits that a column names; rows that are not kept go to any split."""
    cells = _column_codes(column, rows)
    held = np.zeros(len(cells.names), np.bool_)
    held[cells.numbers[rows.kept]] = True
    names = sorted(name for name, kept in zip(cells.names, held.tolist(), strict=True) if kept) or [""]
    if len(names) > _MOST_SPLITS:
        raise SourceError(
            f"{rows.subject}: column {column} has {len(names):,} different values, as"
            f" {', '.join(names[:3])}; at most {_MOST_SPLITS} splits are allowed. Pass another column, or for"
            f" groups split={EXAMPLE!r} and split=Split(group={column!r})."
        )
    refuse_alike(SourceError, f"{rows.subject}: column {column}", "split", names)
    place = {name: number for number, name in enumerate(names)}
    numbers = np.array([place.get(name, 0) for name in cells.names], np.uint8)[cells.numbers]
    if split.group is not None:
        groups = _groups(split.group, rows)
        kept = groups.numbers[rows.kept].astype(np.int64)
        pairs = np.unique(kept * len(names) + numbers[rows.kept])
        group, owner = np.divmod(pairs, len(names))
        for at in np.flatnonzero(group[1:] == group[:-1])[:1].tolist():
            raise SourceError(
                f"{rows.subject}: {split.group} {groups.names[group[at]]} is in the splits"
                f" {names[owner[at]]} and {names[owner[at + 1]]} of column {column}; a group has to be in one"
                " split. Correct the column, or leave out split=Split(group=)."
            )
    return Owners(tuple(names), numbers)


def _groups(column: str, rows: RowSource) -> Codes:
    """Return the groups that a column names. Raises SourceError for two that look alike."""
    groups = _column_codes(column, rows)
    refuse_alike(SourceError, f"{rows.subject}: column {column}", "group", groups.names)
    return groups


def _column_codes(column: str, rows: RowSource) -> Codes:
    codes = rows.codes(column)
    assert codes is not None  # who checks the options knows the columns
    return codes


def _check_divisible(split: Split, groups: Codes, subject: str) -> None:
    """Raise UsageError for parts of a split that would cut sequences, or draw the rows of a single one."""
    if len(groups.names) > 1 and split.counted:
        raise UsageError(
            f"split {split}: sequences are divided by shares, not by numbers of rows or positions. Pass"
            f" shares, as {EXAMPLE}."
        )
    if len(groups.names) == 1 and sum(isinstance(part, float | int) for part in split.parts.values()) > 0:
        raise UsageError(
            f"split {split}: {subject} is a single sequence, which shares would cut at random; positions are"
            " allowed. Pass split='train=rest,val=last:1000'."
        )


def _note_on_groups(called: str, names: Iterable[str], owners: Ints, drawn: Ints) -> str:
    """Return a note on the groups and rows of each split. owners, drawn: split of each group, of each row."""
    counts = ", ".join(
        f"{name} {np.count_nonzero(owners == k):,} ({units.count(int(np.count_nonzero(drawn == k)), 'row')})"
        for k, name in enumerate(names)
    )
    return f"{called} in each split: {counts}."


def notes_on_classes(owners: Owners, label: Codes, what: str) -> list[str]:
    """Return notes on classes that train lacks or one split has alone, and on splits of a single class.

    what: what the values of the label are, "classes".
    """
    names, width = owners.names, len(label.names)
    if len(names) < 2 or width < 2:
        return []
    counts = np.zeros((len(names) + 1) * width, np.int64)  # the last split: rows that are left out
    for at in range(0, len(label.numbers), _AT_ONCE):
        cells = owners.numbers[at : at + _AT_ONCE].astype(np.int64) * width
        counts += np.bincount(cells + label.numbers[at : at + _AT_ONCE], minlength=len(counts))
    held = counts.reshape(-1, width)[:-1]
    has = held > 0
    wrong = has.sum(axis=0) == 1
    if TRAIN in names:
        wrong |= ~has[names.index(TRAIN)]
    texts = [f"{name[:_LETTERS]!r}" for name in label.names]
    lone = [
        f"{texts[code]} ({', '.join(f'{names[k]} {held[k, code]:,}' for k in np.flatnonzero(has[:, code]))})"
        for code in np.flatnonzero(wrong)
    ]
    single = [f"{names[k]} ({texts[held[k].argmax()]})" for k in np.flatnonzero(has.sum(axis=1) == 1)]
    each = "in one split only, or not in train; splits and rows of each"
    told = {
        f"{len(lone):,} of {width:,} {what} are {each}": lone,
        f"{len(single):,} of {units.count(len(names), 'split')} have one of the {width:,} {what}": single,
    }
    return [
        f"{note}: {', '.join(found[:_SHOWN])}{' and others' if len(found) > _SHOWN else ''}."
        for note, found in told.items()
        if found
    ]


def draw_rows(strata: NDArray[Any], shares: Mapping[str, float], seed: int) -> NDArray[Any]:
    """Draw the split number of each row, so that each split holds its share of every stratum.

    strata: number of each row's stratum, from 0; shares: name -> share, sum 1.
    A stratum's rows left by rounding go, one each, to the splits with the largest deficits so far. So the
    split of each stratum is exact to within one row, and that of all rows nearly so.
    """
    if len(shares) == 1:  # rest beside last:N: nothing is drawn
        return np.zeros(len(strata), np.uint8)
    share = np.array(list(shares.values()))
    sizes = np.zeros(int(strata.max(initial=0)) + 1, np.int64)
    pieces = [slice(at, at + _AT_ONCE) for at in range(0, len(strata), _AT_ONCE)]
    for piece in pieces:
        sizes += np.bincount(strata[piece], minlength=len(sizes))
    present, starts = np.flatnonzero(sizes), np.cumsum(sizes) - sizes
    drawn = np.empty(len(strata), np.min_scalar_type(len(share)))  # stratum by stratum
    owed = np.zeros(len(share))
    # Visit strata in random order: the order decides the splits of very small strata.
    visits = randomness.permute(np.arange(len(present)), max(1, len(present)), randomness.key(seed, "split"))
    for number in visits.tolist():
        start, size = int(starts[present[number]]), int(sizes[present[number]])
        counts = np.floor(share * size + 1e-9).astype(np.int64)
        owed += share * size - counts
        most = np.argsort(-owed, kind="stable")[: size - int(counts.sum())]
        counts[most] += 1
        owed[most] -= 1
        _draw_stratum(drawn[start : start + size], counts, randomness.key(seed, "split", number))
    owners = np.empty_like(drawn)
    for piece in pieces:
        order = np.argsort(strata[piece], kind="stable")
        sizes = np.bincount(strata[piece], minlength=len(starts))
        places = np.arange(len(order)) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
        owners[piece][order] = drawn[places]
        starts += sizes
    return owners


def _draw_stratum(owners: NDArray[Any], counts: Ints, key: int) -> None:
    """Deal the rows of a stratum to splits, at random. counts: rows of each split."""
    stops = np.cumsum(counts)
    for start in range(0, len(owners), _AT_ONCE):
        positions = np.arange(start, min(start + _AT_ONCE, len(owners)))
        owners[randomness.permute(positions, len(owners), key)] = np.searchsorted(stops, positions, "right")


def draw_groups(
    groups: NDArray[Any], strata: NDArray[Any], shares: Mapping[str, float], seed: int
) -> NDArray[Any]:
    """Return the split number of each group, so that each split has about its share of every stratum.

    groups, strata: numbers of each row, from 0. Groups are visited in random order; each goes to the split
    where the sum of (rows - wanted)^2 / wanted, over the strata and over all rows, grows least.
    """
    width = int(strata.max()) + 1
    cells, counts = np.unique(groups.astype(np.int64) * width + strata, return_counts=True)
    held, kind = np.divmod(cells, width)
    # The last column counts all strata together.
    wanted = np.outer(list(shares.values()), [*np.bincount(strata, minlength=width), len(strata)])
    rows = np.zeros(wanted.shape)
    starts = np.searchsorted(held, np.arange(int(held[-1]) + 2))
    owners = np.empty(len(starts) - 1, np.min_scalar_type(len(shares)))
    visits = randomness.permute(np.arange(len(owners)), len(owners), randomness.key(seed, "split"))
    for number in visits.tolist():
        part = slice(starts[number], starts[number + 1])
        at, more = np.append(kind[part], width), np.append(counts[part], counts[part].sum())
        grown = (more * (2 * (rows[:, at] - wanted[:, at]) + more) / wanted[:, at]).sum(axis=1)
        owners[number] = best = int(np.argmin(grown))
        rows[best, at] += more
    return owners
