"""Packs made of packs: what went in comes out, however it is stored then."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from packer import pack_dataset
from packer.cli import cli
from packer.cli.option_words import in_options
from packer.codecs import jpeg
from packer.convert.image_appending import append_images
from packer.convert.image_conversion import convert_images
from packer.convert.pack_rows import split_owners
from packer.convert.repacking import merge_packs, repack, split_pack
from packer.convert.sample_order import arrange
from packer.convert.split_assignment import Owners
from packer.errors import BusyError, FormatError, PackerError, SourceError, UsageError
from packer.inputs.image_pairs import Soft
from packer.inputs.label_options import Labels
from packer.orders.runs import Runs
from packer.packs.output_names import check_output
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.packs.shards import prepare_index, read_index
from packer.packs.verify import verify_pack
from packer.pixels.decode_resize import decoder_versions
from packer.pixels.row_placement import ImagePlacement
from packer.read.array_store import PackStore
from packer.tables.table_conversion import append_table, convert_table
from packer.writing.working_folder import WorkingFolder
from tests.format.packs import files_of

Convert = Callable[..., Pack]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of three rows: several blocks and a short last one from a few images. One worker: forking takes longer than these."""
    monkeypatch.setattr("packer.arguments.cores", lambda: 1)
    monkeypatch.setattr(
        "packer.convert.row_storage.block_rows", lambda rows, row_bytes, least_bytes: min(rows, 3)
    )


@pytest.fixture
def convert(tmp_path: Path) -> Convert:
    def run(source: Path, name: str, **options: Any) -> Pack:
        convert_images(source, tmp_path / name, **{"size": 32, "workers": 1, **options})
        return open_pack(tmp_path / name)

    return run


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """Six more images: of a class that photo_folder has, and of a new one."""
    draws = np.random.default_rng(9)
    folder = tmp_path / "others"
    for name in ("green", "amber"):
        (folder / name).mkdir(parents=True)
        for k in range(3):
            Image.fromarray(draws.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(
                folder / name / f"n{k}.jpg"
            )
    return folder


def opened(path: Path) -> Pack:
    assert verify_pack(path).problems == ()
    return open_pack(path)


def images_of(pack: Pack) -> list[bytes]:
    """Each row's image as it is loaded."""
    reader = PackStore(pack, pack.fields)
    image = pack.header.field("image").loaded
    rows = Runs(np.array([0]), np.array([pack.rows]))
    if image.ragged:
        return reader.ragged("image", rows)
    out = np.empty((pack.rows, image.row_bytes), np.uint8)
    reader.copy(rows, {"image": out})
    reader.close()
    return [row.tobytes() for row in out]


def content(pack: Pack) -> dict[str, tuple[str, bytes]]:
    """key -> (class, image)."""
    classes = pack.header.classes
    assert classes is not None
    names = [classes[label] for label in pack.read("label").tolist()]
    found = dict(zip(pack.keys(), zip(names, images_of(pack), strict=True), strict=True))
    assert len(found) == pack.rows
    return found


def renamed(folder: Path, copy: Path) -> Path:
    """Copy a folder of images under new names, so that none is in the pack of the folder."""
    shutil.copytree(folder, copy)
    for path in sorted(copy.rglob("*.jpg")):
        path.rename(path.with_name(f"n{path.name}"))
    return copy


# Merging


@pytest.mark.parametrize("options", [{}, {"store": "jpeg"}, {"store": "gzip"}, {"shards": 5}], ids=str)
def test_merged_classes_are_those_of_all(
    photo_folder: Path, others: Path, tmp_path: Path, convert: Convert, options: dict[str, Any]
):
    format = {"format": "h5", **options}
    first, second = convert(photo_folder, "a", **format), convert(others, "b", **format)
    report = merge_packs([tmp_path / "a", tmp_path / "b"], tmp_path / "m.h5")
    pack = opened(tmp_path / "m.h5")
    assert pack.header.classes == ("amber", "blue", "green", "red")
    assert content(pack) == {**content(first), **content(second)}
    assert report.rows == pack.rows == 30
    assert pack.header.seed == 0
    assert pack.header.field("image").codec == first.header.field("image").codec
    images = np.stack([np.frombuffer(i, np.uint8) for i in images_of(pack)]).reshape(-1, 3) / 255
    assert pack.header.statistics["image"]["mean"] == pytest.approx(images.mean(axis=0), abs=1e-6)
    assert pack.header.statistics["image"]["std"] == pytest.approx(images.std(axis=0), abs=1e-6)


def test_merged_rows_lie_as_the_seed_says(photo_folder: Path, others: Path, tmp_path: Path, convert: Convert):
    keys = convert(photo_folder, "a").keys() + convert(others, "b").keys()
    packs = [tmp_path / "a", tmp_path / "b"]

    def merged(name: str, **options: Any) -> list[str]:
        merge_packs(packs, tmp_path / name, **options)
        return opened(tmp_path / name).keys()

    assert merged("plain", shuffle=False) == keys
    assert open_pack(tmp_path / "plain").header.seed is None
    order = arrange(Owners.from_splits({}, 30), shuffle=True, seed=4).samples
    assert merged("four", seed=4) == [keys[row] for row in order]
    assert merged("five", seed=5) != merged("four again", seed=4) == open_pack(tmp_path / "four").keys()


def test_merging_puts_splits_together(photo_folder: Path, others: Path, tmp_path: Path, convert: Convert):
    expected: dict[str, set[str]] = {"train": set(), "test": set()}
    for name, source in (("a", photo_folder), ("b", others)):
        pack = convert(source, name, split="train=0.5,test=0.5")
        for split, ((start, stop),) in pack.header.splits.items():
            expected[split] |= set(pack.keys(start, stop))
    merge_packs([tmp_path / "a", tmp_path / "b"], tmp_path / "m")
    pack = opened(tmp_path / "m")
    found = {split: set(pack.keys(*span)) for split, (span,) in pack.header.splits.items()}
    assert found == expected
    assert set().union(*found.values()) == set(pack.keys())


def test_rows_in_no_split_are_not_lost(photo_folder: Path, others: Path, tmp_path: Path, convert: Convert):
    convert(photo_folder, "a", split="train=0.5,val=0.5")
    convert(others, "b")
    for names in (("a", "b"), ("b", "a")):
        with pytest.raises(UsageError) as error:
            merge_packs([tmp_path / name for name in names], tmp_path / "m")
        joined = " + ".join(str(tmp_path / name) for name in names)
        assert str(error.value) == (
            f"{joined}: 6 of its 30 rows are in no split; all rows need a split, or none."
            " Merge only packs that all have splits, or only packs without."
        )


def test_a_merge_of_a_merge(photo_folder: Path, others: Path, tmp_path: Path, convert: Convert):
    first, second = convert(photo_folder, "a"), convert(others, "b")
    shutil.copytree(others, tmp_path / "third" / "more")
    third = convert(tmp_path / "third", "c", classes=["more"])
    merge_packs([tmp_path / "a", tmp_path / "b"], tmp_path / "m1")
    merge_packs([tmp_path / "c", tmp_path / "m1"], tmp_path / "m2.h5")
    assert content(opened(tmp_path / "m2.h5")) == {**content(first), **content(second), **content(third)}


def boxed(tmp_path: Path, name: str, kinds: list[str], **options: Any) -> Pack:
    """Two images with a box of each kind, a mask and a point."""
    folder = tmp_path / f"{name} images"
    (tmp_path / f"{name} masks").mkdir()
    folder.mkdir()
    lines = ["file,l,t,r,b,kind,x,y"]
    for k in range(2):
        Image.new("RGB", (64, 64), (50 * k, 9, 9)).save(folder / f"{name}{k}.png")
        mask = np.zeros((64, 64), np.uint8)
        mask[16:48, 8:40] = 7 + k
        Image.fromarray(mask).save(tmp_path / f"{name} masks" / f"{name}{k}.png")
        lines += [f"{name}{k}.png,8,16,40,48,{kind},{12 + k},20" for kind in kinds]
    (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    convert_images(
        folder,
        tmp_path / name,
        size=64,
        labels=Labels(tmp_path / f"{name}.csv", column="kind", boxes="l,t,r,b", keypoints="x,y"),
        pairs={"mask": tmp_path / f"{name} masks"},
        workers=1,
        **options,
    )
    return open_pack(tmp_path / name)


def test_smaller_rgba_images_are_those_of_files_of_them(tmp_path: Path):
    """Colours of invisible pixels do not bleed into the edges of a pack that shrinks, either, and are kept."""
    draws = np.random.default_rng(0)
    pixels = draws.integers(0, 256, (64, 64, 4), dtype=np.uint8)
    pixels[..., 3] = 255 * (draws.random((64, 64)) < 0.3).astype(np.uint8)
    pixels[:32, :, 3] = 0
    (tmp_path / "images").mkdir()
    Image.fromarray(pixels).save(tmp_path / "images" / "1.png")
    for name, size in (("p", 64), ("expected", 16)):
        convert_images(tmp_path / "images", tmp_path / name, size=size, channels="rgba", workers=1)
    assert np.array_equal(opened(tmp_path / "p").read("image")[0], pixels)
    repack(tmp_path / "p", tmp_path / "s", size=16)
    small = opened(tmp_path / "s").read("image")
    assert np.array_equal(small, opened(tmp_path / "expected").read("image"))
    assert small[0, :4, :, :3].min() > 60
    assert not small[0, :4, :, 3].any()


def test_soft_pairs_are_resampled_linearly_ever_after(tmp_path: Path):
    for folder, first in (("images", 0), ("more", 2)):
        for k in range(first, first + 2):
            for kind in ("", " alpha", " depth", " hard"):
                (tmp_path / f"{folder}{kind}").mkdir(exist_ok=True)
            steps = np.where(np.arange(64) % 2 < 1, 40 + k, 60).astype(np.uint8) * np.ones((64, 1), np.uint8)
            depth = np.where(np.arange(64) < 32, np.nan, steps).astype(np.float32)
            Image.fromarray(steps).save(tmp_path / folder / f"{k}.png")
            Image.fromarray(steps).save(tmp_path / f"{folder} alpha" / f"{k}.png")
            Image.fromarray(steps).save(tmp_path / f"{folder} hard" / f"{k}.png")
            np.save(tmp_path / f"{folder} depth" / f"{k}.npy", depth)

    def given(folder: str) -> dict[str, Any]:
        kinds = ("alpha", "depth", "hard")
        return {"pairs": {kind: tmp_path / f"{folder} {kind}" for kind in kinds}, "workers": 1}

    first = given("images")["pairs"]
    soft = {name: path if name == "hard" else Soft(path) for name, path in first.items()}
    convert_images(tmp_path / "images", tmp_path / "p", size=64, shards=2, pairs=soft)
    append_images(tmp_path / "p", tmp_path / "more", **given("more"))
    pack = opened(tmp_path / "p")
    sampling = {"alpha": "linear", "depth": "linear", "hard": "nearest"}
    assert {f.name: f.about["sampling"] for f in pack.fields if f.name in sampling} == sampling
    assert pack.header.provenance["options"]["soft"] == ["alpha", "depth"]
    repack(tmp_path / "p", tmp_path / "s", size=16)
    small = opened(tmp_path / "s")
    assert {f.name: f.about["sampling"] for f in small.fields if f.name in sampling} == sampling
    alpha, depth, hard = (small.read(name)[:, 2:14, 2:14].astype(float) for name in sampling)
    ends = np.array([40 + int(key[0]) for key in small.keys()])
    means = (ends + 60) / 2
    assert np.abs(alpha - means[:, None, None]).max() <= 1
    assert np.abs(depth[..., 7:] - means[:, None, None]).max() < 1
    assert np.isnan(depth[..., :6]).all()
    assert set(np.unique(hard)) <= {60.0, *ends}


def kinds_of(pack: Pack) -> dict[str, list[str]]:
    classes = pack.header.classes
    assert classes is not None
    rows = zip(pack.keys(), pack.read_ragged("box_label"), strict=True)
    return {key: [classes[n] for n in np.frombuffer(labels, "<i8")] for key, labels in rows}


def test_labels_of_boxes_are_numbered_anew(tmp_path: Path):
    first, second = boxed(tmp_path, "a", ["dog", "cat"]), boxed(tmp_path, "b", ["dog", "ant", "dog"])
    merge_packs([tmp_path / "a", tmp_path / "b"], tmp_path / "m.h5")
    pack = opened(tmp_path / "m.h5")
    assert pack.header.classes == ("ant", "cat", "dog")
    assert kinds_of(pack) == {**kinds_of(first), **kinds_of(second)}


def hot(photo_folder: Path, tmp_path: Path, name: str, cells: list[str]) -> Pack:
    folder = tmp_path / f"{name} images"
    folder.mkdir()
    for k, _ in enumerate(cells):
        shutil.copy(photo_folder / "red" / f"{k}.jpg", folder / f"{name}{k}.jpg")
    lines = [f"{name}{k}.jpg,{cell}" for k, cell in enumerate(cells)]
    (tmp_path / f"{name}.csv").write_text("\n".join(["file,tags", *lines]))
    convert_images(
        folder,
        tmp_path / name,
        size=32,
        labels=Labels(tmp_path / f"{name}.csv", separator="|"),
        shuffle=False,
    )
    return open_pack(tmp_path / name)


def test_multi_hot_labels_are_kept_as_they_are(photo_folder: Path, tmp_path: Path):
    """Their classes are not in the order of text, 2 before 10, and their entries are no numbers of classes."""
    first = hot(photo_folder, tmp_path, "a", ["2|10", "10", "9|2"])
    hot(photo_folder, tmp_path, "b", ["10|9|2", "9"])
    assert first.header.classes == ("2", "9", "10")
    repack(tmp_path / "a", tmp_path / "r.h5")
    assert (opened(tmp_path / "r.h5").read("label") == first.read("label")).all()
    merge_packs([tmp_path / "a", tmp_path / "b"], tmp_path / "m", shuffle=False)
    assert opened(tmp_path / "m").read("label").tolist() == [
        [1, 0, 1], [0, 0, 1], [1, 1, 0], [1, 1, 1], [0, 1, 0],
    ]  # fmt: skip
    hot(photo_folder, tmp_path, "c", ["x|y", "z"])
    with pytest.raises(UsageError) as error:
        merge_packs([tmp_path / "a", tmp_path / "c"], tmp_path / "m2")
    assert str(error.value) == (
        f"{tmp_path}/c: its label columns are other classes than those of {tmp_path}/a; they have to be equal."
        " Convert the images of both at once."
    )


def test_packs_that_do_not_go_together(photo_folder: Path, tmp_path: Path, convert: Convert):
    convert(photo_folder, "a")
    convert(photo_folder, "small", size=16)
    convert(photo_folder / "red", "flat")
    (tmp_path / "l.csv").write_text("\n".join(["file,n", *(f"{k}.jpg,{k}" for k in range(8))]))
    convert(photo_folder / "red", "numbers", labels=tmp_path / "l.csv")
    sentences = {
        "small": "{b}: its field 'image' is u1 16x16x3, that of {a} is 'image', u1 32x32x3; the packs must have equal fields."
        " Run packer repack on one of them.",
        "flat": "{b}: has the fields image, key, {a} has image, label, key; packs with equal fields can be joined."
        " Convert a source that has all of them, with like='{a}'.",
        "numbers": "{b}, {a}: only one of them has class names; all packs need them, or none.",
    }
    for other, sentence in sentences.items():
        with pytest.raises(UsageError) as error:
            merge_packs([tmp_path / "a", tmp_path / other], tmp_path / "m")
        assert str(error.value) == sentence.format(a=tmp_path / "a", b=tmp_path / other)
    with pytest.raises(UsageError) as error:
        merge_packs([tmp_path / "a"], tmp_path / "m")
    assert str(error.value) == "merge: needs two or more packs. Pass their paths."
    assert not (tmp_path / "m").exists()


# Splitting


@pytest.mark.parametrize("options", [{}, {"store": "jpeg"}, {"shards": 5}, {"store": "gzip"}], ids=str)
def test_a_pack_is_dealt_out_with_equal_shares(
    photo_folder: Path, tmp_path: Path, convert: Convert, options: dict[str, Any]
):
    name = "p.h5" if "shards" not in options else "p"
    pack = convert(photo_folder, name, **options)
    before = files_of(tmp_path / name)
    reports = split_pack(tmp_path / name, "train=0.75,test=0.25", seed=3)
    parts = {}
    for split, rows in (("train", 18), ("test", 6)):
        path = tmp_path / f"p.{split}{'.h5' if name == 'p.h5' else ''}"
        parts[split] = opened(path)
        assert (reports[split].out, reports[split].rows) == (str(path), rows)
        assert np.bincount(parts[split].read("label").astype(int)).tolist() == [rows // 3] * 3
        keys = parts[split].keys()
        assert keys == [key for key in pack.keys() if key in set(keys)]  # in their old order
        assert parts[split].header.classes == pack.header.classes
        assert parts[split].header.field("image").codec == pack.header.field("image").codec
    assert content(parts["train"]) | content(parts["test"]) == content(pack)
    assert files_of(tmp_path / name) == before


def test_parts_older_than_their_pack_are_said_to_be(photo_folder: Path, tmp_path: Path, convert: Convert):
    convert(photo_folder, "p.h5")
    split_pack(tmp_path / "p.h5", "a=0.5,b=0.5")
    (tmp_path / "p.b.h5").unlink()
    os.utime(tmp_path / "p.a.h5", (1, 1))
    with pytest.raises(
        UsageError, match=r"p\.a\.h5: is a complete pack, but .*p\.h5 was changed after it was written"
    ):
        split_pack(tmp_path / "p.h5", "a=0.5,b=0.5")
    (tmp_path / "p.a.h5").write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"p\.a\.h5: exists; nothing is overwritten unasked\."):
        split_pack(tmp_path / "p.h5", "a=0.5,b=0.5")


@pytest.mark.usefixtures("impatient")
def test_an_addition_beside_another_and_after_one_of_other_images(
    photo_folder: Path, tmp_path: Path, convert: Convert, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("packer.writing.working_folder._DYING_SECONDS", 0.05)
    out = tmp_path / "p"
    convert(photo_folder, "p", shards=10)
    place = WorkingFolder(f"{out}.adding", plan={"a": 1})
    place.record("made")
    with pytest.raises(BusyError) as error:
        append_images(out, photo_folder)
    assert str(error.value) == (
        f"{out}: another packer is writing it ({out}.adding.packing is locked). Wait for it."
    )
    place.close(keep=True)
    added = CliRunner().invoke(cli, ["append", str(out), str(photo_folder), "--duplicates", "skip"])
    assert (
        "note: an interrupted conversion was cleared, since it differed (a was 1, now it is not given)"
        in (added.output)
    )


@pytest.mark.parametrize("name", ["../x", "a/b", "/x", "", ".", "..", "a\0b", "a\nb", "\x1b[2J"])
def test_names_of_splits_stay_names_of_files(photo_folder: Path, tmp_path: Path, convert: Convert, name: str):
    for folder in ("deep/p.a", "deep/p...", "deep/p.", "x"):  # where a name with a slash would lead
        (tmp_path / folder).mkdir(parents=True)
    convert(photo_folder, "deep/p.h5")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError) as error:
        split_pack(tmp_path / "deep" / "p.h5", {name: 0.5, "val": 0.5})
    assert str(error.value) in (
        f"split {name!r}: cannot be part of a file name; letters, digits and signs other than / are allowed."
        " Pass for example train=0.9,val=0.1.",
        f"split { ({name: 0.5, 'val': 0.5}) }: is not a list of names, each with a positive share, a number of rows, rest, first:N or "
        "last:N. Pass for example train=0.9,val=0.1 or "
        "train=rest,test=last:500000.",
    )
    assert sorted(tmp_path.rglob("*")) == before


def test_splits_differ_by_seed_and_go_where_asked(photo_folder: Path, tmp_path: Path, convert: Convert):
    convert(photo_folder, "p.h5")
    (tmp_path / "out").mkdir()
    keys = []
    for seed in (0, 1, 1):
        split_pack(tmp_path / "p.h5", {"a": 0.5, "b": 0.5}, out=tmp_path / "out", seed=seed, overwrite=True)
        keys.append(open_pack(tmp_path / "out" / "p.a.h5").keys())
    assert keys[0] != keys[1] == keys[2]
    with pytest.raises(
        UsageError, match=r"p\.a\.h5: is a complete pack, but of other .* part seed was 1, now it is 0"
    ):
        split_pack(tmp_path / "p.h5", "a=0.5,b=0.5", out=tmp_path / "out")


def split_of(pack: Pack) -> dict[str, str]:
    """Return key -> split."""
    return {key: name for name, ((a, b),) in pack.header.splits.items() for key in pack.keys(a, b)}


@pytest.mark.parametrize("options", [{}, {"store": "jpeg"}, {"shards": 5}, {"format": "npy"}], ids=str)
def test_parts_of_a_pack_keep_its_splits(
    photo_folder: Path, tmp_path: Path, convert: Convert, options: dict[str, Any]
):
    """And each class's share of each, and rows can be added to them as to the pack."""
    pack = convert(photo_folder, "p", **{"format": "h5", **options}, split="train=0.75,val=0.25")
    split_pack(tmp_path / "p", "a=0.5,b=0.5", seed=3)
    parts = [opened(tmp_path / f"p.{name}") for name in "ab"]
    assert split_of(parts[0]) | split_of(parts[1]) == split_of(pack)
    assert content(parts[0]) | content(parts[1]) == content(pack)
    for part in parts:
        (a, b), (c, d) = (part.header.splits[name][0] for name in ("train", "val"))
        assert (a, b, c, d) == (0, 9, 9, 12)
        assert np.bincount(part.read("label", a, b).astype(int)).tolist() == [3, 3, 3]
        assert np.bincount(part.read("label", c, d).astype(int)).tolist() == [1, 1, 1]
    more = renamed(photo_folder, tmp_path / "more")
    for path in (tmp_path / "p.a", tmp_path / "p"):
        repack(path, tmp_path / "grown", shards=8, overwrite=True)
        append_images(tmp_path / "grown", more)
        grown = opened(tmp_path / "grown")
        assert {name: sum(b - a for a, b in spans) for name, spans in grown.header.splits.items()} == {
            "train": (9 if path.name == "p.a" else 18) + 18,
            "val": (3 if path.name == "p.a" else 6) + 6,
        }


def test_shares_of_the_names_of_a_packs_splits_are_refused(
    photo_folder: Path, tmp_path: Path, convert: Convert
):
    convert(photo_folder, "p.h5", split="train=0.75,val=0.25")
    with pytest.raises(UsageError) as error:
        split_pack(tmp_path / "p.h5", "train=0.9,test=0.1")
    assert str(error.value) == (
        f"split train: {tmp_path}/p.h5 has a split of this name already; new packs get rows of every split (train, val) and need"
        " other names. Load its splits as they are, or pass other names."
    )


# Repacking

KINDS: dict[str, dict[str, Any]] = {
    "h5": {"format": "h5"},
    "npy": {"format": "npy"},
    "gzip": {"format": "h5", "store": "gzip"},
    "shards": {"shards": 5},
    "npy shards": {"shards": 7, "format": "npy"},
}


@pytest.mark.parametrize("before", KINDS)
@pytest.mark.parametrize("after", KINDS)
def test_pixels_survive_every_way(
    photo_folder: Path, tmp_path: Path, convert: Convert, before: str, after: str
):
    pack = convert(photo_folder, "a", split="train=0.75,test=0.25", **KINDS[before])
    options = {"store": "raw", **KINDS[after]}
    report = repack(tmp_path / "a", tmp_path / "b", workers=1, **options)
    found = opened(tmp_path / "b")
    assert (found.keys(), images_of(found)) == (pack.keys(), images_of(pack))
    assert (found.read("label") == pack.read("label")).all()
    assert found.header.splits == pack.header.splits
    assert (found.header.classes, found.header.seed) == (pack.header.classes, pack.header.seed)
    assert found.header.statistics["image"]["std"] == pytest.approx(pack.header.statistics["image"]["std"])
    codec = found.header.field("image").codec
    assert (codec and codec["name"]) == (KINDS[after].get("store"))
    assert (len(found.parts) > 1) == ("shards" in KINDS[after])
    assert found.format == KINDS[after].get("format", "h5")
    assert report.rows == 24


FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "zstd": ("{}.h5", {"store": "zstd"}),
    "npy": ("{}", {}),
    "zstd shards": ("{}", {"store": "zstd", "shards": 5}),
    "npy shards": ("{}", {"format": "npy", "shards": 5}),
    "jpeg shards": ("{}", {"store": "jpeg", "quality": 70, "shards": 5}),
    "shards of different sizes": ("{}", {"size": "max=24", "store": "jpeg", "quality": 70, "shards": 5}),
    "no ending": ("{}", {"format": "h5", "store": "zstd"}),
    "uint16 gzip": ("{}.h5", {"dtype": "uint16", "store": "gzip"}),
}


def form_of(path: Path) -> dict[str, Any]:
    pack = opened(path)
    provenance = pack.parts[0].header.provenance
    names = ("format", "store", "quality", "shard_rows", "dtype", "size")
    recorded = {name: provenance["options"].get(name) for name in names}
    shards = {shard.rows for shard in pack.shards[:-1]}
    image = pack.header.field("image")
    return recorded | {
        "shards": shards,
        "image": image,
        "format": pack.format,
        "versions": provenance["versions"],
    }


@pytest.mark.parametrize("form", FORMS)
def test_packs_of_packs_have_their_form(photo_folder: Path, tmp_path: Path, form: str) -> None:
    name, options = FORMS[form]
    out = {key: tmp_path / name.format(key) for key in ("p", "q", "p.a", "merged", "again", "like")}
    more = renamed(photo_folder, tmp_path / "more")
    for source, key in ((photo_folder, "p"), (more, "q")):
        convert_images(source, out[key], **{"size": 32} | options)
    assert split_pack(out["p"], "a=0.75,b=0.25")["a"].notes == ()
    assert merge_packs([out["p"], out["q"]], out["merged"]).notes == ()
    assert repack(out["p"], out["again"]).notes == ()
    convert_images(more, out["like"], like=out["p"])
    expected = form_of(out["p"])
    for key in ("p.a", "merged", "again", "like"):
        assert form_of(out[key]) == expected, key


def test_a_folder_of_shards_that_is_named_as_a_file_is_split_into_such_folders(
    photo_folder: Path, tmp_path: Path
) -> None:
    convert_images(photo_folder, tmp_path / "p.h5", size=32, store="gzip", shards=5)
    split_pack(tmp_path / "p.h5", "a=0.75,b=0.25")
    assert form_of(tmp_path / "p.a.h5") == form_of(tmp_path / "p.h5")


def test_compression_that_files_of_arrays_cannot_have_is_said(photo_folder: Path, tmp_path: Path) -> None:
    convert_images(photo_folder, tmp_path / "p.h5", size=32, store="zstd")
    note = (
        f"Rows of {tmp_path}/p.h5 are compressed (zstd); .npy files are not, so they are stored raw."
        " An output that ends in .h5 keeps the compression."
    )
    assert repack(tmp_path / "p.h5", tmp_path / "again").notes == (note,)
    assert repack(tmp_path / "p.h5", tmp_path / "asked", store="raw").notes == ()
    merged = merge_packs([tmp_path / "p.h5"] * 2, tmp_path / "merged", duplicates="keep")
    assert merged.notes == (note,)
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(40)))
    convert_table(tmp_path / "t.csv", tmp_path / "t.h5", label="y", store="zstd")
    noted = convert_table(tmp_path / "t.csv", tmp_path / "like", like=tmp_path / "t.h5").notes
    assert noted[0].startswith(f"Rows of {tmp_path}/t.h5 are compressed (zstd); .npy files are not")


def test_packs_of_packs_record_who_made_the_pixels_and_what_was_skipped(
    photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copied rows are those of the libraries that decoded them; new ones are made here."""
    (photo_folder / "red" / "0.jpg").write_bytes(b"")
    skipped = convert_images(photo_folder, tmp_path / "p.h5", size=32, store="jpeg", on_error="skip").skipped
    before = opened(tmp_path / "p.h5").header.provenance["versions"]
    here = dict.fromkeys(decoder_versions(), "99")
    monkeypatch.setattr("packer.convert.pack_rows.decoder_versions", lambda: here)
    monkeypatch.setattr("packer.codecs.jpeg.versions", lambda: {"opencv": "99"})
    for name, work in {
        "p.a.h5": lambda: split_pack(tmp_path / "p.h5", "a=0.5,b=0.5")["a"],
        "twice.h5": lambda: merge_packs([tmp_path / "p.h5"] * 2, tmp_path / "twice.h5", duplicates="keep"),
        "again.h5": lambda: repack(tmp_path / "p.h5", tmp_path / "again.h5"),
    }.items():
        assert work().skipped == ()
        header = opened(tmp_path / name).header
        assert (header.provenance["versions"], header.skipped) == (before, skipped), name
    assert repack(tmp_path / "p.h5", tmp_path / "again.h5", resume=True).already
    assert split_pack(tmp_path / "p.h5", "a=0.5,b=0.5")["a"].already
    repack(tmp_path / "p.h5", tmp_path / "small.h5", size=16)
    assert opened(tmp_path / "small.h5").header.provenance["versions"] == before | here


def test_a_compressed_table_is_split(tmp_path: Path) -> None:
    """Its labels are compressed, too."""
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(400)))
    convert_table(tmp_path / "t.csv", tmp_path / "t", label="y", store="zstd", shards=150)
    split_pack(tmp_path / "t", "a=0.75,b=0.25")
    part = opened(tmp_path / "t.a")
    assert ([s.rows for s in part.shards], part.parts[0].header.provenance["options"]["store"]) == (
        [150, 150],
        "zstd",
    )


def test_splits_by_folders_keep_their_order(photo_folder: Path, tmp_path: Path, convert: Convert):
    for name in ("train", "test"):
        shutil.copytree(photo_folder, tmp_path / "s" / name)
    pack = convert(tmp_path / "s", "a")
    repack(tmp_path / "a", tmp_path / "b")
    assert pack.keys()[0].startswith("train/")
    assert opened(tmp_path / "b").keys() == pack.keys()


def test_jpeg_rows_are_passed_on_untouched(photo_folder: Path, tmp_path: Path, convert: Convert):
    pack = convert(photo_folder, "a", store="jpeg", quality=70)
    for name, options in (("b.h5", {}), ("c", {"quality": 70}), ("d", {"shards": 5, "store": "jpeg"})):
        repack(tmp_path / "a", tmp_path / name, **options)
        found = opened(tmp_path / name)
        assert found.read_ragged("image") == pack.read_ragged("image")
        assert found.header.field("image") == pack.header.field("image")
        mean = found.header.statistics["image"]["mean"]
        assert mean == pytest.approx(
            pack.header.statistics["image"]["mean"], rel=0.02
        )  # of the decoded pixels


def test_kept_files_are_passed_on_untouched(photo_folder: Path, tmp_path: Path, convert: Convert):
    pack = convert(photo_folder, "a", size="keep", store="jpeg")
    repack(tmp_path / "a", tmp_path / "b.h5")
    merge_packs([tmp_path / "a", tmp_path / "b.h5"], tmp_path / "m", shuffle=False, duplicates="keep")
    files = [(photo_folder / key).read_bytes() for key in pack.keys()]
    assert opened(tmp_path / "b.h5").read_ragged("image") == files
    assert opened(tmp_path / "m").read_ragged("image") == files * 2
    repack(tmp_path / "a", tmp_path / "c", store="raw", size=32)
    assert images_of(opened(tmp_path / "c")) == images_of(convert(photo_folder, "direct"))


def test_whole_pictures_keep_their_sizes_until_they_get_one(
    photo_folder: Path, tmp_path: Path, convert: Convert
):
    Image.new("RGB", (90, 30), (9, 8, 7)).save(photo_folder / "red" / "wide.png")
    pack = convert(photo_folder, "a", size="max=40", store="jpeg", shards=10)
    sizes = [pack.read(name).tolist() for name in ("height", "width")]
    assert sorted({*zip(*sizes, strict=True)}) == [(13, 40), (33, 40)]
    repack(tmp_path / "a", tmp_path / "b.h5")
    merge_packs([tmp_path / "a", tmp_path / "b.h5"], tmp_path / "m", shuffle=False, duplicates="keep")
    for name, times in (("b.h5", 1), ("m", 2)):
        found = opened(tmp_path / name)
        assert found.read_ragged("image") == pack.read_ragged("image") * times
        assert [found.read(name).tolist() for name in ("height", "width")] == [each * times for each in sizes]
        mean = found.header.statistics["image"]["mean"]
        assert mean == pytest.approx(pack.header.statistics["image"]["mean"], rel=0.02)
    parts = split_pack(tmp_path / "b.h5", "x=0.5,y=0.5")
    assert sum(report.rows for report in parts.values()) == 25
    repack(tmp_path / "a", tmp_path / "c", store="raw", size=16)
    assert [f.name for f in opened(tmp_path / "c").fields] == ["image", "label", "key"]
    append_images(tmp_path / "a", photo_folder, duplicates="keep")
    assert opened(tmp_path / "a").read("height").tolist() == sizes[0] * 2
    other = convert(photo_folder, "other", size="max=20", store="jpeg", shards=10)
    for source in ("a", "b.h5"):
        repack(tmp_path / source, tmp_path / "small.h5", size="max=20", overwrite=True)
        small = opened(tmp_path / "small.h5")
        assert [f.name for f in small.fields] == ["image", "label", "height", "width", "key"]
        assert small.header.field("image") == other.header.field("image")
        assert [jpeg.size(data)[:2] for data in small.read_ragged("image")] == list(
            zip(small.read("height").tolist(), small.read("width").tolist(), strict=True)
        )
        assert small.read("height").tolist()[:25] == other.read("height").tolist()
        assert small.header.statistics["image"]["mean"] == pytest.approx(mean, rel=0.05)
    with pytest.raises(UsageError, match=r"of 'image', size was max=40, now it is max=20"):
        merge_packs([tmp_path / "a", tmp_path / "other"], tmp_path / "n", duplicates="keep")


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_alpha_weighs_the_colors_of_rows_that_shrink(tmp_path: Path, dtype: type[np.unsignedinteger]):
    most = np.iinfo(dtype).max
    image = np.zeros((16, 16, 4), dtype)
    image[:, ::2] = (most, 0, 0, most)
    image[:, 1::2] = (0, most, 0, 0)  # green that is not seen
    samples = [{"image": image, "label": 0}] * 2
    pack_dataset(samples, tmp_path / "p.h5")
    pack_dataset(samples, tmp_path / "small.h5", size=8)
    repack(tmp_path / "p.h5", tmp_path / "q.h5", size=8)
    found = open_pack(tmp_path / "q.h5").read("image")
    assert (found[..., :3] == (most, 0, 0)).all()
    assert np.array_equal(found, open_pack(tmp_path / "small.h5").read("image"))


def test_qualities_that_are_refused(photo_folder: Path, tmp_path: Path, convert: Convert):
    convert(photo_folder, "raw.h5")
    convert(photo_folder, "j.h5", store="jpeg")
    for quality in (0, 101):
        with pytest.raises(
            UsageError, match=f"quality {quality}: is not within 1 to 100. Pass for example 90."
        ):
            repack(tmp_path / "j.h5", tmp_path / "out.h5", quality=quality)
    with pytest.raises(
        UsageError,
        match=r"^quality 50: is about JPEG rows, but rows of .*out.h5 are raw. Pass store='jpeg', or",
    ):
        repack(tmp_path / "raw.h5", tmp_path / "out.h5", quality=50)
    assert not (tmp_path / "out.h5").exists()


def test_other_qualities_and_stores_are_encoded_anew(photo_folder: Path, tmp_path: Path, convert: Convert):
    raw = convert(photo_folder, "raw")
    repack(tmp_path / "raw", tmp_path / "j", store="jpeg", quality=80)
    encoded = opened(tmp_path / "j")
    assert encoded.read_ragged("image") == [jpeg.encode(image, 80) for image in raw.read("image")]
    repack(tmp_path / "j", tmp_path / "k", quality=30)
    pixels = [jpeg.decode(data, 1 << 20) for data in encoded.read_ragged("image")]
    again = opened(tmp_path / "k")
    assert again.read_ragged("image") == [jpeg.encode(image, 30) for image in pixels]
    assert again.header.field("image").codec == {"name": "jpeg", "shape": [32, 32, 3], "quality": 30}
    for store in ({"store": "raw"}, {"store": "gzip"}):
        repack(tmp_path / "j", tmp_path / "r.h5", overwrite=True, **store)
        assert images_of(opened(tmp_path / "r.h5")) == [image.tobytes() for image in pixels]
    repack(tmp_path / "r.h5", tmp_path / "npy")
    assert images_of(opened(tmp_path / "npy")) == [image.tobytes() for image in pixels]


@pytest.mark.parametrize("options", [{}, {"store": "jpeg"}, {"store": "gzip"}, {"shards": 1}], ids=str)
@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
def test_masks_boxes_and_points_follow_a_smaller_size(tmp_path: Path, options: dict[str, Any], fit: str):
    pack = boxed(tmp_path, "a", ["dog", "cat"], format="h5", **options)
    repack(tmp_path / "a", tmp_path / "b", size="16x32", fit=fit, format="h5")
    found = opened(tmp_path / "b")
    assert found.keys() == pack.keys()
    assert found.header.field("image").loaded.shape == (16, 32, 3)
    geometry = ImagePlacement.for_fit(fit, (64, 64), (16, 32))
    box, _ = geometry.boxes(np.array([[8.0, 16, 40, 48]]))
    reader = PackStore(found, found.fields)
    for row, key in enumerate(found.keys()):
        k = int(key[1])
        assert (
            np.frombuffer(found.read_ragged("boxes")[row], "<f4").reshape(-1, 4).tolist()
            == [box[0].tolist()] * 2
        )
        point = geometry.keypoints(np.array([[12.0 + k, 20]]))
        np.testing.assert_array_equal(found.read("keypoints")[row], point)
        mask = np.empty((1, 16 * 32), np.uint8)
        reader.copy(Runs(np.array([row]), np.array([1])), {"mask": mask})
        rows, columns = np.nonzero(mask.reshape(16, 32) == 7 + k)
        left, top, right, bottom = box[0].tolist()
        assert (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) == (left, top, right, bottom)
    assert kinds_of(found) == kinds_of(pack)


def test_boxes_that_are_cut_away_take_their_labels_with_them(tmp_path: Path):
    folder = tmp_path / "in"
    folder.mkdir()
    Image.new("RGB", (64, 64)).save(folder / "a.png")
    (tmp_path / "l.csv").write_text("file,l,t,r,b,kind\na.png,0,0,64,8,top\na.png,0,20,64,40,middle\n")
    convert_images(
        folder, tmp_path / "a", size=64, labels=Labels(tmp_path / "l.csv", column="kind", boxes="l,t,r,b")
    )
    repack(tmp_path / "a", tmp_path / "b", size="16x64")
    pack = opened(tmp_path / "b")
    assert kinds_of(pack) == {"a.png": ["middle"]}
    assert np.frombuffer(pack.read_ragged("boxes")[0], "<f4").tolist() == [0, 0, 64, 16]


def test_sizes_that_are_refused_or_nothing(photo_folder: Path, tmp_path: Path, convert: Convert):
    pack = convert(photo_folder, "a")
    with pytest.raises(UsageError) as error:
        repack(tmp_path / "a", tmp_path / "b", size=64)
    assert str(error.value) == (
        f"size 64x64: {tmp_path}/a has images of 32x32; they can only shrink."
        " Pass a smaller size, or convert the source again."
    )
    report = repack(tmp_path / "a", tmp_path / "c", size=20)
    assert report.notes == ()
    assert repack(tmp_path / "a", tmp_path / "b", size=32, fit="pad").notes == ()
    assert images_of(opened(tmp_path / "b")) == images_of(pack)


def test_from_shards_to_one_file_the_image_rows_are_a_direct_conversions(
    photo_folder: Path, tmp_path: Path, convert: Convert
):
    for options in ({}, {"store": "jpeg"}, {"store": "gzip"}):
        direct = convert(photo_folder, "one.h5", overwrite=True, **options)
        convert(photo_folder, "shards", overwrite=True, shards=6, **options)
        repack(tmp_path / "shards", tmp_path / "again.h5", overwrite=True)
        again = opened(tmp_path / "again.h5")

        def stored(pack: Pack) -> list[bytes]:
            data = Path(pack.path).read_bytes()
            return [
                data[e.offset : e.end] for array in pack.header.columns for e in pack.header.extents[array]
            ]

        assert stored(again) == stored(direct)
        assert again.header.extents == direct.header.extents


def test_an_interrupted_repack_goes_on(photo_folder: Path, tmp_path: Path, convert: Convert):
    convert(photo_folder, "a")
    repack(tmp_path / "a", tmp_path / "whole", shards=7)

    def stop(rows: int) -> None:
        if rows > 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="Finished work is kept"):
        repack(tmp_path / "a", tmp_path / "b", shards=7, workers=1, on_progress=stop)
    with pytest.raises(
        UsageError, match=r"b: resume=True cannot continue the work in .*b\.packing: options "
    ):
        repack(tmp_path / "a", tmp_path / "b", shards=8, resume=True)
    report = repack(tmp_path / "a", tmp_path / "b", shards=7, resume=True)
    assert report.resumed >= 7
    assert files_of(tmp_path / "b") == files_of(tmp_path / "whole")
    again = repack(tmp_path / "a", tmp_path / "b", shards=7, resume=True)
    assert (again.already, again.rows) == (True, report.rows)
    with pytest.raises(
        UsageError, match="b: is a complete pack, but of other options or inputs: options shard_rows was 7"
    ):
        repack(tmp_path / "a", tmp_path / "b", shards=8, resume=True)


@pytest.mark.parametrize("options", [{}, {"store": "jpeg"}, {"store": "gzip"}, {"size": "max=32"}], ids=str)
def test_damaged_rows_get_no_new_checksums(
    photo_folder: Path, tmp_path: Path, convert: Convert, options: dict[str, Any]
):
    pack = convert(photo_folder, "a.h5", **options)
    convert(photo_folder, "b.h5", **options)
    (extent, *_) = pack.header.extents["image"]
    with open(pack.path, "r+b") as file:
        file.seek(extent.offset + extent.nbytes - 1)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([last ^ 1]))
    ways: list[Callable[[Path], object]] = [
        lambda out: merge_packs([tmp_path / "a.h5", tmp_path / "b.h5"], out, duplicates="keep"),
        lambda out: repack(tmp_path / "a.h5", out),
        lambda out: repack(tmp_path / "a.h5", out, size=16),
        lambda out: split_pack(tmp_path / "a.h5", "x=0.5,y=0.5", out=tmp_path),
    ]
    for number, way in enumerate(ways):
        with pytest.raises(FormatError, match=r"a\.h5: rows .* of 'image' are damaged"):
            way(tmp_path / f"{number}.h5")
        assert not (tmp_path / f"{number}.h5").exists()


# Appending


@pytest.mark.parametrize("options", [{}, {"store": "jpeg"}, {"store": "gzip"}, {"format": "npy"}], ids=str)
def test_appended_images_are_further_shards(
    photo_folder: Path, tmp_path: Path, convert: Convert, options: dict[str, Any]
):
    renamed(photo_folder, tmp_path / "more")
    shutil.rmtree(tmp_path / "more" / "blue")
    (tmp_path / "more" / "red" / "n0.jpg").write_bytes(b"")
    before = content(convert(photo_folder, "p", shards=10, split="train=0.75,test=0.25", **options))
    old = files_of(tmp_path / "p")
    plans: list[Any] = []
    report = append_images(tmp_path / "p", tmp_path / "more", on_error="skip", on_plan=plans.append)
    pack = opened(tmp_path / "p")
    rows = [shard.rows for shard in pack.shards]
    assert rows[:3] == [10, 10, 4]
    assert sorted(rows[3:]) in ([6, 9], [5, 10])
    assert (report.rows, [s["key"] for s in report.skipped], plans[0].rows) == (15, ["red/n0.jpg"], 16)
    now = files_of(tmp_path / "p")
    assert {name: data for name, data in now.items() if name in old and name != "index.json"} == {
        name: data for name, data in old.items() if name != "index.json"
    }
    shutil.copytree(tmp_path / "more", tmp_path / "all")
    shutil.copytree(photo_folder, tmp_path / "all", dirs_exist_ok=True)
    (tmp_path / "all" / "red" / "n0.jpg").unlink()
    whole = convert(tmp_path / "all", "whole", **{"format": "h5", **options})
    assert content(pack) == content(whole)
    assert before.items() <= content(pack).items()
    for value in ("mean", "std"):
        assert pack.header.statistics["image"][value] == pytest.approx(
            whole.header.statistics["image"][value]
        )
    assert sum(b - a for spans in pack.header.splits.values() for a, b in spans) == 39


def test_a_killed_append_leaves_the_old_pack_and_is_replaced(
    photo_folder: Path, tmp_path: Path, convert: Convert, monkeypatch: pytest.MonkeyPatch
):
    convert(photo_folder, "p", shards=12)
    shutil.copytree(tmp_path / "p", tmp_path / "q")
    old = content(open_pack(tmp_path / "p"))

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("packer.convert.shard_appending.name_index", die)
        with pytest.raises(KeyboardInterrupt):
            append_images(tmp_path / "p", photo_folder / "red", labels=labels_of(tmp_path, "red"))
    left = ["00000.h5", "00001.h5", "00002.h5", "index.json", "index.json.new"]
    assert sorted(os.listdir(tmp_path / "p")) == left
    assert content(opened(tmp_path / "p")) == old
    check_output(str(tmp_path / "p"), overwrite=True)  # all of that is ours
    for name in ("p", "q"):
        report = append_images(tmp_path / name, photo_folder / "red", labels=labels_of(tmp_path, "red"))
        assert report.resumed == (8 if name == "p" else 0)
    assert opened(tmp_path / "p").rows == 32
    assert files_of(tmp_path / "p") == files_of(tmp_path / "q")
    assert sorted(os.listdir(tmp_path)) == ["labels.csv", "p", "photos", "q"]


def test_files_of_others_beside_shards_stay(photo_folder: Path, tmp_path: Path, convert: Convert):
    """Also in a place that an append, which was killed, wanted for a shard of its own."""
    convert(photo_folder, "p", shards=12)
    (tmp_path / "p" / "00002.h5").write_bytes(b"mine")
    for _ in range(2):
        with pytest.raises(PackerError, match=r"/p/00002\.h5: is not packer's; it is not overwritten\."):
            append_images(tmp_path / "p", photo_folder / "red", labels=labels_of(tmp_path, "red"))
    (tmp_path / "p" / "00002.h5").rename(tmp_path / "p" / "00009.h5")
    report = append_images(tmp_path / "p", photo_folder / "red", labels=labels_of(tmp_path, "red"))
    lines = read_index(str(tmp_path / "p")).shards
    assert (report.resumed, [shard.name for shard in lines]) == (8, ["00000.h5", "00001.h5", "00002.h5"])
    headers = [part.header for part in open_pack(tmp_path / "p").parts]
    coming = [*lines, replace(lines[-1], path=str(tmp_path / "p" / "00009.h5"))]
    prepare_index(str(tmp_path / "p"), coming, ())
    append_images(
        tmp_path / "p", photo_folder / "blue", labels=labels_of(tmp_path, "blue"), duplicates="keep"
    )
    assert (tmp_path / "p" / "00009.h5").read_bytes() == b"mine"
    assert [part.header for part in opened(tmp_path / "p").parts][:3] == headers
    with pytest.raises(UsageError, match="is not a pack, or holds other files"):
        check_output(str(tmp_path / "p"), overwrite=True)


def test_an_append_goes_on_behind_whole_shards_and_bad_ones(
    photo_folder: Path, tmp_path: Path, convert: Convert
):
    """A new shard whose images are all bad is left out; what is done lies beside the pack, which can be replaced meanwhile."""
    convert(photo_folder, "p", shards=4, shuffle=False)
    more = renamed(photo_folder, tmp_path / "more")
    for path in sorted((more / "blue").iterdir())[4:]:
        path.write_bytes(b"")
    shutil.copytree(tmp_path / "p", tmp_path / "q")

    def stop(rows: int) -> None:
        if rows >= 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        append_images(tmp_path / "p", more, workers=1, on_error="skip", on_progress=stop)
    assert files_of(tmp_path / "p") == files_of(tmp_path / "q")
    report = append_images(tmp_path / "p", more, workers=1, on_error="skip")
    assert (report.rows, len(report.skipped)) == (20, 4)
    assert report.resumed in (8, 12)  # a shard may be sealed on its thread meanwhile
    append_images(tmp_path / "q", more, workers=1, on_error="skip")
    assert files_of(tmp_path / "p") == files_of(tmp_path / "q")
    names = [f"{number:05d}.h5" for number in (*range(6), 6, *range(8, 12))]
    assert [shard.name for shard in read_index(str(tmp_path / "p")).shards] == names
    assert len(open_pack(tmp_path / "p").header.skipped) == 4


def test_an_append_stopped_within_a_shard_goes_on(photo_folder: Path, tmp_path: Path, convert: Convert):
    for name in ("p", "q"):
        convert(photo_folder, name, shards=12)

    def stop(rows: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        append_images(tmp_path / "p", photo_folder, workers=1, on_progress=stop, duplicates="keep")
    assert opened(tmp_path / "p").rows == 24
    for name in ("p", "q"):
        append_images(tmp_path / name, photo_folder, workers=1, duplicates="keep")
    assert files_of(tmp_path / "p") == files_of(tmp_path / "q")


def labels_of(tmp_path: Path, name: str) -> Path:
    path = tmp_path / "labels.csv"
    path.write_text("\n".join(["file,label", *(f"{k}.jpg,{name}" for k in range(8))]))
    return path


def test_what_cannot_be_appended(photo_folder: Path, others: Path, tmp_path: Path, convert: Convert):
    convert(photo_folder, "p", shards=12)
    convert(photo_folder, "one.h5")
    convert(photo_folder / "red", "flat", shards=4)
    (tmp_path / "n.csv").write_text("\n".join(["file,n", *(f"{k}.jpg,{k}" for k in range(8))]))
    convert(photo_folder / "red", "numbers", shards=4, labels=tmp_path / "n.csv")
    repack(tmp_path / "p", tmp_path / "repacked", size=16, shards=6)
    for name in ("train", "val"):
        shutil.copytree(photo_folder, tmp_path / "splits" / name)
    own = "Arrange the new images like those of the pack."
    cases = [
        (
            "p",
            others,
            f"{others}: holds the class amber; 3 classes, blue, green, red, are allowed. "
            "Leave its images out, add it, or pass on_error='skip'.",
        ),
        (
            "one.h5",
            photo_folder,
            "{p}: is a single file; only packs of shards can grow. Repack it into shards, then append:"
            f" repack('{{p}}', '{tmp_path / 'one'}', shards='2GB'); append_images('{tmp_path / 'one'}', '{photo_folder}')",
        ),
        ("flat", photo_folder, "{p}: has other fields than the new rows. Pass the options of the pack."),
        (
            "numbers",
            photo_folder,
            "{p}: has no classes, the new rows would have blue, green, red; they have to be equal. " + own,
        ),
        (
            "p",
            tmp_path / "splits",
            "{p}: has no splits, the new rows would have train, val; they have to be equal. " + own,
        ),
        (
            "repacked",
            photo_folder,
            "{p}: does not record its options. Convert the images to a new pack, then run packer merge on both.",
        ),
    ]
    for name, source, sentence in cases:
        before = files_of(tmp_path / name)
        with pytest.raises(UsageError) as error:
            append_images(tmp_path / name, source)
        assert str(error.value) == sentence.format(p=tmp_path / name)
        assert files_of(tmp_path / name) == before


@pytest.mark.parametrize("name", ["index.json.new", "extra", "00002.h5"])
def test_links_in_a_pack_to_append_to_are_refused(
    photo_folder: Path, tmp_path: Path, convert: Convert, name: str
):
    convert(photo_folder, "p", shards=12)
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "p" / name).symlink_to(tmp_path / "precious")
    with pytest.raises(UsageError, match=rf"/p/{name}: is a link; packer writes only into packs of its user"):
        append_images(tmp_path / "p", photo_folder, duplicates="keep")
    assert (tmp_path / "precious").read_text() == "precious"


def test_work_of_another_user_is_not_moved_into_a_pack(
    photo_folder: Path, tmp_path: Path, convert: Convert, monkeypatch: pytest.MonkeyPatch
):
    """A killed append leaves its next index, and shards are moved back into the folder of its work."""
    pack = convert(photo_folder, "p", shards=12)
    (tmp_path / "p.adding.packing" / "pack").mkdir(parents=True)
    (tmp_path / "p.adding.packing").chmod(0o777)
    shutil.copy(tmp_path / "p" / "index.json", tmp_path / "p" / "index.json.new")
    before = files_of(tmp_path / "p")
    with pytest.raises(UsageError, match=r"p\.adding\.packing: others can write to it \(mode 777\)"):
        append_images(tmp_path / "p", photo_folder, duplicates="keep")
    assert files_of(tmp_path / "p") == before
    assert open_pack(tmp_path / "p").seal == pack.seal


def test_appended_shards_are_as_readable_as_others(photo_folder: Path, tmp_path: Path, convert: Convert):
    convert(photo_folder, "p", shards=12, format="npy")
    append_images(tmp_path / "p", photo_folder, duplicates="keep")
    modes = {path.name: path.stat().st_mode for path in (tmp_path / "p").iterdir()}
    assert modes["00002"] == modes["00000"]
    files = {path.stat().st_mode & 0o777 for path in (tmp_path / "p").rglob("*.*")}
    assert files == {(tmp_path / "p" / "index.json").stat().st_mode & 0o777} == {modes["index.json"] & 0o777}


def test_a_bad_input_stops_an_append(photo_folder: Path, tmp_path: Path, convert: Convert):
    convert(photo_folder, "p", shards=12)
    (photo_folder / "red" / "0.jpg").write_bytes(b"")
    with pytest.raises(
        SourceError, match=re.escape("red/0.jpg: empty (0 bytes). Remove it, or pass on_error='skip'.")
    ):
        append_images(tmp_path / "p", photo_folder, duplicates="keep")
    assert opened(tmp_path / "p").rows == 24


def test_the_commands_that_make_a_pack_of_shards_of_one_file_work(photo_folder: Path, tmp_path: Path):
    """Those that the error of appending to one file names."""
    for name, grown in (("one.h5", "one"), ("two", "two-shards")):
        convert_images(photo_folder, tmp_path / name, size=16)
        with pytest.raises(UsageError) as error:
            append_images(tmp_path / name, photo_folder)
        assert in_options(str(error.value)).endswith(
            f": packer repack {tmp_path / name} {tmp_path / grown} --shard-size 2GB"
            f" && packer append {tmp_path / grown} {photo_folder}"
        )
        repack(tmp_path / name, tmp_path / grown, shards="2GB")
        append_images(tmp_path / grown, photo_folder, duplicates="keep")
        assert opened(tmp_path / grown).rows == 48
        assert opened(tmp_path / name).rows == 24


def test_a_pack_is_shuffled_anew(photo_folder: Path, tmp_path: Path, convert: Convert):
    convert(photo_folder, "p.h5", shuffle=False)
    repack(tmp_path / "p.h5", tmp_path / "s.h5", shuffle=True, seed=3)
    plain, shuffled = opened(tmp_path / "p.h5"), opened(tmp_path / "s.h5")
    assert (plain.header.seed, shuffled.header.seed) == (None, 3)
    assert content(plain) == content(shuffled)
    assert plain.keys() != shuffled.keys()


@pytest.mark.parametrize(
    ("made", "given", "found"),
    [
        ({}, {"size": "max=16"}, "size max=16: is for images of different sizes; those of {p} have 32x32"),
        ({"size": "keep", "store": "jpeg"}, {"size": "keep"}, "size keep: applies to image files, not to packs"),
    ],
)  # fmt: skip
def test_what_cannot_become_smaller_whole_pictures(
    photo_folder: Path,
    tmp_path: Path,
    convert: Convert,
    made: dict[str, Any],
    given: dict[str, Any],
    found: str,
):
    convert(photo_folder, "a", **made)
    with pytest.raises(UsageError) as error:
        repack(tmp_path / "a", tmp_path / "b", **given)
    found = found.format(p=tmp_path / "a")
    assert str(error.value) == f"{found}. Pass a number or HxW, for example 256, or leave it out."


def test_boxes_and_points_shrink_with_kept_pictures(photo_folder: Path, tmp_path: Path, convert: Convert):
    (tmp_path / "l.csv").write_text(
        "file,l,t,r,b,x,y\n" + "".join(f"{k}.jpg,8,4,40,36,12,20\n" for k in range(8))
    )
    told = {"labels": Labels(tmp_path / "l.csv", boxes="l,t,r,b", keypoints="x,y"), "store": "jpeg"}
    convert(photo_folder / "red", "kept", size="keep", **told)
    straight = convert(photo_folder / "red", "straight", size="max=24", **told)
    repack(tmp_path / "kept", tmp_path / "small", size="max=24", quality=90)
    small = opened(tmp_path / "small")
    assert small.read_ragged("boxes") == straight.read_ragged("boxes")
    assert (small.read("keypoints") == straight.read("keypoints")).all()
    assert small.read_ragged("image") == straight.read_ragged("image")
    assert small.header.statistics == straight.header.statistics


def test_packs_in_a_store_are_downloaded_first(tmp_path: Path):
    url = (tmp_path / "p").as_uri()
    acts: list[Callable[[], object]] = [
        lambda: repack(url, tmp_path / "q.h5"),
        lambda: repack(tmp_path / "q.h5", url),
        lambda: merge_packs([tmp_path / "q.h5", url], tmp_path / "r.h5"),
        lambda: split_pack(url, "a=0.5,b=0.5"),
        lambda: append_images(url, tmp_path),
        lambda: append_table(url, tmp_path / "t.csv"),
    ]
    for act in acts:
        with pytest.raises(UsageError, match=r"^file:.*/p: is a remote pack; a local one is needed\."):
            act()


def test_a_split_without_rows_stays_one() -> None:
    header = SimpleNamespace(splits={"train": ((0, 2),), "val": (), "test": ((2, 3),)})
    owners = split_owners(cast(Pack, SimpleNamespace(path="p.h5", rows=3, header=header)))
    assert dict(zip(owners.names, np.bincount(owners.numbers, minlength=3).tolist(), strict=True)) == {
        "train": 2,
        "val": 0,
        "test": 1,
    }
