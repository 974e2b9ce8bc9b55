"""Which fields are loaded, and what the rows of ragged ones are to a user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from packer.errors import UsageError
from packer.format.header import Field
from packer.format.pack import Pack


def select_fields(pack: Pack, names: Sequence[str] | None) -> tuple[Field, ...]:
    """The named fields of a pack, in that order; None: all fixed ones. Raises UsageError for an unknown or repeated name."""
    if names is None:
        return tuple(f for f in pack.fields if not f.ragged)
    known = {f.name: f for f in pack.fields}
    for name in names:
        if name not in known:
            raise UsageError(
                f"{pack.path}: has no field {name!r}; it has {', '.join(known)}. Pass some of these."
            )
    if not names or len(set(names)) != len(names):
        raise UsageError(f"fields={list(names)!r}: is empty or names one twice. Name each field once.")
    return tuple(known[name] for name in names)


def decode_ragged(field: Field, rows: list[bytes]) -> list[Any]:
    """Rows as str where the field says that they are text (undecodable bytes as surrogate escapes), else as they are."""
    encoding = field.about.get("encoding")
    return [row.decode(encoding, "surrogateescape") for row in rows] if encoding else list(rows)
