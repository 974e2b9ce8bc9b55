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
    with pytest.raises(UsageError, match=r"is there already\. Pass another name, or overwrite=True\."):
        convert_images(photo_folder, "s3://bucket/train", size=16, **options)
    assert server.objects == before
    convert_images(photo_folder, "s3://bucket/train", size=16, overwrite=True, **options)
    assert server.objects != before


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
    with pytest.raises(UsageError, match="stores get HDF5 packs"):
        convert_images(photo_folder, "s3://bucket/train", size=32, format="npy")


@pytest.mark.parametrize("options", [{}, {"shards": 10}], ids=["file", "shards"])
def test_only_packs_are_replaced(server: ObjectServer, photo_folder: Path, options: dict[str, Any]) -> None:
    for name, sentence in {
        "train": "s3://bucket/train: is there, and is no pack; only packs are replaced. Pass another name, or remove it.",
        "train/index.json": "s3://bucket/train/index.json: is there, and is no index of a pack; only packs are replaced."
        " Pass another name, or remove it.",
    }.items():
        server.objects = {f"bucket/{name}": b"a thesis"}
        with pytest.raises(UsageError) as caught:
            convert_images(photo_folder, "s3://bucket/train", size=16, overwrite=True, **options)
        assert str(caught.value) == sentence
        assert server.objects == {f"bucket/{name}": b"a thesis"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_shard_does_not_take_the_name_of_something_else(
    server: ObjectServer, photo_folder: Path, overwrite: bool
) -> None:
    server.objects = {"bucket/train/00001.h5": b"a thesis"}
    with pytest.raises(UsageError, match=r"^s3://bucket/train/00001\.h5: is there, and is no pack;"):
        convert_images(photo_folder, "s3://bucket/train", size=16, shards=10, overwrite=overwrite)
    assert server.objects["bucket/train/00001.h5"] == b"a thesis"


@pytest.mark.parametrize("failing", [2, 3, 4])
def test_the_store_has_the_old_pack_or_the_new_one(
    server: ObjectServer, photo_folder: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """Of the requests that write and remove, the first `failing` succeed."""
    convert_images(photo_folder, "s3://bucket/train", size=16, shards=10)
    old = open_pack("s3://bucket/train").header
    done = []

    def fail_after(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            done.append(arguments)
            if len(done) > failing:
                raise RemoteError("s3://bucket: no more.")
            return function(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in ("put_file", "delete"):
            patch.setattr(access, name, fail_after(getattr(access, name)))
        try:
            report = convert_images(photo_folder, "s3://bucket/train", size=32, shards=10, overwrite=True)
            assert report.notes[-1] == "What the replaced pack had is still there: s3://bucket: no more."
        except RemoteError:
            assert failing < 4  # three shards and the index
    pack = open_pack("s3://bucket/train")
    pack.confirm()
    assert pack.header.provenance["options"]["size"] == ([32, 32] if failing >= 4 else [16, 16])
    assert failing >= 4 or pack.header == old
    convert_images(photo_folder, "s3://bucket/train", size=8, shards=10, overwrite=True)
    assert open_pack("s3://bucket/train").header.provenance["options"]["size"] == [8, 8]


def test_one_pack_replaces_another_of_the_other_kind(server: ObjectServer, photo_folder: Path) -> None:
    for number, options in enumerate([{}, {"shards": 12}, {"shards": 12}, {}]):
        convert_images(photo_folder, "s3://bucket/train", size=8 << number, overwrite=True, **options)
        assert open_pack("s3://bucket/train").header.provenance["options"]["size"] == [8 << number] * 2
        names = {
            0: ["train"],
            1: ["train/00000.h5", "train/00001.h5", "train/index.json"],
            2: ["train/00000-2.h5", "train/00001-2.h5", "train/index.json"],
            3: ["train"],
        }[number]
        assert sorted(server.objects) == [f"bucket/{name}" for name in names]


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
        f"{own}: is no folder, belongs to another user, or others may write to it. Remove it, or set TMPDIR to another folder."
    )
    assert list((tmp_path / "mine").iterdir()) == []
