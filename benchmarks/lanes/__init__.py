"""The lanes of ``benchmarks/loaders.py``. Read ``lane.py`` first; peers' lanes do not import packer.

lane.py        definitions of a store and a lane; the source of the rows
photos.py      the photographs, and the pack that all stores are written from
limits.py      rates that no loader can exceed
ours.py        packer
plain.py       a folder of JPEGs, h5py, NumPy
peers.py       TensorDict, Hugging Face datasets, grain, WebDataset, MosaicML streaming, LitData, FFCV
lance_tables.py, spdl_pipelines.py      Lance and SPDL
registry.py    the names of all of them

content.py     checks that every row occurs once, with its own label
process.py     processor time and memory of a process and its children
serve.py       the process that runs a lane
client.py      its client: starts lanes, interleaves rounds
report.py      the results, and the table
origin.py      commit, versions and machine of figures
"""
