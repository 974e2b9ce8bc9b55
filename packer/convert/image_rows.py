"""Rows from image files: the image, its labels, and masks placed like the image."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.convert.image_options import ImageOptions
from packer.convert.row_maker import Block, RowMaker
from packer.convert.row_sequence import RowSequence, Sequences
from packer.convert.split_assignment import Codes
from packer.convert.splits import refuse_alike
from packer.convert.whole_pictures import WholePictures, store_partner
from packer.errors import ImageError, SourceError, UsageError
from packer.format.checksums import Buffer, block_checksum, digest
from packer.format.fields import Field
from packer.format.file_io import InputFile
from packer.inputs.file_names import first_few
from packer.inputs.frame_names import sort_frames
from packer.inputs.image_pairs import Pair
from packer.inputs.image_sources import MOST_BYTES_A_PIXEL, check_bytes
from packer.inputs.image_targets import ImageTargets
from packer.inputs.opened_source import ImageSource
from packer.natural_order import natural_key, rank_texts
from packer.packs.file_rows import SEQUENCE_ROW
from packer.pixels.decode_resize import DecodeResize
from packer.pixels.image_files import read_orientation
from packer.pixels.row_placement import ImagePlacement

_AT_ONCE = 1 << 16


class ImageRows(RowMaker):
    """Rows from the images of a source."""

    sequence: RowSequence | None = None

    def __init__(
        self, source: ImageSource, options: ImageOptions, targets: ImageTargets, pairs: Sequence[Pair]
    ) -> None:
        self._source, self._spec, self._targets, self._pairs = source, options.spec, targets, pairs
        self.subject: str = source.name
        self.count: int = len(source)
        self.kept: NDArray[np.bool_] = np.ones(len(source), np.bool_)
        self.kept[list(targets.findings.refused)] = False
        self._whole, spec, storing = None, options.spec, options.storing
        if options.size.ragged:
            self._whole = WholePictures(options.size, spec, storing.quality, sized=bool(pairs))
        self._pixels = DecodeResize(spec)
        self._placed = bool(pairs) or targets.needs_geometry
        self._refused = targets.findings.refused
        about = {"layout": "HWC", "color": spec.color, "fit": spec.fit}
        image = Field("image", np.dtype(spec.dtype).newbyteorder("<").str, spec.shape, about)
        self.ragged_bytes = 0
        sizes: tuple[Field, ...] = ()
        if self._whole is not None:
            image, sizes = self._whole.image, self._whole.sizes
            self.ragged_bytes: int = options.size.usual_bytes(int(source.sizes.mean()))
        self.digests: NDArray[np.uint64] = np.frombuffer(mmap.mmap(-1, 8 * max(1, len(source))), np.uint64)
        """Checksum of each file that was packed, 0 for others; in memory that forked processes share."""
        self.fields: tuple[Field, ...] = (image, *targets.fields, *(pair.field for pair in pairs), *sizes)
        if options.sequence is not None:
            self.sequence = read_sequence(source, targets, options.sequence)
            self.fields = (*self.fields, SEQUENCE_ROW)

    @property
    def unlabeled(self) -> bool:
        """True if the label UNLABELED stands for no label."""
        return any("unlabeled" in field.about for field in self._targets.fields)

    def columns(self, samples: NDArray[np.int64]) -> Mapping[str, NDArray[np.generic]]:
        """Return what does not depend on the placement of the image: labels, places in sequences."""
        placed = {} if self.sequence is None else {SEQUENCE_ROW.name: self.sequence.places}
        columns = {**self._targets.fixed, **placed}
        return {name: np.ascontiguousarray(values[samples]) for name, values in columns.items()}

    def ahead(self, samples: NDArray[np.int64]) -> None:
        """Start to read the images that are not refused, if they are in an object store."""
        samples = samples[self._source.sizes[samples] <= MOST_BYTES_A_PIXEL * self._spec.max_pixels]
        if self._refused:
            samples = np.array([k for k in samples.tolist() if k not in self._refused], np.int64)
        self._source.ahead(samples)

    def make(self, sample: int, at: int, block: Block) -> None:
        """Decode the image and its masks or soft maps."""
        if sample in self._refused:
            raise ImageError(self._refused[sample])
        check_bytes(int(self._source.sizes[sample]), self._spec.max_pixels)
        data = self._source.read(sample)
        read, rows = len(data), block.rows
        pixels, fit, target = None, self._spec.fit, self._spec.size
        if self._whole is not None:
            picture = self._whole(data)
            pixels = self._whole.fill(picture, rows, at)
            size, fit, target, narrowed = picture.source, "stretch", picture.size, picture.narrowed
        else:
            size = self._pixels(data, rows["image"][at])
            narrowed = self._pixels.narrowed
        if self._placed:
            geometry = ImagePlacement.for_fit(fit, size, target)
            for pair in self._pairs:
                sized, values = pair.field.own_size, rows[pair.field.name]
                out = values[at] if sized is None else np.empty(sized.shape(*target), sized.dtype)
                read += pair.read(sample, geometry, out)
                if sized is not None:
                    values[at] = store_partner(pair.field, out)
            for name, value in self._targets.place(sample, geometry, partial(read_orientation, data)).items():
                rows[name][at] = value
        if pixels is not None:
            block.add_picture(pixels)
        self.digests[sample] = block_checksum(data) or 1
        block.bytes_read += read
        block.narrowed += narrowed

    def labels(self) -> NDArray[np.int64] | None:
        """Return the class of each image, of several the rarest; None without classes."""
        return self._targets.rarest

    @property
    def classes(self) -> Codes | None:
        """The class of each image by its name; None unless each image has one class."""
        label, names = self._targets.fixed.get("label"), self._targets.classes
        if names is None or label is None or label.ndim > 1 or label.min(initial=0) < 0:
            return None
        codes = Codes.from_values(label)
        return codes._replace(names=[names[int(number)] for number in codes.names])

    def codes(self, column: str | None) -> Codes | None:
        """Return the cells of a column beside the labels; of None the classes."""
        values = self._targets.strata if column is None else self._targets.beside[column]
        return None if values is None else Codes.from_values(values)

    def name(self, sample: int) -> str:
        """Return the path of the file, or its path in the archive."""
        return f"{self._source.name}/{self._source.keys[sample]}"

    def key(self, sample: int) -> str:
        """Return the path below the source."""
        return self._source.keys[sample]

    def fingerprint(self) -> dict[str, Any]:
        """Return counts and a digest of names, sizes and labels (not contents), equal on every machine."""
        return {
            "images": len(self._source.keys),
            "bytes": int(self._source.sizes.sum()),
            "digest of names, sizes and labels": digest(self._identity()).hex(),
        }

    def _identity(self) -> Iterator[Buffer]:
        keys = self._source.keys
        for start in range(0, len(keys), _AT_ONCE):
            yield "\0".join(keys[start : start + _AT_ONCE]).encode("utf-8", "surrogateescape")
        for pair in self._pairs:
            yield pair.fingerprint()
        yield np.ascontiguousarray(self._source.sizes)
        yield self._targets.fingerprint()

    def newest(self) -> list[InputFile]:
        """Return the newest file of the images, and of each pair's folder."""
        return [self._source.newest, *(pair.newest for pair in self._pairs)]

    def times(self) -> str:
        """Return a digest of the files' modification times, for the plan: packs hold no times."""
        held = (self._source.times, *(pair.times for pair in self._pairs))
        return digest(np.ascontiguousarray(times) for times in held).hex()


def read_sequence(source: ImageSource, targets: ImageTargets, given: Sequences) -> RowSequence:
    """Return the sequences of images, and note how they were found. Raises SourceError, UsageError."""
    keys, numbered, where = source.keys, dict[str, int](), "folder"
    names = [key.rpartition("/")[0] for key in keys]
    if given.group is not None:
        where, names = f"value of {given.group}", [*targets.beside[given.group]]
        refuse_alike(SourceError, f"{source.name}: column {given.group}", "sequence", {*names})
    refused = sorted(targets.findings.refused) if given.columns else []
    for image in refused:  # its cells may be anything: a sequence of its own
        names[image] = f"\0{image}"
    numbers = np.array([numbered.setdefault(name, len(numbered)) for name in names], np.int64)
    groups = Codes(numbers, list(numbered))
    if given.order is None:
        ranks = _rank_frames(source, groups)
    else:
        ranks, kept = np.arange(len(keys), dtype=np.float64), np.delete(np.arange(len(keys)), refused)
        cells = [targets.beside[given.order][image] for image in kept.tolist()]
        if (found := rank_texts(cells)) is None:
            raise UsageError(
                f"sequence=Sequences(order={given.order!r}): texts such as {cells[0]!r} have no known order;"
                " numbers, dates with the year first, and texts with one number do. Pass another column."
            )
        ranks[kept] = found
    counts = np.bincount(np.delete(numbers, refused))
    counts = counts[counts > 0]
    least, most = int(counts.min()), int(counts.max())
    images = units.count(most, "image") if least == most else f"{least:,} to {units.count(most, 'image')}"
    source.findings.note(f"Each {where} is a sequence: {len(counts):,} of {images}, stored in their order.")
    missing = sorted({*refused} - targets.findings.unlisted)
    return RowSequence.sort_rows(*groups, ranks, *_left_out(source, missing), lambda image: keys[image])


def _left_out(source: ImageSource, missing: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the place of each image by name, and before which of these places some are missing."""
    order = np.arange(len(source))
    if missing and not source.listed:
        order = np.array(sorted(order, key=lambda image: natural_key(source.keys[image])))
    is_missing = np.isin(order, missing)
    places, before = np.empty_like(order), np.cumsum(~is_missing, dtype=np.int64)
    places[order] = before - 1
    return places, before[is_missing]


def _rank_frames(source: ImageSource, groups: Codes) -> NDArray[np.float64]:
    """Return numbers that sort the frames of each sequence by name, or as they are listed, and note gaps.

    Raises SourceError for names that give no order.
    """
    ranks, gaps = np.arange(len(source), dtype=np.float64), list[str]()
    ends = np.cumsum(np.bincount(groups.numbers))[:-1]
    members = np.split(np.argsort(groups.numbers, kind="stable"), ends)
    for name, some in zip(groups.names, members, strict=True):
        frames = [source.keys[image] for image in some.tolist()]
        order, missing = sort_frames(f"{source.place}/{name}".rstrip("/"), frames, listed=source.listed)
        ranks[some[order]] = np.arange(len(some))
        gaps += [f"{name} {missing:,}"] if missing else []
    if gaps:
        source.findings.note(
            f"{units.count(len(gaps), 'sequence')} of {len(groups.names):,} with gaps in the numbers of their"
            f" frames, over which windows reach: {first_few(gaps)}."
        )
    return ranks
