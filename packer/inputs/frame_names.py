"""The order of frames by the numbers in their names, or what is wrong with the names."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise

from packer import units
from packer.errors import SourceError
from packer.inputs.file_names import shorten
from packer.natural_order import DATE, NUMBER, SIGNED, natural_key

_SHOWN = 3
_USUAL = 0.9
"""Share of the steps between numbers that are alike; with less, numbers are no count of frames."""
_YEAR_LAST = re.compile(r"(?<![0-9])[0-9]{1,2}([-_.])[0-9]{1,2}\1(?:19|20)[0-9]{2}(?![0-9])")
_LIST = "pass a .txt that lists the frames in their order."


def sort_frames(place: str, keys: Sequence[str], *, listed: bool = False) -> tuple[list[int], int]:
    """Return the order of the frames of one sequence, and the number of gaps in their numbering.

    place: name of the sequence for messages; keys: paths of the frames; listed: the user gave their order,
    which their numbers may not contradict. Raises SourceError for names that give no order, or are those of
    several sequences.
    """
    stems = [os.path.splitext(key)[0] for key in keys]
    forms = Counter(NUMBER.sub("#", os.path.basename(stem)).casefold() for stem in stems)
    year_last = all(map(_YEAR_LAST.search, stems))
    signed = next(filter(SIGNED.search, stems), None)
    if listed and (len(forms) > 1 or year_last or signed):
        return list(range(len(keys))), 0
    if len(forms) > 1:
        shown = ", ".join(f"{shorten(form)} {count:,}" for form, count in forms.most_common(_SHOWN))
        raise SourceError(
            f"{place}: its frames are named in {len(forms):,} ways ({shown}), as those of several sequences,"
            f" copies and other pictures are. Put each sequence into a folder of its own, or {_LIST}"
        )
    if year_last:
        raise SourceError(
            f"{place}: names such as {shorten(keys[0])} hold dates with the year last, which do not sort."
            f" Rename them, as 2024-01-31, or {_LIST}"
        )
    if signed is not None:
        raise SourceError(
            f"{place}: the minus in {shorten(signed)} may be a sign or a dash, so the order is not known."
            f" Rename the frames, or {_LIST}"
        )
    order = list(range(len(keys)))
    if not listed:
        order.sort(key=lambda index: natural_key(stems[index]))
    dated = all(map(DATE.search, stems))
    frames = [_numbers(stems[index], dated) for index in order]
    restarts, steps = list[int](), Counter[Decimal | int]()
    for at, ((head, before), (other, after)) in enumerate(pairwise(frames)):
        if before < after:
            steps[after[-1] - before[-1] if head == other and not dated else 0] += 1
        else:
            restarts.append(at)
    if restarts:
        pair = [shorten(keys[index]) for index in order[restarts[0] : restarts[0] + 2]]
        remedy = "List them by their numbers (sort -V)" if listed else "Put each into a folder of its own"
        raise SourceError(
            f"{place}: its numbers begin again, or repeat, {units.count(len(restarts), 'time')}, such as"
            f" after {pair[0]} in {pair[1]}, as those of several sequences in a folder do. {remedy}, or"
            " pass labels='FILE' with sequence=Sequences(group='sequence')."
        )
    usual = max(steps.values(), default=0)
    return order, steps.total() - usual if usual >= _USUAL * steps.total() else 0


def _numbers(stem: str, dated: bool) -> tuple[list[str], list[Decimal]]:
    """Return the numbers before the one that counts the frames, which tell sequences apart, and the others.

    dated: a date, and what is behind it, counts the frames.
    """
    date, numbers = DATE.search(stem) if dated else None, NUMBER.findall(stem)
    count = len(NUMBER.findall(stem[: date.start()])) if date else len(numbers) - 1
    return numbers[: max(0, count)], [Decimal(text) for text in numbers[max(0, count) :]]
