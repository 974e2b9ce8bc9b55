"""stdin, stdout and stderr that are closed, full, or without a reader."""

from __future__ import annotations

import errno
import io
import os
from contextlib import suppress
from typing import Any


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

    def __init__(self, stream: Any, kind: type[str] | type[bytes] = str) -> None:
        """Wrap a stream of text, or of bytes; a closed one, or None, drops every text."""
        self._stream: Any = None if getattr(stream, "closed", False) else stream
        self._kind = kind
        self.error = None if self._stream else OSError(errno.EBADF, "it is closed")

    def write(self, text: Any) -> int:
        """Write a text unless an earlier one failed. Raises TypeError for another kind; click asks so."""
        if not isinstance(text, self._kind):
            raise TypeError(f"the stream takes {self._kind.__name__}")
        self._call("write", text)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        self._call("flush")

    def _call(self, name: str, *arguments: Any) -> None:
        if self._stream and self.error is None:
            try:
                getattr(self._stream, name)(*arguments)
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
    def encoding(self) -> str:  # type: ignore[override]
        """The stream's encoding."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    @property
    def buffer(self) -> Outlet:
        """The stream of bytes below a stream of text; click writes completions there."""
        return Outlet(self._stream.buffer, bytes)
