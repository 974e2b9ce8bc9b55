"""Rows that are all columns: packs without keys, made a block at a time, through holes in nothing but time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from packer.convert.block_workers import PackPart
from packer.convert.conversion_task import ConversionTask, RunOptions
from packer.convert.pack_run import ShardRun, write_pack
from packer.convert.row_maker import Block, RowMaker
from packer.convert.row_storage import RowStorage
from packer.errors import SourceError
from packer.format.fields import Field
from packer.format.part_files import Rows
from packer.orders.runs import one_run
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.packs.verify import verify_pack
from packer.read.array_store import PackStore
from packer.writing.pack_writer import PackWriter
from packer.writing.working_folder import WorkingFolder
from tests.convert.plain_rows import order_of
from tests.format.packs import files_of

ROWS = 100


class Squares(RowMaker):
    """Row n: its number, three squares, and a text of its own length."""

    fields = (Field("number", "<i8", ()), Field("squares", "<f4", (3,)), Field("text", "|u1", None))
    ragged_bytes = 10

    def __init__(self) -> None:
        self.asked: list[int] = []

    def columns(self, samples: NDArray[np.int64]) -> Mapping[str, Rows]:
        self.asked.append(len(samples))
        squares = (samples[:, None] + np.arange(3)).astype("<f4") ** 2
        return {"number": samples, "squares": squares, "text": [b"x" * int(n % 7) for n in samples]}

    def make(self, sample: int, at: int, block: Block) -> None:
        raise AssertionError("a row is made by itself")


class Broken(Squares):
    """Ends at a sample, the first time."""

    def columns(self, samples: NDArray[np.int64]) -> Mapping[str, Rows]:
        if (samples == 77).any():
            raise SourceError("number 77")
        return super().columns(samples)


WAYS: dict[str, RowStorage] = {
    "h5": RowStorage("h5"),
    "npy": RowStorage("npy"),
    "shards": RowStorage("npy", shard_rows=23),
    "gzip": RowStorage("h5", store="gzip"),
}
every_way = pytest.mark.parametrize("storing", WAYS.values(), ids=list(WAYS))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "packer.convert.row_storage.block_rows", lambda rows, row_bytes, least_bytes: min(rows, 9)
    )


def task(maker: RowMaker, storing: RowStorage, *, keyed: bool = False) -> ConversionTask:
    order = order_of(ROWS, "train=0.8,val=0.2", seed=1)
    return ConversionTask("s.csv", maker, order, storing, {}, {"seed": 1}, keyed=keyed)


def check(pack: Pack) -> None:
    """Every row of the order, whole."""
    assert verify_pack(pack.path).problems == ()
    order = order_of(ROWS, "train=0.8,val=0.2", seed=1)
    numbers = pack.read("number")
    assert numbers.tolist() == order.samples[:].tolist()
    assert pack.header.splits == {name: (span,) for name, span in order.splits.items()}
    field = pack.header.field("squares")
    squares = np.empty((pack.rows, field.row_bytes), np.uint8)
    PackStore(pack, (field,)).copy(
        one_run(0, pack.rows), {"squares": squares}
    )  # pack.read does not decompress
    assert squares.view(field.dtype).tolist() == ((numbers[:, None] + np.arange(3)) ** 2).tolist()
    assert pack.read_ragged("text") == [b"x" * int(n % 7) for n in numbers]


@every_way
def test_packs_of_columns(tmp_path: Path, storing: RowStorage):
    for workers in (1, 2):
        out = tmp_path / f"{workers}" / "p"
        out.parent.mkdir()
        steps: list[int] = []
        written = write_pack(task(Squares(), storing), str(out), RunOptions(workers, progress=steps.append))
        pack = open_pack(out)
        check(pack)
        assert [f.name for f in pack.fields] == ["number", "squares", "text"]
        assert written.header.rows == ROWS
        assert steps == sorted(steps)
        assert steps[-1] == ROWS
    assert files_of(tmp_path / "1" / "p") == files_of(tmp_path / "2" / "p")


@pytest.mark.parametrize("workers", [1, 3])
def test_shards_are_written_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """As many as keep all workers busy, where each has a single block; not all at once."""
    begin = ShardRun._open_shard
    under_way: list[int] = [0]

    def count(run: ShardRun, file: str) -> Any:
        under_way.append(len(run._open) + 1)
        return begin(run, file)

    monkeypatch.setattr(ShardRun, "_open_shard", count)
    storing = RowStorage("h5", shard_rows=4)
    write_pack(task(Squares(), storing), str(tmp_path / "p"), RunOptions(workers))
    assert min(workers, 2) <= max(under_way) <= workers + 2
    assert len(open_pack(tmp_path / "p").shards) == 25
    check(open_pack(tmp_path / "p"))


def test_rows_that_are_made_again_cannot_be_read_before(tmp_path: Path):
    """A run that stops at bad inputs makes a block again that an interrupted run had left holes in."""
    told: list[int] = []

    def writer() -> PackWriter:
        return PackWriter(
            str(tmp_path / "p"),
            fields=(Field("x", "<i8", ()),),
            rows=6,
            block_rows=3,
            format="npy",
            plan={"of": "p"},
            readable=lambda rows, extents: told.append(rows),
        )

    with writer() as first:
        first.write_block(0, {"x": np.zeros(3, "<i8")})
        first.record(0, Block(reasons={1: "is no image"}).to_note())
    told.clear()
    with writer() as second:
        assert PackPart(second, skip=False).todo == {0, 1}
        for block in (1, 0):
            second.write_block(block, {"x": np.ones(3, "<i8")})
            second.record(block, Block().to_note())
    assert told == [0, 6]


def test_rows_are_asked_for_a_block_at_a_time(tmp_path: Path):
    maker = Squares()
    write_pack(task(maker, WAYS["h5"]), str(tmp_path / "p.h5"), RunOptions(1))
    assert [n for n in maker.asked if n] == [9] * 11 + [1]


def test_keys_are_the_rows_numbers_where_they_are_wanted(tmp_path: Path):
    write_pack(task(Squares(), WAYS["h5"], keyed=True), str(tmp_path / "p.h5"), RunOptions(1))
    pack = open_pack(tmp_path / "p.h5")
    check(pack)
    assert pack.keys() == [str(n) for n in pack.read("number")]


@every_way
@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_pack_of_columns_is_resumed(tmp_path: Path, storing: RowStorage, workers: int):
    write_pack(task(Squares(), storing), str(tmp_path / "whole"), RunOptions(1))
    out = str(tmp_path / "p")
    with pytest.raises(SourceError, match="number 77"):
        write_pack(task(Broken(), storing), out, RunOptions(workers))
    maker = Squares()
    written = write_pack(task(maker, storing), out, RunOptions(1, resume=True))
    assert 0 < written.resumed < ROWS
    assert sum(maker.asked) == ROWS - written.resumed
    assert files_of(tmp_path / "p") == files_of(tmp_path / "whole")


@every_way
def test_a_pack_made_inside_the_workplace_of_another_output(tmp_path: Path, storing: RowStorage):
    """As tables do: what they staged is there until the pack is."""
    out = str(tmp_path / "t.h5")
    plan = {"table": 1}
    outer = WorkingFolder(out, plan=plan)
    outer.record("staged")
    with pytest.raises(SourceError, match="number 77"):
        write_pack(task(Broken(), storing), outer.pack, RunOptions(1))
    outer.close(keep=True)
    outer = WorkingFolder(out, plan=plan)
    assert outer.resumed == ["staged"]
    written = write_pack(task(Squares(), storing), outer.pack, RunOptions(2))
    assert written.resumed
    outer.publish()
    assert [p.name for p in tmp_path.iterdir()] == ["t.h5"]
    check(open_pack(out))


def test_an_outer_plan_that_has_changed_clears_the_inner_pack(tmp_path: Path):
    out = str(tmp_path / "t.h5")
    outer = WorkingFolder(out, plan={"table": 1})
    outer.record("staged")
    with pytest.raises(SourceError, match="number 77"):
        write_pack(task(Broken(), WAYS["npy"]), outer.pack, RunOptions(1))
    outer.close(keep=True)
    outer = WorkingFolder(out, plan={"table": 2})
    assert outer.resumed == []
    assert write_pack(task(Squares(), WAYS["npy"]), outer.pack, RunOptions(1)).resumed == 0
    outer.publish()
    check(open_pack(out))


def test_appended_shards_of_columns(tmp_path: Path):
    """A task of other fields is refused, whatever has keys."""
    from packer.convert.shard_appending import adding, append_shards
    from packer.errors import UsageError
    from packer.writing.working_folder import WorkingFolder

    out = str(tmp_path / "p")
    made = task(Squares(), WAYS["shards"])
    write_pack(made, out, RunOptions(1))
    place = WorkingFolder(adding(out), plan={})
    append_shards(made, open_pack(out), place, RunOptions(1))
    pack = open_pack(out)
    assert pack.rows == 2 * ROWS
    assert pack.read("number")[ROWS:].tolist() == made.order.samples[:].tolist()
    with pytest.raises(UsageError, match="has other fields"):
        append_shards(replace(made, keyed=True), pack, place, RunOptions(1))
    place.close(keep=False)


def test_tables_load_nothing_that_decodes_images(tmp_path: Path):
    code = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parents[2])!r})
        from tests.convert.test_block_workers import *
        loaded = {{"cv2", "PIL", "torch"}} & set(sys.modules)
        maker = Squares()
        write_pack(task(maker, WAYS["npy"]), {str(tmp_path / "p")!r}, RunOptions(2))
        print(sorted(loaded), sorted({{"cv2", "PIL", "torch"}} & set(sys.modules)))
    """
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(line.strip() for line in code.splitlines())],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[] []\n"
