"""Silence for libpng, libtiff and Pillow, which print to stderr; packer reports each faulty file itself."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from packer.pillow_settings import keep_defaults

_STDERR = 2

_lock = threading.Lock()
_inside = 0
_saved = -1
_for_good = False


@contextmanager
def without_pillow_warnings() -> Iterator[None]:
    """Ignore Pillow's warnings about unusual files; only for a single thread and those that it starts."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\b")
        yield


def silence_process() -> None:
    """Redirect stderr and set Pillow's defaults until this worker process ends; its parent reports."""
    global _for_good
    keep_defaults()
    with suppress(OSError):
        _point_nowhere()
        _for_good = True


class QuietStderr:
    """A context in which C libraries print nothing to stderr; for any number of threads.

    Takes 5 us, in a worker process 0.3.
    """

    def __enter__(self) -> None:
        """Redirect stderr to the null device, unless another thread already did."""
        global _inside, _saved
        if _for_good:
            return
        with _lock:
            _inside += 1
            if _inside == 1:
                with suppress(OSError):  # closed, or no free descriptor: the library prints
                    _saved = os.dup(_STDERR)
                    _point_nowhere()

    def __exit__(self, *_: object) -> None:
        """Restore stderr when the last thread leaves."""
        global _inside, _saved
        if _for_good:
            return
        with _lock:
            _inside -= 1
            if not _inside and _saved >= 0:
                os.dup2(_saved, _STDERR)
                os.close(_saved)
                _saved = -1


def _point_nowhere() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, _STDERR)
    os.close(nowhere)
