"""How large a pack will be, by each way of storing it, against the packs themselves."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from packer.codecs.block_codecs import NAMES
from packer.convert.image_conversion import PreparedConversion, convert_images, plan_conversion
from packer.convert.row_storage import StorageEstimate, estimate
from packer.errors import MissingDependencyError
from packer.format.pack import open_pack

OPTIONS = {
    "size": [32, 32],
    "fit": "crop",
    "channels": "rgb",
    "max_pixels": 1 << 20,
    "seed": 0,
    "format": "h5",
}


def trades(
    source: Path, tmp_path: Path, *, compare: bool = False, **options: Any
) -> tuple[StorageEstimate, ...]:
    with ExitStack() as stack:
        made: PreparedConversion = plan_conversion(
            stack,
            str(source),
            {**OPTIONS, "store": "raw", **options},
            out=str(tmp_path / "p"),
            labels=None,
            pairs={},
            compare=compare,
        )
        task = made.task
        assert estimate(task.maker, task.storing, task.order, compare=compare) == made.plan.trades
        return made.plan.trades


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
    ((name, size),) = trades(photo_folder, tmp_path)
    assert name == "raw"
    # Beside the rows, offsets have one entry more.
    assert size * 24 + 8 == stored(photo_folder, tmp_path / "p") * 24


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("jpeg, quality 90", {"store": "jpeg"}),
        ("jpeg, quality 40", {"store": "jpeg", "quality": 40}),
        ("gzip", {"store": "gzip"}),
    ],
)
def test_others_are_told_from_samples(photo_folder: Path, tmp_path: Path, name: str, options: dict[str, Any]):
    chosen = trades(photo_folder, tmp_path, **options)[0]
    assert chosen.name == name
    assert chosen.row_bytes == pytest.approx(stored(photo_folder, tmp_path / "p", **options), rel=0.2)
    assert chosen.row_bytes < 32 * 32 * 3


def test_a_comparison_names_every_way_once_the_chosen_one_first(photo_folder: Path, tmp_path: Path):
    for codec in ("zstd", "blosc2"):
        pytest.importorskip({"zstd": "zstandard", "blosc2": "blosc2"}[codec])
    found = trades(photo_folder, tmp_path, compare=True, store="gzip")
    assert [t.name for t in found] == ["gzip", "raw", "jpeg, quality 90", "zstd", "blosc2"]
    raw = trades(photo_folder, tmp_path, compare=True)
    assert raw[0].name == "raw"
    assert set(raw) == set(found)


def test_grey_images_have_no_jpeg_with_transparency(photo_folder: Path, tmp_path: Path):
    names = {t.name for t in trades(photo_folder, tmp_path, compare=True, channels="rgba")}
    assert "raw" in names
    assert not any(name.startswith("jpeg") for name in names)


def test_a_library_that_is_missing_is_left_out(
    photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Missing:
        def compress(self, array: object) -> bytes:
            raise MissingDependencyError("zstandard", "zstd")

    monkeypatch.setattr("packer.convert.row_storage.block_codec", lambda name, row, dtype: Missing())
    assert not {t.name for t in trades(photo_folder, tmp_path, compare=True)} & set(NAMES)


def test_bad_samples_are_passed_over(photo_folder: Path, tmp_path: Path):
    whole = trades(photo_folder, tmp_path, store="jpeg")[0]
    for path in sorted(photo_folder.rglob("*.jpg"))[::3]:
        path.write_bytes(b"")
    some = trades(photo_folder, tmp_path, store="jpeg")[0]
    assert some.row_bytes == pytest.approx(whole.row_bytes, rel=0.05)


def test_nothing_but_bad_samples_leaves_the_raw_size(photo_folder: Path, tmp_path: Path):
    for path in photo_folder.rglob("*.jpg"):
        path.write_bytes(b"")
    assert [t.name for t in trades(photo_folder, tmp_path, store="jpeg")] == ["raw"]


def test_kept_files_take_their_own_size(photo_folder: Path, tmp_path: Path):
    ((name, size),) = trades(photo_folder, tmp_path, size="keep", store="jpeg")
    out = tmp_path / "p"
    convert_images(photo_folder, out, size="keep", store="jpeg")
    pack = open_pack(out)
    assert name == "as given"
    assert size == pytest.approx(pack.nbytes / pack.rows, rel=0.01)


def test_whole_pictures_are_estimated_from_a_sample(photo_folder: Path, tmp_path: Path):
    options = {"size": "max=32", "store": "jpeg", "quality": 80}
    ((name, size),) = trades(photo_folder, tmp_path, **options)
    convert_images(photo_folder, tmp_path / "p", **options)
    pack = open_pack(tmp_path / "p")
    assert name == "jpeg, quality 80"
    assert size == pytest.approx(pack.nbytes / pack.rows, rel=0.05)
