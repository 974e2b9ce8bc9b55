"""Contact sheets of a batch, as the network sees it, and of a source before it is packed.

    contact_sheet.py  preview(): rows, augmented or as stored, in a picture file; show(): for notebooks
    preview_batch.py  a batch of a pack or a loader in memory, its images as pictures, their captions
    source_rows.py    a few rows of a source in a temporary pack, made by the convert half
    drawing.py        the grid of tiles; images, masks, boxes, points and text, drawn with Pillow

Start with contact_sheet.py. Imports: augment, convert, format, inputs, load, orders, packs, read, samples.
"""
