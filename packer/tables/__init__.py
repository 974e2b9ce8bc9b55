"""Tables: read, parsed, staged, fitted, mapped, written into packs; appended; new rows mapped as a pack's were.

    table_options.py     options of convert_table as one value
    table_conversion.py  convert_table, append_table: options checked, planned, run, reported
    table_run.py         from a checked conversion to its pack: staged, fitted, mapped, written
    staging.py           rows in raw form, in the input's order, in a file beside the output
    table_splits.py      the split of each row by its columns: a split's name, a group, the label
    table_order.py       which row of the input stands in which row of the pack; splits; staged rows in that order
    measuring.py         statistics of the staged rows; notes on numbers beyond the dtype
    table_packs.py       rows of packs that were made of tables
    frames.py            apply: rows of data frames mapped as a pack's were
    reading/             files of tables, as records
    transform/           the transform of columns into fields; NumPy alone, and no files

Start with table_conversion.py. Imports: convert, format, randomness, remote.
"""

from packer.tables.frames import apply

__all__ = ["apply"]
