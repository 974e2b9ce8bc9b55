"""The file: a pack on disk, written, sealed, opened, verified; without images and without torch.

    header.py           the format as a document, its constants, Header / Field / Extent and their JSON: bounded, finite, not deep
    own_size.py         what a field says of rows that are pictures of sizes of their own
    table_record.py     the form of the header's record of a table
    checksums.py        the hashes, of blocks and of byte ranges; the trailer, 128 bytes that seal a pack
    pack_writer.py      PackWriter: blocks of rows in, a sealed pack under its final name out
    hdf5_container.py   the pack being written as one HDF5 file
    npy_container.py    the pack being written as a directory of .npy files
    block_files.py      blocks whose stored size is not known beforehand, a file each
    working_folder.py   a pack's name and room for it, checked before any work; the locked folder in which it is made, with its journal
    description.py      a pack in words
    pack.py             Pack: header, seal and extents; what is read of it
    shards.py           a directory of packs: its index, with their headers; these as one
    pack_opening.py     open_pack: a file, a directory, shards or a URL in, a Pack out
    joined_pack.py      several packs as one, in memory: what has to be alike in them
    joined_fields.py    packs whose rows have the fields of all, in memory
    remote_file.py      a pack in a store by ranged reads, without the rows
    remote_pack.py      such a pack opened by its URL; its rows, in the files of a cache, or passed through memory
    stretches.py        where its stretches lie, runs of blocks; each fetched and compared with its checksums
    stretch_cache.py    the folder of such a pack in a cache, which keeps stretches; how much the cache may hold
    stretch_window.py   stretches that are on their way, or are kept nowhere, in memory
    unit_states.py      the file of the states of units that come while a pack is read: rows, or stretches
    unsealed_hdf5.py    a file without its trailer: HDF5 is asked, in a process of its own
    hdf5_inspection.py  what HDF5 says there
    edited_pack.py      packs that were edited in place: opened as they are, sealed again
    hdf5_arrays.py      datasets of HDF5 files that are no packs
    row_keys.py         rows by their keys: hashes of these, in memory or in a file
    block_spans.py      where the bytes of runs of elements and of blocks lie
    verify.py           verify_pack: every byte against its checksum
    block_hashing.py    the checksums of all blocks computed from the files; offsets and labels looked at meanwhile
    file_systems.py     which files' data come from another machine
    file_io.py          whole reads and writes at an offset, space reserved, the page cache, swapping and flushing names

Start with header.py. Imports: codecs, orders, progress, remote.
"""
