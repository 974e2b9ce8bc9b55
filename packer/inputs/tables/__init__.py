"""Tables, read from files: text, Parquet and Arrow. Read ``source.py`` first: it says what every reader promises.

    opening.py       by the suffixes of names; files.py, compression.py: globs, streams of text
    text.py          TextTable: pieces that end where records do; dialect.py, infer.py, doubts.py: what is found out from the beginning
    parse.py         text to records: _parse.c, or plain.py where that was not compiled; form.py, powers.py
    arrow.py         ArrowTable

Imports ``packer.tables`` and, of images, only the way in which files are told apart.
"""
