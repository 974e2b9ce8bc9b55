"""From a folder, list or archive to a pack; never imports torch. Read ``images.py`` first.

    images.py        convert_images (root): options checked, planned, run, sealed, reported
    sources.py       what is to be packed: keys, labels, bytes (with archives.py, labels.py)
    pixels.py        encoded bytes -> pixels of one size (decode.py -> resize.py -> orientation.py)
    engine.py        blocks of rows on parallel workers, holes left by skipped inputs, progress
    statistics.py    exact per-channel mean and standard deviation

Imports ``packer.format``, ``packer.randomness`` and ``packer.errors``.
"""
