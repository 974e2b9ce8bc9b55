"""The process that fills a pack, on a disk that has no room when the pack is to be sealed."""

from __future__ import annotations

from typing import Any

from packer.errors import SpaceError
from packer.filling import filling_process


def main(fd: int) -> None:
    """Fill the pack."""

    def refused(*_: Any) -> Any:
        raise SpaceError("p.h5: cannot be sealed (No space left on device). Make room.")

    filling_process.seal = refused
    filling_process.main(fd)
