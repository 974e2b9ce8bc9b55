"""New images, made what the rows of a pack are: what a model in service needs of its training.

    preprocess.py       Preprocess: rows as conversion makes them, and batches as loading augments them; its record for JSON
    given_images.py     a path, bytes, an image of Pillow or an array, as what conversion decodes

Start with preprocess.py. Imports: augment, codecs, convert, format, inputs, load, orders, pixels, read.
"""
