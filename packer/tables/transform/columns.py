"""What a column of a table can be, and the raw form its cells have between reading and mapping.

=========== ============== ==================================================================== =======================
type        raw dtype      means                                                                missing
=========== ============== ==================================================================== =======================
number      <f8 or <f4     the number; <f4 is the float32 nearest to the double nearest to it   NaN
integer     <i8            the number, exactly                                                  MISSING_INTEGER
boolean     <f4            0 or 1                                                               NaN
date        <f8            days since 1970-01-01                                                NaN
time        <f8            seconds since midnight                                               NaN
timestamp   <f8            seconds since 1970-01-01T00:00:00Z; without a zone: taken as UTC     NaN
category    <i4            number in a list of texts                                            -1
text        TEXT           where its UTF-8 bytes lie in a blob: (at, length)                    length 0
=========== ============== ==================================================================== =======================
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TYPES = ("number", "integer", "boolean", "date", "time", "timestamp", "category", "text")
MISSING_INTEGER = -(2**63)
MISSING_CATEGORY = -1
TEXT = np.dtype([("at", "<i8"), ("length", "<i4")])
WRITTEN = {
    "currency": "number",
    "percent": "number",
    "date-mdy": "date",
    "date-dmy": "date",
    "timestamp-mdy": "timestamp",
    "timestamp-dmy": "timestamp",
}
"""Ways in which people write numbers and dates (see written.py) -> the type of the column that is written so."""
RAW_DTYPES: dict[str, np.dtype[np.generic]] = {
    "number": np.dtype("<f8"),
    "integer": np.dtype("<i8"),
    "boolean": np.dtype("<f4"),
    "date": np.dtype("<f8"),
    "time": np.dtype("<f8"),
    "timestamp": np.dtype("<f8"),
    "category": np.dtype("<i4"),
    "text": TEXT,
}


@dataclass(frozen=True)
class TableColumn:
    """A column of the input. name: unique among them; type: one of TYPES; written: one of WRITTEN, "" for the usual way."""

    name: str
    type: str
    written: str = ""

    @classmethod
    def given(cls, name: str, kind: str) -> TableColumn:
        """A column of a type as users name it: one of TYPES, or of WRITTEN."""
        return cls(name, WRITTEN[kind], kind) if kind in WRITTEN else cls(name, kind)
