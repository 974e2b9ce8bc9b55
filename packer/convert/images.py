"""convert_images: a folder, list or archive of images becomes one pack."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from operator import index
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

import packer
from packer import randomness
from packer.convert.engine import close_holes, pack_images
from packer.convert.pixels import MAX_PIXELS, PixelMaker, PixelSpec, decoder_versions
from packer.convert.sources import Source, open_source
from packer.errors import SourceError, UsageError
from packer.format.header import Field, block_rows
from packer.format.output import check_output, check_space, format_of
from packer.format.writer import FORMATS, PackWriter
from packer.machine import cores

ON_ERROR = ("stop", "skip")
_KEYS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Plan:
    """What a conversion is about to write.

    rows: images; shape: (H, W, C) of each; bytes: of the pack, about; classes: how many, None without class names;
    notes: sentences about the source that a user should see.
    """

    rows: int
    shape: tuple[int, int, int]
    bytes: int
    classes: int | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """What a conversion did.

    rows: images packed; seconds: wall time, flushing included; bytes_read, bytes_written: of inputs and pack;
    skipped: ({"key": ..., "reason": ...}, ...) inputs left out; workers: that decoded.
    """

    out: str
    rows: int
    seconds: float
    bytes_read: int
    bytes_written: int
    workers: int
    skipped: tuple[dict[str, str], ...]

    @property
    def rows_per_second(self) -> float:
        """Images packed a second."""
        return self.rows / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


def convert_images(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    size: int | str | tuple[int, int] = 256,
    any_size: bool = False,
    fit: str = "crop",
    channels: str = "rgb",
    format: str | None = None,
    labels: str | os.PathLike[str] | None = None,
    shuffle: bool = True,
    seed: int = 0,
    workers: int | None = None,
    on_error: str = "stop",
    max_pixels: int = MAX_PIXELS,
    overwrite: bool = False,
    on_plan: Callable[[Plan], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Report:
    """Pack images into one HDF5 file or one directory of .npy files.

    source: a folder with one sub-folder a class, a folder of images, a text list of paths, or a .tar, .tar.gz or
        .zip archive of such a folder (a folder inside it is named by path: ``photos.tar/train``).
    out: ends in .h5 or .hdf5: one HDF5 file; else a directory. format: "h5" or "npy" overrides that.
    size: side, "HxW" or (H, W) in pixels; powers of two unless any_size.
    fit: "crop" (shortest side to the size, centre crop), "pad" or "stretch". channels: "rgb", "gray", "rgba".
    labels: a CSV file of (file, label) rows, where folders do not say.
    shuffle: store the rows in a random order, drawn from seed. Without it a class folder's pack is sorted by class.
    workers: processes (threads where forking is not safe); default: the cores at hand. The result does not
        depend on it.
    on_error: "stop" at the first input that cannot be packed, or "skip" such inputs and list them.
    max_pixels: larger inputs are refused undecoded. overwrite: replace an existing pack.
    on_plan: called once, before anything is written; on_progress: called now and then with the images done so far.

    Equal inputs and options give byte-identical packs. Nothing is left under `out` unless the pack is whole.
    Raises UsageError, SourceError (ImageError's parent), SpaceError, PackerError.
    """
    began = time.perf_counter()
    source, out = os.fspath(source), os.fspath(out)
    seed, max_pixels = _whole("seed", seed), _whole("max_pixels", max_pixels)
    spec = PixelSpec(parse_size(size, any_size=any_size), fit, channels, max_pixels)
    format = _choice("format", format or format_of(out), FORMATS)
    skip = _choice("on_error", on_error, ON_ERROR) == "skip"
    workers = _workers(workers)
    check_output(out, overwrite=overwrite)
    with open_source(source, labels=labels, spool_dir=os.path.dirname(os.path.abspath(out))) as opened:
        fields = _fields(spec, labelled=opened.labels is not None)
        rows = len(opened.keys)
        needed = _pack_bytes(opened, fields)
        check_space(out, needed)
        if on_plan is not None:
            classes = None if opened.classes is None else len(opened.classes)
            on_plan(Plan(rows, spec.shape, needed, classes, tuple(opened.notes)))

        def samples(start: int, stop: int) -> NDArray[np.int64]:
            positions = np.arange(start, stop)
            return (
                randomness.permute(positions, rows, randomness.key(seed, "convert")) if shuffle else positions
            )

        per_block = block_rows(rows, sum(f.row_bytes for f in fields if not f.ragged))
        with PackWriter(
            out, fields=fields, rows=rows, block_rows=per_block, format=format, overwrite=overwrite
        ) as writer:
            outcome = pack_images(
                opened,
                PixelMaker(spec),
                writer,
                samples,
                workers=workers,
                skip=skip,
                progress=on_progress or (lambda done: None),
            )
            reasons, kept = outcome.reasons, rows - len(outcome.reasons)
            if not kept:
                raise SourceError(
                    f"{source}: none of its {rows} images could be packed; the first: {reasons[min(reasons)]}"
                )
            moved = close_holes(writer, sorted(reasons))
            skipped = tuple(
                sorted(
                    (
                        {"key": opened.keys[int(samples(r, r + 1)[0])], "reason": why}
                        for r, why in reasons.items()
                    ),
                    key=lambda s: s["key"],
                )
            )
            header = writer.finish(
                rows=kept,
                ragged={"key": _keys(opened, samples, kept, moved)},
                classes=None if opened.classes is None else tuple(opened.classes),
                seed=seed if shuffle else None,
                statistics={"image": outcome.sums.mean_std()},
                provenance={
                    "options": {
                        "size": list(spec.size),
                        "fit": fit,
                        "channels": channels,
                        "max_pixels": max_pixels,
                        "on_error": on_error,
                    },
                    "versions": {"packer": packer.__version__, **decoder_versions()},
                },
                skipped=skipped,
            )
    written = sum(e.rows * e.row_bytes for extents in header.extents.values() for e in extents)
    return Report(out, kept, time.perf_counter() - began, outcome.bytes_read, written, workers, skipped)


def parse_size(size: int | str | tuple[int, int], *, any_size: bool) -> tuple[int, int]:
    """(height, width) from 256, "256", "128x256" or (128, 256). Raises UsageError."""
    sides: list[int]
    try:
        if isinstance(size, str):
            sides = [int(side) for side in size.lower().split("x")]
        else:
            sides = [index(side) for side in ((size,) if isinstance(size, SupportsIndex) else size)]
        height, width = sides * 2 if len(sides) == 1 else sides
    except (ValueError, TypeError):
        raise UsageError(f"size {size}: is not a number or HxW. Pass for example 256 or 128x256.") from None
    for side in (height, width):
        if side < 1:
            raise UsageError(f"size {size}: {side} is too small; 1 is the least. Pass for example 256.")
        if side & (side - 1) and not any_size:
            below = 1 << (side.bit_length() - 1)
            raise UsageError(
                f"size {size}: {side} is not a power of two; the nearest are {below} and {2 * below}."
                " Pass one of them, or --any-size."
            )
    return height, width


def _fields(spec: PixelSpec, *, labelled: bool) -> list[Field]:
    about = {"layout": "HWC", "color": spec.channels, "fit": spec.fit}
    fields = [Field("image", "|u1", spec.shape, about)]
    if labelled:
        fields.append(Field("label", "<i8", ()))
    return [*fields, Field("key", "|u1", None, {"encoding": "utf-8"})]


def _pack_bytes(source: Source, fields: list[Field]) -> int:
    """Size of the pack to be written: rows, keys, and a little for the description."""
    rows = len(source.keys)
    row_bytes = sum(f.row_bytes for f in fields if not f.ragged)
    keys = sum(map(len, source.keys)) + 8 * (rows + 1)
    blocks = -(-rows // block_rows(rows, row_bytes))
    return rows * row_bytes + keys + 512 * blocks + (1 << 16)


def _keys(
    source: Source, samples: Callable[[int, int], NDArray[np.int64]], kept: int, moved: dict[int, int]
) -> Iterator[bytes]:
    """Each kept row's key, in the order of the rows."""
    for start in range(0, kept, _KEYS_AT_ONCE):
        chosen = samples(start, min(start + _KEYS_AT_ONCE, kept)).tolist()
        for row, sample in enumerate(chosen, start):
            if row in moved:
                sample = int(samples(moved[row], moved[row] + 1)[0])
            yield source.keys[sample].encode("utf-8", "surrogateescape")


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise UsageError(f"{name} {value!r}: is not one of {', '.join(allowed)}. Pass one of them.")
    return value


def _whole(name: str, value: int) -> int:
    """A Python int, of NumPy's too."""
    try:
        return index(value)
    except TypeError:
        raise UsageError(f"{name} {value!r}: is not a whole number. Pass one.") from None


def _workers(workers: int | None) -> int:
    if workers is None:
        return cores()
    if _whole("workers", workers) < 1:
        raise UsageError(f"workers {workers}: is too few; 1 is the least. Pass 1 or more.")
    return workers
