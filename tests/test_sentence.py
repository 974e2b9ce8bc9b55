"""packer.sentence: one value, worded for Python and for the command line."""

from __future__ import annotations

import ast
import copy
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from packer import errors
from packer.cli import cli
from packer.cli.console import in_options, json_text
from packer.errors import FormatError, MissingDependencyError, PackerError, SourceError, UsageError
from packer.given_values import shown
from packer.sentence import Call, Option, Sentence

ROOT = Path(__file__).parents[1] / "packer"

WORDED = {
    Option("on_error", "skip"): ("on_error='skip'", "--on-error skip"),
    Option("size"): ("size=", "--size"),
    Option("overwrite", True): ("overwrite=True", "--overwrite"),
    Option("shuffle", False): ("shuffle=False", "--no-shuffle"),
    Option("workers", 0): ("workers=0", "--workers 0"),
    Option("label", "two words"): ("label='two words'", "--label 'two words'"),
    Option("keep", ("a", "b")): ("keep=('a', 'b')", "--keep a --keep b"),
}


@pytest.mark.parametrize("option", WORDED, ids=str)
def test_an_option_is_worded_for_both(option: Option) -> None:
    python, typed = WORDED[option]
    sentence = Sentence(f"a.png: is cut short. Remove it, or pass {option}.")
    assert str(sentence) == f"a.png: is cut short. Remove it, or pass {python}."
    assert in_options(sentence) == f"a.png: is cut short. Remove it, or pass {typed}."


def test_names_that_differ() -> None:
    named = Sentence(f"Pass {Option('types', {'id': 'category'})} or {Option('pairs', {'mask': 'masks/'})}.")
    assert str(named) == "Pass types={'id': 'category'} or pairs={'mask': 'masks/'}."
    assert in_options(named) == "Pass --type id=category or --pair mask=masks/."


def test_an_error_carries_its_options() -> None:
    error = UsageError(Option("size", 250), ": too large. Pass ", Option("overwrite", True), ".")
    assert str(error) == "size=250: too large. Pass overwrite=True."
    assert in_options(error.sentence) == "--size 250: too large. Pass --overwrite."
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.sentence) == (UsageError, error.sentence)
    assert str(PackerError("plain")) == in_options(PackerError("plain").sentence) == "plain"


ERRORS = {
    cls: cls("a: is cut short. Pass ", Option("on_error", "skip"), ".")
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, PackerError) and cls is not MissingDependencyError
}
ERRORS[FormatError] = FormatError("a: is cut short. Pass ", Option("on_error", "skip"), ".", part="rows")
ERRORS[MissingDependencyError] = MissingDependencyError("zstandard", Option("store", "zstd"))


@pytest.mark.parametrize("error", ERRORS.values(), ids=lambda error: type(error).__name__)
def test_errors_and_sentences_survive_pickling_and_copying(error: PackerError) -> None:
    """As from a process of a pool; what was said later and known beside the text too."""
    error.extend(" Then ", Option("overwrite", True), ".")
    vars(error)["row"] = 3
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = [pickle.loads(pickle.dumps(error, protocol)), copy.copy(error), copy.deepcopy(error)]
        for other in again:
            assert type(other) is type(error)
            assert (other.args, vars(other)) == (error.args, vars(error))
            assert (str(other), in_options(other.sentence)) == (str(error), in_options(error.sentence))
        for other in (pickle.loads(pickle.dumps(error.sentence, protocol)), copy.copy(error.sentence)):
            assert (other, other.parts) == (error.sentence, error.sentence.parts)


def test_sentences_join() -> None:
    first = Sentence(f"Pass {Option('size')}.")
    assert Sentence(first, " ", first).parts == (
        "Pass ",
        Option("size"),
        ".",
        " ",
        "Pass ",
        Option("size"),
        ".",
    )
    assert str(first + " It helps.") == "Pass size=. It helps."
    missing = MissingDependencyError("zstandard", Option("store", "zstd"))
    assert str(missing) == "store='zstd': zstandard is not installed. Run: pip install zstandard"


def test_a_sentence_is_text_wherever_text_goes() -> None:
    note = Sentence(f"Pass {Option('label_as', 'float')}.")
    assert note == "Pass label_as='float'."
    assert json.dumps([note]) == "[\"Pass label_as='float'.\"]"
    for again in (pickle.loads(pickle.dumps(note)), copy.deepcopy(note)):
        assert in_options(again) == "Pass --label-as float."
    told = json.loads(
        json_text("convert", {"notes": (note, "plain"), "skipped": [{"reason": note}], "rows": 3})
    )
    assert (told["notes"], told["skipped"]) == (
        ["Pass --label-as float.", "plain"],
        [{"reason": "Pass --label-as float."}],
    )


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


def test_values_in_text_are_found_again() -> None:
    call = Call("repack", ("a\x03.h5", "b"), Option("shards", "2GB"), Call("merge_shards", ("b",)))
    options = [Option("pairs", {"mask": "m\x02's/"}), Option("size", (1, 2)), Option("Csv.na", "{é}"), call]
    for option in options:
        assert Sentence(f"Pass {option} {option}.").parts == ("Pass ", option, " ", option, ".")
    assert SourceError(f"Pass {call}").args == ("Pass ", call)


def test_text_of_a_file_is_never_taken_for_a_value() -> None:
    hostile = "\x02('size', 1)\x03 \x02((((\x03"
    assert Sentence(hostile).parts == (hostile,)


def test_a_value_that_is_no_literal_is_still_a_sentence() -> None:
    for value in (float("inf"), object(), Path("x"), np.int64(3)):
        assert str(UsageError(f"Pass {Option('rate', value)}.")) == f"Pass rate={shown(value)}."
