"""Transforms from a text, for command lines and configuration files: ``RandomCrop(32, padding=4), Normalize()``.

The text is parsed as Python and never run: calls of transforms, with literals, dtypes and lists of calls as their arguments.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NoReturn

import torch

from packer.augment.transform import Transform
from packer.errors import UsageError

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
"""Words for torch's dtypes; torch.float16 and so on are read too."""

_TENSORS = "Leave it out: images are tensors already; Normalize(), or ToDtype(float32) from 0 to 1, makes them floating-point"
_VIEWS = "It makes several images of one; average the model's results in the test loop, over images and images.flip(-1) for example"
REMEDIES = {
    **dict.fromkeys(("ToTensor", "ToImage", "ToImageTensor", "PILToTensor", "ToPureTensor"), _TENSORS),
    **dict.fromkeys(("ToTensorV2", "ToTorchImage"), _TENSORS),
    "ToPILImage": "Leave it out: images are tensors all along",
    "ConvertImageDtype": "Take ToDtype(float32), which does the same",
    "NormalizeImage": "Take Normalize(), with numbers in the scale of 0 to 1",
    "Grayscale": "Take RandomGrayscale(1), which makes every image grey",
    **dict.fromkeys(("FiveCrop", "TenCrop", "HorizontalFlips", "Shifts"), _VIEWS),
    "RandomIoUCrop": "Take RandomResizedCrop, which moves boxes and drops those of which nothing is seen",
    "RandomZoomOut": "Take RandomAffine(0, translate=(0.2, 0.2), scale=(0.5, 1))",
    "ScaleJitter": "Take RandomResizedCrop, or RandomCrop with pad_if_needed=True",
    "Lambda": "Pass a Python function to the dataset as transform=",
}
"""Names of other libraries that are not transforms of packer.augment -> the remedy."""


def parse(
    text: str, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
) -> list[Transform]:
    """Return the transforms that a text names, in their order.

    Parameters
    ----------
    text
        Calls of packer.augment's transforms, separated by commas; line breaks, a comma at the end, brackets around all of them and
        ``Compose([...])`` around all of them are allowed. Arguments are Python literals, float16, bfloat16 and float32, and lists
        of transforms for RandomApply and RandomChoice.
    mean, std
        The arguments of a ``Normalize()`` that has none, one number a channel from 0 to 1, such as a pack's statistics. A std of 0,
        of a channel that never changes, counts as 1.

    Raises
    ------
    UsageError
        For a text that is no such list; it quotes the part that cannot be used.

    Examples
    --------
    >>> crop, flip = parse("RandomCrop(32, padding=4), RandomHorizontalFlip(p=0.25)")
    >>> crop.padding_mode, flip.p
    ('constant', 0.25)
    """
    if not isinstance(text, str):
        raise UsageError(
            f"augment: {type(text).__name__} is given; a text is allowed. Pass for example 'RandomCrop(32)'."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes in texts
            # In brackets line breaks are allowed; the last line may be a comment.
            tree = ast.parse(f"({text}\n)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(
            f"augment: the text cannot be read ({why}). Write transforms with their arguments, separated by commas."
        ) from None
    try:
        return [_transform(call, mean, std) for call in _calls(tree)]
    except UsageError:
        raise
    except (
        RecursionError,
        ValueError,
    ) as error:  # of ast: nested too deeply to be told, numbers of too many digits
        raise UsageError(
            f"augment: the text cannot be read ({error}). Write transforms with their arguments, separated by commas."
        ) from None


@cache
def known() -> dict[str, type[Transform]]:
    """Return the transforms that a text may name, by name."""
    from packer import augment

    found = {name: getattr(augment, name) for name in augment.__all__}
    return {
        name: one
        for name, one in found.items()
        if isinstance(one, type) and issubclass(one, Transform) and one is not Transform
    }


def _calls(node: ast.expr) -> Iterator[ast.expr]:
    """Yield what stands between commas, brackets and Compose undone."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "Compose":
        given = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "transforms")]
        more = len(node.args) + len(node.keywords) != 1
        if more or not given or not isinstance(given[0], ast.List | ast.Tuple):
            _refuse(node, "has no list of transforms", "Write Compose([...])")
        node = given[0]
    if isinstance(node, ast.List | ast.Tuple):
        for element in node.elts:
            yield from _calls(element)
    else:
        yield node


def _transform(node: ast.expr, mean: Sequence[float] | None, std: Sequence[float] | None) -> Transform:
    name = ast.unparse(node.func if isinstance(node, ast.Call) else node)
    made = known().get(name)
    if made is None:
        # "Random", with which half of all names begin, makes no two of them alike.
        names = {each.lower().removeprefix("random"): each for each in known()}
        near = difflib.get_close_matches(name.lower().removeprefix("random"), names, 1, 0.7)
        others = f"The nearest is {names[near[0]]}" if near else f"There are {', '.join(known())}"
        remedy = REMEDIES.get(name.rpartition(".")[2], others)
        _refuse(node, "is no transform of packer.augment", remedy)
    if not isinstance(node, ast.Call):
        _refuse(node, "is no call", "Write its arguments, or (), behind it")
    signature = inspect.signature(made)
    nests = "transforms" in signature.parameters
    positional = [_value(each, nests, mean, std) for each in node.args]
    named = {keyword.arg or "**": _value(keyword.value, nests, mean, std) for keyword in node.keywords}
    if len(named) < len(node.keywords):
        _refuse(node, "has an argument twice", "Write it once")
    if name == "Normalize" and not positional and not {"mean", "std"} & set(named):
        if mean is None or std is None:
            _refuse(
                node,
                "has no mean and std, and there are no statistics of a pack's images",
                "Write both of them",
            )
        named |= {"mean": tuple(mean), "std": tuple(s or 1.0 for s in std)}
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
        takes = inspect.Signature(bare)
        _refuse(node, f"cannot be called ({error})", f"It is {name}{takes}")
    try:
        return made(*positional, **named)
    except UsageError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        _refuse(node, f"does not take such arguments ({error})", "Pass others")


def _value(node: ast.expr, nests: bool, mean: Sequence[float] | None, std: Sequence[float] | None) -> Any:
    """Return an argument: a literal, a dtype, or with nests a list of transforms."""
    if nests and isinstance(node, ast.List | ast.Tuple) and any(isinstance(e, ast.Call) for e in node.elts):
        return [_transform(element, mean, std) for element in node.elts]
    if nests and isinstance(node, ast.Call):
        return _transform(node, mean, std)
    word = ast.unparse(node).removeprefix("torch.")
    if word in DTYPES:
        return DTYPES[word]
    constants = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
    try:
        if not all(isinstance(constant, int | float | str | None) for constant in constants):
            raise ValueError
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        _refuse(node, "is no number, text, list or dtype", "Write such a value")


def _refuse(node: ast.expr, found: str, remedy: str) -> NoReturn:
    words = ast.unparse(node)
    shown = words if len(words) <= 60 else words[:57] + "..."
    raise UsageError(f"augment: {shown!r} {found}. {remedy}.")
