"""Encodings of rows that are not stored raw: bytes to arrays and back.

    block_codecs.py  compressed blocks of rows: the codec protocol, gzip, and the table of names
    blosc2.py        Blosc2 frames: differences of neighbouring pixels, packed by Zstandard
    jpeg.py          rows stored as JPEG bytes: encode, decode into the caller's memory; EXIF orientation
    jpeg_parts.py    parts of JPEG files: the tiles that a crop needs, between restart markers
    png.py           rows stored as PNG files without filters: masks that differ in size
    zstd.py          Zstandard frames

Start with block_codecs.py. Imports: nothing.
"""

NAMES = ("gzip", "zstd", "blosc2")
"""Names of the block codecs, importable without NumPy."""

MOST_RATIO = {"gzip": 1032, "zstd": 1 << 15, "blosc2": 12_288}
"""Codec -> most bytes that a stored byte can stand for.

gzip: 258 bytes for 2 bits. zstd: a block of 128 KiB in 4 bytes. blosc2: a part of 96 KiB in 8 bytes.
"""
MOST_JPEG_PIXELS = 1024
"""Most pixels that a byte of a Huffman-coded JPEG file can stand for: 64 for a bit are 512."""
