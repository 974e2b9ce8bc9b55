"""Parser of transforms as text, for command lines and files: ``RandomCrop(32, padding=4), Normalize()``.

The text is parsed as Python, but never executed: calls of transforms whose arguments are literals, dtypes and
lists of calls.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any, NoReturn

import torch

from packer.augment import kinds
from packer.errors import UsageError

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
"""Names of torch's dtypes; the parser accepts torch.float16 and the like, too."""


def parse(text: str) -> list[kinds.Transform]:
    """Return the transforms of a text, in order.

    Parameters
    ----------
    text
        Calls of packer.augment's transforms, separated by commas; line breaks, a trailing comma and brackets
        around the list are allowed. Arguments are Python literals, float16, bfloat16 and float32, and lists
        of transforms for RandomApply and RandomChoice.

    Raises
    ------
    UsageError
        If the text is no such list; the error quotes the invalid part.

    Examples
    --------
    >>> crop, flip = parse("RandomCrop(32, padding=4), RandomHorizontalFlip(p=0.25)")
    >>> crop.padding_mode, flip.p
    ('constant', 0.25)
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in strings
            # Parentheses allow line breaks; the line break before ")" allows a comment in the last line.
            tree = ast.parse(f"({text}\n)", mode="eval").body
        return [_transform(call) for call in _calls(tree)]
    except UsageError:
        raise
    # ast raises all of these, for example for deep nesting or numbers of too many digits.
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else error
        raise UsageError(
            f"augment: the text cannot be read ({why}). Write transforms with their arguments, separated by"
            " commas."
        ) from None


@cache
def known() -> dict[str, type[kinds.Transform]]:
    """Return the transforms that a text may contain, by name."""
    from packer import augment

    found = {name: getattr(augment, name) for name in augment.__all__ if name not in ("Transform", "parse")}
    return {name: one for name, one in found.items() if issubclass(one, kinds.Transform)}


def _calls(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the elements of nested lists and tuples."""
    if isinstance(node, ast.List | ast.Tuple):
        for element in node.elts:
            yield from _calls(element)
    else:
        yield node


def _transform(node: ast.expr) -> kinds.Transform:
    name = ast.unparse(node.func if isinstance(node, ast.Call) else node)
    if name not in known():
        # Half of all names begin with "Random", which says nothing about similarity.
        names = {each.lower().removeprefix("random"): each for each in known()}
        near = difflib.get_close_matches(name.lower().removeprefix("random"), names, 1, 0.7)
        others = f"The nearest is {names[near[0]]}" if near else f"There are {', '.join(known())}"
        remedy = kinds.REMEDIES.get(name.rpartition(".")[2], others)
        _refuse(node, "is no transform of packer.augment", remedy)
    if not isinstance(node, ast.Call):
        _refuse(node, "is no call", "Write its arguments, or (), behind it")
    signature = inspect.signature(known()[name])
    positional = [_value(each) for each in node.args]
    named = {keyword.arg or "**": _value(keyword.value) for keyword in node.keywords}
    if len(named) < len(node.keywords):
        _refuse(node, "has an argument twice", "Write it once")
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
        usual = f"It is {name}{inspect.Signature(bare)}"
        remedy = next((kinds.REMEDIES[word] for word in named if word in kinds.REMEDIES), usual)
        _refuse(node, f"cannot be called ({error})", remedy)
    return known()[name](*positional, **named)


def _value(node: ast.expr) -> Any:
    """Return an argument: a literal, a dtype, a transform, or a list of transforms."""
    if isinstance(node, ast.Call):
        return _transform(node)
    if isinstance(node, ast.List | ast.Tuple) and any(isinstance(each, ast.Call) for each in node.elts):
        return [_transform(each) for each in node.elts]
    word = ast.unparse(node).removeprefix("torch.")
    try:
        return DTYPES[word] if word in DTYPES else ast.literal_eval(node)
    except (ValueError, TypeError):
        _refuse(node, "is no number, text, list or dtype", "Write such a value")


def _refuse(node: ast.expr, found: str, remedy: str) -> NoReturn:
    words = ast.unparse(node)
    shown = words if len(words) <= 60 else words[:57] + "..."
    raise UsageError(f"augment: {shown!r} {found}. {remedy}.")
