"""What ``benchmarks/loaders.py`` runs. Read ``lane.py`` first; lanes of peers do not import packer.

lane.py        what a store and a lane are, and where the rows come from
photos.py      the photographs, and the pack that all stores are written from
limits.py      what no loader can beat
ours.py        packer
plain.py       a folder of JPEGs, h5py, NumPy
peers.py       TensorDict, Hugging Face datasets, grain, WebDataset, MosaicML streaming, LitData, FFCV
lance_tables.py, spdl_pipelines.py      Lance and SPDL
registry.py    the names of all of them

content.py     is every row there, once, with its own label?
process.py     processor time and memory of a process and its children
serve.py       the process that runs one lane
client.py      its other end: starts lanes, interleaves rounds
report.py      what was measured, and the table
origin.py      commit, versions and machine of figures
"""
