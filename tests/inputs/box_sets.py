"""One dataset of boxes in the layouts of COCO, YOLO and Pascal VOC."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from packer import convert_images, open_pack
from packer.orders.runs import one_run
from packer.packs.pack import Pack
from packer.read.array_store import PackStore

NAMES = ("cat", "dog", "emu")
WIDTH, HEIGHT = 64, 32
SPLITS = {"train": range(5), "val": range(5, 9)}
Box = tuple[str, tuple[float, float, float, float]]


def boxes_of_image(number: int) -> Sequence[Box]:
    """Name, left, top, right and bottom of each box in an image."""
    return (
        [("dog", (4, 8, 20, 24)), ("cat", (0, 0, 64, 32))],
        [],
        [("emu", (1, 2, 33, 30))],
        [("cat", (10, 5, 12, 9))],
    )[number % 4]


def write_picture(path: Path, number: int = 0, size: tuple[int, int] = (HEIGHT, WIDTH)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), np.uint8)
    Image.fromarray(pixels).save(path)


def write_text(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def coco_text(numbers: Sequence[int]) -> str:
    told: dict[str, list[object]] = {"images": [], "annotations": []}
    told["categories"] = [{"id": k, "name": name} for k, name in enumerate(NAMES)]
    for number in numbers:
        image = {"id": number, "file_name": f"{number}.png", "width": WIDTH, "height": HEIGHT}
        told["images"].append(image)
        for name, (left, top, right, bottom) in boxes_of_image(number):
            box = [left, top, right - left, bottom - top]
            entry = {"image_id": number, "category_id": NAMES.index(name), "bbox": box}
            told["annotations"].append({"id": len(told["annotations"]), **entry})
    return json.dumps(told)


def yolo_text(number: int) -> str:
    lines = []
    for name, (left, top, right, bottom) in boxes_of_image(number):
        centre = (left + right) / 2 / WIDTH, (top + bottom) / 2 / HEIGHT
        numbers = *centre, (right - left) / WIDTH, (bottom - top) / HEIGHT
        lines.append(" ".join(map(str, (NAMES.index(name), *numbers))))
    return "\n".join(lines)


def voc_text(number: int, first: int = 1) -> str:
    """first: number of the first pixel."""
    size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>"
    objects = [
        f"<object><name>{name}</name><bndbox><xmin>{left + first}</xmin><ymin>{top + first}</ymin>"
        f"<xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
        for name, (left, top, right, bottom) in boxes_of_image(number)
    ]
    return f"<annotation><filename>{number}.jpg</filename>{size}{''.join(objects)}</annotation>"


def write_coco(root: Path) -> Path:
    for split, numbers in SPLITS.items():
        write_text(root / "annotations" / f"instances_{split}.json", coco_text(numbers))
        for number in numbers:
            write_picture(root / split / f"{number}.png", number)
    return root


def write_yolo(root: Path, form: str = "images/{split}/{name}", description: str | None = "") -> Path:
    """form: path of an image. description: further lines of data.yaml, or None for no such file."""
    for split, numbers in SPLITS.items():
        for number in numbers:
            path = root / form.format(split=split, name=f"{number}.png")
            write_picture(path, number)
            label = Path(str(path).replace("/images/", "/labels/")).with_suffix(".txt")
            write_text(label, yolo_text(number))
    if description is not None:
        folders = {split: form.format(split=split, name="").rstrip("/") for split in SPLITS}
        lines = [f"{split}: {folder}" for split, folder in folders.items()]
        write_text(root / "data.yaml", "\n".join([*lines, f"names: [{', '.join(NAMES)}]", description]))
    return root


def write_voc(root: Path) -> Path:
    for split, numbers in SPLITS.items():
        write_text(root / "ImageSets/Main" / f"{split}.txt", "".join(f"{number}\n" for number in numbers))
        for number in numbers:
            write_picture(root / "JPEGImages" / f"{number}.png", number)
            write_text(root / "Annotations" / f"{number}.xml", voc_text(number))
    return root


def packed(source: Path | str, out: Path, **options: object) -> Pack:
    """Convert a source to 16 x 32 pixels, in the order of its images."""
    given = {"size": (16, 32), "shuffle": False, "overwrite": True, **options}
    convert_images(source, out, **given)  # type: ignore[arg-type]
    return open_pack(out)


def boxes_by_name(pack: Pack) -> dict[str, list[tuple[str, list[float]]]]:
    """File name -> class and corners of each box in the row."""
    reader, run = PackStore(pack, pack.fields), one_run(0, pack.rows)
    boxes, labels = (list(reader.decoded(name, run)) for name in ("boxes", "box_label"))
    reader.close()
    classes: Sequence[str] = pack.header.classes or ()
    return {
        key.rpartition("/")[2]: [
            (classes[label], box.tolist()) for box, label in zip(own, kinds, strict=True)
        ]
        for key, own, kinds in zip(pack.keys(), boxes, labels, strict=True)
    }


def expected_boxes(numbers: Sequence[int] = range(9)) -> Mapping[str, list[tuple[str, list[float]]]]:
    """The boxes of `packed`: half as wide and as high."""
    return {
        f"{number}.png": [(name, [side / 2 for side in box]) for name, box in boxes_of_image(number)]
        for number in numbers
    }
