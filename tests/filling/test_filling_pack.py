"""Packs that are read while they are filled: by a process of their own, whatever happens to it or to those that read."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from PIL import Image

from packer.convert.conversion_task import ConversionTask, RunOptions
from packer.convert.image_conversion import convert_images
from packer.convert.pack_run import part_writer
from packer.convert.row_filling import RowFilling
from packer.errors import BusyError, FormatError, PackerError, SourceError, UsageError
from packer.filling import filling_client
from packer.filling.opening import FillingPack, open_filling
from packer.format.pack import Pack
from packer.format.pack_opening import open_pack
from packer.format.unit_states import STATES, map_states
from packer.orders.runs import consecutive, one_run
from packer.read.array_store import PackStore
from packer.service import error_of, failure
from packer.tables.table_conversion import convert_table
from tests.filling.conftest import ROWS
from tests.filling.crashing_process import DEADLY
from tests.format.packs import files_of


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


def helper(out: Path) -> int | None:
    """Return the number of the process that fills a pack, if it is there."""
    for name in os.listdir("/proc"):
        with suppress(OSError):
            command = Path("/proc", name, "cmdline").read_bytes() if name.isdigit() else b""
            if b"filling_process" in command and os.fsencode(f"{out}.packing") in command.split(b"\0"):
                return int(name)
    return None


def made(pack: FillingPack) -> int:
    """Return the rows that the process made which sealed a pack."""
    assert pack.units._states is not None
    return int(pack.units._states[-1]) - 1


class StoppedError(Exception):
    """The end of a filling that is left half done."""


def leave(images: Path, out: Path, rows: list[int], **options: Any) -> None:
    """Leave a pack of which some rows have been made, as a killed process does."""

    def some(task: ConversionTask, name: str, running: RunOptions) -> NoReturn:
        samples = task.order.samples
        with part_writer(task, name, running) as writer:
            writer.record_rows()
            path = os.path.join(writer.folder, STATES)
            states = map_states(path, len(samples) + 1, "<u8", writable=True)
            with RowFilling(task, writer, 1, states[:-1]) as source:
                units = np.array(rows)
                source.arrived(units, source.start(units).result())
            raise StoppedError

    with pytest.raises(StoppedError):
        convert_images(images, out, engine=some, **options)
    assert not out.exists()


def test_rows_arrive_in_any_order_and_the_pack_is_the_one_that_convert_makes(
    images: Path, whole: Path, tmp_path: Path
) -> None:
    out, expected = tmp_path / "p.h5", open_pack(whole)
    pack = fill(images, out)
    assert not pack.sealed
    assert pack.rows == ROWS
    assert pack.header.classes == expected.header.classes
    assert pack.fields == expected.fields
    picked = np.random.default_rng(0).permutation(ROWS)
    for some in np.array_split(picked, 5):
        assert np.array_equal(rows_of(pack, some), rows_of(expected, some))
    assert np.array_equal(rows_of(pack, picked, "label"), rows_of(expected, picked, "label"))
    pack.units.close()
    assert not pack.pending
    assert made(pack) == ROWS
    assert out.read_bytes() == whole.read_bytes()
    assert os.listdir(tmp_path) == ["p.h5"]
    assert np.array_equal(rows_of(pack, picked), rows_of(expected, picked))  # the same object, afterwards
    assert isinstance(pack.settled(), Pack)
    assert pack.settled().sealed


@pytest.mark.parametrize("options", [{"format": "npy"}, {"size": [64, 128], "fit": "pad"}, {"workers": 1}])
def test_options_are_those_of_convert_images(images: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    made, out = tmp_path / "made", tmp_path / "filled"
    convert_images(images, made, **options)
    pack = fill(images, out, **options)
    assert np.array_equal(rows_of(pack, range(ROWS)), rows_of(open_pack(made), range(ROWS)))
    pack.units.close()
    assert files_of(out) == files_of(made)


def test_rows_by_key_are_those_of_the_whole_pack_when_it_has_its_name(
    images: Path, whole: Path, tmp_path: Path
) -> None:
    pack, expected = fill(images, tmp_path / "p.h5"), open_pack(whole)
    rows_of(pack, range(ROWS))
    pack.units.close()
    assert pack.rows_of(expected.keys(5, 9)).tolist() == [5, 6, 7, 8]
    assert pack.keys() == expected.keys()


def test_keys_are_there_before_the_rows(images: Path, whole: Path, tmp_path: Path) -> None:
    pack = fill(images, tmp_path / "p.h5")
    reader = PackStore(pack, [pack.header.field("key")])
    assert reader.ragged("key", one_run(3, 90)) == PackStore(
        open_pack(whole), [pack.header.field("key")]
    ).ragged("key", one_run(3, 90))
    pack.units.close()


def test_masks_arrive_with_their_images(images: Path, tmp_path: Path) -> None:
    masks = tmp_path / "masks"
    for path in images.rglob("*.jpg"):
        target = masks / path.relative_to(images).with_suffix(".png")
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((24, 32), int(path.stem), np.uint8)).save(target)
    convert_images(images, tmp_path / "made.h5", pairs={"mask": masks})
    pack, made = fill(images, tmp_path / "p.h5", pairs={"mask": str(masks)}), open_pack(tmp_path / "made.h5")
    for name in ("mask", "image"):
        assert np.array_equal(rows_of(pack, [70, 3], name), rows_of(made, [70, 3], name))
    assert [pack.arrival(name) is not None for name in ("mask", "image", "label")] == [True, True, False]
    rows_of(pack, range(ROWS), "mask")
    pack.units.close()
    assert files_of(tmp_path / "p.h5") == files_of(tmp_path / "made.h5")


def test_half_done_it_is_gone_on_with(images: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.h5"
    leave(images, out, [5, 50, 95])
    pack = fill(images, out)
    rows_of(pack, range(ROWS))
    pack.units.close()
    assert out.read_bytes() == whole.read_bytes()
    assert made(pack) == ROWS - 3
    assert not isinstance(open_filling(str(images), str(out), {}), FillingPack)


def test_closed_at_once_it_is_gone_on_with(images: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.h5"
    for row in (7, 60):
        pack = open_filling(str(images), str(out), {})
        rows_of(pack, [row])
        if isinstance(pack, FillingPack):
            pack.units.close()
    pack = open_filling(str(images), str(out), {})
    rows_of(pack, range(ROWS))
    if isinstance(pack, FillingPack):
        pack.units.close()
    assert out.read_bytes() == whole.read_bytes()


def test_convert_goes_on_with_it_too(images: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.h5"
    leave(images, out, [5, 50, 95])
    convert_images(images, out, resume=True)
    assert out.read_bytes() == whole.read_bytes()


def test_the_process_that_fills_is_killed(images: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.h5"
    pack, expected = fill(images, out), open_pack(whole)
    for some in np.array_split(np.random.default_rng(2).permutation(ROWS), 4):
        if number := helper(out):
            os.kill(number, signal.SIGKILL)
        assert np.array_equal(rows_of(pack, some), rows_of(expected, some))
    pack.units.close()
    assert out.read_bytes() == whole.read_bytes()


def test_rows_that_a_power_cut_has_taken_are_made_again(images: Path, whole: Path, tmp_path: Path) -> None:
    out, work = tmp_path / "p.h5", tmp_path / "p.h5.packing"
    leave(images, out, [5, 50, 95])
    states = np.fromfile(work / "state", "<u8")
    assert np.flatnonzero(states).tolist() == [5, 50, 95]
    states[:60:2] = 77  # more is said to be there than is
    states.tofile(work / "state")
    with open(work / "pack", "r+b") as file:  # and less is there than is said
        file.seek(open_pack(whole).header.extents["image"][0].offset + 95 * 256 * 256 * 3)
        file.write(bytes(1000))
    pack = fill(images, out)
    rows_of(pack, range(ROWS))
    pack.units.close()
    assert out.read_bytes() == whole.read_bytes()
    assert made(pack) == ROWS - 1  # 5 was there; 50 said so with another checksum


SHARE = """
import sys
import numpy as np
from packer.filling.opening import FillingPack, open_filling
from packer.orders.runs import consecutive
from packer.read.array_store import PackStore

images, out, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
print("here", flush=True)
sys.stdin.readline()
pack = open_filling(images, out, {"size": 512, "workers": 1})
print(isinstance(pack, FillingPack), flush=True)
sys.stdin.readline()
reader = PackStore(pack, [pack.header.field("image")])
for row in range(rank, pack.rows, 3):
    reader.array("image", consecutive(np.array([row])))
if isinstance(pack, FillingPack):
    pack.units.wait(np.arange(pack.rows))
    pack.units.close()
print(int(pack.units._states[-1]) - 1 if isinstance(pack, FillingPack) else "whole")
"""


def test_processes_share_one_filling_and_no_row_is_made_twice(images: Path, tmp_path: Path) -> None:
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

    def go() -> list[str]:
        for rank in ranks:
            assert rank.stdin
            rank.stdin.write("go\n")
            rank.stdin.flush()
        return answers()

    def answers() -> list[str]:
        return [rank.stdout.readline().strip() for rank in ranks if rank.stdout]

    assert answers() == ["here"] * 3
    joined = go()  # all at once: one of them starts the process, the others join it, if they come in time
    assert "True" in joined
    # Each heard it from the one process, which made every row once.
    assert go() == [str(ROWS) if one == "True" else "whole" for one in joined]
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
import numpy as np
from packer.filling.opening import open_filling
from packer.orders.runs import consecutive
from packer.read.array_store import PackStore

pack = open_filling(sys.argv[1], sys.argv[2], {})
PackStore(pack, [pack.header.field("image")]).array("image", consecutive(np.array([7])))
os.kill(os.getpid(), 9)
"""


def test_a_client_that_is_killed_holds_nobody_up(images: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.h5"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", KILLED, str(images), str(out)], check=False)
    pack = open_filling(str(images), str(out), {})
    rows_of(pack, range(ROWS))
    if isinstance(pack, FillingPack):
        pack.units.close()
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
    pack.units.close()
    assert not out.exists()
    skipped = open_filling(str(source), str(out), {"on_error": "skip"})
    assert not isinstance(skipped, FillingPack)
    assert skipped.rows == ROWS - 1
    convert_images(source, tmp_path / "made.h5", on_error="skip")
    assert out.read_bytes() == (tmp_path / "made.h5").read_bytes()


@pytest.mark.parametrize("options", [{"store": "jpeg"}, {"store": "gzip"}, {"shards": 50}])
def test_what_cannot_be_made_row_by_row_is_made_first(
    images: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    seen: list[tuple[int, int]] = []
    pack = open_filling(
        str(images), str(tmp_path / "p.h5"), options, lambda done, total: seen.append((done, total))
    )
    assert not isinstance(pack, FillingPack)
    assert pack.rows == ROWS
    assert all(total == ROWS for _, total in seen)
    convert_images(images, tmp_path / "made.h5", **options)
    assert files_of(tmp_path / "p.h5") == files_of(tmp_path / "made.h5")


def test_a_table_is_converted_first(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"{i},{i * 2}\n" for i in range(100)))
    pack = open_filling(str(tmp_path / "t.csv"), str(tmp_path / "t.h5"), {"label": "b"})
    assert pack.rows == 100
    assert open_filling(str(tmp_path / "t.csv"), str(tmp_path / "t.h5"), {"label": "b"}).rows == 100


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
    pack.units.close()


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
    pack.units.close()


def test_what_was_done_of_another_is_cleared_with_a_word(
    images: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    leave(images, tmp_path / "p.h5", [1])
    pack = fill(images, tmp_path / "p.h5", size=64)
    assert (
        "earlier work on it was discarded, because the source or the options changed: options size was 256x256"
        in caplog.text
    )
    pack.units.close()


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
    pack = fill(source, out)
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
    monkeypatch.setattr(filling_client, "MODULE", "tests.filling.crashing_process")
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
    copy.units.close()
    pack.units.close()


def test_a_long_name_still_has_a_socket(images: Path, tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 120)
    folder.mkdir()
    pack = fill(images, folder / "p.h5", size=32)
    second = open_filling(str(images), str(folder / "p.h5"), {"size": 32})
    assert np.array_equal(rows_of(second, [1]), rows_of(pack, [1]))
    if isinstance(second, FillingPack):  # else the pack was whole by then
        second.units.close()
    pack.units.close()


def test_no_process_is_left_when_all_have_closed(images: Path, tmp_path: Path) -> None:
    pack = fill(images, tmp_path / "p.h5")
    rows_of(pack, [1])
    pack.units.close()
    assert helper(tmp_path / "p.h5") is None


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
        "    open_filling(sys.argv[1], sys.argv[2], {})\n"
        "except PackerError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script, str(images), str(tmp_path / "p.h5")], capture_output=True, text=True
    )
    assert "p.h5: writing failed (File too large)." in found.stdout, found
    assert not (tmp_path / "p.h5").exists()


@pytest.mark.parametrize("kind", ["images", "table"])
def test_what_was_done_of_another_is_cleared_where_the_pack_is_made_first(
    images: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    class Enough(Exception):
        pass

    def stop(done: int) -> None:
        raise Enough

    table, out = tmp_path / "t.csv", tmp_path / "p.h5"
    table.write_text("a,b\n" + "".join(f"{i},{i * 2}\n" for i in range(300_000)))
    source = str(images) if kind == "images" else str(table)
    options: dict[str, Any] = {"store": "jpeg"} if kind == "images" else {"label": "b"}
    if kind == "images":
        leave(images, out, [1])
    else:
        with pytest.raises(Enough):
            convert_table(table, out, on_progress=stop)
    pack = open_filling(source, str(out), options)
    assert pack.sealed
    assert not list(tmp_path.glob("*.packing"))
    if kind == "images":
        assert (
            "was discarded, because the source or the options changed: options store was raw, now it is jpeg"
            in caplog.text
        )


def test_errors_come_through_as_they_were() -> None:
    for error in (
        FormatError("p.h5: is damaged. Make it again.", part="rows"),
        UsageError("a: is wrong. Pass b."),
    ):
        again = error_of(failure(error)[1])
        assert type(again) is type(error)
        assert str(again) == str(error)
    assert FormatError.part == error_of(failure(FormatError("x"))[1]).part == ""  # type: ignore[attr-defined]
