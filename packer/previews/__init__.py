"""Contact sheets of one batch, as the network will see it.

    contact_sheet.py  preview(): rows, augmented or as stored, on one picture
    shown.py          show(): a batch, or the first rows of a pack, as a picture for notebooks
    preview_batch.py  a batch of a pack in memory; captions
    augmented.py      the batch after a pipeline of augmentations; the only file here that imports torch
    drawing.py        the grid of tiles; images, masks, boxes, points and text, with Pillow

Start with contact_sheet.py. Imports: augment, format, load, orders, read.
"""
