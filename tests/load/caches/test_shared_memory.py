"""packer.load.caches.shared_memory: processes find one memory, and nothing of it is left behind."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from packer.load.caches import shared_memory
from packer.load.caches.shared_memory import held, open_memory
from tests.open_files import open_files

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="sharing is for Linux")
SPAWN = multiprocessing.get_context("spawn")
MIB = 1 << 20


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the lists are."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def key(tmp_path: Path) -> str:
    """No other test's: what a failed test holds, or another run, is not found by it."""
    return str(tmp_path)


def lists(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def mapped(name: str) -> list[int]:
    """The processes that have a memory of that name mapped."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            maps = Path(f"/proc/{pid}/maps").read_text()
        except OSError:
            continue
        if f"/memfd:{name} " in maps:
            found.append(int(pid))
    return found


def _serve(folder: str, calls: Connection) -> None:
    """In a process: answer calls of functions of a dictionary that is this process's own."""
    tempfile.tempdir = folder
    mine: dict[str, Any] = {}
    while True:
        function, arguments = calls.recv()
        calls.send(function(mine, *arguments))


@contextmanager
def process(folder: Path) -> Iterator[Callable[..., Any]]:
    """call(function, *arguments) runs function(dictionary, *arguments) in another process; call.pid is its number."""
    ours, theirs = SPAWN.Pipe()
    child = SPAWN.Process(target=_serve, args=(str(folder), theirs), daemon=True)
    child.start()

    def call(function: Callable[..., Any], *arguments: Any) -> Any:
        ours.send((function, arguments))
        assert ours.poll(120)
        return ours.recv()

    call.pid = child.pid
    try:
        yield call
    finally:
        child.kill()
        child.join()


def opened(mine: dict[str, Any], key: str, nbytes: int) -> str | None:
    mine[key] = open_memory(key, nbytes)
    return mine[key].why_private


def closed(mine: dict[str, Any], key: str) -> None:
    del mine[key]


def get(mine: dict[str, Any], key: str, index: int) -> int:
    return int(mine[key].bytes[index])


def put(mine: dict[str, Any], key: str, index: int, value: int) -> None:
    mine[key].bytes[index] = value


def locked(mine: dict[str, Any], key: str) -> bool:
    return mine[key].lock()


def unlocked(mine: dict[str, Any], key: str) -> None:
    mine[key].unlock()


def forked(mine: dict[str, Any]) -> int:
    """A child that holds what the process holds, and does nothing."""
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    return child


def summed(mine: dict[str, Any], key: str) -> int:
    """Touches every page."""
    return int(mine[key].bytes.sum())


def pss(mine: dict[str, Any], name: str) -> int:
    """This process's share of the memory, each page divided by those that have it mapped."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            ours = f"/memfd:{name} " in line
        elif ours and line.startswith("Pss:"):
            total += 1024 * int(line.split()[1])
    return total


def test_one_process_has_it_once(key: str, folder: Path):
    one, two, other = open_memory(key, 100), open_memory(key, 100), open_memory(key, 101)
    assert one is two
    assert one is not other
    assert one.bytes.shape == (100,)
    assert not one.bytes.any()
    assert len(lists(folder)) == 2
    assert all(os.stat(folder / name).st_mode & 0o777 == 0o600 for name in lists(folder))


def test_nothing_stays_behind(key: str, folder: Path):
    before = open_files()
    for _ in range(3):
        memory = open_memory(key, MIB)
        assert held(key, MIB)
        kept = memory.bytes[5:7]
        del memory
        assert not held(key, MIB)
        assert lists(folder) == []
        assert not kept.any()  # still mapped
        del kept
        gc.collect()
        assert open_files() <= before
    assert mapped(shared_memory._name(key, MIB)) == []


def test_processes_share_it_and_the_last_one_deletes_the_list(key: str, folder: Path):
    with process(folder) as call:
        memory = open_memory(key, MIB)
        assert call(opened, key, MIB) is None
        memory.bytes[MIB - 1] = 7
        assert call(get, key, MIB - 1) == 7
        call(put, key, 0, 9)
        assert memory.bytes[0] == 9
        del memory
        assert held(key, MIB)
        memory = open_memory(key, MIB)
        assert memory.bytes[0] == 9
        call(closed, key)
        assert lists(folder) == [shared_memory._name(key, MIB)]
        del memory
        assert lists(folder) == []
        assert not held(key, MIB)


def test_many_processes_at_once_have_one_copy(key: str, folder: Path):
    nbytes, count = 16 * MIB, 4
    calls, contexts = [], [process(folder) for _ in range(count)]
    try:
        calls = [context.__enter__() for context in contexts]
        for k, call in enumerate(calls):
            assert call(opened, key, nbytes) is None
            call(put, key, k, k + 1)
        assert [call(summed, key) for call in calls] == [10] * count
        name = shared_memory._name(key, nbytes)
        assert sorted(mapped(name)) == sorted(call.pid for call in calls)
        assert abs(sum(call(pss, name) for call in calls) / nbytes - 1) < 0.05
    finally:
        for context in contexts[: len(calls)]:
            context.__exit__(None, None, None)


def test_racing_processes_make_it_once(key: str, folder: Path):
    script = """
import sys, tempfile
from packer.load.caches.shared_memory import open_memory
tempfile.tempdir = sys.argv[1]
sys.stdin.readline()
memory = open_memory(sys.argv[3], 64)
memory.bytes[int(sys.argv[2])] = 1
print(memory.why_private, flush=True)
sys.stdin.readline()
print(memory.bytes[:6].tolist(), flush=True)
sys.stdin.readline()
"""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(folder), str(k), key],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for k in range(6)
    ]

    def all_say() -> list[str]:
        for child in children:
            child.stdin.write("\n")
            child.stdin.flush()
        return [child.stdout.readline().strip() for child in children]

    assert all_say() == ["None"] * 6
    assert all_say() == ["[1, 1, 1, 1, 1, 1]"] * 6
    for child in children:
        child.communicate("\n", timeout=120)
        assert child.returncode == 0
    assert lists(folder) == []


def test_killed_processes_leave_a_list_that_means_nothing(key: str, folder: Path):
    with process(folder) as call:
        call(opened, key, MIB)
        call(put, key, 0, 1)
    name = shared_memory._name(key, MIB)
    assert lists(folder) == [name]
    assert mapped(name) == []
    assert not held(key, MIB)
    memory = open_memory(key, MIB)
    assert memory.bytes[0] == 0
    assert len((folder / name).read_text().splitlines()) == 1
    del memory
    assert lists(folder) == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_shares_it_and_does_not_take_it_away(key: str, folder: Path):
    memory = open_memory(key, 64)
    assert memory.lock()
    child = os.fork()
    if not child:
        memory.bytes[1] = 5
        alone = not memory.lock()  # the parent's
        same = open_memory(key, 64) is memory
        del memory
        gc.collect()
        os._exit(0 if alone and same else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert memory.bytes[1] == 5
    assert len(lists(folder)) == 1
    assert not os.path.exists(f"/proc/{child}")


def test_the_lock_excludes_processes_and_dies_with_its_own(key: str, folder: Path):
    memory = open_memory(key, 64)
    with process(folder) as call:
        call(opened, key, 64)
        assert memory.lock()
        assert not memory.lock()
        assert not call(locked, key)
        memory.unlock()
        assert call(locked, key)
        assert not memory.lock()
        call(unlocked, key)
        assert call(locked, key)
        grandchild = call(forked)
    try:  # a forked child of the one that was killed keeps its descriptors, but not its lock
        assert os.path.exists(f"/proc/{grandchild}")
        assert memory.lock()
    finally:
        os.kill(grandchild, signal.SIGKILL)


def answered(function: Callable[..., Any], *arguments: Any) -> Any:
    """What it returns; waiting for ever is an error."""

    def late(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    try:
        return function(*arguments)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_users_do_not_meet(key: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    mine = shared_memory._name(key, 64)
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    assert shared_memory._name(key, 64) != mine
    assert "-4321-" in shared_memory._name(key, 64)


@pytest.mark.parametrize("what", ["link", "hard link", "fifo", "socket", "folder", "writable", "another's"])
def test_where_the_list_is_no_file_of_ours_the_memory_is_private(
    key: str, folder: Path, what: str, monkeypatch: pytest.MonkeyPatch
):
    name = shared_memory._name(key, 64)
    fd, path = shared_memory._made(name, 64), folder / name
    entry = f"{os.getpid()} {fd} {shared_memory._born(os.getpid())}\n"
    if what == "link":
        (folder / "target").write_text(entry)
        path.symlink_to(folder / "target")
    elif what == "hard link":
        (folder / "target").write_text(entry)
        os.link(folder / "target", path)
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "socket":
        monkeypatch.chdir(folder)  # a socket's name is short
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(name)
    elif what == "writable":
        path.write_text(entry)
        path.chmod(0o666)
    else:
        path.write_text(entry)
        status = os.stat(path)
        other = os.stat_result((*status[:4], status.st_uid + 1, *status[5:]))
        monkeypatch.setattr(os, "fstat", lambda fd: other)
    assert not answered(held, key, 64)
    memory = open_memory(key, 64)
    os.close(fd)
    assert memory.why_private is not None
    if what == "another's":
        assert "belongs to another user" in memory.why_private
    memory.reserve(0, 64)
    assert memory.lock()
    assert not memory.lock()
    memory.unlock()
    memory.bytes[:] = 1
    assert open_memory(key, 64) is memory
    assert not (folder / "target").exists() or (folder / "target").read_text() == entry


def test_elsewhere_than_linux_it_is_private(key: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "memfd_create")
    assert open_memory(key, 64).why_private == "only Linux offers what it takes"


def test_a_stopped_holder_of_the_list_is_not_waited_for_for_ever(
    key: str, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shared_memory, "_PATIENCE_SECONDS", 0.05)
    path = folder / shared_memory._name(key, 64)
    script = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print('.', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.read(1)
        assert open_memory(key, 64).why_private is not None
        child.communicate()
    gc.collect()
    assert open_memory(key, 64).why_private is None


def test_a_list_deleted_while_it_is_waited_for_is_made_anew(folder: Path):
    path = folder / "list"
    script = """
import fcntl, os, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print(".", flush=True)
sys.stdin.readline()
os.unlink(sys.argv[1])
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.read(1)
        later = threading.Timer(0.2, child.stdin.close)
        later.start()
        with shared_memory._list(str(path)) as fd:
            assert os.path.samestat(os.stat(path), os.fstat(fd))
        later.join()


def test_entries_that_lead_elsewhere_are_dropped(key: str, folder: Path):
    """A number that was given to another process, another file, nonsense."""
    me, born = os.getpid(), shared_memory._born(os.getpid())
    name = shared_memory._name(key, 64)
    fd = shared_memory._made(name, 64)
    other = os.memfd_create("other")
    (folder / name).write_text(
        f"{me} {fd} {born + 1}\n{me} {other} {born}\n1 2\nx y z\n{2**22} 3 4\n1 1 1 1\n"
    )
    assert not held(key, 64)
    memory = open_memory(key, 64)
    os.pwrite(fd, b"x", 0)
    assert memory.bytes[0] == 0
    assert [line.split()[0] for line in (folder / name).read_text().splitlines()] == [str(me)]
    os.close(fd)
    os.close(other)


def test_the_entry_of_a_live_holder_is_joined(key: str, folder: Path):
    name = shared_memory._name(key, 64)
    fd = shared_memory._made(name, 64)
    os.pwrite(fd, b"x", 3)
    (folder / name).write_text(f"{os.getpid()} {fd} {shared_memory._born(os.getpid())}\n")
    assert held(key, 64)
    assert open_memory(key, 64).bytes[3] == ord("x")
    os.close(fd)


def test_holders_that_cannot_be_looked_into_are_left_alone(
    key: str, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    name, line = shared_memory._name(key, 64), f"{os.getpid()} 3 {shared_memory._born(os.getpid())}"
    (folder / name).write_text(line + "\n")

    def refused(path: str) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "readlink", refused)
        patch.setattr(shared_memory, "_opened", lambda holder, nbytes: None)
        patch.setattr(shared_memory, "_name", lambda key, nbytes: name)
        memory = open_memory(key, 64)
    assert memory.why_private == "the processes that hold it cannot be looked into"
    assert (folder / name).read_text().splitlines()[0] == line


def test_a_number_that_is_another_users_by_now_means_nothing(
    key: str, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    name = shared_memory._name(key, 64)
    (folder / name).write_text(f"{os.getpid()} 3 {shared_memory._born(os.getpid()) - 1}\n")

    def refused(path: str) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(shared_memory, "_name", lambda key, nbytes: name)
    monkeypatch.setattr(os, "readlink", refused)
    assert not held(key, 64)
    assert open_memory(key, 64).why_private is None


@pytest.mark.parametrize("room", ["nothing", "a byte", "all but a byte"])
def test_a_full_disk_leaves_a_list_as_it_is(
    key: str, folder: Path, monkeypatch: pytest.MonkeyPatch, room: str
):
    path, pwrite, most = folder / shared_memory._name(key, 64), os.pwrite, []

    def full(fd: int, text: bytes, at: int) -> int:
        if not most:
            most.append({"nothing": 0, "a byte": 1, "all but a byte": len(text) - 1}[room])
        if not most[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(fd, text[: most[0]], at)

    with process(folder) as call:
        assert call(opened, key, 64) is None
        call(put, key, 0, 7)
        path.write_text(f"{2**22} 3 4\n" + path.read_text())  # of one who has died: the others move up
        listed = path.read_text()
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            assert "No space left" in open_memory(key, 64).why_private
        assert path.read_text() == listed
        gc.collect()
        assert open_memory(key, 64).bytes[0] == 7


def test_the_living_are_listed_at_every_moment_of_a_change(
    key: str, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """held() does not take the list's lock."""
    path, seen = folder / shared_memory._name(key, 64), []

    def spied(real: Callable[..., Any], *arguments: Any) -> Any:
        result = real(*arguments)
        seen.append(line in path.read_text())
        return result

    with process(folder) as call:
        call(opened, key, 64)
        line = path.read_text()
        for name in ("pwrite", "ftruncate"):
            monkeypatch.setattr(os, name, partial(spied, getattr(os, name)))
        memory = open_memory(key, 64)
        del memory
    assert len(seen) >= 4
    assert all(seen)


def test_it_cannot_be_cut_short(key: str):
    memory = open_memory(key, 64)
    with pytest.raises(PermissionError):
        os.ftruncate(memory.fd, 0)


def test_memory_that_runs_out_is_an_error(key: str, monkeypatch: pytest.MonkeyPatch):
    memory = open_memory(key, MIB)
    memory.reserve(5, MIB)

    def full(fd: int, start: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(MemoryError, match="No space left on device"):
        memory.reserve(0, 5)
    memory.reserve(5, 5)


def test_collected_during_a_visit_it_leaves_an_entry_that_means_nothing(key: str, folder: Path):
    memory = open_memory(key, 64)
    with shared_memory._inside():
        del memory
    assert len(lists(folder)) == 1
    assert not held(key, 64)
    del_me = open_memory(key, 64)
    del del_me
    assert lists(folder) == []


def test_collected_while_the_lock_is_being_taken(key: str, monkeypatch: pytest.MonkeyPatch):
    kept, taken = [open_memory(key, 64)], []

    class Lock:
        def __enter__(self) -> None:
            taken.append(True)
            kept.clear()  # as the garbage collector may do here

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(shared_memory, "_lock", Lock())
    with shared_memory._inside():
        assert len(taken) == 1  # the thread would have waited for itself


def test_what_is_to_be_done_at_its_end_is_done_while_it_is_mapped(key: str):
    memory = open_memory(key, 64)
    seen = []
    view = memory.bytes
    memory.at_end.append(lambda: seen.append(int(view[0])))
    del memory
    assert seen == [0]
