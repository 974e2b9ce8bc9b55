"""A pack beside the images it was made from, and both beside what the machine can do. Read ``raw_vs_packed.py`` first.

    raw_vs_packed.py   bench (root): every way to get batches, in interleaved rounds
    raw_folder.py      the images themselves as a torch Dataset, decoded whenever they are asked for
    h5py_items.py      the pack as most people would read it: h5py, item by item
    dataloader.py      how fast torch's DataLoader delivers either, and with how many workers
    limits.py          the fastest possible: memcpy from memory, large reads from the disk
    cache.py           emptying the page cache of some files, and seeing whether that worked
    same.py            proof that the images and the pack hold the same pixels and labels
    report.py          BenchReport: medians, ratios, conditions, as a table and as JSON

The one room that imports both halves. Prints nothing: progress goes to a callback.
"""
