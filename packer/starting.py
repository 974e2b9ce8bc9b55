"""Threads and processes: starting and ending them safely.

Ctrl-C or a limit leaves no half-started thread or process. All of them work after fork and unpickling.

Python raises KeyboardInterrupt between any two lines of the main thread, also inside the standard library,
and drops it inside destructors and callbacks (of weak references, of the garbage collector, after a fork):
the program then continues as if it had not been interrupted.
"""

from __future__ import annotations

import ctypes
import multiprocessing.util
import os
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from packer.errors import PackerError

P = ParamSpec("P")
T = TypeVar("T")

_AGAIN_SECONDS = 0.02
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
# Keeps the current folder out of sys.path, where python -c puts it first. Python 3.10 has no -P; -I also
# ignores PYTHONPATH, which does not matter, because multiprocessing gives its children this process's
# sys.path.
_SAFE_PATH = "-P" if sys.version_info >= (3, 11) else "-I"
_ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def forks_safely() -> bool:
    """Return True if workers may be forked: on Linux, if the process may have children and is not connected
    to Ray.

    Ray's client hangs in its next request after the process has been forked some times (seen with 2.60, after
    a TorchTrainer).
    """
    ray = sys.modules.get("ray")
    connected = ray is not None and hasattr(ray, "is_initialized") and ray.is_initialized()
    return sys.platform == "linux" and not multiprocessing.current_process().daemon and not connected


def python_command(call: str, *arguments: str) -> list[str]:
    """Return the command of a Python process that runs ``call`` with this process's sys.path.

    arguments: its ``sys.argv[1:]``. The current folder may be a stranger's and contain a json.py: nothing is
    imported from there, unless a program put its full path into sys.path. call: statements; ``sys`` is
    imported. Raises PackerError.
    """
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    paths = [os.path.abspath(path) for path in sys.path if isinstance(path, str) and path]
    paths += [] if ours in paths else [ours]
    # -I would ignore the user's PYTHONHASHSEED and similar variables
    safe = ["-P"] if _SAFE_PATH == "-P" else []
    return [program(), *safe, "-c", f"import sys; sys.path[:] = {paths!a}; {call}", *arguments]


def program() -> str:
    """Return the path of Python's program. Raises PackerError if it is not known."""
    from multiprocessing.spawn import get_executable

    if not (found := os.fsdecode(get_executable() or "")):
        raise PackerError(
            "loading: another process is needed, and this one, which embeds Python, does not know Python's"
            " program. Call multiprocessing.set_executable with its path first."
        )
    return found


def detach() -> None:
    """Continue in a child of this process, which ends; Ctrl-C does not reach the child."""
    if os.fork():
        os._exit(0)
    os.setsid()
    for name in (signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)


def die_with(parent: int) -> None:
    """Have Linux kill this process when its parent, with this process id, ends.

    A forked worker whose parent was killed would wait for work forever, because it holds both ends of the
    queue.
    """
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(1)


def start_process(process: BaseProcess) -> None:
    """Start a multiprocessing process. Raises PackerError if a limit forbids another.

    multiprocessing runs python -c for "spawn" and "forkserver", too.
    """
    util: Any = multiprocessing.util
    with _STARTING:
        flags = util._args_from_interpreter_flags
        util._args_from_interpreter_flags = lambda: [_SAFE_PATH, *flags()]
        try:
            process.start()
        except FileNotFoundError as error:
            raise PackerError(
                f"loading: another process cannot be started ({error}). If the current folder was removed,"
                " change to another (os.chdir)."
            ) from None
        except OSError as error:
            raise PackerError(no_more("process", error)) from None
        finally:
            util._args_from_interpreter_flags = flags


class ThreadPool(ThreadPoolExecutor):
    """A pool of threads. ended: True once a submit failed; the pool then accepts nothing more.

    Ctrl-C during the start of a thread leaves a thread that the standard library's pool does not know: at
    exit the interpreter would wait for it, and nothing would end it.
    """

    ended: bool = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function on one of the threads. Raises PackerError if a limit forbids another thread."""
        handled = sys.exc_info()[1]
        try:
            return super().submit(fn, *args, **kwargs)
        except BaseException as error:
            self.ended = True
            self.shutdown(wait=False, cancel_futures=True)
            if refused(error):
                raise PackerError(no_more("thread", error)) from None
            # Ctrl-C inside threading.Condition surfaces as "release unlocked lock", because a lock is then
            # released twice.
            cause = error.__context__
            if (
                isinstance(error, RuntimeError)
                and isinstance(cause, KeyboardInterrupt)
                and cause is not handled
            ):
                raise cause from None
            raise


class ForkSafeLock:
    """A lock for ``with``: free in a forked child, whoever held it, and pickled as a new lock."""

    def __init__(self) -> None:
        self._lock, self._pid = threading.RLock(), os.getpid()

    def __enter__(self) -> None:
        if self._pid != os.getpid():
            with _renewing:  # threads of a forked child that come first together must get the same lock
                if self._pid != os.getpid():
                    self._lock, self._pid = threading.RLock(), os.getpid()
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return ForkSafeLock, ()


def _after_fork() -> None:
    global _renewing
    _renewing = threading.Lock()


_renewing = threading.Lock()
os.register_at_fork(after_in_child=_after_fork)
_STARTING = ForkSafeLock()


class ForkSafeThreads:
    """`count` threads, started on first use, and again after fork, unpickling or close."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPool | None = None
        self._pid = -1
        self._lock = ForkSafeLock()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pool": None, "_pid": -1}

    def submit(self, function: Callable[..., T], *args: Any) -> Future[T]:
        """Run a function on one of the threads. Raises PackerError if a limit forbids a thread."""
        with self._lock:
            if self._pool is None or self._pid != os.getpid() or self._pool.ended:
                self._pool = ThreadPool(self.count, thread_name_prefix="packer-load")
                self._pid = os.getpid()
            return self._pool.submit(function, *args)

    def close(self, wait: bool = True) -> None:
        """Cancel the calls that no thread has begun, and end the threads. wait: for their current calls."""
        with self._lock:
            pool = self._pool if self._pid == os.getpid() else None
            if pool is not None:
                pool.ended = True  # another call gets another pool
        if pool is not None:
            pool.shutdown(wait=wait, cancel_futures=True)


class Background:
    """A daemon thread that runs work(ending) once.

    owner: when it is collected, the thread is asked to end; the interpreter waits for that at exit.
    work: checks ``ending`` often, and returns soon after it is set; must not refer to the owner, which would
    then never be collected.
    error: the exception of work, else None. A forked child has no such thread.
    """

    def __init__(self, owner: object, name: str, work: Callable[[threading.Event], None]) -> None:
        self.error: Exception | None = None
        self._place: TracebackType | None = None
        self._work = work
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        weakref.finalize(owner, self._ending.set).atexit = False
        # At exit, a thread in the middle of a copy must not outlive the interpreter or the CUDA context.
        # Finalizers run in reverse order of creation: this one before those of the memory that the thread
        # fills.
        weakref.finalize(self, _end, self._ending, self._thread)
        start(self._thread)

    def _run(self) -> None:
        try:
            self._work(self._ending)
        except Exception as error:
            # Keep the places of the traceback, not the memory of its frames.
            traceback.clear_frames(error.__traceback__)
            self._place = error.__traceback__
            self.error = error
        finally:
            del self._work  # releases what it holds: files, memory

    def check(self) -> None:
        """Re-raise the error of `work`, if any."""
        if self.error is not None:
            raise self.error.with_traceback(self._place)

    def end(self) -> None:
        """Ask the thread to end, and wait for it."""
        _end(self._ending, self._thread)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the thread to end. timeout: seconds."""
        self._thread.join(timeout)


def _end(ending: threading.Event, thread: threading.Thread) -> None:
    ending.set()
    if thread.ident is not None and thread is not threading.current_thread():  # None: it could not be started
        thread.join()


def start(thread: threading.Thread) -> None:
    """Start a thread. Raises PackerError if a limit forbids another."""
    try:
        with held_back():
            thread.start()
    except RuntimeError as error:
        if not refused(error):
            raise
        raise PackerError(no_more("thread", error)) from None


def refused(error: BaseException) -> bool:
    """Return True if the system had no thread to give.

    CPython reports this only in words, without an errno.
    """
    return isinstance(error, RuntimeError) and "start new thread" in str(error)


def no_more(what: str, error: BaseException) -> str:
    """Return the sentence for a thread or process that could not be started."""
    return (
        f"loading: another {what} cannot be started ({getattr(error, 'strerror', None) or error})."
        " Raise the limit of this process (ulimit -u, ulimit -v) or container (pids.max, memory.max),"
        " or pass fewer threads or processes."
    )


@contextmanager
def held_back() -> Iterator[None]:
    """Delay Ctrl-C, and other handled signals that end a process, to the end of the block.

    Only in the main thread, which receives them.
    """
    here = _ENDING if threading.current_thread() is threading.main_thread() else ()
    handlers = {number: handler for number in here if callable(handler := signal.getsignal(number))}
    came: list[tuple[int, Any]] = []
    try:
        for number in handlers:
            signal.signal(number, lambda number, frame: came.append((number, frame)))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            handlers[came[0][0]](*came[0])


def interrupt_later() -> None:
    """Repeat, a little later, a KeyboardInterrupt that came during a destructor."""
    main = threading.main_thread().ident
    assert main is not None
    # A real signal: _thread.interrupt_main() does not wake a waiting thread.
    again = threading.Timer(_AGAIN_SECONDS, signal.pthread_kill, (main, signal.SIGINT))
    again.daemon = True
    again.start()
