"""Damage of every kind, in every kind of pack: verify finds it, repair brings back the very bytes, or says why not."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from packer.convert.image_conversion import convert_images
from packer.convert.repacking import append_images, merge_packs, repack, split_pack
from packer.convert.repair import Repair, repair_pack
from packer.errors import FormatError, PackerError, SourceError, UsageError
from packer.format.checksums import SIZE, Trailer
from packer.format.header import OFFSETS
from packer.format.pack import Pack
from packer.format.pack_opening import open_pack
from packer.format.verify import verify_pack
from packer.inputs.image_pairs import Soft
from packer.inputs.label_options import Labels
from tests.format.packs import files_of

BAD = ("blue/2.jpg", "green/7.jpg")
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "h5": ("p.h5", {}),
    "npy": ("p", {}),
    "jpeg": ("p.h5", {"store": "jpeg"}),
    "jpeg npy": ("p", {"store": "jpeg"}),
    "gzip": ("p.h5", {"store": "gzip"}),
    "keep": ("p.h5", {"size": "keep", "store": "jpeg"}),
    "min": ("p.h5", {"size": "min=16", "store": "jpeg"}),
    "shards": ("p", {"shards": 9}),
    "npy shards": ("p", {"shards": 9, "format": "npy"}),
    "splits": ("p.h5", {"split": "train=0.75,test=0.25"}),
}
ENDS = ("header", "trailer")  # beyond repair: the options of the conversion are there
every_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(autouse=True)
def small(hdf5_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of three rows: several blocks and a short last one from a few images. One worker: forking takes longer than these."""
    monkeypatch.setattr(
        "packer.convert.row_storage.block_rows", lambda rows, row_bytes, least_bytes: min(rows, 3)
    )
    monkeypatch.setattr("packer.arguments.cores", lambda: 1)


@pytest.fixture
def photos(photo_folder: Path) -> Path:
    """The photos, two of them spoilt, so that rows have moved."""
    for key in BAD:
        (photo_folder / key).write_bytes(b"")
    return photo_folder


def convert(photos: Path, out: Path, **options: Any) -> Pack:
    convert_images(photos, out, **{"size": 16, "on_error": "skip", **options})
    return open_pack(out)


def flip(path: Path, offset: int, bit: int = 3) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def place_of(pack: Pack, array: str, element: int = 0) -> tuple[Path, int]:
    """File and byte of an element of an array of a pack of one part: an entry, or a byte of a blob, or of a compressed block."""
    extents = pack.header.extents[array]
    f = pack.header.field(array.removesuffix(OFFSETS))
    extent = extents[element // pack.header.block_rows] if f.compressed else extents[0]
    inside = 30 if f.compressed else element * extent.row_bytes
    return Path(pack.file(extent)), extent.offset + inside


def spots(pack: Pack) -> dict[str, tuple[Path, int]]:
    """What there is to damage in a pack of one part."""
    path, trailer = Path(pack.path), Trailer.from_bytes(pack.seal)
    assert trailer is not None
    found = {}
    for array in pack.header.columns:
        elements = sum(e.rows for e in pack.header.extents[array])
        for where, element in (("first", 0), ("middle", elements // 2), ("last", elements - 1)):
            found[f"{where} of {array}"] = place_of(pack, array, element)
    directory = pack.format == "npy"
    header, table = (path / "header.json", path / "checksums.npy") if directory else (path, path)
    found["header"] = header, trailer.header_offset + 50
    found["table"] = table, trailer.checksums_offset + 9
    seal = path / "trailer" if directory else path
    end = seal.stat().st_size
    found |= {f"trailer {k}": (seal, end - SIZE + k) for k in (30, 113, 127)}
    if directory:
        found |= {f"head of {a}": (path / f"{a}.npy", k) for a in pack.header.columns for k in (1, 40)}
        found["head of the table"] = path / "checksums.npy", 20
    else:
        found |= {f"HDF5 {k}": (path, k) for k in (0, 9, 100, 700)}
    return found


def damageable(pack: Pack, way: str) -> dict[str, tuple[Path, int]]:
    """Spots that can be repaired: all of plain packs, the middle of each array of the others."""
    found = {what: where for what, where in spots(pack).items() if not what.startswith(ENDS)}
    if way in ("h5", "npy"):
        return found
    return {what: where for what, where in found.items() if what.startswith(("middle", "last of label"))}


def test_what_a_link_leads_to_is_repaired(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    pack = convert(photos, tmp_path / "disk" / "p.h5")
    before = Path(pack.path).read_bytes()
    (tmp_path / "p.h5").symlink_to(pack.path)
    flip(*place_of(pack, "image", 5))
    assert repair_pack(tmp_path / "p.h5", photos).blocks == 1
    assert (tmp_path / "p.h5").is_symlink()
    assert Path(pack.path).read_bytes() == before
    assert os.listdir(tmp_path / "disk") == ["p.h5"]


def check(path: Path, photos: Path, damage: Callable[[], None], **options: Any) -> Repair:
    """Damage is found, and repaired to the bytes there were."""
    before = files_of(path)
    damage()
    assert files_of(path) != before
    assert not verify_pack(path).ok
    repaired = repair_pack(path, photos, **options)
    assert files_of(path) == before
    return repaired


@every_way
def test_one_flipped_bit_anywhere(photos: Path, tmp_path: Path, way: str):
    name, options = WAYS[way]
    pack = convert(photos, tmp_path / name, **options)
    for part in pack.parts[1:2] or pack.parts:
        for what, (file, offset) in damageable(part, way).items():
            repaired = check(tmp_path / name, photos, lambda: flip(file, offset))  # noqa: B023 (called at once)
            rows = what.startswith(("first", "middle", "last"))
            assert (repaired.blocks > 0) == rows, what


@pytest.mark.parametrize("way", ["h5", "npy", "shards", "npy shards"])
def test_a_damaged_header_trailer_or_index_is_refused_and_left_alone(photos: Path, tmp_path: Path, way: str):
    name, options = WAYS[way]
    pack = convert(photos, tmp_path / name, **options)
    part = (pack.parts[1:2] or pack.parts)[0]
    places = [where for what, where in spots(part).items() if what.startswith(ENDS)]
    if pack.shards:
        places += [(tmp_path / name / "index.json", k) for k in (0, 100)]
    for file, offset in places:
        flip(file, offset)
        flip(*place_of(part, "image"))
        damaged = files_of(tmp_path / name)
        assert not verify_pack(tmp_path / name).ok
        with pytest.raises(FormatError, match=r"Convert the images again|Restore the original"):
            repair_pack(tmp_path / name, photos)
        assert files_of(tmp_path / name) == damaged
        flip(file, offset)
        flip(*place_of(part, "image"))
    assert verify_pack(tmp_path / name).ok


@every_way
def test_much_at_once(photos: Path, tmp_path: Path, way: str):
    """A whole block of every array overwritten, in every part."""
    name, options = WAYS[way]
    pack = convert(photos, tmp_path / name, **options)

    def damage() -> None:
        for part in pack.parts:
            found = spots(part)
            for what, (file, offset) in found.items():
                if what.startswith("middle"):
                    flip(file, offset, 7)
                    flip(file, offset)

    repaired = check(tmp_path / name, photos, damage)
    assert repaired.blocks >= len(pack.parts)


@pytest.mark.parametrize("array", ["image", "key"])
@pytest.mark.parametrize("rows", [(6, 9), (7, 10), (5, 6), (0, 3, 6, 9, 12, 15, 18, 21, 22)], ids=str)
@pytest.mark.parametrize("name", ["p", "p.h5"])
def test_neighbouring_blocks_of_offsets(
    photos: Path, tmp_path: Path, name: str, array: str, rows: tuple[int, ...]
):
    pack = convert(photos, tmp_path / name, store="jpeg")

    def damage() -> None:
        for row in rows:
            flip(*place_of(pack, array + OFFSETS, row), bit=6)

    check(tmp_path / name, photos, damage)


def test_rows_whose_damage_hides_behind_their_offsets(photos: Path, tmp_path: Path):
    pack = convert(photos, tmp_path / "p.h5", store="jpeg")
    starts = pack.read("image" + OFFSETS).tolist()

    def damage() -> None:
        flip(*place_of(pack, "image" + OFFSETS, 7))
        flip(*place_of(pack, "image", starts[4]))

    assert check(tmp_path / "p.h5", photos, damage).blocks == 2


@pytest.mark.parametrize("way", ["npy", "h5", "jpeg", "gzip"])
def test_a_row_and_the_table(photos: Path, tmp_path: Path, way: str):
    name, options = WAYS[way]
    pack = convert(photos, tmp_path / name, **options)

    def damage() -> None:
        found = spots(pack)
        flip(*found["middle of image"])
        flip(*found["table"])

    check(tmp_path / name, photos, damage)


def cut(path: Path, nbytes: int) -> None:
    os.truncate(path, path.stat().st_size - nbytes)


def test_files_of_another_length(photos: Path, tmp_path: Path):
    convert(photos, tmp_path / "p")
    check(tmp_path / "p", photos, lambda: cut(tmp_path / "p" / "checksums.npy", 100))
    for name in ("image.npy", "checksums.npy", "header.json"):
        check(tmp_path / "p", photos, lambda: cut(tmp_path / "p" / name, -5))  # noqa: B023
    check(tmp_path / "p", photos, lambda: (tmp_path / "p" / "checksums.npy").write_bytes(b""))


@pytest.mark.parametrize("name", ["image.npy", "key.npy"])
def test_an_array_that_was_cut_short(photos: Path, tmp_path: Path, name: str):
    convert(photos, tmp_path / "p")
    check(tmp_path / "p", photos, lambda: cut(tmp_path / "p" / name, 100))


@pytest.mark.parametrize("way", ["h5", "npy", "jpeg", "gzip", "keep", "splits"])
def test_a_pack_of_fewer_rows_than_a_block_was_planned_with(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
):
    """Inputs that were skipped make the only block shorter than it was when the file was laid out."""
    monkeypatch.setattr(
        "packer.convert.row_storage.block_rows", lambda rows, row_bytes, least_bytes: min(rows, 23)
    )
    name, options = WAYS[way]
    pack = convert(photos, tmp_path / name, **options)
    assert (pack.rows, pack.header.blocks) == (22, 1)
    for file, offset in damageable(pack, way).values():
        check(tmp_path / name, photos, lambda: flip(file, offset))  # noqa: B023 (called at once)


def test_what_a_killed_repair_left_is_replaced_and_nothing_stays_beside(photos: Path, tmp_path: Path):
    pack = convert(photos, tmp_path / "p.h5")
    left = tmp_path / "p.h5.repairing.packing"
    (left / "blocks").mkdir(parents=True)
    (left / "pack/again.packing/blocks").mkdir(parents=True)
    (left / "pack/again").write_bytes(b"half")
    check(tmp_path / "p.h5", photos, lambda: flip(*place_of(pack, "image")))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.h5", "photos"]


def test_what_a_repair_left_that_was_killed_at_its_end_is_removed(photos: Path, tmp_path: Path):
    convert(photos, tmp_path / "p.h5")
    (tmp_path / "p.h5.repairing.packing/pack").mkdir(parents=True)
    assert repair_pack(tmp_path / "p.h5", photos) == Repair(0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.h5", "photos"]


def test_what_has_the_name_of_the_work_is_left_alone(photos: Path, tmp_path: Path):
    pack = convert(photos, tmp_path / "p.h5")
    (tmp_path / "p.h5.repairing.packing").mkdir()
    (tmp_path / "p.h5.repairing.packing" / "photo.jpg").write_bytes(b"mine")
    assert repair_pack(tmp_path / "p.h5", photos) == Repair(0)
    flip(*place_of(pack, "image"))
    with pytest.raises(
        UsageError, match=r"repairing\.packing: is needed as the working folder, but holds photo\.jpg"
    ):
        repair_pack(tmp_path / "p.h5", photos)
    assert (tmp_path / "p.h5.repairing.packing" / "photo.jpg").read_bytes() == b"mine"


def test_another_hdf5_that_lays_files_out_otherwise_is_said(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = h5py.File

    def lays_out_otherwise(*args: Any, meta_block_size: int = 0, **kwargs: Any) -> h5py.File:
        return file(
            *args, **kwargs, **({"meta_block_size": meta_block_size + 8192} if meta_block_size else {})
        )

    with monkeypatch.context() as patch:
        patch.setattr("h5py.File", lays_out_otherwise)
        pack = convert(photos, tmp_path / "p.h5")
    flip(*place_of(pack, "image"))
    damaged = files_of(tmp_path / "p.h5")
    with pytest.raises(SourceError, match="or this HDF5 library lays files out differently"):
        repair_pack(tmp_path / "p.h5", photos)
    assert files_of(tmp_path / "p.h5") == damaged


def test_the_permissions_stay(photos: Path, tmp_path: Path):
    pack = convert(photos, tmp_path / "p.h5")
    (tmp_path / "p.h5").chmod(0o640)
    check(tmp_path / "p.h5", photos, lambda: flip(*place_of(pack, "image")))
    assert (tmp_path / "p.h5").stat().st_mode & 0o777 == 0o640


def test_a_missing_checksum_table_is_made_again(photos: Path, tmp_path: Path):
    pack = convert(photos, tmp_path / "p")
    path = tmp_path / "p" / "checksums.npy"
    whole = path.read_bytes()
    path.unlink()
    repair_pack(pack.path, photos)
    assert path.read_bytes() == whole
    assert verify_pack(pack.path).ok


@pytest.mark.parametrize("name", ["image", "key", "key.offsets"])
def test_a_missing_array_is_made_again(photos: Path, tmp_path: Path, name: str):
    convert(photos, tmp_path / "p")
    check(tmp_path / "p", photos, (tmp_path / "p" / f"{name}.npy").unlink)


def test_what_the_system_refuses_is_a_sentence(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pack = convert(photos, tmp_path / "p")
    image = str(tmp_path / "p" / "image.npy")

    def refused(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", image)

    monkeypatch.setattr("packer.convert.repair.verify_pack", refused)
    with pytest.raises(PackerError) as error:
        repair_pack(pack.path, photos)
    assert str(error.value) == (
        f"{image}: cannot be repaired (Permission denied). Free some space, or change the permissions."
    )


def test_a_whole_pack_is_left_as_it_is(photos: Path, tmp_path: Path):
    convert(photos, tmp_path / "p.h5")
    before = (tmp_path / "p.h5").stat()
    assert repair_pack(tmp_path / "p.h5", photos) == Repair(0)
    assert (tmp_path / "p.h5").stat().st_mtime_ns == before.st_mtime_ns


def test_labels_boxes_and_masks_are_made_again(photos: Path, tmp_path: Path):
    (tmp_path / "masks").mkdir()
    lines = ["file,l,t,r,b,x,y"]
    for k in range(8):
        Image.fromarray(np.full((40, 48), k, np.uint8)).save(tmp_path / "masks" / f"{k}.png")
        lines += [f"{k}.jpg,4,{k},40,39,10,10"] * (k % 3)
    lines += [f"{k}.jpg,0,0,8,8,10,10" for k in range(0, 8, 3)]
    (tmp_path / "l.csv").write_text("\n".join(lines))
    given = {"labels": tmp_path / "l.csv", "pairs": {"mask": tmp_path / "masks"}}
    for options in ({}, {"store": "gzip", "pairs": {"mask": Soft(tmp_path / "masks")}}, {"store": "jpeg"}):
        pack = convert(
            photos / "red",
            tmp_path / "p.h5",
            size=32,
            overwrite=True,
            **{**given, "labels": Labels(tmp_path / "l.csv", boxes="l,t,r,b", keypoints="x,y"), **options},
        )
        for what, (file, offset) in spots(pack).items():
            if what.startswith("middle"):
                check(tmp_path / "p.h5", photos / "red", lambda: flip(file, offset), **given)  # noqa: B023
        flip(*place_of(pack, "key"))
        with pytest.raises(
            UsageError, match=r"red: is not the input of .*p\.h5: .*\. Pass the same inputs\."
        ):
            repair_pack(tmp_path / "p.h5", photos / "red", labels=given["labels"])


def test_another_source_is_refused(photos: Path, tmp_path: Path):
    pack = convert(photos, tmp_path / "p.h5")
    shutil.copytree(photos, tmp_path / "other")
    (tmp_path / "other" / "red" / "1.jpg").unlink()
    flip(*place_of(pack, "image"))
    before = files_of(tmp_path / "p.h5")
    with pytest.raises(UsageError) as error:
        repair_pack(tmp_path / "p.h5", tmp_path / "other")
    assert re.fullmatch(
        rf"{tmp_path}/other: is not the input of {tmp_path}/p\.h5: source bytes was \d+, now it is \d+\."
        r" Pass the same inputs\.",
        str(error.value),
    )
    assert files_of(tmp_path / "p.h5") == before


def change(photos: Path, key: str) -> None:
    """Other content of the same length: the picture differs, and still decodes."""
    path = photos / key
    data = bytearray(path.read_bytes())
    size = len(data)
    image = Image.open(path).convert("RGB").transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    for quality in range(89, 20, -1):
        image.save(path, quality=quality)
        if path.stat().st_size <= size:
            break
    path.write_bytes(path.read_bytes().ljust(size, b"\0"))


@pytest.mark.parametrize("way", ["h5", "npy", "jpeg", "gzip"])
def test_a_source_that_changed_since_is_noticed_where_it_matters(photos: Path, tmp_path: Path, way: str):
    name, options = WAYS[way]
    pack = convert(photos, tmp_path / name, **options)
    before = files_of(tmp_path / name)
    changed = pack.keys()[4]
    change(photos, changed)
    file, offset = spots(pack)["last of image"]
    flip(file, offset)
    assert repair_pack(tmp_path / name, photos).blocks == 1  # that block needs other files
    assert files_of(tmp_path / name) == before
    element = int(pack.read("image" + OFFSETS)[4]) if pack.header.field("image").ragged else 4
    flip(*place_of(pack, "image", element))
    damaged = files_of(tmp_path / name)
    with pytest.raises(SourceError) as error:
        repair_pack(tmp_path / name, photos)
    assert re.fullmatch(
        rf"{photos}: gives other bytes than {tmp_path / name} had: its content has changed since, or this HDF5 library lays files"
        r" out differently\. Restore the inputs and libraries of the pack, or convert it again\.",
        str(error.value),
    )
    assert files_of(tmp_path / name) == damaged


def test_a_changed_source_writes_nothing_even_without_the_table(photos: Path, tmp_path: Path):
    pack = convert(photos, tmp_path / "p")
    change(photos, pack.keys()[4])
    flip(*place_of(pack, "image", 4))
    flip(*spots(pack)["table"])
    damaged = files_of(tmp_path / "p")
    with pytest.raises(PackerError):
        repair_pack(tmp_path / "p", photos)
    assert files_of(tmp_path / "p") == damaged


def test_packs_made_of_packs_are_refused(photos: Path, tmp_path: Path):
    convert(photos, tmp_path / "p.h5")
    repack(tmp_path / "p.h5", tmp_path / "r.h5", size=8)
    merge_packs([tmp_path / "p.h5", tmp_path / "p.h5"], tmp_path / "m.h5", duplicates="keep")
    split_pack(tmp_path / "p.h5", "a=0.5,b=0.5")
    for name in ("r.h5", "m.h5", "p.a.h5"):
        flip(*place_of(open_pack(tmp_path / name), "image"))
        with pytest.raises(UsageError) as error:
            repair_pack(tmp_path / name, photos)
        assert str(error.value).startswith(f"{tmp_path / name}: was made from other packs, from samples")


def test_shards_that_were_appended_are_repaired_from_what_they_were_made_of(photos: Path, tmp_path: Path):
    convert(photos, tmp_path / "p", shards=9)
    shutil.copytree(photos / "red", tmp_path / "more" / "red")
    append_images(tmp_path / "p", tmp_path / "more", duplicates="keep")
    pack = open_pack(tmp_path / "p")
    assert len(pack.parts) == 4
    last, first = pack.parts[-1], pack.parts[1]
    check(tmp_path / "p", tmp_path / "more", lambda: flip(*place_of(last, "image", 4)))
    check(tmp_path / "p", photos, lambda: flip(*place_of(first, "image", 4)))
    flip(*place_of(last, "image", 4))
    with pytest.raises(UsageError, match=r"photos: is not the input of .*00003\.h5: source bytes was "):
        repair_pack(tmp_path / "p", photos)


def test_images_that_were_appended_again(photos: Path, tmp_path: Path):
    convert(photos, tmp_path / "p", shards=9)
    append_images(tmp_path / "p", photos, on_error="skip", duplicates="keep")
    pack = open_pack(tmp_path / "p")
    assert len(pack.parts) == 6
    for part in pack.parts[1::3]:
        check(tmp_path / "p", photos, lambda: flip(*place_of(part, "image", 4)))  # noqa: B023


def test_shards_behind_one_that_was_left_out(photos: Path, tmp_path: Path):
    """All inputs of a shard were skipped."""
    pack = convert(photos, tmp_path / "p", shards=1, shuffle=False)
    assert [os.path.basename(part.path) for part in pack.parts][1:3] == ["00001.h5", "00003.h5"]
    for part in (pack.parts[1], pack.parts[2], pack.parts[-1]):
        check(tmp_path / "p", photos, lambda: flip(*place_of(part, "image")))  # noqa: B023


def test_a_file_opened_for_writing_since_is_beyond_repair(photos: Path, tmp_path: Path):
    convert(photos, tmp_path / "p.h5")
    cut(tmp_path / "p.h5", SIZE)
    with pytest.raises(PackerError):
        repair_pack(tmp_path / "p.h5", photos)


def test_what_is_no_pack(photos: Path, tmp_path: Path):
    (tmp_path / "x.h5").write_bytes(b"hello")
    with pytest.raises(FormatError, match=r"x\.h5: is neither a pack nor an HDF5 file\."):
        repair_pack(tmp_path / "x.h5", photos)
