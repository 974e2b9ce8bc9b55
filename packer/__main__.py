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
    came, said = [], b"Interrupted; nothing was left behind.\n"

    def interrupt(signum: int, frame: object) -> NoReturn:
        came.append(signum)
        raise KeyboardInterrupt

    try:
        try:
            for name in _ENDING:
                number = getattr(signal, name, None)
                if number and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                    signal.signal(number, interrupt)
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
        # An import that was interrupted half-way may crash Python while it ends: h5py registers type converters with libhdf5, and
        # in its next line what takes them back at exit; interrupted between the two, libhdf5 calls them when Python is gone
        # (seen once in some hundred interruptions: SIGSEGV after the sentence).
        atexit._run_exitfuncs()  # of h5py, of process pools
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(_INTERRUPTED)
    except (Exception, KeyboardInterrupt):
        if not came:  # Python, and modules in C that are being imported, make other errors of an interruption
            raise
        os.write(2, said)
        os._exit(_INTERRUPTED)


if __name__ == "__main__":
    run()
