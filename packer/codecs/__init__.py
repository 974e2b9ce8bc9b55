"""How rows are encoded where they are not stored raw: bytes in, arrays out, and back.

    block_codecs.py  compressed blocks of rows: what a codec promises, gzip, and the table of names
    blosc2.py        Blosc2 frames: pixels as differences of their neighbours, then Zstandard
    jpeg.py          rows stored as JPEG bytes: encode, decode into memory that the caller owns; which way up a picture is
    jpeg_parts.py    parts of JPEG files: the tiles that a crop needs, between restart markers
    png.py           rows stored as PNG files without filters: masks that differ in size
    zstd.py          Zstandard frames

Start with block_codecs.py. Imports: nothing.
"""

NAMES = ("gzip", "zstd", "blosc2")
"""Of the codecs of blocks, for those who offer them without loading NumPy."""
