"""Three public complaints about slow data, rebuilt from their descriptions with generated data; ``../hdf5_complaints.py`` runs them.

complaint.py   what a complaint and a lane are; the DataLoader that they share
windows.py     windows of consecutive frames: h5py, Lance, packer
tiny_images.py images of 64 px as float32: h5py, a folder, LMDB, packer
tensors.py     images in memory, one by one and in batches: tensors, Hugging Face datasets, h5py, packer
serving.py     a process a lane: every row compared, then measured round by round
"""
