"""packer.packs.joined_pack: what rows of several packs must have in common to be loaded as one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packer.errors import UsageError
from packer.format.fields import Extent, Field
from packer.format.header import Header
from packer.packs.joined_pack import join_packs
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from tests.format.packs import write_pack

IMAGE = Field("image", "|u1", (4, 6, 3), {"layout": "HWC", "color": "rgb", "fit": "crop"})
LABEL = Field("label", "<i8", ())
KEY = Field("key", "|u1", None, {"encoding": "utf-8"})
MASK = Field("mask", "|u1", (4, 6), {"sampling": "nearest"})
CLASSES = ("cat", "dog")


def pack(name: str, *fields: Field, rows: int = 10, **members: Any) -> Pack:
    """A pack that is nothing but a header."""
    fields = fields or (IMAGE, LABEL, KEY)
    extents = {
        array: (Extent("", 0, rows + (array != f.name), f.row_bytes),) for f in fields for array in f.arrays
    }
    return Pack(name, Header(rows, 5, fields, extents, **({"classes": CLASSES} | members)), b"")


def test_rows_lie_where_each_pack_has_them(tmp_path: Path) -> None:
    write_pack(tmp_path / "a.h5", rows=23, seed=1)
    write_pack(tmp_path / "b", rows=7, seed=2)
    packs = [open_pack(tmp_path / name) for name in ("a.h5", "b")]
    both = join_packs(packs)
    assert (both.rows, both.members, both.parts, both.format) == (30, tuple(packs), tuple(packs), "h5")
    for name in ("image", "label"):
        assert (both.read(name, 20, 27)[:3] == packs[0].read(name, 20)).all()
        assert (both.read(name, 20, 27)[3:] == packs[1].read(name, 0, 4)).all()
    assert both.keys(22, 24) == [packs[0].keys(22)[0], packs[1].keys(0, 1)[0]]
    assert {os.path.basename(both.file(e)) for e in both.header.extents["image"]} == {"a.h5", "image.npy"}
    both.check_same()
    write_pack(tmp_path / "b", rows=7, overwrite=True, seed=3)
    with pytest.raises(Exception, match="was replaced or changed after it was opened"):
        both.check_same()


class Arriving(Pack):
    """A pack whose rows arrive one by one, until it is whole."""

    whole = False

    @property
    def pending(self) -> bool:
        return not self.whole

    def settled(self) -> Pack:
        return pack(self.path, rows=self.rows) if self.whole else self


def test_a_pack_whose_rows_are_still_to_come() -> None:
    arriving = Arriving("b", pack("b", rows=20).header, b"")
    both = join_packs([pack("a"), arriving, pack("c")])
    assert both.pending
    assert [(one.path, *own) for one, *own in both.pieces("image", 5, 35)] == [
        ("a", "image", 5, 10),
        ("b", "image", 0, 20),
        ("c", "image", 0, 5),
    ]
    assert both.settled() is both
    object.__setattr__(arriving, "whole", True)
    assert not both.settled().pending
    assert both.settled().rows == both.rows == 40


@pytest.mark.parametrize(
    ("second", "fields", "sentence"),
    [
        (
            (replace(IMAGE, shape=(8, 8, 3)), LABEL, KEY),
            None,
            r"b: its field 'image' is u1 8x8x3, that of a is 'image', u1 4x6x3; the packs must have equal fields."
            r" Run packer repack on one of them\.",
        ),
        (
            (replace(IMAGE, about={**IMAGE.about, "color": "bgr"}), LABEL),
            ["image"],
            r"b, a: their fields mean different things \(of 'image', color was rgb, now it is bgr\)",
        ),
        (
            (IMAGE, replace(LABEL, dtype="<f4")),
            None,
            "b: its field 'label' is f4 scalar, that of a is 'label', i8 scalar;",
        ),
        (
            (IMAGE, KEY),
            None,
            r"b: has no field 'label', which a has; packs that are loaded together have the same fields\."
            r" Pass fields=\['image'\], which all have\.",
        ),
        (
            (IMAGE, LABEL, MASK),
            None,
            r"a: has no field 'mask', which b has; .* Pass fields=\['image', 'label'\], which all have\.",
        ),
        ((IMAGE, LABEL), ["image", "key"], "b: has no field 'key', which a has;"),
        ((IMAGE, LABEL, MASK), ["mask"], "a: has no field 'mask', which b has;"),
    ],
)
def test_fields_that_differ_are_named(
    second: Sequence[Field], fields: list[str] | None, sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        join_packs([pack("a"), pack("c"), pack("b", *second)], fields)


def test_fields_that_are_not_loaded_may_differ_and_are_left_out() -> None:
    other = pack("b", IMAGE, replace(LABEL, dtype="<f4"), MASK, classes=None)
    both = join_packs([pack("a"), other], ["image"])
    assert [f.name for f in both.fields] == ["image"]
    assert both.header.classes is None
    assert set(both.header.extents) == {"image"}


@pytest.mark.parametrize(
    ("classes", "sentence"),
    [
        (
            ("cat", "fox"),
            r"b: class 1 is 'fox', and 'dog' in a; the packs must have equal classes\. .* like='a'\.",
        ),
        (("cat",), "b: class 1 is none, and 'dog' in a;"),
        (("dog", "cat"), "b: class 0 is 'dog', and 'cat' in a;"),
        (None, "b: has no class names, and a has some;"),
    ],
)
def test_labels_of_other_classes_are_refused_where_they_are_loaded(
    classes: tuple[str, ...] | None, sentence: str
) -> None:
    packs = [pack("a"), pack("b", classes=classes)]
    with pytest.raises(UsageError, match=sentence):
        join_packs(packs)
    both = join_packs(packs, ["image"])
    assert both.header.classes is None
    assert [f.name for f in both.fields] == ["image", "key"]


def test_how_a_picture_was_fitted_and_compressed_may_differ() -> None:
    def stored(quality: int, fit: str) -> Field:
        codec = {"name": "jpeg", "shape": [4, 6, 3], "quality": quality}
        return replace(IMAGE, shape=None, codec=codec, about={**IMAGE.about, "fit": fit})

    both = join_packs([pack("a", stored(90, "crop"), LABEL), pack("b", stored(80, "pad"), LABEL)])
    assert both.header.field("image").loaded.shape == (4, 6, 3)
    with pytest.raises(
        UsageError, match=r"b: its field 'image' is u1 4x6x3, that of a is 'image', u1 any length .*'jpeg'"
    ):
        join_packs([pack("a", stored(90, "crop"), LABEL), pack("b", IMAGE, LABEL)])


def test_the_header_holds_what_is_true_of_all() -> None:
    options = {"options": {"normalize": {"mean": [0.5], "std": [0.2]}}}
    own = {"image": {"mean": [0.1], "std": [0.3]}}
    one, two = (
        pack("a", seed=3, provenance=options, statistics=own),
        pack("b", seed=4, provenance=options, statistics=own),
    )
    assert join_packs([one, two]).header.normalization == {"mean": [0.5], "std": [0.2]}
    assert join_packs([one, two]).header.seed == 3
    assert join_packs([one, pack("c")]).header.seed is None
    assert join_packs([one, pack("c")]).header.normalization == {}


def test_tables_mapped_otherwise_are_refused_and_so_are_images_beside_tables() -> None:
    table = {"columns": [{"name": "x", "type": "number", "role": "feature", "log1p": False}]}
    table |= {"features": ["x"], "categories": [], "dtype": "<f4", "label": None}
    features = Field("features", "<f4", (1,))
    one = pack("a", features, classes=None, table=table)
    assert join_packs([one, one]).header.table == table
    mapped = {**table, "columns": [{**table["columns"][0], "log1p": True}]}  # type: ignore[index]
    with pytest.raises(
        UsageError, match=r"b: its column 'x' is mapped differently \(log1p is False in a, and True here\)"
    ):
        join_packs([one, pack("b", features, classes=None, table=mapped)])
    with pytest.raises(UsageError, match="b: was converted from images, a from a table;"):
        join_packs([one, pack("b", features, classes=None)])
