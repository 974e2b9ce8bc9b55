"""Words in names of files and folders that say a split: train, val, test."""

from __future__ import annotations

import re

SPLIT_NAMES = {
    **{"train": "train", "training": "train"},
    **{name: name for name in ("val", "valid", "validation", "dev", "eval")},
    **{"test": "test", "testing": "test"},
}
"""Folder name in lower case -> its split; in the order of the splits. These folders are never classes."""
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def split_word(name: str) -> str:
    """Return the word of a name that says a split, or "": "trainA" -> "train", "X_Test" -> "Test"."""
    return next((word for word in _WORDS.findall(name) if word.lower() in SPLIT_NAMES), "")


def split_in(name: str) -> str | None:
    """Return the split that a word of a name says, or None: "trainA", "x-train-0000" -> "train"."""
    return SPLIT_NAMES.get(split_word(name).lower())


def split_of(path: str) -> str | None:
    """Return the split that a file's name, or else its folder, says: "x-train-0000.tar" -> "train"."""
    return next(filter(None, map(split_in, reversed(path.split("/")[-2:]))), None)
