"""The entry of the command line, also as ``python -m packer`` where another program called packer comes first on the PATH.

The modules behind it take a third of a second to load: who interrupts that reads one sentence, too, as of the work itself.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from typing import NoReturn

from packer.version import NOT_ON_WINDOWS

_INTERRUPTED = 130
_ENDING = ("SIGINT", "SIGTERM", "SIGHUP")


def run() -> None:
    """Load the command line, run it and exit."""
    if sys.platform == "win32":
        sys.exit(NOT_ON_WINDOWS)
    said = b"Interrupted; nothing was left behind.\n"
    try:
        try:
            for name in _ENDING:
                number = getattr(signal, name, None)
                if number and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                    signal.signal(number, _interrupt)
            from packer.cli import main

            said = b"Interrupted.\n"
            main()
        finally:  # the work has ended: a signal while Python does would only print where that was
            for name in (*_ENDING, "SIGALRM"):
                if hasattr(signal, name):
                    signal.signal(getattr(signal, name), signal.SIG_IGN)
            # Python forgets only here that it was interrupted inside an eval() or exec() of text, as named tuples and data
            # classes are made by; else it would end by SIGINT, whatever the exit code (_PyRuntime.signals).
            eval("0")
    except SystemExit as ended:
        if ended.code != _INTERRUPTED:
            raise
        _exit_now()
    except (Exception, KeyboardInterrupt) as error:
        if not _interrupted(error):
            raise
        os.write(2, said)
        os._exit(_INTERRUPTED)


_came: list[int] = []  # signals


def _interrupt(signum: int, frame: object) -> NoReturn:
    _came.append(signum)
    raise KeyboardInterrupt


def _exit_now() -> None:
    """End without taking Python down: an import that was interrupted half-way may crash it there.

    h5py registers type converters with libhdf5, and in its next line what takes them back at exit: interrupted between the two,
    libhdf5 calls them when Python is gone (seen once in some hundred interruptions: SIGSEGV after the sentence).
    """
    atexit._run_exitfuncs()  # of h5py, of process pools
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(_INTERRUPTED)


def _interrupted(error: BaseException | None) -> bool:
    """Return True if an error came of an interruption: Python itself makes others of it, as where a class is being made.

    Modules in C that are being imported, such as h5py's, make an ImportError of it that does not tell.
    """
    if _came and isinstance(error, ImportError):
        return True
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


if __name__ == "__main__":
    run()
