"""Lumi-supercomputer/LUMI-AI-Guide#101: 100,000 images: 36 s from HDF5 with 7 processes, 1,885 s with one.

Their guide packs tiny-imagenet as float32 [N, 3, 64, 64]: 49 kB an image whose JPEG has 2 kB. A sample is
read alone, converted back to an 8-bit image, resized to 256 px, cropped to 224 and normalised, by torchvision
on Pillow images. SquashFS (a mounted folder) and LMDB hold the JPEGs; "folder" here is not mounted. LMDB's
values are pickles, like theirs. All lanes shuffle batches of 32.
"""

from __future__ import annotations

import io
import pickle
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

SIDE, BATCH = 64, 32
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FOLDER, H5, LMDB, PACK = "photos", "images.hdf5", "images.lmdb", "pack.h5"
LEVELS = 2.5
"""Allowed difference from torchvision's JPEG lane, of 255: their HDF5 file loses up to 1, Pillow rounds."""


def jpeg(number: int) -> bytes:
    """Return a smooth picture of random colours, as JPEG."""
    import cv2
    import simplejpeg

    colours = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    pixels = cv2.resize(colours, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
    return bytes(simplejpeg.encode_jpeg(pixels, quality=90, colorsubsampling="420"))


def write(work: Path, images: int) -> None:
    """Write the stores that are not there yet."""
    made_once(work / FOLDER, partial(_write_folder, images=images))
    made_once(work / H5, _write_h5)
    made_once(work / PACK, _write_pack)
    if find_spec("lmdb"):
        made_once(work / LMDB, _write_lmdb)


def _write_folder(path: Path, images: int) -> None:
    path.mkdir()
    for number in range(images):
        (path / f"{number:06}.jpg").write_bytes(jpeg(number))
    lines = [f"{number:06}.jpg,{number}\n" for number in range(images)]
    path.with_name("labels.csv").write_text("name,label\n" + "".join(lines))


def _files(beside: Path) -> list[Path]:
    return sorted((beside.parent / FOLDER).iterdir())


def _write_h5(path: Path) -> None:
    image, to_tensor = import_module("PIL.Image"), import_module("torchvision.transforms").ToTensor()
    files = _files(path)
    with h5py.File(path, "w") as file:
        images = file.create_dataset("images", (len(files), 3, SIDE, SIDE), dtype="f")
        labels = file.create_dataset("labels", (len(files),), dtype="i")
        for number, name in enumerate(files):
            images[number] = to_tensor(image.open(name).convert("RGB")).numpy()
            labels[number] = number


def _write_lmdb(path: Path) -> None:
    database = import_module("lmdb").open(str(path), map_size=1 << 30)
    files = _files(path)
    with database.begin(write=True) as writing:
        for number, name in enumerate(files):
            writing.put(str(number).encode(), pickle.dumps((name.read_bytes(), number), protocol=5))
        writing.put(b"__keys__", pickle.dumps([str(number).encode() for number in range(len(files))]))
    database.close()


def _write_pack(path: Path) -> None:
    from packer import Labels, convert_images

    labels = Labels(path.with_name("labels.csv"), as_="float")  # the numbers of the images
    convert_images(path.parent / FOLDER, path, size=SIDE, labels=labels, overwrite=True)


def transform() -> Any:
    """Return their transform of a Pillow image."""
    steps = import_module("torchvision.transforms")
    return steps.Compose(
        [steps.Resize(256), steps.CenterCrop(224), steps.ToTensor(), steps.Normalize(MEAN, STD)]
    )


class Photos:
    """Their ImageFolder; each image is a class."""

    def __init__(self, store: Path) -> None:
        self.files = _files(store)
        self._transform, self._open = transform(), import_module("PIL.Image").open

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        return self._transform(self._open(self.files[number]).convert("RGB")), number


class Floats:
    """Their HDF5Dataset, opened before the DataLoader forks, as they do."""

    def __init__(self, store: Path) -> None:
        file = h5py.File(store)
        self._images, self._labels = file["images"], file["labels"]
        self._transform = transform()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        import torch

        to_image = import_module("torchvision.transforms.functional").to_pil_image
        image = to_image(torch.tensor(self._images[number]))
        return self._transform(image), torch.tensor(self._labels[number], dtype=torch.long)


class Database:
    """Their LMDBDataset."""

    def __init__(self, store: Path) -> None:
        self._database = import_module("lmdb").open(
            str(store), readonly=True, lock=False, readahead=False, meminit=False
        )
        with self._database.begin() as reading:
            self._keys = pickle.loads(reading.get(b"__keys__"))
        self._transform, self._open = transform(), import_module("PIL.Image").open

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        with self._database.begin() as reading:
            encoded, label = pickle.loads(reading.get(self._keys[number]))
        return self._transform(self._open(io.BytesIO(encoded)).convert("RGB")), label


def open_packer(store: Path, threads: int) -> Epochs:
    """Return packer's augmented batches."""
    from packer import PackedBatchDataset
    from packer.augment import CenterCrop, Normalize, Resize

    steps = [Resize(256), CenterCrop(224), Normalize(MEAN, STD)]
    dataset = PackedBatchDataset(store, BATCH, shuffle=True, augment=steps, threads=threads)

    def begin(limit: int | None) -> Iterator[Rows]:
        left = len(dataset.dataset) if limit is None else limit
        for images, labels in dataset:
            yield images[:left], labels[:left].numpy()
            left -= len(labels)
            if left <= 0:
                break

    return Epochs(begin, np.arange(len(dataset.dataset)))


def compare(work: Path) -> Callable[[Any, Numbers], None]:
    """Return a function that compares images with torchvision's of the JPEG files."""
    photos = Photos(work / H5)
    most = LEVELS / 255 / min(STD)

    def compared(images: Any, numbers: Numbers) -> None:
        for image, number in zip(images, numbers.tolist(), strict=True):
            wanted: NDArray[Any] = photos[number][0].numpy()
            if image.shape != wanted.shape or np.abs(image.numpy() - wanted).max() > most:
                raise ValueError(f"image {number} is another")

    return compared


def _lanes() -> dict[str, Lane]:
    vision = ("torchvision",)
    found: dict[str, Lane] = {}
    for count, text in ((1, "one"), (2, "two")):
        each = (count,)
        found |= {
            f"h5py, {text}": Lane(collated(Floats, BATCH), H5, vision, each),
            f"folder, {text}": Lane(collated(Photos, BATCH), FOLDER, vision, each),
            f"LMDB, {text}": Lane(collated(Database, BATCH), LMDB, ("torchvision", "lmdb"), each),
            f"packer, {text}": Lane(open_packer, PACK, vision, each),
        }
    return found


COMPLAINT = Complaint(
    "images of 64 px, resized to 256, cropped to 224, normalised; batches of 32;"
    " one or two processes (packer: threads)",
    write,
    compare,
    _lanes(),
    rows=4000,
    samples=1280,
    packages=("h5py", "lmdb", "torchvision", "pillow"),
)
