"""From a pack to batches in memory or on the device. Read ``batches.py`` first.

    batches.py     PackedBatchDataset (root): batches, prefetched, for a training loop
    rows.py        PackedDataset (root): rows, for torch's DataLoader
    order.py       which rows, in which order: pure functions
    reader.py      runs of rows from the files into given memory
    slots.py       reusable buffers that come back when nobody holds their batch any more
    prefetch.py    a few threads that fill slots ahead of the loop
    device.py      where batches end up: host memory, or a GPU by pinned asynchronous copies
    batch.py       the named tuple that is handed out

    fields.py      which fields are loaded
    residency.py   is it in the page cache?

Imports ``packer.format``, ``packer.randomness`` and, in batches.py only, ``packer.augment``; never cv2, and torch only
where tensors are made.
"""
