"""Packs written to stores: the same bytes as on a disk, whole or not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from packer import convert_images, convert_table, open_pack
from packer.errors import PackerError, RemoteError, UsageError
from packer.remote import access
from tests.remote.object_server import ObjectServer
from tests.remote.server_fixtures import server

__all__ = ["server"]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of the test's own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


def test_a_file(server: ObjectServer, photo_folder: Path, tmp_path: Path, temporary: Path) -> None:
    report = convert_images(photo_folder, "s3://bucket/train.h5", size=32)
    convert_images(photo_folder, tmp_path / "local.h5", size=32)
    assert server.objects == {"bucket/train.h5": (tmp_path / "local.h5").read_bytes()}
    assert (report.out, report.rows) == ("s3://bucket/train.h5", 24)
    assert list(temporary.glob("packer-*/*")) == []


def test_shards_come_before_their_index(server: ObjectServer, photo_folder: Path, tmp_path: Path) -> None:
    convert_images(photo_folder, "s3://bucket/train/", size=32, shards=10)
    convert_images(photo_folder, tmp_path / "local", size=32, shards=10, format="h5")
    local = {f"bucket/train/{path.name}": path.read_bytes() for path in (tmp_path / "local").iterdir()}
    assert server.objects == local
    assert server.written[-1] == "bucket/train/index.json"
    assert open_pack("s3://bucket/train/").rows == 24


def test_a_table(server: ObjectServer, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y\n1,0\n2,1\n3,0\n")
    convert_table(tmp_path / "t.csv", "s3://bucket/t.h5", label="y")
    assert open_pack("s3://bucket/t.h5").rows == 3


@pytest.mark.parametrize("options", [{}, {"shards": 10}], ids=["file", "shards"])
def test_what_is_there_is_kept(server: ObjectServer, photo_folder: Path, options: dict[str, Any]) -> None:
    convert_images(photo_folder, "s3://bucket/train", size=32, **options)
    before = dict(server.objects)
    for overwrite in (False, True):
        with pytest.raises(UsageError, match=r"exists already\. Pass another name, or remove it\."):
            convert_images(photo_folder, "s3://bucket/train", size=16, overwrite=overwrite, **options)
        assert server.objects == before


def test_a_pack_that_could_not_be_written_is_gone_on_with(
    server: ObjectServer, photo_folder: Path, temporary: Path
) -> None:
    server.writable = False
    with pytest.raises(RemoteError, match=r"train\.h5: access was refused \(AccessDenied\)"):
        convert_images(photo_folder, "s3://bucket/train.h5", size=32)
    assert server.objects == {}
    server.writable = True
    report = convert_images(photo_folder, "s3://bucket/train.h5", size=32, resume=True)
    assert report.already  # nothing was made again
    assert open_pack("s3://bucket/train.h5").rows == 24
    assert list(temporary.glob("packer-*/*")) == []


def test_stores_get_hdf5(server: ObjectServer, photo_folder: Path) -> None:
    with pytest.raises(UsageError, match="stores get complete HDF5 packs"):
        convert_images(photo_folder, "s3://bucket/train", size=32, format="npy")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_shard_does_not_take_the_name_of_something_else(
    server: ObjectServer, photo_folder: Path, overwrite: bool
) -> None:
    server.objects = {"bucket/train/00001.h5": b"a thesis"}
    with pytest.raises(UsageError, match=r"^s3://bucket/train/00001\.h5: exists and is not a pack;"):
        convert_images(photo_folder, "s3://bucket/train", size=16, shards=10, overwrite=overwrite)
    assert server.objects["bucket/train/00001.h5"] == b"a thesis"


def test_an_interrupted_pack_is_written_anew(
    server: ObjectServer, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the requests that write, the first two succeed."""
    done, put_file = [], access.put_file

    def fails(*arguments: Any, **options: Any) -> Any:
        done.append(arguments)
        if len(done) > 2:
            raise RemoteError("s3://bucket: no more.")
        return put_file(*arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(RemoteError):
        patch.setattr(access, "put_file", fails)
        convert_images(photo_folder, "s3://bucket/train", size=16, shards=10)
    assert "bucket/train/index.json" not in server.objects
    convert_images(photo_folder, "s3://bucket/train", size=8, shards=10)
    assert open_pack("s3://bucket/train").header.provenance["options"]["size"] == [8, 8]


@pytest.mark.parametrize("planted", ["link", "open to others"])
def test_a_planted_folder_for_temporary_files_is_refused(
    server: ObjectServer, photo_folder: Path, tmp_path: Path, temporary: Path, planted: str
) -> None:
    own = temporary / f"packer-{os.getuid()}"
    (tmp_path / "mine").mkdir()
    if planted == "link":
        own.symlink_to(tmp_path / "mine")
    else:
        own.mkdir()
        own.chmod(0o777)
    with pytest.raises(PackerError) as caught:
        convert_images(photo_folder, "s3://bucket/train.h5", size=32)
    assert str(caught.value) == (
        f"{own}: is not a folder, belongs to another user, or is writable for others."
        " Remove it, or set TMPDIR to another folder."
    )
    assert list((tmp_path / "mine").iterdir()) == []
