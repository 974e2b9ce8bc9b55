"""What commands print: text for people, JSON for programs."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import click

from packer.path_text import UNSEEN
from packer.sentence import Call, Option, Sentence
from packer.version import __version__

COMPRESS = ("none", "gzip", "zstd", "blosc2")
"""Values of --compress."""
OPTIONS = {
    "pairs": "pair",
    "types": "type",
    "Labels.as_": "label-as",
    "Labels.column": "label",
    "Labels.file": "labels",
    "Labels.file_column": "label-file-column",
    "Labels.separator": "label-separator",
}
"""Keyword -> the option, where that has another name."""
# Values that the command line spells otherwise.
_BARS = Option("Labels.separator", "|;")
_SPELLED = {("Csv.quote", ""): "none"}
# The one option in reasons that packs record, which hold text.
_RECORDED = re.compile(r"\bRaise max_pixels=(?= if )")


def say(line: str, *, err: bool = False) -> None:
    """Print a line in which anything may stand: names come from packs and folders, and those from anywhere.

    What a terminal would obey instead of showing it, line ends among it, is printed as an escape: \\x1b. Undecodable bytes too.
    """
    encoding = (sys.stderr if err else sys.stdout).encoding or "utf-8"
    shown = UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), line)
    click.echo(shown.encode(encoding, "backslashreplace").decode(encoding), err=err)


def say_lines(text: str, *, err: bool = False) -> None:
    """Print text of several lines as say() prints one."""
    for line in text.removesuffix("\n").split("\n"):
        say(line, err=err)


def in_options(sentence: str) -> str:
    """Return the sentence with its options as they are typed: ``--on-error skip``."""
    if isinstance(sentence, Sentence):
        return sentence.render(_typed)
    return _RECORDED.sub("Raise --max-pixels", sentence)


def _typed(part: Option | Call) -> str:
    if isinstance(part, Option):
        return _typed_option(part)
    words = ["packer", part.function.partition("_")[0], *map(shlex.quote, part.arguments)]
    words += ["--index"] if part.function == "merge_shards" else []
    words += [] if part.option is None else [_typed_option(part.option)]
    return " ".join(words) + (f" && {_typed(part.then)}" if part.then else "")


def _typed_option(option: Option) -> str:
    name = OPTIONS.get(option.name, option.name.rpartition(".")[2]).replace("_", "-")
    if option.name == "shards":
        name = "shard-rows" if isinstance(option.value, int) else "shard-size"
    elif option.name == "store" and option.value in COMPRESS:
        name = "compress"
    elif option == _BARS:
        return "--multi-label"
    name = f"--{name}"
    match option.value:
        case None | True:
            return name
        case False:
            return name.replace("--", "--no-", 1)
        case Mapping() as pairs:
            return " ".join(f"{name} {shlex.quote(f'{key}={value}')}" for key, value in pairs.items())
        case tuple() as values:
            return " ".join(f"{name} {shlex.quote(str(value))}" for value in values)
        case value:
            text = _SPELLED.get((option.name, str(value)), str(value))
            return f'{name} "{text}"' if text == "'" else f"{name} {shlex.quote(text)}"


class Output:
    """The output of one command: text, or with --json one JSON object, or with --quiet nothing; errors apart."""

    def __init__(self, command: str, *, as_json: bool, quiet: bool) -> None:
        self._command, self.as_json, self.quiet = command, as_json, quiet
        self._noted: set[str] = set()

    def say(self, *lines: str) -> None:
        """Print lines of text, unless JSON or nothing is asked for."""
        if not (self.as_json or self.quiet):
            for line in lines:
                say(line)

    def note(self, notes: Iterable[str]) -> None:
        """Print the notes that were not printed before."""
        for note in notes:
            if note not in self._noted:
                self._noted.add(note)
                self.say(f"note: {in_options(note)}")

    def tell(self, record: Mapping[str, Any], *lines: str) -> None:
        """Print what the command did: the record as JSON, or the lines."""
        if self.as_json:
            click.echo(json_text(self._command, record))
        self.say(*lines)


def json_text(command: str, record: Mapping[str, Any]) -> str:
    """Return one JSON object: the command and packer's version, then the entries of its report."""
    return json.dumps({"command": command, "packer": __version__, **_worded(record)}, indent=2)


def _worded(value: Any) -> Any:
    """Return a report's value with the sentences in it as in_options() words them."""
    match value:
        case str():
            return in_options(value)
        case Mapping():
            return {name: _worded(item) for name, item in value.items()}
        case list() | tuple():
            return [_worded(item) for item in value]
    return value
