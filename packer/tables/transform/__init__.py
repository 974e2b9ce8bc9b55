"""The transform of a table's columns into fields, in memory: planned, fitted, applied. NumPy alone, and no files.

    column_types.py      the table of types of columns and of notations; columns
    cell_values.py       texts as booleans, dates, times, amounts of money and percentages
    records.py           rows in raw form, between reading and mapping
    column_plan.py       roles and types of columns, and the rules for their cells
    column_sums.py       statistics of columns
    table_transform.py   the transform of a table and of each column, and its record in the header
    row_mapper.py        records in, fields out
    table_summary.py     a line a column, as packer info shows it

Start with table_transform.py. Imports: format.
"""
