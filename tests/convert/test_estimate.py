"""How large a pack will be, by each way of storing it, against the packs themselves."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from packer.convert import image_planning
from packer.convert.image_conversion import convert_images
from packer.convert.image_options import ImageOptions
from packer.convert.image_planning import plan_conversion
from packer.convert.row_storage import estimate
from packer.packs.pack_opening import open_pack

OPTIONS = {
    "size": [32, 32],
    "fit": "crop",
    "channels": "rgb",
    "max_pixels": 1 << 20,
    "seed": 0,
    "format": "h5",
}


def estimated(source: Path, tmp_path: Path, **options: Any) -> float:
    """Bytes a row, as they are estimated."""
    with ExitStack() as stack:
        task, plan = plan_conversion(
            stack,
            str(source),
            ImageOptions.from_record({**OPTIONS, "store": "raw", **options}, None, {}),
            out=str(tmp_path / "p"),
        )
        found = estimate(task.maker, task.storing, task.order)
        assert plan.bytes == round(found * len(task.order.samples)) + (1 << 16)
        return found


def stored(source: Path, out: Path, **options: Any) -> float:
    """Bytes a row of the real pack, without its header."""
    convert_images(source, out, size=32, format="h5", **options)
    pack = open_pack(out)
    return pack.nbytes / pack.rows


def same_length_keys(folder: Path) -> Path:
    """So that keys, of which a few are looked at, are as long as all."""
    for name in ("blue", "green", "red"):
        (folder / name).rename(folder / name[0])
    return folder


def test_raw_rows_are_told_exactly(photo_folder: Path, tmp_path: Path):
    same_length_keys(photo_folder)
    size = estimated(photo_folder, tmp_path)
    # Beside the rows, offsets have one entry more.
    assert size * 24 + 8 == stored(photo_folder, tmp_path / "p") * 24


@pytest.mark.parametrize(
    "options", [{"store": "jpeg"}, {"store": "jpeg", "quality": 40}, {"store": "gzip"}], ids=str
)
def test_others_are_told_from_samples(photo_folder: Path, tmp_path: Path, options: dict[str, Any]):
    size = estimated(photo_folder, tmp_path, **options)
    assert size == pytest.approx(stored(photo_folder, tmp_path / "p", **options), rel=0.2)
    assert size < 32 * 32 * 3


def test_packs_that_take_much_more_than_the_files_say_so(
    photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(image_planning, "_LARGE", 0)

    def said(**options: Any) -> list[str]:
        out = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        return [
            str(note) for note in convert_images(photo_folder, out, **options).notes if "all rows" in note
        ]

    (note,) = said(size=128)
    assert note.startswith("A row takes about 49.2 kB, a file 1.75 kB, all rows 1.18 MB; ")
    assert note.endswith("store='jpeg' stores rows as JPEG files, in about a tenth of that.")
    for options in ({"size": 16}, {"size": 128, "store": "jpeg"}, {"size": 128, "channels": "rgba"}):
        assert said(**options) == []


def test_bad_samples_are_passed_over(photo_folder: Path, tmp_path: Path):
    whole = estimated(photo_folder, tmp_path, store="jpeg")
    for path in sorted(photo_folder.rglob("*.jpg"))[::3]:
        path.write_bytes(b"")
    assert estimated(photo_folder, tmp_path, store="jpeg") == pytest.approx(whole, rel=0.05)


def test_nothing_but_bad_samples_leaves_the_raw_size(photo_folder: Path, tmp_path: Path):
    raw = estimated(photo_folder, tmp_path)
    for path in photo_folder.rglob("*.jpg"):
        path.write_bytes(b"")
    assert estimated(photo_folder, tmp_path, store="jpeg") == raw


def test_kept_files_take_their_own_size(photo_folder: Path, tmp_path: Path):
    size = estimated(photo_folder, tmp_path, size="keep", store="jpeg")
    out = tmp_path / "p"
    convert_images(photo_folder, out, size="keep", store="jpeg")
    pack = open_pack(out)
    assert size == pytest.approx(pack.nbytes / pack.rows, rel=0.01)


def test_whole_pictures_are_estimated_from_a_sample(photo_folder: Path, tmp_path: Path):
    options = {"size": "max=32", "store": "jpeg", "quality": 80}
    size = estimated(photo_folder, tmp_path, **options)
    convert_images(photo_folder, tmp_path / "p", **options)
    pack = open_pack(tmp_path / "p")
    assert size == pytest.approx(pack.nbytes / pack.rows, rel=0.05)
