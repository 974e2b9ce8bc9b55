"""The command line: a thin skin over packer's functions. Only this folder knows click.

    convert_command.py    convert: images, or a table, into one file
    options.py            every option of convert; those that several commands have
    looking.py            info, preview, report, bench, doctor
    reworking.py          append, merge, split, repack, export, verify, seal
    console.py            the group of commands; text for people, JSON for programs; what a conversion did

Start with convert_command.py. Imports: bench, codecs, convert, doctor, format, inputs, previews, progress, reports, samples,
tables, tables.transform.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import NoReturn

import click

from packer.cli import convert_command, looking, reworking  # noqa: F401  they register the commands
from packer.cli.console import cli, in_options, say, say_lines
from packer.errors import PackerError, UsageError

INTERRUPTED = 130
_AGAIN_SECONDS = 0.02


def main() -> NoReturn:
    """Run the command line and exit; every error is a sentence on stderr.

    Exit codes: 0 done; 1 the work failed; 2 wrong usage; 3 finished, with inputs skipped; 130 interrupted.
    """
    sys.unraisablehook = _interrupt_again
    try:
        code = cli.main(prog_name="packer", standalone_mode=False) or 0
    except click.exceptions.Exit as ended:
        code = ended.exit_code
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        say_lines(shown.getvalue(), err=True)
        code = UsageError.exit_code
    except PackerError as error:
        code = _failed(f"Error: {in_options(error.sentence)}", error.exit_code)
    except MemoryError:
        code = _failed(
            "Error: out of memory. Pass fewer --workers, or raise ulimit -v or the container's limit."
        )
    except (KeyboardInterrupt, click.Abort) as stop:
        said = str(stop.__cause__ or stop)  # click wraps the interrupt
        code = _failed(
            f"Interrupted. {said}" if said else "Interrupted; nothing was left behind.", INTERRUPTED
        )
    except BrokenPipeError:  # the reader of our output has gone: not an error of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except (OSError, ImportError) as error:
        if "Too many open files" not in str(error):
            raise
        code = _failed("Error: too many open files. Raise ulimit -n, or pass fewer --workers.")
    sys.exit(code)


def _failed(text: str, code: int = 1) -> int:
    """Print a line on stderr, return the exit code."""
    say(text, err=True)
    return code


def _interrupt(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _interrupt_again(dropped: sys.UnraisableHookArgs) -> None:
    """Raise once more a signal that came during a destructor or a weak reference's callback, where Python drops it."""
    if "ref count" in str(dropped.exc_value):
        return  # h5py, closing what a full disk keeps it from writing: the error itself is told
    if not isinstance(dropped.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)
    elif hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
