"""From a folder, list, archive or pack to a pack, and back; never imports torch. Read ``images.py`` first.

Roots
    images.py        convert_images: options checked, planned, run, reported
    rework.py        merge_packs, split_pack, repack, append_images
    repair.py        repair_pack: damaged blocks made anew
    export.py        export_images (with exportrows.py, exportlabels.py)
What is to be packed
    sources.py       keys and bytes of images (with archives.py, layout.py)
    targets.py       what a CSV says of them (with labels.py); pairs.py: masks
    order.py         which sample stands in which row; splits; closing holes
How a row is made
    rows.py          what a maker of rows promises; imagerows.py: from images; packrows.py: from packs
    pixels.py        encoded bytes -> pixels of one size (decode.py, png.py -> resize.py -> orientation)
    geometry.py      where boxes, points and masks go when a picture is resized
    triangle.py      the antialiasing filter's weights; kernels.py: the loops, in C where it was compiled
How a pack is made
    storing.py       raw, JPEG or compressed, in how many shards; estimate.py: how large that will be
    packing.py       rows -> a whole pack; engine.py: blocks on parallel workers
    resuming.py      what a user is told of interrupted work
    statistics.py    exact per-channel mean and standard deviation

Imports ``packer.format``, ``packer.codecs``, ``packer.randomness``, ``packer.errors``; what reads packs, ``packer.load`` too.
"""
