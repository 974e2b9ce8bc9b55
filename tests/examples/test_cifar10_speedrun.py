from __future__ import annotations

import argparse
import io
import pickle
import re
import runpy
import tarfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from packer import convert_images, open_pack
from tests.conftest import Ran, Script

NAME = "examples/cifar10_speedrun.py"
SCRIPT = Path(__file__).parents[2] / NAME
READ = re.compile(
    r"(\d+) images to train on, 40 to test on, 4 classes; read and brought to \w+ in \d+\.\d\d s"
)
EPOCH = re.compile(r"epoch (\d): loss (\d\.\d{3}), accuracy (\d+\.\d)%, on the test images (\d+\.\d\d)%")
RUN = re.compile(
    r"run (\d): \d+\.\d\d s to train, \d+\.\d\d s to test; accuracy (\d+\.\d\d)%, mirrored too (\d+\.\d\d)%, "
    r"shifted too (\d+\.\d\d)%"
)


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Training and test packs of 240 and 40 images of 32x32: stripes that lie or stand, fine or coarse, in noise.

    Colours say nothing about the class, and neither mirroring nor shifting changes it.
    """
    draws = np.random.default_rng(0)
    y, x = np.mgrid[0:32, 0:32]
    folder = tmp_path_factory.mktemp("shapes")
    packs = folder / "train.h5", folder / "test.h5"
    for pack, count in zip(packs, (60, 10), strict=True):
        for name, along, period in (("a", y, 4), ("b", y, 10), ("c", x, 4), ("d", x, 10)):
            target = folder / pack.stem / name
            target.mkdir(parents=True)
            for number in range(count):
                wave = np.sin(2 * np.pi * along / period + draws.uniform(0, 2 * np.pi))
                colour = draws.choice([-60, 60], 3)
                pixels = 128 + wave[..., None] * colour + draws.normal(0, 20, (32, 32, 3))
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(target / f"{number}.png")
        convert_images(folder / pack.stem, pack, size=32)
    return packs


SHORT = ("--width", "8", "--batch-size", "40", "--epochs", "5.5")


def check(run: Ran, lines: list[str], dtype: str, runs: int = 1) -> None:
    """That the lines after the first are as they should be, and show that it learned."""
    assert run.returncode == 0, run.stderr
    assert len(lines) == 6 + runs + 2
    epochs = [EPOCH.fullmatch(line) for line in lines[:6]]
    assert [match[1] for match in epochs if match] == list("123456")
    first, last = epochs[0], epochs[-1]
    assert first
    assert last
    assert float(last[2]) < float(first[2])
    assert float(last[3]) > 75  # four classes: guessing gives 25 %
    results = [match.groups() for line in lines[6:-2] if (match := RUN.fullmatch(line))]
    assert [result[0] for result in results] == [str(number + 1) for number in range(runs)]
    assert results[0][1] == last[4]  # the line of the last epoch is about the weights that are kept
    each = np.array([[float(accuracy) for accuracy in result[1:]] for result in results])
    assert each.min() > 70
    assert re.match(rf"{runs} runs?: \d+\.\d\d s to train, \d+\.\d\d to \d+\.\d\d; accuracy ", lines[-2])
    told = np.array(re.findall(r"(\d+\.\d\d)%", lines[-2]), float).reshape(3, -1)
    assert np.allclose(told[:, 0], each.mean(axis=0), atol=0.006)
    assert np.allclose(told[:, 1:], each.std(axis=0, ddof=1)[:, None] if runs > 1 else 0, atol=0.006)
    assert ("deviation" in lines[-2]) == (runs > 1)
    assert re.fullmatch(rf"packer [\d.]+, torch \S+, .+, {dtype}", lines[-1])


def test_it_learns_and_says_how_well(script: Script, packs: tuple[Path, Path]) -> None:
    run = script(NAME, *packs, *SHORT, "--device", "cpu", "--runs", "2")
    read, *lines = run.stdout.splitlines() or [""]
    check(run, lines, "float32", 2)
    assert READ.fullmatch(read)


def options(packs: tuple[Path, Path], **changed: Any) -> argparse.Namespace:
    """What the command line would hold, in small."""
    small: dict[str, Any] = {
        "epochs": 3.5,
        "batch_size": 40,
        "width": 4,
        "subset": 120,
        "padding": 2,
        "cutout": 8,
    }
    small |= {"device": "cpu", "dtype": "float32", "compile": False}
    return argparse.Namespace(train=packs[0], test=packs[1], **small | changed)


@pytest.mark.usefixtures("one_thread")
def test_in_half_precision_it_learns_too(packs: tuple[Path, Path]) -> None:
    changed = {"epochs": 5.5, "width": 8, "subset": None, "cutout": 0, "dtype": "bfloat16"}
    speedrun = runpy.run_path(str(SCRIPT))["Speedrun"](options(packs, **changed))
    speedrun.train(0, tell=False)
    assert min(speedrun.test()) > 0.7
    assert speedrun.pipeline.output_dtype == torch.bfloat16


@pytest.mark.usefixtures("one_thread")
def test_a_run_depends_on_its_seed_alone(packs: tuple[Path, Path]) -> None:
    module = runpy.run_path(str(SCRIPT))

    def weights(*seeds: int) -> Tensor:
        speedrun = module["Speedrun"](options(packs))
        for seed in seeds:
            speedrun.train(seed, tell=False)
        return torch.cat([value.flatten().double() for value in speedrun.model.state_dict().values()])

    second = weights(1)
    assert torch.equal(second, weights(0, 1))
    assert not torch.equal(second, weights(0))


@pytest.mark.gpu
def test_it_learns_on_a_gpu(script: Script, packs: tuple[Path, Path]) -> None:
    run = script(NAME, *packs, *SHORT)
    read, warm_up, *lines = run.stdout.splitlines() or ["", ""]
    check(run, lines, "float16")
    assert READ.fullmatch(read)
    assert " brought to cuda in " in read
    assert re.fullmatch(r"warm-up, not counted: \d+\.\d s", warm_up)


def test_the_first_layer_whitens() -> None:
    module = runpy.run_path(str(SCRIPT))
    torch.manual_seed(0)
    model = module["Net"](3, 10, 4)
    # Neighbours alike, channels alike: as in photographs.
    images = torch.nn.functional.avg_pool2d(torch.randn(200, 3, 36, 36) + torch.randn(200, 1, 36, 36), 5, 1)
    model.begin(images)
    with torch.no_grad():
        seen = model.whiten(images).transpose(0, 1).flatten(1)
    assert torch.equal(seen[:12], -seen[12:])
    covariance = seen[:12] @ seen[:12].T / seen.shape[1]
    # Nearly 1 each, but for the floor that keeps noise in weak directions small, and uncorrelated.
    assert torch.allclose(covariance, covariance.diag().diag(), atol=2e-3)
    assert covariance.diag().max() == pytest.approx(1, abs=2e-3)
    assert covariance.diag().min() > 0.5
    assert not model.whiten.weight.requires_grad


def test_a_pack_without_class_names_is_refused(
    script: Script, packs: tuple[Path, Path], tmp_path: Path
) -> None:
    pack = tmp_path / "flat.h5"
    convert_images(packs[1].parent / "test" / "a", pack, size=32)
    run = script(NAME, pack, packs[1])
    assert run.returncode == 1
    assert run.stderr == f"{pack}: it has no labels with class names; this example needs them.\n"


def test_packs_of_other_classes_are_refused(script: Script, packs: tuple[Path, Path], tmp_path: Path) -> None:
    convert_images(packs[1].with_suffix(""), tmp_path / "test.h5", size=32, classes="a,c,b,d")
    run = script(NAME, packs[0], tmp_path / "test.h5", "--device", "cpu")
    assert run.returncode == 1
    assert run.stderr.startswith(f"{tmp_path}/test.h5: class 1 is 'c', and 'b' in {packs[0]}; ")


class _Python2Pickler(pickle._Pickler):
    """Writes bytes as Python 2 wrote str, which is how CIFAR's files are written."""

    dispatch = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]  # noqa: RUF012

    def save_bytes(self, data: bytes) -> None:
        self.write(b"T" + len(data).to_bytes(4, "little") + data)  # type: ignore[attr-defined]
        self.memoize(data)  # type: ignore[attr-defined]

    dispatch[bytes] = save_bytes


def _python2(value: Any) -> bytes:
    file = io.BytesIO()
    _Python2Pickler(file, 2).dump(value)
    return file.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def _write(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_cifars_own_tar_is_packed_and_nothing_in_it_is_run(tmp_path: Path) -> None:
    pack_cifar = runpy.run_path(str(SCRIPT))["pack_cifar"]
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3072), np.uint8)
    parts = {"data_batch_1": slice(0, 3), "data_batch_2": slice(3, 4), "test_batch": slice(4, 6)}
    files = {
        name: _python2({b"data": pixels[part], b"labels": list(range(6))[part]})
        for name, part in parts.items()
    }
    files["batches.meta"] = _python2({b"label_names": [b"a", b"b", b"c", b"d", b"e", b"f"]})
    _write(tmp_path / "cifar.tar.gz", {**files, "readme.html": b"x"})
    pack_cifar(str(tmp_path / "cifar.tar.gz"), str(tmp_path / "train.h5"), str(tmp_path / "test.h5"))
    for name, part in (("train", slice(0, 4)), ("test", slice(4, 6))):
        pack = open_pack(tmp_path / f"{name}.h5")
        assert pack.header.classes == tuple("abcdef")
        rows = _rows(tmp_path / f"{name}.h5")
        assert rows == {
            label: pixels[label].reshape(3, 32, 32).transpose(1, 2, 0).tolist() for label in range(6)[part]
        }
    _write(tmp_path / "evil.tar.gz", {"data_batch_1": b"cos\nsystem\n(S'true'\ntR."})
    with pytest.raises(pickle.UnpicklingError, match=r"asks for os\.system; arrays, lists and text are read"):
        pack_cifar(str(tmp_path / "evil.tar.gz"), "a.h5", "b.h5")


def _rows(path: Path) -> dict[int, Any]:
    """Return label -> image of a pack whose labels are all different."""
    with h5py.File(path) as file:
        return dict(zip(file["label"][:].tolist(), file["image"][:].tolist(), strict=True))
