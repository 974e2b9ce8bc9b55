"""Tables that other processes take apart and put into shards: the same bytes, whatever is lost on the way."""

from __future__ import annotations

import gzip
import multiprocessing
import os
import pickle
import tempfile
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest

from packer import convert_table, merge_shards
from packer.convert import engines, shard_run
from packer.convert.shard_tasks import make_shard
from packer.errors import PackerError, SourceError, SpaceError, UsageError
from packer.format.pack_writer import PackWriter
from packer.format.working_folder import WorkingFolder
from packer.tables import staging, table_run
from packer.tables.reading import arrow_table, text_table
from tests.convert.test_engines import Elsewhere, content
from tests.remote.object_server import ObjectServer
from tests.remote.server_fixtures import server

__all__ = ["server"]
ROWS = 1500
OPTIONS: dict[str, Any] = {"label": "kind", "keep": ["name"], "shards": 350}


class Losing(Elsewhere):
    """Loses the n-th task that makes a shard, or reads; keeps its function and argument."""

    def __init__(self, nth: int, *, making: bool = True) -> None:
        super().__init__()
        self._left, self._making = nth, making
        self.lost = b""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if (fn is make_shard) == self._making:
            self._left -= 1
            if not self._left:
                self.lost = pickle.dumps((fn, args))
                raise RuntimeError("the machine is gone")
        return super().submit(fn, *args, **kwargs)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tables of some kB be taken apart in several tasks."""
    monkeypatch.setattr(text_table, "PIECE", 1 << 12)
    monkeypatch.setattr(staging, "_TASK_BYTES", 1 << 13)


@pytest.fixture(scope="module")
def columns() -> dict[str, Any]:
    draws = np.random.default_rng(5)
    return {
        "x": draws.normal(size=ROWS).round(4),
        "n": np.arange(ROWS),
        "city": [f"c{number}" for number in draws.integers(0, 40, ROWS)],
        "name": [f"one, {number}\nof them" for number in range(ROWS)],
        "kind": ["ab"[number % 2] for number in range(ROWS)],
    }


@pytest.fixture
def table(columns: dict[str, Any], tmp_path: Path) -> Path:
    lines = [",".join(columns)]
    lines += [
        f'{x},{n},{city},"{name}",{kind}' for x, n, city, name, kind in zip(*columns.values(), strict=True)
    ]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def form(kind: str, table: Path, columns: dict[str, Any]) -> list[str]:
    """Write the table in another form, in the folder of the first; returns names in it."""
    folder, text = table.parent, table.read_bytes()
    arrow = pyarrow.table(columns)
    if kind == "mark":
        table.write_bytes(b"\xef\xbb\xbf" + text)
    elif kind == "gz":
        (folder / "table.csv.gz").write_bytes(gzip.compress(text))
        return ["table.csv.gz"]
    elif kind == "utf-16":
        table.write_bytes(text.decode().encode("utf-16"))
    elif kind == "parquet":
        for part in range(2):
            half = arrow.slice(part * 750, 750)
            pyarrow.parquet.write_table(half, folder / f"{part}.parquet", row_group_size=200)
        return ["0.parquet", "1.parquet"]
    elif kind == "feather":
        pyarrow.feather.write_feather(arrow, folder / "table.feather", chunksize=400)
        return ["table.feather"]
    return ["table.csv"]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("csv", {}),
        ("mark", {"shuffle": False}),
        ("gz", {"split": "train=0.8,val=0.2", "missing": "mean", "standardize": True}),
        ("utf-16", {"encoding": "utf-16", "store": "zstd"}),
        ("parquet", {"one_hot": ["city"]}),
        ("feather", {"split": "train=0.8,val=0.2", "shuffle": False}),
    ],
)
@pytest.mark.parametrize("memory", [1 << 28, 1 << 13], ids=["as they lie", "dealt"])
def test_the_bytes_are_those_of_one_machine(
    table: Path,
    columns: dict[str, Any],
    kind: str,
    options: dict[str, Any],
    memory: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_run, "SHUFFLE_BYTES", memory)
    monkeypatch.chdir(table.parent)  # others work in other folders
    names = form(kind, table, columns)
    one = convert_table(names, "one", **OPTIONS | options)
    elsewhere = Elsewhere()
    other = convert_table(names, "other", engine=elsewhere, **OPTIONS | options)
    assert content(table.parent / "other") == content(table.parent / "one")
    assert len(elsewhere.given) > 5 + (kind not in ("parquet", "feather"))
    assert (other.rows, other.bytes_read, other.bytes_written) == (ROWS, one.bytes_read, one.bytes_written)
    assert not list(table.parent.glob("*.packing"))


@pytest.mark.parametrize("options", [{}, {"split": "train=0.8,val=0.2", "shuffle": False}])
def test_tasks_hold_no_text_that_can_be_read_elsewhere(
    table: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_TASK_BYTES", 1 << 14)
    elsewhere = Elsewhere()
    convert_table(table, table.parent / "out", engine=elsewhere, **OPTIONS | options)
    assert max(map(len, elsewhere.given)) < 3 << 12


def test_tasks_are_small_however_well_the_text_is_compressed(table: Path) -> None:
    head = table.read_bytes().partition(b"\n")[0]
    (table.parent / "table.csv.gz").write_bytes(gzip.compress(head + b"\n" + b"1,2,c,d,a\n" * 15_000))
    elsewhere = Elsewhere()
    convert_table(table.parent / "table.csv.gz", table.parent / "out", engine=elsewhere, **OPTIONS)
    assert max(map(len, elsewhere.given)) < 1 << 15


@pytest.mark.parametrize("kind", ["feather", "parquet"])
def test_tasks_hold_their_own_rows_only(
    columns: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(arrow_table, "PIECE_ROWS", 50)
    monkeypatch.setattr(staging, "_TASK_BYTES", 1)
    path, arrow = tmp_path / f"table.{kind}", pyarrow.table(columns)
    if kind == "feather":
        pyarrow.feather.write_feather(arrow, path)
    else:
        pyarrow.parquet.write_table(arrow, path)
    elsewhere = Elsewhere()
    convert_table(path, tmp_path / "one", **OPTIONS)
    convert_table(path, tmp_path / "out", engine=elsewhere, **OPTIONS)
    assert content(tmp_path / "out") == content(tmp_path / "one")
    assert len(elsewhere.given) == 30 + 5
    assert max(map(len, elsewhere.given)) < 10_000


def test_at_most_so_many_pieces_are_under_way(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Waiting(Elsewhere):
        _max_workers = 1000
        waiting = most = 0

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future = super().submit(fn, *args, **kwargs)
            if fn is not make_shard:
                self.waiting += 1
                self.most = max(self.most, self.waiting)
            return future

    monkeypatch.setattr(engines, "_MOST_READ", 3)
    waiting = Waiting()

    def progress(nbytes: int) -> None:
        waiting.waiting = 0

    convert_table(table, table.parent / "out", engine=waiting, on_progress=progress, **OPTIONS)
    assert waiting.most == 3


def test_rows_that_are_left_out(table: Path, tmp_path: Path) -> None:
    lines = table.read_text().split("\n")
    lines[3], lines[2001] = "much,1,c1,one", "x,1,c1,one,two,b"
    table.write_text("\n".join(lines))
    with pytest.raises(SourceError, match=r"table\.csv: line 4"):
        convert_table(table, tmp_path / "out", engine=Elsewhere(), **OPTIONS)
    one = convert_table(table, tmp_path / "one", on_error="skip", **OPTIONS)
    other = convert_table(table, tmp_path / "other", engine=Elsewhere(), on_error="skip", **OPTIONS)
    assert content(tmp_path / "other") == content(tmp_path / "one")
    assert (other.skipped, other.reasons) == (one.skipped, one.reasons)
    assert one.skipped_rows > 1


@pytest.mark.parametrize("making", [False, True], ids=["reading", "making"])
@pytest.mark.parametrize("then", ["elsewhere", "here"])
def test_the_driver_goes_on_with_what_is_there(table: Path, tmp_path: Path, making: bool, then: str) -> None:
    convert_table(table, tmp_path / "one", engine=(first := Elsewhere()), **OPTIONS)
    losing = Losing(3, making=making)
    with pytest.raises(
        PackerError,
        match=r"could not be .* \(the machine is gone\)\. Run it again, or without engine=\. .* is kept",
    ):
        convert_table(table, tmp_path / "out", engine=losing, **OPTIONS)
    assert not (tmp_path / "out").exists()
    elsewhere = Elsewhere()
    engine: dict[str, Any] = {"engine": elsewhere} if then == "elsewhere" else {}
    report = convert_table(table, tmp_path / "out", resume=True, **OPTIONS, **engine)
    assert report.resumed > 0
    assert len(elsewhere.given) < len(first.given)
    assert content(tmp_path / "out") == content(tmp_path / "one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "out", "table.csv"]


def test_processes_forked_meanwhile_hold_no_lock(table: Path, tmp_path: Path) -> None:
    good = table.read_text()
    lines = good.split("\n")
    lines[2001] = "much,1,c1,one,b"
    table.write_text("\n".join(lines))
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        with pytest.raises(SourceError, match=r"line 2,002.* run the same command again"):
            convert_table(table, tmp_path / "out", engine=pool, **OPTIONS)
        table.write_text(good)
        convert_table(table, tmp_path / "out", engine=pool, **OPTIONS)
    convert_table(table, tmp_path / "one", **OPTIONS)
    assert content(tmp_path / "out") == content(tmp_path / "one")


@pytest.mark.parametrize("how", ["removed", "cut short"])
def test_an_input_that_changes_is_told_and_nothing_kept(table: Path, tmp_path: Path, how: str) -> None:
    def change(number: int) -> None:
        if number == 4:
            table.unlink() if how == "removed" else os.truncate(table, 2000)

    with pytest.raises(SourceError, match=r"table\.csv: was changed while it was read") as caught:
        convert_table(table, tmp_path / "out", engine=Elsewhere(change), **OPTIONS)
    assert "is kept" not in str(caught.value)
    assert not list(tmp_path.glob("out*"))


def test_a_task_of_an_earlier_run_makes_nothing(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes outlive a driver that was killed, and do what they were given while the next one puts the rows in order anew."""
    monkeypatch.setattr(table_run, "SHUFFLE_BYTES", 1 << 13)
    convert_table(table, tmp_path / "one", **OPTIONS)
    losing = Losing(2)
    with pytest.raises(PackerError, match="the machine is gone"):
        convert_table(table, tmp_path / "out", engine=losing, **OPTIONS)
    late: list[int] = []

    def end(number: int) -> None:
        fn, args = pickle.loads(losing.lost)
        with pytest.raises(PackerError):
            fn(*args)
        late.append(number)

    convert_table(table, tmp_path / "out", engine=Elsewhere(end), **OPTIONS)
    end(0)
    assert len(late) > 2
    assert content(tmp_path / "out") == content(tmp_path / "one")


def test_a_store_gets_the_shards(
    server: ObjectServer, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    convert_table(table, tmp_path / "one", **OPTIONS)

    with pytest.raises(PackerError, match=r"s3://bucket/out/00002\.h5: could not be made \(the machine"):
        convert_table(table, "s3://bucket/out/", engine=Losing(3), **OPTIONS)
    assert 2 <= len(server.objects) < 5
    report = convert_table(table, "s3://bucket/out/", engine=Elsewhere(), **OPTIONS)
    assert (report.out, report.rows, report.resumed) == ("s3://bucket/out", ROWS, ROWS)
    assert server.objects == {f"bucket/out/{name}": data for name, data in content(tmp_path / "one").items()}
    assert server.written[-1] == "bucket/out/index.json"
    assert list((shared / f"packer-{os.getuid()}").iterdir()) == []


def test_a_store_gets_a_pack_that_was_finished_and_not_sent(
    server: ObjectServer, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run without others was killed between the names that its pack has in the folder for temporary files."""

    class Killed(WorkingFolder):
        def publish(self) -> None:
            raise KeyboardInterrupt

    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shard_run, "WorkingFolder", Killed)
        convert_table(table, "s3://bucket/out/", **OPTIONS)
    convert_table(table, "s3://bucket/out/", engine=Elsewhere(), **OPTIONS)
    convert_table(table, tmp_path / "one", **OPTIONS)
    assert server.objects == {f"bucket/out/{name}": data for name, data in content(tmp_path / "one").items()}


def test_a_machine_that_does_not_see_the_rows(table: Path, tmp_path: Path) -> None:
    class Blind(Elsewhere):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            if fn is not make_shard:
                return super().submit(fn, *args, **kwargs)
            folder = tmp_path / "out.packing/staging"
            folder.rename(tmp_path / "aside")
            try:
                return super().submit(fn, *args, **kwargs)
            finally:
                os.rename(tmp_path / "aside", folder)

    with pytest.raises(SourceError, match=r"out\.packing/staging/\w+: is not there\. .* TMPDIR .*\(On .*\)"):
        convert_table(table, tmp_path / "out", engine=Blind(), **OPTIONS)


@pytest.mark.parametrize("listed", ["merged", "by a whole conversion"])
def test_parts_make_the_same_pack(table: Path, tmp_path: Path, listed: str) -> None:
    convert_table(table, tmp_path / "one", **OPTIONS)
    made = [
        convert_table(table, tmp_path / "out", only_shards=f"{part}/3", **OPTIONS).rows for part in (3, 1, 2)
    ]
    assert made == [350, 700, 450]
    if listed == "merged":
        merge_shards(tmp_path / "out")
    else:
        convert_table(table, tmp_path / "out", **OPTIONS)
    assert content(tmp_path / "out") == content(tmp_path / "one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "out", "table.csv"]


def test_a_part_beside_a_conversion_of_all_that_was_interrupted(table: Path, tmp_path: Path) -> None:
    convert_table(table, tmp_path / "one", **OPTIONS)

    def stop(rows: int) -> None:
        if rows > 1 << 15:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_table(table, tmp_path / "out", on_progress=stop, **OPTIONS)
    for part in ("1/2", "2/2"):
        convert_table(table, tmp_path / "out", only_shards=part, **OPTIONS)
    merge_shards(tmp_path / "out")
    assert content(tmp_path / "out") == content(tmp_path / "one")


@pytest.mark.parametrize("listed", ["merged", "by a whole conversion"])
def test_what_a_killed_part_had_read_goes_with_the_pack(table: Path, tmp_path: Path, listed: str) -> None:
    def stop(rows: int) -> None:
        if rows > 1 << 15:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_table(table, tmp_path / "out", only_shards="2/3", on_progress=stop, **OPTIONS)
    assert (tmp_path / "out.rows-2-of-3.packing/staging/records").exists()
    for part in ("1/2", "2/2"):
        convert_table(table, tmp_path / "out", only_shards=part, **OPTIONS)
    if listed == "merged":
        merge_shards(tmp_path / "out")
    else:
        convert_table(table, tmp_path / "out", **OPTIONS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "table.csv"]


def test_a_part_says_once_that_its_work_is_kept(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any, **options: Any) -> None:
        raise SpaceError("out: full.")

    convert_table(table, tmp_path / "out", only_shards="1/2", **OPTIONS)
    with monkeypatch.context() as patch, pytest.raises(SpaceError) as caught:
        patch.setattr(PackWriter, "finish", full)
        convert_table(table, tmp_path / "out", only_shards="2/2", **OPTIONS)
    assert str(caught.value).count("is kept") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shards": None}, r"one shard of HDF5 each\. Pass shards='1GB', or leave out engine=\."),
        ({"format": "npy"}, "one shard of HDF5 each"),
        ({"only_shards": "1/2"}, r"and no engine="),
        ({"only_shards": "3/2", "engine": None}, r"is not K/N with K from 1 to N"),
        ({"engine": print}, "engine: writes packs of images; .* local, ray or an executor"),
        ({"shards": None, "only_shards": "1/2", "engine": None}, r"Pass shards='1GB'"),
    ],
)
def test_what_is_refused_before_a_row_is_read(
    table: Path, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        convert_table(table, tmp_path / "out", **{"engine": Elsewhere()} | OPTIONS | options)
    assert not list(tmp_path.glob("out*"))
