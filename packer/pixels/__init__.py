"""Encoded image -> pixels of the size of a row, the same on every machine.

    decode_resize.py       DecodeResize: decode, crop, resize (antialiased), turn upright; where boxes, points, masks and soft maps go
    row_size.py            RowSize: one size for all rows, or a rule by which each gets its own
    image_decoder.py       bytes -> 8-bit RGB, grey or RGBA (from CMYK, palettes, 16 bits), not turned or resized; a file's size
    exact_values.py        values as they are: 16 bits a channel, any number of bands, masks
    coordinate_units.py    boxes and keypoints in pixels, or as shares of the image's sides

Start with decode_resize.py. Imports: codecs.
"""
