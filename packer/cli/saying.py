"""Text for people, and the progress bar."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import click
from tqdm import tqdm

SKIPPED = 3
SHOWN = 20  # skipped inputs printed; all are in the pack's header


def say(text: str, *, err: bool = False) -> None:
    """Print text in which undecodable bytes of file names may stand."""
    encoding = (sys.stderr if err else sys.stdout).encoding or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), err=err)


def list_skipped(skipped: tuple[dict[str, str], ...], count: int, remedy: str) -> NoReturn:
    """Print the first of them, count being all, and end with the exit code for that."""
    for item in skipped[:SHOWN]:
        say(f"  {item['key']}: {item['reason']}", err=True)
    if count > SHOWN:
        say(f"  and {count - SHOWN:,} more; {remedy}", err=True)
    raise click.exceptions.Exit(SKIPPED)


class Bar:
    """A progress bar: so many of how many, a second, time left; only on a terminal. A context manager."""

    def __init__(self, quiet: bool, unit: str, *, scale: bool = False) -> None:
        """unit: what is counted; scale: in thousands, millions ... as bytes are."""
        self._options: dict[str, Any] = {
            "unit": unit,
            "unit_scale": scale,
            "disable": True if quiet else None,
        }
        self._bar: Any = None

    def start(self, total: int | None) -> None:
        """Show it; total: None if not known."""
        self._bar = tqdm(total=total, leave=False, dynamic_ncols=True, **self._options)

    def move(self, done: int) -> None:
        """Show how many are done."""
        self._bar.update(done - self._bar.n)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.close()
