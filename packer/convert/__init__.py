"""From inputs to a pack, from packs to packs, and back to images; never imports torch.

    image_conversion.py  convert_images: options checked, planned, run, reported
    repacking.py         merge_packs, split_pack, repack, append_images
    repair.py            repair_pack: damaged blocks made anew
    sealing.py           seal_pack: a pack that was edited in place
    export.py            export_images; names of the files
    export_files.py      rows of a pack as image files; labels.csv and classes.txt
    row_maker.py         RowMaker: what makes the rows of a pack, a few at a time
    pixel_sums.py        the sums for mean and standard deviation
    image_options.py     the options that decide what is packed, as the pack records them
    image_rows.py        rows from image files; a look at a few of them
    pack_rows.py         rows from packs
    whole_pictures.py    rows that are whole pictures, of sizes of their own
    splits.py            which samples each split has: by shares, places, a column, whole groups
    sample_order.py      which sample stands in which row; closing holes
    staged_rows.py       rows whose number is not known yet: put down, then read in the order of the pack
    row_storage.py       raw, JPEG or compressed, in how many shards, and how large that is
    reference_pack.py    a list of classes, or a pack to be like
    conversion_run.py    the frame of every conversion: what is there already, progress, interruptions, the report
    conversion_task.py   a planned pack; options and result of a run
    pack_run.py          a planned pack written: one part, or shards, or a part k/N of these
    shard_appending.py   further shards of a pack: made beside it, moved into it, listed
    duplicate_rows.py    rows that a pack has already
    engines.py           who makes the shards: this machine, an executor or a cluster of Ray's, a part k/N each; packs for stores
    block_workers.py     blocks of rows on parallel workers
    row_filling.py       rows one by one, in any order, of a pack that is read meanwhile

Start with image_conversion.py. Imports: codecs, format, inputs, orders, pixels, progress, randomness, read,
remote, tables, tables.reading.
"""
