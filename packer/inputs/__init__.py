"""What is to be packed, and what is known of it. Read ``sources.py`` first.

    sources.py     a folder, list or archive of images: keys, bytes, sizes (archives.py reads archives)
    layout.py      what folders mean: classes, splits
    targets.py     what a CSV says of each image: labels, boxes, keypoints (labels.py: the rules for labels)
    textlines.py   lines of lists and CSV files, whatever they are
    filenames.py   names of files as text, whatever the locale
    pairs.py       masks and the like, found by name

Imports ``packer.pixels``, ``packer.codecs``, ``packer.format`` and ``packer.errors``.
"""
