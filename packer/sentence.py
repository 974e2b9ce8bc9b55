"""Earlier names of the functions of given_values.py."""

from __future__ import annotations

from packer.given_values import call_text, option_text

Sentence = str
Option = option_text


def Call(function: str, arguments: tuple[str, ...], option: str = "", then: str = "") -> str:
    """Return a call, and the next one."""
    text = call_text(function, *arguments)
    text = f"{text[:-1]}, {option})" if option else text
    return f"{text}; {then}" if then else text
