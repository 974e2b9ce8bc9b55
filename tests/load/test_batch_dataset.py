from __future__ import annotations

import gc
import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from packer.errors import FormatError, UsageError
from packer.load.batch_dataset import PackedBatchDataset
from packer.load.row_dataset import PackedDataset
from packer.packs.pack import Pack
from tests.load.conftest import ORDERS
from tests.open_files import open_files
from tests.read.conftest import ROWS, SHAPE, image_of, make_pack

torch = pytest.importorskip("torch")


def check(batch) -> list[int]:
    """Every row of a batch has its own pixels, label and (if there) key; returns the rows."""
    image, label = batch.image, batch.label
    if isinstance(image, torch.Tensor):
        image, label = image.permute(0, 2, 3, 1).numpy(), label.numpy()
    rows = (label // 3).tolist()
    assert (label == 3 * np.array(rows)).all()
    assert all((pixels == image_of(row)).all() for pixels, row in zip(image, rows, strict=True))
    if "key" in batch._fields:
        assert batch.key == [f"row/{row}" for row in rows]
    return rows


def epoch_of(dataset: PackedBatchDataset) -> list[int]:
    return [row for batch in dataset for row in check(batch)]


@pytest.mark.parametrize(
    ("order", "output"),
    [("sequential", "torch"), ("slices", "numpy"), ("rows", "torch")],  # all: test_kinds.py
)
def test_every_row_once_an_epoch_with_its_own_pixels(pack: Pack, way: str, order: str, output: str):
    fields = ("image", "label", "key")
    with PackedBatchDataset(pack, 10, order=order, output=output, fields=fields) as dataset:
        first, second = epoch_of(dataset), epoch_of(dataset)
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert (first == second) == (order == "sequential")
    assert (first == list(range(ROWS))) == (order == "sequential")


def test_batches_are_what_the_docs_say(pack: Pack):
    batch = next(iter(PackedBatchDataset(pack, 16)))
    image, label = batch
    assert (image.shape, image.dtype) == ((16, 3, *SHAPE[:2]), torch.uint8)
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert (label.shape, label.dtype) == ((16,), torch.int64)
    array = next(iter(PackedBatchDataset(pack, 16, output="numpy"))).image
    assert (array.shape, array.dtype) == ((16, *SHAPE), np.uint8)


def test_one_large_batch_read_by_several_threads(pack: Pack, way: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("packer.load.fillers.SPLIT_BYTES", 1)
    with PackedBatchDataset(pack, 64, order="rows", threads=3, fields=("key", "image", "label")) as dataset:
        assert sorted(epoch_of(dataset)) == list(range(ROWS))


@pytest.mark.parametrize(
    ("batch_size", "drop_last", "sizes"),
    [(50, False, [50, 50, 3]), (50, True, [50, 50]), (200, False, [103])],
)
def test_lengths(pack: Pack, batch_size: int, drop_last: bool, sizes: list[int]):
    dataset = PackedBatchDataset(pack, batch_size, drop_last=drop_last)
    assert len(dataset) == len(sizes)
    assert [len(batch.label) for batch in dataset] == sizes


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_one_sequence(pack: Pack, order: str, world_size: int):
    """All ranks' parts, joined batch by batch, are the single process's sequence with the global batch."""
    alone = epoch_of(PackedBatchDataset(pack, 4 * world_size, order=order, seed=5))
    ranks = [
        [
            check(b)
            for b in PackedBatchDataset(
                pack, 4, order=order, seed=5, ends="uneven", rank=rank, world_size=world_size
            )
        ]
        for rank in range(world_size)
    ]
    steps = max(map(len, ranks))
    joined = [row for step in range(steps) for rank in ranks if step < len(rank) for row in rank[step]]
    assert joined == alone


def test_seeds_differ_and_repeat(pack: Pack):
    def rows(seed: int) -> list[int]:
        return epoch_of(PackedBatchDataset(pack, 10, shuffle=True, seed=seed))

    assert rows(1) == rows(1) != rows(2)


def test_each_iter_is_the_next_epoch_also_after_a_break(pack: Pack):
    def fresh() -> PackedBatchDataset:
        return PackedBatchDataset(pack, 10, order="rows")

    reference = fresh()
    epochs = [epoch_of(reference) for _ in range(4)]
    dataset = fresh()
    for batch in dataset:
        assert check(batch) == epochs[0][:10]
        break
    assert dataset.epoch == 0
    assert epoch_of(dataset) == epochs[1]
    dataset.set_epoch(3)
    assert check(dataset.batch(0)) == epochs[3][:10]
    assert epoch_of(dataset) == epochs[3]
    assert dataset.epoch == 3


def test_batches_by_number_are_those_of_the_epoch(pack: Pack):
    dataset = PackedBatchDataset(pack, 10, order="slices")
    rows = [check(dataset.batch(i)) for i in range(len(dataset))]
    assert [row for part in rows for row in part] == epoch_of(dataset)
    for number in (11, -1):
        with pytest.raises(UsageError, match=f"^number={number}: is not a whole number from 0 to 10\\.$"):
            dataset.batch(number)


def test_batches_that_are_kept_stay_as_they_were(pack: Pack):
    dataset = PackedBatchDataset(pack, 7, order="rows", prefetch=3)
    kept = [batch for _ in range(3) for batch in dataset]
    assert sorted(row for batch in kept for row in check(batch)) == sorted(list(range(ROWS)) * 3)


def test_memory_is_used_again_when_batches_are_not_kept(pack: Pack, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("packer.load.batch_engine.REQUEST_BYTES", 0)
    dataset = PackedBatchDataset(pack, 5, prefetch=2)
    places = {batch.image.data_ptr() for _ in range(5) for batch in dataset}
    assert len(places) <= 6 < len(dataset)


def test_concurrent_and_nested_iterators(pack: Pack):
    dataset = PackedBatchDataset(pack, 10, order="rows")
    results: list[list[int]] = []
    threads = [threading.Thread(target=lambda: results.append(sorted(epoch_of(dataset)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for outer in dataset:
        check(outer)
        for inner in dataset:
            check(inner)
            break
    for thread in threads:
        thread.join()
    assert results == [list(range(ROWS))] * 3


def load_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("packer-load")}


def test_threads_and_files_end_with_the_dataset(pack: Pack):
    """Its own: those of other tests' datasets may be there as long as they like."""
    gc.collect()
    before, others = open_files(), load_threads()
    with PackedBatchDataset(pack, 10) as dataset:
        next(iter(dataset))
        assert load_threads() - others
    assert open_files() <= before
    assert not load_threads() - others
    dataset = PackedBatchDataset(pack, 10)
    next(iter(dataset))
    begun = load_threads() - others
    assert begun
    del dataset
    gc.collect()
    for thread in begun:
        thread.join(120)
    assert open_files() <= before
    assert not load_threads() - others


def test_an_exception_in_the_loop_leaves_a_usable_dataset(pack: Pack):
    dataset = PackedBatchDataset(pack, 10)
    with pytest.raises(ZeroDivisionError):
        for _ in dataset:
            1 / 0
    assert epoch_of(dataset) == list(range(ROWS))


def test_an_error_of_a_thread_reaches_the_loop(pack: Pack, tmp_path: Path):
    path = tmp_path / "p"
    (shutil.copytree if os.path.isdir(pack.path) else shutil.copy)(pack.path, path)
    dataset = PackedBatchDataset(path, 10)
    os.truncate(path / "image.npy" if path.is_dir() else path, 8000)
    with pytest.raises(
        FormatError, match=r"is shorter than when it was opened|was replaced or changed after it was opened"
    ):
        epoch_of(dataset)


def test_an_edited_file_is_refused_with_the_remedy(tmp_path: Path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "p.h5"
    make_pack(path)
    with h5py.File(path, "a") as file:
        file.attrs["note"] = 1
    said = rf"was opened for writing after .* Run packer seal {re.escape(str(path))}\."
    with pytest.raises(FormatError, match=said):
        PackedBatchDataset(path, 10)
    with pytest.raises(FormatError, match=said):
        PackedDataset(path)


def test_numpy_output_needs_no_torch(pack: Pack):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from packer import PackedBatchDataset, PackerError\n"
        f"print(sum(len(b.label) for b in PackedBatchDataset({pack.path!r}, 10, output='numpy')))\n"
        "try: PackedBatchDataset({path!r}, 10)\n".format(path=pack.path)
        + "except PackerError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        str(ROWS),
        "PackedBatchDataset with output='torch': torch is not installed. Run: pip install torch",
    ]


def test_pickled_datasets_go_on(pack: Pack):
    dataset = PackedBatchDataset(pack, 10, order="rows", seed=3)
    epochs = [epoch_of(dataset), epoch_of(dataset)]
    copy = pickle.loads(pickle.dumps(dataset))
    copy.set_epoch(1)
    assert epoch_of(copy) == epochs[1]


def test_augmented_images(pack: Pack):
    augment = pytest.importorskip("packer.augment")
    stack = [
        augment.RandomHorizontalFlip(),
        augment.RandomCrop((6, 4)),
        augment.Normalize([0.5] * 3, [0.25] * 3),
    ]
    dataset = PackedBatchDataset(pack, 16, order="rows", seed=2, augment=stack)
    plain = PackedBatchDataset(pack, 16, order="rows", seed=2)
    pipeline = augment.Pipeline(stack, plain.batch(0).image.shape[1:], seed=2)
    places = set()
    for batch, raw in zip(dataset, plain, strict=True):
        rows = np.array(check(raw))
        assert torch.equal(batch.image, pipeline(raw.image, rows))
        assert (batch.image.dtype, batch.image.shape[1:]) == (torch.float32, (3, 6, 4))
        assert batch.image.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(batch.label, raw.label)
        places.add(batch.image.data_ptr())
    assert len(places) < len(dataset)  # memory for results is used again


def test_the_same_row_is_augmented_alike_whatever_the_batches(pack: Pack):
    augment = pytest.importorskip("packer.augment")

    def images(batch_size: int, order: str, **ranks: int) -> dict[int, torch.Tensor]:
        dataset = PackedBatchDataset(
            pack, batch_size, order=order, augment=[augment.RandomCrop((5, 5), padding=2)], **ranks
        )
        return {int(label): image.clone() for batch in dataset for image, label in zip(*batch, strict=True)}

    first, other = images(7, "sequential"), images(20, "rows", rank=1, world_size=3)
    assert other
    assert all(torch.equal(first[label], image) for label, image in other.items())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch_size": 0}, "batch_size=0: is not a whole number of at least 1."),
        ({"batch_size": 2.5}, "batch_size=2.5: is not a whole number of at least 1."),
        ({"prefetch": -1}, "prefetch=-1: is not a whole number of at least 0."),
        ({"threads": 0}, "threads=0: is not a whole number of at least 1."),
        (
            {"order": "random"},
            "order='random': is not one of 'sequential', 'slices', 'blocks', 'rows', 'regions'. Pass one of them,"
            " an order such as packer.Blocks(window='1GB'), or shuffle=True, which chooses by the pack.",
        ),
        (
            {"shuffle": True, "order": "sequential"},
            "shuffle=True with order='sequential': they contradict each other. Pass one of them.",
        ),
        ({"output": "jax"}, "output='jax': is not one of 'torch', 'numpy'. Pass one of them."),
        (
            {"rank": 1},
            "rank=1, world_size=None: are not two whole numbers, rank from 0 to world_size - 1. Pass both in that range, or neither.",
        ),
        (
            {"rank": 2, "world_size": 2},
            "rank=2, world_size=2: are not two whole numbers, rank from 0 to world_size - 1. Pass both in that range, or neither.",
        ),
        (
            {"fields": ["label", "mask"]},
            "{path}: has no field 'mask'; it has image, label, key. Pass some of these.",
        ),
        ({"fields": []}, "fields=[]: is empty or repeats a name. Name each field once."),
        ({"device": "gpu"}, "device='gpu': is no torch device. Pass for example 'cpu' or 'cuda'."),
        (
            {"device": "cuda", "output": "numpy"},
            "output='numpy': device is 'cuda'; NumPy arrays live on 'cpu'. Pass output='torch'.",
        ),
        (
            {"drop_last": True, "batch_size": 104},
            "{path}: has 103 rows, fewer than one batch of 104 on 1 ranks; drop_last=True leaves none."
            " Pass a smaller batch_size, or drop_last=False.",
        ),
    ],
)
def test_each_wrong_argument_is_one_sentence(pack: Pack, options: dict[str, object], sentence: str):
    with pytest.raises(UsageError) as error:
        PackedBatchDataset(pack, **({"batch_size": 10} | options))
    assert str(error.value) == sentence.replace("{path}", pack.path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without CUDA")
def test_a_missing_gpu_is_a_sentence(pack: Pack):
    with pytest.raises(
        UsageError, match=r"^device='cuda': torch sees no CUDA device here\. Pass device='cpu'\.$"
    ):
        PackedBatchDataset(pack, 10, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("order", ORDERS)
def test_batches_on_the_gpu_hold_the_same_rows(pack: Pack, order: str):
    with PackedBatchDataset(
        pack, 10, order=order, seed=1, device="cuda", fields=("image", "label", "key")
    ) as dataset:
        for _ in range(3):
            kept = list(dataset)
            assert {b.image.device.type for b in kept} == {"cuda"}
            assert all(b.image.is_contiguous(memory_format=torch.channels_last) for b in kept)
            rows = [r for b in kept for r in check(b._replace(image=b.image.cpu(), label=b.label.cpu()))]
            assert sorted(rows) == list(range(ROWS))


@pytest.mark.gpu
def test_a_slow_gpu_stream_never_sees_a_slot_overwritten(pack: Pack):
    """The device is kept busy, so that copies and uses lag far behind the host, while slots go round."""
    with PackedBatchDataset(pack, 5, device="cuda", prefetch=4) as dataset:
        burn = torch.randn(2048, 2048, device="cuda")
        results = []
        for _ in range(4):
            for batch in dataset:
                burn = (burn @ burn).clamp(-1, 1)
                results.append(
                    (batch.label.clone(), batch.image.permute(0, 2, 3, 1).flatten(1)[:, :8].clone())
                )
        for label, head in results:
            assert (head.contiguous().view(torch.int64)[:, 0] * 3 == label).all()


@pytest.mark.gpu
def test_augmentation_on_the_gpu_equals_the_cpu(pack: Pack):
    from packer.augment import Normalize, RandomCrop, RandomHorizontalFlip

    stack = [RandomHorizontalFlip(), RandomCrop((6, 4)), Normalize([0.5] * 3, [0.25] * 3)]
    on_gpu = PackedBatchDataset(pack, 16, order="rows", augment=stack, device="cuda")
    for gpu, cpu in zip(on_gpu, PackedBatchDataset(pack, 16, order="rows", augment=stack), strict=True):
        assert torch.allclose(gpu.image.cpu(), cpu.image, atol=1e-6)
