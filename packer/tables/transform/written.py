"""Cells that are numbers and dates written for people, read: ``$1,234.50``, ``12%``, ``01/31/2013``. Chosen by ``--type``.

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

REASONS = {
    "currency": "is no amount of money ($1,234.50)",
    "percent": "is no percentage (12%)",
    "date-mdy": "is no date (MM/DD/YYYY)",
    "date-dmy": "is no date (DD/MM/YYYY)",
    "timestamp-mdy": "is no timestamp (MM/DD/YYYY HH:MM[:SS])",
    "timestamp-dmy": "is no timestamp (DD/MM/YYYY HH:MM[:SS])",
}
SYMBOLS = "$€£¥₹"
_DATE = r"(\d{1,2})([/.-])(\d{1,2})\2(\d{4}|\d{2})"
_CLOCK = r"[ T]+(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,6})\d*)?)?(?: ?([AaPp])[Mm])?"
_DAY = re.compile(_DATE, re.ASCII)
_MOMENT = re.compile(_DATE + _CLOCK, re.ASCII)
_EPOCH = datetime.date(1970, 1, 1).toordinal()


def convert_written(
    texts: Sequence[str], written: str, decimal: str = ".", thousands: str = ""
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Read the present cells of a column.

    texts: N cells, none of them missing; written: one of REASONS; decimal, thousands: marks of numbers, as in Reading.
    Returns: float64 [N], raw values as in columns.py, and [N] whether the text is such a value; where not, the value is NaN.
    """
    reader = _reader(written, decimal, thousands)
    found = [reader(text.strip(" \t\u00a0")) for text in texts]
    values = np.array([np.nan if value is None else value for value in found], np.float64)
    valid = np.isfinite(values)
    values[~valid] = np.nan
    return values, valid


def _reader(written: str, decimal: str, thousands: str) -> Callable[[str], float | None]:
    kind, _, order = written.partition("-")
    if kind == "date":
        return partial(_date, month_first=order == "mdy")
    if kind == "timestamp":
        return partial(_timestamp, month_first=order == "mdy")
    point = re.escape(decimal)
    if written == "percent":
        number = re.compile(rf"([+-]?(?:\d+(?:{point}\d*)?|{point}\d+)) ?%", re.ASCII)
        return partial(_percent, number=number, decimal=decimal)
    mark = re.escape(thousands or ("." if decimal == "," else ","))
    digits = rf"(?:\d{{1,3}}(?:{mark}\d{{3}})+|\d+)"
    amount = rf"({digits}(?:{point}\d*)?|{point}\d+)"
    sign, symbol = r"([+-]?) ?", rf"[{SYMBOLS}]"
    ways = (
        rf"{sign}(?:{symbol} ?)?{amount}",
        rf"{symbol} ?([+-]){amount}",
        rf"{sign}{amount}[ \u00a0]?{symbol}",
    )
    patterns = [re.compile(way, re.ASCII) for way in ways]
    mark = thousands or ("." if decimal == "," else ",")
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


def _percent(text: str, number: re.Pattern[str], decimal: str) -> float | None:
    match = number.fullmatch(text)
    return float(match[1].replace(decimal, ".") + "e-2") if match else None


def _date(text: str, month_first: bool) -> float | None:
    match = _DAY.fullmatch(text)
    return _days(match, month_first) if match else None


def _timestamp(text: str, month_first: bool) -> float | None:
    match = _MOMENT.fullmatch(text)
    if not match or (days := _days(match, month_first)) is None:
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


def _days(match: re.Match[str], month_first: bool) -> float | None:
    """The days since 1970-01-01 of a date, None if there is no such day."""
    first, second, year = int(match[1]), int(match[3]), int(match[4])
    if len(match[4]) == 2:
        year += 1900 if year >= 69 else 2000
    month, day = (first, second) if month_first else (second, first)
    try:
        return datetime.date(year, month, day).toordinal() - _EPOCH
    except ValueError:
        return None
