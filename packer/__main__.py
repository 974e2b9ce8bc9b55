"""Entry of the command line, also as ``python -m packer`` if another packer is first on the PATH.

The modules behind it take a third of a second to load. An interruption during that time prints one sentence,
as during the work itself.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

from packer.standard_streams import open_closed
from packer.version import NOT_ON_WINDOWS

_INTERRUPTED = 130
_ENDING = ("SIGINT", "SIGTERM", "SIGHUP")


def run() -> None:
    """Load the command line, run it and exit."""
    if sys.platform == "win32":
        sys.exit(NOT_ON_WINDOWS)
    open_closed()
    os.environ.pop("HDF5_DRIVER", None)  # packer names its driver, and libhdf5 crashes on an unknown one
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
        finally:  # the work has ended: a signal during exit would only print a traceback
            for name in (*_ENDING, "SIGALRM"):
                if hasattr(signal, name):
                    signal.signal(getattr(signal, name), signal.SIG_IGN)
            # Python remembers an interruption inside an eval() or exec() of text, which named tuples and data
            # classes use, and would end by SIGINT, whatever the exit code (_PyRuntime.signals). Only another
            # eval() resets that.
            eval("0")
    except SystemExit as ended:
        if ended.code != _INTERRUPTED:
            raise
        # An interrupted import may crash Python at exit: h5py registers type converters with libhdf5, and in
        # its next line their removal at exit. After an interruption between these lines, libhdf5 calls the
        # converters when Python is gone (SIGSEGV after the sentence, once in some hundred interruptions).
        atexit._run_exitfuncs()  # those of h5py and of process pools
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(_INTERRUPTED)
    except (Exception, KeyboardInterrupt) as error:
        if not came:  # Python, and C modules during import, turn an interruption into other errors
            package = (getattr(error, "name", None) or "packer").partition(".")[0]
            if not isinstance(error, ImportError) or package == "packer":
                raise
            package = "pillow" if package == "PIL" else package
            sys.exit(f"Error: {error}. Run: pip install --force-reinstall {package}")
        with suppress(OSError):  # stderr is full, or has no reader
            os.write(2, said)
        os._exit(_INTERRUPTED)


if __name__ == "__main__":
    run()
