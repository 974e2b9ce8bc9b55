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
from collections.abc import Callable, Sequence

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
_OFFSET = re.compile(
    r"([^ T]+[ T][\d:]*\d)((?<=:\d\d:\d\d)\.\d{1,28})? ?(Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)", re.ASCII
)
_OFFSET_LINES = re.compile(r"(?:[\d/-]{10}[T ][\d:]{5,8}[+-]\d\d:\d\d\n)+", re.ASCII)
"""The usual form, in which all texts are found at once, in a third of the time."""


def _moments(dates: Sequence[str], clock: str = "", before: str | None = None) -> Reader:
    """Return the reader of cells that hold a date, a clock time, or both.

    dates: patterns of dates, () for none; before: prefix with which NumPy reads all cells of the usual form
    at once, in a quarter of the time; None: not possible.
    """
    parted = ("[T ]" if before is not None else "[ T]+") if dates and clock else ""
    matches = [re.compile(date + parted + clock, re.ASCII).fullmatch for date in dates or ("",)]
    usual = r"(?!0000)\d{4}([-/])\d\d\1\d\d" if dates else ""
    usual += parted + (r"\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?" if clock else "")
    lines = re.compile(rf"(?:{usual}{'Z?' if parted else ''}\n)+", re.ASCII)

    def moment(text: str) -> float | None:
        match = next(filter(None, (fullmatch(text) for fullmatch in matches)), None)
        days = 0 if match is None or not dates else _days(match)
        if match is None or days is None or not clock:
            return None if match is None else days
        hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"] or 0)
        if half := match.groupdict().get("half"):
            hour = hour % 12 + (12 if half in "pP" else 0) if 1 <= hour <= 12 else 24
        if hour > 23 or minute > 59 or second > 59:
            return None
        seconds = days * DAY + hour * 3600 + minute * 60 + second
        return seconds + _micros(match["fraction"] or "") / 1e6

    one_by_one = by_cell(lambda *marks: moment, _SPACES if before is not None else _SPACES + "\u00a0")

    def read(texts: Sequence[str], decimal: str, thousands: str) -> Values:
        text = "\n".join([*texts, ""]) if before is not None else ""
        if not lines.fullmatch(text):
            return one_by_one(texts, decimal, thousands)
        plain = text.replace("/", "-").replace("Z", "").split("\n")[:-1]
        try:
            cells = np.array([f"{before}{cell}" for cell in plain] if before else plain, "M8[us]")
        except ValueError:  # no such day or hour
            return one_by_one(texts, decimal, thousands)
        if len(cells) != len(texts):  # a cell contains a line end
            return one_by_one(texts, decimal, thousands)
        seconds, micros = np.divmod(cells.view(np.int64), 10**6)
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


def timestamps_offset(texts: Sequence[str], decimal: str, thousands: str) -> Values:
    """Read timestamps that all end in a zone or an offset (a Reader)."""
    if _OFFSET_LINES.fullmatch("\n".join([*texts, ""])):
        parts = [(text[:-6], "", text[-6:]) for text in texts]
    else:
        matches = [_OFFSET.fullmatch(text.strip(_SPACES)) for text in texts]
        parts = [(match[1], match[2] or "", match[3]) if match else ("", "", "") for match in matches]
    values, valid = timestamps([stamp for stamp, _, _ in parts], decimal, thousands)
    offsets = {zone: _offset(zone) for zone in {zone for _, _, zone in parts}}
    values = values - np.array([offsets[zone] for _, _, zone in parts], np.float64)
    if any(fraction for _, fraction, _ in parts):
        values += np.array([_micros(fraction[1:]) for _, fraction, _ in parts], np.float64) / 1e6
    return values, valid & ~np.isnan(values)


def _offset(zone: str) -> float:
    """Return the seconds of a zone east of Greenwich, NaN if there is no such zone."""
    if zone[:1] not in ("+", "-"):
        return 0.0 if zone else np.nan
    hours, minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or 0)
    seconds = hours * 3600 + minutes * 60
    return (-seconds if zone[0] == "-" else seconds) if hours < 24 and minutes < 60 else np.nan


def _micros(fraction: str) -> int:
    """Return the millionths that the digits of a fraction mean; digits after the sixth are cut off."""
    return int(fraction[:6].ljust(6, "0"))


def _days(match: re.Match[str]) -> int | None:
    """Return the days from 1970-01-01 to a date, None if the date does not exist."""
    year = int(match["year"])
    if len(match["year"]) == 2:
        year += 1900 if year >= 69 else 2000
    month = match["month"]
    if not month.isdecimal():  # Oct, Sept and October
        month = next((k for k, name in enumerate(_MONTHS, 1) if name.startswith(month.lower())), 0)
    try:
        return datetime.date(year, int(month), int(match["day"])).toordinal() - _EPOCH
    except ValueError:
        return None


booleans: Reader = by_cell(lambda *marks: lambda text: _BOOLEANS.get(text.lower()), _SPACES)
amounts: Reader = by_cell(_currency_reader)
percentages: Reader = by_cell(_percent_reader)
dates: Reader = _moments((_ISO_DATE,), before="")
dates_named, dates_ymd = _moments((_DAY_NAME_FIRST, _MONTH_NAME_FIRST)), _moments((_DIGITS_DATE,))
dates_mdy, dates_dmy = _moments((_MONTH_FIRST,)), _moments((_DAY_FIRST, _SHORT_NAME))
times: Reader = _moments((), _CLOCK, before="1970-01-01T")
times_12h: Reader = _moments((), _CLOCK + _HALF)
timestamps: Reader = _moments((_ISO_DATE,), _CLOCK + "(?:Z| ?UTC| ?GMT)?", before="")
timestamps_mdy, timestamps_dmy = (
    _certain(_moments((day,), f"{_CLOCK}(?:{_HALF})?")) for day in (_MONTH_FIRST, _DAY_FIRST)
)
