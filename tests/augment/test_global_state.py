"""No global state of torch, NumPy or Python changes a result: every operation, under each state, to the byte."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from packer import PackedBatchDataset, PackedDataset, Preprocess, augment, convert_images, open_pack, preview
from packer.augment import Pipeline
from packer.augment.annotations import moved_lists
from packer.errors import UsageError
from packer.load.caches.gpu_cache import GpuStore
from packer.load.device import CopyingDevice
from packer.orders.runs import consecutive
from packer.read.array_store import PackStore
from packer.starting import ForkSafeThreads
from tests.augment.conftest import forced, noise_images, smooth_images
from tests.conftest import Beside

ROWS, SHAPE = 4, (3, 32, 36)
CASES = [
    "AlternatingHorizontalFlip(), RandomHorizontalFlip(), RandomVerticalFlip(), CenterCrop(32)",
    "LetterBox(28), Pad((3, 5), 7), RandomCrop(20, padding=4, padding_mode='reflect')",
    "RandomAffine(30, (0.2, 0.2), (0.5, 1.5), 10, interpolation='bilinear', fill=9), Cutout(9, 3)",
    "RandomResizedCrop(20), RandomGrayscale(0.5), ColorJitter(0.4, 0.5, 0.6, 0.2), ToDtype(float16)",
    "RandomResizedCrop((30, 24), interpolation='bicubic'), RandomRotation(40), RandomInvert()",
    "Resize(17), RandomSolarize(128), RandomPosterize(3), Normalize((0.4, 0.3, 0.2), 0.3, bfloat16)",
    "RandomAdjustSharpness(1.7), RandomAutocontrast(), RandomEqualize(), RandomErasing(1, value=(1, 2, 3))",
    "ColorJitter(0.4, 0.4, 0.4, 0.3), Normalize(0.4, 0.2), RandomErasing(1, value='random')",
    "TrivialAugmentWide(), GaussianBlur(5)",
    "TrivialAugmentWide(interpolation='bilinear', fill=(3, 2, 1)), GaussianBlur((23, 11), (2, 4)), ToDtype()",
    "RandAugment(3, 11), RandomApply([ColorJitter(0.8), GaussianBlur(21, 3)], 0.6)",
    "RandomChoice([RandAugment(), RandomGrayscale(1), ColorJitter(hue=0.5)]), CutMix(num_classes=5)",
    "RandomHorizontalFlip(), CutMix(0.2, num_classes=5)",
    "RandomAffine(20), MixUp(0.001, num_classes=5), ToDtype(), MixUp(num_classes=5)",
]
NAMES = {name for name in augment.__all__ if name not in ("Draws", "Pipeline", "Transform", "parse")}


def test_the_cases_name_every_operation() -> None:
    assert {name for name in NAMES if any(f"{name}(" in case for case in CASES)} == NAMES


FACTORIES = {"arange", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "tensor", "zeros"}


def test_every_new_tensor_has_a_dtype_and_a_device() -> None:
    """Else they are torch's defaults, which a user may set."""
    root, bare = Path(augment.__file__).parents[1], []
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).startswith("torch."):
                continue
            given = {keyword.arg for keyword in node.keywords}  # None: **options
            if node.func.attr in FACTORIES and None not in given and not {"dtype", "device"} <= given:
                bare.append(f"{path}:{node.lineno}")
    assert bare == []


def ones_of(case: str) -> Iterator[tuple[str, Any]]:
    """Yield what one pipeline makes of images of each dtype, and of all that follows them."""
    rows, draws = np.arange(ROWS) * 7, np.random.default_rng(0)
    classes = torch.from_numpy(draws.integers(0, 5, ROWS))
    mask = torch.from_numpy(draws.integers(0, 9, (ROWS, *SHAPE[1:])))
    boxes = torch.from_numpy(np.sort(draws.uniform(0, 40, (ROWS, 3, 2, 2)), axis=2).reshape(ROWS, 3, 4))
    for dtype in (torch.uint8, torch.uint16, torch.float32):
        images = smooth_images(ROWS, *SHAPE) if dtype == torch.uint8 else noise_images(ROWS, *SHAPE, dtype)
        if dtype == torch.uint16:
            images = noise_images(ROWS, *SHAPE).to(torch.int32).mul(257).to(torch.uint16)
        try:
            pipeline = Pipeline(case, SHAPE, dtype=dtype, mask_fill=3)
        except UsageError:  # operations of uint8 alone
            assert dtype != torch.uint8
            continue
        drawn = pipeline.sample(rows, 2)
        yield from ((f"{dtype} {n} {name}", p) for n, each in enumerate(drawn) for name, p in each.items())
        ready = pipeline.prepare(drawn, ROWS)
        yield f"{dtype}", pipeline.apply(images, ready)
        if dtype == torch.uint8:
            if not pipeline.blends:
                yield "mask", pipeline.apply_masks(mask, ready)
                yield "mask of floats", pipeline.apply_masks(mask.to(torch.float32), ready)
            yield "soft", pipeline.apply_soft(mask.to(torch.float64) / 9, ready)
            yield "soft numbers", pipeline.apply_soft(mask.to(torch.int16), ready)
            yield "labels", pipeline.apply_labels(classes, ready)
            yield "targets", pipeline.apply_labels(classes.to(torch.float32) / 3, ready)
            if not pipeline.mixes:
                yield "boxes", pipeline.apply_boxes(boxes, ready)
                yield "points", pipeline.apply_keypoints(boxes.reshape(ROWS, 6, 2).to(torch.float32), ready)
                given = [boxes[0].to(torch.int64), boxes[1, :1].to(torch.int64), boxes[2, :0].to(torch.int64)]
                kept, fields = moved_lists(
                    given, {"n": given}, partial(pipeline.apply_boxes, params=ready[:3])
                )
                yield from ((f"list {n}", each) for n, each in enumerate([*kept, *fields["n"]]))
                yield "no boxes", moved_lists([], {}, lambda b: b)[0]


def made_by_packs(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield batches, rows, new images and a contact sheet of the packs in a folder."""
    for name, text in (
        ("fixed", "ColorJitter(0.4, 0.4, 0.4, 0.3), TrivialAugmentWide(), Normalize()"),
        ("fixed", "RandomResizedCrop(20), GaussianBlur(19, 3), MixUp(num_classes=9)"),
        ("sized", "RandomResizedCrop(20), RandAugment(), Normalize(), RandomErasing(1, value='random')"),
    ):
        with PackedBatchDataset(folder / name, 4, shuffle=True, seed=3, augment=text, threads=2) as dataset:
            yield from (
                (f"{text} {n} {k}", v) for n, batch in enumerate(dataset) for k, v in enumerate(batch)
            )
    rows = PackedDataset(folder / "fixed", transform=lambda image: image.to(torch.float32) / 255)
    yield from (("row", rows[3].image), ("rows", rows[1:4].image), ("label", rows[1:4].label))
    rows = PackedDataset(folder / "fixed", target_transform=lambda label: label + 1)
    yield "number", rows[1:4].label
    for name in ("fixed", "sized"):
        new = Preprocess(folder / name, augment="CenterCrop(20), GaussianBlur(5, 1.0), Normalize()")
        photo = folder / "photos" / "a" / "0.png"
        yield from ((f"new {name}", new([photo])), (f"none {name}", new([])), (f"{name} one", new(photo)))
        yield f"{name} settings", torch.tensor(list(repr(new).encode()), dtype=torch.uint8, device="cpu")
    preview(folder / "fixed", folder / "sheet.png", rows=4, augment="TrivialAugmentWide()", overwrite=True)
    yield "sheet", torch.from_numpy(np.fromfile(folder / "sheet.png", np.uint8))
    pack = open_pack(folder / "fixed")
    device = CopyingDevice(torch.device("cpu"))
    store = GpuStore(PackStore(pack, pack.fields[:2]), pack.fields[:2], device, ForkSafeThreads(1))
    yield from sorted(store.tensors(consecutive(np.array([3, 1, 2]))).items())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, draws = tmp_path_factory.mktemp("packs"), np.random.default_rng(0)
    for number in range(9):
        path = folder / "photos" / "abc"[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = (30 + number, 41 - number, 3)
        Image.fromarray(draws.integers(0, 256, size, np.uint8)).resize((40, 33)).save(path)
    convert_images(folder / "photos", folder / "fixed", size=32)
    convert_images(folder / "photos", folder / "sized", size="max=36", store="jpeg")
    return folder


@contextlib.contextmanager
def setting(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


@contextlib.contextmanager
def strict_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def allow_tf32(allowed: bool) -> None:
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed


STATES: dict[str, Callable[[], Any]] = {
    **{
        f"default {dtype}": lambda dtype=dtype: setting(
            torch.get_default_dtype, torch.set_default_dtype, dtype
        )
        for dtype in (torch.bfloat16, torch.float16, torch.float64)
    },
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast to float16": lambda: torch.autocast("cpu", torch.float16),
    "default device": lambda: torch.device("meta"),
    "inference": torch.inference_mode,
    "no gradients": torch.no_grad,
    "gradients": torch.enable_grad,
    "deterministic": lambda: setting(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "one thread": lambda: setting(torch.get_num_threads, torch.set_num_threads, 1),
    "seven threads": lambda: setting(torch.get_num_threads, torch.set_num_threads, 7),
    **{
        f"{precision} precision": lambda precision=precision: setting(
            torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, precision
        )
        for precision in ("high", "medium")
    },
    "no oneDNN": lambda: setting(torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, False),
    "TF32": lambda: setting(lambda: torch.backends.cudnn.allow_tf32, allow_tf32, True),
    "no denormals": lambda: setting(lambda: False, torch.set_flush_denormal, True),
    "one thread of OpenCV": lambda: setting(cv2.getNumThreads, cv2.setNumThreads, 1),
    "NumPy's errors": lambda: np.errstate(all="raise"),
    "NumPy's texts": lambda: np.printoptions(precision=1, threshold=2, legacy="1.13"),
    "warnings": strict_warnings,
}


# All of a line at once: none of them undoes what another one does.
TOGETHER = [
    [
        "default torch.bfloat16",
        "no gradients",
        "deterministic",
        "seven threads",
        "NumPy's errors",
        "warnings",
    ],
    ["default torch.float64", "gradients", "one thread", "no oneDNN", "no denormals", "NumPy's texts"],
    ["default torch.float16", "inference", "high precision", "one thread of OpenCV"],
    ["autocast", "medium precision", "TF32"],
    ["autocast to float16"],
    ["default device"],
]


def test_every_state_is_set_once() -> None:
    assert sorted(name for names in TOGETHER for name in names) == sorted(STATES)


def kept(made: Iterator[tuple[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """Name -> dtype, shape, device and bytes of each tensor, or of each in a list."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, value in made:
        for n, one in enumerate(value if isinstance(value, list) else [value]):
            tensor = torch.from_numpy(one) if isinstance(one, np.ndarray) else one
            data = tensor.contiguous().view(-1).view(torch.uint8) if tensor.numel() else tensor
            form = tensor.dtype, tuple(tensor.shape), tensor.device.type, tensor.requires_grad
            found[f"{name} {n}"] = (*form, bytes(data.numpy()) if tensor.numel() else b"")
    return found


@pytest.fixture(scope="module")
def usual(folder: Path) -> Callable[[str], Any]:
    """What the operations make in the usual state, by implementation; made once."""
    made: dict[str, Any] = {}

    def of(name: str) -> Any:
        if name not in made:
            made[name] = everything(name, folder)
        return made[name]

    return of


def everything(implementation: str, folder: Path) -> dict[str, dict[str, tuple[Any, ...]]]:
    with forced(implementation):
        found = {case: kept(ones_of(case)) for case in CASES}
        found["packs"] = kept(made_by_packs(folder))
    return found


@pytest.mark.parametrize("states", TOGETHER, ids=", ".join)
@pytest.mark.parametrize("implementation", ["auto", "plain"])
def test_no_state_changes_a_byte(
    implementation: str, states: list[str], folder: Path, usual: Callable[[str], Any]
) -> None:
    expected = usual(implementation)
    with contextlib.ExitStack() as stack:
        for state in states:
            stack.enter_context(STATES[state]())
        found = everything(implementation, folder)
    for case, results in expected.items():
        assert found[case].keys() == results.keys()
        assert [name for name in results if found[case][name] != results[name]] == []


def digest() -> str:
    """Of what the operations make; an import of this file may come after torch's settings."""
    found = {case: kept(ones_of(case)) for case in CASES}
    return hashlib.sha256(repr(found).encode()).hexdigest()


def test_no_number_of_threads_between_operations_changes_a_byte(tmp_path: Path, beside: Beside) -> None:
    """It is set before torch starts threads."""
    code = (
        "import torch; torch.set_num_interop_threads(1); torch.set_num_threads(2)\n"
        "from tests.augment.test_global_state import digest; open(*ARGUMENTS).write(digest())"
    )
    beside(code, str(tmp_path / "digest"), "w")
    assert (tmp_path / "digest").read_text() == digest()
