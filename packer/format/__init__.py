"""The file as bytes: its specification, containers, checksums and blocks, without images and torch.

    header.py            specification of the format, its constants, Header / Field / Extent and their JSON
    header_forms.py      forms of the header's JSON values: types and ranges
    fields.py            Field and Extent; masks beside images
    own_size.py          pixel format of ragged fields whose rows are pictures that keep their size
    table_record.py      form of the header's record of a table
    checksums.py         hashes of blocks and byte ranges; the trailer, 128 bytes that seal a pack
    hdf5_container.py    the pack being written as one HDF5 file
    npy_container.py     the pack being written as a directory of .npy files
    part_files.py        PartFiles: the files of a pack under way, into which any process writes blocks
    block_files.py       temporary files of blocks whose stored size is unknown in advance
    frontier.py          file with the number of rows of an unfinished pack that can be read
    block_spans.py       byte ranges of elements and of blocks
    file_systems.py      detection of file systems whose data come from another machine
    file_io.py           complete reads and writes, disk space, page cache, atomic renames, flushing
    write_errors.py      errors of failed writes: a full disk, a folder that is gone
    plan_differences.py  differences between two plans or records, in words
    safe_folders.py      folders that are this user's alone, without links

Start with header.py. Imports: codecs.
"""
