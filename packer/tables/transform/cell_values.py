"""Values of texts: booleans, dates, times, timestamps, and notations of numbers; markers of missing values.

    boolean    true, false, yes, no, in any case
    date       YYYY-MM-DD, YYYY/MM/DD or YYYY.MM.DD, also without leading zeros: 2018-1-2
    time       HH:MM[:SS[.fraction]], 8:30
    timestamp  a date, T or a space, a time, and optionally Z, UTC or GMT

Years are 0001 to 9999, hours 00 to 23; leap seconds are not valid. The first six digits of a fraction count,
the others are cut off. Spaces and tabs around a cell are ignored.

Notations, chosen by a column's type; those marked * are also inferred, as no other reads their cells:

    type                cells                                      read as    value
    currency            $1,234.50  -$5  ($5.00)  €3  3 €  12.50    number     the amount; $ € £ ¥ ₹ on either side
    percent             12%  12.5 %  -3%                           number     a hundredth: 0.12 for 12%
    date-name *         28-Oct-2018  28 October 2018  Oct 28, 2018 date       English names of months
    date-ymd            20181028                                   date       YYYYMMDD
    date-mdy            01/31/2013  1-31-2013  1.31.13             date       month first
    date-dmy            31/01/2013  31-1-2013  31.01.13  31-Jan-13 date       day first
    time-12h *          8:30 PM  8:30:15pm                         time       with AM or PM
    timestamp-offset *  2018-10-28T08:30:00+02:00                  timestamp  Z, UTC, GMT, +HH:MM, +HHMM or +HH
    timestamp-mdy       01/31/2013 17:30  1/31/2013 5:30:00 PM     timestamp  month first, UTC
    timestamp-dmy       31.01.2013 17:30  31/1/2013 5:30 pm        timestamp  day first, UTC

Years of two digits follow strptime: 69 to 99 are 1969 to 1999, 00 to 68 are 2000 to 2068. Numbers are the
doubles nearest to the text. Amounts may have thousands separators: the file's, or if none is given, a comma
(a point, if the decimal point is a comma).
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

NA_TEXTS = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>"),
    *("N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
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
_START = datetime.datetime(1970, 1, 1)
_EPOCH = _START.toordinal()


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

    def read(text: str) -> float | None:
        bracketed = text.startswith("(") and text.endswith(")")  # accountants' minus
        if bracketed:
            text = text[1:-1].strip()
        match = next(filter(None, (pattern.fullmatch(text) for pattern in patterns)), None)
        if match is None or (bracketed and match[1]):
            return None
        value = float(match[2].replace(mark, "").replace(decimal, "."))
        return -value if bracketed or match[1] == "-" else value

    return read


def _percent_reader(decimal: str, thousands: str) -> Callable[[str], float | None]:
    point = re.escape(decimal)
    number = re.compile(rf"([+-]?(?:\d+(?:{point}\d*)?|{point}\d+)) ?%", re.ASCII)

    def read(text: str) -> float | None:
        match = number.fullmatch(text)
        return float(match[1].replace(decimal, ".") + "e-2") if match else None

    return read


_ISO_DATE = r"(?P<year>(?!0000)\d{4})([-/.])(?P<month>\d\d?)\2(?P<day>\d\d?)"
_DIGITS_DATE = r"(?P<year>(?!0000)\d{4})(?P<month>\d\d)(?P<day>\d\d)"
_MONTH_FIRST = r"(?P<month>\d{1,2})([/.-])(?P<day>\d{1,2})\2(?P<year>\d{4}|\d{2})"
_DAY_FIRST = r"(?P<day>\d{1,2})([/.-])(?P<month>\d{1,2})\2(?P<year>\d{4}|\d{2})"
_DAY_NAME_FIRST = r"(?P<day>\d{1,2})([ /.-]?)(?P<month>[A-Za-z]{3,9})\2(?P<year>(?!0000)\d{4})"
_MONTH_NAME_FIRST = r"(?P<month>[A-Za-z]{3,9})\.?[ -](?P<day>\d{1,2})(?:, ?|[ -])(?P<year>(?!0000)\d{4})"
_SHORT_NAME = _DAY_NAME_FIRST.replace(r"(?!0000)\d{4}", r"\d{4}|\d{2}")
_MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september", "october"),
    *("november", "december"),
)
_CLOCK = r"(?P<hour>\d\d?):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.(?P<fraction>\d{1,28}))?)?"
_HALF = r" ?(?P<half>[AaPp])\.?[Mm]\.?"
_TWELVE = re.compile(r"\s(?:0?[1-9]|1[0-2]):[\d:.]+ ?([AaPp]\.?[Mm])?")
_OFFSET = r"[+-]\d\d(?::?\d\d)?"
_ZONE = rf" ?(?P<zone>Z|UTC|GMT|{_OFFSET})"
_OFFSET_ENDS = re.compile(rf"({_OFFSET})\n", re.ASCII)


def _moments(dates: Sequence[str], clock: str = "", before: str | None = None, zone: str = "") -> Reader:
    """Return the reader of cells that hold a date, a clock time, or both.

    dates: patterns of dates, () for none; before: prefix with which NumPy reads all cells of the usual form
    at once, in a quarter of the time; None: not possible; zone: pattern of the zone or offset that ends each
    cell, "" for none.
    """
    parted = ("[T ]" if before is not None else "[ T]+") if dates and clock else ""
    matches = [re.compile(date + parted + clock + zone, re.ASCII).fullmatch for date in dates or ("",)]
    usual = r"(?!0000)\d{4}([-/])\d\d\1\d\d" if dates else ""
    usual += parted + (r"\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?" if clock else "")
    lines = re.compile(rf"(?:{usual}{_OFFSET if zone else 'Z?' if parted else ''}\n)+", re.ASCII)

    def moment(text: str) -> float | None:
        match = next(filter(None, (fullmatch(text) for fullmatch in matches)), None)
        try:
            return None if match is None else _value(match.groupdict())
        except ValueError:  # no such day, hour or offset
            return None

    one_by_one = by_cell(lambda *marks: moment, _SPACES if before is not None else _SPACES + "\u00a0")

    def read(texts: Sequence[str], decimal: str, thousands: str) -> Values:
        text = "\n".join([*texts, ""]) if before is not None else ""
        if not lines.fullmatch(text) or text.count("\n") != len(texts):  # a cell may contain a line end
            return one_by_one(texts, decimal, thousands)
        text = text.replace("/", "-").replace("Z", "")
        *cells, _ = _OFFSET_ENDS.split(text) if zone else text.split("\n")
        cells, zones = (cells[::2], cells[1::2]) if zone else (cells, [])
        try:
            moments = np.array([f"{before}{cell}" for cell in cells] if before else cells, "M8[us]")
            offsets = {zone: _offset(zone) for zone in {*zones}}
        except ValueError:  # no such day, hour or offset
            return one_by_one(texts, decimal, thousands)
        seconds, micros = np.divmod(moments.view(np.int64), 10**6)
        if zone:
            seconds -= np.array([offsets[zone] for zone in zones])
        values = seconds + micros / 1e6 if clock else seconds / DAY
        return values, np.ones(len(values), np.bool_)

    return read


def _certain(reader: Reader) -> Reader:
    """Return a reader of times for which 5:30 is not valid beside 5:30 PM."""

    def read(texts: Sequence[str], decimal: str, thousands: str) -> Values:
        values, valid = reader(texts, decimal, thousands)
        clocks = [_TWELVE.search(text) for text in texts]
        if any(match and match[1] for match in clocks):
            valid &= np.array([match is None or bool(match[1]) for match in clocks])
            values[~valid] = np.nan
        return values, valid

    return read


def _value(cell: Mapping[str, Any]) -> float:
    """Return days for a date, else seconds. cell: parts by their names in the patterns. Raises ValueError.

    Digits of a fraction after the sixth are cut off.
    """
    days = 0
    if year := cell.get("year"):
        years = int(year) + (0 if len(year) > 2 else 1900 if int(year) >= 69 else 2000)
        month = cell["month"]
        if not month.isdecimal():  # Oct, Sept and October
            month = next((str(k) for k, name in enumerate(_MONTHS, 1) if name.startswith(month.lower())), "0")
        days = datetime.date(years, int(month), int(cell["day"])).toordinal() - _EPOCH
    if "hour" not in cell:
        return days
    hour = int(cell["hour"])
    if half := cell.get("half"):
        hour = hour % 12 + (12 if half in "pP" else 0) if 1 <= hour <= 12 else 24
    clock = datetime.time(hour, int(cell["minute"]), int(cell["second"] or 0))
    seconds = days * DAY + hour * 3600 + clock.minute * 60 + clock.second - _offset(cell.get("zone") or "")
    return seconds + int((cell["fraction"] or "")[:6].ljust(6, "0")) / 1e6


def _offset(zone: str) -> int:
    """Return the seconds of a zone east of Greenwich. Raises ValueError if there is no such zone."""
    if zone[:1] not in ("+", "-"):
        return 0
    at = datetime.time(int(zone[1:3]), int(zone[3:].lstrip(":") or 0))
    return (at.hour * 3600 + at.minute * 60) * (-1 if zone[0] == "-" else 1)


def moment_text(kind: str, value: float) -> str:
    """Return a raw date, time or timestamp as text. Raises OverflowError beyond the year 9999."""
    span = datetime.timedelta(**{"days" if kind == "date" else "seconds": value})
    return str(span if kind == "time" else _START + span)[: 10 if kind == "date" else None]


booleans: Reader = by_cell(lambda *marks: lambda text: _BOOLEANS.get(text.lower()), _SPACES)
amounts: Reader = by_cell(_currency_reader)
percentages: Reader = by_cell(_percent_reader)
dates: Reader = _moments((_ISO_DATE,), before="")
dates_named, dates_ymd = _moments((_DAY_NAME_FIRST, _MONTH_NAME_FIRST)), _moments((_DIGITS_DATE,))
dates_mdy, dates_dmy = _moments((_MONTH_FIRST,)), _moments((_DAY_FIRST, _SHORT_NAME))
times: Reader = _moments((), _CLOCK, before="1970-01-01T")
times_12h: Reader = _moments((), _CLOCK + _HALF)
timestamps: Reader = _moments((_ISO_DATE,), _CLOCK + "(?:Z| ?UTC| ?GMT)?", before="")
timestamps_offset: Reader = _moments((_ISO_DATE,), _CLOCK, before="", zone=_ZONE)
timestamps_mdy, timestamps_dmy = (
    _certain(_moments((day,), f"{_CLOCK}(?:{_HALF})?")) for day in (_MONTH_FIRST, _DAY_FIRST)
)
