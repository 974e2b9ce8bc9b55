"""Packs that are read while they are filled: by a process of their own, whatever happens to it or to those that read."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer.convert.image_conversion import convert_images
from packer.errors import BusyError, FormatError, PackerError, SourceError, SpaceError, UsageError
from packer.filling import opening
from packer.filling.opening import open_filling
from packer.format import filling_pack
from packer.format.filling_pack import FillingPack
from packer.format.frontier import FILES, Frontier
from packer.format.pack import Pack
from packer.format.pack_opening import open_pack
from packer.format.working_folder import is_locked
from packer.inputs.label_options import Labels
from packer.load.batch_dataset import PackedBatchDataset
from packer.orders.runs import consecutive, one_run
from packer.read.array_store import PackStore
from packer.service import error_of, failure
from packer.tables.table_conversion import convert_table
from tests.filling.conftest import ROWS
from tests.filling.crashing_process import DEADLY
from tests.format.packs import files_of

FORMS: list[dict[str, Any]] = [
    {},
    {"format": "npy"},
    {"store": "jpeg"},
    {"store": "gzip"},
    {"shards": 40},
    {"shards": 40, "format": "npy"},
    {"shards": 40, "store": "jpeg"},
    {"size": "keep", "store": "jpeg"},
]


def fill(images: Path, out: Path, **options: Any) -> FillingPack:
    pack = open_filling(str(images), str(out), options)
    assert isinstance(pack, FillingPack)
    return pack


def rows_of(pack: Pack, rows: Any, name: str = "image") -> np.ndarray[Any, Any]:
    field = pack.header.field(name)
    reader = PackStore(pack, [field])
    try:
        return reader.array(name, consecutive(np.asarray(rows)))
    finally:
        reader.close()


def helpers(out: Path) -> list[int]:
    """Return the processes that fill a pack, and their workers."""
    found = []
    for name in os.listdir("/proc"):
        with suppress(OSError):
            command = Path("/proc", name, "cmdline").read_bytes() if name.isdigit() else b""
            if b"_process import main" in command and os.fsencode(f"{out}.packing") in command.split(b"\0"):
                found.append(int(name))
    return found


def kill(out: Path) -> None:
    """Kill the processes that fill a pack."""
    for number in helpers(out):
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    while helpers(out):
        time.sleep(0.01)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes started in the test fill slowly; close() waits for their end on a busy machine too."""
    monkeypatch.setattr(opening, "MODULE", "tests.filling.slow_process")
    monkeypatch.setattr(filling_pack, "_END_SECONDS", 120.0)


class StoppedError(Exception):
    """The end of a conversion that is left half done."""


def leave(images: Path, out: Path, **options: Any) -> None:
    """Leave a pack of which some blocks have been made, as a killed process does."""

    def stop(done: int) -> None:
        if done > ROWS // 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        convert_images(images, out, workers=1, on_progress=stop, **options)
    assert not out.exists()


@pytest.mark.parametrize("options", FORMS)
def test_rows_of_every_form_can_be_read_and_the_pack_is_the_one_that_convert_makes(
    images: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    out, made = tmp_path / "p", tmp_path / "made"
    options = {"format": "h5", **options}
    convert_images(images, made, **options)
    pack, expected = fill(images, out, **options), open_pack(made)
    assert not pack.sealed
    assert pack.rows == ROWS
    assert pack.fields == expected.fields
    assert pack.header.classes == expected.header.classes
    reader, whole = (PackStore(one, one.fields) for one in (pack, expected))
    picked = np.random.default_rng(0).permutation(ROWS)
    for some in (np.arange(30), np.array([50, 3, 95]), picked):
        runs = consecutive(some)
        assert np.array_equal(reader.array("label", runs), whole.array("label", runs))
        if "size" in options:
            assert reader.ragged("image", runs) == whole.ragged("image", runs)
        else:
            assert np.array_equal(reader.array("image", runs), whole.array("image", runs))
    reader.close()
    pack.close()
    assert not pack.pending
    assert files_of(out) == files_of(made)
    assert sorted(os.listdir(tmp_path)) == ["made", "p"]
    assert pack.settled().sealed


def test_rows_are_read_while_others_are_being_made(
    images: Path, whole: Path, tmp_path: Path, slow: None
) -> None:
    for options in ({}, {"store": "jpeg", "size": 512}, {"shards": 40}):
        pack = fill(images, tmp_path / "p.h5", workers=1, **options)
        rows_of(pack, [0])
        assert pack.pending
        frontier = pack.units.wait(1)
        assert frontier is not None
        assert frontier.rows < ROWS
        pack.close()
        shutil.rmtree(tmp_path / "p.h5.packing")


def test_rows_by_key_are_those_of_the_whole_pack_when_it_has_its_name(
    images: Path, whole: Path, tmp_path: Path
) -> None:
    pack, expected = fill(images, tmp_path / "p.h5"), open_pack(whole)
    rows_of(pack, range(ROWS))
    pack.close()
    assert pack.rows_of(expected.keys(5, 9)).tolist() == [5, 6, 7, 8]
    assert pack.keys() == expected.keys()


def test_keys_are_there_before_the_rows(images: Path, whole: Path, tmp_path: Path) -> None:
    pack = fill(images, tmp_path / "p.h5")
    reader = PackStore(pack, [pack.header.field("key")])
    assert reader.ragged("key", one_run(3, 90)) == PackStore(
        open_pack(whole), [pack.header.field("key")]
    ).ragged("key", one_run(3, 90))
    pack.close()


def test_masks_arrive_with_their_images(images: Path, tmp_path: Path) -> None:
    masks = tmp_path / "masks"
    for path in images.rglob("*.jpg"):
        target = masks / path.relative_to(images).with_suffix(".png")
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((24, 32), int(path.stem), np.uint8)).save(target)
    convert_images(images, tmp_path / "made.h5", pairs={"mask": masks})
    pack, made = fill(images, tmp_path / "p.h5", pairs={"mask": masks}), open_pack(tmp_path / "made.h5")
    for name in ("mask", "image"):
        assert np.array_equal(rows_of(pack, [70, 3], name), rows_of(made, [70, 3], name))
    pack.close()
    assert pack.known == {"label", "key", "key.offsets"}
    assert files_of(tmp_path / "p.h5") == files_of(tmp_path / "made.h5")


@pytest.mark.parametrize("go_on", [fill, convert_images])
def test_half_done_it_is_gone_on_with(
    images: Path, whole: Path, tmp_path: Path, go_on: Callable[..., Any]
) -> None:
    out = tmp_path / "p.h5"
    leave(images, out)
    journal = (tmp_path / "p.h5.packing" / "journal").read_bytes()
    if go_on is fill:
        pack = fill(images, out)
        rows_of(pack, range(ROWS))
        with suppress(FileNotFoundError):  # the pack is complete
            assert (tmp_path / "p.h5.packing" / "journal").read_bytes().startswith(journal)
        pack.close()
    else:
        convert_images(images, out, resume=True)
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("options", FORMS)
def test_the_process_that_fills_is_killed(images: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    out, made = tmp_path / "p", tmp_path / "made"
    options = {"format": "h5", **options}
    convert_images(images, made, **options)
    pack, expected = fill(images, out, **options), open_pack(made)
    keys = expected.keys()
    for some in (range(20), range(20, 60), range(60, ROWS)):
        kill(out)
        reader = PackStore(pack, pack.fields)
        runs = consecutive(np.asarray(some))
        theirs = PackStore(expected, expected.fields)
        for name in ("image", "key"):
            field = pack.header.field(name)
            if field.loaded.ragged:
                assert reader.ragged(name, runs) == theirs.ragged(name, runs)
            else:
                assert np.array_equal(reader.array(name, runs), theirs.array(name, runs))
        reader.close()
    pack.close()
    assert pack.keys() == keys
    assert files_of(out) == files_of(made)


def test_rows_that_a_power_cut_has_taken_are_made_again(images: Path, whole: Path, tmp_path: Path) -> None:
    out, work = tmp_path / "p.h5", tmp_path / "p.h5.packing"
    leave(images, out)
    with open(work / "pack", "r+b") as file:  # fewer rows are there than the journal says
        file.seek(open_pack(whole).header.extents["image"][0].offset + 7 * 256 * 256 * 3)
        file.write(bytes(1000))
    np.array([ROWS, 1, 0], "<i8").tofile(work / "frontier")  # and a frontier that was written before
    (work / "frontier").chmod(0o600)
    pack = fill(images, out)
    assert np.array_equal(rows_of(pack, [7]), rows_of(open_pack(whole), [7]))
    rows_of(pack, range(ROWS))
    pack.close()
    assert out.read_bytes() == whole.read_bytes()


def changed(source: Path, out: Path) -> None:
    Image.new("RGB", (32, 24)).save(source / "dog" / "9.jpg")


def enlarged(source: Path, out: Path) -> None:
    Image.new("RGB", (32, 24)).save(source / "dog" / "new.jpg")


def made_by_others(source: Path, out: Path) -> None:
    changed(source, out)
    convert_images(source, out)


@pytest.mark.parametrize("change", [changed, enlarged, made_by_others])
def test_rows_of_files_that_are_no_longer_filled_are_not_read(
    images: Path, tmp_path: Path, slow: None, change: Callable[[Path, Path], None]
) -> None:
    source, out = tmp_path / "source", tmp_path / "p.h5"
    shutil.copytree(images, source)
    pack = fill(source, out)
    reader = PackStore(pack, pack.fields)
    reader.array("image", one_run(5, 6))  # its files are open
    kill(out)
    change(source, out)
    with pytest.raises(PackerError, match="was replaced or started over after it was opened, because its"):
        reader.array("image", one_run(0, ROWS))
    with pytest.raises(PackerError, match="was replaced or started over after it was opened"):
        PackStore(pack, ()).array("label", one_run(5, 6))
    reader.close()
    pack.close()


def test_rows_are_those_of_the_new_files_if_the_working_folder_was_removed(
    images: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "p.h5"
    pack = fill(images, out, workers=1)
    reader = PackStore(pack, pack.fields)
    reader.array("image", one_run(5, 6))
    kill(out)
    if not out.exists():
        shutil.rmtree(f"{out}.packing")
    expected = PackStore(open_pack(whole), pack.fields)
    assert np.array_equal(reader.array("image", one_run(0, ROWS)), expected.array("image", one_run(0, ROWS)))
    pack.close()


@pytest.mark.parametrize("number", [1, 2])
def test_closing_in_the_middle_leaves_no_process(
    images: Path, tmp_path: Path, slow: None, number: int
) -> None:
    """Nor with several datasets of one pack, of which each is closed while its threads wait for rows."""
    datasets = [
        PackedBatchDataset(fill(images, tmp_path / "p.h5"), 8, shuffle=True, threads=2, output="numpy")
        for _ in range(number)
    ]
    loops = [iter(dataset) for dataset in datasets]
    for loop in loops:
        next(loop)
    for dataset in datasets:
        dataset.close()
    assert not helpers(tmp_path / "p.h5")
    for loop in loops:
        with pytest.raises(PackerError, match="closed"):
            list(loop)


def test_a_process_that_dies_again_and_again_is_one_sentence(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "MODULE", "nowhere")
    with pytest.raises(PackerError, match=r"the process that fills it died 4 times\. Finished rows are kept"):
        open_filling(str(images), str(tmp_path / "p.h5"), {})


def test_a_limit_is_one_sentence(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **named: Any) -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(filling_pack, "Popen", refused)
    with pytest.raises(PackerError, match=r"cannot be started or joined \(Too many open files\)"):
        open_filling(str(images), str(tmp_path / "p.h5"), {})


def test_a_pack_that_cannot_be_sealed_is_closed_with_a_warning(
    images: Path, tmp_path: Path, slow: None, caplog: pytest.LogCaptureFixture
) -> None:
    pack = fill(images, tmp_path / "p.h5", workers=1)
    frontier = pack.units.wait(1)
    assert frontier is not None
    kill(tmp_path / "p.h5")
    blocked = Frontier(os.path.join(pack.units.folder, "frontier"), create=True)
    while not blocked.lock():
        time.sleep(0.01)
    blocked.describe(pack.units.plan)
    blocked.move(0, ROWS)
    blocked.rise(ROWS)
    blocked.end(SpaceError("p.h5: cannot be sealed (No space left on device). Make room."))
    pack.close()
    assert "cannot be sealed (No space left on device)" in caplog.text


def test_a_forked_child_that_closes_leaves_its_parent_among_the_readers(
    images: Path, tmp_path: Path, slow: None
) -> None:
    out = tmp_path / "p.h5"
    pack = fill(images, out, workers=1)
    before = helpers(out)
    child = os.fork()
    if not child:
        signal.alarm(20)
        pack.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    time.sleep(0.5)  # the process looks whether anybody reads
    pack.units.wait(1)
    assert set(before) <= set(helpers(out))
    pack.close()


def test_a_pack_that_another_process_converts_is_waited_for(
    images: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    out = tmp_path / "p.h5"
    begun, go_on = threading.Event(), threading.Event()

    def progress(done: int) -> None:
        begun.set()
        go_on.wait()

    other = threading.Thread(target=convert_images, args=(images, out), kwargs={"on_progress": progress})
    other.start()
    begun.wait()
    looks: list[str] = []

    def looked(folder: str) -> bool:
        looks.append(folder)
        if len(looks) == 5:
            go_on.set()
        return is_locked(folder)

    monkeypatch.setattr(filling_pack, "is_locked", looked)
    pack = open_filling(str(images), str(out), {})
    other.join()
    assert not isinstance(pack, FillingPack)
    assert "is being converted by another process; waiting for it" in caplog.text
    assert out.read_bytes() == whole.read_bytes()


def test_a_conversion_of_a_pack_that_is_being_filled_is_refused(
    images: Path, tmp_path: Path, slow: None
) -> None:
    pack = fill(images, tmp_path / "p.h5", workers=1)
    pack.units.wait(1)
    with pytest.raises(BusyError, match="another packer is writing it"):
        convert_images(images, tmp_path / "p.h5")
    pack.close()


def test_names_in_options_lead_from_where_the_pack_was_opened(
    images: Path, tmp_path: Path, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    for folder, value in ((tmp_path, 3), (tmp_path / "elsewhere", 4)):
        lines = "".join(f"{name}/{i}.jpg,{value}\n" for name in ("cat", "dog") for i in range(ROWS // 2))
        (folder / "labels.csv").write_text("path,value\n" + lines)
    monkeypatch.chdir(tmp_path)
    pack = open_filling(str(images), "p.h5", {"labels": Labels("labels.csv"), "size": 32})
    assert isinstance(pack, FillingPack)
    monkeypatch.chdir("elsewhere")
    kill(tmp_path / "p.h5")
    rows_of(pack, range(ROWS))
    pack.close()
    monkeypatch.undo()
    convert_images(images, tmp_path / "made.h5", labels=tmp_path / "labels.csv", size=32)
    assert (tmp_path / "p.h5").read_bytes() == (tmp_path / "made.h5").read_bytes()


def test_a_default_timeout_of_sockets_changes_nothing(
    images: Path, whole: Path, tmp_path: Path, slow: None
) -> None:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0.05)
    try:
        pack = fill(images, tmp_path / "p.h5")
        assert np.array_equal(rows_of(pack, [60]), rows_of(open_pack(whole), [60]))
        pack.close()
    finally:
        socket.setdefaulttimeout(before)


def test_files_of_a_filling_are_private(images: Path, tmp_path: Path, slow: None) -> None:
    pack = fill(images, tmp_path / "p.h5", workers=1)
    pack.units.wait(1)
    for name in FILES - {"known"}:
        assert os.stat(os.path.join(pack.units.folder, name)).st_mode & 0o777 == 0o600
    pack.close()


SHARE = """
import sys
from packer.filling.opening import FillingPack, open_filling
from packer.orders.runs import one_run
from packer.read.array_store import PackStore

images, out, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
print("here", flush=True)
sys.stdin.readline()
pack = open_filling(images, out, {"size": 512, "workers": 1})
reader = PackStore(pack, [pack.header.field("image")])
for row in range(rank, pack.rows, 3):
    reader.array("image", one_run(row, row + 1))
pack.close()
"""


def test_processes_share_one_filling(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.h5"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SHARE, str(images), str(out), str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    for rank in ranks:
        assert rank.stdout
        assert rank.stdout.readline() == "here\n"
    for rank in ranks:  # all at once: one of them starts the process
        assert rank.stdin
        rank.stdin.write("go\n")
        rank.stdin.flush()
    most = 0
    while any(rank.poll() is None for rank in ranks):
        most = max(most, len(helpers(out)))
        time.sleep(0.02)
    for rank in ranks:
        assert rank.wait() == 0
        assert rank.stdin
        assert rank.stdout
        rank.stdin.close()
        rank.stdout.close()
    convert_images(images, tmp_path / "made.h5", size=512)
    assert files_of(out) == files_of(tmp_path / "made.h5")


KILLED = """
import os, sys
from packer.filling.opening import open_filling
from packer.orders.runs import one_run
from packer.read.array_store import PackStore

pack = open_filling(sys.argv[1], sys.argv[2], {})
PackStore(pack, [pack.header.field("image")]).array("image", one_run(7, 8))
os.kill(os.getpid(), 9)
"""


def test_a_client_that_is_killed_holds_nobody_up(images: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.h5"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", KILLED, str(images), str(out)], check=False)
    pack = open_filling(str(images), str(out), {})
    rows_of(pack, range(ROWS))
    if isinstance(pack, FillingPack):
        pack.close()
    assert out.read_bytes() == whole.read_bytes()


def test_a_bad_image_is_named_and_what_is_done_is_kept(images: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(images, source)
    (source / "dog" / "7.jpg").write_bytes(b"no image")
    out = tmp_path / "p.h5"
    pack = fill(source, out)
    for _ in range(2):  # asked again, it says so again
        with pytest.raises(SourceError, match=r"dog/7\.jpg: .* Remove it, or pass on_error='skip'\."):
            rows_of(pack, range(ROWS))
    pack.close()
    assert not out.exists()
    skipped = open_filling(str(source), str(out), {"on_error": "skip"})
    assert not isinstance(skipped, FillingPack)
    assert skipped.rows == ROWS - 1
    convert_images(source, tmp_path / "made.h5", on_error="skip")
    assert out.read_bytes() == (tmp_path / "made.h5").read_bytes()


@pytest.mark.parametrize("options", [{}, {"shards": 400}])
def test_a_table_is_staged_first(tmp_path: Path, options: dict[str, Any]) -> None:
    table = tmp_path / "t.csv"
    table.write_text("a,b\n" + "".join(f"{i},{i * 2}\n" for i in range(1000)))
    seen: list[tuple[int, int]] = []
    pack = open_filling(
        str(table), str(tmp_path / "t"), {"label": "b", **options}, lambda *told: seen.append(told)
    )
    convert_table(table, tmp_path / "made", label="b", **options)
    made = open_pack(tmp_path / "made")
    assert np.array_equal(rows_of(pack, range(1000), "features"), rows_of(made, range(1000), "features"))
    assert np.array_equal(pack.read("label"), made.read("label"))
    pack.close()
    assert files_of(tmp_path / "t") == files_of(tmp_path / "made")
    assert open_filling(str(table), str(tmp_path / "t"), {"label": "b", **options}).sealed


@pytest.mark.parametrize("format", ["webdataset", "parquet"])
def test_data_sets_in_layouts_of_their_own_are_images(images: Path, tmp_path: Path, format: str) -> None:
    files = [(path.read_bytes(), path.parent.name == "dog") for path in sorted(images.rglob("*.jpg"))]
    if format == "parquet":
        arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
        source = tmp_path / "images.parquet"
        rows = [{"image": {"bytes": data, "path": None}, "label": int(dog)} for data, dog in files]
        parquet.write_table(arrow.Table.from_pylist(rows), source)
    else:
        source = tmp_path / "images.tar"
        with tarfile.open(source, "w") as tar:
            for number, (data, dog) in enumerate(files):
                for name, content in ((f"{number}.jpg", data), (f"{number}.cls", b"%d" % dog)):
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    convert_images(source, tmp_path / "converted.h5", size=32)
    pack, expected = fill(source, tmp_path / "p.h5", size=32), open_pack(tmp_path / "converted.h5")
    assert np.array_equal(rows_of(pack, [9, 4, 95]), rows_of(expected, [9, 4, 95]))
    pack.close()


def test_other_options_than_those_of_a_whole_pack_are_refused(images: Path, tmp_path: Path) -> None:
    convert_images(images, tmp_path / "p.h5", size=32)
    with pytest.raises(
        UsageError, match=r"is a complete pack, but of other options or inputs: options size was 32x32"
    ):
        open_filling(str(images), str(tmp_path / "p.h5"), {"size": 64})


def test_other_options_than_those_it_is_being_filled_with_are_refused(images: Path, tmp_path: Path) -> None:
    pack = fill(images, tmp_path / "p.h5", size=32)
    with pytest.raises(  # the second if all rows have been made in the meantime
        UsageError,
        match=r"(is being filled from other images, or with other options: options size was 32, now it is 64"
        r"|is a complete pack, but of other options or inputs: options size was 32x32)",
    ):
        open_filling(str(images), str(tmp_path / "p.h5"), {"size": 64})
    pack.close()


@pytest.mark.parametrize(
    "options", [{"size": 64}, {"store": "jpeg"}, {"shards": 40}, {"on_error": "skip", "size": 64}]
)
def test_what_was_done_of_another_is_cleared_with_a_word(
    images: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    leave(images, tmp_path / "p", format="h5")
    pack = open_filling(str(images), str(tmp_path / "p"), {"format": "h5", **options})
    rows_of(pack, [5])
    assert (
        "earlier work on it was discarded, because the source or the options changed: options" in caplog.text
    )
    pack.close()


def test_rows_that_a_conversion_left_out_are_no_images(images: Path, tmp_path: Path) -> None:
    """Blocks of an interrupted conversion with on_error="skip" have empty rows, which nobody may take for images."""
    source, out = tmp_path / "source", tmp_path / "p.h5"
    shutil.copytree(images, source)
    for number in range(24):
        (source / "cat" / f"{number}.jpg").write_bytes(b"no image")

    def stop(done: int) -> None:
        if done > ROWS // 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_images(source, out, on_error="skip", workers=1, on_progress=stop)
    pack = open_filling(str(source), str(out), {})
    with pytest.raises(SourceError, match=r"cat/\d+\.jpg: not an image"):
        for row in range(ROWS):
            assert rows_of(pack, [row]).any()
    pack.close()


@pytest.mark.skipif(sys.platform != "linux", reason="workers are processes on Linux only")
def test_an_image_that_crashes_its_decoder_is_named(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    shutil.copytree(images, source)
    with open(source / "dog" / "7.jpg", "ab") as file:
        file.write(DEADLY)
    monkeypatch.setattr(opening, "MODULE", "tests.filling.crashing_process")
    pack = fill(source, tmp_path / "p.h5", workers=4)
    with pytest.raises(SourceError, match=r"dog/7\.jpg: its decoder crashed \(SIGSEGV\)\. Remove it"):
        rows_of(pack, range(ROWS))
    pack.close()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"sise": 64},
            r"sise=: is not an option of convert_images; leave it out.",
        ),
        ({"size": 0}, r"size 0: is not a number or HxW"),
        ({"labels": "nowhere.csv"}, r"nowhere.csv"),
    ],
)
def test_wrong_options_are_one_sentence(
    images: Path, tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(PackerError, match=sentence):
        open_filling(str(images), str(tmp_path / "p.h5"), options)
    assert os.listdir(tmp_path) == []


def test_a_source_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PackerError, match="nowhere"):
        open_filling(str(tmp_path / "nowhere"), str(tmp_path / "p.h5"), {})


def test_a_pickled_pack_and_a_forked_child_ask_too(images: Path, whole: Path, tmp_path: Path) -> None:
    pack, expected = fill(images, tmp_path / "p.h5"), open_pack(whole)
    copy = pickle.loads(pickle.dumps(pack))
    assert np.array_equal(rows_of(copy, [9, 4]), rows_of(expected, [9, 4]))
    child = os.fork()
    if not child:
        same = np.array_equal(rows_of(pack, [95, 11]), rows_of(expected, [95, 11]))
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
    copy.close()
    pack.close()


def test_no_process_is_left_when_all_have_closed(images: Path, tmp_path: Path) -> None:
    pack = fill(images, tmp_path / "p.h5")
    rows_of(pack, [1])
    pack.close()
    assert not helpers(tmp_path / "p.h5")


def test_all_clients_gone_without_a_word_it_ends(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.h5"
    subprocess.run([sys.executable, "-c", KILLED, str(images), str(out)], check=False)
    while True:
        try:
            convert_images(images, out, resume=True)
            break
        except BusyError:  # until nobody holds its lock any more
            time.sleep(0.1)


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


def test_errors_come_through_as_they_were() -> None:
    for error in (
        FormatError("p.h5: is damaged. Make it again.", part="rows"),
        UsageError("a: is wrong. Pass b."),
    ):
        again = error_of(failure(error)[1])
        assert type(again) is type(error)
        assert str(again) == str(error)
    assert FormatError.part == error_of(failure(FormatError("x"))[1]).part == ""  # type: ignore[attr-defined]
