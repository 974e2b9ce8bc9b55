"""Messages in the words of the command line: ``on_error='skip'`` of the library becomes ``--on-error skip``.

An option has the name of its parameter, but for those in OPTIONS.
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
from contextlib import suppress
from typing import Any

from packer.codecs import NAMES

COMPRESS = ("none", *NAMES)
"""Values of --compress."""
OPTIONS = {
    "Labels.as_": "label-as",
    "Labels.column": "label",
    "Labels.file": "labels",
    "Labels.file_column": "label-file-column",
    "Labels.separator": "label-separator",
    "Sequences.group": "group-column",
    "Sequences.order": "order-column",
    "Split.column": "split-column",
    "Split.group": "group-column",
    "Split.shares": "split",
    "pairs": "pair",
    "shards": "shard-size",
    "types": "type",
}
"""Keyword, or member of a value object -> command line option, where their names differ."""
_SAME = (
    "boxes boxes_format boxes_frame boxes_unit channels classes comment decimal delimiter drop dry_run dtype "
    "duplicates encoding engine escape features fit flip_pairs format header icc indicators keep keep_spaces "
    "keypoints label label_as label_file_column label_separator labels like log1p mask_values max_categories "
    "max_pixels missing model_rate na on_error one_hot only_shards order overwrite quality quote rename "
    "resume rounds seed sequence shuffle size skip_rows soft split standardize store thousands unlabeled "
    "unlisted workers"
)
"""Keywords, and members of value objects, that are called alike."""
_NUMBERS = "channels max_categories max_pixels model_rate quality rounds seed shards size skip_rows workers"
"""Keywords of numbers: label=1 is a folder."""
_COMMANDS = (
    "append_images append_table bench convert_images export_images merge_shards repack report split_pack"
)
_TEXT = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_OPEN = r"""(?:'(?:[^'\\]|\\.)*|"(?:[^"\\]|\\.)*)\\?"""
_INSIDE = rf"""(?:{_TEXT}|[^()\[\]{{}}'"])*"""
_VALUE = rf"(?:{_TEXT}|True|False|-?\d+(?:\.\d+)?|\({_INSIDE}\)|\[{_INSIDE}\]|\{{{_INSIDE}\}})"
_CALL = rf"(?:{_COMMANDS.replace(' ', '|')})\({_INSIDE}\)"
_MEMBER = rf"(?:Csv|Encode|Fields|Labels|Sequences|Split)\(\w+={_VALUE}?\)"
# Names of files and classes stand in quotes, or in words such as size=256/a.png.
_QUOTED = rf"(?<!\w)(?:{_TEXT}(?!\w)|{_OPEN}\Z)"
_MENTION = re.compile(
    rf"{_QUOTED}|(?P<code>(?<=[\w)\]])\()|(?P<open>\()|(?P<close>\))"
    rf"|(?<![\w./=-])(?:(?P<calls>{_CALL}(?:; {_CALL})*)|(?P<keyword>\w+=(?:{_VALUE}|{_MEMBER})?))"
    r"(?=[\s,;)\]]|[.:](?:\s|$)|$)"
)


def in_options(sentence: str) -> str:
    """Return a sentence with its keywords and calls as they are typed.

    Other Python code, and names that were typed themselves, such as that of a folder size=256, are unchanged.

    >>> in_options("'size=8': is cut short. Pass on_error='skip', or labels=Labels(column='kind').")
    "'size=8': is cut short. Pass --on-error skip, or --label kind."
    >>> in_options("Run repack('a.h5', 'a', shards='2GB'); append_images('a', 'more images').")
    "Run packer repack a.h5 a --shard-size 2GB && packer append a 'more images'."
    """
    names = {word.rstrip("/") for word in sys.argv}
    depth = 0  # of parentheses inside a call in Python code

    def typed(mention: re.Match[str]) -> str:
        nonlocal depth
        if mention["code"] or (depth and mention["open"]):
            depth += 1
        elif mention["close"]:
            depth = max(0, depth - 1)
        with suppress(TypeError, ValueError, SyntaxError):  # not of the command line
            if mention["calls"] and not depth:
                return " && ".join(map(_command, _calls(mention[0])))
            if mention["keyword"] and not depth and mention[0] not in names:
                with_value = re.sub(r"=(\)?)$", r"=None\1", mention[0])
                return _option(_calls(f"_({with_value})")[0].keywords[0])
        return mention[0]

    return _MENTION.sub(typed, sentence)


def _calls(code: str) -> list[Any]:
    statements: list[Any] = ast.parse(code).body
    return [statement.value for statement in statements]


def _command(call: Any) -> str:
    """Return a call as a command. Raises ValueError if its arguments are not literals."""
    words = ["packer", call.func.id.partition("_")[0]]
    words += [shlex.quote(ast.literal_eval(argument)) for argument in call.args]
    words += ["--index"] if call.func.id == "merge_shards" else []
    return " ".join([*words, *map(_option, call.keywords)])


def _option(keyword: Any) -> str:
    """Return a keyword of a call as an option. Raises ValueError if no command has it."""
    name, value = keyword.arg, keyword.value
    if isinstance(value, ast.Call):
        name, value = f"{value.func.id}.{value.keywords[0].arg}", value.keywords[0].value  # type: ignore[attr-defined]
    value = ast.literal_eval(value)
    if name not in OPTIONS and name.rpartition(".")[2] not in _SAME.split():
        raise ValueError(name)
    if type(value) in (int, float) and "." not in name and name not in _NUMBERS.split():
        raise ValueError(name)
    if name == "shards" and isinstance(value, int):
        typed = "shard-rows"
    elif name == "store" and value in COMPRESS:
        typed = "compress"
    else:
        typed = OPTIONS.get(name) or name.rpartition(".")[2].replace("_", "-")
    if value is None or isinstance(value, bool):
        return f"--no-{typed}" if value is False else f"--{typed}"
    values = value if isinstance(value, (list, tuple)) else [value]
    values = [f"{key}={one}" for key, one in value.items()] if isinstance(value, dict) else values
    return " ".join(f"--{typed} {_quoted(str(one), name)}" for one in values)


def _quoted(text: str, name: str) -> str:
    """Return the value of an option as it is typed."""
    if name == "Csv.quote" and not text:
        return "none"
    if text in ("'", ","):  # a comma would read as one of the sentence
        return f'"{text}"'
    return shlex.quote(text)
