from __future__ import annotations

import gzip
from pathlib import Path

import pandas
import pytest
import torch
from torch.utils.data import TensorDataset

from packer.bench.table_lanes import ContiguousSlices, batch_sampled, epochs_rate, parser
from packer.tables.reading.table_source import ReadOptions

ROWS = 100


@pytest.mark.parametrize("kind", ["slices", "sampled"])
def test_an_epoch_is_every_row_once_shuffled_anew(kind: str) -> None:
    x, y = torch.arange(ROWS * 2).reshape(ROWS, 2), torch.arange(ROWS)
    loader = (
        ContiguousSlices(x, y, batch_size=16) if kind == "slices" else batch_sampled(TensorDataset(x, y), 16)
    )
    orders = []
    for _ in range(2):
        batches = list(loader)
        assert [len(batch[1]) for batch in batches] == [16] * 6 + [4]
        rows = torch.cat([batch[1] for batch in batches])
        assert torch.equal(torch.cat([batch[0] for batch in batches]), x[rows])
        assert rows.sort().values.tolist() == list(range(ROWS))
        orders.append(rows.tolist())
    assert orders[0] != orders[1]
    assert list(range(ROWS)) not in orders


def test_a_rate_counts_whole_epochs() -> None:
    asked = []

    class Epoch:
        def __iter__(self):
            asked.append(0)
            yield from range(5)

    assert epochs_rate(Epoch(), 1000, 0.02) == pytest.approx(1000 * len(asked) / 0.02, rel=1)
    assert len(asked) > 1
    before = len(asked)
    epochs_rate(Epoch(), 1000, 1e-9)
    assert len(asked) == before + 1


def frames(monkeypatch: pytest.MonkeyPatch, function: str) -> list[pandas.DataFrame]:
    """What a function of pandas gives from now on."""
    found: list[pandas.DataFrame] = []
    real = getattr(pandas, function)

    def kept(*given: object, **options: object) -> pandas.DataFrame:
        found.append(real(*given, **options))
        return found[-1]

    kept.__name__ = function
    monkeypatch.setattr(pandas, function, kept)
    return found


def test_pandas_reads_what_packer_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = frames(monkeypatch, "read_csv")
    one, two = tmp_path / "one.csv.gz", tmp_path / "two.tsv"
    one.write_bytes(gzip.compress(b"1.234,5;'a;b';none\n7,25;c;3\n"))
    two.write_bytes(b"1,5\t'x\ty'\t2\n")
    reading = ReadOptions(header=False, quote="'", decimal=",", thousands=".", na=("none",))
    parse, name = parser([str(one), str(two)], reading)
    assert parse is not None
    assert name == "pandas.read_csv"
    assert len(found) == 2  # it was tried
    assert parse() > 0
    assert len(found) == 4
    first = found[2].astype(object).where(found[2].notna(), None)
    assert first.to_numpy().tolist() == [[1234.5, "a;b", None], [7.25, "c", 3.0]]
    assert found[3].to_numpy().tolist() == [[1.5, "x\ty", 2]]
    (tmp_path / "three.csv").write_text("A title; of x\na,b,c\n# d\n1,2,3\n4,5,6\n")
    parse, _ = parser([str(tmp_path / "three.csv")], ReadOptions(skip_rows=1, comment="#"))
    assert parse is not None
    assert found[-1].to_dict("list") == {"a": [1, 4], "b": [2, 5], "c": [3, 6]}


def test_parquet_and_feather(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_feather(tmp_path / "t.arrow")
    for name, function in (("t.parquet", "read_parquet"), ("t.arrow", "read_feather")):
        found = frames(monkeypatch, function)
        parse, called = parser([str(tmp_path / name)], ReadOptions())
        assert parse is not None
        assert called == f"pandas.{function}"
        assert found[0]["a"].tolist() == [1, 2]


def test_a_file_that_pandas_refuses_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n1,2,3,4\n")
    parse, why = parser([str(tmp_path / "t.csv")], ReadOptions())
    assert parse is None
    assert why.startswith("parsing with pandas: left out, it fails (ParserError: Error tokenizing data.")
