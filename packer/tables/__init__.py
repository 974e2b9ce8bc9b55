"""Converts tables into packs: read, stage, fit, map, write. Appends to packs; maps new rows the same way.

    table_options.py     options of convert_table as one value
    table_conversion.py  convert_table, append_table: check the options, plan, run, report
    table_run.py         from a checked conversion to its pack: stage, fit, map, write
    staging.py           rows in raw form, in the input's order, in a file beside the output
    staged_columns.py    columns of the staged rows as numbers, for splits; notes on the classes of each split
    suspect_columns.py   notes on features that number the rows, or tell the label
    measuring.py         statistics of the staged rows; notes on numbers beyond the dtype
    frames.py            apply: map rows of data frames, or dicts, like the rows of a pack
    reading/             table files as records
    transform/           the transform of columns into fields; NumPy only, no files

Start with table_conversion.py. Imports: convert, format, packs, randomness, writing.
"""

from packer.tables.frames import apply

__all__ = ["apply"]
