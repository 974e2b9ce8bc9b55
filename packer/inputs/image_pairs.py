"""Partners of images, such as masks and mattes: matched by name, cropped and resized with their image.

The partner of image ``cat/1.jpg`` is ``cat/1.png`` in the pair's folder, with any extension; for the pair
``masks/*_mask.png`` it is ``masks/cat/1_mask.png``. A partner may have a different size, but not a
different aspect ratio: it shows the same frame. Sampling is nearest, so no new values appear, or linear for
soft values (pixels/decode_resize.py); the bars of "pad" hold 0. pixels/exact_values.py says how each kind of
file is stored.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import blake2b
from itertools import islice
from keyword import iskeyword
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.format import MAGIC_PREFIX
from numpy.typing import NDArray

from packer.errors import ImageError, SourceError, UsageError
from packer.format.header import Field
from packer.format.own_size import partner
from packer.inputs.file_names import as_text, on_disk
from packer.inputs.findings import Findings
from packer.inputs.image_archives import open_archive
from packer.inputs.image_sources import FolderImages, check_bytes, entries_of, file_state, split_archive
from packer.inputs.mask_values import MaskValues
from packer.inputs.opened_source import ArchiveImages, ImageSource
from packer.pixels.decode_resize import ImagePlacement, PixelSpec, place_soft
from packer.pixels.exact_values import MaskKind, decode_mask
from packer.pixels.image_decoder import format_of_image
from packer.sentence import Sentence

EXTENSIONS = (".bmp", ".gif", ".jpg", ".jpeg", ".npy", ".png", ".tif", ".tiff", ".webp")
"""File extensions of partners, in lower case; names may use any case."""

RESERVED = frozenset(
    ("image", "label", "boxes", "box_label", "keypoints", "key", "packer", "checksums", "header", "trailer")
)
_ASPECT_TOLERANCE = 0.02
_TRIES = 100
_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Soft:
    """A folder of partners with continuous values (mattes, depth), resampled linearly like images.

    Pixels sampled from NaN are NaN.

    >>> pairs = {"mask": "masks/", "alpha": Soft("mattes/")}
    """

    folder: str | os.PathLike[str]


def folder_of(given: str | os.PathLike[str] | Soft) -> str | os.PathLike[str]:
    """Return the folder of a pair, as the user wrote it."""
    return given.folder if isinstance(given, Soft) else given


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

    sizes: NDArray[np.int64]
    times: NDArray[np.int64]
    findings: Findings

    def __init__(
        self,
        name: str,
        place: str,
        images: ImageSource,
        spec: PixelSpec,
        like: Field | None,
        findings: Findings,
        *,
        soft: bool = False,
        mask_values: MaskValues | None = None,
        whole: str | None = None,
    ) -> None:
        """Determine dtype and channels: those of ``like``, else of the first readable file.

        images: the partner of each image, with key "" for a missing one. whole: "raw" or "jpeg", how rows of
        varying size are stored; None for rows of one size.
        """
        self._name, self._place, self._images = name, place, images
        self.soft, self.mask_values = soft, mask_values
        self.sizes, self.times, self.newest = images.sizes, images.times, images.newest
        self._max_pixels, self.findings = spec.max_pixels, findings
        self._kind = self._first_kind() if like is None or mask_values else _kind_of(like)
        dtype, channels = self._kind if mask_values is None else mask_values.stored(self._kind)
        bits = {"bits": 1} if dtype == "|b1" else {}
        dtype = "|u1" if bits else dtype
        about, codec = partner(dtype, channels, soft=soft, raw=whole == "raw")
        if whole is None:
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
            data = self._data(index)
            channels = None if self.mask_values else self._kind.channels
            values = decode_mask(data, self._max_pixels, channels, classes=not self.soft)
            found, (height, width) = MaskKind.of(values), values.shape[:2]
            if self.mask_values is not None:
                self.mask_values.stored(found)
            elif found != self._kind:
                raise ImageError(f"holds {found}; {self._kind} is needed, as in the other files.")
            _check_frame((height, width), geometry.source)
            if self.mask_values is not None:
                values = self.mask_values.classes(values)
        except ImageError as error:
            raise ImageError(f"its {self._name} {self._images.keys[index]}: ", error.sentence) from None
        target = geometry.target
        if (target.height, target.width) != geometry.result:
            out[...] = 0
        if self.soft:
            place_soft(values, geometry, out)
        else:
            rows, columns = geometry.nearest(height, width)
            target.of(out)[...] = values.take(rows, axis=0).take(columns, axis=1)
        return len(data)

    def examine(self, index: int) -> ExaminedMask | None:
        """Return the partner of an image as read; None for one that the conversion refuses."""
        try:
            data = self._data(index)
            values = decode_mask(data, self._max_pixels, None, classes=not self.soft)
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

    def _data(self, index: int) -> bytes:
        check_bytes(int(self.sizes[index]), self._max_pixels)
        return self._images.read(index)

    def _first_kind(self) -> MaskKind:
        reasons = []
        there = (index for index, path in enumerate(self._images.keys) if path)
        for index in islice(there, _TRIES):
            called = f"{self._place}/{self._images.keys[index]}"
            try:
                data = self._data(index)
                values = decode_mask(data, self._max_pixels, None, classes=not self.soft)
            except ImageError as error:
                reasons.append(Sentence(f"{called}: ", error.sentence))
                continue
            kind = MaskKind.of(values)
            if self.mask_values is not None:
                try:
                    self.mask_values.stored(kind)
                except ImageError as error:
                    raise UsageError(f"{called}: ", error.sentence) from None
            return kind
        first = reasons[0] if reasons else f"{self._place}: holds no file for any of the images."
        raise SourceError(
            first, f" None of the {len(reasons):,} {self._name} files that were tried can be read."
        )


def open_pair(
    name: str,
    folder: str | os.PathLike[str],
    keys: list[str],
    *,
    spec: PixelSpec,
    like: Field | None = None,
    spool_dir: str | None = None,
    images: str | None = None,
    findings: Findings | None = None,
    parts: Mapping[str, ImageSource] = MappingProxyType({}),
    soft: bool = False,
    mask_values: MaskValues | None = None,
    whole: str | None = None,
) -> Pair:
    """Match a partner to each image.

    name: name of the field, for example "mask". keys: the images' paths, "/"-separated.
    folder: folder that holds the partners under the images' paths, with any extension; it may end in a
        pattern for the file names ("masks/*_mask.png"). Or an archive, or a folder in an archive; .npy files
        in archives are ignored.
    spec: size and fit of the images, and the limit of pixels per file. like: field whose dtype and channels
        are required; None: those of the first readable file. spool_dir: directory for a decompressed tar.
        images: folder of the images, if they are files; the images themselves are never partners. findings:
        refuses images with no partner or several.
    parts: images that are fields of samples, which `folder` may name. soft: sample linearly instead of
        nearest. mask_values: values that become classes. whole: "raw" or "jpeg", how rows of varying size are
        stored; None: one size.
    Raises: UsageError for an invalid field name or a missing folder; SourceError if an image has no partner
        or several, or if none of the first files can be read.
    """
    if not (name.isascii() and name.isidentifier()) or name[0] == "_" or iskeyword(name) or name in RESERVED:
        raise UsageError(
            f"pair {name}: not a valid field name; letters, digits and _ are allowed, and "
            f"{', '.join(sorted(RESERVED))} are reserved. Pass another name, for example mask."
        )
    place, pattern = os.fspath(folder).rstrip("/") or "/", "*"
    if "*" in os.path.basename(place) and not os.path.isdir(place):
        place, pattern = os.path.split(place)
        pattern = as_text(pattern)
    findings = findings or Findings()
    files: ImageSource
    with ExitStack() as stack:
        if place in parts:
            files = parts[place]
            for index, key in enumerate(files.keys):
                if not key:
                    called = f"{keys[index]} has no .{place} beside it"
                    findings.refuse(index, f"has no {name}.", f"{called}; each sample needs one. Add it")
        elif os.path.isdir(place):
            images_here: Collection[str] = ()  # the images, if they lie in the same folder
            with suppress(OSError):
                if images is not None and os.path.samefile(on_disk(images), on_disk(place)):
                    images_here = frozenset(keys)
            listed = {
                path: state for path, state in _in_folder(as_text(place), keys) if path not in images_here
            }
            paths = _assign(name, place, keys, listed, pattern, findings)
            sizes, times = np.array([listed.get(p, (0, 0)) for p in paths], np.int64).reshape(-1, 2).T.copy()
            files = FolderImages(paths, sizes, times, folder=as_text(place))
        else:
            path, inside = split_archive(place)
            if path is None:
                raise UsageError(
                    f"{place}: no such folder or archive; pair {name} needs one. Check the path."
                )
            archive = open_archive(path, as_text(inside), spool_dir)
            stack.callback(archive.close)
            members = {key.removeprefix(archive.base): at for at, key in enumerate(archive.keys)}
            paths = _assign(name, place, keys, members, pattern, findings)
            positions = np.array([members.get(path, -1) for path in paths], np.int64)
            files = ArchiveImages(paths, [archive], np.zeros_like(positions), positions)
        pair = Pair(name, place, files, spec, like, findings, soft=soft, mask_values=mask_values, whole=whole)
        stack.pop_all()
    return pair


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


def _in_folder(place: str, keys: list[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    """List only the folders that hold images: no walk is needed, and links cannot form a loop.

    Yields: path of a possible partner, relative to the pair's folder; its size and modification time.
    """
    for folder in sorted({key.rpartition("/")[0] for key in keys}):
        # Images of a missing folder have no partners; `_assign` reports them together.
        for name, entry, inner in entries_of(place, folder, missing=True):
            if inner is None and name.lower().endswith(EXTENSIONS):
                yield os.path.join(folder, name), file_state(entry)


def _assign(
    name: str, place: str, keys: list[str], files: Iterable[str], pattern: str, findings: Findings
) -> list[str]:
    """Return each image's partner, "" for none; refuse images with none or several. Raises SourceError."""
    suffix = os.path.splitext(pattern)[0].rpartition("*")[2]
    found: dict[str, list[str]] = {}
    for path in files:
        if path.lower().endswith(EXTENSIONS) and fnmatchcase(os.path.basename(path), pattern):
            found.setdefault(os.path.splitext(path)[0].removesuffix(suffix), []).append(path)
    stems = [os.path.splitext(key)[0] for key in keys]
    wrong = [index for index, stem in enumerate(stems) if len(found.get(stem, ())) != 1]
    more = f" (and {len(wrong) - 1:,} more images)" if len(wrong) > 1 else ""
    for index in wrong:
        several = " and ".join(sorted(found.get(stems[index], ())))
        reason = f"has several files for its {name} ({several})" if several else f"has no {name}"
        findings.refuse(
            index,
            f"{reason}.",
            f"{place}: {keys[index]} {reason}{more}; each image needs one file of its path and name, ending "
            f"in {', '.join(EXTENSIONS)}. Add or remove files, pass a pattern such as {place}/*_mask.png",
        )
    left = [path for stem in found.keys() - set(stems) for path in found[stem]]
    if left:
        belong = "file belongs" if len(left) == 1 else "files belong"
        findings.notes.append(f"{place}: {len(left):,} {belong} to no image, first {min(left)}; left out.")
    paths = [found.get(stem, [""])[0] for stem in stems]
    for index in wrong:
        paths[index] = ""
    return paths
