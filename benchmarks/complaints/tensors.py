"""huggingface/datasets#7753: reading images one by one is 1,000 times slower from `datasets` than a tensor.

Their script creates 1,000 random images uint8 [3, 224, 224] in a TensorDataset, and by Dataset.from_dict with
the format "torch", and reads `dataset[i]["image"]` in order. This one adds an Array3D feature, as the
documentation of `datasets` advises for arrays of one shape, h5py, and packer. A TensorDataset returns views
without reading, so shuffled batches of 32 are measured too, as in a training loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from complaints.complaint import Complaint, Epochs, Lane, Numbers, Rows, collated, made_once

SHAPE, BATCH = (3, 224, 224), 32
NPY, H5, LISTS, ARRAYS, PACK = "images.npy", "images.h5", "lists", "arrays", "pack.h5"


def write(work: Path, images: int) -> None:
    """Write the stores that are not there yet."""
    made_once(work / NPY, partial(_write_npy, images=images))
    made_once(work / H5, _write_h5)
    made_once(work / PACK, _write_pack)
    if find_spec("datasets"):
        made_once(work / LISTS, _write_lists)
        made_once(work / ARRAYS, _write_arrays)


def _images(beside: Path) -> NDArray[np.uint8]:
    images: NDArray[np.uint8] = np.load(beside.parent / NPY)
    return images


def _write_npy(path: Path, images: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (images, *SHAPE), dtype=np.uint8)
    with path.open("wb") as file:
        np.save(file, pixels)


def _write_h5(path: Path) -> None:
    images = _images(path)
    with h5py.File(path, "w") as file:
        file["image"], file["label"] = images, np.arange(len(images))


def _write_pack(path: Path) -> None:
    from packer import pack_dataset

    images = _images(path)
    pack_dataset((images, np.arange(len(images))), path, shuffle=False, overwrite=True)


def _write_lists(path: Path) -> None:
    """Write the result of from_dict for a tensor: nested lists."""
    datasets = import_module("datasets")
    datasets.disable_progress_bars()
    images = _images(path)
    datasets.Dataset.from_dict({"image": images, **_labels(images)}).save_to_disk(path)


def _write_arrays(path: Path) -> None:
    datasets = import_module("datasets")
    datasets.disable_progress_bars()
    images = _images(path)
    byte = datasets.Value("uint8")
    features = datasets.Features({"image": datasets.Array3D(SHAPE, "uint8"), "label": byte, "page": byte})
    datasets.Dataset.from_dict({"image": images, **_labels(images)}, features=features).save_to_disk(path)


def _labels(images: NDArray[np.uint8]) -> dict[str, NDArray[np.uint8]]:
    """Return row numbers in two bytes: the format's dtype, uint8 in their script, applies to all columns."""
    page, label = np.divmod(np.arange(len(images)), 256)
    return {"label": label.astype(np.uint8), "page": page.astype(np.uint8)}


def _plain(row: Any) -> tuple[Any, Any]:
    """Return images and numbers of a row or a batch."""
    if isinstance(row, dict):
        return row["image"], row["label"].long() + 256 * row["page"].long()
    image, number = row
    return image, number


def of_tensors(store: Path) -> Any:
    """Return torch's TensorDataset."""
    import torch

    images = torch.from_numpy(_images(store))
    return torch.utils.data.TensorDataset(images, torch.arange(len(images)))


def of_datasets(store: Path) -> Any:
    """Return a dataset in memory that yields tensors. `map(..., keep_in_memory=True)` gives the same."""
    found = import_module("datasets").load_from_disk(str(store), keep_in_memory=True)
    return found.with_format("torch", dtype=import_module("torch").uint8)


class Items:
    """An HDF5 file, row by row."""

    def __init__(self, store: Path) -> None:
        file = h5py.File(store)
        self._images, self._labels = file["image"], file["label"]

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        import torch

        return torch.from_numpy(self._images[number]), int(self._labels[number])


def of_pack(store: Path) -> Any:
    """Return packer's rows."""
    from packer import PackedDataset

    return PackedDataset(store)


def one_by_one(make: Callable[[Path], Any]) -> Callable[[Path, int], Epochs]:
    """Return a lane that reads rows in order, as their script does."""

    def opened(store: Path, workers: int) -> Epochs:
        data = make(store)

        def begin(limit: int | None) -> Iterator[Rows]:
            for number in range(len(data) if limit is None else min(limit, len(data))):
                image, label = _plain(data[number])
                yield image[None], np.array([int(label)])

        return Epochs(begin, np.arange(len(data)))

    return opened


def _spread(batch: Any) -> Rows:
    images, numbers = _plain(batch)
    return images, numbers.numpy()


def _batches(make: Callable[[Path], Any]) -> Callable[[Path, int], Epochs]:
    return collated(make, BATCH, _spread)


def open_batches(store: Path, workers: int) -> Epochs:
    """Return packer's shuffled batches."""
    from packer import PackedBatchDataset

    dataset = PackedBatchDataset(store, BATCH, shuffle=True)
    return Epochs(lambda limit: map(_spread, dataset), np.arange(len(dataset.dataset)))


def compare(work: Path) -> Callable[[Any, Numbers], None]:
    """Return a function that compares images bit for bit."""
    every = np.load(work / NPY, mmap_mode="r")

    def compared(images: Any, numbers: Numbers) -> None:
        if images.dtype is not import_module("torch").uint8 or not np.array_equal(
            images.numpy(), every[numbers]
        ):
            raise ValueError(f"images {numbers[0]} to {numbers[-1]} are others")

    return compared


HF = ("datasets",)
COMPLAINT = Complaint(
    "1,000 images uint8 [3, 224, 224] in memory",
    write,
    compare,
    {
        "TensorDataset, one by one": Lane(one_by_one(of_tensors), NPY),
        "datasets, one by one": Lane(one_by_one(of_datasets), LISTS, HF),
        "datasets, Array3D, one by one": Lane(one_by_one(of_datasets), ARRAYS, HF),
        "h5py, one by one": Lane(one_by_one(Items), H5),
        "packer, one by one": Lane(one_by_one(of_pack), PACK),
        "TensorDataset, batches": Lane(_batches(of_tensors), NPY, workers=(0, 2)),
        "datasets, Array3D, batches": Lane(_batches(of_datasets), ARRAYS, HF, workers=(0, 2)),
        "h5py, batches": Lane(_batches(Items), H5, workers=(0, 2)),
        "packer, batches": Lane(open_batches, PACK),
    },
    rows=1000,
    samples=1000,
    packages=("datasets", "pyarrow", "h5py"),
)
