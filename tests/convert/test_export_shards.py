"""Packs become tars and Parquet files, which the report's command and the libraries read back value by value."""

from __future__ import annotations

import errno
import json
import os
import shlex
import tarfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from packer.cli import cli
from packer.convert import export_shards
from packer.convert.export import ExportReport, export_images
from packer.convert.image_conversion import convert_images
from packer.convert.repacking import merge_packs
from packer.errors import PackerError, SpaceError, UsageError
from packer.format.pack import Pack, open_pack
from packer.orders.runs import one_run
from packer.read.row_reader import RowReader

Again = Callable[[ExportReport], Pack]
FORMATS = [
    "webdataset",
    pytest.param(
        "parquet", marks=pytest.mark.skipif(not find_spec("pyarrow"), reason="pyarrow is not installed")
    ),
]
CLASSES = ("cat", "dog", "frog")


@pytest.fixture
def again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Again:
    """again(report) -> the pack that the report's command makes."""
    monkeypatch.chdir(tmp_path)

    def run(report: ExportReport) -> Pack:
        program, *words = shlex.split(report.command)
        assert program == "packer"
        cli.main([*words, "--quiet"], standalone_mode=False)
        return open_pack(next(word for word in words[2:] if word.startswith("again")))

    return run


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)


def images(root: Path, *, splits: tuple[str, ...] = ("",), count: int = 4, ending: str = ".png") -> Path:
    seed = 0
    for split in splits:
        for name in CLASSES:
            place = root / split / name
            place.mkdir(parents=True, exist_ok=True)
            for n in range(count):
                Image.fromarray(noise(seed)).save(place / f"{n}{ending}")
                seed += 1
    return root


def contents(pack: Pack) -> dict[str, tuple[Any, ...]]:
    """Key without its ending -> label, split, image."""
    run = one_run(0, pack.rows)
    reader = RowReader(pack, pack.fields)
    keys = [key.decode() for key in reader.read_ragged("key", run)]
    labels = reader.array(pack.header.field("label"), run).tolist()
    field = pack.header.field("image")
    rows = reader.read_ragged("image", run) if field.ragged else list(reader.array(field, run))
    reader.close()
    split_of = ["" for _ in keys]
    for name, spans in pack.header.splits.items():
        for start, stop in spans:
            split_of[start:stop] = [name] * (stop - start)
    return {
        os.path.splitext(key)[0]: (label, split, bytes(row))
        for key, label, split, row in zip(keys, labels, split_of, rows, strict=True)
    }


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("splits", [("",), ("train", "val")])
@pytest.mark.parametrize("shard_size", ["300B", "500MB"])
def test_the_command_brings_the_rows_back(
    tmp_path: Path, again: Again, format: str, splits: tuple[str, ...], shard_size: str
) -> None:
    convert_images(images(tmp_path / "images", splits=splits), tmp_path / "pack.h5", size=4)
    report = export_images(tmp_path / "pack.h5", tmp_path / "out", format=format, shard_size=shard_size)
    assert report.notes == ()
    found = sorted(os.listdir(tmp_path / "out"))
    assert report.files == len(found)
    assert report.nbytes == sum(os.path.getsize(tmp_path / "out" / name) for name in found)
    if shard_size == "500MB":
        stem = "{}000000.tar" if format == "webdataset" else "{}00000-of-00001.parquet"
        prefixes = [f"{split}-" if split else "" if format == "webdataset" else "data-" for split in splits]
        expected = [stem.format(prefix) for prefix in prefixes]
        assert found == sorted([*expected, *(["classes.txt"] if format == "webdataset" else [])])
    else:
        assert report.files > 3
    made = again(report)
    assert made.header.classes == CLASSES
    assert contents(made) == contents(open_pack(tmp_path / "pack.h5"))


@pytest.mark.parametrize("format", FORMATS)
def test_rows_keep_the_order_of_the_pack(tmp_path: Path, format: str) -> None:
    convert_images(images(tmp_path / "images"), tmp_path / "pack.h5", size=4)
    export_images(tmp_path / "pack.h5", tmp_path / "out", format=format)
    convert_images(tmp_path / "out", tmp_path / "again.h5", size=4, shuffle=False)
    first, second = open_pack(tmp_path / "pack.h5"), open_pack(tmp_path / "again.h5")
    assert list(contents(first)) == list(contents(second))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("size", ["keep", 4])
def test_jpeg_rows_are_written_byte_for_byte(tmp_path: Path, again: Again, format: str, size: Any) -> None:
    source = images(tmp_path / "images", ending=".jpg")
    convert_images(source, tmp_path / "pack.h5", size=size, store="jpeg")
    report = export_images(tmp_path / "pack.h5", tmp_path / "out", format=format)
    stored = {key: row[2] for key, row in contents(open_pack(tmp_path / "pack.h5")).items()}
    convert_images(tmp_path / "out", tmp_path / "kept.h5", size="keep", store="jpeg")
    assert {key: row[2] for key, row in contents(open_pack(tmp_path / "kept.h5")).items()} == stored
    made = again(report)
    if size == "keep":
        assert report.notes == ()
        assert contents(made) == contents(open_pack(tmp_path / "pack.h5"))
    else:
        assert "The rows are JPEG files; the command brings back their pixels" in report.notes[0]


@pytest.mark.parametrize("format", FORMATS)
def test_one_split_and_another_encoding(tmp_path: Path, format: str) -> None:
    convert_images(images(tmp_path / "images", splits=("train", "val")), tmp_path / "pack.h5", size=4)
    report = export_images(
        tmp_path / "pack.h5", tmp_path / "out", format=format, split="val", encoding="jpeg"
    )
    assert any(name.startswith("val-") for name in os.listdir(tmp_path / "out"))
    convert_images(tmp_path / "out", tmp_path / "again.h5", size="keep", store="jpeg")
    assert open_pack(tmp_path / "again.h5").rows == 12
    assert report.notes == ()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "labels", [[0.5 * n for n in range(12)], [float(n) for n in range(12)], list(range(5, 17))]
)
def test_labels_that_are_no_classes(tmp_path: Path, again: Again, format: str, labels: list[float]) -> None:
    source = images(tmp_path / "images")
    rows = "".join(
        f"{name}/{n}.png,{labels[4 * k + n]}\n" for k, name in enumerate(CLASSES) for n in range(4)
    )
    (tmp_path / "labels.csv").write_text(rows)
    label_as = "float" if isinstance(labels[0], float) else "auto"
    convert_images(source, tmp_path / "pack.h5", size=4, labels=tmp_path / "labels.csv", label_as=label_as)
    report = export_images(tmp_path / "pack.h5", tmp_path / "out", format=format)
    made = again(report)
    assert contents(made) == contents(open_pack(tmp_path / "pack.h5"))
    assert made.header.field("label").dtype == ("<f4" if label_as == "float" else "<i8")


def boxes_pack(tmp_path: Path) -> Path:
    source = images(tmp_path / "images", count=1)
    masks = tmp_path / "masks"
    for name in CLASSES:
        (masks / name).mkdir(parents=True)
        Image.fromarray(noise(9)[:, :, 0]).save(masks / name / "0.png")
    rows = "file,label,x0,y0,x1,y1,a,b\n"
    rows += "cat/0.png,ear,0,0,2,2.5,1,1\ncat/0.png,paw,1,1,4,4,1,1\ndog/0.png,ear,0,1,2,3,,\nfrog/0.png,,,,,,2,2\n"
    (tmp_path / "labels.csv").write_text(rows)
    convert_images(
        source,
        tmp_path / "pack.h5",
        size=4,
        labels=tmp_path / "labels.csv",
        label="label",
        boxes="x0,y0,x1,y1",
        keypoints="a,b",
        pairs={"mask": masks},
        shuffle=False,
    )
    return tmp_path / "pack.h5"


def test_boxes_keypoints_and_masks_in_tars(tmp_path: Path) -> None:
    report = export_images(boxes_pack(tmp_path), tmp_path / "out", format="webdataset")
    assert report.notes == (
        "packer convert does not read boxes, box_label, keypoints, mask of WebDataset files; to bring them back export to a folder, "
        "format='folder'.",
    )
    with tarfile.open(tmp_path / "out" / "000000.tar") as tar:
        names = tar.getnames()
        assert names == [f"{c}/0.{e}" for c in CLASSES for e in ("png", "mask.png", "json")]
        told = json.loads(tar.extractfile("cat/0.json").read())  # type: ignore[union-attr]
        assert told == {"boxes": [[0, 0, 2, 2.5], [1, 1, 4, 4]], "box_label": [0, 1], "keypoints": [[1, 1]]}
        assert json.loads(tar.extractfile("dog/0.json").read())["keypoints"] == [[None, None]]  # type: ignore[union-attr]
        assert json.loads(tar.extractfile("frog/0.json").read())["boxes"] == []  # type: ignore[union-attr]
        mask = np.frombuffer(tar.extractfile("cat/0.mask.png").read(), np.uint8)  # type: ignore[union-attr]
        assert np.array_equal(cv2.imdecode(mask, cv2.IMREAD_UNCHANGED), noise(9)[:, :, 0])


def test_boxes_keypoints_and_masks_in_parquet(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    export_images(boxes_pack(tmp_path), tmp_path / "out", format="parquet")
    table = pq.read_table(tmp_path / "out" / "data-00000-of-00001.parquet")
    rows = table.to_pylist()
    assert [row["image"]["path"] for row in rows] == [f"{c}/0.png" for c in CLASSES]
    assert [row["boxes"] for row in rows] == [[[0, 0, 2, 2.5], [1, 1, 4, 4]], [[0, 1, 2, 3]], []]
    assert [row["box_label"] for row in rows] == [[0, 1], [0], []]
    assert rows[0]["keypoints"] == [[1, 1]]
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["box_label"] == {
        "feature": {"names": ["ear", "paw"], "_type": "ClassLabel"},
        "_type": "Sequence",
    }
    mask = np.frombuffer(rows[1]["mask"]["bytes"], np.uint8)
    assert np.array_equal(cv2.imdecode(mask, cv2.IMREAD_UNCHANGED), noise(9)[:, :, 0])


@pytest.mark.parametrize("format", FORMATS)
def test_equal_keys_and_keys_with_dots(tmp_path: Path, again: Again, format: str) -> None:
    root = tmp_path / "images"
    for name in ("cat/a.b.png", "cat/a_b.png", "dog/1.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise(len(name))).save(root / name)
    convert_images(root, tmp_path / "one.h5", size=4)
    merge_packs([tmp_path / "one.h5"] * 2, tmp_path / "pack.h5")
    report = export_images(tmp_path / "pack.h5", tmp_path / "out", format=format)
    if format == "webdataset":
        assert report.notes == (
            "5 samples have other names than their keys, as a sample's name ends at its first dot and occurs once.",
        )
    made = again(report)
    pixels = sorted(row for row in contents(made).values())
    assert len(pixels) == 6
    assert sorted(set(pixels)) == sorted(set(contents(open_pack(tmp_path / "pack.h5")).values()))


@pytest.mark.parametrize("format", FORMATS)
def test_equal_packs_give_equal_files_for_any_number_of_workers(tmp_path: Path, format: str) -> None:
    convert_images(images(tmp_path / "images"), tmp_path / "pack.h5", size=4)
    written = []
    for workers in (1, 3):
        out = tmp_path / f"out{workers}"
        export_images(tmp_path / "pack.h5", out, format=format, workers=workers, shard_size="300B")
        written.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert written[0] == written[1]


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_is_left_of_an_export_that_fails(
    tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert_images(images(tmp_path / "images"), tmp_path / "pack.h5", size=4)
    before = sorted(os.listdir(tmp_path))

    def full(self: object, sample: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(export_shards._Tar, "add", full)
    monkeypatch.setattr(export_shards._ParquetFile, "add", full)
    with pytest.raises(SpaceError):
        export_images(tmp_path / "pack.h5", tmp_path / "out", format=format)
    assert sorted(os.listdir(tmp_path)) == before


def test_damage_is_found_before_anything_is_published(tmp_path: Path) -> None:
    out = tmp_path / "pack.h5"
    convert_images(images(tmp_path / "images"), out, size=4)
    data = bytearray(out.read_bytes())
    data[data.index(noise(0).tobytes())] ^= 1
    out.write_bytes(data)
    with pytest.raises(PackerError):
        export_images(out, tmp_path / "out", format="webdataset")
    assert sorted(os.listdir(tmp_path)) == ["images", "pack.h5"]


def test_wrong_arguments_are_one_sentence(tmp_path: Path) -> None:
    convert_images(images(tmp_path / "images"), tmp_path / "pack.h5", size=4)
    for options, said in (
        ({"shard_size": "x"}, "shard_size x: is not a number of bytes. Pass for example 500MB or 1GiB."),
        ({"encoding": "bmp"}, "encoding 'bmp': is not one of png, jpeg. Pass one of them."),
    ):
        with pytest.raises(UsageError) as error:
            export_images(tmp_path / "pack.h5", tmp_path / "out", format="webdataset", **options)
        assert str(error.value) == said


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # webdataset leaves tars open
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_webdataset_itself_reads_the_tars(tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset", reason="webdataset is not installed")
    convert_images(images(tmp_path / "images"), tmp_path / "pack.h5", size=4)
    export_images(tmp_path / "pack.h5", tmp_path / "out", format="webdataset", shard_size="300B")
    tars = sorted(str(path) for path in (tmp_path / "out").glob("*.tar"))
    found = {}
    for sample in wds.WebDataset(tars, shardshuffle=False).decode("rgb8"):
        found[sample["__key__"]] = (sample["cls"], "", sample["png"].tobytes())
    assert found == contents(open_pack(tmp_path / "pack.h5"))


def test_datasets_itself_reads_the_parquet_files(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    convert_images(images(tmp_path / "images", splits=("train", "test")), tmp_path / "pack.h5", size=4)
    export_images(tmp_path / "pack.h5", tmp_path / "out", format="parquet", shard_size="300B")
    loaded = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert set(loaded) == {"train", "test"}
    found = {}
    for split, part in loaded.items():
        assert part.features["label"].names == list(CLASSES)
        assert isinstance(part.features["image"], datasets.Image)
        raw = part.cast_column("image", datasets.Image(decode=False))
        for row, plain in zip(part, raw, strict=True):
            key = os.path.splitext(plain["image"]["path"])[0]
            found[key] = (row["label"], split, np.asarray(row["image"].convert("RGB")).tobytes())
    assert found == contents(open_pack(tmp_path / "pack.h5"))
