"""Checks of class folders: folders that are parts of samples or of a dataset instead of classes."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, combinations, islice, pairwise
from typing import NamedTuple

from packer.given_values import option_text
from packer.inputs.checks.frame_evidence import why_partners
from packer.inputs.checks.partner_names import FolderNames
from packer.inputs.file_names import count_suffixes, examples, first_few, split_folders, split_in
from packer.inputs.listing import Finding, Folders, Listing
from packer.source_kinds import FRAMES_FIRST, VIDEOS

_MOST_FOLDERS = 12
"""Most class folders whose names are compared in pairs; kinds of files of a sample are few."""
_MOST_COPIES = 0.1
"""Largest share of names that class folders have in common, if one that has them all repeats them."""
_SHARE = 0.9
_FEWEST = 3
_MOST_FILES = 50  # of a sample
_SURE = 8  # files of equal names that are no accident
_SHOWN_SUFFIXES = 8
_NUMBER = re.compile(r"[0-9]+")
_PARTS = re.compile(
    r"batch|chunk|data|fold|frames?|(image|img|part|photo|picture)s?|set|shard|split|subset", re.I
)
"""Nouns that name no class: folders called by one of them and a number are parts of a set."""
_BY_KIND = (
    "Put the files of a kind into a folder of their own, named by sample, and pass the masks by "
    "pairs={'mask': 'DIR'}"
)
"""Remedy for folders that hold a sample each."""


class _Doubt(NamedTuple):
    """A reason why class folders are no classes, and what to do. certain: False if they may well be."""

    reason: str
    remedy: str
    certain: bool = True


def check_class_folders(listing: Listing) -> Iterator[Finding]:
    """Yield an error for class folders that are no classes, in the source or a split of it."""
    for place, prefix, folders in listing.parts:
        doubt = (
            _called_like_splits(place, folders)
            or _repeating_folder(listing, place, prefix, folders)
            or _samples(listing, prefix, folders)
            or _partners(listing, place, prefix, folders)
            or _initials(place, folders)
            or (None if listing.sequence else _same_folders(place, folders))
            or _parts_of_one(place, folders)
        )
        if doubt and doubt.certain:
            accepted = listing.accepting(listing.source.layout.classes or ())
            yield Finding(
                f"{place}: {doubt.reason}; its folders would be classes. {doubt.remedy}, or if they are "
                f"the classes, {accepted}.",
                error=True,
            )
        elif doubt:
            remedy = doubt.remedy[:1].lower() + doubt.remedy[1:]
            yield Finding(f"{place}: {doubt.reason}. If they are no classes, {remedy}.")


def check_continued_numbers(listing: Listing) -> Iterator[Finding]:
    """Yield a note on class folders that continue one numbering of files, as parts of one set do."""
    for _, prefix, folders in listing.parts:
        forms = {(_NUMBER.sub("", top), _stem(keys[0]).rstrip("0123456789")) for top, keys in folders.items()}
        [(name, base), *others] = forms
        if len(folders) < 2 or others or not name:
            continue
        numbers = [[_stem(key).removeprefix(base) for key in keys] for keys in folders.values()]
        if min(map(len, numbers)) < _FEWEST or not all(map(str.isdecimal, chain.from_iterable(numbers))):
            continue
        spans = sorted((min(map(int, of)), max(map(int, of))) for of in numbers)
        if all(before[1] < after[0] for before, after in pairwise(spans)):
            first, second = sorted(folders)[:2]
            yield Finding(
                f"The folders {prefix}{first} and {prefix}{second} differ in a number, and continue one "
                "numbering of files. If they are parts of one set, they are no classes: pass "
                "labels=."
            )


def check_single_class(listing: Listing) -> Iterator[Finding]:
    """Yield a note on images without labels, or of one class; an error if that class holds folders."""
    classes = listing.source.layout.classes
    if not (listing.labels_given or listing.targets.labelled):
        yield Finding(
            "The images are not in class folders, so the pack has no labels; pass labels= to add some."
        )
    elif classes is not None and len(classes) == 1 and not listing.labels_given:
        above = os.path.commonpath([key.rpartition("/")[0] for key in listing.keys])
        inner = {key[len(above) + 1 :].partition("/")[0] for key in listing.keys}
        if listing.foldered and above and inner != {key[len(above) + 1 :] for key in listing.keys}:
            yield Finding(
                f"{listing.source.place}: all images are in {above}, so its folders "
                f"({first_few(sorted(inner))}) would be one class. Pass {listing.source.place}/{above}, "
                f"or, if that is the class, classes={classes[0]!r}.",
                error=True,
            )
        else:
            yield Finding(f"All images are in one class folder ({classes[0]}).")


def check_levels(listing: Listing) -> Iterator[Finding]:
    """Yield a note on class folders that hold more folders than images, as collections of classes do."""
    for _, prefix, folders in () if listing.sequence else listing.parts:
        if any(keys[0].count("/") < 2 for keys in folders.values()):
            continue
        inner = sorted({key.rpartition("/")[0] for keys in folders.values() for key in keys})
        if 1 < len(folders) <= len(inner) / 2 and all("/" in folder for folder in inner):
            yield Finding(
                f"The classes are the {len(folders):,} folders at the top; their images lie in "
                f"{len(inner):,} folders below ({prefix}{inner[0]}, {prefix}{inner[-1]}). If these are the "
                "classes, pass labels=."
            )


def check_classes_of_one(listing: Listing) -> Iterator[Finding]:
    """Yield a note on class folders of one image each, as folders of samples are."""
    for place, _, folders in listing.parts:
        if len(folders) >= _SURE and all(len(keys) == 1 for keys in folders.values()):
            first, second = sorted(keys[0] for keys in folders.values())[:2]
            yield Finding(
                f"{place}: each of its {len(folders):,} class folders holds one image, such as {first} and "
                f"{second}. If they are no classes, pass labels=Labels(unlabeled='all'), or "
                "labels=."
            )


def check_files_left_out(listing: Listing) -> Iterator[Finding]:
    """Yield a note on files that are not images."""
    left_out = listing.source.left_out
    if counts := count_suffixes(left_out):
        videos = f" {FRAMES_FIRST}" if left_out.keys() & {*VIDEOS} else ""
        yield Finding(f"Not read as images: {first_few(counts, _SHOWN_SUFFIXES)}.{videos}")


def _called_like_splits(place: str, folders: Folders) -> _Doubt | None:
    """Find folders that are called like splits, below the folders that hold all images."""
    above, tops = "", sorted(folders)
    while len(tops) == 1 and not split_in(tops[0]):
        above += f"{tops[0]}/"
        inner = [key[len(above) :].partition("/") for keys in folders.values() for key in keys]
        if not all(slash for _, slash, _ in inner):
            return None
        tops = sorted({top for top, _, _ in inner})
    called = [top for top in tops if split_in(top)]
    if len(tops) == 1:
        return _Doubt(
            f"its only folder is called {above}{tops[0]}, like a split", f"Pass {place}/{above}{tops[0]}"
        )
    splits = {split_in(top) for top in called}
    if "train" not in splits or len(splits) < 2:
        return None
    if above and split_folders(tops):
        above = above.rstrip("/")
        return _Doubt(f"its folder {above} holds splits ({', '.join(tops)})", f"Pass {place}/{above}")
    beside = [top for top in tops if top not in called]
    more = f", and {beside[0]} lies beside them" if beside else ", but not alike otherwise"
    remedy = "Pass a folder that holds only folders of splits, or one of them"
    if beside and not above and split_folders(called) and not _hold_same(folders, called, beside):
        unlabeled = option_text("Labels.unlabeled", ",".join(beside))
        remedy += f", or {unlabeled} for {'a split' if len(beside) == 1 else 'splits'} without labels"
    return _Doubt(
        f"its folders {above}{f' and {above}'.join(called[:3])} are called like splits{more}", remedy
    )


def _hold_same(folders: Folders, first: Collection[str], second: Collection[str]) -> bool:
    """Return True if a folder in one of the second is called like one of the first, or like one in these."""
    inner = [
        {key.split("/")[1] for top in tops for key in folders[top] if key.count("/") > 1}
        for tops in (first, second)
    ]
    return not inner[1].isdisjoint(inner[0] | set(first))


def _same_folders(place: str, folders: Folders) -> _Doubt | None:
    """Find folders that all hold mostly the same folders: they are parts, and the inner ones the classes."""
    inner: dict[str, set[str]] = {}
    for folder, keys in folders.items():
        if any(key.count("/") < 2 for key in keys):
            return None
        inner[folder] = {key.split("/", 2)[1] for key in keys}
    # A single folder in each ("n01443537/images") is no evidence: the folders above it are the classes.
    same, every = set.intersection(*inner.values()), set.union(*inner.values())
    if len(folders) < 2 or len(same) < 2 or len(same) < len(every) / 2:
        return None
    first, second = sorted(folders)[:2]
    shown = f"{first} and {second} hold the same folders ({first_few(sorted(same))})"
    if splits := split_folders(every):
        split = min(splits)
        return _Doubt(
            f"{shown}, called like splits",
            f"Move the folders, so that splits hold classes ({split}/{first} instead of {first}/{split})",
        )
    files = Counter("/".join(key.split("/", 2)[:2]) for keys in folders.values() for key in keys)
    if len(folders) >= _FEWEST and any(all(files[f"{top}/{kind}"] == 1 for top in folders) for kind in same):
        return _Doubt(f"{shown}, as folders of one sample do", _BY_KIND)
    return _Doubt(
        f"{shown}, as parts of a dataset do",
        f"Pass one of them, such as {place}/{first}, or labels=",
    )


def _initials(place: str, folders: Folders) -> _Doubt | None:
    """Find folders that are the initials of the folders in them, as in an index: a/abbey, b/bakery."""
    for folder, keys in folders.items():
        for key in keys:
            _, inner, *rest = key.split("/", 2)
            if not rest or not inner.lower().startswith(folder.lower()) or len(folder) > 2:
                return None
    first = min(folders)
    return _Doubt(
        f"{first} holds folders whose names begin with it, as in an index",
        f"Move the folders in it out of it, or pass {place} with labels=",
    )


def _repeating_folder(listing: Listing, place: str, prefix: str, folders: Folders) -> _Doubt | None:
    """Find a folder that holds the images, or the folders, of the folders beside it, or of the one above."""
    for folder, keys in folders.items():
        inner = {key.split("/", 2)[1] for key in keys if key.count("/") > 1}
        if not inner:
            continue
        away = f"Remove {place}/{folder}, or move it out of {place}"
        if len(inner) > 1 and inner <= folders.keys():
            shown = first_few(sorted(inner))
            return _Doubt(f"{folder} holds folders called like those beside it ({shown})", away)
        if repeated := _repeated_below(listing, place, prefix, folder, keys):
            return repeated
    if len(folders) < 3:
        return None
    names = {folder: set(map(_stem, keys)) for folder, keys in folders.items()}
    owners = Counter(chain.from_iterable(names.values()))
    for folder, found in names.items() if len(owners) < sum(map(len, names.values())) else ():
        twice = sum(owners[name] == 2 for name in found)
        others = sum(count > 1 for name, count in owners.items() if name not in found)
        if len(found) < _FEWEST or twice < _SHARE * len(found) or others > _MOST_COPIES * len(owners):
            continue
        holders = sorted(other for other in names if other != folder and names[other] & found)
        if len(holders) > 1:
            away = f"Remove {place}/{folder}, or move it out of {place}"
            return _Doubt(f"{folder} holds files called like those of {examples(holders)}", away)
    return None


def _repeated_below(
    listing: Listing, place: str, prefix: str, folder: str, keys: Sequence[str]
) -> _Doubt | None:
    """Find a folder in a class folder that repeats the names beside it, as thumbnails and masks do."""
    deeper: dict[str, list[str]] = defaultdict(list)
    for key in keys:
        if key.count("/") > 1:
            deeper[key.rpartition("/")[0] + "/"].append(key)
    direct = FolderNames(f"{folder}/", (key for key in keys if key.count("/") == 1)) if deeper else None
    if direct is None or not direct.files:
        return None
    for inner, found in deeper.items():
        pairs = direct.partners(FolderNames(inner, found))
        seen = [(prefix + a, prefix + b) for a, b in pairs]
        if pairs and (not direct.numbered or why_partners(listing, seen).why):
            return _Doubt(
                f"{inner}{pairs[0][1].removeprefix(inner)} is called like {pairs[0][0]}, and so are the "
                "files beside it",
                f"Remove {place}/{inner.rstrip('/')}, or move it out of {place}",
            )
    return None


def _parts_of_one(place: str, folders: Folders) -> _Doubt | None:
    """Find folders that are called parts, or images, and a number."""
    bases = {_NUMBER.sub("", folder) for folder in folders}
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", min(bases))
    if len(folders) < 2 or len(bases) > 1 or not words or not _PARTS.fullmatch(words[-1]):
        return None
    first, second = sorted(folders)[:2]
    return _Doubt(
        f"{first} and {second} are called like parts of one set",
        f"Pass {place} with labels=, or one of its folders",
    )


def _samples(listing: Listing, prefix: str, folders: Folders) -> _Doubt | None:
    """Find folders that all hold the same few names, which are no numbers: a folder is one sample."""
    counts = set(map(len, folders.values()))
    if len(folders) < _FEWEST or len(counts) > 1 or not 2 <= max(counts) <= _MOST_FILES:
        return None
    names = [FolderNames(f"{folder}/", folders[folder]) for folder in islice(folders, _SURE)]
    kinds = sorted(names[0].files)
    if any(one.files.keys() != names[0].files.keys() for one in names) or names[0].numbered:
        return None
    differ = any(
        why_partners(listing, [(prefix + one.files[a], prefix + one.files[b]) for one in names]).why
        for a, b in pairwise(kinds)
    )
    shown = first_few([key.partition("/")[2] for key in sorted(names[0].files.values())])
    return _Doubt(
        f"each of its {len(folders):,} folders holds files of the same names ({shown}), as folders of one "
        "sample do",
        _BY_KIND,
        differ,
    )


def _partners(listing: Listing, place: str, prefix: str, folders: Folders) -> _Doubt | None:
    """Find two folders that hold partners of the same samples, such as images and their masks."""
    tops = sorted(folders)
    if not 2 <= len(tops) <= _MOST_FOLDERS:
        return None
    names = {top: FolderNames(f"{top}/", folders[top]) for top in tops}
    for first, second in combinations(tops, 2):
        pairs = names[first].partners(names[second])
        found = why_partners(listing, [(prefix + a, prefix + b) for a, b in pairs])
        numbered = names[first].numbered and names[second].numbered
        if pairs and (found.why or not numbered):
            equal = (
                f"{first} and {second} hold files of equal names, such as {pairs[0][0]} and "
                f"{pairs[0][1]}{found.why}"
            )
            if found.alike:
                name = second if second.isidentifier() else "other"
                pair = f"{option_text('pairs', {name: f'{place}/{second}'})} soft={name!r}"
                return _Doubt(
                    f"{equal}, as copies and views of the same pictures do",
                    f"Remove one of them, or, to pack both as fields, pass {place}/{first} with {pair}",
                    not found.why.endswith("alike"),
                )
            image, mask = (second, first) if found.mask == 0 else (first, second)
            parted = prefix and all(
                {first, second} == {key.partition("/")[0] for key in keys} for _, _, keys in listing.parts
            )
            source = listing.source.place if parted else f"{place}/{image}"
            masks = f"{listing.source.place}/*/{mask}" if parted else f"{place}/{mask}"
            return _Doubt(
                f"{equal}, as images beside their masks do",
                f"Pass {source} with {option_text('pairs', {'mask': masks})}",
                bool(found.why) or len(pairs) >= _SURE,
            )
    return None


def _stem(key: str) -> str:
    return key.rpartition("/")[2].rpartition(".")[0]
