"""The command line: a thin layer over packer's functions. Only this folder imports click.

    convert_command.py    convert: images, or a table, into one pack
    options.py            every option of convert; options shared by several commands
    help_sections.py      convert --help: its options in sections, or those about a word
    preview_command.py    preview: a contact sheet of a source, with convert's options, or of a pack
    inspect_commands.py   info, report, bench, doctor
    pack_commands.py      append, merge, split, repack, export, verify, seal
    dry_run.py            output of convert --dry-run
    option_words.py       messages in the words of the command line: on_error='skip' becomes --on-error skip
    console.py            the command group; output as text or JSON; prints plans and reports of conversions

Start with convert_command.py. Imports: bench, codecs, convert, doctor, format, inputs, packs, previews,
reports, samples, tables, tables.transform.
"""

from __future__ import annotations

import errno
import io
import signal
import sys
import warnings
from typing import NoReturn

import click

from packer.cli import convert_command, inspect_commands, pack_commands, preview_command  # noqa: F401  register
from packer.cli.console import cli, say, tell_error
from packer.cli.option_words import in_options
from packer.errors import PackerError, UsageError
from packer.given_values import brief
from packer.standard_streams import Outlet

INTERRUPTED = 130
UNPRINTED, NO_READER = 4, 141
_PRINTING = frozenset(("info", "bench", "doctor"))
"""Commands whose result is what they print."""
_AGAIN_SECONDS = 0.02


def main() -> NoReturn:
    """Run the command line and exit; print every error as a sentence on stderr.

    Exit codes: 0 done; 1 failed; 2 wrong usage; 3 finished, but inputs were skipped; 4 the result of a
    command that only prints could not be written; 130 interrupted; 141 nobody reads that result any more.
    """
    sys.unraisablehook = _interrupt_again
    warnings.showwarning = _warn
    out = sys.stdout = Outlet(sys.stdout)
    sys.stderr = Outlet(sys.stderr)
    code: int | None
    try:
        code = cli.main(prog_name="packer", standalone_mode=False)  # None; 0 of --help and --version
        code = _printed(out, code == 0 or sys.argv[1] in _PRINTING, code or 0)
    except click.exceptions.Exit as ended:
        code = ended.exit_code
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        for line in shown.getvalue().splitlines():
            say(brief(line), err=True)
        code = UsageError.exit_code
        tell_error(sys.argv[1:], brief(error.format_message()), code)
    except PackerError as error:
        code = _failed(f"Error: {brief(in_options(str(error)))}", error.exit_code)
    except MemoryError:
        code = _failed(
            "Error: out of memory. Pass fewer --workers, or raise ulimit -v or the container's limit."
        )
    except (KeyboardInterrupt, click.Abort) as stop:
        reason = str(stop.__cause__ or stop)  # click wraps the interrupt
        code = _failed(
            f"Interrupted. {reason}" if reason else "Interrupted; nothing was left behind.", INTERRUPTED
        )
    except (OSError, ImportError) as error:
        if "Too many open files" not in str(error):
            raise
        code = _failed("Error: too many open files. Raise ulimit -n, or pass fewer --workers.")
    sys.exit(code)


def _printed(out: Outlet, only_prints: bool, code: int) -> int:
    """Return the exit code of a command that is done, `code` unless stdout has lost its result."""
    out.flush()
    if out.error is None or (not only_prints and out.error.errno in (errno.EBADF, errno.EPIPE)):
        return code
    if out.error.errno == errno.EPIPE:
        return NO_READER
    why = out.error.strerror
    return _failed(
        f"stdout: cannot be written ({why}). Redirect it to another file.",
        UNPRINTED if only_prints else code,
    )


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning on stderr: its sentence, without a line of code."""
    text = message.args[0] if isinstance(message, Warning) and message.args else message
    say(f"warning: {in_options(text) if isinstance(text, str) else text}", err=True)


def _failed(text: str, code: int = 1) -> int:
    """Print a line on stderr, and with --json an object on stdout; return the exit code."""
    say(text, err=True)
    tell_error(sys.argv[1:], text.removeprefix("Error: "), code)
    return code


def _interrupt(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _interrupt_again(dropped: sys.UnraisableHookArgs) -> None:
    """Raise an interrupt again that Python dropped in a destructor or a weak reference's callback."""
    if "ref count" in str(dropped.exc_value):
        return  # h5py cannot flush a file on a full disk while closing it; the write error itself is reported
    if not isinstance(dropped.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)
    elif hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
