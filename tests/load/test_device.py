"""packer.load.device and caches.gpu_cache on a stand-in of CUDA that runs copies late and out of order."""

from __future__ import annotations

import contextlib
import gc
import random
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from packer import PackedBatchDataset, PythonTransform, convert_images  # noqa: E402
from packer.errors import UsageError  # noqa: E402
from packer.format.fields import Field  # noqa: E402
from packer.load import batch_engine, device  # noqa: E402
from packer.load.caches import gpu_cache  # noqa: E402
from packer.writing.pack_writer import PackWriter  # noqa: E402
from tests.cuda_stand_in import DEVICE, StandIn, install  # noqa: E402

pytestmark = pytest.mark.skipif(
    not hasattr(torch._C, "_storage_Use_Count"), reason="before 2.5 only torch's CUDA builds count references"
)
ROWS = 60
SHAPE = (8, 6, 3)


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
        self.held: list[tuple[Any, Any, Any]] = []  # batch, what it holds, stream that received it
        self.side = cuda.new_stream()

    def use(self, batch: Any, expected: Any, received: Any, what: str) -> None:
        """Queue kernels that read a batch, on the stream that received it or, by CUDA's rules, on another."""
        cuda = self.cuda
        stream = self.side if self.draws.random() < 0.2 else cuda.current_stream()
        pairs = list(zip(values(batch), values(expected), strict=True))
        assert len(pairs) == len(list(values(expected)))
        if stream is not received:
            stream.wait_stream(received)
        with cuda.stream(stream):
            for (name, tensor), (_, wanted) in pairs:
                assert tensor.shape == wanted.shape
                if tensor.numel():
                    assert cuda.on_device(tensor)
                    assert tensor.stride() == wanted.stride()
                cuda.check(tensor, wanted, f"{what} {name}")
                if stream is not received:
                    tensor.record_stream(stream)
        cuda.turn(20)

    def step(self, batch: Any, expected: Any, what: str) -> None:
        draws, received = self.draws, self.cuda.current_stream()
        if draws.random() < 0.2:
            self.cuda.scribble()
        self.use(batch, expected, received, what)
        if draws.random() < 0.3:
            self.held.append((batch, expected, received))
        elif draws.random() < 0.2:  # a view
            views = [type(one)._make(v[1:] for v in one) for one in (batch, expected)]
            self.held.append((*views, received))
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
    packs: dict[str, str], seed: int, copying: Any = device, upload: Any = gpu_cache
) -> list[str]:
    """Run a loop under a random schedule; return what its checks found. copying, upload: the modules."""
    draws = random.Random(seed)
    kind, given = options(draws)
    how = draws.choice(["whole", "whole", "break", "close", "raise"])
    last = draws.randrange(1, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_engine, "REQUEST_BATCHES", draws.choice([1, 2, 4]))
        patch.setattr(upload, "STEP_BYTES", draws.choice([100, 1000, 10_000]))
        wanted = PackedBatchDataset(packs[kind], **{**given, "placement": "disk", "device": "cpu"})
        epochs = [[type(b)._make(b) for b in wanted] for _ in range(2)]
        cuda = install(
            StandIn(seed, mallocs=draws.choice(["native", "async"]), slow=draws.random() < 0.2), patch
        )
        patch.setattr(device, "device_of", copying.device_of)
        patch.setattr(gpu_cache, "GpuStore", upload.GpuStore)
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
        cuda.scribble()
        while loop.held:
            loop.use(*loop.held.pop(), "after the end")
        del dataset
        gc.collect()
        cuda.scribble()
        cuda.finish()
        return cuda.found


@pytest.mark.parametrize("seed", range(40))
def test_schedules(packs: dict[str, str], seed: int):
    assert run_schedule(packs, seed) == []


@pytest.mark.soak
def test_many_schedules(packs: dict[str, str]):
    assert {seed: found for seed in range(500) if (found := run_schedule(packs, 1000 + seed))} == {}


WAITS = {
    "the receiver waits for the copy": ("current.wait_event(event)", "pass"),
    "the copy waits for the last use of buffers": ("self._stream.wait_event(event)", "pass"),
    "a slot is held until it has been copied": (
        "_Copy(began, ended, host)",
        "_Copy(began, ended, host[:0].clone())",
    ),
    "the end waits for copies": ("copy.ended.synchronize()", "pass"),
    "a buffer with views is used": ("_references(one.memory) != one.references", "False"),
    "streams that receive are noted": ("self._receivers.add(current)", "pass"),
    "the thread has the stream's device": (
        "torch.cuda.device(self.place), torch.cuda.stream",
        "torch.cuda.stream",
    ),
    "at the end buffers are recorded": ("one.memory.record_stream(stream)", "pass"),
}
UPLOAD_WAITS = {
    "a piece waits for the last copy of its buffer": (
        "event.synchronize()\n                piece",
        "pass\n                piece",
    ),
    "the upload waits for its copies": ("if event is not None:  #", "if False:  #"),
    "rows are recorded": ("t.record_stream(current)", "pass"),
}


def changed(module: types.ModuleType, old: str, new: str) -> types.ModuleType:
    """Return a module with one piece of its source replaced."""
    source = Path(module.__file__ or "").read_text(encoding="utf-8")
    assert source.count(old) == 1
    made = types.ModuleType(module.__name__)
    exec(compile(source.replace(old, new), module.__file__ or "", "exec"), made.__dict__)
    return made


@pytest.mark.soak
@pytest.mark.parametrize("what", [*WAITS, *UPLOAD_WAITS])
def test_each_wait_is_needed(packs: dict[str, str], what: str):
    """Without it, some schedule reads other values: the stand-in sees what the waits are for."""
    copying = changed(device, *WAITS[what]) if what in WAITS else device
    upload = changed(gpu_cache, *UPLOAD_WAITS[what]) if what in UPLOAD_WAITS else gpu_cache
    for seed in range(300):
        if run_schedule(packs, seed, copying, upload):
            return
    pytest.fail("no schedule needs it")


@pytest.fixture
def cuda(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setattr(batch_engine, "REQUEST_BATCHES", 1)
    return install(StandIn(**getattr(request, "param", {})), monkeypatch)


SLOT = 1024  # bytes of a batch of 4 rows, as an allocator rounds them


@pytest.mark.parametrize("cuda", [{"slow": True}], indirect=True)
@pytest.mark.parametrize("kept", [None, "label", "image"])
def test_memory_does_not_grow_with_how_far_python_is_ahead(
    packs: dict[str, str], cuda: StandIn, kept: str | None
):
    """It grows with the images that the loop keeps, not with the labels."""
    fields, keeping = ("image", "label"), []
    options = {"fields": fields, "placement": "disk", "prefetch": 2, "drop_last": True}
    with PackedBatchDataset(packs["rows"], 4, device=DEVICE, **options) as dataset:
        for epoch in range(3):
            for batch in dataset:
                keeping += [batch[fields.index(kept)]] if kept and not epoch else []
                assert sum(len(one.memory) == SLOT for one in cuda.blocks if one.stream is None) <= 14
    slots = sum(one.memory.nbytes for one in cuda.blocks if one.stream not in (None, cuda.default)) // SLOT
    assert slots <= 6 + (len(keeping) if kept == "image" else 0)
    assert cuda.found == []


@pytest.mark.parametrize("cuda", [{"most": 9100}], indirect=True)
def test_a_gpu_without_room(
    packs: dict[str, str], cuda: StandIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Rows that seemed to fit: an error where a GPU was asked for, else they are read from the disk."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 20, 1 << 30))
    message = (
        "placement='gpu': the rows take 9.12 kB; there are 1.05 MB free on cuda:1. Pass placement='ram' or"
        " 'disk', fewer fields, or a subset."
    )
    with (
        PackedBatchDataset(
            packs["rows"], 4, device=DEVICE, fields=("image", "label"), placement="gpu"
        ) as dataset,
        pytest.raises(UsageError, match=f"^{re.escape(message)}$"),
    ):
        next(iter(dataset))
    with PackedBatchDataset(packs["rows"], 4, device=DEVICE, fields=("image", "label")) as dataset:
        assert dataset.placement == "gpu"
        assert sum(1 for _ in dataset) == 15
        assert not dataset.resident
    assert caplog.messages == [
        f"{packs['rows']}: rows are read from the disk: they take 9.12 kB; there are 1.05 MB free on cuda:1"
    ]


@pytest.mark.parametrize("how", ["pin", "register"])
def test_memory_that_cannot_be_pinned(
    packs: dict[str, str], cuda: StandIn, how: str, caplog: pytest.LogCaptureFixture
):
    """One warning, the same batches, and no error of CUDA that a later kernel would report."""
    cuda.failing = lambda name: RuntimeError("out of memory\nlong text") if name == how else None
    transform = None if how == "pin" else PythonTransform(lambda row, rng: row, processes=2, context="thread")
    options = {"fields": ("image", "label"), "placement": "disk", "transform": transform}
    wanted = list(PackedBatchDataset(packs["rows"], 4, device="cpu", **options))
    with PackedBatchDataset(packs["rows"], 4, device=DEVICE, **options) as dataset:
        for batch, expected in zip(dataset, wanted, strict=True):
            cuda.check(batch.image, expected.image, "image")
    cuda.finish()
    assert (cuda.found, cuda.pending_error) == ([], "")
    why = "out of memory" if how == "pin" else "cudaHostRegister: error 2"
    assert [m for m in caplog.messages if "refuses" in m] == [
        f"device='cuda:1': CUDA refuses to pin 640 bytes ({why}), so copies to the GPU take longer. Raise the limit"
        " of locked memory (ulimit -l), or pass a smaller batch_size or prefetch."
    ]


@pytest.mark.parametrize(("placement", "name"), [("disk", "copy"), ("gpu", "copy"), ("gpu", "index_select")])
def test_an_error_of_cuda_reaches_the_loop_as_itself(
    packs: dict[str, str], cuda: StandIn, placement: str, name: str
):
    error, calls = RuntimeError("CUDA error: an illegal memory access was encountered"), []

    def failing(called: str) -> Exception | None:
        calls.append(called)
        return error if called == name and calls.count(name) > 2 else None

    cuda.failing = failing
    with (
        PackedBatchDataset(packs["rows"], 4, device=DEVICE, shuffle=True, placement=placement) as dataset,
        pytest.raises(RuntimeError) as raised,
    ):
        list(dataset)
    assert raised.value is error


def test_memory_of_processes_is_registered_until_its_last_view_is_gone(packs: dict[str, str], cuda: StandIn):
    transform = PythonTransform(lambda row, rng: row, processes=2, context="thread")
    with PackedBatchDataset(packs["rows"], 4, device=DEVICE, transform=transform) as dataset:
        assert len(list(dataset)) == 15
        assert cuda.registered
    del dataset
    gc.collect()
    assert cuda.registered == set()
    assert cuda.found == []


@pytest.mark.parametrize("options", [{"placement": "disk"}, {"placement": "gpu"}, {"collate": "pad"}])
def test_other_threads_of_ours_only_pin_memory(packs: dict[str, str], cuda: StandIn, options: dict[str, Any]):
    """So capture_error_mode="thread_local" is all that a captured graph needs."""
    pack = packs["photos" if "collate" in options else "rows"]
    with PackedBatchDataset(pack, 4, device=DEVICE, **options) as dataset:
        assert sum(1 for _ in dataset) == len(dataset)
    assert cuda.elsewhere == ({"memory was pinned"} if "collate" in options else set())
