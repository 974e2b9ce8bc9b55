"""Encoded image -> pixels of one size, the same on every machine.

    decode_resize.py       DecodeResize: decode, crop, resize, turn upright
    image_decoder.py       bytes -> 8-bit RGB, grey or RGBA (from CMYK, palettes, 16 bits), not turned or resized; a file's size
    plain_png.py           the plainest PNG files, through OpenCV
    image_placement.py     which part of a picture goes where; where boxes, points and masks go with it
    resampling.py          the antialiased resize: the filter's weights, and its loops
    channel_statistics.py  exact per-channel mean and standard deviation
    quiet_stderr.py        keeps what libpng, libtiff and Pillow print from the terminal

Start with decode_resize.py. Imports: codecs.
"""
