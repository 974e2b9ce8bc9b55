"""packer seal: what is edited in place is checked and sealed again, or refused."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from packer import convert_images, convert_table, open_pack, repack, seal_pack, verify_pack
from packer.errors import BusyError, FormatError, SpaceError, UsageError
from packer.packs.pack import Pack

ROWS = 24

pytestmark = pytest.mark.usefixtures("hdf5_here")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """24 pictures of three classes."""
    rng = np.random.default_rng(0)
    for number in range(ROWS):
        path = tmp_path / "photos" / ("red", "green", "blue")[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20, 20, 3), np.uint8)).save(path)
    return tmp_path / "photos"


def edit(path: Path, change: Callable[[Any], None]) -> None:
    with h5py.File(path, "r+") as file:
        change(file)


def darken(file: Any) -> None:
    file["image"][3:7] = file["image"][3:7] // 4


def relabel(file: Any) -> None:
    file["label"][5] = 2


def fresh(pack: Pack) -> dict[str, list[float]]:
    """Mean and std of all rows, computed here."""
    images = pack.read("image").astype(np.float64) / 255
    return {"mean": images.mean((0, 1, 2)).tolist(), "std": images.std((0, 1, 2)).tolist()}


def check_fresh(pack: Pack) -> None:
    for name, values in fresh(pack).items():
        assert pack.header.statistics["image"][name] == pytest.approx(values, abs=1e-9)


def test_an_edited_file_is_a_pack_again(tmp_path: Path, photos: Path):
    out = tmp_path / "p.h5"
    convert_images(photos, out, size=16)
    before = open_pack(out)
    edit(out, lambda file: (darken(file), relabel(file)))
    with pytest.raises(FormatError, match="was opened for writing after it was sealed"):
        open_pack(out)
    sealed = seal_pack(out)
    assert verify_pack(out).ok
    assert sealed.read("label")[5] == 2
    assert sealed.header.statistics != before.header.statistics
    check_fresh(sealed)
    with h5py.File(out) as file:  # others see the new header, too
        assert json.loads(bytes(file["packer/header"][:])) == json.loads(sealed.header.to_bytes())
        assert sorted(file) == ["image", "key", "key.offsets", "label", "packer"]
        assert (file["image"][:] == sealed.read("image")).all()


@pytest.mark.parametrize("shards", [None, 7])
def test_the_split_train_is_measured_again(tmp_path: Path, photos: Path, shards: int | None):
    out = tmp_path / "p"
    convert_images(photos, out, size=16, format="h5", split="train=0.7,val=0.3", shards=shards)
    if shards is None:
        edit(out, darken)
        edited = [out]
    else:
        edited = sorted(out.glob("*.h5"))
        for path in edited:
            edit(path, darken)
    sealed = seal_pack(out)
    ((first, stop),) = sealed.header.splits["train"]
    images = sealed.read("image", first, stop).astype(np.float64) / 255
    assert sealed.header.normalization["mean"] == pytest.approx(images.mean((0, 1, 2)), abs=1e-9)
    assert sealed.header.normalization["std"] == pytest.approx(images.std((0, 1, 2)), abs=1e-9)
    check_fresh(sealed)


def test_a_sealed_file_is_left_as_it_is(tmp_path: Path, photos: Path):
    out = tmp_path / "p.h5"
    convert_images(photos, out, size=16)
    data = out.read_bytes()
    seal_pack(out)
    assert out.read_bytes() == data


def test_what_was_only_opened_is_what_it_was(tmp_path: Path, photos: Path):
    out = tmp_path / "p.h5"
    convert_images(photos, out, size=16)
    data = out.read_bytes()
    edit(out, lambda file: None)
    seal_pack(out)
    assert out.read_bytes() == data


def test_labels_alone_leave_the_header_as_it_was(tmp_path: Path, photos: Path):
    out = tmp_path / "p.h5"
    convert_images(photos, out, size=16, store="jpeg")
    before = open_pack(out).header
    edit(out, relabel)
    sealed = seal_pack(out).header  # mean and std are those of the JPEG files now
    assert replace(sealed, statistics=before.statistics) == before
    assert verify_pack(out).ok


def grow(file: Any) -> None:
    file["more"] = np.arange(3)


def resize(file: Any) -> None:
    file["label"].resize(ROWS - 1, axis=0)


def retype(file: Any) -> None:
    labels = file["label"][:].astype("<i4")
    del file["label"]
    file["label"] = labels


def move(file: Any) -> None:
    file.move("image", "old")
    file.create_dataset("image", data=file["old"][:], chunks=(3, 16, 16, 3))
    del file["old"]


def mislabel(file: Any) -> None:
    file["label"][4] = 3


def misplace(file: Any) -> None:
    file["key.offsets"][4] = 10**6


WRONG: list[tuple[Callable[[Any], None], str]] = [
    (grow, "holds 'more', which its header does not name; a pack holds nothing else. Remove it."),
    (resize, "its arrays no longer match its header"),
    (retype, "'label' is missing, or has another dtype, shape or place than packer gives it."),
    (mislabel, r"'label' are not all within 0 to 2 \(row 4\). Correct that, then seal it"),
    (misplace, r"'key.offsets' fall \(row 4\)"),
    (
        lambda file: file.pop("label"),
        "'label' is missing, or has another dtype, shape or place than packer gives it.",
    ),
    (lambda file: file["packer"].pop("header"), "is an HDF5 file, but not a pack"),
]


@pytest.mark.parametrize(("change", "sentence"), WRONG)
def test_what_is_no_pack_any_more_is_refused(
    tmp_path: Path, photos: Path, change: Callable[[Any], None], sentence: str
):
    out = tmp_path / "p.h5"
    convert_images(photos, out, size=16)
    edit(out, change)
    data = out.read_bytes()
    with pytest.raises(FormatError, match=sentence):
        seal_pack(out)
    assert out.read_bytes() == data


def lose_checksums(file: Any) -> None:
    del file["packer/checksums"]


@pytest.mark.parametrize("change", [move, lose_checksums])
def test_rows_may_lie_elsewhere(tmp_path: Path, photos: Path, change: Callable[[Any], None]):
    out = tmp_path / "p.h5"
    convert_images(photos, out, size=16)
    data = out.read_bytes()
    edit(out, change)
    seal_pack(out)
    assert out.read_bytes() == data


def test_the_mode_of_a_file_is_kept(tmp_path: Path, photos: Path):
    out = tmp_path / "p.h5"
    convert_images(photos, out, size=16)
    out.chmod(0o600)
    edit(out, relabel)
    seal_pack(out)
    assert out.stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(tmp_path)) == ["p.h5", "photos"]


def test_a_full_disk_leaves_the_edited_file(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "p.h5"
    convert_images(photos, out, size=16)
    edit(out, relabel)
    data = out.read_bytes()
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=100))
    with pytest.raises(SpaceError, match=r"p\.h5: needs .*; .* has 100 bytes free"):
        seal_pack(out)
    assert (out.read_bytes(), sorted(os.listdir(tmp_path))) == (data, ["p.h5", "photos"])


@pytest.mark.parametrize("compress", ["gzip"])
def test_compressed_rows_may_move(tmp_path: Path, photos: Path, compress: str):
    out = tmp_path / "p.h5"
    convert_images(photos, out, size=16, store=compress)
    edit(out, darken)
    sealed = seal_pack(out)
    assert verify_pack(out).ok
    repack(out, tmp_path / "raw.h5", store="raw")
    raw = open_pack(tmp_path / "raw.h5")
    assert raw.header.statistics == sealed.header.statistics
    check_fresh(raw)


def test_compressed_categories_are_checked(tmp_path: Path):
    rows = [
        f"{','.join('uvw'[(number + k) % 3] for k in range(40))},{'pq'[number % 2]}" for number in range(90)
    ]
    names = ",".join([*(f"c{k}" for k in range(40)), "y"])
    (tmp_path / "t.csv").write_text("\n".join([names, *rows]))
    out = tmp_path / "t.h5"
    convert_table(tmp_path / "t.csv", out, label="y", store="gzip")
    assert open_pack(out).header.field("categories").compressed

    def spoil(file: Any) -> None:
        file["categories"][10, 3] = 4

    edit(out, spoil)
    with pytest.raises(FormatError, match=r"'categories' are not all within 0 to 3, .* \(row 10\)"):
        seal_pack(out)


def test_a_folder_that_is_no_pack(tmp_path: Path, photos: Path):
    with pytest.raises(FormatError, match="is a folder without a 'trailer' file, not a pack"):
        seal_pack(photos)


def test_what_is_not_there_is_not_sealed(tmp_path: Path):
    with pytest.raises(FormatError, match=r"p\.h5: cannot be read \(No such file or directory\)"):
        seal_pack(tmp_path / "p.h5")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("format", ["h5", "npy"])
def test_killed_between_two_renames_it_is_sealed_again(tmp_path: Path, photos: Path, format: str):
    """Where the system cannot exchange two names."""
    out = tmp_path / "p"
    convert_images(photos, out, size=16, format=format)
    (edit(out, relabel) if format == "h5" else np.load(out / "label.npy", mmap_mode="r+").__setitem__(5, 2))
    (tmp_path / "p.packing").mkdir(mode=0o700)
    out.rename(tmp_path / "p.packing" / "old")
    assert seal_pack(out).read("label")[5] == 2
    assert verify_pack(out).ok
    assert sorted(os.listdir(tmp_path)) == ["p", "photos"]


def test_what_cannot_be_decoded_is_refused(tmp_path: Path, photos: Path):
    out = tmp_path / "p.h5"
    convert_images(photos, out, size=16, store="zstd")
    edit(out, lambda file: file["image"].id.write_direct_chunk((0, 0, 0, 0), b"no frame"))
    with pytest.raises(FormatError, match="of 'image' are damaged"):
        seal_pack(out)
    with pytest.raises(FormatError, match="was opened for writing"):
        open_pack(out)


def test_a_directory_of_npy_files(tmp_path: Path, photos: Path):
    out = tmp_path / "p"
    convert_images(photos, out, size=16)
    data = {path.name: path.read_bytes() for path in out.iterdir()}
    seal_pack(out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == data
    images = np.load(out / "image.npy", mmap_mode="r+")
    images[2:4] = 0
    images.flush()
    assert not verify_pack(out).ok
    check_fresh(seal_pack(out))
    assert verify_pack(out).ok
    (out / "trailer").unlink()
    with pytest.raises(FormatError, match=r"run packer seal"):
        open_pack(out)
    seal_pack(out)
    assert verify_pack(out).ok
    np.save(out / "label.npy", np.zeros(ROWS, "<i4"))
    with pytest.raises(FormatError, match=r"label\.npy"):
        seal_pack(out)


@pytest.mark.parametrize("format", ["h5", "npy"])
def test_shards(tmp_path: Path, photos: Path, format: str):
    out = tmp_path / "p"
    convert_images(photos, out, size=16, shards=10, format=format)
    if format == "h5":
        edit(out / "00001.h5", darken)
        with pytest.raises(FormatError, match=rf"00001.h5: .* Run packer seal {out}\."):
            open_pack(out).confirm()
        assert [problem.kind for problem in verify_pack(out).problems] == ["unsealed"]
    else:
        images = np.load(out / "00001" / "image.npy", mmap_mode="r+")
        images[2:4] = 0
        images.flush()
    check_fresh(seal_pack(out))
    assert verify_pack(out).ok


def test_another_shard_is_no_edited_one(tmp_path: Path, photos: Path):
    out = tmp_path / "p"
    convert_images(photos, out, size=16, shards=10)
    edit(out / "00001.h5", darken)
    with pytest.raises(UsageError, match=rf"is a shard of a pack. Seal the pack: packer seal {out}\."):
        seal_pack(out / "00001.h5")
    shutil.copy(out / "00000.h5", out / "00001.h5")
    with pytest.raises(FormatError, match=r"is not the shard that index\.json lists"):
        seal_pack(out)


def test_a_table_keeps_its_mapping(tmp_path: Path):
    lines = [f"{n},{'abc'[n % 3]},{n % 2}" for n in range(20)]
    (tmp_path / "t.csv").write_text("x,kind,y\n" + "\n".join(lines) + "\n")
    out = tmp_path / "t.h5"
    convert_table(tmp_path / "t.csv", out, label="y")
    before = open_pack(out).header
    edit(out, lambda file: file["features"].write_direct(file["features"][:] * 2))
    assert seal_pack(out).header == before
    edit(out, lambda file: file["categories"].write_direct(file["categories"][:] + 1))
    with pytest.raises(FormatError, match="'categories' are not all within 0 to 3"):
        seal_pack(out)


def test_boxes_have_classes_of_the_pack(tmp_path: Path, photos: Path):
    out = tmp_path / "p.h5"
    images = [{"id": n, "file_name": f"red/{3 * n}.png", "width": 20, "height": 20} for n in range(8)]
    boxes = [{"id": n, "image_id": n, "category_id": n % 2, "bbox": [2, 2, 9, 9]} for n in range(8)]
    names = [{"id": 0, "name": "a"}, {"id": 1, "name": "b"}]
    record = {"images": images, "annotations": boxes, "categories": names}
    (tmp_path / "coco.json").write_text(json.dumps(record))
    convert_images(photos, out, size=16, labels=tmp_path / "coco.json", on_error="skip")
    edit(out, lambda file: file["box_label"].write_direct(np.full(64, 7, "u1")))
    with pytest.raises(FormatError, match="'box_label' are not all within 0 to 1"):
        seal_pack(out)


def test_a_file_that_is_open_is_left_alone(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()  # HDF5 is asked in another process, as the lock is of this one
    out = tmp_path / "p.h5"
    convert_images(photos, out, size=16)
    edit(out, relabel)
    with h5py.File(out), pytest.raises(BusyError, match="is open in another program"):
        seal_pack(out)
    seal_pack(out)


def test_what_lies_in_a_store_is_downloaded_first():
    with pytest.raises(UsageError, match=r"is in a store\. Download it"):
        seal_pack("s3://bucket/p.h5")


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", ["h5", "npy", "shards"])
def test_killed_at_any_write_it_is_edited_or_sealed(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, kind: str, stride: int
):
    monkeypatch.setattr("packer.convert.sealing.cores", lambda: 1)
    original, out = tmp_path / f"o.{kind}", tmp_path / f"p.{kind}"
    shard_rows, format = (10, "h5") if kind == "shards" else (None, kind)
    convert_images(photos, original, size=16, format=format, shards=shard_rows)
    edited = None
    if format == "h5":
        edit(original / "00001.h5" if shard_rows else original, lambda file: (darken(file), relabel(file)))
    else:
        images = np.load(original / "image.npy", mmap_mode="r+")
        images[2:4] = 0
        images.flush()
        edited = open_pack(original).header  # an edit leaves the trailer
    copy = shutil.copy if kind == "h5" else shutil.copytree
    copy(original, out)
    whole, files = seal_pack(out).header, sorted(os.listdir(tmp_path))
    for steps in range(0, 120, stride):
        shutil.rmtree(out) if out.is_dir() else out.unlink()
        copy(original, out)
        if not (child := os.fork()):
            die_after(steps)
            seal_pack(out)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with suppress(FormatError):
            (pack := open_pack(out)).confirm()
            assert pack.header in (whole, edited)
            assert verify_pack(out).ok or pack.header == edited
        assert seal_pack(out).header == whole
        assert verify_pack(out).ok
        assert sorted(os.listdir(tmp_path)) == files
        if code == 0:
            break
    assert 20 < steps < 110


def die_after(steps: int) -> None:
    """Have this process end at its next call but so many that changes a file."""
    left = [steps]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            if not left[0]:
                os._exit(9)
            left[0] -= 1
            return call(*arguments, **named)

        return run

    calls = ("pwrite", "ftruncate", "replace", "rename", "mkdir", "rmdir", "unlink", "chmod", "fsync")
    for name in calls:
        setattr(os, name, counted(getattr(os, name)))


def victims(tmp_path: Path) -> Path:
    """A file of the user, which nothing may change."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "precious").write_text("precious")
    return tmp_path / "home" / "precious"


@pytest.mark.parametrize(
    ("name", "shards"),
    [
        ("header.json", None),
        ("checksums.npy", None),
        ("trailer", None),
        ("index.json.new", 12),
        ("00001/trailer", 12),
        ("00001/key.npy", 12),
    ],
)
def test_links_in_a_folder_to_seal_are_refused(
    tmp_path: Path, photos: Path, name: str, shards: int | None
) -> None:
    out, victim = tmp_path / "p", victims(tmp_path)
    convert_images(photos, out, size=16, shards=shards, format="npy")
    image = next(out.rglob("image.npy"))
    array = np.load(image, mmap_mode="r+")
    array[0] ^= 1
    array.flush()
    if (out / name).exists():
        os.replace(out / name, victim.with_name("moved"))
        victim.write_bytes(victim.with_name("moved").read_bytes())
    (out / name).symlink_to(victim)
    before = victim.read_bytes()
    with pytest.raises(UsageError) as error:
        seal_pack(out)
    assert str(error.value) == (
        f"{out / name}: is a link; packer writes only into packs of its user, without links. If you trust this"
        f" one, copy it, and write to the copy: cp -rL {out} COPY."
    )
    assert victim.read_bytes() == before
    shutil.copytree(out, tmp_path / "copy")  # as cp -rL does
    assert verify_pack(seal_pack(tmp_path / "copy")).ok


def test_a_file_is_sealed_through_a_link_that_the_user_names(tmp_path: Path, photos: Path) -> None:
    convert_images(photos, tmp_path / "p.h5", size=16)
    (tmp_path / "latest.h5").symlink_to("p.h5")
    edit(tmp_path / "p.h5", darken)
    seal_pack(tmp_path / "latest.h5")
    assert verify_pack(tmp_path / "p.h5").ok
    assert (tmp_path / "latest.h5").is_symlink()
