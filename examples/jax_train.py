"""Train a small network from a pack in JAX, on all devices that JAX sees.

    pip install jax
    packer convert photos/train train.h5 --size 64
    packer convert photos/test test.h5 --like train.h5
    python examples/jax_train.py train.h5 --test test.h5 --epochs 5

Batches are NumPy arrays, which JAX takes by dlpack; the compiled step normalises, flips and shifts them, with
draws that depend on (seed, epoch, row). Several devices share each batch; of several processes (``--processes
2 --process 0 --address host:1234``) each reads its part of every global batch. Prints a line an epoch.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from packer import PackedBatchDataset, open_pack

Array = Any
Params = list[dict[str, Array]]
WIDTHS = (32, 64, 128)
MOMENTUM, DECAY, SHIFT = 0.9, 5e-4, 4
AHEAD = 2  # steps in flight: JAX starts up to 32 on a CPU, each with its batch in memory


def init(key: Array, channels: int, classes: int) -> Params:
    """Return the weights of three convolutions and a linear layer."""
    layers: Params = []
    for width in WIDTHS:
        key, own = jax.random.split(key)
        weights = jax.random.normal(own, (3, 3, channels, width)) * np.sqrt(2 / (9 * channels))
        layers.append({"w": weights, "b": jnp.zeros(width)})
        channels = width
    return [*layers, {"w": jnp.zeros((channels, classes)), "b": jnp.zeros(classes)}]


def logits(params: Params, images: Array) -> Array:
    """Return the scores [N, classes]. images: float32 [N, H, W, C], normalised."""
    x = images
    for layer in params[:-1]:
        x = jax.lax.conv_general_dilated(
            x, layer["w"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + layer["b"])
        x = x / jnp.sqrt(jnp.mean(x**2, axis=(1, 2, 3), keepdims=True) + 1e-5)
    return x.mean((1, 2)) @ params[-1]["w"] + params[-1]["b"]


def augmented(key: Array, rows: Array, images: Array) -> Array:
    """Flip half of the images, and shift each by up to SHIFT pixels.

    key: of the epoch; rows: int [N], numbers in the pack.
    """

    def one(row: Array, image: Array) -> Array:
        flip, shift = jax.random.split(jax.random.fold_in(key, row))
        image = jnp.where(jax.random.bernoulli(flip), image[:, ::-1], image)
        top, left = jax.random.randint(shift, (2,), 0, 2 * SHIFT + 1)
        padded = jnp.pad(image, ((SHIFT, SHIFT), (SHIFT, SHIFT), (0, 0)), mode="edge")
        return jax.lax.dynamic_slice(padded, (top, left, 0), image.shape)

    return jax.vmap(one)(rows, images)


@partial(jax.jit, donate_argnums=(0, 1))
def step(
    params: Params,
    speeds: Params,
    rate: Array,
    key: Array,
    statistics: Array,
    images: Array,
    labels: Array,
    rows: Array,
) -> tuple[Params, Params, Array]:
    """Do a step of SGD. statistics: mean and std, [2, C], of images / 255. Returns weights, speeds, loss."""

    def loss_of(params: Params) -> Array:
        x = (augmented(key, rows, images) / 255.0 - statistics[0]) / statistics[1]
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits(params, x)), labels[:, None], 1)
        return -chosen.mean()

    loss, slopes = jax.value_and_grad(loss_of)(params)
    speeds = jax.tree.map(lambda v, g, p: MOMENTUM * v + g + DECAY * p, speeds, slopes, params)
    return jax.tree.map(lambda p, v: p - rate * v, params, speeds), speeds, loss


@jax.jit  # type: ignore[untyped-decorator]
def right(params: Params, statistics: Array, images: Array, labels: Array) -> Array:
    """Return the number of correctly labelled images."""
    return (logits(params, (images / 255.0 - statistics[0]) / statistics[1]).argmax(1) == labels).sum()


class Devices:
    """All devices of all processes: batches are split across them, weights are copied to each."""

    def __init__(self) -> None:
        mesh = jax.make_mesh((jax.device_count(),), ("data",))
        self._cut, self._whole = (NamedSharding(mesh, PartitionSpec(*axis)) for axis in (["data"], []))

    def share(self, local: Array) -> Array:
        """Return this process's part of a batch as part of the global array. local: NumPy array [N, ...]."""
        if jax.device_count() == 1:
            return jnp.from_dlpack(local)  # without a copy on a CPU if aligned
        return jax.make_array_from_process_local_data(self._cut, local)

    def copy(self, tree: Any) -> Any:
        """Return arrays that are on every device."""
        return jax.device_put(tree, self._whole)


def accuracy(params: Params, statistics: Array, test: PackedBatchDataset[Any]) -> float:
    """Return the share of rows that the network labels correctly."""
    given = [right(params, statistics, *map(jnp.from_dlpack, (batch.image, batch.label))) for batch in test]
    return sum(map(int, given)) / test.rows


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description="Train a small network from a pack in JAX.")
    parser.add_argument("train", help="a pack with labels")
    parser.add_argument("--test", help="a pack of the same classes for evaluation")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="per process")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate of the first step")
    parser.add_argument("--processes", type=int, help="number of processes")
    parser.add_argument("--process", type=int, help="number of this process")
    parser.add_argument("--address", help="host:port of process 0")
    options = parser.parse_args()
    if options.processes:
        jax.distributed.initialize(options.address, options.processes, options.process)

    header = open_pack(options.train).header
    if header.classes is None:
        sys.exit(f"{options.train}: its labels have no class names; this example needs them.")
    train = PackedBatchDataset(
        options.train,
        options.batch_size,
        shuffle=True,
        output="numpy",
        fields=["image", "label", "row"],
        drop_last=True,  # a batch of another size would be compiled again
        rank=jax.process_index(),
        world_size=jax.process_count(),
    )
    devices, found = Devices(), header.normalization
    statistics = np.array([found["mean"], found["std"]], np.float32)
    params = devices.copy(init(jax.random.key(0), len(found["mean"]), len(header.classes)))
    speeds = jax.tree.map(jnp.zeros_like, params)
    steps, done = options.epochs * len(train), 0
    for epoch in range(options.epochs):
        key, losses, began = jax.random.fold_in(jax.random.key(1), epoch), [], time.perf_counter()
        for batch in train:
            rate = options.rate * (1 - done / steps)
            params, speeds, loss = step(params, speeds, rate, key, statistics, *map(devices.share, batch))
            losses.append(loss)
            done += 1
            if len(losses) > AHEAD:
                losses[-AHEAD - 1].block_until_ready()
        mean = np.mean([float(loss) for loss in losses])
        rate = len(losses) * options.batch_size * jax.process_count() / (time.perf_counter() - began)
        line = f"epoch {epoch + 1}: loss {mean:.4f}, {rate:,.0f} images/s"
        if options.test:
            own = jax.tree.map(lambda array: array.addressable_data(0), params)
            with PackedBatchDataset(options.test, 256, output="numpy", rank=0, world_size=1) as test:
                train.pack.check_classes(test.pack)
                line += f", test accuracy {accuracy(own, statistics, test):.1%}"
        print(line, flush=True)
    train.close()


if __name__ == "__main__":
    main()
