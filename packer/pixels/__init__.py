"""Encoded image -> pixels of the size of a row, the same on every machine.

    decode_resize.py       DecodeResize: decode, crop, resize (antialiased), turn upright; where boxes, points and masks go with it
    row_size.py            RowSize: one size for all rows, or a rule by which each gets its own
    image_decoder.py       bytes -> 8-bit RGB, grey or RGBA (from CMYK, palettes, 16 bits), not turned or resized; a file's size
    deep_images.py         DeepPixels: 16 bits a channel, or any number of bands, as they are
    mask_decoder.py        masks and the like: values exactly as they are
    soft_maps.py           mattes, depth and the like: resampled linearly
    coordinate_units.py    boxes and keypoints in pixels, or as shares of the image's sides
    plain_png.py           the plainest PNG files, through OpenCV

Start with decode_resize.py. Imports: codecs.
"""
