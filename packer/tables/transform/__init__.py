"""The transform of a table's columns into fields, in memory: planned, fitted, applied. NumPy alone, and no files.

    column_types.py      the table of types of columns and of notations; a column
    cell_values.py       texts as booleans, dates, times, amounts of money and percentages
    records.py           rows in raw form, between reading and mapping
    table_transform.py   the transform of a table, planned or fitted, the rules for cells, and its record in the header
    column_plan.py       a user's choices; from them a plan: roles and types of columns
    column_sums.py       statistics of columns
    fitting.py           a plan fitted on rows
    row_mapper.py        records in, fields out
    table_summary.py     a line a column, as packer info shows it

Start with table_transform.py. Imports: format.
"""
