"""A pack beside the images or the table it was made from, and both beside the limits of the machine.

    bench.py             bench(): every way to get batches, in interleaved rounds
    image_baseline.py    images: proof that the pack holds their pixels; decoded whenever they are asked for
    table_baseline.py    tables: proof that the pack was made from these files; batches of tensors in memory
    lanes.py             lanes (ways to get batches), the rounds in which they are measured, packer's own loader, torch's DataLoader
    hardware_limits.py   the limits: memcpy from memory, decoding alone, large reads from the disk; the page cache; machine and versions
    training_loop.py     a user's script, run and measured: its loop, its step alone, what its rows take
    diagnosis.py         what limits, what a model needs, and what would help, from the figures
    bench_report.py      medians, ratios and conditions, as a table, as JSON and as a picture

Start with bench.py. Imports: augment, codecs, format, inputs, load, orders, pixels, read, serving,
tables.reading.
"""
