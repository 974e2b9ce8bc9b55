"""A background thread that ends with its owner, however the owner ends."""

from __future__ import annotations

import threading
import traceback
import weakref
from collections.abc import Callable
from types import TracebackType

from packer.starting import start


class Background:
    """One daemon thread that runs work(ending) once.

    owner: when it is collected the thread is told to end; at the interpreter's exit that is waited for.
    work: looks at ``ending`` often, and returns soon after it is set; must not refer to the owner, or that is never collected.
    error: what work raised, else None. A forked child has no such thread.
    """

    def __init__(self, owner: object, name: str, work: Callable[[threading.Event], None]) -> None:
        self.error: Exception | None = None
        self._place: TracebackType | None = None
        self._work = work
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        weakref.finalize(owner, self._ending.set).atexit = False
        # At exit a thread in the middle of a copy must not meet an interpreter, or a CUDA context, that is gone. Finalizers then
        # run in reverse order of their making: this one before those of the memory that the thread fills.
        weakref.finalize(self, _end, self._ending, self._thread)
        start(self._thread)

    def _run(self) -> None:
        try:
            self._work(self._ending)
        except Exception as error:
            # Of what was going on keep the places, not the memory.
            traceback.clear_frames(error.__traceback__)
            self._place = error.__traceback__
            self.error = error
        finally:
            del self._work  # and with it what it holds: files, memory

    def check(self) -> None:
        """Re-raise the error of `work`, if any."""
        if self.error is not None:
            raise self.error.with_traceback(self._place)

    def end(self) -> None:
        """Tell the thread to end, and wait until it has."""
        _end(self._ending, self._thread)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the thread to end. timeout: seconds."""
        self._thread.join(timeout)


def _end(ending: threading.Event, thread: threading.Thread) -> None:
    ending.set()
    if thread.ident is not None and thread is not threading.current_thread():  # None: it could not be started
        thread.join()
