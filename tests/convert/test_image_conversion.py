"""convert_images from end to end: real image files in, packs out, for both formats."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import shutil
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer.convert import image_conversion as root
from packer.convert.image_conversion import convert_images
from packer.errors import PackerError, SourceError, SpaceError, UsageError
from packer.format.checksums import block_checksum
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.packs.verify import verify_pack
from packer.pixels.decode_resize import DecodeResize, PixelSpec
from packer.writing.journal import read_journal
from tests.format.packs import files_of

SPEC = PixelSpec((32, 32))


def content(pack: Pack) -> dict[str, tuple[int, bytes]]:
    """key -> (label, pixels)."""
    labels = pack.read("label") if any(f.name == "label" for f in pack.fields) else [-1] * pack.rows
    images = pack.read("image")
    return {k: (int(label), i.tobytes()) for k, label, i in zip(pack.keys(), labels, images, strict=True)}


def expected(folder: Path, spec: PixelSpec = SPEC) -> dict[str, tuple[int, bytes]]:
    """The same, by reading the folder directly."""
    make, classes, found = DecodeResize(spec), sorted(p.name for p in folder.iterdir()), {}
    for path in sorted(folder.rglob("*.jpg")):
        out = np.empty(spec.shape, np.uint8)
        make(path.read_bytes(), out)
        key = path.relative_to(folder).as_posix()
        found[key] = (classes.index(key.split("/")[0]), out.tobytes())
    return found


@pytest.mark.parametrize("format", ["h5", "npy"])
def test_every_image_with_its_own_label_and_key(
    photo_folder: Path, tmp_path: Path, small_blocks: None, format: str
):
    report = convert_images(photo_folder, tmp_path / "p", size=32, format=format)
    pack = open_pack(tmp_path / "p")
    assert content(pack) == expected(photo_folder)
    assert (pack.format, pack.rows, report.rows, report.skipped) == (format, 24, 24, ())
    assert pack.header.classes == ("blue", "green", "red")
    assert pack.header.field("image").about == {"layout": "HWC", "color": "rgb", "fit": "crop"}
    assert report.bytes_read == sum(p.stat().st_size for p in photo_folder.rglob("*.jpg"))
    assert report.bytes_written == pack.nbytes


def test_shuffled_by_seed_or_in_the_sources_order(photo_folder: Path, tmp_path: Path):
    def keys(name: str, **options: object) -> list[str]:
        convert_images(photo_folder, tmp_path / name, size=32, **options)
        return open_pack(tmp_path / name).keys()

    source_order = sorted(expected(photo_folder))
    assert keys("plain", shuffle=False) == source_order
    assert sorted(keys("a")) == source_order != keys("b")
    assert keys("c") == open_pack(tmp_path / "a").keys() != keys("d", seed=1)
    assert (open_pack(tmp_path / "plain").header.seed, open_pack(tmp_path / "d").header.seed) == (None, 1)


@pytest.mark.parametrize("format", ["h5", "npy"])
@pytest.mark.parametrize("damaged", [False, True])
def test_byte_identical_whatever_the_workers(
    photo_folder: Path, tmp_path: Path, small_blocks: None, format: str, damaged: bool
):
    if damaged:
        for key in ("blue/0.jpg", "green/4.jpg", "green/5.jpg", "red/7.jpg"):
            (photo_folder / key).write_bytes(b"")
    outs = []
    for workers in (1, 2, 5):
        outs.append(tmp_path / f"p{workers}")
        convert_images(photo_folder, outs[-1], size=32, format=format, workers=workers, on_error="skip")
    for other in outs[1:]:
        pairs = [(outs[0], other)] if format == "h5" else [(p, other / p.name) for p in outs[0].iterdir()]
        assert all(a.read_bytes() == b.read_bytes() for a, b in pairs)
    assert open_pack(outs[0]).rows == (20 if damaged else 24)


def test_the_place_and_name_of_the_source_leave_no_trace(photo_folder: Path, tmp_path: Path):
    convert_images(photo_folder, tmp_path / "a.h5", size=32)
    shutil.move(photo_folder, tmp_path / "elsewhere")
    convert_images(tmp_path / "elsewhere", tmp_path / "b.h5", size=32)
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


@pytest.mark.parametrize(
    "bad", [["blue/0.jpg"], ["red/7.jpg", "red/6.jpg"], ["blue/1.jpg", "green/0.jpg", "red/3.jpg"]]
)
def test_skipped_inputs_leave_no_holes(
    photo_folder: Path, tmp_path: Path, small_blocks: None, bad: list[str]
):
    good = expected(photo_folder)
    for key in bad:
        (photo_folder / key).write_bytes(b"")
        del good[key]
    report = convert_images(photo_folder, tmp_path / "p.h5", size=32, on_error="skip", workers=2)
    pack = open_pack(tmp_path / "p.h5")
    assert content(pack) == good
    assert [s["key"] for s in report.skipped] == sorted(bad)
    assert pack.header.skipped == report.skipped
    assert all("0 bytes" in s["reason"] for s in report.skipped)
    assert report.rows == pack.rows == 24 - len(bad)


def test_checksums_after_skipping_are_those_of_the_rows(
    photo_folder: Path, tmp_path: Path, small_blocks: None
):
    for key in ("blue/1.jpg", "green/0.jpg"):
        (photo_folder / key).write_bytes(b"")
    convert_images(photo_folder, tmp_path / "p", size=32, on_error="skip")
    pack, table = open_pack(tmp_path / "p"), np.load(tmp_path / "p" / "checksums.npy")
    images = pack.read("image")
    assert table[:, 0].tolist() == [block_checksum(images[i : i + 3]) for i in range(0, 22, 3)]


def test_statistics_are_over_the_packed_images(photo_folder: Path, tmp_path: Path, small_blocks: None):
    (photo_folder / "blue/0.jpg").write_bytes(b"")
    convert_images(photo_folder, tmp_path / "p", size=32, on_error="skip", workers=3)
    pack = open_pack(tmp_path / "p")
    pixels = pack.read("image").reshape(-1, 3) / 255.0
    assert pack.header.statistics["image"]["mean"] == pytest.approx(pixels.mean(0))
    assert pack.header.statistics["image"]["std"] == pytest.approx(pixels.std(0))


@pytest.mark.parametrize(("channels", "depth"), [("gray", 1), ("rgba", 4)])
def test_channels_and_fit_reach_the_pixels(photo_folder: Path, tmp_path: Path, channels: str, depth: int):
    convert_images(photo_folder, tmp_path / "p", size="16x32", fit="pad", channels=channels)
    spec = PixelSpec((16, 32), "pad", channels)
    assert spec.shape == (16, 32, depth)
    assert content(open_pack(tmp_path / "p")) == expected(photo_folder, spec)


def test_numbers_may_be_numpys(photo_folder: Path, tmp_path: Path):
    convert_images(photo_folder, tmp_path / "p", size=np.int64(32), seed=np.int64(3), workers=np.int64(1))
    assert open_pack(tmp_path / "p").header.seed == 3


def test_an_empty_name_is_refused(photo_folder: Path):
    with pytest.raises(UsageError, match=r"^OUT: is empty\. Pass the name of a file or folder\.$"):
        convert_images(photo_folder, "")


def test_flat_folder_has_no_labels(photo_folder: Path, tmp_path: Path):
    convert_images(photo_folder / "red", tmp_path / "p", size=32)
    assert [f.name for f in open_pack(tmp_path / "p").fields] == ["image", "key"]


def test_labels_file(photo_folder: Path, tmp_path: Path):
    (tmp_path / "labels.csv").write_text("file,label\n" + "".join(f"{k}.jpg,{10 * k}\n" for k in range(8)))
    convert_images(photo_folder / "red", tmp_path / "p", size=32, labels=tmp_path / "labels.csv")
    pack = open_pack(tmp_path / "p")
    assert pack.header.classes is None
    assert {key: label for key, (label, _) in content(pack).items()} == {f"{k}.jpg": 10 * k for k in range(8)}


def test_classes_that_drawn_splits_lack_are_noted(photo_folder: Path, tmp_path: Path):
    (photo_folder / "rare").mkdir()
    shutil.copy(next(photo_folder.rglob("*.jpg")), photo_folder / "rare" / "new.jpg")
    report = convert_images(photo_folder, tmp_path / "p.h5", size=8, split="train=0.5,val=0.5")
    (note,) = (note for note in report.notes if "splits and rows" in note)
    assert note.startswith(
        "1 of 4 classes are in one split only, or not in train; splits and rows of each: 'rare' ("
    )


@pytest.mark.parametrize("kind", ["tar", "gztar", "zip"])
def test_archives_give_the_very_same_pack(photo_folder: Path, tmp_path: Path, kind: str):
    convert_images(photo_folder, tmp_path / "folder.h5", size=32)
    archive = shutil.make_archive(str(tmp_path / "photos"), kind, photo_folder.parent, photo_folder.name)
    convert_images(archive, tmp_path / "archive.h5", size=32)
    assert (tmp_path / "archive.h5").read_bytes() == (tmp_path / "folder.h5").read_bytes()
    assert sorted(os.listdir(tmp_path)) == sorted(
        ["archive.h5", "folder.h5", "photos", os.path.basename(archive)]
    )


def test_plan_comes_before_the_first_byte_and_progress_ends_at_all(photo_folder: Path, tmp_path: Path):
    plans, steps = [], []

    def on_plan(plan: root.Plan) -> None:
        assert not list(tmp_path.glob("p*packing"))
        plans.append(plan)

    convert_images(photo_folder, tmp_path / "p.h5", size=32, on_plan=on_plan, on_progress=steps.append)
    size = (tmp_path / "p.h5").stat().st_size
    assert [(p.rows, p.shape, p.classes) for p in plans] == [(24, (32, 32, 3), ("blue", "green", "red"))]
    assert size <= plans[0].bytes <= size + (1 << 17)
    assert steps == sorted(steps)
    assert steps[-1] == 24


def test_a_stop_leaves_nothing_and_ends_the_threads(photo_folder: Path, tmp_path: Path, small_blocks: None):
    for path in photo_folder.rglob("*.jpg"):
        path.write_bytes(b"")
    children = multiprocessing.active_children()
    with pytest.raises(SourceError) as error:
        convert_images(photo_folder, tmp_path / "p.h5", size=32, workers=2)
    assert str(error.value).startswith(f"{photo_folder}/")
    assert str(error.value).endswith(" Remove it, or pass on_error='skip'.")
    assert os.listdir(tmp_path) == ["photos"]
    assert not [t for t in threading.enumerate() if t.name.startswith("packer-convert")]
    assert {*multiprocessing.active_children()} <= {*children}


def test_an_interrupt_keeps_what_is_done_and_says_so(photo_folder: Path, tmp_path: Path, small_blocks: None):
    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as error:
        convert_images(photo_folder, tmp_path / "p", size=32, on_progress=interrupt)
    assert re.fullmatch(
        rf"Finished work is kept \({tmp_path}/p\.packing, .* kB\): run the same command again to continue\.",
        str(error.value),
    )
    assert sorted(os.listdir(tmp_path)) == ["p.packing", "photos"]
    report = convert_images(photo_folder, tmp_path / "p", size=32)
    assert 0 < report.resumed <= 24
    assert content(open_pack(tmp_path / "p")) == expected(photo_folder)
    assert sorted(os.listdir(tmp_path)) == ["p", "photos"]


def test_a_broken_decoder_is_not_a_bad_input(
    photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """on_error="skip" is for inputs; a bug must not empty a pack."""

    def broken(self: DecodeResize, data: bytes, out: np.ndarray) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(DecodeResize, "__call__", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        convert_images(photo_folder, tmp_path / "p", size=32, on_error="skip")
    assert os.listdir(tmp_path) == ["photos"]


@pytest.mark.skipif(sys.platform != "linux", reason="workers are processes on Linux only")
@pytest.mark.parametrize("shards", [None, 3, 7])
@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_an_image_that_crashes_its_decoder_is_named_or_skipped(
    photo_folder: Path,
    tmp_path: Path,
    small_blocks: None,
    monkeypatch: pytest.MonkeyPatch,
    on_error: str,
    shards: int | None,
):
    parent, real = os.getpid(), DecodeResize.__call__
    deadly = {(photo_folder / "red" / name).read_bytes() for name in ("1.jpg", "3.jpg")}

    def crash(self: DecodeResize, data: bytes, out: np.ndarray) -> tuple[int, int]:
        if data in deadly:
            assert os.getpid() != parent
            os.kill(os.getpid(), signal.SIGSEGV)
        return real(self, data, out)

    monkeypatch.setattr(DecodeResize, "__call__", crash)
    options: dict[str, Any] = {"size": 32, "workers": 2, "on_error": on_error, "shards": shards}
    run = partial(convert_images, photo_folder, tmp_path / "p", **options)
    if on_error == "stop":
        with pytest.raises(SourceError) as error:
            run()
        assert re.match(
            rf"{photo_folder}/red/[13]\.jpg: its decoder crashed \(SIGSEGV\)\. Remove it, or pass on_error='skip'\.",
            str(error.value),
        )
    else:
        reason = "its decoder crashed (SIGSEGV)."
        assert sorted((dict(s) for s in run().skipped), key=lambda s: s["key"]) == [
            {"key": "red/1.jpg", "reason": reason},
            {"key": "red/3.jpg", "reason": reason},
        ]
        assert verify_pack(tmp_path / "p").ok
        assert open_pack(tmp_path / "p").rows == 22


@pytest.mark.skipif(sys.platform != "linux", reason="workers are processes on Linux only")
def test_where_no_process_can_be_had_threads_do_it(
    photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    convert_images(photo_folder, tmp_path / "p", size=32, workers=2)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")  # where /dev/shm is one

    monkeypatch.setattr("packer.convert.block_workers.ProcessPoolExecutor", refuse)
    convert_images(photo_folder, tmp_path / "q", size=32, workers=2)
    assert files_of(tmp_path / "p") == files_of(tmp_path / "q")


@pytest.mark.skipif(sys.platform != "linux", reason="workers are processes on Linux only")
def test_a_worker_that_dies_is_a_sentence_not_a_hang(
    photo_folder: Path, tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch
):
    parent = os.getpid()

    def die(self: DecodeResize, data: bytes, out: np.ndarray) -> None:
        assert os.getpid() != parent
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patched:
        patched.setattr(DecodeResize, "__call__", die)
        with pytest.raises(PackerError) as error:
            convert_images(photo_folder, tmp_path / "p", size=32, workers=2)
    assert str(error.value) == (
        f"{tmp_path / 'p'}: a worker process died, perhaps for lack of memory. Pass fewer workers=."
    )
    assert os.listdir(tmp_path) == ["photos"]


@pytest.mark.skipif(sys.platform != "linux", reason="workers are processes on Linux only")
def test_what_was_done_before_a_worker_died_is_kept(
    photo_folder: Path, tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch
):
    make, calls, journal = DecodeResize.__call__, [], str(tmp_path / "p.h5.packing" / "journal")

    def die_later(self: DecodeResize, data: bytes, out: np.ndarray) -> tuple[int, int]:
        calls.append(1)
        if len(calls) > 7:  # in each worker
            until = time.monotonic() + 120  # the parent journals the blocks before, two or more of three rows
            while len(read_journal(journal)) < 4 and time.monotonic() < until:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        return make(self, data, out)

    convert_images(photo_folder, tmp_path / "whole.h5", size=32)
    with monkeypatch.context() as patched:
        patched.setattr(DecodeResize, "__call__", die_later)
        with pytest.raises(PackerError, match=r"Pass fewer workers=\. Finished work is kept"):
            convert_images(photo_folder, tmp_path / "p.h5", size=32, workers=2)
    report = convert_images(photo_folder, tmp_path / "p.h5", size=32, resume=True)
    assert report.resumed >= 6
    assert (tmp_path / "p.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()


def test_inside_a_daemonic_process_workers_are_threads(
    photo_folder: Path, tmp_path: Path, small_blocks: None
):
    """Such a process may have no children: one of a multiprocessing.Pool, or a DataLoader's worker."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        report = pool.apply(convert_images, (photo_folder, tmp_path / "p"), {"size": 32, "workers": 2})
    assert report.rows == open_pack(tmp_path / "p").rows == 24


def test_nothing_good_is_an_error(photo_folder: Path, tmp_path: Path):
    for path in photo_folder.rglob("*.jpg"):
        path.write_bytes(b"")
    with pytest.raises(
        SourceError, match=r"photos: none of its 24 images could be packed; the first: .*0 bytes"
    ):
        convert_images(photo_folder, tmp_path / "p", size=32, on_error="skip")
    assert os.listdir(tmp_path) == ["photos"]


def test_no_room_on_the_disk(photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(SpaceError, match=r"p: needs [\d.]+ kB; .* has 1 bytes free"):
        convert_images(photo_folder, tmp_path / "p", size=32)
    assert os.listdir(tmp_path) == ["photos"]


def test_output_is_refused_before_the_source_is_read(tmp_path: Path):
    (tmp_path / "p.h5").write_bytes(b"")
    (tmp_path / "broken.tar").write_bytes(b"")
    with pytest.raises(UsageError, match="exists; nothing is overwritten unasked"):
        convert_images(tmp_path / "broken.tar", tmp_path / "p.h5")
    with pytest.raises(UsageError, match=r"missing: no such file or folder; "):
        convert_images(tmp_path / "missing", tmp_path / "p.h5")


def test_opencv_threads_are_as_before(photo_folder: Path, tmp_path: Path):
    import cv2

    before = cv2.getNumThreads()
    convert_images(photo_folder, tmp_path / "p", size=32)
    assert cv2.getNumThreads() == before


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"format": "zarr"}, "format='zarr': is not one of 'h5', 'npy'. Pass one of them."),
        ({"on_error": "ignore"}, "on_error='ignore': is not one of 'stop', 'skip'. Pass one of them."),
        ({"seed": 1.5}, "seed=1.5: is not a whole number."),
        ({"workers": 0}, "workers=0: is not a whole number of at least 1."),
    ],
)
def test_each_wrong_option_is_one_sentence(tmp_path: Path, options: dict[str, object], sentence: str):
    with pytest.raises(UsageError) as error:
        convert_images(tmp_path, tmp_path / "p", **options)
    assert str(error.value) == sentence


def test_grey_images_and_others_mix(tmp_path: Path):
    (tmp_path / "in").mkdir()
    Image.new("L", (40, 40), 77).save(tmp_path / "in" / "a.png")
    Image.new("RGBA", (40, 40), (9, 8, 7, 255)).save(tmp_path / "in" / "b.webp", lossless=True)
    convert_images(tmp_path / "in", tmp_path / "p", size=8, shuffle=False)
    images = open_pack(tmp_path / "p").read("image")
    assert images[:, 0, 0].tolist() == [[77, 77, 77], [9, 8, 7]]


def test_packer_error_is_the_base_of_all(tmp_path: Path):
    with pytest.raises(PackerError):
        convert_images(tmp_path / "nothing", tmp_path / "p")
