"""Samples from Python (arrays, array files, datasets, generators), converted to packs; never imports torch.

    pack_dataset.py    pack_dataset: arrays, a data set or an iterable as rows, then the pack of them
    pack_builder.py    create, PackBuilder: a pack written sample by sample; rows are staged until the end
    staged_samples.py  staged samples as records, and as rows of a pack
    packing.py         options of pack_dataset and create, and the task of writing a pack of samples
    array_sources.py   arrays and files of arrays: which of them are fields, the fields' names, splits
    array_files.py     arrays in .npy, .npz, HDF5 and MATLAB files
    array_problems.py  what arrays look like; errors for those that hold no samples as numbers
    value_notes.py     notes on values that may be meant otherwise: one-hot labels, labels from 1
    columns.py         SampleRows; all values of a field, in memory or in a file, and rows from them
    dataset_rows.py    rows from a map-style dataset, on parallel workers, or from an iterable
    sample_layout.py   the layout of a sample: its values by field name
    field_plan.py      fields, declared or inferred from samples; conversion of a value to a row
    values.py          values as arrays, text or bytes: arrays, tensors, Pillow images, numbers

Start with pack_dataset.py. Imports: convert, format, inputs, orders, packs, pixels, randomness, read,
writing.
"""
