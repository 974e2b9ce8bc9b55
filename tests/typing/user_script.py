"""Every call that the documentation shows, as a user with strict type checkers writes it. Checked, never run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, RandomSampler, Subset, random_split
from typing_extensions import assert_type

import packer
from packer import (
    Blocks,
    Buckets,
    Csv,
    Encode,
    Fields,
    Labels,
    Mixture,
    PackedBatchDataset,
    PackedDataset,
    Padding,
    Preprocess,
    PythonTransform,
    Regions,
    Rows,
    Sequences,
    Slices,
    Soft,
    Split,
    Weighted,
    Windows,
    convert_images,
    convert_table,
    create,
    fill_pack,
    join_fields,
    open_arrays,
    open_pack,
    pack_dataset,
)
from packer.augment import MixUp, Normalize, Pipeline, RandomCrop, RandomHorizontalFlip, RandomResizedCrop
from packer.errors import ImageError, PackerError, TransformError
from packer.integrations.huggingface import from_hf, to_hf
from packer.integrations.lightning import PackedDataModule
from packer.tables import apply

Array = NDArray[Any]


def convert() -> None:
    report = convert_images("photos", "a.h5", size=256, split="train=0.9,val=0.1", workers=2, progress=True)
    assert_type(report.rows, int)
    convert_images("photos", "a.h5", size=(224, 320), fit="pad", channels="gray", store="jpeg", quality=90)
    convert_images("p", "b.h5", labels=Labels("l.csv", column="finding"), pairs={"alpha": Soft("mattes/")})
    convert_images("p", "c.h5", split=Split("train=0.8,val=0.2", group="patient"), on_error="skip")
    convert_images("p", "d", shards="1GB", resume=True, engine="ray", like="a.h5", overwrite=True)
    convert_table("t.csv", "t.h5", label="y", drop=["z"], types={"a": "float"}, standardize=True)
    convert_images("clips", "e.h5", sequence=True, split="train=0.8,val=0.2")
    convert_table("t.csv", "t.h5", sequence=Sequences(group="episode", order="step"))
    convert_table(["a.csv", "b.csv"], "t.h5", csv=Csv(delimiter=";"), encode=Encode(), missing="median")
    convert_table(
        {"x": [1.0], "tags": ["a|b"]}, "t.h5", label="tags", label_separator="|", classes=["a", "b"]
    )
    packer.append_images("a.h5", "more")
    packer.append_table("t.h5", "more.csv")
    packer.merge_packs(["a.h5", "b.h5"], "m.h5", duplicates="skip")
    packer.merge_shards("train/")
    packer.repack("a.h5", "s.h5", size=128, store="zstd", shards=100_000)
    assert_type(packer.split_pack("a.h5", {"train": 0.9, "val": 0.1})["val"].rows, int)
    packer.export_images("a.h5", "images/", split="val")
    assert_type(packer.seal_pack("a.h5").rows, int)
    packer.preview("a.h5", "sheet.png", augment=[RandomCrop(224)], rows=16, repeat=2)
    packer.report(["train.h5", "val.h5"], "card.html")


def pack_python_data(images: Array, labels: Array, samples: Iterator[dict[str, Array]]) -> None:
    arrays = images, labels
    pack_dataset(arrays, "squares.h5", classes=["noise", "square"], split="train=0.8,val=0.2")
    pack_dataset({"image": images}, "b.h5", split={"train": range(50), "test": range(50, 60)})
    pack_dataset("data.h5", "c.h5", fields=Fields(rename={"X_train": "image"}))
    pack_dataset(samples, "d.h5", fields=["image", "text"], shuffle=False, size=256, fit="crop")
    with create("captions.h5", fields={"image": "uint8[16,16,3]", "tokens": "int32[*]"}) as pack:
        for image, label in zip(images, labels, strict=True):
            pack.write(image=image, tokens=np.arange(int(label) + 1))
        pack.write_rows(image=images, tokens=[np.arange(3)] * len(images))


def train() -> None:
    train = PackedBatchDataset(
        "train.h5",
        batch_size=256,
        shuffle=True,
        device="auto",
        augment="RandomHorizontalFlip(), RandomCrop(224), Normalize()",
    )
    model = torch.nn.Linear(3, len(train.classes)).to(train.device)
    for images, labels in train:
        assert_type(images, torch.Tensor)
        assert_type(labels, torch.Tensor)
        torch.nn.functional.cross_entropy(model(images), labels).backward()
    for batch in train:
        assert_type(batch.image, torch.Tensor)
        assert_type(batch["label"], torch.Tensor)
        images, labels = batch.to("cuda")
        names: tuple[str, ...] = batch._fields
        print(names, (batch.mask > 0).float(), [boxes.shape for boxes in batch.boxes])
    assert_type(train.batch(0).image, torch.Tensor)
    for images, _ in train.replay(8):
        assert_type(images, torch.Tensor)
    state = train.state_dict()
    train.load_state_dict(state)
    train.set_epoch(3)
    print(train.stats(), train.epoch, train.batches_left, train.rank, "of", train.world_size, train.targets)
    print(len(train), len(train.dataset), train.keys, train.class_to_idx)
    assert_type(train.dataset[0].image, torch.Tensor)
    train.close()
    with PackedBatchDataset("train.h5", 8, split="val", drop_last=True) as val:
        print([images.shape for images, labels in val])
        packer.show(val, rows=4)
        packer.show(next(iter(val)), val)
        packer.show(next(iter(val)), val, predicted=[0] * 4)


def load_arrays() -> None:
    for images, labels in PackedBatchDataset("train.h5", 8, output="numpy", rank=0, world_size=2):
        assert_type(images, Array)
        assert_type(labels, Array)
    for batch in PackedBatchDataset("train.h5", 8, output="numpy", seed=1, ends="even"):
        assert_type(batch.image, Array)


def choose() -> None:
    keyed = PackedBatchDataset("serving.h5", 8, fields=["image", "key"], augment="Normalize()")
    for batch in keyed:
        print(["photos/" + key for key in batch.key])
    weights = np.ones(10)
    for order in (
        "regions",
        Slices(rows=64),
        Blocks(window=4),
        Rows(),
        Regions(),
        Weighted.balanced("label"),
        Weighted(weights),
    ):
        PackedBatchDataset("train.h5", 8, order=order, classes=["cat", "dog"], subset=range(100))
    PackedBatchDataset("clips.h5", 8, window=Windows(8, step=4, dilation=2), shuffle=True)
    PackedDataset("clips.h5", window=8)
    PackedBatchDataset(open_arrays("own.h5", image="images", label="y"), 8)
    PackedDataset(open_arrays(image="x.npy", label=np.arange(8)))
    PackedBatchDataset([("web.h5", 0.7), ("curated.h5", 0.3)], 8, order=Mixture(rows=1_000_000))
    PackedBatchDataset(["a.h5", "b.h5"], 256, shuffle=True, threads=2, prefetch=4, placement="ram")
    PackedBatchDataset("whole.h5", 8, order=Buckets(), collate=Padding(multiple=32, mask_fill=255))
    PackedBatchDataset("whole.h5", 8, collate="pad", subset=[1, 2, 3], device=torch.device("cuda", 0))
    turn = Pipeline("RandomRotation(20), Normalize()", mask_fill=255)
    PackedBatchDataset("people.h5", 16, augment=turn)
    PackedBatchDataset("people.h5", 16, augment=[RandomResizedCrop(48), RandomHorizontalFlip(), MixUp()])
    PackedBatchDataset("people.h5", 16, augment={"one": [RandomCrop(48)], "two": "Normalize()"})
    PackedBatchDataset("people.h5", 16, augment=(Normalize(),))


def use_torchs_loader() -> None:
    DataLoader(PackedDataset("train.h5"), 4)
    rows = PackedDataset("train.h5", split="train")
    image, label = rows[0]
    assert_type(image, torch.Tensor)
    assert_type(rows["cat/1.jpg"].label, torch.Tensor)
    assert_type(rows[2:5].image, torch.Tensor)
    assert_type(rows[[3, 1]].label, torch.Tensor)
    loader = DataLoader(rows, batch_size=256, shuffle=True, num_workers=4)
    for images, labels in loader:
        print(images, labels)
    sampler = BatchSampler(RandomSampler(rows), batch_size=256, drop_last=True)
    DataLoader(rows, sampler=sampler, batch_size=None)
    DataLoader(PackedBatchDataset("train.h5", 8), batch_size=None, num_workers=0)
    print(random_split(rows, [0.5, 0.5]), Subset(rows, [1, 2]), ConcatDataset([rows, rows]))
    print(1 / torch.bincount(torch.tensor(rows.targets)), label)
    scaled = PackedDataset("train.h5", transform=lambda image: image.float() / 255, target_transform=float)
    DataLoader(scaled, batch_size=8)
    scaled.transform = None
    for key, image, label in PackedDataset("images.h5", fields=("key", "image", "label"), split="train"):
        print(key.rpartition(".")[0], image.permute(1, 2, 0).numpy(), label)
    loaders: dict[str, DataLoader[Any]] = {"train": loader}
    print(loaders, list(rows[:]._asdict()))


def transform_in_python() -> None:
    def mine(sample: dict[str, Array], rng: np.random.Generator) -> dict[str, Array]:
        return sample | {"image": sample["image"][:: int(rng.integers(1, 3))]}

    PackedBatchDataset("train.h5", 256, transform=PythonTransform(mine, ragged=["boxes"], processes=16))
    try:
        PackedBatchDataset("train.h5", 256, transform=mine).batch(0)
    except TransformError as error:
        print(error)


def open_packs() -> None:
    pack = open_pack("s3://bucket/train/", cache="packs", cache_size="200GB", verify="blocks")
    PackedBatchDataset(pack, 8, shuffle=True)
    print(pack.rows, pack.header.classes, [field.name for field in pack.fields])
    joined = join_fields(["train.h5", ("pseudo.h5", {"label": "pseudo_label"})], match="keys")
    with PackedBatchDataset(joined, batch_size=64, fields=["embedding", "label"]) as batches:
        for embeddings, labels in batches:
            print(embeddings, labels)
    filled = fill_pack("photos/", "filled.h5", size=64)
    PackedDataset(filled)
    columns = {column["name"]: column for column in pack.header.table["columns"]}
    row = apply(pack.header.table, {"dep_delay": -2, "carrier": "B"})
    print(columns, row["features"])


def serve(paths: list[str], data: bytes) -> None:
    preprocess = Preprocess("serving.h5", augment="CenterCrop(56), Normalize()")
    saved: dict[str, Any] = preprocess.to_dict()
    try:
        assert_type(preprocess([*paths, data]), torch.Tensor)
    except (ImageError, PackerError) as error:
        print(error)
    assert_type(Preprocess("serving.h5")(data), Array)
    print(preprocess.classes, Preprocess({**saved, "max_pixels": 25_000_000})(paths).to("cuda"))


def use_frameworks() -> None:
    PackedDataModule(
        train={"path": "lightning.h5", "split": "train"},
        val="val.h5",
        batch_size=6,
        augment="RandomResizedCrop(48), Normalize()",
        eval_augment="CenterCrop(48), Normalize()",
    )
    photos = to_hf("train.h5")
    from_hf(photos.train_test_split(0.25), "again.h5", size=128)
