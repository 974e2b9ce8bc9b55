"""Rows whose keys a pack has already are refused, left out or kept, as it was asked."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer.convert.image_appending import append_images
from packer.convert.image_conversion import convert_images
from packer.convert.repacking import merge_packs, repack, split_pack
from packer.errors import UsageError
from packer.packs.pack_opening import open_pack
from packer.packs.verify import verify_pack
from packer.samples.pack_dataset import pack_dataset
from packer.tables.table_conversion import append_table, convert_table
from tests.format.packs import files_of

REMEDY = "; each row is stored once. Pass duplicates='skip' to leave such rows out, or duplicates='keep' to store them twice."


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare seven keys at a time."""
    monkeypatch.setattr("packer.convert.duplicate_keys._KEYS_AT_ONCE", 7)


def keys_of(path: Path) -> Counter[str]:
    assert verify_pack(path).problems == ()
    return Counter(open_pack(path).keys())


@pytest.fixture
def more(photo_folder: Path, tmp_path: Path) -> Path:
    """The photos; one of them has become another, and one is new."""
    folder = tmp_path / "more"
    shutil.copytree(photo_folder, folder)
    for name in ("red/0.png", "red/new.png"):
        Image.fromarray(np.full((20, 20, 3), 77, np.uint8)).save(folder / name)
    shutil.copyfile(folder / "red" / "new.png", folder / "red" / "1.jpg")
    (folder / "red" / "0.png").unlink()
    return folder


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"store": "jpeg"},
        {"store": "gzip"},
        {"format": "npy"},
        {"split": "a=0.5,b=0.5"},
        {"size": "max=16"},
    ],
    ids=str,
)
def test_images_that_are_in_the_pack(photo_folder: Path, more: Path, tmp_path: Path, options: dict[str, Any]):
    out = tmp_path / "p"
    convert_images(photo_folder, out, **{"size": 16, **options}, shards=10, workers=1)
    before, old = files_of(out), keys_of(out)
    with pytest.raises(UsageError) as error:
        append_images(out, photo_folder, workers=1)
    assert str(error.value).startswith(f"{photo_folder}/")
    assert str(error.value).endswith(f": its key is in {out} already{REMEDY}")
    nothing = append_images(out, photo_folder, duplicates="skip", workers=1)
    assert (nothing.rows, nothing.notes[-1]) == (
        0,
        f"24 rows were left out: their keys are in {out} already.",
    )
    assert files_of(out) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["more", "p", "photos"]
    report = append_images(out, more, duplicates="skip", workers=1)
    assert (report.rows, report.notes[-1]) == (1, f"24 rows were left out: their keys are in {out} already.")
    assert keys_of(out) == old + Counter(["red/new.png"])
    append_images(out, more, duplicates="keep", workers=1)
    assert sum(keys_of(out).values()) == 25 + 25


def test_packs_that_have_keys_in_common(photo_folder: Path, more: Path, tmp_path: Path):
    """Whatever the rows hold; a key that a pack has twice is kept twice."""
    for name, source in (("a.h5", photo_folder), ("b.h5", more)):
        convert_images(source, tmp_path / name, size=16, workers=1)
    packs = [tmp_path / "a.h5", tmp_path / "b.h5"]
    found = [row for row, key in enumerate(open_pack(packs[1]).keys()) if key != "red/new.png"]
    assert len(found) == 24
    with pytest.raises(UsageError) as error:
        merge_packs(packs, tmp_path / "m.h5", workers=1)
    key = open_pack(packs[1]).keys()[found[0]]
    assert str(error.value) == (
        f"{packs[1]}: its row {found[0]} has the key {key}, which is in an earlier pack{REMEDY}"
    )
    assert not (tmp_path / "m.h5").exists()
    report = merge_packs(packs, tmp_path / "m.h5", duplicates="skip", workers=1)
    assert report.notes == ("24 rows were left out: their keys are in an earlier pack already.",)
    assert keys_of(tmp_path / "m.h5") == keys_of(packs[0]) + Counter(["red/new.png"])
    merge_packs([*packs, packs[0]], tmp_path / "k.h5", duplicates="keep", workers=1)
    assert sum(keys_of(tmp_path / "k.h5").values()) == 24 + 25 + 24
    shutil.rmtree(photo_folder)
    shutil.copytree(more / "red", photo_folder / "red")
    (photo_folder / "red" / "new.png").rename(photo_folder / "red" / "newer.png")
    convert_images(photo_folder, tmp_path / "r.h5", size=16, classes=["blue", "green", "red"], workers=1)
    merge_packs([tmp_path / "k.h5", tmp_path / "r.h5"], tmp_path / "t.h5", duplicates="skip", workers=1)
    assert keys_of(tmp_path / "t.h5") == keys_of(tmp_path / "k.h5") + Counter(["red/newer.png"])


def test_a_stopped_merge_of_other_rows_is_not_resumed(
    photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its first pack left duplicates out, too, so that both merges would record the same."""
    monkeypatch.setattr(
        "packer.convert.row_storage.block_rows", lambda rows, row_bytes, least_bytes: min(rows, 3)
    )
    half, first, second, out = (tmp_path / name for name in ("half", "first", "second", "out"))
    convert_images(photo_folder, half, size=16)
    convert_images(photo_folder, tmp_path / "whole", size=16)
    merge_packs([half, tmp_path / "whole", half], first, duplicates="skip")
    convert_images(photo_folder, second, size=16)

    def stop(rows: int) -> None:
        if rows > 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="Finished work is kept"):
        merge_packs([first, second], out, duplicates="keep", workers=1, on_progress=stop)
    report = merge_packs([first, second], out, duplicates="skip")
    assert report.cleared == "options duplicates was not given, now it is skip"
    assert keys_of(out) == keys_of(first)
    rows, kept = open_pack(out), open_pack(first)
    images = {key: rows.read("image", at, at + 1).tobytes() for at, key in enumerate(rows.keys())}
    assert images == {key: kept.read("image", at, at + 1).tobytes() for at, key in enumerate(kept.keys())}


def test_numbers_of_samples_are_no_keys(tmp_path: Path):
    """Keys that the samples declare are."""
    images = np.zeros((3, 4, 4, 3), np.uint8)
    for name in "ab":
        images += 1
        pack_dataset({"image": images}, tmp_path / f"{name}.h5")
        pack_dataset({"image": images, "key": list("xyz")}, tmp_path / f"keyed-{name}.h5")
    assert merge_packs([tmp_path / "a.h5", tmp_path / "b.h5"], tmp_path / "m.h5").rows == 6
    with pytest.raises(UsageError, match="which is in an earlier pack"):
        merge_packs([tmp_path / "keyed-a.h5", tmp_path / "keyed-b.h5"], tmp_path / "k.h5")


def test_parts_of_a_pack_have_no_rows_in_common(photo_folder: Path, tmp_path: Path):
    convert_images(photo_folder, tmp_path / "p.h5", size=16, workers=1)
    split_pack(tmp_path / "p.h5", "a=0.5,b=0.5", workers=1)
    merge_packs([tmp_path / "p.a.h5", tmp_path / "p.b.h5"], tmp_path / "m.h5", workers=1)
    assert keys_of(tmp_path / "m.h5") == keys_of(tmp_path / "p.h5")


def test_rows_without_keys_are_known_by_their_packs(tmp_path: Path):
    for name, first in (("a.h5", 0), ("b.h5", 9)):
        pack_dataset({"x": np.arange(first, first + 9)}, tmp_path / name, workers=1)
    a, b = tmp_path / "a.h5", tmp_path / "b.h5"
    with pytest.raises(UsageError) as error:
        merge_packs([a, b, a], tmp_path / "m.h5")
    assert str(error.value) == f"{a}: holds the same rows as {a}{REMEDY}"
    merge_packs([a, b, a], tmp_path / "m.h5", duplicates="skip", shuffle=False)
    rows = [open_pack(path).read("x").tolist() for path in (a, b, tmp_path / "m.h5")]
    assert rows[0] + rows[1] == rows[2]


# Tables


def write(path: Path, numbers: Sequence[int]) -> Path:
    path.write_text("x,y\n" + "".join(f"{n},{n % 2}\n" for n in numbers))
    return path


def test_files_of_tables_that_are_in_the_pack(tmp_path: Path):
    """Also after the pack was stored another way; a file of the same name with other rows is another one."""
    (tmp_path / "old").mkdir()
    write(tmp_path / "old" / "b.csv", range(50, 60))
    first, second = write(tmp_path / "a.csv", range(9)), write(tmp_path / "b.csv", range(9, 20))
    convert_table(first, tmp_path / "one.h5", label="y", workers=1)
    out = tmp_path / "p"
    repack(tmp_path / "one.h5", out, shards=4)
    append_table(out, second, workers=1)
    before = files_of(out)
    for source in (first, second):
        with pytest.raises(UsageError) as error:
            append_table(out, source)
        assert str(error.value) == f"{source}: its rows are in {out} already{REMEDY}"
    nothing = append_table(out, [first, second], duplicates="skip")
    assert (nothing.rows, len(nothing.notes)) == (0, 2)
    assert files_of(out) == before
    report = append_table(out, [first, tmp_path / "old" / "b.csv"], duplicates="skip", workers=1)
    assert (report.rows, report.notes[-1]) == (
        10,
        f"{first}: its rows are in {out} already, and were left out.",
    )
    append_table(out, first, duplicates="keep")
    assert sorted(open_pack(out).read("features").ravel().tolist()) == sorted(
        [*range(9), *range(20), *range(50, 60)]
    )


def test_packs_of_the_same_tables_are_not_merged(tmp_path: Path):
    first, second = write(tmp_path / "a.csv", range(9)), write(tmp_path / "b.csv", range(9, 20))
    a, b, both = tmp_path / "a.h5", tmp_path / "b.h5", tmp_path / "both.h5"
    convert_table(first, a, label="y", workers=1)
    convert_table(first, b, like=a, seed=4, workers=1)
    convert_table([first, second], both, like=a, workers=1)
    with pytest.raises(UsageError) as error:
        merge_packs([a, b], tmp_path / "m.h5")
    assert str(error.value) == f"{b}: was made from a.csv, and so was {a}{REMEDY}"
    merge_packs([a, b], tmp_path / "m.h5", duplicates="skip")
    assert open_pack(tmp_path / "m.h5").rows == 9
    with pytest.raises(UsageError) as error:
        merge_packs([a, both], tmp_path / "n.h5", duplicates="skip")
    assert str(error.value) == (
        f"{both}: was made from other files and from a.csv, and so was {a}; it does not record which of its rows are the same."
        " Convert the other files separately, or pass duplicates='keep' to store these rows twice."
    )
    split_pack(both, "u=0.5,v=0.5", workers=1)
    merge_packs([tmp_path / "both.u.h5", tmp_path / "both.v.h5"], tmp_path / "n.h5")
    assert open_pack(tmp_path / "n.h5").rows == 20


def test_a_renamed_table_is_the_same(tmp_path: Path):
    first = write(tmp_path / "a.csv", range(9))
    renamed = shutil.copyfile(first, tmp_path / "renamed.csv")
    convert_table(first, tmp_path / "p", label="y", shards=4, workers=1)
    convert_table(renamed, tmp_path / "r.h5", like=tmp_path / "p", seed=4, workers=1)
    with pytest.raises(UsageError) as error:
        append_table(tmp_path / "p", renamed)
    assert str(error.value) == f"{renamed}: its rows are in {tmp_path / 'p'} already as a.csv{REMEDY}"
    with pytest.raises(UsageError) as error:
        merge_packs([tmp_path / "p", tmp_path / "r.h5"], tmp_path / "m.h5")
    assert str(error.value) == (
        f"{tmp_path / 'r.h5'}: was made from renamed.csv, which has the same bytes as a.csv of {tmp_path / 'p' / '00000.h5'}{REMEDY}"
    )
