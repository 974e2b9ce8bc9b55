"""A contact sheet of one batch, as the network will see it; read sheet.py first.

    sheet.py       preview(): rows, augmented or as stored, on one picture
    rows.py        one batch of a pack: images, labels, masks, boxes, points
    augmented.py   the same after a pipeline of augmentations; the only file here that imports torch
    captions.py    labels as words
    grid.py        how large images are shown, and where
    drawing.py     images, masks, boxes, points and words, with Pillow

The room is not called ``preview``, as a module ``packer.preview`` would stand in the way of the function.
"""
