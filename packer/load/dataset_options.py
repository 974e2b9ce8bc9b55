"""Checks of the arguments of PackedBatchDataset; an error names the argument that is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.header import Field
from packer.format.pack import Pack
from packer.load.caches.cache_placement import available_memory, choose, remote_file_system, size_of
from packer.load.caches.memory_cache import present
from packer.load.ranks import local_rank
from packer.orders.epochs import ENDS, Context
from packer.orders.runs import Subset
from packer.read.row_reader import RowReader
from packer.read.row_selection import read_column

if TYPE_CHECKING:
    import torch

OUTPUTS = ("torch", "numpy")
_WRITTEN = 60  # letters of an argument that a description shows


def check_report(report: Any) -> Any:
    """Return `report` if it is callable or None. Raises UsageError."""
    if report is not None and not callable(report):
        raise UsageError(f"report={report!r}: cannot be called with a line. Pass for example print.")
    return report


def check_shuffle(shuffle: Any) -> None:
    """Raise UsageError unless `shuffle` is True or False."""
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


def describe_rows(**given: Any) -> str:
    """Return the arguments that choose rows as text, long ones shortened."""
    said = []
    for name, value in given.items():
        if value is not None:
            short = isinstance(value, str | int | slice | range) or (
                isinstance(value, list | tuple) and len(value) <= _WRITTEN
            )
            text = repr(value) if short else "..."
            said.append(f"{name}={text if len(text) <= _WRITTEN else '...'}")
    return ", ".join(said)


def describe(name: str, pack: Pack, fields: Sequence[Field], rows: int, choice: str, **lines: str) -> str:
    """Return the repr of a dataset: its name and pack, then one line for each property."""
    shapes = ", ".join(
        f"{f.name} {'of any length' if f.ragged else np.dtype(f.dtype)}{list(f.shape) if f.shape else ''}"
        for f in fields
    )
    of = f"{rows:,}" if rows == pack.rows else f"{rows:,} of {pack.rows:,}"
    told = {"rows": f"{of} ({choice})" if choice else of, "fields": shapes, **lines}
    return "\n".join([f"{name} of {pack.path}", *(f"    {key}: {text}" for key, text in told.items())])


def check_verify(verify: str | None) -> bool:
    """Return True if `verify` asks for block checksums. Raises UsageError."""
    if verify not in (None, "blocks"):
        raise UsageError(f"verify={verify!r}: is neither None nor 'blocks'. Pass one of them.")
    return verify is not None


def parse_ends(ends: str | None, drop_last: bool, *, ordered: bool) -> str:
    """Return one of ENDS. Default: "even", or "uneven" if `ordered`, so that a sequential pass repeats no row."""
    if ends is None:
        return "drop" if drop_last else "uneven" if ordered else "even"
    if ends not in ENDS:
        raise UsageError(f"ends={ends!r}: is not one of {', '.join(map(repr, ENDS))}. Pass one of them.")
    if drop_last and ends != "drop":
        raise UsageError(f"drop_last=True with ends={ends!r}: they contradict each other. Pass one of them.")
    return ends


def context(reader: RowReader, subset: Subset, global_batch: int) -> Context:
    """Return the properties of the pack and the machine that an order is bound to."""
    pack, fields = reader.pack, reader.fields
    stored = sum(
        extent.nbytes
        for part in pack.parts
        for f in fields
        for name in f.arrays
        for extent in part.header.extents[name]
    )

    def labels(name: str) -> NDArray[np.int64]:
        found = next((f for f in pack.fields if f.name == name), None)
        if found is None or found.shape != () or np.dtype(found.dtype).kind not in "iu":
            raise UsageError(
                f"{pack.path}: has no field {name!r} of one whole number a row. Pass another field."
            )
        return read_column(pack, name, subset).astype(np.int64)

    return Context(
        n=subset.rows,
        row_bytes=stored // max(1, pack.rows),
        block_rows=pack.header.block_rows,
        global_batch=global_batch,
        labels=labels,
        pack_rows=pack.rows,
        place=subset.place,
        shuffled=pack.header.seed is not None,
        coded=any(f.compressed for f in fields),
        medium="network" if remote_file_system(pack.path) else "disk",
        memory_bytes=available_memory(),
    )


def parse_placement(
    placement: str, device: str, reader: RowReader, fields: Sequence[Field], subset: Subset, transformed: bool
) -> tuple[str, str]:
    """Return the placement and the reason for it. Raises UsageError."""
    if transformed:
        if placement not in ("auto", "disk"):
            raise UsageError(
                f"placement={placement!r} with transform: processes read the rows from the disk. Pass placement='disk'."
            )
        return "disk", "a Python transform's processes read the rows themselves"
    return choose(
        placement,
        device=device,
        nbytes=size_of(fields, subset.rows),
        decoded=any(f.codec for f in reader.fields),
        path=reader.pack.path,
        present=placement != "disk" and present(reader, fields, subset),
    )
