"""Layouts that public data sets document: honest ones pass, and folders that are no classes are told."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from PIL import Image

RNG = np.random.default_rng(0)
Kind = str | tuple[str, tuple[int, int]]


def picture(kind: Kind) -> bytes:
    """Return a PNG of a kind, with a size or 48x40: noise in colour or grey, or a mask of three values."""
    name, (width, height) = (kind, (48, 40)) if isinstance(kind, str) else kind
    colors = np.array([[0, 0, 0], [255, 0, 0], [0, 255, 0]], np.uint8)
    values: np.ndarray = RNG.integers(0, 256, (height, width, 3), np.uint8)
    if name == "gray":
        values = values[:, :, 0]
    if name in ("mask", "colors"):
        values = values[:, :, 0] % 3
    if name == "colors":
        values = colors[values]
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


def n(count: int, digits: int = 0) -> list[str]:
    return [str(number).zfill(digits) for number in range(1, count + 1)]


HONEST: dict[str, Mapping[str, Kind]] = {
    "ImageFolder numbered": {f"{c}/{i}.jpg": "rgb" for c in ("cat", "dog") for i in n(4)},
    "MNIST png": {f"{c}/{i}.png": "gray" for c in range(10) for i in n(4, 5)},
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
    "StanfordCars": {f"cars_train/{i}.jpg": "rgb" for i in n(4, 5)}
    | {f"cars_test/{i}.jpg": "rgb" for i in n(4, 5)},
    "FGVC": {f"data/images/{i}.jpg": "rgb" for i in ("0034309", "1025794", "0555555")},
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
    "dogs-vs-cats train": {f"{c}.{i}.jpg": "rgb" for c in ("cat", "dog") for i in range(4)},
    "airbus": {f"{s}_v2/{i}.jpg": "rgb" for s in ("train", "test") for i in ("0a1", "0b2", "0c3")},
    "omniglot": {
        f"images_{s}/{a}/character{c:02d}/{k}{c}_{i:02d}.png": "gray"
        for k, (s, a) in enumerate(
            (
                ("background", "Greek"),
                ("background", "Latin"),
                ("evaluation", "Tibetan"),
                ("evaluation", "Oriya"),
            )
        )
        for c in (1, 2)
        for i in (1, 2)
    },
    "pix2pix facades AB concat": {f"{s}/{i}.jpg": "rgb" for s in ("train", "val", "test") for i in n(3)},
    "render 360 coil": {f"obj{o}__{a}.png": "rgb" for o in (1, 2, 3) for a in (0, 5, 10)},
    "coil100 folders": {f"obj{o}/obj{o}__{a}.png": "rgb" for o in (1, 2, 3) for a in (0, 5, 10)},
    "CelebA": {f"img_align_celeba/{i}.jpg": "rgb" for i in n(4, 6)},
    "patients": {f"P{p:03d}/{v}_{p}.png": "gray" for p in range(5) for v in ("AP", "LAT")},
}

TOLD: dict[str, tuple[Mapping[str, Kind], str]] = {
    "Caltech101": (
        {
            f"101_ObjectCategories/{c}/image_{i}.jpg": "rgb"
            for c in ("accordion", "airplanes")
            for i in n(4, 4)
        },
        "all images are in 101_ObjectCategories",
    ),
    "cats_dogs kaggle": (
        {f"PetImages/{c}/{i}.jpg": "rgb" for c in ("Cat", "Dog") for i in n(4)},
        "all images are in PetImages",
    ),
    "SUN397": (
        {f"a/abbey/sun_{i}.jpg": "rgb" for i in ("aab", "aac")}
        | {f"b/bakery/sun_{i}.jpg": "rgb" for i in ("aad", "aae")},
        "a holds folders whose names begin with it",
    ),
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
            for i in ("abel", "zoe", "kim")
            for p in ("", "thumbs/")
        },
        "cat/thumbs/catxabel.jpg is called like cat/catxabel.jpg",
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
        "each of its 4 folders holds files of the same names (image.png, mask.png)",
    ),
    "brats": (
        {f"p{c}/{n}.png": "gray" for c in range(4) for n in ("t1", "t2", "flair")}
        | {f"p{c}/seg.png": "mask" for c in range(4)},
        "each of its 4 folders holds files of the same names",
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
    "dogs-vs-cats all": (
        {f"train/{c}.{i}.jpg": "rgb" for c in ("cat", "dog") for i in range(4)}
        | {f"test1/{i}.jpg": "rgb" for i in n(4)},
        "called like splits, but not alike otherwise",
    ),
    "HPA": (
        {
            f"{i}_{c}.png": "gray"
            for i in ("00070df0", "000a6c98", "000a9596")
            for c in ("red", "green", "blue", "yellow")
        },
        "groups of 4 files, such as 00070df0_blue.png",
    ),
    "siim jpeg": (
        {f"jpeg/{s}/ISIC_{i}.jpg": "rgb" for s in ("train", "test") for i in ("0052", "0074")},
        "its folder jpeg holds splits (test, train)",
    ),
    "chess chain": (
        {f"Chessman/Chess/{c}/{i}.jpg": "rgb" for c in ("Bishop", "King") for i in ("ab", "cd")},
        "all images are in Chessman/Chess, so its folders (Bishop, King) would be one class",
    ),
    "places letters": (
        {f"{c[0]}/{c}/{i}.jpg": "rgb" for c in ("airfield", "abbey", "bakery", "beach") for i in n(2, 8)},
        "a holds folders whose names begin with it",
    ),
    "covid radiography": (
        {
            f"{c}/{k}/{c}-{i}.png": ("gray" if k == "images" else "mask")
            for c in ("COVID", "Normal")
            for k in ("images", "masks")
            for i in n(3)
        },
        "COVID and Normal hold the same folders (images, masks)",
    ),
    "DRIVE": (
        {f"training/images/{i}_training.tif": "rgb" for i in (21, 22, 23)}
        | {f"training/1st_manual/{i}_manual1.gif": "mask" for i in (21, 22, 23)}
        | {f"training/mask/{i}_training_mask.gif": "mask" for i in (21, 22, 23)}
        | {f"test/images/{i:02d}_test.tif": "rgb" for i in (1, 2, 3)}
        | {f"test/mask/{i:02d}_test_mask.gif": "mask" for i in (1, 2, 3)},
        "1st_manual and images hold files of equal names",
    ),
    "market1501": (
        {
            f"{d}/{i}_c1s1_{k}.jpg": "rgb"
            for k, d in enumerate(("bounding_box_train", "bounding_box_test", "query"))
            for i in ("0002", "0007")
        },
        "query lies beside them",
    ),
    "inat mini": (
        {
            f"{s}/{c}/{i}{s}.jpg": "rgb"
            for s in ("train_mini", "val")
            for c in ("00000_Animalia", "00001_Plantae")
            for i in ("ab", "cd")
        },
        "called like splits, but not alike otherwise",
    ),
    "fruits360": (
        {
            f"{s}/{c}/{i}_100.jpg": "rgb"
            for s in ("Training", "Test")
            for c in ("Apple", "Banana")
            for i in (3, 7)
        }
        | {f"test-multiple_fruits/{i}.jpg": "rgb" for i in ("apple", "pear")},
        "called like splits",
    ),
    "gtsrb kaggle": (
        {f"Train/{c}/{c:05d}_{i}.png": "rgb" for c in (0, 1) for i in n(2)}
        | {f"Test/{i}.png": "rgb" for i in n(3, 5)}
        | {f"Meta/{i}.png": "rgb" for i in (0, 1)},
        "Meta lies beside them",
    ),
    "asl nested": (
        {f"asl_alphabet_train/asl_alphabet_train/{c}/{c}{i}.jpg": "rgb" for c in "AB" for i in n(2)}
        | {f"asl_alphabet_test/asl_alphabet_test/{c}_test.jpg": "rgb" for c in "AB"},
        "its only folder is called asl_alphabet_train, like a split",
    ),
    "MONAI decathlon png": (
        {
            f"{d}/hippocampus_{i}.png": ("gray" if d != "labelsTr" else "mask")
            for d in ("imagesTr", "labelsTr")
            for i in ("001", "003", "004")
        }
        | {f"imagesTs/hippocampus_{i}.png": "gray" for i in ("002", "005")},
        "imagesTr and labelsTr hold files of equal names",
    ),
    "RAF-DB": (
        {
            f"DATASET/{s}/{c}/{s}_{i:05d}_aligned.jpg": "rgb"
            for s in ("train", "test")
            for c in (1, 2, 3)
            for i in (c * 3, c * 3 + 1)
        },
        "its folder DATASET holds splits",
    ),
    "KITTI stereo": (
        {f"training/image_2/{i}_10.png": "rgb" for i in n(3, 6)}
        | {f"training/image_3/{i}_10.png": "rgb" for i in n(3, 6)}
        | {f"training/disp_occ_0/{i}_10.png": "gray" for i in n(3, 6)},
        "disp_occ_0 and image_2 hold files of equal names",
    ),
    "gopro deblur": (
        {
            f"{s}/{q}/{k}/{i}.png": "rgb"
            for s, q in (("train", "GOPR0372"), ("train", "GOPR0374"), ("test", "GOPR0384"))
            for k in ("blur", "sharp")
            for i in n(3, 6)
        },
        "hold the same folders (blur, sharp)",
    ),
}


@pytest.mark.parametrize("files", HONEST.values(), ids=HONEST)
def test_layouts_that_are_what_they_seem(errors: Callable[..., list[str]], files: Mapping[str, Kind]) -> None:
    assert errors({key: picture(kind) for key, kind in files.items()}) == []


@pytest.mark.parametrize(("files", "reason"), TOLD.values(), ids=TOLD)
def test_layouts_whose_folders_are_no_classes(
    errors: Callable[..., list[str]], files: Mapping[str, Kind], reason: str
) -> None:
    pictures = {key: picture(kind) for key, kind in files.items()}
    assert reason in errors(pictures)[0]
