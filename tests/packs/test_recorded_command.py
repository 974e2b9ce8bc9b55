"""The command that a header records makes the same bytes again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from packer import append_images, convert_images, convert_table, merge_packs, open_pack, pack_dataset
from packer.cli import cli
from packer.convert.splits import Split
from packer.inputs.label_options import Labels
from packer.packs.recorded_command import convert_again
from tests.format.packs import files_of


def again(out: str, **names: str) -> None:
    """Run the command with these names; compare the bytes."""
    before = files_of(Path(out))
    words = [names.get(word, word) for word in shlex.split(convert_again(open_pack(out)))]
    words = [word.replace("=DIR", f"={names.get('DIR')}") for word in words]
    result = CliRunner().invoke(cli, [*words[1:], "--overwrite", "--quiet"])
    assert (result.exit_code in (0, 3), result.exception if result.exit_code == 1 else None) == (True, None)
    assert files_of(Path(out)) == before


@pytest.mark.parametrize(
    "options",
    [
        {"size": (16, 24), "fit": "pad", "channels": "gray", "seed": 4},
        {"size": "max=24", "store": "jpeg", "quality": 70, "shards": 7, "shuffle": False},
        {"size": 16, "store": "zstd", "split": "train=rest,val=5", "max_pixels": 10**6, "format": "h5"},
        {"size": 16, "split": "train=0.7,val=0.3", "seed": 3, "shuffle": False, "on_error": "skip"},
        {"size": 16, "dtype": "uint16", "format": "npy"},
        {"size": 16, "pairs": {"mask": "masks"}},
        {"size": 16, "labels": Labels("l.csv", column=("one", "other"))},
        {"size": 16, "labels": Labels("l.csv", column="kind"), "split": Split(column="set")},
    ],
    ids=str,
)
def test_images(photo_folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    monkeypatch.chdir(photo_folder.parent)
    keys = sorted(str(path.relative_to(photo_folder)) for path in photo_folder.rglob("*.jpg"))
    for key in keys:
        mask = (Path("masks") / key).with_suffix(".jpg")
        mask.parent.mkdir(parents=True, exist_ok=True)
        mask.with_suffix(".bmp").write_bytes(_mask())
    rows = (f"{key},{key[0]},{n % 2},{n % 3 // 2},{'ab'[n % 2]}\n" for n, key in enumerate(keys))
    Path("l.csv").write_text("file,kind,one,other,set\n" + "".join(rows))
    if options.get("on_error") == "skip":
        (photo_folder / "red" / "2.jpg").write_bytes(b"")
    convert_images("photos", "out", **options)
    again("out", SRC="photos", FILE="l.csv", DIR="masks")


def _mask() -> bytes:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("L", (48, 40), 3).save(file, "BMP")
    return file.getvalue()


@pytest.mark.parametrize(
    "options",
    [
        {"label": "y", "missing": "median", "standardize": True, "split": "train=0.7,val=0.3", "shards": 9},
        {"label": ["y", "z"], "drop": ["c"], "types": {"x": "category"}, "shuffle": False, "store": "gzip"},
        {
            "csv": {"delimiter": ";", "decimal": ",", "na": ("?",), "quote": ""},
            "keep": ["c"],
            "one_hot": "all",
        },
        {"split": Split(column="c"), "dtype": "float64", "encode": {"log1p": ["z"], "indicators": True}},
    ],
    ids=str,
)
def test_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    monkeypatch.chdir(tmp_path)
    mark = options.get("csv", {}).get("delimiter", ",")
    rows = (mark.join((str(n), str(n % 3), str(n * 7 % 5), "uv"[n % 2])) + "\n" for n in range(40))
    Path("t.csv").write_text(mark.join("xyzc") + "\n" + "".join(rows))
    convert_table("t.csv", "out.h5" if "shards" not in options else "out", **options)
    again("out.h5" if "shards" not in options else "out", SRC="t.csv")


def test_packs_that_no_single_conversion_made(photo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photo_folder.parent)
    convert_images("photos", "p", size=16, shards=9)
    append_images("p", "photos", duplicates="keep")
    merge_packs(["p", "p"], "m.h5", duplicates="keep")
    pack_dataset({"x": [1, 2]}, "s.h5")
    convert_images("photos", "r.h5", size=16, split={"a": range(9), "b": "rest"})
    assert [convert_again(open_pack(name)) for name in ("p", "m.h5", "s.h5", "r.h5")] == [""] * 4
    convert_images("photos", "q.h5", size=16, like="m.h5")
    again("q.h5", SRC="photos", PACK="m.h5")
