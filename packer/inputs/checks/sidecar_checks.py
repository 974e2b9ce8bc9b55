"""Checks of files beside the images that are not read: probably their labels, in a form that is not known."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator

from packer import units
from packer.errors import SourceError
from packer.given_values import option_text
from packer.inputs.file_names import examples, on_disk
from packer.inputs.label_files import AS_TABLE, stem_of
from packer.inputs.listing import Finding, Listing
from packer.inputs.text_files import first_bytes
from packer.source_kinds import LABELS

_TABLES = (".csv", ".json", ".jsonl", ".tsv", ".txt", ".xml")
_MOST_FILES = 16
_HEAD = 256 << 10
"""Bytes of a file in which names of images are looked for."""
_NAMED = 8
_WORDS = re.compile(rb"[^\s,;:|\"'<>=(){}\[\]/\\\\]+")


def check_sidecars(listing: Listing) -> Iterator[Finding]:
    """Yield a note on files with the names of most images, which are not read.

    An error if they lie in other folders of an archive, whose folders would be classes.
    """
    if listing.labels_given:
        return
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for path in listing.source.others:
        suffix = os.path.splitext(path)[1].lower()
        if suffix in LABELS:
            found[suffix].setdefault(stem_of(path), path)
    stems = [stem_of(key) for key in listing.keys] if found else []
    for suffix, files in sorted(found.items()):
        held = [(key, files[stem]) for key, stem in zip(listing.keys, stems, strict=True) if stem in files]
        if 2 * len(held) <= len(listing.keys):
            continue
        subject = f"{units.count(len(held), 'image')} with a {suffix} file of the same name"
        subject += f", such as {examples(sorted({path for _, path in held}))}"
        if listing.source.folder is not None:
            found_none = "in which no YOLO or Pascal VOC labels were found"
            yield Finding(f"{subject}, {found_none}: these files are not read. To read them, {AS_TABLE}.")
            continue
        how = "Boxes of COCO, YOLO and Pascal VOC are read from folders; unpack the archive"
        error = listing.foldered and all(os.path.dirname(key) != os.path.dirname(path) for key, path in held)
        if error:
            names = ",".join(listing.classes or ())
            classes = option_text("classes", names if len(names) < 100 else None)
            subject = f"{listing.name}: {subject}"
            how += f", or if its folders are the classes, pass {classes}"
        yield Finding(f"{subject}: these files are not read. {how}.", error)


def check_unread_tables(listing: Listing) -> Iterator[Finding]:
    """Yield a note on a file that names images without labels. Reads the beginnings of up to 16 files."""
    folder = listing.source.folder
    labelled = listing.targets.labelled and len(listing.classes or ()) != 1
    if folder is None or listing.labels_given or labelled:
        return
    paths = [path for path in listing.source.others if path.lower().endswith(_TABLES)]
    names = {key.rpartition("/")[2] for key in listing.keys} if paths else set()
    names |= {stem for key in names if len(stem := stem_of(key)) > 4 or not stem.isdecimal()}
    for path in sorted(paths, key=lambda path: (path.count("/"), path))[:_MOST_FILES]:
        held = names & _words(f"{folder}/{path}")
        if len(held) < min(_NAMED, (len(listing.keys) + 1) // 2):
            continue
        inner = path.rpartition("/")[0]
        within = (
            f"{listing.name}/{inner} with "
            if inner and any(k.startswith(f"{inner}/") for k in listing.keys)
            else ""
        )
        how = f"pass {within}{option_text('labels', f'{listing.name}/{path}')}"
        if path.lower().endswith(".xml"):
            how = AS_TABLE
        yield Finding(
            f"{path} names images, such as {examples(sorted(held))}, and is not read. If it holds labels, "
            f"{how}."
        )


def _words(path: str) -> set[str]:
    """Return the words at the beginning of a file; empty if it cannot be read."""
    try:
        data = first_bytes(os.fsdecode(on_disk(path)), "labels are needed", _HEAD)
    except SourceError:
        return set()
    return {word.decode("utf-8", "surrogateescape") for word in _WORDS.findall(data)}
