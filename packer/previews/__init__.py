"""Contact sheets of one batch, as the network will see it.

    contact_sheet.py  preview(): rows, augmented or as stored, on one picture; show(): a batch, or the first rows of a pack, for notebooks
    preview_batch.py  a batch of a pack, or of a loader, in memory; its images as pictures; captions
    drawing.py        the grid of tiles; images, masks, boxes, points and text, with Pillow

Start with contact_sheet.py. Imports: augment, format, load, orders, read.
"""
