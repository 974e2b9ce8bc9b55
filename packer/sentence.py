"""Sentences that name options and calls: the library says ``on_error="skip"``, the command line ``--on-error skip``, of one value.

An option or call formatted into text, as in ``f"Pass {Option('size', 256)}."``, leaves a mark there, which Sentence and the errors of
packer turn back into the value.
"""

from __future__ import annotations

import os
import re
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

Value = str | int | float | bool | Mapping[str, object] | tuple[object, ...] | None
_BEGIN = f"\x02{os.urandom(4).hex()}"  # nothing that is read from a file begins so
_END = "\x03"
_MARK = re.compile(f"{_BEGIN}([^{_END}]*){_END}")


@dataclass(frozen=True)
class Option:
    """An argument of a public function, named as Python names it.

    name: the keyword, as "on_error", or "Labels.column", a member of the value of `labels`. value: what it is set to; True or False of
    a switch; a mapping for options that are given as name=value; None to name the option alone.

    >>> str(Sentence(f"Remove it, or pass {Option('on_error', 'skip')}."))
    "Remove it, or pass on_error='skip'."
    >>> str(Option("Csv.delimiter", ";"))
    "csv=Csv(delimiter=';')"
    """

    name: str
    value: Value = None

    def __str__(self) -> str:
        *of, name = self.name.split(".")  # the class of a value, and its member
        said = f"{name}=" if self.value is None else f"{name}={self.value!r}"
        return f"{of[0].lower()}={of[0]}({said})" if of else said

    def __format__(self, spec: str) -> str:
        return _mark(self, (self.name, self.value))


@dataclass(frozen=True)
class Call:
    """A call of a public function, which the command line words as the command of that name.

    then: what is called next.

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
    """Text in which options and calls stand as values: ``Sentence(f"Pass {Option('size', 256)}.")``.

    As text it is worded for Python; parts hold what the command line words in its own way. Formatting it into another text, or
    storing it as JSON, keeps the text alone.
    """

    __slots__ = ("parts",)
    parts: tuple[Part, ...]

    def __new__(cls, *parts: Part) -> Sentence:
        """Join the parts; sentences among them give their own."""
        joined = tuple(inner for part in parts for inner in _inner(part))
        sentence = super().__new__(cls, "".join(map(str, joined)))
        sentence.parts = joined
        return sentence

    def render(self, word: Callable[[Option | Call], str]) -> str:
        """Return the text, each option and call as word() has it."""
        return "".join(part if isinstance(part, str) else word(part) for part in self.parts)

    def __add__(self, other: Part) -> Sentence:
        return Sentence(self, other)

    def __radd__(self, other: str) -> Sentence:
        return Sentence(other, self)

    def __reduce__(self) -> tuple[type[Sentence], tuple[Part, ...]]:
        return Sentence, self.parts


def _mark(said: Option | Call, members: tuple[object, ...]) -> str:
    """Return the mark of an option or a call; its words alone where a member is no literal, as whatever a user may pass."""
    try:
        literal_eval(repr(members))
    except (ValueError, SyntaxError):
        return str(said)
    return f"{_BEGIN}{members!r}{_END}"


def _inner(part: Part) -> Iterator[Part]:
    """Yield the parts of a part: those of a sentence, or of text what lies between marks, and their values."""
    if isinstance(part, Sentence):
        yield from part.parts
    elif isinstance(part, str):
        for number, text in enumerate(_MARK.split(part)):
            if text:
                yield _marked(literal_eval(text)) if number % 2 else text
    else:
        yield part


def _marked(members: tuple[Any, ...]) -> Option | Call:
    """Return the option or the call that has these members."""
    if len(members) == 2:
        return Option(*members)
    function, arguments, option, then = members
    following = None if then is None else cast("Call", _marked(then))
    return Call(function, arguments, option and Option(*option), following)
