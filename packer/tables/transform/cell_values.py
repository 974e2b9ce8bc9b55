"""Values of texts: booleans, dates, times, timestamps; numbers and dates as people write them; the texts that mean "missing".

    boolean    true, false, yes, no, in any case
    date       YYYY-MM-DD or YYYY/MM/DD
    time       HH:MM[:SS[.fraction]]
    timestamp  a date, T or a space, a time, and perhaps a zone: Z, +HH:MM, +HHMM or +HH

Years go from 0001 to 9999, hours from 00 to 23; there are no leap seconds. Of a fraction six digits count, the others are cut off.
Spaces and tabs around a cell are passed over.

Notations that people use, chosen by a column's type:

    type            cells                                                        read as    value
    currency        $1,234.50  -$5  ($5.00)  €3  3 €  12.50                      number     the amount; $ € £ ¥ ₹ before or behind it
    percent         12%  12.5 %  -3%                                             number     a hundredth: 0.12 for 12%
    date-mdy        01/31/2013  1-31-2013  1.31.13                               date       month first
    date-dmy        31/01/2013  31-1-2013  31.01.13                              date       day first
    timestamp-mdy   01/31/2013 17:30  1/31/2013 5:30:00 PM                       timestamp  month first, UTC
    timestamp-dmy   31.01.2013 17:30  31/1/2013 5:30 pm                          timestamp  day first, UTC

Years of two digits are those of strptime: 69 to 99 are 1969 to 1999, 00 to 68 are 2000 to 2068. Numbers are the doubles nearest to
what is written. Amounts may have marks between thousands: those of the file, or without any, a comma (a point, where commas are
decimal points).
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

NA_TEXTS = (
    "",
    "#N/A",
    "#N/A N/A",
    "#NA",
    "-1.#IND",
    "-1.#QNAN",
    "-NaN",
    "-nan",
    "1.#IND",
    "1.#QNAN",
    "<NA>",
    "N/A",
    "NA",
    "NULL",
    "NaN",
    "None",
    "n/a",
    "nan",
    "null",
)
_BOOLEANS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
_LONGEST = 48  # characters; the longest timestamp worth its name has 35
_BLOCK = 4096  # cells at a time: their characters stay in the cache
_SPACES = " \t"
DAY, _HOUR, _MINUTE = 86_400, 3600, 60  # seconds
Characters = NDArray[np.uint8]
"""[_LONGEST, N]: the k-th characters of N texts, 0 behind their ends, 127 for all beyond ASCII."""


Values = tuple["NDArray[np.float64]", "NDArray[np.bool_]"]
"""[N] raw values, NaN for texts that are none; and [N] whether a text is such a value."""
Reader = Callable[[Sequence[str], str, str], Values]
"""Reads N present cells of a column. The others: decimal point and mark between thousands of numbers."""


def by_cell(reader: Callable[[str, str], Callable[[str], float | None]], spaces: str = " \t\u00a0") -> Reader:
    """Return the reader of columns that reads one cell after the other. reader: of the marks, gives that of a cell."""

    def read(texts: Sequence[str], decimal: str, thousands: str) -> Values:
        read_cell = reader(decimal, thousands)
        found = [read_cell(text.strip(spaces)) for text in texts]
        values = np.array([np.nan if value is None else value for value in found], np.float64)
        valid = np.isfinite(values)
        values[~valid] = np.nan
        return values, valid

    return read


def by_characters(reader: Callable[[Characters, NDArray[np.int64]], Values]) -> Reader:
    """Return the reader of columns that reads many cells at once, character by character."""

    def read(texts: Sequence[str], decimal: str, thousands: str) -> Values:
        values, valid = np.empty(len(texts)), np.empty(len(texts), np.bool_)
        for first in range(0, len(texts), _BLOCK):
            part = slice(first, first + _BLOCK)
            values[part], valid[part] = reader(*_characters(texts[part]))
        values[~valid] = np.nan
        return values, valid

    return read


def _characters(texts: Sequence[str]) -> tuple[Characters, NDArray[np.int64]]:
    cells = [text.strip(_SPACES) for text in texts]
    lengths = np.fromiter(map(len, cells), np.int64, len(cells))
    if lengths.max() > _LONGEST:  # cut, as they would make every cell as long; their lengths still tell them
        cells = [cell[:_LONGEST] for cell in cells]
    codes = np.array(cells, f"<U{_LONGEST}").view(np.uint32).reshape(len(cells), _LONGEST)
    return np.ascontiguousarray(np.minimum(codes, 127).astype(np.uint8).T), lengths


@by_characters
def dates(characters: Characters, lengths: NDArray[np.int64]) -> Values:
    """Read dates."""
    days, valid = _days(characters)
    return days.astype(np.float64), valid & (lengths == 10)


@by_characters
def times(characters: Characters, lengths: NDArray[np.int64]) -> Values:
    """Read times of day."""
    seconds, micros, end, valid = _clock(characters, 0)
    return seconds + micros / 1e6, valid & (end == lengths)


@by_characters
def timestamps(characters: Characters, lengths: NDArray[np.int64]) -> Values:
    """Read timestamps."""
    days, dated = _days(characters)
    parted = (characters[10] == ord("T")) | (characters[10] == ord(" "))
    seconds, micros, at, timed = _clock(characters, 11)
    offset, end, zoned = _zone(characters, at)
    values = (days * DAY + seconds - offset) + micros / 1e6
    return values, dated & parted & timed & zoned & (end == lengths)


def _whole(characters: Characters, first: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Read the digits at rows first, first + 1, ... Returns: [N] their number, and whether all are digits."""
    digits = characters[first : first + count] - np.uint8(ord("0"))  # below "0" it wraps to much
    number = np.zeros(characters.shape[1], np.int64)
    for digit in digits:
        number = number * 10 + digit
    return number, np.logical_and.reduce(digits <= 9)


def _days(characters: Characters) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Read the dates at the beginning. Returns: [N] days since 1970-01-01, and whether there is a date."""
    year, valid = _whole(characters, 0, 4)
    month, digits = _whole(characters, 5, 2)
    valid &= digits
    day, digits = _whole(characters, 8, 2)
    valid &= digits
    valid &= ((characters[4] == ord("-")) | (characters[4] == ord("/"))) & (characters[4] == characters[7])
    valid &= (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1)
    months = np.where(valid, (year - 1970) * 12 + month - 1, 0)
    first = _month_begins(months)
    valid &= day <= _month_begins(months + 1) - first
    return first + day - 1, valid


def _month_begins(months: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the days since 1970-01-01 of the first days of months, which are counted from 1970-01."""
    return months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)


def _clock(
    characters: Characters, first: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Read the times of day at row `first`. Returns: [N] seconds, microseconds, the row behind them, whether there is a time."""
    hour, valid = _whole(characters, first, 2)
    minute, digits = _whole(characters, first + 3, 2)
    valid &= digits & (characters[first + 2] == ord(":")) & (hour <= 23) & (minute <= 59)
    fine = characters[first + 5] == ord(":")
    second, digits = _whole(characters, first + 6, 2)
    valid &= ~fine | (digits & (second <= 59))
    second = np.where(fine, second, 0)
    end = np.where(fine, first + 8, first + 5)
    fraction = fine & (characters[first + 8] == ord("."))
    micros = np.zeros_like(second)
    if fraction.any():
        micros, count = _fraction(characters, first + 9)
        micros = np.where(fraction, micros, 0)
        valid &= ~fraction | (count > 0)
        end = np.where(fraction, first + 9 + count, end)
    return hour * _HOUR + minute * _MINUTE + second, micros, end, valid


def _fraction(characters: Characters, first: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Read the digits from row `first` on. Returns: [N] microseconds, and how many digits there are."""
    digits = characters[first:] - np.uint8(ord("0"))
    count = np.logical_and.accumulate(digits <= 9, axis=0).sum(0)
    micros = np.zeros(characters.shape[1], np.int64)
    for place, digit in enumerate(digits[:6]):
        micros = micros * 10 + np.where(count > place, digit, 0)
    return micros, count


def _zone(
    characters: Characters, at: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Read the zones at rows `at`. Returns: [N] seconds to be taken off, the row behind, whether there is a zone or nothing."""
    everywhere = np.arange(len(at))
    first = characters[np.minimum(at, _LONGEST - 1), everywhere]
    zulu, signed = first == ord("Z"), (first == ord("+")) | (first == ord("-"))
    offset, end, valid = np.zeros_like(at), at + zulu, zulu | (first == 0)
    if signed.any():
        rows = np.minimum(at + 1 + np.arange(6)[:, None], _LONGEST - 1)
        zone = characters[rows, everywhere]  # HH:MM, HHMM or HH
        hours, digits = _whole(zone, 0, 2)
        colon = zone[2] == ord(":")
        zone[2:5] = np.where(colon, zone[3:6], zone[2:5])
        minutes, more = _whole(zone, 2, 2)
        bare = (zone[2] == 0) & ~colon
        minutes = np.where(bare, 0, minutes)
        sign = np.where(first == ord("-"), -1, 1)
        offset = np.where(signed, sign * (hours * _HOUR + minutes * _MINUTE), 0)
        end = np.where(signed, at + 3 + colon + np.where(bare, 0, 2), end)
        valid |= signed & digits & (bare | more) & (hours <= 23) & (minutes <= 59)
    return offset, end, valid


SYMBOLS = "$€£¥₹"
_DATE = r"(\d{1,2})([/.-])(\d{1,2})\2(\d{4}|\d{2})"
_CLOCK = r"[ T]+(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,6})\d*)?)?(?: ?([AaPp])[Mm])?"
_WRITTEN_DAY = re.compile(_DATE, re.ASCII)
_MOMENT = re.compile(_DATE + _CLOCK, re.ASCII)
_EPOCH = datetime.date(1970, 1, 1).toordinal()


def _currency_reader(decimal: str, thousands: str) -> Callable[[str], float | None]:
    point, mark = re.escape(decimal), thousands or ("." if decimal == "," else ",")
    digits = rf"(?:\d{{1,3}}(?:{re.escape(mark)}\d{{3}})+|\d+)"
    amount = rf"({digits}(?:{point}\d*)?|{point}\d+)"
    sign, symbol = r"([+-]?) ?", rf"[{SYMBOLS}]"
    ways = (
        rf"{sign}(?:{symbol} ?)?{amount}",
        rf"{symbol} ?([+-]){amount}",
        rf"{sign}{amount}[ \u00a0]?{symbol}",
    )
    patterns = [re.compile(way, re.ASCII) for way in ways]
    return partial(_currency, patterns=patterns, decimal=decimal, thousands=mark)


def _currency(text: str, patterns: Sequence[re.Pattern[str]], decimal: str, thousands: str) -> float | None:
    bracketed = text.startswith("(") and text.endswith(")")  # bookkeepers' minus
    if bracketed:
        text = text[1:-1].strip()
    for pattern in patterns:
        if match := pattern.fullmatch(text):
            if bracketed and match[1]:
                return None
            value = float(match[2].replace(thousands, "").replace(decimal, "."))
            return -value if bracketed or match[1] == "-" else value
    return None


def _percent_reader(decimal: str, thousands: str) -> Callable[[str], float | None]:
    point = re.escape(decimal)
    number = re.compile(rf"([+-]?(?:\d+(?:{point}\d*)?|{point}\d+)) ?%", re.ASCII)

    def read(text: str) -> float | None:
        match = number.fullmatch(text)
        return float(match[1].replace(decimal, ".") + "e-2") if match else None

    return read


def _written_date(text: str, month_first: bool) -> float | None:
    match = _WRITTEN_DAY.fullmatch(text)
    return _written_days(match, month_first) if match else None


def _written_timestamp(text: str, month_first: bool) -> float | None:
    match = _MOMENT.fullmatch(text)
    if not match or (days := _written_days(match, month_first)) is None:
        return None
    hour, minute, second = int(match[5]), int(match[6]), int(match[7] or 0)
    if match[9]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if match[9] in "pP" else 0)
    if hour > 23 or minute > 59 or second > 59:
        return None
    micros = int((match[8] or "").ljust(6, "0"))
    return (days * 86_400 + hour * 3600 + minute * 60 + second) + micros / 1e6


def _written_days(match: re.Match[str], month_first: bool) -> float | None:
    """Return the days since 1970-01-01 of a date, None if there is no such day."""
    first, second, year = int(match[1]), int(match[3]), int(match[4])
    if len(match[4]) == 2:
        year += 1900 if year >= 69 else 2000
    month, day = (first, second) if month_first else (second, first)
    try:
        return datetime.date(year, month, day).toordinal() - _EPOCH
    except ValueError:
        return None


def _by_day(reader: Callable[[str, bool], float | None], month_first: bool) -> Reader:
    return by_cell(lambda *marks: lambda text: reader(text, month_first))


booleans = by_cell(lambda *marks: lambda text: _BOOLEANS.get(text.lower()), _SPACES)
amounts = by_cell(_currency_reader)
percentages = by_cell(_percent_reader)
dates_mdy, dates_dmy = _by_day(_written_date, True), _by_day(_written_date, False)
timestamps_mdy, timestamps_dmy = _by_day(_written_timestamp, True), _by_day(_written_timestamp, False)
