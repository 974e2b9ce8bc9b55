"""Table files as records: text, Parquet and Arrow.

    table_opening.py        open_table: a reader for files, by the suffixes of their names
    table_source.py         the interface of readers
    text_stream.py          files as UTF-8, decompressed
    text_table.py           TextTable: pieces of text that end where records end
    dialect.py              delimiter, header and column names, detected from the beginning of a file
    table_header.py         names of columns: which lines hold them, and which cells have none
    remedies.py             remedies for files that options do not explain, tried on a sample
    type_inference.py       column types, inferred from the first rows, and notes on doubtful ones
    record_parser.py        text to records, by the compiled loop, or by Python without it
    arrow_table.py          ArrowTable: Parquet and Arrow files, by row groups and record batches
    arrow_values.py         Arrow values as raw values
    arrow_frames.py         data frames as records, through Arrow

Start with table_opening.py. Imports: format, tables.transform.
"""
