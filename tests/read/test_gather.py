"""Both forms of the loops give what plain NumPy gives, and end in a sentence when a mapped file is cut short."""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer import native
from packer.errors import FormatError
from packer.format import file_io
from packer.format.fields import Extent
from packer.orders.runs import Runs, cut, one_run
from packer.read import gather
from packer.read.gather import COLD, DONE, FileArray
from tests.read.test_file_array import Folder

compiled = pytest.mark.skipif(not native.COMPILED, reason="packer was installed without a compiler")
FORMS = ["C", "NumPy"] if native.COMPILED else ["NumPy"]
ENOUGH = 5000 * 40


def form_of(name: str, form: str) -> Callable[..., Any]:
    if form == "C":
        return getattr(native.loops, f"{name}_rows")  # type: ignore[no-any-return]
    return getattr(gather, f"{name}_numpy")  # type: ignore[no-any-return]


def copied(copy: Callable[..., int], *arguments: Any) -> None:
    """Copy, once a busy machine has left the pages where they are."""
    while (found := copy(*arguments)) == COLD:
        gather.read_rows(*arguments)
    assert found == DONE


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two files of random bytes, open and mapped: their table, and the bytes."""
    folder = tmp_path_factory.mktemp("gather")
    table, contents, keep = [], [], []
    for number in range(2):
        content = np.random.default_rng(number).integers(0, 256, ENOUGH + 4096, np.uint8)
        (folder / str(number)).write_bytes(content.tobytes())
        fd = os.open(folder / str(number), os.O_RDONLY)
        keep.append(mmap.mmap(fd, 0, access=mmap.ACCESS_READ))
        table.append([fd, np.frombuffer(keep[-1], np.uint8).ctypes.data, len(content)])
        contents.append(content)
    yield np.array(table), contents
    for fd, _, _ in table:
        os.close(fd)


@st.composite
def requests(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, int]], list[tuple[int, int]]]:
    """Row bytes, extents (rows, file, offset), runs (start, length, 0 too)."""
    row_bytes = draw(st.one_of(st.sampled_from([1, 8, 112, 3072, 4096]), st.integers(1, 5000)))
    counts = draw(st.lists(st.integers(1, 20), min_size=1, max_size=12))  # few are counted, more are searched
    extents = [
        (count, draw(st.integers(0, 1)), draw(st.integers(0, ENOUGH + 4096 - count * row_bytes)))
        for count in counts
    ]
    total = sum(counts)
    runs = st.integers(0, total).flatmap(lambda a: st.tuples(st.just(a), st.integers(0, total - a)))
    scattered = st.lists(st.tuples(st.integers(0, total - 1), st.just(1)), max_size=200)
    return row_bytes, extents, draw(st.one_of(st.lists(runs, max_size=9), scattered))


@pytest.mark.parametrize("form", FORMS)
@given(requests())
def test_every_row_lands_in_its_place(
    mapped: Any, form: str, request: tuple[int, list[tuple[int, int, int]], list[tuple[int, int]]]
):
    files, contents = mapped
    row_bytes, extents, runs = request
    truth = np.concatenate(
        [contents[file][at : at + rows * row_bytes].reshape(rows, row_bytes) for rows, file, at in extents]
    )
    firsts = np.cumsum([0, *(rows for rows, _, _ in extents)])
    table = np.array([(a, f, o) for a, (_, f, o) in zip(firsts, [*extents, (0, 0, 0)], strict=True)])
    starts, lengths = (np.array([run[k] for run in runs], np.int64) for k in (0, 1))
    wanted = truth[Runs(starts, lengths).rows()]
    guarded = np.full(wanted.size + 128, 99, np.uint8)
    out = guarded[64:-64].reshape(wanted.shape)
    if form == "C":
        copied(gather.copy_rows, table, files, starts, lengths, row_bytes, out)
        assert (out == wanted).all()
        out[:] = 0
    assert form_of("read", form)(table, files, starts, lengths, row_bytes, out) == (DONE, 0)
    assert (out == wanted).all()
    assert form_of("willneed", form)(table, files, starts, lengths, row_bytes) is None
    assert (guarded[:64] == 99).all()
    assert (guarded[-64:] == 99).all()


@compiled
@pytest.mark.parametrize(("row_bytes", "skew"), [(196_608, 0), (65_537, 3), (1 << 20, 64), (70_000, 1)])
def test_large_batches_are_stored_past_the_caches_whole(tmp_path: Path, row_bytes: int, skew: int):
    """To the last byte of rows of every alignment."""
    rows = (6 << 20) // row_bytes
    truth = np.random.default_rng(0).integers(0, 256, (rows, row_bytes), np.uint8)
    (tmp_path / "x").write_bytes(bytes(skew) + truth.tobytes())
    order = np.random.default_rng(1).permutation(rows)
    memory = np.full(rows * row_bytes + 200, 99, np.uint8)
    out = memory[100 + skew : 100 + skew + truth.size].reshape(rows, row_bytes)
    with open(tmp_path / "x", "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        address = np.frombuffer(mapping, np.uint8).ctypes.data
        files = np.array([[file.fileno(), address, skew + truth.size]])
        extents = np.array([[0, 0, skew], [rows, 0, 0]])
        copied(gather.copy_rows, extents, files, order, np.ones_like(order), row_bytes, out)
    assert (out == truth[order]).all()
    assert (memory[: 100 + skew] == 99).all()
    assert (memory[100 + skew + truth.size :] == 99).all()


@pytest.mark.parametrize("form", FORMS)
def test_what_does_not_fit_is_refused(mapped: Any, form: str):
    files, _ = mapped
    table = np.array([[0, 0, 0], [10, 0, 0]])
    one, out = np.array([3]), np.zeros((1, 5), np.uint8)
    read, willneed = (form_of(name, form) for name in ("read", "willneed"))
    copy = gather.copy_rows if form == "C" else read
    for bad, length in ((-1, 1), (10, 1), (9, 2), (1 << 62, 1), (0, -1), (2**63 - 1, 2)):
        for function, rest in ((copy, (out,)), (read, (out,)), (willneed, ())):
            with pytest.raises(IndexError, match=r"^rows -?\d+ to -?\d+ of 10$"):
                function(table, files, np.array([0, bad]), np.array([0, length]), 5, *rest)
    for wrong in (
        np.zeros((2, 5), np.uint8),
        np.zeros((0, 5), np.uint8),
        np.zeros((1, 10), np.uint8)[:, ::2],
    ):
        for function in (copy, read):
            with pytest.raises(ValueError):  # noqa: PT011 NumPy has its own words for an array in pieces
                function(table, files, one, np.ones_like(one), 5, wrong)
    assert not out.any()


@compiled
def test_tables_of_another_kind_are_refused(mapped: Any):
    files, _ = mapped
    good = [
        np.array([[0, 0, 0], [10, 0, 0]]),
        files,
        np.array([3]),
        np.array([1]),
        5,
        np.zeros((1, 5), np.uint8),
    ]
    for place, bad in (
        (0, np.zeros((2, 2), np.int64)),
        (0, np.zeros((0, 3), np.int64)),
        (1, files.astype(np.int32)),
        (2, np.zeros((1, 1), np.int64)),
        (3, np.ones(2, np.int64)),
        (4, 0),
        (5, np.zeros((2, 5), np.uint8)),
        (5, np.zeros(5, np.uint8).view("V5")),
        # Other dtypes of eight bytes, another byte order, and at an odd address.
        (2, np.array([3.0])),
        (3, np.array([1], np.uint64)),
        (0, good[0].astype(">i8")),
        (1, files.astype("m8[s]")),
        (2, np.frombuffer(bytes(9), np.uint8)[1:].view(np.int64)),
        # Extents that do not lie in a file, or do not follow each other.
        (0, np.array([[0, 10**7, 0], [10, 0, 0]])),
        (0, np.array([[0, 2, 0], [10, 0, 0]])),
        (0, np.array([[0, -1, 0], [10, 0, 0]])),
        (0, np.array([[0, 0, -5], [10, 0, 0]])),
        (0, np.array([[0, 0, ENOUGH + 4096 - 49], [10, 0, 0]])),
        (0, np.array([[0, 0, 1 << 62], [10, 0, 0]])),
        (0, np.array([[0, 0, 0], [1 << 62, 0, 0]])),
        (0, np.array([[1, 0, 0], [10, 0, 0]])),
        (0, np.array([[0, 0, 0], [12, 0, 0], [10, 0, 0]])),
        (0, np.array([[0, 0, 0], [-(1 << 62), 0, 0], [1 << 62, 0, 0], [10, 0, 0]])),
        (1, np.zeros((0, 3), np.int64)),
        (1, np.array([[0, 0, -1]])),
    ):
        arguments = [*good]
        arguments[place] = bad
        for function in (
            native.loops.copy_rows,
            native.loops.read_rows,
            *([native.loops.willneed_rows] if place < 5 else []),
        ):
            with pytest.raises(ValueError):  # noqa: PT011
                function(*arguments[: 5 if function is native.loops.willneed_rows else 6])
    with pytest.raises(TypeError):
        native.loops.copy_rows(*good[:3])  # type: ignore[call-arg]


@compiled
def test_more_bytes_than_can_be_counted_are_refused():
    """Their number modulo 2**64 is that of `out`."""
    most = 2**63 - 1  # of extents in a file that claims to be as large
    files, extents = np.array([[0, 4096, most]]), np.array([[0, 0, 0], [1 << 62, 0, 0]])
    starts, lengths, out = np.zeros(5, np.int64), np.array([1 << 62] * 4 + [1]), np.zeros((1, 1), np.uint8)
    for function in (native.loops.copy_rows, native.loops.read_rows):
        with pytest.raises(ValueError, match="total number of bytes overflows"):
            function(extents, files, starts, lengths, 1, out)
    with pytest.raises(ValueError, match="total number of bytes overflows"):
        native.loops.willneed_rows(extents, files, starts, lengths, 1)


# A system that refuses to read more than 1 GiB at once, as macOS does from 2 GiB.
REFUSING = """
#include <errno.h>
#include <sys/types.h>
#include <unistd.h>
ssize_t pread(int fd, void *into, size_t n, off_t at) {
    if (n <= 1 << 30) return (ssize_t)n;
    errno = EINVAL;
    return -1;
}
ssize_t pread64(int fd, void *into, size_t n, off_t at) { return pread(fd, into, n, at); }
int posix_fadvise(int fd, off_t at, off_t n, int what) { return 0; }
int posix_fadvise64(int fd, off_t at, off_t n, int what) { return 0; }
"""


@compiled
@pytest.mark.skipif(sys.platform != "linux", reason="calls are replaced as Linux does it")
def test_long_runs_are_read_by_calls_of_a_gibibyte(tmp_path: Path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no compiler")
    (tmp_path / "c.c").write_text(REFUSING)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "c.so", tmp_path / "c.c"], check=True)
    done = run(
        """
        import sys
        import numpy as np
        from packer.native import _native
        with open(sys.argv[1], "wb") as file:
            file.truncate(5 << 29)
            files, extents = np.array([[file.fileno(), 0, 5 << 29]]), np.array([[0, 0, 0], [5 << 29, 0, 0]])
            out = np.empty(5 << 29, np.uint8)
            print(_native.read_rows(extents, files, np.array([0]), np.array([5 << 29]), 1, out))
        """,
        str(tmp_path / "x"),
        LD_PRELOAD=str(tmp_path / "c.so"),
    )
    assert (done.stdout, done.stderr) == ("(-1, 0)\n", "")


def test_long_runs_are_read_by_calls_of_a_gibibyte_in_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert file_io._READ_BYTES == 1 << 30
    monkeypatch.setattr(file_io, "_READ_BYTES", 7)
    real, sizes = os.preadv, []
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: sizes.append(len(into[0])) or real(fd, into, at))
    (tmp_path / "x").write_bytes(bytes(range(100)))
    with open(tmp_path / "x", "rb") as file:
        files, extents = np.array([[file.fileno(), 0, 100]]), np.array([[0, 0, 0], [10, 0, 0]])
        out = np.zeros((2, 10), np.uint8)
        assert gather.read_numpy(extents, files, np.array([3]), np.array([2]), 10, out) == (DONE, 0)
    assert (out.reshape(-1) == range(30, 50)).all()
    assert sizes == [7, 7, 6]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.data())
def test_cut_keeps_the_rows_and_crosses_nothing(counts: list[int], data: st.DataObject):
    firsts, rows = np.cumsum([0, *counts]), sum(counts)
    runs = data.draw(
        st.lists(st.integers(0, rows).flatmap(lambda a: st.tuples(st.just(a), st.integers(0, rows - a))))
    )
    whole = Runs(*(np.array([run[k] for run in runs], np.int64) for k in (0, 1)))
    pieces, parts = cut(firsts, whole)
    assert pieces.rows().tolist() == whole.rows().tolist()
    assert (pieces.lengths > 0).all()
    assert (pieces.starts >= firsts[parts]).all()
    assert (pieces.starts + pieces.lengths <= firsts[parts + 1]).all()


def test_a_failing_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "x").write_bytes(bytes(100))
    array = FileArray(Folder(str(tmp_path)), [Extent("x", 0, 10, 10)])  # type: ignore[arg-type]
    monkeypatch.setattr(native, "COMPILED", False)
    monkeypatch.setattr("packer.read.gather.MAPPED_BYTES", 0)

    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(FormatError) as error:
        array.read(one_run(2, 4), np.zeros((2, 10), np.uint8))
    assert str(error.value) == f"{tmp_path}/x: reading failed (Input/output error). Check the disk."


def test_a_system_without_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """macOS."""
    (tmp_path / "x").write_bytes(bytes(range(100)))
    array = FileArray(Folder(str(tmp_path)), [Extent("x", 0, 10, 10)])  # type: ignore[arg-type]
    monkeypatch.setattr(native, "COMPILED", False)
    monkeypatch.setattr("packer.read.gather.MAPPED_BYTES", 0)
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    array.willneed(one_run(0, 10))
    out = np.zeros((3, 10), np.uint8)
    array.read(one_run(2, 5), out)
    assert out.reshape(-1).tolist() == list(range(20, 50))


def test_files_that_cannot_be_mapped_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "x").write_bytes(bytes(range(100)))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(19, "No such device")

    monkeypatch.setattr(mmap, "mmap", refuse)
    for form in FORMS:
        monkeypatch.setattr(native, "COMPILED", form == "C")
        array = FileArray(Folder(str(tmp_path)), [Extent("x", 0, 10, 10)])  # type: ignore[arg-type]
        out = np.zeros((3, 10), np.uint8)
        array.read(Runs(np.array([7, 0, 3]), np.array([1, 1, 1])), out)
        assert out[:, 0].tolist() == [70, 0, 30]


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, which may die."""
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )


# The file is long enough when it is mapped and looked at, and cut when the copy comes to its second half.
CUT = """
import ctypes, mmap, os, signal, sys, threading
import numpy as np
from packer.native import _native
if "before" in sys.argv:
    import faulthandler; faulthandler.enable()
path, big = sys.argv[1], 64 << 20
with open(path, "wb") as file:
    file.write(bytes(4096) * (big // 4096))
fd = os.open(path, os.O_RDWR)
mapping = mmap.mmap(fd, big, access=mmap.ACCESS_READ)
files = np.array([[fd, np.frombuffer(mapping, np.uint8).ctypes.data, big]])
extents = np.array([[0, 0, 0], [big // 4096, 0, 0]])
def copy(rows, out=None):
    out = np.empty((len(rows), 4096), np.uint8) if out is None else out
    while True:  # a busy machine may have dropped the pages
        found = _native.copy_rows(extents, files, rows, np.ones_like(rows), 4096, out)
        if found != -2:
            return found
        np.frombuffer(mapping, np.uint8)[: 100 * 4096 : 4096].sum()
def cut():
    # Probes see rows 0 and 1,000 and so on; the row that has gone is none of them.
    os.ftruncate(fd, big // 2)
    found = copy(np.array([0, 1, 2, 3, big // 4096 - 1, 4, 5, 6, 7, 8, 9]))
    os.ftruncate(fd, big)
    return found
found = []
assert copy(np.arange(100)) == -1
if "after" in sys.argv:
    import faulthandler; faulthandler.enable()
for _ in range(3):
    found.append(cut())
    assert copy(np.arange(100)) == -1
"""


@compiled
@pytest.mark.parametrize("faulthandler", ["", "before", "after"])
def test_a_file_cut_short_during_the_copy_does_not_end_the_process(tmp_path: Path, faulthandler: str):
    done = run(
        CUT
        + """
thread = threading.Thread(target=lambda: found.append(cut()))
thread.start(); thread.join()
print(found, signal.pthread_sigmask(signal.SIG_BLOCK, []))
""",
        str(tmp_path / "x"),
        faulthandler,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("[0, 0, 0, 0] set()\n", "", 0)


@compiled
@pytest.mark.parametrize("faulthandler", ["", "before", "after"])
def test_a_fault_elsewhere_ends_the_process_as_ever(tmp_path: Path, faulthandler: str):
    """faulthandler writes its lines once, whichever of us came first."""
    done = run(
        CUT
        + """
os.ftruncate(fd, big // 2)
ctypes.string_at(int(files[0, 1]) + big - 1, 1)
""",
        str(tmp_path / "x"),
        faulthandler,
    )
    assert done.returncode == -signal.SIGBUS
    assert done.stderr.count("Fatal Python error: Bus error") == bool(faulthandler)


@compiled
@pytest.mark.parametrize("faulthandler", ["before", "after"])
@pytest.mark.parametrize("again", ["", "assert copy(np.arange(100)) == -1"])
def test_a_faulthandler_that_was_disabled_ends_nothing_and_holds_up_nothing(
    tmp_path: Path, faulthandler: str, again: str
):
    """Called for a fault elsewhere, it returns at once, and the fault would happen for ever."""
    done = run(
        CUT
        + f"""
faulthandler.disable()
{again}
assert cut() == 0
os.ftruncate(fd, big // 2)
ctypes.string_at(int(files[0, 1]) + big - 1, 1)
""",
        str(tmp_path / "x"),
        faulthandler,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGBUS, "", "")


@compiled
def test_a_handler_of_the_users_that_mends_the_fault_is_called_each_time(tmp_path: Path):
    """Installed by sigaction, as JIT compilers do: it makes the file long again, and returns."""
    done = run(
        CUT
        + """
calls = []
HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
handler = HANDLER(lambda number, info, context: (calls.append(number), os.ftruncate(fd, big))[0])
libc = ctypes.CDLL(None)
libc.signal.restype = ctypes.c_void_p
libc.signal(int(signal.SIGBUS), handler)
for _ in range(3):
    assert cut() == 0  # ours, though theirs came last
    os.ftruncate(fd, big // 2)
    ctypes.string_at(int(files[0, 1]) + big - 1, 1)
print(len(calls))
""",
        str(tmp_path / "x"),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


@compiled
@pytest.mark.parametrize("faulthandler", ["", "before", "after"])
def test_a_signal_that_was_sent_ends_the_process_as_ever(tmp_path: Path, faulthandler: str):
    done = run(CUT + "os.kill(os.getpid(), signal.SIGBUS)\n", str(tmp_path / "x"), faulthandler)
    assert done.returncode == -signal.SIGBUS
    assert done.stderr.count("Fatal Python error: Bus error") == bool(faulthandler)


@compiled
def test_whoever_handled_the_signal_before_still_does(tmp_path: Path):
    done = run(
        CUT.replace(
            "found = []", "found = []; signal.signal(signal.SIGBUS, lambda *_: found.append('theirs'))"
        )
        + """
os.kill(os.getpid(), signal.SIGBUS)
found.append(cut())
os.kill(os.getpid(), signal.SIGBUS)
print(found)
""",
        str(tmp_path / "x"),
    )
    assert (done.stdout, done.returncode) == ("[0, 0, 0, 'theirs', 0, 'theirs']\n", 0)


@compiled
@pytest.mark.parametrize("handler", ["lambda *_: found.append('theirs')", "signal.SIG_IGN"])
def test_a_signal_sent_during_a_copy_leaves_it_guarded(tmp_path: Path, handler: str):
    """The file is cut short after that, and the copy still ends with its number."""
    done = run(
        CUT.replace("found = []", f"found = []; signal.signal(signal.SIGBUS, {handler})")
        + """
found.clear()
rows, ends = np.tile(np.arange(big // 4096), 4), []
for _ in range(20):  # until the copy was not done before the cut
    os.pwrite(fd, bytes([1]), 0)
    out = np.zeros((len(rows), 4096), np.uint8)
    thread = threading.Thread(target=lambda: ends.append(copy(rows, out)), daemon=True)
    thread.start()
    while not out[0, 0]: pass
    os.kill(os.getpid(), signal.SIGBUS)
    os.ftruncate(fd, 4096)
    thread.join(120)
    os.ftruncate(fd, big)
    if thread.is_alive() or ends[-1] == 0:
        break
print(thread.is_alive(), ends[-1:], {*found}, flush=True)
os._exit(0)
""",
        str(tmp_path / "x"),
    )
    theirs = "set()" if handler == "signal.SIG_IGN" else "{'theirs'}"
    assert (done.stdout, done.stderr, done.returncode) == (f"False [0] {theirs}\n", "", 0)


@compiled
def test_memory_that_cannot_be_written_is_a_sentence(tmp_path: Path):
    """Shared memory that is full raises the same signal."""
    done = run(
        CUT
        + """
from packer.format.header import Extent
from packer.orders.runs import one_run
from packer.read.gather import FileArray
class Pack:
    def file(self, extent): return extent.file
array = FileArray(Pack(), [Extent(path, 0, big // 4096, 4096)])
slot = os.open(path + ".slot", os.O_RDWR | os.O_CREAT)
os.ftruncate(slot, 100 * 4096)
out = np.frombuffer(mmap.mmap(slot, 0), np.uint8).reshape(100, 4096)
array.read(one_run(0, 100), out)
os.ftruncate(slot, 10 * 4096)
for limit in (1 << 40, 0):
    import packer.read.gather
    packer.read.gather.MAPPED_BYTES = limit
    try:
        array.read(one_run(0, 100), out)
    except Exception as error:
        print(type(error).__name__, error)
""",
        str(tmp_path / "x"),
    )
    sentence = (
        "SpaceError shared memory: a batch does not fit; it is full, or was truncated."
        " Make it larger (docker run --shm-size).\n"
    )
    assert (done.stdout, done.stderr, done.returncode) == (2 * sentence, "", 0)


def test_threads_cut_off_in_the_middle_get_rows_or_the_sentence(tmp_path: Path):
    """The file loses its end and grows again while four threads copy; each call gives its rows or the sentence."""
    if not native.COMPILED:
        pytest.skip("in NumPy, this ends the process")
    rows, row_bytes = 512, 8192
    (tmp_path / "x").write_bytes(np.full(rows * row_bytes, 7, np.uint8).tobytes())
    array = FileArray(Folder(str(tmp_path)), [Extent("x", 0, rows, row_bytes)])  # type: ignore[arg-type]
    found: set[str] = set()

    def work(seed: int) -> None:
        draws, out = np.random.default_rng(seed), np.empty((64, row_bytes), np.uint8)
        for _ in range(100):
            try:
                array.read(Runs(draws.integers(0, rows, 64), np.ones(64, np.int64)), out)
                found.add("rows")
            except FormatError as error:
                found.add(str(error))

    with ThreadPoolExecutor(5) as pool:
        working = [pool.submit(work, seed) for seed in range(4)]
        while not all(each.done() for each in working):
            for size in (rows * row_bytes // 2, rows * row_bytes):
                os.truncate(tmp_path / "x", size)
        for each in working:
            each.result()
    sentence = (
        f"{tmp_path}/x: is shorter than when it was opened; it was cut short. Convert the images again."
    )
    failed = (
        f"{tmp_path}/x: reading failed (Input/output error). Check the disk."  # long again when looked at
    )
    assert found <= {"rows", sentence, failed}
    assert "rows" in found


def test_packer_works_without_the_compiled_form(tmp_path: Path):
    done = run(
        """
        import sys
        sys.modules["packer.native._native"] = None
        import numpy as np
        from packer import native
        from packer.read.gather import FileArray
        from packer.format.header import Extent
        from packer.orders.runs import Runs
        assert not native.COMPILED
        class Pack:
            def file(self, extent): return sys.argv[1]
        open(sys.argv[1], "wb").write(bytes(range(200)))
        array, out = FileArray(Pack(), [Extent("", 3, 39, 5)]), np.empty((3, 5), np.uint8)
        array.willneed(Runs(np.array([1, 8]), np.array([1, 2])))
        array.read(Runs(np.array([1, 8]), np.array([1, 2])), out)
        assert out.reshape(-1).tolist() == [*range(8, 13), *range(43, 53)]
        """,
        str(tmp_path / "x"),
    )
    assert (done.stderr, done.returncode) == (f"{native.without('gather')}\n", 0)
