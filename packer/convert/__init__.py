"""From inputs to a pack, from packs to packs, and back to images and tables; never imports torch. Read ``images.py`` first.

Roots
    images.py        convert_images: options checked, planned, run, reported
    rework.py        merge_packs, split_pack, repack, append_images
    repair.py        repair_pack: damaged blocks made anew; repairtable.py: those of tables
    export.py        export_images (exportnames.py, exportrows.py, exportlabels.py)
How a pack is made
    rows.py          what a maker of rows promises; imagerows.py: from images; packrows.py: from packs
    order.py         which sample stands in which row; splits; closing holes
    storing.py       raw, JPEG or compressed, in how many shards; estimate.py: how large that will be
    packing.py       rows -> a whole pack; engine.py: blocks on parallel workers
    resuming.py      what a user is told of interrupted work
    alike.py         a list of classes, a pack to be like; survey.py: a look at a few images before the work begins

Imports ``packer.inputs``, ``packer.pixels``, ``packer.format``, ``packer.codecs``; what reads packs, ``packer.read`` too.
"""
