"""Opening tables by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from packer.errors import SourceError, UsageError
from packer.tables.reading.table_opening import open_table
from packer.tables.reading.table_source import ReadOptions


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_files_and_globs() -> None:
    for name in ("b.csv", "a.csv", "c.tsv"):
        Path(name).write_text("x\n1\n")
    table = open_table(["c.tsv", "*.csv"], ReadOptions())
    assert table.names == ("c.tsv", "a.csv", "b.csv")


def test_arrow_files(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"a": [1, 2, 3]}), "a.parquet")
    table = open_table(["a.parquet"], ReadOptions())
    assert [column.name for column in table.columns] == ["a"]


def test_kinds_are_not_mixed() -> None:
    Path("a.csv").write_text("x\n1\n")
    Path("a.pq").write_bytes(b"PAR1")
    with pytest.raises(UsageError) as error:
        open_table(["a.csv", "a.pq"], ReadOptions())
    assert str(error.value) == (
        "a.pq: is read as Parquet and Arrow, a.csv as text; the files of a table are of one kind. Pass them separately."
    )


def test_any_name_will_do_but_a_file_is_needed() -> None:
    Path("a.asc").write_text("x\n1\n")
    assert [column.name for column in open_table(["a.asc"], ReadOptions()).columns] == ["x"]
    with pytest.raises(SourceError, match="matches no file"):
        open_table(["*.csv"], ReadOptions())
    with pytest.raises(UsageError, match="no file is given"):
        open_table([], ReadOptions())
