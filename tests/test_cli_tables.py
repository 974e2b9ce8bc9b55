"""packer convert and packer info of tables: what is printed, and the exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click.testing
import pytest

from packer.cli import cli
from packer.cli.option_words import in_options
from packer.errors import PackerError, UsageError
from packer.packs.pack_opening import open_pack
from packer.tables.transform.column_types import TYPES

TABLE = """when,price,shop,sold
2013-01-01T10:00:00Z,1.5,north,1
2013-01-02T11:30:00Z,NA,south,0
2013-01-03T12:00:00Z,2.5,north,1
2013-01-04T13:00:00Z,3.5,"east, far",NA
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("sales.csv")
    path.write_text(TABLE)
    return path


def run(*arguments: object, code: int = 0) -> click.testing.Result:
    result = click.testing.CliRunner().invoke(cli, [str(a) for a in arguments], standalone_mode=False)
    if result.exception is not None and not isinstance(result.exception, (SystemExit, PackerError)):
        raise result.exception
    if isinstance(result.exception, PackerError):
        raise result.exception
    assert (result.return_value or 0) == code, result.output
    return result


def test_a_table_is_told_before_and_after(table: Path):
    said = run(
        "convert", table, "sales.h5", "--label", "price", "--drop", "sold", "--on-error", "skip", code=3
    )
    lines = said.stdout.splitlines()
    assert lines[0] == (
        f"sales.csv: 4 columns, {len(TABLE)} bytes -> sales.h5: features when; categories shop; label price; dropped sold"
    )
    assert lines[1].startswith(f"packed 3 rows, {len(TABLE)} bytes -> ")
    assert said.stderr.splitlines() == [
        "left out 1 row (1 column 'price' is missing; a label is needed):",
        "  sales.csv: line 3, column 'price': is missing; a label is needed",
    ]


def test_missing_values_are_noted(table: Path):
    said = run("convert", table, "sales.h5", "--label", "shop").stdout
    assert (
        "note: 2 columns (price 25.0%, sold 25.0%): missing values, stored as NaN. A network needs numbers:"
        " pass --missing median, mean or zero." in said
    )
    assert "note" not in run("convert", table, "b.h5", "--label", "shop", "--missing", "mean").stdout
    assert run("convert", table, "c.h5", "--label", "shop", "--quiet").output == ""


def test_info_shows_every_column(table: Path):
    run("convert", table, "sales.h5", "--label", "shop", "--keep", "sold", "--type", "sold=number", "--quiet")
    lines = run("info", "sales.h5").stdout.splitlines()
    names = ["when", "price", "shop", "sold"]
    described = {line.split()[0]: line for line in lines if line.split()[1] in TYPES}
    assert list(described) == names
    assert "timestamp" in described["when"]
    assert "2013-01-01 10:00:00 to 2013-01-04 13:00:00" in described["when"]
    assert "1.5 to 3.5" in described["price"]
    assert "25 %" in described["price"]
    assert "3 categories: north 50 %" in described["shop"]
    record = json.loads(run("info", "sales.h5", "--json").stdout)
    assert [c["name"] for c in record["table"]["columns"]] == names


def test_rows_that_were_left_out_are_shown(table: Path):
    run("convert", table, "sales.h5", "--label", "sold", "--on-error", "skip", "--quiet", code=3)
    assert (
        "left out   1 rows: column 'sold' is missing; a label is needed"
        in run("info", "sales.h5").stdout.splitlines()
    )


def test_several_files_follow_each_other(table: Path):
    Path("more.csv").write_text("when,price,shop,sold\n2014-01-01T00:00:00Z,9,west,1\n")
    said = run("convert", table, "more.csv", "all.h5", "--label", "shop").stdout
    assert said.startswith("2 files: 4 columns, ")
    assert "packed 5 rows" in said


def test_a_pack_that_is_there_is_told(table: Path):
    run("convert", table, "sales.h5", "--label", "shop", "--quiet")
    said = run("convert", table, "sales.h5", "--label", "shop", "--resume").stdout
    assert said == "sales.h5: holds all 4 rows already\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--size", "32"], "--size: is about images and arrays; sales.csv is read as a table. Leave it out."),
        (
            ["--labels", "sales.csv"],
            "--labels: is about images; sales.csv is read as a table. Pass the folder of the images as SRC: "
            "packer convert FOLDER sales.h5 --labels sales.csv.",
        ),
        (["--type", "price"], "--type price: is not COLUMN=TYPE, each name once. Pass --type COLUMN=TYPE."),
        (
            ["--label", "shops"],
            "--label shops: no column has that name; the nearest is 'shop'. Pass a column of the table.",
        ),
        (["--delimiter", "ab"], None),
        (["--dtype", "float8"], None),
    ],
)
def test_wrong_usage_is_one_sentence(table: Path, arguments: list[str], sentence: str | None):
    with pytest.raises(UsageError) as caught:
        run("convert", table, "sales.h5", *arguments)
    assert sentence is None or in_options(str(caught.value)) == sentence
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in Path().iterdir()) == ["sales.csv"]


def test_options_of_tables_are_refused_for_images(tmp_path: Path):
    with pytest.raises(UsageError, match=r"--missing: is about tables; .* is read as images"):
        run("convert", tmp_path, tmp_path / "x.h5", "--missing", "mean")
    with pytest.raises(UsageError, match=r"is a second SRC; images come from one"):
        run("convert", tmp_path, tmp_path, tmp_path / "x.h5")


def test_packs_of_tables_are_put_together_split_and_stored_anew(table: Path):
    options, twice = ("--label", "shop", "--missing", "zero", "--quiet"), ("--duplicates", "keep")
    run("convert", table, "a.h5", *options)
    run("convert", table, "b.h5", "--like", "a.h5", "--quiet")
    assert re.fullmatch(
        r"packed 8 rows, .*, in .* rows/s, .* workers?\)\n",
        run("merge", "a.h5", "b.h5", "-o", "m.h5", *twice).stdout,
    )
    assert (
        "measured   4 rows: ranges and shares of the columns are theirs"
        in run("info", "m.h5").stdout.splitlines()
    )
    said = run("split", "m.h5", "train=0.5,val=0.5").stdout.splitlines()
    assert [line.partition(",")[0] for line in said] == [
        "packed 4 rows -> m.train.h5",
        "packed 4 rows -> m.val.h5",
    ]
    assert run("repack", "m.h5", "shards", "--shard-rows", "3", "--shuffle").stdout.startswith(
        "packed 8 rows, "
    )
    assert run("append", "shards", table, *twice).stdout.startswith("added 4 rows, ")
    assert open_pack("shards").rows == 12
    for command, *arguments in (
        ("append", "shards", table, *twice),
        ("merge", "a.h5", "b.h5", "-o", "n.h5", *twice),
        ("repack", "a.h5", "o.h5"),
    ):
        assert json.loads(run(command, *arguments, "--json").stdout)["rows"] in (4, 8)


def test_rows_that_cannot_be_added_are_listed(table: Path):
    run("convert", table, "s", "--label", "shop", "--shard-rows", "3", "--quiet")
    Path("more.csv").write_text(TABLE.replace("1.5", "x"))
    said = run("append", "s", "more.csv", "--on-error", "skip", code=3)
    assert said.stdout.splitlines()[-1].startswith("added 3 rows, ")
    assert said.stderr.splitlines() == [
        "left out 1 row (1 column 'price' is not a number):",
        "  more.csv: line 2, column 'price': 'x' is not a number",
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["append", "s", "sales.csv", "--labels", "x"],
            "--labels: is about images; s was made from a table.",
        ),
        (["append", "s", "sales.csv", "--pair", "a=b"], "--pair: is about images; s was made from a table."),
        (
            ["repack", "s", "out.h5", "--size", "32"],
            "size 32: is about images of 8 or 16 bits; s has no field 'image'.",
        ),
    ],
)
def test_what_is_about_images_is_refused(table: Path, arguments: list[str], sentence: str):
    run("convert", table, "s", "--label", "shop", "--shard-rows", "3", "--quiet")
    with pytest.raises(UsageError) as caught:
        run(*arguments)
    assert str(caught.value) == f"{sentence} Leave it out."


def test_the_splits_and_their_rows_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("x,y\n" + "".join(f"{n * 7 % 19},{n % 2}\n" for n in range(100)))
    command = ("convert", "t.csv", "t.h5", "--label", "y", "--split", "val=0.2,train=0.8")
    assert "splits: train 80, val 20" in run(*command).stdout.splitlines()
    assert "splits: train 80, val 20" in run(*command, "--resume").stdout.splitlines()
    shards = json.loads(run(*command[:2], "t", *command[3:], "--shard-rows", 30, "--json").stdout)
    assert shards["splits"] == {"train": 80, "val": 20}
    assert "splits:" not in run("convert", "t.csv", "u.h5", "--label", "y").stdout


def test_the_order_of_a_table_can_be_said_either_way(table: Path):
    for given, seed in (((), None), (("--shuffle",), 0), (("--no-shuffle",), None)):
        told = run("convert", table, "p.h5", *given, "--overwrite").stdout
        assert ("note: the rows keep the order of their table, since no label is given." in told) is (
            not given
        )
        assert open_pack("p.h5").header.seed == seed
    run("convert", table, "p", "--shuffle", "--format", "npy", "--quiet")
    Path("p/features.npy").write_bytes(Path("p/features.npy").read_bytes()[:-1] + b"!")
    said = run("verify", "p", code=1).stderr.splitlines()[-1]
    assert said.startswith(
        "To convert the same SRC again: packer convert SRC p --format npy --shuffle --overwrite."
    )


def test_a_damaged_pack_is_converted_again_from_its_table(table: Path):
    run("convert", table, "p", "--label", "shop", "--format", "npy", "--quiet")
    whole = Path("p/features.npy").read_bytes()
    Path("p/features.npy").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    said = run("verify", "p", code=1).stderr.splitlines()[-1]
    words = "packer convert SRC p --format npy --label shop --overwrite"
    assert said == f"To convert the same SRC again: {words}. If you edited the arrays yourself: packer seal p"
    run(*[table if word == "SRC" else word for word in words.split()[1:]])
    assert Path("p/features.npy").read_bytes() == whole


def test_splits_by_columns(table: Path):
    run("convert", table, "t.h5", "--label", "sold", "--split-column", "shop", "--on-error", "skip", code=3)
    assert open_pack("t.h5").header.splits == {"north": ((0, 2),), "south": ((2, 3),)}
    said = run("convert", table, "u.h5", "--split", "a=50,b=50", "--group-column", "shop").output
    assert "features when, price, sold; splits or orders by shop" in said
    assert re.search(
        r"note: Groups of shop in each split: a [12] \([12] rows?\)|: a [12] \([23] rows\)", said
    )
    with pytest.raises(UsageError) as error:
        run("convert", table, "v.h5", "--group-column", "shop")
    assert in_options(str(error.value)) == (
        "--group-column shop: groups need shares, or a column that names their splits. Pass --split train=0.9,val=0.1, "
        "or --split-column; for rows in order --order-column."
    )
