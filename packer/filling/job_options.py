"""Options of fill_pack as JSON, for the process that fills the pack."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import packer
from packer.errors import UsageError
from packer.given_values import shown

VALUES = ("Csv", "Encode", "Labels", "Soft", "Split")
"""Value objects that options may be, by their public names."""
_MARK = "packer."


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as plain JSON values. Raises UsageError for one that has no such form."""
    return {name: _to_plain(f"{name}=", value) for name, value in options.items()}


def options_of(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that plain JSON values stand for."""
    return {name: _from_plain(value) for name, value in plain.items()}


def _to_plain(name: str, value: Any) -> Any:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if type(value).__module__ == "numpy":
        value = value.tolist()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_to_plain(name, one) for one in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _to_plain(name, one) for key, one in value.items()}
    ours = type(value).__module__.startswith("packer.") and type(value).__name__ in VALUES
    if ours and is_dataclass(value):
        given = {f.name: getattr(value, f.name) for f in fields(value)}
        return {_MARK + type(value).__name__: {key: _to_plain(name, one) for key, one in given.items()}}
    raise UsageError(
        f"{name}: {shown(value)} cannot be sent to the process that fills the pack. Pass text,"
        f" numbers, lists and mappings of these, or {', '.join(VALUES[:-1])} or {VALUES[-1]}."
    )


def _from_plain(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_from_plain(one) for one in plain]
    if isinstance(plain, dict):
        values = {key: _from_plain(one) for key, one in plain.items()}
        kind = next(iter(plain), "").removeprefix(_MARK)
        return getattr(packer, kind)(**values[_MARK + kind]) if _MARK + kind in plain else values
    return plain
