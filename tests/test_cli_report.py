from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from packer import convert_images
from packer.cli import cli


@pytest.fixture
def pack(photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """p.h5 of 24 images, in the current folder; two of them are the same image in two classes."""
    (photo_folder / "red/again.jpg").write_bytes((photo_folder / "blue/0.jpg").read_bytes())
    (photo_folder / "red/0.jpg").unlink()
    monkeypatch.chdir(tmp_path)
    convert_images(photo_folder, tmp_path / "p.h5", size=32, split="train=0.5,val=0.5")
    return tmp_path / "p.h5"


def test_one_line_tells_what_was_found(pack: Path) -> None:
    done = CliRunner().invoke(cli, ["report", "p.h5", "-o", "card.html"])
    assert done.exit_code == 0
    line = done.stdout.splitlines()[-1]
    assert line.startswith("card.html: 24 rows, ")
    assert "2 with another label than a row like them; " in line
    assert Path("card.html").read_text().startswith("<!doctype html>")


def test_json_has_all_figures(pack: Path) -> None:
    done = CliRunner().invoke(cli, ["report", "p.h5", "--json"])
    found = json.loads(done.stdout)
    assert (found["path"], found["rows"], found["suspects"], set(found["leaked"])) == (
        "report.html",
        24,
        2,
        {"train", "val"},
    )


def test_what_is_wrong_is_a_sentence(pack: Path) -> None:
    Path("report.html").write_text("mine")
    for arguments, said, code in (
        (
            "p.h5",
            "report.html: exists; nothing is overwritten unasked. Pass --overwrite, or another name.",
            2,
        ),
        (
            "none.h5 -o r.html",
            "none.h5: cannot be read (No such file or directory). Check the name and the permissions.",
            1,
        ),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "packer", "report", *arguments.split()],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (code, "", f"Error: {said}\n")
    assert sorted(path.name for path in Path().iterdir()) == ["p.h5", "photos", "report.html"]
