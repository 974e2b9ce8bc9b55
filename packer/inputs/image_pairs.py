"""Partners of images, such as masks and mattes: found by name, sampled where the image's pixels are.

To image ``cat/1.jpg`` belongs ``cat/1.png`` below the pair's folder, whatever either one's extension; or, of the pair
``masks/*_mask.png``, ``masks/cat/1_mask.png``. A partner may have another size: the same part of the scene is seen.
Sampling is nearest, so that every value was there before, or for soft values linear
(pixels/decode_resize.py); bars of "pad" hold 0. What becomes of each kind of file: pixels/exact_values.py.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import blake2b
from itertools import islice
from keyword import iskeyword
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import ImageError, SourceError, UsageError
from packer.format.header import Field
from packer.format.own_size import partner
from packer.inputs.file_names import as_text, on_disk
from packer.inputs.findings import Findings
from packer.inputs.image_archives import open_archive
from packer.inputs.image_sources import FolderImages, check_bytes, entries_of, file_state, split_archive
from packer.inputs.opened_source import ArchiveImages, ImageSource
from packer.pixels.decode_resize import ImagePlacement, PixelSpec, place_soft
from packer.pixels.exact_values import MaskKind, decode_mask
from packer.sentence import Sentence

EXTENSIONS = (".bmp", ".gif", ".jpg", ".jpeg", ".npy", ".png", ".tif", ".tiff", ".webp")
"""What a partner's name ends in, whichever the case."""

RESERVED = frozenset(
    ("image", "label", "boxes", "box_label", "keypoints", "key", "packer", "checksums", "header", "trailer")
)
_JPEG_MAGIC = b"\xff\xd8\xff"
_TRIES = 100
_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Soft:
    """A folder of partners that are no classes but mattes, depth and the like: resampled linearly, as images are.

    Pixels that are sampled from NaN are NaN.

    >>> pairs = {"mask": "masks/", "alpha": Soft("mattes/")}
    """

    folder: str | os.PathLike[str]


def folder_of(given: str | os.PathLike[str] | Soft) -> str | os.PathLike[str]:
    """Return the folder of a pair, as it was given."""
    return given.folder if isinstance(given, Soft) else given


class Pair(AbstractContextManager["Pair"]):
    """The partners of a list of images. A context manager; made by `open_pair`.

    sizes: int64 [N], bytes of the files; times, newest: as ImageSource has them.
    """

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
        whole: str | None = None,
    ) -> None:
        """Find out what the values are: as in ``like``, or else in the first file that can be read.

        images: the file of each image, a key of "" without one; soft: sampled linearly; whole: how rows of sizes of their own are stored.
        """
        self._name, self._place, self._images, self._soft = name, place, images, soft
        self.sizes, self.times, self.newest = images.sizes, images.times, images.newest
        self._max_pixels, self.findings = spec.max_pixels, findings
        self._kind = self._first_kind() if like is None else _kind_of(like)
        dtype, channels = self._kind
        about, codec = partner(dtype, channels, soft=soft, raw=whole == "raw")
        if whole is None:
            shape = spec.size if channels == 1 else (*spec.size, channels)
            about = {"layout": about["layout"], "fit": spec.fit, "sampling": about["sampling"]}
            self.field = Field(name, dtype, shape, about)
        else:
            self.field = Field(name, "|u1", None, about, codec)
        """As it is stored: [H, W], or [H, W, C] for several channels; or of its image's own size."""

    def read(self, index: int, geometry: ImagePlacement, out: NDArray[Any]) -> int:
        """Fill ``out`` with the partner of image ``index``; thread-safe, in any order.

        geometry: where the image's pixels went. out: of the field's dtype and shape, rows may lie apart.
        Returns: bytes read. Raises: ImageError that names the partner, but not the image.
        """
        try:
            data = self._data(index)
            values = decode_mask(data, self._max_pixels, self._kind.channels, palettes=not self._soft)
            found, (height, width) = MaskKind.of(values), values.shape[:2]
            if found != self._kind:
                raise ImageError(f"holds {found}; {self._kind} is needed, as in the others.")
            if height != width and (width, height) == geometry.source:
                raise ImageError(
                    f"{width:,} x {height:,} pixels, and its image {height:,} x {width:,} when upright; they must lie alike. "
                    "Turn it as the image's EXIF orientation says."
                )
        except ImageError as error:
            raise ImageError(f"its {self._name} {self._images.keys[index]}: ", error.sentence) from None
        target = geometry.target
        if (target.height, target.width) != geometry.result:
            out[...] = 0
        if self._soft:
            place_soft(values, geometry, out)
        else:
            rows, columns = geometry.nearest(height, width)
            target.of(out)[...] = values.take(rows, axis=0).take(columns, axis=1)
        return len(data)

    def fingerprint(self) -> bytes:
        """Return sixteen bytes that differ if the names or sizes of the files do, or what is stored of them."""
        state = blake2b(repr(self.field).encode(), digest_size=16)
        paths = self._images.keys
        for start in range(0, len(paths), _AT_ONCE):
            state.update("\0".join(paths[start : start + _AT_ONCE]).encode("utf-8", "surrogateescape"))
        state.update(self.sizes.data)
        return state.digest()

    def close(self) -> None:
        """Close what is open; closing again does nothing."""
        self._images.close()

    def __exit__(self, *_: object) -> None:
        """Close it."""
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
                values = decode_mask(data, self._max_pixels, None, palettes=not self._soft)
            except ImageError as error:
                reasons.append(Sentence(f"{called}: ", error.sentence))
                continue
            if data.startswith(_JPEG_MAGIC) and not self._soft:
                self.findings.notes.append(
                    f"{called} is a JPEG file, whose values are only about those that were saved: it has "
                    f"{len(np.unique(values)):,} different ones. Save masks as PNG if they are classes."
                )
            return MaskKind.of(values)
        first = reasons[0] if reasons else f"{self._place}: holds a file for none of the images."
        raise SourceError(first, f" No {self._name} can be read, of {len(reasons):,} tried.")


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
    soft: bool = False,
    whole: str | None = None,
) -> Pair:
    """Find the partner of each image.

    name: of the field, for example "mask". keys: the images' paths, "/"-separated.
    folder: with the partners under the same paths, extensions aside; a pattern behind it ("masks/*_mask.png") says how the
        files in each folder are called. Or an archive, or a folder in one; the archives' listing leaves .npy files out.
    spec: the images' size and fit, and the most pixels a file may have. like: of the same dtype and channels; None: as the first
        file that can be read. spool_dir: where a compressed tar is decompressed to. images: folder that the keys are below, if they
        are files: none of them is a partner. findings: images without a partner, or with several, are refused.
    soft: sample linearly, not the nearest value. whole: "raw" or "jpeg", how whole pictures are stored; None: all have one size.
    Raises: UsageError for a name that cannot be a field's, or a folder that is not there; SourceError when an image has no
        partner or several, or none of the first files can be read.
    """
    if not (name.isascii() and name.isidentifier()) or name[0] == "_" or iskeyword(name) or name in RESERVED:
        raise UsageError(
            f"pair {name}: not a name for a field; letters, digits and _ are allowed, and {', '.join(sorted(RESERVED))} are taken. "
            "Pass another one, for example mask."
        )
    place, pattern = os.fspath(folder).rstrip("/") or "/", "*"
    if "*" in os.path.basename(place) and not os.path.isdir(place):
        place, pattern = os.path.split(place)
        pattern = as_text(pattern)
    findings = findings or Findings()
    files: ImageSource
    with ExitStack() as stack:
        if os.path.isdir(place):
            own: Collection[str] = ()  # files that are images lie in the same folder
            with suppress(OSError):
                if images is not None and os.path.samefile(on_disk(images), on_disk(place)):
                    own = frozenset(keys)
            listed = {path: state for path, state in _in_folder(as_text(place), keys) if path not in own}
            paths = _assign(name, place, keys, listed, pattern, findings)
            sizes, times = np.array([listed.get(p, (0, 0)) for p in paths], np.int64).reshape(-1, 2).T.copy()
            files = FolderImages(paths, sizes, times, folder=as_text(place))
        else:
            path, inside = split_archive(place)
            if path is None:
                raise UsageError(f"{place}: no such folder or archive; pair {name} needs one. Check it.")
            archive = open_archive(path, as_text(inside), spool_dir)
            stack.callback(archive.close)
            members = {key.removeprefix(archive.base): at for at, key in enumerate(archive.keys)}
            paths = _assign(name, place, keys, members, pattern, findings)
            positions = np.array([members.get(path, -1) for path in paths], np.int64)
            files = ArchiveImages(paths, [archive], np.zeros_like(positions), positions)
        pair = Pair(name, place, files, spec, like, findings, soft=soft, whole=whole)
        stack.pop_all()
    return pair


def _kind_of(field: Field) -> MaskKind:
    """Return the type of the values of a pack's field."""
    own = field.own_size
    if own is not None:
        return MaskKind(own.dtype, own.channels or 1)
    return MaskKind(field.dtype, ((field.shape or ())[2:] or (1,))[0])


def _in_folder(place: str, keys: list[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    """List the folders in which images lie, no others: nothing needs a walk, and no link can form a loop.

    Yields: path of a file that may be a partner, below the pair's folder; its size and time.
    """
    for folder in sorted({key.rpartition("/")[0] for key in keys}):
        # Without it its images have no partners, which is said of all of them together.
        for name, entry, inner in entries_of(place, folder, missing=True):
            if inner is None and name.lower().endswith(EXTENSIONS):
                yield os.path.join(folder, name), file_state(entry)


def _assign(
    name: str, place: str, keys: list[str], files: Iterable[str], pattern: str, findings: Findings
) -> list[str]:
    """Return the file of each image's path, "" for images that have none, or several, which are refused. Raises SourceError."""
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
            f"{place}: {keys[index]} {reason}{more}; each image needs one file of its path and name, ending in "
            f"{', '.join(EXTENSIONS)}. Add or remove files, pass a pattern such as {place}/*_mask.png",
        )
    left = [path for stem in found.keys() - set(stems) for path in found[stem]]
    if left:
        belong = "file belongs" if len(left) == 1 else "files belong"
        findings.notes.append(f"{place}: {len(left):,} {belong} to no image, first {min(left)}; left out.")
    paths = [found.get(stem, [""])[0] for stem in stems]
    for index in wrong:
        paths[index] = ""
    return paths
