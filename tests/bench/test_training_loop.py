"""packer.bench.training_loop: scripts as users write them, run and measured."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from packer import convert_images
from packer.bench.training_loop import measure_script, rows_of, stage_of
from packer.errors import PackerError, UsageError

SECONDS = 0.2
HEAD = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset
from packer import PackedBatchDataset, PythonTransform


class Slow(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, row):
        return torch.full((4,), float(slowly(row))), 1


def slowly(row):
    return sum(range(100_000)) % 7


def by_hand(sample):
    time.sleep(0.01)
    return {**sample, "image": sample["image"] // 2}
"""


def script(folder: Path, body: str) -> str:
    path = folder / "train it.py"  # with a blank
    path.write_text(HEAD + body)
    return shlex.quote(str(path))


def test_a_step_that_is_slower_than_its_loader(photo_folder: Path, tmp_path: Path) -> None:
    convert_images(photo_folder, tmp_path / "p.h5", size=16)
    body = f"""
batches = PackedBatchDataset({str(tmp_path / "p.h5")!r}, 4)
assert sys.argv[1:] == ["--epochs", "many"]
while True:
    for batch in batches:
        time.sleep(0.02)
"""
    found = measure_script(script(tmp_path, body) + " --epochs many", SECONDS)
    assert found.loader == "PackedBatchDataset"
    assert found.waiting < 0.5
    assert 0.5 < found.rate / found.step_rate < 2


def test_a_function_in_python(photo_folder: Path, tmp_path: Path) -> None:
    convert_images(photo_folder, tmp_path / "p.h5", size=16)
    body = f"""
if __name__ == "__main__":
    transform = PythonTransform(by_hand, processes=1)
    batches = PackedBatchDataset({str(tmp_path / "p.h5")!r}, 4, transform=transform)
    while True:
        try:
            for batch in batches:
                pass
        except Exception:
            raise SystemExit("measured, not caught")
"""
    found = measure_script(script(tmp_path, body), SECONDS)
    assert found.limit == "transform"
    assert found.waiting > 0.5
    assert found.step_rate > 2 * found.rate


def test_a_dataloader_is_looked_into(tmp_path: Path) -> None:
    """One for each epoch, as some write it; another one is used for two batches before."""
    body = """
data = Slow()
for batch, _ in zip(DataLoader(Slow(), batch_size=2), range(2)):
    pass
while True:
    for batch, labels in DataLoader(data, batch_size=8, shuffle=True):
        assert batch.shape == (8, 4)
"""
    found = measure_script(script(tmp_path, body), SECONDS)
    assert found.loader == "DataLoader"
    assert found.limit == "Python"
    assert found.waiting > 0.5


def test_scripts_that_cannot_be_measured_are_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"script 'none\.py --x': is no file"):
        measure_script("none.py --x", SECONDS)
    with pytest.raises(
        PackerError, match=r"train it\.py: ended with exit code 1: .*no such data\. To see all"
    ):
        measure_script(script(tmp_path, "raise SystemExit('no such data')"), SECONDS)
    with pytest.raises(
        PackerError, match=r"train it\.py: took fewer than 21 batches \(or less than .* s\) .* Pass"
    ):
        measure_script(script(tmp_path, "list(DataLoader(Slow(), batch_size=32))"), SECONDS)


def test_rows_of_batches() -> None:
    assert rows_of(([[1, 2, 3], [4, 5, 6]], [0, 1])) == 3
    assert rows_of({"image": range(5), "label": 3}) == 5
    assert rows_of(7) == 1


@pytest.mark.parametrize(
    ("function", "stage"),
    [
        ("<method 'decode' of 'ImagingDecoder' objects>", "decoding"),
        ("<built-in method imread>", "decoding"),
        ("<method 'read' of '_io.BufferedReader' objects>", "reading"),
        ("<built-in method posix.stat>", "reading"),
        ("<method 'resize' of 'ImagingCore' objects>", "resizing"),
        ("<built-in method builtins.sum>", "Python"),
    ],
)
def test_stages_of_functions(function: str, stage: str) -> None:
    assert stage_of(function) == stage
