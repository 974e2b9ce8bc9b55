"""packer.load.device and caches.gpu_cache on a stand-in of CUDA that runs copies late and out of order."""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from packer import PackedBatchDataset, convert_images  # noqa: E402
from packer.format.fields import Field  # noqa: E402
from packer.load import batch_engine, device  # noqa: E402
from packer.load.caches import gpu_cache  # noqa: E402
from packer.writing.pack_writer import PackWriter  # noqa: E402
from tests.cuda_stand_in import DEVICE, StandIn, install  # noqa: E402

ROWS = 60
SHAPE = (6, 5, 3)


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Rows of one length with boxes, and photographs that differ in size."""
    folder, draws = tmp_path_factory.mktemp("device"), np.random.default_rng(0)
    fields = (
        Field("image", "|u1", SHAPE, {"layout": "HWC"}),
        Field("label", "<i8", ()),
        Field("boxes", "|u1", None, {"dtype": "<f4", "row_shape": [4]}),
        Field("key", "|u1", None, {"encoding": "utf-8"}),
    )
    with PackWriter(str(folder / "rows"), fields=fields, rows=ROWS, block_rows=20, format="npy") as writer:
        for block in range(3):
            images = draws.integers(0, 256, (20, *SHAPE), np.uint8)
            writer.write_block(block, {"image": images, "label": 3 * np.arange(20) + 60 * block})
        boxes = [draws.random((row % 3, 4), np.float32).tobytes() for row in range(ROWS)]
        writer.finish(rows=ROWS, ragged={"boxes": boxes, "key": [b"%d" % row for row in range(ROWS)]})
    from PIL import Image

    for number in range(24):
        path = folder / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = draws.integers(0, 256, (8 + number % 5, 6 + number % 7, 3), np.uint8)
        Image.fromarray(pixels).save(path)
    convert_images(folder / "photos", folder / "photos.h5", size="max=12", store="jpeg")
    return {"rows": str(folder / "rows"), "photos": str(folder / "photos.h5")}


def values(batch: Any) -> Iterator[tuple[str, Any]]:
    """The tensors of a batch, those in lists too."""
    for name, value in zip(batch._fields, batch, strict=True):
        for number, one in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(one, torch.Tensor):
                yield f"{name}[{number}]" if isinstance(value, list) else name, one


class Loop:
    """A training loop that uses batches in all the ways that loops do, and knows what they hold."""

    def __init__(self, cuda: StandIn, draws: random.Random) -> None:
        self.cuda, self.draws = cuda, draws
        self.held: list[tuple[Any, Any]] = []
        self.side = cuda.new_stream()

    def use(self, batch: Any, expected: Any, what: str) -> None:
        """Queue kernels that read a batch, on this stream or, as CUDA's rules say, on another."""
        cuda, draws = self.cuda, self.draws
        pairs = list(zip(values(batch), values(expected), strict=True))
        assert len(pairs) == len(list(values(expected)))
        elsewhere = draws.random() < 0.2
        if elsewhere:
            self.side.wait_stream(cuda.current_stream())
        with cuda.stream(self.side if elsewhere else None):
            for (name, tensor), (_, wanted) in pairs:
                assert tensor.shape == wanted.shape
                if tensor.numel():
                    assert cuda.on_device(tensor)
                    assert tensor.stride() == wanted.stride()
                cuda.check(tensor, wanted, f"{what} {name}")
                if elsewhere:
                    tensor.record_stream(self.side)
        cuda.turn(20)

    def step(self, batch: Any, expected: Any, what: str) -> None:
        draws = self.draws
        self.use(batch, expected, what)
        if draws.random() < 0.3:
            self.held.append((batch, expected))
        elif draws.random() < 0.2:  # a view
            self.held.append(
                (type(batch)._make(v[1:] for v in batch), type(batch)._make(v[1:] for v in expected))
            )
        while self.held and draws.random() < 0.4:
            self.use(*self.held.pop(draws.randrange(len(self.held))), f"{what}, held")
        if draws.random() < 0.2 and not self.held and isinstance(batch[0], torch.Tensor):  # in place
            self.cuda.current_stream().wait_stream(self.side)
            self.cuda.write(batch[0], 7)
            self.cuda.check(batch[0], torch.full_like(expected[0], 7), f"{what}, written")


def options(draws: random.Random) -> tuple[str, dict[str, Any]]:
    """A pack, and arguments of a dataset."""
    kind = draws.choice(["rows", "rows", "rows", "photos"])
    given = {
        "batch_size": draws.randint(1, 9),
        "prefetch": draws.randint(0, 4),
        "threads": draws.randint(1, 3),
        "shuffle": draws.random() < 0.7,
        "seed": draws.randrange(1000),
    }
    if kind == "rows":
        fields = draws.choice(
            [("image", "label"), ("image", "row"), ("label", "boxes"), ("image", "label", "boxes", "key")]
        )
        given |= {"fields": fields, "placement": draws.choice(["disk", "gpu"])}
    else:
        given |= {"collate": draws.choice(["pad", "list"]), "fields": ("image", "label", "row")}
    return kind, given


def run_schedule(
    packs: dict[str, str], seed: int, loaded: Callable[..., Any] = device.device_of
) -> list[str]:
    """Run a loop under a random schedule; return what its checks found. loaded: device_of."""
    draws = random.Random(seed)
    kind, given = options(draws)
    how = draws.choice(["whole", "whole", "break", "close", "raise"])
    last = draws.randrange(1, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_engine, "REQUEST_BATCHES", draws.choice([1, 2, 4]))
        patch.setattr(gpu_cache, "STEP_BYTES", draws.choice([100, 1000, 10_000]))
        wanted = PackedBatchDataset(packs[kind], **{**given, "placement": "disk", "device": "cpu"})
        epochs = [[type(b)._make(b) for b in wanted] for _ in range(2)]
        cuda = install(
            StandIn(seed, mallocs=draws.choice(["native", "async"]), slow=draws.random() < 0.2), patch
        )
        patch.setattr(device, "device_of", loaded)
        loop = Loop(cuda, draws)
        own = cuda.new_stream() if draws.random() < 0.3 else None
        with PackedBatchDataset(packs[kind], device=DEVICE, **given) as dataset:
            for number, epoch in enumerate(epochs):
                with (
                    cuda.stream(own if number or draws.random() < 0.5 else None),
                    contextlib.suppress(KeyError),
                ):
                    for step, (batch, expected) in enumerate(zip(dataset, epoch, strict=True)):
                        loop.step(batch, expected, f"epoch {number} batch {step}")
                        if number and step == last:
                            if how == "break":
                                break
                            if how == "close":
                                dataset.close()
                                break
                            if how == "raise":
                                raise KeyError
        batch = None
        for held in loop.held:
            loop.use(*held, "after the end")
        loop.held.clear()
        del dataset
        gc.collect()
        cuda.finish()
        return cuda.found


@pytest.mark.parametrize("seed", range(40))
def test_schedules(packs: dict[str, str], seed: int):
    assert run_schedule(packs, seed) == []
