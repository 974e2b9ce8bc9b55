"""From rows of a pack to batches in memory or on the device; never cv2, and torch only where tensors are made.

    batch_dataset.py    PackedBatchDataset: batches, prefetched, for a training loop
    row_dataset.py      PackedDataset: rows, for torch's DataLoader
    base_dataset.py     opening one pack or several; what both tell of their rows: classes, targets, keys, their description
    order_choice.py     the order that the arguments mean, or that is chosen for a pack on this machine
    placement_choice.py where rows are kept: on the GPU, in memory or on the disk
    sampled_statistics.py  mean and std of a sample, for packs that are made while they are loaded from
    batch_plan.py       what the arguments mean for the batches; it makes the prefetcher
    prefetcher.py       read requests in, batches out, ahead of the loop; what a source of rows is, and the pack's files as one
    device.py           where batches end up: host memory, or a GPU by pinned asynchronous copies
    augmenting.py       what `augment` means, and its pipelines at work on batches
    ragged_rows.py      images that kept their own size: decoded and made alike by the threads that read them
    padded_batches.py   images that kept their own size: padded to one array a batch
    batch.py            the named tuple that is handed out, and the reusable buffers that its arrays lie in
    epoch_progress.py   how far an epoch is, for state_dict; what torch's DataLoader may do with batches
    ranks.py            rank and world size of this process
    stats.py            where the time of an epoch goes
    caches/             rows kept on the GPU or in memory
    processes/          a user's Python function as a step of loading

Start with batch_dataset.py. Imports: augment, format, orders, randomness, read, remote.
"""
