"""Notes on features that number the rows, and on features that tell the label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from packer.cli.option_words import in_options
from packer.tables.table_conversion import convert_table

ROWS = 400
RNG = np.random.default_rng(0)
Y = RNG.integers(0, 2, ROWS)
PRICE = RNG.lognormal(10, 1, ROWS).round(2)
BASE = pandas.DataFrame(
    {"a": RNG.normal(size=ROWS), "b": RNG.integers(0, 80, ROWS), "c": RNG.choice(list("xyz"), ROWS)}
)


def suspects(rows: pandas.DataFrame, folder: Path, label: str | None = "y", **options: Any) -> list[str]:
    rows.to_csv(folder / "t.csv", index=False)
    report = convert_table(
        folder / "t.csv", folder / "t.h5", label=label, missing="zero", overwrite=True, **options
    )
    notes = [in_options(note) for note in report.notes]
    return [
        note
        for note in notes
        if any(what in note for what in ("number the rows", "label 'y'", "sum of", "far"))
    ]


def numbering(name: str) -> list[str]:
    return [
        f"1 column ({name}): the values number the rows, as identifiers do, which say nothing about new rows."
        f" Pass --drop {name} or --keep {name}."
    ]


def sorting(*names: str, rows: int = ROWS) -> list[str]:
    count = f"{len(names)} column{'s' * (len(names) > 1)}"
    return [
        f"{count} ({', '.join(names)}): sorting by such a column sorts the label 'y' ({rows} rows). If it is known"
        f" only with the label, it is a leak. Pass --drop {','.join(names)}."
    ]


@pytest.mark.parametrize(
    "ids",
    [np.arange(1, ROWS + 1), np.arange(ROWS)[::-1], RNG.permutation(ROWS) + 7000],
    ids=["ascending", "descending", "shuffled"],
)
@pytest.mark.parametrize("label", ["y", None])
def test_numbers_of_the_rows(tmp_path: Path, ids: Any, label: str | None) -> None:
    rows = BASE.assign(Id=ids) if label is None else BASE.assign(Id=ids, y=Y)
    assert suspects(rows, tmp_path, label) == numbering("Id")
    assert suspects(rows, tmp_path, label, split="train=0.8,val=0.2") == numbering("Id")
    assert suspects(rows, tmp_path, label, drop=["Id"]) == []


def test_a_last_row_of_totals(tmp_path: Path) -> None:
    rows = BASE.assign(d=RNG.integers(-9, 9, ROWS), y=PRICE)
    sums = pandas.DataFrame([{**rows[["b", "d", "y"]].sum(), "a": 0.5, "c": "Total"}])
    assert suspects(pandas.concat([rows, sums]), tmp_path) == [
        "2 columns (b, y): the last row holds the sum of the rows above it, as a row of totals does, which is no sample."
        " If it is one, leave it out of the file."
    ]
    assert suspects(pandas.concat([rows, sums.assign(b=sums["b"] + 1, y=1e9)]), tmp_path) == []


@pytest.mark.parametrize("mark", [-999, 9999.5])
def test_numbers_for_missing_values(tmp_path: Path, mark: float) -> None:
    rows = BASE.assign(e=np.where(np.arange(ROWS) % 50 == 7, mark, BASE["b"]), y=Y)
    (note,) = suspects(rows, tmp_path)
    assert note == (
        f"1 column (e): a number comes again, far from all others, as {mark} in 8 of 400 rows of 'e', whose others are"
        f" 0 to 79. If it stands for missing ones, pass --na {mark}, or leave these cells empty."
    )
    for other in (0, 150, np.where(np.arange(ROWS) == 7, mark, 3)):  # no mark, near, once
        assert suspects(rows.assign(e=np.where(np.arange(ROWS) % 50 == 7, other, BASE["b"])), tmp_path) == []


def test_numbers_of_the_rows_with_rows_left_out(tmp_path: Path) -> None:
    label = np.where(RNG.random(ROWS) < 0.3, np.nan, Y)
    rows = BASE.assign(Id=np.arange(ROWS), y=label)
    assert suspects(rows, tmp_path, on_error="skip", label_as="classes") == numbering("Id")


@pytest.mark.parametrize(
    "values",
    [
        np.arange(ROWS) * 2,
        np.arange(ROWS) // 2,
        np.arange(ROWS) + 0.5,
        np.where(np.arange(ROWS) == 9, np.nan, np.arange(ROWS)),
        np.where(np.arange(ROWS) == ROWS - 1, 0, np.arange(ROWS)),
        [f"2020-01-{1 + n % 28:02d}" for n in range(ROWS)],
    ],
    ids=["gaps", "pairs", "fractions", "missing", "repeated", "dates"],
)
def test_other_numbers(tmp_path: Path, values: Any) -> None:
    assert suspects(BASE.assign(n=values, y=Y), tmp_path) == []


@pytest.mark.parametrize(
    "values",
    [
        Y + RNG.random(ROWS) * 0.9,
        -Y * 3.0,
        np.where(Y, RNG.normal(size=ROWS), np.nan),
        np.where(Y, "yes", "no"),
        np.where(Y, "2020-02-01", "2021-01-01"),
    ],
    ids=["probability", "negated", "missing", "boolean", "date"],
)
@pytest.mark.parametrize("label", [Y, np.where(Y, "alive", "dead")], ids=["numbers", "texts"])
def test_columns_that_sort_the_classes(tmp_path: Path, values: Any, label: Any) -> None:
    assert suspects(BASE.assign(p=values, y=label), tmp_path) == sorting("p")
    wrong = np.array(label)
    wrong[[3, 77]] = wrong[[3, 77]][::-1]
    assert wrong[3] != label[3]
    assert suspects(BASE.assign(p=values, y=wrong), tmp_path) == []


def test_classes_in_any_order(tmp_path: Path) -> None:
    codes = RNG.integers(0, 3, ROWS)
    rows = BASE.assign(
        m=np.array([2, 0, 1])[codes] * 10 + RNG.random(ROWS), y=np.array(["p", "q", "r"])[codes]
    )
    assert suspects(rows, tmp_path) == sorting("m")


def test_columns_that_sort_numbers(tmp_path: Path) -> None:
    noise = PRICE + RNG.normal(size=ROWS) * 100
    rows = BASE.assign(net=PRICE / 1.19, logarithm=np.log(PRICE), negative=-PRICE, noise=noise, y=PRICE)
    assert suspects(rows, tmp_path) == sorting("net", "logarithm", "negative")
    split = suspects(rows, tmp_path, split="train=0.75,val=0.25")
    assert split == sorting("net", "logarithm", "negative", rows=300)


def test_texts_that_stand_for_the_label(tmp_path: Path) -> None:
    about = (
        "1 column (t): each text in such a column has one value of the label 'y' (400 rows). If it is known only"
        " with the label, it is a leak. Pass --drop t."
    )
    groups = RNG.integers(0, 40, ROWS)
    for texts, label in ((np.where(Y, "survivor", "victim"), Y), ([f"g{g}" for g in groups], groups % 3)):
        rows = BASE.assign(t=texts, y=label)
        assert suspects(rows, tmp_path) == [about]
        rows.loc[7, "y"] = 1 - rows.loc[7, "y"]
        assert suspects(rows, tmp_path) == []


@pytest.mark.parametrize("rows", [3, 8, 12])
def test_few_rows_may_agree_by_chance(tmp_path: Path, rows: int) -> None:
    few = BASE[:rows].assign(p=np.arange(rows) / 7, y=np.arange(rows) // (rows - 1))
    assert suspects(few, tmp_path) == []


def test_texts_that_all_differ_are_no_leak(tmp_path: Path) -> None:
    assert suspects(BASE.assign(t=[f"u{n}" for n in range(ROWS)], y=Y), tmp_path) == []


def test_rare_classes_are_no_leak_by_chance(tmp_path: Path) -> None:
    rare = (np.arange(ROWS) == int(BASE.a.argmax())).astype(int)
    assert suspects(BASE.assign(y=rare), tmp_path) == []


def test_nothing_is_noted_with_like(tmp_path: Path) -> None:
    rows = BASE.assign(Id=np.arange(ROWS), p=Y * 2.0, y=Y)
    assert len(suspects(rows, tmp_path)) == 2
    (tmp_path / "t.h5").rename(tmp_path / "like.h5")
    report = convert_table(tmp_path / "t.csv", tmp_path / "t.h5", like=tmp_path / "like.h5", shuffle=True)
    assert report.notes == ()
