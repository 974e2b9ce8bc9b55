"""galilai-group/stable-worldmodel#214: windows of frames, 1,100 a second from HDF5 and 5,100 from Lance.

Their data are episodes of 224 px frames with actions. A sample is 4 frames, each 5 steps after the previous,
with all 20 actions between. Their HDF5 file has a chunk a frame; their reader takes all 20 frames as a slice
and keeps every fifth. Their Lance table holds frames as JPEG of quality 95, and a batch's distinct frames are
fetched and decoded once. Their benchmark reads samples in order, so 64 samples share 83 frames; training
shuffles them. Both are measured here. Frames and actions are at different steps, so packer's rows are read by
number, or by ``window=`` as two datasets, a batch at once, below torch's DataLoader.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from lanes.content import psnr
from numpy.typing import NDArray

from complaints.complaint import Complaint, Epochs, Lane, Numbers, Order, Rows, loaded, made_once

STEPS, SKIP, SIDE, BATCH = 4, 5, 224, 64
SPAN, LENGTH = STEPS * SKIP, 100  # frames of a window, and of an episode
QUALITY, LEAST_DB = 95, 30.0
H5, LANCE, RAW, JPEG = "frames.h5", "frames.lance", "pack-raw.h5", "pack-jpeg.h5"


def frame(number: int) -> NDArray[np.uint8]:
    """Return a scene like theirs: two rooms, a door, and an agent that moves from frame to frame."""
    episode, step = divmod(number, LENGTH)
    draws = np.random.default_rng(episode)
    floor, wall, agent = draws.integers(0, 256, (3, 3))
    image = np.empty((SIDE, SIDE, 3), np.uint8)
    image[:] = floor
    image[:, 108:116] = wall
    door = int(draws.integers(20, 180))
    image[door : door + 24, 108:116] = floor
    (y, x), (dy, dx) = draws.integers(20, 100, 2), draws.integers(0, 2, 2)
    y, x = int(y + dy * step), int(x + dx * step)
    image[y - 8 : y + 8, x - 8 : x + 8] = agent
    return image


def action(number: int) -> NDArray[np.float32]:
    """Return the action of a frame."""
    return np.array([number, -number], np.float32)


def starts(frames: int) -> Numbers:
    """Return the first frame of each sample; samples end within their episode."""
    first = np.arange(0, frames, LENGTH)[:, None] + np.arange(LENGTH - SPAN + 1)
    return first.reshape(-1)


def write(work: Path, frames: int) -> None:
    """Write the stores that are not there yet."""
    numbers = range(frames // LENGTH * LENGTH)
    made_once(work / H5, partial(_write_h5, numbers=numbers))
    for name, store in ((RAW, "raw"), (JPEG, "jpeg")):
        made_once(work / name, partial(_write_pack, numbers=numbers, store=store))
    if find_spec("lance"):
        made_once(work / LANCE, partial(_write_lance, numbers=numbers))


def _write_h5(path: Path, numbers: range) -> None:
    with h5py.File(path, "w", libver="latest") as file:
        for name, make in (("pixels", frame), ("action", action)):
            shape, dtype = make(0).shape, make(0).dtype
            values = file.create_dataset(
                name, (len(numbers), *shape), dtype, chunks=(1, *shape), maxshape=(None, *shape)
            )
            for number in numbers:
                values[number] = make(number)


def _write_pack(path: Path, numbers: range, store: str) -> None:
    from packer import create

    fields = {"image": f"uint8[{SIDE},{SIDE},3]", "action": "float32[2]"}
    options: dict[str, Any] = {"store": store} | ({"quality": QUALITY} if store == "jpeg" else {})
    with create(path, fields=fields, shuffle=False, **options) as pack:
        for number in numbers:
            pack.write(image=frame(number), action=action(number))


def _write_lance(path: Path, numbers: range) -> None:
    import simplejpeg

    arrow = import_module("pyarrow")
    encode = partial(simplejpeg.encode_jpeg, quality=QUALITY, colorsubsampling="420")
    flat = arrow.array(np.concatenate([action(number) for number in numbers]))
    columns = {
        "pixels": arrow.array([encode(frame(number)) for number in numbers], arrow.binary()),
        "action": arrow.FixedSizeListArray.from_arrays(flat, 2),
    }
    import_module("lance").write_dataset(arrow.table(columns), str(path))


class Chunks:
    """Their HDF5Dataset: a slice of consecutive frames, of which every fifth is kept.

    only: read only the kept frames, one by one. (A strided slice reads no others either, but copies value by
    value.)
    """

    def __init__(self, path: Path, first: Numbers, *, only: bool = False) -> None:
        self._path, self._first, self._only = path, first, only
        self._file: Any = None

    def __len__(self) -> int:
        return len(self._first)

    def __getitem__(self, number: int) -> dict[str, Any]:
        import torch

        if self._file is None:
            self._file = h5py.File(self._path, "r", swmr=True, rdcc_nbytes=256 << 20)
        start, stop = self._first[number], self._first[number] + SPAN
        frames = self._file["pixels"]
        if self._only:
            kept = np.stack([frames[row] for row in range(start, stop, SKIP)])
        else:
            kept = frames[start:stop][::SKIP]
        actions = torch.from_numpy(self._file["action"][start:stop]).reshape(STEPS, -1)
        return {"pixels": torch.from_numpy(kept).permute(0, 3, 1, 2), "action": actions}


class Table:
    """Their LanceDataset: fetches and decodes a batch's frames once, and picks them for each of its samples.

    simplejpeg decodes, as torchvision's decode_jpeg does for them: both call libjpeg-turbo.
    """

    def __init__(self, path: Path, first: Numbers) -> None:
        self._path, self._first = str(path), first
        self._table: Any = None

    def __len__(self) -> int:
        return len(self._first)

    def __getitems__(self, numbers: list[int]) -> list[dict[str, Any]]:
        import simplejpeg
        import torch

        if self._table is None:
            self._table = import_module("lance").dataset(self._path)
        wanted = self._first[numbers][:, None] + np.arange(SPAN)
        rows, places = np.unique(wanted, return_inverse=True)
        found = self._table.take(rows.tolist()).combine_chunks()
        frames = torch.stack(
            [torch.from_numpy(simplejpeg.decode_jpeg(jpeg)) for jpeg in found["pixels"].to_pylist()]
        ).permute(0, 3, 1, 2)
        actions = torch.from_numpy(found["action"].chunk(0).flatten().to_numpy().reshape(-1, 2).copy())
        return [
            {"pixels": frames[at[::SKIP]], "action": actions[at].reshape(STEPS, -1)}
            for at in places.reshape(len(numbers), SPAN)
        ]


class Packed:
    """Windows from a pack: reads only the kept frames, a batch at once.

    once: read shared frames once, which pays where they have to be decoded.
    """

    def __init__(self, path: Path, first: Numbers, *, once: bool) -> None:
        from packer import PackedDataset

        self._first, self._once = first, once
        self._frames, self._actions = (PackedDataset(path, fields=[name]) for name in ("image", "action"))

    def __len__(self) -> int:
        return len(self._first)

    def __getitem__(self, numbers: list[int]) -> dict[str, Any]:
        import torch

        first = self._first[numbers][:, None]
        kept = (first + np.arange(0, SPAN, SKIP)).reshape(-1)
        if self._once:
            rows, places = np.unique(kept, return_inverse=True)
            frames = self._frames[rows].image[torch.from_numpy(places)]
        else:
            frames = self._frames[kept].image
        actions = self._actions[(first + np.arange(SPAN)).reshape(-1)].action
        return {
            "pixels": frames.unflatten(0, (-1, STEPS)),
            "action": actions.reshape(len(numbers), STEPS, -1),
        }


class Windowed:
    """Windows from a pack by ``window=``: one dataset for the frames, one for the actions, as they differ."""

    def __init__(self, path: Path, first: Numbers) -> None:
        from packer import PackedDataset, Windows

        self._first = first
        self._frames = PackedDataset(path, fields=["image"], window=Windows(STEPS, dilation=SKIP))
        self._actions = PackedDataset(path, fields=["action"], window=Windows(SPAN))

    def __len__(self) -> int:
        return len(self._first)

    def __getitem__(self, numbers: list[int]) -> dict[str, Any]:
        first = self._first[numbers]  # a window begins at every row
        actions = self._actions[first].action
        return {"pixels": self._frames[first].image, "action": actions.reshape(len(first), STEPS, -1)}


def _spread(batch: dict[str, Any]) -> Rows:
    """Return a batch and the first frames of its samples, according to their actions."""
    return batch, batch["action"][:, 0, 0].numpy().astype(np.int64)


def _sampled(
    make: Callable[[Path, Numbers], Any], shuffle: bool, start: str = "fork"
) -> Callable[[Path, int], Epochs]:
    """Return a lane whose samples torch's DataLoader collates."""

    def opened(store: Path, workers: int) -> Epochs:
        first = starts(_frames(store))
        order = Order(len(first), shuffle=shuffle)
        return loaded(
            make(store, first), order, first, _spread, workers, start, batch_size=BATCH, sampler=order
        )

    return opened


def _batched(make: Callable[[Path, Numbers], Any], shuffle: bool) -> Callable[[Path, int], Epochs]:
    """Return a lane of packer that reads a batch at once."""

    def opened(store: Path, workers: int) -> Epochs:
        from torch.utils.data import BatchSampler

        first = starts(_frames(store))
        order = Order(len(first), shuffle=shuffle)
        batches: Any = BatchSampler(order, BATCH, drop_last=False)
        return loaded(make(store, first), order, first, _spread, workers, batch_size=None, sampler=batches)

    return opened


def _frames(store: Path) -> int:
    """Return the number of frames in each store."""
    with h5py.File(store.parent / H5) as file:
        return len(file["action"])


def compare(work: Path) -> Callable[[dict[str, Any], Numbers], None]:
    """Return a function that compares a batch's samples with the scene; JPEGs by PSNR."""

    def compared(batch: dict[str, Any], numbers: Numbers) -> None:
        for pixels, actions, first in zip(batch["pixels"], batch["action"], numbers.tolist(), strict=True):
            wanted = np.concatenate([action(first + i) for i in range(SPAN)]).reshape(STEPS, -1)
            if not np.array_equal(actions.numpy(), wanted):
                raise ValueError(f"the actions of the sample that begins at frame {first} are others")
            for i, image in enumerate(pixels.permute(0, 2, 3, 1).numpy()):
                if psnr(image, frame(first + i * SKIP)) < LEAST_DB:
                    raise ValueError(f"frame {i} of the sample that begins at frame {first} is another")

    return compared


def _lanes() -> dict[str, Lane]:
    found: dict[str, Lane] = {}
    both = (0, 2)
    for order, shuffle in (("in order", False), ("shuffled", True)):
        found |= {
            f"h5py, {order}": Lane(_sampled(Chunks, shuffle), H5, workers=both),
            f"h5py, four reads, {order}": Lane(
                _sampled(partial(Chunks, only=True), shuffle), H5, workers=both
            ),
            f"Lance, {order}": Lane(_sampled(Table, shuffle, "spawn"), LANCE, ("lance",), both),
            f"packer, JPEG, {order}": Lane(_batched(partial(Packed, once=True), shuffle), JPEG, workers=both),
            f"packer, raw, {order}": Lane(_batched(partial(Packed, once=False), shuffle), RAW, workers=both),
            f"packer, window=, JPEG, {order}": Lane(_batched(Windowed, shuffle), JPEG, workers=both),
            f"packer, window=, raw, {order}": Lane(_batched(Windowed, shuffle), RAW, workers=both),
        }
    return found


COMPLAINT = Complaint(
    "windows of 4 frames of 224 px, every fifth of 20, batches of 64",
    write,
    compare,
    _lanes(),
    rows=4000,
    samples=640,
    packages=("h5py", "pylance", "simplejpeg"),
)
