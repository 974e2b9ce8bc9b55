"""Photos with boxes, cut at random: packer, torchvision v2 in a DataLoader, Ultralytics, the hand-off alone.

    python benchmarks/detection.py photos/ --work WORK --json detection.json
    (pip install torchvision ultralytics; missing lanes are skipped)

WORK gets a set in COCO's layout: the photos enlarged to a long side of 640 px, JPEG of quality 90, with seven
random boxes each, and two packs of it: JPEG as they are (`--size max=640 --store jpeg`) and raw rows of one
size (`--size 576 --fit pad`). All lanes shuffle batches of 16; packer and torchvision apply
`RandomResizedCrop`, a random flip and `Normalize`, with boxes, to float32 [N, 3, SIDE, SIDE]. Ultralytics has
no crop: its loader, mosaic and colours off, scales, shifts, pads and flips, and the loop makes the bytes
float. "hand-off alone" is a DataLoader of samples that are ready in its workers: they only collate.

Before the rounds each lane's boxes of a fixed crop (Ultralytics: of the padded image) are compared with those
computed from the JSON, and an epoch of each lane starts its processes. A round is an epoch of each lane in
turn, and the loop reads a number of each page of a batch, as a copy to the GPU does. The hand-off is the time
from a collated batch to its tensors in the loop, with one worker, so that no batch waits for another's turn;
of packer, from the augmented batch.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any
from unittest.mock import patch

import cv2
import numpy as np
import torch
from lanes import photos
from lanes.origin import origin
from lanes.process import cpu_seconds
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, default_collate

from packer import PackedBatchDataset, convert_images, open_pack
from packer.augment import CenterCrop, Normalize, RandomHorizontalFlip, RandomResizedCrop
from packer.load.augmenting import Augmenter
from packer.machine import cores

MEAN, STD, BATCH, BOXES, CLASSES = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 16, 7, 80
SCALE = (0.3, 1.0)  # area of the crops
SLIVER = 3.5  # pixels: narrower boxes are not compared, as lanes drop them at different widths
APART = 2.0  # pixels by which a box may differ: sides of padded images are rounded, some up
READY = 64  # samples that the lane "hand-off alone" holds
PEERS = ("torchvision", "pillow", "opencv-python-headless", "ultralytics")

Boxes = NDArray[np.float64]
Loop = Iterator[tuple[torch.Tensor, float]]  # the images of a batch, and the seconds of its hand-off


@dataclass(frozen=True)
class Lane:
    """A loader. epoch: its batches, by a number of workers. boxes: of a fixed crop, by photo; None: none."""

    epoch: Callable[[int], Loop]
    boxes: Callable[[], dict[str, Boxes]] | None = None
    letterboxed: bool = False
    cropped: bool = True


@dataclass(frozen=True)
class Scenes:
    """The set of photos with boxes in WORK. side: of the batches; found: photo -> (height, width), boxes."""

    work: Path
    side: int
    found: dict[str, tuple[tuple[int, int], Boxes]]

    @property
    def crop(self) -> int:
        """Side of the fixed crop whose boxes are compared."""
        return self.side // 2

    def expected(self, name: str, lane: Lane) -> Boxes:
        """Return the boxes of a photo's fixed crop, or padded image, by the numbers of the JSON."""
        (height, width), boxes = self.found[name]
        size = np.array([width, height, width, height])
        if lane.letterboxed:
            scaled = np.rint(size * self.side / max(height, width))
            boxes = boxes * scaled / size + (self.side - scaled) // 2
            size = np.full(4, self.side)
        if not lane.cropped:
            return boxes
        return np.clip(boxes - np.rint((size - self.crop) / 2), 0, self.crop)


def make_scenes(source: str, work: Path, count: int, long: int, side: int) -> Scenes:
    """Write photos with random boxes in COCO's and in YOLO's layout."""
    draws = np.random.default_rng(0)
    names = {f"{n}.jpg": path for n, path in enumerate(photos.find(source)[:count])}
    seeds = dict(zip(names, draws.integers(1 << 32, size=len(names)).tolist(), strict=True))
    coco, labels = work / "coco" / "train", work / "yolo" / "labels" / "train"
    for folder in (coco, labels, work / "coco" / "annotations", work / "yolo" / "images"):
        folder.mkdir(parents=True, exist_ok=True)
    link = work / "yolo" / "images" / "train"
    if not link.exists():
        link.symlink_to(coco.resolve(), target_is_directory=True)

    def write(name: str) -> tuple[tuple[int, int], Boxes]:
        pixels: Any = cv2.imread(str(names[name]))
        factor = long / max(pixels.shape[:2])
        pixels = cv2.resize(pixels, None, fx=factor, fy=factor, interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(str(coco / name), pixels, [cv2.IMWRITE_JPEG_QUALITY, 90])
        height, width = pixels.shape[:2]
        own = np.random.default_rng(seeds[name])
        ends = np.sort(own.integers(0, (width, height), (2, BOXES, 2)), axis=0)
        boxes = np.concatenate([ends[0], np.minimum(ends[1] + 8, (width, height))], axis=1)
        fractions = np.stack([boxes[:, :2] + boxes[:, 2:], 2 * (boxes[:, 2:] - boxes[:, :2])], 1) / 2
        rows = (fractions / (width, height)).reshape(BOXES, 4)
        text = "".join(f"{n} {' '.join(map(str, row))}\n" for n, row in enumerate(rows.tolist()))
        labels.joinpath(name).with_suffix(".txt").write_text(text)
        return (height, width), boxes.astype(np.float64)

    with ThreadPoolExecutor(cores()) as pool:
        found = dict(zip(names, pool.map(write, names), strict=True))
    images = [
        {"id": n, "file_name": name, "height": size[0], "width": size[1]}
        for n, (name, (size, _)) in enumerate(found.items())
    ]
    annotations = [
        {
            "id": n * BOXES + k,
            "image_id": n,
            "category_id": k,
            "bbox": [left, top, right - left, bottom - top],
        }
        for n, (_, boxes) in enumerate(found.values())
        for k, (left, top, right, bottom) in enumerate(boxes.tolist())
    ]
    categories = [{"id": n, "name": f"class {n}"} for n in range(CLASSES)]
    whole = {"images": images, "annotations": annotations, "categories": categories}
    (work / "coco" / "annotations" / "instances_train.json").write_text(json.dumps(whole))
    return Scenes(work, side, found)


def packer_lane(scenes: Scenes, pack: Path, *, letterboxed: bool) -> Lane:
    """Return packer's lane."""
    steps = [RandomResizedCrop(scenes.side, scale=SCALE), RandomHorizontalFlip(), Normalize(MEAN, STD)]
    train = PackedBatchDataset(pack, BATCH, shuffle=True, augment=steps, threads=cores())
    made, apply = [0.0], Augmenter.apply

    def stamped(*given: Any) -> Any:
        batch = apply(*given)
        made[0] = perf_counter()
        return batch

    def epoch(_: int) -> Loop:
        with patch.object(Augmenter, "apply", stamped):
            for batch in train:
                yield batch.image, perf_counter() - made[0]

    def boxes() -> dict[str, Boxes]:
        with PackedBatchDataset(pack, BATCH, augment=[CenterCrop(scenes.crop)]) as cut:
            rows = [row.double().numpy() for batch in cut for row in batch.boxes]
        return dict(zip(map(os.path.basename, open_pack(pack).keys()), rows, strict=True))

    return Lane(epoch, boxes, letterboxed)


class Annotated(Dataset[Any]):
    """The photos and boxes as tv_tensors, transformed."""

    def __init__(self, scenes: Scenes, transform: Any) -> None:
        self._folder, self._transform = scenes.work / "coco" / "train", transform
        self._found = list(scenes.found.items())
        self._tensors = import_module("torchvision.tv_tensors")
        self._image = import_module("torchvision.transforms.v2.functional").pil_to_tensor

    def __len__(self) -> int:
        """Return the number of photos."""
        return len(self._found)

    def __getitem__(self, row: int) -> tuple[Any, dict[str, Any]]:
        """Return a photo and its boxes and labels."""
        name, (size, boxes) = self._found[row]
        pixels = self._image(import_module("PIL.Image").open(self._folder / name).convert("RGB"))
        places = self._tensors.BoundingBoxes(torch.from_numpy(boxes).float(), format="XYXY", canvas_size=size)
        given = {"boxes": places, "labels": torch.arange(len(boxes))}
        image, target = self._transform(self._tensors.Image(pixels), given)
        return image, target


def collate(samples: list[tuple[torch.Tensor, Any]]) -> tuple[Any, list[Any], float]:
    """Return the images, stacked in shared memory, the targets, and the time."""
    return default_collate([image for image, _ in samples]), [target for _, target in samples], perf_counter()


def by_dataloader(data: Dataset[Any]) -> Callable[[int], Loop]:
    """Return the epochs of a DataLoader, with persistent workers."""
    made: dict[int, Any] = {}

    def epoch(workers: int) -> Loop:
        if workers not in made:
            made[workers] = DataLoader(
                data, BATCH, shuffle=True, num_workers=workers, collate_fn=collate, persistent_workers=True
            )
        return ((images, perf_counter() - ready) for images, _, ready in made[workers])

    return epoch


def torchvision_lane(scenes: Scenes) -> Lane:
    """Return the lane of torchvision's transforms v2."""
    v2 = import_module("torchvision.transforms.v2")
    end = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD), v2.SanitizeBoundingBoxes()]
    start = [v2.RandomResizedCrop(scenes.side, scale=SCALE), v2.RandomHorizontalFlip()]
    cut = Annotated(scenes, v2.Compose([v2.CenterCrop(scenes.crop), *end]))

    def boxes() -> dict[str, Boxes]:
        return {name: cut[n][1]["boxes"].double().numpy() for n, name in enumerate(scenes.found)}

    return Lane(by_dataloader(Annotated(scenes, v2.Compose([*start, *end]))), boxes)


class Ready(Dataset[Any]):
    """Samples that are ready in memory. As many as there are photos, of which READY differ."""

    def __init__(self, scenes: Scenes) -> None:
        noise = torch.randn(READY, 3, scenes.side, scenes.side)
        labels = {"boxes": torch.zeros(BOXES, 4), "labels": torch.arange(BOXES)}
        self._samples = [(image, {k: v.clone() for k, v in labels.items()}) for image in noise]
        self._count = len(scenes.found)

    def __len__(self) -> int:
        """Return the number of photos."""
        return self._count

    def __getitem__(self, row: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return a sample."""
        return self._samples[row % READY]


def ultralytics_lane(scenes: Scenes) -> Lane:
    """Return the lane of Ultralytics' own loader, without mosaic and changes of colour."""
    data, utils = import_module("ultralytics.data"), import_module("ultralytics.utils")
    utils.LOGGER.setLevel("ERROR")
    options = import_module("ultralytics.cfg").get_cfg(utils.DEFAULT_CFG)
    off: dict[str, Any] = dict.fromkeys(("mosaic", "mixup", "copy_paste", "hsv_h", "hsv_s", "hsv_v"), 0.0)
    for name, value in ({"imgsz": scenes.side, "task": "detect", "augmentations": []} | off).items():
        setattr(options, name, value)
    about = {"names": {n: str(n) for n in range(CLASSES)}, "nc": CLASSES, "channels": 3}
    folder = str(scenes.work.resolve() / "yolo" / "images" / "train")

    def dataset(mode: str) -> Any:
        return data.build_yolo_dataset(options, folder, BATCH, about, mode=mode)

    made: dict[int, Any] = {}

    def epoch(workers: int) -> Loop:
        if workers not in made:
            train = dataset("train")
            joined = train.collate_fn
            train.collate_fn = lambda samples: joined(samples) | {"ready": perf_counter()}
            made[workers] = data.build_dataloader(train, BATCH, workers, pin_memory=False)
        took = ((batch["img"], perf_counter() - batch["ready"]) for batch in made[workers])
        return ((images.float().div_(255), seconds) for images, seconds in took)

    def boxes() -> dict[str, Boxes]:
        found = {}
        for sample in dataset("val"):
            x, y, w, h = (sample["bboxes"].double().numpy() * scenes.side).T
            corners = np.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], 1)
            found[os.path.basename(sample["im_file"])] = corners
        return found

    return Lane(epoch, boxes, letterboxed=True, cropped=False)


def opened_lanes(scenes: Scenes) -> dict[str, Lane]:
    """Write the packs; return the lanes whose packages are installed."""
    lanes = {"hand-off alone": Lane(by_dataloader(Ready(scenes)))}
    if find_spec("torchvision"):
        lanes["torchvision v2"] = torchvision_lane(scenes)
        if find_spec("ultralytics"):
            lanes["Ultralytics"] = ultralytics_lane(scenes)
    long = max(max(size) for size, _ in scenes.found.values())
    whole, rows = scenes.work / "whole.h5", scenes.work / "rows.h5"
    convert_images(scenes.work / "coco", whole, size=f"max={long}", store="jpeg", overwrite=True)
    convert_images(scenes.work / "coco", rows, size=scenes.side, fit="pad", overwrite=True)
    lanes["packer, JPEG"] = packer_lane(scenes, whole, letterboxed=False)
    lanes["packer, rows"] = packer_lane(scenes, rows, letterboxed=True)
    return lanes


def check_boxes(lane: str, boxes: Mapping[str, Boxes], expected: Mapping[str, Boxes]) -> None:
    """Compare a lane's boxes of all photos with the expected ones. Raises SystemExit for a difference."""
    if boxes.keys() != expected.keys():
        raise SystemExit(f"{lane}: {len(boxes)} of {len(expected)} photos came.")
    for name in expected:
        own, wanted = (
            rows[(rows[:, 2:] - rows[:, :2]).min(axis=1) >= SLIVER] for rows in (boxes[name], expected[name])
        )
        if len(own) != len(wanted) or (len(own) and np.abs(own - wanted).max() > APART):
            raise SystemExit(f"{lane}: boxes of {name} are {own.tolist()}, not {wanted.tolist()}.")


def touch(images: torch.Tensor) -> int:
    """Read a number of each page. Returns the number of images."""
    torch.as_strided(images, (images.numel() // 1024,), (1024,)).sum()
    return len(images)


def measure(lanes: Mapping[str, Lane], rows: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return images/s, processor seconds for a million images and ms of a hand-off, of each lane and round."""
    figures = ("images/s", "CPU s a million", "hand-off ms")
    found: dict[str, dict[str, list[float]]] = {name: {lane: [] for lane in lanes} for name in figures}
    for lane in lanes.values():  # starts processes and threads
        sum(touch(images) for images, _ in lane.epoch(cores()))
    for _ in range(rounds):
        for name, lane in lanes.items():
            sleep(0.5)
            began, used = perf_counter(), cpu_seconds()
            count = sum(touch(images) for images, _ in lane.epoch(cores()))
            if count != rows:
                raise SystemExit(f"{name}: {count} of {rows} photos came.")
            found["images/s"][name].append(rows / (perf_counter() - began))
            found["CPU s a million"][name].append((cpu_seconds() - used) / rows * 1e6)
    for name, lane in lanes.items():
        found["hand-off ms"][name] = [median([took for _, took in lane.epoch(1)]) * 1e3]
    return found


def main() -> None:
    """Parse the command line, compare the boxes, measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("photos", help="a folder of JPEGs")
    parser.add_argument("--work", required=True, help="a folder for the set and its packs")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--long", type=int, default=640, help="long side of the photos")
    parser.add_argument("--side", type=int, default=576, help="side of the batches")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="file for results")
    options = parser.parse_args()
    scenes = make_scenes(options.photos, Path(options.work), options.images, options.long, options.side)
    lanes = opened_lanes(scenes)
    for name, lane in lanes.items():
        if lane.boxes is not None:
            check_boxes(name, lane.boxes(), {photo: scenes.expected(photo, lane) for photo in scenes.found})
    found = measure(lanes, len(scenes.found), options.rounds)
    ours = found["images/s"]["packer, JPEG"]
    for name, own in found["images/s"].items():
        ratio = median(a / b for a, b in zip(ours, own, strict=True))
        print(
            f"{name:14} {median(own):7,.0f} images/s ({min(own):,.0f} to {max(own):,.0f}),"
            f" {median(found['CPU s a million'][name]):,.0f} CPU s a million,"
            f" hand-off {found['hand-off ms'][name][0]:.2f} ms; packer, JPEG x{ratio:.2f}"
        )
    given = {name: getattr(options, name) for name in ("images", "long", "side", "rounds")}
    about = origin(PEERS) | given | {"batch": BATCH, "boxes an image": BOXES}
    print(about)
    if options.json:
        Path(options.json).write_text(json.dumps({"conditions": about} | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
