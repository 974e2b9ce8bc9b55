from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest

from packer import convert_images, open_pack
from packer.errors import PackerError, SourceError, UsageError
from packer.inputs.findings import Findings
from packer.inputs.image_sources import open_source
from packer.inputs.label_options import Labels
from packer.inputs.opened_source import SourceOptions
from packer.inputs.webdataset_tars import split_of, split_sample

PICTURES = np.random.default_rng(5).integers(0, 256, (8, 4, 4, 3), np.uint8)
PNG = [cv2.imencode(".png", picture[:, :, ::-1])[1].tobytes() for picture in PICTURES]


def write_tar(path: Path, members: dict[str, bytes]) -> str:
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return str(path)


def samples(first: int, count: int, label: str = "cls") -> dict[str, bytes]:
    members = {}
    for n in range(first, first + count):
        members[f"{n:04d}.{label}"] = str(n % 3).encode()
        members[f"{n:04d}.png"] = PNG[n]
        members[f"{n:04d}.json"] = json.dumps(
            {"pet": ["cat", "dog", "frog"][n % 3], "weight": n / 2}
        ).encode()
        members[f"{n:04d}.txt"] = b"text of " + str(n % 2).encode()
    return members


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "shards"
    place.mkdir()
    write_tar(place / "000000.tar", samples(0, 5))
    write_tar(place / "000001.tar.gz", samples(5, 3))
    return place


def refused(path: object, **options: object) -> str:
    with pytest.raises(PackerError) as error:
        open_source(path, SourceOptions(**options))  # type: ignore[arg-type]
    return str(error.value)


def test_names_are_parted_at_the_first_dot_of_the_last_part() -> None:
    assert split_sample("a.b/c.seg.PNG") == ("a.b/c", "seg.png")
    assert split_sample("c") == ("c", "")


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("data/train-000.tar", "train"),
        ("val_1.tar", "val"),
        ("test/0.tar", "test"),
        ("training-0.tar", "train"),
        ("trainers-0.tar", None),
        ("Dev_0.tar", "dev"),
        ("0.tar", None),
        ("test/train-0.tar", "train"),
    ],
)
def test_which_split_a_file_is_of(path: str, split: str | None) -> None:
    assert split_of(path) == split


def test_a_folder_of_tars_is_one_source(folder: Path) -> None:
    with open_source(folder) as source:
        assert source.keys == [f"{n:04d}.png" for n in range(8)]
        assert source.targets.fixed["label"].tolist() == [n % 3 for n in range(8)]
        assert source.targets.classes is None
        assert [source.read(index) for index in (7, 0, 4, 5)] == [PNG[7], PNG[0], PNG[4], PNG[5]]
        assert source.sizes.tolist() == [len(data) for data in PNG]
        assert source.findings.notes[0] == "Read as WebDataset: 8 samples of 2 tars."
        assert source.files == (str(folder / "000000.tar"), str(folder / "000001.tar.gz"))


def test_files_are_given_in_several_ways(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tar(folder / "000002.tar", {"x.png": PNG[0], "x.cls": b"1"})
    monkeypatch.chdir(folder)
    for given in (
        ["000000.tar", "000001.tar.gz", Path("000002.tar")],
        "{000000.tar,000001.tar.gz,000002.tar}",
        "*.tar*",
    ):
        with open_source(given) as source:
            assert len(source) == 9
    with open_source("00000{0..2}.tar*") as source:
        assert len(source) == 9
    with open_source("{000000,000002}.tar") as source:
        assert len(source) == 6
    assert refused("{000000..000002}.tar") == (
        "000001.tar: cannot be read (No such file or directory); an archive is needed."
    )
    assert refused("{000002..000000}.tar").startswith(
        "{000002..000000}.tar: {000002..000000} is not a range of files"
    )
    assert refused(["000000.tar", "."]) == (
        ".: is a second SRC; images come from one source. Put the folders into one folder, or run packer merge."
    )
    assert isinstance(refused("{a,b}.tar"), str)


def test_classes_txt_names_whole_numbers(folder: Path) -> None:
    (folder / "classes.txt").write_text("cat\ndog\nfrog\n")
    with open_source(folder) as source:
        assert source.targets.classes == ["cat", "dog", "frog"]
        assert source.targets.fixed["label"].tolist() == [n % 3 for n in range(8)]
    (folder / "classes.txt").write_text("cat\ndog\n")
    assert refused(folder) == (
        f"{folder} sample 3: the .cls is 2; classes are numbered from 0 to 1. Correct it, or pass on_error='skip'."
    )
    with open_source(folder, SourceOptions(findings=Findings(True))) as source:
        assert source.findings.refused == {
            2: "the .cls is 2 (shards sample 3).",
            5: "the .cls is 2 (shards sample 6).",
        }
    for one in (folder / "000001.tar.gz", str(folder / "*1.tar.gz")):  # a single tar, and a pattern of one
        assert "sample 1: the .cls is 2; classes are numbered from 0 to 1." in refused(one)
    (folder / "classes.txt").write_text("cat\ndog\nfrog\n")
    for one in (folder / "000001.tar.gz", str(folder / "*1.tar.gz")):
        with open_source(one) as source:
            assert source.targets.classes == ["cat", "dog", "frog"]
            assert source.targets.fixed["label"].tolist() == [2, 0, 1]
            assert source.name == str(folder / "000001.tar.gz")
    (folder / "classes.txt").write_text("cat\ncat\n")
    assert "holds no names, an empty name, or a name twice" in refused(folder)


@pytest.mark.parametrize(
    ("label", "labels", "classes"),
    [
        ("pet", [n % 3 for n in range(8)], ["cat", "dog", "frog"]),
        ("txt", [n % 2 for n in range(8)], ["text of 0", "text of 1"]),
        ("weight", [n / 2 for n in range(8)], None),
    ],
)
def test_other_labels_are_chosen(
    folder: Path, label: str, labels: list[float], classes: list[str] | None
) -> None:
    with open_source(folder, SourceOptions(label=label)) as source:
        assert source.targets.fixed["label"].tolist() == labels
        assert source.targets.classes == classes
    out = folder.parent / "out.h5"
    convert_images(folder, out, size=4, labels=Labels(column=label), shuffle=False)
    with h5py.File(out) as file:
        assert file["label"][:].tolist() == labels
        assert np.array_equal(file["image"][:], PICTURES)


def test_several_labels_in_a_text_are_told_and_separated(tmp_path: Path) -> None:
    texts = ["cat dog", "cat", "dog"]
    members = {
        f"{n}.{ending}": data
        for n, text in enumerate(texts)
        for ending, data in (("png", PNG[n]), ("cls", text.encode()))
    }
    tar, out = write_tar(tmp_path / "a.tar", members), tmp_path / "p.h5"
    with pytest.raises(UsageError) as error:
        convert_images(tar, out, size=4)
    assert str(error.value) == (
        f"{tar}: the .cls holds several labels in a cell, such as 'cat dog': each of its 3 different texts would be a class, made of "
        "2 labels; one label is expected. Pass labels=Labels(separator='space'), or labels=Labels(as_='classes') if each text is a "
        "class."
    )
    for labels, read in (
        (Labels(separator="space"), [[1, 1], [1, 0], [0, 1]]),
        (Labels(as_="classes"), [1, 0, 2]),
    ):
        convert_images(tar, out, size=4, labels=labels, shuffle=False, overwrite=True)
        assert open_pack(out).read("label").tolist() == read
    with pytest.raises(UsageError, match=r"separator='space'\), or the separator of the cells\.$"):
        convert_images(tar, out, size=4, labels=Labels(separator=";"), overwrite=True)


def test_a_pack_is_that_of_a_folder(folder: Path, tmp_path: Path) -> None:
    (folder / "classes.txt").write_text("cat\ndog\nfrog\n")
    for n in range(8):
        place = tmp_path / "images" / ["cat", "dog", "frog"][n % 3]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{n:04d}.png").write_bytes(PNG[n])
    packs = {}
    for name, source in (("tars", folder), ("images", tmp_path / "images")):
        convert_images(source, tmp_path / f"{name}.h5", size=4)
        pack = open_pack(tmp_path / f"{name}.h5")
        with h5py.File(pack.path) as file:
            rows = zip(pack.keys(), file["label"][:].tolist(), file["image"][:].tolist(), strict=True)
            packs[name] = sorted((key.rpartition("/")[2], label, image) for key, label, image in rows)
        assert pack.header.classes == ("cat", "dog", "frog")
    assert packs["tars"] == packs["images"]


def test_splits_are_told_by_the_names_of_tars(tmp_path: Path) -> None:
    place = tmp_path / "shards"
    place.mkdir()
    write_tar(place / "train-0.tar", samples(0, 4))
    write_tar(place / "val-0.tar", samples(4, 2))
    write_tar(place / "train-1.tar", samples(6, 2))
    with open_source(place) as source:
        assert {name: m.tolist() for name, m in source.splits.items()} == {
            "train": [0, 1, 2, 3, 4, 5],
            "val": [6, 7],
        }
        assert [source.keys[index] for index in source.splits["val"]] == ["0004.png", "0005.png"]
    write_tar(place / "more.tar", {"z.png": PNG[0], "z.cls": b"0"})
    assert refused(place) == (
        f"{place}/more.tar: its name is not that of a split, but {place}/train-0.tar is called train; all files are splits, or none. "
        "Pass the files that belong together."
    )
    assert refused([place / "more.tar", place / "train-0.tar"]).startswith(
        f"{place}/more.tar: its name is not"
    )
    for split in ("train", "validation"):
        write_tar(place / f"pets-{split}-0000.tar", samples(0, 2))
    with open_source(f"{place}/pets-*.tar") as source:
        assert {name: m.tolist() for name, m in source.splits.items()} == {
            "train": [0, 1],
            "validation": [2, 3],
        }


def test_equal_names_in_several_tars_are_told_apart(tmp_path: Path) -> None:
    for n in range(2):
        write_tar(tmp_path / f"{n}.tar", samples(0, 2))
    with open_source(tmp_path) as source:
        assert source.keys == ["0/0000.png", "0/0001.png", "1/0000.png", "1/0001.png"]


def test_one_tar_with_labels_is_such_a_tar_and_one_without_is_as_before(tmp_path: Path) -> None:
    path = write_tar(
        tmp_path / "a.tar", {"cat/1.png": PNG[0], "cat/1.cls": b"7", "dog/2.png": PNG[1], "dog/2.cls": b"9"}
    )
    with open_source(path) as source:
        assert (source.targets.classes, source.targets.fixed["label"].tolist()) == (None, [7, 9])  # type: ignore[union-attr]
    (tmp_path / "classes.txt").write_text("a\nb\n")  # not for class folders
    path = write_tar(tmp_path / "b.tar", {"cat/1.png": PNG[0], "cat/1.txt": b"7", "dog/2.png": PNG[1]})
    with open_source(path) as source:
        assert source.targets.classes == ["cat", "dog"]
    with pytest.raises(UsageError, match=r"^labels=Labels\(column=.*\): is about columns of a CSV"):
        convert_images(
            write_tar(tmp_path / "c.tar", {"1.png": PNG[0]}),
            tmp_path / "c.h5",
            size=4,
            labels=Labels(column="x"),
        )


def test_a_csv_of_labels_goes_before_those_in_the_tar(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("".join(f"{n:04d}.png,{n * 10}\n" for n in range(8)))
    convert_images(folder, tmp_path / "out.h5", size=4, labels=tmp_path / "labels.csv", shuffle=False)
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["label"][:].tolist() == [n * 10 for n in range(8)]


def test_parts_of_samples_are_left_out_with_a_note(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"1.png": PNG[0], "1.cls": b"7", "1.seg.png": PNG[1]})
    with open_source(path) as source:
        assert source.keys == ["1.png"]
        assert source.findings.notes[-1:] == [
            "1 images called .seg.png are parts of samples, and are left out; pairs={'seg': 'seg.png'} packs them."
        ]


def test_several_images_a_sample_are_fields(tmp_path: Path) -> None:
    members = {
        f"{n}.{part}": PNG[n + k] for n in range(3) for k, part in enumerate(("input.png", "output.png"))
    }
    path = write_tar(tmp_path / "a-0.tar", members)
    write_tar(tmp_path / "a-1.tar", {"3.input.png": PNG[0]})
    none: Any = Labels(unlabeled="all")
    with pytest.raises(UsageError) as error:
        convert_images(path, tmp_path / "a.h5", size=4, labels=none, pairs={"x": "other.png"})
    assert str(error.value).endswith("they have .input.png, .output.png. Pass one of them.")
    with pytest.raises(UsageError) as error:
        convert_images(path, tmp_path / "a.h5", size=4)
    assert str(error.value) == (
        f"{path}: its samples have several images, .input.png, .output.png; one is the image. Pass the others as "
        "partners of it, such as pairs={'output': 'output.png'}."
    )
    options: dict[str, Any] = {
        "size": 4,
        "labels": none,
        "pairs": {"output": "output.png"},
        "on_error": "skip",
    }
    report = convert_images(str(tmp_path / "a-*.tar"), tmp_path / "a.h5", **options)
    pack = open_pack(tmp_path / "a.h5")
    assert [field.name for field in pack.fields] == ["image", "output", "key"]
    assert [one["reason"] for one in report.skipped] == ["has no output."]
    for row, key in enumerate(pack.keys()):
        n = int(key.rpartition("/")[2][0])
        assert np.array_equal(pack.read("image")[row], PICTURES[n])
        assert np.array_equal(pack.read("output")[row], PICTURES[n + 1])


def test_tars_without_labels(tmp_path: Path) -> None:
    for split in ("train", "test"):
        labels = {f"{split}{n}.cls": b"%d" % n for n in range(2)} if split == "train" else {}
        write_tar(tmp_path / f"a-{split}.tar", {f"{split}{n}.png": PNG[n] for n in range(2)} | labels)
    assert "has no .cls beside it" in refused(tmp_path)
    with open_source(tmp_path, SourceOptions(unlabeled=["test"])) as source:
        assert source.targets.fixed["label"][source.splits["test"]].tolist() == [-1, -1]
        assert source.targets.fixed["label"][source.splits["train"]].tolist() == [0, 1]
    assert "its splits are test, train. Pass one of its splits" in refused(tmp_path, unlabeled=["val"])
    report = convert_images(tmp_path, tmp_path / "a.h5", size=4, labels=Labels(unlabeled="all"))
    assert (report.rows, [field.name for field in open_pack(tmp_path / "a.h5").fields]) == (
        4,
        ["image", "key"],
    )


@pytest.mark.parametrize(
    ("members", "options", "said", "skipped"),
    [
        ({"1.png": b"x", "1.cls": b"1", "2.png": b"x"}, {}, "2.png has no .cls beside it. Create", {1}),
        (
            {"1.png": b"x", "1.cls": b"1", "2.png": b"x", "2.cls": b" "},
            {},
            "2.png has an empty 2.cls. Create",
            {1},
        ),
        ({"1.png": b"x", "1.cls": b"\xff"}, {}, "1.png has a 1.cls that is not UTF-8 text. Create", {0}),
        ({"1.png": b"x", "1.json": b"{"}, {"label": "a"}, "1.png has a 1.json that is not JSON. Create", {0}),
        (
            {"1.png": b"x", "1.json": b"{}"},
            {"label": "a"},
            "1.png has a 1.json without a number or text called a",
            {0},
        ),
        ({"1.png": b"x", "1.json": b'{"a": [1]}'}, {"label": "a"}, "without a number or text called a", {0}),
        ({"1.png": b"x", "1.json": b"[" * 99999}, {"label": "a"}, "that is not JSON", {0}),
        (
            {"1.png": b"x", "1.cls": b"1", "2.cls": b"1"},
            {},
            "2.cls is a label without an image. Create the tar again",
            set(),
        ),
    ],
)
def test_what_cannot_be_used_is_one_sentence_or_skipped(
    tmp_path: Path, members: dict[str, bytes], options: dict[str, str], said: str, skipped: set[int]
) -> None:
    path = write_tar(tmp_path / "a.tar", {"0.png": PNG[0], "0.cls": b"1", "0.json": b'{"a": 1}', **members})
    text = refused(path, **options)
    assert said in text
    assert text.endswith("Create the tar again, or pass on_error='skip'.")
    with open_source(path, SourceOptions(findings=Findings(True), **options)) as source:  # type: ignore[arg-type]
        assert set(source.findings.refused) == {index + 1 for index in skipped}
        assert len(source.findings.skipped) == (not skipped)


def test_a_field_is_all_that_follows_the_first_dot(tmp_path: Path) -> None:
    members = {}
    for n, name in enumerate(("cat", "dog")):
        members |= {f"a.b/{n}.png": PNG[n], f"a.b/{n}.cls": name.encode(), f"a.b/{n}.coarse.cls": b"pet"}
    path = write_tar(tmp_path / "a.tar", {**members, "test": b"notes", "train": b"more", "meta": b"{}"})
    for label, classes in ((None, ["cat", "dog"]), ("coarse.cls", ["pet"]), ("COARSE.CLS", ["pet"])):
        with open_source(path, SourceOptions(label=label)) as source:
            assert (source.targets.classes, source.findings.skipped) == (classes, [])
    only = {name: data for name, data in members.items() if not name.endswith(("0.cls", "1.cls"))}
    path = write_tar(tmp_path / "b.tar", only)
    assert refused(path) == (
        f"{path}: a.b/0.png has no .cls beside it (there are .coarse.cls). Create the tar again, pass labels=Labels(unlabeled='all'), "
        "or pass on_error='skip'."
    )
    assert refused(path, label="fine.cls").startswith(
        f"{path}: a.b/0.png has no .fine.cls beside it (there are .coarse.cls)."
    )
    path = write_tar(tmp_path / "c.tar", {"1.png": PNG[0], "1.cls": b"a", "1.CLS": b"b"})
    assert refused(path) == (
        f"{path}: 1.cls and 1.CLS are two labels of one sample; one is packed. "
        "Create the tar without one of them, or rename it (a.left.png)."
    )


def test_two_images_of_one_sample_are_one_sentence(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"1.png": PNG[0], "1.jpg": PNG[0], "1.cls": b"1"})
    assert "1.png and 1.jpg are two images of one sample; one is packed" in refused(path)
    path = write_tar(tmp_path / "a.tar", {"1.png": PNG[0], "1.cls": b"1"})
    with tarfile.open(path, "a") as tar:
        tar.addfile(tarfile.TarInfo("1.cls"))
    assert "1.cls occurs twice" in refused(path)


def test_a_truncated_tar_is_one_sentence(folder: Path) -> None:
    path = folder / "000000.tar"
    path.write_bytes(path.read_bytes()[:3000])
    assert (
        refused(folder)
        == f"{path}: a damaged or truncated archive; an intact archive is needed. Fetch it again."
    )
    with pytest.raises(SourceError):
        convert_images(folder, folder.parent / "out.h5", size=4)
    assert not (folder.parent / "out.h5").exists()


def test_a_complete_pack_is_left_as_it_is(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.h5"
    convert_images(folder, out, size=4)
    assert convert_images(folder, out, size=4, resume=True).already


def test_tars_of_webdataset_itself(tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset", reason="webdataset is not installed")
    place = tmp_path / "shards"
    place.mkdir()
    with wds.ShardWriter(str(place / "%06d.tar"), maxcount=3, verbose=0) as writer:
        for n, data in enumerate(PNG):
            writer.write({"__key__": f"pets/{n}", "png": data, "cls": n % 3, "json": {"pet": f"p{n % 2}"}})
    with open_source(place) as source:
        assert [source.read(index) for index in range(8)] == PNG
        assert source.targets.fixed["label"].tolist() == [n % 3 for n in range(8)]


def test_tars_without_an_image_are_one_sentence(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"0.cls": b"1"})
    write_tar(tmp_path / "b.tar", {"1.txt": b"no image"})
    with pytest.raises(SourceError, match="no images found"):
        convert_images([tmp_path / "a.tar", tmp_path / "b.tar"], tmp_path / "out.h5", on_error="skip")
