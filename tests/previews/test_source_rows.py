"""Sheets of sources, before they are packed: the rows of the pack, captions, what is left behind, wrong usage."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from packer import Labels, convert_images, open_pack, preview
from packer.errors import FormatError, PackerError, SourceError, UsageError
from packer.previews import contact_sheet
from packer.previews.drawing import class_color
from packer.previews.preview_batch import PreviewBatch, captions, origins, point_names
from packer.previews.source_rows import some_packed


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Work in tmp_path; the folder for temporary files is empty after each test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.chdir(tmp_path)
    yield folder
    assert [file for _, _, files in os.walk(folder) for file in files] == []
    assert all(not os.listdir(own) for own in folder.iterdir())


def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[PreviewBatch], Any]]:
    """What sheets are drawn of, from now on: batches and packs."""
    seen: list[tuple[list[PreviewBatch], Any]] = []
    sheet = contact_sheet._sheet

    def spy(draws: Any, pack: Any, *others: Any) -> Any:
        seen.append((list(draws), pack))
        return sheet(draws, pack, *others)

    monkeypatch.setattr(contact_sheet, "_sheet", spy)
    return seen


def test_it_shows_the_rows_of_the_pack(photo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = drawn(monkeypatch)
    options: dict[str, Any] = {"size": 48, "split": "train=0.7,val=0.3", "fit": "pad"}
    made = preview(photo_folder, "sheet.png", rows=12, **options)
    assert (made.rows, made.text, made.skipped) == (12, "images as they would be stored", ())
    convert_images(photo_folder, "p.h5", **options)
    pack = open_pack("p.h5")
    (batch,), some = seen[0]
    assert batch.origins is not None
    rows = pack.rows_of([key for _, key in batch.origins])
    assert np.array_equal(pack.read("image")[rows], np.stack(batch.images))
    assert np.array_equal(pack.read("label")[rows], batch.label)
    assert [split for split, _ in batch.origins] == ["train"] * 6 + ["val"] * 6
    assert some.header.classes == ("blue", "green", "red")
    assert sorted(os.listdir()) == ["p.h5", "photos", "sheet.png", "temporary"]


def test_options_about_the_output_change_nothing(photo_folder: Path) -> None:
    about = {"shards": 5, "format": "npy", "resume": True, "only_shards": "1/2", "engine": "ray"}
    preview(photo_folder, "a.png", size=32)
    preview(photo_folder, "b.png", size=32, **about)
    assert Path("a.png").read_bytes() == Path("b.png").read_bytes()


def test_one_split_of_a_source(photo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split in ("train", "val"):
        (Path("both") / split).mkdir(parents=True)
        for name in ("red", "green"):
            (Path("both") / split / name).symlink_to(photo_folder / name)
    seen = drawn(monkeypatch)
    preview("both", "a.png", size=16, split="val")
    assert seen[0][0][0].origins is not None
    assert {split for split, _ in seen[0][0][0].origins} == {"val"}
    with pytest.raises(UsageError, match=r"^both: has no split 'test'; its splits: train, val. Pass one of"):
        preview("both", "a.png", size=16, split="test")


def test_masks_boxes_and_points_are_drawn(photo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = drawn(monkeypatch)
    keys = sorted(str(path.relative_to(photo_folder)) for path in photo_folder.rglob("*.jpg"))
    for key in keys:
        mask = Path("masks", key).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(photo_folder / key) as photo:
            Image.new("L", photo.size, 255).save(mask)
    made = preview(photo_folder, "a.png", size=64, pairs={"mask": "masks"})
    assert made.overlaid == ("mask",)
    assert all((mask == 255).all() for mask in seen[0][0][0].masks["mask"])

    lines = [f"{key},{key[0]}at,4,5,30,20" for key in keys]
    Path("boxes.csv").write_text("\n".join(["file,label,a,b,c,d", *lines]))
    labels = Labels("boxes.csv", column="label", boxes="a,b,c,d")
    made = preview(photo_folder, "b.png", size=64, labels=labels)
    assert made.overlaid == ("boxes",)
    assert seen[1][1].header.classes == ("bat", "gat", "rat")
    labels = Labels("boxes.csv", column="label", keypoints="a,b,c,d")
    made = preview(photo_folder, "c.png", size=64, labels=labels)
    assert made.overlaid == ("keypoints",)
    assert point_names(seen[2][0][0], seen[2][1]) == ["point 1", "point 2"]
    with Image.open("c.png") as sheet:
        margin = np.asarray(sheet)[-20:]
    assert all((margin == class_color(number)).all(-1).any() for number in range(2))


def test_every_class_of_boxes_is_seen(photo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = drawn(monkeypatch)
    keys = sorted(str(path.relative_to(photo_folder)) for path in photo_folder.rglob("*.jpg"))
    lines = [f"{key},common,4,5,30,20" for key in keys] + [f"{keys[-1]},rare,9,8,30,30"]
    Path("boxes.csv").write_text("\n".join(["file,label,a,b,c,d", *lines]))
    preview(photo_folder, "b.png", size=64, rows=2, labels=Labels("boxes.csv", "label", boxes="a,b,c,d"))
    assert seen[0][0][0].box_label is not None
    assert {number for labels in seen[0][0][0].box_label for number in labels.tolist()} == {0, 1}


def test_images_without_a_label_say_so(photo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("both/train").mkdir(parents=True)
    Path("both/train/red").symlink_to(photo_folder / "red")
    Path("both/val").symlink_to(photo_folder / "green")
    seen = drawn(monkeypatch)
    preview("both", "a.png", size=16, labels=Labels(unlabeled="val"))
    (batch,), pack = seen[0]
    words = captions(batch, pack.header.classes, None, contact_sheet.unlabeled_of(pack))
    assert batch.origins is not None
    assert [lines for lines, (split, _) in zip(words, batch.origins, strict=True) if split == "val"] == [
        ["no label"]
    ] * 8
    preview(photo_folder / "red", "b.png", size=16)
    (batch,), pack = seen[1]
    assert captions(batch, None, None) == [["no label"]] * 8


def test_augmentation_works(photo_folder: Path) -> None:
    pytest.importorskip("torch")
    augment = "RandomCrop(24), Normalize()"
    made = preview(photo_folder, "a.png", size=32, rows=4, repeat=2, augment=augment)
    assert (made.rows, made.repeat, made.text) == (4, 2, "Normalize undone")


def test_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)
    np.save("x.npy", images)
    np.save("y.npy", np.arange(30) % 3)
    with h5py.File("both.h5", "w") as file:
        file["images"], file["labels"] = images, np.arange(30) % 3
    seen = drawn(monkeypatch)
    assert preview(["x.npy", "y.npy"], "a.png", rows=6).rows == 6
    assert preview("both.h5", "b.png", rows=6).notes[0].startswith("found images uint8[30, 8, 8, 3], labels")
    assert Path("a.png").read_bytes() == Path("b.png").read_bytes()
    assert seen[0][0][0].origins is not None
    for image, (_, key) in zip(seen[0][0][0].images, seen[0][0][0].origins, strict=True):
        assert np.array_equal(image, images[int(key)])


def test_inputs_that_cannot_be_packed(photo_folder: Path) -> None:
    (photo_folder / "red" / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(SourceError, match=r"^photos/red/bad.jpg: .* Remove it, or pass on_error='skip'.$"):
        preview("photos", "a.png", size=16)
    made = preview("photos", "a.png", size=16, on_error="skip")
    assert (made.rows, [one["key"] for one in made.skipped]) == (24, ["red/bad.jpg"])


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("t.csv", {}, "t.csv: is a table; sheets are drawn of images. To see how its columns would be read, "
         "convert it with dry_run=True."),
        ("photos", {"order": "rows"}, "order='rows': is about packs; a source has no order. Leave it out."),
        ("p.h5", {"size": 32}, "p.h5: is a pack; size= is about sources. Leave it out."),
        ("f.npy", {}, "f.npy: has no images; a field 'image' of uint8 or uint16 [H, W, C] is shown, and it has"
         " f. Pass images."),
        (3, {}, "path=3: is not the path of a pack. Pass a name, such as 'train.h5'."),
        ("nosuch", {}, "nosuch: no such file or folder; folders, lists, archives, tables and files of arrays are read. Check the path."),
        ("photos", {"compress": "zstd"}, 'compress=: is not an argument of convert_images; pass store="zstd",'
         ' "gzip" or "blosc2".'),
    ],
)  # fmt: skip
def test_wrong_usage_is_a_sentence(
    photo_folder: Path, source: Any, options: dict[str, Any], message: str
) -> None:
    convert_images("photos", "p.h5", size=8)
    Path("t.csv").write_text("a,b\n1,2\n")
    np.save("f.npy", np.zeros((9, 7)))
    with pytest.raises(UsageError) as raised:
        preview(source, "a.png", **options)
    assert str(raised.value) == message
    assert not os.path.exists("a.png")


def test_a_sheet_never_becomes_an_image_of_its_source(
    photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photo_folder)
    for source, out in ((".", "a.png"), (photo_folder, "red/a.png"), ("../photos", "a.png")):
        with pytest.raises(UsageError) as raised:
            preview(source, out)
        assert str(raised.value) == (
            f"{out}: lies in the source, and would be packed with it. Pass another name."
        )
    preview("red", "a.png", size=8)
    os.remove("a.png")


def test_damaged_packs_stay_packs(photo_folder: Path) -> None:
    convert_images("photos", "p.h5", size=8)
    with open("p.h5", "r+b") as file:
        file.truncate(os.path.getsize("p.h5") - 200)
    with pytest.raises(FormatError, match=r"^p.h5: "):
        preview("p.h5", "a.png")


def test_the_temporary_pack_is_removed_if_drawing_fails(photo_folder: Path) -> None:
    with (
        pytest.raises(PackerError, match="of them make a sheet"),
        some_packed(photo_folder, "a.png", 24, None, {}) as (pack, _),
    ):
        assert len(origins(pack)) == 24
        raise PackerError("24 of them make a sheet")


def test_neither_torch_nor_a_decoder_is_loaded_in_vain(photo_folder: Path) -> None:
    code = (
        "import sys, packer; packer.preview('photos', 'a.png', size=16); print('torch' in sys.modules);"
        "packer.convert_images('photos', 'p.h5', size=16)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
