"""What real folders have: images without labels or masks, rows about nothing. Stopped at, or skipped and listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer.convert.image_appending import append_images
from packer.convert.image_conversion import convert_images
from packer.convert.splits import Split
from packer.errors import PackerError, SourceError, UsageError
from packer.inputs.label_options import Labels
from packer.packs.pack_opening import open_pack
from packer.packs.verify import verify_pack


@pytest.fixture
def pets(photo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the flat folder pets/0.jpg to pets/7.jpg."""
    monkeypatch.chdir(photo_folder.parent)
    (photo_folder / "red").rename("pets")
    return Path()


def skips(options: dict[str, Any], source: str = "pets") -> dict[str, str]:
    """Convert with on_error skip; that "stop" raises is seen to, and that pack, report and shards agree."""
    with pytest.raises(PackerError):
        convert_images(source, "stopped.h5", size=16, **options)
    report = convert_images(source, "p.h5", size=16, on_error="skip", **options)
    header = open_pack("p.h5").header
    assert header.skipped == report.skipped
    assert header.rows == report.rows
    again = convert_images(source, "p.h5", size=16, on_error="skip", resume=True, **options)
    assert again.already
    sharded = convert_images(source, "shards", size=16, on_error="skip", shards=2, **options)
    by_key = [sorted(s["key"] for s in r.skipped) for r in (report, sharded)]
    assert by_key[0] == by_key[1]
    assert sorted(open_pack("shards").keys()) == sorted(open_pack("p.h5").keys())
    return {s["key"]: s["reason"] for s in report.skipped}


def test_rows_and_files_that_do_not_meet(pets: Path):
    Path("l.csv").write_text(
        "file,kind\n0,cat\n1.jpg,dog\n99.jpg,cow\n2.jpg,\n3,cat\n3,dog\n5,dog,x\n6,nan\n7,cat\n"
    )
    assert skips({"labels": "l.csv"}) == {
        "2.jpg": "the label is empty (l.csv line 5).",
        "3.jpg": "its label is cat (l.csv line 6) and dog (line 7).",
        "4.jpg": "has no row in l.csv.",
        "5.jpg": "has no row in l.csv.",
        "6.jpg": "the label is nan (l.csv line 9).",
        "l.csv line 4": "no image is called 99.jpg.",
        "l.csv line 8": "3 columns.",
    }
    pack = open_pack("p.h5")
    assert pack.header.classes == ("cat", "dog")  # neither cow nor the empty one
    assert dict(zip(pack.keys(), pack.read("label").tolist(), strict=True)) == {
        "0.jpg": 0,
        "1.jpg": 1,
        "7.jpg": 0,
    }


def test_numbers_boxes_and_points(pets: Path):
    rows = "".join(f"{n},{n},1,1,5,5,2,2\n" for n in range(3, 8))
    Path("l.csv").write_text(
        f"f,y,a,b,c,d,u,v\n0,x1,1,1,5,5,2,2\n1,1,5,1,5,5,2,2\n2,2,1,1,5,5,2,\n{rows}".replace("x1", "")
    )
    assert skips({"labels": Labels("l.csv", column="y", boxes="a,b,c,d", keypoints="u,v")}) == {
        "0.jpg": "y is empty (l.csv line 2).",
        "1.jpg": "c is 5, and a 5 (l.csv line 3).",
        "2.jpg": "v is empty, and u is not (l.csv line 4).",
    }


def test_several_columns_and_a_skipped_image_of_no_class(pets: Path):
    Path("l.csv").write_text(
        "f,a,b\n" + "".join(f"{n},{n % 2},x\n" if n == 3 else f"{n},{n % 2},1\n" for n in range(8))
    )
    assert skips({"labels": Labels("l.csv", column="a,b")}) == {"3.jpg": "b is x (l.csv line 5)."}


def test_splits_are_drawn_from_what_is_left(pets: Path):
    Path("l.csv").write_text("".join(f"{n},{'ab'[n // 3]}\n" for n in range(6)))
    convert_images("pets", "p.h5", size=16, labels="l.csv", on_error="skip", split="x=0.34,y=0.66")
    pack = open_pack("p.h5")
    (start, stop) = pack.header.splits["x"][0]
    assert sorted(pack.read("label")[start:stop].tolist()) == [0, 1]


def test_lines_of_a_list(pets: Path):
    Path("pets/list.txt").write_text(
        "0.jpg\tcat\n9.jpg\tcow\n1.jpg\tdog\n2.jpg\n3.jpg\t\n/nowhere/8.jpg\tcat\n"
    )
    assert skips({}, "pets/list.txt") == {
        "2.jpg": "the label is empty (list.txt line 4).",
        "3.jpg": "the label is empty (list.txt line 5).",
        "list.txt line 2": "no file 9.jpg.",
        "list.txt line 6": "no file 8.jpg.",
    }
    assert open_pack("p.h5").header.classes == ("cat", "dog")


def test_empty_class_folders(photo_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(photo_folder.parent)
    (photo_folder / "cyan").mkdir()
    (photo_folder / "cyan" / "readme.md").write_text("none yet")
    assert skips({}, "photos") == {"cyan": "a class folder without images."}
    assert open_pack("p.h5").header.classes == ("blue", "green", "red")


def test_missing_masks(pets: Path):
    Path("masks").mkdir()
    for n in (1, 2, 4, 5, 6):
        Image.fromarray(np.full((40, 48), n, np.uint8)).save(f"masks/{n}.png")
    Image.fromarray(np.full((40, 48), 4, np.uint8)).save("masks/4.bmp")
    found = skips({"pairs": {"mask": "masks"}})
    assert found == {
        "0.jpg": "has no mask.",
        "3.jpg": "has no mask.",
        "4.jpg": "has several files for its mask (4.bmp and 4.png).",
        "7.jpg": "has no mask.",
    }
    pack = open_pack("p.h5")
    masks = pack.read("mask")
    assert {key: int(mask.max()) for key, mask in zip(pack.keys(), masks, strict=True)} == {
        "1.jpg": 1,
        "2.jpg": 2,
        "5.jpg": 5,
        "6.jpg": 6,
    }


def test_appended_images_are_skipped_alike(pets: Path):
    Path("l.csv").write_text("file,kind\n" + "".join(f'{n},"{"ab"[n % 2]} x,c"\n' for n in range(8)))
    options = {"labels": Labels("l.csv", separator="space", file_column="file")}
    convert_images("pets", "p", size=16, shards=4, **options)
    pack = open_pack("p")
    assert pack.header.classes == ("a", "b", "x,c")
    assert pack.parts[0].header.provenance["options"]["label_separator"] == "space"
    Path("more").mkdir()
    for n in (0, 1, 2):
        Path(f"more/m{n}.jpg").write_bytes(Path(f"pets/{n}.jpg").read_bytes())
    Path("m.csv").write_text("file,kind\nm0,a\nm1,cow\nm9,a\n")
    report = append_images("p", "more", labels="m.csv", on_error="skip")
    assert {s["key"]: s["reason"] for s in report.skipped} == {
        "m1.jpg": "its class is cow, which is not one of the 3 given classes.",
        "m2.jpg": "has no row in m.csv.",
        "m.csv line 4": "no image is called m9.",
    }
    assert (report.rows, open_pack("p").rows, open_pack("p").keys()[-1]) == (1, 9, "m0.jpg")
    assert open_pack("p").read("label")[-1].tolist() == [1, 0, 0]
    with pytest.raises((UsageError, SourceError)):
        append_images("p", "more", labels="m.csv")


def test_nothing_is_left(pets: Path):
    Path("l.csv").write_text("file,kind\nx,1\ny,2\n")
    with pytest.raises(SourceError) as error:
        convert_images("pets", "p.h5", size=16, labels="l.csv", on_error="skip")
    assert str(error.value) == (
        "l.csv: none of its 2 rows can be used; the first, l.csv line 2: no image is called x."
    )


def test_appending_behind_a_shard_that_was_left_out(pets: Path):
    """Its name is free, but the names behind it are not."""
    Path("pets/2.jpg").write_bytes(b"")
    convert_images("pets", "shards", size=16, on_error="skip", shards=1, shuffle=False)
    before = {path.name: path.read_bytes() for path in Path("shards").iterdir() if path.name != "index.json"}
    assert sorted(before) == [f"{number:05d}.h5" for number in (0, 1, 3, 4, 5, 6, 7)]
    Path("pets/2.jpg").unlink()
    append_images("shards", "pets", duplicates="keep")
    pack = open_pack("shards")
    assert pack.rows == 14
    assert verify_pack("shards").ok
    assert {name: (Path("shards") / name).read_bytes() for name in before} == before


@pytest.mark.parametrize(
    "split", [Split("a=0.5,b=0.5", group="who"), Split(column="set", group="who"), Split("a=3,b=rest")]
)
def test_splits_beside_what_is_skipped(split: Split, pets: Path):
    Path("pets/5.jpg").write_bytes(b"")
    Path("l.csv").write_text(
        "file,kind,who,set\n0,cat,p,x\n1,dog,q,y\n99,cow,z,x\n2,,p,x\n3,cat,r,x\n4,dog,,y\n5,dog,p,x\n6,cat,p,x\n7,dog,q,y\n"
    )
    options = {"labels": Labels("l.csv", column="kind"), "split": split}
    left_out = skips(options)
    assert left_out["2.jpg"] == "kind is empty (l.csv line 5)."
    assert left_out.get("4.jpg") == ("who is empty (l.csv line 7)." if split.group else None)
    pack = open_pack("p.h5")
    keys = pack.keys()
    members = {
        name: [keys[k] for a, b in spans for k in range(a, b)] for name, spans in pack.header.splits.items()
    }
    assert sorted(key for own in members.values() for key in own) == sorted(keys)
    if split.column:
        assert {name: sorted(own) for name, own in members.items()} == {
            "x": ["0.jpg", "3.jpg", "6.jpg"],
            "y": ["1.jpg", "7.jpg"],
        }
    elif split.group:
        groups = ({"0.jpg", "6.jpg"}, {"1.jpg", "7.jpg"}, {"3.jpg"})
        assert all(any(group <= set(own) for own in members.values()) for group in groups)
