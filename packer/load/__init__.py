"""From rows of a pack to batches in memory or on the device; never cv2, and torch only where tensors are made.

    batch_dataset.py    PackedBatchDataset: batches, prefetched, for a training loop
    load_plan.py        LoadPlan: what its arguments mean, checked once, with the reasons; it makes the engine
    epoch_progress.py   which epoch comes next, how far it is, and the state that another process goes on with
    batch_engine.py     read requests in, batches out, ahead of the loop: sent to the device, augmented, counted
    fillers.py          rows of a store into the slot of a request, by threads or by a transform's processes
    ragged_rows.py      images that kept their own size: decoded and made alike by the threads that read them
    padded_batches.py   images that kept their own size: padded to one array a batch
    row_dataset.py      PackedDataset: rows, for torch's DataLoader
    base_dataset.py     opening one pack or several; what both tell of their rows: classes, targets, keys, their description
    order_choice.py     the order that the arguments mean, or that is chosen for a pack on this machine
    placement_choice.py where rows are kept: on the GPU, in memory or on the disk
    sampled_statistics.py  mean and std of a sample, for packs that are made while they are loaded from
    batch.py            the named tuple that is handed out, the reusable buffers that its arrays lie in, host memory as a device
    device.py           a GPU as the place of batches, by pinned asynchronous copies
    augmenting.py       what `augment` means, and its pipelines at work on batches
    ranks.py            rank and world size of this process
    stats.py            where the time of an epoch goes
    caches/             rows kept on the GPU or in memory
    processes/          a user's Python function as a step of loading

Start with batch_dataset.py. Imports: augment, format, orders, randomness, read, remote.
"""
