"""Work that ends early, at any moment: killed, on a full disk, beside another. The next run gives the very same pack."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer.convert import conversion_run
from packer.convert.conversion_task import ConversionTask, Report
from packer.convert.image_appending import append_images
from packer.convert.image_conversion import convert_images
from packer.convert.recorded_shards import RecordedShards
from packer.convert.repacking import repack
from packer.convert.splits import Split
from packer.errors import BusyError, PackerError, SourceError, SpaceError, UsageError
from packer.inputs.label_options import Labels
from packer.packs.pack_opening import open_pack
from packer.packs.verify import verify_pack
from packer.samples.pack_dataset import pack_dataset
from packer.tables.table_conversion import convert_table
from packer.writing.journal import Journal
from packer.writing.working_folder import WorkingFolder
from tests.format.packs import files_of

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "h5": ("p.h5", {}),
    "npy": ("p", {}),
    "jpeg": ("p.h5", {"store": "jpeg"}),
    "gzip": ("p.h5", {"store": "gzip"}),
    "shards": ("p", {"shards": 9}),
    "npy shards": ("p", {"shards": 9, "format": "npy", "store": "jpeg"}),
}
every_way = pytest.mark.parametrize(("out", "options"), WAYS.values(), ids=list(WAYS))
KEPT = (
    r" Finished work is kept \({out}\.packing, [0-9.]+ [kM]B\):"
    r" run the same command again to continue\."
)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two rows: a dozen, from a few images."""
    monkeypatch.setattr(
        "packer.convert.row_storage.block_rows", lambda rows, row_bytes, least_bytes: min(rows, 2)
    )


def convert(source: Path, out: Path, **options: Any) -> Report:
    return convert_images(source, out, **{"size": 32, "workers": 1, "on_error": "skip", **options})


@pytest.fixture
def photos(photo_folder: Path, small_blocks: None) -> Path:
    """The photos, two of them spoilt, so that rows move at the end."""
    for key in ("blue/3.jpg", "red/1.jpg"):
        (photo_folder / key).write_bytes(b"")
    return photo_folder


DEADLY = """
import json, os, signal, sys
from importlib import import_module
from pathlib import Path

import packer.convert.image_conversion, packer.convert.row_storage

packer.convert.row_storage.block_rows = lambda rows, row_bytes, least_bytes: min(rows, 2)

def arm(target, count):
    module, _, rest = target.partition(":")
    owner = import_module(module)
    *path, name = rest.split(".")
    for part in path:
        owner = getattr(owner, part)
    real, left = getattr(owner, name), [count]
    def call(*args, **options):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **options)
    setattr(owner, name, call)

for source, out, options, target, count in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        arm(target, count)
        packer.convert.image_conversion.convert_images(source, out, size=32, workers=1, on_error="skip", **options)
        os._exit(0)
    print(os.WTERMSIG(os.waitpid(child, 0)[1]), flush=True)
"""
MOMENTS = {
    "the plan is journalled": ("packer.writing.working_folder:Journal.add", 1),
    "the first block is": ("packer.writing.working_folder:Journal.add", 2),
    "some are": ("packer.writing.working_folder:Journal.add", 6),
    "rows are written": ("packer.format.part_files:PartFiles.open_block", 5),
    "bytes are written": ("os:pwrite", 7),
    "rows move": ("packer.writing.pack_writer:PackWriter.move_rows", 1),
    "it is sealed": ("packer.format.checksums:Trailer.to_bytes", 1),
    "it gets its name": ("packer.writing.working_folder:WorkingFolder.publish", 1),
    "its name is flushed": ("packer.writing.working_folder:fsync_path", 1),
    "its folder is removed": ("packer.writing.working_folder:WorkingFolder.close", 1),
    "the second shard begins": ("packer.writing.working_folder:WorkingFolder.close", 2),
    "the index is written": ("packer.convert.recorded_shards:write_index", 1),
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_any_moment_the_next_run_gives_the_same_bytes(photos: Path, tmp_path: Path):
    jobs = []
    for way, (out, options) in WAYS.items():
        (tmp_path / "whole" / way).mkdir(parents=True)
        convert(photos, tmp_path / "whole" / way / out, **options)
        for moment, (target, count) in MOMENTS.items():
            folder = tmp_path / way / moment
            folder.mkdir(parents=True)
            jobs.append((str(photos), str(folder / out), options, target, count))
    done = subprocess.run(
        [sys.executable, "-c", DEADLY],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    signals = [int(line) for line in done.stdout.split()]
    killed = [moment for moment, number in zip([*MOMENTS] * len(WAYS), signals, strict=True) if number]
    assert set(killed) == set(MOMENTS)
    assert len(killed) > 0.7 * len(jobs)  # not every way has every moment
    resumed = 0
    for (_, out, options, target, count), number in zip(jobs, signals, strict=True):
        way = Path(out).parent.parent.name
        place, expected = Path(out), files_of(tmp_path / "whole" / way / Path(out).name)
        if place.exists():
            assert files_of(place) == expected, (way, target, count)
        else:
            assert number == signal.SIGKILL
        report = convert(photos, place, resume=True, **options)
        assert files_of(place) == expected, (way, target, count)
        assert os.listdir(place.parent) == [place.name]
        resumed += report.resumed > 0
    assert resumed > 0.6 * len(jobs)


@pytest.fixture
def slow_photos(tmp_path: Path) -> Path:
    folder = tmp_path / "slow" / "a"
    folder.mkdir(parents=True)
    Image.effect_noise((1200, 1200), 90).convert("RGB").save(folder / "0.jpg")
    for k in range(1, 40):
        os.link(folder / "0.jpg", folder / f"{k}.jpg")
    return folder.parent


def journals(folder: Path) -> int:
    """Lines in all journals below."""
    found = 0
    for place, _, names in os.walk(folder):  # unlike rglob it passes over a folder that goes meanwhile
        if "journal" in names:
            with contextlib.suppress(FileNotFoundError):
                found += Path(place, "journal").read_bytes().count(b"\n")
    return found


def test_the_command_killed_while_it_works(slow_photos: Path, tmp_path: Path):
    out, options = tmp_path / "p", ["--size", "512", "--shard-rows", "30"]
    command = [
        "nice",
        "-n",
        "19",
        sys.executable,
        "-m",
        "packer",
        "convert",
        str(slow_photos),
        str(out),
        *options,
    ]
    for lines in (3, 7):  # it must not end before it is killed
        work = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while journals(tmp_path / "p.packing") < lines and time.monotonic() < deadline:
            if work.poll() is not None:
                break
            time.sleep(0.005)
        work.kill()
        work.wait()
    report = convert_images(slow_photos, out, size=512, shards=30, resume=True)
    assert report.resumed > 0
    assert verify_pack(out).ok
    assert open_pack(out).rows == 40
    assert sorted(os.listdir(tmp_path)) == ["p", "slow"]


def test_a_second_run_beside_the_first_is_refused(photos: Path, tmp_path: Path, impatient: None):
    out = tmp_path / "p.h5"
    place = WorkingFolder(str(out), plan={"a": 1})
    place.record([0])
    for resume in (False, True):
        with pytest.raises(PackerError) as error:
            convert(photos, out, resume=resume)
        assert str(error.value) == (
            f"{out}: another packer is writing it ({out}.packing is locked). Wait for it, or pass another name."
        )
        assert sorted(os.listdir(f"{out}.packing")) == ["blocks", "journal"]
    place.close(keep=False)


def test_a_whole_pack_does_not_touch_what_another_run_is_replacing_it_with(
    photos: Path, tmp_path: Path, impatient: None
):
    out = tmp_path / "p.h5"
    convert(photos, out)
    place = WorkingFolder(str(out), overwrite=True, plan={"a": 1})
    assert convert(photos, out, resume=True).resumed == 22
    assert os.path.exists(f"{out}.packing/journal")
    place.close(keep=False)


def stop_after(blocks: int) -> Callable[[int], None]:
    """Ends a run, as Ctrl-C would, once so many rows are done."""

    def progress(rows: int) -> None:
        if rows >= blocks:
            raise KeyboardInterrupt

    return progress


def interrupt(photos: Path, out: Path, **options: Any) -> None:
    """Leave half a conversion behind."""
    with pytest.raises(KeyboardInterrupt, match="Finished work is kept"):
        convert(photos, out, on_progress=stop_after(1), **options)
    assert os.path.exists(f"{out}.packing/journal")


def added(photos: Path) -> None:
    shutil.copy(photos / "red" / "0.jpg", photos / "red" / "99.jpg")


def grown(photos: Path) -> None:
    with open(photos / "red" / "0.jpg", "ab") as file:
        file.write(b"\0" * 5)


def touched(photos: Path) -> None:
    os.utime(photos / "red" / "0.jpg", (4e9, 4e9))


def spoilt(photos: Path) -> None:
    os.rename(photos / "red" / "0.jpg", photos / "red" / "zero.jpg")


CHANGES: dict[str, tuple[Callable[[Path], None], dict[str, Any], str]] = {
    "size": (lambda photos: None, {"size": 16}, r"options size was 32x32, now it is 16x16"),
    "seed": (lambda photos: None, {"seed": 3}, r"options seed was 0, now it is 3"),
    "shuffle": (lambda photos: None, {"shuffle": False}, r"options seed was 0, now it is not given"),
    "store": (lambda photos: None, {"store": "jpeg"}, r"options store was raw, now it is jpeg"),
    "shards": (
        lambda photos: None,
        {"shards": 9, "format": "npy"},
        r"options shard_rows was not given, now it is 9",
    ),
    "split": (
        lambda photos: None,
        {"split": "a=0.5,b=0.5"},
        r"options split was not given, now it is \{'a': 0\.5, 'b': 0\.5\}",
    ),
    "file": (added, {}, r"source images was 24, now it is 25"),
    "bytes": (grown, {}, r"source bytes was \d+, now it is \d+"),
    "name": (spoilt, {}, r"source digest of names, sizes and labels was [0-9a-f]+, now it is [0-9a-f]+"),
    "time": (touched, {}, r"newest file was \S+\.jpg of [-0-9:. ]+, now it is red/0\.jpg of 2096-[-0-9:. ]+"),
}
every_change = pytest.mark.parametrize(
    ("change", "options", "difference"), CHANGES.values(), ids=list(CHANGES)
)


@every_change
def test_another_plan_begins_anew_and_says_what_differs(
    photos: Path, tmp_path: Path, change: Callable[[Path], None], options: dict[str, Any], difference: str
):
    out = tmp_path / "p"
    interrupt(photos, out)
    change(photos)
    report = convert(photos, out, **options)
    assert re.fullmatch(difference, report.cleared)
    assert report.resumed == 0
    convert(photos, tmp_path / "fresh", **options)
    assert files_of(out) == files_of(tmp_path / "fresh")


@every_change
def test_another_plan_is_refused_when_resuming(
    photos: Path, tmp_path: Path, change: Callable[[Path], None], options: dict[str, Any], difference: str
):
    out = tmp_path / "p"
    interrupt(photos, out)
    change(photos)
    before = files_of(tmp_path / "p.packing")
    with pytest.raises(UsageError) as error:
        convert(photos, out, resume=True, **options)
    sentence = (
        rf"{out}: resume=True cannot continue the work in {out}\.packing: {difference}\."
        r" Undo that, or start over without resume=True\."
    )
    assert re.fullmatch(sentence, str(error.value))
    assert files_of(tmp_path / "p.packing") == before


def test_without_any_difference_nothing_is_cleared(photos: Path, tmp_path: Path):
    interrupt(photos, tmp_path / "p")
    report = convert(photos, tmp_path / "p")
    assert report.cleared == ""
    assert report.resumed > 0


@every_way
def test_a_whole_pack_of_the_same_is_left_as_it_is(
    photos: Path, tmp_path: Path, out: str, options: dict[str, Any]
):
    convert(photos, tmp_path / out, **options)

    def stamps() -> list[tuple[str, int, int]]:
        paths = (
            [tmp_path / out, *sorted((tmp_path / out).rglob("*"))]
            if (tmp_path / out).is_dir()
            else [tmp_path / out]
        )
        return [(str(p), p.stat().st_ino, p.stat().st_mtime_ns) for p in paths]

    before = stamps()
    plans: list[object] = []
    report = convert(photos, tmp_path / out, resume=True, on_plan=plans.append, **options)
    assert stamps() == before
    assert plans == []
    assert (report.resumed, report.rows, report.bytes_read) == (22, 22, 0)
    assert len(report.skipped) == 2
    assert report.rows_per_second == 0


def test_a_whole_pack_of_something_else_is_refused(photos: Path, tmp_path: Path):
    out = tmp_path / "p.h5"
    convert(photos, out)
    before = out.read_bytes()
    with pytest.raises(UsageError) as error:
        convert(photos, out, resume=True, size=16)
    assert str(error.value) == (
        f"{out}: is a complete pack, but of other options or inputs: options size was 32x32, now it is 16x16."
        " Pass overwrite=True, or another name."
    )
    assert out.read_bytes() == before
    convert(photos, out, resume=True, size=16, overwrite=True)
    assert open_pack(out).header.field("image").shape == (16, 16, 3)


def test_resuming_nothing_starts_anew(photos: Path, tmp_path: Path):
    report = convert(photos, tmp_path / "p", resume=True)
    assert (report.rows, report.resumed, report.cleared) == (22, 0, "")


class Full:
    """A call that fails once it has been made so often, as on a full disk."""

    def __init__(self, real: Callable[..., Any], calls: int) -> None:
        self.real, self.left = real, calls

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return lambda *args, **options: self(instance, *args, **options)

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.real(*args, **options)


DISKS = {
    "rows": ("os.pwrite", 14),
    "the journal": ("packer.writing.working_folder.Journal.add", 5),
    "blocks": ("packer.format.block_files.BlockFiles.write", 5),
    "the table": ("packer.format.hdf5_container.Hdf5Container._add", 1),
    "npy files": ("packer.format.npy_container.NpyContainer._new", 1),
    "the flush": ("os.fsync", 0),
    "the index": ("packer.convert.recorded_shards.write_index", 0),
}
GATHERED = {"jpeg", "gzip", "npy shards"}
FULL = [
    (way, disk)
    for way in WAYS
    for disk in DISKS
    if (disk != "rows" or way in ("h5", "npy", "shards"))
    and (disk != "blocks" or way in GATHERED)
    and (disk != "the table" or "npy" not in way)
    and (disk != "npy files" or "npy" in way)
    and (disk != "the index" or "shards" in way)
]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], pytest.MonkeyPatch]:
    """broken(disk): from now on it is full; undo what it returns to free it."""

    def run(disk: str) -> pytest.MonkeyPatch:
        target, calls = DISKS[disk]
        monkeypatch.setattr(target, Full(resolve_name(target), calls))
        return monkeypatch

    return run


@pytest.mark.parametrize(("way", "disk"), FULL, ids=["-".join(pair) for pair in FULL])
def test_a_disk_that_fills_keeps_what_is_done(
    photos: Path, tmp_path: Path, broken: Callable[[str], pytest.MonkeyPatch], way: str, disk: str
):
    name, options = WAYS[way]
    (tmp_path / "whole").mkdir()
    convert(photos, tmp_path / "whole" / name, **options)
    out = tmp_path / name
    patched = broken(disk)
    with pytest.raises(SpaceError) as error:
        convert(photos, out, **options)
    patched.undo()
    sentence = (
        r"{part}: writing failed \(No space left on device\)\. Free some space, or pass another disk\." + KEPT
    )
    part = rf"{out}(/0000\d(\.h5)?)?"
    assert re.fullmatch(sentence.format(part=part, out=re.escape(str(out))), str(error.value))
    assert sorted(os.listdir(tmp_path)) == sorted([f"{name}.packing", "photos", "whole"])
    patched.setattr(
        "packer.convert.row_storage.block_rows", lambda rows, row_bytes, least_bytes: min(rows, 2)
    )
    report = convert(photos, out, resume=True, **options)
    assert report.resumed > 0
    assert files_of(out) == files_of(tmp_path / "whole" / name)
    assert sorted(os.listdir(tmp_path)) == sorted([name, "photos", "whole"])


def test_a_disk_that_is_full_from_the_start_leaves_nothing(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, options in WAYS.values():
        with monkeypatch.context() as patched:
            patched.setattr("packer.writing.working_folder.Journal.add", Full(lambda *a: None, 0))
            with pytest.raises(SpaceError) as error:
                convert(photos, tmp_path / name, **options)
        assert str(error.value) == (
            f"{tmp_path / name}: writing failed (No space left on device). Free some space, or pass another disk."
        )
        assert os.listdir(tmp_path) == ["photos"]


@pytest.mark.parametrize("way", ["h5", "gzip", "shards"])
def test_bad_inputs_may_be_skipped_from_now_on(photos: Path, tmp_path: Path, way: str):
    name, options = WAYS[way]
    (tmp_path / "whole").mkdir()
    convert(photos, tmp_path / "whole" / name, **options)
    out = tmp_path / name
    with pytest.raises(
        PackerError, match=r"empty \(0 bytes\).* Remove it, or pass on_error='skip'\. Finished"
    ):
        convert(photos, out, on_error="stop", **options)
    assert convert(photos, out, resume=True, **options).resumed > 0
    assert files_of(out) == files_of(tmp_path / "whole" / name)


@every_way
def test_stop_after_skip_stops_at_what_was_skipped(
    photos: Path, tmp_path: Path, out: str, options: dict[str, Any]
) -> None:
    """Rows that an interrupted run with "skip" has left out, and a complete pack without them."""
    options = {"shuffle": False, **options}
    # The other one on a busy machine, where the worker of the second block is ahead.
    named = rf"{photos}/(blue/3|red/1).jpg: empty \(0 bytes\).* Remove it, or pass on_error='skip'\."
    with pytest.raises(KeyboardInterrupt):
        convert(photos, tmp_path / out, on_progress=stop_after(6), **options)
    for resume in (False, True):
        with pytest.raises(SourceError, match=named):
            convert(photos, tmp_path / out, on_error="stop", resume=resume, **options)
    whole = convert(photos, tmp_path / out, resume=True, **options)
    assert (whole.rows, whole.resumed > 0) == (22, True)
    with pytest.raises(SourceError) as error:
        convert(photos, tmp_path / out, on_error="stop", resume=True, **options)
    assert str(error.value) == (
        f"{tmp_path / out}: is a complete pack without 2 inputs that could not be packed; the first: blue/3.jpg:"
        " empty (0 bytes). Correct it and pass overwrite=True, or pass on_error='skip'."
    )
    with pytest.raises(SourceError, match=named):
        convert(photos, tmp_path / out, on_error="stop", resume=True, overwrite=True, **options)


def test_stop_after_skip_makes_an_empty_shard_again(photos: Path, tmp_path: Path) -> None:
    """A file that could not be read for a while is packed after all."""
    (photos / "blue" / "2.jpg").write_bytes(b"")
    options: dict[str, Any] = {"shuffle": False, "shards": 2, "only_shards": "2/12"}
    assert convert(photos, tmp_path / "p", **options).rows == 0
    with pytest.raises(SourceError, match=r"blue/2.jpg: empty"):
        convert(photos, tmp_path / "p", on_error="stop", **options)
    place = WorkingFolder(str(tmp_path / "q"))
    place.resumed = [["00001.h5", [{"key": "a", "reason": "b"}]], ["00001.h5", "seal"]]
    records = RecordedShards(place, ["00001.h5"], ())
    place.close(keep=False)
    assert (records.empty, records.seals) == ({}, {"00001.h5": "seal"})


def test_stop_after_skip_stops_in_datasets_and_tables(tmp_path: Path, small_blocks: None) -> None:
    class Numbers:
        def __len__(self) -> int:
            return 9

        def __getitem__(self, index: int) -> Any:
            if index == 1:
                raise ValueError("no sample here")
            return np.full((4, 4, 3), index, np.uint8), index

    out, options = tmp_path / "p.h5", dict[str, Any](resume="v1", shuffle=False, workers=1)
    with pytest.raises(KeyboardInterrupt):
        pack_dataset(Numbers(), out, on_error="skip", progress=stop_after(2), **options)
    for complete in (False, True):
        with pytest.raises(SourceError, match=r"raised ValueError: no sample here\. "):
            pack_dataset(Numbers(), out, **options)
        assert pack_dataset(Numbers(), out, on_error="skip", **options).already is complete
    table = tmp_path / "t.csv"
    table.write_text("a,b\n1,2\n1,2,3\n")
    convert_table(table, tmp_path / "t.h5", label="b", on_error="skip")
    with pytest.raises(
        SourceError, match=r"without 1 input that .*line 3: has 3 cells; 2 are expected\. Correct"
    ):
        convert_table(table, tmp_path / "t.h5", label="b", resume=True)


def test_an_append_with_stop_after_one_with_skip(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when the new shards were complete, before the pack listed them."""
    (tmp_path / "good").mkdir()
    shutil.copytree(photos / "green", tmp_path / "good" / "green")
    convert(tmp_path / "good", tmp_path / "p", shards=4)
    (photos / "red").rename(photos / "green" / "red")
    shutil.rmtree(photos / "blue")
    added: dict[str, Any] = {"workers": 1, "duplicates": "keep"}

    def stop(folder: str, pack: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("packer.convert.shard_appending._publish_shards", stop)
        append_images(tmp_path / "p", photos, on_error="skip", **added)
    with pytest.raises(SourceError, match=r"red/1.jpg: empty"):
        append_images(tmp_path / "p", photos, **added)
    assert append_images(tmp_path / "p", photos, on_error="skip", **added).rows == 15


def test_a_block_that_changed_on_the_disk_is_done_again(photos: Path, tmp_path: Path):
    convert(photos, tmp_path / "whole")
    interrupt(photos, tmp_path / "p")
    path = tmp_path / "p.packing" / "pack" / "image.npy"
    path.write_bytes(bytes(path.stat().st_size))
    assert convert(photos, tmp_path / "p", resume=True).resumed == 0
    assert files_of(tmp_path / "p") == files_of(tmp_path / "whole")


def test_a_replaced_pack_is_there_until_the_new_one_is_whole(photos: Path, tmp_path: Path):
    for name in ("p", "p.h5"):
        out = tmp_path / name
        convert(photos, out, size=16)
        before = files_of(out)
        interrupt(photos, out, overwrite=True)
        assert files_of(out) == before
        assert convert(photos, out, overwrite=True).resumed > 0
        assert open_pack(out).header.field("image").loaded.shape == (32, 32, 3)


@pytest.mark.parametrize("what", ["image", "mask", "archive", "labels"])
def test_a_source_that_changed_between_the_runs_is_read_anew(photos: Path, tmp_path: Path, what: str) -> None:
    """Also a file that is not the newest, replaced by an older one of the same size."""
    masks, out, files = tmp_path / "masks", tmp_path / "p.h5", sorted(photos.rglob("*.jpg"))
    for number, path in enumerate(files):
        mask = (masks / path.relative_to(photos)).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (12, 10), number).save(mask)
        os.utime(path, ns=(9 * 10**18, 10**18 + number))
    csv = tmp_path / "l.csv"
    csv.write_text(
        "".join(f"{path.relative_to(photos)},{number % 12}\n" for number, path in enumerate(files))
    )
    source, options = photos, {"on_error": "skip", "pairs": {"mask": masks}, "labels": csv}
    if what == "archive":
        source = Path(shutil.make_archive(str(tmp_path / "photos"), "tar", photos))
        del options["pairs"]

    def stop(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, out, on_progress=stop, **options)
    journal = (tmp_path / "p.h5.packing" / "journal").read_bytes()
    assert journal.count(b"\n") > 1
    changed = {"image": files[0], "mask": masks / "red" / "2.png", "archive": source, "labels": csv}[what]
    data = changed.read_bytes()
    changed.write_bytes(data.replace(b",0\n", b",5\n") if what == "labels" else data)
    os.utime(changed, ns=(9 * 10**18, 10**17))
    report = convert(source, out, **options)
    assert report.resumed == 0
    assert report.cleared


def test_a_table_that_changes_after_its_header_was_read_is_refused(tmp_path: Path) -> None:
    path, out = tmp_path / "t.csv", tmp_path / "t.h5"
    path.write_text("a,b\n" + "1,2\n" * 9)

    def append(plan: Any) -> None:
        with path.open("a") as file:
            file.write("3,4\n")

    with pytest.raises(SourceError) as error:
        convert_table(path, out, label="b", on_plan=append)
    assert str(error.value).startswith(
        f"{path}: was changed while it was read. Run the same command again when it is whole."
    )
    assert not out.exists()


def test_a_pack_that_another_process_finishes_meanwhile(
    photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = conversion_run.write_pack

    def late(task: ConversionTask, out: str, running: conversion_run.RunOptions) -> Any:
        monkeypatch.undo()
        convert_images(photo_folder, out, size=32)
        return write(task, out, running)

    monkeypatch.setattr(conversion_run, "write_pack", late)
    report = convert_images(photo_folder, tmp_path / "p.h5", size=32, resume=True)
    assert (report.rows, report.resumed) == (24, 24)
    monkeypatch.setattr(conversion_run, "write_pack", late)
    with pytest.raises(UsageError, match="exists; nothing is overwritten unasked"):
        convert_images(photo_folder, tmp_path / "q.h5", size=32)


@pytest.mark.parametrize("left", ["blocks/3", "staging/x"])
def test_a_folder_that_was_being_removed_when_its_run_was_killed_goes(
    photo_folder: Path, tmp_path: Path, left: str
) -> None:
    """The pack has its name by then; the journal may go first."""
    convert_images(photo_folder, tmp_path / "p.h5", size=32)
    rest = tmp_path / "p.h5.packing" / left
    rest.parent.mkdir(parents=True)
    rest.write_bytes(b"x")
    assert convert_images(photo_folder, tmp_path / "p.h5", size=32, resume=True).already
    assert not (tmp_path / "p.h5.packing").exists()


def test_a_folder_of_the_users_beside_a_whole_pack_stays(photo_folder: Path, tmp_path: Path) -> None:
    convert_images(photo_folder, tmp_path / "p.h5", size=32)
    own = tmp_path / "p.h5.packing" / "trip" / "photo.jpg"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"dear")
    assert convert_images(photo_folder, tmp_path / "p.h5", size=32, resume=True).already
    assert own.read_bytes() == b"dear"


def test_a_journal_without_its_first_line_beside_a_whole_pack(photo_folder: Path, tmp_path: Path) -> None:
    """It was damaged; a shard's own journal is of another pack, and stays."""
    convert_images(photo_folder, tmp_path / "p", size=32)
    work = tmp_path / "p.packing"
    shard = work / "pack" / "00001.h5.packing"
    shard.mkdir(parents=True)
    for folder, records in ((work, [["00000.h5", "0" * 32]]), (shard, [{"seed": 7}, [0, [], None]])):
        journal = Journal(str(folder / "journal"))
        for record in records:
            journal.add(record)
        journal.close()
    assert convert_images(photo_folder, tmp_path / "p", size=32, resume=True).already
    assert (shard / "journal").exists()


NEWER = (
    ": is a complete pack, but {name} was changed after it was written, or has a time in the future (touch it then);"
    " only a pack that is newer than its inputs is left as it is. Pass overwrite=True to write it again, or if no content"
    " has changed: touch {last}"
)


@pytest.mark.parametrize(
    "what", ["image", "npy", "shards", "mask", "archive", "parquet", "table", "pack", "npy pack"]
)
def test_a_whole_pack_of_inputs_that_changed_since_is_not_left(photos: Path, tmp_path: Path, what: str):
    """An edit that keeps the size of a file is seen by its time; when only the time is another one, touching the pack says so."""
    out, options, make = tmp_path / "p.h5", {}, convert
    source, changed, name = photos, photos / "red" / "2.jpg", "red/2.jpg"
    last = out
    if what in ("npy", "shards"):
        out = tmp_path / "p"
        options = {"format": "npy"} if what == "npy" else {"shards": 9}
        last = out / ("trailer" if what == "npy" else "index.json")
    elif what == "mask":
        changed = tmp_path / "masks" / "red" / "2.png"
        for path in photos.rglob("*.jpg"):
            mask = (tmp_path / "masks" / path.relative_to(photos)).with_suffix(".png")
            mask.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (12, 10)).save(mask)
        options, name = {"pairs": {"mask": tmp_path / "masks"}}, "red/2.png"
    elif what == "archive":
        source = changed = Path(shutil.make_archive(str(tmp_path / "photos"), "tar", photos))
        name = "photos.tar"
    elif what == "parquet":
        pq = pytest.importorskip("pyarrow.parquet")
        arrow = pytest.importorskip("pyarrow")
        images = [{"bytes": path.read_bytes(), "path": None} for path in sorted(photos.rglob("*.jpg"))]
        source = changed = tmp_path / "photos.parquet"
        pq.write_table(arrow.table({"image": images, "label": [0] * len(images)}), source)
        name = "photos.parquet"
    elif what == "table":
        source = changed = tmp_path / "t.csv"
        changed.write_text("a,b\n1,2\n3,4\n")
        make, name = convert_table, "t.csv"
    elif what.endswith("pack"):
        source = tmp_path / ("q" if what == "npy pack" else "q.h5")
        convert(photos, source)
        changed = source / "image.npy" if what == "npy pack" else source
        make, name = repack, str(changed)
    made = make(source, out, **options)
    before = files_of(out)
    assert make(source, out, resume=True, **options).already
    then = os.stat(last).st_mtime_ns
    os.utime(last, ns=(then - 10**9, then - 10**9))
    os.utime(changed, ns=(then, then))
    with pytest.raises(UsageError) as error:
        make(source, out, resume=True, **options)
    assert str(error.value) == str(out) + NEWER.format(name=name, last=last)
    assert files_of(out) == before
    again = make(source, out, resume=True, overwrite=True, **options)
    assert (again.already, again.rows) == (False, made.rows)
    os.utime(last, ns=(then, then))
    assert make(source, out, resume=True, **options).already


def test_a_time_in_the_future_is_mended_at_the_input(photos: Path, tmp_path: Path):
    """As of a camera whose clock is wrong; a name with a space can be pasted."""
    out, photo = tmp_path / "my p.h5", photos / "red" / "2.jpg"
    os.utime(photo, ns=(2**62, 2**62))
    convert(photos, out)
    for _ in range(2):
        with pytest.raises(UsageError) as error:
            convert(photos, out, resume=True)
        assert str(error.value) == (
            f"{out}: is a complete pack, but red/2.jpg was changed after it was written, or has a time in the future (touch it then);"
            " only a pack that is newer than its inputs is left as it is. Pass overwrite=True to write it again, or if no content"
            f" has changed: touch '{out}'"
        )
        out.touch()
    photo.touch()
    os.utime(out, ns=(photo.stat().st_mtime_ns,) * 2)
    assert convert(photos, out, resume=True).already


@pytest.mark.usefixtures("impatient")
def test_resuming_beside_a_run_that_replaces_the_pack_is_refused(photos: Path, tmp_path: Path):
    out, told = tmp_path / "p.h5", []
    convert(photos, out)

    def beside(rows: int) -> None:
        with pytest.raises(BusyError) as error:
            convert(photos, out, resume=True)
        told.append(str(error.value))

    convert(photos, out, overwrite=True, on_progress=beside)
    assert set(told) == {
        f"{out}: another packer is writing it ({out}.packing is locked). Wait for it, or pass another name."
    }
    assert convert(photos, out, resume=True).already


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_interruption_after_the_pack_got_its_name_says_that_it_is_whole(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
):
    out = tmp_path / "p.h5"
    if overwrite:
        convert(photos, out, size=16)

    def stop(path: str) -> None:
        if path == str(tmp_path):
            raise KeyboardInterrupt

    monkeypatch.setattr("packer.writing.working_folder.fsync_path", stop)
    with pytest.raises(KeyboardInterrupt) as error:
        convert(photos, out, overwrite=overwrite)
    assert str(error.value) == f"{out} is complete; only temporary files beside it may remain."
    assert verify_pack(out).ok
    assert open_pack(out).header.field("image").shape == (32, 32, 3)


def test_a_folder_that_was_removed_meanwhile_is_told(photos: Path, tmp_path: Path):
    folder = tmp_path / "out"
    folder.mkdir()

    def remove(rows: int) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    with pytest.raises(PackerError, match=r"removed|was replaced") as error:
        convert(photos, folder / "p", shards=3, on_progress=remove)
    assert "Free some space" not in str(error.value)


@pytest.mark.parametrize("split", [Split("a=80,b=20", group="who"), Split(column="set")])
def test_splits_by_columns_go_on_with_the_same_bytes(split: Split, photos: Path, tmp_path: Path) -> None:
    def write(shift: int) -> None:
        rows = (
            f"{c}/{k}.jpg,{c},p{(k + shift) // 2},{'uv'[k % 3 > 1]}"
            for c in ("blue", "green", "red")
            for k in range(8)
        )
        (tmp_path / "l.csv").write_text("file,kind,who,set\n" + "\n".join(rows) + "\n")

    def stop(done: int) -> None:
        if done > 7:
            raise KeyboardInterrupt

    options: dict[str, Any] = {"labels": Labels(tmp_path / "l.csv", column="kind"), "split": split}
    write(0)
    convert(photos, tmp_path / "whole.h5", **options)
    for out in ("p.h5", "shards"):
        shards = {} if out == "p.h5" else {"shards": 9}
        with pytest.raises(KeyboardInterrupt):
            convert(photos, tmp_path / out, on_progress=stop, **options, **shards)
        assert convert(photos, tmp_path / out, **options, **shards).resumed > 0
    assert (tmp_path / "p.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()
    # Other cells of such a column are another plan, whatever the labels are.
    with pytest.raises(KeyboardInterrupt):
        convert(photos, tmp_path / "q.h5", on_progress=stop, **options)
    write(1) if split.group else (tmp_path / "l.csv").write_text(
        (tmp_path / "l.csv").read_text().replace(",v", ",w")
    )
    assert convert(photos, tmp_path / "q.h5", **options).cleared
    if split.group:
        with pytest.raises(UsageError, match="that have groups of 'who', which new rows may divide"):
            append_images(tmp_path / "shards", photos, labels=tmp_path / "l.csv")
    else:
        (tmp_path / "more").mkdir()
        for k in "12":
            (tmp_path / "more" / f"{k}.jpg").write_bytes((photos / "green" / f"{k}.jpg").read_bytes())
        (tmp_path / "l.csv").write_text("file,kind,who,set\n1,green,z,v\n2,green,z,u\n")
        assert append_images(tmp_path / "shards", tmp_path / "more", labels=tmp_path / "l.csv").rows == 2
        assert {
            n: sum(b - a for a, b in s) for n, s in open_pack(tmp_path / "shards").header.splits.items()
        } == {"u": 17, "v": 7}
