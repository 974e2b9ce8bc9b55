"""packer.filling: rows that a process keeps in memory are the rows of the pack, whoever made them, and whatever dies meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer.errors import PackerError
from packer.filling import memory_pack
from packer.filling.filling_client import _helpers
from packer.filling.memory_pack import MemoryPack, folder_of, in_memory, open_memory
from packer.filling.memory_process import DecodedRows
from packer.filling.row_memory import RowMemory, memory_layout
from packer.format.pack import Pack, open_pack
from packer.orders.runs import Runs, Subset, consecutive
from packer.read.row_reader import RowReader
from packer.read.row_selection import select_fields, select_rows
from tests.open_files import open_files
from tests.read.conftest import ROWS, SPLITS, expected, image_of, make_pack, store_of, stored

__all__ = ["expected", "stored"]

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where processes meet; nothing of them is left there, and no process."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(memory_pack, "_COPIED_BYTES", 1)  # a unit is a row
    yield tmp_path
    own = tmp_path / f"packer-{os.getuid()}"
    assert until(lambda: not own.is_dir() or not list(own.iterdir()))
    assert until(lambda: not running(tmp_path))


@pytest.fixture
def pack(tmp_path: Path) -> Pack:
    return make_pack(tmp_path / "p.h5")


def until(condition: Callable[[], Any], seconds: float = 120) -> bool:
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.005)
    return bool(found)


def running(folder: Path) -> list[int]:
    """The processes that this one has started to keep rows, and that still run."""
    return [h.pid for h in _helpers if h.poll() is None and str(h.args[-1]).startswith(str(folder))]  # type: ignore[index]


class Gated(RowReader):
    """Reads images only while a file says that so many rows may be read in all; notes in another file which were."""

    def __init__(self, pack: Pack, fields: Any, folder: Path, *, verify: bool = False) -> None:
        super().__init__(pack, fields, verify=verify)
        self.folder = folder
        self.count = 0

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"folder": self.folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["pack"], state["fields"], state["folder"], verify=state["verify"])  # type: ignore[misc]

    def allow(self, rows: int) -> None:
        (self.folder / "allowed").write_text(str(rows))

    def made(self) -> list[int]:
        """Rows that have been read, in the order in which their reading began."""
        log = self.folder / "log"
        return [int(row) for row in log.read_text().split()] if log.exists() else []

    def read(self, name: str, runs: Runs, out: Any) -> None:
        if name == "image":
            rows = runs.rows().tolist()
            with open(self.folder / "log", "a") as log:
                log.write("".join(f"{row}\n" for row in rows))
            time.sleep(0.002 * len(rows))  # or tasks become so large that one is all
            assert until(
                lambda: (
                    (self.folder / "allowed").exists()
                    and int((self.folder / "allowed").read_text() or 0) >= len(self.made())
                )
            )
        super().read(name, runs, out)


def memory_of(pack: Pack, *, reader: RowReader | None = None, subset: Subset | None = None) -> MemoryPack:
    fields = select_fields(pack, None)
    return open_memory(reader or RowReader(pack, fields), fields, subset or Subset([(0, ROWS)]))


def check(memory: MemoryPack, rows: Any, *, first: int = 0) -> None:
    """See that these rows are those of the pack."""
    rows = np.asarray(rows, np.int64)
    with closing(RowReader(memory, memory.fields)) as reader:
        images, labels = (reader.array(f, consecutive(rows)) for f in memory.fields[:2])
    assert (images == np.stack([image_of(first + int(row)) for row in rows])).all()
    assert (labels == 3 * (first + rows)).all()


def test_units_are_as_large_as_it_takes_to_copy_or_decode_them(
    pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    fields, reader = select_fields(pack, None), RowReader(pack, select_fields(pack, None))
    kept = [f for f in fields if not f.ragged]
    assert memory_pack._layout(reader, kept, Subset([(0, ROWS)])).units == 1
    monkeypatch.setattr(memory_pack, "_COPIED_BYTES", 1000)
    assert memory_pack._layout(reader, kept, Subset([(0, ROWS)])).unit_rows == 6
    assert memory_pack._layout(reader, kept, Subset([(0, 4)])).unit_rows == 4


def test_more_is_asked_for_than_sockets_hold_while_answers_come(pack: Pack, tmp_path: Path) -> None:
    """Neither end waits for the other to read: a client's threads send while it hears."""
    gated = Gated(pack, select_fields(pack, None), tmp_path)
    gated.allow(0)
    with closing(memory_of(pack, reader=gated)) as memory:
        units = np.tile(np.arange(ROWS), 2000)
        threads = [threading.Thread(target=memory.client.wait, args=(units,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        gated.allow(ROWS)
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads)


def test_without_a_folder_for_temporary_files_nothing_is_in_memory(
    pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    fields = select_fields(pack, None)
    assert not in_memory(RowReader(pack, fields), fields, Subset([(0, ROWS)]))
    with pytest.raises(PackerError, match=r"No usable temporary directory found\. Set TMPDIR"):
        memory_of(pack)


def test_every_kind_of_pack_is_decoded(stored: Pack, expected: dict[str, np.ndarray]) -> None:
    rows = np.concatenate([np.arange(a, b) for a, b in SPLITS["train"]])
    fields = [f for f in select_fields(stored, None) if not f.ragged]
    layout = memory_layout(fields, len(rows), 1 if store_of(stored) in ("raw", "jpeg") else 16)
    memory = RowMemory(layout)
    with DecodedRows(RowReader(stored, fields), Subset(select_rows(stored, "train")), memory) as source:
        units = np.random.default_rng(0).permutation(layout.units)
        for some in np.array_split(units, 5):
            source.arrived(some, source.start(some).result(120))
    assert memory.states.values.all()
    image = next(f for f in fields if f.name == "image")
    found = memory.rows("image", 0, len(rows)).reshape(-1, *image.loaded.shape)
    assert (found == expected[store_of(stored)][rows]).all()
    assert (memory.rows("label", 0, len(rows)).view("<i8")[:, 0] == 3 * rows).all()


def test_rows_are_made_in_the_order_in_which_they_are_asked_for_and_then_the_others(
    pack: Pack, tmp_path: Path
) -> None:
    gated = Gated(pack, select_fields(pack, None), tmp_path)
    with closing(memory_of(pack, reader=gated, subset=Subset([(20, ROWS)]))) as memory:
        assert in_memory(gated, select_fields(pack, None), Subset([(20, ROWS)]))
        assert not in_memory(gated, select_fields(pack, None), Subset([(0, ROWS)]))
        gated.allow(1)  # the first tasks, of four rows each, do not end
        waiting = threading.Thread(target=check, args=(memory, [70, 3, 71]), kwargs={"first": 20})
        waiting.start()
        assert until(lambda: memory.client._waiting)
        with memory.client._sending:  # held until it has asked
            pass
        assert memory.pending
        gated.allow(ROWS)
        waiting.join()
        assert {90, 23, 91} <= set(gated.made()[:30])
        assert until(lambda: not memory.pending)
        assert sorted(gated.made()) == list(range(20, ROWS))
        check(memory, np.random.default_rng(0).permutation(ROWS - 20), first=20)
        check(memory, range(10, 50), first=20)
        with pytest.raises(IndexError):
            check(memory, [ROWS - 20], first=20)


def _other(path: str, folder: str, results: Any) -> None:
    tempfile.tempdir = folder
    memory_pack._COPIED_BYTES = 1
    pack = open_pack(path)
    gated = Gated(pack, select_fields(pack, None), Path(folder))
    with closing(memory_of(pack, reader=gated)) as memory:
        check(memory, np.random.default_rng(1).permutation(ROWS))
        results.put(os.fstat(memory.client.memory.fd).st_ino)


def test_processes_that_load_the_same_make_each_row_once(pack: Pack, tmp_path: Path) -> None:
    gated = Gated(pack, select_fields(pack, None), tmp_path)
    gated.allow(50)
    results = SPAWN.Queue()
    child = SPAWN.Process(target=_other, args=(pack.path, str(tmp_path), results))
    child.start()
    with closing(memory_of(pack, reader=gated)) as memory, closing(memory_of(pack)) as same:
        assert until(lambda: len(gated.made()) >= 50)
        gated.allow(ROWS)
        for one in (memory, same):
            check(one, np.arange(ROWS)[::-1])
        found = {os.fstat(one.client.memory.fd).st_ino for one in (memory, same)}
        assert {results.get(timeout=120)} == found
        child.join()
    assert child.exitcode == 0
    assert sorted(gated.made()) == list(range(ROWS))


def test_the_next_process_goes_on_where_a_killed_one_stopped(pack: Pack, tmp_path: Path) -> None:
    gated = Gated(pack, select_fields(pack, None), tmp_path)
    gated.allow(ROWS // 2)
    with closing(memory_of(pack, reader=gated)) as memory, closing(memory_of(pack)) as second:
        there = memory.client.memory.states.values
        assert until(lambda: np.count_nonzero(there) >= 4)
        (pid,) = running(tmp_path)
        os.kill(pid, signal.SIGKILL)
        assert until(lambda: not running(tmp_path))
        before = set(np.flatnonzero(there).tolist())
        (tmp_path / "log").unlink()
        gated.allow(ROWS)
        for one in (memory, second):
            check(one, np.arange(ROWS))
        assert not before & set(gated.made())


def test_full_memory_outlives_its_process(pack: Pack, tmp_path: Path) -> None:
    memory = memory_of(pack)
    assert until(lambda: not memory.pending)
    (pid,) = running(tmp_path)
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: not running(tmp_path))
    check(memory, np.arange(ROWS)[::-1])
    memory.close()
    with closing(memory_of(pack)) as again:  # clears what the killed one left
        check(again, [5])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_reads_the_same_memory(pack: Pack, tmp_path: Path) -> None:
    gated = Gated(pack, select_fields(pack, None), tmp_path)
    gated.allow(30)
    with closing(memory_of(pack, reader=gated)) as memory:
        child = os.fork()
        if not child:
            status = 1
            try:
                gated.allow(ROWS)
                check(memory, np.arange(ROWS)[::-1])
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        check(memory, np.arange(ROWS))
        assert sorted(gated.made()) == list(range(ROWS))


def test_what_differs_is_kept_apart(tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "p.h5")
    fields, everything = select_fields(pack, None), Subset([(0, ROWS)])

    def place(pack: Pack, fields: Any = fields, subset: Subset = everything, **options: bool) -> str:
        return folder_of(RowReader(pack, fields, **options), fields, subset)

    plain = place(pack)
    assert place(open_pack(pack.path)) == plain
    assert place(pack, fields[:1]) != plain
    assert place(pack, verify=True) != plain
    assert place(pack, subset=Subset([(0, ROWS - 1)])) != plain
    assert place(pack, subset=Subset.of_rows(np.arange(ROWS)[::-1])) != plain
    assert place(make_pack(tmp_path / "q.h5")) != plain
    os.utime(pack.path, ns=(0, 0))
    assert place(pack) != plain


class Broken(Gated):
    """A disk that cannot be read from row 20 on."""

    def read(self, name: str, runs: Runs, out: Any) -> None:
        if runs.rows().max() >= 20:
            raise PackerError("p.h5: reading failed (Input/output error). Check the disk.")
        super().read(name, runs, out)


def test_rows_that_cannot_be_made_are_an_error_and_the_others_stay(pack: Pack, tmp_path: Path) -> None:
    broken = Broken(pack, select_fields(pack, None), tmp_path)
    broken.allow(ROWS)
    with closing(memory_of(pack, reader=broken)) as memory:
        with pytest.raises(PackerError, match="Input/output error"):
            check(memory, np.arange(ROWS))
        memory.client.failed = "it failed"
        there = np.flatnonzero(memory.client.memory.states.values)
        if len(there):
            check(memory, there)
        with pytest.raises(PackerError, match="it failed"):
            check(memory, [40])
        assert until(lambda: not running(tmp_path))
        with pytest.raises(PackerError, match="it failed"):  # and no process is started again and again
            check(memory, [40])
        assert until(lambda: not running(tmp_path))


def test_memory_that_cannot_be_had_is_a_sentence(pack: Pack) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (14_000, before[1]))
    try:
        with pytest.raises(
            PackerError, match=r"memory for rows: .* \(File too large\)\. Pass placement='disk'\."
        ):
            memory_of(pack)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_pages_that_cannot_be_had_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = RowMemory(memory_layout([], 10, 1))
    monkeypatch.setattr(
        "packer.filling.row_memory.reserve",
        lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")),
    )
    with pytest.raises(PackerError, match="No space left on device"):
        memory.reserve(0, 3)


def test_nothing_stays_behind(pack: Pack, tmp_path: Path) -> None:
    memory_of(pack).close()  # what the first use opens stays open
    before = open_files()
    with closing(memory_of(pack)) as memory:
        check(memory, [3])
    del memory
    assert until(lambda: open_files() <= before)


def test_a_thread_that_reads_on_after_close_starts_nothing(pack: Pack, tmp_path: Path) -> None:
    gated = Gated(pack, select_fields(pack, None), tmp_path)
    gated.allow(0)
    memory = memory_of(pack, reader=gated)
    reading = RowReader(memory, memory.fields)
    gated.allow(ROWS)
    memory.close()
    with pytest.raises(PackerError, match="was closed"):
        reading.array(memory.fields[0], consecutive(np.arange(ROWS)))
    reading.close()
    assert memory.client._link is None


@pytest.mark.parametrize("what", ["open to others", "a link", "a file"])
def test_a_folder_that_is_not_ours_alone_is_refused(
    pack: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    own = tmp_path / "tmp" / f"packer-{os.getuid()}"
    own.parent.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(own.parent))
    if what == "open to others":
        own.mkdir()
        own.chmod(0o777)
    elif what == "a link":
        (tmp_path / "elsewhere").mkdir()
        own.symlink_to(tmp_path / "elsewhere")
    else:
        own.touch()
    with pytest.raises(PackerError, match="TMPDIR"):
        memory_of(pack)


def test_the_folder_is_for_its_user_alone(pack: Pack, tmp_path: Path) -> None:
    with closing(memory_of(pack)) as memory:
        own = Path(memory.client.folder)
        assert stat.S_IMODE(own.parent.stat().st_mode) == 0o700
        assert own.parent.parent == tmp_path


def test_where_there_is_no_memfd_it_is_a_file_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    memory = RowMemory(memory_layout([], 10, 1))
    memory.states.mark(np.array([3]), np.array([1], np.uint64))
    same = RowMemory(memory.layout, os.dup(memory.fd))
    assert same.states.values.tolist() == [0, 0, 0, 1] + [0] * 6
    assert not list(tmp_path.iterdir())
