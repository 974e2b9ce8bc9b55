"""Transforms from a text, for command lines and configuration files: ``RandomCrop(32, padding=4), Normalize()``.

The text is read as Python's syntax and never run: names of transforms, and literals as their arguments, are all there is.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from packer.augment.apply import RandomChoice
from packer.augment.transform import Transform
from packer.errors import UsageError

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
"""Words for torch's dtypes; torch.float16 and so on are read too."""

_TENSORS = "Leave it out: images are tensors already; Normalize(), or ToDtype(float32) from 0 to 1, makes them floating-point"
_AUTO = "Take RandAugment() or TrivialAugmentWide()"
REMEDIES = {
    **dict.fromkeys(("ToTensor", "ToImage", "ToImageTensor", "PILToTensor", "ToPureTensor"), _TENSORS),
    **dict.fromkeys(("ToTensorV2", "ToTorchImage"), _TENSORS),
    "ToPILImage": "Leave it out: images are tensors all along",
    "ConvertImageDtype": "Take ToDtype(float32), which does the same",
    "NormalizeImage": "Take Normalize(), with numbers in the scale of 0 to 1",
    "Grayscale": "Take RandomGrayscale(1), which makes every image grey",
    "AutoAugment": _AUTO,
    "AugMix": _AUTO,
    "Lambda": "Pass a Python function to the dataset as transform=",
}
"""Names of other libraries that are none of packer.augment, with what to write instead."""

_BRACKET = "("
_ALIKE = 0.7
_LISTS = (ast.List, ast.Tuple)


def parse(
    text: str, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
) -> list[Transform]:
    """The transforms that a text names, in their order.

    text: calls of packer.augment's transforms, parted by commas; line breaks, a comma at the end and brackets about all of
        them are allowed, and Compose([...]) as torchvision has it. Arguments are numbers, fractions (3/4), texts, True, False,
        None, lists of these, and float16, bfloat16 and float32; RandomApply and RandomChoice take a list of transforms.
    mean, std: what ``Normalize()`` without them means, one number a channel from 0 to 1: a pack's statistics. A std of
        0, of a channel that never changes, counts as 1.
    Raises UsageError that names the place in the text, and for a name that does not exist the nearest one.
    """
    if not isinstance(text, str):
        raise UsageError(
            f"augment: {type(text).__name__} is given; a text is allowed. Pass for example 'RandomCrop(32)'."
        )
    return _Text(text, mean, std).transforms()


def known() -> dict[str, type[Transform]]:
    """The transforms that a text may name."""
    from packer import augment

    found = {name: getattr(augment, name) for name in augment.__all__}
    return {
        name: one
        for name, one in found.items()
        if isinstance(one, type) and issubclass(one, Transform) and one is not Transform
    }


class _Text:
    """One text, and what its words mean."""

    def __init__(self, text: str, mean: Sequence[float] | None, std: Sequence[float] | None) -> None:
        self._text, self._mean, self._std = text, mean, std
        self._lines = re.split("\r\n|\r|\n", text)
        self._known = known()

    def transforms(self) -> list[Transform]:
        """All that the text names."""
        source = f"{_BRACKET}{self._text}\n)"  # in brackets line breaks are allowed, and the last line may be a comment
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of odd escapes in texts: such a text is refused below
                tree = ast.parse(source, mode="eval").body
        except SyntaxError as error:
            raise self._wrong_syntax(error) from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise UsageError(
                f"augment: the text cannot be read ({error}). Pass for example 'RandomCrop(32)'."
            ) from None
        return self._listed(tree)

    def _listed(self, node: ast.expr) -> list[Transform]:
        """Transforms of one call, or of brackets about calls."""
        if isinstance(node, ast.Tuple | ast.List):
            if len(node.elts) == 1 and isinstance(node.elts[0], ast.Tuple | ast.List):
                return self._listed(node.elts[0])
            return [made for element in node.elts for made in self._one_or_more(element)]
        return self._one_or_more(node)

    def _one_or_more(self, node: ast.expr) -> list[Transform]:
        """The transform of one call, or those of a Compose."""
        if not isinstance(node, ast.Call) or not _is_compose(node):
            return [self._transform(node)]
        given = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "transforms")]
        if len(given) != 1 or len(node.args) + len(node.keywords) != 1 or not isinstance(given[0], _LISTS):
            raise self._wrong(node, f"{self._word(node)} has no list of transforms", "Write Compose([...])")
        return [made for element in given[0].elts for made in self._one_or_more(element)]

    def _transform(self, node: ast.expr) -> Transform:
        """One call as a transform."""
        if isinstance(node, ast.Name):
            self._class(node)
            raise self._wrong(node, f"{node.id!r} is no call", "Write its arguments, or (), behind it")
        if not isinstance(node, ast.Call):
            raise self._wrong(node, f"{self._word(node)} is no transform", "Write for example RandomCrop(32)")
        made = self._class(node.func)
        positional, named = [], {}
        nests = "transforms" in inspect.signature(made).parameters
        for argument in node.args:
            positional.append(self._value(argument, nests, made is RandomChoice))
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self._wrong(keyword.value, f"** before {self._word(keyword.value)}", "Write name=value")
            if keyword.arg in named:
                raise self._wrong(keyword.value, f"{keyword.arg} is given twice", "Write it once")
            named[keyword.arg] = self._value(keyword.value, nests)
        if made.__name__ == "Normalize" and not positional and not {"mean", "std"} & set(named):
            if self._mean is None or self._std is None:
                raise self._wrong(
                    node,
                    "Normalize has no mean and std, and those of a pack are not known",
                    "Write both of them",
                )
            named |= {"mean": tuple(self._mean), "std": tuple(s or 1.0 for s in self._std)}
        self._check_arguments(node, made, positional, named)
        try:
            return made(*positional, **named)
        except UsageError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            what = f"{made.__name__} does not take such arguments ({error})"
            raise self._wrong(node, what, "Pass others") from None

    def _class(self, node: ast.expr) -> type[Transform]:
        """The transform that a name means."""
        if (name := _last(node)) in REMEDIES:
            raise self._wrong(node, f"{self._word(node)} is no transform of packer.augment", REMEDIES[name])
        if not isinstance(node, ast.Name):
            raise self._wrong(node, f"{self._word(node)} is no name of a transform", "Write the name alone")
        if node.id in _views():
            raise self._wrong(
                node,
                f"{node.id!r} is no transform: it makes views at test time",
                "Pass it to packer.augment.averaged, in Python",
            )
        if node.id not in self._known:
            near = _nearest(node.id, list(self._known))
            remedy = f"The nearest is {near}" if near else f"There are {', '.join(self._known)}"
            raise self._wrong(node, f"{node.id!r} is no transform of packer.augment", remedy)
        return self._known[node.id]

    def _check_arguments(
        self, node: ast.expr, made: type[Transform], positional: list[Any], named: dict[str, Any]
    ) -> None:
        """Refuse arguments that the transform does not have, or lacks."""
        signature = inspect.signature(made)
        for name in named:
            if name not in signature.parameters:
                near = _nearest(name, list(signature.parameters))
                takes = ", ".join(signature.parameters) or "no arguments"
                remedy = f"The nearest is {near}" if near else f"It takes {takes}"
                raise self._wrong(node, f"{made.__name__} has no argument {name!r}", remedy)
        try:
            signature.bind(*positional, **named)
        except TypeError as error:
            takes = f"It is {made.__name__}{_shown(signature)}"
            raise self._wrong(node, f"{made.__name__}: {error}", takes) from None

    def _value(self, node: ast.expr, nests: bool, one_each: bool = False) -> Any:
        """A literal, or with nests a transform. one_each: an element of a list is one transform."""
        if isinstance(node, ast.List | ast.Tuple):
            values = []
            for element in node.elts:
                if nests and isinstance(element, ast.Call):
                    made = self._one_or_more(element)
                    if one_each and len(made) != 1:
                        raise self._wrong(
                            element,
                            "Compose in RandomChoice is several transforms",
                            "Choose among single ones",
                        )
                    values += made
                else:
                    values.append(self._value(element, nests))
            return values
        if isinstance(node, ast.Call) and nests:
            made = self._one_or_more(node)
            return made if _is_compose(node) else made[0]
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str | None):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            value = self._number(node.operand)
            if value is not None:
                return -value if isinstance(node.op, ast.USub) else value
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            above, below = self._number(node.left), self._number(node.right)
            if above is not None and below:
                return above / below
        word = node.id if isinstance(node, ast.Name) else None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
            word = node.attr
        if word is not None:
            if word in DTYPES:
                return DTYPES[word]
            if nests and word in self._known:
                self._transform(node)  # which says what is missing
            near = _nearest(word, [*DTYPES, "True", "False", "None"])
            raise self._wrong(
                node,
                f"{word!r} is no value",
                f"The nearest is {near}" if near else f"Texts stand in quotes: {word!r}",
            )
        remedy = "Write such a value"
        if isinstance(node, ast.Call):
            remedy = "Only RandomApply and RandomChoice take transforms"
        elif isinstance(node, ast.Attribute) and _last(node.value) == "InterpolationMode":
            remedy = f"Write {node.attr.lower().replace('_', '-')!r}"
        raise self._wrong(node, f"{self._word(node)} is no number, text, list or dtype", remedy)

    @staticmethod
    def _number(node: ast.expr) -> float | None:
        """A number without a sign; None for anything else."""
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            value: float = node.value  # type: ignore[assignment]
            return value
        return None

    def _word(self, node: ast.expr) -> str:
        """A node as it stands in the text, shortened."""
        words = " ".join((ast.get_source_segment(f"{_BRACKET}{self._text}\n)", node) or "").split())
        return repr(words if len(words) <= 40 else words[:37] + "...")

    def _wrong(self, node: ast.expr, found: str, remedy: str) -> UsageError:
        line, column = node.lineno, node.col_offset
        column = max(0, column - (len(_BRACKET) if line == 1 else 0))  # in bytes
        before = self._lines[line - 1].encode()[:column].decode(errors="ignore")
        return UsageError(f"augment: {self._place(line, len(before))}: {found}. {remedy}.")

    def _wrong_syntax(self, error: SyntaxError) -> UsageError:
        line = error.lineno or 1
        column = max(0, (error.offset or 1) - 1 - (len(_BRACKET) if line == 1 else 0))
        if line > len(self._lines):  # at the bracket that was added
            line = len(self._lines)
            column = len(self._lines[-1])
        return UsageError(
            f"augment: {self._place(line, column)}: the text cannot be read ({error.msg}). "
            "Write transforms with their arguments, parted by commas."
        )

    def _place(self, line: int, column: int) -> str:
        """Where something stands, counted from 1."""
        where = f"position {column + 1}"
        return where if len(self._lines) < 2 else f"line {line}, {where}"


def _views() -> set[str]:
    """The names of views at test time, which people look for among the transforms."""
    from packer import augment
    from packer.augment.views import Views

    found = ((name, getattr(augment, name)) for name in augment.__all__)
    return {name for name, one in found if isinstance(one, type) and issubclass(one, Views)}


def _is_compose(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == "Compose"


def _last(node: ast.expr) -> str | None:
    """The last name of a, a.b, a.b.c."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _nearest(word: str, names: Sequence[str]) -> str | None:
    """The name that is most like a word, whatever its case; None if none is much like it.

    "Random", with which half of all names begin, makes no two of them alike.
    """
    plain = {name.lower().removeprefix("random"): name for name in names}
    near = difflib.get_close_matches(word.lower().removeprefix("random"), list(plain), 1, _ALIKE)
    return plain[near[0]] if near else None


def _shown(signature: inspect.Signature) -> str:
    """Arguments without their types."""
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))
