"""The file: a pack on disk, written, sealed, opened, verified; without images and without torch.

    header.py           the format as a document, its constants, Header / Field / Extent and their JSON
    table_record.py     the form of the header's record of a table
    trailer.py          the 128 bytes that seal a pack
    shards.py           a directory of packs: its index, their headers as one
    json_text.py        JSON from strangers: bounded, finite, not deep
    checksums.py        the hashes, of blocks and of byte ranges
    pack_writer.py      PackWriter: blocks of rows in, a sealed pack under its final name out
    hdf5_container.py   the pack being written as one HDF5 file
    npy_container.py    the pack being written as a directory of .npy files
    block_files.py      blocks whose stored size is not known beforehand, a file each
    working_folder.py   the folder beside the output in which a pack is made, locked, with its journal
    output_path.py      the name a pack is to get, and room for it: checked before any work; a failed write as a sentence
    pack.py             open_pack: a sealed pack in, header and extents out
    unsealed_hdf5.py    a file without its trailer: HDF5 is asked, in a process of its own
    hdf5_inspection.py  what HDF5 says there
    block_spans.py      where the bytes of runs of elements and of blocks lie
    verify.py           verify_pack: every byte against its checksum
    block_hashing.py    the checksums of all blocks computed from the files
    value_checks.py     offsets and labels looked at meanwhile
    file_io.py          whole reads and writes at an offset, space reserved, swapping and flushing names

Start with header.py. Imports: codecs, progress.
"""
