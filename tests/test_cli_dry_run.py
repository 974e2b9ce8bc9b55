"""packer convert --dry-run: what would be packed is printed, and nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from packer import convert_images, convert_table, pack_dataset
from packer.cli import cli
from packer.errors import UsageError

Captured = pytest.CaptureFixture[str]


def dry_run(*words: object) -> int:
    """Run the command; return its exit code."""
    code = cli.main(["convert", *map(str, words), "--dry-run"], standalone_mode=False)
    return int(code or 0)


@pytest.fixture
def pets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two splits of two classes with masks, in the working folder."""
    monkeypatch.chdir(tmp_path)
    for split, count in (("train", 3), ("val", 1)):
        for number, name in enumerate(("cat", "dog")):
            for k in range(count):
                for folder, mode in (("pets", "RGB"), ("masks", "L")):
                    path = Path(folder, split, name, f"{k}.png")
                    path.parent.mkdir(parents=True, exist_ok=True)
                    Image.new(mode, (8, 8), number + 1).save(path)
    return tmp_path


def test_images_by_split_and_class(pets: Path, capsys: Captured) -> None:
    before = sorted(pets.rglob("*"))
    assert dry_run("pets", "a.h5", "--size", 8, "--pair", "mask=masks") == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("  class  train  val  examples")
    assert lines[at + 1 : at + 3] == [
        "  cat        3    1  train/cat/0.png, train/cat/1.png, train/cat/2.png",
        "  dog        3    1  train/dog/0.png, train/dog/1.png, train/dog/2.png",
    ]
    assert lines[at + 3 :] == [
        "fields:",
        "  image  u1  8x8x3 (layout HWC, color rgb, fit crop)",
        "  label  i8  one a row",
        "  mask   u1  8x8 (layout HW, fit crop, sampling nearest)",
        "  key    u1  bytes of any length (encoding utf-8)",
        "mask: train/cat/0.png with train/cat/0.png; train/cat/1.png with train/cat/1.png",
        "nothing was written; without --dry-run a.h5 is",
    ]
    assert sorted(pets.rglob("*")) == before


def test_json_holds_the_same(pets: Path, capsys: Captured) -> None:
    assert dry_run("pets", "a.h5", "--size", 8, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["dry_run"], said["rows"], said["out"]) == (True, 8, "a.h5")
    assert said["groups"]["val"]["dog"] == {"rows": 1, "examples": ["val/dog/0.png"]}
    assert said["findings"] == []


def test_a_dry_run_fails_as_the_conversion_would(pets: Path, capsys: Captured) -> None:
    (pets / "pets" / "val" / "cat").rename(pets / "pets" / "val" / "cats")
    with pytest.raises(UsageError, match="split val has 1 class that train lacks: cats") as error:
        dry_run("pets", "a.h5", "--size", 8)
    assert "  cats       0    1  val/cats/0.png" in capsys.readouterr().out.splitlines()
    with pytest.raises(UsageError) as same:
        convert_images("pets", "a.h5", size=8)
    assert str(same.value) == str(error.value)
    report = convert_images("pets", "a.h5", size=8, classes="cat,cats,dog", dry_run=True)
    assert (report.rows, Path("a.h5").exists()) == (8, False)


def test_inputs_that_would_be_skipped(pets: Path, capsys: Captured) -> None:
    (pets / "pets" / "train" / "eel").mkdir()
    assert dry_run("pets", "a.h5", "--size", 8, "--on-error", "skip") == 3
    assert capsys.readouterr().err.splitlines() == [
        "would skip 1 input:",
        "  train/eel: a class folder without images.",
    ]


def test_several_classes_an_image_and_none(pets: Path, capsys: Captured) -> None:
    Path("l.csv").write_text("file,label\n0.png,a b\n1.png,b\n2.png,\n")
    args = ("pets/train/cat", "a.h5", "--size", 8, "--labels", "l.csv", "--label", "label")
    assert dry_run(*args, "--label-separator", "space", "--json") == 0
    groups = json.loads(capsys.readouterr().out)["groups"][""]
    assert {name: group["rows"] for name, group in groups.items()} == {"a": 1, "b": 2, "(no class)": 1}


def test_tables_and_arrays(pets: Path, capsys: Captured) -> None:
    Path("t.csv").write_text("x,when,y\n1.5,2020-01-02,cat\n2,2020-01-03,dog\n")
    assert dry_run("t.csv", "a.h5", "--label", "y") == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("  column  type      role")
    assert lines[at + 1 : at + 4] == [
        "  x       number    features",
        "  when    date      features",
        "  y       category  label",
    ]
    np.savez("a.npz", images=np.zeros((5, 4, 4, 3), np.uint8), labels=np.arange(5))
    with h5py.File("b.h5", "w") as file:
        file["x"] = np.zeros((5, 3), np.float32)
    for name in ("a.npz", "b.h5"):
        assert dry_run(name, "out.h5") == 0
        assert capsys.readouterr().out.splitlines()[-1] == "nothing was written; without --dry-run out.h5 is"
    assert convert_table("t.csv", "a.h5", label="y", dry_run=True).out == "a.h5"
    assert pack_dataset({"x": np.zeros((5, 3))}, "a.h5", dry_run=True).rows == 5
    assert sorted(path.suffix for path in pets.iterdir()) == ["", "", ".csv", ".h5", ".npz"]
