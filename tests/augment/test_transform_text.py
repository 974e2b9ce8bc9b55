"""Transforms from a text: what is understood, that nothing of it runs, and where an error says it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from packer import augment
from packer.augment import Transform, parse
from packer.augment.kinds import REMEDIES
from packer.augment.transform_text import known
from packer.errors import UsageError

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.0)


def names(transforms: list[Transform]) -> list[str]:
    return [type(transform).__name__ for transform in transforms]


def test_calls_with_their_arguments() -> None:
    crop, flip, norm = parse(
        "RandomCrop((32, 24), padding=4, padding_mode='reflect'), RandomHorizontalFlip(.25), "
        "Normalize([.5], (+0.25,), dtype=float16)"
    )
    assert isinstance(crop, augment.RandomCrop)
    assert (crop.size, crop.padding, crop.padding_mode) == ((32, 24), (4, 4, 4, 4), "reflect")
    assert isinstance(flip, augment.RandomHorizontalFlip)
    assert flip.p == 0.25
    assert isinstance(norm, augment.Normalize)
    assert (norm.mean, norm.std, norm.dtype) == ((0.5,), (0.25,), torch.float16)


def test_signs_none_and_booleans() -> None:
    turn, resize, crop = parse(
        "RandomRotation((-10, 20.5)), Resize(8, antialias=False), RandomCrop(8, padding=None)"
    )
    assert isinstance(turn, augment.RandomRotation)
    assert turn.degrees == (-10, 20.5)
    assert isinstance(resize, augment.Resize)
    assert resize.antialias is False
    assert isinstance(crop, augment.RandomCrop)
    assert crop.padding is None


@pytest.mark.parametrize("word", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("before", ["", "torch."])
def test_dtypes(before: str, word: str) -> None:
    (made,) = parse(f"ToDtype({before}{word})")
    assert isinstance(made, augment.ToDtype)
    assert made.dtype == getattr(torch, word)


@pytest.mark.parametrize(
    "text",
    [
        "RandomCrop(8), RandomHorizontalFlip()",
        "RandomCrop(8), RandomHorizontalFlip(),",
        "[RandomCrop(8), RandomHorizontalFlip()]",
        "(RandomCrop(8), RandomHorizontalFlip())",
        "[\n    RandomCrop(8),  # first\n    RandomHorizontalFlip(),\n]\n",
        "RandomCrop(\r\n8),\r\nRandomHorizontalFlip()",
        "[RandomCrop(8), RandomHorizontalFlip()],",
        "RandomCrop(8), [[], RandomHorizontalFlip()]",
    ],
)
def test_commas_brackets_and_line_breaks(text: str) -> None:
    assert names(parse(text)) == ["RandomCrop", "RandomHorizontalFlip"]


@pytest.mark.parametrize("text", ["", " ", "[]", "# nothing"])
def test_nothing(text: str) -> None:
    assert parse(text) == []


def test_one_in_brackets() -> None:
    assert names(parse("(RandomVerticalFlip())")) == ["RandomVerticalFlip"]


def test_one_number_for_all_channels() -> None:
    (made,) = parse("Normalize(0.5, 0.25)")
    assert isinstance(made, augment.Normalize)
    assert (made.mean, made.std) == ((0.5,), (0.25,))


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("Crop", "RandomCrop"),
        ("HorizontalFlip", "RandomHorizontalFlip"),
        ("Normalise", "Normalize"),
        ("RandomRotate", "RandomRotation"),
        ("mixup", "MixUp"),
        ("ColourJitter", "ColorJitter"),
    ],
)
def test_a_name_much_like_another_suggests_it(word: str, near: str) -> None:
    with pytest.raises(UsageError, match=rf"The nearest is {near}\.$"):
        parse(f"{word}()")


@pytest.mark.parametrize("word", ["RandomShortestSize", "RandomOrder"])
def test_a_name_like_no_other_suggests_none(word: str) -> None:
    with pytest.raises(UsageError, match=r"There are AlternatingHorizontalFlip, .*, TrivialAugmentWide\.$"):
        parse(f"{word}()")


def test_lists_of_transforms_within_random_apply() -> None:
    (made,) = parse("RandomApply([ColorJitter(0.4), RandomGrayscale(p=1)], p=0.3)")
    assert isinstance(made, augment.RandomApply)
    assert names(list(made.transforms)) == ["ColorJitter", "RandomGrayscale"]
    assert made.p == 0.3


def test_normalize_alone_stands_for_a_packs_statistics() -> None:
    (made,) = parse("Normalize(dtype=bfloat16)")
    assert isinstance(made, augment.Normalize)
    assert not made.known
    # The third channel never changes: 0 cannot be divided by.
    of_pack = made.using({"mean": MEAN, "std": STD})
    assert (of_pack.mean, of_pack.std, of_pack.dtype) == (MEAN, (0.2, 0.25, 1.0), torch.bfloat16)
    (given,) = parse("Normalize((0.1,), (1,))")
    assert isinstance(given, augment.Normalize)
    assert given.mean == (0.1,)


def test_every_transform_can_be_named() -> None:
    public = {
        name
        for name in augment.__all__
        if isinstance(getattr(augment, name), type) and issubclass(getattr(augment, name), Transform)
    } - {"Transform"}
    assert len(public) > 15
    for name in public:
        with pytest.raises(UsageError, match=r"nonsense=1\)' cannot be called"):
            parse(f"{name}(nonsense=1)")


CROP = "RandomCrop(size, padding=None, pad_if_needed=False, fill=0, padding_mode='constant')"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("RandomCorp(32)", "'RandomCorp(32)' is no transform of packer.augment. The nearest is RandomCrop."),
        (
            "RandomCrop(8),\n  Nomalize()",
            "'Nomalize()' is no transform of packer.augment. The nearest is Normalize.",
        ),
        ("RandomCrop", "'RandomCrop' is no call. Write its arguments, or (), behind it."),
        (
            "RandomApply([RandomGrayscale])",
            "'[RandomGrayscale]' is no number, text, list or dtype. Write such a value.",
        ),
        (
            "RandomCrop(8, paddin=4)",
            f"'RandomCrop(8, paddin=4)' cannot be called (got an unexpected keyword argument 'paddin'). It is {CROP}.",
        ),
        (
            "RandomCrop(8, mask_fill=255)",
            "'RandomCrop(8, mask_fill=255)' cannot be called (got an unexpected keyword argument 'mask_fill'). "
            "Pass augment=packer.augment.Pipeline(..., mask_fill=...).",
        ),
        (
            "RandomCrop()",
            f"'RandomCrop()' cannot be called (missing a required argument: 'size'). It is {CROP}.",
        ),
        ("RandomCrop(size=8, size=9)", "'RandomCrop(size=8, size=9)' has an argument twice. Write it once."),
        (
            "RandomCrop(8, padding_mode=reflect)",
            "'reflect' is no number, text, list or dtype. Write such a value.",
        ),
        ("ToDtype(float64)", "'float64' is no number, text, list or dtype. Write such a value."),
        ("RandomCrop(8), 7", "'7' is no transform of packer.augment. There are " + ", ".join(known()) + "."),
        (
            "v2.ConvertImageDtype(float32)",
            "'v2.ConvertImageDtype(float32)' is no transform of packer.augment. Use ToDtype(float32), which does the same.",
        ),
        (
            "FiveCrop(8)",
            "'FiveCrop(8)' is no transform of packer.augment. It returns several images for each; average the model's "
            "results in the test loop, for example over images and images.flip(-1).",
        ),
        (
            "Resize(8, InterpolationMode.BILINEAR)",
            "'InterpolationMode.BILINEAR' is no number, text, list or dtype. Write such a value.",
        ),
        ("RandomHorizontalFlip(1/4)", "'1 / 4' is no number, text, list or dtype. Write such a value."),
        (
            "Compose([RandomCrop(8)])",
            "'Compose([RandomCrop(8)])' is no transform of packer.augment. Leave it out: write its transforms, separated by "
            "commas.",
        ),
    ],
)
def test_each_error_quotes_what_is_wrong_and_says_what_to_do(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(text)
    assert str(error.value) == f"augment: {message}"


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').mkdir('made')",
        "RandomCrop(__import__('os').mkdir('made'))",
        "RandomCrop((lambda: open('made', 'w'))())",
        'RandomCrop(f\'{open("made", "w")}\')',
        "[open('made', 'w') for x in (1,)]",
        "RandomCrop(*open('made', 'w'))",
        "RandomCrop(**{'size': 8})",
        "RandomCrop(8 if open('made', 'w') else 9)",
        "RandomCrop(x := 8)",
        "RandomCrop(9**9**9**9)",
        "RandomCrop(1/0)",
        "RandomCrop(--8)",
        "RandomCrop(not True)",
        "RandomCrop(b'8')",
        "RandomCrop(8j)",
        "RandomCrop(...)",
        "RandomCrop({8})",
        "Transform()",
        "Pipeline([])",
        "parse('')",
        "RandomCrop(8)) or (RandomCrop(8)",
    ],
)
def test_nothing_else_is_understood_and_nothing_runs(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        parse(text)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    ["RandomCrop(8", "RandomCrop(8))", "RandomCrop(8) RandomCrop(8)", "RandomCrop(8); RandomCrop(8)", "x\0", "(" * 999,
     "-" * 99_999, "'", "RandomCrop(8,,9)", "a = 1", "import os", "\n\n)"],
)  # fmt: skip
def test_what_is_no_python_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match=r"^augment: .*the text cannot be read \("):
        parse(text)


def test_an_operations_own_complaint_is_kept() -> None:
    with pytest.raises(
        UsageError,
        match=r"^RandomHorizontalFlip: p is 2; numbers from 0 to 1 are allowed\. Pass one of them\.$",
    ):
        parse("RandomHorizontalFlip(2)")


def test_a_choice_is_among_single_transforms() -> None:
    with pytest.raises(UsageError, match=r"'Compose\(.*\)' is no transform of packer.augment"):
        parse("RandomChoice([Compose([RandomHorizontalFlip(1)]), RandomVerticalFlip(1)])")
    (choice,) = parse("RandomChoice([RandomInvert(1), RandomVerticalFlip(1)], p=[1, 2])")
    assert [type(t).__name__ for t in choice.transforms] == ["RandomInvert", "RandomVerticalFlip"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", REMEDIES)
def test_remedies_for_names_of_other_libraries_name_what_is_there(name: str):
    assert name not in known()
    calls = re.findall(r"[A-Z]\w+\([\w.]*\)", REMEDIES[name])
    assert all(parse(call) for call in calls)
    with pytest.raises(UsageError, match=re.escape(REMEDIES[name])):
        parse(f"{name}()")


@pytest.mark.parametrize(
    "text",
    [
        "RandomCrop(" + "-" * 1500 + "3)",
        "RandomInvert" + "()" * 1500,
        "a" + ".b" * 1500 + "()",
        "RandomApply([RandomInvert()], p=0x" + "f" * 5000 + ")",
    ],
    ids=["signs", "calls", "dots", "digits"],
)
def test_what_ast_itself_cannot_write_again_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^augment: "):
        parse(text)


def test_normalize_within_others_is_told_to_stand_outside() -> None:
    with pytest.raises(UsageError, match="Put it outside"):
        parse("RandomApply([Normalize()])")
