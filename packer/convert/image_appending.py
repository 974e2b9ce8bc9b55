"""append_images: convert more images with the options of a pack of shards, and add them as further shards."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from packer.arguments import one_of
from packer.convert.conversion_run import Conversion
from packer.convert.conversion_task import ConversionTask, Report
from packer.convert.duplicate_keys import DUPLICATES, known_samples, leave_out, note_left_out
from packer.convert.image_options import ImageOptions, Pairs
from packer.convert.image_planning import ConversionPlan, plan_conversion
from packer.convert.sample_order import SampleOrder
from packer.convert.shard_appending import adding_place, append_shards, check_alike, open_growable
from packer.declared_types import checks_arguments
from packer.errors import UsageError
from packer.packs.output_names import check_space

PathLike = str | os.PathLike[str]
_RECORDED = {"size", "fit", "channels", "max_pixels", "store", "format"}


@checks_arguments
def append_images(
    path: PathLike,
    source: PathLike,
    *,
    labels: PathLike | None = None,
    pairs: Pairs | None = None,
    duplicates: str = "error",
    workers: int | None = None,
    on_error: str = "stop",
    on_plan: Callable[[ConversionPlan], None] | None = None,
    progress: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Report:
    """Convert more images with the options of a pack of shards, and add them to it as further shards.

    Parameters
    ----------
    path
        A pack of shards; it stays unchanged until the new shards are complete. The new images' classes must
        be among its classes.
    duplicates
        Images whose key (the path below `source`) the pack already has, whatever they show: "error" refuses
        them, "skip" leaves them out, "keep" adds them.
    source, labels, pairs, workers, on_error, on_plan, progress, on_progress
        As in convert_images.

    Notes
    -----
    The work of an interrupted append is kept in ``<path>.adding.packing`` and reused by the next append of
    the same images.

    Returns
    -------
    Report
        `rows` counts the added images.

    Raises
    ------
    UsageError
        The pack is a single file, has other classes, or does not record its options.
    SourceError, SpaceError, PackerError
    """
    run = Conversion(
        path, "images", workers=workers, on_error=on_error, progress=progress, on_progress=on_progress
    )
    one_of("duplicates", duplicates, DUPLICATES)
    pack = open_growable(run.out, "append_images", source, [os.fspath(source)])
    record = pack.parts[0].header.provenance.get("options", {})
    if not set(record) >= _RECORDED or record.get("repack", {}).get("size") is not None:
        raise UsageError(
            f"{run.out}: does not record its options. Convert the images to a new pack, then run packer merge"
            " on both."
        )
    options = ImageOptions.from_record(record, labels, pairs)
    if options.split is not None:
        options.split.check_growable(run.out, in_groups=options.sequence is not None)
    with ExitStack() as stack:
        task, plan = plan_conversion(
            stack, os.fspath(source), options, run.out, existing=pack, skip=run.running.skip
        )
        check_alike(task, pack)
        check_space(run.out, plan.bytes)
        if on_plan is not None:
            on_plan(plan)
        with adding_place(run, pack, {**(task.plan or {}), "duplicates": duplicates}) as place:
            run.bar.start(plan.rows)
            left = leave_out(duplicates, lambda: known_samples(task, pack))
            notes = [*plan.notes, *note_left_out(len(left), run.out)]
            if len(left) == plan.rows:
                return run.report(Report(cleared=place.cleared), notes)
            written = append_shards(_without(task, left), pack, place, run.running)
    return run.report(written, notes)


def _without(task: ConversionTask, left: NDArray[np.int64]) -> ConversionTask:
    """Return a task without some of its samples; its provenance records that duplicates were skipped."""
    if not len(left):
        return task
    samples = task.order.samples
    kept = ~np.isin(samples, left)
    before = np.cumsum([0, *kept])
    splits = {name: (int(before[a]), int(before[b])) for name, (a, b) in task.order.splits.items()}
    recorded = {**task.provenance, "options": {**task.provenance["options"], "duplicates": "skip"}}
    return replace(task, order=SampleOrder(samples[kept], splits), provenance=recorded)
