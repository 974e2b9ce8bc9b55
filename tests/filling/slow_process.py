"""The process that fills a pack, with a decoder so slow that nothing is whole while a test looks at it."""

from __future__ import annotations

import time
from typing import Any

from packer.filling import filling_process
from packer.pixels.decode_resize import DecodeResize


def main() -> None:
    """Fill the pack."""
    decode = DecodeResize.__call__

    def slow(self: DecodeResize, data: Any, out: Any) -> Any:
        time.sleep(0.04)
        return decode(self, data, out)

    DecodeResize.__call__ = slow  # type: ignore[method-assign]
    filling_process.main()
