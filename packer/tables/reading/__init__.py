"""Tables, read from files as records: text, Parquet and Arrow.

    table_opening.py        open_table: a reader for files, by the suffixes of their names
    table_source.py         the interface of readers
    text_stream.py          files as UTF-8, decompressed
    text_table.py           TextTable: pieces of text that end where records do
    dialect.py              a table's delimiter, header and names, found from the beginning of its file
    type_inference.py       types of columns, found from the first rows, and notes on those that may be misread
    record_parser.py        text to records, by the loop in C where it was compiled, else by Python
    arrow_table.py          ArrowTable: Parquet and Arrow files, by row groups and record batches
    arrow_values.py         Arrow's values as raw ones
    arrow_frames.py         data frames as records, through Arrow

Start with table_opening.py. Imports: format, tables.transform.
"""
