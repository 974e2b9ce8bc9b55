"""Folders of images in stores: packed as the same folder on a disk is."""

from __future__ import annotations

import filecmp
from pathlib import Path

import numpy as np
import pytest

from packer import PackedBatchDataset, convert_images, fill_pack
from packer.errors import RemoteError, SourceError, UsageError
from packer.inputs.image_sources import open_source
from packer.inputs.remote_images import RemoteImages
from packer.remote import access
from packer.remote.object_store import ObjectInfo
from tests.remote.object_server import Handler, ObjectServer, once_each
from tests.remote.server_fixtures import server

__all__ = ["server"]


@pytest.fixture
def photos(server: ObjectServer, photo_folder: Path) -> Path:
    """The folder; all of its files are in the store, too."""
    for path in photo_folder.rglob("*"):
        if path.is_file():
            server.objects[f"bucket/photos/{path.relative_to(photo_folder)}"] = path.read_bytes()
    return photo_folder


@pytest.mark.parametrize("workers", [1, 2])
def test_the_pack_is_the_one_of_the_local_folder(
    server: ObjectServer, photos: Path, tmp_path: Path, workers: int
) -> None:
    server.fault = once_each(Handler.cut)
    convert_images("s3://bucket/photos/", tmp_path / "remote.h5", size=32, workers=workers)
    convert_images(photos, tmp_path / "local.h5", size=32)
    assert filecmp.cmp(tmp_path / "remote.h5", tmp_path / "local.h5", shallow=False)


def test_folders_in_stores_mean_what_folders_mean(server: ObjectServer, photos: Path) -> None:
    server.objects["bucket/photos/.hidden/x.jpg"] = b"x"
    server.objects["bucket/photos/notes.txt"] = b"x"
    with open_source("s3://bucket/photos") as remote, open_source(photos) as local:
        assert remote.keys == local.keys
        assert remote.targets.classes == local.targets.classes
        assert (remote.left_out, local.left_out) == ({".txt": 1}, {})
        assert remote.sizes.tolist() == local.sizes.tolist()
        assert [remote.read(k) for k in range(len(remote))] == [local.read(k) for k in range(len(local))]


def test_images_are_read_ahead_once(server: ObjectServer, photos: Path) -> None:
    with open_source("s3://bucket/photos") as source:
        server.ranges.clear()
        source.ahead(np.arange(len(source)))
        found = {key: source.read(k) for k, key in enumerate(source.keys)}
    assert found == {key: (photos / key).read_bytes() for key in found}
    assert len(server.ranges) == len(found)


def images(monkeypatch: pytest.MonkeyPatch, count: int, nbytes: int) -> tuple[RemoteImages, list[int]]:
    """Images of a store without a server, and the numbers of those that were fetched."""
    fetched: list[int] = []
    monkeypatch.setattr(RemoteImages, "_fetch", lambda self, index: fetched.append(index) or b"%d" % index)
    keys = [f"{k}.jpg" for k in range(count)]
    return RemoteImages("s3://bucket", keys, [ObjectInfo(nbytes, None, "")] * count), fetched


def test_images_that_are_passed_over_do_not_stop_prefetching(monkeypatch: pytest.MonkeyPatch) -> None:
    source, fetched = images(monkeypatch, 1000, 10 << 20)
    for start in range(0, 1000, 20):
        rows = np.arange(start, start + 20)
        source.ahead(rows)
        assert list(source._own.coming) == rows[:7].tolist()  # 64 MiB, begun
        for row in rows[1::3].tolist():
            assert source.read(row) == b"%d" % row
            assert list(source._own.coming) == [n for n in rows.tolist() if row < n <= row + 7]
            assert source._own.nbytes == len(source._own.coming) * (10 << 20)
    source.close()
    assert len(fetched) == len(set(fetched))


def test_images_are_read_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    source, _ = images(monkeypatch, 10, 60 << 20)
    source.ahead(np.array([4, 4, 2, 5]))
    assert [source.read(k) for k in (5, 2, 4, 4, 9)] == [b"5", b"2", b"4", b"4", b"9"]
    source.ahead(np.array([1]))
    source.ahead(np.array([], np.int64))
    assert (source._own.coming, source._own.nbytes) == ({}, 0)
    source.close()


def test_refused_images_are_not_fetched(server: ObjectServer, photos: Path, tmp_path: Path) -> None:
    server.objects["bucket/photos/cat/large.jpg"] = bytes(100_000)
    names = [path.relative_to(photos).as_posix() for path in sorted(photos.rglob("*.*g"))]
    (tmp_path / "labels.csv").write_text(
        "file,label\n"
        + "".join(f"{name},{'' if name == names[3] else 'a'}\n" for name in [*names, "cat/large.jpg"])
    )
    report = convert_images(
        "s3://bucket/photos",
        tmp_path / "out.h5",
        size=8,
        labels=tmp_path / "labels.csv",
        on_error="skip",
        max_pixels=4096,
        workers=1,
    )
    refused = {f"bucket/photos/{name}" for name in (names[3], "cat/large.jpg")}
    assert {one["key"] for one in report.skipped} >= {key.removeprefix("bucket/photos/") for key in refused}
    assert refused.isdisjoint(key for key, *_ in server.ranges)


def test_an_image_that_changes_is_refused(server: ObjectServer, photos: Path, tmp_path: Path) -> None:
    with open_source("s3://bucket/photos") as source:
        server.objects[f"bucket/photos/{source.keys[0]}"] += b"more"
        with pytest.raises(SourceError, match=r"changed since the conversion began\."):
            source.read(0)
        del server.objects[f"bucket/photos/{source.keys[0]}"]
        with pytest.raises(SourceError, match=r"no longer exists\."):
            source.read(0)


def test_a_store_that_gives_up_can_be_gone_on_with(
    server: ObjectServer, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "ROWS_PATIENCE", 0.0)
    server.fault = lambda handler, body: handler.key.endswith("5.jpg") and handler.refuse(body)
    with pytest.raises(RemoteError, match="the request to the server failed"):
        convert_images("s3://bucket/photos", tmp_path / "out.h5", size=32, workers=1)
    server.fault = None
    convert_images("s3://bucket/photos", tmp_path / "out.h5", size=32, resume=True)
    convert_images(photos, tmp_path / "local.h5", size=32)
    assert filecmp.cmp(tmp_path / "out.h5", tmp_path / "local.h5", shallow=False)


def test_what_cannot_be_packed(server: ObjectServer, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no object has this prefix"):
        convert_images("s3://bucket/none", tmp_path / "out.h5", size=32)
    with pytest.raises(UsageError, match="is an archive; only folders of images are read from stores"):
        convert_images("s3://bucket/photos.tar", tmp_path / "out.h5", size=32)


def test_training_while_the_images_come(server: ObjectServer, photos: Path, tmp_path: Path) -> None:
    with PackedBatchDataset(
        fill_pack("s3://bucket/photos", tmp_path / "filled.h5", size=32), 8, output="numpy"
    ) as dataset:
        assert sum(len(batch.label) for batch in dataset) == dataset.rows
    convert_images(photos, tmp_path / "local.h5", size=32)
    assert filecmp.cmp(tmp_path / "filled.h5", tmp_path / "local.h5", shallow=False)
