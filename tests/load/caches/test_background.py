"""packer.load.caches.background: a thread ends with its owner."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref

import pytest

from packer.load.caches.background import Background


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
from packer.load.caches.background import Background
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
