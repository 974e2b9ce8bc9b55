"""From rows of a pack to batches in memory or on the device. Read ``batch_dataset.py`` first, then ``prefetcher.py``.

    batch_dataset.py  PackedBatchDataset (root): batches, prefetched, for a training loop
    row_dataset.py    PackedDataset (root): rows, for torch's DataLoader

    dataset_options.py  what the arguments mean
    rows_info.py   what both tell of their rows: classes, targets, keys
    row_transforms.py  functions of one image or label, as torchvision's datasets take them
    other_loaders.py   words and wrappers of other loaders that are refused, each with ours
    pipelines.py   what `augment` means: pipelines, by the names that their images have in a batch
    ranks.py       who am I among the processes that train together?
    epoch_progress.py  how far an epoch is: what state_dict saves
    dataloader_workers.py  torch's DataLoader around a dataset: its workers' passes are epochs
    prefetcher.py  read requests of an epoch: read into slots, handed out as batches
    slots.py       reusable buffers that come back when nobody holds their batch any more
    fork_safe.py   a lock and threads that a fork or a pickle leaves usable
    row_sources.py where rows come from: caches, processes, files
    device.py      where batches end up: host memory, or a GPU by pinned asynchronous copies
    augmenting.py  pipelines of augmentations at work on batches
    batch.py       the named tuple that is handed out
    stats.py       where the time of an epoch goes
    order_quality.py  how good a pack's shuffle is in some order

    caches/        where rows are kept meanwhile: on the GPU, in memory, on the disk alone
    processes/     a user's Python function as a step of loading

Imports ``packer.read``, ``packer.orders``, ``packer.format``, ``packer.randomness``, and in pipelines.py and augmenting.py only
``packer.augment``; never cv2, and torch only where tensors are made.
"""
