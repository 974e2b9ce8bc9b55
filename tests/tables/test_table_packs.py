"""Packs of tables: put together, split, stored another way, added to."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from PIL import Image

from packer.cli.option_words import in_options
from packer.convert.image_appending import append_images
from packer.convert.image_conversion import convert_images
from packer.convert.repacking import merge_packs, repack, split_pack
from packer.errors import SourceError, UsageError
from packer.orders.runs import one_run
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.packs.verify import verify_pack
from packer.read.array_store import PackStore
from packer.tables import apply
from packer.tables.reading import text_table as text
from packer.tables.table_conversion import append_table, convert_table
from packer.writing.working_folder import WorkingFolder
from tests.format.packs import files_of

ROWS = 600
OPTIONS: dict[str, Any] = {
    "label": "grade",
    "keep": ["id", "when", "member", "day", "clock", "weight", "count"],
    "missing": "mean",
    "encode": {"indicators": True},
    "one_hot": ["shape"],
    "types": {"price": "currency"},
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several pieces, and blocks of a few rows. One worker: forking takes longer than these."""
    monkeypatch.setattr("packer.arguments.cores", lambda: 1)
    monkeypatch.setattr(text, "PIECE", 1 << 13)
    monkeypatch.setattr(
        "packer.convert.row_storage.block_rows", lambda rows, row_bytes, least_bytes: min(rows, 50)
    )


@functools.cache
def csv(rows: int, seed: int) -> str:
    return frame(rows, seed).to_csv(index=False)


def frame(rows: int = ROWS, seed: int = 0) -> pandas.DataFrame:
    rng = np.random.default_rng(seed)
    when = pandas.Timestamp("2013-01-01", tz="UTC") + pandas.to_timedelta(rng.integers(0, 10**8, rows), "s")
    return pandas.DataFrame(
        {
            "id": [f"k{i}, \u00e9" if i % 3 else None for i in range(rows)],
            "x": np.where(rng.random(rows) < 0.1, np.nan, rng.normal(5, 2, rows).round(3)),
            "price": [f"${x:,.2f}" for x in rng.random(rows) * 9999],
            "colour": np.array(["red", "green", 'blue "dark"'])[rng.integers(0, 3, rows)],
            "shape": np.array(["round", "flat"])[rng.integers(0, 2, rows)],
            "grade": np.array(["low", "high", "middle"])[rng.integers(0, 3, rows)],
            "when": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "seen": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "member": np.array(["yes", "no"])[rng.integers(0, 2, rows)],
            "day": when.strftime("%Y-%m-%d"),
            "clock": when.strftime("%H:%M:%S"),
            "weight": rng.random(rows),
            "count": rng.integers(0, 10**15, rows),
        }
    )


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """a.csv, and b.csv with other rows of the same columns."""
    (tmp_path / "a.csv").write_text(csv(ROWS, 0))
    (tmp_path / "b.csv").write_text(csv(200, 1))
    return tmp_path


def opened(path: Path) -> Pack:
    assert verify_pack(path).problems == ()
    return open_pack(path)


def rows_of(pack: Pack) -> list[tuple[Any, ...]]:
    """Every row, of all fields but its number in the file, as it is stored."""
    columns = [
        pack.read_ragged(f.name) if f.ragged else [row.tobytes() for row in pack.read(f.name)]
        for f in pack.fields
        if not f.counts
    ]
    return list(zip(*columns, strict=True))


def mapping(pack: Pack) -> dict[str, Any]:
    assert pack.header.table is not None
    return {name: value for name, value in pack.header.table.items() if name != "skipped"}


# Merging


@pytest.mark.parametrize("split", [None, "train=0.8,val=0.2"])
@pytest.mark.parametrize("name", ["m.h5", "m"])
def test_packs_that_are_mapped_alike_become_one(tables: Path, split: str | None, name: str):
    convert_table(tables / "a.csv", tables / "a.h5", split=split, **OPTIONS)
    convert_table(tables / "b.csv", tables / "b.h5", split=split, like=tables / "a.h5")
    first, second = opened(tables / "a.h5"), opened(tables / "b.h5")
    report = merge_packs([tables / "a.h5", tables / "b.h5"], tables / name, shuffle=False)
    pack = opened(tables / name)
    assert report.rows == pack.rows == 800
    assert sorted(rows_of(pack)) == sorted(rows_of(first) + rows_of(second))
    if split is None:
        assert rows_of(pack) == rows_of(first) + rows_of(second)
    assert {k: sum(b - a for a, b in v) for k, v in pack.header.splits.items()} == (
        {"train": 640, "val": 160} if split else {}
    )
    assert mapping(pack) == mapping(first)
    assert pack.header.classes == ("high", "low", "middle")
    found = apply(pack, frame(200, seed=1))["features"]
    assert np.array_equal(found[np.lexsort(found.T)], (own := second.read("features"))[np.lexsort(own.T)])


def test_merging_mixes_the_rows_and_depends_on_the_seed_alone(tables: Path):
    convert_table(tables / "a.csv", tables / "a.h5", **OPTIONS)
    convert_table(tables / "b.csv", tables / "b.h5", like=tables / "a.h5")
    packs = [tables / "a.h5", tables / "b.h5"]
    merge_packs(packs, tables / "one.h5", seed=4, workers=1)
    merge_packs(packs, tables / "two.h5", seed=4, workers=3)
    merge_packs(packs, tables / "other.h5", seed=5)
    assert (tables / "one.h5").read_bytes() == (tables / "two.h5").read_bytes()
    one, other = opened(tables / "one.h5"), opened(tables / "other.h5")
    assert rows_of(one) != rows_of(other)
    assert sorted(rows_of(one)) == sorted(rows_of(other))


def test_packs_that_are_mapped_otherwise_are_refused_with_the_first_difference(tables: Path):
    convert_table(tables / "a.csv", tables / "a.h5", **OPTIONS)
    frame(200, seed=1).replace("red", "violet").to_csv(tables / "c.csv", index=False)
    convert_table(tables / "c.csv", tables / "c.h5", **OPTIONS)
    convert_table(tables / "b.csv", tables / "d.h5", **{**OPTIONS, "drop": ["x"]})
    frame(200, seed=1).drop(columns="x").to_csv(tables / "e.csv", index=False)
    convert_table(tables / "e.csv", tables / "e.h5", **OPTIONS)
    frame(200, seed=1).drop(columns="grade").to_csv(tables / "f.csv", index=False)
    convert_table(tables / "f.csv", tables / "f.h5", like=tables / "a.h5")
    (tables / "photos").mkdir()
    Image.new("RGB", (16, 16)).save(tables / "photos" / "0.png")
    convert_images(tables / "photos", tables / "g.h5", size=16)
    for name, sentence in [
        ("c.h5", "{n}: its column 'x' is mapped differently (fill is "),
        (
            "d.h5",
            "{n}: its column 'x' is mapped differently (role is feature in {a}, and drop here); the packs must have equal mappings.",
        ),
        (
            "e.h5",
            "{n}: its column 'x' is mapped differently (role is feature in {a}, and drop here); the packs must have equal mappings."
            " Convert its table again with --like {a}.",
        ),
        ("f.h5", "{n}: has the fields features, categories, id, "),
        (
            "g.h5",
            "{n}: was converted from images, {a} from a table; the packs must be of one kind. Leave one of them out.",
        ),
    ]:
        with pytest.raises(UsageError) as error:
            merge_packs([tables / "a.h5", tables / name], tables / "m.h5")
        assert in_options(str(error.value)).startswith(sentence.format(n=tables / name, a=tables / "a.h5"))
    assert not (tables / "m.h5").exists()


# Splitting


def test_a_pack_is_split_with_equal_shares_of_each_class(tables: Path):
    convert_table(tables / "a.csv", tables / "a.h5", **OPTIONS)
    whole = opened(tables / "a.h5")
    reports = split_pack(tables / "a.h5", "train=0.75,val=0.25")
    parts = {name: opened(tables / f"a.{name}.h5") for name in ("train", "val")}
    assert {name: report.rows for name, report in reports.items()} == {"train": 450, "val": 150}
    assert sorted(rows_of(parts["train"]) + rows_of(parts["val"])) == sorted(rows_of(whole))
    order = {row: number for number, row in enumerate(rows_of(whole))}
    for name, part in parts.items():
        places = [order[row] for row in rows_of(part)]
        assert places == sorted(places)
        shares = np.bincount(part.read("label")) / np.bincount(whole.read("label"))
        assert np.abs(shares - (0.75 if name == "train" else 0.25)).max() < 0.01
        assert mapping(part) == mapping(whole)
        assert part.header.classes == whole.header.classes
    again = split_pack(tables / "a.h5", "train=0.75,val=0.25")
    assert all(report.already for report in again.values())


def test_labels_that_are_numbers_are_dealt_out_as_well(tmp_path: Path):
    table = pandas.DataFrame({"x": np.arange(3000) / 4, "y": np.arange(3000) * 7})
    table.to_csv(tmp_path / "t.csv", index=False)
    convert_table(tmp_path / "t.csv", tmp_path / "t.h5", label="y")
    assert {n: r.rows for n, r in split_pack(tmp_path / "t.h5", "a=0.5,b=0.5").items()} == {
        "a": 1500,
        "b": 1500,
    }
    found = np.concatenate([opened(tmp_path / f"t.{name}.h5").read("label") for name in "ab"])
    assert np.array_equal(np.sort(found), table["y"])


# Storing another way


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("r", {}),
        ("r.h5", {}),
        ("s", {"shards": 250}),
        ("s", {"shards": "40kB"}),
        ("s", {"format": "npy", "shards": 400}),
    ],
)
def test_a_pack_is_stored_another_way(tables: Path, name: str, options: dict[str, Any]):
    convert_table(tables / "a.csv", tables / "a.h5", split="train=0.8,val=0.2", **OPTIONS)
    whole = opened(tables / "a.h5")
    repack(tables / "a.h5", tables / name, **options)
    pack = opened(tables / name)
    assert rows_of(pack) == rows_of(whole)
    assert pack.header.splits == whole.header.splits
    assert mapping(pack) == mapping(whole)
    assert bool(pack.shards) == ("shards" in options or "shards" in options)
    repack(tables / name, tables / "back.h5")
    assert rows_of(opened(tables / "back.h5")) == rows_of(whole)
    assert np.array_equal(apply(pack, frame())["features"], apply(whole, frame())["features"])


@pytest.mark.parametrize("columns", [80, 3])
def test_rows_can_be_compressed(tmp_path: Path, columns: int):
    table = pandas.DataFrame(np.arange(columns * 120).reshape(120, columns) % 97 / 4)
    table.to_csv(tmp_path / "t.csv", index=False, header=[f"c{i}" for i in range(columns)])
    convert_table(tmp_path / "t.csv", tmp_path / "t.h5")
    convert_table(tmp_path / "t.csv", tmp_path / "c.h5", store="gzip")
    assert opened(tmp_path / "c.h5").header.field("features").compressed
    repack(tmp_path / "t.h5", tmp_path / "z.h5", store="gzip")
    pack = opened(tmp_path / "z.h5")
    assert pack.header.field("features").compressed
    repack(tmp_path / "z.h5", tmp_path / "again.h5")
    assert opened(tmp_path / "again.h5").header.field("features").compressed
    whole = opened(tmp_path / "t.h5").read("features")
    for name in ("z.h5", "c.h5", "again.h5"):
        reader = PackStore(compressed := opened(tmp_path / name), compressed.fields)
        assert np.array_equal(reader.array("features", one_run(0, 120)), whole)
        reader.close()
    merge_packs([tmp_path / "z.h5", tmp_path / "again.h5"], tmp_path / "m.h5", duplicates="keep")
    assert opened(tmp_path / "m.h5").rows == 240
    with pytest.raises(UsageError, match=r"t\.h5: its field 'features' is .*, that of .*z\.h5 is .*repack"):
        merge_packs([tmp_path / "z.h5", tmp_path / "t.h5"], tmp_path / "n.h5")


def test_a_pack_is_shuffled_anew(tables: Path):
    convert_table(
        tables / "a.csv", tables / "a.h5", shuffle=False, split="train=first:400,val=rest", **OPTIONS
    )
    repack(tables / "a.h5", tables / "s.h5", shuffle=True, seed=3)
    first, pack = opened(tables / "a.h5"), opened(tables / "s.h5")
    assert (first.header.seed, pack.header.seed) == (None, 3)
    assert pack.header.splits == first.header.splits
    rows, shuffled = rows_of(first), rows_of(pack)
    assert shuffled != rows
    assert sorted(shuffled[:400]) == sorted(rows[:400])
    assert sorted(shuffled) == sorted(rows)


def test_what_is_about_images_is_refused(tables: Path):
    convert_table(tables / "a.csv", tables / "a.h5", **OPTIONS)
    for options in ({"size": 16}, {"store": "jpeg"}, {"quality": 50}):
        ((name, value),) = options.items()
        with pytest.raises(UsageError) as error:
            repack(tables / "a.h5", tables / "r.h5", **options)  # type: ignore[arg-type]
        assert (
            str(error.value)
            == f"{name} {value}: is about images of 8 or 16 bits; {tables / 'a.h5'} has no field 'image'. Leave it out."
        )


class _StopError(BaseException):
    """What a test ends the work with."""


def stop_at(calls: int) -> Callable[[int], None]:
    seen = [0]

    def progress(done: int) -> None:
        seen[0] += 1
        if seen[0] > calls:
            raise _StopError

    return progress


@pytest.mark.parametrize("kind", ["merge", "split", "repack"])
def test_interrupted_work_goes_on(tables: Path, kind: str):
    convert_table(tables / "a.csv", tables / "a.h5", **OPTIONS)
    shutil.copy(tables / "a.h5", tables / "b.h5")

    def run(folder: str, **options: Any) -> Path:
        (tables / folder).mkdir(exist_ok=True)
        out = tables / folder / "o.h5"
        if kind == "merge":
            merge_packs([tables / "a.h5", tables / "b.h5"], out, workers=1, **options, duplicates="keep")
        elif kind == "repack":
            repack(tables / "a.h5", out, workers=1, **options)
        else:
            split_pack(tables / "a.h5", "x=0.5,y=0.5", out=tables / folder, workers=1, **options)
            return tables / folder / "a.y.h5"
        return out

    whole = run("whole").read_bytes()
    with pytest.raises(_StopError):
        run("out", on_progress=stop_at(1))
    assert not (tables / "out" / "o.h5").exists()
    assert any((tables / "out").glob("*.packing"))
    assert run("out").read_bytes() == whole
    assert not any((tables / "out").glob("*.packing"))


# Adding


@pytest.fixture
def shards(tables: Path) -> Path:
    convert_table(tables / "a.csv", tables / "s", shards=250, **OPTIONS)
    return tables / "s"


def test_rows_are_added_mapped_as_the_others(shards: Path, tables: Path):
    before = rows_of(opened(shards))
    report = append_table(shards, tables / "b.csv")
    pack = opened(shards)
    assert (report.rows, pack.rows, len(pack.shards)) == (200, 800, 4)
    assert rows_of(pack)[:600] == before
    convert_table(tables / "b.csv", tables / "b.h5", like=shards)
    assert sorted(rows_of(pack)[600:]) == sorted(rows_of(opened(tables / "b.h5")))
    assert pack.header.table is not None
    assert not (tables / "s.adding.packing").exists()
    # Other workers, the same bytes.
    convert_table(tables / "a.csv", tables / "t", shards=250, **OPTIONS)
    append_table(tables / "t", tables / "b.csv", workers=3)
    assert files_of(tables / "t") == files_of(shards)


def test_titles_and_comments_are_passed_over_wherever_the_table_is_read_again(tmp_path: Path):
    def table(name: str, first: int) -> Path:
        lines = [f"{n},{n % 2}" for n in range(first, first + 6)]
        text = "\n".join(["A title", "", "x,y", *lines[:3], "# checked, twice", *lines[3:]])
        (tmp_path / name).write_text(text + "\n")
        return tmp_path / name

    pack, read = tmp_path / "s", {"csv": {"skip_rows": 2, "comment": "#"}}
    report = convert_table(table("a.csv", 0), pack, shards=3, shuffle=False, **read)
    note = f"{tmp_path / 'a.csv'}: lines skipped at its beginning: 2, the first is 'A title'."
    assert note in report.notes
    assert convert_table(tmp_path / "a.csv", pack, shards=3, shuffle=False, resume=True, **read).already
    with pytest.raises(UsageError, match="comment"):
        convert_table(tmp_path / "a.csv", pack, shards=3, shuffle=False, resume=True, csv={"skip_rows": 2})
    append_table(pack, table("b.csv", 6))
    assert opened(pack).read("features")[:, 0].tolist() == list(range(12))
    convert_table(tmp_path / "b.csv", tmp_path / "b.h5", like=pack, shuffle=False)
    assert opened(tmp_path / "b.h5").read("features")[:, 0].tolist() == list(range(6, 12))


def test_splits_are_drawn_for_added_rows(tables: Path):
    convert_table(tables / "a.csv", tables / "s", shards=600, split="train=0.75,val=0.25", **OPTIONS)
    append_table(tables / "s", tables / "b.csv")
    pack = opened(tables / "s")
    assert pack.header.splits == {"train": ((0, 450), (600, 750)), "val": ((450, 600), (750, 800))}
    convert_table(tables / "a.csv", tables / "t", shards=600, split="train=first:500,val=rest", **OPTIONS)
    with pytest.raises(UsageError, match=r"t: has splits \(train, val\) that are not shares of its rows"):
        append_table(tables / "t", tables / "b.csv")


def test_bad_rows_are_told_or_left_out_and_listed(shards: Path, tables: Path):
    table = frame(200, seed=1)
    table.loc[7, "price"] = "free"
    table.loc[9, "grade"] = "odd"
    table.loc[11, "colour"] = "violet"
    table.to_csv(tables / "b.csv", index=False)
    with pytest.raises(
        SourceError, match=r"b\.csv: line 9, column 'price': 'free' is not an amount of money"
    ):
        append_table(shards, tables / "b.csv")
    assert opened(shards).rows == 600
    report = append_table(shards, tables / "b.csv", on_error="skip")
    assert (report.rows, report.skipped_rows) == (198, 2)
    assert (
        report.notes[-1]
        == f"1 column (colour 1): categories that {shards} does not have; their code is 0, like missing cells."
    )
    assert [s["key"].split(": ")[1] for s in opened(shards).header.skipped] == [
        "line 9, column 'price'",
        "line 11, column 'grade'",
    ]


@pytest.mark.parametrize("calls", [1, 4])
def test_an_interrupted_addition_goes_on_and_the_pack_is_whole_meanwhile(
    shards: Path, tables: Path, calls: int
):
    shutil.copytree(shards, tables / "t")
    append_table(tables / "t", tables / "b.csv", workers=1)
    before = rows_of(opened(shards))
    with pytest.raises(_StopError):
        append_table(shards, tables / "b.csv", workers=1, on_progress=stop_at(calls))
    assert rows_of(opened(shards)) == before
    append_table(shards, tables / "b.csv", workers=1)
    assert files_of(shards) == files_of(tables / "t")
    assert not list(tables.glob("*.packing"))


def test_what_an_addition_left_that_was_killed_when_it_was_done_goes(
    shards: Path, tables: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        close = WorkingFolder.close
        patch.setattr(WorkingFolder, "close", lambda self, keep: close(self, keep=True))
        append_table(shards, tables / "b.csv")
    assert (tables / "s.adding.packing" / "journal").exists()
    assert append_table(shards, tables / "b.csv", duplicates="skip").rows == 0
    assert not (tables / "s.adding.packing").exists()


def test_an_addition_that_waits_is_kept_while_another_is_refused(shards: Path, tables: Path):
    (tables / "c.csv").write_text(csv(200, 5))
    append_table(shards, tables / "b.csv")
    with pytest.raises(_StopError):
        append_table(shards, tables / "c.csv", workers=1, on_progress=stop_at(4))
    with pytest.raises(UsageError, match="already"):
        append_table(shards, tables / "b.csv")
    assert append_table(shards, tables / "c.csv").resumed > 0


def test_columns_that_are_missing_and_packs_that_cannot_grow_are_refused(shards: Path, tables: Path):
    for column in ("grade", "id", "x"):
        frame(5).drop(columns=column).to_csv(tables / "c.csv", index=False)
        with pytest.raises(UsageError, match=rf"has no column '{column}'"):
            append_table(shards, tables / "c.csv")
    convert_table(tables / "a.csv", tables / "one.h5", **OPTIONS)
    with pytest.raises(UsageError) as error:
        append_table(tables / "one.h5", tables / "b.csv")
    one, grown, more = tables / "one.h5", tables / "one", tables / "b.csv"
    assert str(error.value) == (
        f"{one}: is a single file; only packs of shards can grow. Repack it into shards, then append:"
        f" repack('{one}', '{grown}', shards='2GB'); append_table('{grown}', '{more}')"
    )
    repack(one, grown, shards="2GB")
    append_table(grown, more)
    assert opened(grown).rows == 800
    with pytest.raises(
        UsageError, match=r"s: was made from a table; append_images adds images\. Use append_table\."
    ):
        append_images(shards, tables)
