"""From rows of a pack to batches in memory or on a device; never imports cv2, torch only for tensors.

    batch_dataset.py    PackedBatchDataset: batches, prefetched, for a training loop
    load_plan.py        LoadPlan: the checked arguments of PackedBatchDataset; builds the engine
    epoch_progress.py   the next epoch, the position in it, and the state to resume from
    batch_engine.py     read requests to batches, ahead of the loop: sent to the device, augmented, counted
    fillers.py          rows of a store into the slot of a request, by threads or by a transform's processes
    ragged_rows.py      images of different sizes: decoded, cropped and resized by the threads that read them
    padded_batches.py   images of different sizes: padded to one array per batch
    row_dataset.py      PackedDataset: rows, for torch's DataLoader
    base_dataset.py     opens packs and chooses rows; classes, targets, keys and repr of both datasets
    order_choice.py     the order that the arguments mean, or that suits the pack
    row_windows.py      the argument `window`: groups of rows, batches with an axis of frames
    placement_choice.py where rows are kept: on the GPU, in memory or on the disk
    sampled_statistics.py  mean and std of a sample, for packs that are still being filled
    batch.py            the named tuple of a batch, its reusable buffers, host memory as a device
    batch_types.py      types of batches and datasets, for type checkers alone
    device.py           a GPU as the place of batches, by pinned asynchronous copies
    augmenting.py       parses `augment`, and runs its pipelines on batches
    ranks.py            rank and world size of this process
    stats.py            time spent in each stage of an epoch
    caches/             rows kept on the GPU or in memory
    processes/          a user's Python function as a step of loading

Start with batch_dataset.py. Imports: augment, augment.passes, format, orders, packs, randomness, read,
remote.
"""
