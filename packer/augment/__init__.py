"""Augmentation of whole batches as tensors, on whichever device they are; read pipeline.py first.

Names and meanings are torchvision.transforms.v2's. This folder imports torch and packer's errors and
randomness, nothing else of packer.
"""

from __future__ import annotations

from packer.augment.color import Normalize
from packer.augment.geometry import RandomCrop, RandomHorizontalFlip
from packer.augment.pipeline import Pipeline, Transform

__all__ = ["Normalize", "Pipeline", "RandomCrop", "RandomHorizontalFlip", "Transform"]
