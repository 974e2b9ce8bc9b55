"""Checks of class folders: folders that are parts of samples or of a dataset instead of classes."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

from packer.inputs.file_names import split_begun, split_called
from packer.inputs.listing import Finding, Listing
from packer.sentence import Option, Sentence

_PICTURES = frozenset(("image", "images", "img", "imgs", "jpegimages"))
_SHOWN_SUFFIXES = 8
_MASKS = frozenset(
    ("annotations", "ground_truth", "gt", "labels", "mask", "masks", "segmentation", "trimaps")
)


def check_class_folders(listing: Listing) -> Iterator[Finding]:
    """Yield an error for folders that would become wrong classes."""
    for place, _, keys, folders in listing.parts() if listing.foldered else ():
        held = sorted({key.partition("/")[0] for key in keys})
        reason = _no_classes(keys, held, {*held, *(folder for folder in folders if "/" not in folder)})
        if reason:
            yield Finding(
                Sentence(
                    f"{place}: {reason}; its folders would be classes. Pass one of its folders, masks by "
                    f"{Option('pairs', {'mask': 'DIR'})}, or if they are the classes, "
                    f"{Option('classes', ','.join(held))}."
                ),
                error=True,
            )


def check_single_class(listing: Listing) -> Iterator[Finding]:
    """Yield a note on images without labels, or of one class."""
    classes = listing.source.foldered
    if not (listing.labels_given or listing.targets.labelled):
        yield Finding(
            Sentence(
                f"The images are not in class folders, so the pack has no labels; pass {Option('labels')} to "
                "add some."
            )
        )
    elif classes is not None and len(classes) == 1 and not listing.labels_given:
        inner = all(key.count("/") > 1 and key.startswith(f"{classes[0]}/") for key in listing.keys)
        more = "; if the folders in it are the classes, pass that" if inner else ""
        yield Finding(Sentence(f"All images are in one class folder ({classes[0]}){more}."))


def check_files_left_out(listing: Listing) -> Iterator[Finding]:
    """Yield a note on files that are not images."""
    counts = sorted(listing.source.left_out.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{count:,} {suffix or 'without a suffix'}" for suffix, count in counts[:_SHOWN_SUFFIXES]]
    if shown:
        more = " ..." if len(counts) > len(shown) else ""
        yield Finding(Sentence(f"Not read as images: {', '.join(shown)}{more}."))


def _no_classes(keys: list[str], held: list[str], folders: Collection[str]) -> str:
    """Return why folders are parts of samples or of a dataset instead of classes; "" if they may be classes.

    keys: image paths, all in folders. held: top folders that hold images. folders: all top folders.
    """
    called = {folder: split_called(folder) or split_begun(folder) for folder in sorted(folders)}
    parts = [folder for folder, split in called.items() if split]
    if "train" in called.values() and len({called[part] for part in parts}) > 1:
        beside = next((folder for folder in called if folder not in parts), None)
        more = (
            f", and {beside} lies beside them"
            if beside
            else ", and all are splits only if called train, val, test"
        )
        return f"its folders {' and '.join(parts[:3])} are called like splits{more}"
    pictures = next((folder for folder in held if folder.lower() in _PICTURES), None)
    if pictures is not None and len(held) == 1 < len(folders):
        return f"{pictures} lies beside {min(f for f in folders if f != pictures)}, which holds no images"
    if pictures is not None:
        stems = {os.path.splitext(key)[0].partition("/")[2] for key in keys if key.startswith(pictures + "/")}
        for key in keys:
            top, _, name = key.partition("/")
            if top != pictures and (top.lower() in _MASKS or os.path.splitext(name)[0] in stems):
                return f"{pictures} lies beside {top}, as images beside their masks do"
    if len(held) == 1 and split_called(held[0]):
        return f"its only folder is called {held[0]}, like a split"
    inner: dict[str, set[str]] = {folder: set() for folder in held}
    for key in keys:
        if key.count("/") < 2:
            return ""
        top, name, _ = key.split("/", 2)
        inner[top].add(name)
    first, *rest = inner.values() or [set()]
    if len(first) > 1 and not rest and all(map(split_called, first)):
        return f"its only folder {held[0]} holds splits ({', '.join(sorted(first))})"
    # A single folder in each ("n01443537/images") is no evidence: the folders above it are the classes.
    if len(first) > 1 and rest and all(names == first for names in rest):
        return (
            f"{held[0]} and {held[1]} hold the same folders ({', '.join(sorted(first)[:3])}), "
            "as parts of a dataset do"
        )
    return ""
