"""A pack beside the images or the table it was made from, and both beside the limits of the machine.

    image_bench.py       bench() of images: every way to get batches, in interleaved rounds
    table_bench.py       bench() of tables
    lanes.py             the frame: lanes (ways to get batches), the rounds in which they are measured, packer's own
    training_loop.py     a user's script, run and measured: its loop, its step alone, what its rows take
    diagnosis.py         what limits, what a model needs, and what would help, from the figures
    bench_report.py      medians, ratios and conditions, as a table and as JSON
    bench_drawing.py     the report as a picture
    conditions.py        machine and versions
    hardware_limits.py   the limits: memcpy from memory, decoding alone, large reads from the disk
    dataloader_rate.py   the rate of torch's DataLoader, and its best number of workers
    image_lanes.py       baselines: images decoded whenever they are asked for; the pack through h5py, item by item
    table_lanes.py       baselines for tables: batches of tensors in memory; pandas parses the table
    page_cache_drop.py   emptying the page cache of some files
    image_comparison.py  proof that the images and the pack hold the same pixels and labels
    table_comparison.py  proof that the table, the tensors and the pack hold the same rows

Start with image_bench.py. Imports: augment, codecs, convert, format, inputs, load, orders, pixels, read, tables.reading, tables.transform.
"""
