"""Shards made by other processes: the same bytes, whatever is lost on the way."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import pickle
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer import convert_images, open_pack
from packer.convert import image_planning
from packer.convert.engines import pool_of
from packer.errors import BusyError, FormatError, PackerError, SourceError, UsageError
from packer.inputs.label_options import Labels
from packer.machine import cores
from packer.pixels import decode_resize
from tests.format.packs import files_of
from tests.remote.object_server import ObjectServer
from tests.remote.server_fixtures import server

__all__ = ["server"]


class Elsewhere(Executor):
    """Runs what it is given at once, from its pickled bytes, as another machine would. given: how often, and with what."""

    def __init__(self, before: Callable[[int], None] = lambda number: None) -> None:
        self.given: list[bytes] = []
        self._before = before

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.given.append(pickle.dumps((fn, args, kwargs)))
        future: Future[Any] = Future()
        here = os.getcwd()
        try:
            self._before(len(self.given))
            os.chdir("/")
            fn, args, kwargs = pickle.loads(self.given[-1])
            future.set_result(_sent(fn(*args, **kwargs)))
        except Exception as error:
            future.set_exception(pickle.loads(pickle.dumps(error)))
        finally:
            os.chdir(here)
        return future


def _sent(result: Any) -> Any:
    """Return what another process would get; arrays as Ray gives them, in memory that can only be read."""
    arrays: list[pickle.PickleBuffer] = []
    data = pickle.dumps(result, protocol=5, buffer_callback=arrays.append)
    return pickle.loads(data, buffers=[bytes(array.raw()) for array in arrays])


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def masks(photo_folder: Path, tmp_path: Path) -> Path:
    """A mask for each image, called as it is; and a CSV of boxes and labels, of which some images have none."""
    lines = ["file,xmin,ymin,xmax,ymax,name"]
    for number, image in enumerate(sorted(photo_folder.rglob("*.jpg"))):
        place = tmp_path / "masks" / image.relative_to(photo_folder).with_suffix(".png")
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((20, 24), number, np.uint8)).save(place)
        key = image.relative_to(photo_folder)
        lines += [f"{key},{box},2,{box + 20},30,{'ab'[number % 2]}" for box in range(number % 3)] or [
            f"{key},,,,,"
        ]
    (tmp_path / "boxes.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "masks"


@pytest.mark.parametrize(
    "options",
    [
        {"size": 32},
        {"size": 32, "store": "jpeg", "shuffle": False},
        {"size": "keep", "store": "jpeg"},
        {"size": "max=24", "store": "jpeg", "labels": True},
        {"size": 16, "split": "train=0.7,val=0.3", "channels": "gray", "store": "zstd"},
        {"size": 32, "pairs": True},
        {"size": 32, "labels": True},
    ],
    ids=["raw", "jpeg", "keep", "max", "split", "masks", "boxes"],
)
def test_the_bytes_are_those_of_one_machine(
    photo_folder: Path, masks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    if options.get("pairs"):
        options = options | {"pairs": {"mask": "masks"}}
    if options.get("labels"):
        given = {"labels": Labels("boxes.csv", boxes="xmin,ymin,xmax,ymax", column="name")}
        options = options | given
    monkeypatch.chdir(tmp_path)  # others work in other folders
    one = convert_images("photos", "one", shards=7, format="h5", **options)
    elsewhere = Elsewhere()
    other = convert_images("photos", "other", shards=7, engine=elsewhere, **options)
    assert content(tmp_path / "other") == content(tmp_path / "one")
    assert 1 <= len(elsewhere.given) <= 4
    assert (other.rows, other.bytes_read, other.bytes_written) == (
        one.rows,
        one.bytes_read,
        one.bytes_written,
    )
    assert not (tmp_path / "other.packing").exists()


def test_the_report_is_that_of_one_machine(tmp_path: Path) -> None:
    """But for its workers, which are those of the engine, and the time that it took."""
    for number in range(5):
        (tmp_path / "deep").mkdir(exist_ok=True)
        Image.fromarray(np.full((20, 20), 30_000 + number, np.uint16)).save(tmp_path / f"deep/{number}.png")
    options: dict[str, Any] = {"size": 16, "channels": "gray", "shards": 2}
    one = convert_images(tmp_path / "deep", tmp_path / "one", workers=1, **options)
    other = convert_images(tmp_path / "deep", tmp_path / "other", engine=Elsewhere(), workers=1, **options)
    assert one.notes[-1].startswith("5 images have more than 8 bits a channel; the high byte is stored.")
    assert other == replace(one, out=other.out, seconds=other.seconds, workers=min(cores(), 3))


def test_processes_of_an_executor(photo_folder: Path, tmp_path: Path) -> None:
    convert_images(photo_folder, tmp_path / "one", size=32, shards=5)
    done: list[int] = []
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        convert_images(
            photo_folder, tmp_path / "other", size=32, shards=5, engine=pool, on_progress=done.append
        )
        assert pool.submit(abs, -1).result() == 1  # it is the caller's, and goes on
    assert content(tmp_path / "other") == content(tmp_path / "one")
    assert done == sorted(done)
    assert done[-1] == 24


@pytest.mark.parametrize("empty", [False, True], ids=["some", "a whole shard"])
def test_skipped_images(photo_folder: Path, tmp_path: Path, empty: bool) -> None:
    for image in sorted((photo_folder / "blue").iterdir())[: 7 if empty else 3]:
        image.write_bytes(b"no image")
    options: dict[str, Any] = {"size": 32, "shards": 7, "shuffle": False, "on_error": "skip"}
    one = convert_images(photo_folder, tmp_path / "one", **options)
    other = convert_images(photo_folder, tmp_path / "other", engine=Elsewhere(), **options)
    assert content(tmp_path / "other") == content(tmp_path / "one")
    assert other.skipped == one.skipped
    assert len(open_pack(tmp_path / "other").shards) == (3 if empty else 4)


def test_a_bad_image_ends_it_and_what_is_made_is_kept(photo_folder: Path, tmp_path: Path) -> None:
    bad = sorted(photo_folder.rglob("*.jpg"))[20]
    good = bad.read_bytes()
    bad.write_bytes(b"no image")
    options: dict[str, Any] = {"size": 32, "shards": 5, "shuffle": False}
    with pytest.raises(SourceError, match=r"photos/red/4\.jpg: .* run the same command again.*\(On .*\)"):
        convert_images(photo_folder, tmp_path / "out", engine=Elsewhere(), **options)
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "out.packing").rglob("packer-*"))
    bad.write_bytes(good)


@pytest.mark.parametrize("then", ["elsewhere", "here"])
def test_the_driver_goes_on_with_what_is_there(photo_folder: Path, tmp_path: Path, then: str) -> None:
    def lost(number: int) -> None:
        if number == 3:
            raise OSError("the machine is gone")

    options: dict[str, Any] = {"size": 32, "shards": 2}
    with pytest.raises(PackerError, match=r"out: part 3/\d failed \(the machine is gone\)"):
        convert_images(photo_folder, tmp_path / "out", engine=Elsewhere(lost), **options)
    engine = {"engine": Elsewhere()} if then == "elsewhere" else {}
    report = convert_images(photo_folder, tmp_path / "out", resume=True, **options, **engine)
    convert_images(photo_folder, tmp_path / "one", **options)
    assert content(tmp_path / "out") == content(tmp_path / "one")
    assert report.resumed >= 4


def test_shards_that_this_machine_had_begun(photo_folder: Path, tmp_path: Path) -> None:
    def stop(done: int) -> None:
        if done > 5:
            raise KeyboardInterrupt

    options: dict[str, Any] = {"size": 32, "shards": 5}
    with pytest.raises(KeyboardInterrupt):
        convert_images(photo_folder, tmp_path / "out", on_progress=stop, **options)
    assert list((tmp_path / "out.packing/pack").iterdir())
    convert_images(photo_folder, tmp_path / "out", engine=Elsewhere(), **options)
    convert_images(photo_folder, tmp_path / "one", **options)
    assert content(tmp_path / "out") == content(tmp_path / "one")


@pytest.mark.usefixtures("hdf5_here")
def test_a_shard_that_was_changed_meanwhile_is_made_again(photo_folder: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"size": 32, "shards": 2}

    def lost(number: int) -> None:
        if number == 3:
            raise OSError("lost")

    with pytest.raises(PackerError):
        convert_images(photo_folder, tmp_path / "out", engine=Elsewhere(lost), **options)
    for shard in (tmp_path / "out.packing" / "pack").iterdir():
        shard.write_bytes(shard.read_bytes()[:-1])
    report = convert_images(photo_folder, tmp_path / "out", engine=Elsewhere(), **options)
    assert report.resumed == 0
    convert_images(photo_folder, tmp_path / "one", **options)
    assert content(tmp_path / "out") == content(tmp_path / "one")


@pytest.mark.usefixtures("impatient")
def test_a_part_that_another_attempt_still_makes(photo_folder: Path, tmp_path: Path) -> None:
    """A process outlived its driver, or the machine that was given up for lost was not."""
    options: dict[str, Any] = {"size": 32, "shards": 2}

    def at_work(number: int) -> None:
        if number == 2:
            os.makedirs(folder := tmp_path / "out.packing/parts/2-of-4/out.part-2-of-4.packing", 0o700)
            held.append(os.open(folder, os.O_RDONLY))
            fcntl.flock(held[0], fcntl.LOCK_EX)

    held: list[int] = []
    with pytest.raises(BusyError, match="another packer is writing it"):
        convert_images(photo_folder, tmp_path / "out", engine=Elsewhere(at_work), **options)
    os.close(held[0])
    convert_images(photo_folder, tmp_path / "out", engine=Elsewhere(), **options)
    convert_images(photo_folder, tmp_path / "one", **options)
    assert content(tmp_path / "out") == content(tmp_path / "one")


def test_other_libraries_are_refused_by_name(
    photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = decode_resize.decoder_versions()

    def other() -> None:
        monkeypatch.setattr(image_planning, "decoder_versions", lambda: versions | {"opencv": "4.0.0"})

    with pytest.raises(
        SourceError, match=rf"opencv is {versions['opencv']}, here it is 4\.0\.0\. Install the same"
    ):
        convert_images(photo_folder, tmp_path / "out", size=32, shards=5, engine=Elsewhere(lambda _: other()))
    assert not (tmp_path / "out").exists()


def test_shards_that_others_would_write_otherwise_do_not_go_to_a_store(
    server: ObjectServer, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"size": "max=512", "store": "jpeg", "shards": 5}

    def other(number: int) -> None:
        monkeypatch.setattr("packer.native.COMPILED", False)

    with pytest.raises(
        SourceError,
        match=r"^.*: made other rows than the machine that planned the pack: versions restart markers is not given, here"
        r" it is none, without the C extension\. Install the same versions on both, and give both the same files\.",
    ):
        convert_images(photo_folder, "s3://bucket/train", engine=Elsewhere(other), **options)
    assert not server.objects


def test_shards_go_straight_to_a_store(server: ObjectServer, photo_folder: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"size": 32, "shards": 2}

    def lost(number: int) -> None:
        if number == 3:
            raise OSError("lost")

    with pytest.raises(PackerError, match=r"s3://bucket/train: part 3/\d failed"):
        convert_images(photo_folder, "s3://bucket/train/", engine=Elsewhere(lost), **options)
    assert 1 <= len(server.objects) < 12
    elsewhere = Elsewhere()
    report = convert_images(photo_folder, "s3://bucket/train/", engine=elsewhere, **options)
    assert report.resumed >= 2
    assert len(elsewhere.given) < 4
    convert_images(photo_folder, tmp_path / "one", **options)
    assert server.objects == {
        f"bucket/train/{name}": data for name, data in content(tmp_path / "one").items()
    }
    assert server.written[-1] == "bucket/train/index.json"
    assert (report.out, report.rows) == ("s3://bucket/train", 24)
    with pytest.raises(UsageError, match="exists already"):
        convert_images(photo_folder, "s3://bucket/train/", engine=Elsewhere(), overwrite=True, **options)


@pytest.mark.parametrize("empty", [False, True], ids=["some", "a whole shard"])
def test_skipped_images_and_a_store(
    server: ObjectServer, photo_folder: Path, tmp_path: Path, empty: bool
) -> None:
    for image in sorted((photo_folder / "blue").iterdir())[: 7 if empty else 3]:
        image.write_bytes(b"no image")
    options: dict[str, Any] = {"size": 32, "shards": 7, "shuffle": False, "on_error": "skip"}
    one = convert_images(photo_folder, tmp_path / "one", **options)
    other = convert_images(photo_folder, "s3://bucket/train", engine=Elsewhere(), **options)
    assert server.objects == {
        f"bucket/train/{name}": data for name, data in content(tmp_path / "one").items()
    }
    assert (other.rows, other.skipped) == (one.rows, one.skipped)


def test_what_the_store_has_made_of_a_shard_is_looked_at(server: ObjectServer, photo_folder: Path) -> None:
    def mixed_up(number: int) -> None:
        if number == 3:
            server.objects["bucket/train/00001.h5"] = server.objects["bucket/train/00000.h5"]

    options: dict[str, Any] = {"size": 32, "shards": 2}
    with pytest.raises(FormatError, match=r"train/00001\.h5: is not the shard that was uploaded"):
        convert_images(photo_folder, "s3://bucket/train", engine=Elsewhere(mixed_up), **options)
    assert "bucket/train/index.json" not in server.objects
    assert convert_images(photo_folder, "s3://bucket/train", engine=Elsewhere(), **options).rows == 24


def test_images_of_a_store(server: ObjectServer, photo_folder: Path, tmp_path: Path) -> None:
    for path in photo_folder.rglob("*.jpg"):
        server.objects[f"bucket/photos/{path.relative_to(photo_folder)}"] = path.read_bytes()
    options: dict[str, Any] = {"size": 32, "shards": 5}
    convert_images("s3://bucket/photos", tmp_path / "one", **options)
    convert_images("s3://bucket/photos", tmp_path / "other", engine=Elsewhere(), **options)
    assert content(tmp_path / "other") == content(tmp_path / "one")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {},
            r"other processes write shards \(engine=\), .* Pass shards='1GB', and only one of these, or neither\.",
        ),
        ({"shards": 5, "engine": "dask"}, r"engine 'dask': is neither local nor ray nor an executor"),
        (
            {"shards": 5, "engine": "local", "address": "auto"},
            r'^address=: is not an argument of convert_images; pass engine="ray:ADDRESS"\.$',
        ),
        ({"shards": 5, "only_shards": "1/2"}, r"and only one of these, or neither"),
    ],
)
def test_what_other_processes_cannot_make(
    photo_folder: Path, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        convert_images(photo_folder, tmp_path / "out", **{"size": 32, "engine": Elsewhere()} | options)
    assert not list(tmp_path.glob("out*"))


def test_threads_are_refused() -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(UsageError, match="processes are needed"):
        pool_of(pool)


@pytest.mark.parametrize("format", ["zip", "npy"])
def test_archives_and_npy_shards(photo_folder: Path, tmp_path: Path, format: str) -> None:
    source = photo_folder
    if format == "zip":
        source = Path(shutil.make_archive(str(tmp_path / "photos"), "zip", tmp_path, "photos"))
    options: dict[str, Any] = {"size": 32, "shards": 5} | ({"format": "npy"} if format == "npy" else {})
    convert_images(source, tmp_path / "one", **options)
    convert_images(source, tmp_path / "out", engine=Elsewhere(), **options)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "one")


def test_a_process_that_dies(photo_folder: Path, tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(signal.raise_signal, signal.SIGKILL)
        with pytest.raises(PackerError, match=r"a worker process died\)\. If an image crashes its decoder"):
            convert_images(photo_folder, tmp_path / "out", size=32, shards=5, engine=pool)
    assert not (tmp_path / "out").exists()


def test_processes_forked_meanwhile_hold_no_lock(photo_folder: Path, tmp_path: Path) -> None:
    bad = sorted(photo_folder.rglob("*.jpg"))[20]
    good = bad.read_bytes()
    bad.write_bytes(b"no image")
    options: dict[str, Any] = {"size": 32, "shards": 5}
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        with pytest.raises(SourceError, match=r"red/4\.jpg: .* run the same command again"):
            convert_images(photo_folder, tmp_path / "out", engine=pool, **options)
        bad.write_bytes(good)
        convert_images(photo_folder, tmp_path / "out", engine=pool, **options)
    convert_images(photo_folder, tmp_path / "one", **options)
    assert content(tmp_path / "out") == content(tmp_path / "one")


@pytest.mark.parametrize("broken", [True, False], ids=["broken", "shut down"])
def test_an_executor_that_takes_no_tasks(photo_folder: Path, tmp_path: Path, broken: bool) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        if broken:
            with pytest.raises(BrokenExecutor):
                pool.submit(signal.raise_signal, signal.SIGKILL).result()
        else:
            pool.shutdown()
        said = "a worker process died" if broken else "cannot schedule new futures after shutdown"
        with pytest.raises(PackerError, match=rf"out: part 1/\d failed \({said}\)"):
            convert_images(photo_folder, tmp_path / "out", size=32, shards=5, engine=pool)
    assert not list(tmp_path.glob("out*"))
