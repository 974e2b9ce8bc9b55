"""The command group and its output: text for people, JSON for programs; plans and reports of conversions."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import click

from packer import units
from packer.cli.option_words import in_options
from packer.given_values import brief
from packer.path_text import visible
from packer.version import __version__

if TYPE_CHECKING:
    from packer.convert.conversion_task import Report
    from packer.convert.image_planning import ConversionPlan
    from packer.tables.table_conversion import TablePlan

SKIPPED = 3
SHOWN = 20  # skipped inputs printed; all are in the pack's header
_LISTED = 8  # columns or classes named in a sentence
_LETTERS = 40  # of a class named in it
_SENTENCES = ("notes", "reason", "sentence", "text")
"""Entries of reports that are sentences."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="packer")
def cli() -> None:
    """Turn a folder of images, or a table, into one file that trains at memory speed.

    \b
    packer convert images/ train.h5 --size 256
    packer convert table.csv train.h5 --label target
    packer info train.h5
    packer bench images/ train.h5
    """


def say(line: str, *, err: bool = False) -> None:
    """Print a line; names in it come from packs and folders and are not trusted.

    Control characters, line ends included, and undecodable bytes are printed as escapes: \\x1b.
    """
    encoding = (sys.stderr if err else sys.stdout).encoding or "utf-8"
    click.echo(visible(line).encode(encoding, "backslashreplace").decode(encoding), err=err)


def say_lines(text: str, *, err: bool = False) -> None:
    """Print each line of a text with say()."""
    for line in text.removesuffix("\n").split("\n"):
        say(line, err=err)


class Output:
    """Output of one command, errors excluded: text, one JSON object (--json) or nothing (--quiet)."""

    as_json: bool
    quiet: bool

    def __init__(self, command: str, *, as_json: bool, quiet: bool) -> None:
        self._command, self.as_json, self.quiet = command, as_json, quiet
        self._noted: set[str] = set()

    def say(self, *lines: str) -> None:
        """Print lines of text, unless --json or --quiet is given."""
        if not (self.as_json or self.quiet):
            for line in lines:
                say(line)

    def note(self, notes: Iterable[str]) -> None:
        """Print the notes that have not been printed yet."""
        for note in notes:
            if note not in self._noted:
                self._noted.add(note)
                self.say(f"note: {brief(in_options(note))}")

    def tell(self, record: Mapping[str, Any], *lines: str) -> None:
        """Print the result of the command: the record as JSON, or the lines."""
        if self.as_json:
            click.echo(json_text(self._command, record))
        self.say(*lines)


def tell_error(words: Sequence[str], sentence: str, code: int) -> None:
    """Print an error as a JSON object on stdout, if a command asks for its result in that form.

    words: the command line, which click may have refused, without the name of the program.
    """
    options = words[: words.index("--")] if "--" in words else words
    command = next((word for word in words if not word.startswith("-")), "")
    # bench has --json FILE
    wanted = "--json=-" in options or any(
        word == "--json" and (command != "bench" or after == "-")
        for word, after in zip_longest(options, options[1:])
    )
    if wanted:
        click.echo(json_text(command, {"error": visible(sentence), "exit": code}))


def json_text(command: str, record: Mapping[str, Any]) -> str:
    """Return one JSON object: the command, packer's version, then the entries of the record."""
    return json.dumps({"command": command, "packer": __version__, **_worded(record)}, indent=2)


def _worded(value: Any, name: str = "") -> Any:
    """Apply in_options() to the sentences in a value of a report; its other texts come from files.

    name: the value's name in the report.
    """
    match value:
        case str():
            return in_options(value) if name in _SENTENCES else value
        case Mapping():
            return {name: _worded(item, name) for name, item in value.items()}
        case list() | tuple():
            return [_worded(item, name) for item in value]
    return value


def announce_plan(output: Output, sources: tuple[str, ...], out: str, plan: ConversionPlan) -> None:
    """Print the plan of an image conversion. out: the pack, "" if there is none."""
    source = sources[0] if len(sources) == 1 else f"{sources[0]} and {len(sources) - 1:,} more"
    classes = ""
    if plan.classes is not None:
        first = [f"{name[:_LETTERS]}{'...' if name[_LETTERS:] else ''}" for name in plan.classes[:_LISTED]]
        more = ["..."] if len(plan.classes) > _LISTED else []
        classes = f" of {units.count(len(plan.classes), 'class')} ({', '.join(first + more)})"
    shape = plan.sizes if plan.shape is None else "x".join(map(str, plan.shape))
    images = units.count(plan.rows, "image") + classes
    images += f" in {units.count(plan.sequences, 'sequence')}" if plan.sequences else ""
    arrow = f" -> {out}" if out else ""
    output.say(f"{source}: {images}{arrow}: {shape} each, about {units.size(plan.bytes)}")
    tell_splits(output, plan.splits)
    output.note(plan.notes)


def tell_splits(output: Output, splits: Mapping[str, int]) -> None:
    """Print the splits and their rows, if there are any."""
    if splits:
        output.say("splits: " + ", ".join(f"{name} {rows:,}" for name, rows in splits.items()))


def announce_table_plan(output: Output, sources: tuple[str, ...], out: str, plan: TablePlan) -> None:
    """Print the plan of a table conversion."""
    name = sources[0] if len(sources) == 1 else units.count(len(sources), "file")
    parts = [
        f"{role} {', '.join(columns[:_LISTED])}{', ...' if len(columns) > _LISTED else ''}"
        for role, columns in plan.roles.items()
    ]
    rows = "" if plan.rows is None else f"{units.count(plan.rows, 'row')}, "
    table = f"{rows}{units.count(plan.columns, 'column')}, {units.size(plan.bytes)}"
    output.say(f"{name}: {table} -> {out}: {'; '.join(parts)}")
    output.note(plan.notes)


def announce_arrays(output: Output, lines: Sequence[str]) -> None:
    """Print the plan of a conversion of arrays: a line about it, then notes."""
    output.say(lines[0])
    output.note(lines[1:])


def tell_report(
    output: Output,
    report: Report,
    noun: str = "",
    verb: str = "packed",
    where: str = "",
    *,
    skipping: bool = False,
) -> None:
    """Print a report.

    noun: "image" or "row", by default as the pack says; verb: past tense of the action; where: the
    pack, if several; skipping: list skipped inputs on stderr, and exit with code SKIPPED if there are any.
    """
    noun = noun or _noun(report.out)
    rows = units.count(report.rows, noun)
    if report.cleared:
        output.note([f"an interrupted conversion was cleared, since it differed ({report.cleared})"])
    if report.already:
        output.tell(report.to_dict(), f"{report.out}: holds all {rows} already")
        return
    output.note(report.notes)
    resumed = f", {report.resumed:,} of them read before it was interrupted" if report.resumed else ""
    read = f"{units.size(report.bytes_read)} -> " if report.bytes_read else ""
    output.tell(
        report.to_dict(),
        f"{verb} {rows}{where}{resumed}, {read}{units.size(report.bytes_written)},"
        f" in {units.duration(report.seconds)} ({report.rows_per_second:,.0f} {noun}s/s,"
        f" {units.count(report.workers, 'worker')})",
    )
    if not (skipping and report.skipped):
        return
    count, listed = len(report.skipped), "them all"
    title = f"skipped {units.count(count, 'input')}"
    if report.reasons:
        count, listed = report.skipped_rows, f"the first {count:,}"
        why = ", ".join(f"{rows:,} {reason}" for reason, rows in report.reasons.items())
        title = f"left out {units.count(count, 'row')} ({why})"
    tell_skipped(output, title, report.skipped, count, f"; packer info {report.out} --json lists {listed}")
    raise click.exceptions.Exit(SKIPPED)


def _noun(path: str) -> str:
    """Return the noun for rows of a pack, "image" or "row"."""
    from packer.packs.pack_opening import open_pack

    return "image" if any(field.name == "image" for field in open_pack(path).fields) else "row"


def tell_skipped(
    output: Output, title: str, skipped: Sequence[Mapping[str, str]], count: int, more: str = ""
) -> None:
    """List inputs that were left out, on stderr. count: of all of them; more: where the others are listed."""
    if output.as_json:
        return
    say(f"{title}:", err=True)
    for item in skipped[:SHOWN]:
        say(f"  {item['key']}: {in_options(item['reason'])}", err=True)
    if count > SHOWN:
        say(f"  and {count - SHOWN:,} more{more}", err=True)
