from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest

from packer import convert_images, open_pack
from packer.errors import MissingDependencyError, PackerError, UsageError
from packer.inputs.findings import Findings
from packer.inputs.image_sources import holds_images, open_source
from packer.inputs.label_options import Labels
from packer.inputs.opened_source import SourceOptions

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

PICTURES = np.random.default_rng(5).integers(0, 256, (9, 4, 4, 3), np.uint8)
PNG = [cv2.imencode(".png", picture[:, :, ::-1])[1].tobytes() for picture in PICTURES]
CLASSES = ["cat", "dog", "frog"]
LABELS = [n % 3 for n in range(9)]
STRUCT = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
FEATURES = {"image": {"_type": "Image"}, "label": {"names": CLASSES, "_type": "ClassLabel"}}


def images(rows: range = range(9), **change: Any) -> Any:
    values = [{"bytes": PNG[n], "path": f"pet_{n}.png", **change} for n in rows]
    return pyarrow.array(values, STRUCT)


def write(path: Path, columns: dict[str, Any], features: dict[str, Any] | None = None, **options: Any) -> str:
    table = pyarrow.table(columns)
    if features is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table, path, **options)
    return str(path)


def usual(path: Path, rows: range = range(9), **options: Any) -> str:
    labels = pyarrow.array([LABELS[n] for n in rows], pyarrow.int64())
    return write(path, {"image": images(rows), "label": labels}, FEATURES, **options)


def refused(path: object, spool_dir: str | None = None, **options: Any) -> str:
    with pytest.raises(PackerError) as error:
        open_source(path, SourceOptions(Labels(**options), spool_dir))  # type: ignore[arg-type]
    return str(error.value)


@pytest.mark.parametrize(
    "options",
    [{}, {"row_group_size": 2}, {"compression": "zstd"}, {"use_dictionary": False, "data_page_size": 64}],
)
def test_the_layout_of_hugging_face(tmp_path: Path, options: dict[str, Any]) -> None:
    path = usual(tmp_path / "a.parquet", **options)
    assert holds_images(path)
    with open_source(path) as source:
        assert source.keys == [f"pet_{n}.png" for n in range(9)]
        assert [source.read(index) for index in (8, 0, 4)] == [PNG[8], PNG[0], PNG[4]]
        assert source.sizes.tolist() == [len(data) for data in PNG]
        assert source.targets.classes == CLASSES
        assert source.targets.fixed["label"].tolist() == LABELS
        assert source.splits == {}
        assert source.findings.notes[0] == "Read as images in a Parquet file: 9 rows in 3 classes."
    source.close()


def test_a_pack_holds_what_a_folder_of_the_images_gives(tmp_path: Path) -> None:
    usual(tmp_path / "hf" / "train-00000-of-00002.parquet", range(4))
    usual(tmp_path / "hf" / "train-00001-of-00002.parquet", range(4, 7))
    usual(tmp_path / "hf" / "test-00000-of-00001.parquet", range(7, 9))
    (tmp_path / "hf" / "README.md").write_text("about")
    for n in range(9):
        place = tmp_path / "images" / ("train" if n < 7 else "test") / CLASSES[n % 3]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"pet_{n}.png").write_bytes(PNG[n])
    packs = {}
    for name in ("hf", "images"):
        convert_images(tmp_path / name, tmp_path / f"{name}.h5", size=4)
        pack = open_pack(tmp_path / f"{name}.h5")
        spans = {split: list(map(tuple, spans)) for split, spans in pack.header.splits.items()}
        with h5py.File(pack.path) as file:
            rows = zip(pack.keys(), file["label"][:].tolist(), file["image"][:].tolist(), strict=True)
            told = [(key.rpartition("/")[2], label, image) for key, label, image in rows]
        packs[name] = {split: sorted(told[a:b]) for split, [(a, b)] in spans.items()}
        assert pack.header.classes == tuple(CLASSES)
    assert packs["hf"] == packs["images"]
    assert {split: len(rows) for split, rows in packs["hf"].items()} == {"train": 7, "test": 2}


@pytest.mark.parametrize("type", ["binary", "large_binary", "struct"])
def test_columns_of_images_are_told_by_what_they_hold(tmp_path: Path, type: str) -> None:
    kind = {
        "binary": pyarrow.binary(),
        "large_binary": pyarrow.large_binary(),
        "struct": pyarrow.struct([("bytes", pyarrow.binary())]),
    }[type]
    values = [{"bytes": data} for data in PNG] if type == "struct" else PNG
    other = pyarrow.array([b"no image"] * 9)
    path = write(tmp_path / "a.parquet", {"x": other, "photo": pyarrow.array(values, kind), "label": LABELS})
    with open_source(path) as source:
        assert [source.read(index) for index in range(9)] == PNG
        assert source.keys == [f"{n:06d}.png" for n in range(9)]
        assert "Left out: x; the column of images and one label are packed." in source.findings.notes
    assert not holds_images(write(tmp_path / "b.parquet", {"x": other, "label": LABELS}))
    audio = {"sound": {"_type": "Audio"}}
    assert not holds_images(write(tmp_path / "c.parquet", {"sound": images()}, audio))
    assert not holds_images(str(tmp_path / "nothing.parquet"))


@pytest.mark.parametrize(
    ("values", "options", "labels", "classes"),
    [
        (["dog", "cat", "dog"] * 3, {}, [1, 0, 1] * 3, ["cat", "dog"]),
        ([True, False, True] * 3, {}, [1, 0, 1] * 3, ["False", "True"]),
        ([5, 7, 5] * 3, {}, [5, 7, 5] * 3, None),
        ([5, 7, 5] * 3, {"as_": "classes"}, [0, 1, 0] * 3, ["5", "7"]),
        ([1.0, 2.0, 3.0] * 3, {}, [1.0, 2.0, 3.0] * 3, None),
        ([0.5, 2.0, 3.0] * 3, {}, [0.5, 2.0, 3.0] * 3, None),
    ],
)
def test_labels_of_other_types(
    tmp_path: Path, values: list[Any], options: dict[str, str], labels: list[Any], classes: list[str] | None
) -> None:
    path = write(tmp_path / "a.parquet", {"image": images(), "y": values})
    with open_source(path) as source:
        assert "label" not in source.targets.fixed
    with open_source(path, SourceOptions(Labels(column="y", **options))) as source:  # type: ignore[arg-type]
        assert source.targets.fixed["label"].tolist() == labels
        assert source.targets.fixed["label"].dtype == (
            np.float32 if isinstance(values[0], float) else np.int64
        )
        assert source.targets.classes == classes


def test_one_of_several_labels_is_chosen(tmp_path: Path) -> None:
    about = {name: {"names": CLASSES, "_type": "ClassLabel"} for name in ("fine_label", "coarse_label")}
    columns = {"img": images(), "fine_label": LABELS, "coarse_label": [0] * 9, "text": ["a"] * 9}
    path = write(tmp_path / "a.parquet", columns, about)
    with open_source(path) as source:
        assert "label" not in source.targets.fixed
        assert source.findings.notes[1] == (
            "No column is called label, and no single column has class names, so the pack has no labels; possible label columns: "
            "fine_label, coarse_label, text. Pass labels=Labels(column=)."
        )
    with open_source(path, SourceOptions(Labels(column="coarse_label"))) as source:
        assert source.targets.fixed["label"].tolist() == [0] * 9
    assert refused(path, column="x") == (
        f"{path}: has no column x of integers, floats or text; fine_label, coarse_label, text can be labels. Pass one of them."
    )
    assert refused(path, column="img").startswith(f"{path}: has no column img")
    convert_images(path, tmp_path / "a.h5", size=4, labels=Labels(column="coarse_label"))
    assert open_pack(tmp_path / "a.h5").header.provenance["options"]["label"] == ["coarse_label"]


def test_equal_or_strange_paths_become_numbers(tmp_path: Path) -> None:
    for change in (
        {"path": "same.png"},
        {"path": "/abs.png"},
        {"path": "../x.png"},
        {"path": ""},
        {"path": None},
    ):
        path = write(tmp_path / "a.parquet", {"image": images(**change), "label": LABELS}, FEATURES)
        with open_source(path) as source:
            assert source.keys == [f"{n:06d}.png" for n in range(9)]
    usual(tmp_path / "hf" / "train.parquet", range(4))
    usual(tmp_path / "hf" / "test.parquet", range(4))
    with open_source(tmp_path / "hf") as source:
        assert source.keys == [f"{split}/pet_{n}.png" for split in ("test", "train") for n in range(4)]


def test_nulls_are_one_sentence_or_skipped(tmp_path: Path) -> None:
    values = [{"bytes": PNG[0], "path": "0.png"}, None, {"bytes": None, "path": "/home/me/2.png"}]
    columns = {"image": pyarrow.array(values, STRUCT), "label": [0, 1, 2]}
    path = write(tmp_path / "a.parquet", columns, FEATURES)
    assert refused(path) == (
        f"{path} row 2: holds no image; the bytes of image files are read. Embed them, or pass on_error='skip'."
    )
    with open_source(path, SourceOptions(findings=Findings(True))) as source:
        assert source.findings.refused == {
            1: "holds no image.",
            2: "holds the name of an image (2.png) instead of its bytes.",
        }
    report = convert_images(path, tmp_path / "a.h5", size=4, on_error="skip")
    assert (report.rows, len(report.skipped)) == (1, 2)


@pytest.mark.parametrize(("value", "said"), [(None, "empty"), (-1, "-1"), (3, "3")])
def test_labels_that_are_no_classes_are_one_sentence_or_skipped(
    tmp_path: Path, value: int | None, said: str
) -> None:
    labels = pyarrow.array([*LABELS[:8], value], pyarrow.int64())
    path = write(tmp_path / "a.parquet", {"image": images(), "label": labels}, FEATURES)
    assert refused(path) == (
        f"{path} row 9: label is {said}; classes are numbered from 0 to 2. Correct it, or pass on_error='skip'."
    )
    with open_source(path, SourceOptions(findings=Findings(True))) as source:
        assert source.findings.refused == {8: f"label is {said} (a.parquet row 9)."}


def test_a_split_of_labels_that_are_all_none_has_no_labels(tmp_path: Path) -> None:
    usual(tmp_path / "hf" / "train.parquet")
    none = pyarrow.array([-1] * len(LABELS), pyarrow.int64())
    write(tmp_path / "hf" / "test.parquet", {"image": images(), "label": none}, FEATURES)
    with open_source(tmp_path / "hf") as source:
        label, note = (
            source.targets.fixed["label"],
            "All labels of split test are -1, which means that there are none.",
        )
        assert label[source.splits["test"]].tolist() == [-1] * len(LABELS)
        assert label[source.splits["train"]].tolist() == list(LABELS)
        assert (source.targets.fields[0].about, note in source.findings.notes) == ({"unlabeled": -1}, True)
    with open_source(tmp_path / "hf" / "test.parquet") as source:
        assert "label" not in source.targets.fixed
    with open_source(tmp_path / "hf", SourceOptions(Labels(unlabeled=["test"]))) as source:
        assert source.targets.fixed["label"][source.splits["test"]].max() == -1
    with pytest.raises(UsageError, match=r"its splits are test, train\. Pass one of its splits, or"):
        open_source(tmp_path / "hf", SourceOptions(Labels(unlabeled=["val"])))


def test_damaged_files_are_one_sentence(tmp_path: Path) -> None:
    path = Path(usual(tmp_path / "hf" / "a.parquet"))
    whole = path.read_bytes()
    for data in (b"", b"PAR1", whole[: len(whole) // 2], whole[:200] + bytes(100) + whole[300:]):
        path.write_bytes(data)
        text = refused(str(path))
        assert text.startswith(f"{path}: cannot be read (")
        assert refused(path.parent).startswith(f"{path}: cannot be read (")
        assert not (tmp_path / "out.h5").exists()


def test_every_flipped_byte_gives_images_or_one_sentence(tmp_path: Path) -> None:
    path = Path(usual(tmp_path / "a.parquet", range(3)))
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        try:
            source = open_source(str(path))
        except PackerError:
            continue
        with source:
            assert len(source) == 3


def test_files_that_do_not_belong_together_are_one_sentence(tmp_path: Path) -> None:
    first = usual(tmp_path / "hf" / "a.parquet")
    other = write(tmp_path / "hf" / "b.parquet", {"img": images(), "label": LABELS})
    assert refused(tmp_path / "hf") == (
        f"{other}: its column 'image' is missing or differs from that of {first}; all files of a dataset have equal columns. "
        "Pass the files that belong together."
    )
    about = {**FEATURES, "label": {"names": ["a", "b", "c"], "_type": "ClassLabel"}}
    write(tmp_path / "hf" / "b.parquet", {"image": images(), "label": LABELS}, about)
    assert refused([first, other]).startswith(
        f"{other}: its column 'label' is missing or differs from that of {first}"
    )


def test_a_column_of_another_type_in_a_later_file_is_one_sentence(tmp_path: Path) -> None:
    write(tmp_path / "hf" / "0.parquet", {"image": images(range(2)), "label": pyarrow.array([0, 1])})
    write(tmp_path / "hf" / "1.parquet", {"image": images(range(2)), "label": pyarrow.array(["a", "b"])})
    assert refused(tmp_path / "hf") == (
        f"{tmp_path}/hf/1.parquet: its column 'label' is missing or differs from that of {tmp_path}/hf/0.parquet; "
        "all files of a dataset have equal columns. Pass the files that belong together."
    )


def test_without_a_label_the_columns_that_can_be_one_are_named(tmp_path: Path) -> None:
    columns = {"image": images(range(2)), "labels": pyarrow.array([0, 1]), "tags": pyarrow.array([[0], [1]])}
    with open_source(write(tmp_path / "a.parquet", columns)) as source:
        assert "label" not in source.targets.fixed
        assert source.findings.notes[1] == (
            "No column is called label, and no single column has class names, so the pack has no labels; possible label columns: labels. "
            "Pass labels=Labels(column=)."
        )
    del columns["labels"]
    with open_source(write(tmp_path / "b.parquet", columns)) as source:
        assert source.findings.notes[1] == (
            "No column is called label, and no single column has class names, so the pack has no labels; possible label columns: none. "
            "Pass labels=Labels(column=)."
        )


def test_several_columns_of_images_and_no_rows_are_one_sentence(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"left": images(), "right": images()})
    assert refused(path) == (
        f"{path}: its image columns are: left, right; one is packed, with the bytes of image files as binary or "
        "struct<bytes, path>. Name it image, or drop the others."
    )
    path = write(tmp_path / "a.parquet", {"image": images(), "mask": images()})
    with open_source(path) as source:
        assert len(source) == 9
    path = write(tmp_path / "a.parquet", {"image": images(range(0))}, FEATURES)
    assert refused(path) == f"{path}: holds no rows; images are needed. Check the file."


def test_a_folder_with_images_is_one_of_images(tmp_path: Path) -> None:
    usual(tmp_path / "metadata.parquet")
    (tmp_path / "1.png").write_bytes(PNG[0])
    with open_source(tmp_path) as source:
        assert source.keys == ["1.png"]


def test_lists_in_braces_are_known_by_their_first_file(tmp_path: Path) -> None:
    for n in range(2):
        usual(tmp_path / f"{n}.parquet", range(4 * n, 4 * n + 4))
    for name in ("{0,1}.parquet", "*.parquet"):
        assert holds_images(str(tmp_path / name))
        with open_source(str(tmp_path / name)) as source:
            assert len(source) == 8
    assert not holds_images(str(tmp_path / "x*.parquet"))


def test_without_pyarrow_the_line_for_pip_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = usual(tmp_path / "a.parquet")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(MissingDependencyError, match=r"pyarrow is not installed\. Run: pip install"):
        open_source(path)


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = usual(tmp_path / "a.parquet")
    monkeypatch.setattr("tempfile.TemporaryFile", lambda dir: open("/dev/full", "wb"))  # noqa: SIM115
    assert refused(path, spool_dir=str(tmp_path)) == (
        f"{path}: no space left in {tmp_path} for a temporary copy of its images; "
        "the file itself has no random access. Free space there."
    )
    assert os.listdir(tmp_path) == ["a.parquet"]


def test_files_of_datasets_itself(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    from datasets.table import embed_table_storage

    paths = []
    for n, data in enumerate(PNG):
        (tmp_path / f"{n}.png").write_bytes(data)
        paths.append(str(tmp_path / f"{n}.png"))
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES)})
    made = datasets.Dataset.from_dict({"image": paths, "label": LABELS}, features=features)
    made = made.with_format("arrow").map(
        embed_table_storage, batched=True, features=features, load_from_cache_file=False
    )
    made.with_format(None).to_parquet(tmp_path / "a.parquet")
    with open_source(tmp_path / "a.parquet") as source:
        assert [source.read(index) for index in range(9)] == PNG
        assert (source.targets.classes, source.targets.fixed["label"].tolist()) == (CLASSES, LABELS)  # type: ignore[union-attr]
