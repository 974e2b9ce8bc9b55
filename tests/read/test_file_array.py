from __future__ import annotations

import os
import resource
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.errors import FormatError
from packer.format.fields import Extent
from packer.orders.runs import Runs, one_run
from packer.read.gather import FileArray, allow_files
from tests.open_files import open_files
from tests.read.conftest import WAYS, use_way

ROW_BYTES = 5
COUNTS = (4, 1, 7, 0, 3)  # rows of each extent
ROWS = sum(COUNTS)
VALUES = np.arange(ROWS * ROW_BYTES, dtype=np.uint8).reshape(ROWS, ROW_BYTES)


@dataclass
class Folder:
    """All of a Pack that an FileArray asks for."""

    path: str

    def file(self, extent: Extent) -> str:
        return os.path.join(self.path, extent.file)


def make(folder: Path) -> FileArray:
    """Five extents in three files, in another order than the rows, at odd offsets."""
    extents, first = [], 0
    data: dict[str, bytes] = dict.fromkeys("abc", b"gap")
    for file, count in zip("bcabb", COUNTS, strict=True):
        extents.append(Extent(file, len(data[file]), count, ROW_BYTES))
        data[file] += VALUES[first : first + count].tobytes() + b"between"
        first += count
    for name, text in data.items():
        (folder / name).write_bytes(text)
    return FileArray(Folder(str(folder)), extents)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def array(tmp_path_factory: pytest.TempPathFactory) -> FileArray:
    return make(tmp_path_factory.mktemp("extents"))


RUNS = st.lists(
    st.integers(0, ROWS - 1).flatmap(lambda a: st.tuples(st.just(a), st.integers(1, ROWS - a))), max_size=9
)


@given(RUNS, st.sampled_from(WAYS))
def test_runs_across_files_land_in_order(array: FileArray, runs: list[tuple[int, int]], way: str):
    wanted = Runs(np.array([a for a, _ in runs], np.int64), np.array([n for _, n in runs], np.int64))
    out = np.full((wanted.total, ROW_BYTES), 99, np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        use_way(patch, way)
        array.read(wanted, out)
    assert (out == VALUES[wanted.rows()]).all()


@given(st.integers(0, ROWS), st.integers(0, ROWS))
def test_one_run(array: FileArray, start: int, stop: int):
    start, stop = min(start, stop), max(start, stop)
    out = np.full((stop - start, ROW_BYTES), 99, np.uint8)
    array.read(one_run(start, stop), out)
    assert (out == VALUES[start:stop]).all()


@pytest.mark.parametrize(("start", "count"), [(-1, 1), (ROWS, 1), (ROWS - 1, 2), (1 << 62, 1)])
def test_rows_out_of_range(array: FileArray, way: str, start: int, count: int):
    out = np.zeros((count, ROW_BYTES), np.uint8)
    with pytest.raises(IndexError, match=f"^rows {start} to {start + count} of {ROWS}$"):
        array.read(Runs(np.array([start]), np.array([count])), out)
    with pytest.raises(IndexError, match=f"^rows {start} to {start + count} of {ROWS}$"):
        array.willneed(Runs(np.array([0, start]), np.array([1, count])))
    assert not out.any()


def test_an_array_without_rows():
    array = FileArray(Folder("/nowhere"), [Extent("a", 0, 0, 1)])  # type: ignore[arg-type]
    array.read(Runs(np.empty(0, np.int64), np.empty(0, np.int64)), np.empty((0, 1), np.uint8))
    with pytest.raises(IndexError):
        array.read(one_run(0, 1), np.empty((1, 1), np.uint8))


def test_threads_share_an_array(tmp_path: Path, way: str):
    array = make(tmp_path)
    draws = np.random.default_rng(0)

    def read(seed: int) -> bool:
        rows = np.random.default_rng(seed).integers(0, ROWS, 6)
        out = np.empty((6, ROW_BYTES), np.uint8)
        array.read(Runs(rows, np.ones_like(rows)), out)
        return bool((out == VALUES[rows]).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, draws.integers(0, 1 << 30, 200)))


@pytest.mark.parametrize("opened", [False, True])
def test_a_file_cut_short_is_named(tmp_path: Path, way: str, opened: bool):
    array = make(tmp_path)
    out = np.empty((3, ROW_BYTES), np.uint8)
    runs = Runs(np.array([3, 5, 10]), np.array([1, 1, 1]))  # files b, a, a
    if opened:
        array.read(runs, out)
    os.truncate(tmp_path / "a", 9)
    with pytest.raises(FormatError) as error:
        array.read(runs, out)
    assert str(error.value) == (
        f"{tmp_path}/a: is shorter than when it was opened; it was cut short. Convert the images again."
    )


def test_a_shard_cut_short_is_named_though_others_lie_before_it_in_memory(tmp_path: Path):
    """Only what lies behind their images is mapped of these files, each mapping beside the next."""
    images, count = 64 << 20, 4096
    for name in "abcd":
        with open(tmp_path / name, "wb") as file:
            file.truncate(images + 8 * count)
    array = FileArray(Folder(str(tmp_path)), [Extent(name, images, count, 8) for name in "abcd"])  # type: ignore[arg-type]
    whole = Runs(count * np.arange(4), np.full(4, count))
    array.read(whole, np.empty((4 * count, 8), np.uint8))
    # Probes see its first and last run; the page that has gone is that of another one.
    for cut in "cab":
        runs = Runs("abcd".index(cut) * count + np.array([0, 1, 600, 2, 3, 4, 5, 6, 7]), np.ones(9, np.int64))
        os.truncate(tmp_path / cut, images + 4096)
        with pytest.raises(FormatError) as error:
            array.read(runs, np.empty((9, 8), np.uint8))
        assert str(error.value).startswith(f"{tmp_path}/{cut}: is shorter than when it was opened")
        os.truncate(tmp_path / cut, images + 8 * count)


@pytest.mark.parametrize(
    ("hard", "most", "asked"),
    [
        (resource.RLIM_INFINITY, 10_240, [40_064, 10_240]),  # macOS
        (resource.RLIM_INFINITY, 1 << 20, [40_064]),
        (4096, 4096, [4096]),
        (4096, 256, [4096, 4096]),  # nothing helps; opening the files will say so
    ],
)
def test_as_many_files_as_the_system_allows(
    monkeypatch: pytest.MonkeyPatch, hard: int, most: int, asked: list[int]
):
    found = []

    def set_limit(_: int, limits: tuple[int, int]) -> None:
        found.append(limits[0])
        if limits[0] > most:
            raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, hard))
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    monkeypatch.setattr("packer.read.gather.os.listdir", lambda _: [])
    allow_files(20_000)
    assert found == asked


def test_a_missing_file_is_named(tmp_path: Path):
    make(tmp_path)
    with pytest.raises(FormatError) as error:
        FileArray(Folder(str(tmp_path)), [Extent("no", 0, 1, 1)])  # type: ignore[arg-type]
    assert str(error.value) == (
        f"{tmp_path}/no: cannot be read (No such file or directory). Check the name and the permissions."
    )


@pytest.mark.parametrize("form", ["in C", "in NumPy"])
def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str):
    use_way(monkeypatch, f"calls, {form}")
    (tmp_path / "folder").mkdir()
    array = FileArray(Folder(str(tmp_path)), [Extent("folder", 0, 1, 1)])  # type: ignore[arg-type]
    with pytest.raises(FormatError) as error:
        array.read(one_run(0, 1), np.empty((1, 1), np.uint8))
    assert str(error.value) == f"{tmp_path}/folder: reading failed (Is a directory). Check the disk."


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors")
def test_files_opened_in_vain_are_closed_though_the_error_is_kept(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"x")
    before = open_files()
    with pytest.raises(FormatError, match="cannot be read") as kept:
        FileArray(Folder(str(tmp_path)), [Extent(name, 0, 1, 1) for name in ("a", "gone")])  # type: ignore[arg-type]
    assert open_files() <= before
    del kept
