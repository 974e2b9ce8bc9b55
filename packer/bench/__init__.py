"""Benchmarks that compare a pack with the images or table it came from, and both with the machine's limits.

    bench.py             bench(): measures every way to get batches, in interleaved rounds
    image_baseline.py    images: checks that the pack holds their pixels; decodes them on every access
    table_baseline.py    tables: checks that the pack comes from these files; batches of tensors in memory
    lanes.py             lanes (ways to get batches) and their rounds; packer's loader, torch's DataLoader
    hardware_limits.py   the limits (memcpy, decoding alone, large disk reads), the page cache, the machine
    diagnosis.py         derives from the figures what limits training, and what would help
    bench_report.py      medians, ratios and conditions, as a table, as JSON and as a picture

Start with bench.py. Imports: augment, codecs, format, inputs, load, orders, packs, pixels, progress, read,
serving, tables.reading.
"""
