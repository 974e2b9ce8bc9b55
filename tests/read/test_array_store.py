from __future__ import annotations

import mmap
import os
import pickle
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer import native
from packer.bench.hardware_limits import drop, resident_share
from packer.errors import FormatError
from packer.format.fields import Extent, Field
from packer.orders.runs import Runs
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.read import gather
from packer.read.array_store import PackStore
from packer.read.gather import shared_bytes
from packer.writing.pack_writer import PackWriter
from tests.open_files import listed_files, open_files
from tests.read.conftest import ROWS, SHAPE, WAYS, image_of, make_pack, make_stored, runs_of, use_way

ROW_BYTES = int(np.prod(SHAPE))


def read(reader: PackStore, name: str, runs: Runs, row_bytes: int) -> np.ndarray:
    out = np.full((int(runs.lengths.sum()), row_bytes), 99, np.uint8)
    reader.copy(runs, {name: out})
    return out


@pytest.mark.parametrize(
    "runs", [((0, ROWS),), ((5, 1),), ((90, 13), (0, 7)), tuple((r, 1) for r in (3, 3, 102, 0))]
)
def test_runs_land_in_order(pack: Pack, way: str, runs: tuple[tuple[int, int], ...]):
    reader, wanted = PackStore(pack, pack.fields), runs_of(*runs)
    images = read(reader, "image", wanted, ROW_BYTES).reshape(-1, *SHAPE)
    labels = read(reader, "label", wanted, 8).view("<i8")[:, 0]
    rows = wanted.rows().tolist()
    assert labels.tolist() == [3 * row for row in rows]
    assert all((image == image_of(row)).all() for image, row in zip(images, rows, strict=True))
    assert reader.ragged("key", wanted) == [b"row/%d" % row for row in rows]


@given(
    st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(1, 9)), min_size=1, max_size=12),
    st.sampled_from(WAYS),
)
def test_several_extents_read_like_one(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[int, int]], way: str
):
    """As a foreign or rewritten file may have them: three pieces, in another order than the rows."""
    folder = tmp_path_factory.mktemp("extents")
    pack = make_pack(folder / "p.h5", rows=30)
    whole = pack.header.extents["label"][0]
    data = (folder / "p.h5").read_bytes()[whole.offset : whole.end]
    (folder / "pieces").write_bytes(data[80:] + b"gap" + data[:40] + data[40:80])
    size = len(data) - 80
    pieces = (Extent("pieces", size + 3, 5, 8), Extent("pieces", size + 43, 5, 8), Extent("pieces", 0, 20, 8))
    scattered = replace(
        pack, path=str(folder), seal=b"", header=replace(pack.header, extents={"label": pieces})
    )
    wanted = runs_of(*((a % 30, min(n, 30 - a % 30)) for a, n in runs))
    with pytest.MonkeyPatch.context() as patch:
        use_way(patch, way)
        labels = read(PackStore(scattered, scattered.fields[1:2]), "label", wanted, 8).view("<i8")[:, 0]
    assert labels.tolist() == [3 * row for row in wanted.rows().tolist()]


def test_rows_out_of_range_are_an_index_error(pack: Pack):
    reader = PackStore(pack, pack.fields)
    for runs in (runs_of((ROWS, 1)), runs_of((100, 4)), runs_of((-1, 1))):
        with pytest.raises(IndexError):
            read(reader, "label", runs, 8)


@pytest.mark.parametrize("opened", [False, True])
def test_a_file_cut_short_is_an_error_not_a_crash(pack: Pack, tmp_path: Path, way: str, opened: bool):
    path = tmp_path / "p"
    (shutil.copytree if os.path.isdir(pack.path) else shutil.copy)(pack.path, path)
    reader = PackStore(open_pack(path), pack.fields)
    file = path / "image.npy" if path.is_dir() else path
    runs = runs_of((100, 1), (3, 1))
    if opened:
        read(reader, "image", runs, ROW_BYTES)
    os.truncate(file, 5000)
    with pytest.raises(FormatError) as error:
        read(reader, "image", runs, ROW_BYTES)
    shorter = f"{file}: is shorter than when it was opened; it was cut short. Convert the images again."
    changed = f"{file}: was replaced or changed after it was opened. Open it again."  # its trailer is gone
    assert str(error.value) == (shorter if opened or path.is_dir() else changed)


def test_a_pack_replaced_after_it_was_opened_is_not_read_with_the_old_header(tmp_path: Path):
    reader = PackStore(make_pack(tmp_path / "p.h5", rows=20), make_pack(tmp_path / "q.h5", rows=21).fields)
    os.replace(tmp_path / "q.h5", tmp_path / "p.h5")
    with pytest.raises(FormatError, match=r"was replaced or changed after it was opened\. Open it again\.$"):
        read(reader, "label", runs_of((0, 3)), 8)


def test_empty_rows_of_a_ragged_field(tmp_path: Path):
    field = Field("text", "|u1", None)
    rows = [b"a", b"", b"bc", b"", b"d", b""]
    with PackWriter(
        str(tmp_path / "p"), fields=[Field("n", "|u1", ()), field], rows=6, block_rows=6, format="npy"
    ) as writer:
        writer.write_block(0, {"n": np.arange(6, dtype=np.uint8)})
        writer.finish(rows=6, ragged={"text": rows})
    reader = PackStore(open_pack(tmp_path / "p"), [field])
    assert reader.ragged("text", runs_of((1, 1), (0, 6), (5, 1))) == [b"", *rows, b""]


def test_missing_file_is_a_sentence(tmp_path: Path):
    pack = make_pack(tmp_path / "p", rows=3)
    (tmp_path / "p" / "label.npy").unlink()
    with pytest.raises(FormatError, match=r"label\.npy: cannot be read \(No such file or directory\)"):
        read(PackStore(pack, pack.fields), "label", runs_of((0, 1)), 8)


@pytest.mark.parametrize(("place", "value"), [(-1, 64), (-9, 255), (-25, 255), (-32, 9)])
def test_damaged_offsets_are_a_sentence(tmp_path: Path, place: int, value: int):
    """Of the offsets 0, 5, 10, 15: far behind the end, then negative, negative, and not in order."""
    pack = make_pack(tmp_path / "p", rows=3)
    data = bytearray((tmp_path / "p" / "key.offsets.npy").read_bytes())
    data[place] = value
    (tmp_path / "p" / "key.offsets.npy").write_bytes(bytes(data))
    with pytest.raises(FormatError, match=r"offsets of 'key' are damaged\. Convert the images again\.$"):
        PackStore(pack, pack.fields).ragged("key", runs_of((0, 3)))


@pytest.mark.parametrize(
    "changed",
    [
        {1: -1},
        {1: -(1 << 63)},  # of which no difference can be taken
        {1: (1 << 63) - 1},
        {1: (1 << 63) - 1, 2: -(1 << 63)},
        {3: 16},
        {0: 11},
        {0: 1 << 62, 1: 1 << 62, 2: 1 << 62, 3: 1 << 62},
    ],
)
def test_offsets_of_any_value_are_a_sentence(tmp_path: Path, changed: dict[int, int]):
    pack = make_pack(tmp_path / "p", rows=3)
    path = tmp_path / "p" / "key.offsets.npy"
    offsets = np.load(path)
    for place, value in changed.items():
        offsets[place] = value
    path.write_bytes(path.read_bytes()[: -offsets.nbytes] + offsets.tobytes())
    reader = PackStore(pack, pack.fields)
    with pytest.raises(FormatError, match=r"offsets of 'key' are damaged\. Convert the images again\.$"):
        reader.ragged("key", runs_of((1, 1), (0, 1), (2, 1)))
    with pytest.raises(FormatError, match=r"offsets of 'key' are damaged\. Convert the images again\.$"):
        reader.ragged("key", runs_of((0, 3)))


def test_pickled_and_closed_readers_open_their_files_again(pack: Pack):
    reader = PackStore(pack, pack.fields)
    first = read(reader, "label", runs_of((7, 2)), 8)
    reader.close()
    for again in (reader, pickle.loads(pickle.dumps(reader))):
        assert (read(again, "label", runs_of((7, 2)), 8) == first).all()


def test_descriptors_are_closed(pack: Pack):
    before = open_files()
    reader = PackStore(pack, pack.fields)
    read(reader, "image", runs_of((1, 1), (5, 1)), ROW_BYTES)
    assert listed_files() - before
    reader.close()
    assert open_files() <= before


def test_files_closed_during_a_call_stay_its_files_until_it_ends(
    pack: Pack, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
):
    """Another file that is opened then does not become what is read."""
    (tmp_path / "other").write_bytes(bytes(1 << 20))
    before, others = open_files(), []
    reader = PackStore(pack, pack.fields)

    def close(*_: object) -> None:
        reader.close()
        others.extend(os.open(tmp_path / "other", os.O_RDONLY) for _ in range(9))

    for name in ("copy_rows", "read_rows"):
        real = getattr(gather, name)
        monkeypatch.setattr(gather, name, lambda *a, real=real: close() or real(*a))
    try:
        images = read(reader, "image", runs_of((7, 2), (3, 1)), ROW_BYTES).reshape(-1, *SHAPE)
        keys = reader.ragged("key", runs_of((7, 2)))
    finally:
        for fd in others:
            os.close(fd)
    assert others
    assert all((image == image_of(row)).all() for image, row in zip(images, (7, 8, 3), strict=True))
    assert keys == [b"row/7", b"row/8"]
    assert open_files() <= before


def test_a_forked_process_closes_whatever_another_thread_was_doing(pack: Pack):
    """In it, a lock that was held stays held for ever."""
    reader = PackStore(pack, pack.fields)
    read(reader, "label", runs_of((7, 2)), 8)
    with reader._lock:
        reader.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_keeps_blocks_whatever_another_thread_was_doing(tmp_path: Path):
    pack = make_stored(tmp_path, "h5", "gzip", None)
    reader = PackStore(pack, pack.fields)
    read(reader, "image", runs_of((7, 2)), ROW_BYTES)
    with reader._field("image")._keeping:  # type: ignore[attr-defined]
        if not (child := os.fork()):
            signal.alarm(10)
            reader.cache_blocks(16)
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("known", [True, False])
def test_pages_of_a_large_mapping_are_let_go(pack: Pack, monkeypatch: pytest.MonkeyPatch, known: bool):
    """Where the system says how many there are, and where it does not."""
    use_way(monkeypatch, "few copies, in C")
    monkeypatch.setattr("packer.read.gather.GROWTH_BYTES", 250 << 10)
    pages, advised = iter([300 << 10] * 3 + [550 << 10, 600 << 10, 600 << 10, 0, 0]), []
    monkeypatch.setattr("packer.read.gather.shared_bytes", lambda: next(pages) if known else None)

    class Map(mmap.mmap):
        def madvise(self, *arguments: int) -> None:
            advised.append(arguments)
            super().madvise(*arguments)

    monkeypatch.setattr("packer.read.gather.mmap.mmap", Map)
    rows = np.arange(0, 16, 2)  # four times two runs
    read(PackStore(pack, pack.fields), "image", Runs(rows, np.ones_like(rows)), ROW_BYTES)
    assert advised == [(mmap.MADV_RANDOM,)] + [(mmap.MADV_DONTNEED,)] * (1 if known else 2)


def test_shared_bytes_counts_mapped_pages(tmp_path: Path):
    before = shared_bytes()
    if before is None:
        pytest.skip("this system does not say")
    (tmp_path / "x").write_bytes(bytes(8 << 20))
    with open(tmp_path / "x", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    assert sum(mapped[:: mmap.PAGESIZE]) == 0
    assert 6 << 20 < shared_bytes() - before < 10 << 20  # type: ignore[operator]


@pytest.mark.skipif(sys.platform != "linux", reason="the page cache is emptied with a Linux call")
@pytest.mark.skipif(not native.COMPILED, reason="packer was installed without a compiler")
def test_cold_files_are_read_by_calls_and_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushed: None
):
    use_way(monkeypatch, "copies, in C")
    pack = make_pack(tmp_path / "p", rows=ROWS)
    path = str(tmp_path / "p" / "image.npy")
    drop([path])
    if resident_share(path) != 0:
        pytest.skip("this file system keeps its pages (tmpfs)")
    found, reader = [], PackStore(pack, pack.fields)
    for name in ("copy_rows", "read_rows"):
        real = getattr(gather, name)
        monkeypatch.setattr(gather, name, lambda *a, real=real: found.append(real(*a)) or found[-1])

    def ways() -> list[Any]:
        """The calls that one read of rows took, with their results."""
        found.clear()
        images = read(reader, "image", runs_of((7, 2), (3, 1)), ROW_BYTES).reshape(-1, *SHAPE)
        assert all((image == image_of(row)).all() for image, row in zip(images, (7, 8, 3), strict=True))
        return list(found)

    def cold_ways() -> list[Any]:
        nonlocal reader
        reader.close()  # pages that are mapped are not dropped
        reader = PackStore(pack, pack.fields)
        drop([path])
        return ways()

    # On a busy machine pages that are under way when the others are dropped come later, and those that came are dropped again.
    assert until(lambda: cold_ways() == [gather.COLD, (gather.DONE, 0)])
    assert until(lambda: ways() == [gather.DONE])

    def asked_for() -> bool:
        reader.prefetch(runs_of((0, 5), (90, 13)))
        return resident_share(path) > 0

    drop([path])
    assert until(asked_for)


def until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 120
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return met
