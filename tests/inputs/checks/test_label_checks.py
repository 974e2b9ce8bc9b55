from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from packer.inputs.checks.label_checks import check_label_texts, check_labels_of_folders, check_numbers
from packer.inputs.label_options import Labels
from packer.inputs.listing import Listing
from packer.inputs.opened_source import ImageSource, SourceOptions

RNG = random.Random(0)


def judge(
    texts: Sequence[object], *, accepted: Sequence[str] = (), folders: Sequence[str] = (), **options: str
) -> tuple[list[str], list[str]]:
    """Return the errors and the notes on labels of images im00.jpg, im01.jpg ..., each in its folder."""
    written, lines = list(map(str, texts)), range(1, len(texts) + 1)
    targets = SourceOptions(Labels(**options)).number("l.csv", written, lines, "row", column="tags")  # type: ignore[arg-type]
    places = [f"{folder}/" for folder in folders] or [""] * len(texts)
    keys = [f"{place}im{number:02d}.jpg" for number, place in enumerate(places)]
    source = ImageSource(keys, np.ones(len(keys), np.int64), np.zeros(len(keys), np.int64))
    listing = Listing(source.describe("pets", targets, {}), targets, accepted=accepted, labels_given=True)
    found = [
        one for check in (check_label_texts, check_labels_of_folders, check_numbers) for one in check(listing)
    ]
    return [one.sentence for one in found if one.error], [one.sentence for one in found if not one.error]


def test_labels_unlike_the_folders() -> None:
    folders = ["cat", "dog", "cat", "dog", "new"]
    note = (
        "The file gives 1 image the label of another folder, such as cat/im02.jpg: dog. Its labels are packed; correct "
        "it if the folders are right."
    )
    assert judge(["cat", "dog", "dog", "dog", "cat"], folders=folders) == ([], [note])
    assert judge(["cat", "dog", "cat", "dog", "cat"], folders=folders) == ([], [])
    assert judge(["dog", "cat", "dog", "cat", "cat"], folders=folders) == ([], [])


TAGS = [
    "haze",
    "primary",
    "clear",
    "water",
    "road",
    "habitation",
    "cultivation",
    "cloudy",
    "slash_burn",
    "bare_ground",
    "blooming",
]
COLOURS = [
    f"{colour} {cloth}" for colour in ("red", "blue", "white") for cloth in ("dress", "shirt", "shoes")
]
PERSONS = [f"{last}, {first}" for last in ("Smith", "Doe", "Lee") for first in ("Ann", "Bob", "Joe")]
RETRIEVERS = ["golden retriever", "labrador retriever", "german shepherd", "shepherd dog", "retriever"]
SYNSETS = ["tench, Tinca tinca", "crane", "maillot", "maillot, tank suit", "missile", "projectile, missile"]


@pytest.mark.parametrize(
    ("texts", "separator"),
    [
        (["cat dog", "cat", "dog"], "space"),
        (["cat dog", "dog bird", "bird cat"], "space"),
        (["cat; dog", "cat", "dog;eel"], ";"),
        (["A|B", "B|C", "A|C"], "|"),
        (["cat, dog", "dog", "eel, cat"], "comma"),
        (["cat\tdog", "dog", "cat"], "tab"),
        (["cat+dog", "dog", "cat"], "+"),
        (["[1, 2]", "[2]", "[3, 1]"], "comma"),
        (["['a', 'b, c']", "['b, c']", "['d', 'a']"], "comma"),
        (['["a", "b"]', '["b"]', '["c"]'], "comma"),
        (["['a' 'b']", "['b']", "['c' 'a']"], "space"),
        (["('a', 'b')", "('b',)", "('c', 'a')"], "comma"),
        ([" ".join(RNG.sample(TAGS, RNG.randint(1, 4))) for _ in range(30)], "space"),
        ([" ".join(map(str, RNG.sample(range(28), RNG.randint(1, 4)))) for _ in range(300)], "space"),
    ],
)
def test_several_labels_in_a_cell_are_an_error_that_names_the_separator(
    texts: list[str], separator: str
) -> None:
    (error,), _ = judge(texts)
    assert error.startswith("l.csv: tags holds several labels in a cell, such as ")
    assert error.endswith(
        f"Pass labels=Labels(separator={separator!r}), or labels=Labels(as_='classes') if each text is a class."
    )
    assert judge(texts, separator=separator)[0] == judge(texts, as_="classes")[0] == []


def test_the_error_counts_texts_and_labels() -> None:
    assert judge(["cat dog", "cat", "dog", "cat bird"]) == (
        [
            "l.csv: tags holds several labels in a cell, such as 'cat bird' and 'cat dog': each of its 4 different texts would be a "
            "class, made of 3 labels; one label is expected. Pass labels=Labels(separator='space'), or labels=Labels(as_='classes') "
            "if each text is a class."
        ],
        [],
    )
    (error,), _ = judge(["cat dog", "cat", "dog", "cat bird"], separator=";")
    assert error.endswith("Pass labels=Labels(separator='space'), or the separator of the cells.")


def test_numbers_with_a_sign_are_noted() -> None:
    assert judge(["5%", "10 %", "5%", "10 %"]) == (
        [],
        [
            "l.csv: the 2 classes of tags are numbers with a sign, such as '10 %' and '5%'. If they are amounts, write numbers "
            "alone."
        ],
    )


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["0 0 1", "0 1 0"], "several numbers in a cell, such as '0 0 1' and '0 1 0'; one label is expected. Write each number"),
        (["0,0,1", "0,1,0"], "several numbers in a cell, such as '0,0,1' and '0,1,0'; one label is expected. Write each number"),
        (["[0.5, 2]", "[1, 3]"], "several numbers in a cell, such as '[0.5, 2]' and '[1, 3]'; one label is expected. Write each"),
        (["0,5", "1,25", "3"], "numbers with commas, such as '0,5' and '1,25'; decimals have a point. Correct them, or pass"),
    ],
)  # fmt: skip
def test_vectors_and_decimal_commas_are_no_labels(texts: list[str], found: str) -> None:
    assert judge(texts)[0][0].startswith(f"l.csv: tags holds {found}")


@pytest.mark.parametrize(
    "texts",
    [
        ["cat", "dog"],
        ["cat", "dog", "eel"],
        COLOURS * 3,
        PERSONS * 3,
        RETRIEVERS * 3,
        SYNSETS * 3,
        ["sea", "lion", "sea lion", "polar bear", "brown bear"] * 3,
        ["oak tree", "maple tree", "tree"] * 3,
        ["animal/cat", "animal/dog", "plant/rose"] * 3,
        ["Tomato___Early_blight", "Tomato___healthy", "Corn_(maize)___healthy"] * 3,
        ["a photo of a cat", "a photo of a dog", "a photo of a red cat"] * 9,
        [f"n{number:08d}" for number in range(21_841)] * 3,
    ],
    ids=lambda texts: texts[-1],
)
def test_names_of_several_words_are_classes(texts: list[str]) -> None:
    assert judge(texts) == ([], [])


def test_separators_between_names_that_never_come_again_are_noted() -> None:
    assert judge(["cat|dog", "eel;fox", "hen"]) == (
        [],
        [
            "2 of 3 classes contain | or ;, such as 'cat|dog' and 'eel;fox'; each is one class. Pass labels=Labels(separator='|') "
            "if cells hold several."
        ],
    )


@pytest.mark.parametrize(
    "texts",
    [
        ["a man riding a horse", "two dogs in a park", "a cat on the mat"],
        [f"a photo of a cat, number {number}" for number in range(30)],
        ["im00.jpg", "im01.jpg", "im02.jpg"],
        [f"{RNG.getrandbits(128):032x}" for _ in range(20)],
        [f"p{number}" for number in range(25)],
    ],
    ids=["captions", "prompts", "file names", "uuids", "ids"],
)
def test_a_text_for_each_image_is_an_error(texts: list[str]) -> None:
    ((error,), notes), count = judge(texts), len(texts)
    assert error == (
        f"l.csv: tags has {count} different texts for {count} images, such as {texts[0]!r} and {texts[-1]!r}, so nearly each image "
        "would be a class of its own; classes have several images. Choose another column with labels=Labels(column=), or pass "
        "labels=Labels(as_='classes') if they are classes."
    )
    assert notes == judge(texts, as_="classes")[0] == judge(texts, accepted=texts)[0] == []


def test_tags_that_differ_in_each_row_are_offered_the_separator() -> None:
    texts = [" ".join(map(str, sorted(RNG.sample(range(1103), RNG.randint(1, 6))))) for _ in range(300)]
    assert judge(texts)[0][0].endswith(
        "or pass labels=Labels(as_='classes') if they are classes, labels=Labels(separator='space') if a text holds several labels."
    )


def test_few_images_for_each_class_are_noted() -> None:
    people = [f"p{number}" for number in range(70)] + [f"q{number}" for number in range(30) for _ in range(5)]
    assert judge(people) == (
        [],
        ["220 images have 100 classes, 2.2 for each; 70 of them, such as p0, have one."],
    )
    assert judge([f"c{number // 2}" for number in range(40)])[1] == ["40 images have 20 classes, 2 for each."]
    assert judge(["cat"] * 3)[1] == ["All 3 images have the label cat."]
    assert judge([f"c{number // 3}" for number in range(60)]) == ([], [])


@pytest.mark.parametrize(
    ("numbers", "counted"),
    [
        (range(1000, 1030), "30 different numbers from 1000 to 1029 for 30 images"),
        ([number * 97 for number in range(200)], "200 different numbers from 0 to 19303 for 200 images"),
    ],
)
def test_numbers_that_differ_in_each_row_are_ids_or_amounts(numbers: Sequence[int], counted: str) -> None:
    assert judge(numbers) == (
        [
            f"l.csv: tags has {counted}, as ids have, or amounts; class numbers come again. Choose another column with "
            "labels=Labels(column=), or pass labels=Labels(as_='float') if they are amounts, labels=Labels(as_='classes') if they "
            "are classes."
        ],
        [],
    )
    assert judge(numbers, as_="float") == ([], [])
    assert judge(numbers, as_="classes")[0] == []


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ([0, 1] * 5, "(2 different from 0 to 1), stored as int64"),
        (list(range(1, 18)) * 5, "(17 different from 1 to 17), stored as int64"),
        ([8, -1, 3] * 5, "(3 different from -1 to 8), stored as int64; class numbers would be 0 to 2"),
        ([number * 31 % 1000 for number in range(30)], "(30 different from 0 to 899), stored as int64; class numbers would be 0 to 29"),
        ([20 + number % 60 for number in range(600)], "(60 different from 20 to 79), stored as int64; class numbers would be 0 to 59"),
    ],
)  # fmt: skip
def test_whole_numbers_are_noted(numbers: list[int], told: str) -> None:
    ways = "labels=Labels(as_='float') stores amounts, such as ages, as float32; labels=Labels(as_='classes') numbers classes from 0."
    assert judge(numbers) == ([], [f"Labels are whole numbers {told}. {ways}"])


def test_other_numbers_are_noted() -> None:
    assert judge([0.5, 1.25, 0.5]) == (
        [],
        [
            "Labels are numbers (2 different from 0.5 to 1.25), stored as float32; labels=Labels(as_='classes') treats them as classes."
        ],
    )
    assert judge([RNG.random() for _ in range(50)])[0] == judge([0.5], as_="float")[1] == []


def test_a_word_among_numbers_is_noted() -> None:
    assert judge([0, 1, 2, "NA"] * 5) == (
        [],
        [
            "3 of 4 classes are numbers, but not NA (5 images), so all are class names. Leave out images without a label."
        ],
    )
    assert judge([*range(10), *"ABCDEFGH"] * 3) == ([], [])
