"""Packs that are to go together: classes=, --like, and what refuses packs that do not."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from packer.convert.image_appending import append_images
from packer.convert.image_conversion import convert_images
from packer.convert.pack_rows import class_numbers
from packer.convert.reference_pack import parse_classes
from packer.convert.repacking import merge_packs, repack, split_pack
from packer.errors import UsageError
from packer.format.header import Header
from packer.inputs.label_options import Labels
from packer.packs.joined_pack import concatenate_packs
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.packs.verify import verify_pack
from packer.tables.table_conversion import convert_table

ALL = ["blue", "green", "red", "violet"]


def labels(pack: Pack) -> dict[str, int]:
    return dict(zip(pack.keys(), pack.read("label").tolist(), strict=True))


@pytest.fixture
def test_folder(photo_folder: Path) -> Path:
    """A folder in which the class green is missing."""
    folder = photo_folder.parent / "test"
    for name in ("blue", "red"):
        (folder / name).mkdir(parents=True)
        (folder / name / "9.jpg").write_bytes((photo_folder / name / "1.jpg").read_bytes())
    return folder


def test_classes_are_numbered_as_in_the_other_pack(photo_folder: Path, test_folder: Path, tmp_path: Path):
    convert_images(photo_folder, tmp_path / "train.h5", size="16x32", fit="pad", channels="gray")
    plans = []
    convert_images(test_folder, tmp_path / "test.h5", like=tmp_path / "train.h5", on_plan=plans.append)
    train, test = open_pack(tmp_path / "train.h5"), open_pack(tmp_path / "test.h5")
    assert test.header.classes == train.header.classes == ("blue", "green", "red")
    assert labels(test) == {"blue/9.jpg": 0, "red/9.jpg": 2}
    assert test.header.field("image") == train.header.field("image")
    assert test.header.normalization == train.header.normalization
    assert not any("Normalize" in note for note in plans[0].notes)
    train.check_classes(test)


def test_bands_that_are_found_are_normalised_as_the_other_packs(
    photo_folder: Path, test_folder: Path, tmp_path: Path
):
    convert_images(photo_folder, tmp_path / "train.h5", size=16, channels=3)
    convert_images(test_folder, tmp_path / "test.h5", like=tmp_path / "train.h5", channels="auto")
    train, test = (open_pack(tmp_path / name).header for name in ("train.h5", "test.h5"))
    assert test.normalization == train.normalization != test.statistics["image"]


def test_the_rule_of_whole_pictures_is_taken(photo_folder: Path, test_folder: Path, tmp_path: Path):
    convert_images(photo_folder, tmp_path / "train.h5", size="max=24", store="jpeg")
    convert_images(test_folder, tmp_path / "test.h5", like=tmp_path / "train.h5", store="jpeg")
    assert open_pack(tmp_path / "test.h5").read("height").tolist() == [20, 20]


def test_images_without_a_label_keep_none(photo_folder: Path, tmp_path: Path):
    parts = tmp_path / "parts"
    (parts / "test").mkdir(parents=True)
    os.rename(photo_folder, parts / "train")
    (parts / "test" / "9.jpg").write_bytes((parts / "train" / "red" / "1.jpg").read_bytes())
    unlabeled = Labels(unlabeled="test")
    convert_images(parts, tmp_path / "all.h5", size=16, labels=unlabeled)
    pack = open_pack(tmp_path / "all.h5")
    assert pack.header.classes == ("blue", "green", "red")
    assert labels(pack)["test/9.jpg"] == -1
    assert sorted(labels(pack).values())[:2] == [-1, 0]
    assert verify_pack(tmp_path / "all.h5").ok
    # Numbered by other classes, and put together with others, they have none either.
    convert_images(
        parts, tmp_path / "more.h5", size=16, labels=unlabeled, classes=["red", "blue", "green", "x"]
    )
    merge_packs([tmp_path / "all.h5", tmp_path / "more.h5"], tmp_path / "both.h5", duplicates="keep")
    both = open_pack(tmp_path / "both.h5")
    assert np.bincount(both.read("label") + 1).tolist() == [2, 16, 16, 16]
    assert labels(open_pack(tmp_path / "more.h5"))["test/9.jpg"] == -1
    with pytest.raises(UsageError, match="has no splits with labels beside test, the splits without labels"):
        (tmp_path / "l.txt").write_text("parts/test/9.jpg\n")
        convert_images(tmp_path / "l.txt", tmp_path / "list.h5", labels=unlabeled)


@pytest.mark.parametrize(
    ("options", "out", "made"),
    [
        ({"store": "jpeg", "quality": 77}, "made.h5", ("h5", "jpeg", 77, None)),
        ({"store": "zstd"}, "made.h5", ("h5", "zstd", None, None)),
        ({"store": "zstd"}, "made", ("npy", "raw", None, None)),  # .npy files are never compressed
        ({"shards": 2}, "made", ("h5", "raw", None, 2)),
        ({"shards": 2, "format": "npy"}, "made", ("npy", "raw", None, 2)),
        ({"shards": 2, "store": "jpeg"}, "made.h5", ("h5", "jpeg", 90, None)),  # it is called as one file
        ({"size": "max=24", "quality": 66}, "made.h5", ("h5", "jpeg", 66, None)),
    ],
)
def test_the_store_is_taken(
    options: Any, out: str, made: tuple[Any, ...], photo_folder: Path, test_folder: Path, tmp_path: Path
):
    convert_images(photo_folder, tmp_path / "train.h5", **{"size": 32} | options)
    convert_images(test_folder, tmp_path / out, like=tmp_path / "train.h5")
    record = open_pack(tmp_path / out).parts[0].header.provenance["options"]
    assert tuple(record.get(name) for name in ("format", "store", "quality", "shard_rows")) == made
    # What is given stands above it.
    convert_images(test_folder, tmp_path / "own.h5", like=tmp_path / "train.h5", store="raw", size=16)
    assert open_pack(tmp_path / "own.h5").header.provenance["options"]["store"] == "raw"


def test_the_store_of_a_table_is_taken(tmp_path: Path):
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(400)))
    convert_table(tmp_path / "t.csv", tmp_path / "train", label="y", store="zstd", shards=150)
    convert_table(tmp_path / "t.csv", tmp_path / "test", like=tmp_path / "train")
    test = open_pack(tmp_path / "test")
    assert [shard.rows for shard in test.shards] == [150, 150, 100]
    assert test.parts[0].header.provenance["options"]["store"] == "zstd"


def normalized(path: Path) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std that Normalize() without numbers uses for a pack, where a dataset takes it."""
    pytest.importorskip("torch")
    from packer.load.augmenting import pipeline_of

    (transform,) = pipeline_of("Normalize()", open_pack(path).header.normalization).transforms
    return transform.mean, transform.std


def test_normalize_as_text_means_the_other_packs_numbers(
    photo_folder: Path, test_folder: Path, tmp_path: Path
):
    train, test, third = (tmp_path / f"{name}.h5" for name in ("train", "test", "third"))
    convert_images(photo_folder, train, size=16)
    convert_images(test_folder, test, like=train)
    convert_images(test_folder / "red", third, like=test)
    own = open_pack(train).header.statistics["image"]
    assert normalized(train) == (tuple(own["mean"]), tuple(own["std"]))
    assert normalized(test) == normalized(third) == normalized(train)
    # The packs' own statistics stay their own.
    header = open_pack(test).header
    convert_images(test_folder, tmp_path / "alone.h5", size=16)
    assert header.statistics == open_pack(tmp_path / "alone.h5").header.statistics != {"image": own}
    assert header.provenance["options"]["normalize"] == own
    assert "normalize" not in open_pack(tmp_path / "alone.h5").header.provenance["options"]


def test_the_batches_of_a_pack_made_like_another_are_normalised_like_its(
    photo_folder: Path, test_folder: Path, tmp_path: Path
):
    torch = pytest.importorskip("torch")
    from packer.load.batch_dataset import PackedBatchDataset

    convert_images(photo_folder, tmp_path / "train.h5", size=16)
    convert_images(test_folder, tmp_path / "test.h5", like=tmp_path / "train.h5")
    own = open_pack(tmp_path / "train.h5").header.statistics["image"]
    mean, std = (torch.tensor(own[name]).view(1, 3, 1, 1) for name in ("mean", "std"))
    with PackedBatchDataset(tmp_path / "test.h5", 2) as plain:
        stored = next(iter(plain)).image.float() / 255
    with PackedBatchDataset(tmp_path / "test.h5", 2, augment="Normalize()") as test:
        torch.testing.assert_close(next(iter(test)).image, (stored - mean) / std, rtol=1e-4, atol=1e-4)


def test_images_of_other_channels_are_normalised_by_their_own_numbers(
    photo_folder: Path, test_folder: Path, tmp_path: Path
):
    convert_images(photo_folder, tmp_path / "train.h5", size=16)
    report = convert_images(test_folder, tmp_path / "test.h5", like=tmp_path / "train.h5", channels="gray")
    header = open_pack(tmp_path / "test.h5").header
    assert header.normalization == header.statistics["image"]
    said = "Normalize() without numbers uses mean and std of the new pack, not those of"
    assert any(note.startswith(said) and note.endswith("the channels differ.") for note in report.notes)


def test_the_recorded_numbers_are_kept_by_packs_made_of_the_pack(
    photo_folder: Path, test_folder: Path, tmp_path: Path
):
    train, test, shards = tmp_path / "train.h5", tmp_path / "test.h5", tmp_path / "shards"
    convert_images(photo_folder, train, size=16)
    convert_images(test_folder, test, like=train)
    convert_images(test_folder, shards, like=train, format="npy", shards=1)
    expected = open_pack(train).header.statistics["image"]
    append_images(shards, test_folder, duplicates="keep")
    assert open_pack(shards).header.normalization == expected
    assert open_pack(shards).parts[-1].header.normalization == expected
    repack(test, tmp_path / "repacked", store="raw")
    merge_packs([test, shards], tmp_path / "alike.h5", duplicates="keep")
    parts = split_pack(tmp_path / "alike.h5", "a=0.5,b=0.5")
    for path in (tmp_path / "repacked", tmp_path / "alike.h5", *(r.out for r in parts.values())):
        assert open_pack(path).header.normalization == expected, path
    for name, packs in (("mixed", [test, train]), ("mixed too", [train, test])):
        merge_packs(packs, tmp_path / f"{name}.h5", duplicates="keep")
        header = open_pack(tmp_path / f"{name}.h5").header
        assert header.normalization == header.statistics["image"] != expected
    assert convert_images(test_folder, test, like=train, resume=True).already
    convert_images(test_folder, train, size=16, overwrite=True)
    with pytest.raises(UsageError, match="of other options or inputs: options normalize mean was"):
        convert_images(test_folder, test, like=train, resume=True)


def test_what_is_given_comes_before_the_other_pack(photo_folder: Path, tmp_path: Path):
    convert_images(photo_folder, tmp_path / "a.h5", size=32, channels="gray")
    convert_images(
        photo_folder, tmp_path / "b.h5", like=tmp_path / "a.h5", size=16, channels="rgb", classes=ALL
    )
    pack = open_pack(tmp_path / "b.h5")
    assert pack.header.field("image").shape == (16, 16, 3)
    assert pack.header.classes == tuple(ALL)


@pytest.mark.parametrize("given", ["file", "text", "list"])
@pytest.mark.parametrize("source", ["folder", "archive", "list", "csv", "multi", "splits"])
def test_a_list_of_classes(photo_folder: Path, tmp_path: Path, given: str, source: str):
    (tmp_path / "names.txt").write_text("\ufeffviolet\r\nred\n\ngreen\nblue\n")
    order = ["violet", "red", "green", "blue"]
    classes = {"file": tmp_path / "names.txt", "text": ",".join(order), "list": order}[given]
    keys = sorted(p.relative_to(photo_folder).as_posix() for p in photo_folder.rglob("*.jpg"))
    path, options = photo_folder, {}
    if source == "archive":
        path = tmp_path / "photos.tar"
        with tarfile.open(path, "w") as tar:
            tar.add(photo_folder, "photos")
    elif source == "list":
        path = photo_folder / "list.txt"
        path.write_text("".join(f"{key}\t{key.split('/')[0]}\n" for key in keys))
    elif source in ("csv", "multi"):
        (tmp_path / "l.csv").write_text("".join(f"{key},{key.split('/')[0]}\n" for key in keys))
        options = {"labels": Labels(tmp_path / "l.csv", separator="|" if source == "multi" else None)}
    elif source == "splits":
        path = tmp_path / "sets"
        path.mkdir()
        (photo_folder).rename(path / "train")
        (path / "test" / "violet").mkdir(parents=True)
        (path / "test" / "red").mkdir()
        (path / "test" / "red" / "1.jpg").write_bytes((path / "train" / "red" / "1.jpg").read_bytes())
    convert_images(path, tmp_path / "p.h5", size=16, classes=classes, **options)
    pack = open_pack(tmp_path / "p.h5")
    assert pack.header.classes == tuple(order)
    found = pack.read("label")
    found = found.argmax(1) if source == "multi" else found
    for key, label in zip(pack.keys(), found.tolist(), strict=True):
        assert order[label] in key


def test_a_class_that_is_not_listed(photo_folder: Path, tmp_path: Path):
    with pytest.raises(UsageError) as error:
        convert_images(photo_folder, tmp_path / "p.h5", size=16, classes="red,green")
    assert str(error.value) == (
        f"{photo_folder}: holds the class blue; 2 classes, red, green, are allowed. "
        "Leave its images out, add it, or pass on_error='skip'."
    )
    report = convert_images(photo_folder, tmp_path / "p.h5", size=16, classes="red,green", on_error="skip")
    reason = "its class is blue, which is not one of the 2 given classes."
    assert report.skipped == tuple({"key": f"blue/{n}.jpg", "reason": reason} for n in range(8))
    assert (report.rows, open_pack(tmp_path / "p.h5").header.classes) == (16, ("red", "green"))


def test_classes_match_in_any_unicode_form_and_are_shown_apart(photo_folder: Path, tmp_path: Path):
    (photo_folder / "red").rename(photo_folder / "cafe\u0301")
    convert_images(photo_folder, tmp_path / "p.h5", size=16, classes=["green", "caf\u00e9", "blue"])
    assert open_pack(tmp_path / "p.h5").header.classes == ("green", "caf\u00e9", "blue")
    convert_images(photo_folder, tmp_path / "q.h5", size=16, like=tmp_path / "p.h5")
    assert sorted(open_pack(tmp_path / "q.h5").read("label").tolist()) == [0] * 8 + [1] * 8 + [2] * 8
    with pytest.raises(UsageError) as error:
        convert_images(photo_folder, tmp_path / "r.h5", size=16, classes="caf\u00e9,green,Blue")
    assert str(error.value).startswith(
        f"{photo_folder}: holds the class 'blue', which is not 'Blue'; 3 classes,"
    )


def test_a_listed_class_may_have_an_empty_folder(photo_folder: Path, tmp_path: Path):
    (photo_folder / "violet").mkdir()
    convert_images(photo_folder, tmp_path / "p.h5", size=16, classes=ALL)
    assert open_pack(tmp_path / "p.h5").header.classes == tuple(ALL)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("a,,b", "classes a,,b: holds no name, or an empty name; class names are needed. Add them."),
        ([], "classes: holds no name, or an empty name; class names are needed. Add them."),
        (["a", "b", "a"], "classes: holds a twice; each class has one number. Remove one."),
        (
            "names.txt",
            "classes names.txt: no such file; allowed are a file with one name per line, or names separated by commas. Check the path.",
        ),
    ],
)
def test_lists_that_are_refused(given: str | list[str], message: str):
    with pytest.raises(UsageError) as error:
        parse_classes(given)
    assert str(error.value) == message


def test_classes_need_labels(photo_folder: Path, tmp_path: Path):
    with pytest.raises(UsageError, match=r"red: has no labels for the given classes\. Pass labels="):
        convert_images(photo_folder / "red", tmp_path / "p.h5", size=16, classes="a,b")
    convert_images(photo_folder, tmp_path / "train.h5", size=16)
    convert_images(
        photo_folder / "red", tmp_path / "p.h5", like=tmp_path / "train.h5"
    )  # a test set without labels
    assert [f.name for f in open_pack(tmp_path / "p.h5").fields] == ["image", "key"]


def test_labels_of_the_same_kind(photo_folder: Path, tmp_path: Path):
    folder = photo_folder / "red"
    (tmp_path / "a.csv").write_text("".join(f"{n},{n / 2}\n" for n in range(8)))
    (tmp_path / "b.csv").write_text("".join(f"{n},{n}\n" for n in range(8)))
    convert_images(folder, tmp_path / "a.h5", size=16, labels=tmp_path / "a.csv")
    convert_images(folder, tmp_path / "b.h5", like=tmp_path / "a.h5", labels=tmp_path / "b.csv")
    assert (
        open_pack(tmp_path / "b.h5").read("label").dtype == np.float32
    )  # as the other's, though all are whole
    convert_images(folder, tmp_path / "c.h5", size=16, labels=tmp_path / "b.csv")
    with pytest.raises(UsageError) as error:
        convert_images(folder, tmp_path / "d.h5", like=tmp_path / "c.h5", labels=tmp_path / "a.csv")
    assert str(error.value) == (
        f"{folder}: its labels would be f4, those of {tmp_path}/c.h5 are i8; they have to be equal."
        " Pass the label options of that pack."
    )


def test_resumed_and_added_to(photo_folder: Path, test_folder: Path, tmp_path: Path):
    options = {"size": 16, "classes": ALL[:2], "on_error": "skip", "shards": 8}
    convert_images(photo_folder, tmp_path / "p", **options)
    assert convert_images(photo_folder, tmp_path / "p", resume=True, **options).already
    with pytest.raises(UsageError, match="of other options or inputs"):
        convert_images(photo_folder, tmp_path / "p", resume=True, **{**options, "classes": ALL[1::-1]})
    report = append_images(tmp_path / "p", test_folder, on_error="skip")
    assert (report.rows, [s["key"] for s in report.skipped]) == (1, ["red/9.jpg"])
    pack = open_pack(tmp_path / "p")
    assert pack.header.classes == ("blue", "green")


@pytest.mark.parametrize(
    ("own", "theirs", "message"),
    [
        (("a", "b"), ("a", "c"), "y: class 1 is 'c', and 'b' in x; the packs must have equal classes."),
        (("a", "b"), ("a",), "y: class 1 is none, and 'b' in x; the packs must have equal classes."),
        (("a",), None, "y: has no class names, and x has some; the packs must have equal ones."),
        (None, ("a",), "x: has no class names, and y has some; the packs must have equal ones."),
    ],
)
def test_the_first_difference_is_named(
    photo_folder: Path,
    tmp_path: Path,
    own: tuple[str, ...] | None,
    theirs: tuple[str, ...] | None,
    message: str,
):
    from dataclasses import replace

    convert_images(photo_folder / "red", tmp_path / "p.h5", size=16)
    pack = open_pack(tmp_path / "p.h5")
    x = replace(pack, path="x", header=replace(pack.header, classes=own))
    y = replace(pack, path="y", header=replace(pack.header, classes=theirs))
    x.check_classes(x)
    with pytest.raises(UsageError) as error:
        x.check_classes(y)
    other = "x" if message.startswith("y") else "y"
    assert str(error.value) == f"{message} Convert it again with like={str(other)!r}."


@pytest.mark.parametrize(
    "name", ["a.npz", "a.zarr", "a.NPY", "a.pt", "a.tar", "a.zip", "a.lmdb", "a.beton", "a.parquet/"]
)
@pytest.mark.parametrize("options", [{}, {"shards": 4}])
def test_names_of_other_formats_are_refused(
    photo_folder: Path, tmp_path: Path, name: str, options: dict[str, int]
):
    out = str(tmp_path / name)
    with pytest.raises(UsageError) as error:
        convert_images(photo_folder, out, size=16, **options)
    stem, ending = os.path.splitext(out.rstrip("/"))
    assert str(error.value) == (
        f"{stem}{ending}: ends in {ending}, which packer does not write; it writes an HDF5 file (.h5) or a"
        f" directory of .npy files (no ending). Pass {stem}.h5 or {stem}, or format=."
    )
    assert os.listdir(tmp_path) == ["photos"]
    convert_images(photo_folder, out, size=16, format="npy")  # said, so meant


def test_other_writers_refuse_them_too(photo_folder: Path, tmp_path: Path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n")
    with pytest.raises(UsageError, match=r"ends in \.npz, which packer does not write"):
        convert_table(tmp_path / "t.csv", tmp_path / "t.npz")
    convert_images(photo_folder, tmp_path / "p.h5", size=16)
    with pytest.raises(UsageError, match=r"ends in \.zarr, which packer does not write"):
        repack(tmp_path / "p.h5", tmp_path / "p.zarr")


@pytest.mark.parametrize("name", ["a.h5", "a.H5", "a.HDF5", "a.hdf5"])
def test_an_hdf5_file_in_any_case(photo_folder: Path, tmp_path: Path, name: str):
    convert_images(photo_folder, tmp_path / name, size=16)
    with h5py.File(tmp_path / name) as file:
        assert file["image"].shape == (24, 16, 16, 3)


class Counted(str):
    """A name that counts how often names are compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)  # type: ignore[arg-type]

    __hash__ = str.__hash__


def test_thousands_of_classes_are_not_compared_with_each_other() -> None:
    names = [Counted(f"class {number}") for number in range(3000)]
    assert parse_classes(names) == names
    with pytest.raises(
        UsageError, match=r"^classes: holds class 7 twice; each class has one number\. Remove one\.$"
    ):
        parse_classes([*names, Counted("class 7"), Counted("class 9")])
    merged = concatenate_packs(
        [
            Pack(f"{first}.h5", Header(1, 1, (), {}, classes=tuple(names[first : first + 2900])), b"")
            for first in (0, 100)
        ]
    )
    numbers = class_numbers(merged)
    assert merged.header.classes == tuple(sorted(names))
    assert [len(codes) for codes in numbers] == [2901, 2901]
    assert [merged.header.classes[code] for code in numbers[1][:-1]] == names[100:]
    assert Counted.compared < 100 * len(names)
