"""pack_dataset: every kind of input, value by value; errors; interruptions."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from packer import create, open_pack, pack_dataset, verify_pack
from packer.errors import PackerError, SourceError, SpaceError, UsageError
from packer.orders.runs import one_run
from packer.packs.pack import Pack
from packer.read.array_store import PackStore
from packer.samples import array_files
from packer.samples.field_plan import form_of, plan_rows
from packer.samples.packing import Fields
from packer.samples.values import ValueRefusedError

pytestmark = pytest.mark.usefixtures("hdf5_here")

ROWS = 60
draws = np.random.default_rng(0)
IMAGES = draws.integers(0, 256, (ROWS, 8, 6, 3), dtype=np.uint8)
LABELS = draws.integers(0, 5, ROWS)
TOKENS = [draws.integers(0, 50_000, n).astype(np.int32) for n in draws.integers(0, 9, ROWS)]
Sample = namedtuple("Sample", ["image", "label"])


class Samples:
    """A map-style dataset of whatever a function returns."""

    def __init__(self, get: Callable[[int], Any], count: int = ROWS) -> None:
        self._get, self._count = get, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._get(index)


def rows_of(pack: Pack, name: str) -> list[Any]:
    """A field's rows as a user gets them."""
    field = pack.header.field(name)
    if field.ragged:
        return list(PackStore(pack, ()).decoded(name, one_run(0, pack.rows)))
    return list(PackStore(pack, ()).array(name, one_run(0, pack.rows)))


def in_order(out: Path, name: str) -> list[Any]:
    """The rows of a field in the order of the samples, of a whole and undamaged pack."""
    pack = open_pack(out)
    assert verify_pack(out).ok
    rows = rows_of(pack, name)
    if not any(f.name == "key" for f in pack.fields):
        return rows
    keys = [int(key) for key in pack.keys()]
    assert sorted(keys) == list(range(pack.rows))
    return [rows[keys.index(sample)] for sample in range(pack.rows)]


def check_images(out: Path) -> None:
    """The pack holds IMAGES and LABELS, shuffled, and their mean and deviation."""
    np.testing.assert_array_equal(in_order(out, "image"), IMAGES)
    np.testing.assert_array_equal(in_order(out, "label"), LABELS)
    header = open_pack(out).header
    values = IMAGES.reshape(-1, 3) / 255
    np.testing.assert_allclose(header.statistics["image"]["mean"], values.mean(0))
    np.testing.assert_allclose(header.statistics["image"]["std"], values.std(0))
    assert header.seed == 0
    assert [int(key) for key in open_pack(out).keys()] != list(range(ROWS))
    assert header.field("image").about == {"layout": "HWC", "color": "rgb"}


def _npy(folder: Path) -> list[str]:
    np.save(folder / "images.npy", IMAGES)
    np.save(folder / "labels.npy", LABELS)
    return [str(folder / "images.npy"), str(folder / "labels.npy")]


def _npz(folder: Path) -> str:
    np.savez(folder / "data.npz", x=IMAGES, y=LABELS)
    return str(folder / "data.npz")


def _memmaps(folder: Path) -> tuple[Any, Any]:
    images, labels = _npy(folder)
    return np.load(images, mmap_mode="r"), np.load(labels, mmap_mode="r")


def _hdf5(folder: Path, **options: Any) -> str:
    with h5py.File(folder / "data.h5", "w") as file:
        file.create_dataset("train/X", data=IMAGES, **options)
        file.create_dataset("train/y", data=LABELS.astype(">i4"))
        file["mean"] = IMAGES.mean((0, 1, 2))
        file["ids"] = np.arange(3)
    return str(folder / "data.h5")


def _torch(folder: Path) -> Any:
    torch = pytest.importorskip("torch")
    return Samples(lambda i: (torch.from_numpy(IMAGES[i]).permute(2, 0, 1), torch.tensor(LABELS[i])))


SOURCES: dict[str, Callable[[Path], Any]] = {
    "arrays": lambda folder: (IMAGES, LABELS),
    "mapping": lambda folder: {"image": IMAGES, "label": LABELS},
    "big-endian": lambda folder: {"image": IMAGES, "label": LABELS.astype(">i8")},
    "lists": lambda folder: {"image": list(IMAGES), "label": LABELS.tolist()},
    "memory maps": _memmaps,
    "npy": _npy,
    "npz": _npz,
    "hdf5": _hdf5,
    "hdf5, chunked": lambda folder: _hdf5(folder, chunks=(7, 8, 6, 3)),
    "hdf5, chunked across rows": lambda folder: _hdf5(folder, chunks=(7, 4, 6, 3)),
    "hdf5, compressed": lambda folder: _hdf5(folder, chunks=(7, 8, 6, 3), compression="gzip"),
    "tuples": lambda folder: Samples(lambda i: (IMAGES[i], int(LABELS[i]))),
    "named tuples": lambda folder: Samples(lambda i: Sample(IMAGES[i], LABELS[i])),
    "dicts": lambda folder: Samples(lambda i: {"image": IMAGES[i], "label": LABELS[i]}),
    "lists as samples": lambda folder: Samples(lambda i: [IMAGES[i], LABELS[i]]),
    "a list of samples": lambda folder: list(zip(IMAGES, LABELS.tolist(), strict=True)),
    "Pillow": lambda folder: Samples(lambda i: (Image.fromarray(IMAGES[i]), LABELS[i])),
    "torch": _torch,
    "channels first": lambda folder: (np.ascontiguousarray(IMAGES.transpose(0, 3, 1, 2)), LABELS),
    "a generator": lambda folder: zip(IMAGES, LABELS, strict=True),
}


@pytest.mark.parametrize(
    ("kind", "format"),
    [*((k, "h5") for k in SOURCES), ("arrays", "npy"), ("tuples", "npy"), ("a generator", "npy")],
)
def test_images_and_labels(kind: str, format: str, tmp_path: Path) -> None:
    out = tmp_path / ("out.h5" if format == "h5" else "out")
    report = pack_dataset(SOURCES[kind](tmp_path), out)
    assert (report.rows, report.skipped) == (ROWS, ())
    check_images(out)
    assert not os.path.exists(f"{out}.packing")


@pytest.mark.parametrize("kind", ["arrays", "tuples", "a generator"])
@pytest.mark.parametrize(
    "options",
    [
        {"shards": 25},
        {"shards": "3000B"},
        {"store": "gzip"},
        {"split": "train=0.8,val=0.2"},
        {"shuffle": False},
        {"seed": 3},
    ],
    ids=str,
)
def test_options_and_any_number_of_workers(kind: str, options: Any, tmp_path: Path) -> None:
    packs = []
    for workers in (1, 2):
        out = tmp_path / f"{workers}" / ("out" if "shards" in options else "out.h5")
        out.parent.mkdir()
        pack_dataset(SOURCES[kind](tmp_path), out, workers=workers, **options)
        np.testing.assert_array_equal(in_order(out, "image"), IMAGES)
        np.testing.assert_array_equal(in_order(out, "label"), LABELS)
        files = sorted(out.iterdir()) if out.is_dir() else [out]
        packs.append([file.read_bytes() for file in files])
        header = open_pack(out).header
        assert header.seed == (None if options.get("shuffle") is False else options.get("seed", 0))
    assert packs[0] == packs[1]
    if options.get("shards") == 25:
        assert [shard.rows for shard in open_pack(out).shards] == [25, 25, 10]
    if "split" in options:
        assert {name: spans[0][1] - spans[0][0] for name, spans in header.splits.items()} == {
            "train": 48,
            "val": 12,
        }


@pytest.mark.parametrize("kind", ["arrays", "tuples", "a generator"])
def test_rows_stored_as_jpeg(kind: str, tmp_path: Path) -> None:
    from packer.codecs import jpeg

    pack_dataset(SOURCES[kind](tmp_path), tmp_path / "out.h5", store="jpeg", quality=70)
    pack = open_pack(tmp_path / "out.h5")
    for key, row in zip(pack.keys(), pack.read_ragged("image"), strict=True):
        assert row == jpeg.encode(IMAGES[int(key)], 70)
    assert pack.header.statistics["image"]


VALUES: dict[str, tuple[Any, str]] = {
    "embeddings": (draws.normal(size=(ROWS, 16)).astype(np.float16), "float16[16]"),
    "volumes": (draws.integers(0, 256, (ROWS, 4, 5, 6, 2), dtype=np.uint8), "uint8[4,5,6,2]"),
    "16 bits": (draws.integers(0, 65536, (ROWS, 6, 5), dtype=np.uint16), "uint16[6,5]"),
    "tokens": (draws.integers(0, 50_000, (ROWS, 12)), "int64[12]"),
    "ragged tokens": (TOKENS, "int32[*]"),
    "floats": (draws.normal(size=ROWS), "float64[]"),
    "booleans": (draws.random(ROWS) < 0.5, "bool[]"),
    "text": ([f"ä{i}" * (i % 3) for i in range(ROWS)], "text"),
    "bytes": ([bytes([i]) * (i % 4) for i in range(ROWS)], "bytes"),
    "ragged matrices": ([draws.normal(size=(n % 4, 3)) for n in range(1, ROWS + 1)], "float64[*,3]"),
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("way", ["column", "dataset", "generator"])
def test_any_dtype_and_shape(kind: str, way: str, tmp_path: Path) -> None:
    from packer.samples.field_plan import form_of

    values, form = VALUES[kind]
    samples = [{"value": value} for value in values]
    source = {"column": {"value": values}, "dataset": samples, "generator": iter(samples)}[way]
    pack_dataset(source, tmp_path / "out.h5", shuffle=False)
    pack = open_pack(tmp_path / "out.h5")
    assert verify_pack(tmp_path / "out.h5").ok
    assert [(f.name, form_of(f)) for f in pack.fields] == [("value", form)]
    for expected, found in zip(values, rows_of(pack, "value"), strict=True):
        np.testing.assert_array_equal(found, expected)
        if isinstance(expected, np.ndarray):
            assert found.dtype == expected.dtype


CLASSES = np.arange(ROWS) % 3


@pytest.mark.parametrize("way", ["arrays", "samples"])
@pytest.mark.parametrize(
    ("y", "form"),
    [
        (LABELS / 4, "float64[]"),
        (CLASSES.astype("f4"), "float32[]"),
        (CLASSES > 1, "bool[]"),
        (np.eye(3)[CLASSES], "float64[3]"),
        (CLASSES[:, None].astype("u1"), "uint8[]"),  # as Keras' data sets have them
        (CLASSES[:, None] / 2, "float64[1]"),  # a target of regression, as a network gives it
    ],
)
def test_a_pair_is_features_and_label(way: str, y: NDArray[Any], form: str, tmp_path: Path) -> None:
    x = np.arange(3 * ROWS, dtype="f4").reshape(ROWS, 3)
    given = (x, y) if way == "arrays" else list(zip(x, y, strict=True))
    pack_dataset(given, tmp_path / "p.h5", shuffle=False)
    features, label = open_pack(tmp_path / "p.h5").fields
    assert (form_of(features), form_of(label)) == ("float32[3]", form)
    assert (features.name, label.name) == ("features", "label")
    stored = open_pack(tmp_path / "p.h5").read("label")
    assert stored.tolist() == y.reshape(stored.shape).tolist()


def test_pairs_of_labels_and_images_and_unnamed_triples(tmp_path: Path) -> None:
    x = np.zeros((ROWS, 3), "f4")
    for name, pair in (("a", (LABELS, IMAGES)), ("b", list(zip(LABELS, IMAGES, strict=True)))):
        pack_dataset(pair, tmp_path / name)
        assert [f.name for f in open_pack(tmp_path / name).fields] == ["label", "image", "key"]
    for triple in ((x, LABELS, x), [(x[0], 1, x[0])]):
        with pytest.raises(UsageError, match=r"of 3 values without names\. Pass fields, for example"):
            pack_dataset(triple, tmp_path / "c")
    # Declared shapes are kept, and a label of another shape than the others' is no label of this field.
    pack_dataset((x, LABELS[:, None]), tmp_path / "c", fields={"features": None, "label": "int64[1]"})
    assert form_of(open_pack(tmp_path / "c").fields[1]) == "int64[1]"
    with pytest.raises(ValueRefusedError, match=r"has the shape \[2\], but the field is int64\[\]"):
        plan_rows("label", np.dtype("<i8"), (1,)).row([1, 2])


def test_booleans_are_dealt_out_evenly(tmp_path: Path) -> None:
    y = np.arange(ROWS) < 6
    pack_dataset((np.zeros((ROWS, 3), "f4"), y), tmp_path / "p.h5", split="a=0.5,b=0.5")
    pack = open_pack(tmp_path / "p.h5")
    label = pack.read("label")
    assert [label[a:b].sum() for ((a, b),) in pack.header.splits.values()] == [3, 3]


@pytest.mark.parametrize(
    ("names", "fields"),
    [
        (("X", "y"), ["features", "label"]),
        (("x_train", "y_train"), ["features", "label"]),
        (("data", "labels"), ["data", "label"]),
    ],
)
def test_labels_of_several_numbers_in_a_file(names: Any, fields: list[str], tmp_path: Path) -> None:
    for y in (np.eye(3)[CLASSES], CLASSES[:, None]):
        np.savez(tmp_path / "a.npz", **dict(zip(names, (np.zeros((ROWS, 2)), y), strict=True)))
        pack_dataset(tmp_path / "a.npz", tmp_path / "p", overwrite=True)
        assert [f.name for f in open_pack(tmp_path / "p").fields] == fields


def test_an_image_of_16_bits_is_an_image(tmp_path: Path) -> None:
    values = VALUES["16 bits"][0]
    pack_dataset(values, tmp_path / "out.h5")
    pack = open_pack(tmp_path / "out.h5")
    assert (pack.header.field("image").dtype, pack.header.field("image").shape) == ("<u2", (6, 5, 1))
    np.testing.assert_array_equal(in_order(tmp_path / "out.h5", "image"), values[..., None])
    assert pack.header.statistics["image"]["mean"] == pytest.approx([(values / 65_535).mean()])
    pack_dataset(values, tmp_path / "small.h5", size=4)
    expected = [
        np.asarray(Image.fromarray(one[:5].astype(np.float32)).resize((4, 4), Image.Resampling.BILINEAR))
        for one in values
    ]
    assert (
        np.abs(np.stack(in_order(tmp_path / "small.h5", "image"))[..., 0] - np.stack(expected)).max() <= 0.51
    )
    with pytest.raises(
        UsageError,
        match=r"store jpeg: needs images of 8 bits, \[H, W, 1 or 3\], and 'image' is uint16\[6, 5, 1\]",
    ):
        pack_dataset(values, tmp_path / "jpeg.h5", store="jpeg")


def test_declared_dtypes(tmp_path: Path) -> None:
    values = draws.normal(size=(ROWS, 4))
    declared = {"features": "float32", "label": "int16"}
    pack_dataset({"features": values, "label": LABELS}, tmp_path / "out.h5", fields=declared, shuffle=False)
    pack = open_pack(tmp_path / "out.h5")
    np.testing.assert_array_equal(pack.read("features"), values.astype(np.float32))
    assert pack.read("label").dtype == np.int16
    with pytest.raises(SourceError, match=r"label: has the value 300, but the field is uint8"):
        pack_dataset({"label": np.array([1, 300])}, tmp_path / "no.h5", fields={"label": "uint8"})
    assert not (tmp_path / "no.h5").exists()


@pytest.mark.parametrize(
    ("pillow", "color", "pixels"),
    [
        (Image.fromarray(IMAGES[0]).convert("L"), "gray", None),
        (Image.fromarray(IMAGES[0]).convert("P"), "rgb", None),
        (Image.new("RGBA", (6, 8), (10, 20, 30, 40)), "rgba", [10, 20, 30, 40]),
        (Image.new("LA", (6, 8), (0, 0)), "gray", [255]),
        (Image.new("CMYK", (6, 8), (0, 255, 255, 0)), "rgb", [255, 0, 0]),
    ],
    ids=lambda value: getattr(value, "mode", None),
)
def test_modes_of_pillow(pillow: Any, color: str, pixels: list[int] | None, tmp_path: Path) -> None:
    pack_dataset([(pillow, 0)] * 3, tmp_path / "out.h5")
    pack = open_pack(tmp_path / "out.h5")
    assert pack.header.field("image").about["color"] == color
    if pixels is None:
        expected = np.asarray(pillow.convert({"gray": "L", "rgb": "RGB"}[color])).reshape(8, 6, -1)
    else:
        expected = np.broadcast_to(np.array(pixels, np.uint8), (8, 6, len(pixels)))
    np.testing.assert_array_equal(pack.read("image")[0], expected)


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
@pytest.mark.parametrize("way", ["dataset", "generator", "list", "channels first"])
def test_images_of_many_sizes_are_resized_as_files_are(fit: str, way: str, tmp_path: Path) -> None:
    from packer import convert_images

    sizes = [(20, 30), (16, 16), (40, 17), (9, 33)]
    images = [draws.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    (tmp_path / "files").mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / "files" / f"{number}.png")
    convert_images(tmp_path / "files", tmp_path / "files.h5", size=16, fit=fit, shuffle=False)
    given = (
        [np.ascontiguousarray(image.transpose(2, 0, 1)) for image in images]
        if way == "channels first"
        else images
    )
    samples = [{"image": image} for image in given]
    source = {"generator": iter(samples), "list": {"image": given}}.get(way, samples)
    pack_dataset(source, tmp_path / "out.h5", size=16, fit=fit, shuffle=False)
    np.testing.assert_array_equal(
        in_order(tmp_path / "out.h5", "image"), open_pack(tmp_path / "files.h5").read("image")
    )
    about = open_pack(tmp_path / "out.h5").header.field("image").about
    assert about == {"layout": "HWC", "color": "rgb", "fit": fit}


def test_arrays_are_resized(tmp_path: Path) -> None:
    pack_dataset((IMAGES, LABELS), tmp_path / "a.h5", size=4)
    pack_dataset(list(zip(IMAGES, LABELS, strict=True)), tmp_path / "b.h5", size=4)
    np.testing.assert_array_equal(in_order(tmp_path / "a.h5", "image"), in_order(tmp_path / "b.h5", "image"))
    assert open_pack(tmp_path / "a.h5").header.field("image").shape == (4, 4, 3)


def test_alpha_is_composited_on_white_among_rgb(tmp_path: Path) -> None:
    plain, clear = Image.new("RGB", (6, 8)), Image.new("RGBA", (6, 8), (10, 20, 30, 0))
    pack_dataset([(plain, 0), (clear, 1)], tmp_path / "out.h5", shuffle=False)
    assert open_pack(tmp_path / "out.h5").read("image")[1].min() == 255


@pytest.mark.parametrize("way", ["generator", "dataset", "ragged"])
def test_floats_of_a_field_that_nobody_declared_are_not_rounded(way: str, tmp_path: Path) -> None:
    def get(index: int) -> dict[str, Any]:
        value = np.float64(0.1) if index == 33 else np.float32(index)
        return {"x": np.full(1 + index % 2, value) if way == "ragged" else value}

    def source() -> Any:
        return Samples(get, 400) if way == "dataset" else (get(index) for index in range(400))

    with pytest.raises(
        SourceError,
        match=r"field 'x' has the value 0.1, but the field is float32. Declare a dtype that holds it, for example"
        r" fields={'x': 'float64'}, or 'float32', to which floats are rounded",
    ):
        pack_dataset(source(), tmp_path / "out.h5")
    for dtype in ("float32", "float64"):  # declared, floats are rounded to it
        form = {"x": f"{dtype}[*]" if way == "ragged" else dtype}
        pack_dataset(source(), tmp_path / f"{dtype}.h5", fields=form, shuffle=False)
        row = rows_of(open_pack(tmp_path / f"{dtype}.h5"), "x")[33]
        assert np.ravel(row)[0] == np.dtype(dtype).type(0.1)


def _half_clear() -> NDArray[np.uint8]:
    """Return 32x32 RGBA: a red square among clear pixels of random colours, whose colours must not be seen."""
    image = draws.integers(0, 256, (32, 32, 4), dtype=np.uint8)
    image[..., 3] = 0
    image[5:27, 5:27] = (255, 0, 0, 255)
    return image


@pytest.mark.parametrize("way", ["uint8", "uint16", "RGBA", "LA", "PA", "La", "RGBa", "P"])
def test_colours_of_clear_pixels_do_not_bleed_when_resized(way: str, tmp_path: Path) -> None:
    image = _half_clear()
    most = 65535 if way == "uint16" else 255
    given: Any = image
    if way == "uint16":
        given = image.astype(np.uint16) * 257
    elif way == "P":
        given = Image.fromarray(np.where(image[..., 3] > 0, 1, 2).astype(np.uint8)).convert("P")
        given.putpalette([0, 0, 0, 255, 0, 0, 10, 200, 250])
        given.info["transparency"] = 2
    elif way == "PA":
        given = Image.fromarray(image).convert("RGB").convert("P")
        given.putalpha(Image.fromarray(image[..., 3]))  # Pillow 11 converts to PA without it
    elif way != "uint8":
        given = Image.fromarray(image).convert("LA" if way == "La" else way).convert(way)
    channels = None if way.startswith("uint") else "rgba"
    pack_dataset([{"image": given}], tmp_path / "out.h5", size=8, fields=Fields(channels=channels))
    packed = open_pack(tmp_path / "out.h5").read("image")[0] / most
    seen = packed[..., 3] > 0
    assert seen.any()
    assert (packed[seen][:, 3] < 1).any()
    red = np.array([76 / 255] * 3 if way in ("LA", "La") else [1, 0, 0])
    assert np.abs((packed[..., :3] - red) * packed[..., 3:])[seen].max() < 1.1 / 255


@pytest.mark.parametrize("channels", ["rgb", "gray", "rgba"])
@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_images_become_what_files_of_them_do(mode: str, channels: str, tmp_path: Path) -> None:
    from packer import convert_images

    image = Image.fromarray(draws.integers(0, 256, (32, 32, 4), dtype=np.uint8))
    if mode == "P":
        image = image.convert("RGB").quantize(16)
        image.info["transparency"] = 3
    (tmp_path / "files").mkdir()
    image.convert(mode).save(tmp_path / "files" / "0.png")
    convert_images(tmp_path / "files", tmp_path / "files.h5", size=8, channels=channels)
    opened = [
        Image.open(tmp_path / "files" / "0.png") for _ in range(3)
    ]  # each with a file that is not read yet
    pack_dataset(opened, tmp_path / "out.h5", size=8, fields=Fields(channels=channels))
    expected = open_pack(tmp_path / "files.h5").read("image")[0]
    for row in open_pack(tmp_path / "out.h5").read("image"):
        np.testing.assert_array_equal(row, expected)


class Opened:
    """A dataset whose file was opened before any worker began."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        self._file.seek(index * (1 << 18))
        time.sleep(0.001)  # here another worker would move the position
        return {"value": np.frombuffer(self._file.read(1 << 18), np.int64)}

    def close(self) -> None:
        self._file.close()


def test_workers_do_not_share_the_position_of_an_open_file(tmp_path: Path) -> None:
    np.arange(40).repeat(1 << 15).tofile(tmp_path / "values")
    dataset = Opened(tmp_path / "values")
    pack_dataset(dataset, tmp_path / "out.h5", workers=4, shuffle=False, store="gzip")
    dataset.close()
    assert [int(row[0]) for row in rows_of(open_pack(tmp_path / "out.h5"), "value")] == list(range(40))


def test_a_list_of_opened_images_that_are_not_read_yet(tmp_path: Path) -> None:
    for number, image in enumerate(IMAGES):
        Image.fromarray(image).save(tmp_path / f"{number}.bmp")
    opened = [(Image.open(tmp_path / f"{number}.bmp"), label) for number, label in enumerate(LABELS)]
    pack_dataset(opened, tmp_path / "out.h5", workers=2)
    check_images(tmp_path / "out.h5")


def test_palette_masks_are_stored_as_indices(tmp_path: Path) -> None:
    mask = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(8, 6)).convert("P")
    mask.putpalette(list(range(256)) * 3)
    report = pack_dataset([(Image.fromarray(IMAGES[0]), mask)] * 3, tmp_path / "out.h5")
    assert report.notes == (
        "label: holds palette images, whose indices are stored, as for masks; to store their colours pass fields=Fields(channels='rgb').",
    )
    np.testing.assert_array_equal(open_pack(tmp_path / "out.h5").read("label")[0], np.asarray(mask))
    pack_dataset([{"a": mask}] * 3, tmp_path / "rgb.h5", fields=Fields(channels="rgb"))
    assert open_pack(tmp_path / "rgb.h5").header.field("a").shape == (8, 6, 3)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("cut", [True, False])
def test_a_damaged_npz_file_is_one_sentence(tmp_path: Path, save: Callable[..., None], cut: bool) -> None:
    path = tmp_path / "data.npz"
    save(path, x=IMAGES, y=LABELS)
    data = path.read_bytes()
    middle = len(data) // 2
    path.write_bytes(data[:middle] if cut else data[:middle] + b"damaged" * 9 + data[middle + 63 :])
    with pytest.raises(SourceError, match=r"data\.npz: NumPy cannot read it \("):
        pack_dataset(path, tmp_path / "out.h5")


def test_a_damaged_image_that_is_read_late_is_one_sentence(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.fromarray(IMAGES[0]).save(file, "png")
    cut = file.getvalue()[:60]
    for samples in ([Image.open(io.BytesIO(cut))], iter([Image.open(io.BytesIO(cut))])):
        with pytest.raises(SourceError, match=r"is an image of mode RGB that Pillow cannot read or convert"):
            pack_dataset(samples, tmp_path / "out.h5", fields=["image"])


@pytest.mark.parametrize("way", ["samples", "generator", "arrays", "lists", "builder", "builder rows"])
@pytest.mark.parametrize("share", [1.0, 1 / 64])
def test_boxes_and_keypoints_are_pixels_of_their_image(share: float, way: str, tmp_path: Path) -> None:
    boxes = [np.array([[10, 5, 30, 10], [0, 0, 4, 10]])[: 1 + n % 2] * share for n in range(6)]
    columns: dict[str, Any] = {
        "image": np.zeros((6, 20, 40, 3), np.uint8),
        "boxes": boxes,
        "box_label": [np.arange(len(row)) for row in boxes],
        "keypoints": np.full((6, 2, 2), 8.0) * share,
    }
    samples = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    forms = {"image": None, "boxes": "float32[*,4]", "box_label": "int64[*]", "keypoints": "float32"}
    out = tmp_path / "out.h5"

    def pack(size: int | None) -> None:
        options: dict[str, Any] = {"fields": forms, "size": size, "shuffle": False}
        if way.startswith("builder"):
            with create(out, **options) as builder:
                if way == "builder rows":
                    builder.write_rows(**columns)
                else:
                    for sample in samples:
                        builder.write(**sample)
        else:
            lists = {**columns, "image": list(columns["image"])}
            pack_dataset(
                {"generator": iter(samples), "arrays": columns, "lists": lists}.get(way, samples),
                out,
                **options,
            )

    if share < 1:
        with pytest.raises(
            UsageError,
            match=r"the largest coordinate of its boxes is 0\.4688, like shares .*; pixels are expected",
        ):
            pack(None)
    else:
        pack(None)
        for name in columns:
            for row, given in zip(rows_of(open_pack(out), name), columns[name], strict=True):
                np.testing.assert_array_equal(row, given)
        out.unlink()
        with pytest.raises(UsageError, match="size: boxes and keypoints are not transformed with images"):
            pack(16)
    assert os.listdir(tmp_path) == []


def test_boxes_of_a_compressed_file_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_files, "_DECODED_BYTES", 0)
    source, out = tmp_path / "data.h5", tmp_path / "out.h5"
    with h5py.File(source, "w") as file:
        for name, values in {"image": IMAGES, "boxes": np.full((ROWS, 1, 4), 0.5)}.items():
            file.create_dataset(name, data=values, chunks=(10, *values.shape[1:]), compression="gzip")
    with pytest.raises(UsageError, match=r"the largest coordinate of its boxes is 0\.5, like shares"):
        pack_dataset(source, out)
    assert os.listdir(tmp_path) == ["data.h5"]


def test_ragged_rows_of_a_large_compressed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, boxes = tmp_path / "data.h5", np.arange(ROWS * 12, dtype=np.float32).reshape(ROWS, 3, 4)
    lengths = [np.arange(row % 5, dtype=np.int32) for row in range(ROWS)]
    with h5py.File(source, "w") as file:
        file.create_dataset("a", data=boxes, compression="gzip")
        file.create_dataset("b", (ROWS,), h5py.vlen_dtype("i4"))[...] = np.array(lengths, dtype=object)
    packs = []
    for most in (1 << 20, 0):
        monkeypatch.setattr(array_files, "_DECODED_BYTES", most)
        out, fields = tmp_path / f"{most}.h5", Fields({"a": "float32[*,4]", "b": None})
        pack_dataset(source, out, fields=fields, shuffle=False)
        packs.append({name: [*rows_of(open_pack(out), name)] for name in "ab"})
    for pack in packs:
        for name, values in (("a", boxes), ("b", lengths)):
            for row, value in zip(pack[name], values, strict=True):
                np.testing.assert_array_equal(row, value)


def test_color_among_gray_is_not_dropped(tmp_path: Path) -> None:
    gray, color = Image.new("L", (6, 8)), Image.new("RGB", (6, 8))
    samples = Samples(lambda i: (color if i == 33 else gray, 0), 400)
    with pytest.raises(
        SourceError, match=r"Samples\[33\]: field 'image' is an image of mode RGB, but others are gray"
    ):
        pack_dataset(samples, tmp_path / "out.h5")
    pack_dataset(samples, tmp_path / "out.h5", fields=Fields(channels="rgb"))
    assert open_pack(tmp_path / "out.h5").header.field("image").shape == (8, 6, 3)


def test_random_transforms_give_the_same_rows_for_any_workers(tmp_path: Path) -> None:
    import random

    torch = pytest.importorskip("torch")

    def draw(index: int) -> dict[str, float]:
        return {"a": random.random(), "b": float(np.random.rand()), "c": float(torch.rand(()))}  # noqa: NPY002

    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[index]  # noqa: NPY002
    packs = []
    for workers in (1, 2):
        pack_dataset(Samples(draw), tmp_path / f"{workers}.h5", workers=workers)
        packs.append((tmp_path / f"{workers}.h5").read_bytes())
    assert packs[0] == packs[1]
    assert len(set(open_pack(tmp_path / "1.h5").read("b").tolist())) == ROWS
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[index]  # noqa: NPY002
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])


def reused(kind: str) -> Iterator[Any]:
    """Yield one buffer, list or dict again and again, filled anew each time."""
    values = np.zeros(3, np.int64)
    tensor = pytest.importorskip("torch").zeros(3, dtype=pytest.importorskip("torch").int64)
    sample: dict[str, Any] = {"values": tensor if kind == "tensor" else values}
    pair = [values, 0]
    for number in range(ROWS):
        values[:] = number
        tensor[:] = number
        sample["number"] = pair[1] = number
        yield {"array": values, "pair": pair}.get(kind, sample)


@pytest.mark.parametrize("kind", ["array", "pair", "dict", "tensor"])
def test_a_buffer_that_is_yielded_again(kind: str, tmp_path: Path) -> None:
    fields = {"array": ["values"], "pair": ["values", "number"]}.get(kind)
    pack_dataset(reused(kind), tmp_path / "out.h5", shuffle=False, fields=fields)
    pack = open_pack(tmp_path / "out.h5")
    np.testing.assert_array_equal(pack.read("values"), np.arange(ROWS)[:, None].repeat(3, 1))
    if kind != "array":
        np.testing.assert_array_equal(pack.read("number"), np.arange(ROWS))


def test_threads_ask_a_dataset_for_one_sample_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import random

    buffer = np.zeros(1 << 15)

    def draw(index: int) -> dict[str, Any]:
        buffer[:] = index
        time.sleep(0.002)  # here another thread would fill it, and draw
        return {"value": buffer, "drawn": random.random()}

    for module in ("packer.convert.block_workers", "packer.samples.dataset_rows"):
        monkeypatch.setattr(f"{module}.forks_safely", lambda: False)
    for workers in (1, 4):
        pack_dataset(Samples(draw), tmp_path / f"{workers}.h5", workers=workers, store="gzip")
    assert (tmp_path / "1.h5").read_bytes() == (tmp_path / "4.h5").read_bytes()


# Errors


class BrokenError(Exception):
    """What a user's dataset raises."""


def broken(index: int) -> Any:
    if index == 17:
        raise BrokenError("the disk of sample 17")
    return IMAGES[index], int(LABELS[index])


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_dataset_raises_is_the_cause(workers: int, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        pack_dataset(Samples(broken), tmp_path / "out.h5", workers=workers)
    assert str(caught.value) == (
        "Samples[17]: raised BrokenError: the disk of sample 17. Remove it, or pass on_error='skip'."
    )
    assert isinstance(caught.value.__cause__, BrokenError)
    assert os.listdir(tmp_path) == []


def test_skipped_samples_are_listed(tmp_path: Path) -> None:
    report = pack_dataset(Samples(broken), tmp_path / "out.h5", on_error="skip")
    assert report.skipped == ({"key": "17", "reason": "raised BrokenError: the disk of sample 17."},)
    assert sorted(map(int, open_pack(tmp_path / "out.h5").keys())) == [i for i in range(ROWS) if i != 17]


@pytest.mark.parametrize("kind", [list, iter])
def test_a_first_sample_that_does_not_fit_what_is_declared_is_skipped(
    kind: Callable[[Any], Any], tmp_path: Path
) -> None:
    samples = [{"x": np.full(4, 300 if i == 0 else i)} for i in range(40)]
    report = pack_dataset(kind(samples), tmp_path / "out.h5", fields={"x": "uint8[4]"}, on_error="skip")
    assert [one["key"] for one in report.skipped] == ["0"]
    assert open_pack(tmp_path / "out.h5").rows == 39


def failing() -> Iterator[Any]:
    for index in range(ROWS):
        yield broken(index)


def test_what_a_generator_raises_is_the_cause_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="generator, sample 17: raised BrokenError") as caught:
        pack_dataset(failing(), tmp_path / "out.h5")
    assert isinstance(caught.value.__cause__, BrokenError)
    assert os.listdir(tmp_path) == []


def _short(index: int) -> Any:
    return IMAGES[index][: 7 if index == 21 else 8], 1


@pytest.mark.parametrize(
    ("source", "options", "error", "text"),
    [
        (
            Samples(_short),
            {},
            SourceError,
            r"Samples\[21\]: field 'image' has the shape \[7, 6, 3\], but the field is uint8\[8,6,3\]",
        ),
        (
            Samples(lambda i: None),
            {},
            SourceError,
            "Samples: field 'features' is None; every sample needs a value",
        ),
        (Samples(lambda i: (1, 2, 3)), {}, UsageError, "tuples of 3 values without names. Pass fields"),
        (Samples(lambda i: (1, 2)), {"fields": ["a"]}, UsageError, "have 2 values, but 1 fields are named"),
        (Samples(lambda i: {"a": 1}), {"fields": ["b"]}, UsageError, "have a, but no 'b'"),
        (Samples(lambda i: 1, 0), {}, SourceError, "Samples: holds no samples"),
        (iter(()), {}, SourceError, "yields no samples"),
        ((IMAGES, LABELS[:7]), {}, UsageError, "0 has 60, 1 has 7 values"),
        ({"image": IMAGES, "label": LABELS[:7]}, {}, UsageError, "image has 60, label has 7 values"),
        ({"a": np.array([1j])}, {}, UsageError, "a: is of type complex128"),
        (IMAGES[:0], {}, SourceError, "holds no samples"),
        ((IMAGES, LABELS), {"classes": ["a", "b"]}, SourceError, "the 2 classes are numbered from 0"),
        ((IMAGES, LABELS), {"fields": ["image", "class"]}, UsageError, "'class': not a valid field name"),
        ((IMAGES, LABELS), {"fields": {"image": "uint9"}}, UsageError, "is declared as 'uint9'"),
        (
            {"image": VALUES["embeddings"][0]},
            {"size": 4},
            UsageError,
            r"is float16\[16\]; only images of 8 or 16 bits and 1, 3 or 4 channels",
        ),
        ((IMAGES, LABELS), {"size": 0}, UsageError, "size 0: is not a number or HxW"),
        (
            (IMAGES, LABELS),
            {"size": 4, "fit": "fill"},
            UsageError,
            "fit='fill': is not one of 'crop', 'pad', 'stretch'",
        ),
        (
            (IMAGES, LABELS),
            {"size": 4, "fields": {"image": "uint8[8,6,3]", "label": None}},
            UsageError,
            "which includes a size",
        ),
        ({"a": [2**53 + 1, 0.5]}, {}, SourceError, "a: sample 0 has the value 9007199254740993"),
        (
            {"a": np.array([2**53 + 1])},
            {"fields": {"a": "float64"}},
            SourceError,
            "has the value 9007199254740993, but the field is float64",
        ),
        ({"a": np.ma.masked_array([1, 2], [True, False])}, {}, UsageError, "a: is a masked array"),
        (["a.jpg", "b.jpg"], {}, UsageError, "its samples are text or bytes. Name their field"),
        (7, {}, UsageError, "int: is neither arrays nor a dataset"),
        ("photos/", {}, UsageError, "Use convert_images or convert_table"),
        (
            "no.npy",
            {},
            UsageError,
            "no.npy: no such file or folder; folders, lists, archives, tables and files",
        ),
        (Samples(lambda i: 1), {"resume": True}, UsageError, "its content cannot be identified"),
        (iter([1]), {"resume": True}, UsageError, "can be read only once"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_bad_input_is_one_sentence(
    source: Any, options: Any, error: type[PackerError], text: str | None, tmp_path: Path
) -> None:
    with pytest.raises(error, match=text):
        pack_dataset(source, tmp_path / "out.h5", **options)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("way", "name"),
    [
        *(("mapping", n) for n in ("class", "label.offsets", "packer", "checksums", "a/b", "x y", "", "1a")),
        *((way, "a/b") for way in ("lists", "samples", "generator", "rename", "fields")),
    ],
)
def test_a_name_that_no_field_can_have_is_refused_before_anything_is_written(
    way: str, name: str, tmp_path: Path
) -> None:
    sources: dict[str, Any] = {
        "mapping": {name: LABELS},
        "lists": {name: LABELS.tolist()},
        "samples": Samples(lambda i: {name: i}),
        "generator": ({name: i} for i in range(3)),
    }
    options = {"rename": {"fields": Fields(rename={"a": name})}, "fields": {"fields": [name]}}.get(way, {})
    with pytest.raises(UsageError, match=f"^field {name!r}: not a valid field name; letters, digits and _"):
        pack_dataset(sources.get(way, {"a": LABELS}), tmp_path / "out.h5", **options)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


def test_columns_of_data_frames_and_lists(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": np.arange(ROWS) / 7, "b": np.arange(ROWS)})
    for number, label in enumerate(
        (LABELS, LABELS.tolist(), pandas.Series(LABELS, index=range(9, 9 + ROWS)))
    ):
        out = tmp_path / f"{number}.h5"
        pack_dataset((frame, label), out, shuffle=False)
        np.testing.assert_array_equal(open_pack(out).read("features"), frame.to_numpy())
        np.testing.assert_array_equal(open_pack(out).read("label"), LABELS)
    frame["b"] = 2**53 + 1
    with pytest.raises(UsageError, match=r"0: has the value 9007199254740993, but the field is float64"):
        pack_dataset((frame, LABELS), tmp_path / "out.h5")
    with pytest.raises(
        UsageError, match=r"tuple: holds only lists, which may be columns or samples. Pass columns by name"
    ):
        pack_dataset(([[1, 2], [3, 4]], [0, 1]), tmp_path / "out.h5")


def test_lone_surrogates_and_tensors_without_values_are_one_sentence(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    for text in ("a\ud800", "\udcc3\udca9"):  # no bytes; the bytes of another text
        with pytest.raises(
            SourceError, match=r"field 'a' is text with lone surrogates, which UTF-8 cannot encode"
        ):
            pack_dataset([{"a": text}], tmp_path / "out.h5")
    pack_dataset([{"a": "caf\udce9"}], tmp_path / "out.h5")  # a file's name in Latin-1
    assert rows_of(open_pack(tmp_path / "out.h5"), "a") == ["caf\udce9"]
    with pytest.raises(SourceError, match=r"field 'a' is a tensor that NumPy cannot represent .*no data"):
        pack_dataset([{"a": torch.zeros(3, device="meta")}], tmp_path / "other.h5")


def test_a_dataloader_is_refused(tmp_path: Path) -> None:
    data = pytest.importorskip("torch.utils.data")
    with pytest.raises(UsageError, match=r"DataLoader: yields batches; samples are packed. Pass its dataset"):
        pack_dataset(data.DataLoader(Samples(broken)), tmp_path / "out.h5")


def test_columns_of_numbers_are_no_splits(tmp_path: Path) -> None:
    pack_dataset({"train_loss": LABELS / 2, "test_loss": LABELS / 4}, tmp_path / "out.h5")
    assert [f.name for f in open_pack(tmp_path / "out.h5").fields] == ["train_loss", "test_loss"]


def test_one_of_two_splits_of_a_file(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x_train"], file["y_train"] = IMAGES[:40], LABELS[:40]
        file["x_test"], file["y_test"] = IMAGES[40:], LABELS[40:]
    pack_dataset(
        tmp_path / "data.h5",
        tmp_path / "out.h5",
        fields=Fields(rename={"x_test": "image", "y_test": "label"}),
        shuffle=False,
    )
    np.testing.assert_array_equal(open_pack(tmp_path / "out.h5").read("image"), IMAGES[40:])


@pytest.mark.parametrize("form", ["h5", "npz"])
@pytest.mark.parametrize(
    ("rename", "fields", "said"),
    [
        (
            {"x": "image"},
            ["image", "the_label", "ids"],
            "ids is 'ids', the_label is 'the_label'; left out: mean",
        ),
        ({"the_label": "label"}, ["image", "label", "ids"], "x is 'image', ids is 'ids'; left out: mean"),
        ({"ids": "label"}, ["image", "label", "the_label"], "x is 'image', the_label is 'the_label'; left"),
        ({"mean": "label"}, ["label"], "fields are label; left out: ids"),
    ],
)
def test_arrays_that_rename_does_not_name(
    form: str, rename: dict[str, str], fields: list[str], said: str, tmp_path: Path
) -> None:
    arrays = {"ids": LABELS + 7, "mean": np.zeros(3), "the_label": LABELS, "x": IMAGES}
    source, out = tmp_path / f"data.{form}", tmp_path / "out.h5"
    if form == "npz":
        np.savez(source, **arrays)
    else:
        with h5py.File(source, "w") as file:
            file.update(arrays)
    report = pack_dataset(source, out, fields=Fields(rename=rename), shuffle=False)
    pack = open_pack(out)
    assert {f.name for f in pack.fields} - {"key"} == set(fields)
    assert said in report.notes[0]
    named = {new: arrays[old] for old, new in rename.items()}
    for name in fields:
        expected = named.get(name, {"image": IMAGES, "label": LABELS, **arrays}.get(name))
        np.testing.assert_array_equal(pack.read(name), expected)
    pack_dataset(source, out, fields=Fields([*named], rename=rename), overwrite=True)
    assert [f.name for f in open_pack(out).fields if f.name != "key"] == [*named]


def test_an_image_of_a_file_comes_first(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", labels=LABELS, images=IMAGES)
    pack_dataset(tmp_path / "data.npz", tmp_path / "out.h5")
    assert [f.name for f in open_pack(tmp_path / "out.h5").fields] == ["image", "label", "key"]


def test_float_images_are_noted(tmp_path: Path) -> None:
    said = "image: rows are float32[8,6,3] and load in this shape; augment= and batches [N, C, H, W] need"
    floats = (IMAGES / 255).astype(np.float32)
    for source in ((floats, LABELS), Samples(lambda i: (floats[i], LABELS[i]), ROWS)):
        report = pack_dataset(source, tmp_path / "out.h5", fields=["image", "label"], overwrite=True)
        assert any(note.startswith(said) for note in report.notes)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (np.eye(3, dtype=np.int64)[LABELS % 3], "label is int64[3]. Of one-hot labels pass y.argmax(1)."),
        (LABELS / 2, "label is float64. Convert them to int64."),
        (None, "there is none. Leave them out, or name the labels by rename."),
    ],
)
def test_classes_without_class_numbers(labels: Any, said: str, tmp_path: Path) -> None:
    arrays = {"image": IMAGES} if labels is None else {"image": IMAGES, "label": labels}
    with pytest.raises(UsageError) as caught:
        pack_dataset(arrays, tmp_path / "out.h5", classes=["a", "b", "c"])
    assert str(caught.value) == f"classes: apply to a field 'label' with one whole number per sample; {said}"


def test_a_file_behind_a_user_block(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "data.h5", "w", userblock_size=4096) as file:
        file["image"], file["label"] = IMAGES, LABELS
    pack_dataset(tmp_path / "data.h5", tmp_path / "out.h5")
    check_images(tmp_path / "out.h5")


def test_values_in_other_files_are_not_read(tmp_path: Path) -> None:
    _hdf5(tmp_path)
    with h5py.File(tmp_path / "link.h5", "w") as file:
        file["image"], file["label"] = h5py.ExternalLink(str(tmp_path / "data.h5"), "train/X"), LABELS
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        layout = h5py.VirtualLayout((ROWS, 8, 6, 3), "u1")
        layout[:] = h5py.VirtualSource(str(tmp_path / "data.h5"), "train/X", (ROWS, 8, 6, 3))
        file.create_virtual_dataset("image", layout)
    for name in ("link.h5", "virtual.h5"):
        with pytest.raises(
            SourceError, match="the values of 'image' are stored in other files, which packer does not read"
        ):
            pack_dataset(tmp_path / name, tmp_path / "out.h5")


def test_lists_and_texts_of_an_hdf5_file(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "data.h5", "w") as file:
        tokens = file.create_dataset("tokens", ROWS, h5py.vlen_dtype(np.int32))
        for row, values in enumerate(TOKENS):
            tokens[row] = values
        file["text"] = [f"ä{row}" for row in range(ROWS)]
        file["record"] = np.zeros(ROWS, [("a", "i4")])
    fields = Fields(rename={"text": "text"})
    report = pack_dataset(tmp_path / "data.h5", tmp_path / "out.h5", fields=fields, shuffle=False)
    assert "record/a is 'a'" in report.notes[0]
    pack = open_pack(tmp_path / "out.h5")
    for expected, found in zip(TOKENS, rows_of(pack, "tokens"), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert rows_of(pack, "text") == [f"ä{row}" for row in range(ROWS)]


@pytest.mark.parametrize("way", ["hdf5", "npy"])
def test_a_small_file_that_announces_more_than_the_disk_holds(way: str, tmp_path: Path) -> None:
    """The file is not read before that is known: none of its rows was ever written."""
    source = tmp_path / f"data.{'h5' if way == 'hdf5' else way}"
    if way == "hdf5":
        with h5py.File(source, "w") as file:
            file.create_dataset("x", (10**9, 1000), "f4", chunks=(1000, 1000))
    else:
        np.lib.format.open_memmap(source, "w+", np.float32, (2 * 10**9, 1000))
    lines: list[Any] = []
    with pytest.raises(SpaceError, match=r"out\.h5: needs 8 TB; .* GB free"):
        pack_dataset(source, tmp_path / "out.h5", on_plan=lines.append)
    assert not lines
    assert os.listdir(tmp_path) == [source.name]


def test_more_samples_than_the_disk_holds(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="GB free"):
        pack_dataset(Samples(lambda i: IMAGES[0], 1 << 45), tmp_path / "out.h5")
    assert os.listdir(tmp_path) == []


def test_datasets_of_a_file_are_not_named_by_their_place(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["b"], file["a"] = IMAGES, LABELS
    with pytest.raises(
        UsageError, match=r"holds a int64\[60\], b uint8\[60, 8, 6, 3\]; none is called image, x, features"
    ):
        pack_dataset(tmp_path / "data.h5", tmp_path / "out.h5", fields=["image", "label"])
    pack_dataset((IMAGES, LABELS), tmp_path / "out.h5", fields=["photo", "number"])
    assert [f.name for f in open_pack(tmp_path / "out.h5").fields] == ["photo", "number"]


def test_two_files_of_one_name(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "x.npy", LABELS)
    files = [str(tmp_path / folder / "x.npy") for folder in ("a", "b")]
    with pytest.raises(UsageError, match="x: two files hold an array of this name"):
        pack_dataset(files, tmp_path / "out.h5")
    pack_dataset(dict(zip(("a", "b"), files, strict=True)), tmp_path / "out.h5")
    assert [f.name for f in open_pack(tmp_path / "out.h5").fields] == ["a", "b"]


def test_a_pack_and_a_data_frame_are_refused(tmp_path: Path) -> None:
    pack_dataset((IMAGES, LABELS), tmp_path / "pack.h5")
    with pytest.raises(SourceError, match=r"pack\.h5: is a pack already"):
        pack_dataset(tmp_path / "pack.h5", tmp_path / "out.h5")
    pandas = pytest.importorskip("pandas")
    with pytest.raises(UsageError, match=r"DataFrame: is a table. Pass its columns"):
        pack_dataset(pandas.DataFrame({"a": [1, 2]}), tmp_path / "out.h5")
    pack_dataset({"a": pandas.Series([1, 2])}, tmp_path / "out.h5")
    assert open_pack(tmp_path / "out.h5").read("a").tolist() in ([1, 2], [2, 1])


def test_what_was_found_in_a_file_is_said(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["set/x"], file["set/y"], file["mean"] = IMAGES, LABELS, np.zeros(3)
    report = pack_dataset(tmp_path / "data.h5", tmp_path / "out.h5")
    assert report.notes == (
        "found mean float64[3], set/x uint8[60, 8, 6, 3], set/y int64[60]: set/x is 'image', set/y is 'label'; left out:"
        " mean float64[3]. To choose differently, pass fields=Fields(rename=).",
    )


# Interruptions


def interrupted_at(rows: int) -> Callable[[int], None]:
    def on_progress(done: int) -> None:
        if done >= rows:
            raise KeyboardInterrupt

    return on_progress


@pytest.fixture
def large() -> tuple[NDArray[Any], NDArray[Any]]:
    """Images of several blocks."""
    images = np.random.default_rng(1).integers(0, 256, (400, 256, 256, 1), dtype=np.uint8)
    return images, np.arange(400)


@pytest.mark.parametrize("kind", ["arrays", "dataset with a key"])
def test_interrupted_it_goes_on_with_the_same_bytes(kind: str, large: Any, tmp_path: Path) -> None:
    images, labels = large
    source: Any = large if kind == "arrays" else Samples(lambda i: (images[i], labels[i]), 400)
    options: dict[str, Any] = {"resume": kind == "arrays" or "v1"}
    pack_dataset(source, tmp_path / "whole.h5", workers=1, **options)
    with pytest.raises(KeyboardInterrupt, match="run the same command again"):
        pack_dataset(source, tmp_path / "out.h5", workers=1, progress=interrupted_at(150), **options)
    report = pack_dataset(source, tmp_path / "out.h5", workers=1, **options)
    assert report.resumed > 0
    assert (tmp_path / "out.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()
    assert pack_dataset(source, tmp_path / "out.h5", **options).already


def test_other_values_are_not_gone_on_with(large: Any, tmp_path: Path) -> None:
    images, labels = large
    with pytest.raises(KeyboardInterrupt):
        pack_dataset((images, labels), tmp_path / "out.h5", workers=1, progress=interrupted_at(150))
    images = images.copy()
    images[399, 255, 255] ^= 1
    with pytest.raises(UsageError, match="digest of the values image was"):
        pack_dataset((images, labels), tmp_path / "out.h5", resume=True)
    report = pack_dataset((images, labels), tmp_path / "out.h5")
    assert report.resumed == 0
    assert "digest of the values" in report.cleared
    pack_dataset((images, labels), tmp_path / "out.h5", resume=True)


def test_a_dataset_without_a_key_leaves_nothing(large: Any, tmp_path: Path) -> None:
    images, labels = large
    source = Samples(lambda i: (images[i], labels[i]), 400)
    for options in ({}, {"shards": 100}):
        with pytest.raises(KeyboardInterrupt):
            pack_dataset(source, tmp_path / "out", workers=1, progress=interrupted_at(250), **options)
        assert os.listdir(tmp_path) == []


def test_a_hugging_face_dataset(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=list("abcde"))}
    )
    images = [Image.fromarray(image) for image in IMAGES]
    dataset = datasets.Dataset.from_dict({"image": images, "label": LABELS.tolist()}, features=features)
    pack_dataset(dataset, tmp_path / "out.h5")
    check_images(tmp_path / "out.h5")
    assert open_pack(tmp_path / "out.h5").header.classes == tuple("abcde")
    assert pack_dataset(dataset, tmp_path / "out.h5", resume=True).already


def test_shards_of_jpeg_rows_by_size(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (40, 64, 64, 3), dtype=np.uint8)
    for name, source in {"a": (noise, np.arange(40)), "b": list(zip(noise, range(40), strict=True))}.items():
        pack_dataset(source, tmp_path / name, store="jpeg", shards="50kB")
        shards = open_pack(tmp_path / name).shards
        assert len(shards) > 3
        assert all(shard.nbytes < 75_000 for shard in shards)


@pytest.mark.parametrize("channels", [None, "rgb"])
@pytest.mark.parametrize("way", ["list", "generator", "create"])
def test_pillow_images_of_any_height(way: str, channels: str | None, tmp_path: Path) -> None:
    """They were refused."""
    arrays = [image[: 3 + at % 3] for at, image in enumerate(IMAGES[:20])]
    images = [Image.fromarray(array) for array in arrays]
    out, given = tmp_path / "out.h5", [{"image": image} for image in images]
    if way == "create":
        with create(out, fields=Fields({"image": "uint8[*,6,3]"}, channels=channels), shuffle=False) as pack:
            for image in images:
                pack.write(image=image)
    else:
        pack_dataset(
            given if way == "list" else iter(given), out, fields=Fields(channels=channels), shuffle=False
        )
    for found, array in zip(rows_of(open_pack(out), "image"), arrays, strict=True):
        np.testing.assert_array_equal(found, array)


def test_columns_of_pillow_images_have_the_channels_that_are_asked_for(tmp_path: Path) -> None:
    images = [Image.fromarray(array) for array in IMAGES]
    pack_dataset({"image": images}, tmp_path / "out.h5", fields=Fields(channels="gray"), shuffle=False)
    expected = [np.asarray(image.convert("L"))[..., None] for image in images]
    np.testing.assert_array_equal(open_pack(tmp_path / "out.h5").read("image"), expected)


@pytest.mark.parametrize("way", ["generator", "builder", "builder rows"])
def test_the_unit_of_boxes_is_told_by_all_samples(way: str, tmp_path: Path) -> None:
    """It was told by the first sample, or the first 16."""

    def pack(name: str, boxes: list[Any]) -> None:
        samples = [{"image": image, "boxes": box} for image, box in zip(IMAGES, boxes, strict=False)]
        options: dict[str, Any] = {"fields": {"image": None, "boxes": "float32[*,4]"}}
        if way == "generator":
            pack_dataset(iter(samples), tmp_path / name, **options)
            return
        with create(tmp_path / name, **options) as builder:
            for sample in samples:
                if way == "builder":
                    builder.write(**sample)
                else:
                    builder.write_rows(**{field: [value] for field, value in sample.items()})

    small, large, none = [[0, 0, 1, 1]], [[1, 1, 5, 5]], np.zeros((0, 4))
    pack("pixels.h5", [small] * 20 + [large])
    for boxes in ([none] * 20 + [small], [small], [none] * 3 + [small] * 30):
        with pytest.raises(
            UsageError, match=r"shares\.h5: the largest coordinate of its boxes is 1, like shares"
        ):
            pack("shares.h5", boxes)
    assert os.listdir(tmp_path) == ["pixels.h5"]


def test_a_value_whose_copy_takes_arguments_is_one_sentence(tmp_path: Path) -> None:
    class Record:
        def copy(self, deep: bool) -> None: ...

    with pytest.raises(SourceError, match=r"field 'label' is of type Record; .* are stored\. Convert it"):
        pack_dataset(iter([{"label": Record()}]), tmp_path / "out.h5")


DEADLY = """
import os, signal, time
from packer import pack_dataset
class Deadly:
    def __len__(self):
        return 9
    def __getitem__(self, index):
        signal.alarm(60)  # should it live on
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(0.1)
        return index
pack_dataset(Deadly(), "d.h5", workers=2)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="samples are asked for in a forked process")
def test_the_process_that_looks_at_a_dataset_ends_with_its_parent(tmp_path: Path) -> None:
    """Its output is closed by then: nobody holds it."""
    done = subprocess.run(
        [sys.executable, "-c", DEADLY], cwd=tmp_path, capture_output=True, timeout=20, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-9, b"", b"")
    assert os.listdir(tmp_path) == []
