"""Sentences that name options and calls: the library says ``on_error="skip"``, the command line ``--on-error skip``, of one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain

Value = str | int | float | bool | Mapping[str, object] | tuple[object, ...] | None


@dataclass(frozen=True)
class Option:
    """An argument of a public function, named as Python names it.

    name: the keyword, as "on_error", or "Labels.column", a member of the value of `labels`. value: what it is set to; True or False of
    a switch; a mapping for options that are given as name=value; None to name the option alone.

    >>> str("Remove it, or pass " + Option("on_error", "skip") + ".")
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

    def __add__(self, other: str | Option) -> Sentence:
        return Sentence(self, other)

    def __radd__(self, other: str) -> Sentence:
        return Sentence(other, self)


@dataclass(frozen=True)
class Call:
    """A call of a public function, which the command line words as the command of that name.

    then: what is called next.

    >>> str("Run " + Call("repack", ("a.h5", "b"), Option("shards", "2GB")))
    "Run repack('a.h5', 'b', shards='2GB')"
    """

    function: str
    arguments: tuple[str, ...]
    option: Option | None = None
    then: Call | None = None

    def __str__(self) -> str:
        given = ", ".join([*map(repr, self.arguments), *([str(self.option)] if self.option else [])])
        return f"{self.function}({given})" + (f"; {self.then}" if self.then else "")

    def __radd__(self, other: str) -> Sentence:
        return Sentence(other, self)


Part = str | Option | Call


class Sentence(str):
    """Text in which options and calls stand as values: ``Sentence("Pass ", Option("size", 256), ".")``, or the same with ``+``.

    As text it is worded for Python; parts hold what the command line words in its own way. Formatting it into another text, or
    storing it as JSON, keeps the text alone.

    >>> "a.png: is cut short. Remove it, or pass " + Option("on_error", "skip") + "."
    "a.png: is cut short. Remove it, or pass on_error='skip'."
    """

    __slots__ = ("parts",)
    parts: tuple[Part, ...]

    def __new__(cls, *parts: Part) -> Sentence:
        """Join the parts; sentences among them give their own."""
        inner = (part.parts if isinstance(part, Sentence) else (part,) for part in parts)
        joined = tuple(chain.from_iterable(inner))
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
