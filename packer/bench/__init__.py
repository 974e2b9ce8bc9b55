"""A pack beside the images or the table it was made from, and both beside the limits of the machine.

    image_bench.py       bench() of images: every way to get batches, in interleaved rounds
    table_bench.py       bench() of tables
    lanes.py             lanes (ways to get batches), and the rounds in which they are measured
    bench_report.py      medians, ratios and conditions, as a table and as JSON
    conditions.py        machine and versions; the check of a bench's arguments
    hardware_limits.py   the limits: memcpy from memory, large reads from the disk
    packed_lane.py       packer's loader, in each order
    raw_images.py        baseline: images decoded whenever they are asked for
    h5py_items.py        baseline: the pack through h5py, item by item
    dataloader_rate.py   the rate of torch's DataLoader, and its best number of workers
    table_lanes.py       baselines for tables: batches of tensors in memory
    table_parsing.py     baseline for tables: pandas parses the table
    page_cache_drop.py   emptying the page cache of some files
    image_comparison.py  proof that the images and the pack hold the same pixels and labels
    table_comparison.py  proof that the table, the tensors and the pack hold the same rows

Start with image_bench.py. Imports: augment, format, inputs, load, pixels, tables.reading, tables.transform.
"""
