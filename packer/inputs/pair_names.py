"""Names of images and of their partners, compared: the rules of image_pairs.py, as functions of paths."""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher, get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import product, takewhile
from typing import NamedTuple

from packer.inputs.file_names import split_in
from packer.path_text import compose

EXTENSIONS = (".bmp", ".gif", ".jpg", ".jpeg", ".npy", ".png", ".tif", ".tiff", ".webp")
"""File extensions of partners, in lower case; names may use any case."""

FROM = " from "
_MOST_CUTS = 6
_NEIGHBOURS = 500
_ALIKE = 0.01  # least similarity of the nearest name
_TRIED = 16


class Name(NamedTuple):
    """A path as it is compared: its folder, and what is left of its name."""

    folder: str
    text: str


@dataclass(frozen=True)
class PairPlace:
    """The place of partners, and the patterns of their names and of their images.

    place: a folder or archive, "" for that of the images. pattern: of the partners' file names, or, with a
    slash, of their paths in `place`. images: pattern of the images, in which each * stands for the same text
    as in `pattern`; None: names are compared.

    >>> PairPlace.parse("masks/*_mask.png from *_sat.jpg")
    PairPlace(place='masks', pattern='*_mask.png', images='*_sat.jpg')
    >>> PairPlace.parse("data/*/masks")
    PairPlace(place='data', pattern='*/masks/*', images=None)
    """

    place: str
    pattern: str = "*"
    images: str | None = None

    @classmethod
    def parse(cls, given: str) -> PairPlace:
        """Return the parts of a text; {stem} means *."""
        text, images = given.replace("{stem}", "*"), None
        if "*" in text.rpartition(FROM)[2] and FROM in text:
            text, _, images = text.rpartition(FROM)
        place, pattern = text.rstrip("/") or "/", "*"
        if "*" in place and not os.path.isdir(place):
            parts = place.split("/")
            first = next(at for at, part in enumerate(parts) if "*" in part)
            place, pattern = "/".join(parts[:first]), "/".join(parts[first:])
            pattern += "" if "*" in parts[-1] or parts[-1].lower().endswith(EXTENSIONS) else "/*"
            place = place or "/" * text.startswith("/")
        return cls(place, pattern, images)

    def __str__(self) -> str:
        if self.images is None:
            return self.place if self.pattern == "*" else os.path.join(self.place, self.pattern)
        return os.path.join(self.place, self.pattern) + FROM + self.images

    def is_partner(self, path: str) -> bool:
        """Return True if a file is called as partners are, and not, more exactly, as images are."""
        image = self.images is not None and _called(path, self.images)
        return _called(path, self.pattern) and not (image and len(self.images or "") > len(self.pattern))

    def at(self, source: str) -> PairPlace:
        """Return the place with its folder; that of the images if it has none. source: folder or archive."""
        return self if self.place else replace(self, place=source.rstrip("/") or "/")

    def image_name(self, key: str) -> Name | None:
        """Return what is compared of an image's path; None if it does not fit the pattern."""
        return _name(key, "*" if self.images is None else self.images)

    def partner_name(self, path: str) -> Name | None:
        """Return what is compared of a partner's path; None if it does not fit the pattern."""
        if self.images is not None:
            return _name(path, self.pattern)
        if not _called(path, self.pattern):
            return None
        folder, _, name = os.path.splitext(path)[0].rpartition("/")
        return Name(folder, name.removesuffix(self._suffix))

    @cached_property
    def _suffix(self) -> str:
        return os.path.splitext(self.pattern)[0].rpartition("*")[2]


def _called(path: str, pattern: str) -> bool:
    """Return True if a file, with or without its extension, fits a pattern of names, or of paths."""
    name = path if "/" in pattern else path.rpartition("/")[2]
    return fnmatchcase(name, pattern) or fnmatchcase(os.path.splitext(name)[0], pattern)


def _name(path: str, pattern: str) -> Name | None:
    """Return folder and texts of the stars; None for a name that does not fit the pattern."""
    folder, _, name = path.rpartition("/") if "/" not in pattern else ("", "", path)
    stem = os.path.splitext(name)[0]
    if pattern == "*":
        return Name(folder, stem)
    form = re.compile("(.*)".join(map(re.escape, pattern.split("*"))), re.DOTALL)
    first, then = (name, stem) if "." in pattern.rpartition("*")[2] else (stem, name)
    found = form.fullmatch(first) or form.fullmatch(then)
    return None if found is None else Name(folder, "\0".join(found.groups()))


def belonging(
    keys: Sequence[str], files: Iterable[str], place: PairPlace
) -> tuple[list[list[str]], list[str]]:
    """Return the files of each image, by folder and name; and the other files that fit the pattern.

    A file in another Unicode form of the name belongs to an image that has none in its own form.
    """
    held: dict[Name, list[str]] = {}
    for path in files:
        if (name := place.partner_name(path)) is not None:
            held.setdefault(name, []).append(path)
    names = [place.image_name(key) for key in keys]
    composed: dict[Name, list[Name]] = {}
    for name in held.keys() - {*names}:
        composed.setdefault(Name(*map(compose, name)), []).append(name)
    for index, name in enumerate(names):
        if name is not None and name not in held:
            forms = composed.get(Name(*map(compose, name)), ())
            names[index] = forms[0] if len(forms) == 1 else name
            held |= {name: [path for form in forms for path in held[form]]} if len(forms) > 1 else {}
    found = [held.get(name, []) if name is not None else [] for name in names]
    left = [path for name in held.keys() - {*names} for path in held[name]]
    return found, left


def derived(keys: Sequence[str], files: Iterable[str], place: PairPlace) -> list[str] | None:
    """Return one file for each image, where names differ in parts that all images or all partners share.

    Folders are compared as they are, else below the deepest folder that holds all images, or all partners,
    else without the levels that are the same for all (images of train/images and val/images), else not at
    all. Of names, beginnings and ends that all have are left out, whole words only. None unless this gives
    each image a file of its own, and in only one way.
    """
    named = [(path, name) for path in files if (name := place.partner_name(path)) is not None]
    images, partners = [place.image_name(key) for key in keys], [name for _, name in named]
    there = [name for name in images if name is not None]
    if len(there) < len(images) or not partners:
        return None
    for change in (list, _below_common, _without_common_folders, _without_folders):
        found = _matched(change(there), change(partners), cut=place.images is None)
        if found is not None:
            return [named[index][0] for index in found]
    return None


def _below_common(names: list[Name]) -> list[Name]:
    common = os.path.commonpath([name.folder for name in names])
    return [Name(name.folder[len(common) :].lstrip("/"), name.text) for name in names]


def _without_common_folders(names: list[Name]) -> list[Name]:
    """Return names without the folder levels that are alike in all of them."""
    levels = [name.folder.split("/") for name in names]
    depth = min(map(len, levels))
    differ = [at for at in range(depth) if len({parts[at] for parts in levels}) > 1]
    return [
        Name("/".join([*(parts[at] for at in differ), *parts[depth:]]), name.text)
        for name, parts in zip(names, levels, strict=True)
    ]


def _without_folders(names: list[Name]) -> list[Name]:
    return [Name("", name.text) for name in names]


def _matched(images: list[Name], partners: list[Name], *, cut: bool) -> list[int] | None:
    """Return the partner of each image, if exactly one way of leaving parts out gives each one of its own."""
    places: dict[Name, int] = {}
    for number, name in enumerate(partners):
        places[name] = -1 if name in places else number
    shared = [
        _shared_parts([name.text for name in names]) if cut else [("", "")] for names in (images, partners)
    ]
    found: list[int] | None = None
    for left_out, put in product(*shared):
        owners = list(takewhile(lambda owner: owner >= 0, _owners(images, places, left_out, put)))
        if len(owners) < len(images) or len(set(owners)) < len(owners):
            continue
        if found is not None and owners != found:
            return None
        found = owners
    return found


def _owners(
    images: list[Name], places: dict[Name, int], left_out: tuple[str, str], put: tuple[str, str]
) -> Iterator[int]:
    """Yield the partner of each image, -1 for none, with another beginning and end of names."""
    first, last = map(len, left_out)
    for folder, text in images:
        core = text[first : len(text) - last]
        # scan.png in the folder of each patient
        there = core or (folder and len(images) > 1 and len(text) == first + last)
        yield places.get(Name(folder, f"{put[0]}{core}{put[1]}"), -1) if there else -1


def _shared_parts(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return beginnings and ends that all texts have, of whole words; ("", "") first."""
    begins = _cuts(texts)
    ends = [end[::-1] for end in _cuts([text[::-1] for text in texts])]
    return [(begin, end) for begin in begins for end in ends]


def common_beginning(texts: Collection[str]) -> str:
    """Return the beginning that all texts share."""
    return os.path.commonprefix(list(texts))  # noqa: RUF071 characters are meant, not folders


def _cuts(texts: Sequence[str]) -> list[str]:
    """Return the beginnings that all texts share and that end between two words of each, "" first."""
    common = common_beginning(texts)
    after = {text[len(common)] for text in texts if len(text) > len(common)}
    ends = [at for at in range(1, len(common)) if _between(common[at - 1], common[at])]
    if common and all(_between(common[-1], letter) for letter in after):
        ends.append(len(common))
    return ["", *(common[:at] for at in ends[-_MOST_CUTS:])]


def _between(a: str, b: str) -> bool:
    """Return True if a word ends between two letters, read in either direction: 1_a, x1, eyeL."""
    return not (a.isalnum() and b.isalnum()) or a.isdigit() != b.isdigit() or a.isupper() != b.isupper()


# What helps where images have no partner


def nearest(key: str, files: Sequence[str]) -> str:
    """Return the file whose name is most like an image's; "" if nothing is alike. files: sorted."""
    stem = os.path.splitext(key)[0]
    at = bisect_left(files, stem)
    near = files[max(0, at - _NEIGHBOURS) : at + _NEIGHBOURS]
    named = {os.path.splitext(path)[0].rpartition("/")[2]: path for path in near}
    found = get_close_matches(stem.rpartition("/")[2], named, 1, _ALIKE)
    return named[found[0]] if found else ""


def patterns(key: str, file: str) -> tuple[str, str]:
    """Return patterns for partners and images, of the longest text that two names share; ("", "") for none.

    >>> patterns("1_sat.jpg", "1_mask.png")
    ('*_mask.png', '*_sat.jpg')
    """
    (stem, end), (other, ending) = (os.path.splitext(path.rpartition("/")[2]) for path in (key, file))
    same = SequenceMatcher(None, stem, other, autojunk=False).find_longest_match()
    first, last = same.a, same.a + same.size
    while first < last and not (_starts(stem, first) and _starts(other, first - same.a + same.b)):
        first += 1
    while last > first and not (_starts(stem, last) and _starts(other, last - same.a + same.b)):
        last -= 1
    core = stem[first:last]
    inner = core.strip("_-. ")
    if not inner:
        return "", ""
    first += core.index(inner)
    last, start = first + len(inner), first - same.a + same.b
    partner = f"{other[:start]}*{other[start + len(inner) :]}{ending}"
    return partner, f"{stem[:first]}*{stem[last:]}{end}"


def beside(place: str, image: str, partner: str) -> PairPlace:
    """Return how partners are passed that lie in the folder of the images, from the keys of one of each.

    >>> str(beside("pets", "1.png", "1_mask.png"))
    'pets/*_mask.png'
    """
    names, images = patterns(image, partner)
    return PairPlace(place, names, images if _called(image, names) else None)


def _starts(text: str, at: int) -> bool:
    """Return True at the ends of a text, and where a word of it begins."""
    return at in (0, len(text)) or _between(text[at - 1], text[at])


def complete(keys: Sequence[str], files: Sequence[str], place: PairPlace) -> Iterator[PairPlace]:
    """Yield folders and patterns that give each image a partner, each tried."""
    tops = sorted({path.partition("/")[0] for path in files if "/" in path})
    for top in tops[:_TRIED]:
        inner = [path.removeprefix(f"{top}/") for path in files if path.startswith(f"{top}/")]
        other = PairPlace(os.path.join(place.place, top), place.pattern, place.images)
        if _fits(keys, inner, other):
            yield other
    tried = set()
    for path in _like(keys[0], files):
        partner, image = patterns(keys[0], path)
        for other in (PairPlace(place.place, partner), PairPlace(place.place, partner, image)):
            if partner and partner not in tried and _fits(keys, files, other):
                tried.add(partner)
                yield other


def kinds(keys: Sequence[str], place: str) -> list[PairPlace]:
    """Return two places, of which one holds the partners, if half of the images are called as the others.

    For images 1_sat.jpg and 1_mask.png: *_mask.png and *_sat.jpg; for train/images/1.png and
    train/masks/1.png: */images/* and */masks/*. keys: in any order. place: their folder.
    """
    ordered = sorted(keys)
    levels = [key.split("/")[:-1] for key in ordered]
    for at in range(min(map(len, levels))):
        names = sorted({parts[at] for parts in levels})
        places = [PairPlace(place, "/".join([*"*" * at, name, "*"])) for name in names]
        if len(names) == 2 and not any(map(split_in, names)) and all(_halves(keys, one) for one in places):
            return places
    for other in _like(ordered[0], ordered):
        ways = patterns(ordered[0], other)
        if other != ordered[0] and all(_halves(keys, PairPlace(place, *way)) for way in (ways, ways[::-1])):
            return [PairPlace(place, pattern) for pattern in ways]
    return []


def _halves(keys: Sequence[str], place: PairPlace) -> bool:
    """Return True if each file that is no partner has a partner of its own among the others."""
    files = [key for key in keys if place.is_partner(key)]
    images = [key for key in keys if not place.is_partner(key)]
    return len(files) == len(images) and _fits(images, files, replace(place, images=None))


def _like(key: str, files: Sequence[str]) -> Iterator[str]:
    """Yield the files next to an image in the order of names."""
    at = bisect_left(files, os.path.splitext(key)[0])
    yield from files[max(0, at - _TRIED) : at + _TRIED]


def _fits(keys: Sequence[str], files: Sequence[str], place: PairPlace) -> bool:
    found, _ = belonging(keys, files, place)
    return all(len(paths) == 1 for paths in found) or (
        not any(found) and derived(keys, files, place) is not None
    )
