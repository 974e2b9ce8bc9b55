"""packer.load.caches.row_memory: rows in memory are the rows of the pack, whoever made them, and whatever dies meanwhile."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import resource
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer.errors import PackerError
from packer.load.caches import row_memory
from packer.load.caches.memory_cache import MemoryStore
from packer.load.caches.row_memory import MAKING, MISSING, THERE, RowMemory, in_memory
from packer.orders.runs import Runs, Subset, consecutive
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.read.array_store import PackStore
from packer.read.row_selection import select_fields, select_rows
from tests.open_files import open_files
from tests.read.conftest import ROWS, SPLITS, expected, image_of, make_pack, store_of, stored

__all__ = ["expected", "stored"]

SPAWN = multiprocessing.get_context("spawn")
ALL = Subset([(0, ROWS)])
linux = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="processes share memory by memfd")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where processes meet; nothing of them is left there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(row_memory, "_COPIED_BYTES", 1)  # a unit is a row
    yield tmp_path
    own = tmp_path / f"packer-{os.getuid()}"
    assert until(lambda: not own.is_dir() or not list(own.iterdir()))


@pytest.fixture
def pack(tmp_path: Path) -> Pack:
    return make_pack(tmp_path / "p.h5")


def until(condition: Callable[[], Any], seconds: float = 120) -> bool:
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.005)
    return bool(found)


def filled(store: Any, seconds: float = 120) -> bool:
    """Wait until a store has all rows, or will get no more; return True if it has."""
    until(lambda: store.ready or store.closed or store.failed or store._background.error, seconds)
    return bool(store.ready)


class Held:
    """A store that fills itself for as long as this is held."""

    def __init__(self, store: Any) -> None:
        self.store = store
        store.open(self)

    def wait(self, seconds: float = 120) -> bool:
        """Wait until all rows are cached, or no more will be; return True if all are."""
        return filled(self.store, seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


def kept(below: PackStore, **options: Any) -> Any:
    return Held(MemoryStore(below, **options))


class Gated(PackStore):
    """Reads images only while a file says that so many rows may be read in all; notes in another file which were."""

    def __init__(
        self, pack: Pack, fields: Any, folder: Path, subset: Any = None, verify: bool = False
    ) -> None:
        super().__init__(pack, fields, subset, verify=verify)
        self.folder = folder

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"folder": self.folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def allow(self, rows: int) -> None:
        (self.folder / "allowed").write_text(str(rows))

    def made(self) -> list[int]:
        """Rows that have been read, in the order in which their reading began."""
        log = self.folder / "log"
        return [int(row) for row in log.read_text().split()] if log.exists() else []

    def copy(self, rows: Runs, out: Any) -> None:
        if "image" in out:
            with open(self.folder / "log", "a") as log:
                log.write("".join(f"{row}\n" for row in rows.rows().tolist()))
            assert until(
                lambda: (
                    (self.folder / "allowed").exists()
                    and int((self.folder / "allowed").read_text() or 0) >= len(self.made())
                )
            )
        super().copy(rows, out)


def memory_of(pack: Pack, *, subset: Subset = ALL) -> RowMemory:
    return RowMemory(PackStore(pack, select_fields(pack, None), subset))


def check(memory: RowMemory, rows: Any) -> None:
    """See that these rows, which are there, are those of the pack."""
    rows = np.asarray(rows, np.int64)
    images = np.empty((len(rows), image_of(0).nbytes), np.uint8)
    labels = np.empty((len(rows), 8), np.uint8)
    memory.read("image", consecutive(rows), images)
    memory.read("label", consecutive(rows), labels)
    assert (images.reshape(-1, *image_of(0).shape) == np.stack([image_of(int(row)) for row in rows])).all()
    assert (labels.view("<i8")[:, 0] == 3 * rows).all()


def test_units_are_as_large_as_it_takes_to_copy_or_decode_them(
    pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_memory, "_COPIED_BYTES", 256 << 10)
    assert memory_of(pack).units == 1
    monkeypatch.setattr(row_memory, "_COPIED_BYTES", 1000)
    assert memory_of(pack).unit_rows == 6
    assert memory_of(pack, subset=Subset([(0, 4)])).unit_rows == 4


def test_without_a_folder_for_temporary_files_nothing_is_in_memory(
    pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    fields = select_fields(pack, None)
    assert not in_memory(PackStore(pack, fields))
    with pytest.raises(PackerError, match=r"No usable temporary directory found\. Set TMPDIR"):
        memory_of(pack)


def test_every_kind_of_pack_is_decoded(stored: Pack, expected: dict[str, np.ndarray]) -> None:
    rows = np.concatenate([np.arange(a, b) for a, b in SPLITS["train"]])
    fields = [f for f in select_fields(stored, None) if not f.ragged]
    reader = PackStore(stored, fields, Subset(select_rows(stored, "train")))
    memory = RowMemory(reader)
    units = np.random.default_rng(0).permutation(memory.units)
    for some in np.array_split(units, 5):
        memory.make(np.sort(some), reader)
    assert (memory.states == THERE).all()
    image = next(f for f in fields if f.name == "image")
    found = memory.view("image", 0, len(rows)).reshape(-1, *image.loaded.shape)
    assert (found == expected[store_of(stored)][rows]).all()
    assert (memory.view("label", 0, len(rows)).view("<i8")[:, 0] == 3 * rows).all()


@linux
def test_who_has_it_is_known_and_what_differs_is_kept_apart(tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "p.h5")
    fields = select_fields(pack, None)
    memory = memory_of(pack)
    assert memory.holders == 1
    assert in_memory(PackStore(pack, fields))

    def place(pack: Pack, fields: Any = fields, subset: Subset = ALL, **options: bool) -> str:
        return row_memory._listing(PackStore(pack, fields, subset, **options))

    plain = place(pack)
    assert place(open_pack(pack.path)) == plain
    assert place(pack, fields[:1]) != plain
    assert place(pack, verify=True) != plain
    assert place(pack, subset=Subset([(0, ROWS - 1)])) != plain
    assert place(pack, subset=Subset.from_rows(np.arange(ROWS)[::-1])) != plain
    assert place(make_pack(tmp_path / "q.h5")) != plain
    os.utime(pack.path, ns=(0, 0))
    assert place(pack) != plain
    assert not in_memory(PackStore(pack, fields))


def _other(path: str, folder: str, results: Any) -> None:
    tempfile.tempdir = folder
    row_memory._COPIED_BYTES = 1
    pack = open_pack(path)
    rows = kept(Gated(pack, select_fields(pack, None), Path(folder)))
    assert rows.wait(120)
    memory = rows.memory
    assert memory is not None
    check(memory, np.random.default_rng(1).permutation(ROWS))
    results.put(os.fstat(memory.fd).st_ino)
    rows.close()


@linux
def test_processes_that_load_the_same_make_each_row_about_once(pack: Pack, tmp_path: Path) -> None:
    gated = Gated(pack, select_fields(pack, None), tmp_path)
    gated.allow(50)
    results = SPAWN.Queue()
    child = SPAWN.Process(target=_other, args=(pack.path, str(tmp_path), results))
    child.start()
    rows, same = kept(gated), kept(gated)
    assert until(lambda: len(gated.made()) >= 50)
    gated.allow(10 * ROWS)
    for one in (rows, same):
        assert one.wait(120)
        check(one.memory, np.arange(ROWS)[::-1])
    found = {os.fstat(one.memory.fd).st_ino for one in (rows, same)}
    assert {results.get(timeout=120)} == found
    child.join()
    assert child.exitcode == 0
    assert set(gated.made()) == set(range(ROWS))
    rows.close()
    same.close()


def _stuck(path: str, folder: str) -> None:
    tempfile.tempdir = folder
    row_memory._COPIED_BYTES = 1
    pack = open_pack(path)
    rows = kept(Gated(pack, select_fields(pack, None), Path(folder)))
    rows.wait()


@linux
def test_others_go_on_where_a_killed_one_stopped(pack: Pack, tmp_path: Path) -> None:
    gated = Gated(pack, select_fields(pack, None), tmp_path)
    gated.allow(ROWS // 2)
    child = SPAWN.Process(target=_stuck, args=(pack.path, str(tmp_path)))
    child.start()
    assert until(lambda: len(gated.made()) > ROWS // 2)
    memory = memory_of(pack)
    assert memory.holders == 2
    assert until(lambda: (memory.states == THERE).any())
    assert (memory.states == MAKING).any()
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    there = set(np.flatnonzero(memory.states == THERE).tolist())
    (tmp_path / "log").unlink()
    gated.allow(10 * ROWS)
    rows = kept(gated)
    assert rows.wait(120)
    check(memory, np.arange(ROWS))
    assert not there & set(gated.made())
    rows.close()


@linux
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_reads_the_same_memory(pack: Pack) -> None:
    memory = memory_of(pack)
    memory.make(np.arange(10), PackStore(pack, select_fields(pack, None)))
    child = os.fork()
    if not child:
        status = 1
        try:
            same = memory_of(pack)
            check(same, np.arange(10))
            same.make(np.arange(10, ROWS), PackStore(pack, select_fields(pack, None)))
            status = 0
        finally:
            del same
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    check(memory, np.arange(ROWS)[::-1])


@linux
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_while_the_list_is_written_holds_nobody_up(pack: Pack) -> None:
    memory = memory_of(pack)
    with row_memory._holders(memory.path):
        child = os.fork()
        if not child:
            signal.pause()
            os._exit(0)
    folder = os.open(os.path.dirname(memory.path), os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(folder)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_where_the_list_cannot_be_written_each_has_its_own(
    pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str, mode: str = "r", **options: Any) -> Any:
        if mode == "w":
            raise OSError(28, "No space left on device")
        return open(path, mode, **options)

    monkeypatch.setattr(row_memory, "open", full, raising=False)
    one, other = memory_of(pack), memory_of(pack)
    assert (one.holders, other.holders) == (1, 1)
    one.make(np.arange(ROWS), PackStore(pack, select_fields(pack, None)))
    check(one, np.arange(ROWS))
    assert (other.states == MISSING).all()


class Broken(PackStore):
    """A disk that cannot be read from row 20 on."""

    def copy(self, rows: Runs, out: Any) -> None:
        if rows.rows().max() >= 20:
            raise PackerError("p.h5: reading failed (Input/output error). Check the disk.")
        super().copy(rows, out)


def test_rows_that_cannot_be_made_are_missing_and_the_others_stay(pack: Pack) -> None:
    memory = memory_of(pack)
    with pytest.raises(PackerError, match="Input/output error"):
        memory.make(np.array([3, 5, 19, 24, 30]), Broken(pack, select_fields(pack, None)))
    assert memory.states[[3, 5, 19, 24, 30]].tolist() == [THERE, THERE, THERE, MISSING, MISSING]
    check(memory, [19, 3, 5])


def test_memory_that_cannot_be_had_is_a_sentence(pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (14_000, before[1]))
    try:
        with pytest.raises(
            PackerError, match=r"memory for rows: .* \(File too large\)\. Pass placement='disk'\."
        ):
            memory_of(pack)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    memory = memory_of(pack)
    monkeypatch.setattr(
        row_memory, "reserve", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(PackerError, match="No space left on device"):
        memory.make(np.array([3]), PackStore(pack, select_fields(pack, None)))
    assert memory.states[3] == MISSING


def test_nothing_stays_behind(pack: Pack) -> None:
    reader = PackStore(pack, select_fields(pack, None))
    kept(reader).close()  # what the first use opens stays open
    before = open_files()
    rows = kept(reader)
    assert rows.wait(120)
    rows.close()
    del rows
    assert until(lambda: open_files() <= before)


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


@linux
def test_the_folder_is_for_its_user_alone(pack: Pack, tmp_path: Path) -> None:
    memory = memory_of(pack)
    own = Path(memory.path)
    assert stat.S_IMODE(own.parent.stat().st_mode) == 0o700
    assert own.parent.parent == tmp_path


def test_what_a_file_lists_is_believed_of_that_memory_alone(pack: Pack) -> None:
    """Its process has ended, and another one, or another file, has its number now."""
    fields = [f for f in select_fields(pack, None) if not f.ragged]
    reader = PackStore(pack, fields)
    with open(pack.path, "rb") as file, open(row_memory._listing(reader), "w") as listing:
        listing.write(f"/proc/{os.getpid()}/fd/{file.fileno()}\n/proc/999999999/fd/3")
        listing.flush()
        memory = RowMemory(reader)
    assert memory.holders == 1
    assert (memory.states == MISSING).all()


def test_where_there_is_no_memfd_it_is_a_file_without_a_name(
    pack: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    rows = kept(PackStore(pack, select_fields(pack, None)))
    assert rows.wait(120)
    check(rows.memory, np.arange(ROWS))
    rows.close()
