"""open_arrays: rows of somebody's HDF5, .npy and NumPy arrays are those of a pack, without a copy; what is refused."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from packer import PackedBatchDataset, PackedDataset, Windows, open_arrays, pack_dataset, verify_pack
from packer.errors import FormatError, UsageError
from packer.packs.pack import Pack

N = 40
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (N, 6, 8, 3), np.uint8)
MASKS = RNG.integers(0, 3, (N, 6, 8), np.uint8)
LABELS = np.arange(N)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """own.h5 with the arrays in several layouts, images.npy, labels.npy, and cuts of a larger array."""
    folder = tmp_path_factory.mktemp("own")
    with h5py.File(folder / "own.h5", "w") as file:
        file["images"], file["masks"], file["inner/labels"] = IMAGES, MASKS, LABELS[:, None]
        file.create_dataset("chunked", data=IMAGES, chunks=(7, 6, 8, 3))
        file.create_dataset("zipped", data=IMAGES, compression="gzip")
        file.create_dataset("torn", data=IMAGES, chunks=(7, 3, 8, 3))
        file["big"] = LABELS.astype(">i8")
        file["texts"] = ["a"] * N
        file["less"] = LABELS[:-1]
    np.save(folder / "images.npy", IMAGES)
    np.save(folder / "labels.npy", LABELS)
    np.save(folder / "fortran.npy", np.asfortranarray(IMAGES))
    return folder


def opened(folder: Path) -> dict[str, Pack]:
    own, images, labels = (str(folder / name) for name in ("own.h5", "images.npy", "labels.npy"))
    mapped = np.load(images, mmap_mode="r")
    return {
        "hdf5": open_arrays(own, image="images", label="inner/labels", mask="masks"),
        "chunked": open_arrays(own, image="chunked", label="inner/labels", mask="masks"),
        "npy": open_arrays(image=images, label=labels, mask=MASKS),
        "mapped": open_arrays(image=mapped, label=LABELS, mask=MASKS),
        "memory": open_arrays(image=IMAGES, label=LABELS, mask=MASKS),
    }


@pytest.mark.parametrize("kind", ["hdf5", "chunked", "npy", "mapped", "memory"])
@pytest.mark.parametrize("placement", ["disk", "ram"])
def test_rows_are_those_of_a_pack(folder: Path, tmp_path: Path, kind: str, placement: str) -> None:
    pack_dataset({"image": IMAGES, "label": LABELS, "mask": MASKS}, tmp_path / "p.h5", shuffle=False)
    options: dict[str, Any] = {"order": "rows", "placement": placement, "augment": "RandomCrop(4)"}
    pack = opened(folder)[kind]
    for epochs in zip(
        PackedBatchDataset(tmp_path / "p.h5", 7, **options),
        PackedBatchDataset(pack, 7, **options),
        strict=True,
    ):
        for one, other in zip(*epochs, strict=True):
            assert one.dtype == other.dtype
            assert (one == other).all()
    rows = PackedDataset(pack)
    image, label, mask = rows[-1]
    assert (image.permute(1, 2, 0).numpy() == IMAGES[-1]).all()
    assert (int(label), mask.tolist()) == (N - 1, MASKS[-1].tolist())
    assert (rows[[3, 1, 30]].image.permute(0, 2, 3, 1).numpy() == IMAGES[[3, 1, 30]]).all()


def test_a_part_of_a_mapped_array_is_read_from_its_file(folder: Path) -> None:
    mapped = np.load(folder / "images.npy", mmap_mode="r")
    pack = open_arrays(image=mapped[5:25], x=mapped.reshape(N, -1)[5:25])
    assert not pack.memory  # type: ignore[attr-defined]
    (batch,) = PackedBatchDataset(pack, 20, output="numpy")
    assert (batch.image == IMAGES[5:25]).all()
    assert (batch.x == IMAGES[5:25].reshape(20, -1)).all()


def test_ranks_resuming_windows_and_lists_are_those_of_packs(folder: Path) -> None:
    pack = opened(folder)["hdf5"]
    whole = PackedBatchDataset(pack, 8, shuffle=True, output="numpy", seed=3)
    everything = [label for batch in whole for label in batch.label.tolist()]
    first = PackedBatchDataset(pack, 4, shuffle=True, output="numpy", seed=3, rank=0, world_size=2)
    begun = next(iter(first)).label.tolist()
    again = PackedBatchDataset(pack, 8, shuffle=True, output="numpy")
    again.load_state_dict(first.state_dict())
    rest = [label for batch in again for label in batch.label.tolist()]
    assert begun == everything[:4]
    assert rest == everything[8:]
    (batch,) = PackedBatchDataset(pack, 99, window=Windows(4, step=6), output="numpy")
    assert batch.label[:, 0].tolist() == list(range(0, N - 3, 6))
    other = open_arrays(image=255 - IMAGES, label=LABELS + N, mask=MASKS)
    (both,) = PackedBatchDataset([pack, other], 2 * N, output="numpy")
    assert both.label.tolist() == list(range(2 * N))
    assert (both.image[N:] == 255 - IMAGES).all()
    with pytest.raises(UsageError, match="is in the list twice"):
        PackedBatchDataset([other, other], 4)


def test_it_can_be_pickled_for_workers(folder: Path) -> None:
    from torch.utils.data import DataLoader

    for pack in opened(folder).values():
        copy = pickle.loads(pickle.dumps(PackedDataset(pack)))
        assert (copy[7].image.permute(1, 2, 0).numpy() == IMAGES[7]).all()
        loaded = [label for batch in DataLoader(copy, 9, num_workers=1) for label in batch.label.tolist()]
        assert loaded == LABELS.tolist()


def test_nothing_is_copied_and_repr_says_so() -> None:
    images = IMAGES.copy()
    pack = open_arrays(image=images)
    images[4] = 77
    assert (PackedDataset(pack, fields=["image"])[4].image == 77).all()
    assert repr(pack) == (
        f"open_arrays(image=...) at {images.ctypes.data:#x}: {N} rows (image), read in place: no copy, no checksums"
    )
    with pytest.raises(UsageError, match="are arrays, not a pack on the disk"):
        verify_pack(pack)


def test_a_changed_file_is_told(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", IMAGES)
    pack = open_arrays(image=str(tmp_path / "x.npy"))
    dataset = PackedBatchDataset(pack, 8, output="numpy")
    list(dataset)
    np.save(tmp_path / "x.npy", IMAGES[:20])
    sentence = f"{tmp_path / 'x.npy'}: was changed after it was opened. Open it again."
    with pytest.raises(FormatError, match=re.escape(sentence)):
        list(dataset)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            name,
            f"{{file}}: {name!r} is not read in place: it is compressed, in chunks across its rows, not in C order, or"
            " holds no little-endian numbers. Write a pack: pack_dataset({file!r}, 'OUT.h5',"
            " fields=Fields(rename={{{name!r}: 'image'}})).",
        )
        for name in ("zipped", "torn", "texts", "big")
    ]
    + [
        (
            "nothing",
            "{file}: has no dataset 'nothing'; it has big, chunked, images, inner/labels, less, masks, texts, torn,"
            " zipped. Pass one of them.",
        )
    ],
)
def test_datasets_that_cannot_be_read_in_place(folder: Path, name: str, sentence: str) -> None:
    file = str(folder / "own.h5")
    with pytest.raises(UsageError) as error:
        open_arrays(file, image=name)
    assert str(error.value) == sentence.format(file=file, name=name)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {},
            "open_arrays: names no field. Pass for example open_arrays('own.h5', image='images', label='y'), or"
            " image='x.npy'.",
        ),
        (
            {"image": IMAGES, "label": LABELS[:-1]},
            "open_arrays(image=..., label=...): have different numbers of rows (image 40, label 39). Pass arrays of"
            " equal length.",
        ),
        (
            {"image": np.ascontiguousarray(np.moveaxis(IMAGES, -1, 1))},
            "open_arrays(image=...): image is [3, 6, 8], channels first; pixels are read in place as [H, W, C]. Run"
            " packer convert, which turns them.",
        ),
        (
            {"image": IMAGES[:, ::2]},
            "open_arrays: image is not read in place: it is compressed, in chunks across its rows, not in C order, or"
            " holds no little-endian numbers. Write a pack: pack_dataset('ARRAY.npy', 'OUT.h5').",
        ),
        ({"image": [1, 2]}, "open_arrays: image is no array and no .npy file. Pass one of them."),
        ({"_x": IMAGES}, "open_arrays: '_x' is no name for a field. Pass another, such as image."),
        (
            {"x": np.array(["a"])},
            "open_arrays(x=...): x is not read in place: it is compressed, in chunks across its rows, not in C order, or"
            " holds no little-endian numbers. Write a pack: pack_dataset('ARRAY.npy', 'OUT.h5').",
        ),
    ],
)
def test_arrays_that_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        open_arrays(**given)
    assert str(error.value) == sentence


@pytest.mark.parametrize("name", ["nowhere.h5", "."])
def test_no_file_is_told(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    with pytest.raises(UsageError) as error:
        open_arrays(path, image="images")
    assert str(error.value) == f"{path}: no such file; an HDF5 file is read. Check the path."


def test_no_rows_have_no_batch() -> None:
    pack = open_arrays(image=IMAGES[:0], label=LABELS[:0])
    assert list(PackedBatchDataset(pack, 4)) == []
