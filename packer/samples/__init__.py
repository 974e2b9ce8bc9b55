"""Samples from Python: arrays, files of arrays, datasets and generators become packs; never imports torch.

    pack_dataset.py    pack_dataset: what was given, checked, planned, run, reported
    pack_builder.py    create, PackBuilder: samples appended one by one, staged in raw form until it is known how many there are
    staged_samples.py  samples staged as records, then the rows of a pack
    packing.py         the options of both, and the task of writing a pack of samples
    array_sources.py   arrays and files of arrays: which of them are fields, under which names
    columns.py         all values of a field, in memory or in a file; rows made of columns
    dataset_rows.py    rows from a map-style dataset, on parallel workers
    sample_layout.py   a sample's values by the names of their fields
    field_plan.py      fields as declared, or as samples show them; a value as a row
    values.py          arrays, tensors, Pillow images, numbers, text

Start with pack_dataset.py. Imports: convert, format, orders, pixels, progress, randomness, read.
"""
