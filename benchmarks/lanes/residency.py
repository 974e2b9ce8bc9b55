"""Keeps stores in the page cache."""

from __future__ import annotations

from collections.abc import Sequence

from packer.bench.hardware_limits import resident_share

PROBED = 32  # files of a store
READ_BYTES = 8 << 20
WARM = 0.999


def share(files: Sequence[str]) -> float:
    """Return the approximate share of the files in the page cache; 1 where the system does not tell."""
    probed = files[:: max(1, len(files) // PROBED)]
    shares = [1.0 if (found := resident_share(path)) is None else found for path in probed]
    return sum(shares) / len(shares)


def warm(files: Sequence[str]) -> float:
    """Read the files if they are not in the page cache. Returns the share that is there afterwards."""
    if share(files) < WARM:
        for path in files:
            with open(path, "rb", buffering=0) as file:
                while file.read(READ_BYTES):
                    pass
    return share(files)
