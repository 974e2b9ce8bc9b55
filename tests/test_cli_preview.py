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


def test_a_missing_pack_exits_with_2(run: Run) -> None:
    done = run("other.h5")
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1


def examples() -> list[str]:
    text = cli.commands["preview"].help or ""
    return [line.strip() for line in text.splitlines() if line.strip().startswith("packer preview ")]


@pytest.mark.parametrize("line", examples())
def test_the_examples_of_the_help_run(run: Run, line: str) -> None:
    pytest.importorskip("torch")
    done = run(*shlex.split(line)[2:])
    assert (done.code, done.err) == (0, "")
    *before, last = done.out.splitlines()
    assert ": 24 images" in last or ": 12 images" in last or ": 8 images" in last
    assert bool(before) == ("photos/" in line)


def test_there_are_examples() -> None:
    assert len(examples()) == 5


def test_a_source_is_announced_as_by_convert(run: Run) -> None:
    done = run("photos", "--size", 32, "--split", "train=0.75,val=0.25", "-o", "sheet.png", "--rows", 6)
    assert (done.code, done.err) == (0, "")
    first, splits, last = done.out.splitlines()
    assert first == "photos: 24 images of 3 classes (blue, green, red): 32x32x3 each, about 140 kB"
    assert splits == "splits: train 18, val 6"
    assert last.startswith("sheet.png: 6 images, ")
    assert last.endswith("B; images as they would be stored")
    assert sorted(path.name for path in Path().iterdir()) == ["photos", "sheet.png", "train.h5"]


def test_split_names_a_split_or_makes_some(run: Run) -> None:
    Path("both").mkdir()
    for split in ("train", "val"):
        Path("both", split).symlink_to(Path("photos").absolute())
    assert ": 24 images, " in run("both", "--split", "val", "--size", 16).out
    assert run("both", "--split", "x", "--size", 16)[::2] == (
        2,
        "Error: both: has no split 'x'; its splits: train, val. Pass one of these.\n",
    )
    assert run("photos", "--split", "x", "--size", 16)[::2] == (
        2,
        "Error: photos: has no split 'x'; it has none. To make some, pass --split train=0.9,val=0.1.\n",
    )


def test_labels_and_pairs_are_given_as_to_convert(run: Run) -> None:
    lines = [f"{path.relative_to('photos')},thing,5,5,30,30" for path in Path("photos").rglob("*.jpg")]
    for path in Path("photos").rglob("*.jpg"):
        other = Path("others", path.relative_to("photos")).with_suffix(".png")
        other.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            image.save(other)
    Path("boxes.csv").write_text("\n".join(["file,kind,a,b,c,d", *lines]))
    boxes = ("--labels", "boxes.csv", "--label", "kind", "--boxes", "a,b,c,d")
    done = run("photos", "--size", 32, *boxes, "--pair", "partner=others")
    assert (done.code, done.err) == (0, "")
    assert "photos: 24 images of 1 class (thing): 32x32x3 each, " in done.out
    assert "preview.png: 24 images with boxes, " in done.out
    assert done.out.endswith("; images as they would be stored; not drawn: partner\n")  # of three channels


def test_inputs_that_cannot_be_packed_exit_with_3(run: Run) -> None:
    Path("photos/red/bad.jpg").write_bytes(b"no image")
    done = run("photos", "--size", 16, "--on-error", "skip")
    assert (done.code, done.err.splitlines()[0]) == (3, "skipped 1 input among those chosen:")
    assert done.err.splitlines()[1].startswith("  red/bad.jpg: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train.h5", "--size", 32), "train.h5: is a pack; --size is about sources. Leave it out."),
        (("train.h5", "--pair", "a=b"), "train.h5: is a pack; --pair is about sources. Leave it out."),
        (
            ("photos", "train.h5"),
            "train.h5: is a pack; a sheet shows one pack, or one source. Pass it alone.",
        ),
        (("photos", "--order", "rows"), "--order rows: is about packs; a source has no order. Leave it out."),
        (
            ("photos", "--missing", "mean"),
            "--missing: is about tables; photos is read as images. Leave it out.",
        ),
        (
            ("table.csv", "--label", "a"),
            "table.csv: is a table; sheets are drawn of images. To see how its columns would be read, convert it"
            " with --dry-run.",
        ),
    ],
)
def test_options_of_the_other_kind_are_refused(run: Run, arguments: tuple[object, ...], message: str) -> None:
    Path("table.csv").write_text("a,b\n1,2\n")
    assert run(*arguments) == (2, "", f"Error: {message}\n")
    assert not list(Path().glob("*.png"))


def test_every_option_of_convert_can_be_given(run: Run) -> None:
    known = {option for parameter in cli.commands["preview"].params for option in parameter.opts}
    others = {option for parameter in cli.commands["convert"].params for option in parameter.opts}
    assert others <= known | {"sources", "out"}
