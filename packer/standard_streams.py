"""stdin, stdout and stderr that are closed, full, or without a reader."""

from __future__ import annotations

import errno
import io
import os
from contextlib import suppress
from typing import Any, TextIO


def open_closed() -> None:
    """Open descriptors 0 to 2 on the null device where they are closed.

    Otherwise a pack's file gets such a number, and what a C library prints is written into the pack.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            with suppress(OSError):  # a container without /dev/null
                os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: fd


class Outlet(io.TextIOBase):
    """A stream whose first write error is kept and not raised, so that the work of a command goes on.

    error: that error; later texts are dropped.
    """

    def __init__(self, stream: TextIO | None) -> None:
        """Wrap a stream; a closed one, or None, drops every text."""
        self._stream = None if getattr(stream, "closed", False) else stream
        self.error = None if self._stream else OSError(errno.EBADF, "it is closed")

    def write(self, text: str) -> int:
        """Write a text, unless an earlier one failed. Raises TypeError for bytes, by which click knows a text stream."""
        if not isinstance(text, str):
            raise TypeError("a text stream takes no bytes")
        if self._stream and self.error is None:
            try:
                self._stream.write(text)
            except OSError as error:
                self.error = error
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        if self._stream and self.error is None:
            try:
                self._stream.flush()
            except OSError as error:
                self.error = error

    def isatty(self) -> bool:
        """Return True for a terminal."""
        ask = getattr(self._stream, "isatty", None)  # a program's own stream may have write() alone
        return ask is not None and ask()

    def fileno(self) -> int:
        """Return the stream's descriptor."""
        return self._stream.fileno() if self._stream else super().fileno()

    @property
    def buffer(self) -> Any:
        """The stream's binary buffer, into which click writes completions; None if it has none."""
        return getattr(self._stream, "buffer", None)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The stream's encoding."""
        return getattr(self._stream, "encoding", None) or "utf-8"
