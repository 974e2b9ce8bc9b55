"""packer bench of a table: what it prints, what it writes, and which options it refuses."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from packer import convert_table
from packer.cli import main

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("flushed")

SHORT = ("--rounds", 1, "--seconds", "0.02", "--workers", "0")
TAKES = "takes about 1 s: 12 measurements of 0.02 s\n"


class Done(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """run("rows.csv", ...) -> exit code, output, errors of packer bench, where rows.h5 holds the 5,000 rows of rows.csv."""
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("a;b;c\n" + "".join(f"{i};{i / 9};{i % 3}\n" for i in range(5000)))
    convert_table("rows.csv", "rows.h5", label="c")
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["packer", "bench", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return Done(int(stop.value.code or 0), captured.out, captured.err)

    return call


def test_a_table_is_measured_in_its_own_batches(run: Run) -> None:
    done = run("rows.csv", "rows.h5", *SHORT, "--json", "found.json")
    assert (done.code, done.err) == (0, TAKES)
    assert done.out.startswith(
        "rows.csv beside rows.h5: 5,000 rows of features [2], label, batches of 1,024\n"
    )
    assert "DataLoader, rows, 0 workers" in done.out
    assert "packed, slices" in done.out
    record = json.loads(Path("found.json").read_text())
    assert (record["rows"], record["batch_size"], record["unit"]) == (5000, 1024, "rows")


def test_a_batch_size_that_is_given_wins(run: Run) -> None:
    done = run("rows.csv", "rows.h5", *SHORT, "--batch-size", 100, "--no-cold")
    assert (done.code, done.err) == (0, TAKES)
    assert ", batches of 100\n" in done.out
    assert run("rows.csv", "rows.h5", *SHORT, "--quiet") == (0, "", "")


def test_the_report_is_a_plot_too(run: Run) -> None:
    pytest.importorskip("matplotlib")
    done = run("rows.csv", "rows.h5", *SHORT, "--plot", "b.SVG")
    assert (done.code, done.err) == (0, TAKES)
    assert "--model-rate 1000" in done.out
    assert Path("b.SVG").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--plot", "b.txt"), "b.txt: must be a file that ends in .png or .svg or .pdf. Pass another name."),
        (("--json", "rows.csv"), "rows.csv: must be a file that ends in .json. Pass another name."),
        (
            ("--json", "none/b.json"),
            "none/b.json: its folder none does not exist. Create it, or pass another name.",
        ),
        (("--plot", "d.svg"), "d.svg: must be a file that ends in .png or .svg or .pdf. Pass another name."),
    ],
)
def test_files_that_cannot_be_written_are_told_before_anything_is_measured(
    run: Run, options: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from packer.bench import bench

    Path("d.svg").mkdir()
    monkeypatch.setattr(bench, "bench", lambda *_, **__: pytest.fail("was measured"))
    assert run("rows.csv", "rows.h5", *options) == (2, "", f"Error: {said}\n")


def test_another_table_is_refused(run: Run) -> None:
    Path("rows.csv").write_text(Path("rows.csv").read_text()[:-2])
    done = run("rows.csv", "rows.h5", *SHORT)
    assert done.code == 1
    assert done.err.startswith("Error: rows.csv: is not the source of rows.h5")
    assert done.err.count("\n") == 1


def test_images_come_from_one_source(run: Run, photo_folder: Path) -> None:
    from packer import convert_images

    convert_images(photo_folder, "photos.h5", size=32)
    done = run(photo_folder, "more", "photos.h5")
    assert (done.code, done.out) == (2, "")
    assert "more: is a second SRC; images come from one source." in done.err
