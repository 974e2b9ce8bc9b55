"""Transforms from a text: what is understood, that nothing of it runs, and where an error says it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from packer import augment
from packer.augment import Transform, parse
from packer.augment.parse import REMEDIES, known
from packer.errors import UsageError

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.0)


def names(transforms: list[Transform]) -> list[str]:
    return [type(transform).__name__ for transform in transforms]


def test_calls_with_their_arguments() -> None:
    crop, flip, norm = parse(
        "RandomCrop((32, 24), padding=4, padding_mode='reflect'), RandomHorizontalFlip(1/4), "
        "Normalize([.5], (+0.25,), dtype=float16)"
    )
    assert isinstance(crop, augment.RandomCrop)
    assert (crop.height, crop.width, crop.left, crop.padding_mode) == (32, 24, 4, "reflect")
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
    assert crop.left == 0


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
        "Compose([RandomCrop(8), RandomHorizontalFlip()])",
        "Compose(transforms=(RandomCrop(8), RandomHorizontalFlip()))",
        "RandomCrop(8), Compose([Compose([]), RandomHorizontalFlip()])",
        "[Compose([RandomCrop(8), RandomHorizontalFlip()])]",
    ],
)
def test_commas_brackets_and_line_breaks(text: str) -> None:
    assert names(parse(text)) == ["RandomCrop", "RandomHorizontalFlip"]


@pytest.mark.parametrize("text", ["", " ", "[]", "# nothing"])
def test_nothing(text: str) -> None:
    assert parse(text) == []


def test_one_in_brackets() -> None:
    assert names(parse("(RandomVerticalFlip())")) == ["RandomVerticalFlip"]


@pytest.mark.parametrize(
    "inner",
    [
        "Compose([ColorJitter(0.4), RandomGrayscale()])",
        "[Compose([ColorJitter(0.4)]), RandomGrayscale()]",
        "transforms=Compose([ColorJitter(0.4), RandomGrayscale()])",
    ],
)
def test_compose_within_random_apply(inner: str) -> None:
    (made,) = parse(f"RandomApply({inner})")
    assert isinstance(made, augment.RandomApply)
    assert names(list(made.transforms)) == ["ColorJitter", "RandomGrayscale"]


def test_one_number_for_all_channels() -> None:
    (made,) = parse("Normalize(0.5, 0.25)", MEAN, STD)
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


@pytest.mark.parametrize("word", ["RandomPerspective", "ElasticTransform", "Pad", "RandomOrder"])
def test_a_name_like_no_other_suggests_none(word: str) -> None:
    with pytest.raises(UsageError, match=r"There are AlternatingHorizontalFlip, .*, TrivialAugmentWide\.$"):
        parse(f"{word}()")


def test_lists_of_transforms_within_random_apply() -> None:
    (made,) = parse("RandomApply([ColorJitter(0.4), RandomGrayscale(p=1)], p=0.3)")
    assert isinstance(made, augment.RandomApply)
    assert names(list(made.transforms)) == ["ColorJitter", "RandomGrayscale"]
    assert made.p == 0.3


def test_normalize_alone_means_the_packs_statistics() -> None:
    (made,) = parse("Normalize(dtype=bfloat16)", MEAN, STD)
    assert isinstance(made, augment.Normalize)
    # The third channel never changes: 0 cannot be divided by.
    assert (made.mean, made.std, made.dtype) == (MEAN, (0.2, 0.25, 1.0), torch.bfloat16)
    (given,) = parse("Normalize((0.1,), (1,))", MEAN, STD)
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
        with pytest.raises(UsageError, match=r"no argument 'nonsense'"):
            parse(f"{name}(nonsense=1)", MEAN, STD)


CROP = "RandomCrop(size, padding=None, *, padding_mode='constant', fill=0)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "RandomCorp(32)",
            "position 1: 'RandomCorp' is no transform of packer.augment. The nearest is RandomCrop.",
        ),
        (
            "RandomCrop(8), randomhorizontalflip()",
            "position 16: 'randomhorizontalflip' is no transform of packer.augment. The nearest is RandomHorizontalFlip.",
        ),
        (
            "RandomCrop(8),\n  Nomalize()",
            "line 2, position 3: 'Nomalize' is no transform of packer.augment. The nearest is Normalize.",
        ),
        ("RandomCrop", "position 1: 'RandomCrop' is no call. Write its arguments, or (), behind it."),
        (
            "RandomApply([RandomGrayscale])",
            "position 14: 'RandomGrayscale' is no call. Write its arguments, or (), behind it.",
        ),
        (
            "RandomCrop(8, paddin=4)",
            "position 1: RandomCrop has no argument 'paddin'. The nearest is padding.",
        ),
        ("RandomCrop()", f"position 1: RandomCrop: missing a required argument: 'size'. It is {CROP}."),
        (
            "RandomCrop(8, size=8)",
            f"position 1: RandomCrop: multiple values for argument 'size'. It is {CROP}.",
        ),
        ("RandomCrop(size=8, size=9)", "position 25: size is given twice. Write it once."),
        (
            "RandomCrop(8, padding_mode=reflect)",
            "position 28: 'reflect' is no value. Texts stand in quotes: 'reflect'.",
        ),
        ("ToDtype(float64)", "position 9: 'float64' is no value. The nearest is float16."),
        ("RandomCrop(é.b)", "position 12: 'é.b' is no number, text, list or dtype. Write such a value."),
        (
            "Resize((é, 2)), RandomCrop(x)",
            "position 9: 'é' is no value. Texts stand in quotes: 'é'.",
        ),
        (
            "RandomCrop(RandomGrayscale())",
            "position 12: 'RandomGrayscale()' is no number, text, list or dtype. Only RandomApply and RandomChoice take transforms.",
        ),
        ("RandomCrop(8), 7", "position 16: '7' is no transform. Write for example RandomCrop(32)."),
        ("v2.RandomCrop(8)", "position 1: 'v2.RandomCrop' is no name of a transform. Write the name alone."),
        (
            "Normalize()",
            "position 1: Normalize has no mean and std, and those of a pack are not known. Write both of them.",
        ),
        (
            "RandomPerspective(0.5)",
            "position 1: 'RandomPerspective' is no transform of packer.augment. There are "
            f"{', '.join(known())}.",
        ),
        (
            "RandomCrop(8), ToTensor()",
            "position 16: 'ToTensor' is no transform of packer.augment. Leave it out: images are tensors already; "
            "Normalize(), or ToDtype(float32) from 0 to 1, makes them floating-point.",
        ),
        (
            "v2.AutoAugment()",
            "position 1: 'v2.AutoAugment' is no transform of packer.augment. Take RandAugment() or TrivialAugmentWide().",
        ),
        (
            "FiveCrop(8)",
            "position 1: 'FiveCrop' is no transform: it makes views at test time. "
            "Pass it to packer.augment.averaged, in Python.",
        ),
        (
            "RandomCrop(8), HorizontalFlips",
            "position 16: 'HorizontalFlips' is no transform: it makes views at test time. "
            "Pass it to packer.augment.averaged, in Python.",
        ),
        (
            "Resize(8, InterpolationMode.BILINEAR)",
            "position 11: 'InterpolationMode.BILINEAR' is no number, text, list or dtype. Write 'bilinear'.",
        ),
        (
            "Resize(8, v2.InterpolationMode.NEAREST_EXACT)",
            "position 11: 'v2.InterpolationMode.NEAREST_EXACT' is no number, text, list or dtype. Write 'nearest-exact'.",
        ),
        (
            "Compose(RandomCrop(8))",
            "position 1: 'Compose(RandomCrop(8))' has no list of transforms. Write Compose([...]).",
        ),
        (
            "Compose([RandomCrop(8)], 2)",
            "position 1: 'Compose([RandomCrop(8)], 2)' has no list of transforms. Write Compose([...]).",
        ),
        (
            "RandomCrop(Compose([]))",
            "position 12: 'Compose([])' is no number, text, list or dtype. Only RandomApply and RandomChoice take transforms.",
        ),
    ],
)
def test_each_error_says_where_and_what_to_do(text: str, message: str) -> None:
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
    with pytest.raises(UsageError, match=r"^augment: position \d+: "):
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


def test_the_place_of_a_missing_comma() -> None:
    with pytest.raises(UsageError, match=r"^augment: line 2, position 1: the text cannot be read"):
        parse("RandomCrop(8),\nRandomCrop(8)\nRandomCrop(8)")


def test_only_texts_are_taken() -> None:
    with pytest.raises(UsageError, match=r"^augment: list is given; a text is allowed\."):
        parse([])  # type: ignore[arg-type]


def test_an_operations_own_complaint_is_kept() -> None:
    with pytest.raises(
        UsageError, match=r"^RandomHorizontalFlip: p is 2; 0 to 1 is allowed\. Pass a probability\.$"
    ):
        parse("RandomHorizontalFlip(2)")


def test_a_choice_is_among_single_transforms() -> None:
    with pytest.raises(UsageError, match="Compose in RandomChoice is several transforms"):
        parse("RandomChoice([Compose([RandomHorizontalFlip(1), RandomInvert(1)]), RandomVerticalFlip(1)])")
    (choice,) = parse("RandomChoice([Compose([RandomInvert(1)]), RandomVerticalFlip(1)], p=[1, 2])")
    assert [type(t).__name__ for t in choice.transforms] == ["RandomInvert", "RandomVerticalFlip"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", REMEDIES)
def test_remedies_for_names_of_other_libraries_name_what_is_there(name: str):
    assert name not in known()
    calls = re.findall(r"[A-Z]\w+\([\w.]*\)", REMEDIES[name])
    assert all(parse(call, (0.5,) * 3, (0.5,) * 3) for call in calls)
    with pytest.raises(UsageError, match=re.escape(REMEDIES[name])):
        parse(f"{name}()")
