"""bench: images decoded at every epoch, beside the pack made from them, beside what the machine can do.

All ways run in turn, round after round, and ratios are taken within a round: a machine that slows down meanwhile
slows down both sides. Each of our rates has its own measurement of the limit right before it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.augment import RandomCrop, RandomHorizontalFlip, Transform
from packer.bench import page_cache_drop
from packer.bench.bench_report import ImageBenchReport
from packer.bench.hardware_limits import read_rate
from packer.bench.image_comparison import check_same, source_indices
from packer.bench.image_lanes import Hdf5Items, RawImages
from packer.bench.lanes import ORDERS, BenchRun, Lane, pack_files
from packer.errors import PackerError, UsageError
from packer.format.pack import Pack, open_pack
from packer.inputs.coco_annotations import read_labels
from packer.inputs.file_names import on_disk
from packer.inputs.image_sources import open_source
from packer.inputs.image_targets import OPTIONS, ImageTargets
from packer.inputs.opened_source import ImageSource
from packer.pixels.decode_resize import DecodeResize, PixelSpec, decoder_versions
from packer.starting import cores, memory

SAMPLED_IMAGES = 20_000  # read at most, evenly spread: so a huge folder takes no longer
HELD_IMAGES = 256  # decoded again and again, to see what decoding alone takes
FEW_PAGES = 0.1  # the kernel may keep a few pages that it is busy with (6 % seen right after writing)


def bench(
    images: str | os.PathLike[str],
    pack: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str] | None = None,
    batch_size: int = 256,
    rounds: int = 3,
    seconds: float = 1.0,
    workers: Sequence[int] | None = None,
    cold: bool = True,
    progress: Callable[[str], None] | None = None,
    script: str | None = None,
    model_rate: float | None = None,
) -> ImageBenchReport:
    """Measure how fast batches come from images, from their pack, and at most.

    images: what the pack was made from, of which about SAMPLED_IMAGES are read; pack: raw pixels, .h5 or directory.
    labels: the CSV of labels that it was made with, if it was.
    batch_size: rows a batch, fewer if that would not give four batches.
    seconds: of each measurement; rounds: how many measurements of each way.
    workers: of the DataLoader, each tried, the best reported; default 0, 1, 2, 4, … up to the cores.
    cold: also with an empty page cache. progress: called with what is measured next.
    script: of the user's, with its arguments: its training loop is measured, too; model_rate: rows/s of a model, if that is known.

    Raises UsageError (a number is out of range), FormatError (no pack), SourceError (no images), PackerError (the
    images are not those of the pack). Ends every worker process and thread that it started.
    """
    run = BenchRun(pack, batch_size, rounds, seconds, workers, progress, script, model_rate)
    opened = run.pack
    _check_source(images, opened)
    if "image" not in {f.name for f in opened.fields if not f.ragged and f.codec is None}:
        raise UsageError(
            f"{opened.path}: has no field 'image' of raw pixels; bench compares those. Pass another pack."
        )
    options, classes = opened.header.provenance.get("options", {}), opened.header.classes
    with (
        open_source(
            images,
            labelled=labels is not None,
            label=next(iter(options.get("label") or ()), None),
            label_as=options.get("label_as", "auto"),
            listed=classes or (),
            skip=True,
        ) as source,
        _one_opencv_thread(),
    ):
        targets = source.targets or ImageTargets(source.labels, source.classes, refused=source.refused)
        if labels is not None:
            chosen = {name: options.get(name) for name in OPTIONS}
            targets = read_labels(os.fspath(labels), source.keys, **chosen, skip=True)
        if classes is not None:
            targets = targets.renumbered(classes, source.name, skip=True)
        source.labels = targets.fixed.get("label")
        if targets.refused and targets.strata is not None:
            source.labels = targets.strata  # no pack has theirs
        run.say("comparing pixels and labels")
        indices = source_indices(source, opened)
        spec = _pixel_spec(opened)
        checked = check_same(source, opened, indices, spec)
        indices = indices[:: max(1, opened.rows // max(SAMPLED_IMAGES, 4 * batch_size))]
        stages = _stage_rates(run, source, indices, spec)
        _measure(run, source, indices, spec, cold)
        conditions = {
            "stages": stages,
            "encoded_bytes": int(source.sizes.sum()),
            "packed_bytes": opened.nbytes,
            "images_sampled": len(indices),
            "rows_compared": checked,
        }
        return run.report(
            ImageBenchReport, decoder_versions(), conditions, images=source.name, shape=spec.shape
        )


def _check_source(images: str | os.PathLike[str], pack: Pack) -> None:
    """Refuse a pack in the place of images. Raises UsageError, for one of other classes naming the first difference."""
    try:
        other = open_pack(images)
    except PackerError:
        return
    pack.check_classes(other)
    raise UsageError(
        f"{other.path}: is a pack; a pack is compared with the images it was made from. Pass those, then the pack."
    )


def _measure(
    run: BenchRun, source: ImageSource, indices: NDArray[np.int64], spec: PixelSpec, cold: bool
) -> None:
    """Measure every section. indices: of the images that are read."""
    images, files = _files(source, indices), pack_files(run.pack)
    if sum(map(os.path.getsize, files + images)) > memory() // 2:
        run.notes.append(
            "warm page cache: images and pack fill more than half of the memory; some reads go to the disk."
        )
    else:
        run.say("reading images and pack into the page cache")
        read_rate(files + images, run.threads, float("inf"))

    raw = RawImages(source, indices, spec)
    raw_name, raw_rate = run.best_loader("images, DataLoader", raw)
    loading = [Lane(raw_name, partial(raw_rate, raw))]
    if run.pack.format == "h5" and not run.pack.shards:
        labels = any(f.name == "label" and f.shape == () for f in run.pack.fields)
        items = Hdf5Items(run.pack.path, run.pack.rows, labels=labels)
        name, rate = run.best_loader("h5py item by item, DataLoader", items)
        loading.append(Lane(name, partial(rate, items)))
    packed = {order: run.packed(order) for order in ORDERS}
    loading += run.packed_lanes(packed, run.copy_limit(run.threads))

    height, width, _ = spec.shape
    transforms: list[Transform] = [
        RandomCrop((height, width), padding=(width // 8, height // 8)),
        RandomHorizontalFlip(),
    ]
    packed["augmented"] = run.packed("slices", augment=transforms)
    training = [
        Lane(raw_name, partial(raw_rate, RawImages(source, indices, spec, augment=True))),
        Lane("packed, slices", partial(packed["augmented"].rate, run.seconds)),
    ]
    threads = units.count(run.threads, "thread")
    run.measure(
        {"warm page cache": loading, "warm, with random crop and flip": training}, f"memcpy, {threads}"
    )
    for loader in packed.values():
        loader.batches.close()  # what is mapped cannot be dropped from the page cache

    if cold and not page_cache_drop.CAN_DROP:
        run.notes.append("cold page cache: this system cannot be asked to empty it; not measured.")
    elif cold and not images:
        run.notes.append(f"cold page cache: {source.name} is read through an unpacked copy; not measured.")
    elif cold:
        page_cache_drop.drop(files)
        if (share := page_cache_drop.resident_share(files[0])) is None or share > FEW_PAGES:
            run.notes.append(
                "cold page cache: the system did not let go of the pack; those rates may be warm ones."
            )
        limit = partial(_cold, files, lambda: read_rate(files, run.threads, run.seconds) / run.row_bytes)
        reading = [Lane(raw_name, partial(_cold, images, partial(raw_rate, raw, epochs=1)))]
        for order in ORDERS[:3]:
            first = partial(_first_epoch, run, order)
            reading.append(Lane(f"packed, {order}", partial(_cold, files, first), limit))
        run.measure({"cold page cache": reading}, f"plain reads, {threads}")


def _stage_rates(
    run: BenchRun, source: ImageSource, indices: NDArray[np.int64], spec: PixelSpec
) -> dict[str, float]:
    """Return images/s of reading and of decoding alone, on all cores, from a warm page cache."""
    run.say("reading alone, decoding alone")
    some = indices[:: -(-len(indices) // HELD_IMAGES)].tolist()
    held = [source.read(index) for index in some]
    made, spaces = DecodeResize(spec), threading.local()

    def decode(encoded: bytes) -> None:
        if not hasattr(spaces, "pixels"):
            spaces.pixels = np.empty(spec.shape, np.uint8)
        made(encoded, spaces.pixels)

    def rate(work: Callable[[Any], object], items: list[Any]) -> float:
        rows, began = 0, time.perf_counter()
        while time.perf_counter() - began < run.seconds:
            deque(pool.map(work, items), maxlen=0)
            rows += len(items)
        return rows / (time.perf_counter() - began)

    with ThreadPoolExecutor(cores()) as pool:
        return {"reading": rate(source.read, some), "decoding": rate(decode, held)}


def _first_epoch(run: BenchRun, order: str) -> float:
    return run.packed(order).first_epoch(run.seconds)


def _cold(files: Sequence[str], measure: Callable[[], float]) -> float:
    page_cache_drop.drop(files)
    return measure()


@contextmanager
def _one_opencv_thread() -> Iterator[None]:
    """Keep OpenCV from starting threads: a process forked while they live can hang, and the workers are parallel."""
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(threads)


def _pixel_spec(pack: Pack) -> PixelSpec:
    """Return how the pack's images were made, from its header."""
    height, width, _ = pack.header.field("image").shape or (0, 0, 0)
    options = pack.header.provenance["options"]
    return PixelSpec((height, width), options["fit"], options["channels"], options["max_pixels"])


def _files(source: ImageSource, indices: NDArray[np.int64]) -> tuple[str, ...]:
    """Return the files that hold some images: one each, or their archive; none if that is compressed whole."""
    if source.folder is not None:
        paths = (os.path.join(source.folder, source.keys[index]) for index in indices.tolist())
        return tuple(os.fsdecode(on_disk(path)) for path in paths)
    return source.files
