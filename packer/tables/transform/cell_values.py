"""Values of texts: booleans, dates, times, timestamps, and notations of numbers; markers of missing values.

    boolean    true, false, yes, no, in any case
    date       YYYY-MM-DD, YYYY/MM/DD or YYYY.MM.DD, also without leading zeros: 2018-1-2
    time       HH:MM[:SS[.fraction]], 8:30
    timestamp  a date, T or a space, a time, and optionally a zone: Z, +HH:MM, +HHMM or +HH

Years are 0001 to 9999, hours 00 to 23; leap seconds are not valid. The first six digits of a fraction count,
the others are cut off. Spaces and tabs around a cell are ignored.

Notations, chosen by a column's type:

    type            cells                                      read as    value
    currency        $1,234.50  -$5  ($5.00)  €3  3 €  12.50    number     the amount; $ € £ ¥ ₹ on either side
    percent         12%  12.5 %  -3%                           number     a hundredth: 0.12 for 12%
    date-mdy        01/31/2013  1-31-2013  1.31.13             date       month first
    date-dmy        31/01/2013  31-1-2013  31.01.13            date       day first
    timestamp-mdy   01/31/2013 17:30  1/31/2013 5:30:00 PM     timestamp  month first, UTC
    timestamp-dmy   31.01.2013 17:30  31/1/2013 5:30 pm        timestamp  day first, UTC

Years of two digits follow strptime: 69 to 99 are 1969 to 1999, 00 to 68 are 2000 to 2068. Numbers are the
doubles nearest to the text. Amounts may have thousands separators: the file's, or if none is given, a comma
(a point, if the decimal point is a comma).
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
_SPACES = " \t"
DAY = 86_400  # seconds


Values = tuple["NDArray[np.float64]", "NDArray[np.bool_]"]
"""[N] raw values, NaN for invalid texts; bool [N], True for valid texts."""
Reader = Callable[[Sequence[str], str, str], Values]
"""Reads N present cells of a column. Further arguments: decimal point and thousands separator of numbers."""


def by_cell(reader: Callable[[str, str], Callable[[str], float | None]], spaces: str = " \t\u00a0") -> Reader:
    """Return a column reader that reads cell by cell. reader: returns the cell reader for the marks."""

    def read(texts: Sequence[str], decimal: str, thousands: str) -> Values:
        read_cell = reader(decimal, thousands)
        cells = [read_cell(text.strip(spaces)) for text in texts]
        values = np.array([np.nan if value is None else value for value in cells], np.float64)
        valid = np.isfinite(values)
        values[~valid] = np.nan
        return values, valid

    return read


SYMBOLS = "$€£¥₹"
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
    bracketed = text.startswith("(") and text.endswith(")")  # accountants' minus
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


_ISO_DATE = r"(?P<year>(?!0000)\d{4})([-/.])(?P<month>\d\d?)\2(?P<day>\d\d?)"
_MONTH_FIRST = r"(?P<month>\d{1,2})([/.-])(?P<day>\d{1,2})\2(?P<year>\d{4}|\d{2})"
_DAY_FIRST = r"(?P<day>\d{1,2})([/.-])(?P<month>\d{1,2})\2(?P<year>\d{4}|\d{2})"
_ISO_CLOCK = r"(?P<hour>\d\d?):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.(?P<fraction>\d{1,28}))?)?(?P<half>)"
_ISO_ZONE = r"(?P<zone>Z|[+-]\d\d(?::?\d\d)?)?"
_CLOCK = (
    r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.(?P<fraction>\d{1,28}))?)?"
    r"(?: ?(?P<half>[AaPp])[Mm])?(?P<zone>)"
)


def _moments(date: str, clock: str = "", parted: str = "", before: str | None = None) -> Reader:
    """Return the reader of cells that hold a date, a clock time, or both.

    parted: pattern between them; before: prefix with which NumPy reads all cells of the usual form at once,
    in a quarter of the time; None: not possible.
    """
    fullmatch = re.compile(date + parted + clock, re.ASCII).fullmatch
    usual = r"(?!0000)\d{4}([-/])\d\d\1\d\d" if date else ""
    usual += r"[T ]" if date and clock else ""
    usual += r"\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?" if clock else ""
    lines = re.compile(rf"(?:{usual}{'(?:Z)?' if date and clock else ''}\n)+", re.ASCII)
    zoned = re.compile(rf"(?:{usual}[+-](?:[01]\d|2[0-3]):[0-5]\d\n)+", re.ASCII)

    def moment(text: str) -> float | None:
        match = fullmatch(text)
        if match is None:
            return None
        days = _days(match) if date else 0
        if not clock or days is None:
            return days
        hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"] or 0)
        if match["half"]:
            hour = hour % 12 + (12 if match["half"] in "pP" else 0) if 1 <= hour <= 12 else 24
        if hour > 23 or minute > 59 or second > 59:
            return None
        seconds = days * DAY + hour * 3600 + minute * 60 + second
        if date and (zone := match["zone"]) and zone != "Z":
            hours, minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or 0)
            if hours > 23 or minutes > 59:
                return None
            seconds -= (hours * 3600 + minutes * 60) * (-1 if zone[0] == "-" else 1)
        return seconds + int((match["fraction"] or "")[:6].ljust(6, "0")) / 1e6

    one_by_one = by_cell(lambda *marks: moment, _SPACES if before is not None else _SPACES + "\u00a0")

    def read(texts: Sequence[str], decimal: str, thousands: str) -> Values:
        text = "\n".join([*texts, ""]) if before is not None else ""
        plain = text.replace("/", "-").replace("Z", "").split("\n")[:-1]
        offsets = np.zeros(1, np.int64)
        if not lines.fullmatch(text):
            if not (date and clock and zoned.fullmatch(text)):
                return one_by_one(texts, decimal, thousands)
            zones = {
                zone: int(zone[:3]) * 60 + int(zone[0] + zone[4:]) for zone in {cell[-6:] for cell in plain}
            }
            offsets = np.array([zones[cell[-6:]] * 60 for cell in plain])
            plain = [cell[:-6] for cell in plain]
        try:
            cells = np.array([before + cell for cell in plain] if before else plain, "M8[us]")
        except ValueError:  # no such day or hour
            return one_by_one(texts, decimal, thousands)
        if len(cells) != len(texts):  # a cell contains a line end
            return one_by_one(texts, decimal, thousands)
        seconds, micros = np.divmod(cells.view(np.int64), 10**6)
        values = (seconds - offsets) + micros / 1e6 if clock else seconds / DAY
        return values, np.ones(len(values), np.bool_)

    return read


def _days(match: re.Match[str]) -> int | None:
    """Return the days from 1970-01-01 to a date, None if the date does not exist."""
    year = int(match["year"])
    if len(match["year"]) == 2:
        year += 1900 if year >= 69 else 2000
    try:
        return datetime.date(year, int(match["month"]), int(match["day"])).toordinal() - _EPOCH
    except ValueError:
        return None


booleans: Reader = by_cell(lambda *marks: lambda text: _BOOLEANS.get(text.lower()), _SPACES)
amounts: Reader = by_cell(_currency_reader)
percentages: Reader = by_cell(_percent_reader)
dates: Reader = _moments(_ISO_DATE, before="")
times: Reader = _moments("", _ISO_CLOCK, before="1970-01-01T")
timestamps: Reader = _moments(_ISO_DATE, _ISO_CLOCK + _ISO_ZONE, "[T ]", before="")
dates_mdy, dates_dmy = _moments(_MONTH_FIRST), _moments(_DAY_FIRST)
timestamps_mdy, timestamps_dmy = (_moments(day, _CLOCK, "[ T]+") for day in (_MONTH_FIRST, _DAY_FIRST))
