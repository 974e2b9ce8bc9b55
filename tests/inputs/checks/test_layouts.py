"""Layouts that public data sets document: honest ones pass, and folders that are no classes are told."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

RNG = np.random.default_rng(0)
Kind = str | tuple[str, tuple[int, int]]


def picture(kind: Kind) -> bytes:
    """Return a PNG of a kind, with a size or 48x40: noise in colour or grey, or a mask of three values."""
    name, (width, height) = (kind, (48, 40)) if isinstance(kind, str) else kind
    colors = np.array([[0, 0, 0], [255, 0, 0], [0, 255, 0]], np.uint8)
    values = {
        "rgb": lambda: RNG.integers(0, 256, (height, width, 3), np.uint8),
        "gray": lambda: RNG.integers(0, 256, (height, width), np.uint8),
        "mask": lambda: RNG.integers(0, 3, (height, width), np.uint8),
        "colors": lambda: colors[RNG.integers(0, 3, (height, width))],
    }[name]()
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


def n(count: int, digits: int = 0) -> list[str]:
    return [str(number).zfill(digits) for number in range(1, count + 1)]


HONEST: dict[str, dict[str, Kind]] = {
    "ImageFolder numbered": {f"{c}/{i}.jpg": "rgb" for c in ("cat", "dog") for i in n(4)},
    "MNIST png": {f"{c}/{i}.png": "gray" for c in range(10) for i in n(4, 5)},
    "Caltech101": {
        f"101_ObjectCategories/{c}/image_{i}.jpg": "rgb" for c in ("accordion", "airplanes") for i in n(4, 4)
    },
    "Caltech256": {f"{c}/{c[:3]}_{i}.jpg": "rgb" for c in ("001.ak47", "002.american-flag") for i in n(4, 4)},
    "EuroSAT": {f"{c}/{c}_{i}.jpg": "rgb" for c in ("AnnualCrop", "Forest", "River") for i in n(4)},
    "DTD images": {f"{c}/{c}_{i}.jpg": "rgb" for c in ("banded", "blotchy") for i in n(4, 4)},
    "Food101 images": {
        f"{c}/{(i * 7919 + k * 13) % 100000}.jpg": "rgb"
        for k, c in enumerate(("apple_pie", "ramen"))
        for i in range(1, 6)
    },
    "GTSRB train": {f"{c:05d}/{c:05d}_{i}.ppm": "rgb" for c in range(4) for i in n(4, 5)},
    "ORL faces": {f"s{c}/{i}.png": "gray" for c in range(1, 6) for i in n(10)},
    "LFW": {f"{c}/{c}_{i}.jpg": "rgb" for c in ("Aaron_Eckhart", "Bill_Gates") for i in n(2, 4)},
    "ImageNet train": {
        f"train/{c}/{c}_{i}.JPEG": "rgb" for c in ("n01440764", "n01443537") for i in (18, 37, 10)
    }
    | {
        f"val/{c}/ILSVRC2012_val_{i:08d}.JPEG": "rgb"
        for c, r in (("n01440764", (293, 2138)), ("n01443537", (236,)))
        for i in r
    },
    "Imagenette": {
        f"{s}/{c}/{c}_{i}.JPEG": "rgb"
        for s in ("train", "val")
        for c in ("n01440764", "n02102040")
        for i in n(3)
    },
    "Intel scenes": {
        f"seg_{s}/{c}/{i}.jpg": "rgb" for s in ("train", "test") for c in ("sea", "forest") for i in n(3)
    },
    "chest xray": {
        f"{s}/{c}/{c}-{i}.jpeg": "gray"
        for s in ("train", "val", "test")
        for c in ("NORMAL", "PNEUMONIA")
        for i in n(3)
    },
    "flowers102 flat": {f"jpg/image_{i}.jpg": "rgb" for i in n(6, 5)},
    "cats_dogs kaggle": {f"PetImages/{c}/{i}.jpg": "rgb" for c in ("Cat", "Dog") for i in n(4)},
    "StanfordCars": {f"cars_train/{i}.jpg": "rgb" for i in n(4, 5)}
    | {f"cars_test/{i}.jpg": "rgb" for i in n(4, 5)},
    "FGVC": {f"data/images/{i}.jpg": "rgb" for i in ("0034309", "1025794", "0555555")},
    "SUN397": {f"a/abbey/sun_{i}.jpg": "rgb" for i in ("aab", "aac")}
    | {f"b/bakery/sun_{i}.jpg": "rgb" for i in ("aad", "aae")},
    "RenderedSST2": {
        f"{s}/{c}/{i}.png": "gray"
        for s in ("train", "valid", "test")
        for c in ("negative", "positive")
        for i in n(3)
    },
    "PCam": {f"{c}/{i}{c}.tif": "rgb" for c in ("0", "1") for i in ("f38a6374", "c18f2d88", "755db628")},
    "Country211": {
        f"{s}/{c}/{i}.jpg": "rgb"
        for s in ("train", "valid", "test")
        for c in ("AD", "AE")
        for i in ("1", "22", "31")
    },
    "emotions fer": {
        f"{s}/{c}/Training_{i}.jpg": "gray"
        for s in ("train", "test")
        for c in ("angry", "happy")
        for i in (3908, 10118)
    },
    "asl alphabet": {f"{c}/{c}{i}.jpg": "rgb" for c in ("A", "B", "space") for i in n(3)},
    "numbers of one global count": {
        f"class_{c}/{i + c * 4:04d}.jpg": "rgb" for c in range(3) for i in range(4)
    },
    "flat stereo": {f"{i}_{k}.png": "rgb" for i in ("100", "2334", "6399") for k in ("left", "right")},
    "val subset": {f"train/{c}/{i}.jpg": "rgb" for c in ("cat", "dog", "eel") for i in n(3)}
    | {f"val/{c}/{i}.jpg": "rgb" for c in ("cat", "dog") for i in n(2)},
}

TOLD: dict[str, tuple[dict[str, Kind], str]] = {
    "flat masks": (
        {f"{i}{k}.png": ("rgb" if not k else "mask") for i in ("a1", "b2", "c_3") for k in ("", "_mask")},
        "a1_mask.png beside a1.png",
    ),
    "class masks": (
        {
            f"{c}/{c} ({i}){k}.png": ("rgb" if not k else "mask")
            for c in ("benign", "malignant")
            for i in n(3)
            for k in ("", "_mask")
        },
        "benign (1)_mask.png beside",
    ),
    "nnunet": (
        {f"imagesTr/case_{i}_0000.png": "gray" for i in n(4, 3)}
        | {f"labelsTr/case_{i}.png": "mask" for i in n(4, 3)},
        "imagesTr and labelsTr hold",
    ),
    "nnunet+Ts": (
        {f"imagesTr/case_{i}_0000.png": "gray" for i in n(4, 3)}
        | {f"labelsTr/case_{i}.png": "mask" for i in n(4, 3)}
        | {f"imagesTs/case_{i}_0000.png": "gray" for i in ("101", "102")},
        "imagesTr and labelsTr hold",
    ),
    "nnunet 2 modalities": (
        {f"imagesTr/c_{i}_{m}.png": "gray" for i in n(4, 3) for m in ("0000", "0001")}
        | {f"labelsTr/c_{i}.png": "mask" for i in n(4, 3)},
        "imagesTr and labelsTr hold",
    ),
    "human-seg": (
        {f"images/{i}.jpg": "rgb" for i in n(4)} | {f"masks/{i}.png": "mask" for i in n(4)},
        "images and masks hold",
    ),
    "voc-like seg": (
        {f"JPEGImages/2007_{i}.jpg": "rgb" for i in n(4, 6)}
        | {f"SegmentationClass/2007_{i}.png": "mask" for i in n(3, 6)},
        "JPEGImages and SegmentationClass hold",
    ),
    "carvana": (
        {f"train/{i}_01.jpg": "rgb" for i in ("0cd", "1fe", "2aa")}
        | {f"train_masks/{i}_01_mask.gif": "mask" for i in ("0cd", "1fe", "2aa")},
        "train and train_masks hold",
    ),
    "leftright": (
        {f"image_2/{i}.png": "rgb" for i in n(4, 6)} | {f"image_3/{i}.png": "rgb" for i in n(4, 6)},
        "called like parts of one set",
    ),
    "cyclegan": (
        {f"{s}{d}/n{i}.jpg": "rgb" for s in ("train", "test") for d in "AB" for i in n(3)},
        "are called like splits",
    ),
    "pix2pix sized": (
        {
            f"{d}/{i}.png": ("rgb", (30 + 7 * int(i), 40 + 3 * int(i)))
            for d in ("input", "target")
            for i in n(5)
        },
        "input and target hold",
    ),
    "SR": (
        {f"HR/{i}.png": ("rgb", (80 + 8 * int(i), 40 + 4 * int(i))) for i in n(5, 4)}
        | {f"LR/{i}x2.png": ("rgb", (40 + 4 * int(i), 20 + 2 * int(i))) for i in n(5, 4)},
        "HR and LR hold",
    ),
    "folds": (
        {f"fold{f}/{c}/{i}.jpg": "rgb" for f in (1, 2) for c in ("a", "b") for i in n(3)},
        "fold1 and fold2 hold the same folders (a, b)",
    ),
    "domainnet": (
        {
            f"{d}/{c}/{i}.jpg": "rgb"
            for d in ("Art", "Clipart")
            for c in ("Clock", "Bed", "Cup")
            for i in n(3)
        },
        "Art and Clipart hold the same folders",
    ),
    "malaria": (
        {
            f"{p}{c}/{c}{i}.png": "rgb"
            for p in ("", "cell_images/")
            for c in ("Parasitized", "Uninfected")
            for i in ("C1", "C9", "C4")
        },
        "cell_images holds folders called like those beside it",
    ),
    "thumbs top": (
        {f"{c}/{c}_{i}.jpg": "rgb" for c in ("cat", "dog") for i in n(4)}
        | {f"thumbs/{c}_{i}.jpg": "rgb" for c in ("cat", "dog") for i in n(4)},
        "thumbs holds files called like those of cat and dog",
    ),
    "thumbs below": (
        {
            f"{c}/{p}{c}x{i}.jpg": "rgb"
            for c in ("cat", "dog")
            for i in ("ab", "zz", "q")
            for p in ("", "thumbs/")
        },
        "cat/thumbs/catxab.jpg is called like cat/catxab.jpg",
    ),
    "ham parts": (
        {
            f"HAM10000_images_part_{p}/ISIC_{24305 + i + p * 10:07d}.jpg": "rgb"
            for p in (1, 2)
            for i in range(8)
        },
        "called like parts of one set",
    ),
    "samples": (
        {f"case{c}/{n}.png": k for c in range(4) for n, k in (("image", "gray"), ("mask", "mask"))},
        "each of its 4 folders holds the same files (image.png, mask.png)",
    ),
    "brats": (
        {f"p{c}/{n}.png": "gray" for c in range(4) for n in ("t1", "t2", "flair", "seg")},
        "each of its 4 folders holds the same files",
    ),
    "dsb2018": (
        {f"{c}/images/{c}.png": "rgb" for c in ("ab", "cd", "ef")}
        | {f"{c}/masks/{c}{i}.png": "mask" for c in ("ab", "cd", "ef") for i in n(3)},
        "ab and cd hold the same folders (images, masks)",
    ),
    "tiny imagenet": (
        {f"train/{c}/images/{c}_{i}.JPEG": "rgb" for c in ("n01", "n02") for i in n(4)}
        | {f"val/images/val_{i}.JPEG": "rgb" for i in n(4)},
        "split val has 1 class that train lacks: images",
    ),
    "cats": (
        {f"train/{c}/{i}.jpg": "rgb" for c in ("cat", "dog") for i in n(3)}
        | {f"val/{c}/{i}.jpg": "rgb" for c in ("cats", "dog") for i in n(2)},
        "that train lacks: cats (train has cat)",
    ),
    "ILSVRC": (
        {
            f"ILSVRC/Data/CLS-LOC/{s}/{c}/x{i}.JPEG": "rgb"
            for s in ("train", "val")
            for c in ("n1", "n2")
            for i in n(3)
        },
        "its folder ILSVRC/Data/CLS-LOC holds splits (train, val)",
    ),
    "mvtec": (
        {f"bottle/train/good/{i}.png": "rgb" for i in n(3, 3)}
        | {f"bottle/test/{c}/{i}.png": "rgb" for c in ("good", "broken") for i in n(3, 3)}
        | {f"bottle/ground_truth/broken/{i}_mask.png": "mask" for i in n(3, 3)},
        "bottle/train are called like splits, and ground_truth lies beside them",
    ),
    "cityscapes": (
        {f"leftImg8bit/train/aachen/aachen_{i}_leftImg8bit.png": "rgb" for i in n(3, 6)}
        | {f"gtFine/train/aachen/aachen_{i}_gtFine_labelIds.png": "mask" for i in n(3, 6)},
        "gtFine and leftImg8bit hold",
    ),
    "ade20k": (
        {f"images/training/ADE_train_{i}.jpg": "rgb" for i in n(3, 8)}
        | {f"images/validation/ADE_val_{i}.jpg": "rgb" for i in n(3, 8)}
        | {f"annotations/training/ADE_train_{i}.png": "mask" for i in n(3, 8)}
        | {f"annotations/validation/ADE_val_{i}.png": "mask" for i in n(3, 8)},
        "annotations and images hold files",
    ),
    "oxford pets": (
        {f"images/{c}_{i}.jpg": "rgb" for c in ("Abyssinian", "beagle") for i in n(3)}
        | {f"annotations/trimaps/{c}_{i}.png": "mask" for c in ("Abyssinian", "beagle") for i in n(3)},
        "annotations and images hold files",
    ),
    "camvid": (
        {f"{s}/x{i}.png": "rgb" for s in ("train", "val") for i in n(3)}
        | {f"{s}annot/x{i}.png": "mask" for s in ("train", "val") for i in n(3)},
        "trainannot lies beside them",
    ),
    "deepglobe flat": (
        {
            f"{i}_{k}.png": ("rgb" if k == "sat" else "colors")
            for i in ("100", "2334", "6399")
            for k in ("sat", "mask")
        },
        "100_mask.png beside 100_sat.png",
    ),
    "year site": (
        {f"{y}/{m}/IMG_{i}.jpg": "rgb" for y in ("2019", "2020") for m in ("01", "02") for i in n(3)},
        "2019 and 2020 hold the same folders (01, 02)",
    ),
}


@pytest.mark.parametrize("files", HONEST.values(), ids=HONEST)
def test_layouts_that_are_what_they_seem(errors: Callable[..., list[str]], files: dict[str, Kind]) -> None:
    assert errors({key: picture(kind) for key, kind in files.items()}) == []


@pytest.mark.parametrize(("files", "reason"), TOLD.values(), ids=TOLD)
def test_layouts_whose_folders_are_no_classes(
    errors: Callable[..., list[str]], files: dict[str, Kind], reason: str
) -> None:
    pictures = {key: picture(kind) for key, kind in files.items()}
    assert reason in errors(pictures)[0]
