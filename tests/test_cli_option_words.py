"""Messages in the words of the command line."""

from __future__ import annotations

import ast
import json
import re
import sys
from dataclasses import fields
from pathlib import Path

import click
import numpy as np
import pytest

import packer
from packer.cli import cli
from packer.cli.console import json_text
from packer.cli.option_words import _COMMANDS, _SAME, OPTIONS, in_options
from packer.given_values import call_text, option_text

ROOT = Path(__file__).parents[1] / "packer"


@pytest.mark.parametrize(
    ("python", "typed"),
    [
        (option_text("on_error", "skip"), "--on-error skip"),
        (option_text("size"), "--size"),
        (option_text("overwrite", True), "--overwrite"),
        (option_text("shuffle", False), "--no-shuffle"),
        (option_text("workers", 0), "--workers 0"),
        (option_text("label", "two words"), "--label 'two words'"),
        (option_text("keep", ("a", "it's")), "--keep a --keep 'it'\"'\"'s'"),
        (option_text("types", {"id": "category"}), "--type id=category"),
        (option_text("pairs", {"mask": "m({a/"}), "--pair 'mask=m({a/'"),
        (option_text("shards", 100000), "--shard-rows 100000"),
        (option_text("shards", "2GB"), "--shard-size 2GB"),
        (option_text("store", "jpeg"), "--store jpeg"),
        (option_text("store", "zstd"), "--compress zstd"),
        (option_text("Labels.as_", "float"), "--label-as float"),
        (option_text("Labels.column"), "--label"),
        (option_text("Csv.quote", ""), "--quote none"),
        (option_text("Csv.quote", "'"), """--quote "'\""""),
        (option_text("Csv.na", ("",)), "--na ''"),
        (option_text("Csv.skip_rows", 1), "--skip-rows 1"),
        (call_text("report", "PACK"), "packer report PACK"),
        (call_text("merge_shards", "my pack"), "packer merge 'my pack' --index"),
        (
            f"{call_text('repack', 'a.h5', 'b', shards='2GB')}; {call_text('append_images', 'b', 'c')}",
            "packer repack a.h5 b --shard-size 2GB && packer append b c",
        ),
    ],
)
def test_options_and_calls_are_typed(python: str, typed: str) -> None:
    for sentence in (
        "a.png: is cut short. Pass {}.",
        "Pass {}, or x.",
        "it's (or {}).",
        "images' 'x': {} and 'y'",
        "a: {}: b",
    ):
        assert in_options(sentence.format(python)) == sentence.format(typed)


@pytest.mark.parametrize(
    "text",
    [
        "'size=256', \"it's size=256\" and \"a', on_error='skip', 'b\" are classes.",
        "size=256/a.png, a/size=256, x-size=256 and year=2018/part.csv: are names.",
        "label=1, split=0 and keep=2 are folders.",
        "pack_dataset(((n, v[()]) for n, v in rows()), 'out.h5', size=256, classes=['a']).",
        "nothing=3, size=None, size=x, size=2x3, sizes=3, mysize=3.",
        *(text * 20_000 for text in ("'\\", "size=('", "x((", "repack('", '"')),
        "window=Windows(size=8), split=Split(other='a').",
        "repack(a, b), repack(...), report(s) and the report.",
    ],
    ids=lambda text: text[:20],
)
def test_names_of_files_and_other_code_are_not_touched(text: str) -> None:
    assert in_options(text) == text


def test_what_was_typed_is_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_options("size=256: is cut short. Pass size=8.") == "--size 256: is cut short. Pass --size 8."
    monkeypatch.setattr(sys, "argv", ["packer", "info", "size=256/"])
    assert in_options("size=256: is cut short. Pass size=8.") == "size=256: is cut short. Pass --size 8."


def test_a_subject_is_worded() -> None:
    assert (
        in_options("store='zstd': zstandard is not installed.")
        == "--compress zstd: zstandard is not installed."
    )
    assert in_options("split=: is given. Pass size=8.") == "--split: is given. Pass --size 8."


def test_values_that_are_no_literals_stay() -> None:
    for value in (float("inf"), object(), Path("x"), np.int64(3)):
        text = f"Pass {option_text('size', value)}."
        assert in_options(text) == text


def test_only_sentences_of_a_report_are_worded() -> None:
    record = {
        "notes": ("Pass label_as='float'.", "plain"),
        "skipped": [{"key": "on_error='skip'", "reason": "Raise max_pixels= if it is meant."}],
        "classes": ["on_error='skip'"],
        "rows": 3,
    }
    told = json.loads(json_text("convert", record))
    assert told["notes"] == ["Pass --label-as float.", "plain"]
    assert told["skipped"] == [{"key": "on_error='skip'", "reason": "Raise --max-pixels if it is meant."}]
    assert (told["classes"], told["rows"]) == (["on_error='skip'"], 3)


def test_the_table_names_members_options_and_commands() -> None:
    options = {
        name: {p.opts[-1][2:] for p in command.params if isinstance(p, click.Option)}
        for name, command in cli.commands.items()
    }
    assert set(OPTIONS.values()) <= options["convert"]
    for name in OPTIONS:
        kind, _, member = name.rpartition(".")
        assert not kind or member in {field.name for field in fields(getattr(packer, kind))}
    others = {"json", "quiet", "address", "shard-rows", "compress"}
    alike = {name.replace("_", "-") for name in _SAME.split()}
    assert options["convert"] == (alike & options["convert"]) | set(OPTIONS.values()) | others
    assert (
        alike - options["convert"]
        == {"duplicates", "model-rate", "order", "rounds"}
        < set().union(*options.values())
    )
    assert {name.partition("_")[0] for name in _COMMANDS.split()} <= set(options)
    assert all(name == "bench" or callable(getattr(packer, name)) for name in _COMMANDS.split())


def test_only_the_command_line_knows_its_options() -> None:
    """No text of the library, docstrings and the command that a header records apart, holds an option as typed."""
    options = {
        name
        for command in cli.commands.values()
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("--")
    }
    assert "--on-error" in options
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "cli" in path.relative_to(ROOT).parts or path.name == "recorded_command.py" or "--" not in text:
            continue
        tree = ast.parse(text)
        documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
                typed = options.intersection(re.findall(r"--[a-z][a-z-]*", node.value))
                found += [f"{path.name}:{node.lineno}: {name}" for name in sorted(typed)]
    assert found == []
