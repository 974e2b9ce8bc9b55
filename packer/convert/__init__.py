"""Conversion of inputs to packs, of packs to packs, and of packs to image files; never imports torch.

    image_conversion.py  convert_images: plans, then runs and reports
    image_planning.py    plan_conversion: opens the inputs, reads labels and splits, checks them
    repacking.py         merge_packs, split_pack, repack
    image_appending.py   append_images
    sealing.py           seal_pack: checks and writes again what was edited in place
    export.py            export_images; names of the files
    export_files.py      images and masks of a pack as PNG and JPEG files
    export_labels.py     labels, splits, boxes and points of a pack as one CSV
    row_maker.py         RowMaker: base of sources of rows, read a few rows at a time
    pixel_sums.py        sums for mean and standard deviation
    image_options.py     options that decide the content of a pack, as the pack records them
    image_rows.py        rows from image files
    pack_rows.py         rows from packs
    whole_pictures.py    rows that are uncropped images of different sizes
    splits.py            splits as users write them: shares, numbers of rows, positions, columns, groups
    split_assignment.py  assign: the split of each row, of every kind of source
    sample_order.py      the sample of each row; closes the holes of skipped inputs
    some_rows.py         an engine that writes a few rows, of all splits and classes
    staged_rows.py       rows of unknown number: written to temporary files, then read in the pack's order
    row_sequence.py      Sequences: rows of groups that stay together, in order, for windows
    row_storage.py       raw, JPEG or compressed rows; number of shards; estimated size
    reference_pack.py    a list of classes, or a reference pack (like=)
    plan_contents.py     the images of a planned pack by split and class, for a dry run
    conversion_run.py    frame of every conversion: existing output, progress, interruption, report
    conversion_task.py   the plan of a pack; options and report of a run
    pack_run.py          writes a planned pack: a single file, shards, or part k/N of the shards
    recorded_shards.py   finished shards of unfinished work: found, gathered from parts, indexed as a pack
    shard_appending.py   adds shards to a pack: writes them beside it, moves them into it, indexes them
    copied_images.py     images of equal bytes in two splits, or with two labels
    duplicate_keys.py    rows whose keys a pack already has; without keys, its files and parts
    engines.py           shards written by an executor's processes or a Ray cluster; packs for object stores
    block_workers.py     blocks of rows on one pool of parallel workers, of all shards

Start with image_conversion.py. Imports: codecs, format, inputs, inputs.checks, orders, packs, pixels,
progress, randomness, read, remote, writing.
"""
