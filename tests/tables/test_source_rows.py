"""Which row of its file each row of a pack was: in any order, with rows left out, and in packs made of packs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from packer import PackedBatchDataset, PackedDataset, Split
from packer.convert.repacking import merge_packs, repack, split_pack
from packer.errors import FormatError, UsageError
from packer.packs.file_rows import SOURCE_ROW
from packer.packs.pack_opening import open_pack
from packer.packs.verify import verify_pack
from packer.tables.reading import text_table as text
from packer.tables.staging import StagedTable, TableRows
from packer.tables.table_conversion import append_table, convert_table

ROWS = 900
SKIP: dict[str, Any] = {"on_error": "skip", "label": "y", "types": {"odd": "number"}}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several pieces, of more bad rows than are listed, in one process."""
    monkeypatch.setattr("packer.arguments.cores", lambda: 1)
    monkeypatch.setattr(text, "PIECE", 1 << 12)


def table(first: int = 0, rows: int = ROWS, seed: int = 0) -> pandas.DataFrame:
    """Rows that know their number, cells of two lines, numbers that are none, and labels that are missing."""
    rng = np.random.default_rng(seed)
    label = rng.choice(["a", "b", "c"], rows).astype(object)
    label[rng.random(rows) < 0.2] = None
    return pandas.DataFrame(
        {
            "number": np.arange(first, first + rows),
            "text": rng.choice(["one", "two\nlines", '"3"'], rows),
            "odd": np.where(rng.random(rows) < 0.3, "?", "1.5"),
            "y": label,
        }
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    lines = table().to_csv(index=False).splitlines(keepends=True)
    lines.insert(5, "\n")  # a blank line is no row
    (tmp_path / "t.csv").write_text("".join(lines))
    return tmp_path / "t.csv"


def check(path: Any) -> np.ndarray[Any, Any]:
    """The numbers are those that the rows know; returns them."""
    pack = open_pack(path)
    assert verify_pack(path).problems == ()
    rows = PackedDataset(path, fields=["features"], split="all" if pack.header.splits else None)[:].features
    numbers = pack.source_rows
    assert numbers.dtype == np.int64
    assert numbers.tolist() == rows[:, 0].tolist()
    return numbers


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": False},
        {"split": "train=0.8,val=0.2"},
        {"split": "train=rest,val=last:50", "shuffle": False},
        {"split": Split("train=0.5,val=0.5", group="text")},
        {"format": "npy"},
        {"shards": 100},
        {"store": "zstd"},
    ],
    ids=str,
)
def test_rows_know_their_numbers(source: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    report = convert_table(source, tmp_path / "t", **{"format": "h5", **options}, **SKIP)
    assert report.skipped_rows > 300
    numbers = check(report.out)
    good = table().query("odd != '?' and y.notna()").number
    assert sorted(numbers.tolist()) == good.tolist()
    check(repack(report.out, tmp_path / "again.h5", shuffle=True).out)
    parts = split_pack(report.out, "q=0.3,w=0.7", out=tmp_path)
    assert sorted(np.concatenate([check(part.out) for part in parts.values()]).tolist()) == good.tolist()
    merged = merge_packs([part.out for part in parts.values()], tmp_path / "m.h5")
    assert sorted(check(merged.out).tolist()) == good.tolist()


def test_more_bad_rows_than_are_listed_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "PIECE", 1 << 20)
    cells = ["1", *["?"] * 1500, "2", '"two\nlines"', "?", "3"]
    (tmp_path / "t.csv").write_text("x,z\n" + "".join(f"{cell},{n}\n" for n, cell in enumerate(cells)))
    convert_table(tmp_path / "t.csv", tmp_path / "t.h5", types={"x": "number"}, on_error="skip", label="z")
    assert sorted(open_pack(tmp_path / "t.h5").source_rows.tolist()) == [0, 1501, 1504]


def test_rows_of_parquet_know_their_numbers(tmp_path: Path) -> None:
    frame = table()
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=100)
    check(convert_table(tmp_path / "t.parquet", tmp_path / "t.h5", **SKIP).out)


def test_an_interrupted_conversion_counts_on(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = convert_table(source, tmp_path / "whole.h5", **SKIP)
    add, calls = StagedTable.add, []

    def stop(*given: Any) -> None:
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        add(*given)

    with monkeypatch.context() as patch:
        patch.setattr(StagedTable, "add", stop)
        with pytest.raises(KeyboardInterrupt):
            convert_table(source, tmp_path / "t.h5", **SKIP)
    report = convert_table(source, tmp_path / "t.h5", **SKIP)
    assert report.resumed
    check(report.out)
    assert Path(report.out).read_bytes() == Path(whole.out).read_bytes()


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """Three files of one table; the first rows and the last rows of each are bad."""
    files = []
    for number, (first, rows) in enumerate([(0, 300), (300, 200), (500, 400)]):
        frame = table(first, rows, number)
        frame.loc[frame.index[[0, -1]], "odd"] = "?"
        files.append(tmp_path / f"{number}.csv")
        frame.to_csv(files[-1], index=False)
    return files


def test_a_pack_that_grows_counts_the_rows_of_all_files(parts: list[Path], tmp_path: Path) -> None:
    convert_table(parts[:1], tmp_path / "grown", shards=100, **SKIP)
    for file in parts[1:]:
        append_table(tmp_path / "grown", file, on_error="skip")
    check(tmp_path / "grown")
    grown = open_pack(tmp_path / "grown")
    loaded = np.concatenate([b.source_row for b in PackedBatchDataset(grown, 64, fields=["source_row"])])
    assert loaded.tolist() == grown.source_rows.tolist()
    check(repack(tmp_path / "grown", tmp_path / "again.h5", shuffle=True).out)
    for part in split_pack(tmp_path / "again.h5", "q=0.5,w=0.5").values():
        check(part.out)
    whole = convert_table(parts, tmp_path / "whole.h5", **SKIP)
    assert sorted(check(whole.out).tolist()) == sorted(open_pack(tmp_path / "grown").source_rows.tolist())


def test_merged_packs_count_the_rows_of_all_files(parts: list[Path], tmp_path: Path) -> None:
    packs = [tmp_path / f"{number}.h5" for number in range(3)]
    convert_table(parts[0], packs[0], **SKIP)
    for file, pack in zip(parts[1:], packs[1:], strict=True):
        convert_table(file, pack, like=packs[0], shuffle=True, on_error="skip")
    check(merge_packs(packs, tmp_path / "m.h5").out)
    merge_packs(packs[:2], tmp_path / "two.h5")
    check(merge_packs([tmp_path / "two.h5", packs[2]], tmp_path / "three.h5").out)
    joined = PackedDataset(list(packs), fields=["features"])
    assert joined.pack.source_rows.tolist() == joined[:].features[:, 0].tolist()
    swapped = merge_packs([packs[1], packs[0]], tmp_path / "swapped.h5")
    rows = PackedDataset(swapped.out)[:].features[:, 0].numpy()
    assert (
        open_pack(swapped.out).source_rows.tolist() == np.where(rows < 300, rows + 200, rows - 300).tolist()
    )


def test_they_load_where_they_are_named(source: Path, tmp_path: Path) -> None:
    convert_table(source, tmp_path / "t.h5", **SKIP)
    assert next(iter(PackedBatchDataset(tmp_path / "t.h5", 8)))._fields == ("features", "categories", "label")
    batch = next(
        iter(PackedBatchDataset(tmp_path / "t.h5", 8, shuffle=True, fields=["features", "source_row"]))
    )
    assert batch.source_row.tolist() == batch.features[:, 0].tolist()


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch, parts: list[Path], tmp_path: Path) -> list[Path]:
    """A file and a folder of shards as they were before rows had numbers."""
    given = TableRows.__init__

    def plain(self: TableRows, *arguments: Any, number: int | None, sequence: Any) -> None:
        given(self, *arguments, number=None, sequence=sequence)

    with monkeypatch.context() as patch:
        patch.setattr(TableRows, "__init__", plain)
        convert_table(parts[0], tmp_path / "old.h5", **SKIP)
        convert_table(parts[0], tmp_path / "old", shards=100, **SKIP)
    return [tmp_path / "old.h5", tmp_path / "old"]


def test_old_packs_have_none_and_go_on_without(old: list[Path], parts: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        _ = open_pack(old[0]).source_rows
    assert str(caught.value) == (
        f"{old[0]}: does not have the numbers of its rows in their files; packs of tables do, unless an older"
        " packer wrote them, or packs that they were made of. Convert the table again."
    )
    append_table(old[1], parts[1], on_error="skip")
    convert_table(parts[1], tmp_path / "new.h5", like=old[0], on_error="skip")
    merged = merge_packs([tmp_path / "new.h5", old[0]], tmp_path / "m.h5").out
    for path in (old[1], merged):
        assert verify_pack(path).problems == ()
        assert SOURCE_ROW not in open_pack(path).fields
    assert len(PackedDataset([old[0], tmp_path / "new.h5"])) == open_pack(merged).rows


def test_wrong_numbers_are_damage(source: Path, tmp_path: Path) -> None:
    convert_table(source, tmp_path / "t", format="npy", **SKIP)
    shutil.copytree(tmp_path / "t", tmp_path / "u")
    numbers = np.lib.format.open_memmap(tmp_path / "u/source_row.npy", mode="r+")
    numbers[3] = ROWS
    numbers.flush()
    with pytest.raises(
        FormatError, match="its row numbers are wrong \\(not all are below the number of rows\\)"
    ):
        _ = open_pack(tmp_path / "u").source_rows
