"""benchmarks/loaders.py runs, compares what every lane delivers with the pack, and names what is missing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def loaders(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    pytest.importorskip("torch")
    made: ModuleType = pytest.importorskip("loaders")
    monkeypatch.setattr(made, "WATCHED_SECONDS", 0.0)
    monkeypatch.setattr(made, "LIMIT_SECONDS", 0.0)
    return made


@pytest.fixture
def copy_alone(loaders: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside lanes no more than the copy limit: each process imports torch, which takes seconds."""
    monkeypatch.setattr(loaders, "in_every_group", lambda threads: (loaders.COPY.format(threads),))


@pytest.fixture
def rows(loaders: ModuleType) -> Any:
    from lanes.lane import Rows

    draws = np.random.default_rng(0)
    return Rows(draws.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8), draws.permutation(20))


@pytest.mark.soak
def test_lanes_are_measured_checked_and_kept(
    loaders: ModuleType, photo_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work, found = tmp_path / "work", tmp_path / "found.json"
    arguments = [str(photo_folder), "--work", str(work), "--images", "30", "--size", "16", "--batch", "8"]
    arguments += ["--rounds", "2", "--seconds", "0", "--workers", "0,1", "--touch", "--json", str(found)]
    assert loaders.main([*arguments, "--only", "jpeg rows,mm[idx]"]) == 0
    printed = capsys.readouterr().out
    assert "30 images of 16 px, batches of 8" in printed
    assert "the consumer reads every byte once" in printed
    assert re.search(r"^\| packer h5 slices +\|  \| [\d,]+ \|", printed, re.M)
    record = json.loads(found.read_text())
    copy, *names = record["lanes"]
    assert copy.startswith("copy limit")
    assert names == ["gather limit", "packer h5 slices", "packer h5 rows", "packer jpeg rows", "npy mm[idx]"]
    for name in names[3:]:
        assert [run["images"] for run in record["lanes"][name]["runs"]] == [30, 30]
    assert record["lanes"]["npy mm[idx]"]["workers"] in (0, 1)
    assert record["lanes"]["packer jpeg rows"]["fidelity"]["least_db"] > 20
    assert record["lanes"]["packer h5 slices"]["fidelity"] == {}
    assert record["lanes"]["packer h5 slices"]["own"] > 10 or sys.platform != "linux"
    assert str(tmp_path) not in found.read_text()
    stores = sorted(path.name for path in (work / "30-16px").iterdir() if not path.name.endswith(".log"))
    assert stores == ["labels.csv", "packer", "packer-jpeg.h5", "packer.h5", "photos"]


@pytest.mark.usefixtures("copy_alone")
def test_missing_peers_are_named(
    loaders: ModuleType,
    photo_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = loaders.interpreters

    def without_peers(paths: Any, lanes: Any) -> Any:
        this = known(paths, lanes)[0]
        modules = {
            name: version for name, version in this.modules.items() if name not in ("streaming", "ffcv")
        }
        return [loaders.Interpreter(this.path, modules)]

    monkeypatch.setattr(loaders, "interpreters", without_peers)
    arguments = [str(photo_folder), "--work", str(tmp_path), "--images", "24", "--size", "16"]
    assert loaders.main([*arguments, "--rounds", "1", "--seconds", "0", "--only", "MDS,ffcv raw"]) == 0
    printed = capsys.readouterr().out
    assert "mosaicml MDS: not installed together: pip install torch mosaicml-streaming\n" in printed
    assert "ffcv raw: not installed together: pip install torch ffcv\n" in printed


def batches(rows: Any, order: Any) -> Any:
    return [(rows.images[part], rows.labels[part]) for part in np.array_split(np.asarray(order), 3)]


def test_content_that_is_right_passes(rows: Any) -> None:
    import torch
    from lanes.content import check

    order = np.random.default_rng(1).permutation(20)
    assert check(batches(rows, order), rows, exact=True) == {}
    tensors = [
        (torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels)[:, None])
        for images, labels in batches(rows, order)
    ]
    assert check(tensors, rows, exact=False) == {"least_db": 100.0, "mean_db": 100.0}


def test_content_that_is_wrong_is_found(rows: Any) -> None:
    from lanes.content import check

    with pytest.raises(ValueError, match="1 rows were missing, 1 came more than once"):
        check(batches(rows, [0, *range(19)]), rows, exact=True)
    images = rows.images.copy()
    images[7, 0, 0, 0] ^= 1
    one = [(images, rows.labels)]
    with pytest.raises(ValueError, match=f"the pixels with label {rows.labels[7]} are not those of the pack"):
        check(one, rows, exact=True)
    assert check(one, rows, exact=False)["least_db"] > 40
    with pytest.raises(ValueError, match="dB from the pack's"):
        check([(rows.images, np.roll(rows.labels, 1))], rows, exact=False)
    with pytest.raises(ValueError, match="label 20 does not exist"):
        check([(rows.images, np.full(20, 20))], rows, exact=True)
    with pytest.raises(ValueError, match="a batch has 20 images and 19 labels"):
        check([(rows.images, rows.labels[1:])], rows, exact=True)


@pytest.mark.usefixtures("copy_alone")
def test_a_lane_that_fails_is_told_and_the_others_go_on(
    loaders: ModuleType, photo_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import h5py
    from lanes import photos
    from lanes.lane import Rows

    work = tmp_path / "24-16px"
    photos.gather(str(photo_folder), 24, str(work), 1)
    photos.pack(str(work), 16)
    loaders.STORES["packer.h5"].write(Rows.of(str(work)), str(work / "packer.h5"))
    with h5py.File(work / "packer.h5", "r+") as file:
        file["image"][5, 3, 2, 1] ^= 1
        label = int(file["label"][5])
    arguments = f"--work {tmp_path} --images 24 --size 16 --rounds 1 --seconds 0 --workers 0".split()
    arguments += [str(photo_folder), "--only", "h5py slices"]
    assert loaders.main(arguments) == 1
    printed = capsys.readouterr().out
    assert (
        f"h5py slices: FAILED: ValueError: the pixels with label {label} are not those of the pack\n"
        in printed
    )
    assert "| copy limit" in printed


def test_every_byte_is_touched(loaders: ModuleType) -> None:
    import torch
    from lanes.content import touch

    images = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    assert touch(images) == int(images.reshape(-1).view(np.int64).sum())
    assert touch(torch.from_numpy(images).permute(0, 3, 1, 2)) == touch(images)


def test_ratios_are_of_the_same_round(loaders: ModuleType) -> None:
    from lanes import report

    def found(*rates: int) -> Any:
        runs = [report.Run(rate, 1.0, [0.002], 0.5, copy=10.0) for rate in rates]
        return report.Found(None, runs=runs)

    lanes = {"packer h5 slices": found(6, 9, 12), "ffcv raw": found(3, 9, 4)}
    assert report.ratio(lanes, "packer h5 slices", "ffcv raw") == 2
    assert report.ratio(lanes, "packer h5 rows", "ffcv raw") is None
    for run, rate in zip(lanes["ffcv raw"].runs, (30, 18, 20), strict=True):
        run.beside["packer h5 slices"] = rate
    assert report.ratio(lanes, "packer h5 slices", "ffcv raw") == 5
    assert report.ratio(lanes, "ffcv raw", "packer h5 slices") == 0.2
    assert report.table(lanes).splitlines()[3].split(" | ")[2:6] == ["4", "150%", "0.200", "0.400"]


def test_turned_photos_are_all_different(loaders: ModuleType) -> None:
    from lanes.photos import TURNS

    corner = np.arange(3 * 2 * 3, dtype=np.uint8).reshape(3, 2, 3)
    assert len({(turn(corner).shape, turn(corner).tobytes()) for turn in TURNS}) == 8


def test_memory_counts_the_processes_below(loaders: ModuleType) -> None:
    from lanes.process import below, memory

    if sys.platform != "linux":
        pytest.skip("needs /proc")
    alone = memory(os.getpid()).own
    holds = "held = bytearray(b'1') * (64 << 20); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", holds], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in below(os.getpid())
        assert memory(os.getpid()).own > alone + 50
        child.communicate(b"\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--images", "500"], "holds 24 JPEGs; 500 images need an eighth as many. Pass fewer --images."),
        (
            ["--images", "24", "--only", "zip"],
            "--only zip: no lane has that in its name; there are copy limit",
        ),
    ],
)
def test_wrong_usage_is_a_sentence(
    loaders: ModuleType,
    photo_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    with pytest.raises(SystemExit):
        loaders.main([str(photo_folder), "--work", str(tmp_path), *arguments])
    assert message in capsys.readouterr().err
