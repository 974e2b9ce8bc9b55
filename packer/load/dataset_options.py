"""What the other arguments of the datasets mean: shuffle, output, device, ends; each error names its argument."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packer.errors import UsageError
from packer.load.ranks import local_rank
from packer.orders.epochs import ENDS

if TYPE_CHECKING:
    import torch

OUTPUTS = ("torch", "numpy")


def check_shuffle(shuffle: Any) -> None:
    """Raise UsageError for anything but True and False, such as a seed or an order."""
    if not isinstance(shuffle, bool):
        raise UsageError(
            f"shuffle={shuffle!r}: is neither True nor False. Pass one of them, or order={shuffle!r}."
        )


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
