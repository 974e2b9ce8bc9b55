"""A table becomes a pack: what it holds, that it does not depend on how it was made, and what bad input gives."""

from __future__ import annotations

import datetime
import decimal
import gzip
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from packer.cli.option_words import in_options
from packer.convert import staged_rows
from packer.convert.conversion_task import Report
from packer.convert.image_conversion import convert_images
from packer.errors import SourceError, UsageError
from packer.packs.pack_opening import open_pack
from packer.packs.verify import verify_pack
from packer.tables import apply
from packer.tables.reading import remedies
from packer.tables.reading import text_table as text
from packer.tables.reading.table_source import Csv
from packer.tables.table_conversion import append_table, convert_table
from packer.tables.table_options import Encode
from packer.writing import working_folder
from packer.writing.pack_writer import PackWriter
from tests.convert.test_engines import content

ROWS = 3000


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch):
    """Many pieces of a small table."""
    monkeypatch.setattr(text, "PIECE", 1 << 14)


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """A table of numbers without a header, the first column 0 or 1; names of columns are 0 to 4."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((ROWS, 5)).astype(np.float32)
    values[:, 0] = values[:, 0] > 0
    path = tmp_path / "numbers.csv"
    path.write_text("".join(",".join(f"{x:.18e}" for x in row) + "\n" for row in values.tolist()))
    return path


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A table with every type, and cells that are missing."""
    rng = np.random.default_rng(1)
    lines = ["id,height,count,colour,member,born,seen,wakes,grade"]
    start = datetime.datetime(2013, 1, 1)
    for i in range(ROWS):
        seen = start + datetime.timedelta(seconds=int(rng.integers(0, 10**8)))
        cells = [
            f"k{i}",
            "NA" if i % 7 == 0 else f"{rng.normal(170, 10):.2f}",
            str(rng.integers(0, 50)),
            "" if i % 11 == 0 else ("red", "green", '"blue, dark"')[rng.integers(0, 3)],
            ("yes", "no")[i % 2],
            seen.date().isoformat(),
            seen.isoformat() + "Z",
            seen.time().isoformat(),
            ("low", "high", "middle")[i % 3],
        ]
        lines.append(",".join(cells))
    path = tmp_path / "mixed.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def rows_of(path: Path | str, field: str = "features") -> Any:
    """A fixed field of a pack, as HDF5 itself reads it."""
    with h5py.File(path) as file:
        return file[field][:]


# What it holds


def test_values_are_those_of_pandas_to_the_bit(numbers: Path, tmp_path: Path):
    report = convert_table(numbers, tmp_path / "n.h5", csv=Csv(header=False), label="0", shuffle=False)
    expected = pandas.read_csv(numbers, header=None, dtype="float32").to_numpy()
    found = np.column_stack([rows_of(report.out, "label").astype("<f4"), rows_of(report.out)])
    assert found.dtype == np.float32
    assert np.array_equal(found.view("<u4"), expected.view("<u4"))
    assert report.rows == ROWS
    assert report.bytes_read == numbers.stat().st_size
    assert open_pack(report.out).header.table["features"] == ["1", "2", "3", "4"]


def test_a_shuffled_pack_holds_every_row_once(numbers: Path, tmp_path: Path):
    convert_table(numbers, tmp_path / "a.h5", csv=Csv(header=False), label="0", seed=5)
    convert_table(numbers, tmp_path / "b.h5", csv=Csv(header=False), label="0", shuffle=False)
    shuffled, plain = rows_of(tmp_path / "a.h5"), rows_of(tmp_path / "b.h5")
    assert not np.array_equal(shuffled, plain)
    order = np.lexsort(shuffled.T), np.lexsort(plain.T)
    assert np.array_equal(shuffled[order[0]], plain[order[1]])
    labels = [rows_of(tmp_path / name, "label") for name in ("a.h5", "b.h5")]
    assert np.array_equal(labels[0][order[0]], labels[1][order[1]])


def test_every_type_becomes_what_the_docs_say(mixed: Path, tmp_path: Path):
    report = convert_table(mixed, tmp_path / "m.h5", label="grade", keep=["id", "count"], shuffle=False)
    frame = pandas.read_csv(mixed)
    pack = open_pack(report.out)
    assert [f.name for f in pack.fields] == [
        *("features", "categories", "label", "id", "count", "source_row")
    ]
    table = pack.header.table
    assert table["features"] == ["height", "member", "born", "seen", "seen.seconds", "wakes"]
    assert table["categories"] == ["colour"]
    features = rows_of(report.out)
    seen = pandas.to_datetime(frame["seen"])
    epoch = pandas.Timestamp("1970-01-01", tz="UTC")
    days = (seen.dt.normalize() - epoch).dt.days
    seconds = (seen - seen.dt.normalize()).dt.total_seconds()
    expected = np.column_stack(
        [frame["height"], frame["member"] == "yes", days, days, seconds, seconds]
    ).astype(np.float32)
    assert np.array_equal(features, expected, equal_nan=True)
    colours = sorted(set(frame["colour"].dropna()))
    codes = frame["colour"].map({colour: k for k, colour in enumerate(colours, 1)}).fillna(0)
    assert np.array_equal(rows_of(report.out, "categories")[:, 0], codes)
    assert pack.header.classes == ("high", "low", "middle")
    assert [pack.header.classes[k] for k in rows_of(report.out, "label")] == frame["grade"].tolist()
    assert [key.decode() for key in pack.read_ragged("id")] == frame["id"].tolist()
    assert np.array_equal(rows_of(report.out, "count"), frame["count"])
    assert tuple(map(in_options, report.notes)) == (
        "1 column (height 14.3%): missing values, stored as NaN. A network needs numbers: pass --missing median, mean or zero.",
    )


def test_statistics_are_those_of_the_train_rows(numbers: Path, tmp_path: Path):
    out = tmp_path / "n.h5"
    convert_table(
        numbers,
        out,
        csv=Csv(header=False),
        label="0",
        standardize=True,
        split="train=0.6,val=0.4,test=last:500",
    )
    header = open_pack(out).header
    counts = {name: sum(b - a for a, b in spans) for name, spans in header.splits.items()}
    assert counts == {"train": 1500, "val": 1000, "test": 500}
    ((first, stop),) = header.splits["train"]
    train = rows_of(out)[first:stop].astype(np.float64)
    assert np.abs(train.mean(axis=0)).max() < 1e-6
    assert np.abs(train.std(axis=0) - 1).max() < 1e-6
    assert header.table["fit"] == "train"
    (statistics,) = [c["statistics"] for c in header.table["columns"] if c["name"] == "2"]
    assert statistics["rows"] == 1500
    last = pandas.read_csv(numbers, header=None, dtype="float32").to_numpy()[-500:, 1:]
    mean, std = np.array([c["standardize"] for c in header.table["columns"] if c["standardize"]]).T
    ((first, stop),) = header.splits["test"]
    expected = ((last - mean) / std).astype(np.float32)
    found = rows_of(out)[first:stop]
    assert np.array_equal(found[np.lexsort(found.T)], expected[np.lexsort(expected.T)])


def test_categories_that_only_the_test_split_has_are_unknown(tmp_path: Path):
    rows = [f"{'ab'[i % 2]},{i}.5,{'q' if i > 250 else 'r'}" for i in range(280)] + [
        "c,0.5,r",
        "d,1.5,r",
        "c,,q",
    ]
    (tmp_path / "t.csv").write_text("colour,x,shape\n" + "\n".join(rows) + "\n")
    report = convert_table(
        tmp_path / "t.csv",
        tmp_path / "t.h5",
        split="train=first:200,test=rest",
        shuffle=False,
        missing="zero",
    )
    pack = open_pack(report.out)
    columns = {c["name"]: c["categories"] for c in pack.header.table["columns"]}
    assert (columns["colour"], columns["shape"]) == (["a", "b"], ["r"])
    ((first, stop),) = pack.header.splits["test"]
    assert rows_of(report.out, "categories")[first:stop][-3:].tolist() == [[0, 1], [0, 1], [0, 0]]
    assert (
        "2 columns (colour 2, shape 1): categories that no train row has; their code is 0, like missing cells."
        in tuple(map(in_options, report.notes))
    )


def test_statistics_of_all_rows_are_told_where_there_are_splits(numbers: Path, tmp_path: Path):
    options: dict[str, Any] = {"csv": Csv(header=False), "label": "0", "label_as": "float", "overwrite": True}
    said = (
        "no split is named train (the splits are test and training): means, deviations and categories are"
        " computed over all rows."
    )
    for split, more, notes in (
        ("training=0.8,test=0.2", {"standardize": True}, (said,)),
        ("training=0.8,test=0.2", {}, ()),
        ("train=0.8,test=0.2", {"standardize": True}, ()),
        (None, {"standardize": True}, ()),
    ):
        assert convert_table(numbers, tmp_path / "n.h5", split=split, **options, **more).notes == notes


def test_the_mapping_is_the_same_for_new_rows(mixed: Path, tmp_path: Path):
    options: dict[str, Any] = {
        "label": "grade",
        "missing": "median",
        "standardize": True,
        "encode": Encode(log1p=["count"], indicators=True),
        "one_hot": ["colour"],
        "drop": ["id"],
    }
    convert_table(mixed, tmp_path / "m.h5", shuffle=False, **options)
    frame = pandas.read_csv(mixed)
    mapped = apply(open_pack(tmp_path / "m.h5").header, frame)
    assert np.array_equal(mapped["features"], rows_of(tmp_path / "m.h5"))
    assert np.array_equal(mapped["label"], rows_of(tmp_path / "m.h5", "label"))
    new = tmp_path / "new.csv"
    frame[100:200].drop(columns="grade").to_csv(new, index=False)
    convert_table(new, tmp_path / "new.h5", like=tmp_path / "m.h5", shuffle=False)
    assert np.array_equal(rows_of(tmp_path / "new.h5"), rows_of(tmp_path / "m.h5")[100:200])
    assert [f.name for f in open_pack(tmp_path / "new.h5").fields] == ["features", "source_row"]


def test_texts_of_files_with_nulls_are_texts(tmp_path: Path):
    frame = pandas.DataFrame({"land": ["NA", "", None, "DE"], "size": [825.6, 1.5, None, 357.0]})
    frame.to_parquet(tmp_path / "t.parquet")
    convert_table(tmp_path / "t.parquet", tmp_path / "t.h5", shuffle=False)
    header = open_pack(tmp_path / "t.h5").header
    assert rows_of(tmp_path / "t.h5", "categories")[:, 0].tolist() == [3, 1, 0, 2]
    mapped = apply(header, frame)
    assert np.array_equal(mapped["categories"], rows_of(tmp_path / "t.h5", "categories"))
    assert np.array_equal(mapped["features"], rows_of(tmp_path / "t.h5"), equal_nan=True)


def test_packs_of_shards_and_npy_hold_the_same(mixed: Path, tmp_path: Path):
    convert_table(mixed, tmp_path / "m.h5", label="grade", keep=["id"])
    convert_table(mixed, tmp_path / "m", label="grade", keep=["id"])
    convert_table(mixed, tmp_path / "s", label="grade", keep=["id"], shards=700)
    single, npy, shards = (open_pack(tmp_path / name) for name in ("m.h5", "m", "s"))
    assert len(shards.shards) == 5
    for name in ("features", "categories", "label"):
        expected = single.read(name)
        assert np.array_equal(npy.read(name), expected, equal_nan=name == "features")
        assert np.array_equal(shards.read(name), expected, equal_nan=name == "features")
    assert npy.read_ragged("id") == shards.read_ragged("id") == single.read_ragged("id")
    assert shards.header.table == single.header.table
    assert all(verify_pack(tmp_path / name).ok for name in ("m.h5", "m", "s"))


def test_several_files_follow_each_other(numbers: Path, tmp_path: Path):
    lines = numbers.read_text().splitlines(keepends=True)
    (tmp_path / "a-1.csv").write_text("".join(lines[:1000]))
    with gzip.open(tmp_path / "a-2.csv.gz", "wt") as file:
        file.write("".join(lines[1000:]))
    convert_table(
        str(tmp_path / "a-*"), tmp_path / "parts.h5", csv=Csv(header=False), label="0", shuffle=False
    )
    convert_table(numbers, tmp_path / "one.h5", csv=Csv(header=False), label="0", shuffle=False)
    assert np.array_equal(rows_of(tmp_path / "parts.h5"), rows_of(tmp_path / "one.h5"))


# How it is made does not matter


def test_the_pack_does_not_depend_on_workers_pieces_or_memory(
    mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    options: dict[str, Any] = {"label": "grade", "keep": ["id"], "missing": "mean", "standardize": True}
    convert_table(mixed, tmp_path / "a.h5", workers=1, **options)
    monkeypatch.setattr(text, "PIECE", 1 << 20)
    convert_table(mixed, tmp_path / "b.h5", workers=3, **options)
    monkeypatch.setattr(staged_rows, "SHUFFLE_BYTES", 1 << 14)
    monkeypatch.setattr("packer.machine.available_memory", lambda: 0)
    convert_table(mixed, tmp_path / "c.h5", workers=2, **options)
    packs = [(tmp_path / name).read_bytes() for name in ("a.h5", "b.h5", "c.h5")]
    assert packs[0] == packs[1] == packs[2]


class _StopError(BaseException):
    """What a test ends a conversion with."""


def stop_after(calls: int, stage: str) -> dict[str, Any]:
    """A callback that ends a conversion in a stage: bytes are counted, then rows, from 0 on."""
    seen = {"done": 0, "stage": "reading", "calls": 0}

    def progress(done: int) -> None:
        seen["stage"] = "writing" if done < seen["done"] else seen["stage"]
        seen["done"] = done
        seen["calls"] += seen["stage"] == stage
        if seen["calls"] > calls:
            raise _StopError

    return {"on_progress": progress}


@pytest.mark.parametrize(("calls", "stage"), [(0, "reading"), (3, "reading"), (0, "writing")])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_an_interrupted_conversion_goes_on(
    mixed: Path, tmp_path: Path, calls: int, stage: str, suffix: str, monkeypatch: pytest.MonkeyPatch
):
    if suffix:
        (tmp_path / "mixed.csv.gz").write_bytes(gzip.compress(mixed.read_bytes()))
    source = f"{mixed}{suffix}"
    options: dict[str, Any] = {"label": "grade", "keep": ["id"], "missing": "median"}
    convert_table(source, tmp_path / "whole.h5", **options)
    out = tmp_path / "out.h5"
    with pytest.raises(_StopError):
        convert_table(source, out, **options, **stop_after(calls, stage))
    assert not out.exists()
    assert (tmp_path / "out.h5.packing").is_dir()
    report = convert_table(source, out, resume=True, **options)
    assert 0 < report.resumed <= ROWS
    assert (report.resumed == ROWS) == (stage == "writing")
    assert out.read_bytes() == (tmp_path / "whole.h5").read_bytes()
    assert not (tmp_path / "out.h5.packing").exists()
    assert convert_table(source, out, resume=True, **options).already


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_while_it_removed_the_pack_that_it_had_replaced(tmp_path: Path) -> None:
    source, out = tmp_path / "t.csv", tmp_path / "p"
    source.write_text("a,b\n" + "1,2\n" * 50)
    convert_table(source, out)
    child = os.fork()
    if child == 0:
        real = working_folder.remove

        def remove(path: str) -> None:
            if path == f"{out}.packing":
                os.unlink(f"{path}/pack/header.json")
                os.kill(os.getpid(), signal.SIGKILL)
            real(path)

        working_folder.remove = remove
        convert_table(source, out, label="b", overwrite=True, workers=1)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert sorted(os.listdir(tmp_path)) == ["p", "p.packing", "t.csv"]
    convert_table(source, tmp_path / "new", label="b")
    assert content(out) == content(tmp_path / "new")
    convert_table(source, out, label="b", overwrite=True)
    assert content(out) == content(tmp_path / "new")
    assert sorted(os.listdir(tmp_path)) == ["new", "p", "t.csv"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_while_it_made_a_pack_anew_that_is_whole(tmp_path: Path) -> None:
    source, out = tmp_path / "t.csv", tmp_path / "p.h5"
    source.write_text("a,b\n" + "1,2\n" * 50)
    convert_table(source, out)
    child = os.fork()
    if not child:
        PackWriter.finish = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        convert_table(source, out, overwrite=True)
    os.waitpid(child, 0)
    assert (tmp_path / "p.h5.packing" / "pack.packing" / "journal").exists()
    assert convert_table(source, out, overwrite=True, resume=True).already
    assert sorted(os.listdir(tmp_path)) == ["p.h5", "t.csv"]


def test_a_killed_conversion_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, name = tmp_path / "table.csv", "n" * 900
    monkeypatch.chdir(tmp_path)
    with table.open("w") as file:
        file.write("x,name,kind\n")
        file.writelines(f'{row / 7},"{name}, {row % 977}",{"ab"[row % 2]}\n' for row in range(50_000))
    options: dict[str, Any] = {"label": "kind", "keep": "name", "shards": 2000}
    code = f"from packer import convert_table; convert_table('table.csv', 'out', **{options})"
    command, place = [sys.executable, "-c", code], tmp_path / "out.packing"
    convert_table("table.csv", "one", **options)
    for begun in (place / "staging/blob", place / "pack.packing/pack/00002.h5"):
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while run.poll() is None and not (begun.exists() and begun.stat().st_size > 1 << 20):
            time.sleep(0.01)
        run.kill()
        assert run.wait() == -9
    assert convert_table("table.csv", "out", **options).resumed == 50_000
    assert content(tmp_path / "out") == content(tmp_path / "one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "out", "table.csv"]


@pytest.mark.parametrize("option", [{"engine": "ray"}, {"only_shards": "1/2"}, {"address": "h:1"}])
def test_a_table_is_packed_by_this_machine(numbers: Path, tmp_path: Path, option: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        convert_table(numbers, tmp_path / "out", **option)  # type: ignore[arg-type]
    (name,) = option
    assert str(caught.value) == (
        f"{name}=: is not an argument of convert_table; a table is packed by this machine: leave it out."
    )


def test_pieces_that_were_damaged_are_read_again(mixed: Path, tmp_path: Path):
    options: dict[str, Any] = {"label": "grade", "keep": ["id"]}
    convert_table(mixed, tmp_path / "whole.h5", **options)
    out = tmp_path / "out.h5"
    with pytest.raises(_StopError):
        convert_table(mixed, out, **options, **stop_after(6, "reading"))
    records = tmp_path / "out.h5.packing" / "staging" / "records"
    with open(records, "r+b") as file:
        file.seek(records.stat().st_size // 2)
        file.write(b"\xff" * 8)
    report = convert_table(mixed, out, **options)
    assert 0 < report.resumed < ROWS
    assert out.read_bytes() == (tmp_path / "whole.h5").read_bytes()


def test_other_options_clear_what_was_done(mixed: Path, tmp_path: Path):
    out = tmp_path / "out.h5"
    with pytest.raises(_StopError):
        convert_table(mixed, out, label="grade", **stop_after(2, "reading"))
    with pytest.raises(UsageError, match=r"resume=True cannot continue the work in .*: options choices"):
        convert_table(mixed, out, label="colour", resume=True)
    report = convert_table(mixed, out, label="grade", missing="zero")
    assert report.cleared.startswith("options choices")
    assert report.resumed == 0


# Bad input


def broken(path: Path, line: int, text: str) -> Path:
    """The table with another text on a line, counted from 1."""
    lines = path.read_text().splitlines()
    lines[line - 1] = text
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_bad_row_is_told_with_its_line_and_skipped_if_asked(numbers: Path, tmp_path: Path):
    broken(numbers, 2500, "1.0,2.0,oops,4.0,5.0")
    broken(numbers, 2600, "1.0,2.0")
    out = tmp_path / "n.h5"
    with pytest.raises(SourceError) as caught:
        convert_table(numbers, out, csv=Csv(header=False), label="0", shuffle=False)
    assert in_options(str(caught.value)).startswith(
        f"{numbers}: line 2,500, column '2': 'oops' is not a number. Correct it, or pass --na oops"
        " if 'oops' means missing, or --type 2=category for texts, or --on-error skip to leave such rows out."
    )
    assert not out.exists()
    report = convert_table(numbers, out, csv=Csv(header=False), label="0", on_error="skip", shuffle=False)
    assert report.rows == ROWS - 2
    assert report.skipped == (
        {"key": f"{numbers}: line 2,500, column '2'", "reason": "'oops' is not a number"},
        {"key": f"{numbers}: line 2,600", "reason": "has 2 cells; 5 are expected"},
    )
    assert report.resumed > 0
    expected = pandas.read_csv(numbers, header=None, skiprows=[2499, 2599], dtype="float32").to_numpy()
    assert np.array_equal(rows_of(out), expected[:, 1:])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1e400,1,1,1,1", "column '0': '1e400' is infinite"),
        ("1,1e39,1,1,1", "column '1': '1e39' is beyond float32"),
        (",1,1,1,1", "column '0': is missing; a label is needed"),
        ('1,"2" 3,1,1,1', "column '1': '\"2\" 3' has text after its closing quote"),
    ],
)
def test_cells_that_are_no_numbers(numbers: Path, tmp_path: Path, line: str, reason: str):
    broken(numbers, 2000, line)
    with pytest.raises(SourceError) as caught:
        convert_table(numbers, tmp_path / "n.h5", csv=Csv(header=False), label="0")
    assert in_options(str(caught.value)).startswith(f"{numbers}: line 2,000, {reason}. Correct it")
    assert not (tmp_path / "n.h5").exists()


def test_thousands_are_told_apart_from_texts(numbers: Path, tmp_path: Path):
    broken(numbers, 2000, '1,"1,234",1,1,1')
    with pytest.raises(SourceError) as caught:
        convert_table(numbers, tmp_path / "n.h5", csv=Csv(header=False), label="0")
    assert in_options(str(caught.value)) == (
        f"{numbers}: line 2,000, column '1' holds '1,234', numbers in another notation than the decimal point '.'."
        ' Pass --thousands "," for 1234, or --type 1=category if they are not numbers.'
    )
    convert_table(numbers, tmp_path / "n.h5", csv=Csv(header=False), label="0", types={"1": "category"})


def test_a_missing_feature_is_an_error_if_asked(mixed: Path, tmp_path: Path):
    with pytest.raises(
        SourceError, match=r"line 2, column 'height': is missing. Correct it, or pass on_error='skip'"
    ):
        convert_table(mixed, tmp_path / "m.h5", label="grade", missing="error")
    assert os.listdir(tmp_path) == ["mixed.csv"]


def test_rows_that_all_are_bad_are_an_error(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "1,\n" * 5)
    with pytest.raises(
        SourceError, match=r"none of its rows can be stored; the first of 5 that were left out"
    ):
        convert_table(path, tmp_path / "t.h5", label="b", on_error="skip")
    assert os.listdir(tmp_path) == ["t.csv"]


def test_too_many_categories_are_an_error(mixed: Path, tmp_path: Path):
    with pytest.raises(
        UsageError,
        match=r"column 'id': has more than 100 categories \(.* so far\); .* allows no more. Pass keep='id', drop='id' or a",
    ):
        convert_table(mixed, tmp_path / "m.h5", label="grade", encode=Encode(max_categories=100))
    with pytest.raises(UsageError, match="max_categories=0: is not a whole number of at least 1"):
        Encode(max_categories=0)
    assert os.listdir(tmp_path) == ["mixed.csv"]


def test_like_refuses_what_it_cannot_map(mixed: Path, numbers: Path, tmp_path: Path):
    convert_table(mixed, tmp_path / "m.h5", label="grade", drop=["id"])
    with pytest.raises(
        UsageError, match=r"defines the mapping of the columns; label is given, too. Leave one of them out"
    ):
        convert_table(mixed, tmp_path / "b.h5", like=tmp_path / "m.h5", label="grade")
    with pytest.raises(UsageError, match=r"has no column 'height', 'count', 'colour'"):
        convert_table(numbers, tmp_path / "b.h5", like=tmp_path / "m.h5", csv=Csv(header=False))
    with pytest.raises(UsageError, match=r"is not a pack of a table"):
        convert_table(mixed, tmp_path / "b.h5", like=images_pack(tmp_path))


def images_pack(folder: Path) -> Path:
    """A pack that was made of no table."""
    (folder / "photos").mkdir()
    Image.new("RGB", (8, 8)).save(folder / "photos" / "a.png")
    convert_images(folder / "photos", folder / "photos.h5", size=8)
    return folder / "photos.h5"


def test_labels_that_are_no_class_are_bad_rows(mixed: Path, tmp_path: Path):
    convert_table(mixed, tmp_path / "m.h5", label="grade", drop=["id"])
    lines = mixed.read_text().splitlines()
    lines[1000] = lines[1000].rpartition(",")[0] + ",lowest"
    other = tmp_path / "other.csv"
    other.write_text("\n".join(lines) + "\n")
    with pytest.raises(SourceError) as caught:
        convert_table(other, tmp_path / "o.h5", like=tmp_path / "m.h5")
    assert in_options(str(caught.value)).startswith(
        f"{other}: line 1,001, column 'grade': 'lowest' is not one of the label's classes. Correct it, or pass --na lowest if"
    )
    report = convert_table(other, tmp_path / "o.h5", like=tmp_path / "m.h5", on_error="skip")
    assert (report.rows, report.skipped_rows) == (ROWS - 1, 1)
    assert report.reasons == {"column 'grade' is not one of the label's classes": 1}
    assert open_pack(report.out).header.classes == ("high", "low", "middle")


def test_a_file_that_changes_while_it_is_read_is_an_error(numbers: Path, tmp_path: Path):
    def grow(done: int) -> None:
        with open(numbers, "a") as file:
            file.write("1,2,3,4,5\n")

    with pytest.raises(SourceError) as caught:
        convert_table(numbers, tmp_path / "n.h5", csv=Csv(header=False), label="0", on_progress=grow)
    assert in_options(str(caught.value)) == (
        f"{numbers}: was changed while it was read. Run the same command again when it is whole."
    )
    assert os.listdir(tmp_path) == ["numbers.csv"]


def test_a_file_that_goes_away_is_an_error(numbers: Path, tmp_path: Path):
    with pytest.raises(SourceError, match=r"numbers.csv: was changed while it was read"):
        convert_table(
            numbers,
            tmp_path / "n.h5",
            csv=Csv(header=False),
            label="0",
            on_progress=lambda done: numbers.unlink(missing_ok=True),
        )


def test_rows_that_were_left_out_are_told_when_they_no_longer_may_be(numbers: Path, tmp_path: Path):
    broken(numbers, 100, "1.0,2.0,oops,4.0,5.0")
    options: dict[str, Any] = {"csv": Csv(header=False), "label": "0"}
    with pytest.raises(_StopError):
        convert_table(numbers, tmp_path / "n.h5", on_error="skip", **options, **stop_after(5, "reading"))
    with pytest.raises(SourceError, match=r"line 100, column '2': 'oops' is not a number"):
        convert_table(numbers, tmp_path / "n.h5", **options)


def test_like_reads_text_as_the_pack_was_read(tmp_path: Path):
    (tmp_path / "old.csv").write_text("a;b;y\n1.234,5;?;x\n2,5;3;z\n")
    options: dict[str, Any] = {"csv": Csv(decimal=",", thousands=".", na="?"), "label": "y", "shuffle": False}
    convert_table(tmp_path / "old.csv", tmp_path / "old.h5", missing="zero", **options)
    (tmp_path / "new.csv").write_text("a;b;y\n5.678;?;z\n")
    report = convert_table(tmp_path / "new.csv", tmp_path / "new.h5", like=tmp_path / "old.h5", shuffle=False)
    assert rows_of(tmp_path / "old.h5").tolist() == [[1234.5, 0], [2.5, 3]]
    assert rows_of(tmp_path / "new.h5").tolist() == [[5678, 0]]
    assert report.notes == ()


def test_notes_about_the_input_are_in_the_report(tmp_path: Path):
    (tmp_path / "t.csv").write_text("a,a\n1,2\n")
    report = convert_table(tmp_path / "t.csv", tmp_path / "t.h5", label="a")
    assert report.notes == (
        f"{tmp_path / 't.csv'}: columns without a name, or with a repeated one, renamed: 1 column ('a.1').",
    )


@pytest.mark.parametrize("form", ["%.1f", "%.18e"])
def test_labels_of_whole_numbers_with_a_point_are_classes_as_of_images(form: str, tmp_path: Path):
    def convert(values: Any, **options: Any) -> Report:
        table = pandas.DataFrame({"x": np.arange(len(values)), "y": values})
        table.to_csv(tmp_path / "t.csv", index=False, float_format=form)
        return convert_table(tmp_path / "t.csv", tmp_path / "t.h5", label="y", overwrite=True, **options)

    numbers = np.arange(20_000) % 3 * 1.0
    report = convert(numbers)
    assert in_options(report.notes[0]) == (
        "column 'y' holds only whole numbers, as classes do, so the label is stored as int64. For float32 pass --label-as float."
    )
    whole = open_pack(report.out)
    assert (whole.read("label").dtype, np.bincount(whole.read("label")).tolist()) == (
        np.int64,
        [6667, 6667, 6666],
    )
    assert open_pack(convert(numbers, label_as="float").out).read("label").dtype == np.float32
    # One fraction anywhere, in a row of any split, and numbers that float64 rounds, are none.
    numbers[-1] = 0.5
    assert (
        open_pack(convert(numbers, split="train=first:15000,val=rest").out).read("label").dtype == np.float32
    )
    assert open_pack(convert([1.0, 2.0**53]).out).read("label").dtype == np.float32
    assert open_pack(convert([1.0, 2.0**53 - 1]).out).read("label").max() == 2**53 - 1
    # As in a pack whose label is of whole numbers, a fraction is a bad row.
    convert([1.0, 2.0])
    os.rename(tmp_path / "t.h5", tmp_path / "train.h5")
    (tmp_path / "t.csv").write_text("x,y\n1,1.0\n2,1.5\n")
    with pytest.raises(SourceError, match=r"line 3, column 'y': '1.5' is not a whole number"):
        convert_table(tmp_path / "t.csv", tmp_path / "t.h5", like=tmp_path / "train.h5")


def test_labels_and_kept_columns_keep_their_digits(tmp_path: Path):
    path = tmp_path / "t.csv"
    big = [str(2**63 + 7 * i) for i in range(1000)]
    path.write_text(
        "id,code,x,y\n" + "".join(f"{b},{i:03},{i}.5,{i % 9:0{1 + i % 2}}\n" for i, b in enumerate(big))
    )
    options: dict[str, Any] = {"shuffle": False, "overwrite": True}
    report = convert_table(path, tmp_path / "t.h5", label="y", keep=["id", "code"], **options)
    pack = open_pack(report.out)
    assert [text.decode() for text in pack.read_ragged("id")] == big
    assert [text.decode() for text in pack.read_ragged("code")] == [f"{i:03}" for i in range(1000)]
    assert [pack.header.classes[k] for k in pack.read("label")] == [
        f"{i % 9:0{1 + i % 2}}" for i in range(1000)
    ]
    assert tuple(map(in_options, report.notes)) == (
        f"column 'id' holds whole numbers that float64 rounds, as '{2**63 + 7}': it is kept as text.",
        "column 'code' holds whole numbers with leading zeros, as '000': it is kept as text. For numbers, pass --type code=integer.",
        "column 'y' holds whole numbers with leading zeros, as '01': its texts are the classes. For numbers, pass --type y=integer.",
    )
    mapped = apply(pack, pandas.read_csv(path, dtype={"id": str, "code": str, "y": str}))
    assert (mapped["id"], mapped["label"].tolist()) == (big, pack.read("label").tolist())
    types = {"y": "integer", "code": "integer"}
    report = convert_table(path, tmp_path / "t.h5", label="y", keep="code", drop="id", types=types, **options)
    assert report.notes == ()
    assert rows_of(report.out, "label").tolist() == [i % 9 for i in range(1000)]
    assert rows_of(report.out, "code").tolist() == list(range(1000))
    path.write_text(path.read_text().replace(",0,", ",00,"))  # new rows are read as the pack's
    assert convert_table(path, tmp_path / "u.h5", like=report.out).rows == 1000
    report = convert_table(
        path, tmp_path / "t.h5", label="id", label_as="classes", drop=["y", "code"], **options
    )
    assert len(open_pack(report.out).header.classes) == 1000


@pytest.mark.parametrize(
    ("cell", "rest", "options", "sentence"),
    [
        ("007", "7", {"label": "y"}, "has leading zeros, which no number keeps. Correct it, or pass --type y=category, or"),
        ("007", "7", {"keep": "y"}, "has leading zeros, which no number keeps. Correct it, or pass --type y=category, or"),
        (str(2**53 + 1), "0.5", {"keep": "y"}, "is a whole number that float64 rounds. Correct it, or pass --type y=category,"),
        (str(2**53 + 1), "0.5", {"label": "y", "label_as": "classes"}, "is a whole number that float64 rounds. Correct it, or pass"),
    ],
)  # fmt: skip
def test_digits_that_are_lost_behind_the_first_rows_are_bad_cells(
    tmp_path: Path,
    cell: str,
    rest: str,
    options: dict[str, Any],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(remedies, "SAMPLE_ROWS", 50)
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + f"1.5,{rest}\n" * 60 + f"1.5,{cell}\n")
    with pytest.raises(SourceError) as caught:
        convert_table(path, tmp_path / "t.h5", **options)
    assert in_options(str(caught.value)).startswith(f"{path}: line 62, column 'y': '{cell}' {sentence}")
    assert convert_table(path, tmp_path / "t.h5", types={"y": "category"}, **options).rows == 61


def test_whole_numbers_of_parquet_are_kept_exactly_or_refused(tmp_path: Path):
    wide = [decimal.Decimal(2**53 + i) for i in range(20)]
    columns = {
        "whole": pyarrow.array(wide, pyarrow.decimal128(38, 0)),
        "cents": pyarrow.array(wide, pyarrow.decimal128(20, 2)),
        "unsigned": pyarrow.array([2**64 - 1 - i for i in range(20)], pyarrow.uint64()),
        "small": pyarrow.array([127, -128] * 9 + [None, 0], pyarrow.int8()),
        "some": pyarrow.array([*range(2**53, 2**53 + 19), None]),
    }
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table({**columns, "x": np.arange(20) / 8}), path)
    options: dict[str, Any] = {"features": ["x"], "shuffle": False, "overwrite": True}
    convert_table(path, tmp_path / "t.h5", keep=["small"], types={"small": "number"}, **options)
    assert rows_of(tmp_path / "t.h5", "small")[:2].tolist() == [127, -128]
    convert_table(path, tmp_path / "t.h5", keep=["whole"], **options)
    assert rows_of(tmp_path / "t.h5", "whole").tolist() == [2**53 + i for i in range(20)]
    for name, types, cell, why in (
        ("cents", {}, "9007199254740993.00", "is a whole number that float64 rounds"),
        ("some", {"some": "number"}, "9007199254740993", "is a whole number that float64 rounds"),
        ("unsigned", {}, str(2**64 - 1), "is beyond 64-bit integers"),
        ("unsigned", {"unsigned": "number"}, str(2**64 - 1), "is a whole number that float64 rounds"),
    ):
        with pytest.raises(
            SourceError, match=rf"column '{name}': '{cell}' {why}\. Correct it, or pass types="
        ) as caught:
            convert_table(path, tmp_path / "t.h5", keep=[name], types=types, **options)
        assert f"types={{'{name}': 'category'}}" in str(caught.value)
        convert_table(path, tmp_path / "t.h5", keep=[name], types={name: "category"}, **options)
        kept = open_pack(tmp_path / "t.h5").read_ragged(name)
        assert [text.decode() for text in kept] == [
            "" if v is None else str(v) for v in columns[name].cast("string").to_pylist()
        ]


def test_whole_decimals_of_parquet_are_whole_numbers(tmp_path: Path):
    frame = pandas.DataFrame({"x": [1.0, 2.0], "y": [decimal.Decimal(10**17 + 1), decimal.Decimal(3)]})
    frame.to_parquet(tmp_path / "t.parquet")
    convert_table(tmp_path / "t.parquet", tmp_path / "t.h5", label="y", shuffle=False)
    assert rows_of(tmp_path / "t.h5", "label").tolist() == [10**17 + 1, 3]


def test_unknown_categories_are_0(mixed: Path, tmp_path: Path):
    convert_table(mixed, tmp_path / "m.h5", label="grade", drop=["id"])
    other = tmp_path / "other.csv"
    other.write_text(mixed.read_text().replace(",red,", ",violet,"))
    report = convert_table(other, tmp_path / "o.h5", like=tmp_path / "m.h5", shuffle=False)
    frame = pandas.read_csv(other)
    codes = rows_of(tmp_path / "o.h5", "categories")[:, 0]
    assert np.array_equal(codes == 0, frame["colour"].isna() | (frame["colour"] == "violet"))
    assert report.notes[-1] == (
        "1 column (colour 1): categories that the pack given as like does not have;"
        " their code is 0, like missing cells."
    )


def test_what_is_no_path_is_refused(numbers: Path, tmp_path: Path):
    frame = pandas.DataFrame({"x": [1.5, 2.5]})
    pack = "Pack it, pack_dataset(data, 'train.h5')."
    name = "Pass a name, such as 'images/'."
    for source, said, remedy in (
        ([str(numbers), frame], f"[{str(numbers)!r}, <DataFrame [2, 1]>]", pack),
        (frame["x"], "<Series float64 [2]>", pack),
        (frame.to_numpy(), "<ndarray float64 [2, 1]>", pack),
        (7, "7", name),
        (None, "None", name),
    ):
        with pytest.raises(UsageError) as caught:
            convert_table(source, tmp_path / "n.h5")
        assert str(caught.value) == f"source={said}: is not the path of images or tables. {remedy}"
    convert_table(numbers, tmp_path / "s", csv=Csv(header=False), shards=2000)
    with pytest.raises(UsageError, match=r"^source=<DataFrame \[2, 1\]>: is not the path of"):
        append_table(tmp_path / "s", frame)
    with (
        numbers.open() as file,
        pytest.raises(UsageError, match=r"^source=<_?TextIOWrapper.*>: is not the path of"),
    ):
        convert_table(file, tmp_path / "n.h5")
    report = convert_table(tmp_path.glob("numbers.csv"), tmp_path / "n.h5", csv=Csv(header=False))
    assert report.rows == ROWS


def test_a_mark_among_numbers_is_told_with_the_option_that_makes_it_missing(tmp_path: Path):
    source = tmp_path / "t.csv"
    source.write_text("x,y\n" + "".join(f"{n},{n}\n" for n in range(30)) + ".,1\n")
    with pytest.raises(SourceError) as error:
        convert_table(source, tmp_path / "t.h5")
    assert str(error.value) == (
        f"{source}: line 32, column 'x': '.' is not a number. Correct it, or pass csv=Csv(na=('.',))"
        " if '.' means missing, or types={'x': 'category'} for texts, or on_error='skip' to leave such rows out."
    )
    convert_table(source, tmp_path / "t.h5", csv=Csv(na="."), shuffle=False)
    assert np.isnan(rows_of(tmp_path / "t.h5")[-1, 0])


@pytest.mark.parametrize("csv", [";", {"sep": ";"}])
def test_what_is_no_value_is_said(tmp_path: Path, csv: Any):
    (tmp_path / "t.csv").write_text("a;b\n1;2\n")
    with pytest.raises(
        UsageError, match=r"^csv=.*: is not of type Csv\. Pass Csv\(\.\.\.\), with header, delimiter, "
    ):
        convert_table(tmp_path / "t.csv", tmp_path / "t.h5", csv=csv)


def test_none_stands_for_no_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3,4\n")
    for name, columns in (("x", None), ("y", ())):
        given: Any = {"drop": columns, "keep": columns, "one_hot": columns}
        convert_table(tmp_path / "a.csv", tmp_path / f"{name}.h5", **given)
    assert (tmp_path / "x.h5").read_bytes() == (tmp_path / "y.h5").read_bytes()
