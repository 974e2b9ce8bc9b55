"""Checks of a listing: what is probably not meant as it is understood, before anything is written.

    examine.py        the list of all checks; runs them
    folder_checks.py  folders that are no classes: parts of samples or datasets, splits, copies
    class_checks.py   classes that are confusing, empty, or missing in the training split
    label_checks.py   labels from a file: several in a cell, unlike the folders, numbers
    mask_checks.py    masks in the folder of their images
    partner_names.py  names of files, compared between folders
    frame_evidence.py what the pixels of partners have in common
    sidecar_checks.py files beside the images that are probably labels, and are not read
    mask_value_checks.py  values of masks that are no numbers of classes
    picture_checks.py a sample of headers: sizes, bits, color profiles, pages
    coordinate_checks.py  images without boxes or turned by EXIF, points outside, boxes of other sizes, sides

Each check is a function of the listing that yields findings; it judges structure, not names.
Start with examine.py. Imports: inputs, pixels.
"""
