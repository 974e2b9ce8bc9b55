"""Options of images: what they refuse, what a pack records of them, and the words that they replace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer import (
    Labels,
    Soft,
    append_images,
    convert_images,
    convert_table,
    create,
    fill_pack,
    open_pack,
    pack_dataset,
    repack,
)
from packer.convert.image_options import ImageOptions
from packer.convert.row_storage import RowStorage
from packer.errors import UsageError
from packer.pixels.decode_resize import MAX_PIXELS

PAIRS = {"mask": "m/", "alpha": Soft("a/")}
LABELS = Labels("l.csv", column="a", as_="classes", boxes="l,t,r,b", boxes_unit="relative")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"size": "max=512", "store": "jpeg", "quality": 70, "labels": "l.csv"},
        {"size": (32, 48), "fit": "pad", "channels": 7, "dtype": "uint16", "pairs": PAIRS, "labels": LABELS},
        {
            "icc": "srgb",
            "pairs": {"a": "a/", "b": "b/"},
            "mask_values": {"a": [0, 255], "b": "#000000,#ff0000"},
        },
        {"split": "a=0.5,b=0.5", "seed": 3, "shards": 9, "labels": Labels("l.csv", separator="|")},
        {"split": "a=0.5,b=0.5", "seed": 3, "shuffle": False, "store": "gzip"},
    ],
)
def test_a_record_gives_the_options_again(given: dict[str, Any]):
    asked = {
        "size": None,
        "fit": None,
        "channels": None,
        "dtype": None,
        "split": None,
        "seed": 0,
        "labels": None,
    }
    storage = {
        "store": given.pop("store", "raw"),
        "quality": given.pop("quality", 90),
        "shards": given.pop("shards", None),
    }
    storing = RowStorage.parse("p.h5", None, **storage)
    options = ImageOptions.from_arguments(None, max_pixels=MAX_PIXELS, storing=storing, **{**asked, **given})
    record = options.record()
    folders = {name: getattr(pair, "folder", pair) for name, pair in options.pairs.items()}
    again = ImageOptions.from_record(record, options.labels.file, folders)
    assert again.record() == record
    assert (again.spec, again.storing, again.labels.record()) == (
        options.spec,
        storing,
        options.labels.record(),
    )
    assert {name: values.text for name, values in again.mask_values.items()} == record.get("mask_values", {})
    assert (again.pairs, again.shuffle, again.split) == (options.pairs, options.shuffle, options.split)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"as_": "numbers"}, "as_='numbers': is not one of 'auto', 'classes', 'float'. Pass one of them."),
        ({"boxes_unit": "inch"}, "boxes_unit='inch': is not one of 'relative', 'pixels'. Pass one of them."),
    ],
)
def test_words_of_labels(given: dict[str, str], sentence: str):
    with pytest.raises(UsageError) as error:
        Labels("l.csv", **given)
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("function", "keyword", "remedy"),
    [
        (convert_images, "compress", 'pass store="zstd", "gzip" or "blosc2"'),
        (convert_images, "label", 'pass labels=Labels("labels.csv", column=...)'),
        (convert_images, "soft", 'pass pairs={"alpha": Soft("mattes/")}'),
        (convert_images, "num_workers", "pass workers="),
        (convert_images, "address", 'pass engine="ray:ADDRESS"'),
        (repack, "shard_rows", "pass shards=100_000, a number of rows"),
        (pack_dataset, "shard_size", 'pass shards="2GB"'),
        (create, "compress", 'pass store="zstd", "gzip" or "blosc2"'),
        (create, "channels", "pass fields=Fields(channels=...)"),
        (pack_dataset, "rename", "pass fields=Fields(rename=...)"),
        (convert_images, "boxes", "pass labels=Labels(boxes=...)"),
        (convert_images, "column", "pass labels=Labels(column=...)"),
        (convert_images, "group", "pass split=Split(group=...)"),
        (convert_table, "delimiter", "pass csv=Csv(delimiter=...)"),
        (convert_table, "log1p", "pass encode=Encode(log1p=...)"),
    ],
)
def test_removed_keywords_name_what_to_pass(function: Any, keyword: str, remedy: str):
    with pytest.raises(UsageError) as error:
        function("in", "out", **{keyword: 1})
    assert str(error.value) == f"{keyword}=: is not an argument of {function.__name__}; {remedy}."


def test_values_reach_a_pack_that_is_filled_while_it_is_read(photo_folder: Path, tmp_path: Path):
    lines = ["file,kind,other"]
    for number, path in enumerate(sorted(photo_folder.rglob("*.jpg"))):
        key = path.relative_to(photo_folder)
        (tmp_path / "mattes" / key).parent.mkdir(parents=True, exist_ok=True)
        values = np.full((40, 48), number * 9, np.uint8)
        values[:, ::2] = 200
        Image.fromarray(values).save((tmp_path / "mattes" / key).with_suffix(".png"))
        lines.append(f"{key},{'xy'[number % 2]},{number}")
    (tmp_path / "l.csv").write_text("\n".join(lines))
    options: dict[str, Any] = {"size": 16, "labels": Labels(tmp_path / "l.csv", "kind")}
    options["pairs"] = {"alpha": Soft(tmp_path / "mattes")}
    convert_images(photo_folder, tmp_path / "made.h5", **options)
    made = open_pack(tmp_path / "made.h5").header
    filled = fill_pack(photo_folder, tmp_path / "filled.h5", **options)
    found = filled.header
    filled.close()
    assert (found.provenance, found.fields, found.classes) == (made.provenance, made.fields, ("x", "y"))


def test_appended_cells_may_hold_one_name_each(photo_folder: Path, tmp_path: Path):
    keys = sorted(path.relative_to(photo_folder).as_posix() for path in photo_folder.rglob("*.jpg"))
    for name, cells in (("a", "dark red|blue"), ("b", "dark red")):
        rows = [f"{key},{cells}" for key in keys]
        (tmp_path / f"{name}.csv").write_text("\n".join(["file,tags", *rows]))
    labels = Labels(tmp_path / "a.csv", separator="|")
    convert_images(photo_folder, tmp_path / "p", size=8, shards=20, labels=labels)
    append_images(tmp_path / "p", photo_folder, labels=tmp_path / "b.csv", duplicates="keep")
    pack = open_pack(tmp_path / "p")
    assert pack.header.classes == ("blue", "dark red")
    assert pack.read("label")[len(keys) :].tolist() == [[0, 1]] * len(keys)


def test_appending_reads_labels_as_the_pack_was_made(photo_folder: Path, tmp_path: Path):
    keys = sorted(path.relative_to(photo_folder).as_posix() for path in photo_folder.rglob("*.jpg"))
    for name, first in (("a", 0), ("b", 9)):
        rows = [f"{key},{number % (24 if first else 12) + first},x" for number, key in enumerate(keys)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["file,number,kind", *rows]))
    convert_images(
        photo_folder, tmp_path / "p", size=16, shards=10, labels=Labels(tmp_path / "a.csv", "number")
    )
    append_images(tmp_path / "p", photo_folder, labels=tmp_path / "b.csv", duplicates="keep")
    pack = open_pack(tmp_path / "p")
    assert sorted(pack.read("label").tolist()) == sorted([*[*range(12)] * 2, *range(9, 33)])


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (
            {"labels": 3},
            "labels=3: is not the path of a file of labels. Pass its name, Labels(...), or leave it out.",
        ),
        (
            {"pairs": "masks"},
            "pairs='masks': is not a mapping of fields to folders. Pass for example {'mask': 'masks/'}.",
        ),
        (
            {"pairs": {"mask": 3}},
            "pairs={'mask': 3}: is not a mapping of fields to folders. Pass for example {'mask': 'masks/'}.",
        ),
        (
            {"split": 3},
            "split 3: is not a list of names, each with a positive share, a number of rows, rest, first:N or"
            " last:N. Pass for example train=0.9,val=0.1 or train=rest,test=last:500000.",
        ),
    ],
)
def test_values_of_another_type_are_refused(
    photo_folder: Path, tmp_path: Path, option: dict[str, Any], said: str
):
    with pytest.raises(UsageError, match=f"^{re.escape(said)}$"):
        convert_images(photo_folder, tmp_path / "p.h5", **option)
