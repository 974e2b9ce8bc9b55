"""packer.packs.joined_fields: which packs go together, and what the pack says that has the fields of all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer import (
    PackedBatchDataset,
    convert_table,
    create,
    join_fields,
    merge_packs,
    open_pack,
    repack,
    verify_pack,
)
from packer.errors import FormatError, UsageError
from packer.format.fields import Extent, Field
from packer.format.header import Header
from packer.packs import joined_fields
from packer.packs.pack import Pack

KEYS = ["a", "b", "c", "d", "e"]


def write(out: Path, columns: Mapping[str, Any], **options: Any) -> str:
    forms = {name: "text" if name == "key" else None for name in columns}
    with create(out, fields=forms, shuffle=False, **options) as builder:
        builder.write_rows(**columns)
    return str(out)


@pytest.fixture
def first(tmp_path: Path) -> str:
    images = np.random.default_rng(0).integers(0, 256, (5, 6, 4, 3), np.uint8)
    columns = {"image": images, "label": np.arange(5) % 2, "key": KEYS}
    return write(tmp_path / "first.h5", columns, classes=["cat", "dog"])


def of(out: Path, keys: Any = KEYS, **columns: Any) -> str:
    return write(out, columns | ({} if keys is None else {"key": keys}))


def refused(packs: Any, sentence: str, match: Any = None) -> None:
    with pytest.raises(UsageError, match=f"^{sentence}$"):
        join_fields(packs, match)


def test_rows_whose_keys_differ_are_told(first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(joined_fields, "_KEYS_AT_ONCE", 2)
    for keys, row in ((["a", "b", "c", "x", "e"], 3), (["a", "bc", "", "d", "e"], 1)):
        other = of(tmp_path / f"{row}.h5", keys, number=np.arange(5))
        own, its = KEYS[row], keys[row]
        refused(
            [first, other],
            rf"{other}: row {row} has the key '{its}', and '{own}' in {first}; joined rows have equal keys\. Pass"
            r" match='keys' to find rows by their keys, or match='rows' if row i of both is the same sample nevertheless\.",
        )
        assert join_fields([first, other], "rows").read("number").tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(
        UsageError, match=r"has no row for 1 of the 5 keys of .*first\.h5, such as 'd'; each needs one\."
    ):
        join_fields([first, tmp_path / "3.h5"], "keys")
    with pytest.raises(
        UsageError, match=r"has no row for 2 of the 5 keys of .*first\.h5, such as 'b'; each needs one\."
    ):
        join_fields([first, tmp_path / "1.h5"], match="keys")


def test_other_rows_in_number(first: str, tmp_path: Path):
    other = of(tmp_path / "other.h5", [*KEYS, "f"], number=np.arange(6))
    sentence = (
        rf"{other}: has 6 rows, and {first} 5; packs are joined row by row\. Pass match='keys' to find .*\."
    )
    refused([first, other], sentence)
    refused([first, other], sentence, "rows")
    joined = join_fields([first, other], match="keys")
    assert (joined.rows, joined.read("number").tolist()) == (5, [0, 1, 2, 3, 4])
    assert joined.places == (None, None)  # type: ignore[attr-defined]
    refused([other, first], rf"{first}: has no row for 1 of the 6 keys of {other}, such as 'f'; .*", "keys")


def test_a_key_of_several_rows(first: str, tmp_path: Path):
    other = of(tmp_path / "other.h5", number=np.arange(5))
    twice = tmp_path / "twice.h5"
    merge_packs([other, other], twice, duplicates="keep", shuffle=False)
    refused(
        [first, twice],
        rf"{twice}: several rows have the key 'a', 0 and 5 for example\. Keep one of these, or pass row numbers\.",
        "keys",
    )
    joined = join_fields([twice, first], match="keys")
    assert joined.read("label").tolist() == [0, 1, 0, 1, 0] * 2


def test_packs_without_keys(first: str, tmp_path: Path):
    other = of(tmp_path / "other.h5", None, number=np.arange(5))
    for packs in ([first, other], [other, first]):
        for match in (None, "keys"):
            refused(
                packs,
                rf"{other}: its rows have no keys to match with those of {first}\. Pass"
                r" match='rows' if row i of both is the same sample\.",
                match,
            )
        joined = join_fields(packs, match="rows")
        assert joined.keys() == KEYS
        assert {f.name for f in joined.fields} == {"image", "label", "key", "number"}


def test_fields_of_one_name(first: str, tmp_path: Path):
    other = of(tmp_path / "other.h5", label=np.full(5, 7), number=np.arange(5))
    refused(
        [first, other],
        rf"{other}: has a field 'label', as {first} has; each field comes from one pack\. Pass \('{other}', "
        r"\[\.\.\.\]\) with the names of the others, or a mapping that renames it, such as {'label': 'label_2'}\.",
    )
    assert [f.name for f in join_fields([first, (other, ["number"])]).fields] == [
        "image",
        "label",
        "key",
        "number",
    ]
    joined = join_fields([first, (other, {"label": "guess"})])
    assert [f.name for f in joined.fields] == ["image", "label", "key", "guess"]
    assert joined.read("guess").tolist() == [7] * 5
    joined = join_fields([(first, ["image"]), (other, ["label", "key"])])
    assert ([f.name for f in joined.fields], joined.keys()) == (["image", "label", "key"], KEYS)
    assert joined.read("label").tolist() == [7] * 5
    assert joined.header.classes == ("cat", "dog")
    refused(
        [first, (other, {"label": "guess", "number": "guess"})], ".*has a field 'guess', as .*other.* has; .*"
    )


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (["no"], r"has no field 'no'; it has number, key\. Pass some of these\."),
        ({"number": "if"}, r"'if' is not a valid field name\. Pass one such as 'number_2'\."),
        ([["number"]], r"has no field \['number'\]; it has number, key\. Pass some of these\."),
        ({"number": "key"}, r"'key' is not a valid field name\. Pass one such as 'number_2'\."),
        ({"number": 3}, r"3 is not a valid field name\. .*"),
        (
            "number",
            r"its fields are chosen by 'number'\. Pass a list of names, or a mapping such as {'number': 'other'}\.",
        ),
        ([], r"its fields are chosen by \[\]\. .*"),
        (5, r"its fields are chosen by 5\. .*"),
    ],
)
def test_choices_of_fields_that_are_none(first: str, tmp_path: Path, fields: Any, sentence: str):
    other = of(tmp_path / "other.h5", number=np.arange(5))
    refused([first, (other, fields)], f"{other}: {sentence}")


def test_arguments_that_are_no_packs(first: str, tmp_path: Path):
    refused([], r"packs=\[\]: is no list of packs\. Pass one such as \['train\.h5', 'embeddings\.h5'\]\.")
    refused(first, r"packs='.*': is not a list of paths\. Pass \['.*', \.\.\.\]\.")
    refused(3, r"packs=3: is not the path of a pack\. Pass a name, such as 'train\.h5'\.")
    refused([first, 3], r"packs=\['.*', 3\]: is not the path of a pack\. .*")
    refused([first], r"match='key': is not one of None, 'keys', 'rows'\. Pass one of them\.", "key")
    with pytest.raises(FormatError, match=r"none\.h5: cannot be read"):
        join_fields([first, tmp_path / "none.h5"])
    assert join_fields([first]).keys() == KEYS


def test_classes_are_those_of_the_labels(first: str, tmp_path: Path):
    columns = {"label": np.array([2, 1, 0, 1, 2]), "key": KEYS}
    other = write(tmp_path / "other.h5", columns, classes=["red", "green", "blue"])
    joined = join_fields([(first, ["image"]), other])
    assert (joined.header.classes, joined.read("label").tolist()) == (
        ("red", "green", "blue"),
        [2, 1, 0, 1, 2],
    )
    assert join_fields([first, (other, {"label": "color"})]).header.classes == ("cat", "dog")
    boxes = replace(open_pack(other), header=replace(open_pack(other).header))
    field = Field("box_label", "|u1", None, {"dtype": "<i8", "row_shape": []})
    header = Header(
        5,
        5,
        (field, boxes.header.field("key")),
        {
            "box_label": (Extent("", 0, 9, 1),),
            "box_label.offsets": (Extent("", 0, 6, 8),),
            "key": boxes.header.extents["key"],
            "key.offsets": boxes.header.extents["key.offsets"],
        },
        classes=("cat", "dog", "cow"),
    )
    refused(
        [first, replace(boxes, header=header)],
        rf"{other}: class 2 is 'cow', and none in {first}; the packs must have equal classes\. .*",
    )


def test_masks_lie_on_images(first: str, tmp_path: Path):
    mask = np.zeros((5, 6, 4), np.uint8)
    joined = join_fields([first, of(tmp_path / "mask.h5", mask=mask)])
    assert joined.header.field("mask").about["sampling"] == "nearest"
    images = np.zeros((5, 6, 5, 3), np.uint8)
    wider = of(tmp_path / "wider.h5", image=images, mask=np.zeros((5, 6, 5), np.uint8))
    refused(
        [first, (wider, ["mask"])],
        rf"{wider}: its field 'mask' is 6x5, and images of {first} are 6x4; masks have the size and fit of"
        r" their images\. Convert one of them again, or name the other fields\.",
    )
    fitted = open_pack(tmp_path / "mask.h5")
    about = {"sampling": "nearest", "fit": "stretch"}
    fields = tuple(replace(f, about=about) if f.name == "mask" else f for f in fitted.fields)
    fitted = replace(fitted, header=replace(fitted.header, fields=fields))
    opened = open_pack(first)
    fields = tuple(
        replace(f, about={**f.about, "fit": "crop"}) if f.name == "image" else f for f in opened.fields
    )
    opened = replace(opened, header=replace(opened.header, fields=fields))
    with pytest.raises(UsageError, match=re.escape("is 6x4 (stretch), and images of")):
        join_fields([opened, fitted])


def test_what_the_pack_says_of_images_is_what_their_pack_says(first: str, tmp_path: Path):
    images = open_pack(first)
    other = open_pack(of(tmp_path / "other.h5", number=np.arange(5.0)))
    options = {"normalize": {"mean": [0.1, 0.2, 0.3], "std": [1.0, 2.0, 3.0]}}
    images = replace(images, header=replace(images.header, provenance={"options": options}))
    for packs in ([images, other], [other, images]):
        header = join_fields(packs).header
        assert header.normalization == options["normalize"]
        assert header.statistics == {**images.header.statistics, **other.header.statistics}
        assert header.rows == 5
        assert header.classes == packs[0].header.classes or packs[0] is other


class Pending(Pack):
    """A pack that is being made."""

    @property
    def pending(self) -> bool:
        return True


def test_tables_of_joined_packs_in_a_list_are_mapped_alike(tmp_path: Path):
    packs = []
    for number, colours in enumerate(("xyxyx", "zxyzx")):
        table = tmp_path / f"{number}.csv"
        table.write_text("colour,y\n" + "".join(f"{colour},{y}\n" for y, colour in enumerate(colours)))
        convert_table(table, tmp_path / f"table{number}.h5", label="y", shuffle=False)
        images = of(tmp_path / f"images{number}.h5", image=np.zeros((5, 8, 8, 3), np.uint8))
        packs.append(join_fields([images, tmp_path / f"table{number}.h5"], match="rows"))
    with pytest.raises(
        UsageError, match=r"its column 'colour' is mapped differently \(categories is x, y in "
    ):
        PackedBatchDataset(packs, 2)


def test_a_pack_in_the_making_is_refused(first: str):
    pack = open_pack(first)
    refused(
        [Pending(first, pack.header, b""), first],
        rf"{first}: its rows are still being converted\. Join it once it is complete\.",
    )


def test_functions_of_files_take_an_open_pack_but_none_that_was_joined(first: str, tmp_path: Path):
    assert verify_pack(open_pack(first)).ok
    repack(open_pack(first), tmp_path / "again.h5")
    assert open_pack(tmp_path / "again.h5").keys() == KEYS
    joined = join_fields([first, of(tmp_path / "other.h5", score=np.arange(5.0))])
    with pytest.raises(
        UsageError, match=r"joined for loading; a file is needed here\. Pass each pack separately"
    ):
        repack(joined, tmp_path / "one.h5")
    assert not (tmp_path / "one.h5").exists()


@pytest.mark.parametrize("keys", ["a", 5])
def test_rows_are_asked_for_by_a_list_of_keys(first: str, keys: Any):
    with pytest.raises(UsageError, match=r"is not a list of keys\. Pass one such as"):
        open_pack(first).rows_of(keys)
