"""The command line: exit codes, one sentence an error, nothing left behind, and every option described."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import unicodedata
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import pack as struct_pack
from typing import Any, NamedTuple

import click
import h5py
import numpy as np
import pytest
from PIL import Image

import packer
import packer.cli as cli_module
from packer import __version__, open_pack
from packer.cli import _warn, cli, main
from packer.cli.convert_command import convert
from packer.cli.help_sections import MOST_USED, SECTIONS
from tests.format.packs import write_pack


class Done(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """run("convert", ...) -> exit code, output, errors; in this process."""
    handlers = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # main() sets its own

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["packer", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return Done(int(stop.value.code or 0), captured.out, captured.err)

    yield call
    for name, handler in handlers.items():
        signal.signal(name, handler)


@pytest.fixture
def photos(photo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder ``photos``, with the folder that holds it as the working directory."""
    monkeypatch.chdir(photo_folder.parent)
    return Path("photos")


def png_of(width: int, height: int) -> bytes:
    """The start of a PNG that claims to be that large: a decompression bomb of some hundred bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct_pack(">I", len(data)) + kind + data + struct_pack(">I", zlib.crc32(kind + data))

    header = struct_pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(99)))
        + chunk(b"IEND", b"")
    )


def test_convert_says_what_it_will_do_and_what_it_did(photos: Path, run: Run):
    done = run("convert", photos, "p.h5", "--size", 32)
    assert (done.code, done.err) == (0, "")
    first, second = done.out.splitlines()
    assert first == "photos: 24 images of 3 classes (blue, green, red) -> p.h5: 32x32x3 each, about 140 kB"
    assert second.startswith("packed 24 images, ")
    assert second.endswith(("workers)", "1 worker)"))
    assert open_pack("p.h5").rows == 24


class Unwritable(io.StringIO):
    """A stream whose reader has gone, or whose disk is full."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError
        raise OSError(self.number, os.strerror(self.number))


LOST = {
    errno.ENOSPC: "stdout: cannot be written (No space left on device). Redirect it to another file.\n",
    errno.EPIPE: "",
    None: "stdout: cannot be written (it is closed). Redirect it to another file.\n",
}


@pytest.mark.parametrize("number", LOST)
def test_work_is_done_and_keeps_its_exit_code_without_stdout(
    photos: Path, run: Run, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    def call(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "stdout", None if number is None else Unwritable(number))
        done = run(*arguments)
        return done.code, done.err

    work = "" if number is None else LOST[number]
    assert call("convert", photos, "train.h5", "--size", 16) == (0, work)
    assert call("verify", "train.h5", "--json") == (0, work)
    assert call("repack", "train.h5", "small.h5", "--size", 8, "--json") == (0, work)
    assert call("export", "small.h5", "out") == (0, work)
    assert call("split", "train.h5", "a=0.5,b=0.5") == (0, work)
    result = 141 if number == errno.EPIPE else 4
    for command in (("info", "train.h5"), ("info", "train.h5", "--json"), ("--version",), ("info", "--help")):
        assert call(*command) == (result, LOST[number])
    with open("train.h5", "r+b") as file:
        file.seek(open_pack("small.h5").header.extents["image"][0].offset)
        file.write(b"damage")
    assert call("verify", "train.h5")[0] == 1


@pytest.mark.parametrize("number", LOST)
def test_an_error_without_stderr_keeps_its_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    monkeypatch.setattr(sys, "stderr", None if number is None else Unwritable(number))
    assert run("info", "none.h5").code == 1
    monkeypatch.setattr(sys, "stderr", None if number is None else Unwritable(number))
    assert run("convert", "a").code == 2


def test_a_command_works_without_any_standard_stream(photos: Path) -> None:
    convert = [sys.executable, "-m", "packer", "convert", str(photos), "train.h5", "--size", "16"]
    done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *convert], check=False)
    assert done.returncode == 0
    assert packer.verify_pack("train.h5").ok


def test_quiet_prints_nothing(photos: Path, run: Run):
    assert run("convert", photos, "p.h5", "--size", 32, "--quiet") == (0, "", "")


def test_reasons_read_back_from_packs_name_options_as_they_are_typed(photos: Path, run: Run):
    (photos / "red" / "bomb.png").write_bytes(png_of(30_000, 30_000))
    done = run("convert", photos, "p", "--size", 32, "--on-error", "skip", "--shard-rows", 9, "--workers", 1)
    assert "Raise --max-pixels if the image is intended." in done.err
    assert "Raise --max-pixels if the image is intended." in run("info", "p", "--json").out


def test_skipped_inputs_are_listed_and_exit_with_3(photos: Path, run: Run):
    (photos / "blue" / "2.jpg").write_bytes(b"")
    done = run("convert", photos, "p", "--size", 32, "--on-error", "skip")
    assert done.code == 3
    assert done.err.splitlines()[0] == "skipped 1 input:"
    assert done.err.splitlines()[1].startswith("  blue/2.jpg: ")
    assert "skipped    1 input; the header has their names and reasons" in run("info", "p").out
    assert json.loads(run("info", "p", "--json").out)["skipped"][0]["key"] == "blue/2.jpg"


def test_many_skipped_inputs_are_cut_short(photos: Path, run: Run):
    for path in list(photos.rglob("*.jpg"))[:22]:
        path.write_bytes(b"")
    done = run("convert", photos, "p", "--size", 32, "--on-error", "skip")
    assert done.err.splitlines()[-1] == "  and 2 more; packer info p --json lists them all"


def test_info(photos: Path, run: Run):
    run("convert", photos, "p.h5", "--size", 32)
    done = run("info", "p.h5")
    lines = done.out.splitlines()
    assert done.code == 0
    assert lines[0].startswith("p.h5: 24 rows, ")
    assert lines[0].endswith(", h5, format 1")
    assert lines[1:4] == [
        "  image    u1  32x32x3 (color rgb, fit crop, layout HWC)",
        "  label    i8  one a row",
        "  key      u1  bytes of any length (encoding utf-8)",
    ]
    assert "classes    3: blue, green, red" in lines
    assert "order      shuffled, seed 0; blocks of 24 rows" in lines
    record = json.loads(run("info", "p.h5", "--json").out)
    assert (record["rows"], record["classes"]) == (24, ["blue", "green", "red"])


def test_info_tells_what_normalize_means_for_a_pack_made_like_another(photos: Path, run: Run):
    run("convert", photos, "train.h5", "--size", 32)
    done = run("convert", photos / "blue", "test.h5", "--like", "train.h5")
    assert (done.code, "Normalize" in done.out) == (0, False)
    own = next(line for line in run("info", "train.h5").out.splitlines() if line.startswith("image  "))
    numbers = own.removeprefix("image").strip()
    assert (
        f"normalize  {numbers}: of the pack that it was made like; Normalize() without numbers uses them"
        in run("info", "test.h5").out
    )


def damaged(content: bytes) -> Callable[[Path], None]:
    return lambda photos: (photos / "blue" / "0.jpg").write_bytes(content) and None


def truncated(photos: Path) -> None:
    path = photos / "blue" / "0.jpg"
    path.write_bytes(path.read_bytes()[:-200])


def empty_folder(photos: Path) -> None:
    for path in photos.rglob("*.jpg"):
        path.unlink()


def loop(photos: Path) -> None:
    (photos / "blue" / "again").symlink_to(photos.absolute(), target_is_directory=True)


def labels_by_ambiguous_stem(photos: Path) -> None:
    Image.new("RGB", (9, 9)).save(photos / "blue" / "0.png")
    Path("labels.csv").write_text("file,label\nblue/0,1\n")


@pytest.mark.parametrize(
    ("prepare", "options", "code", "sentence"),
    [
        (empty_folder, [], 1, "Error: photos: "),
        (damaged(b""), [], 1, "Error: photos/blue/0.jpg: "),
        (damaged(b"just some text\n" * 20), [], 1, "Error: photos/blue/0.jpg: "),
        (truncated, [], 1, "Error: photos/blue/0.jpg: "),
        (damaged(png_of(30_000, 30_000)), [], 1, "Error: photos/blue/0.jpg: 30,000 x 30,000 pixels; "),
        (loop, [], 1, "Error: photos/blue/again: "),
        (labels_by_ambiguous_stem, ["--labels", "labels.csv"], 1, "Error: labels.csv line 2: "),
        (lambda p: Path("p.h5").touch(), [], 2, "Error: p.h5: exists; nothing is overwritten unasked. "),
        (lambda p: None, ["--size", "0"], 2, "Error: size 0: is not a number or HxW of 1 to 65,536 pixels. "),
        (lambda p: None, ["--fit", "zoom"], 2, "Invalid value for '--fit': 'zoom' is not one of"),
        (lambda p: None, ["--colour"], 2, "No such option"),
        (lambda p: None, ["--workers", "0"], 2, "Error: --workers 0: is not a whole number of at least 1."),
        (lambda p: None, ["--labels", "no.csv"], 1, "Error: no.csv: "),
    ],
    ids=[
        "empty", "zero bytes", "text", "truncated", "bomb", "loop", "ambiguous stem", "exists", "size", "choice", "option",
        "workers", "no labels",
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_sentence_and_leaves_nothing(
    photos: Path, run: Run, prepare: Callable[[Path], None], options: list[str], code: int, sentence: str
):
    prepare(photos)
    before = sorted(os.listdir())
    done = run("convert", photos, "p.h5", *options)
    assert done.code == code
    assert sentence in done.err
    assert "Traceback" not in done.err
    assert sorted(os.listdir()) == before
    if done.err.startswith("Error: "):
        assert done.err.count("\n") == 1
        assert done.err.rstrip().endswith(".")


def test_of_a_single_path_the_output_is_missing(run: Run):
    done = run("convert", "photos/", "--size", "32")
    assert done == (
        2,
        "",
        "Error: photos/: OUT, the pack to write, is missing. Pass for example packer convert photos/ train.h5.\n",
    )


def test_missing_things_are_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run):
    monkeypatch.chdir(tmp_path)
    for arguments in (("convert", "no", "p.h5"), ("info", "no.h5"), ("bench", "no", "no.h5")):
        done = run(*arguments)
        assert done.code in (1, 2)
        assert done.err.startswith("Error: no")
        assert done.err.count("\n") == 1
    (tmp_path / "x.h5").write_bytes(b"hello")
    assert (
        run("info", "x.h5").err
        == "Error: x.h5: is neither a pack nor an HDF5 file. Pass what packer convert wrote.\n"
    )


def test_names_that_are_not_utf8_are_packed_and_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
):
    monkeypatch.chdir(tmp_path)
    folder = os.path.join(b"in", b"caf\xe9")
    os.makedirs(folder)
    Image.new("RGB", (9, 9), (1, 2, 3)).save(io_bytes := io.BytesIO(), "PNG")
    for name, data in ((b"good\xff.png", io_bytes.getvalue()), (b"bad\xfe.png", b"")):
        Path(os.fsdecode(os.path.join(folder, name))).write_bytes(data)
    done = run("convert", "in", "p", "--size", 8, "--on-error", "skip")
    assert done.code == 3
    assert r"caf\udce9/bad\udcfe.png: " in done.err
    pack = open_pack("p")
    assert os.fsencode(pack.keys()[0]) == b"caf\xe9/good\xff.png"
    assert r"caf\udce9" in run("info", "p").out


def test_a_folder_that_may_not_be_written(photos: Path, run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # tests may run as root, who may write anywhere
    done = run("convert", photos, "p.h5")
    assert done.code == 1
    assert "no permission to write in" in done.err
    assert os.listdir() == ["photos"]


def test_splits_in_archives_are_recognised_or_named_by_path(photos: Path, run: Run):
    with tarfile.open("data.tar.gz", "w:gz") as tar:
        tar.add(photos, "train")
        tar.add(photos, "test")
    done = run("convert", "data.tar.gz", "all", "--size", 8)
    assert done.code == 0
    assert "splits: train 24, test 24\n" in done.out
    assert open_pack("all").header.splits == {"train": ((0, 24),), "test": ((24, 48),)}
    assert run("convert", "data.tar.gz/train", "p", "--size", 8).code == 0
    assert open_pack("p").rows == 24


def test_resume_of_a_whole_pack_leaves_it_and_another_is_refused(photos: Path, run: Run):
    run("convert", photos, "p.h5", "--size", 32)
    before = os.stat("p.h5")
    again = run("convert", photos, "p.h5", "--size", 32, "--resume")
    assert (again.code, again.out) == (0, "p.h5: holds all 24 images already\n")
    assert os.stat("p.h5").st_mtime_ns == before.st_mtime_ns
    other = run("convert", photos, "p.h5", "--size", 16, "--resume")
    assert (other.code, other.err) == (
        2,
        "Error: p.h5: is a complete pack, but of other options or inputs: options size was 32x32, now it is 16x16."
        " Pass --overwrite, or another name.\n",
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--store", "jpeg", "--compress", "zstd"],
            "--compress zstd: JPEG rows are compressed already. Pass --store raw, or no --compress.",
        ),
        (
            ["--shard-rows", "5", "--shard-size", "2GB"],
            "--shard-rows, --shard-size: both are given; only one is allowed. Drop one.",
        ),
        (
            ["--shard-size", "2000"],
            "--shard-size 2000: is neither a number of rows nor a size with its unit. Pass for example"
            " --shard-rows 100000 or --shard-size 2GB.",
        ),
        (
            ["--format", "npy", "--compress", "gzip"],
            "--compress gzip: .npy files are never compressed. Pass an output that ends in .h5.",
        ),
    ],
)
def test_options_of_storage_that_do_not_go_together(
    photos: Path, run: Run, options: list[str], said: str
) -> None:
    done = run("convert", photos, "p", *options)
    assert (done.code, said in done.err) == (2, True)


def test_splits_shards_and_more_images(photos: Path, run: Run):
    shutil.copytree(photos, "more")
    (photos / "red" / "0.jpg").unlink()
    done = run("convert", photos, "p", "--size", 16, "--split", "train=0.75,val=0.25", "--shard-rows", 10)
    assert done.code == 0
    assert "splits: train 17, val 6\n" in done.out
    assert sorted(os.listdir("p")) == ["00000.h5", "00001.h5", "00002.h5", "index.json"]
    info = run("info", "p").out
    assert "split      train: 17 rows (0 to 16)\nsplit      val: 6 rows (17 to 22)\n" in info
    assert "shards     3: 10 rows in the first\n" in info
    assert run("convert", photos, "flat", "--size", 16, "--shard-size", "5kB").code == 0
    assert run("append", "flat", "more").code == 2  # 23 of the images are there
    added = run("append", "flat", "more", "--duplicates", "keep")
    assert added.out.startswith("more: 24 images of 3 classes (blue, green, red) -> flat: 16x16x3 each, ")
    assert added.code == 0
    assert added.out.splitlines()[-1].startswith("added 24 images, ")
    assert open_pack("flat").rows == 47
    assert run("verify", "flat").code == 0


def test_verify_names_the_damage_and_the_command(photos: Path, run: Run):
    run("convert", photos, "p.h5", "--size", 16)
    whole = Path("p.h5").read_bytes()
    offset = open_pack("p.h5").header.extents["image"][0].offset + 5 * 16 * 16 * 3
    Path("p.h5").write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
    found = run("verify", "p.h5")
    assert (found.code, found.out) == (1, "")
    assert re.fullmatch(
        r"p\.h5: rows 0 to 23 of 'image' are damaged \(block 0: its checksum differs\)\. .*\n"
        r"To convert the same SRC again, with --labels and --classes if they were given: packer convert SRC p\.h5 .*\n",
        found.err,
    )
    record = json.loads(run("verify", "p.h5", "--json").out)
    assert (record["command"], record["ok"]) == ("verify", False)
    (problem,) = record["problems"]
    assert (problem["kind"], problem["array"], problem["block"], problem["rows"]) == (
        "rows",
        "image",
        0,
        [0, 24],
    )
    command = found.err.splitlines()[-1].partition(": packer ")[2]
    run(*[photos if word == "SRC" else word for word in shlex.split(command)])
    assert Path("p.h5").read_bytes() == whole
    assert re.fullmatch(r"p\.h5: intact; 19\.1 kB checked in .* s \(.*/s\)\n", run("verify", "p.h5").out)


def test_every_command_prints_one_json_object(photos: Path, run: Run):
    def record(command: str, *args: object, code: int = 0) -> dict[str, Any]:
        done = run(command, *args, "--json")
        assert (done.code, done.err) == (code, "")
        found: dict[str, Any] = json.loads(done.out)
        assert list(found)[:2] == ["command", "packer"]
        assert (found["command"], found["packer"]) == (command, packer.__version__)
        return found

    (photos / "blue/bad.jpg").write_bytes(b"")
    skipping = ("--on-error", "skip", "--size", 16)
    converted = record("convert", photos, "p.h5", *skipping, code=3)
    assert (converted["out"], converted["rows"], converted["already"]) == ("p.h5", 24, False)
    assert [item["key"] for item in converted["skipped"]] == ["blue/bad.jpg"]
    assert record("info", "p.h5")["rows"] == 24
    assert record("verify", "p.h5")["problems"] == []
    run("convert", photos, "shards", "--shard-rows", 12, *skipping)
    twice = ("--duplicates", "keep")
    assert record("append", "shards", photos, "--on-error", "skip", *twice, code=3)["rows"] == 24
    assert record("merge", "p.h5", "shards", "-o", "m.h5", *twice)["rows"] == 72
    packs = record("split", "p.h5", "train=0.5,val=0.5")["packs"]
    assert {name: pack["rows"] for name, pack in packs.items()} == {"train": 12, "val": 12}
    assert record("repack", "p.h5", "r.h5", "--size", 8)["rows"] == 24
    assert record("export", "p.h5", "out")["files"] >= 24
    assert record("preview", "p.h5", "--rows", 4)["rows"] == 4
    Path("t.csv").write_text("a,b\n1,2\n3,4\n")
    assert record("convert", "t.csv", "t.h5")["rows"] == 2
    with_json = {name for name, command in commands() if any("--json" in p.opts for p in command.params)}
    assert with_json == {name for name, _ in commands()}


def test_info_tells_what_a_foreign_hdf5_file_holds(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with h5py.File("theirs.h5", "w") as file:
        file["image"] = np.zeros((3, 4, 4, 3), np.uint8)
        file["meta/label"] = np.zeros(3, np.int64)
        file["elsewhere"] = h5py.ExternalLink("other.h5", "/secret")
    done = run("info", "theirs.h5")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "Error: theirs.h5: is an HDF5 file, but not a pack; it holds image uint8 [3, 4, 4, 3], meta/label int64 [3]. Convert its"
        " datasets to a pack: packer convert theirs.h5 train.h5.\n"
    )


def test_merge_split_repack_and_export(photos: Path, run: Run):
    for name in ("blue", "red"):
        os.makedirs(f"only-{name}")
        shutil.copytree(photos / name, f"only-{name}/{name}")
        assert run("convert", f"only-{name}", f"{name}.h5", "--size", 16).code == 0
    assert run("merge", "blue.h5", "red.h5", "-o", "both.h5").code == 0
    both = open_pack("both.h5")
    assert (both.rows, both.header.classes) == (16, ("blue", "red"))
    done = run("split", "both.h5", "train=0.75,val=0.25")
    assert (done.code, len(done.out.splitlines())) == (0, 2)
    assert [open_pack(f"both.{name}.h5").rows for name in ("train", "val")] == [12, 4]
    assert run("repack", "both.h5", "small.h5", "--size", 8, "--store", "jpeg").code == 0
    assert open_pack("small.h5").header.field("image").loaded.shape == (8, 8, 3)
    assert run("export", "both.h5", "again").code == 0
    assert run("convert", "again", "again.h5", "--size", 16).code == 0
    assert sorted(open_pack("again.h5").read("image").tobytes()) == sorted(both.read("image").tobytes())


def test_masks_and_boxes(photos: Path, run: Run):
    for path in photos.rglob("*.jpg"):
        mask = Path("masks", *path.with_suffix(".png").parts[1:])
        mask.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (48, 40), 255).save(mask)
    rows = "".join(f"{k}.jpg,1,2,30,20\n" for k in range(8))
    Path("boxes.csv").write_text("file,a,b,c,d\n" + rows)
    assert run("convert", photos, "p.h5", "--size", 16, "--pair", "mask=masks").code == 0
    assert (open_pack("p.h5").read("mask") == 255).all()
    done = run("convert", photos / "red", "b.h5", "--size", 16, "--labels", "boxes.csv", "--boxes", "a,b,c,d")
    assert done.code == 0, done.err
    assert [f.name for f in open_pack("b.h5").fields] == ["image", "boxes", "key"]
    assert run("convert", photos, "q.h5", "--pair", "mask").err == (
        "Error: --pair mask: is not NAME=DIR, each name once. Pass --pair NAME=DIR.\n"
    )


def process(*arguments: str, before: tuple[str, ...] = (), **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, sys.executable, "-m", "packer", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python to its end."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **options)


@pytest.fixture
def slow_photos(tmp_path: Path) -> Path:
    """Enough work for a second: large, detailed JPEGs."""
    folder = tmp_path / "slow" / "a"
    folder.mkdir(parents=True)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (1500, 1500, 3), dtype=np.uint8)).save(
        folder / "0.jpg"
    )
    for k in range(1, 60):
        os.link(folder / "0.jpg", folder / f"{k}.jpg")
    return folder.parent


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_stops_cleanly_with_130(slow_photos: Path, tmp_path: Path, name: str):
    for k in range(60, 1000):  # more than is done before the signal comes, on a busy machine too
        os.link(slow_photos / "a" / "0.jpg", slow_photos / "a" / f"{k}.jpg")
    work = process("convert", str(slow_photos), str(tmp_path / "p.h5"), "--size", "256", "--workers", "1")
    deadline = time.monotonic() + 120
    while not (tmp_path / "p.h5.packing").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    work.send_signal(getattr(signal, name))
    _, err = work.communicate(timeout=120)
    assert work.returncode == 130, err
    if os.listdir(tmp_path) == ["slow"]:
        assert err.strip() == "Interrupted; nothing was left behind."
    else:
        kept = (
            rf"Interrupted\. Finished work is kept \({tmp_path}/p\.h5\.packing, .* MB\):"
            r" run the same command again to continue\."
        )
        assert re.fullmatch(kept, err.strip())
        assert sorted(os.listdir(tmp_path)) == ["p.h5.packing", "slow"]


def test_a_signal_that_python_drops_in_a_destructor_stops_all_the_same():
    code = """
import os, signal, sys, time
from packer import cli

class Trap:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)

@cli.cli.command()
def trap():
    Trap()
    time.sleep(600)

from packer.__main__ import run
sys.argv = ["packer", "trap"]
run()
"""
    work = python("-c", code)
    assert (work.returncode, work.stderr.strip()) == (130, "Interrupted; nothing was left behind.")


def test_kill_leaves_no_pack_and_the_next_run_goes_on(slow_photos: Path, tmp_path: Path):
    arguments = ("convert", str(slow_photos), str(tmp_path / "p.h5"), "--size", "256")
    work = process(*arguments, before=("nice", "-n", "19"))  # it must not end before it is killed
    deadline = time.monotonic() + 120
    while not (tmp_path / "p.h5.packing").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    work.kill()
    work.communicate(timeout=120)
    assert sorted(os.listdir(tmp_path)) == ["p.h5.packing", "slow"]
    again = process(*arguments)
    assert again.communicate(timeout=120)[1] == ""
    assert again.returncode == 0
    assert sorted(os.listdir(tmp_path)) == ["p.h5", "slow"]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("eval('{kill}')", "Interrupted; nothing was left behind.\n"),
        ("{kill}", "Interrupted; nothing was left behind.\n"),
        ("sys.exit({kill})", "Interrupted; nothing was left behind.\n"),
        ("type('C', (), {{'f': Named()}})", "Interrupted.\n"),
    ],
)
def test_an_interruption_inside_an_eval_of_text_ends_with_130_too(tmp_path: Path, where: str, said: str):
    """Named tuples and data classes are made by it; Python then ends by SIGINT, whatever the exit code, unless it is told to forget.

    Where a class is made, Python before 3.12 makes a RuntimeError of it.
    """
    kill = "signal.raise_signal(signal.SIGINT)"
    code = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import packer.cli
class Named:
    def __set_name__(self, owner, name):
        {kill}
def work(**_):
    {where.format(kill=kill)}
packer.cli.cli.main = work
from packer.__main__ import run
run()
"""
    (tmp_path / "interrupted.py").write_text(code)
    done = python("-m", "interrupted", cwd=tmp_path)  # as a file, or by -c, Python goes by the exit code
    if sys.version_info >= (3, 12):
        said = "Interrupted; nothing was left behind.\n"
    assert (done.returncode, done.stderr) == (130, said)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no processes are forked")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interruption_while_workers_start_leaves_none(photo_folder: Path, tmp_path: Path, name: str):
    """The pool that starts them would not know them yet, and Python would wait for them at its end."""
    code = f"""
import multiprocessing.process, signal, sys
import packer.convert.row_storage
packer.convert.row_storage.block_rows = lambda rows, row_bytes, least_bytes: 4
start = multiprocessing.process.BaseProcess.start
def interrupted(process):
    start(process)
    print("started", flush=True)
    signal.raise_signal(signal.{name})
multiprocessing.process.BaseProcess.start = interrupted
signal.signal(signal.SIGINT, signal.default_int_handler)
from packer.__main__ import run
sys.argv = ["packer", "convert", {str(photo_folder)!r}, "p.h5", "--size", "32", "--workers", "2", "--quiet"]
run()
"""
    (tmp_path / "starts.py").write_text(code)
    done = python("starts.py", cwd=tmp_path)
    assert (done.returncode, done.stderr.strip().splitlines()[0][:11]) == (130, "Interrupted")
    assert (
        done.stdout.split() == ["started"] * 2
    )  # and both have ended: they held the pipe that was read to its end


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interruption_that_an_import_makes_another_error_of(tmp_path: Path, name: str):
    """As modules do that Cython has made: the error has no context."""
    start = f"""
import os, signal, sys, time
from packer.__main__ import run
class Extension:
    def find_spec(self, module, *_):
        if module != "h5py":
            return None
        try:
            os.kill(os.getpid(), signal.{name})
            time.sleep(60)
        except KeyboardInterrupt:
            pass
        raise ImportError("cannot initialise module strings")
sys.meta_path.insert(0, Extension())
sys.argv = ["packer", "convert", "photos", "p.h5"]
signal.signal(signal.SIGINT, signal.default_int_handler)
run()
"""
    done = python("-c", start, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "Interrupted.\n")


@pytest.mark.parametrize(
    ("name", "moments"), [("SIGINT", (0.01, 0.5)), ("SIGTERM", (0.2, 0.8))]
)  # `make soak` tries many more
def test_an_interruption_at_any_moment_is_one_sentence(
    photo_folder: Path, tmp_path: Path, name: str, moments: tuple[float, ...]
):
    """Also while Python loads the command line, and while it ends; the same command then gives the same pack."""
    start = f"""
import os, signal, sys, threading, time
from packer.__main__ import run
sys.argv = ["packer", *sys.argv[2:]]
signal.signal(signal.SIGINT, signal.default_int_handler)
def later():
    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        time.sleep(0.001)  # run() has not begun
    time.sleep(float(os.environ["AFTER"]))
    os.kill(os.getpid(), signal.{name})
threading.Thread(target=later, daemon=True).start()
run()
"""
    arguments = ["x", "convert", str(photo_folder), "p.h5", "--size", "32", "--workers", "2", "--quiet"]

    def run(after: float) -> tuple[int, list[str]]:
        environment = {**os.environ, "AFTER": str(after)}
        done = python("-c", start, *arguments, cwd=tmp_path, env=environment)
        return done.returncode, done.stderr.strip().splitlines()  # click ends the line of ^C first

    whole = None
    for after in moments:
        code, lines = run(after)
        assert (code, len(lines)) in ((130, 1), (0, 0)), lines
        assert code == 0 or lines[0].startswith("Interrupted")
        if code:
            again = process("convert", str(photo_folder), str(tmp_path / "p.h5"), *arguments[4:])
            printed = again.communicate(timeout=120)
            assert again.returncode == 0 or "p.h5: exists" in printed[1]
        data = (tmp_path / "p.h5").read_bytes()
        assert whole is None or data == whole
        whole = data
        assert sorted(os.listdir(tmp_path)) == ["p.h5", photo_folder.name]
        (tmp_path / "p.h5").unlink()


def test_an_interruption_in_the_middle_of_an_import_does_not_crash_python(photo_folder: Path, tmp_path: Path):
    """The moment is chosen: h5py has given libhdf5 its type converters, and not yet registered what takes them back."""
    code = f"""
import atexit, signal, sys
register = atexit.register
def interrupted(function, *args, **kwargs):
    if "converters" in getattr(function, "__name__", ""):
        print("in h5py", flush=True)
        signal.raise_signal(signal.SIGTERM)
    return register(function, *args, **kwargs)
atexit.register = interrupted
from packer.__main__ import run
sys.argv = ["packer", "convert", {str(photo_folder)!r}, "p.h5", "--size", "32", "--quiet"]
run()
"""
    done = python("-c", code, cwd=tmp_path)
    assert done.stdout == "in h5py\n"
    assert (done.returncode, done.stderr.strip()) == (130, "Interrupted; nothing was left behind.")


def test_module_runs_and_tells_its_version():
    work = process("--version")
    assert work.communicate(timeout=120)[0] == f"packer, version {__version__}\n"


def test_bench_without_torch_names_the_remedy():
    code = "import sys; sys.modules['torch'] = None; sys.argv = ['packer', 'bench', 'a', 'b']; from packer.__main__ import run; run()"
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (
        1,
        "Error: packer bench: torch is not installed. Run: pip install torch\n",
    )


def commands() -> list[tuple[str, click.Command]]:
    return sorted(cli.commands.items())


@pytest.mark.parametrize(("name", "command"), commands(), ids=[name for name, _ in commands()])
def test_every_command_and_option_has_help_and_an_example(name: str, command: click.Command):
    assert command.help
    assert f"packer {name} " in command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


def test_bench_prints_a_table_and_writes_json(photos: Path, run: Run):
    pytest.importorskip("torch")
    run("convert", photos, "p.h5", "--size", 32)
    given = ("--batch-size", 4, "--rounds", 1, "--seconds", 0.05, "--workers", 0, "--json", "b.json")
    done = run("bench", photos, "p.h5", *given)
    assert done.code == 0
    assert re.fullmatch(r"takes about \d s: 19 measurements of 0\.05 s\n", done.err)
    assert "packed, slices" in done.out
    record = json.loads(Path("b.json").read_text())
    assert (record["command"], record["rows"]) == ("bench", 24)
    assert run("bench", photos, "p.h5", "--workers", "two").err == (
        "Error: --workers two: is not a list of integers. Pass for example 0,2,4.\n"
    )


HOSTILE = "\x1b]8;;http://x\x07a\x1b[31m\r\b\x9b2J\u202eb\u2028\n\x7f"
SHOWN = r"\x1b]8;;http://x\x07a\x1b[31m\r\x08\x9b2J\u202eb\u2028\n\x7f"


def unseen(text: str) -> set[str]:
    """Characters that a terminal obeys instead of showing them."""
    return {c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs")}


def test_names_from_strangers_are_shown_not_obeyed(tmp_path: Path, run: Run):
    pack = tmp_path / "pack.h5"
    write_pack(
        pack,
        classes=(HOSTILE, *map(str, range(22))),
        splits={HOSTILE: ((0, 20),)},
        provenance={"versions": {HOSTILE: HOSTILE}},
        skipped=({"key": HOSTILE, "reason": HOSTILE},),
    )
    done = run("info", pack)
    assert f"classes    23: {SHOWN}, 0" in done.out
    assert f"split      {SHOWN}: 20 rows" in done.out
    assert f"{SHOWN} {SHOWN}" in done.out
    assert not unseen(done.out)
    assert not unseen(run("info", pack, "--json").out)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["info", HOSTILE], 1),
        (["verify", HOSTILE], 1),
        ([HOSTILE], 2),
        (["info", f"--{HOSTILE}"], 2),
        (["info", "pack.h5", "--batch-size", HOSTILE], 2),
        (["convert", HOSTILE, "out.h5"], 2),
        (["convert", "pack.h5", "out.h5", "--size", HOSTILE], 2),
        (["convert", "pack.h5", "out.h5", "--pair", HOSTILE], 2),
        (["preview", "pack.h5", "-o", "x.png", "--augment", HOSTILE], 2),
        (["export", "pack.h5", "out", "--split", HOSTILE], 2),
    ],
)
def test_errors_do_not_repeat_escape_sequences(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int
):
    monkeypatch.chdir(tmp_path)
    write_pack(tmp_path / "pack.h5")
    done = run(*arguments)
    assert done.code == code
    assert "Error: " in done.err
    assert not unseen(done.out + done.err)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("ver", ["plain,verify"]),
        ("convert --siz", ["plain,--size"]),
        ("convert --store ", ["plain,raw", "plain,jpeg"]),
        ("convert pho", ["file,pho"]),
        ("convert photos train.h5 --labels la", ["file,la"]),
    ],
)
def test_a_shell_completes(typed: str, offered: list[str]) -> None:
    """As docs/install.md has it; "file" leaves it to the shell, which lists names of files."""
    words = f"packer {typed}"
    done = subprocess.run(
        [sys.executable, "-m", "packer"],
        env={
            **os.environ,
            "_PACKER_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.split(), done.returncode) == (offered, 0)
    assert (
        "_PACKER_COMPLETE=bash_source packer"
        in (Path(__file__).parent.parent / "docs/install.md").read_text()
    )


@pytest.mark.parametrize(
    ("made", "again", "remedy"),
    [
        (("repack", "p.h5", "d.h5"), "Create it again from the packs that it was made from", None),
        (
            ("convert", "t.csv", "d.h5"),
            "Convert the table again",
            "To convert the same SRC again: packer convert SRC d.h5 --format h5 --overwrite",
        ),
        (("convert", "a.npy", "d.h5"), "Pack the samples again", None),
    ],
)
def test_verify_advises_what_fits_a_pack(
    photos: Path, run: Run, made: tuple[str, ...], again: str, remedy: str
):
    run("convert", photos, "p.h5", "--size", 16)
    Path("t.csv").write_text("a,b\n" + "1,2\n" * 9)
    np.save("a.npy", np.arange(9))
    assert run(*made).code == 0
    pack = open_pack("d.h5")
    data = bytearray(Path("d.h5").read_bytes())
    data[pack.header.extents[pack.fields[0].name][0].offset] ^= 1
    Path("d.h5").write_bytes(data)
    said = run("verify", "d.h5")
    assert said.code == 1
    assert again in said.err
    assert said.err.splitlines()[1:] == ([] if remedy is None else [remedy])


def test_too_few_files_are_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def opened(**options: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "a.h5")

    monkeypatch.setattr(cli_module.cli, "main", opened)
    monkeypatch.setattr(cli_module.signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    with pytest.raises(SystemExit) as ended:
        cli_module.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "Error: too many open files. Raise ulimit -n, or pass fewer --workers.\n"
    )


def test_a_warning_is_a_sentence_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    _warn(UserWarning("Points may be sides. Pass labels=Labels(flip_pairs='none')."))
    assert capsys.readouterr().err == "warning: Points may be sides. Pass --flip-pairs none.\n"


def test_help_lists_every_option_of_convert_once_by_section(run: Run) -> None:
    parameters = [one for one in convert.params if isinstance(one, click.Option)]
    named = [name for section in SECTIONS for name in section.options.split()]
    assert sorted(named) == sorted({max(one.opts, key=len).lstrip("-") for one in parameters} | {"help"})
    assert set(MOST_USED.split()) <= set(named)
    lines = run("convert", "--help").out.splitlines()
    listed = [line.split()[0].rstrip(",") for line in lines if line.startswith("  -")]
    assert sorted(listed) == sorted(f"--{name}" if name != "help" else "-h" for name in named)


@pytest.mark.parametrize(
    ("word", "options"),
    [
        ("masks", {"--pair", "--mask-values", "--soft", "--boxes"}),
        ("disk", {"--store", "--quality", "--compress"}),
        ("CSV", {"--delimiter", "--decimal", "--na"}),
        ("patient", {"--group-column"}),
        ("clip", {"--sequence"}),
        ("video", {"--sequence"}),
        ("resume", {"--resume"}),
        ("YOLO", {"--boxes"}),
        ("k-fold", {"--split-column"}),
    ],
)
def test_help_with_a_word_shows_the_options_about_it(run: Run, word: str, options: set[str]) -> None:
    shown = run("convert", "--help", word)
    assert shown.code == 0
    assert options <= set(shown.out.split())
    assert len(shown.out) < 0.4 * len(run("convert", "-h").out)
    assert "packer convert" in shown.out


def test_help_about_an_unknown_word_names_the_sections(run: Run) -> None:
    refused = run("convert", "photos/", "--help", "blub")
    assert refused.code == 2
    assert refused.err.startswith(
        "Error: --help blub: no option is about it. The sections are: Size and pixels;"
    )


def test_an_unknown_option_that_people_look_for_leads_to_its_help(photos: Path, run: Run) -> None:
    refused = run("convert", photos, "x.h5", "--masks", "masks/")
    assert refused.code == 2
    assert refused.err == "Error: --masks: there is no such option. See packer convert --help masks.\n"
    assert "Did you mean" in run("convert", photos, "x.h5", "--sise", "9").err
