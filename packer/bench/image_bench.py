"""bench: images decoded at every epoch, beside the pack made from them, beside what the machine can do.

All ways run in turn, round after round, and ratios are taken within a round: a machine that slows down meanwhile
slows down both sides. Each of our rates has its own measurement of the limit right before it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import cv2
import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.augment import RandomCrop, RandomHorizontalFlip, Transform
from packer.bench import page_cache_drop
from packer.bench.bench_report import ImageBenchReport, MeasuredLane
from packer.bench.conditions import check_numbers, machine, versions
from packer.bench.dataloader_rate import best_workers, loader_rate, worker_counts
from packer.bench.h5py_items import Hdf5Items
from packer.bench.hardware_limits import CopyLimit, read_rate
from packer.bench.image_comparison import check_same, source_indices
from packer.bench.lanes import Lane, measured, run_rounds
from packer.bench.packed_lane import ORDERS, Packed, first_epoch, pack_files, row_bytes
from packer.bench.raw_images import RawImages
from packer.errors import PackerError, UsageError
from packer.format.pack import Pack, open_pack
from packer.inputs.file_names import on_disk
from packer.inputs.image_sources import ImageSource, open_source
from packer.inputs.image_targets import OPTIONS, ImageTargets, read_targets
from packer.pixels.decode_resize import PixelSpec, decoder_versions
from packer.starting import cores, memory

SAMPLED_IMAGES = 20_000  # read at most, evenly spread: so a huge folder takes no longer
FEW_PAGES = 0.1  # the kernel may keep a few pages that it is busy with (6 % seen right after writing)


@dataclass(frozen=True)
class _BenchSetting:
    """The inputs of every measurement. indices, files: of the images that are read, and where they lie."""

    source: ImageSource
    pack: Pack
    spec: PixelSpec
    indices: NDArray[np.int64]
    files: tuple[str, ...]
    batch_size: int
    seconds: float
    threads: int


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
) -> ImageBenchReport:
    """Measure how fast batches come from images, from their pack, and at most.

    images: what the pack was made from, of which about SAMPLED_IMAGES are read; pack: raw pixels, .h5 or directory.
    labels: the CSV of labels that it was made with, if it was.
    batch_size: rows a batch, fewer if that would not give four batches.
    seconds: of each measurement; rounds: how many measurements of each way.
    workers: of the DataLoader, each tried, the best reported; default 0, 1, 2, 4, … up to the cores.
    cold: also with an empty page cache. progress: called with what is measured next.

    Raises UsageError (a number is out of range), FormatError (no pack), SourceError (no images), PackerError (the
    images are not those of the pack). Ends every worker process and thread that it started.
    """
    check_numbers(batch_size, rounds, seconds, workers)
    say = progress or (lambda _: None)
    opened = open_pack(pack)
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
            label_as=options.get("label_as", "auto"),
            listed=classes or (),
            skip=True,
        ) as source,
        _one_opencv_thread(),
    ):
        targets = ImageTargets(source.labels, source.classes, refused=source.refused)
        if labels is not None:
            chosen = {name: options.get(name) for name in OPTIONS}
            targets = read_targets(os.fspath(labels), source.keys, **chosen, skip=True)
        if classes is not None:
            targets = targets.renumbered(classes, source.name, skip=True)
        source.labels = targets.fixed.get("label")
        if targets.refused and targets.strata is not None:
            source.labels = targets.strata  # no pack has theirs
        say("comparing pixels and labels")
        indices = source_indices(source, opened)
        spec = _pixel_spec(opened)
        checked = check_same(source, opened, indices, spec)
        step = max(1, opened.rows // max(SAMPLED_IMAGES, 4 * batch_size))
        setting = _BenchSetting(
            source=source,
            pack=opened,
            spec=spec,
            indices=indices[::step],
            files=_files(source, indices[::step]),
            batch_size=max(1, min(batch_size, opened.rows // 4)),
            seconds=seconds,
            threads=min(4, cores()),
        )
        sections, notes = _measure(setting, rounds, sorted(set(workers or worker_counts(cores()))), cold, say)
    return ImageBenchReport(
        images=source.name,
        pack=opened.path,
        rows=opened.rows,
        shape=setting.spec.shape,
        batch_size=setting.batch_size,
        rounds=rounds,
        seconds=seconds,
        sections=sections,
        conditions=_conditions(setting, checked),
        notes=tuple(notes),
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
    setting: _BenchSetting, rounds: int, workers: list[int], cold: bool, say: Callable[[str], None]
) -> tuple[dict[str, tuple[MeasuredLane, ...]], list[str]]:
    """Every section, and what is to be said about them."""
    size, seconds = setting.batch_size, setting.seconds
    warmed = (*pack_files(setting.pack), *setting.files)
    notes = []
    if sum(map(os.path.getsize, warmed)) > memory() // 2:
        notes.append(
            "warm page cache: images and pack fill more than half of the memory; some reads go to the disk."
        )
    else:
        say("reading images and pack into the page cache")
        read_rate(warmed, setting.threads, float("inf"))

    raw = RawImages(setting.source, setting.indices, setting.spec)
    say(f"images, DataLoader with {', '.join(map(str, workers))} workers")
    raw_workers = best_workers(raw, batch_size=size, counts=workers, seconds=seconds)
    raw_name = f"images, DataLoader, {units.count(raw_workers, 'worker')}"
    raw_rate = partial(loader_rate, batch_size=size, workers=raw_workers, seconds=seconds)

    loading = [Lane(raw_name, partial(raw_rate, raw))]
    if setting.pack.format == "h5" and not setting.pack.shards:
        say(f"h5py item by item, DataLoader with {', '.join(map(str, workers))} workers")
        items = Hdf5Items(setting.pack.path, setting.pack.rows, labels=_has_labels(setting.pack))
        count = best_workers(items, batch_size=size, counts=workers, seconds=seconds)
        measure = partial(loader_rate, items, batch_size=size, workers=count, seconds=seconds)
        loading.append(Lane(f"h5py item by item, DataLoader, {units.count(count, 'worker')}", measure))
    nbytes = row_bytes(setting.pack)
    copy = CopyLimit(size * nbytes, setting.pack.rows * nbytes, setting.threads)
    packed_in = partial(Packed, setting.pack, size, threads=setting.threads)
    packed = {order: packed_in(order) for order in ORDERS}
    loading += [
        Lane(f"packed, {order}", partial(loader.rate, seconds), lambda: copy.rate(seconds) * size)
        for order, loader in packed.items()
    ]

    height, width, _ = setting.spec.shape
    transforms: list[Transform] = [
        RandomCrop((height, width), padding=(width // 8, height // 8)),
        RandomHorizontalFlip(),
    ]
    packed["augmented"] = packed_in("slices", augment=transforms)
    augmented = RawImages(setting.source, setting.indices, setting.spec, augment=True)
    training = [
        Lane(raw_name, partial(raw_rate, augmented)),
        Lane("packed, slices", partial(packed["augmented"].rate, seconds)),
    ]
    warm = {"warm page cache": loading, "warm, with random crop and flip": training}
    run_rounds(warm, rounds, say)
    for loader in packed.values():
        loader.batches.close()  # what is mapped cannot be dropped from the page cache
    sections = {
        "warm page cache": measured(loading, f"limit: memcpy, {units.count(setting.threads, 'thread')}"),
        "warm, with random crop and flip": measured(training),
    }

    if cold and not page_cache_drop.CAN_DROP:
        notes.append("cold page cache: this system cannot be asked to empty it; not measured.")
    elif cold and not setting.files:
        notes.append(
            f"cold page cache: {setting.source.name} is read through an unpacked copy; not measured."
        )
    elif cold:
        files = pack_files(setting.pack)
        page_cache_drop.drop(files)
        if (share := page_cache_drop.resident_share(files[0])) is None or share > FEW_PAGES:
            notes.append(
                "cold page cache: the system did not let go of the pack; those rates may be warm ones."
            )
        limit = partial(_cold, files, lambda: read_rate(files, setting.threads, seconds) / nbytes)
        reading = [Lane(raw_name, partial(_cold, setting.files, partial(raw_rate, raw, epochs=1)))]
        reading += [
            Lane(
                f"packed, {order}",
                partial(_cold, files, partial(first_epoch, partial(packed_in, order), seconds)),
                limit,
            )
            for order in ORDERS[:3]
        ]
        run_rounds({"cold page cache": reading}, rounds, say)
        sections["cold page cache"] = measured(
            reading, f"limit: plain reads, {units.count(setting.threads, 'thread')}"
        )
    return sections, notes


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
    archive = source.name
    while not os.path.isfile(archive):
        archive = os.path.dirname(archive)
    return (archive,) if archive.lower().endswith((".tar", ".zip")) else ()


def _has_labels(pack: Pack) -> bool:
    return any(f.name == "label" and f.shape == () for f in pack.fields)


def _conditions(setting: _BenchSetting, checked: int) -> dict[str, object]:
    """Return the conditions that a reader needs to judge the numbers."""
    return {
        **machine(),
        "versions": versions() | decoder_versions(),
        "threads": setting.threads,
        "encoded_bytes": int(setting.source.sizes.sum()),
        "packed_bytes": setting.pack.nbytes,
        "images_sampled": len(setting.indices),
        "rows_compared": checked,
    }
