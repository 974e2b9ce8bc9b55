"""packer preview: the line it prints, its exit codes, and that its help's examples run."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image

from packer import convert_images
from packer.cli import cli, main


class Done(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(photo_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """run("train.h5", ...) -> exit code, output, errors of packer preview, where train.h5 holds 24 images of 3 classes."""
    monkeypatch.chdir(photo_folder.parent)
    convert_images("photos", "train.h5", size=256)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["packer", "preview", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return Done(int(stop.value.code or 0), captured.out, captured.err)

    return call


def test_it_says_what_was_written(run: Run) -> None:
    done = run("train.h5", "-o", "sheet.png", "--rows", 6, "--columns", 3)
    size = Image.open("sheet.png").size
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"sheet.png: 6 images, {size[0]:,}x{size[1]:,} pixels, ")
    assert done.out.endswith("kB; images as stored\n")


def test_it_says_what_the_transforms_became(run: Run) -> None:
    pytest.importorskip("torch")
    one = run("train.h5", "--augment", "RandomCrop(64), RandomHorizontalFlip(), Normalize()", "--rows", 4)
    assert one.out.startswith("preview.png: 4 images, ")
    assert one.out.endswith("; RandomCrop, RandomHorizontalFlip, Normalize, Normalize undone\n")
    two = run(
        "train.h5", "--augment", "ColorJitter(0.4), RandomCrop(64)", "--rows", 2, "--repeat", 3, "-o", "a.jpg"
    )
    assert two.out.startswith("a.jpg: 2 images as 3 epochs draw them, ")
    assert two.out.endswith("; ColorJitter, RandomCrop, augmented\n")
    assert run("train.h5", "--quiet") == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("-o", "a.bmp"),
            "a.bmp: its ending is no picture's; .png, .jpg and .jpeg are allowed. Pass another name.",
        ),
        (("--split", "val"), "train.h5: has no split 'val'; its splits: none. Pass one of these."),
        (("--rows", 0), "rows=0: is not a whole number from 1 to 5000."),
        (
            ("--augment", "RandomHorizontalFilp()"),
            "augment: 'RandomHorizontalFilp()' is no transform of packer.augment. "
            "The nearest is RandomHorizontalFlip.",
        ),
    ],
)
def test_wrong_usage_is_one_sentence_and_exits_with_2(
    run: Run, arguments: tuple[object, ...], message: str
) -> None:
    if "--augment" in arguments:
        pytest.importorskip("torch")
    assert run("train.h5", *arguments) == (2, "", f"Error: {message}\n")
    assert not list(Path().glob("*.png"))


def test_a_missing_pack_exits_with_1(run: Run) -> None:
    done = run("other.h5")
    assert (done.code, done.out) == (1, "")
    assert done.err.count("\n") == 1


def examples() -> list[str]:
    text = cli.commands["preview"].help or ""
    return [line.strip() for line in text.splitlines() if line.strip().startswith("packer preview ")]


@pytest.mark.parametrize("line", examples())
def test_the_examples_of_the_help_run(run: Run, line: str) -> None:
    pytest.importorskip("torch")
    done = run(*shlex.split(line)[2:])
    assert (done.code, done.err) == (0, "")
    assert done.out.count("\n") == 1


def test_there_are_examples() -> None:
    assert len(examples()) == 3
