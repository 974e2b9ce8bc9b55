"""A pack beside the images or the table it was made from, and both beside what the machine can do. Read ``raw_vs_packed.py`` first.

    raw_vs_packed.py    bench (root) of images: every way to get batches, in interleaved rounds
    table_vs_packed.py  bench (root) of tables
    raw_folder.py       the images themselves as a torch Dataset, decoded whenever they are asked for
    h5py_items.py       the pack as most people would read it: h5py, item by item
    dataloader.py       how fast torch's DataLoader delivers rows of either, and with how many workers
    table_lanes.py      other ways to load a table: whole batches of tensors in memory
    table_parsing.py    what there is without a pack: pandas parses the table
    packed.py           our loader, in each order
    limits.py           the fastest possible: memcpy from memory, large reads from the disk
    cache.py            emptying the page cache of some files, and seeing whether that worked
    same.py             proof that the images and the pack hold the same pixels and labels
    table_same.py       proof that the table, the tensors and the pack hold the same rows
    rounds.py           the rounds
    conditions.py       machine and versions
    report.py           what was found: medians, ratios, conditions, as a table and as JSON

The one room that imports both halves. Prints nothing: progress goes to a callback.
"""
