"""Sequences: rows of a group that lie together in a pack, in order: frames of clips, steps of episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.convert.splits import Split
from packer.declared_types import checked_class
from packer.errors import SourceError, UsageError
from packer.format.checksums import digest
from packer.given_values import option_text, shown
from packer.path_text import on_disk

Ints = NDArray[np.int64]


@checked_class
@dataclass(frozen=True)
class Sequences:
    """Groups of rows in order, for ``sequence=`` of convert_images and convert_table; True: no columns.

    Parameters
    ----------
    group
        A column of the labels' CSV or of the table; its rows with equal values are one sequence. Default: of
        images those in one folder, of a table all rows.
    order
        A column that orders the rows of a group: numbers, dates, or texts, "2" before "10". Default: images
        in a folder or archive by the numbers in their names, others as they are listed.

    Examples
    --------
    >>> from packer import Sequences
    >>> Sequences(group="episode", order="step").columns
    ('episode', 'step')
    """

    group: str | None = None
    order: str | None = None

    @classmethod
    def parse(cls, given: bool | Sequences, shuffle: bool | None) -> Sequences | None:
        """Return the value of `sequence`. Raises UsageError for another, or if the rows are shuffled, too."""
        if not isinstance(given, bool | Sequences):
            raise UsageError(
                f"sequence={shown(given)}: is neither True nor False nor Sequences. Pass one of them."
            )
        if given is False:
            return None
        if shuffle:
            raise UsageError(
                "sequence=True: stores rows in order, and shuffle=True in a random one. Leave out one of"
                " them; Windows are shuffled when they are loaded."
            )
        return cls() if given is True else given

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Sequences | None:
        """Return the Sequences that a pack records among its options."""
        given = record.get("sequence")
        return None if given is None else cls(given.get("group"), given.get("order"))

    def record(self) -> dict[str, Any]:
        """Return the value that a pack records."""
        return {"sequence": {name: value for name, value in vars(self).items() if value is not None}}

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that are read."""
        return tuple(dict.fromkeys(name for name in (self.group, self.order) if name is not None))

    def about_columns(self) -> list[str]:
        """Return the given options that name columns."""
        given = {"Sequences.group": self.group, "Sequences.order": self.order}
        return [option_text(name, column) for name, column in given.items() if column is not None]


def columns_of(split: Split | None, sequence: Sequences | None) -> tuple[str, ...]:
    """Return the columns that define the split and the place of each row."""
    options = [one for one in (split, sequence) if one is not None]
    return tuple(dict.fromkeys(name for one in options for name in one.columns))


class RowSequence(NamedTuple):
    """The sequences of some rows.

    groups: number of each row's group, from 0; names: of the groups; order: all rows, group after group, each
    in its order; places: values of the field SEQUENCE_ROW.
    """

    groups: NDArray[Any]
    names: Sequence[str]
    order: Ints
    places: Ints

    @classmethod
    def sort_rows(
        cls,
        groups: NDArray[Any],
        names: Sequence[str],
        keys: NDArray[Any],
        listed: Ints,
        left_out: Ints,
        name: Callable[[int], str],
    ) -> RowSequence:
        """Return the rows in the order of their keys, [rows].

        listed: the place of each row in the source. left_out: of each row that was left out there, the number
        of rows before it, rising. name: the name of a row for messages. Raises SourceError for two rows of a
        group with equal keys, and if rows were left out of a source in another order, so that their places
        are not known.
        """
        order = np.lexsort((keys, groups))
        owners, sorted_keys = groups[order].astype(np.int64), keys[order]
        same = owners[1:] == owners[:-1]
        for at in np.flatnonzero(same & (sorted_keys[1:] == sorted_keys[:-1]))[:1].tolist():
            raise SourceError(
                f"{name(int(order[at]))} and {name(int(order[at + 1]))}: have the same place in sequence"
                f" {names[owners[at]]!r}; each row has another. Remove one, or order"
                " them by another column."
            )
        rising = np.diff(listed[order]) > 0
        if len(left_out) and (same & rising).any() and (same & ~rising).any():
            at = int(np.argmax(same & ~rising))
            raise SourceError(
                f"{name(int(order[at + 1]))}: is before {name(int(order[at]))} in the source and behind it in"
                f" sequence {names[owners[at]]!r}, so the places of {units.count(len(left_out), 'row')} left"
                " out are not known. Sort the source by this order, or correct what was left out."
            )
        steps = np.where(same, 1 + (np.diff(np.searchsorted(left_out, listed, "right")[order]) != 0), 0)
        steps = np.concatenate([np.zeros(1, np.int64), steps])
        begins = np.flatnonzero(np.concatenate([np.ones(1, np.bool_), ~same]))
        counts = np.diff(np.append(begins, len(order)))
        places = np.cumsum(steps)
        # The name, not the number, of a group: merged packs have other groups of the same numbers.
        digests = [int.from_bytes(digest([on_disk(group)])[:4], "little") >> 1 for group in names]
        found = np.empty(len(order), np.int64)
        found[order] = (
            (np.array(digests, np.int64) << 32)[owners] + places - np.repeat(places[begins], counts)
        )
        return cls(groups, names, order, found)
