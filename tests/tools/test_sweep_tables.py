"""The sweep of tables: what it calls equal, refused and wrong."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from packer import convert_table
from tools import sweep_tables as sweep


@pytest.fixture(autouse=True)
def alarm_as_before() -> Any:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.signal(signal.SIGALRM, before)


def write(folder: Path) -> None:
    (folder / "a.csv").write_text("x,day,c\n1.5,2020-01-31,red\nNA,2020-02-01,NA\n-2e3,,blue\n")
    (folder / "b.tsv").write_text("n\tok\ttext\n1\ttrue\ta b\n2\tno\tc\n")
    (folder / "c.dat").write_text("a b\n1 2\n3 4\n5 6\n")
    (folder / "e.dat").write_text("a  b\n1  2\n3  4\n5  6\n")
    (folder / "d.csv").write_text('Sales\nid,price\n1,"2,100"\n2,"3,250"\n')


def test_tables_are_equal_or_refused_with_remedies_that_help(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    assert sweep.main([str(tmp_path), "--remedies", "--json", str(tmp_path / "found.json")]) == 0
    assert capsys.readouterr().out.endswith("2 equal, 3 refused, 0 wrong\n")
    found = {Path(o["path"]).name: o for o in json.loads((tmp_path / "found.json").read_text())}
    assert (found["c.dat"]["said"], found["c.dat"]["given"]) == ("then equal", {"delimiter": " "})
    assert (found["e.dat"]["said"], found["e.dat"]["given"]) == ("then equal", {})
    assert found["d.csv"]["given"] == {"skip_rows": 1, "thousands": ","}
    assert sweep.main([str(tmp_path), "--match", "d.csv"]) == 0
    ways = "csv=Csv(skip_rows=1) csv=Csv({}) for titles above it, which reads (1, {}) and (2, {})"
    shown = capsys.readouterr().out
    assert ways.format("thousands=','", 2100, 3250) in shown
    assert ways.format("decimal=','", 2.1, 3.25) in shown


def test_other_values_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    other = tmp_path / "other.csv"
    other.write_text("x,day,c\n1.5,2020-01-31,red\nNA,2020-02-01,NA\n-2e4,,blue\n")
    monkeypatch.setattr(
        sweep, "convert_table", lambda source, *given, **options: convert_table(other, *given, **options)
    )
    found = sweep.sweep(tmp_path / "a.csv", tmp_path, remedies=False, limit=60)
    assert (found.verdict, found.said) == (
        "wrong",
        "column 'x', row 2: is np.float32(-20000.0); pandas reads '-2e3'",
    )
