"""The command line: exit codes, one sentence an error, nothing left behind, and every option described."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import pack as struct_pack
from typing import NamedTuple

import click
import numpy as np
import pytest
from PIL import Image

from packer import __version__, open_pack
from packer.cli import cli, main


class Done(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """run("convert", ...) -> exit code, output, errors; in this process."""
    handlers = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGHUP)}

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
    assert first == "photos: 24 images of 3 classes -> p.h5: 32x32x3 each, about 140 kB"
    assert second.startswith("packed 24 images, ")
    assert second.endswith(("workers)", "1 worker)"))
    assert open_pack("p.h5").rows == 24


def test_quiet_prints_nothing(photos: Path, run: Run):
    assert run("convert", photos, "p.h5", "--size", 32, "--quiet") == (0, "", "")


def test_skipped_inputs_are_listed_and_exit_with_3(photos: Path, run: Run):
    (photos / "blue" / "2.jpg").write_bytes(b"")
    done = run("convert", photos, "p", "--size", 32, "--on-error", "skip")
    assert done.code == 3
    assert done.err.splitlines()[0] == "skipped 1 input:"
    assert done.err.splitlines()[1].startswith("  blue/2.jpg: ")
    assert "skipped    1 input; --json lists them with their reasons" in run("info", "p").out
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
    assert (record["rows"], record["classes"], record["sealed"]) == (24, ["blue", "green", "red"], True)


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
        (lambda p: None, ["--size", "250"], 2, "Error: size 250: 250 is not a power of two; the nearest are 128 and 256. "),
        (lambda p: None, ["--fit", "zoom"], 2, "Invalid value for '--fit': 'zoom' is not one of"),
        (lambda p: None, ["--colour"], 2, "No such option"),
        (lambda p: None, ["--workers", "0"], 2, "Error: workers 0: is too few; 1 is the least. Pass 1 or more."),
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


def test_two_files_with_one_stem_are_both_packed_and_noted(photos: Path, run: Run):
    Image.new("RGB", (9, 9)).save(photos / "blue" / "0.png")
    done = run("convert", photos, "p", "--size", 8)
    assert done.code == 0
    assert "note: " in done.out
    assert "blue/0.jpg" in done.out
    assert open_pack("p").rows == 25


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


def process(*arguments: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "packer", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


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
    work = process("convert", str(slow_photos), str(tmp_path / "p.h5"), "--size", "1024", "--workers", "1")
    deadline = time.monotonic() + 30
    while not (tmp_path / "p.h5.packing").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    work.send_signal(getattr(signal, name))
    _, err = work.communicate(timeout=30)
    assert work.returncode == 130
    if os.listdir(tmp_path) == ["slow"]:
        assert err.strip() == "Interrupted; nothing was left behind."
    else:
        kept = (
            rf"Interrupted\. What has been done is kept \({tmp_path}/p\.h5\.packing, .* MB\):"
            r" run the same command again, with --resume, to go on\."
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
    time.sleep(20)

sys.argv = ["packer", "trap"]
cli.main()
"""
    work = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=15, check=False
    )
    assert (work.returncode, work.stderr.strip()) == (130, "Interrupted; nothing was left behind.")


def test_kill_leaves_no_pack_and_the_next_run_goes_on(slow_photos: Path, tmp_path: Path):
    arguments = ("convert", str(slow_photos), str(tmp_path / "p.h5"), "--size", "256")
    work = process(*arguments)
    deadline = time.monotonic() + 30
    while not (tmp_path / "p.h5.packing").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    work.kill()
    work.communicate(timeout=30)
    assert sorted(os.listdir(tmp_path)) == ["p.h5.packing", "slow"]
    again = process(*arguments)
    assert again.communicate(timeout=60)[1] == ""
    assert again.returncode == 0
    assert sorted(os.listdir(tmp_path)) == ["p.h5", "slow"]


def test_module_runs_and_tells_its_version():
    work = process("--version")
    assert work.communicate(timeout=30)[0] == f"packer, version {__version__}\n"


def test_bench_without_torch_names_the_remedy():
    code = "import sys; sys.modules['torch'] = None; sys.argv = ['packer', 'bench', 'a', 'b']; import packer.__main__"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        'Error: packer bench: torch is not installed. Run: pip install "packer[torch]"\n',
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
    done = run(
        "bench",
        photos,
        "p.h5",
        "--batch-size",
        4,
        "--rounds",
        1,
        "--seconds",
        "0.05",
        "--workers",
        "0",
        "--json",
        "b.json",
    )
    assert (done.code, done.err) == (0, "")
    assert "packed, slices" in done.out
    assert json.loads(Path("b.json").read_text())["rows"] == 24
    assert run("bench", photos, "p.h5", "--workers", "two").err == (
        "Error: --workers two: is no list of whole numbers. Pass for example 0,2,4.\n"
    )
