"""Augmentation of whole batches, on whichever device they are, with torchvision.transforms.v2's names and meanings.

    pipeline.py          Pipeline: draw for rows, apply to images, masks, boxes, keypoints and labels
    draw_steps.py        the transforms as a pipeline draws for them, those within others too
    pass_stages.py       parts of transforms joined to as few stages as keep their meaning, and the numbers that stages need
    ragged_images.py     images that differ in size, in one memory
    annotations.py       masks, boxes, keypoints and labels moved as the images are
    transform.py         Transform, the parts it may consist of, and Draws, random numbers keyed by seed, epoch and row
    placement.py         where results lie in their sources: one affine matrix a sample
    geometric.py         flips, crops, resizes, padding, rotations and affine maps
    color.py             jitter, greyscale, solarize, posterize, invert, ToDtype, Normalize
    filters.py           sharpness, autocontrast, equalize, blur, and a user's own transform
    erasing.py           RandomErasing, Cutout
    mixing.py            MixUp, CutMix
    policies.py          TrivialAugmentWide, RandAugment
    containers.py        RandomApply, RandomChoice
    validation.py        parameters of transforms, and checks of draws and images
    transform_text.py    transforms from a text
    passes/              one pass over a batch: in torch, in C, in Triton

Start with pipeline.py. Imports: randomness.
"""

from __future__ import annotations

from packer.augment.color import (
    ColorJitter,
    Normalize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
    ToDtype,
)
from packer.augment.containers import RandomApply, RandomChoice
from packer.augment.erasing import Cutout, RandomErasing
from packer.augment.filters import GaussianBlur, RandomAdjustSharpness, RandomAutocontrast, RandomEqualize
from packer.augment.geometric import (
    AlternatingHorizontalFlip,
    CenterCrop,
    LetterBox,
    Pad,
    RandomAffine,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
)
from packer.augment.mixing import CutMix, MixUp
from packer.augment.pipeline import Pipeline
from packer.augment.policies import RandAugment, TrivialAugmentWide
from packer.augment.transform import Draws, Transform
from packer.augment.transform_text import parse

__all__ = [
    "AlternatingHorizontalFlip",
    "CenterCrop",
    "ColorJitter",
    "CutMix",
    "Cutout",
    "Draws",
    "GaussianBlur",
    "LetterBox",
    "MixUp",
    "Normalize",
    "Pad",
    "Pipeline",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Resize",
    "ToDtype",
    "Transform",
    "TrivialAugmentWide",
    "parse",
]
