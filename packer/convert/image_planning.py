"""The plan of a conversion of images: what is opened, labels, splits, and the task that packs them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np

from packer import native, units
from packer.channels import CHANNELS
from packer.convert.conversion_task import ConversionTask, provenance
from packer.convert.image_options import ImageOptions
from packer.convert.image_rows import ImageRows
from packer.convert.plan_contents import PlanContents
from packer.convert.reference_pack import ReferencePack
from packer.convert.row_sequence import columns_of
from packer.convert.row_storage import estimate
from packer.convert.sample_order import SampleOrder, arrange
from packer.convert.split_assignment import Owners, assign, notes_on_classes
from packer.convert.whole_pictures import partner_versions
from packer.errors import ImageError, UsageError
from packer.format.fields import find_field
from packer.inputs.checks.examine import examine
from packer.inputs.coco_annotations import read_labels
from packer.inputs.findings import Findings
from packer.inputs.image_pairs import Pair, PairForm, folder_of, open_pair, partners_among
from packer.inputs.image_sources import Source, check_bytes, open_source
from packer.inputs.image_targets import ImageTargets
from packer.inputs.label_options import ALL
from packer.inputs.listing import Finding, Listing
from packer.inputs.opened_source import ImageSource, SourceOptions
from packer.inputs.webdataset_tars import is_field
from packer.packs.pack import Pack
from packer.pixels.decode_resize import codec_builds, decoder_versions
from packer.pixels.exact_values import count_bands
from packer.pixels.quiet_stderr import without_pillow_warnings

_TRIED = 16  # images tried until a readable one tells the number of bands
_MANY_TIMES = 4  # size of the pack relative to its files above which a note advises JPEG rows
_LARGE = 64 << 20  # bytes of a pack below which there is no such note


@dataclass(frozen=True)
class ConversionPlan:
    """The plan of a conversion, passed to ``on_plan``.

    rows: number of images; shape: (H, W, C) of each, None if sizes differ; sizes: the rule of the sizes, in
    words; bytes: estimated size of the pack; classes: names of the classes, or None; splits: name -> rows;
    notes: sentences about the source for the user; contents: with dry_run, what is packed; sequences: number
    of sequences of images.
    """

    rows: int
    shape: tuple[int, int, int] | None
    sizes: str
    bytes: int
    classes: tuple[str, ...] | None
    splits: Mapping[str, int]
    notes: tuple[str, ...]
    contents: PlanContents = field(default_factory=PlanContents, repr=False)
    sequences: int = 0


@without_pillow_warnings()
def plan_conversion(
    stack: ExitStack,
    source: Source,
    options: ImageOptions,
    out: str,
    *,
    existing: Pack | None = None,
    classes: Sequence[str] | None = None,
    like: ReferencePack | None = None,
    skip: bool = False,
    dry_run: bool = False,
) -> tuple[ConversionTask, ConversionPlan]:
    """Open the inputs and plan their conversion.

    stack: closes the opened inputs. out: path of the pack. existing: the pack that these options are from,
    whose classes and fields the new rows must have. like: reference pack, whose classes and labels they must
    have. skip: leave out unusable labels and pairs. dry_run: describe the contents, and leave the errors
    among their findings to the caller. Raises UsageError, SourceError.
    """
    asked, model = options, existing if like is None else like.pack
    if model is not None:
        if any((f.name, f.dtype, f.shape) == ("label", "<f4", ()) for f in model.fields):
            options = options.read_as("float")
        classes = model.header.classes if classes is None else classes
    spool = os.path.dirname(os.path.abspath(out))
    opened = stack.enter_context(_open(source, options, spool, classes or (), Findings(skip)))
    if options.channels == "auto":
        options = replace(options, channels=_bands_of_first(opened, options.max_pixels))
    if like is not None:
        options = replace(options, normalize=like.normalize(options.channels, options.dtype))
    targets = _targets(opened, options, asked, classes, numbered=model is None)
    if model is not None:
        targets.column = None  # labels are those of a pack, whose labels were examined
    if like is not None:
        like.check(find_field(targets.fields, "label"), opened.name)
    options = replace(options, labels=targets.read_as or options.labels)
    if existing is not None:
        targets.match_point_names(existing.fields)
    partners = _partners(stack, opened, options, spool, existing)
    listing = Listing(
        opened,
        targets,
        partners,
        accepted=classes or (),
        labels_given=options.labels.ignore_source,
        spec=options.spec,
        sized=model is None and not options.size.ragged,
        sequence=options.sequence is not None,
    )
    found = examine(listing)
    if not dry_run:
        refuse(found)
    maker = ImageRows(opened, options, targets, partners)
    order = _order(opened, maker, options)
    row_bytes = estimate(maker, options.storing, order)
    options = replace(options, storing=options.storing.with_rows(row_bytes))
    task = _task(listing, maker, order, options if existing is None else asked)
    plan = ConversionPlan(
        rows=len(order.samples),
        shape=None if options.size.ragged else options.spec.shape,
        sizes=options.size.words,
        bytes=round(len(order.samples) * row_bytes) + (1 << 16),
        classes=task.classes,
        splits={name: b - a for name, (a, b) in order.splits.items()},
        notes=tuple(_notes(listing, found, options, row_bytes, like)),
        contents=PlanContents.from_listing(listing, order, task.fields, found) if dry_run else PlanContents(),
        sequences=0 if maker.sequence is None else len(np.unique(maker.sequence.groups[maker.kept])),
    )
    return task, plan


def _task(listing: Listing, maker: ImageRows, order: SampleOrder, options: ImageOptions) -> ConversionTask:
    """Return the task that packs a listing. options: those that the pack records."""
    newest, classes = maker.newest(), listing.classes
    versions = decoder_versions(), codec_builds(), partner_versions(maker.fields)
    return ConversionTask(
        listing.name,
        maker,
        order,
        options.storing,
        provenance(options.record(), maker.fingerprint(), options.storing, *versions),
        {"newest file": list(map(str, newest)), "digest of the files' times": maker.times()},
        None if classes is None else tuple(classes),
        options.seed if options.shuffle else None,
        skipped=tuple(listing.source.findings.skipped),
        newest=max(newest, key=lambda file: file.time),
    )


def refuse(findings: Sequence[Finding]) -> None:
    """Raise UsageError for the first finding that is an error."""
    for finding in findings:
        if finding.error:
            raise UsageError(finding.sentence)


def _open(
    source: Source, options: ImageOptions, spool: str, classes: Sequence[str], findings: Findings
) -> ImageSource:
    """Open the images. spool: folder for decompressed archives."""
    opening = SourceOptions(
        labels=options.labels,
        spool_dir=spool,
        listed=classes,
        arrays=options.channels not in CHANNELS,
        partner=partners_among(source, options.pairs.values()) if options.pairs else None,
        parts=[folder for folder in map(str, map(folder_of, options.pairs.values())) if is_field(folder)],
        findings=findings,
        sequence=options.sequence is not None and options.sequence.group is None,
    )
    return open_source(source, opening)


def _partners(
    stack: ExitStack, opened: ImageSource, options: ImageOptions, spool: str, existing: Pack | None
) -> list[Pair]:
    """Open the folders of pairs. existing: a pack whose fields they must match."""
    fields = {} if existing is None else {f.name: f for f in existing.fields}
    return [
        stack.enter_context(
            open_pair(
                name,
                given,
                opened,
                PairForm(options.spec, fields.get(name), options.mask_values.get(name), options.size.ragged),
                spool,
            )
        )
        for name, given in options.pairs.items()
    ]


def _notes(
    listing: Listing,
    found: Sequence[Finding],
    options: ImageOptions,
    row_bytes: float,
    like: ReferencePack | None,
) -> Iterator[str]:
    """Yield notes for the user, shown before the conversion begins. found: the notes of checks."""
    opened, size, store = listing.source, options.size, options.storing.store
    if like is not None and like.pack.header.normalization and options.normalize is None:
        differ = "channels" if options.channels != like.channels else "types"
        yield (
            "Normalize() without numbers uses mean and std of the new pack, not those of"
            f" {like.pack.path}, as the {differ} differ."
        )
    yield from opened.findings.notes
    yield from (finding.sentence for finding in found if not finding.error)
    if size.ragged and not all(key.lower().endswith((".jpg", ".jpeg")) for key in opened.keys):
        yield f"Images of size {size.option} keep different sizes, so all are stored as JPEG files."
    if not native.COMPILED and size.rule != "keep":
        yield native.without("pixels", *(["markers"] if size.limits else []))
    allowed = not options.spec.deep and options.channels in ("rgb", "gray")
    pack_bytes, file_bytes = row_bytes * len(opened), float(opened.sizes.mean())
    if store != "jpeg" and allowed and pack_bytes > max(_LARGE, _MANY_TIMES * file_bytes * len(opened)):
        yield (
            f"A row takes about {units.size(row_bytes)}, a file {units.size(file_bytes)}, all rows "
            f"{units.size(pack_bytes)}; store='jpeg' stores rows as JPEG files, in about a tenth"
            " of that."
        )


def _bands_of_first(source: ImageSource, max_pixels: int) -> int:
    """Return the number of bands of the first readable image. Raises UsageError if none is readable."""
    source.ahead(np.arange(1))
    reason: str | None = None
    for index in range(min(len(source), _TRIED)):
        try:
            check_bytes(int(source.sizes[index]), max_pixels)
            return count_bands(source.read(index), max_pixels)
        except ImageError as error:
            reason = reason or f"channels auto: {source.name}/{source.keys[index]}: {error}"
    assert reason is not None
    raise UsageError(reason)


def _targets(
    source: ImageSource,
    options: ImageOptions,
    asked: ImageOptions,
    classes: Sequence[str] | None,
    numbered: bool,
) -> ImageTargets:
    """Return the labels of each image, from the CSV or else from the folders.

    asked: the options as given; classes: classes of the labels, in order; numbered: raise UsageError if there
    are classes but no labels.
    """
    labels, columns = options.labels, columns_of(options.split, options.sequence)
    if labels.file is not None:
        targets = read_labels(labels, source, columns)
        if not targets.fields:
            source.findings.note(
                f"{os.fspath(labels.file)}: holds no labels, and names of folders are not read beside it, so"
                " the pack has none. For labels, add a column."
            )
    else:
        used = {"as_", *(["column"] if source.label_chosen else [])}
        used |= {"separator"} if source.targets.column is not None else set()
        given = [one for one in (options.split, options.sequence) if one is not None]
        about = [text for one in given for text in one.about_columns()]
        for option in (*about, *labels.about_csv(used)):
            raise UsageError(f"{option}: is about columns of a CSV, but none is given. Pass labels='FILE'.")
        if source.targets.classes is not None and asked.labels.as_ == "float":
            raise UsageError(
                f"labels=Labels(as_={asked.labels.as_!r}): is about numeric labels, but "
                f"{source.name} has classes. Leave it out."
            )
        targets = source.targets
    unlabeled = labels.columns("unlabeled")
    if unlabeled and not labels.unwanted and not any("unlabeled" in f.about for f in targets.fields):
        raise UsageError(
            f"{source.name}: has no splits with labels beside {', '.join(unlabeled)}, the splits without "
            f"labels. Leave out labels=Labels(unlabeled=), or pass labels=Labels(unlabeled={ALL!r})."
        )
    for option in labels.about_coordinates() if not targets.needs_geometry else ():
        raise UsageError(
            f"{option}: applies to boxes and keypoints, but there are none. Pass labels=Labels(boxes=) or "
            "labels=Labels(keypoints=), or leave it out."
        )
    targets.measured_in(labels.boxes_unit, source.name if labels.file is None else os.fspath(labels.file))
    targets.frames.settle(
        labels.boxes_frame, {} if targets.frames.sizes is None else source.sample_sizes(targets.located)
    )
    if classes is None:
        return targets
    if numbered and not targets.labelled:
        raise UsageError(f"{source.name}: has no labels for the given classes. Pass labels=, or no classes=.")
    return targets.renumbered(classes, source.name)


def _order(source: ImageSource, maker: ImageRows, options: ImageOptions) -> SampleOrder:
    """Return the order of the rows: splits by folders, drawn splits, or no splits."""
    if options.split is not None and source.splits:
        raise UsageError(
            f"{source.name}: its folders are splits already ({', '.join(source.splits)}). Pass no "
            "split=, or only one of the folders as source."
        )
    folders = Owners.from_splits(source.splits, len(source))
    owners = folders if options.split is None else assign(options.split, maker, options.seed)
    source.findings.notes.extend(owners.notes)
    if options.split is not None and maker.classes is not None:
        source.findings.notes.extend(notes_on_classes(owners, maker.classes, "classes"))
    return arrange(owners, shuffle=options.shuffle, seed=options.seed, sequence=maker.sequence)
