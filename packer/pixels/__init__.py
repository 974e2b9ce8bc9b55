"""Encoded image -> pixels of one size, the same on every machine. Read ``maker.py`` first.

    maker.py         PixelMaker: decode, crop, resize, turn upright
    decode.py        bytes -> pixels as they are stored (png.py: plain PNGs)
    peek.py          size and depth of an image file, from its header
    resize.py        where a picture goes, and its antialiased resize
    triangle.py      the filter's weights; kernels.py: the loops, in C (native/resample.c) where it was compiled
    geometry.py      where boxes, points and masks go with it
    statistics.py    exact per-channel mean and standard deviation
    hush.py          no words of libpng and libtiff on stderr
    scratch.py       buffers that are used again

Imports ``packer.codecs`` and ``packer.errors``.
"""
