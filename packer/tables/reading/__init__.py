"""Table files as records: text, Parquet and Arrow.

    table_opening.py        open_table: a reader for files, by their content, or for a data frame
    table_source.py         the interface of readers
    partitioned_table.py    columns in names of folders, beside those of the files
    text_stream.py          files as UTF-8, unpacked
    table_archives.py       the only file of a zip or tar, the only sheet of a workbook
    text_table.py           TextTable: pieces of text that end where records end
    dialect.py              delimiter, header and column names, detected from the beginning of a file
    table_header.py         names of columns: which lines hold them, and which cells have none
    remedies.py             remedies for files that options do not explain, tried on a sample
    type_inference.py       column types, inferred from the first rows, and notes on doubtful ones
    record_parser.py        text to records, by the compiled loop, or by Python without it
    arrow_table.py          ArrowTable: record batches of files or frames as a table
    arrow_batches.py        Parquet, Arrow and JSON lines files as record batches
    arrow_values.py         Arrow values as raw values
    arrow_frames.py         FrameTable: a data frame as a table, through Arrow
    row_records.py          rows given as dicts as records, without Arrow

Start with table_opening.py. Imports: format, tables.transform.
"""
