"""Packs as they are opened: read, joined, verified, remote, or still being made; and files of others.

    output_names.py      checks of the output's name, of what it would replace, and of free space
    description.py       description of a pack in text lines
    pack.py              Pack: header, seal and extents; methods that read a pack
    pack_checks.py       checks of a pack that was just opened: its files, extents and .npy headers
    recorded_command.py  the command that converts a pack again
    shards.py            a directory of shards: its index with their headers; the combined header
    pack_opening.py      open_pack: opens a file, a directory, shards or a URL as a Pack
    joined_pack.py       several packs as one, row after row, in memory; what must be alike in them
    joined_fields.py     several packs as one, whose rows have the fields of all, in memory
    own_arrays.py        open_arrays: HDF5, .npy and arrays of others, read in place as a pack
    remote_file.py       files of remote packs: ranged reads of header, seal and checksums
    remote_pack.py       remote packs opened by URL; their rows, cached in files or passed through memory
    stretches.py         places of a remote pack's stretches (runs of blocks); fetching and verifying them
    stretch_cache.py     the folder of a remote pack in a cache, and the cache's size limit
    stretch_window.py    stretches in memory: in transit, or not cached
    unit_states.py       file with the states of stretches that arrive while a pack is read
    filling_pack.py      unfinished packs, read while a process of their own converts them
    unsealed_hdf5.py     a file without its trailer, described by HDF5 in a separate process
    hdf5_inspection.py   the description by HDF5 that this process returns
    hdf5_arrays.py       datasets of foreign HDF5 files
    file_rows.py         numbers of the rows in a table's files, also of several packs
    row_keys.py          index from keys to rows: hashes in memory or in a file
    verify.py            verify_pack: compares every byte with its checksum
    block_hashing.py     recomputed checksums of all blocks; checks of offsets and labels meanwhile

Start with pack_opening.py. Imports: format, orders, progress, remote.
"""
