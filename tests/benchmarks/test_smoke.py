"""benchmarks/converters.py runs, counts what was written, and names what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "converters.py"


@pytest.fixture
def converters(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return pytest.importorskip("converters")


def bench(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PACKER_DATA"}
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment | {"PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)},
    )


def test_packer_and_h5py_convert_an_archive_and_leave_nothing_behind(
    photo_folder: Path, tmp_path: Path
) -> None:
    with tarfile.open(tmp_path / "photos.tar", "w") as archive:
        archive.add(photo_folder, "train")
    found = tmp_path / "found.json"
    arguments = ["--size", "16", "--rounds", "1", "--only", "h5py", "--json", str(found)]
    done = bench(tmp_path, str(tmp_path / "photos.tar" / "train"), *arguments)
    assert done.returncode == 0, done.stderr
    assert "24 photos to 16 px, 2 workers; 1 rounds, interleaved" in done.stdout
    runs = json.loads(found.read_text())["runs"]
    assert list(runs) == ["bare decode", "packer", "h5py"]
    assert [run["images"] for ways in runs.values() for run in ways] == [24, 24, 24]
    assert runs["h5py"][0]["bytes"] > 24 * 16 * 16 * 3
    assert list((tmp_path / "scratch").iterdir()) == []


def test_missing_peers_are_named_and_do_not_fail_the_run(
    converters: ModuleType,
    photo_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = converters.Run(2.0, 24, 1_000_000)
    monkeypatch.setattr(converters, "find_spec", lambda module: None)
    monkeypatch.setattr(converters, "measure", lambda names, *_: {name: [run] for name in names})
    assert converters.main([str(photo_folder), "--only", "h5py,streaming"]) == 0
    printed = capsys.readouterr().out
    assert "h5py: not installed: pip install torch\n" in printed
    assert "streaming: not installed: pip install torch mosaicml-streaming\n" in printed
    assert printed.splitlines()[-1].split() == ["packer", "HDF5,", "raw", "12", "0%", "1.00", "1.00", "1"]


def test_rows_that_were_never_written_are_not_counted(converters: ModuleType, tmp_path: Path) -> None:
    import h5py

    with h5py.File(tmp_path / "out.h5", "w") as file:
        file.create_dataset("image", (3, 2, 2, 3), np.uint8)[1] = 7
    assert converters.CONVERTERS["packer"].count(str(tmp_path / "out.h5")) == 1


def test_ratios_are_of_the_same_round(converters: ModuleType) -> None:
    runs = {
        name: [converters.Run(seconds, 6, 0) for seconds in times]
        for name, times in {"bare decode": (1, 2, 3), "packer": (2, 2, 12), "h5py": (4, 8, 6)}.items()
    }
    row = converters.report(runs).splitlines()[3]
    assert row.split() == ["h5py", "HDF5,", "raw", "1", "75%", "0.50", "0.25", "0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no photos: pass a folder of class folders, or set PACKER_DATA to where clothing.tar lies"),
        (
            ["x", "--only", "zip"],
            "--only zip: unknown; h5py, ffcv, litdata, streaming, datasets, webdataset are known. Pass some of them.",
        ),
        (["/none"], "/none: no such file or folder; folders, lists and archives are read. Check it."),
    ],
)
def test_wrong_usage_is_a_sentence(
    converters: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.delenv("PACKER_DATA", raising=False)
    with pytest.raises(SystemExit):
        converters.main(arguments)
    assert capsys.readouterr().err.endswith(f"error: {message}\n")


def test_a_folder_without_classes_is_refused(
    converters: ModuleType, photo_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = photo_folder / "red"
    with pytest.raises(SystemExit):
        converters.main([str(folder)])
    sentence = f"{folder}: not only class folders of JPEGs; this benchmark needs them. Pass others.\n"
    assert capsys.readouterr().err.endswith(sentence)
