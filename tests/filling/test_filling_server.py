"""The server of missing units: which are made first, who is told, and when it ends; with a source that makes them when it is told to."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from packer.errors import PackerError, SourceError
from packer.filling.filling_server import FillingServer
from packer.format.unit_states import map_states
from packer.service import connect, exchange, listen, receive, send

UNITS = 40


class SlowSource:
    """A source of one worker that makes what it is given when `make` is called."""

    workers = 1

    def __init__(self, states: Any) -> None:
        self._states = states
        self.started: list[tuple[list[int], Future[Any]]] = []
        self.came = threading.Semaphore(0)

    def start(self, units: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.started.append((units.tolist(), future))
        self.came.release()
        return future

    def arrived(self, units: Any, result: Any) -> None:
        self._states[units] = 1

    def open(self) -> bool:
        return False

    def broken(self, error: BaseException) -> PackerError:
        return PackerError(f"a worker died: {error}")

    def next(self) -> tuple[list[int], Future[Any]]:
        assert self.came.acquire(timeout=60)
        return self.started.pop(0)

    def make_all(self) -> list[int]:
        """Make whatever comes until all is there; return the units in order."""
        made: list[int] = []
        while len(made) < UNITS:
            units, future = self.next()
            made += units
            future.set_result(None)
        return made


class Running:
    """A server in a thread. result: what run returned or raised."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.path = str(folder / "socket")
        self.states = map_states(str(folder / "state"), UNITS + 1, "<u8", writable=True)
        self.source = SlowSource(self.states)
        self.server = FillingServer(
            self.states, cast("Any", self.source), lambda job: ({"job": job.decode()}, b""), **options
        )
        self.result: Any = None
        self.listener = listen(self.path)
        self.thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self.thread.start()

    def client(self, name: str = "") -> socket.socket:
        link = connect(self.path)
        assert link is not None
        assert exchange(link, ["open", name], b"size 1")[0] == [True, {"job": "size 1"}]
        return link

    def _run(self) -> None:
        try:
            self.result = self.server.run(self.listener)
            if self.result:
                self.server.finish()
        except PackerError as error:
            self.result = error
            self.server.finish(error)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path)
    yield made
    made.thread.join(60)
    made.listener.close()
    assert not made.thread.is_alive()


def ask(link: socket.socket, kind: str, *units: int, name: str = "") -> None:
    send(link, [kind, name], np.array(units, "<i8").tobytes())


def test_units_that_are_waited_for_come_first_then_those_asked_for_ahead(running: Running) -> None:
    running.start()
    link = running.client()
    first = [
        running.source.next() for _ in range(2)
    ]  # handed out before anyone asked: all a worker has at a time
    ask(link, "ahead", 30, 29, 28, 27)
    assert receive(link)[0] == [True, None]
    ask(link, "wait", 20, 25, 22, 21)
    other = running.client()
    while not running.server._waiting:
        time.sleep(0.001)
    made: list[int] = []
    for units, future in first:
        made += units
        future.set_result(None)
    asked: list[int] = []
    while not {27, 28, 29, 30} <= set(asked):
        units, future = running.source.next()
        asked += units
        future.set_result(None)
    wanted = [unit for unit in asked if unit not in made]
    assert wanted[:4] == [20, 25, 22, 21]
    assert wanted[4:8] == [30, 29, 28, 27]
    running.source.came.release()  # of the loop below
    running.source.came.acquire()
    rest = UNITS - len(made) - len(asked)
    while rest:
        units, future = running.source.next()
        rest -= len(units)
        future.set_result(None)
    running.thread.join(60)
    assert running.result is True
    assert running.states[-1] == UNITS + 1
    link.close()
    other.close()


def test_every_unit_is_made_once_for_many_clients(running: Running) -> None:
    running.start()
    links = [running.client() for _ in range(20)]
    draws = np.random.default_rng(0)
    for link in links:
        ask(link, "wait", *draws.permutation(UNITS).tolist())
    made = running.source.make_all()
    assert sorted(made) == list(range(UNITS))
    for link in links:
        assert receive(link)[0][0] is True
    running.thread.join(60)
    assert running.result is True
    for link in links:
        link.close()


def test_units_that_were_there_are_not_made_again(tmp_path: Path) -> None:
    states = map_states(str(tmp_path / "state"), UNITS + 1, "<u8", writable=True)
    states[:UNITS:2] = 9
    running = Running(tmp_path)
    running.start()
    link = running.client()
    ask(link, "wait", 0, 2, 4)
    made: list[int] = []
    while len(made) < UNITS // 2:
        units, future = running.source.next()
        made += units
        future.set_result(None)
    assert sorted(made) == list(range(1, UNITS, 2))
    running.thread.join(60)
    running.listener.close()
    link.close()


def test_who_waits_for_the_pack_is_told_when_it_has_its_name(running: Running) -> None:
    running.start()
    link = running.client()
    ask(link, "wait", UNITS)
    running.source.make_all()
    assert receive(link)[0] == [True, None]
    assert running.states[-1] == UNITS + 1
    link.close()


def test_who_has_gone_is_not_waited_for(running: Running) -> None:
    running.start()
    link, other = running.client(), running.client("other")
    ask(link, "wait", 7)
    while not running.server._waiting:
        time.sleep(0.001)
    link.close()
    while running.server._waiting:
        time.sleep(0.001)
    running.source.make_all()
    other.close()


def test_an_error_reaches_all_clients_and_ends_it(running: Running) -> None:
    running.start()
    links = [running.client() for _ in range(3)]
    for link in links:
        ask(link, "wait", 30)
    _, future = running.source.next()
    future.set_exception(SourceError("a.jpg: is no image. Remove it."))
    for link in links:
        assert receive(link)[0] == [False, ["SourceError", "a.jpg: is no image. Remove it."]]
        link.close()
    running.thread.join(60)
    assert isinstance(running.result, SourceError)


def test_a_worker_that_died_is_an_error_too(running: Running) -> None:
    running.start()
    link = running.client()
    _, future = running.source.next()
    future.set_exception(OSError("gone"))
    running.thread.join(60)
    assert str(running.result) == "a worker died: gone"
    link.close()


@pytest.mark.parametrize("word", [True, False], ids=["bye", "closed"])
def test_it_ends_when_all_clients_have_left(running: Running, word: bool) -> None:
    running.start()
    links = [running.client(str(number)) for number in range(2)]
    for number, link in enumerate(links):
        if word:
            ask(link, "bye", name=str(number))
            if number == 0:
                assert receive(link)[0][0] is True
                running.client("1").close()
        link.close()
    for _ in range(2):
        _, future = running.source.next()
        future.set_result(None)
    running.thread.join(60)
    assert running.result is False


def test_a_client_that_breaks_off_in_a_message_is_dropped(running: Running) -> None:
    running.start()
    link = running.client()
    broken = connect(running.path)
    assert broken is not None
    broken.send(b"\7" + bytes(15) + b"half")  # the lengths of a message, and part of it
    broken.close()
    running.source.make_all()
    running.thread.join(60)
    assert running.result is True
    link.close()


def test_tasks_grow_to_what_they_may_take(tmp_path: Path) -> None:
    running = Running(tmp_path, task_seconds=1e6)
    running.start()
    link = running.client()
    begun = [running.source.next() for _ in range(2)]
    for _, future in begun:
        future.set_result(None)
    units, future = running.source.next()
    assert [len(units) for units, _ in begun] + [len(units)] == [4, 4, UNITS - 8]
    future.set_result(None)
    running.thread.join(60)
    link.close()
    running.listener.close()
    assert running.result is True


def test_its_socket_is_this_users_alone(tmp_path: Path) -> None:
    with listen(str(tmp_path / "socket")):
        assert os.stat(tmp_path / "socket").st_mode & 0o777 == 0o600
