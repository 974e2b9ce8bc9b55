"""Arrays of files: which become the image and the label, and what is refused, with the line that settles it."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from packer import Fields, Report, convert_images, open_pack, pack_dataset
from packer.errors import PackerError, SourceError, UsageError
from packer.samples import array_files

pytestmark = pytest.mark.usefixtures("hdf5_here")

N = 30
draws = np.random.default_rng(5)
IMAGES = draws.integers(0, 256, (N, 16, 12, 3), dtype=np.uint8)
GRAY = np.ascontiguousarray(IMAGES[..., 0])
LABELS = np.arange(N) % 10
TEXTS = ["cat", "dog"] * (N // 2)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save(name: str, **arrays: Any) -> str:
    """Write arrays into an .npz or an HDF5 file; "a__b" is b in the group a."""
    arrays = {key.replace("__", "/"): value for key, value in arrays.items()}
    if name.endswith(".npz"):
        np.savez(name, **arrays)
    else:
        with h5py.File(name, "w") as file:
            file.update(arrays)
    return name


def matlab(name: str, **arrays: Any) -> str:
    """Write variables as MATLAB 7.3 does: axes in reverse, behind a user block; lists are cells of text."""
    with h5py.File(name, "w", userblock_size=512) as file:
        for key, value in arrays.items():
            if isinstance(value, list):
                refs = np.empty((1, len(value)), h5py.ref_dtype)
                for number, text in enumerate(value):
                    codes = np.array([[ord(letter)] for letter in text], np.uint16)
                    cell = file.create_dataset(f"#refs#/{key}{number}", data=codes)
                    cell.attrs["MATLAB_class"] = np.bytes_("char")
                    refs[0, number] = cell.ref
                dataset = file.create_dataset(key, data=refs, dtype=h5py.ref_dtype)
                dataset.attrs["MATLAB_class"] = np.bytes_("cell")
            else:
                dataset = file.create_dataset(key, data=np.ascontiguousarray(value.T))
                dataset.attrs["MATLAB_class"] = np.bytes_(value.dtype.name)
    with open(name, "r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")
    return name


def pack(source: Any, **options: Any) -> tuple[Report, dict[str, NDArray[Any]]]:
    """Pack a source in order; return the report and the pack's arrays."""
    report = pack_dataset(source, "out.h5", shuffle=False, overwrite=True, **options)
    opened = open_pack("out.h5")
    return report, {f.name: opened.read(f.name) for f in opened.fields if not f.ragged}


def refusal(source: Any, error: type[PackerError] = UsageError, **options: Any) -> str:
    """Return the sentence with which a source is refused; nothing is written."""
    Path("out.h5").unlink(missing_ok=True)
    with pytest.raises(error) as caught:
        pack_dataset(source, "out.h5", **options)
    assert not os.path.exists("out.h5")
    return str(caught.value)


def encoded(image: NDArray[np.uint8], form: str = "PNG") -> bytes:
    data = io.BytesIO()
    Image.fromarray(image).save(data, form)
    return data.getvalue()


@pytest.mark.parametrize("end", ["npz", "h5"])
@pytest.mark.parametrize(
    ("image", "label"),
    [("X", "y"), ("images", "labels"), ("Image", "LABEL"), ("x_train", "y_train"), ("set__x", "set__y")],
)
def test_the_rule_names_image_and_label(end: str, image: str, label: str) -> None:
    _, arrays = pack(
        save(f"a.{end}", **{image: IMAGES, label: LABELS, "ids": LABELS + 3, "mean": np.ones(3)})
    )
    assert [*arrays] == ["image", "ids", "label"] or [*arrays] == ["image", "label", "ids"]
    np.testing.assert_array_equal(arrays["image"], IMAGES)
    np.testing.assert_array_equal(arrays["label"], LABELS)


MATLABS: dict[str, dict[str, Any]] = {
    "samples last": {"X": IMAGES.transpose(1, 2, 3, 0), "y": LABELS[:, None] * 1.0},
    "samples first": {"X": IMAGES, "y": LABELS[:, None] * 1.0},
    "labels in a line": {"images": IMAGES.transpose(1, 2, 3, 0), "labels": LABELS[None]},
    "masks, no labels": {"images": IMAGES.transpose(1, 2, 3, 0), "masks": GRAY.transpose(1, 2, 0)},
}


@pytest.mark.parametrize("kind", MATLABS)
@pytest.mark.parametrize("name", ["a.mat", "a.h5"])
@pytest.mark.parametrize("most", [1 << 20, 0])
def test_matlab_files(kind: str, name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_files, "_DECODED_BYTES", most)  # 0: values are staged, as those of large files
    _, arrays = pack(matlab(name, **MATLABS[kind]))
    np.testing.assert_array_equal(arrays["image"], IMAGES)
    if "masks" in MATLABS[kind]:
        np.testing.assert_array_equal(arrays["masks"], GRAY)
    else:
        assert arrays["label"].dtype == np.int64
        np.testing.assert_array_equal(arrays["label"], LABELS)


def test_cells_and_maps_of_a_matlab_file() -> None:
    """As NYU Depth v2: labels are maps, other variables have another length."""
    depths = draws.random((16, 12, N)).astype(np.float32)
    last = {"images": IMAGES.transpose(1, 2, 3, 0), "depths": depths, "labels": GRAY.transpose(1, 2, 0)}
    report, arrays = pack(matlab("nyu.mat", **last, scenes=TEXTS, names=["book", "bed"]))
    np.testing.assert_array_equal(arrays["depths"], depths.transpose(2, 0, 1))
    np.testing.assert_array_equal(arrays["labels"], GRAY)
    assert open_pack("out.h5").read_ragged("scenes")[1] == b"dog"
    assert "left out: names text[2]" in report.notes[0]
    _, arrays = pack(matlab("cells.mat", images=last["images"], labels=TEXTS))
    assert arrays["label"].tolist() == [0, 1] * (N // 2)


def test_lines_of_text_in_a_matlab_file() -> None:
    """Shorter lines are padded with spaces."""
    lines = np.array([[ord(letter) for letter in text] for text in ("cat  ", "horse") * (N // 2)], np.uint16)
    path = matlab("a.mat", images=IMAGES.transpose(1, 2, 3, 0), labels=lines, about=lines[:1])
    with h5py.File(path, "r+") as file:
        for name in ("labels", "about"):
            file[name].attrs["MATLAB_class"] = np.bytes_("char")
    report, arrays = pack(path)
    assert arrays["label"].tolist() == [0, 1] * (N // 2)
    assert open_pack("out.h5").header.classes == ("cat", "horse")
    assert "left out: about text[1]" in report.notes[0]


def test_a_matlab_file_of_an_older_version() -> None:
    pytest.importorskip("scipy.io")
    import scipy.io

    images = IMAGES.reshape(N, -1)
    nested = {
        "dataset": {"train": {"images": images, "labels": LABELS[:, None]}, "mapping": np.zeros((2, 2))}
    }
    for name, variables in {
        "svhn.mat": {"X": IMAGES.transpose(1, 2, 3, 0), "y": LABELS[:, None]},
        "emnist.mat": nested,
    }.items():
        scipy.io.savemat(name, variables)
        said = refusal(name, SourceError)
        assert said.startswith(
            f"{name}: is a MATLAB file of an older version than 7.3, which packer does not read."
        )
        run(said.partition("Turn it into .npz: ")[2], numpy=np, scipy=scipy)
        _, arrays = pack(name.replace(".mat", ".npz"))
        np.testing.assert_array_equal(arrays["label"], LABELS)
        np.testing.assert_array_equal(
            arrays["image" if name == "svhn.mat" else "features"], IMAGES if name == "svhn.mat" else images
        )


def run(line: str, **names: Any) -> None:
    """Execute the line that a message proposes."""
    exec(line.removesuffix("."), names)


@pytest.mark.parametrize("end", ["npz", "h5"])
@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (IMAGES.transpose(1, 2, 3, 0), IMAGES),
        (IMAGES.transpose(3, 1, 2, 0), IMAGES),
        (GRAY.transpose(1, 2, 0), GRAY[..., None]),
        (IMAGES.transpose(0, 3, 1, 2), IMAGES),
    ],
    ids=["HWCN", "CHWN", "HWN", "NCHW"],
)
def test_the_axis_of_the_samples_is_that_of_the_labels(end: str, x: Any, expected: Any) -> None:
    for y in (LABELS, LABELS[:, None]):
        report, arrays = pack(save(f"a.{end}", X=np.ascontiguousarray(x), y=y))
        np.testing.assert_array_equal(arrays["image"], expected)
        np.testing.assert_array_equal(arrays["label"], LABELS)
    if len(x) != N:
        assert "X: the samples lie on the last axis, which becomes the first." in report.notes


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (
            {"x": IMAGES, "y": LABELS[:-1]},
            "image has 30, label has 29 values; all fields have a value for each",
        ),
        (
            {"x": IMAGES, "y": LABELS[:3]},
            "image has 30, label has 3 values; all fields have a value for each",
        ),
        (
            {"images": IMAGES, "ans": LABELS[:-1]},
            "ans has nearly as many values as there are samples, of which one may lack it. Name the fields: "
            "fields=Fields(rename={'images': 'image'}).",
        ),
        (
            {"images": IMAGES, "ans": LABELS},
            "holds ans int64[30], images uint8[30, 16, 12, 3]; none is called label. Name the fields: "
            "fields=Fields(rename={'ans': 'label'}).",
        ),
        (
            {"set_x": IMAGES, "set_y": LABELS, "list_classes": np.arange(2)},
            "none is called image, x, features, label or y. Name the fields: fields=Fields(rename={'set_x': "
            "'image', 'set_y': 'label'}).",
        ),
        (
            {"a": np.zeros((3, 2)), "b": np.zeros(7)},
            "holds a float64[3, 2], b float64[7]; none is called image, x, features, label or y. Name the fields: ",
        ),
        (
            {"a": LABELS, "b": np.zeros((N, 2)), "c": np.zeros(N)},
            "none is called image, x, features, label or y. Name the fields: fields=Fields(rename={'b': 'b'}).",
        ),
        (
            {"arr_0": IMAGES, "arr_1": LABELS},
            "Name the fields: fields=Fields(rename={'arr_0': 'image', 'arr_1': 'label'}).",
        ),
        (
            {"features": IMAGES, "label": LABELS},
            "none is called image. Name the fields: fields=Fields(rename={'features': 'image'}).",
        ),
        ({"x": IMAGES[0], "z": np.zeros((16, 2))}, "x looks like one picture; images are [N, H, W, C]."),
        (
            {f"demo_{k}__{a}": v for k in (0, 1) for a, v in {"image": IMAGES, "label": LABELS}.items()},
            "of demo_0/image, demo_1/image each could be 'image'; join parts by numpy.concatenate. Name the "
            "fields: fields=Fields(rename={'demo_0/image': 'image', 'demo_0/label': 'label'}).",
        ),
        (
            {"images": np.array(TEXTS), "labels": LABELS},
            "images holds no pixels; images are arrays of numbers. Name the fields: ",
        ),
    ],
)
def test_what_the_rule_leaves_open_is_an_error(arrays: Mapping[str, Any], said: str) -> None:
    with h5py.File("a.h5", "w") as file:
        for name, values in arrays.items():
            file[name.replace("__", "/")] = values.astype(object) if values.dtype.kind == "U" else values
    sentence = refusal("a.h5")
    assert said in sentence
    follow(sentence)


def follow(said: str) -> None:
    """Pack a.h5 with the names that a message proposes, if any."""
    if "Name the fields: fields=" in said:
        pack("a.h5", fields=eval(said.partition("Name the fields: fields=")[2].removesuffix(".")))


def test_what_was_asked_for_is_packed() -> None:
    save("a.npz", images=IMAGES, ans=LABELS)
    assert [*pack("a.npz", fields=Fields(rename={"ans": "ans"}))[1]] == ["image", "ans"]
    assert [*pack("a.npz", fields=Fields(rename={"ans": "label"}))[1]] == ["image", "label"]
    save("b.npz", images=IMAGES, ans=LABELS[:-1])
    assert [*pack("b.npz", fields=Fields(rename={"images": "image"}))[1]] == ["image"]
    np.save("c.npy", IMAGES[0])
    assert [*pack("c.npy", fields=Fields(rename={"c": "features"}))[1]] == ["features"]
    save("d.npz", x=IMAGES.astype("f4"), y=LABELS)
    _, arrays = pack("d.npz", fields={"image": "uint8", "label": None})
    np.testing.assert_array_equal(arrays["image"], IMAGES)


def test_an_image_without_labels_is_noted() -> None:
    report, _ = pack(save("a.npz", images=IMAGES, fine=LABELS, coarse=LABELS))
    assert "images is 'image'; none is 'label'. To choose" in report.notes[0]


SPLITS: dict[str, Callable[[], Any]] = {
    "mnist": lambda: save("a.npz", x_train=IMAGES, y_train=LABELS, x_test=IMAGES[:9], y_test=LABELS[:9]),
    "medmnist": lambda: save(
        "a.npz",
        test_images=IMAGES[:9],
        test_labels=LABELS[:9, None],
        train_images=IMAGES,
        train_labels=LABELS[:, None],
    ),
    "groups": lambda: save("a.h5", train__X=IMAGES, train__y=LABELS, test__X=IMAGES[:9], test__y=LABELS[:9]),
    "trainX": lambda: save("a.h5", trainX=IMAGES, trainY=LABELS, testX=IMAGES[:9], testY=LABELS[:9]),
    "files": lambda: [save("train.npz", x=IMAGES, y=LABELS), save("test.npz", x=IMAGES[:9], y=LABELS[:9])],
    "last axis": lambda: save(
        "a.h5",
        train__X=np.ascontiguousarray(IMAGES.transpose(1, 2, 3, 0)),
        train__y=LABELS,
        test__X=IMAGES[:9],
        test__y=LABELS[:9],
    ),
}


@pytest.mark.parametrize("kind", SPLITS)
def test_arrays_of_splits(kind: str) -> None:
    source = SPLITS[kind]()
    report, arrays = pack(source)
    assert "splits, by the names of the arrays: train 30, test 9." in report.notes
    assert open_pack("out.h5").header.splits == {"train": ((0, N),), "test": ((N, N + 9),)}
    np.testing.assert_array_equal(arrays["image"], np.concatenate([IMAGES, IMAGES[:9]]))
    np.testing.assert_array_equal(arrays["label"], np.concatenate([LABELS, LABELS[:9]]))
    pack_dataset(source, "shuffled.h5")
    opened = open_pack("shuffled.h5")
    keys = [int(key) for key in opened.keys()]
    np.testing.assert_array_equal(opened.read("image"), arrays["image"][keys])
    assert opened.header.splits == {"train": ((0, N),), "test": ((N, N + 9),)}


def test_splits_that_differ() -> None:
    save("a.npz", x_train=IMAGES, y_train=LABELS, x_test=IMAGES[:9])
    assert "'label' differs between the splits: train has int64[], test has none per sample." in refusal(
        "a.npz"
    )
    save("a.npz", x_train=IMAGES, y_train=LABELS, x_test=IMAGES[:9], y_test=LABELS[:8])
    assert "image has 9, label has 8 values" in refusal("a.npz")
    save("a.npz", x_train=IMAGES, y_train=LABELS, x_test=GRAY[:9], y_test=LABELS[:9])
    assert "train has uint8[16, 12, 3], test has uint8[16, 12] per sample" in refusal("a.npz")
    save("a.npz", x_train=IMAGES, y_train=LABELS, x_test=IMAGES[:9], y_test=LABELS[:9])
    assert refusal("a.npz", split="train=0.5,val=0.5") == (
        "split=: the arrays of a.npz are splits already: train, test. Leave it out, or name the arrays of one of"
        " them by fields=Fields(rename=)."
    )
    # As many samples in each split: the others are not fields beside those that are named.
    save("a.npz", x_train=IMAGES, y_train=LABELS, x_test=IMAGES, y_test=LABELS)
    assert [*pack("a.npz", fields=Fields(rename={"x_train": "image", "y_train": "label"}))[1]] == [
        "image",
        "label",
    ]
    sets = ((IMAGES, LABELS), (IMAGES[:9], LABELS[:9]))
    said = refusal(sets)
    assert said.startswith("tuple: holds 2 sets of arrays. Join them: ")
    run(said.partition("Join them: ")[2], sets=sets, numpy=np, pack_dataset=pack_dataset)
    splits = open_pack("out.h5").header.splits
    assert {name: stop - start for name, ((start, stop),) in splits.items()} == {"train": N, "test": 9}


def _texts(kind: str) -> Any:
    if kind == "object":
        return np.array(TEXTS, object)
    if kind == "column":
        return np.array(TEXTS, object)[:, None]
    return np.array(TEXTS, {"S": "S5", "U": "U5"}[kind])


@pytest.mark.parametrize(
    ("end", "kind"), [("npz", "S"), ("npz", "U"), ("h5", "S"), ("h5", "object"), ("h5", "column")]
)
def test_labels_of_text_are_classes(end: str, kind: str) -> None:
    if end == "npz":
        np.savez("a.npz", images=IMAGES, labels=_texts(kind))
    else:
        with h5py.File("a.h5", "w") as file:
            file["images"] = IMAGES
            dtype = None if kind == "S" else h5py.string_dtype()
            file.create_dataset("labels", data=_texts(kind), dtype=dtype)
    report, arrays = pack(f"a.{end}")
    assert arrays["label"].tolist() == [0, 1] * (N // 2)
    assert open_pack("out.h5").header.classes == ("cat", "dog")
    assert "label: numbers 2 classes: cat, dog." in report.notes
    assert pack(f"a.{end}", classes=["dog", "cat"])[1]["label"].tolist() == [1, 0] * (N // 2)
    assert "holds the label 'dog', which is not one of the 1 classes" in refusal(
        f"a.{end}", SourceError, classes=["cat"]
    )


def test_texts_that_all_differ_stay_text() -> None:
    pack(save("a.npz", images=IMAGES, labels=np.array([f"caption {number}" for number in range(N)])))
    assert open_pack("out.h5").read_ragged("label")[3] == b"caption 3"


@pytest.mark.parametrize(("first", "classes"), [(0, ("dog", "cat")), (7, ("cat", "dog"))])
def test_enumerations_name_their_classes(first: int, classes: tuple[str, str]) -> None:
    names = {"dog": first, "cat": first + 1}
    with h5py.File("a.h5", "w") as file:
        file["images"] = IMAGES
        file.create_dataset("labels", data=np.arange(N) % 2 + first, dtype=h5py.enum_dtype(names, "i1"))
    _, arrays = pack("a.h5")
    assert open_pack("out.h5").header.classes == classes
    assert [classes[number] for number in arrays["label"][:2]] == ["dog", "cat"]


def test_python_objects_are_not_unpickled() -> None:
    np.save("labels.npy", np.array(TEXTS, object), allow_pickle=True)
    np.save("images.npy", IMAGES)
    said = refusal(["images.npy", "labels.npy"], SourceError)
    assert said == (
        "labels.npy: object[30] holds Python objects, which are not unpickled. If you trust the file, load it with "
        "allow_pickle=True and pass the values as lists: array.tolist()."
    )
    pack({"image": "images.npy", "label": np.load("labels.npy", allow_pickle=True).tolist()})
    assert open_pack("out.h5").header.classes == ("cat", "dog")
    # Beside arrays that can be read, objects are left out.
    np.savez(
        "a.npz", images=IMAGES, labels=LABELS, names=np.array(["a", "b"], object), about=np.array({}, object)
    )
    assert "left out: names object[2]" in pack("a.npz")[0].notes[0]
    for labels in (np.array(TEXTS, object), LABELS.astype(object)):
        np.savez("a.npz", images=IMAGES, labels=labels)
        assert "a.npz/labels: object[30] holds Python objects" in refusal("a.npz", SourceError)


def test_members_of_structured_arrays_are_arrays() -> None:
    rows = np.zeros(N, [("image", "u1", (16, 12)), ("label", "i8")])
    rows["image"], rows["label"] = GRAY, LABELS
    np.save("a.npy", rows)
    for source in ("a.npy", save("a.npz", rows=rows), save("a.h5", rows=rows)):
        _, arrays = pack(source)
        np.testing.assert_array_equal(arrays["image"][..., 0], GRAY)
        np.testing.assert_array_equal(arrays["label"], LABELS)


def _apart(names: Sequence[str], values: Sequence[Any]) -> str:
    with h5py.File("a.h5", "w") as file:
        for name, value in zip(names, values, strict=True):
            file[name] = value
    return "a.h5"


BY_CLASS = [f"{TEXTS[number]}/{number:04}" for number in range(N)]


@pytest.mark.parametrize(
    ("names", "values", "what"),
    [
        (BY_CLASS, [image[: 10 + number % 3] for number, image in enumerate(IMAGES)], "picture"),
        (BY_CLASS, [*IMAGES], "picture"),
        (BY_CLASS, [*GRAY], "picture"),
        (BY_CLASS, [np.void(encoded(image)) for image in IMAGES], "encoded image"),
        (BY_CLASS, [np.frombuffer(encoded(image), np.uint8) for image in IMAGES], "encoded image"),
    ],
)
def test_a_dataset_for_each_picture(names: Sequence[str], values: Sequence[Any], what: str) -> None:
    said = refusal(_apart(names, values))
    if what == "picture":
        assert (
            "; none is called image, x, features, label or y. An array holds all samples: pack pictures"
            in said
        )
    else:
        assert said.startswith("a.h5: cat/0000 ")


def test_a_group_for_each_sample() -> None:
    names = [f"{number:04}/{name}" for number in range(N) for name in ("image", "label")]
    said = refusal(_apart(names, [value for pair in zip(IMAGES, LABELS, strict=True) for value in pair]))
    assert said.endswith(
        "An array holds all samples: pack pictures of an array each by a generator of (image, label)."
    )


def _vlen(file: h5py.File, images: Sequence[bytes]) -> None:
    rows = file.create_dataset("images", len(images), h5py.vlen_dtype(np.uint8))
    for number, data in enumerate(images):
        rows[number] = np.frombuffer(data, np.uint8)


ENCODED: dict[str, Callable[[h5py.File, Sequence[bytes]], Any]] = {
    "vlen": _vlen,
    "S": lambda file, images: file.create_dataset("images", data=np.array(images)),
    "void": lambda file, images: file.create_dataset(
        "images", data=np.array([np.void(i.ljust(4000, b"\0")) for i in images])
    ),
    "padded": lambda file, images: file.create_dataset(
        "images", data=np.array([np.frombuffer(image.ljust(4000, b"\0"), np.uint8) for image in images])
    ),
}


@pytest.mark.parametrize("kind", ENCODED)
@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_encoded_images(kind: str, form: str) -> None:
    with h5py.File("a.h5", "w") as file:
        file["labels"] = LABELS
        ENCODED[kind](file, [encoded(image, form) for image in IMAGES])
    line = refusal("a.h5").partition(
        " holds encoded images, such as JPEG files; arrays hold pixels. Decode them: "
    )[2]
    with h5py.File("a.h5") as file:
        pil = type("PIL", (), {"Image": Image})
        names = {"images": file["images"], "labels": file["labels"], "io": io, "PIL": pil}
        run(line.replace("size=256", "shuffle=False"), pack_dataset=pack_dataset, **names)
    made = open_pack("out.h5")
    assert made.read("label").tolist() == LABELS.tolist()
    if form == "PNG":
        np.testing.assert_array_equal(made.read("image"), IMAGES)


def test_encoded_images_in_memory() -> None:
    images = [encoded(image) for image in IMAGES]
    said = refusal({"image": images, "label": LABELS})
    assert said.startswith("image: image text[30] holds encoded images") or "holds encoded images" in said
    pack({"image": images, "label": LABELS}, fields={"image": "bytes", "label": None})


def test_a_file_for_each_class() -> None:
    flat = IMAGES.reshape(N, -1)[:, :144].copy()
    for first, second in ((flat, flat[:9]), (IMAGES, IMAGES[:9]), (flat, flat)):
        np.save("airplane.npy", first)
        np.save("cat.npy", second)
        said = refusal(["airplane.npy", "cat.npy"])
        assert "If each is a class or a part, pass (numpy.concatenate(arrays), labels)" in said
    assert said.endswith("Name the fields: fields=Fields(rename={'airplane': 'airplane', 'cat': 'cat'}).")
    fields = Fields(rename={"airplane": "airplane", "cat": "cat"})
    assert [*pack(["airplane.npy", "cat.npy"], fields=fields)[1]] == ["airplane", "cat"]
    np.save("cat.npy", flat[:9])  # of other length: never read along another axis
    assert "airplane has 30, cat has 9 values" in refusal(["airplane.npy", "cat.npy"], fields=fields)


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (
            IMAGES.reshape(N, -1)[:, :144],
            LABELS,
            "features: rows of 144 bytes may be flattened images; they load flat.",
        ),
        (
            IMAGES,
            np.eye(10)[LABELS],
            "label: rows are one-hot, of 10 classes, and load as such. For class numbers",
        ),
        (IMAGES, LABELS + 1, "label: the numbers 1 to 10, and no 0; losses number classes from 0."),
        (
            IMAGES,
            LABELS * 2.0,
            "label: 10 different whole numbers, stored as float64; a loss over classes needs",
        ),
    ],
)
def test_values_that_may_be_meant_otherwise_are_noted(x: Any, y: Any, said: str) -> None:
    report, _ = pack(save("a.npz", x=x, y=y))
    assert any(said in note for note in report.notes), report.notes


def test_masks_of_black_and_white_are_noted() -> None:
    masks = (IMAGES[..., 0] > 99).astype(np.uint8)
    sentence = (
        f"mask: holds only 0 and 255 in its first {N} rows; losses number classes from 0. For classes 0 and 1"
    )
    for values in (masks, masks * 255, masks * 254):
        report, _ = pack(save("a.npz", image=IMAGES, mask=values))
        assert any(sentence in note for note in report.notes) == (values.max() == 255)


def test_common_files_get_no_such_note() -> None:
    for y in (LABELS, (draws.random((N, 5)) < 0.5).astype(int), LABELS / 3):
        report, _ = pack(save("a.npz", images=IMAGES, labels=y))
        assert len(report.notes) == 1


def _attributes(where: str, **attributes: Any) -> str:
    save("a.h5", group__values=np.zeros((N, 4)))
    with h5py.File("a.h5", "r+") as file:
        file[where].attrs.update(attributes)
    return "a.h5"


@pytest.mark.parametrize(
    ("where", "attributes", "kind", "program"),
    [
        ("/", {"_NCProperties": "version=2"}, "a NetCDF file", "xarray"),
        ("group/values", {"_Netcdf4Dimid": 1}, "a NetCDF file", "xarray"),
        ("/", {"encoding-type": "anndata"}, "an AnnData file", "anndata"),
        ("/", {"layer_names": np.array([b"dense"])}, "a file of a Keras model's weights", "Keras"),
        ("/", {"model_config": "{}"}, "a file of a Keras model's weights", "Keras"),
        ("group", {"pandas_type": b"frame"}, "a pandas HDFStore", "pandas"),
        ("group/values", {"CLASS": np.bytes_("TABLE")}, "a table of PyTables", "pandas"),
        (
            "group/values",
            {"PSEUDOATOM": np.bytes_("object")},
            "Python objects pickled by PyTables",
            "PyTables",
        ),
    ],
)
def test_files_of_other_programs(where: str, attributes: dict[str, Any], kind: str, program: str) -> None:
    said = refusal(_attributes(where, **attributes), SourceError)
    assert said.startswith(
        f"a.h5: is {kind}, not arrays of samples. Read it with {program}, and pass its arrays"
    )


def test_weights_of_keras_3_and_arrays_of_pytables() -> None:
    save("a.h5", layers__dense__vars__0=np.zeros((4, 2)), layers__dense__vars__1=np.zeros(2))
    assert "none is called image, x, features, label or y" in refusal("a.h5")
    save("a.h5", images=IMAGES, labels=LABELS)
    with h5py.File("a.h5", "r+") as file:
        file["images"].attrs["CLASS"] = np.bytes_("EARRAY")
    np.testing.assert_array_equal(pack("a.h5")[1]["image"], IMAGES)


def test_no_message_shows_many_arrays() -> None:
    columns = {f"column_{number}": [str(number)] * (number + 1) for number in range(100)}
    assert refusal(columns).startswith("arrays: column_0 has 1, column_1 has 2, ")
    assert len(refusal(columns)) < 400
    lines: list[str] = []
    pack_dataset({name: ["a"] * 9 for name in columns}, "out.h5", on_plan=lambda said: lines.extend(said))
    assert len(lines[0]) < 400
    save("a.npz", **{name: np.zeros(len(values)) for name, values in columns.items()})
    assert len(refusal("a.npz")) < 500


def test_cells_of_pictures_and_arrays_given_to_convert_images() -> None:
    with h5py.File(matlab("a.mat", pictures=["a"] * 3), "r+") as file:
        for number in range(3):
            del file[f"#refs#/pictures{number}"]
        for number in range(3):
            cell = file.create_dataset(f"#refs#/p{number}", data=np.ascontiguousarray(IMAGES[number].T))
            cell.attrs["MATLAB_class"] = np.bytes_("uint8")
            file["pictures"][0, number] = cell.ref
    assert "a.mat/pictures: object[3, 1] holds no numbers or text. Store" in refusal("a.mat", SourceError)
    for source in ("a.mat", [save("b.npz", x=IMAGES), "a.mat"]):
        with pytest.raises(
            UsageError, match=r"is a file of arrays; images are files of their own. Pass it to pack"
        ):
            convert_images(source, "images.h5")


def test_images_of_a_mapping_that_are_not_called_image() -> None:
    report, _ = pack({"X": IMAGES, "y": LABELS})
    assert report.notes == (
        "X: holds images; augment= and Normalize() work on the field 'image'. Pass fields=Fields(rename={'X': 'image'})"
        " to use them.",
    )
    assert pack({"image": IMAGES, "mask": GRAY})[0].notes == ()


def test_arrays_of_splits_that_are_named_by_hand() -> None:
    save("a.npz", t_train=LABELS, x_train=IMAGES, t_test=LABELS[:9], x_test=IMAGES[:9])
    _, arrays = pack("a.npz", fields=Fields(rename={"t_train": "label", "t_test": "label"}))
    np.testing.assert_array_equal(arrays["label"], np.concatenate([LABELS, LABELS[:9]]))
    assert {*open_pack("out.h5").header.splits} == {"train", "test"}
    both = Fields(rename={"t_train": "label", "x_train": "label"})
    assert "gives two arrays the same name. Pass different names." in refusal("a.npz", fields=both)


def test_parts_of_one_set() -> None:
    files = [save(name, x=IMAGES, y=LABELS) for name in ("part1.npz", "part2.npz")]
    fields = {"part1/x": "image", "part1/y": "label"}
    assert refusal(files).endswith(f"Name the fields: fields=Fields(rename={fields}).")
    _, arrays = pack(files, fields=Fields(rename=fields))
    assert ([*arrays], len(arrays["image"])) == (["image", "label"], N)


def test_classes_of_a_split_that_train_lacks() -> None:
    save(
        "a.npz",
        x_train=IMAGES,
        y_train=np.array(TEXTS),
        x_test=IMAGES[:3],
        y_test=np.array(["cat", "cow", "cat"]),
    )
    assert refusal("a.npz") == (
        "a.npz: test has the labels cow, which train lacks. Correct them, or pass all classes: classes='cat,cow,dog'."
    )
    _, arrays = pack("a.npz", classes="cat,cow,dog")
    assert arrays["label"][-3:].tolist() == [0, 1, 0]
    save("a.npz", x_train=IMAGES, y_train=LABELS, x_test=IMAGES[:3], y_test=np.array([0, 10, 1]))
    assert (
        "a.npz: test has the labels 10, which train lacks. If they are classes, correct them."
        in pack("a.npz")[0].notes
    )


def test_tokens_called_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_files, "_DECODED_BYTES", 0)
    with h5py.File("a.h5", "w") as file:
        file["x"] = IMAGES
        rows = file.create_dataset("label", N, h5py.vlen_dtype(np.int32))
        for number in range(N):
            rows[number] = np.arange(number)
    pack("a.h5")
    assert open_pack("out.h5").read_ragged("label")[2] == np.arange(2, dtype=np.int32).tobytes()


def test_further_arrays_of_splits() -> None:
    save(
        "a.npz",
        x_train=IMAGES,
        ids_train=LABELS,
        y_train=LABELS,
        x_test=IMAGES[:9],
        ids_test=LABELS[:9],
        y_test=LABELS[:9],
    )
    assert sorted(pack("a.npz")[1]) == ["ids", "image", "label"]


def test_masks_of_nearly_as_many_samples() -> None:
    said = refusal(save("a.npz", images=IMAGES, labels=LABELS, masks=GRAY[:-1]))
    assert "masks has nearly as many values as there are samples," in said
    report, _ = pack(save("a.npz", images=IMAGES, labels=LABELS, offsets=np.arange(N + 1)))
    assert "left out: offsets int64[31]" in report.notes[0]
    report, _ = pack(save("a.npz", images=IMAGES[:10], labels=LABELS[:10], anchors=np.ones((9, 4))))
    assert "left out: anchors float64[9, 4]" in report.notes[0]
