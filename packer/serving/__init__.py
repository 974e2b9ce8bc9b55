"""New images processed as the rows of a pack were, for models in service.

    preprocess.py       Preprocess: rows as conversion stores them, batches as loading augments them
    given_images.py     a path, bytes, a Pillow image or an array, as input of conversion

Start with preprocess.py. Imports: augment, codecs, convert, format, inputs, load, orders, packs, pixels,
read.
"""
