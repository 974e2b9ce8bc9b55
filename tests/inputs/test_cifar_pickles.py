from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer import convert_images, open_pack
from packer.errors import SourceError, UsageError
from packer.inputs.cifar_pickles import find_cifar, read_cifar
from packer.inputs.image_sources import open_source

CLASSES = ["cat", "dog", "frog"]
RNG = np.random.default_rng(3)
PIXELS = {name: RNG.integers(0, 256, (6, 12), np.uint8) for name in ("1", "2", "test")}


class Python2Pickler(pickle._Pickler):
    """Writes bytes as Python 2 wrote str, which is how CIFAR's files are written."""

    dispatch = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]  # noqa: RUF012

    def save_bytes(self, data: bytes) -> None:
        head = b"U" + bytes([len(data)]) if len(data) < 256 else b"T" + struct.pack("<i", len(data))
        self.write(head + data)  # type: ignore[attr-defined]
        self.memoize(data)  # type: ignore[attr-defined]

    dispatch[bytes] = save_bytes


def python2(value: Any) -> bytes:
    file = io.BytesIO()
    Python2Pickler(file, 2).dump(value)
    return file.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def batch(name: str, first: int) -> dict[bytes, Any]:
    count = len(PIXELS[name])
    return {
        b"batch_label": b"a batch",
        b"labels": [(first + n) % 3 for n in range(count)],
        b"data": PIXELS[name],
        b"filenames": [f"pet_{first + n}.png".encode() for n in range(count)],
    }


def cifar10(dump: Callable[[Any], bytes] = python2) -> dict[str, bytes]:
    return {
        "data_batch_1": dump(batch("1", 0)),
        "data_batch_2": dump(batch("2", 6)),
        "test_batch": dump(batch("test", 0)),
        "batches.meta": dump({b"label_names": [name.encode() for name in CLASSES], b"num_vis": 12}),
    }


def cifar100() -> dict[str, bytes]:
    parts = {"train": "1", "test": "test"}
    files = {}
    for name, own in parts.items():
        told = batch(own, 0)
        told[b"fine_labels"] = told.pop(b"labels")
        told[b"coarse_labels"] = [n % 2 for n in range(6)]
        files[name] = python2(told)
    files["meta"] = python2(
        {b"fine_label_names": [b"cat", b"dog", b"frog"], b"coarse_label_names": [b"a", b"b"]}
    )
    return files


def write(folder: Path, files: dict[str, bytes]) -> str:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return str(folder)


def images_of(pixels: np.ndarray) -> np.ndarray:
    return pixels.reshape(-1, 3, 2, 2).transpose(0, 2, 3, 1)


@pytest.mark.parametrize(
    "dump",
    [python2, *(lambda value, p=protocol: pickle.dumps(value, p) for protocol in range(1, 6))],
    ids=["python 2", *(f"protocol {p}" for p in range(1, 6))],
)
def test_every_way_in_which_such_files_are_written(tmp_path: Path, dump: Callable[[Any], bytes]) -> None:
    with open_source(write(tmp_path / "cifar", cifar10(dump))) as source:
        assert len(source) == 18
        assert source.classes == CLASSES
        assert source.labels is not None
        assert source.labels.tolist() == [0, 1, 2] * 6
        assert {name: members.tolist() for name, members in source.splits.items()} == {
            "train": list(range(12)),
            "test": list(range(12, 18)),
        }
        assert source.keys[0] == "train/cat/pet_0.png"
        assert source.keys[17] == "test/frog/pet_5.png"
        expected = images_of(np.concatenate([PIXELS[name] for name in ("1", "2", "test")]))
        for index in (17, 0, 6):
            assert source.read(index) == b"P6\n2 2\n255\n" + expected[index].tobytes()
            assert source.sizes[index] == len(source.read(index))
        assert "Read as CIFAR's pickles: 12 train and 6 test images of 2x2 in 3 classes." in source.notes


@pytest.mark.parametrize("kind", ["folder", ".tar", ".tar.gz"])
def test_a_pack_holds_the_pixels_as_they_are(tmp_path: Path, kind: str) -> None:
    place = write(tmp_path / "cifar-10-batches-py", cifar10())
    if kind != "folder":
        with tarfile.open(f"{place}{kind}", "w:gz" if kind.endswith("gz") else "w") as tar:
            tar.add(place, "cifar-10-batches-py")
        place += kind
    convert_images(place, tmp_path / "out.h5", size=2, shuffle=False)
    pack = open_pack(tmp_path / "out.h5")
    expected = images_of(np.concatenate([PIXELS[name] for name in ("1", "2", "test")]))
    import h5py

    with h5py.File(tmp_path / "out.h5") as file:
        assert np.array_equal(file["image"][:], expected)
        assert file["label"][:].tolist() == [0, 1, 2] * 6
    assert pack.header.classes == tuple(CLASSES)
    assert {name: list(map(tuple, spans)) for name, spans in pack.header.splits.items()} == {
        "train": [(0, 12)],
        "test": [(12, 18)],
    }


def test_cifar_100_has_two_kinds_of_labels(tmp_path: Path) -> None:
    place = write(tmp_path / "c", cifar100())
    with open_source(place) as source:
        assert (source.classes, source.labels.tolist()[:3]) == (CLASSES, [0, 1, 2])  # type: ignore[union-attr]
    with open_source(place, label="coarse") as source:
        assert (source.classes, source.labels.tolist()[:3]) == (["a", "b"], [0, 1, 0])  # type: ignore[union-attr]
    with pytest.raises(
        UsageError, match=r"label other: is not a label of .*c; fine and coarse are\. Pass one"
    ):
        open_source(place, label="other")
    convert_images(place, tmp_path / "c.h5", size=2, label="coarse")
    assert open_pack(tmp_path / "c.h5").header.classes == ("a", "b")


def test_names_that_are_missing_or_equal_are_numbers(tmp_path: Path) -> None:
    for told in ({b"filenames": [b"x.png"] * 6}, {}):
        files = cifar10()
        values = {**batch("1", 0), **told}
        if not told:
            del values[b"filenames"]
        files["data_batch_1"] = python2(values)
        with open_source(write(tmp_path / "c", files)) as source:
            assert source.keys[1] == "train/dog/00001.png"
            assert source.keys[13] == "test/dog/00001.png"


def test_a_folder_of_images_beside_such_names_is_one_of_images(tmp_path: Path) -> None:
    write(tmp_path / "c", {**cifar10(), "1.png": b"an image"})
    with open_source(tmp_path / "c") as source:
        assert source.keys == ["1.png"]
    assert find_cifar(["train", "test"]) is None
    assert find_cifar(["data_batch_1"]) is None


class Shell:
    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.target}",)


def refusal(data: bytes) -> str:
    files = {**cifar10(), "data_batch_2": data}
    with pytest.raises(SourceError) as error:
        read_cifar("c", find_cifar(files) or [], files.__getitem__, None)
    return str(error.value)


def test_nothing_that_a_pickle_calls_is_run(tmp_path: Path) -> None:
    target = tmp_path / "touched"
    for protocol in range(6):
        data = pickle.dumps({**batch("2", 6), b"extra": Shell(str(target))}, protocol)
        assert refusal(data) == (
            "c/data_batch_2: asks for posix.system; CIFAR's pickles hold arrays, lists, dictionaries and text, and nothing of "
            "another is run. Get it again, from its makers."
        )
    assert not target.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n.",
        b"c__main__\nShell\n.",
        b"\x80\x02c_codecs\nlookup\n.",
    ],
)
def test_other_names_are_refused(data: bytes) -> None:
    assert "asks for" in refusal(data)


def test_instructions_that_no_such_file_needs_are_refused() -> None:
    for data in (
        b"(i__main__\nShell\n.",
        b"Pid\n.",
        b"\x80\x02\x82\x01.",
        b"\x80\x04\x8f.",
        b"\x80\x05\x97.",
    ):
        assert "holds objects of other kinds" in refusal(data)
    # States of the functions themselves, and keys whose hash takes for ever.
    assert "other kinds" in refusal(b"\x80\x02cnumpy\ndtype\nN}X\x04\x00\x00\x00_runNs\x86b.")
    bomb = b"\x80\x02}" + b"))\x86" + b"2\x86" * 60 + b"Ns."
    assert "other keys than texts" in refusal(bomb)


def test_no_stand_in_was_changed_by_a_pickle() -> None:
    refusal(b"\x80\x02cnumpy\ndtype\nN}X\x04\x00\x00\x00_runNs\x86b.")
    files = cifar10()
    assert len(read_cifar("c", find_cifar(files) or [], files.__getitem__, None).keys) == 18


WHOLE = cifar10()["data_batch_2"]


@pytest.mark.parametrize("length", [0, 1, 10, 60, len(WHOLE) // 2, len(WHOLE) - 1])
def test_a_truncated_file_is_one_sentence(length: int) -> None:
    assert refusal(WHOLE[:length]) == (
        "c/data_batch_2: a damaged or truncated pickle; a whole one is needed. Get it again."
    )


def test_every_flipped_bit_gives_a_data_set_or_one_sentence() -> None:
    files = cifar10()
    for place in range(len(WHOLE)):
        files["data_batch_2"] = WHOLE[:place] + bytes([WHOLE[place] ^ 4]) + WHOLE[place + 1 :]
        try:
            images = read_cifar("c", find_cifar(files) or [], files.__getitem__, None)
        except SourceError:
            continue
        assert len(images.keys) == 18


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({b"data": PIXELS["2"][:, :9]}, "no array uint8"),
        ({b"data": PIXELS["2"].astype(np.int32)}, "no array uint8"),
        ({b"data": PIXELS["2"][:0]}, "no array uint8"),
        ({b"data": [1]}, "no array called data"),
        ({b"data": None}, "no data"),
        ({b"labels": [0] * 5}, "no list of 6 whole numbers called labels"),
        ({b"labels": [0, 1, 2, 3, 0, 0]}, "the label 3, of 3 classes"),
        ({b"labels": [0, 1, 2, -1, 0, 0]}, "the label -1, of 3 classes"),
        ({b"labels": [0, 1, 2, "1", 0, 0]}, "no list of 6 whole numbers"),
        ({b"filenames": [b"a"] * 5}, "no list of 6 filenames"),
        ({b"filenames": [b"\xff"] * 6}, "filenames that are no text"),
    ],
)
def test_other_contents_are_one_sentence(change: dict[bytes, Any], found: str) -> None:
    text = refusal(python2({**batch("2", 6), **change}))
    assert text.startswith(f"c/data_batch_2: holds {found}")
    assert text.endswith("and so is not one of CIFAR's files. Get it again.")


def test_no_dictionary_is_one_sentence() -> None:
    assert refusal(pickle.dumps([1], 2)).startswith("c/data_batch_2: holds no dictionary")
