"""packer.integrations.huggingface: packs as Hugging Face's datasets and back, value by value."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer import PackedBatchDataset, convert_images, open_pack, pack_dataset
from packer.errors import FormatError, PackerError, SourceError, UsageError

ROWS = 30
FORMS = {"boxes": "float32[*,4]", "tokens": "int32[*]"}
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    patch = pytest.MonkeyPatch()
    patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("huggingface")))
    found = pytest.importorskip("datasets", reason="pip install datasets")
    found.disable_progress_bars()
    patch.undo()
    return found


def samples(seed: int = 0) -> list[dict[str, Any]]:
    """A value of each kind."""
    draws = np.random.default_rng(seed)
    return [
        {
            "image": draws.integers(0, 256, (8, 9, 3), dtype=np.uint8),
            "label": i % 3,
            "mask": draws.integers(0, 3, (8, 9), dtype=np.uint8),
            "depth": draws.integers(0, 1 << 16, (8, 9, 1), dtype=np.uint16),
            "volume": draws.random((2, 3, 4), np.float32),
            "boxes": 20 * draws.random((i % 4, 4), np.float32),
            "tokens": np.arange(i % 5, dtype=np.int32),
            "vector": draws.random(5),
            "half": np.float16(i / 7),
            "nothing": np.float32("nan"),
            "flag": bool(i % 2),
            "count": np.uint64(2**60 + i),
            "text": f"tö {i}",
            "raw": bytes([i, 0]),
        }
        for i in range(ROWS)
    ]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hf") / "p.h5"
    given = samples()
    split = {"train": range(20), "test": range(20, ROWS)}
    pack_dataset(
        given, path, fields={**dict.fromkeys(given[0]), **FORMS}, classes=["a", "b", "c"], split=split
    )
    return path


def rows_of(path: Path, split: str | None = None) -> list[dict[str, Any]]:
    """All rows of a pack, all fields."""
    fields = [field.name for field in open_pack(path).fields]
    with PackedBatchDataset(path, 7, output="numpy", fields=fields, split=split) as dataset:
        return [dict(zip(fields, row, strict=True)) for batch in dataset for row in zip(*batch, strict=True)]


def check_equal(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            a, b = np.asarray(one[name]), np.asarray(other[name])
            assert (a.dtype, a.shape) == (b.dtype, b.shape), name
            np.testing.assert_array_equal(a, b, err_msg=name)


@pytest.mark.parametrize("options", [{}, {"shards": 8, "workers": 2}], ids=["file", "shards"])
def test_there_and_back_every_value_is_the_same(
    datasets: ModuleType, pack: Path, tmp_path: Path, options: dict[str, Any]
):
    from packer.integrations.huggingface import from_hf, to_hf

    found = to_hf(pack, cache_dir=tmp_path / "cache")
    assert {name: part.num_rows for name, part in found.items()} == {"train": 20, "test": 10}
    features = found["train"].features
    assert isinstance(features["image"], datasets.Image)
    assert features["label"].names == ["a", "b", "c"]
    assert features["mask"] == datasets.Array2D((8, 9), "uint8")
    assert features["boxes"] == datasets.Array2D((None, 4), "float32")
    row = found["test"][3]
    (wanted,) = rows_of(pack, "test")[3:4]
    np.testing.assert_array_equal(row["image"], wanted["image"])
    assert (row["text"], row["label"]) == (wanted["text"], wanted["label"])

    from_hf(found, tmp_path / "again", shuffle=False, **options)
    again = open_pack(tmp_path / "again")
    assert again.fields == open_pack(pack).fields
    assert (again.header.classes, again.header.splits) == (("a", "b", "c"), open_pack(pack).header.splits)
    for split in ("train", "test"):
        check_equal(rows_of(tmp_path / "again", split), rows_of(pack, split))


def test_jpeg_rows_are_the_stored_files_and_fields_are_chosen(datasets: ModuleType, photo_folder: Path):
    from packer.integrations.huggingface import from_hf, to_hf

    folder = photo_folder.parent
    convert_images(photo_folder, folder / "p.h5", size="keep", store="jpeg")
    found = to_hf(folder / "p.h5", fields=["label", "image"], cache_dir=folder / "cache")
    assert found.column_names == ["label", "image"]
    stored = found.cast_column("image", datasets.Image(decode=False))
    key = open_pack(folder / "p.h5").keys()[0]
    assert stored[0]["image"]["bytes"] == (photo_folder / key).read_bytes()
    from_hf(stored, folder / "again.h5", size=16)
    assert open_pack(folder / "again.h5").header.field("image").shape == (16, 16, 3)
    assert open_pack(folder / "again.h5").header.classes == ("blue", "green", "red")


def test_another_pack_at_the_same_path_is_read_anew(datasets: ModuleType, tmp_path: Path):
    from packer.integrations.huggingface import to_hf

    for seed in (0, 1):
        given = [{"mask": sample["mask"]} for sample in samples(seed)]
        pack_dataset(given, tmp_path / "p.h5", shuffle=False, overwrite=True)
        found = to_hf(tmp_path / "p.h5", cache_dir=tmp_path / "cache")
        np.testing.assert_array_equal(np.asarray(found["mask"][:]), [sample["mask"] for sample in given])


def test_what_is_damaged_is_told(datasets: ModuleType, pack: Path, tmp_path: Path):
    from packer.integrations.huggingface import to_hf

    data = bytearray(pack.read_bytes())
    at = data.find(rows_of(pack, "all")[0]["image"].tobytes())
    data[at] ^= 1
    (tmp_path / "p.h5").write_bytes(data)
    with pytest.raises(FormatError, match="checksum"):
        to_hf(tmp_path / "p.h5", split="all", cache_dir=tmp_path / "cache")


def test_what_datasets_cannot_hold_is_a_sentence(datasets: ModuleType, tmp_path: Path):
    from packer.integrations.huggingface import to_hf

    pack_dataset({"count": np.full(3, 2**63, np.uint64)}, tmp_path / "count.h5")
    with pytest.raises(
        PackerError,
        match=r"count\.h5: datasets cannot hold its rows \(.*\)\. Leave the field out by fields\.",
    ):
        to_hf(tmp_path / "count.h5", cache_dir=tmp_path / "cache")
    pack_dataset({"deep": np.zeros((3, 1, 1, 1, 1, 1, 2))}, tmp_path / "deep.h5")
    with pytest.raises(
        UsageError,
        match=r"rows of 'deep' have 6 axes; datasets has arrays of 2 to 5\. Leave it out by fields\.",
    ):
        to_hf(tmp_path / "deep.h5", cache_dir=tmp_path / "cache")


def test_columns_are_found_named_and_chosen(datasets: ModuleType, tmp_path: Path):
    from packer.integrations.huggingface import from_hf

    names = datasets.ClassLabel(names=["x", "y"])
    features = datasets.Features(
        {
            "img": datasets.Image(),
            "fine": names,
            "coarse": datasets.ClassLabel(names=["z"]),
            "when": datasets.Value("date32"),
        }
    )
    pictures = [Image.fromarray(sample["image"]) for sample in samples()]
    table = {
        "img": pictures,
        "fine": [i % 2 for i in range(ROWS)],
        "coarse": [0] * ROWS,
        "when": [None] * ROWS,
    }
    dataset = datasets.Dataset.from_dict(table, features=features)
    for options, sentence in {
        (): "label: fine and coarse could be it. Pass label='fine', or another.",
        (
            ("label", "fine"),
        ): "when: is Value('date32'), which a pack cannot store; images, numbers, text, bytes, arrays and lists"
        " of one kind of number are allowed. Leave it out by fields, or map it to such columns.",
        (
            ("image", "pic"),
        ): "pic: is no column of the dataset, which has img, fine, coarse, when. Pass some of these.",
    }.items():
        with pytest.raises(UsageError) as error:
            from_hf(dataset, tmp_path / "p.h5", **dict(options))
        assert str(error.value) == sentence
    chosen = {"label": "fine", "fields": ["fine", "img"], "shuffle": False, "workers": 1}
    from_hf(dataset, tmp_path / "p.h5", **chosen)
    assert [field.name for field in open_pack(tmp_path / "p.h5").fields] == ["label", "image", "key"]
    assert open_pack(tmp_path / "p.h5").header.classes == ("x", "y")
    from_hf(dataset.to_iterable_dataset(), tmp_path / "streamed.h5", **chosen)
    check_equal(rows_of(tmp_path / "streamed.h5"), rows_of(tmp_path / "p.h5"))
    assert from_hf(dataset, tmp_path / "p.h5", resume=True, **chosen).already


def test_a_second_image_is_a_mask_that_moves_and_is_not_resized(datasets: ModuleType, tmp_path: Path):
    torch = pytest.importorskip("torch")
    from packer.integrations.huggingface import from_hf

    both = datasets.Features({"image": datasets.Image(), "annotation": datasets.Image()})
    pictures = [Image.fromarray(sample["image"]) for sample in samples()[:6]]
    table = {"image": pictures, "annotation": [picture.getchannel(0) for picture in pictures]}
    dataset = datasets.Dataset.from_dict(table, features=both)
    from_hf(dataset, tmp_path / "p.h5", workers=1)
    (batch,) = PackedBatchDataset(tmp_path / "p.h5", 6, augment="RandomHorizontalFlip(0.5)")
    assert torch.equal(batch.image[:, :1], batch.annotation)
    with pytest.raises(
        UsageError, match=r"^size: annotation holds images too, and only image would be resized\. "
    ):
        from_hf(dataset, tmp_path / "resized.h5", size=16)


def test_values_that_are_missing_are_told(datasets: ModuleType, tmp_path: Path):
    from packer.integrations.huggingface import from_hf

    dataset = datasets.Dataset.from_dict({"x": [1.5, None, 2.5]})
    with pytest.raises(SourceError, match="every sample needs a value in every field"):
        from_hf(dataset, tmp_path / "p.h5")
    parts = datasets.DatasetDict({"train": dataset, "test": dataset})
    with pytest.raises(UsageError, match=r"^split: the dataset already has splits \(train, test\)\."):
        from_hf(parts, tmp_path / "p.h5", split="a=1")
    assert not list(tmp_path.iterdir())


def test_the_code_on_the_page_runs(
    datasets: ModuleType, photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(photo_folder.parent)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    convert_images("photos", "train.h5", size=256)
    page = (Path(__file__).parents[2] / "docs" / "loading.md").read_text()
    (block,) = re.findall(
        r"^```python\n(from packer.integrations.hugg.*?)^```", page, flags=re.MULTILINE | re.DOTALL
    )
    exec(compile(block, "loading.md", "exec"), {})
    assert open_pack("again.h5").header.splits == {"test": ((0, 6),), "train": ((6, 24),)}
    assert (tmp_path / "cache").exists()
