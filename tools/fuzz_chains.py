"""Run random chains of convert, append, merge, split, repack, export; compare every row after each step.

    python tools/fuzz_chains.py [--count 500] [--seed 0] [--only CASE] [--keep FOLDER]

The pixels of each picture encode the picture and their position, so that every row can be checked without
knowing its
crop: red grows from left to right, green from top to bottom, blue is the picture's number. Masks hold the
number and
the column of the same place; boxes and keypoints are compared with the colours at their places. After each
step the
rows must be exactly those expected: each picture once, in its split, with its key, class, mask, boxes and
keypoints.

A chain is a pure function of the seed and its number. Steps that packer refuses with a UsageError are counted
by sentence, and the chain continues with the previous pack. If a row is wrong, prints the chain's steps and
exits with 1.
"""

from __future__ import annotations

import argparse
import csv
import io
import random
import re
import shutil
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

import packer
from packer.errors import PackerError

CLASSES = ("ant", "bee", "cat 2", "Dog", "éléphant", "x007")
NUMBERS = 40  # pictures that the blue channel distinguishes in JPEG rows
BANDS = 8  # columns that a mask distinguishes
TOLERANCE = {"raw": 0.03, "jpeg": 0.10}  # of a picture's side


class Wrong(Exception):
    """A row differs from the packed picture."""


@dataclass(frozen=True)
class Picture:
    """A picture as it was drawn. box and point: as shares of width and height."""

    number: int
    name: str
    label: str
    split: str | None
    height: int
    width: int
    box: tuple[float, float, float, float]

    def pixels(self) -> NDArray[np.uint8]:
        """Return BGR pixels, uint8 [height, width, 3]."""
        x, y = np.linspace(0, 1, self.width), np.linspace(0, 1, self.height)
        blue = np.full((self.height, self.width), 40 + 5 * self.number)
        red, green = np.broadcast_arrays(40 + 170 * x[None, :], 40 + 170 * y[:, None])
        return np.asarray(np.rint(np.stack([blue, green, red], axis=-1)), np.uint8)

    def mask(self) -> NDArray[np.uint8]:
        """Return the mask, uint8 [height, width]: band of the column, and the number modulo 8."""
        bands = np.minimum(np.arange(self.width) * BANDS // self.width, BANDS - 1)
        mask = np.broadcast_to(bands + BANDS * (self.number % 8), (self.height, self.width))
        return np.asarray(mask, np.uint8)


@dataclass
class State:
    """A pack and its expected content: pictures by number."""

    path: Path
    pictures: dict[int, Picture]
    loss: str = "raw"  # "jpeg" once any step has encoded the rows
    fields: frozenset[str] = frozenset()
    free_splits: bool = False  # packer drew the splits: they are read from the pack once
    base: dict[str, Any] = field(default_factory=dict)


class Chain:
    """A chain of steps in a separate folder."""

    def __init__(self, seed: int, case: int, folder: Path, refused: Counter[str]) -> None:
        self.random = random.Random(f"{seed}/{case}")
        self.folder, self.refused = folder, refused
        self.steps: list[str] = []
        self.names = 0
        self.next = 0
        self.masks = self.random.random() < 0.4
        self.boxed = self.random.random() < 0.4
        self.split_folders = self.random.random() < 0.3
        self.suffix = self.random.choice([".png", ".png", ".jpg"])
        self.classes = self.random.sample(CLASSES, self.random.randint(1, 4))

    def path(self, ending: str = "") -> Path:
        """Return a new name in the folder."""
        self.names += 1
        return self.folder / f"{self.names:02}{ending}"

    def run(self, steps: int) -> None:
        """Convert, then take random steps. Raises Wrong, or packer's errors except UsageError."""
        state = self.convert(*self.draw(self.random.randint(4, 14)))
        for _ in range(steps):
            step = self.random.choice([self.append, self.merge, self.split, self.repack, self.export])
            try:
                state = step(state)
            except packer.PackerError as error:
                if isinstance(error, packer.errors.FormatError):
                    raise
                self.steps.append(f"  refused: {error}")
                self.refused[f"{step.__name__}: {re.sub(r'[^ ]*/[^ ,;:]*|[0-9]+', '…', str(error))}"] += 1

    # --- sources

    def draw(self, count: int, classes: list[str] | None = None) -> tuple[Path, list[Picture]]:
        """Write a folder of new pictures, their masks beside it, and boxes and keypoints as CSV."""
        source = self.path()
        pictures = []
        for _ in range(min(count, NUMBERS - self.next)):
            number, self.next = self.next, self.next + 1
            label = self.random.choice(classes or self.classes)
            split = self.random.choice(["train", "val"]) if self.split_folders else None
            left, top = self.random.uniform(0.05, 0.4), self.random.uniform(0.05, 0.4)
            box = (left, top, left + self.random.uniform(0.3, 0.5), top + self.random.uniform(0.3, 0.5))
            name = "/".join(filter(None, (split, label, f"{number}{self.suffix}")))
            height, width = (self.random.choice([64, 65, 72, 96, 120, 160]) for _ in range(2))
            pictures.append(Picture(number, name, label, split, height, width, box))
        for picture in pictures:
            write(source / picture.name, cv2.imencode(self.suffix, picture.pixels())[1].tobytes())
            if self.masks:
                mask = (Path(f"{source}-mask") / picture.name).with_suffix(".png")
                write(mask, cv2.imencode(".png", picture.mask())[1].tobytes())
        if self.boxed:
            text = io.StringIO()
            rows = csv.writer(text)
            rows.writerow(["file", "label", "xmin", "ymin", "xmax", "ymax", "x1", "y1"])
            for p in pictures:
                scale = (p.width, p.height) * 3
                edges = [v * s for v, s in zip((*p.box, p.box[0], p.box[1]), scale, strict=True)]
                rows.writerow([p.name, p.label, *(f"{v:.3f}" for v in edges)])
            write(Path(f"{source}.csv"), text.getvalue().encode())
        return source, pictures

    def beside(self, source: Path) -> dict[str, Any]:
        """Return the options for the files beside a source."""
        found: dict[str, Any] = {}
        if self.masks:
            found["pairs"] = {"mask": f"{source}-mask"}
        if self.boxed:
            found["labels"] = f"{source}.csv"
        return found

    def labels(self, file: str) -> packer.Labels:
        """Return the labels of the pictures of draw()."""
        return packer.Labels(file, "label", boxes="xmin,ymin,xmax,ymax", keypoints="x1,y1")

    def storing(self) -> dict[str, Any]:
        """Draw how rows are stored."""
        store = self.random.choice(["raw", "raw", "jpeg"])
        found: dict[str, Any] = {"store": store}
        if store == "jpeg":
            found["quality"] = self.random.choice([90, 95])
        elif self.random.random() < 0.3:
            found["store"] = self.random.choice(["zstd", "gzip"])
        if self.random.random() < 0.4:
            found["shards"] = self.random.randint(1, 6)
        elif found["store"] in ("raw", "jpeg") and self.random.random() < 0.4:
            found["format"] = "npy"
        return found

    # --- steps

    def convert(self, source: Path, pictures: list[Picture], **more: Any) -> State:
        """Convert a folder of draw()."""
        storing = self.storing()
        options: dict[str, Any] = {
            "size": self.random.choice([64, 64, 32, "max=80", "min=64", "keep"]),
            "shuffle": self.random.random() < 0.7,
            "seed": self.random.randint(0, 9),
            "workers": self.random.randint(1, 2),
            **storing,
            **self.beside(source),
            **more,
        }
        if options["size"] in (32, 64):
            options["fit"] = self.random.choice(["crop", "pad", "stretch"])
        else:
            options["store"] = "jpeg"
        if self.boxed:
            options["labels"] = self.labels(options["labels"])
        if not self.split_folders and self.random.random() < 0.4:
            options["split"] = self.random.choice(
                ["train=0.7,val=0.3", {"train": 0.5, "val": 0.25, "test": 0.25}]
            )
        if self.split_folders and not self.boxed:
            options["classes"] = sorted({p.label for p in pictures})  # few pictures: train may lack some
        out = self.path(".h5" if "shards" not in options and options.get("format") != "npy" else "")
        self.call(packer.convert_images, source, out, **options)
        lossy = options["store"] == "jpeg" or self.suffix == ".jpg"
        state = State(
            out,
            {p.number: p for p in pictures},
            loss="jpeg" if lossy else "raw",
            fields=frozenset(["mask"] * self.masks + ["boxes", "keypoints"] * self.boxed),
            free_splits="split" in options,
            base=options,
        )
        return self.checked(state)

    def append(self, state: State) -> State:
        """Append new pictures of the same classes."""
        classes = sorted({p.label for p in state.pictures.values()})
        source, pictures = self.draw(self.random.randint(1, 6), classes)
        if not pictures:
            return state
        if not packer.open_pack(state.path).shards:
            shards = self.path()
            self.call(packer.repack, state.path, shards, shards=self.random.randint(2, 9))
            state = replace(state, path=shards)
        drawn = any(p.split for p in state.pictures.values()) and not self.split_folders
        self.call(packer.append_images, state.path, source, **self.beside(source))
        added = {p.number: p for p in pictures}
        return self.checked(replace(state, pictures=state.pictures | added, free_splits=drawn), new=added)

    def merge(self, state: State) -> State:
        """Merge with a pack of new pictures that was converted with the same options."""
        source, pictures = self.draw(self.random.randint(1, 8))
        if not pictures:
            return state
        keep = {k: v for k, v in state.base.items() if k not in ("labels", "pairs", "shards", "format")}
        other = self.path(".h5")
        beside = self.beside(source)
        if self.boxed:
            beside["labels"] = self.labels(beside["labels"])
        self.call(packer.convert_images, source, other, **{**keep, **beside})
        right = self.checked(
            replace(state, path=other, pictures={p.number: p for p in pictures}, free_splits="split" in keep)
        )
        out = self.path(".h5")
        self.call(packer.merge_packs, [state.path, other], out, shuffle=self.random.random() < 0.5, seed=3)
        return self.checked(
            replace(state, path=out, pictures=state.pictures | right.pictures, free_splits=False)
        )

    def split(self, state: State) -> State:
        """Split the pack, check all parts, continue with one of them."""
        shares = self.random.choice(["a=0.5,b=0.5", "train=0.8,val=0.2"])
        folder = self.path()
        folder.mkdir()
        self.call(packer.split_pack, state.path, shares, out=folder, seed=self.random.randint(0, 5))
        left = dict(state.pictures)
        parts = []
        for path in sorted(folder.iterdir()):
            numbers = [row.number for row in rows_of(path)]
            mine = {n: left.pop(n) for n in numbers if n in left}
            if len(mine) != len(numbers):
                raise Wrong(f"{path.name}: holds {numbers}, of which some are elsewhere, too, or unknown")
            parts.append(self.checked(replace(state, path=path, pictures=mine, free_splits=False)))
        if left:
            raise Wrong(f"split: pictures {sorted(left)} are in no part")
        return max(parts, key=lambda part: len(part.pictures))

    def repack(self, state: State) -> State:
        """Store the pack in another way, sometimes smaller."""
        storing = self.storing()
        options = {**storing, "shuffle": self.random.random() < 0.5, "seed": self.random.randint(0, 9)}
        if self.random.random() < 0.3:
            options["size"] = self.random.choice([32, "max=48"])
        image = next(f for f in packer.open_pack(state.path).fields if f.name == "image").loaded
        if image.shape is None and options.get("size") != 32:
            options["store"] = storing["store"] = "jpeg"
        out = self.path(".h5" if "shards" not in options and options.get("format") != "npy" else "")
        self.call(packer.repack, state.path, out, **options)
        loss = "jpeg" if storing["store"] == "jpeg" else state.loss
        base = {**state.base, **storing}
        return self.checked(replace(state, path=out, loss=loss, base=base))

    def export(self, state: State) -> State:
        """Export the pack as files, and convert them."""
        folder = self.path()
        self.call(packer.export_images, state.path, folder)
        options: dict[str, Any] = {}
        source = folder
        if "mask" in state.fields:
            source = folder / "image"
            options["pairs"] = {"mask": folder / "mask"}
        if (folder / "labels.csv").exists():
            columns = (folder / "labels.csv").read_text(encoding="utf-8-sig").splitlines()[0].split(",")
            options["labels"] = packer.Labels(folder / "labels.csv", "label")
            if "boxes" in state.fields:
                options["labels"] = self.labels(str(folder / "labels.csv"))
            if "split" in columns and not self.split_folders:
                options["split"] = packer.Split(column="split")
        pack = packer.open_pack(state.path)
        if pack.header.classes:
            options["classes"] = list(pack.header.classes)
        image = next(f for f in pack.fields if f.name == "image").loaded
        size: Any = "keep" if image.shape is None else tuple(image.shape[:2])
        store = "jpeg" if image.shape is None else "raw"
        out = self.path(".h5")
        self.call(packer.convert_images, source, out, size=size, store=store, **options)
        base = {**state.base, "size": size, "store": store}
        for name in ("quality", "shards", "format", "split", "fit"):
            base.pop(name, None)
        return self.checked(replace(state, path=out, loss="jpeg", base=base))

    def call(self, function: Any, *arguments: Any, **options: Any) -> Any:
        """Call packer, and record the call."""
        words = [*map(repr, map(str, arguments)), *(f"{k}={v!r}" for k, v in options.items())]
        self.steps.append(f"{function.__name__}({', '.join(words)})".replace(str(self.folder), ""))
        return function(*arguments, **options)

    # --- checks

    def checked(self, state: State, new: dict[int, Picture] | None = None) -> State:
        """Compare every row. Returns the state with the splits that packer drew. Raises Wrong."""
        packer.verify_pack(state.path)
        rows = rows_of(state.path)
        numbers = sorted(row.number for row in rows)
        if numbers != sorted(state.pictures):
            raise Wrong(f"{state.path.name}: holds the pictures {numbers}, not {sorted(state.pictures)}")
        pictures = dict(state.pictures)
        for row in rows:
            expected = pictures[row.number]
            drawn = state.free_splits and (new is None or row.number in new)
            if drawn:
                pictures[row.number] = expected = replace(expected, split=row.split)
            try:
                row.compare(expected, state)
            except Wrong as error:
                raise Wrong(f"{state.path.name}, picture {row.number}: {error}") from None
        return replace(state, pictures=pictures, free_splits=False)


@dataclass
class Row:
    """A row as packer.PackedDataset loads it."""

    number: int
    image: NDArray[np.uint8]  # [H, W, 3]
    label: str  # of its box, if it has boxes
    key: str
    split: str | None
    extra: dict[str, NDArray[Any]]

    def compare(self, expected: Picture, state: State) -> None:
        """Raise Wrong unless every field of the row belongs to the picture."""
        cut_off = "boxes" in self.extra and not self.extra["boxes"].size
        if self.label != expected.label and not cut_off:
            raise Wrong(f"has the label {self.label}, not {expected.label}")
        if self.split != expected.split:
            raise Wrong(f"is in the split {self.split}, not {expected.split}")
        if Path(self.key).stem != str(expected.number):
            raise Wrong(f"has the key {self.key}, not {expected.name}")
        if set(state.fields) - set(self.extra):
            raise Wrong(f"has lost {sorted(set(state.fields) - set(self.extra))}")
        x, y, inside = self.places()
        tolerance = TOLERANCE[state.loss] + 2 / min(self.image.shape[:2])
        if "mask" in self.extra:
            self.compare_mask(expected, x, inside, tolerance)
        if "boxes" in self.extra:
            boxes = np.asarray(self.extra["boxes"]).reshape(-1, 4)
            whole = inside.all() and x.min() < 0.05 and x.max() > 0.95 and y.min() < 0.05 and y.max() > 0.95
            if len(boxes) != 1 and (len(boxes) > 1 or whole):
                raise Wrong(f"has {len(boxes)} boxes, not 1")
            if len(boxes):
                self.compare_box(boxes[0], expected.box, x, y, inside, tolerance)
        if "keypoints" in self.extra:
            px, py = np.asarray(self.extra["keypoints"], float).reshape(-1)[:2]
            self.compare_edge("keypoint x", px, expected.box[0], x, inside, tolerance, axis=1)
            self.compare_edge("keypoint y", py, expected.box[1], y, inside, tolerance, axis=0)

    def places(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
        """Return the picture's place (0 to 1) of each column and row, and the pixels that are not padding."""
        pixels = self.image.astype(float)
        inside = pixels[..., 2] > 20  # padding is black
        red = np.where(inside, pixels[..., 0], np.nan)
        green = np.where(inside, pixels[..., 1], np.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # columns of padding alone
            x, y = np.nanmedian(red, axis=0), np.nanmedian(green, axis=1)
        x, y = (x[~np.isnan(x)] - 40) / 170, (y[~np.isnan(y)] - 40) / 170
        if any((np.diff(v[2:-2]) < -0.1).any() or v[0] > v[-1] for v in (x, y)):
            raise Wrong("is turned or torn")
        return x, y, inside

    def compare_mask(
        self, expected: Picture, x: NDArray[Any], inside: NDArray[np.bool_], tolerance: float
    ) -> None:
        """Compare the mask's bands with the columns of the image that they cover."""
        mask = np.asarray(self.extra["mask"])
        mask = mask.reshape(mask.shape[:2]) if mask.shape[-1] == 1 else mask.reshape(mask.shape[-2:])
        if mask.shape != self.image.shape[:2]:
            raise Wrong(f"has a mask of {mask.shape}, an image of {self.image.shape}")
        rows, columns = np.flatnonzero(inside.any(axis=1)), np.flatnonzero(inside.any(axis=0))
        own = mask[rows[len(rows) // 2], columns].astype(int)
        if own.size > 4 and (own[2:-2] // BANDS != expected.number % 8).any():
            raise Wrong(
                f"has the mask of another picture ({sorted(set(own // BANDS))}, not {expected.number % 8})"
            )
        middle = (own % BANDS + 0.5) / BANDS
        off = np.abs(middle - x)[2:-2]
        if off.size and off.max() > 0.5 / BANDS + tolerance:
            raise Wrong(f"has a mask that lies elsewhere than the image, by {off.max():.3f} of its width")

    def compare_box(
        self,
        box: NDArray[Any],
        expected: tuple[float, ...],
        x: NDArray[Any],
        y: NDArray[Any],
        inside: NDArray[np.bool_],
        tolerance: float,
    ) -> None:
        """Compare a box's four edges."""
        for edge, (value, share) in enumerate(zip(box, expected, strict=True)):
            self.compare_edge(
                f"box edge {edge}", value, share, (x, y)[edge % 2], inside, tolerance, axis=1 - edge % 2
            )

    def compare_edge(
        self,
        what: str,
        value: float,
        share: float,
        places: NDArray[Any],
        inside: NDArray[np.bool_],
        tolerance: float,
        *,
        axis: int,
    ) -> None:
        """Compare a coordinate, in pixels of the row, with the place that the colours show there."""
        first = int(np.flatnonzero(inside.any(axis=1 - axis))[0])
        at = value - first - 0.5
        if not 1 <= at <= len(places) - 2 or not places[0] + 0.02 < share < places[-1] - 0.02:
            return  # outside the crop: clipped to its edge
        seen = float(np.interp(at, np.arange(len(places)), places))
        if abs(seen - share) > tolerance:
            raise Wrong(f"{what} is at {seen:.3f} of the picture, not at {share:.3f}")


def rows_of(path: Path) -> list[Row]:
    """Load all rows of a pack. Raises Wrong for a picture without a number."""
    pack = packer.open_pack(path)
    names = [f.name for f in pack.fields]
    dataset = packer.PackedDataset(path, fields=names, split="all" if pack.header.splits else None)
    splits: list[str | None] = [None] * pack.rows
    for name, spans in pack.header.splits.items():
        for a, b in spans:
            splits[a:b] = [name] * (b - a)
    found = []
    for i in range(pack.rows):
        row = dict(zip(names, dataset[i], strict=True))
        image = np.ascontiguousarray(np.asarray(row.pop("image")).transpose(1, 2, 0))
        blue = np.pad(image[..., 2], 1)
        inner = cv2.erode(
            (blue > 20).astype(np.uint8), np.ones((7, 7))
        )  # JPEG mixes colours with the padding's
        number = round((float(np.median(blue[inner > 0])) - 40) / 5)
        labels = np.atleast_1d(row.pop("box_label" if "box_label" in row else "label", []))
        label = ",".join(pack.header.classes[int(v)] if pack.header.classes else str(v) for v in labels)
        extra = {k: np.asarray(v) for k, v in row.items() if k not in ("key", "height", "width")}
        found.append(Row(number, image, label, str(row["key"]), splits[i], extra))
    return found


def write(path: Path, data: bytes) -> None:
    """Write a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def main(argv: list[str] | None = None) -> int:
    """Run the chains. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run only this chain, and print its steps")
    parser.add_argument("--keep", type=Path, help="leave the files of wrong chains in this folder")
    options = parser.parse_args(argv)
    refused: Counter[str] = Counter()
    wrong = steps = 0
    for case in range(options.count) if options.only is None else [options.only]:
        folder = Path(tempfile.mkdtemp(prefix="packer-chain-"))
        chain = Chain(options.seed, case, folder, refused)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                chain.run(options.steps)
        except Exception as error:
            wrong += 1
            what = str(error) if isinstance(error, (Wrong, PackerError)) else traceback.format_exc()
            print(
                f"chain {case}: WRONG: {type(error).__name__}: {what}", *chain.steps, sep="\n    ", flush=True
            )
            if options.keep:
                shutil.copytree(folder, options.keep / str(case), dirs_exist_ok=True)
        if options.only is not None:
            print(*chain.steps, sep="\n")
        steps += len(chain.steps)
        shutil.rmtree(folder)
    for sentence, count in refused.most_common():
        print(f"refused {count:4} x {sentence}")
    print(f"{options.count if options.only is None else 1} chains, {steps} calls: {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
