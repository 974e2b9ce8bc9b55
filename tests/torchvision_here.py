"""Real torchvision for the tests, also where its wheel does not fit the build of torch.

A wheel that was built for CUDA cannot load its compiled operators beside a torch for the CPU, and then fails on import. No
transform needs them, so they are declared here, without a body. Such a torchvision must not lie in the environment itself, since
Lightning imports what it finds there: `make` puts it into a folder beside it, `<environment>/torchvision`, and
what needs it, or cannot be installed with its dependencies (requirements-beside.txt).
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from packer.load.processes.transforms import PythonTransform

FOLDER = Path(sys.prefix) / "torchvision"
REASON = "needs torchvision and torch (make installs torchvision beside the environment)"
_OPERATORS = ("nms", "qnms")  # that torchvision/_meta_registrations.py gives a form on import
_libraries: list[Any] = []


class TorchvisionTransform(PythonTransform):
    """A PythonTransform whose unpickling, in a process that was spawned, imports this module before torchvision."""


def ready(name: str) -> bool:
    """Import torchvision, then a module that needs it; return False if one is not installed.

    The folder does not stay on the path: what else asks for torchvision finds what it found before.
    """
    if importlib.util.find_spec("torch") is None:
        return False
    sys.path.append(str(FOLDER))
    try:
        packages = ("torchvision", name.partition(".")[0])
        if any(importlib.util.find_spec(package) is None for package in packages):
            return False
        _import()
        importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))
    return True


def _import() -> None:
    import torch

    try:
        importlib.import_module("torchvision.transforms.v2")
    except RuntimeError:  # operator torchvision::nms does not exist
        library = torch.library.Library("torchvision", "DEF")
        for name in _OPERATORS:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _libraries.append(library)
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        importlib.import_module("torchvision.transforms.v2")


READY = ready("torchvision")
