"""Training while the pack is filled: the same batches as from the whole pack, interrupted or not, in every order."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer import Blocks, PackedBatchDataset, fill_pack
from packer.augment import Pipeline
from packer.convert.image_conversion import convert_images
from packer.errors import SourceError, UsageError
from packer.filling import opening
from packer.load.sampled_statistics import sampled_statistics
from packer.packs import filling_pack
from packer.packs.filling_pack import FillingPack
from packer.packs.pack_opening import open_pack
from tests.filling.conftest import ROWS
from tests.format.packs import files_of
from tests.load.conftest import ORDERS


def batches(dataset: PackedBatchDataset, first: int | None = None) -> list[Any]:
    """Return the next epoch's batches, or the first few."""
    found = []
    for batch in dataset:
        found.append(
            [np.array(array if isinstance(array, list | np.ndarray) else array.numpy()) for array in batch]
        )
        if len(found) == first:
            break
    return found


def same(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(
        np.array_equal(a, b)
        for one, other in zip(some, others, strict=True)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("order", ORDERS)
def test_the_batches_are_those_of_the_whole_pack(
    images: Path, whole: Path, tmp_path: Path, order: str
) -> None:
    chosen = {"batch_size": 10, "order": order, "seed": 3, "output": "numpy"}
    with (
        PackedBatchDataset(whole, **chosen) as expected,
        PackedBatchDataset(fill_pack(images, tmp_path / "p.h5"), **chosen) as dataset,
    ):
        assert len(dataset) == len(expected)
        assert dataset.targets == expected.targets
        assert dataset.keys == expected.keys
        for _ in range(3):
            assert same(batches(dataset), batches(expected))
    assert (tmp_path / "p.h5").read_bytes() == whole.read_bytes()
    assert dataset.pack.settled().sealed


def test_after_the_first_epoch_it_is_an_ordinary_pack(images: Path, tmp_path: Path) -> None:
    with PackedBatchDataset(fill_pack(images, tmp_path / "p.h5"), 32, output="numpy") as dataset:
        batches(dataset)
        dataset.close()  # waits until the pack has its name
        batches(dataset)
        assert dataset.pack.sealed
        assert dataset.keys == open_pack(tmp_path / "p.h5").keys()


def test_interrupted_it_goes_on_with_the_rest_of_the_epoch(images: Path, whole: Path, tmp_path: Path) -> None:
    chosen = {"batch_size": 10, "shuffle": True, "seed": 1, "output": "numpy"}
    with PackedBatchDataset(whole, 10, seed=1, output="numpy") as ordinary:  # the order of its first epoch
        expected = batches(ordinary)
    with PackedBatchDataset(fill_pack(images, tmp_path / "p.h5"), **chosen) as dataset:
        begun = batches(dataset, 4)
        state = json.loads(json.dumps(dataset.state_dict()))
    assert same(begun, expected[:4])
    with PackedBatchDataset(fill_pack(images, tmp_path / "p.h5"), **chosen) as dataset:
        dataset.load_state_dict(state)
        assert same(batches(dataset), expected[4:])
    with PackedBatchDataset(
        tmp_path / "p.h5", **chosen
    ) as dataset:  # the state is good for the whole pack, too
        dataset.load_state_dict(state)
        assert same(batches(dataset), expected[4:])


TRAIN = """
import json, os, sys
import numpy as np
from packer import PackedBatchDataset, fill_pack

images, out, log = sys.argv[1:]
dataset = PackedBatchDataset(fill_pack(images, out), 8, shuffle=True, seed=5, output="numpy")
lines = []
if os.path.exists(log):
    with open(log) as file:
        lines = [line for line in file if line.endswith("\\n")]
    if lines:
        dataset.load_state_dict(json.loads(lines[-1])[1])
with open(log, "a") as file:
    for image, label in dataset if len(lines) < len(dataset) else ():  # else it was killed at its very end
        file.write(json.dumps([int(image.astype(np.uint64).sum()), dataset.state_dict()]) + "\\n")
        file.flush()
dataset.close()
"""


def test_killed_at_any_moment_it_gives_the_same_batches_and_the_same_file(
    images: Path, whole: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", TRAIN, str(images), str(tmp_path / "p.h5"), str(log)]
    for lines in (1, 3, 6):
        running = subprocess.Popen(command)
        while running.poll() is None and (not log.exists() or log.read_text().count("\n") < lines):
            time.sleep(0.002)
        running.send_signal(signal.SIGKILL)
        running.wait()
    subprocess.run(command, check=True)
    with PackedBatchDataset(whole, 8, output="numpy") as dataset:
        expected = [int(image.astype(np.uint64).sum()) for image, _ in dataset]
    # A batch that was handed out just before the kill may not have been noted; none is twice in the notes, or missing.
    assert [json.loads(line)[0] for line in log.read_text().splitlines()] == expected
    assert (tmp_path / "p.h5").read_bytes() == whole.read_bytes()


def test_splits_classes_subset_and_views_work_meanwhile(images: Path, whole: Path, tmp_path: Path) -> None:
    for chosen in (
        {"classes": "dog"},
        {"subset": range(7, 80, 3)},
        {"order": Blocks(window=20, block=5), "fields": ["label", "image", "row", "key"]},
    ):
        with (
            PackedBatchDataset(whole, 9, output="numpy", **chosen) as expected,
            PackedBatchDataset(fill_pack(images, tmp_path / "p.h5"), 9, output="numpy", **chosen) as dataset,
        ):
            assert same(batches(dataset), batches(expected))


def test_a_split_of_the_conversion(images: Path, tmp_path: Path) -> None:
    convert_images(images, tmp_path / "made.h5", split="train=0.75,val=0.25", seed=2)
    chosen = {"batch_size": 9, "split": "val", "output": "numpy"}
    with (
        PackedBatchDataset(tmp_path / "made.h5", **chosen) as expected,
        PackedBatchDataset(
            fill_pack(images, tmp_path / "p.h5", split="train=0.75,val=0.25", seed=2), **chosen
        ) as dataset,
    ):
        assert same(batches(dataset), batches(expected))


@pytest.mark.parametrize("placement", ["ram", "disk"])
def test_placements(images: Path, whole: Path, tmp_path: Path, placement: str) -> None:
    with (
        PackedBatchDataset(whole, 10, output="numpy") as expected,
        PackedBatchDataset(
            fill_pack(images, tmp_path / "p.h5"), 10, output="numpy", placement=placement
        ) as dataset,
    ):
        for _ in range(2):
            assert same(batches(dataset), batches(expected))


def double(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "label": 2 * sample["label"]}


def test_a_python_transform_in_processes(images: Path, whole: Path, tmp_path: Path) -> None:
    with (
        PackedBatchDataset(whole, 10, output="numpy", transform=double) as expected,
        PackedBatchDataset(
            fill_pack(images, tmp_path / "p.h5"), 10, output="numpy", transform=double
        ) as dataset,
    ):
        assert same(batches(dataset), batches(expected))


def test_workers_of_a_dataloader(images: Path, whole: Path, tmp_path: Path) -> None:
    from torch.utils.data import DataLoader

    with (
        PackedBatchDataset(whole, 10) as expected,
        PackedBatchDataset(fill_pack(images, tmp_path / "p.h5"), 10) as dataset,
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
        loader = DataLoader(dataset.dataset, batch_size=10, num_workers=2)
        found = [[array.numpy() for array in batch] for batch in loader]
        assert same(found, batches(expected))


def test_rows_one_by_one(images: Path, whole: Path, tmp_path: Path) -> None:
    with (
        PackedBatchDataset(whole, 10) as expected,
        PackedBatchDataset(fill_pack(images, tmp_path / "p.h5"), 10) as dataset,
    ):
        assert all(
            np.array_equal(a, b)
            for row in (0, 95, 17)
            for a, b in zip(dataset.dataset[row], expected.dataset[row], strict=True)
        )


def test_the_sample_is_of_the_split_train(images: Path, tmp_path: Path) -> None:
    chosen = {"batch_size": 32, "augment": "Normalize()", "split": "val"}
    made = fill_pack(images, tmp_path / "p.h5", split="train=0.5,val=0.5")
    with PackedBatchDataset(made, **chosen) as dataset:
        list(dataset)
        sample = dataset.state_dict()["normalization"]
    made.settled()
    with PackedBatchDataset(made, **(chosen | {"split": "train"})) as dataset:
        list(dataset)
    header = open_pack(tmp_path / "p.h5").header
    assert np.allclose(sample["mean"], header.train_statistics["image"]["mean"])
    assert not np.allclose(sample["mean"], header.statistics["image"]["mean"])


@pytest.mark.parametrize("kind", [str, Pipeline])
def test_normalize_means_a_sample_that_the_state_carries(
    images: Path, whole: Path, tmp_path: Path, kind: Callable[[str], Any]
) -> None:
    exact = open_pack(whole).header.statistics["image"]
    chosen = {"batch_size": 32, "augment": kind("Normalize()"), "shuffle": True}
    with PackedBatchDataset(fill_pack(images, tmp_path / "p.h5"), **chosen) as dataset:
        sample = dataset.state_dict()["normalization"]
        # All rows are fewer than the sample: it is exact, but for rounding.
        assert np.allclose(sample["mean"], exact["mean"])
        assert np.allclose(sample["std"], exact["std"])
        batches(dataset)
        first = batches(dataset)
        state = dataset.state_dict()
        assert state["normalization"] == sample
    with PackedBatchDataset(
        fill_pack(images, tmp_path / "p.h5"), **chosen
    ) as dataset:  # of the whole pack, too
        assert dataset.state_dict()["normalization"] == sample
    with PackedBatchDataset(tmp_path / "p.h5", **chosen) as dataset:
        assert "normalization" not in dataset.state_dict()
        dataset.set_epoch(1)
        assert all(np.allclose(a[0], b[0], atol=1e-5) for a, b in zip(batches(dataset), first, strict=True))
    with PackedBatchDataset(tmp_path / "p.h5", **chosen) as dataset:
        other = {"mean": [0.5, 0.4, 0.3], "std": [1.0, 1.0, 1.0]}
        dataset.load_state_dict({**state, "epoch": 0, "rows": 0, "normalization": other})
        assert dataset.state_dict()["normalization"] == other
        image = batches(dataset, 1)[0][0]
    with PackedBatchDataset(tmp_path / "p.h5", 32) as dataset:  # the order of the state's epoch 0
        raw = batches(dataset, 1)[0][0]
    assert np.allclose(image, raw / 255 - np.array([0.5, 0.4, 0.3]).reshape(3, 1, 1), atol=1e-5)


def test_normalize_of_a_pack_that_is_sealed_in_this_moment(images: Path, whole: Path, tmp_path: Path) -> None:
    chosen = {"batch_size": 32, "augment": "Normalize()"}
    pack = fill_pack(images, tmp_path / "p.h5")
    if isinstance(pack, FillingPack):
        pack.units.wait(ROWS + 1)
    with PackedBatchDataset(whole, **chosen) as expected, PackedBatchDataset(pack, **chosen) as dataset:
        assert same(batches(dataset), batches(expected))


def test_two_datasets_of_one_pack_close_it_apart(images: Path, whole: Path, tmp_path: Path) -> None:
    pack = fill_pack(images, tmp_path / "p.h5")
    assert pack.rows == ROWS
    with (
        PackedBatchDataset(whole, 8, output="numpy") as expected,
        PackedBatchDataset(pack, 8, output="numpy", shuffle=True) as first,
    ):
        got = iter(first)
        found = [next(got)]
        for _ in range(2):
            with PackedBatchDataset(pack, 8, output="numpy", subset=[0, 5]) as other:
                assert len(batches(other)[0][0]) == 2
        assert same([*found, *got], batches(expected))


def test_rows_of_the_pack_itself_are_waited_for(images: Path, whole: Path, tmp_path: Path) -> None:
    pack, expected = fill_pack(images, tmp_path / "p.h5"), open_pack(whole)
    assert np.array_equal(pack.read("image", 5, 9), expected.read("image", 5, 9))
    assert np.array_equal(pack.read("image"), expected.read("image"))
    pack.close()


def test_the_sample_is_the_same_in_every_run(images: Path, tmp_path: Path) -> None:
    found = []
    for name in ("a.h5", "b.h5"):
        with PackedBatchDataset(fill_pack(images, tmp_path / name), 8) as dataset:
            found.append(sampled_statistics(dataset.pack))
    assert found[0] == found[1]
    assert found[0] is not None


def test_a_bad_image_ends_the_loop(images: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "cat").mkdir(parents=True)
    for path in (images / "cat").iterdir():
        (source / "cat" / path.name).write_bytes(path.read_bytes())
    (source / "cat" / "3.jpg").write_bytes(b"no image")
    with (
        pytest.raises(SourceError, match=r"cat/3\.jpg: .* pass on_error='skip'"),
        PackedBatchDataset(fill_pack(source, tmp_path / "p.h5"), 8, output="numpy") as dataset,
    ):
        batches(dataset)
    with PackedBatchDataset(
        fill_pack(source, tmp_path / "p.h5", on_error="skip"), 8, output="numpy"
    ) as dataset:
        assert sum(len(batch[0]) for batch in batches(dataset)) == ROWS // 2 - 1


def test_a_table_is_converted_first(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"{i},{i * 2}\n" for i in range(100)))
    for _ in range(2):
        with PackedBatchDataset(
            fill_pack(tmp_path / "t.csv", tmp_path / "t.h5", label="b"), 30, output="numpy"
        ) as dataset:
            assert sum(len(batch[0]) for batch in batches(dataset)) == 100
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"sise": 2}, r"sise=: is not an option of convert_images"),
        ({"shard_size": "1GB"}, r"shard_size=: is not an option of convert_images; pass shards=\"2GB\""),
        ({"overwrite": True}, r"overwrite=: is not an option of fill_pack"),
        ({"only_shards": "1/2"}, r"only_shards=: is not an option of fill_pack"),
        ({"labels": 7}, r"labels=7: is not the path of a file of labels"),
        ({"labels": object()}, r"labels=: <object .*> cannot be sent to the process that fills the pack"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    images: Path, tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        fill_pack(images, tmp_path / "p.h5", **options)


def test_files_of_npy(images: Path, tmp_path: Path) -> None:
    convert_images(images, tmp_path / "made")
    with PackedBatchDataset(fill_pack(images, tmp_path / "p"), 8, output="numpy") as dataset:
        batches(dataset)
    assert files_of(tmp_path / "p") == files_of(tmp_path / "made")


def test_a_second_loop_does_not_end_the_first_when_the_pack_is_whole(
    images: Path, whole: Path, tmp_path: Path
) -> None:
    with (
        PackedBatchDataset(whole, 8, output="numpy", order="rows") as expected,
        PackedBatchDataset(fill_pack(images, tmp_path / "p.h5"), 8, output="numpy", order="rows") as dataset,
    ):
        found: list[list[Any]] = []
        for one in (expected, dataset):
            first = iter(one)
            got = [next(first)]
            if isinstance(one.pack, FillingPack):
                one.pack.units.wait(ROWS + 1)
            second = iter(one)
            got += [next(second), *first, *second]
            found.append(got)
        assert same(*found)
        assert same(batches(dataset), batches(expected))
        assert not isinstance(dataset.pack, FillingPack)


def test_what_a_process_left_that_was_killed_after_naming_the_pack_is_removed(
    images: Path, whole: Path, tmp_path: Path
) -> None:
    out, work = tmp_path / "p.h5", tmp_path / "p.h5.packing"

    def stop(done: int) -> None:
        if done > ROWS // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_images(images, out, workers=1, on_progress=stop)
    (work / "pack").unlink()
    out.write_bytes(whole.read_bytes())
    with PackedBatchDataset(fill_pack(images, out), 8, output="numpy") as dataset:
        assert not isinstance(dataset.pack, FillingPack)
    end = time.monotonic() + 20
    while work.exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert not work.exists()


def test_epoch_0_of_shuffle_is_the_order_of_the_pack_then_and_later(
    images: Path, whole: Path, tmp_path: Path
) -> None:
    chosen = {"batch_size": 7, "output": "numpy", "seed": 3}
    with (
        PackedBatchDataset(whole, **chosen) as stored,
        PackedBatchDataset(whole, shuffle=True, **chosen) as shuffled,
    ):
        shuffled.set_epoch(1)
        expected = batches(stored), batches(shuffled)
    for _ in range(2):  # while it is filled, and when it is complete
        with PackedBatchDataset(fill_pack(images, tmp_path / "p.h5"), shuffle=True, **chosen) as dataset:
            assert "Sequential()" in repr(dataset)
            found = batches(dataset), batches(dataset)
            assert dataset.state_dict()["order"]["stored_first"]
        assert all(map(same, found, expected))


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({"shuffle": False}, {"shuffle": True}),
        ({}, {"shuffle": True, "subset": [5, 3, 90]}),
        ({}, {"order": "rows"}),
    ],
)
def test_other_orders_wait_for_their_rows_and_say_so_once(
    images: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    chosen: dict[str, Any],
) -> None:
    monkeypatch.setattr(filling_pack, "_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(opening, "MODULE", "tests.filling.slow_process")
    convert_images(images, tmp_path / "made.h5", **options)
    with (
        PackedBatchDataset(tmp_path / "made.h5", 2, output="numpy", **chosen) as expected,
        PackedBatchDataset(
            fill_pack(images, tmp_path / "p.h5", **options), 2, output="numpy", **chosen
        ) as dataset,
    ):
        for _ in range(2):
            assert same(batches(dataset), batches(expected))
    assert caplog.text.count("in the order of the pack, which shuffle=True takes in epoch 0") == 1


def test_two_ranks_share_the_global_batches_of_the_first_epoch(
    images: Path, whole: Path, tmp_path: Path
) -> None:
    pack = fill_pack(images, tmp_path / "p.h5", shards=40)
    ranks = [
        PackedBatchDataset(
            pack, 8, shuffle=True, fields=["label", "row"], output="numpy", rank=rank, world_size=2
        )
        for rank in range(2)
    ]
    found = [[batch.row.tolist() for batch in dataset] for dataset in ranks]
    assert [a + b for a, b in zip(*found, strict=True)] == np.arange(ROWS).reshape(-1, 16).tolist()
    for dataset in ranks:
        dataset.close()
