"""Checks of files beside the images that are not read: probably their labels, in a form that is not known."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator

from packer import units
from packer.inputs.file_names import on_disk
from packer.inputs.label_files import stem_of
from packer.inputs.listing import Finding, Listing
from packer.sentence import Option, Sentence
from packer.source_kinds import LABELS

_TABLES = (".csv", ".json", ".jsonl", ".tsv", ".txt", ".xml")
_READABLE = (".csv", ".json", ".tsv")
"""Suffixes of files that `labels` may read."""
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
        common = sum(stem in files for stem in stems)
        if 2 * common > len(stems):
            first = " and ".join(sorted({files[stem] for stem in stems if stem in files})[:2])
            subject = f"{units.count(common, 'image')} with a {suffix} file of the same name, such as {first}"
            error = False
            if listing.source.folder is None:
                how = "Boxes of COCO, YOLO and Pascal VOC are read from folders; unpack the archive"
                beside = any(
                    os.path.dirname(files.get(stem, "/")) == os.path.dirname(key)
                    for key, stem in zip(listing.keys, stems, strict=True)
                )
                error = listing.foldered and not beside
                if error:
                    names = ",".join(listing.classes or ())
                    classes = Option("classes", names if len(names) < 100 else None)
                    subject = f"{listing.name}: {subject}"
                    how += f", or if its folders are the classes, pass {classes}"
            else:
                how = f"Write labels into a CSV or COCO's JSON, and pass {Option('labels', 'FILE')}"
                subject += ", in which no YOLO or Pascal VOC labels were found"
            yield Finding(Sentence(f"{subject}: these files are not read. {how}."), error)


def check_unread_tables(listing: Listing) -> Iterator[Finding]:
    """Yield a note on a file that names images without labels. Reads the beginning of up to 16 files."""
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
        how = f"pass {Option('labels', f'{listing.name}/{path}')}"
        if not path.lower().endswith(_READABLE):
            how = f"write these into a CSV or COCO's JSON, and pass {Option('labels', 'FILE')}"
        yield Finding(
            Sentence(
                f"{path} names images, such as {' and '.join(sorted(held)[:2])}, and is not read. If it "
                f"holds labels, {how}."
            )
        )


def _words(path: str) -> set[str]:
    """Return the words at the beginning of a file; empty if it cannot be read."""
    try:
        fd = os.open(on_disk(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return set()
    try:
        data = os.read(fd, _HEAD)
    except OSError:
        data = b""
    finally:
        os.close(fd)
    return {word.decode("utf-8", "surrogateescape") for word in _WORDS.findall(data)}
