"""Where figures come from: commit, versions and machine, for every JSON of results."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from packer.bench.hardware_limits import load, machine, versions


def commit() -> str:
    """Return the commit of this checkout, with "+changes" if files differ from it; "" outside git."""
    outputs = []
    for command in (("rev-parse", "--short=8", "HEAD"), ("status", "--porcelain", "--untracked-files=no")):
        done = subprocess.run(
            ["git", *command], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        )
        if done.returncode:
            return ""
        outputs.append(done.stdout.strip())
    return outputs[0] + ("+changes" if outputs[1] else "")


def origin(packages: Iterable[str] = ()) -> dict[str, Any]:
    """Return commit, machine, versions (also of the named packages) and the current load."""
    found: dict[str, Any] = {"commit": commit()} | machine() | versions()
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found | {"load": load()}
