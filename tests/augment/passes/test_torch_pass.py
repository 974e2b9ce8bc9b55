"""torch_pass on a device: it asks it nothing, so that a GPU never waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from packer.augment import Pipeline
from packer.augment.passes import torch_pass
from packer.augment.passes.prepared_draws import PreparedDraws
from tests.augment.passes.pass_cases import CASES, make_columns, make_images
from tests.augment.test_global_state import CASES as TEXTS
from tests.augment.test_global_state import ROWS, SHAPE

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero", "item")


class Asynchronous(TorchDispatchMode):
    """Refuses what synchronises with a GPU, of which tensors on "meta" take the place."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [t for t in tree_leaves((args, kwargs or {})) if isinstance(t, torch.Tensor)]
        made = func(*args, **(kwargs or {}))
        results = [t for t in tree_leaves(made) if isinstance(t, torch.Tensor)]
        name = func.overloadpacket.__name__
        devices = {t.device.type for t in (*tensors, *results)}
        queued = name == "_to_copy" and kwargs.get("non_blocking")  # of pinned memory
        if "meta" in devices and not (queued and results[0].device.type == "meta"):
            assert devices == {"meta"}, f"{func} copies between {devices}"
            assert not any(name.startswith(word) for word in WAITING), f"{func} waits"
            if name.startswith("index"):
                assert not any(t.dtype == torch.bool for t in tensors[1:]), f"{func} counts a mask"
        return made


def on_meta(draws: PreparedDraws) -> PreparedDraws:
    return PreparedDraws(draws.host, torch.empty_like(draws.host, device="meta"))


@pytest.mark.parametrize("name", CASES)
def test_it_asks_the_device_nothing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    what, dtype = CASES[name]
    images = make_images(6, what.channels, 13, dtype).to("meta")
    out = torch.empty((6, *what.size, what.channels), dtype=getattr(torch, what.dtype), device="meta")
    draws = on_meta(PreparedDraws(make_columns(what, 6, 13)))
    monkeypatch.setattr(torch.Tensor, "new_tensor", None)  # it copies numbers, and dispatches nothing
    with Asynchronous():
        torch_pass.run(what, images, draws, out.permute(0, 3, 1, 2))


@pytest.mark.parametrize("text", TEXTS)
def test_nor_does_a_pipeline(text: str) -> None:
    pipeline = Pipeline(text, SHAPE)
    draws = on_meta(pipeline.prepare(pipeline.sample(np.arange(ROWS)), ROWS))
    images = torch.empty((ROWS, *SHAPE), dtype=torch.uint8, device="meta")
    with Asynchronous():
        pipeline.apply(images.contiguous(memory_format=torch.channels_last), draws)
        if not pipeline.blends:
            pipeline.apply_masks(images[:, 0], draws)
        pipeline.apply_soft(images[:, 0].float(), draws)
        pipeline.apply_labels(torch.empty(ROWS, dtype=torch.int64, device="meta"), draws, 5)
        if not pipeline.mixes:
            pipeline.apply_boxes(torch.empty((ROWS, 3, 4), device="meta"), draws)
            pipeline.apply_keypoints(torch.empty((ROWS, 3, 2), device="meta"), draws)


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: x[x > 0],
        lambda x: torch.nonzero(x),
        lambda x: x * torch.tensor([1.0, 2.0]).to(x.device),
        lambda x: bool(x.sum()),
        lambda x: x.tolist(),
    ],
)
def test_a_question_is_noticed(ask: Any) -> None:
    with pytest.raises((AssertionError, RuntimeError, NotImplementedError)), Asynchronous():
        ask(torch.empty(2, device="meta"))
