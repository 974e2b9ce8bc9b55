"""The process that fills a pack, with a decoder that crashes of one image, after the other workers have gone on."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from packer.filling import filling_process
from packer.pixels.decode_resize import DecodeResize

DEADLY = b"deadly"  # what such an image's file ends with


def main() -> None:
    """Fill the pack."""
    decode = DecodeResize.__call__

    def crash(self: DecodeResize, data: Any, out: Any) -> Any:
        if bytes(data).endswith(DEADLY):
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGSEGV)
        return decode(self, data, out)

    DecodeResize.__call__ = crash  # type: ignore[method-assign]
    filling_process.main()
