"""Packs that are read while they are filled: by a process of their own, whatever happens to it or to those that read."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer.convert.image_conversion import convert_images
from packer.errors import BusyError, PackerError, SourceError, UsageError
from packer.filling import opening
from packer.filling.opening import open_filling
from packer.format.frontier import FILES
from packer.load.batch_dataset import PackedBatchDataset
from packer.orders.runs import consecutive, one_run
from packer.packs import filling_pack
from packer.packs.filling_pack import FillingPack
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.read.array_store import PackStore
from tests.filling.conftest import ROWS
from tests.filling.crashing_process import DEADLY
from tests.format.packs import files_of

FORMS: list[dict[str, Any]] = [
    {},
    {"format": "npy", "size": [64, 512], "fit": "pad"},
    {"shards": 40},
    {"shards": 40, "format": "npy"},
    {"shards": 40, "store": "jpeg"},
    {"shards": 40, "store": "gzip"},
    {"shards": 40, "size": "keep", "store": "jpeg"},
]


def fill(images: Path, out: Path, **options: Any) -> FillingPack:
    pack = open_filling(str(images), str(out), options)
    assert isinstance(pack, FillingPack)
    return pack


def rows_of(pack: Pack, rows: Sequence[int] | range, name: str = "image") -> list[bytes]:
    reader, runs = PackStore(pack, pack.fields), consecutive(np.asarray(rows))
    try:
        if pack.header.field(name).loaded.ragged:
            return reader.ragged(name, runs)
        return [row.tobytes() for row in reader.array(name, runs)]
    finally:
        reader.close()


def fillers(out: Path) -> list[int]:
    """Return the processes that fill a pack, and their workers."""
    found = []
    for name in os.listdir("/proc"):
        with suppress(OSError):
            command = Path("/proc", name, "cmdline").read_bytes() if name.isdigit() else b""
            if b"_process import main" in command and os.fsencode(f"{out}.packing") in command.split(b"\0"):
                found.append(int(name))
    return found


def ended(out: Path) -> bool:
    until = time.monotonic() + 60
    while fillers(out) and time.monotonic() < until:
        time.sleep(0.01)
    return not fillers(out)


def kill(out: Path) -> None:
    for number in fillers(out):
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    assert ended(out)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes started in the test fill slowly."""
    monkeypatch.setattr(opening, "MODULE", "tests.filling.slow_process")


def leave(images: Path, out: Path, **options: Any) -> None:
    """Leave a pack of which some blocks have been made, as a killed process does."""

    class StoppedError(Exception):
        pass

    def stop(done: int) -> None:
        if done > ROWS // 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        convert_images(images, out, workers=1, on_progress=stop, **options)
    assert not out.exists()


@pytest.mark.usefixtures("slow")  # else the pack may be whole before it is opened
@pytest.mark.parametrize(
    ("options", "killed"), [*((form, False) for form in FORMS), (FORMS[0], True), (FORMS[4], True)]
)
def test_rows_of_every_form_are_read_and_the_pack_is_the_one_that_convert_makes(
    images: Path, tmp_path: Path, options: dict[str, Any], killed: bool
) -> None:
    out, made = tmp_path / "p", tmp_path / "made"
    options = {"format": "h5", **options}
    convert_images(images, made, **options)
    pack, expected = fill(images, out, **options), open_pack(made)
    assert (pack.sealed, pack.rows, pack.fields) == (False, ROWS, expected.fields)
    assert pack.header.classes == expected.header.classes
    for some in (range(20), [50, 3, 95], range(20, ROWS)):
        if killed:
            kill(out)
        for name in ("label", "image"):
            assert rows_of(pack, some, name) == rows_of(expected, some, name)
    assert rows_of(pack, [60, 3], "key") == rows_of(expected, [60, 3], "key")
    assert pack.keys() == expected.keys()
    assert pack.rows_of(expected.keys(5, 9)).tolist() == [5, 6, 7, 8]
    pack.close()
    assert not pack.pending
    assert pack.settled().sealed
    assert files_of(out) == files_of(made)
    assert ended(out)
    assert sorted(os.listdir(tmp_path)) == ["made", "p"]
    assert not isinstance(open_filling(str(images), str(out), options), FillingPack)


@pytest.mark.parametrize("options", [{}, {"shards": 40}])
def test_rows_are_read_while_others_are_being_made(
    images: Path, tmp_path: Path, slow: None, options: dict[str, Any]
) -> None:
    """And others than the first are waited for until a dataset is closed, which ends the process."""
    out = tmp_path / "p.h5"
    pack = fill(images, out, workers=1, **options)
    assert len(rows_of(pack, [0, 30])) == 2
    assert pack.pending
    for name in FILES:
        assert os.stat(f"{out}.packing/{name}").st_mode & 0o777 == 0o600
    with pytest.raises(BusyError, match="another packer is writing it"):
        convert_images(images, out, **options)
    with pytest.raises(
        UsageError,
        match=r"is being filled from other images, or with other options: options size was not given, now it is 64",
    ):
        open_filling(str(images), str(out), {"workers": 1, "size": 64, **options})
    with pack.closing(), pytest.raises(PackerError, match="was closed while its rows were converted"):
        rows_of(pack, [ROWS - 1])
    assert ended(out)
    assert rows_of(pack, [30]) == rows_of(
        open_filling(str(images), str(out), {"workers": 1, **options}), [30]
    )


def test_pieces_of_masks_arrive_with_their_images(images: Path, tmp_path: Path) -> None:
    masks = tmp_path / "masks"
    for path in images.rglob("*.jpg"):
        target = masks / path.relative_to(images).with_suffix(".png")
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((24, 32), int(path.stem), np.uint8)).save(target)
    convert_images(images, tmp_path / "made.h5", pairs={"mask": masks})
    pack, made = fill(images, tmp_path / "p.h5", pairs={"mask": masks}), open_pack(tmp_path / "made.h5")
    for name in ("mask", "image"):
        assert rows_of(pack, [70, 3], name) == rows_of(made, [70, 3], name)
    rows_of(pack, [ROWS - 1])
    pack.close()
    assert files_of(tmp_path / "p.h5") == files_of(tmp_path / "made.h5")


@pytest.mark.parametrize("filled", [True, False])
def test_half_done_it_is_gone_on_with(images: Path, whole: Path, tmp_path: Path, filled: bool) -> None:
    out, work = tmp_path / "p.h5", tmp_path / "p.h5.packing"
    leave(images, out)
    with open(work / "pack", "r+b") as file:  # a power cut has taken rows that the journal names
        file.seek(open_pack(whole).header.extents["image"][0].offset + 7 * 256 * 256 * 3)
        file.write(bytes(1000))
    np.array([ROWS, 1, 77, 0, ROWS, ROWS], "<i8").tofile(work / "frontier")  # and left this behind
    (work / "frontier").chmod(0o600)
    if filled:
        pack = fill(images, out)
        assert rows_of(pack, [7]) == rows_of(open_pack(whole), [7])
        rows_of(pack, range(ROWS))
        pack.close()
    else:
        convert_images(images, out, resume=True)
    assert out.read_bytes() == whole.read_bytes()


def changed(source: Path, out: Path) -> None:
    Image.new("RGB", (32, 24)).save(source / "dog" / "9.jpg")


def enlarged(source: Path, out: Path) -> None:
    Image.new("RGB", (32, 24)).save(source / "dog" / "new.jpg")


def removed(source: Path, out: Path) -> None:
    os.rename(f"{out}.packing", f"{out}.moved")  # its inodes stay in use


def made_by_others(source: Path, out: Path) -> None:
    changed(source, out)
    convert_images(source, out)


@pytest.mark.parametrize(
    ("change", "options"),
    [(changed, {}), (changed, {"shards": 40}), (enlarged, {}), (removed, {}), (made_by_others, {})],
)
def test_rows_of_files_that_are_no_longer_filled_are_not_read(
    images: Path, tmp_path: Path, slow: None, change: Callable[[Path, Path], None], options: dict[str, Any]
) -> None:
    source, out = tmp_path / "source", tmp_path / "p.h5"
    shutil.copytree(images, source)
    pack = fill(source, out, **options)
    reader = PackStore(pack, pack.fields)
    reader.array("image", one_run(5, 6))  # its files are open
    kill(out)
    change(source, out)
    with pytest.raises(PackerError, match="was replaced or started over after it was opened"):
        reader.array("image", one_run(0, ROWS))
    with pytest.raises(PackerError, match="was replaced or started over after it was opened"):
        PackStore(pack, ()).array("label", one_run(5, 6))
    reader.close()
    pack.close()


def test_closing_datasets_in_the_middle_leaves_no_process(images: Path, tmp_path: Path, slow: None) -> None:
    out = tmp_path / "p.h5"
    pack = fill(images, out)
    datasets = [PackedBatchDataset(pack, 8, shuffle=True, threads=2, output="numpy") for _ in range(2)]
    loops = [iter(dataset) for dataset in datasets]
    for loop in loops:
        next(loop)
    for dataset in datasets:
        dataset.close()
    pack.close()
    assert ended(out)
    for loop in loops:
        with pytest.raises(PackerError, match="closed"):
            list(loop)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"python_command": lambda *_: ["/bin/false"]},
            r"the process that fills it died 4 times\. Finished rows are kept",
        ),
        ({"python_command": lambda *_: ["/nowhere"]}, r"the process that fills it died 4 times"),
        ({"Frontier": lambda _: os.close(1 << 20)}, r"p\.h5: writing failed \(Bad file descriptor\)"),
    ],
)
def test_a_process_that_cannot_be_started_is_one_sentence(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], sentence: str
) -> None:
    for name, value in change.items():
        monkeypatch.setattr(filling_pack, name, value)
    with pytest.raises(PackerError, match=sentence):
        open_filling(str(images), str(tmp_path / "p.h5"), {})


def test_names_in_options_lead_from_where_the_pack_was_opened(
    images: Path, tmp_path: Path, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    for folder, value in ((tmp_path, 3), (tmp_path / "elsewhere", 4)):
        lines = "".join(f"{name}/{i}.jpg,{value}\n" for name in ("cat", "dog") for i in range(ROWS // 2))
        (folder / "labels.csv").write_text("path,value\n" + lines)
    monkeypatch.chdir(tmp_path)
    pack = open_filling(str(images), "p.h5", {"labels": "labels.csv"})
    monkeypatch.chdir("elsewhere")
    kill(tmp_path / "p.h5")
    assert {row[0] for row in rows_of(pack, range(ROWS), "label")} == {3}
    pack.close()


READ = """
import os, sys
from packer.filling import opening
from packer.filling.opening import open_filling
from packer.orders.runs import one_run
from packer.read.array_store import PackStore

images, out, rank, ranks = *sys.argv[1:3], *map(int, sys.argv[3:5])
print("here", flush=True)
sys.stdin.readline()
pack = open_filling(images, out, {"size": 512, "workers": 1})
reader = PackStore(pack, pack.fields)
for row in range(rank, pack.rows if ranks else 1, ranks or 1):
    reader.array("image", one_run(row, row + 1))
if not ranks:
    os.kill(os.getpid(), 9)
pack.close()
"""


@pytest.mark.parametrize("ranks", [3, 0])
def test_processes_share_one_filling_and_one_that_is_killed_holds_nobody_up(
    images: Path, tmp_path: Path, ranks: int
) -> None:
    out = tmp_path / "p.h5"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", READ, str(images), str(out), str(rank), str(ranks)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(ranks or 1)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "here\n"
    for process in processes:  # all at once: one of them starts the process that fills
        process.communicate("go\n")
        assert process.returncode == (0 if ranks else -signal.SIGKILL)
    assert ended(out)
    convert_images(images, tmp_path / "made.h5", size=512)
    if not ranks:
        convert_images(images, out, size=512, resume=True)
    assert files_of(out) == files_of(tmp_path / "made.h5")


def test_a_bad_image_is_named_and_what_is_done_is_kept(images: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(images, source)
    (source / "dog" / "7.jpg").write_bytes(b"no image")
    out = tmp_path / "p.h5"
    for _ in range(2):  # asked again, it says so again
        with pytest.raises(SourceError, match=r"dog/7\.jpg: .* Remove it, or pass on_error='skip'\."):
            rows_of(open_filling(str(source), str(out), {}), range(ROWS))
    assert not out.exists()
    skipped = open_filling(str(source), str(out), {"on_error": "skip"})
    assert not isinstance(skipped, FillingPack)
    assert skipped.rows == ROWS - 1
    convert_images(source, tmp_path / "made.h5", on_error="skip")
    assert out.read_bytes() == (tmp_path / "made.h5").read_bytes()


@pytest.mark.parametrize("options", [{"store": "jpeg"}, {"store": "gzip"}, {"on_error": "skip"}])
def test_rows_without_a_fixed_place_are_converted_first_and_earlier_work_is_discarded_with_a_word(
    images: Path, tmp_path: Path, options: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[int, int]] = []
    out = tmp_path / "p.h5"
    leave(images, out, size=32)
    pack = open_filling(str(images), str(out), options, lambda done, total: seen.append((done, total)))
    assert not isinstance(pack, FillingPack)
    assert {total for _, total in seen} <= {0, ROWS}
    convert_images(images, tmp_path / "made.h5", **options)
    assert files_of(out) == files_of(tmp_path / "made.h5")
    assert (
        "earlier work on it was discarded, because the source or the options changed"
        in capfd.readouterr().err
    )
    with pytest.raises(UsageError, match=r"is a complete pack, but of other options or inputs: options"):
        open_filling(str(images), str(out), {"size": 64})


def test_a_table_is_converted_first(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"{i},{i * 2}\n" for i in range(100)))
    for _ in range(2):
        assert open_filling(str(tmp_path / "t.csv"), str(tmp_path / "t.h5"), {"label": "b"}).rows == 100


def test_rows_that_a_conversion_left_out_are_no_images(images: Path, tmp_path: Path) -> None:
    """Blocks of an interrupted conversion with on_error="skip" have empty rows, which nobody may take for images."""
    source, out = tmp_path / "source", tmp_path / "p.h5"
    shutil.copytree(images, source)
    for number in range(24):
        (source / "cat" / f"{number}.jpg").write_bytes(b"no image")
    leave(source, out, on_error="skip")
    with pytest.raises(SourceError, match=r"cat/\d+\.jpg: not an image"):
        assert all(map(any, rows_of(open_filling(str(source), str(out), {}), range(ROWS))))


@pytest.mark.skipif(sys.platform != "linux", reason="workers are processes on Linux only")
def test_an_image_that_crashes_its_decoder_is_named(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    shutil.copytree(images, source)
    with open(source / "dog" / "7.jpg", "ab") as file:
        file.write(DEADLY)
    monkeypatch.setattr(opening, "MODULE", "tests.filling.crashing_process")
    with pytest.raises(SourceError, match=r"dog/7\.jpg: its decoder crashed \(SIGSEGV\)\. Remove it"):
        rows_of(open_filling(str(source), str(tmp_path / "p.h5"), {"workers": 4}), range(ROWS))


@pytest.mark.parametrize(
    ("source", "out", "options", "sentence"),
    [
        ("", "p.h5", {"sise": 64}, r"sise=: is not an option of convert_images; pass size=."),
        ("", "p.h5", {"size": 0}, r"size 0: is not a number or HxW"),
        ("", "p.h5", {"labels": "nowhere.csv"}, r"nowhere.csv"),
        ("nowhere", "p.h5", {}, r"nowhere: does not exist|nowhere"),
        ("", "nowhere/p.h5", {}, r"its folder .*nowhere does not exist"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    images: Path, tmp_path: Path, source: str, out: str, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(PackerError, match=sentence):
        open_filling(str(images / source), str(tmp_path / out), options)
    assert ended(tmp_path / out)
    assert os.listdir(tmp_path) == []


def planted_link(work: Path) -> None:
    (work.parent / "else").mkdir()
    work.symlink_to(work.parent / "else")


def planted_file(work: Path) -> None:
    work.mkdir(mode=0o700)
    (work / "frontier").symlink_to("/etc/passwd")


def open_to_others(work: Path) -> None:
    work.mkdir()
    work.chmod(0o777)


@pytest.mark.parametrize("plant", [planted_link, planted_file, open_to_others])
def test_what_others_planted_is_refused_unread(
    images: Path, tmp_path: Path, plant: Callable[[Path], None]
) -> None:
    plant(tmp_path / "p.h5.packing")
    with pytest.raises(UsageError, match=r"is needed as the working folder|is a link|others can write to it"):
        open_filling(str(images), str(tmp_path / "p.h5"), {})
    assert not fillers(tmp_path / "p.h5")


def test_a_pickled_pack_and_a_forked_child_wait_too(images: Path, whole: Path, tmp_path: Path) -> None:
    pack, expected = fill(images, tmp_path / "p.h5"), open_pack(whole)
    assert rows_of(pickle.loads(pickle.dumps(pack)), [9, 4]) == rows_of(expected, [9, 4])
    child = os.fork()
    if not child:
        signal.alarm(60)
        same = rows_of(pack, [95, 11]) == rows_of(expected, [95, 11])
        pack.close()
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert rows_of(pack, [60]) == rows_of(expected, [60])
    pack.close()


def test_a_disk_without_room_is_one_sentence(images: Path, tmp_path: Path) -> None:
    script = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5_000_000, 5_000_000))\n"
        "from packer.errors import PackerError\n"
        "from packer.filling.opening import open_filling\n"
        "try:\n"
        "    open_filling(sys.argv[1], sys.argv[2], {}).read('image')\n"
        "except PackerError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script, str(images), str(tmp_path / "p.h5")], capture_output=True, text=True
    )
    assert "p.h5: writing failed (File too large)." in found.stdout, found
    assert not (tmp_path / "p.h5").exists()
