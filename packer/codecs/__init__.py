"""How rows are encoded where they are not stored raw: bytes in, arrays out, and back.

    jpeg.py          rows stored as JPEG bytes: encode, decode into memory that the caller owns
    orientation.py   EXIF orientation: which way up a picture is
    blocks.py        compressed blocks of rows: what a codec promises, gzip, and the table of names
    zstd.py          Zstandard frames
    blosc2.py        Blosc2 frames: pixels as differences of their neighbours, then Zstandard

Both halves import this folder; it imports ``packer.errors`` alone. Bytes come from files that may be damaged or hostile: a
decoder raises ValueError with a short reason, to which its caller adds the pack and the row, and never writes or allocates
more than ``out`` holds. All of it may be called from many threads at once, and the long parts release the GIL.
"""
