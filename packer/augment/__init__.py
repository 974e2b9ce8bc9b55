"""Augmentation of batches, on the CPU or a GPU, with torchvision.transforms.v2's names and semantics.

    pipeline.py          Pipeline: draws for rows, then transforms images, masks, boxes, keypoints and labels
    batch_fields.py      a batch of a user's own loop: arrays or tensors, with their annotations
    draw_steps.py        RandomApply, RandomChoice; the flat list of a pipeline's transforms
    pass_stages.py       stages: parts of transforms combined to as few passes as possible; their columns
    annotations.py       masks, boxes, keypoints and labels, transformed like the images
    kinds.py             Transform, the kinds of its parts, and Draws: random numbers by seed, epoch and row
    placement.py         positions of results in their sources: an affine matrix for each sample
    geometric.py         flips, crops, resizes, padding, rotations and affine maps
    color.py             jitter, greyscale, solarize, posterize, invert, ToDtype, Normalize, erasing
    filters.py           sharpness, autocontrast, equalize, blur, user-defined transforms
    mixing.py            MixUp, CutMix
    policies.py          TrivialAugmentWide, RandAugment
    validation.py        checks of parameters, draws and images
    transform_text.py    parser of transforms as text
    passes/              implementations of a pass over a batch: in torch, C and Triton

Start with pipeline.py. Imports: randomness.
"""

from __future__ import annotations

from packer.pytorch import import_torch

import_torch("augment")

# ruff: noqa: E402
from packer.augment.color import ColorJitter as ColorJitter
from packer.augment.color import Cutout as Cutout
from packer.augment.color import Normalize as Normalize
from packer.augment.color import RandomErasing as RandomErasing
from packer.augment.color import RandomGrayscale as RandomGrayscale
from packer.augment.color import RandomInvert as RandomInvert
from packer.augment.color import RandomPosterize as RandomPosterize
from packer.augment.color import RandomSolarize as RandomSolarize
from packer.augment.color import ToDtype as ToDtype
from packer.augment.draw_steps import RandomApply as RandomApply
from packer.augment.draw_steps import RandomChoice as RandomChoice
from packer.augment.filters import GaussianBlur as GaussianBlur
from packer.augment.filters import RandomAdjustSharpness as RandomAdjustSharpness
from packer.augment.filters import RandomAutocontrast as RandomAutocontrast
from packer.augment.filters import RandomEqualize as RandomEqualize
from packer.augment.geometric import AlternatingHorizontalFlip as AlternatingHorizontalFlip
from packer.augment.geometric import CenterCrop as CenterCrop
from packer.augment.geometric import LetterBox as LetterBox
from packer.augment.geometric import Pad as Pad
from packer.augment.geometric import RandomAffine as RandomAffine
from packer.augment.geometric import RandomCrop as RandomCrop
from packer.augment.geometric import RandomHorizontalFlip as RandomHorizontalFlip
from packer.augment.geometric import RandomResizedCrop as RandomResizedCrop
from packer.augment.geometric import RandomRotation as RandomRotation
from packer.augment.geometric import RandomVerticalFlip as RandomVerticalFlip
from packer.augment.geometric import Resize as Resize
from packer.augment.kinds import Draws as Draws
from packer.augment.kinds import Transform as Transform
from packer.augment.mixing import CutMix as CutMix
from packer.augment.mixing import MixUp as MixUp
from packer.augment.pipeline import Pipeline as Pipeline
from packer.augment.policies import RandAugment as RandAugment
from packer.augment.policies import TrivialAugmentWide as TrivialAugmentWide
from packer.augment.transform_text import parse as parse

__all__ = [*(name for name in dir() if name[0].isupper()), "parse"]
