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


def test_categories_are_matched_alike_by_like_and_apply(tmp_path: Path) -> None:
    train = tmp_path / "train.h5"
    convert_table(
        {"c": ["a", "7", "1.5", "true", "007x"], "y": [1.5, 2, 3, 4, 5]}, train, label="y", shuffle=False
    )
    known = open_pack(train).header.table["columns"][0]["categories"]
    for cell, same in {
        "7": "7", "7.0": "7", " 7 ": "7", "+7": "7", "007": "7", "1.50": "1.5", "True": "true", " a": "a",
        "A": None, "7_0": None, "b": None, "\u0667": None,
    }.items():  # fmt: skip
        code = 0 if same is None else known.index(same) + 1
        frame = {"c": [cell, "a", "1.5"]}
        report = convert_table(frame, tmp_path / "new.h5", like=train, overwrite=True)
        assert open_pack(report.out).read("categories")[0].tolist() == [code], cell
        rows = [{"c": c} for c in frame["c"]]
        for given in (frame, pandas.DataFrame(frame), rows, rows * 50):
            assert apply(open_pack(train), given)["categories"][0].tolist() == [code], (cell, type(given))
        assert apply(open_pack(train), rows[0])["categories"].tolist() == [code]


@pytest.mark.parametrize("cell", [20180105, 17536.0, 0])
@pytest.mark.parametrize("column", ["date", "time", "timestamp"])
def test_numbers_are_no_dates_for_like_nor_for_apply(column: str, cell: float, tmp_path: Path) -> None:
    cells = {"date": "2018-01-05", "time": "8:30", "timestamp": "2018-01-05 08:30:00"}
    train = tmp_path / "train.h5"
    convert_table({"d": [cells[column]] * 3, "y": [1, 2, 3]}, train, label="y", types={"d": column})
    for given in ({"d": cell}, [{"d": cell}], {"d": [cell]}, pandas.DataFrame({"d": [cell]})):
        with pytest.raises(UsageError, match=f"cannot be read as {column}. Convert it|is not a {column} "):
            apply(open_pack(train), given)
    with pytest.raises(UsageError, match=f"cannot be read as {column}. Convert it"):
        convert_table({"d": [cell]}, tmp_path / "new.h5", like=train)


def test_days_written_as_numbers_are_read_by_their_notation(tmp_path: Path) -> None:
    rows = pandas.DataFrame({"d": [20180105, 20180106, 20191231], "y": [1, 2, 4]})
    rows.to_csv(tmp_path / "train.csv", index=False)
    packs = [tmp_path / "text.h5", tmp_path / "frame.h5"]
    for source, out in zip((tmp_path / "train.csv", rows), packs, strict=True):
        convert_table(source, out, label="y", types={"d": "date-ymd"}, shuffle=False)
        assert open_pack(out).read("features")[:, 0].tolist() == [17536, 17537, 18261]
    new = convert_table(rows, tmp_path / "new.h5", like=packs[0]).out
    assert open_pack(new).read("features")[:, 0].tolist() == [17536, 17537, 18261]
    assert apply(open_pack(packs[0]), rows)["features"][:, 0].tolist() == [17536, 17537, 18261]
    assert apply(open_pack(packs[0]), {"d": 20180105})["features"].tolist() == [17536]


def test_a_named_index_is_a_column_for_apply_too(train: Path) -> None:
    rows = frame(1).set_index("a")
    report = convert_table(rows, train.parent / "new.h5", like=train)
    found = apply(open_pack(train), rows)
    assert np.array_equal(found["features"], open_pack(report.out).read("features"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"a": "1,5"}, "or pass csv=Csv(decimal=',') for 1.5."),
        ({"a": "x"}, "or pass csv=Csv(na=('x',)) if 'x' means missing."),
        ({"a": "1e39"}, "is beyond float32. Correct it."),
    ],
)
def test_remedies_under_like_are_options_that_like_allows(
    change: dict[str, str], sentence: str, train: Path
) -> None:
    rows = frame(1).astype(object).assign(**change)
    with pytest.raises(SourceError) as caught:
        packed(rows, train)
    assert sentence in str(caught.value)
    assert "types=" not in str(caught.value)


def test_the_types_of_the_pack_hold_whatever_the_new_rows_look_like(tmp_path: Path) -> None:
    train = pandas.DataFrame({"c": ["28/10/2018", "1/2/2018"] * 9, "k": ["7", "x"] * 9, "y": [1, 2] * 9})
    train.to_csv(tmp_path / "train.csv", index=False)
    convert_table(tmp_path / "train.csv", tmp_path / "train.h5", label="y", keep=["k"], shuffle=False)
    rows = pandas.DataFrame(
        {"c": ["28/10/2018", "2018-10-28"] * 9, "k": ["7", "8"] * 9, "more": ["1,5"] * 18}
    )
    pack, notes = packed(rows, tmp_path / "train.h5", csv={"delimiter": ","})
    assert pack.texts("k") == ["7", "8"] * 9
    assert pack.read("categories")[:2].tolist() == [[2], [0]]
    assert not any("--type" in note for note in notes)


def test_words_that_mean_missing_are_told_under_like_without_a_remedy(train: Path) -> None:
    rows = pandas.DataFrame({"c": ["NA", "x", "y"], "y": [1, 2, 3]})
    rows.to_csv(train.parent / "c.csv", index=False)
    convert_table(train.parent / "c.csv", train.parent / "c.h5", label="y")
    (note,) = [note for note in packed(rows, train.parent / "c.h5")[1] if "words that mean" in note]
    assert note.endswith("in the first 3 rows: c 'NA' 1.")


def test_a_note_on_the_label_does_not_tell_to_drop_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n" + "1,?\n2,1.5\n3,2.5\n" * 9)
    report = convert_table(tmp_path / "a.csv", tmp_path / "a.h5", label="y")
    (note,) = [note for note in report.notes if "'y' is read as category" in note]
    assert note.endswith("If '?' means missing, pass csv=Csv(na=('?',)).")


def test_texts_of_kept_columns_are_read_as_texts(train: Path) -> None:
    rows = frame(1)
    for shards in (None, 90):
        convert_table(rows, train.parent / "new.h5", like=train, keep=["id"], shards=shards, overwrite=True)
        pack = open_pack(train.parent / "new.h5")
        assert pack.texts("id") == rows.id.tolist()
        assert pack.texts("id", 88, 92) == rows.id.tolist()[88:92]
        with pytest.raises(UsageError, match=r"'features' is no field of texts; it has id\. Pass"):
            pack.texts("features")


def test_words_that_mean_missing_in_texts_do_so_in_frames_for_like_and_apply(tmp_path: Path) -> None:
    rows = pandas.DataFrame({"c": ["a", "b", "NA"], "k": ["u", "null", "v"], "y": [1.5, 2, 3]})
    rows.to_csv(tmp_path / "text.csv", index=False)
    rows.to_parquet(tmp_path / "null.parquet")
    for source, kept in (
        (tmp_path / "text.csv", ["u", "", "v"]),
        (tmp_path / "null.parquet", ["u", "null", "v"]),
    ):
        convert_table(source, tmp_path / "a.h5", label="y", keep=["k"], shuffle=False, overwrite=True)
        first = open_pack(tmp_path / "a.h5")
        for given in (rows, tmp_path / "null.parquet"):
            new = open_pack(convert_table(given, tmp_path / "b.h5", like=first, overwrite=True).out)
            assert new.texts("k") == kept
            assert np.array_equal(new.read("categories"), first.read("categories"))
        for some in (rows, rows.to_dict("records"), rows.to_dict("records") * 50):
            found = apply(first, some)
            assert found["k"][:3] == kept
            assert np.array_equal(found["categories"][:3], first.read("categories"))


def test_floats_are_booleans_for_like_and_apply_and_large_numbers_are_not_rounded(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    (tmp_path / "a.csv").write_text("b,p,y\n" + "true,5%,1\nfalse,7%,2\n" * 5)
    convert_table(tmp_path / "a.csv", tmp_path / "a.h5", label="y", keep=["p"], types={"p": "percent"})
    pack = open_pack(tmp_path / "a.h5")
    for cells in ([1.0, None, 0.0], [None, float("nan"), None]):
        rows = polars.DataFrame({"b": polars.Series(cells, dtype=polars.Float64), "p": [5.0, 6.0, 7.0]})
        report = convert_table(rows, tmp_path / "b.h5", like=pack, overwrite=True)
        found = apply(pack, rows)["features"]
        assert np.array_equal(open_pack(report.out).read("features"), found, equal_nan=True)
    row = {"b": True, "p": 2**53 + 1}
    for given in (row, [row], [row] * 101):
        with pytest.raises(UsageError, match="is a whole number that float64 rounds"):
            apply(pack, given)
    with pytest.raises(SourceError, match="is a whole number that float64 rounds"):
        convert_table([row], tmp_path / "c.h5", like=pack)


FRAMES: dict[str, Any] = {
    "pandas": lambda frame: frame,
    "index": lambda frame: frame.set_index("a"),
    "dict": lambda frame: frame.to_dict("list"),
    "polars": lambda frame: pytest.importorskip("polars").from_pandas(frame),
    "rows": lambda frame: frame.to_dict("records"),
}


@pytest.mark.parametrize("form", FRAMES)
def test_apply_and_like_give_equal_rows(tmp_path: Path, form: str) -> None:
    rows = pandas.DataFrame(
        {
            "a": [0.5, 1.25] * 5,
            "code": ["7", "x y"] * 5,
            "ok": ["true", "false"] * 5,
            "at": ["12:00:00", "01:30:00"] * 5,
            "note": ["one", "two"] * 5,
            "y": ["u", "v"] * 5,
        }
    )
    rows.to_csv(tmp_path / "train.csv", index=False)
    convert_table(
        tmp_path / "train.csv", tmp_path / "train.h5", label="y", keep="note", types={"code": "category"}
    )
    new = pandas.DataFrame(
        {
            "a": [2.0, 3.0],
            "code": ["7.0", " x y"],
            "ok": [1.0, None],
            "at": pandas.to_timedelta([90, 5400], "s"),
            "note": [" one", "NA"],
            "y": ["", "NA"],
        }
    )
    given = FRAMES[form](new)
    convert_table(given, tmp_path / "new.h5", like=tmp_path / "train.h5")
    packed, mapped = open_pack(tmp_path / "new.h5"), apply(open_pack(tmp_path / "train.h5"), given)
    assert mapped.keys() == {"features", "categories", "note"}
    assert np.array_equal(mapped["features"], [[2, 1, 90], [3, np.nan, 5400]], equal_nan=True)
    assert mapped["categories"].tolist() == [[1], [2]]
    assert mapped["note"] == PackedDataset(packed, fields=["note"])[:].note == ["one", ""]
    assert mapped["features"].tobytes() == packed.read("features").tobytes()
    assert mapped["categories"].tobytes() == packed.read("categories").tobytes()


def test_new_codes_keep_their_zeros_or_are_refused(tmp_path: Path) -> None:
    rows = "".join(f"{n},{n + 1},{n % 3}\n" for n in range(60))
    (tmp_path / "train.csv").write_text(f"a,k,y\n{rows}")
    convert_table(tmp_path / "train.csv", tmp_path / "train.h5", label="y", keep=["k"])
    for cells in ({"a": "1", "k": "007", "y": "2"}, {"a": "1", "k": "7", "y": "02"}):
        (tmp_path / "test.csv").write_text(",".join(cells) + "\n" + ",".join(cells.values()) + "\n")
        with pytest.raises(SourceError, match="has leading zeros, which no number keeps"):
            convert_table(tmp_path / "test.csv", tmp_path / "test.h5", like=tmp_path / "train.h5")
        for data in (cells, [cells, cells], pandas.DataFrame([cells])):
            with pytest.raises(UsageError, match="has leading zeros, which no number keeps"):
                apply(open_pack(tmp_path / "train.h5"), data)


def test_a_further_text_for_missing_stands_beside_those_of_the_pack(tmp_path: Path) -> None:
    rows = "".join(f"{n},{'?' if n % 5 == 0 else 't'}\n" for n in range(30))
    (tmp_path / "train.csv").write_text(f"a,t\n{rows}")
    convert_table(tmp_path / "train.csv", tmp_path / "train.h5", keep=["t"], csv={"na": "?"})
    (tmp_path / "test.csv").write_text("a,t\n4,?\nxx,?\n1,t\n")
    with pytest.raises(SourceError, match=r"pass csv=Csv\(na=\('\?', 'xx'\)\) if 'xx' means missing"):
        convert_table(tmp_path / "test.csv", tmp_path / "test.h5", like=tmp_path / "train.h5")
    convert_table(
        tmp_path / "test.csv", tmp_path / "test.h5", like=tmp_path / "train.h5", csv={"na": ["?", "xx"]}
    )
    assert open_pack(tmp_path / "test.h5").texts("t") == ["", "", "t"]
