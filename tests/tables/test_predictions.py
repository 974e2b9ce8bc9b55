"""The way of a test table: its order, its identifiers, a label that is missing or empty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from packer import PackedDataset
from packer.cli.option_words import in_options
from packer.errors import SourceError, UsageError
from packer.packs.joined_pack import check_mappings
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.tables import apply
from packer.tables.table_conversion import convert_table

ROWS = 200
ORDERED = "the rows keep the order of their table, since {}. For a random order, pass --shuffle."
LIKE = ORDERED.format("they are packed like another pack")


def frame(seed: int = 0) -> pandas.DataFrame:
    rng = np.random.default_rng(seed)
    return pandas.DataFrame(
        {
            "id": [f"{n:05d}" for n in rng.permutation(ROWS)],
            "a": rng.normal(size=ROWS),
            "b": rng.normal(size=ROWS),
            "y": rng.choice(["down", "up"], ROWS),
        }
    )


@pytest.fixture
def train(tmp_path: Path) -> Path:
    frame().to_csv(tmp_path / "train.csv", index=False)
    convert_table(tmp_path / "train.csv", tmp_path / "train.h5", label="y", drop=["id"])
    return tmp_path / "train.h5"


def packed(rows: pandas.DataFrame, train: Path, **options: Any) -> tuple[Pack, list[str]]:
    path = train.parent / "test.csv"
    rows.to_csv(path, index=False)
    report = convert_table(path, train.parent / "test.h5", like=train, overwrite=True, **options)
    return open_pack(report.out), [in_options(note) for note in report.notes]


def is_ordered(pack: Pack, rows: pandas.DataFrame) -> bool:
    return bool((pack.read("features")[:, 0] == rows.a.to_numpy("f4")).all())


def test_a_test_table_keeps_its_order_and_its_ids(train: Path) -> None:
    rows = frame(1).drop(columns="y")
    pack, notes = packed(rows, train, keep=["id"])
    assert notes == [LIKE]
    assert is_ordered(pack, rows)
    assert PackedDataset(pack, fields=["id"])[:].id == rows.id.tolist()
    assert pack.source_rows.tolist() == list(range(ROWS))
    assert pack.header.seed is None
    shuffled, notes = packed(rows, train, keep=["id"], shuffle=True)
    assert notes == []
    assert not is_ordered(shuffled, rows)
    assert PackedDataset(shuffled, fields=["id"])[:].id == rows.id[shuffled.source_rows].tolist()


def test_tables_without_a_label_keep_their_order(tmp_path: Path) -> None:
    rows = frame().drop(columns=["id", "y"])
    rows.to_csv(tmp_path / "t.csv", index=False)
    report = convert_table(tmp_path / "t.csv", tmp_path / "t.h5")
    assert is_ordered(open_pack(report.out), rows)
    assert ORDERED.format("no label is given") in map(in_options, report.notes)
    shuffled = convert_table(tmp_path / "t.csv", tmp_path / "s.h5", shuffle=True)
    assert not is_ordered(open_pack(shuffled.out), rows)
    labeled = convert_table(tmp_path / "t.csv", tmp_path / "l.h5", label="b")
    assert not is_ordered(open_pack(labeled.out), rows)
    assert not any("the order of" in note for note in (*shuffled.notes, *labeled.notes))


def test_kept_columns_may_be_new_or_dropped(train: Path) -> None:
    rows = frame(1).assign(more=np.arange(ROWS), id=np.arange(ROWS))
    pack, _ = packed(rows, train, keep=["more", "id"])
    assert [f.name for f in pack.fields] == ["features", "label", "id", "more", "source_row"]
    assert pack.read("more").tolist() == pack.read("id").tolist() == rows.more.tolist()
    check_mappings(open_pack(train), pack)
    again, _ = packed(rows, Path(pack.path).rename(train.parent / "kept.h5"))
    assert again.read("more").tolist() == rows.more.tolist()


@pytest.mark.parametrize(
    ("keep", "sentence"),
    [
        (
            "a",
            "keep='a': is a feature of the pack given as like; columns that it drops, or does not have, can be"
            " kept. Leave it out.",
        ),
        (
            "y",
            "keep='y': is a label of the pack given as like; columns that it drops, or does not have, can be"
            " kept. Leave it out.",
        ),
        ("Id", "keep='Id': no column has that name; the nearest is 'id'. Pass a column of the table."),
    ],
)
def test_columns_with_a_role_cannot_be_kept(train: Path, keep: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        packed(frame(1), train, keep=[keep])
    assert str(caught.value) == sentence


@pytest.mark.parametrize("na", [None, "?"])
def test_an_empty_label_is_none(train: Path, na: str | None) -> None:
    rows = frame(1).assign(y=na)
    pack, notes = packed(rows, train, csv={} if na is None else {"na": na})
    assert notes == ["column 'y', the label, is empty in every row: the rows have no label.", LIKE]
    assert [f.name for f in pack.fields] == ["features", "source_row"]
    assert is_ordered(pack, rows)


def test_a_label_of_some_rows_is_one(train: Path) -> None:
    rows = frame(1)
    rows.loc[: ROWS - 2, "y"] = None
    with pytest.raises(SourceError, match="line 2, column 'y': is missing; a label is needed"):
        packed(rows, train)
    pack, _ = packed(rows, train, on_error="skip")
    assert pack.source_rows.tolist() == [ROWS - 1]
    rows["y"] = "?"
    with pytest.raises(SourceError, match="'\\?' is not one of the label's classes"):
        packed(rows, train)


def test_one_empty_column_of_a_label_of_several_is_none(tmp_path: Path) -> None:
    rows = frame().drop(columns="y").assign(c=np.arange(ROWS) % 7)
    rows.to_csv(tmp_path / "train.csv", index=False)
    convert_table(tmp_path / "train.csv", tmp_path / "train.h5", label=["b", "c"], drop=["id"])
    pack, notes = packed(rows.assign(c=None), tmp_path / "train.h5")
    assert notes == ["column 'c', the label, is empty in every row: the rows have no label.", LIKE]
    assert [f.name for f in pack.fields] == ["features", "source_row"]


def test_null_labels_of_parquet_are_none(train: Path) -> None:
    frame(1).assign(y=None).to_parquet(train.parent / "test.parquet")
    report = convert_table(train.parent / "test.parquet", train.parent / "test.h5", like=train)
    assert [f.name for f in open_pack(report.out).fields] == ["features", "source_row"]


def test_forms_of_dates_and_verbatim_texts_hold_for_new_rows(tmp_path: Path) -> None:
    rows = pandas.DataFrame(
        {
            "code": ["NA", "DE", "", "FR"] * 5,
            "day": ["28-Oct-2018", "1-Jan-2019"] * 10,
            "at": ["8:30 PM", "12:00 AM"] * 10,
            "when": ["2018-10-28T08:30:00+02:00", "1970-01-01T00:00Z"] * 10,
            "y": [0.5, 1.25] * 10,
        }
    )
    rows.to_csv(tmp_path / "train.csv", index=False)
    train = tmp_path / "train.h5"
    report = convert_table(
        tmp_path / "train.csv", train, label="y", types={"code": "verbatim"}, shuffle=False, dtype="float64"
    )
    first = open_pack(report.out)
    assert first.read("categories")[:4, 0].tolist() == [3, 1, 0, 2]
    assert first.read("features")[:2].tolist() == [[17832, 73800, 17832, 23400], [17897, 0, 0, 0]]
    assert first.header.table["reading"]["types"] == {
        "code": "verbatim", "day": "date-name", "at": "time-12h", "when": "timestamp-offset"
    }  # fmt: skip
    new, _ = packed(rows, train)
    assert (new.read("features") == first.read("features")).all()
    assert (new.read("categories") == first.read("categories")).all()
    for given in (rows, rows.iloc[0].to_dict()):
        mapped = apply(first, given)
        assert np.array_equal(np.atleast_2d(mapped["features"])[0], first.read("features")[0])
        assert np.ravel(mapped["categories"])[0] == 3


def test_types_that_were_given_hold_for_new_rows_without_the_label(tmp_path: Path) -> None:
    rows = pandas.DataFrame(
        {"a": ["1.250,5", "2.250,5"] * 4, "day": ["2018-10-28", "28.10.2018"] * 4, "y": ["1.1", "1.10"] * 4}
    )
    rows.to_csv(tmp_path / "train.csv", index=False)
    given = dict.fromkeys(rows.columns, "category")
    convert_table(tmp_path / "train.csv", tmp_path / "train.h5", label="y", types=given)
    pack, _ = packed(rows.drop(columns="y"), tmp_path / "train.h5")
    assert pack.read("categories")[:2].tolist() == [[1, 1], [2, 2]]
