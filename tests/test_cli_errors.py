"""Errors of the command line: --json prints them too, and the path that is wrong is the one that is named."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from packer import __version__, convert_images, convert_table, open_pack
from packer.cli import cli
from tests.test_cli import Run
from tests.test_cli import run as run


@pytest.fixture
def here(tmp_path: Path, photo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with photos/, train.h5 and shards/ of them, and a table."""
    monkeypatch.chdir(tmp_path)
    convert_images("photos", "train.h5", size=8, workers=1, split="train=0.5,val=0.25,test=0.25")
    convert_images("photos", "shards", size=8, workers=1, shards=12)
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{n},{n % 2}\n" for n in range(12)))
    convert_table("t.csv", "t.h5", workers=1)
    return tmp_path


def errors_of(out: str) -> dict[str, Any]:
    """Return the only JSON object of stdout."""
    return dict(json.loads(out))


COMMANDS = sorted(
    name for name, command in cli.commands.items() if any("--json" in p.opts for p in command.params)
)


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_usage_is_an_object_for_every_command_with_json(run: Run, command: str):
    words = ["--json", "-"] if command == "bench" else ["--json"]
    done = run(command, "--no-such-option", *words)
    told = errors_of(done.out)
    assert done.code == told.pop("exit") == 2
    assert told == {"command": command, "packer": __version__, "error": told["error"]}
    assert told["error"].startswith("No such option")
    assert "--no-such-option" in told["error"]
    assert told["error"] in done.err


def test_every_command_but_those_of_files_has_json():
    assert set(cli.commands) - set(COMMANDS) == set()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("info", "gone.h5", "--json"), 1),
        (("verify", "photos", "--json"), 1),
        (("convert", "gone", "p.h5", "--json"), 2),
        (("convert", "photos", "p.h5", "--json", "--quiet", "--size", "x"), 2),
        (("export", "train.h5", "out", "--split", "train,gone", "--json"), 2),
        (("bench", "photos", "gone.h5", "--json", "-"), 1),
        (("bench", "photos", "gone.h5", "--json=-"), 1),
    ],
)
def test_an_error_is_the_same_sentence_on_both_streams(
    run: Run, here: Path, words: tuple[str, ...], code: int
):
    done = run(*words)
    told = errors_of(done.out)
    assert (done.code, told["exit"], told["command"]) == (code, code, words[0])
    assert done.err == f"Error: {told['error']}\n"


@pytest.mark.parametrize("words", [("info", "gone.h5"), ("bench", "photos", "gone.h5", "--json", "b.json")])
def test_without_json_stdout_stays_empty(run: Run, here: Path, words: tuple[str, ...]):
    done = run(*words)
    assert (done.code, done.out) == (1, "")
    assert not os.path.exists("b.json")


def test_a_result_with_its_own_exit_code_is_one_object(run: Run, here: Path):
    with open("photos/blue/0.jpg", "wb"):
        pass
    done = run("convert", "photos", "some.h5", "--size", 8, "--on-error", "skip", "--json")
    assert (done.code, "error" in errors_of(done.out)) == (3, False)


MISSING = (
    "no such file or folder; folders, lists, archives, tables and files of arrays are read. Check the path."
)
SWAPPED = "is not a pack, but {} is: they are swapped. Pass packer {}."


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("convert gone train.h5", f"gone: {MISSING}"),
        ("convert photos gone train.h5", f"gone: {MISSING}"),
        ("convert t.csv gone.csv new.h5", f"gone.csv: {MISSING}"),
        ("convert gone.csv t.csv gone2.csv new.h5", f"gone.csv (and 1 more of 3): {MISSING}"),
        ("convert gone.npy train.h5", f"gone.npy: {MISSING}"),
        ("convert gone.tar/train train.h5", f"gone.tar/train: {MISSING}"),
        ("convert gone.zip train.h5 --dry-run", f"gone.zip: {MISSING}"),
        (
            "convert new.h5 photos",
            "new.h5: no such file or folder, but photos exists and is no pack; the source is given before the"
            " pack. Pass packer convert photos new.h5.",
        ),
        (
            "convert train.h5 photos",
            "train.h5: is a pack, but photos exists and is no pack; the source is given before the pack. Pass"
            " packer convert photos train.h5.",
        ),
        ("bench train.h5 photos", "photos: " + SWAPPED.format("train.h5", "bench photos train.h5")),
        ("bench t.h5 t.csv", "t.csv: " + SWAPPED.format("t.h5", "bench t.csv t.h5")),
        ("append photos shards", "photos: " + SWAPPED.format("shards", "append shards photos")),
        ("export out train.h5", "out: " + SWAPPED.format("train.h5", "export train.h5 out")),
        ("repack new.h5 train.h5", "new.h5: " + SWAPPED.format("train.h5", "repack train.h5 new.h5")),
        ("split a=0.5,b=0.5 train.h5", "a=0.5,b=0.5: " + SWAPPED.format("train.h5", "split train.h5 a=0.5,b=0.5")),
        (
            "split train.h5 0.8,0.2",
            "split 0.8,0.2: is not a list of names, each with a positive share, a number of rows, rest, first:N or"
            " last:N. Pass for example train=0.9,val=0.1 or train=rest,test=last:500000.",
        ),
        (
            "merge train.h5 gone -o both.h5",
            "gone: cannot be read (No such file or directory). Check the name and the permissions.",
        ),
    ],
)  # fmt: skip
def test_the_path_that_is_wrong_is_named(run: Run, here: Path, words: str, said: str):
    before = sorted(os.listdir())
    assert run(*words.split()).err == f"Error: {said}\n"
    assert sorted(os.listdir()) == before


def test_a_damaged_pack_is_not_called_swapped(run: Run, here: Path):
    shutil.copy("train.h5", "broken.h5")
    with open("broken.h5", "r+b") as file:
        file.truncate(1000)
    assert "swapped" not in run("repack", "broken.h5", "train.h5", "--overwrite").err


@pytest.mark.parametrize("name", ["out.hdf", "out.HE5", "out.hdf5", "out.hd5", "out.h5"])
def test_names_of_hdf5_become_one_file(run: Run, here: Path, name: str):
    assert run("convert", "photos", name, "--size", 8).code == 0
    assert (os.path.isfile(name), open_pack(name).format) == (True, "h5")


@pytest.mark.parametrize(
    "name", ["out.npz", "out.zip", "out.parquet", "out.csv", "out.tar.gz", "out.pkl", "out.jpg"]
)
def test_names_of_other_files_become_no_folders(run: Run, here: Path, name: str):
    stem, ending = os.path.splitext(name)
    done = run("convert", "photos", name, "--size", 8)
    assert (done.code, done.err) == (
        2,
        f"Error: {name}: ends in {ending}, which packer does not write; it writes an HDF5 file (.h5) or a directory of"
        f" .npy files (no ending). Pass {stem}.h5 or {stem}, or --format.\n",
    )
    assert run("convert", "photos", name, "--size", 8, "--format", "npy").code == 0
    assert os.path.isdir(name)


@pytest.mark.parametrize("name", ["imagenet.2012", "photos-v1.5", "set.packed"])
def test_a_dot_in_a_name_is_no_suffix(run: Run, here: Path, name: str):
    assert run("convert", "photos", name, "--size", 8).code == 0
    assert os.path.isdir(name)


def test_export_and_preview_take_several_splits(run: Run, here: Path):
    assert run("export", "train.h5", "out", "--split", "val,train").code == 0
    assert sorted(os.listdir("out")) == ["blue", "green", "labels.csv", "red"]
    assert run("preview", "train.h5", "--split", "val, test").out.startswith("preview.png: 12 images")
    said = "Error: train.h5: has no split 'gone'; its splits: test, train, val. Pass one of these.\n"
    assert run("export", "train.h5", "more", "--split", "val,gone").err == said


def test_a_split_may_have_a_comma_in_its_name(run: Run, here: Path):
    rows = "".join(f"{n},{'a,b' if n % 2 else 'c'}\n" for n in range(12)).replace("a,b", '"a,b"')
    names = sorted(str(path.relative_to("photos")) for path in Path("photos").rglob("*.jpg"))[:12]
    lines = [f"{name},{line.partition(',')[2]}" for name, line in zip(names, rows.splitlines(), strict=True)]
    Path("l.csv").write_text("file,split\n" + "\n".join(lines))
    assert run("convert", "photos", "comma.h5", "--size", 8, "--labels", "l.csv", "--label", "split",
               "--split-column", "split", "--on-error", "skip").code in (0, 3)  # fmt: skip
    assert run("export", "comma.h5", "out", "--split", "a,b").code == 0


@pytest.mark.parametrize("words", ["--seconds nan", "--model-rate nan", "--model-rate inf", "--rounds 0"])
def test_bench_refuses_numbers_that_measure_nothing(run: Run, here: Path, words: str):
    pytest.importorskip("torch")
    done = run("bench", "photos", "train.h5", *words.split())
    assert done.code == 2
    assert done.err.endswith("; numbers above 0 are allowed, and 0 workers. Pass other numbers.\n")
