from __future__ import annotations

from collections.abc import Callable

Examine = Callable[..., list[str]]


def test_classes_that_look_alike_or_are_numbers_are_noted(notes: Examine) -> None:
    def noted(*classes: str) -> list[str]:
        return notes([f"{name}/{number}.jpg" for number, name in enumerate(classes)])

    alike = "The classes {} and {} differ only in case, spaces or variants of letters; they are two classes."
    for first, second, shown in (
        ("Cat", "cat", ("'Cat'", "'cat'")),
        ("a  b", "a b", ("'a \\x20b'", "'a b'")),
        ("a b", "a\u00a0b", ("'a b'", "'a\\xa0b'")),
        ("fi", "\ufb01", ("'fi'", "'\\ufb01'")),
        ("zz", "z\u200bz", ("'zz'", "'z\\u200bz'")),
    ):
        assert noted("x", first, second) == [alike.format(*shown)]
    assert noted("x", "caf\u00e9", "cafe\u0301") == []  # one class
    assert noted("1", "10", "2") == [
        "The classes are numbers, sorted as text (1, 10, 2 ...), so labels differ from them: class 1 has the label 0."
    ]
    assert noted("01", "02")[0].endswith("class 01 has the label 0.")
    for classes in (["cat", "dog"], ["0", "1"], ["00", "01", "02"], ["10", "x", "2"]):
        assert noted(*classes) == []


def test_missing_labels_and_single_classes_are_noted(notes: Examine) -> None:
    assert notes(["1.jpg"]) == [
        "The images are not in class folders, so the pack has no labels; pass labels= to add some."
    ]
    assert notes(["a/1.jpg"]) == ["All images are in one class folder (a)."]
    assert notes(["a/1.jpg", "b/1.jpg"]) == []


def test_names_that_look_alike_are_shown_apart(errors: Examine) -> None:
    keys = ["train/a b/1.jpg", "train/c/2.jpg", "val/a\u00a0b/3.jpg", "val/c/4.jpg"]
    assert errors(keys)[0].startswith(
        "pets: split val has 1 class that train lacks: a\u00a0b ('a\\xa0b'; train has 'a b'), such as val/a\u00a0b/3.jpg;"
    )
