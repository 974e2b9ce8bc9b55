"""Images of equal bytes in two splits, or under two labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from packer.cli.option_words import in_options
from packer.convert.image_conversion import convert_images
from packer.inputs.label_options import Labels


def folder_of(root: Path, **colors: list[int]) -> Path:
    """A folder of images, one a color. colors: folder, "__" for "/" -> colors; equal ones have equal bytes."""
    for name, some in colors.items():
        place = root / "photos" / name.replace("__", "/")
        place.mkdir(parents=True)
        for number, color in enumerate(some):
            Image.new("RGB", (8, 8), (color, 0, 0)).save(place / f"{place.name}{number}.png")
    return root / "photos"


def notes(source: Path, **options: Any) -> list[str]:
    """Return the notes on copies."""
    given = {"size": 8, "overwrite": True, "shuffle": False, **options}
    report = convert_images(source, source.parent / "p.h5", **given)
    return [note for note in map(str, report.notes) if "equal bytes" in note]


@pytest.mark.parametrize("workers", [1, 2])
def test_copies_in_two_splits(tmp_path: Path, workers: int) -> None:
    photos = folder_of(tmp_path, train__a=[1, 2, 3], train__b=[4, 5], test__a=[6, 2, 3], test__b=[7, 4])
    (found,) = notes(photos, workers=workers)
    begin, pair = found.split("such as ")
    assert (
        begin
        == "3 images have copies of equal bytes in another split, so results on that split are too good, "
    )
    pair, end = pair.split(". ", 1)
    assert pair in (
        "train/a/a1.png and test/a/a1.png",
        "train/a/a2.png and test/a/a2.png",
        "train/b/b0.png and test/b/b1.png",
    )
    assert end == "Keep one of each; report('PACK') lists them."


def test_copies_under_two_labels(tmp_path: Path) -> None:
    photos = folder_of(tmp_path, a=[1, 2], b=[3, 1], c=[4])
    assert notes(photos) == [
        "1 image has a copy of equal bytes with another label, such as a/a0.png and b/b1.png. Keep one of each; "
        "report('PACK') lists them."
    ]
    report = convert_images(photos, tmp_path / "q.h5", size=8)
    assert in_options(report.notes[-1]).endswith("Keep one of each; packer report PACK lists them.")


def test_other_copies_are_not_noted(tmp_path: Path) -> None:
    assert notes(folder_of(tmp_path / "same", a=[1, 1, 1], b=[2, 2])) == []
    assert notes(folder_of(tmp_path / "flat", images=[1, 1]) / "images") == []
    unlabeled = folder_of(tmp_path / "un", train__a=[1, 2], train__b=[3], test=[4, 5])
    (unlabeled / "test" / "9.png").write_bytes((unlabeled / "train" / "a" / "a0.png").read_bytes())
    found = notes(unlabeled, labels=Labels(unlabeled="test"))
    assert [note.partition(", ")[0] for note in found] == [
        "1 image has a copy of equal bytes in another split"
    ]


def test_drawn_splits_and_labels_of_several_columns(tmp_path: Path) -> None:
    photos = folder_of(tmp_path, images=[1] * 8 + [2] * 8) / "images"
    (found,) = notes(photos, split="train=0.5,val=0.5")
    assert found.startswith("2 images have copies of equal bytes in another split")
    rows = "".join(f"images{k}.png,{k % 2},0.5\n" for k in range(16))
    (tmp_path / "l.csv").write_text("file,x,y\n" + rows)
    (found,) = notes(photos, labels=Labels(tmp_path / "l.csv", column="x,y"))
    assert found.startswith(
        "2 images have copies of equal bytes with another label, such as images0.png and images1.png."
    )


def test_skipped_images_are_not_compared(tmp_path: Path) -> None:
    photos = folder_of(tmp_path, a=[1, 2], b=[3])
    for name in ("a/x.png", "b/y.png"):
        (photos / name).write_bytes(b"\x89PNG\r\n\x1a\n")
    assert notes(photos, on_error="skip") == []


def test_rows_of_an_earlier_run_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer.convert.row_storage.block_rows", lambda rows, row_bytes, least: min(rows, 2))
    photos = folder_of(tmp_path, a=[1, 2, 3], b=[1, 2, 3])

    def stop(done: int) -> None:
        if done >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_images(photos, tmp_path / "p.h5", size=8, workers=1, on_progress=stop)
    report = convert_images(photos, tmp_path / "p.h5", size=8, workers=1)
    assert report.resumed
    assert report.notes[-1] == (
        f"{6 - report.resumed} of 6 images were searched for copies of equal bytes, those that were read by this process; "
        f"report('PACK') searches all."
    )
    again = convert_images(photos, tmp_path / "p.h5", size=8, resume=True)
    assert again.already
    assert [note for note in again.notes if "equal bytes" in note] == []


def test_parts_tell_what_they_compare(tmp_path: Path) -> None:
    photos = folder_of(tmp_path, a=[1, 2, 3], b=[1, 2, 3])
    first = notes(photos, shards=2, only_shards="1/3")
    assert first[-1].startswith("2 of 6 images were searched for copies of equal bytes")
    assert notes(photos, shards=2)[-1].startswith("4 of 6 images were searched")
