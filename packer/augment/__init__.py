"""Augmentation of whole batches, on whichever device they are; read pipeline.py first.

    pipeline.py    Pipeline: draw for rows, apply to images, masks, boxes, points, labels
    steps.py       a list of transforms -> what is drawn; prepared.py: draws as numbers on the device
    stages.py      parts of transforms -> as few stages as keep their meaning
    follow.py      masks, boxes, points, labels through the stages (boxes.py); incoming.py: images refused

    transform.py   what an operation is, and what parts it may consist of; custom.py: a user's own
    flips.py crops.py resizes.py affine.py    where pixels come from (placement.py: composed)
    color.py tones.py scale.py erase.py       what they become
    blur.py sharpness.py levels.py auto.py    those that look about (chosen.py: some images of a batch changed)
    mix.py apply.py                           images mixed; some images spared
    draws.py       what chance decides; checks.py: what arguments may be
    transform_text.py  transforms from a text; views.py: crops and mirrored images at test time

    passes/        one pass over a batch: in torch, in C, in Triton

Names and meanings are torchvision.transforms.v2's. This folder imports torch and packer's errors and randomness, nothing
else of packer.
"""

from __future__ import annotations

from packer.augment.affine import RandomAffine, RandomRotation
from packer.augment.apply import RandomApply, RandomChoice
from packer.augment.auto import RandAugment, TrivialAugmentWide
from packer.augment.blur import GaussianBlur
from packer.augment.color import ColorJitter, RandomGrayscale
from packer.augment.crops import CenterCrop, RandomCrop
from packer.augment.draws import Draws
from packer.augment.erase import Cutout, RandomErasing
from packer.augment.flips import AlternatingHorizontalFlip, RandomHorizontalFlip, RandomVerticalFlip
from packer.augment.levels import RandomAutocontrast, RandomEqualize
from packer.augment.mix import CutMix, MixUp
from packer.augment.pipeline import Pipeline
from packer.augment.resizes import RandomResizedCrop, Resize
from packer.augment.scale import Normalize, ToDtype
from packer.augment.sharpness import RandomAdjustSharpness
from packer.augment.tones import RandomInvert, RandomPosterize, RandomSolarize
from packer.augment.transform import Transform
from packer.augment.transform_text import parse
from packer.augment.views import FiveCrop, HorizontalFlips, Shifts, TenCrop, averaged

__all__ = [
    "AlternatingHorizontalFlip",
    "CenterCrop",
    "ColorJitter",
    "CutMix",
    "Cutout",
    "Draws",
    "FiveCrop",
    "GaussianBlur",
    "HorizontalFlips",
    "MixUp",
    "Normalize",
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
    "Shifts",
    "TenCrop",
    "ToDtype",
    "Transform",
    "TrivialAugmentWide",
    "averaged",
    "parse",
]
