"""packer.starting, and what Ctrl-C and limits do to a loop over batches: it ends, always, and in a sentence."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import packer
from packer.convert.image_conversion import convert_images
from packer.load.batch import Slots, allocate
from packer.load.batch_engine import ahead
from packer.starting import Background, ForkSafeThreads, forks_safely, held_back, start

cv2 = pytest.importorskip("cv2")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("interrupts")
    (folder / "images" / "a").mkdir(parents=True)
    for k in range(96):
        cv2.imwrite(str(folder / "images" / "a" / f"{k}.png"), np.full((8, 8, 3), k, np.uint8))
    convert_images(folder / "images", folder / "pack.h5", size=8)
    return str(folder / "pack.h5")


LOOP = """
import os, resource, signal, sys, threading
from packer import PackedBatchDataset
import packer.load.batch_dataset, packer.load.processes.workers, packer.load.caches.memory_cache
signal.signal(signal.SIGINT, signal.default_int_handler)
def same(sample):
    return sample
def read(**options):
    global ds
    ds = PackedBatchDataset(sys.argv[1], 4, shuffle=True, output="numpy", **options)
    batches = 0
    while True:
        for _ in ds:
            batches += 1
            yield batches
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own; one that hangs is the failure."""
    command = [sys.executable, "-W", "ignore", "-c", LOOP + textwrap.dedent(code), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_slot_comes_back_without_a_line_of_python():
    """Where there is none, no Ctrl-C can come in the middle, to be dropped."""
    slots = Slots(256, allocate, spare=9)
    held, ran = [slots.lend()], []
    place = held[0].ctypes.data
    sys.setprofile(lambda frame, event, _: ran.append(frame.f_code.co_name) if event == "call" else None)
    held.clear()
    sys.setprofile(None)
    assert ran == []
    assert slots.lend().ctypes.data == place


def test_loops_that_are_interrupted_at_any_moment_end(pack: str):
    """A dozen loops, each in a process of its own with everything imported, each interrupted after more batches."""
    done = run(
        """
        import time
        ends = []
        for trial in range(12):
            ours, theirs = os.pipe()
            child = os.fork()
            if not child:
                os.close(ours)
                code = 1
                try:
                    os.write(theirs, b"!")  # what came before went into the fork's own callbacks
                    for batches in read(**({}, {"placement": "ram"})[trial % 2]):
                        os.write(theirs, b"!")
                except KeyboardInterrupt:
                    code = 130
                finally:
                    threading._shutdown()  # as at the end of a script; it waits for threads
                    os._exit(code)
            os.close(theirs)
            for _ in range(1 + trial * 7):
                os.read(ours, 1)
            os.kill(child, signal.SIGINT)
            reader = threading.Thread(target=lambda ours=ours: [0 for _ in iter(lambda: os.read(ours, 1 << 16), b"")])
            reader.start()  # ends with the child
            reader.join(20)
            if reader.is_alive():
                os.kill(child, signal.SIGKILL)
            reader.join()
            ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            os.close(ours)
        print(set(ends))
        """,
        pack,
    )
    assert (done.stdout, done.stderr) == ("{130}\n", "")


def test_ctrl_c_while_a_thread_begins_leaves_none_that_is_waited_for(pack: str):
    done = run(
        """
        begin = threading.Thread.start
        def start(thread):
            begin(thread)
            raise KeyboardInterrupt  # as in start()'s own wait
        threading.Thread.start = start
        try:
            next(read())
        except KeyboardInterrupt:
            print("interrupted")
        threading.Thread.start = begin
        print(len(next(iter(ds)).label))  # and it can be used again
        """,
        pack,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n4\n", "", 0)


def test_ctrl_c_inside_of_a_lock_is_no_other_error():
    """Python's own conditions make a RuntimeError of it, where a lock is released twice: so `except KeyboardInterrupt` misses it."""

    class Semaphore:
        def acquire(self, timeout: float) -> bool:
            try:
                raise KeyboardInterrupt
            finally:
                threading.Lock().release()

    threads = ForkSafeThreads(2)
    threads.submit(int).result()
    assert threads._pool is not None
    threads._pool._idle_semaphore = Semaphore()
    with pytest.raises(KeyboardInterrupt):
        threads.submit(int)
    assert threads.submit(int).result() == 0  # on new threads
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        threads._pool._shutdown = True
        with pytest.raises(RuntimeError, match="cannot schedule"):  # none that was handled before
            threads.submit(int)
    threads.close()


def test_ctrl_c_during_a_fork_is_not_dropped(pack: str):
    """Python runs callbacks after a fork, and drops what is raised in them."""
    done = run(
        """
        os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGINT))
        try:
            for batches in read(transform=same):
                if batches > 200:
                    break
        except KeyboardInterrupt:
            print("interrupted")
        """,
        pack,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n", "", 0)


class Work:
    """Is interrupted when it is cancelled."""

    def cancel(self) -> None:
        signal.raise_signal(signal.SIGINT)

    def advance(self) -> None:
        pass


def test_ctrl_c_in_the_destructor_of_an_iterator_comes_once_more():
    stream = ahead((Work() for _ in range(9)), 1)  # type: ignore[misc]
    next(stream)
    waited = []
    with pytest.raises(KeyboardInterrupt):
        del stream
        waited.append(threading.Event().wait(30))
    assert not waited


def test_what_is_held_back_comes_at_the_end():
    said = []
    with pytest.raises(KeyboardInterrupt), held_back():
        signal.raise_signal(signal.SIGINT)
        said.append("on")
    assert said == ["on"]
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), held_back():
        signal.raise_signal(signal.SIGTERM)
        said.append("on")
    signal.signal(signal.SIGTERM, before)
    assert said == ["on", "on"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with held_back():  # nothing came
        pass
    thread = threading.Thread(target=lambda: held_back().__enter__())  # signals are the main thread's
    start(thread)
    thread.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


NO_THREAD = (
    "loading: another thread cannot be started (can't start new thread). Raise the limit of this process (ulimit -u, ulimit -v)"
    " or container (pids.max, memory.max), or pass fewer threads or processes.\n"
)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads do not count")
@pytest.mark.parametrize("placement", ["disk", "ram"])
def test_a_limit_of_threads_is_a_sentence(pack: str, placement: str):
    done = run(
        """
        from packer import PackerError, open_pack
        opened = open_pack(sys.argv[1])
        ds = PackedBatchDataset(opened, 4, output="numpy", placement=sys.argv[2])
        ds.batch(0), ds.close()
        if not os.getuid():
            os.setuid(65534)  # no limit holds for root
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        try:
            ds.batch(0)
        except PackerError as error:
            print(error)
        """,
        pack,
        placement,
    )
    assert (done.stdout, done.stderr, done.returncode) == (NO_THREAD, "", 0)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere address space is not limited")
def test_a_limit_of_address_space_is_a_sentence(pack: str):
    done = run(
        """
        from packer import PackerError
        ds = PackedBatchDataset(sys.argv[1], 4, output="numpy", placement="disk")
        ds.batch(0), ds.close()
        taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        threading.stack_size(256 << 20)  # more than the stacks that ended threads have left
        resource.setrlimit(resource.RLIMIT_AS, (taken + (64 << 20), taken + (64 << 20)))
        try:
            ds.batch(0)
        except PackerError as error:
            print(error)
        """,
        pack,
    )
    assert (done.stdout, done.stderr) == (NO_THREAD, "")


class Owner:
    """Starts a thread; in a cycle, as datasets are in user's objects."""

    def __init__(self, work):
        self.me = self
        self.background = Background(self, "test", work)


def alive() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "test"]


def gone(seconds: float = 120) -> bool:
    until = time.monotonic() + seconds
    while alive() and time.monotonic() < until:
        time.sleep(0.005)
    return not alive()


def test_threads_of_a_forked_child_that_come_first_together_hold_a_lock_one_after_the_other():
    found = run("""
import time
from packer.starting import ForkSafeLock
lock, made, inside = ForkSafeLock(), threading.RLock, []
def slow():
    time.sleep(0.1)
    return made()
def enter():
    with lock:
        inside.append("in")
        time.sleep(0.2)
        inside.append("out")
child = os.fork()
if not child:
    threads = [threading.Thread(target=enter) for _ in range(4)]
    threading.RLock = slow
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(inside != 4 * ["in", "out"])
print(os.waitpid(child, 0)[1])
""")
    assert (found.stdout, found.stderr) == ("0\n", "")


def test_it_ends_when_told_to():
    owner = Owner(lambda ending: ending.wait() and None)
    assert alive()
    owner.background.end()
    assert not alive()
    owner.background.end()


def test_it_ends_when_its_owner_is_collected():
    owner = Owner(lambda ending: ending.wait() and None)
    del owner
    assert alive()
    gc.collect()
    assert gone()


def test_an_error_is_kept():
    def work(ending: threading.Event) -> None:
        raise ZeroDivisionError

    owner = Owner(work)
    owner.background.join()
    assert isinstance(owner.background.error, ZeroDivisionError)


def test_what_the_work_holds_is_let_go():
    held = threading.Event()
    gone = weakref.ref(held)
    owner = Owner(lambda ending, held=held: None)
    del held
    owner.background.join()
    assert gone() is None


@pytest.mark.parametrize("how", ["sys.exit(3)", "raise ZeroDivisionError", "pass"])
def test_at_exit_it_is_waited_for_before_older_finalizers_run(how: str):
    script = f"""
import sys, threading, time, weakref
from packer.starting import Background
class Thing: pass
thing, owner = Thing(), Thing()
weakref.finalize(thing, print, "memory goes", flush=True)
def work(ending):
    ending.wait()
    time.sleep(0.2)
    print("thread ends", flush=True)
background = Background(owner, "test", work)
{how}
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.stdout.splitlines() == ["thread ends", "memory goes"], run.stderr


def test_a_process_that_is_connected_to_ray_is_not_forked(monkeypatch: pytest.MonkeyPatch):
    for connected in (True, False):
        monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=partial(bool, connected)))
        assert forks_safely() is (sys.platform == "linux" and not connected)


# Processes in a stranger's folder

STARTS = (
    "from packer.remote import access; access.helper_process()",
    """
        from packer import open_pack
        from packer.errors import FormatError
        try:
            open_pack(os.path.join(here, "theirs.h5"))
        except FormatError as error:
            assert "HDF5 cannot read it" in str(error), error
    """,
    """
        from packer.filling.opening import open_filling
        pack = open_filling(sys.argv[1], os.path.join(here, "filled.h5"), {"size": 8})
        pack.close()
    """,
    """
        from packer import PackedBatchDataset, PythonTransform
        with PackedBatchDataset(sys.argv[2], 8, output="numpy", transform=PythonTransform(same, context="spawn")) as ds:
            assert len(list(ds)) == 12
    """,
    """
        from packer import PackedBatchDataset, PythonTransform
        with PackedBatchDataset(sys.argv[2], 8, output="numpy", transform=PythonTransform(same, context="forkserver")) as ds:
            assert len(list(ds)) == 12
    """,
)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_no_process_imports_from_the_current_folder(pack: str, tmp_path: Path) -> None:
    """A stranger's folder holds files called as every module is, and the program runs there.

    One program starts them all: each that starts imports what it needs, which takes a second.
    """
    folder, here = tmp_path / "strange", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    for name in (
        *sys.stdlib_module_names,
        "numpy",
        "h5py",
        "cv2",
        "xxhash",
        "torch",
        "obstore",
        "simplejpeg",
    ):
        if name not in ("sys", "builtins"):
            (folder / f"{name}.py").write_text(
                "import sys; open(__file__ + '.ran', 'w').close(); sys.exit(9)\n"
            )
    (here / "theirs.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(4096))
    (here / "main.py").write_text(
        "import os, sys\nhere = os.path.dirname(__file__)\ndef same(sample):\n    return sample\n"
        "if __name__ == '__main__':\n" + textwrap.indent("\n".join(map(textwrap.dedent, STARTS)), "    ")
    )
    command = [sys.executable, "-W", "ignore", str(here / "main.py"), str(Path(pack).parent / "images"), pack]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert sorted(path.name for path in folder.glob("*.ran")) == []
    assert (done.returncode, done.stderr) == (0, "")


def test_python_is_started_here_alone() -> None:
    """python_command and start_process are the only ways to another interpreter."""
    package = Path(packer.__file__).parent
    names = ("sys.executable", "get_executable")
    found = [path.name for path in package.rglob("*.py") if any(name in path.read_text() for name in names)]
    assert found == ["starting.py"]
