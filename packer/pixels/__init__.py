"""Encoded images to pixels of a row's size, the same on every machine.

    decode_resize.py       DecodeResize: decode, crop, resize, turn upright
    row_placement.py       the place of a picture in its row; of its boxes, points and masks
    resampling.py          resizing, in integers; of soft maps and deep images in floats
    row_size.py            RowSize: one size for all rows, or a rule for the size of each
    image_decoder.py       bytes to 8-bit RGB, grey or RGBA, not turned or resized
    image_files.py         formats, limits, sizes and orientations of image files
    quiet_stderr.py        stderr without the messages of libraries in C
    image_pages.py         pages and frames of a file beyond the first
    color_profiles.py      ICC profiles, and pictures converted to sRGB
    exact_values.py        unchanged values: 16 bits per channel, any number of bands, masks
    coordinate_units.py    boxes and keypoints in pixels, or relative to the image's sides
    stored_size.py         sizes and points before and after the EXIF orientation turns a picture

Start with decode_resize.py. Imports: codecs.
"""
