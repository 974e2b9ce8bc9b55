"""bench: images decoded at every epoch, beside the pack made from them, beside what the machine can do.

Images of one size, raw or JPEG, are loaded as they are, and with a random crop and flip. Whole pictures become batches on both sides by
RandomResizedCrop and a random flip.

All ways run in turn, round after round, and ratios are taken within a round: a machine that slows down meanwhile
slows down both sides. Each of our rates has its own measurement of the limit right before it.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.augment import RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Transform
from packer.bench import page_cache_drop
from packer.bench.bench_report import WHOLE_DECODE, ImageBenchReport
from packer.bench.hardware_limits import CopyLimit, DecodeLimit, read_rate
from packer.bench.image_comparison import check_same, image_field, pixel_spec, source_indices
from packer.bench.image_lanes import CroppedImages, Hdf5Items, RawImages
from packer.bench.lanes import ORDERS, BenchRun, Lane, Limit, Packed, pack_files
from packer.errors import PackerError, UsageError
from packer.format.header import Field
from packer.format.pack import Pack, open_pack
from packer.inputs.coco_annotations import read_labels
from packer.inputs.file_names import on_disk
from packer.inputs.image_sources import open_source
from packer.inputs.image_targets import OPTIONS, ImageTargets
from packer.inputs.opened_source import ImageSource
from packer.machine import cores, memory
from packer.opencv import cv2
from packer.orders.runs import Runs
from packer.pixels.decode_resize import PixelSpec, decoder_versions
from packer.pixels.row_size import RowSize
from packer.read.encoded_images import EncodedImages
from packer.read.row_reader import RowReader

SAMPLED_IMAGES = 20_000  # read at most, evenly spread: so a huge folder takes no longer
HELD_IMAGES = 256  # decoded again and again, to see what decoding alone takes
CROP_SIDE = 224  # of whole pictures, or half of them are enlarged by it: then the shorter side of most
MEASURED_PICTURES = 1024  # at most, for that
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

    images: what the pack was made from, of which about SAMPLED_IMAGES are read; pack: raw or JPEG rows of one size, or whole pictures.
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
    image = image_field(opened)
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
        checked = check_same(source, opened, indices)
        spec = pixel_spec(opened, _size_in_batch(opened, image))
        indices = indices[:: max(1, opened.rows // max(SAMPLED_IMAGES, 4 * batch_size))]
        whole = image.own_size is not None
        raw = (CroppedImages if whole else RawImages)(source, indices, spec)
        stages = _stage_rates(run, source, indices, raw)
        (_measure_whole if whole else _measure_one_size)(run, source, indices, spec, cold)
        conditions = {
            "stages": stages,
            "encoded_bytes": int(source.sizes.sum()),
            "packed_bytes": opened.nbytes,
            "images_sampled": len(indices),
            "rows_compared": checked,
        }
        return run.report(
            ImageBenchReport,
            decoder_versions(),
            conditions,
            images=source.name,
            shape=spec.shape,
            stored=_stored(image),
            whole=whole,
            compared=_compared(image, checked, labelled=source.labels is not None),
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


def _measure_one_size(
    run: BenchRun, source: ImageSource, indices: NDArray[np.int64], spec: PixelSpec, cold: bool
) -> None:
    """Measure every section of images of one size. indices: of the images that are read."""
    images, files = _files(source, indices), pack_files(run.pack)
    _fill_page_cache(run, images, files)
    raw = RawImages(source, indices, spec)
    raw_name, raw_rate = run.best_loader("images, DataLoader", raw)
    loading = [Lane(raw_name, partial(raw_rate, raw))]
    encoded = run.pack.header.field("image").codec is not None
    if run.pack.format == "h5" and not run.pack.shards and not encoded:
        labels = any(f.name == "label" and f.shape == () for f in run.pack.fields)
        items = Hdf5Items(run.pack.path, run.pack.rows, labels=labels)
        name, rate = run.best_loader("h5py item by item, DataLoader", items)
        loading.append(Lane(name, partial(rate, items)))
    packed = {order: run.packed(order) for order in ORDERS}
    limit: Limit = (
        DecodeLimit(run.pack, run.batch_size, run.threads) if encoded else run.copy_limit(run.threads)
    )
    loading += run.packed_lanes(packed, limit)

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
        {"warm page cache": loading, "warm, with random crop and flip": training},
        f"{'decode' if encoded else 'memcpy'}, {threads}",
    )
    _close(packed)
    if cold:
        _measure_cold(
            run, "cold page cache", source, images, files, Lane(raw_name, partial(raw_rate, raw, epochs=1))
        )


def _measure_whole(
    run: BenchRun, source: ImageSource, indices: NDArray[np.int64], spec: PixelSpec, cold: bool
) -> None:
    """Measure every section of whole pictures, which both sides cut to the spec's size. indices: of the images that are read."""
    images, files = _files(source, indices), pack_files(run.pack)
    _fill_page_cache(run, images, files)
    raw = CroppedImages(source, indices, spec)
    raw_name, raw_rate = run.best_loader("images, DataLoader", raw)
    options: dict[str, Any] = {
        "augment": [RandomResizedCrop(spec.size), RandomHorizontalFlip()],
        "fields": [f.name for f in run.pack.fields if f.name in ("image", "label")],
    }
    packed = {order: run.packed(order, **options) for order in ORDERS}
    if run.pack.header.field("image").codec is not None:
        limit: Limit = DecodeLimit(run.pack, run.batch_size, run.threads)
        name = WHOLE_DECODE
    else:
        row_bytes = math.prod(spec.shape)
        limit = CopyLimit(run.batch_size * row_bytes, run.pack.rows * row_bytes, run.threads)
        name = "memcpy"
    lanes = [Lane(raw_name, partial(raw_rate, raw)), *run.packed_lanes(packed, limit)]
    what = f"RandomResizedCrop({spec.size[0]}) and flip"
    run.measure({f"warm, {what}": lanes}, f"{name}, {units.count(run.threads, 'thread')}")
    _close(packed)
    if cold:
        first = Lane(raw_name, partial(raw_rate, raw, epochs=1))
        _measure_cold(run, f"cold, {what}", source, images, files, first, **options)


def _fill_page_cache(run: BenchRun, images: Sequence[str], files: Mapping[str, int]) -> None:
    """Read everything once, or note that it does not fit."""
    if sum(map(os.path.getsize, [*files, *images])) > memory() // 2:
        run.notes.append(
            "warm page cache: images and pack fill more than half of the memory; some reads go to the disk."
        )
    else:
        run.say("reading images and pack into the page cache")
        read_rate([*files, *images], run.threads, float("inf"))


def _close(packed: Mapping[str, Packed]) -> None:
    """Close loaders: what is mapped cannot be dropped from the page cache."""
    for loader in packed.values():
        loader.batches.close()


def _measure_cold(
    run: BenchRun,
    title: str,
    source: ImageSource,
    images: Sequence[str],
    files: Mapping[str, int],
    raw: Lane,
    **options: Any,
) -> None:
    """Measure a section with an empty page cache. files: of the pack, and the bytes of rows in each; options: of packer's loader."""
    if not page_cache_drop.CAN_DROP:
        run.notes.append("cold page cache: this system cannot be asked to empty it; not measured.")
        return
    if not images:
        run.notes.append(f"cold page cache: {source.name} is read through an unpacked copy; not measured.")
        return
    names = list(files)
    page_cache_drop.drop(names)
    if (share := page_cache_drop.resident_share(names[0])) is None or share > FEW_PAGES:
        run.notes.append(
            "cold page cache: the system did not let go of the pack; those rates may be warm ones."
        )
    row_bytes = sum(files.values()) / run.pack.rows
    limit = partial(_cold, names, lambda: read_rate(names, run.threads, run.seconds) / row_bytes)
    reading = [Lane(raw.name, partial(_cold, images, raw.measure))]
    for order in ORDERS[:3]:
        first = partial(_first_epoch, run, order, options)
        reading.append(Lane(f"packed, {order}", partial(_cold, names, first), limit))
    run.measure({title: reading}, f"plain reads, {units.count(run.threads, 'thread')}")


def _stage_rates(
    run: BenchRun, source: ImageSource, indices: NDArray[np.int64], images: RawImages
) -> dict[str, float]:
    """Return images/s of reading and of decoding alone, on all cores, from a warm page cache."""
    run.say("reading alone, decoding alone")
    some = indices[:: -(-len(indices) // HELD_IMAGES)].tolist()
    held = [source.read(index) for index in some]

    def rate(work: Callable[[Any], object], items: list[Any]) -> float:
        rows, began = 0, time.perf_counter()
        while time.perf_counter() - began < run.seconds:
            deque(pool.map(work, items), maxlen=0)
            rows += len(items)
        return rows / (time.perf_counter() - began)

    with ThreadPoolExecutor(cores()) as pool:
        return {"reading": rate(source.read, some), "decoding": rate(images.pixels, held)}


def _first_epoch(run: BenchRun, order: str, options: Mapping[str, Any]) -> float:
    return run.packed(order, **options).first_epoch(run.seconds)


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


def _size_in_batch(pack: Pack, image: Field) -> tuple[int, int]:
    """Return (height, width) of images in a batch: their own, or what RandomResizedCrop makes of whole pictures."""
    if image.loaded.shape is not None:
        height, width, _ = image.loaded.shape
        return height, width
    numbers = np.linspace(0, pack.rows - 1, min(pack.rows, MEASURED_PICTURES)).astype(np.int64)
    rows = RowReader(pack, [image]).read_ragged("image", Runs(numbers, np.ones_like(numbers)))
    sizes = EncodedImages(pack, image, rows, numbers.tolist()).sizes
    side = min(CROP_SIDE, int(np.median(sizes.min(axis=1))))
    return side, side


def _stored(image: Field) -> str:
    """Return how a pack's images are stored, in words."""
    kind = "raw" if image.codec is None else "JPEG"
    if image.own_size is None:
        return kind
    return f"{kind}, {RowSize.of_option(image.about.get('size', 'keep')).words}"


def _compared(image: Field, rows: int, *, labelled: bool) -> str:
    """Return what was found equal, in words. rows: how many rows' pixels were compared."""
    made = "decoded and resized" if image.codec is None else "decoded, resized and encoded"
    what = "size and pixels" if image.own_size is not None else "pixels"
    labels = "all labels; " if labelled else ""
    return f"{labels}{what} of {units.count(rows, 'row')}, each equal to its image {made} as packer convert does it"


def _files(source: ImageSource, indices: NDArray[np.int64]) -> tuple[str, ...]:
    """Return the files that hold some images: one each, or their archive; none if that is compressed whole."""
    if source.folder is not None:
        paths = (os.path.join(source.folder, source.keys[index]) for index in indices.tolist())
        return tuple(os.fsdecode(on_disk(path)) for path in paths)
    return source.files
