"""Sentences with options and calls as values.

The library words an option ``on_error="skip"``, the command line ``--on-error skip``.

An option or call formatted into text, as in ``f"Pass {Option('size', 256)}."``, leaves a mark there, which
Sentence and packer's errors turn back into the value.
"""

from __future__ import annotations

import os
import re
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from packer.given_values import shown

Value = str | int | float | bool | Mapping[str, object] | tuple[object, ...] | None
_BEGIN = f"\x02{os.urandom(4).hex()}"  # no text from a file begins like this
_END = "\x03"
_MARK = re.compile(f"{_BEGIN}([^{_END}]*){_END}")


@dataclass(frozen=True)
class Option:
    """An argument of a public function, under its Python name.

    name: the keyword, such as "on_error", or "Labels.column" for a member of the value of `labels`; value:
    its setting; True or False for a switch; a mapping for options given as name=value; None for the name
    alone.

    >>> str(Sentence(f"Remove it, or pass {Option('on_error', 'skip')}."))
    "Remove it, or pass on_error='skip'."
    >>> str(Option("Csv.delimiter", ";"))
    "csv=Csv(delimiter=';')"
    """

    name: str
    value: Value = None

    def __str__(self) -> str:
        *of, name = self.name.split(".")  # the class of a value, and its member
        said = f"{name}=" if self.value is None else f"{name}={shown(self.value)}"
        return f"{of[0].lower()}={of[0]}({said})" if of else said

    def __format__(self, spec: str) -> str:
        return _mark(self, (self.name, self.value))


@dataclass(frozen=True)
class Call:
    """A call of a public function; the command line shows the command of that name.

    then: the next call.

    >>> str(Sentence(f"Run {Call('repack', ('a.h5', 'b'), Option('shards', '2GB'))}"))
    "Run repack('a.h5', 'b', shards='2GB')"
    """

    function: str
    arguments: tuple[str, ...]
    option: Option | None = None
    then: Call | None = None

    def __str__(self) -> str:
        given = ", ".join([*map(repr, self.arguments), *([str(self.option)] if self.option else [])])
        return f"{self.function}({given})" + (f"; {self.then!s}" if self.then else "")

    def __format__(self, spec: str) -> str:
        return _mark(self, self._members())

    def _members(self) -> tuple[object, ...]:
        option = self.option and (self.option.name, self.option.value)
        return self.function, self.arguments, option, self.then and self.then._members()


Part = str | Option | Call


class Sentence(str):
    """Text that contains options and calls as values: ``Sentence(f"Pass {Option('size', 256)}.")``.

    The text itself is worded for Python; the command line words `parts` differently. Formatting a Sentence
    into another text, or storing it as JSON, keeps only the text.
    """

    __slots__ = ("parts",)
    parts: tuple[Part, ...]

    def __new__(cls, *parts: Part) -> Sentence:
        """Join the parts; a Sentence contributes its parts."""
        joined = tuple(inner for part in parts for inner in _inner(part))
        sentence = super().__new__(cls, "".join(map(str, joined)))
        sentence.parts = joined
        return sentence

    def render(self, word: Callable[[Option | Call], str]) -> str:
        """Return the text with each option and call worded by word()."""
        return "".join(part if isinstance(part, str) else word(part) for part in self.parts)

    def __add__(self, other: Part) -> Sentence:
        return Sentence(self, other)

    def __radd__(self, other: str) -> Sentence:
        return Sentence(other, self)

    def __reduce__(self) -> tuple[type[Sentence], tuple[Part, ...]]:
        return Sentence, self.parts


def _mark(said: Option | Call, members: tuple[object, ...]) -> str:
    """Return the mark of an option or call; plain words if a member is not a literal (users may pass
    anything).
    """
    try:
        literal_eval(repr(members))
    except (ValueError, SyntaxError):
        return str(said)
    return f"{_BEGIN}{members!r}{_END}"


def _inner(part: Part) -> Iterator[Part]:
    """Yield the parts of a part: those of a sentence, or the texts and marked values of a text."""
    if isinstance(part, Sentence):
        yield from part.parts
    elif isinstance(part, str):
        for number, text in enumerate(_MARK.split(part)):
            if text:
                yield _marked(literal_eval(text)) if number % 2 else text
    else:
        yield part


def _marked(members: tuple[Any, ...]) -> Option | Call:
    """Return the option or call with these members."""
    if len(members) == 2:
        return Option(*members)
    function, arguments, option, then = members
    following = None if then is None else cast("Call", _marked(then))
    return Call(function, arguments, option and Option(*option), following)
