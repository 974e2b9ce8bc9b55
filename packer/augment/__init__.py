"""Augmentation of whole batches, on whichever device they are, with torchvision.transforms.v2's names and meanings.

    pipeline.py          Pipeline: draw for rows, apply to images, masks, boxes, keypoints and labels
    draw_steps.py        RandomApply, RandomChoice; the transforms as a pipeline draws for them
    pass_stages.py       parts of transforms joined to as few stages as keep their meaning, and the numbers that stages need
    annotations.py       masks, boxes, keypoints and labels moved as the images are
    kinds.py             Transform, the kinds of transforms, and Draws: random numbers keyed by seed, epoch and row
    placement.py         where results lie in their sources: one affine matrix a sample; images that differ in size in one memory
    geometric.py         flips, crops, resizes, padding, rotations and affine maps
    color.py             jitter, greyscale, solarize, posterize, invert, ToDtype, Normalize, RandomErasing, Cutout
    filters.py           sharpness, autocontrast, equalize, blur, and a user's own transform
    mixing.py            MixUp, CutMix
    policies.py          TrivialAugmentWide, RandAugment
    validation.py        parameters of transforms, and checks of draws and images
    transform_text.py    transforms from a text
    passes/              one pass over a batch: in torch, in C, in Triton

Start with pipeline.py. Imports: randomness.
"""

from __future__ import annotations

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
