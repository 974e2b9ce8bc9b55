"""Partners of images, such as masks and mattes: matched by name, cropped and resized with their image.

The partner of image ``cat/1.jpg`` is found by these rules (pair_names.py):

    masks/                       masks/cat/1.png, with any extension
    masks/*_mask.png             masks/cat/1_mask.png
    masks/*_m.png from *_s.jpg   masks/cat/1_m.png for cat/1_s.jpg: each * stands for the same text in both;
                                 {stem} means * too
    data/*/masks                 patterns may be of paths: data/train/masks/1.png for train/images/1.jpg
    all of these                 case_001.png for case_001_0000.png: words at the beginning or end of names
                                 that all images have, or all partners, are left out, if each image then gets
                                 a partner of its own, in one way only. Folders may then differ in levels that
                                 are the same for all, or in any way if file names are enough. A note says so.

A pattern without a folder is about files beside the images. Files of a pair that lie in the images' folder,
or below it, are no images. A partner may have a different size, but not a
different aspect ratio: it shows the same frame. Sampling is nearest, so no new values appear, or linear for
soft values (pixels/resampling.py); the bars of "pad" hold 0. pixels/exact_values.py says how each kind of
file is stored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import islice
from keyword import iskeyword
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.format import MAGIC_PREFIX
from numpy.typing import NDArray

from packer.declared_types import checked_class
from packer.errors import ImageError, SourceError, UsageError
from packer.format.fields import Field
from packer.format.own_size import partner_storage
from packer.given_values import option_text
from packer.inputs.file_names import as_text, on_disk, shorten
from packer.inputs.findings import Findings
from packer.inputs.image_archives import archive_stem, open_archive
from packer.inputs.image_sources import FolderImages, check_bytes, scan_folder, split_archive
from packer.inputs.mask_values import MaskValues
from packer.inputs.opened_source import ArchiveImages, ImageSource
from packer.inputs.pair_names import (
    EXTENSIONS,
    PairPlace,
    belonging,
    complete,
    derived,
    kinds,
    nearest,
    patterns,
)
from packer.pixels.decode_resize import PixelSpec
from packer.pixels.exact_values import MaskKind, decode_mask
from packer.pixels.image_files import format_of_image
from packer.pixels.resampling import place_soft
from packer.pixels.row_placement import ImagePlacement

RESERVED = frozenset(
    ("image", "label", "boxes", "box_label", "keypoints", "key", "packer", "checksums", "header", "trailer")
)
_ASPECT_TOLERANCE = 0.02
_TRIES = 100
_AT_ONCE = 1 << 16


@checked_class
@dataclass(frozen=True)
class Soft:
    """A folder of partners with continuous values (mattes, depth), resampled linearly like images.

    Pixels sampled from NaN are NaN.

    >>> pairs = {"mask": "masks/", "alpha": Soft("mattes/")}
    """

    folder: str | os.PathLike[str]


Given = str | os.PathLike[str] | Soft
"""A pair as the user wrote it."""


def folder_of(given: Given) -> str | os.PathLike[str]:
    """Return the folder of a pair, as the user wrote it."""
    return given.folder if isinstance(given, Soft) else given


class PairForm(NamedTuple):
    """The rule by which partners become rows.

    spec: size and fit of the images, and the limit of pixels per file. like: field whose dtype and channels
    are required; None: those of the first readable file. mask_values: values that become classes, or None.
    whole: rows vary in size, as their images do.
    """

    spec: PixelSpec
    like: Field | None = None
    mask_values: MaskValues | None = None
    whole: bool = False


class ExaminedMask(NamedTuple):
    """A mask file as read. path: for messages; format: "JPEG", "npy" or another."""

    path: str
    format: str
    values: NDArray[Any]


class Pair(AbstractContextManager["Pair"]):
    """The partners of a list of images; a context manager, created by `open_pair`.

    sizes: bytes of each file, int64 [N]. times, newest: see ImageSource. soft: partners are sampled linearly.
    mask_values: values that are classes, or None.
    """

    soft: bool
    mask_values: MaskValues | None
    sizes: NDArray[np.int64]
    times: NDArray[np.int64]
    findings: Findings

    def __init__(
        self, name: str, place: str, images: ImageSource, form: PairForm, findings: Findings, *, soft: bool
    ) -> None:
        """Determine dtype and channels. images: the partner of each image, with key "" for a missing one."""
        self._name, self._place, self._images = name, place, images
        spec, like, mask_values, whole = form
        self.soft, self.mask_values = soft, mask_values
        self.sizes, self.times, self.newest = images.sizes, images.times, images.newest
        self._max_pixels, self.findings = spec.max_pixels, findings
        self._kind = self._first_kind() if like is None or mask_values else _kind_of(like)
        dtype, channels = self._kind if mask_values is None else mask_values.stored(self._kind)
        bits = {"bits": 1} if dtype == "|b1" else {}
        dtype = "|u1" if bits else dtype
        about, codec = partner_storage(dtype, channels, soft=soft)
        if not whole:
            shape = spec.size if channels == 1 else (*spec.size, channels)
            about = {"layout": about["layout"], "fit": spec.fit, "sampling": about["sampling"]}
            self.field: Field = Field(name, dtype, shape, about | bits)
        else:
            self.field = Field(name, "|u1", None, about | bits, codec)
        """The stored field: [H, W], or [H, W, C] for several channels; ragged if rows vary in size."""
        self.keys: Sequence[str] = images.keys
        """Path of each image's partner in its folder; "" for a missing one."""

    def read(self, index: int, geometry: ImagePlacement, out: NDArray[Any]) -> int:
        """Fill ``out`` with the partner of image ``index``; thread-safe, in any order.

        geometry: how the image was cropped and resized. out: array of the field's dtype and shape; rows may
        be strided.
        Returns: bytes read. Raises: ImageError that names the partner, but not the image.
        """
        try:
            data, values = self._decode(index, None if self.mask_values else self._kind.channels)
            found, (height, width) = MaskKind.from_values(values), values.shape[:2]
            if self.mask_values is not None:
                self.mask_values.stored(found)
            elif found != self._kind:
                raise ImageError(f"holds {found}; {self._kind} is needed, as in the other files.")
            _check_frame((height, width), geometry.source)
            if self.mask_values is not None:
                values = self.mask_values.classes(values)
        except ImageError as error:
            raise ImageError(f"its {self._name} {self._images.keys[index]}: {error}") from None
        target = geometry.target
        if (target.height, target.width) != geometry.result:
            out[...] = 0
        if self.soft:
            place_soft(values, geometry, out)
        else:
            rows, columns = geometry.nearest(height, width)
            target.cut_view(out)[...] = values.take(rows, axis=0).take(columns, axis=1)
        return len(data)

    def examine(self, index: int) -> ExaminedMask | None:
        """Return the partner of an image as read; None for one that the conversion refuses."""
        try:
            data, values = self._decode(index)
        except ImageError:
            return None
        name = "npy" if data.startswith(MAGIC_PREFIX) else format_of_image(data)[0]
        return ExaminedMask(f"{self._place}/{self._images.keys[index]}", name, values)

    def fingerprint(self) -> bytes:
        """Return 16 bytes that change with the names or sizes of the files, and with the stored field."""
        state = blake2b(repr(self.field).encode(), digest_size=16)
        paths = self._images.keys
        for start in range(0, len(paths), _AT_ONCE):
            state.update("\0".join(paths[start : start + _AT_ONCE]).encode("utf-8", "surrogateescape"))
        state.update(self.sizes.data)
        return state.digest()

    def close(self) -> None:
        """Close the files; further calls do nothing."""
        self._images.close()

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        self.close()

    def _decode(self, index: int, channels: int | None = None) -> tuple[bytes, NDArray[Any]]:
        """Return the bytes of a file, and its values. channels: as in `decode_mask`. Raises ImageError."""
        check_bytes(int(self.sizes[index]), self._max_pixels)
        data = self._images.read(index)
        return data, decode_mask(data, self._max_pixels, channels, classes=not self.soft)

    def _first_kind(self) -> MaskKind:
        reasons = []
        there = (index for index, path in enumerate(self._images.keys) if path)
        for index in islice(there, _TRIES):
            called = f"{self._place}/{self._images.keys[index]}"
            try:
                _, values = self._decode(index)
            except ImageError as error:
                reasons.append(f"{called}: {error}")
                continue
            kind = MaskKind.from_values(values)
            if self.mask_values is not None:
                try:
                    self.mask_values.stored(kind)
                except ImageError as error:
                    raise UsageError(f"{called}: {error}") from None
            return kind
        first = reasons[0] if reasons else f"{self._place}: holds no file for any of the images."
        raise SourceError(
            f"{first} None of the {len(reasons):,} {self._name} files that were tried can be read."
        )


def partners_among(source: Any, pairs: Iterable[Given]) -> Callable[[str], bool]:
    """Return a test of keys of a source: True for files that pairs name as partners, and that are no images.

    These lie in the images' folder and are called as the pair's pattern says, or lie in a folder of the pair
    below it. source: as given to `open_source`.
    """
    tests: list[tuple[str, PairPlace]] = []
    for given in pairs if isinstance(source, str | os.PathLike) else ():
        called = _place(given).at(os.fspath(source))
        belows = _below(os.fspath(source), called.place)
        tests += [(below, called) for below in belows if below or called.pattern != "*"]
    return lambda key: any(
        key.startswith(below) and called.is_partner(key.removeprefix(below)) for below, called in tests
    )


def _place(given: Given) -> PairPlace:
    """Return the place of a pair; its patterns are decoded like names of files."""
    called = PairPlace.parse(os.fspath(folder_of(given)))
    images = None if called.images is None else as_text(called.images)
    return replace(called, pattern=as_text(called.pattern), images=images)


def _below(source: str, place: str) -> Iterator[str]:
    """Yield the path of a folder in a source, with a final slash, or "" for the source itself."""
    (archive, inside), (other, within) = split_archive(source.rstrip("/")), split_archive(place)
    paths = []
    if archive is not None and other is not None and os.path.samefile(archive, other):
        paths.append(os.path.relpath(f"/{within}", f"/{inside}"))
        if not inside:  # keys leave out a single top folder of the archive's name
            paths.append(os.path.relpath(f"/{within}", f"/{archive_stem(archive)}"))
    elif os.path.isdir(source) and os.path.isdir(place):
        paths.append(os.path.relpath(os.path.realpath(place), os.path.realpath(source)))
    for path in paths:
        if path == "." or not path.startswith(".."):
            yield "" if path == "." else f"{as_text(path)}/"


def open_pair(
    name: str, given: Given, source: ImageSource, form: PairForm, spool_dir: str | None = None
) -> Pair:
    """Match a partner to each image.

    name: name of the field, for example "mask". given: folder that holds the partners, perhaps with patterns
        (see the module), an archive, or a folder in an archive; .npy files in archives are ignored. Or a
        field of the samples in `source`. source: the images, which are never partners; its findings refuse
        images with no partner or several. spool_dir: directory for a decompressed tar.
    Raises: UsageError for an invalid field name or a missing folder; SourceError if an image has no partner
        or several, or if none of the first files can be read.
    """
    if not (name.isascii() and name.isidentifier()) or name[0] == "_" or iskeyword(name) or name in RESERVED:
        raise UsageError(
            f"pair {name}: not a valid field name; letters, digits and _ are allowed, and "
            f"{', '.join(sorted(RESERVED))} are reserved. Pass another name, for example mask."
        )
    called = _place(given).at(source.folder or source.name)
    with ExitStack() as stack:
        if called.place in source.parts:
            files = source.parts[called.place]
            for index, key in enumerate(files.keys):
                if not key:
                    missing = f"{source.keys[index]} has no .{called.place} beside it; each sample needs one"
                    source.findings.refuse(index, f"has no {name}.", f"{missing}. Add it")
        else:
            files = stack.enter_context(_files_of(name, called, source, spool_dir))
        soft = isinstance(given, Soft)
        pair = Pair(name, called.place, files, form, source.findings, soft=soft)
        stack.pop_all()
    return pair


def _files_of(name: str, called: PairPlace, source: ImageSource, spool_dir: str | None) -> ImageSource:
    """Return the partners of images in a folder or an archive; the images themselves are no partners."""
    if os.path.isdir(called.place):
        belows = () if source.folder is None else _below(called.place, os.fsdecode(on_disk(source.folder)))
        images = {f"{below}{key}" for below in belows for key in source.keys}
        found = scan_folder(as_text(called.place), arrays=True).images
        files = {path: at for at, path in enumerate(found.keys) if path not in images}
        paths, places = _assign(name, called, source, files)
        sizes, times = (np.append(values, 0)[places] for values in (found.sizes, found.times))
        return FolderImages(paths, sizes, times, folder=found.folder)
    path, inside = split_archive(called.place)
    if path is None:
        raise UsageError(f"{called.place}: no such folder or archive; pair {name} needs one. Check the path.")
    with ExitStack() as stack:
        archive = stack.enter_context(closing(open_archive(path, as_text(inside), spool_dir)))
        files = {key.removeprefix(archive.base): at for at, key in enumerate(archive.keys)}
        paths, places = _assign(name, called, source, files)
        stack.pop_all()
    return ArchiveImages(paths, [archive], np.zeros_like(places), places)


def _check_frame(size: tuple[int, int], image: tuple[int, int]) -> None:
    """Raise ImageError unless a partner can show its image's frame. size, image: (height, width), upright."""
    turned = size[::-1]
    if size == image or (turned != image and _same_aspect(size, image)):
        return
    found = f"has {size[1]:,} x {size[0]:,} pixels, but its upright image has {image[1]:,} x {image[0]:,}; "
    if _same_aspect(turned, image):
        raise ImageError(
            f"{found}both need the same orientation. Rotate it as the image's EXIF orientation says, or "
            "replace it if it belongs to another image."
        )
    raise ImageError(
        f"{found}both show the same frame, so aspect ratios up to {_ASPECT_TOLERANCE * 100:g} % apart are "
        "allowed. Crop or pad it to the image's frame; if it was stretched, resize it to "
        f"{image[1]:,} x {image[0]:,}."
    )


def _same_aspect(size: tuple[int, int], image: tuple[int, int]) -> bool:
    """Return True unless aspect ratios differ by more than the tolerance, and more than by rounding."""
    products = size[0] * image[1], size[1] * image[0]
    return abs(products[0] - products[1]) <= max(_ASPECT_TOLERANCE * max(products), max(size) + max(image))


def _kind_of(field: Field) -> MaskKind:
    """Return dtype and channels of a pack's field."""
    if field.about.get("bits") == 1:
        return MaskKind("|b1", 1)
    varying = field.own_size
    if varying is not None:
        return MaskKind(varying.dtype, varying.channels or 1)
    return MaskKind(field.dtype, ((field.shape or ())[2:] or (1,))[0])


def _assign(
    name: str, called: PairPlace, source: ImageSource, files: Mapping[str, int]
) -> tuple[list[str], NDArray[np.int64]]:
    """Return each image's partner and its index, "" and -1 for none; refuse images with none or several.

    files: path -> index. Raises SourceError.
    """
    keys, findings = source.keys, source.findings
    readable = [path for path in files if path.lower().endswith(EXTENSIONS)]
    found, left = belonging(keys, readable, called)
    if not any(found):
        left = sorted(filter(called.is_partner, readable))
        if (paths := derived(keys, left, called)) is not None:
            findings.note(_matched_note(name, called, keys, paths))
            found, left = [[path] for path in paths], sorted({*left}.difference(paths))
    wrong = [index for index, paths in enumerate(found) if len(paths) != 1]
    advice = _advice(name, called, keys, wrong, sorted(left), found) if wrong else ""
    others = f" (and {len(wrong) - 1:,} more images)" if len(wrong) > 1 else ""
    for index in wrong:
        several = " and ".join(map(shorten, sorted(found[index])[:3]))
        reason = f"has several files for its {name} ({several})" if several else f"has no {name}"
        if called.image_name(keys[index]) is None:
            reason = f"is called neither {called.images} nor {called.pattern}"
        error = f"{called.place}: {shorten(keys[index])} {reason}{others}; {advice}"
        findings.refuse(index, f"{reason}.", error)
    if left and any(found):
        belong = "file belongs" if len(left) == 1 else "files belong"
        findings.note(f"{called.place}: {len(left):,} {belong} to no image, first {min(left)}; left out.")
    partners = [paths[0] if len(paths) == 1 else "" for paths in found]
    return partners, np.array([files.get(path, -1) for path in partners], np.int64)


def _matched_note(name: str, called: PairPlace, keys: Sequence[str], paths: Sequence[str]) -> str:
    """Return the note on partners that do not have the names of their images, with two examples."""
    shown = " and ".join(
        f"{shorten(path)} for {shorten(key)}" for path, key in islice(zip(paths, keys, strict=True), 2)
    )
    return (
        f"{called}: no file has the name of an image, so each {name} was found by the part of the names that "
        f"differs: {shown}. If that is wrong, pass patterns of both names by pairs=."
    )


def _advice(
    name: str,
    called: PairPlace,
    keys: Sequence[str],
    wrong: Sequence[int],
    files: Sequence[str],
    found: Sequence[Sequence[str]],
) -> str:
    """Return what is needed and a remedy, tried if no image has a partner. files: of no image, sorted."""
    first = keys[next((index for index in wrong if not found[index]), wrong[0])]
    needed = "each image needs one file of its path and name"
    if called.image_name(first) is None:
        return "a file is an image, a partner, or not there. Remove it, or pass other patterns"
    like = "" if any(found[index] for index in wrong) else nearest(first, files)
    if not like:
        needed += f", ending in {', '.join(EXTENSIONS)}"
        halves = [] if any(found) or files else kinds(keys, called.place)
        if halves:
            return f"{needed}. If images and masks lie together, {_pass(name, halves)}"
        return f"{needed}. Add or remove files, pass a pattern such as {called.place}/*_mask.png"
    needed += f", and the nearest to {shorten(first)} is {shorten(like)}"
    if any(found):
        return f"{needed}. Add or remove files"
    if fits := list(islice(complete(keys, files, called), 3)):
        return f"{needed}. P{_pass(name, fits)[1:]}"
    partner, image = patterns(first, like)
    place = PairPlace(called.place, partner, image)
    count = sum(map(bool, belonging(keys, files, place)[0])) if partner else 0
    if 2 * count < len(keys):
        place = PairPlace(called.place, "*_mask.png", "*_sat.jpg")
        return f"{needed}. Pass patterns of both, such as {option_text('pairs', {name: str(place)})}"
    fitting = f"which fits {count:,} of {len(keys):,} images"
    return f"{needed}. Pass {option_text('pairs', {name: str(place)})}, {fitting}"


def _pass(name: str, places: Sequence[PairPlace]) -> str:
    return f"pass {' or '.join(option_text('pairs', {name: str(place)}) for place in places)}"
