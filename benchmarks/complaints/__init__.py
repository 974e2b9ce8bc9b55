"""Three public complaints about slow data, rebuilt with generated data; run by ``../hdf5_complaints.py``.

complaint.py   definitions of a complaint and a lane; the DataLoader that they share
windows.py     windows of consecutive frames: h5py, Lance, packer
tiny_images.py images of 64 px as float32: h5py, a folder, LMDB, packer
tensors.py     images in memory, one by one and in batches: tensors, Hugging Face datasets, h5py, packer
serving.py     a process for each lane: compares every row, then measures round by round
"""
