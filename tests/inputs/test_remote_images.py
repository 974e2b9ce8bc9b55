"""Folders of images in stores: packed as the same folder on a disk is."""

from __future__ import annotations

import filecmp
from pathlib import Path

import pytest

from packer import PackedBatchDataset, convert_images, fill_pack
from packer.errors import RemoteError, SourceError, UsageError
from packer.inputs.image_sources import open_source
from packer.remote import access
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
        assert remote.findings.notes == [*local.findings.notes, "Not read as images: 1 .txt."]
        assert remote.sizes.tolist() == local.sizes.tolist()
        assert [remote.read(k) for k in range(len(remote))] == [local.read(k) for k in range(len(local))]


def test_images_are_read_ahead_once(server: ObjectServer, photos: Path) -> None:
    import numpy as np

    with open_source("s3://bucket/photos") as source:
        server.ranges.clear()
        source.ahead(np.arange(len(source)))
        found = {key: source.read(k) for k, key in enumerate(source.keys)}
    assert found == {key: (photos / key).read_bytes() for key in found}
    assert len(server.ranges) == len(found)


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
