"""What the other arguments of the datasets mean: output, device, ends, a pack to be filled; each error names its argument."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from packer.errors import FormatError, UsageError
from packer.format.pack import Pack, open_pack
from packer.load.pack_list import PackPaths
from packer.load.ranks import local_rank
from packer.orders.epochs import ENDS

if TYPE_CHECKING:
    import torch

OUTPUTS = ("torch", "numpy")


def check_simple(shuffle: Any, verify: Any, report: Any) -> None:
    """Raise UsageError for values of these arguments that mean nothing."""
    if not isinstance(shuffle, bool):
        raise UsageError(
            f"shuffle={shuffle!r}: is neither True nor False. Pass one of them, or order={shuffle!r}."
        )
    if verify not in (None, "blocks"):
        raise UsageError(f"verify={verify!r}: is neither None nor 'blocks'. Pass one of them.")
    if report is not None and not callable(report):
        raise UsageError(f"report={report!r}: cannot be called with a line. Pass for example print.")


def check_output(output: str, device: str | int | torch.device) -> tuple[str, str]:
    """Return the output and the name of the device.

    A number means a CUDA device, as in torch. "auto" means this process's CUDA device, or "cpu" without one.
    """
    if isinstance(device, int):
        device = f"cuda:{device}"
    if device == "auto":
        device = auto_device() if output == "torch" else "cpu"
    if output not in OUTPUTS:
        raise UsageError(f"output={output!r}: is not one of 'torch', 'numpy'. Pass one of them.")
    if output == "numpy" and str(device) != "cpu":
        raise UsageError(
            f"output='numpy': device is {str(device)!r}; NumPy arrays live on 'cpu'. Pass output='torch'."
        )
    return output, str(device)


def auto_device() -> str:
    """Return the device that "auto" means: "cuda" where torch sees one, else "cpu".

    "cuda" is torch's current device, where a model goes that is moved to "cuda". A process of torchrun that has not chosen one
    would share the first with all others: there it is that of LOCAL_RANK.
    """
    try:
        import torch
    except ImportError:
        return "cpu"  # the dataset says what is missing
    if not torch.cuda.is_available():
        return "cpu"
    local = local_rank() or 0
    chosen = torch.cuda.current_device() != 0 or not 0 < local < torch.cuda.device_count()
    return "cuda" if chosen else f"cuda:{local}"


def parse_ends(ends: str | None, drop_last: bool, *, ordered: bool) -> str:
    """Return one of ENDS. Default: "even", or "uneven" if `ordered`, so that a sequential pass repeats no row."""
    if ends is None:
        return "drop" if drop_last else "uneven" if ordered else "even"
    if ends not in ENDS:
        raise UsageError(f"ends={ends!r}: is not one of {', '.join(map(repr, ENDS))}. Pass one of them.")
    if drop_last and ends != "drop":
        raise UsageError(f"drop_last=True with ends={ends!r}: they contradict each other. Pass one of them.")
    return ends


def parse_filled(
    path: PackPaths,
    cache: str | os.PathLike[str],
    convert: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> tuple[str, str | os.PathLike[str], dict[str, Any]]:
    """Return source, pack and conversion options of a dataset that fills its pack. Raises UsageError."""
    if not isinstance(path, str | os.PathLike | Pack):
        raise UsageError(
            "cache=: is about one source that is to become a pack; a list of packs was given. Leave cache= out, or pass the source alone."
        )
    with suppress(FormatError):
        made = path if isinstance(path, Pack) else open_pack(path)
        raise UsageError(
            f"{made.path}: is a pack already; cache= is about images, or a table, that are to become one. Leave cache= out."
        )
    assert not isinstance(path, Pack)
    if not isinstance(cache, str | os.PathLike):
        raise UsageError(f"cache={cache!r}: is no path. Pass the name of the pack to be made.")
    if convert is not None and not isinstance(convert, Mapping):
        raise UsageError(f"convert={convert!r}: is no mapping. Pass for example convert={{'seed': 1}}.")
    for name in options.keys() & (convert or {}).keys():
        raise UsageError(f"{name}=: is given twice, in convert= too. Leave one out.")
    return os.fspath(path), cache, {**options, **(convert or {})}
