"""Partners of images, such as masks and mattes: found by name, sampled where the image's pixels are.

To image ``cat/1.jpg`` belongs ``cat/1.png`` below the pair's folder, whatever either one's extension; or, where no file is called as
an image, ``cat/1_mask.png``, if one suffix gives every image a file and no other does. A partner may have another size:
the same part of the scene is seen. Sampling is nearest, so that every value was there before, or for soft values linear
(pixels/decode_resize.py); bars of "pad" hold 0. What becomes of each kind of file: pixels/exact_values.py.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from keyword import iskeyword
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import ImageError, SourceError, UsageError
from packer.format.file_io import newest_file
from packer.format.header import Field
from packer.format.own_size import partner
from packer.inputs.archive_members import Archive
from packer.inputs.file_names import as_text, is_hidden, on_disk
from packer.inputs.image_archives import open_archive
from packer.inputs.image_sources import FolderImages, check_bytes, file_state, split_archive, unlistable
from packer.inputs.opened_source import ArchiveImages, ImageFiles
from packer.pixels.decode_resize import ImagePlacement, PixelSpec, place_soft
from packer.pixels.exact_values import MaskKind, decode_mask
from packer.sentence import Option, Sentence

EXTENSIONS = (".bmp", ".npy", ".png", ".tif", ".tiff", ".webp")
"""What a partner's name ends in, whichever the case."""
SECOND_CHOICE = (".gif", ".jpg", ".jpeg")
"""What it may end in, too; such a file is passed over where an image has one of EXTENSIONS."""

RESERVED = frozenset(
    ("image", "label", "boxes", "box_label", "keypoints", "key", "packer", "checksums", "header", "trailer")
)
_JPEG_MAGIC = b"\xff\xd8\xff"
_BEFORE_SUFFIX = "_-. "
_TRIES = 100
_SHOWN = 3
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


class Pair:
    """The partners of a list of images. A context manager; made by `open_pair`."""

    def __init__(
        self,
        name: str,
        spec: PixelSpec,
        files: _PairedFiles,
        images: ImageFiles,
        like: Field | None,
        soft: bool = False,
        whole: str | None = None,
    ) -> None:
        """Find out what the values are: as in ``like``, or else in the first file that can be read.

        images: the bytes of the files. soft: sampled linearly; whole: how rows of sizes of their own are stored.
        """
        self._images, self._paths, self._place = images, files.paths, files.place
        self._soft = soft
        self._name, self._max_pixels = name, spec.max_pixels
        self.refused = files.refused
        """Image -> why it has no partner, in words that follow its name."""
        self.notes = files.notes
        """What the user may not expect, a sentence each."""
        self.sizes = files.sizes
        """int64 [N], bytes of each image's partner."""
        self.times = files.times
        """int64, when each was changed last, in nanoseconds since 1970: [N], or [1] of an archive."""
        self.newest = newest_file(files.named or files.paths, self.times)
        """Which of the files was changed last, and when."""
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
            raise ImageError(f"its {self._name} {self._paths[index]}: ", error.sentence) from None
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
        for start in range(0, len(self._paths), _AT_ONCE):
            state.update("\0".join(self._paths[start : start + _AT_ONCE]).encode("utf-8", "surrogateescape"))
        state.update(self.sizes.data)
        return state.digest()

    def close(self) -> None:
        """Close what is open; closing again does nothing."""
        self._images.close()

    def __enter__(self) -> Pair:
        """Give the pair itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _data(self, index: int) -> bytes:
        check_bytes(int(self.sizes[index]), self._max_pixels)
        return self._images.read(index)

    def _first_kind(self) -> MaskKind:
        reasons = []
        there = (index for index in range(len(self._paths)) if index not in self.refused)
        for index in islice(there, _TRIES):
            try:
                data = self._data(index)
                values = decode_mask(data, self._max_pixels, None, palettes=not self._soft)
            except ImageError as error:
                reasons.append(Sentence(f"{self._place}/{self._paths[index]}: ", error.sentence))
                continue
            if data.startswith(_JPEG_MAGIC) and not self._soft:
                self.notes.append(
                    f"{self._place}/{self._paths[index]} is a JPEG file, whose values are only about those that were "
                    f"saved: it has {len(np.unique(values)):,} different ones. Save masks as PNG if they are classes."
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
    skip: bool = False,
    soft: bool = False,
    whole: str | None = None,
) -> Pair:
    """Find the partner of each image.

    name: of the field, for example "mask". keys: the images' paths, "/"-separated.
    folder: with the partners under the same paths, extensions aside; or an archive, or a folder in one. The archives' listing
        leaves .npy files out.
    spec: the images' size and fit, and the most pixels a file may have. like: of the same dtype and channels; None: as the first
        file that can be read. spool_dir: where a compressed tar is decompressed to. images: folder that the keys are below, if they
        are files: none of them is a partner. skip: refuse images without a partner, or with several, instead of raising.
    soft: sample linearly, not the nearest value. whole: "raw" or "jpeg", how whole pictures are stored; None: all have one size.
    Raises: UsageError for a name that cannot be a field's, or a folder that is not there; SourceError when an image has no
        partner or several, or none of the first files can be read.
    """
    if not (name.isascii() and name.isidentifier()) or name[0] == "_" or iskeyword(name) or name in RESERVED:
        raise UsageError(
            f"pair {name}: not a name for a field; letters, digits and _ are allowed, and {', '.join(sorted(RESERVED))} are taken. "
            "Pass another one, for example mask."
        )
    place = os.fspath(folder).rstrip("/") or "/"
    if os.path.isdir(place):
        files = _in_folder(name, as_text(place), keys, images, skip)
        found: ImageFiles = FolderImages(as_text(place), files.paths, files.sizes, files.times)
        return Pair(name, spec, files, found, like, soft, whole)
    path, inside = split_archive(place)
    if path is None:
        raise UsageError(f"{place}: no such folder or archive; pair {name} needs one. Check it.")
    archive = open_archive(path, as_text(inside), spool_dir)
    try:
        files = _in_archive(name, place, archive, keys, skip)
        found = ArchiveImages([archive], np.zeros(len(keys), np.int64), files.positions)
        return Pair(name, spec, files, found, like, soft, whole)
    except BaseException:
        archive.close()
        raise


def _kind_of(field: Field) -> MaskKind:
    """Return the type of the values of a pack's field."""
    own = field.own_size
    if own is not None:
        return MaskKind(own.dtype, own.channels or 1)
    return MaskKind(field.dtype, ((field.shape or ())[2:] or (1,))[0])


# Files


class _ListedFile(NamedTuple):
    """A file that may be a partner. path: below the pair's folder; position: where its archive lists it."""

    path: str
    size: int
    time: int
    position: int


class _PairedFiles:
    """The file of each image.

    paths: below the place, "" of an image that has none; sizes, times, positions: int64 [N], as of `_ListedFile`; named: what times are of,
    if not of the paths; refused: image -> why it has none, in words that follow its name; notes: a sentence each.
    """

    def __init__(
        self, name: str, place: str, keys: list[str], entries: Callable[[], Iterable[_ListedFile]], skip: bool
    ) -> None:
        """Give each image its file; entries: lists the files, each time it is called.

        skip: refuse images that have none, or several. Raises: SourceError unless there is exactly one.
        """
        self.place = place
        self.named: list[str] = []
        self.notes: list[str] = []
        self.refused: dict[int, str] = {}
        self._images: dict[str, int] = {}
        twins = {}
        for index, key in enumerate(keys):
            first = self._images.setdefault(os.path.splitext(key)[0], index)
            if first != index:
                twins[index] = first
        loose = self._assign(entries(), len(keys), "")
        if loose and not any(self.paths):
            suffix = self._find_suffix(name, entries())
            if suffix:
                loose = self._assign(entries(), len(keys), suffix)
                self.notes.append(
                    f"{place}: files called as an image with {suffix} behind it are its {name}."
                )
        for index, first in twins.items():
            self.paths[index] = self.paths[first]
            for column in (self.sizes, self.times, self.positions):
                column[index] = column[first]
        self._check(name, keys, twins, skip)
        if loose:
            belong = "file belongs" if len(loose) == 1 else "files belong"
            self.notes.append(f"{place}: {len(loose):,} {belong} to no image, first {min(loose)}; left out.")

    def _assign(self, entries: Iterable[_ListedFile], count: int, suffix: str) -> list[str]:
        """Give images the files called as they are with the suffix. Returns: the paths of files that belong to none."""
        self.paths = [""] * count
        self.sizes, self.times, self.positions = np.zeros((3, count), np.int64)
        self._doubles: dict[int, tuple[str, str]] = {}
        loose = []
        for entry in entries:
            stem = os.path.splitext(entry.path)[0]
            index = self._images.get(stem.removesuffix(suffix)) if stem.endswith(suffix) else None
            if index is None:
                loose.append(entry.path)
                continue
            if self.paths[index]:
                second = [path.lower().endswith(SECOND_CHOICE) for path in (self.paths[index], entry.path)]
                if second == [False, True]:
                    continue
                if second != [True, False]:
                    self._doubles[index] = (entry.path, self.paths[index])
                    continue
                self._doubles.pop(index, None)
            self.paths[index], self.positions[index] = entry.path, entry.position
            self.sizes[index], self.times[index] = entry.size, entry.time
        return loose

    def _find_suffix(self, name: str, entries: Iterable[_ListedFile]) -> str:
        """Find what stands behind the images' names, such as "_mask"; "" if there is no such thing.

        Raises: SourceError if more than one suffix is as frequent as that, or half as frequent.
        """
        counts: Counter[str] = Counter()
        for stem in {os.path.splitext(entry.path)[0] for entry in entries}:
            for at in range(len(stem) - 1, 0, -1):
                if stem[at] in _BEFORE_SUFFIX and stem[:at] in self._images:
                    counts[stem[at:]] += 1
                    break
        most = max(counts.values(), default=0)
        best = sorted(suffix for suffix, count in counts.items() if 2 * count >= most)
        if len(best) > 1:
            shown = ", ".join(best[:_SHOWN]) + _more(len(best) - _SHOWN)
            raise SourceError(
                f"{self.place}: several files for each image, called as it is with {shown} behind that; each needs one {name}. "
                "Move those of one kind into a folder of their own, and pass that."
            )
        return best[0] if best else ""

    def _check(self, name: str, keys: list[str], twins: Mapping[int, int], skip: bool) -> None:
        missing = [index for index, path in enumerate(self.paths) if not path]
        if skip:
            self.refused |= dict.fromkeys(missing, f"has no {name}.")
            for index, paths in self._doubles.items():
                self.refused[index] = f"has several files for its {name}: {' and '.join(sorted(paths))}."
            for index, first in twins.items():
                if first in self.refused:
                    self.refused[index] = self.refused[first]
            return
        if missing:
            shown = ", ".join(keys[index] for index in missing[:_SHOWN])
            raise SourceError(
                f"{self.place}: no {name} for {shown}{_more(len(missing) - _SHOWN)}; each image needs "
                "a file of its own path and name, ending in "
                f"{', '.join((*EXTENSIONS, *SECOND_CHOICE))}. Add them, remove the images, or pass "
                f"{Option('on_error', 'skip')}."
            )
        if self._doubles:
            shown = ", ".join(
                " and ".join(sorted(self._doubles[index])) for index in sorted(self._doubles)[:_SHOWN]
            )
            raise SourceError(
                f"{self.place}: several files for one image: {shown}{_more(len(self._doubles) - _SHOWN)}; each needs one {name}. "
                "Remove the others."
            )


def _more(count: int) -> str:
    return f" and {count:,} more" if count > 0 else ""


def _is_partner(path: str) -> bool:
    return path.lower().endswith((*EXTENSIONS, *SECOND_CHOICE))


def _in_folder(name: str, place: str, keys: list[str], images: str | None, skip: bool) -> _PairedFiles:
    folders = {key.rpartition("/")[0] for key in keys}
    own: frozenset[str] = frozenset()  # files that are images lie in the same folder
    with suppress(OSError):
        if images is not None and os.path.samefile(on_disk(images), on_disk(place)):
            own = frozenset(keys)

    def entries() -> Iterator[_ListedFile]:
        return (entry for entry in _scan(place, folders) if entry.path not in own)

    return _PairedFiles(name, place, keys, entries, skip)


def _scan(place: str, folders: set[str]) -> Iterator[_ListedFile]:
    """List the folders in which images lie, no others: nothing needs a walk, and no link can form a loop."""
    for folder in sorted(folders):
        try:
            with os.scandir(on_disk(os.path.join(place, folder))) as entries:
                for entry in entries:
                    called = as_text(entry.name)
                    if not is_hidden(called) and _is_partner(called) and not entry.is_dir():
                        yield _ListedFile(os.path.join(folder, called), *file_state(entry), 0)
        except (FileNotFoundError, NotADirectoryError):
            continue  # then its images have no partners, which is said of all of them together
        except OSError as error:
            raise unlistable(place, folder, error) from None


def _in_archive(name: str, place: str, archive: Archive, keys: list[str], skip: bool) -> _PairedFiles:
    base = archive.base

    def entries() -> Iterator[_ListedFile]:
        for position, (key, size) in enumerate(zip(archive.keys, archive.sizes, strict=True)):
            if _is_partner(key):
                yield _ListedFile(key.removeprefix(base), size, 0, position)

    files = _PairedFiles(name, place, keys, entries, skip)
    files.times, files.named = np.array([archive.time]), [os.path.basename(archive.path)]
    return files
