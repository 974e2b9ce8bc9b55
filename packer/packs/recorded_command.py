"""The command that converts a pack again, from the options that its header records."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from packer.errors import PackerError
from packer.format.header import PACK_OPTIONS
from packer.format.header_forms import NORMALIZE
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_damaged, open_pack

_OTHERS = PACK_OPTIONS | {"append", "duplicates", "fields"}
"""Options of packs that no single conversion of files made."""
_NAMES = {"split_group": "group_column", "shard_bytes": "shard_size"}
_SILENT = ("choices", "types", "na", "pairs", "mask_values", "seed", "split_seed", NORMALIZE, "like", "store")
_CSV: Mapping[str, Any] = {
    "header": True,
    "delimiter": None,
    "quote": '"',
    "decimal": ".",
    "thousands": "",
    "encoding": "utf-8",
    "skip_rows": 0,
    "comment": None,
    "keep_spaces": False,
}
"""Options of text that are not repeated."""


def how_to_convert_again(path: str) -> str:
    """Return the command that replaces a damaged pack, as a sentence; "" if its header does not record it."""
    try:
        damaged = open_damaged(path)
        command = convert_again(damaged)
    except PackerError:
        return ""
    if not command:
        return ""
    try:
        open_pack(path).confirm()
        command, first = f"{command} --overwrite", ""
    except PackerError:  # it is no pack to be replaced
        first = f"Remove {path}. "
    images = damaged.parts[0].header.table is None and "--labels" not in command
    also = ", with --labels and --classes if they were given" if images else ""
    edited = f". If you edited the arrays yourself: packer seal {path}" if damaged.format == "npy" else ""
    return f"{first}To convert the same SRC again{also}: {command}{edited}"


def convert_again(pack: Pack) -> str:
    """Return the command, with SRC, FILE, DIR and PACK for names that packs do not record.

    Returns "" for a pack that was made from packs, samples, or appended rows, or with options that only
    Python has.
    """
    headers = [part.header for part in pack.parts]
    provenance = headers[0].provenance
    options = dict(provenance.get("options", {}))
    source = provenance.get("source")
    if not options or not source or _OTHERS & set(options):
        return ""
    if any(header.provenance != provenance for header in headers):
        return ""  # appended
    if sum(header.rows for header in headers) > source.get("images", pack.rows):
        return ""  # the same images were appended again
    if any(isinstance(part, list) for part in (options.get("split") or {}).values()):
        return ""  # splits by ranges of rows
    words = ["packer", "convert", "SRC", pack.path, *_words(options, source.get("reading", {}))]
    table = headers[0].table or {}
    if any(header.skipped for header in headers) or table.get("skipped", {}).get("rows"):
        words += ["--on-error", "skip"]
    return shlex.join(words)


def _words(options: dict[str, Any], reading: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words of the options. reading: how the text of a table was read."""
    named = {"label", "label_as", "label_file_column", "label_separator", "boxes", "keypoints"} & set(options)
    columns = {"split_column", "split_group"} & set(options) or options.get("sequence")
    if named or (columns and not reading):
        yield from ("--labels", "FILE")
    if NORMALIZE in options or "like" in options:
        yield from ("--like", "PACK")
    if isinstance(options.get("size"), str):
        options.pop("fit", None)  # is for rows of one size
    csv = {name: reading.get(name, default) for name, default in _CSV.items()}
    options |= {name: value for name, value in csv.items() if value != _CSV[name]}
    for name, value in {**options, **options.get("choices", {})}.items():
        if name in _SILENT:
            continue
        option = f"--{_NAMES.get(name, name).replace('_', '-')}"
        if name == "sequence":
            yield option
            yield from (word for column, value in value.items() for word in (f"--{column}-column", value))
            continue
        if isinstance(value, bool):
            yield option if value else f"--no-{option[2:]}"
        elif isinstance(value, Mapping):
            yield from (option, ",".join(f"{key}={part}" for key, part in value.items()))
        elif isinstance(value, list):
            joined = "x" if name == "size" else ","
            yield from (option, joined.join(map(str, value)) or "none")
        else:
            text = f"{value}B" if name == "shard_bytes" else str(value)
            yield from (option, text or "none")
    store = options.get("store", "raw")
    yield from () if store == "raw" else ("--store" if store == "jpeg" else "--compress", store)
    yield from (word for pair in options.get("pairs", ()) for word in ("--pair", f"{pair}=DIR"))
    values = options.get("mask_values", {}).items()
    yield from (word for pair, text in values for word in ("--mask-values", f"{pair}={text}"))
    types = {} if "like" in options else reading.get("types", {})
    yield from (word for column, type in types.items() for word in ("--type", f"{column}={type}"))
    yield from (word for text in reading.get("na", ()) for word in ("--na", text))
    if (seed := options.get("seed", options.get("split_seed", 0))) != 0:
        yield from ("--seed", str(seed))
    # Tables without a label, or like another pack, keep their order by default.
    ordered = reading and ("like" in options or not options.get("choices", {}).get("label"))
    if ("seed" in options) is bool(ordered):
        yield "--shuffle" if ordered else "--no-shuffle"
