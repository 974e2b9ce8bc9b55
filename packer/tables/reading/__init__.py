"""Tables, read from files: text, Parquet and Arrow.

    table_source.py    the interface of readers
    opening.py         by the suffixes of names; text_stream.py, compression.py: globs, streams of text
    text_table.py      TextTable: pieces that end where records do; dialect.py, type_inference.py, doubts.py: what the beginning tells
    record_parser.py   text to records: native/csv.c, or record_parser_plain.py where that was not compiled; text_form.py, powers_of_ten.py
    arrow_table.py     ArrowTable; arrow_files.py, arrow_values.py

Start with table_source.py. Imports: inputs, tables.transform.
"""
