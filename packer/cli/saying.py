"""What commands print: text for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import click

from packer import __version__

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


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on stdout instead of text."
)


def print_json(command: str, record: Mapping[str, Any]) -> None:
    """Print what a command did as one JSON object."""
    click.echo(json_text(command, record))


def json_text(command: str, record: Mapping[str, Any]) -> str:
    """Return one JSON object: the command and packer's version, then the entries of its report."""
    return json.dumps({"command": command, "packer": __version__, **record}, indent=2)
