"""The file: what a pack is, on disk, and nothing else. Read ``header.py`` first: it holds the format's prose.

    header.py      the format as a document, its constants, Header / Field / Extent and their JSON
    json_text.py   JSON from strangers: bounded, finite, not deep
    trailer.py     the 128 bytes that seal a pack
    checksums.py   the hashes, block by block
    hdf5.py        one file: HDF5 as a container whose rows lie in flat extents
    npy.py         one directory: a plain .npy a field
    writer.py      PackWriter: rows in, a sealed pack under its final name out
    output.py      the final name: checked, locked, given by one rename
    pack.py        open_pack: a sealed pack in, header and extents out

Imports only ``packer.errors``; knows neither images nor torch.
"""
