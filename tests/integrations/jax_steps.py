"""Run by test_jax.py, as a process that has imported JAX may not fork: JAX's steps read batches after the loop has gone on."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from packer import PackedBatchDataset
from packer.load.batch import allocate

PAGE = Path(__file__).parents[2] / "docs" / "jax.md"
BATCH, EPOCHS = 50, 6
TAKEN: dict[str, Callable[[Any], Any]] = {
    "from_dlpack": jnp.from_dlpack,
    "asarray": jnp.asarray,
    "device_put": jax.device_put,
    "compiled": lambda batch: batch,
}


def epochs(pack: str, **options: Any) -> Iterator[Any]:
    """The images of each batch."""
    with PackedBatchDataset(pack, BATCH, shuffle=True, output="numpy", **options) as dataset:
        for _ in range(EPOCHS):
            for batch in dataset:
                yield batch.image
                del batch


def filled_again(pack: str) -> Iterator[Any]:
    """The same in one buffer, which the next batch overwrites."""
    buffer: Any = None
    for images in epochs(pack):
        if buffer is None:
            buffer = allocate(images.nbytes).reshape(images.shape)
        buffer[:] = images
        yield buffer


@jax.jit
def slow(w: Any, times: int) -> Any:
    """Return 0 after a long computation."""
    return jax.lax.fori_loop(0, times, lambda _, w: w @ w * 1e-3, w).sum() * 0


@jax.jit
def means(images: Any, zero: Any) -> Any:
    """Return the mean of each image, read once `zero` is there."""
    return images.astype(jnp.float32).mean((1, 2, 3)) + zero


def wrong(take: Callable[[Any], Any], batches: Callable[[], Iterable[Any]], given: list[Any]) -> int:
    """Return how many steps read other pixels than the batch had, where none begins before the loop has ended."""
    w = jnp.ones((400, 400))
    jax.block_until_ready(slow(w, 1))
    times, begun = 50, True
    while begun:
        zero, steps = slow(w, times), []
        for images in batches():
            steps.append(means(take(images), zero))
            del images
        begun, times = zero.is_ready(), 2 * times
    return sum(not np.allclose(a, b) for a, b in zip(steps, given, strict=True))


def shared(pack: str) -> tuple[bool, int]:
    """Return if from_dlpack left all batches where they are, and in how many places they were."""
    places, same = set(), True
    for images in epochs(pack, prefetch=0):
        array = jnp.from_dlpack(images)
        same = same and array.unsafe_buffer_pointer() == images.ctypes.data
        places.add(images.ctypes.data)
        del images, array
    return same, len(places)


def the_page() -> list[float]:
    """Run the code on docs/jax.md, in a folder with train.h5; return what is left of its steps."""
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "jax.md", "exec"), names)
    return [float(mean) for mean, _ in names["pending"]]


def augmented(pack: str) -> bool:
    """Return if tensors that packer augmented arrive in JAX as they are."""
    same = True
    with PackedBatchDataset(pack, 10, augment="RandomCrop(96), Normalize()") as dataset:
        for images, _ in dataset:
            rows = images.permute(0, 2, 3, 1)
            same = (
                same and rows.shape == (10, 96, 96, 3) and np.array_equal(jnp.from_dlpack(rows), rows.numpy())
            )
    return same


def main(pack: str) -> dict[str, Any]:
    """Return what happened."""
    given = [images.astype(np.float32).mean((1, 2, 3)) for images in epochs(pack)]
    jax.block_until_ready([means(take(next(epochs(pack))), 0.0) for take in TAKEN.values()])  # compiled
    found: dict[str, Any] = {}
    for name, take in TAKEN.items():
        found[f"filled again, {name}"] = wrong(take, lambda: filled_again(pack), given)
        found[name] = wrong(take, lambda: epochs(pack), given)
    found["in memory"] = wrong(jnp.from_dlpack, lambda: epochs(pack, placement="ram"), given)
    found["one by one"] = wrong(jnp.from_dlpack, lambda: epochs(pack, prefetch=0, threads=1), given)
    return found | {"shared": shared(pack), "page": the_page()}


if __name__ == "__main__":
    print(json.dumps(augmented(sys.argv[2]) if sys.argv[1] == "augmented" else main(sys.argv[1])))
