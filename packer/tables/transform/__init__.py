"""What becomes of a table's columns, in memory: plans, statistics, and the mapping that makes fields of them. NumPy alone, and no files.

    columns.py, records.py     the types of columns, and the raw form of rows between reading and mapping
    cell_values.py, written.py, data_frames.py    texts and the columns of data frames, as raw values
    column_plan.py, cell_checks.py     what becomes of each column, and rows that cannot be mapped; rounding.py: numbers not held exactly
    sums.py, column_sums.py    one pass over the rows
    table_transform.py         the mapping; column_transform.py: of one column, fitting.py: what statistics decide of it
    row_mapper.py              the mapping, applied to rows
    apply_transform.py, table_summary.py   the mapping of a pack for a data frame; what `packer info` shows

Start with table_transform.py. Imports: tablerecord.
"""
