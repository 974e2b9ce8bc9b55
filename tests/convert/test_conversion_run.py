"""Every way to store a pack, from the same photos: holes, splits, shards and workers must not matter to what a row holds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer.codecs import jpeg
from packer.convert.image_conversion import convert_images
from packer.errors import UsageError
from packer.inputs.label_options import Labels
from packer.orders.runs import Runs
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.packs.verify import verify_pack
from packer.read.array_store import PackStore
from tests.format.packs import files_of

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "h5": ("p.h5", {}),
    "npy": ("p", {}),
    "jpeg": ("p.h5", {"store": "jpeg"}),
    "jpeg npy": ("p", {"store": "jpeg"}),
    "gzip": ("p.h5", {"store": "gzip"}),
    "shards": ("p", {"shards": 7}),
    "npy shards": ("p", {"shards": 7, "format": "npy"}),
    "gzip shards": ("p", {"shards": 7, "store": "gzip"}),
    "keep": ("p.h5", {"size": "keep", "store": "jpeg"}),
    "max": ("p.h5", {"size": "max=20", "store": "jpeg"}),
}
every_way = pytest.mark.parametrize(("out", "options"), WAYS.values(), ids=list(WAYS))
Convert = Callable[..., Pack]


@pytest.fixture
def convert(tmp_path: Path, small_blocks: None) -> Convert:
    """convert(source, name, **options) -> the pack, which verifies."""

    def run(source: Path, name: str, **options: Any) -> Pack:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        report = convert_images(
            source, tmp_path / name, **{"size": 32, "on_error": "skip", "workers": 1, **options}
        )
        assert verify_pack(tmp_path / name).problems == ()
        pack = open_pack(tmp_path / name)
        assert (report.rows, report.skipped) == (pack.rows, pack.header.skipped)
        assert report.bytes_written == pack.nbytes
        return pack

    return run


def rows_of(pack: Pack) -> list[tuple[Any, ...]]:
    """Each row's fields, as they are loaded; of JPEG files of any size their bytes."""
    reader, rows = PackStore(pack, pack.fields), Runs(np.array([0]), np.array([pack.rows]))
    columns: list[list[Any]] = []
    for f in pack.fields:
        if f.loaded.ragged:
            columns.append(reader.ragged(f.name, rows))
            continue
        out = np.empty((pack.rows, f.loaded.row_bytes), np.uint8)
        reader.copy(rows, {f.name: out})
        columns.append([row.tobytes() for row in out])
    reader.close()
    return list(zip(*columns, strict=True))


def spoil(folder: Path, *keys: str) -> None:
    for key in keys:
        (folder / key).write_bytes(b"")


def without(folder: Path, copy: Path, *keys: str) -> Path:
    """The same folder, had these files never been there."""
    shutil.copytree(folder, copy)
    for key in keys:
        (copy / key).unlink()
    return copy


SOME = ("blue/1.jpg", "green/0.jpg", "green/1.jpg", "red/7.jpg")


@every_way
def test_every_way_holds_the_same_rows_in_the_same_order(
    photo_folder: Path, convert: Convert, out: str, options: dict[str, Any]
):
    pack, raw = convert(photo_folder, f"o/{out}", **options), convert(photo_folder, "raw.h5")
    keys, classes = raw.keys(), ("blue", "green", "red")
    assert pack.keys() == keys
    assert pack.header.classes == classes
    assert pack.read("label").tolist() == [classes.index(key.split("/")[0]) for key in keys]
    images = [row[0] for row in rows_of(pack)]
    if options.get("size") == "keep":
        assert images == [(photo_folder / key).read_bytes() for key in keys]
    elif options.get("size") == "max=20":
        assert {jpeg.size(image) for image in images} == {(16, 20, 3)}
        assert pack.read("height").tolist() == [16] * 24
        assert pack.read("width").tolist() == [20] * 24
    elif options.get("store") == "jpeg":
        encoded = [jpeg.encode(image, 90) for image in raw.read("image")]
        assert pack.read_ragged("image") == encoded
        assert images == [jpeg.decode(data, 1 << 20).tobytes() for data in encoded]
    else:
        assert images == [image.tobytes() for image in raw.read("image")]
        assert pack.header.statistics["image"]["mean"] == pytest.approx(
            raw.header.statistics["image"]["mean"]
        )
        assert pack.header.statistics["image"]["std"] == pytest.approx(raw.header.statistics["image"]["std"])


@every_way
@pytest.mark.parametrize(
    "bad",
    [SOME, tuple(f"{name}/{k}.jpg" for name in ("blue", "red") for k in (0, 2, 3, 4, 6))],
    ids=["some", "many"],
)
def test_skipped_inputs_leave_the_rows_of_the_others(
    photo_folder: Path,
    tmp_path: Path,
    convert: Convert,
    out: str,
    options: dict[str, Any],
    bad: tuple[str, ...],
):
    clean = without(photo_folder, tmp_path / "clean", *bad)
    spoil(photo_folder, *bad)
    holed = convert(photo_folder, f"a/{out}", **options)
    whole = convert(clean, f"b/{out}", **options)
    assert sorted(rows_of(holed)) == sorted(rows_of(whole))
    assert sorted(s["key"] for s in holed.header.skipped) == sorted(bad)
    if options.get("size") != "keep":
        for name in ("mean", "std"):
            found, expected = (pack.header.statistics["image"][name] for pack in (holed, whole))
            assert found == pytest.approx(expected, rel=1e-9)


@every_way
def test_byte_identical_for_one_worker_and_two(
    photo_folder: Path, tmp_path: Path, convert: Convert, out: str, options: dict[str, Any]
):
    spoil(photo_folder, *SOME)
    for workers in (1, 2):
        convert(photo_folder, f"{workers}/{out}", workers=workers, **options)
    assert files_of(tmp_path / "1" / out) == files_of(tmp_path / "2" / out)


@every_way
@pytest.mark.parametrize("bad", [(), SOME], ids=["whole", "holes"])
def test_mean_and_std_of_the_split_train_are_kept_apart(
    photo_folder: Path,
    tmp_path: Path,
    convert: Convert,
    out: str,
    options: dict[str, Any],
    bad: tuple[str, ...],
):
    """They are those of a pack of its images alone; splits cut blocks and shards."""
    spoil(photo_folder, *bad)
    split = {"split": "train=0.6,val=0.4", **options}
    pack = convert(photo_folder, f"a/{out}", **split)
    ((first, stop),) = pack.header.splits["train"]
    others = {f"{name}/{k}.jpg" for name in ("blue", "green", "red") for k in range(8)}
    clean = without(photo_folder, tmp_path / "clean", *(others - {*pack.keys()[first:stop]}))
    alone = convert(clean, f"b/{out}", **options)
    found, expected = pack.header.normalization, alone.header.statistics.get("image", {})
    assert (found == {}) == (expected == {}) == (options.get("size") == "keep")
    for name, values in expected.items():
        assert found[name] == (pytest.approx(values, rel=1e-9) if pack.shards else values)
        assert found[name] != pytest.approx(pack.header.statistics["image"][name], rel=1e-3)
    if bad:
        convert(photo_folder, f"c/{out}", workers=3, **split)
        assert files_of(tmp_path / "a" / out) == files_of(tmp_path / "c" / out)
    else:
        whole = convert(photo_folder, f"d/{out}", split="train=1", **options)
        assert whole.header.normalization == whole.header.statistics.get("image", {})
        assert b"train_statistics" not in whole.header.to_bytes()


@pytest.mark.parametrize("way", ["h5", "jpeg", "npy", "max"])
@pytest.mark.parametrize("bad", [(), SOME], ids=["whole", "holes"])
def test_shards_are_the_single_file_cut(
    photo_folder: Path, tmp_path: Path, convert: Convert, way: str, bad: tuple[str, ...]
):
    spoil(photo_folder, *bad)
    _, options = WAYS[way]
    options = {"format": "npy" if way == "npy" else "h5", **options}
    single, sharded = (
        convert(photo_folder, "one", **options),
        convert(photo_folder, "p", shards=5, **options),
    )
    parts = [shard.rows for shard in sharded.shards]
    assert len(parts) == 5
    if not bad:
        assert parts == [5, 5, 5, 5, 4]
        assert rows_of(sharded) == rows_of(single)
    assert sorted(rows_of(sharded)) == sorted(rows_of(single))
    names = [Path(shard.path).name for shard in sharded.shards]
    assert names == [f"{k:05d}" + (".h5" if options["format"] == "h5" else "") for k in range(5)]
    found, expected = sharded.header.statistics["image"], single.header.statistics["image"]
    assert found["std"] == pytest.approx(expected["std"])


def test_shards_of_a_size(photo_folder: Path, convert: Convert):
    pack = convert(photo_folder, "p", shards="20kB")
    rows = pack.header.provenance["options"]["shard_rows"]
    assert [shard.rows for shard in pack.shards] == [rows] * (24 // rows) + [24 % rows] * bool(24 % rows)
    assert rows == 6
    assert 17_000 < max(shard.nbytes for shard in pack.shards) < 20_000


def test_a_shard_of_nothing_but_bad_inputs(photo_folder: Path, convert: Convert):
    spoil(photo_folder, *(f"blue/{k}.jpg" for k in range(8)))
    pack = convert(photo_folder, "p", shards=4, shuffle=False)
    assert pack.rows == 16
    assert [s["key"] for s in pack.header.skipped] == [f"blue/{k}.jpg" for k in range(8)]
    assert verify_pack(pack.path).ok


def split_rows(pack: Pack) -> dict[str, list[str]]:
    """split -> the keys of its rows."""
    keys = pack.keys()
    return {name: [key for a, b in spans for key in keys[a:b]] for name, spans in pack.header.splits.items()}


@pytest.mark.parametrize("way", ["h5", "jpeg npy", "gzip shards"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_drawn_splits_stay_right_when_inputs_are_skipped(
    photo_folder: Path, convert: Convert, way: str, shuffle: bool
):
    out, options = WAYS[way]
    options = {**options, "split": "train=0.5,test=0.25,val=0.25", "shuffle": shuffle}
    whole = split_rows(convert(photo_folder, f"a/{out}", **options))
    assert {name: len(keys) for name, keys in whole.items()} == {"train": 12, "test": 6, "val": 6}
    for keys in whole.values():
        assert len({key.split("/")[0] for key in keys}) == 3
        assert shuffle or keys == sorted(keys)
    gone = whole["test"][:: 2 if "shards" in options else 1]  # a shard needs a good row
    spoil(photo_folder, *SOME, *gone)
    holed = convert(photo_folder, f"b/{out}", **options)
    rows = split_rows(holed)
    assert {name: set(keys) for name, keys in rows.items()} == {
        name: set(keys) - {*SOME, *gone} for name, keys in whole.items()
    }
    assert sum(map(len, rows.values())) == holed.rows


def test_equal_shares_in_another_order_give_the_same_pack(photo_folder: Path, tmp_path: Path):
    convert_images(photo_folder, tmp_path / "a.h5", size=32, split="train=0.75,test=0.25")
    convert_images(photo_folder, tmp_path / "b.h5", size=32, split={"test": 0.25, "train": 0.75})
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


@pytest.mark.parametrize("way", ["npy", "keep", "shards"])
def test_splits_by_folders_stay_right_when_inputs_are_skipped(
    photo_folder: Path, tmp_path: Path, convert: Convert, way: str
):
    out, options = WAYS[way]
    source = tmp_path / "splits"
    for name in ("test", "train", "val"):
        shutil.copytree(photo_folder, source / name)
    spoil(source, *(f"train/{key}" for key in SOME), "test/red/0.jpg", *(f"val/{key}" for key in SOME[:2]))
    pack = convert(source, out, **options)
    rows = split_rows(pack)
    spans = {name: spans[0][0] for name, spans in pack.header.splits.items()}
    assert sorted(spans, key=spans.__getitem__) == ["train", "val", "test"]
    for name, count in (("train", 20), ("val", 22), ("test", 23)):
        assert len(rows[name]) == len(set(rows[name])) == count
        assert {key.split("/")[0] for key in rows[name]} == {name}
    assert pack.header.classes == ("blue", "green", "red")


def test_folders_that_are_splits_are_not_split_again(photo_folder: Path, tmp_path: Path):
    shutil.copytree(photo_folder, tmp_path / "s" / "train")
    with pytest.raises(UsageError) as error:
        convert_images(tmp_path / "s", tmp_path / "p", size=32, split="a=0.5,b=0.5")
    assert str(error.value) == (
        f"{tmp_path}/s: its folders are splits already (train). Pass no split=, or only one of the folders as source."
    )


@pytest.mark.parametrize("options", [{}, {"shards": 5}, {"store": "gzip"}, {"store": "jpeg"}], ids=str)
def test_pairs_boxes_and_points_go_with_their_rows(
    photo_folder: Path, tmp_path: Path, convert: Convert, options: dict[str, Any]
):
    """Each photo has a mask, a box and a point of its own number, through holes and moves."""
    folder, masks, lines = photo_folder / "red", tmp_path / "masks", ["file,l,t,r,b,x,y,kind"]
    masks.mkdir()
    for k in range(8):
        Image.new("L", (48, 40), 10 * k + 1).save(masks / f"{k}.png")
        lines += [f"{k}.jpg,4,0,{12 + k},40,{14 + k},{10 + k},c{k}"]
        lines += [f"{k}.jpg,4,0,44,{20 + k},{14 + k},{10 + k},other"] * (k % 2)
    (tmp_path / "l.csv").write_text("\n".join(lines))
    spoil(folder, "1.jpg", "2.jpg")
    outs = []
    for workers in (1, 2):
        pack = convert(
            folder,
            f"{workers}/p",
            size=(40, 48),
            format="h5",
            labels=Labels(tmp_path / "l.csv", boxes="l,t,r,b", keypoints="x,y", column="kind"),
            pairs={"mask": masks},
            workers=workers,
            **options,
        )
        outs.append(files_of(tmp_path / str(workers) / "p"))
    assert outs[0] == outs[1]
    names = [f.name for f in pack.fields]
    classes = pack.header.classes
    assert classes is not None
    found = set()
    for row in rows_of(pack):
        values = dict(zip(names, row, strict=True))
        k = int(values["key"][:1])
        found.add(k)
        assert set(values["mask"]) == {10 * k + 1}
        boxes = [[4, 0, 12 + k, 40], *([[4, 0, 44, 20 + k]] * (k % 2))]
        assert np.frombuffer(values["boxes"], "<f4").reshape(-1, 4).tolist() == boxes
        kinds = [classes[n] for n in np.frombuffer(values["box_label"], "<i8")]
        assert kinds == [f"c{k}", *(["other"] * (k % 2))]
        assert np.frombuffer(values["keypoints"], "<f4").tolist() == [14 + k, 10 + k]
    assert found == {0, 3, 4, 5, 6, 7}


def test_progress_counts_the_rows_of_all_shards(photo_folder: Path, tmp_path: Path):
    steps: list[int] = []
    convert_images(photo_folder, tmp_path / "p", size=32, shards=7, on_progress=steps.append)
    assert steps == sorted(steps)
    assert steps[-1] == 24


def test_overwriting_one_kind_of_pack_with_another(photo_folder: Path, tmp_path: Path):
    for options in ({}, {"shards": 5}, {"shards": 9, "format": "npy"}, {"store": "jpeg"}):
        convert_images(photo_folder, tmp_path / "p", size=32, overwrite=True, **options)
        assert open_pack(tmp_path / "p").rows == 24
        assert verify_pack(tmp_path / "p").ok
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p", "photos"]
