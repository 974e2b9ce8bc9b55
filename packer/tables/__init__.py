"""Tables, in memory: what columns are, and the mapping that makes fields of them. NumPy alone, and no files.

    columns.py, layout.py   the types of columns, and the raw form of rows between reading and mapping
    values.py, written.py, frames.py    texts and the columns of data frames, as raw values
    roles.py, checks.py     what becomes of each column, and which rows cannot be mapped; rounding.py: which numbers are not held exactly
    sums.py, statistics.py  one pass over the rows
    recipe.py               the mapping; treated.py: of one column, fitting.py: what statistics decide of it
    mapping.py              the mapping, applied to rows
    apply.py, describe.py   the mapping of a pack for a data frame; what `packer info` shows

Read recipe.py first. Of packer, errors and tablerecord.py (the form of the header's record) are imported, nothing else.
"""

from packer.tables.apply import apply

__all__ = ["apply"]
