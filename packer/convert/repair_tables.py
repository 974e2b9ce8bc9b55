"""The repair of packs of tables: the table is converted again, as the pack says, and what is damaged is copied from there.

A block of a table cannot be made by itself: which rows stand in it, and what fills their missing cells, is known when all rows have
been read. Equal inputs and options give equal bytes, so the seal of the new pack tells whether it is what the damaged one was.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from packer.errors import SourceError, UsageError
from packer.format.file_io import pread_all, pwrite_all, remove
from packer.format.pack import Pack, open_pack
from packer.format.verify import Problem
from packer.format.working_folder import difference
from packer.sentence import Option
from packer.tables.reading.table_source import ReadOptions, open_table
from packer.tables.table_conversion import convert_table

SUFFIX = ".repairing"
"""Of the name of a pack, for the one that is made again beside it."""
_CHUNK = 1 << 20


def repair_tables(
    pack: Pack,
    damaged: Mapping[int, Sequence[Problem]],
    source: str,
    *,
    workers: int | None,
    progress: bool,
    on_progress: Callable[[int], None] | None,
) -> set[tuple[int, int]]:
    """Bring the damaged parts of a pack of a table back to the bytes they had, in place.

    damaged: number of a part -> what is wrong with it; source: a file or glob. Returns: the blocks that were damaged, (part, block).
    Raises UsageError (another source, other versions, a pack that was not converted as it says), SourceError, PackerError.
    """
    made_of = _converted(pack, damaged)
    options, read = made_of["options"], made_of["source"]["reading"]
    found = open_table([source], ReadOptions(**{**read, "na": tuple(read["na"])})).fingerprint()
    differs = difference(made_of["source"], found)
    if differs:
        raise UsageError(f"{source}: is not what {pack.path} was made of: {differs}. Pass the same inputs.")
    again = pack.path.rstrip("/") + SUFFIX
    convert_table(
        source,
        again,
        **options.get("choices", {}),
        **read,
        format=options["format"],
        compress=options.get("compress", "none"),
        split=options.get("split"),
        shuffle="seed" in options,
        seed=options.get("seed", options.get("split_seed", 0)),
        shard_rows=options.get("shard_rows"),
        shard_size=options.get("shard_size"),
        workers=workers,
        on_error="skip" if (pack.parts[0].header.table or {})["skipped"]["rows"] else "stop",
        overwrite=True,
        resume=True,
        progress=progress,
        on_progress=on_progress,
    )
    made = open_pack(again)
    differs = difference(made_of, dict(made.parts[0].header.provenance))
    if differs:
        remove(again)
        raise UsageError(
            f"{pack.path}: cannot be made again: {differs}. Install what it was made with, or convert the table anew."
        )
    pairs = [(pack.parts[number], made.parts[number]) for number in damaged if number < len(made.parts)]
    if len(pairs) < len(damaged) or any(part.seal != new.seal for part, new in pairs):
        remove(again)
        raise SourceError(
            f"{source}: gives other rows than {pack.path} had; its files have changed since. Bring back the old ones, or convert the"
            " table again."
        )
    for part, new in pairs:
        _copy(new.path, part.path)
    remove(again)
    return {(n, p.block) for n, problems in damaged.items() for p in problems if p.block is not None}


def _converted(pack: Pack, damaged: Mapping[int, Sequence[Problem]]) -> Mapping[str, Any]:
    """Return how the damaged parts were converted from a table. Raises UsageError if they were not, or are not by these options alone."""
    for number in damaged:
        provenance = pack.parts[number].header.provenance
        options = provenance.get("options", {})
        if "append" in options:
            raise UsageError(
                f"{pack.parts[number].path}: was appended; rows that packer convert wrote are repaired. Convert all tables anew."
            )
        if {"repack", "merge", "shares"} & set(options):
            raise UsageError(
                f"{pack.path}: was made of other packs, not of a table. Make it again from them."
            )
        if "like" in options:
            raise UsageError(
                f"{pack.path}: was mapped as another pack; packs that were mapped by themselves are repaired."
                f" Make it again: packer convert SRC {pack.path} ",
                Option("like", "THAT"),
                " ",
                Option("overwrite", True),
                ", with the options it was made with.",
            )
        reading = provenance.get("source", {}).get("reading")
        if not isinstance(reading, dict) or "format" not in options:
            raise UsageError(f"{pack.path}: does not say how it was converted. Convert the table anew.")
    return provenance


def _copy(new: str, old: str) -> None:
    """Give a file, or all files of a folder, the bytes of another; what is equal is not written."""
    if os.path.isdir(new):
        for name in sorted(os.listdir(new)):
            _copy(os.path.join(new, name), os.path.join(old, name))
        return
    source = os.open(new, os.O_RDONLY | os.O_CLOEXEC)
    try:
        target = os.open(old, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            size = os.fstat(source).st_size
            for at in range(0, size, _CHUNK):
                data = pread_all(source, min(_CHUNK, size - at), at)
                if pread_all(target, len(data), at) != data:
                    pwrite_all(target, data, at)
            if os.fstat(target).st_size != size:
                os.ftruncate(target, size)
            os.fsync(target)
        finally:
            os.close(target)
    finally:
        os.close(source)
