"""examples/train_images.py: it learns, judges on a test pack or a split, and refuses what it cannot train on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from packer import convert_images
from tests.conftest import Script

EPOCH = re.compile(
    r"epoch (\d): loss (\d\.\d{3}), accuracy (\d+\.\d)%, [\d,]+ images/s, \d+\.\d% of the time waiting for data"
    r", accuracy on .*test\.h5 (\d+\.\d)%"
)


@pytest.mark.parametrize("size", [16, pytest.param(64, marks=pytest.mark.soak)])
def test_it_learns_and_says_how_fast(script: Script, photo_folder: Path, tmp_path: Path, size: int) -> None:
    pack, test = tmp_path / "train.h5", tmp_path / "test.h5"
    convert_images(photo_folder, pack, size=size)
    convert_images(photo_folder, test, size=size)
    arguments = ("--test", test, "--epochs", "8", "--batch-size", "8", "--device", "cpu")
    run = script("examples/train_images.py", pack, *arguments)
    assert run.returncode == 0, run.stderr
    epochs = [EPOCH.fullmatch(line) for line in run.stdout.splitlines()]
    assert all(epochs)
    assert [match[1] for match in epochs if match] == list("12345678")
    first, last = epochs[0], epochs[-1]
    assert first is not None
    assert last is not None
    assert float(last[2]) < float(first[2])
    assert float(last[4]) > 60  # three classes: guessing gives 33 %


def test_a_pack_without_class_names_is_refused(script: Script, photo_folder: Path, tmp_path: Path) -> None:
    pack = tmp_path / "flat.h5"
    convert_images(photo_folder / "red", pack, size=16)
    run = script("examples/train_images.py", pack)
    assert run.returncode == 1
    assert run.stderr == f"{pack}: its labels have no class names; this example needs them.\n"


def test_packs_of_other_classes_are_refused(script: Script, photo_folder: Path, tmp_path: Path) -> None:
    pack, test = tmp_path / "train.h5", tmp_path / "test.h5"
    convert_images(photo_folder, pack, size=16)
    convert_images(photo_folder, test, size=16, classes="blue,red,green")
    run = script("examples/train_images.py", pack, "--test", test)
    assert run.returncode == 1
    assert run.stderr.startswith(f"{test}: class 1 is 'red', and 'green' in {pack}; ")


def test_of_a_pack_with_splits_it_trains_on_one_and_judges_on_the_other(
    script: Script, photo_folder: Path, tmp_path: Path
) -> None:
    pack = tmp_path / "all.h5"
    convert_images(photo_folder, pack, size=16, split="train=0.75,val=0.25")
    arguments = ("--test", pack, "--epochs", "1", "--batch-size", "6", "--device", "cpu")
    run = script("examples/train_images.py", pack, *arguments)
    assert (run.returncode, run.stderr) == (0, "")  # no warning that rows of all splits are loaded
    assert re.search(r"accuracy on .*all\.h5 \d+\.\d%", run.stdout)
