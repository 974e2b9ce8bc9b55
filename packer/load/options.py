"""What the arguments of PackedBatchDataset mean; each wrong one is an error with its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.header import Field
from packer.format.pack import Pack
from packer.load.places.placement import available_memory, choose, remote_file_system
from packer.load.places.resident import present, size_of
from packer.orders.auto import parse
from packer.orders.order import Context, Order
from packer.orders.subset import Subset
from packer.orders.topology import ENDS
from packer.read.reader import Reader
from packer.read.selection import read_column

if TYPE_CHECKING:
    import torch

OUTPUTS = ("torch", "numpy")


def check_counts(**counts: int) -> None:
    """Whole numbers, all at least 1 but for prefetch."""
    for name, value in counts.items():
        least = 0 if name == "prefetch" else 1
        if not isinstance(value, int) or value < least:
            raise UsageError(f"{name}={value!r}: is not a whole number of at least {least}.")


def check_output(output: str, device: str | torch.device) -> tuple[str, str]:
    """The output and the device's name."""
    if output not in OUTPUTS:
        raise UsageError(f"output={output!r}: is not one of 'torch', 'numpy'. Pass one of them.")
    if output == "numpy" and str(device) != "cpu":
        raise UsageError(
            f"output='numpy': device is {str(device)!r}; NumPy arrays live on 'cpu'. Pass output='torch'."
        )
    return output, str(device)


def check_verify(verify: str | None) -> bool:
    """Whether blocks are compared with their checksums."""
    if verify not in (None, "blocks"):
        raise UsageError(f"verify={verify!r}: is neither None nor 'blocks'. Pass one of them.")
    return verify is not None


def parse_ends(ends: str | None, drop_last: bool) -> str:
    """What becomes of the last rows: one of ENDS."""
    if ends is None:
        return "drop" if drop_last else "uneven"
    if ends not in ENDS:
        raise UsageError(f"ends={ends!r}: is not one of {', '.join(map(repr, ENDS))}. Pass one of them.")
    if drop_last and ends != "drop":
        raise UsageError(f"drop_last=True with ends={ends!r}: they contradict each other. Pass one of them.")
    return ends


def parse_order(
    order: str | Order | None, shuffle: bool, reader: Reader, subset: Subset, global_batch: int
) -> tuple[Order, str]:
    """The order, with everything filled in that it leaves to the pack, and why it was chosen if it was."""
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

    about = Context(
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
    return parse(order, shuffle, about)


def parse_placement(
    placement: str, device: str, reader: Reader, fields: Sequence[Field], subset: Subset
) -> tuple[str, str]:
    """Where rows are kept, and why."""
    return choose(
        placement,
        device=device,
        nbytes=size_of(fields, subset.rows),
        decoded=any(f.codec for f in reader.fields),
        path=reader.pack.path,
        present=present(reader, fields, subset),
    )


def parse_augment(augment: Sequence[Any] | None, output: str, pack: Pack, names: Sequence[str]) -> Any:
    """A pipeline of the transforms, or None; refuses what cannot work on the pack's images."""
    if not augment:
        return None
    if output != "torch" or "image" not in names:
        raise UsageError(
            "augment: works on the torch tensors of the field 'image'. Pass output='torch' and fields with 'image'."
        )
    from packer.augment import Pipeline

    pipeline = Pipeline(augment)
    shape = pack.header.field("image").loaded.shape
    if shape is None:
        raise UsageError(
            f"augment: works on images of one size; those of {pack.path} kept their own. Run packer repack with a --size first."
        )
    height, width, channels = shape
    pipeline.output_shape((channels, height, width))  # refuse now what cannot work on these images
    return pipeline
