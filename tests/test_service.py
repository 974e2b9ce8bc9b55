"""packer.service: sockets between processes of one user."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from packer import service
from packer.errors import FormatError, PackerError, UsageError, error_from_record, error_record
from packer.service import adopt, exchange, pair, serve


@pytest.fixture(params=[None, 60.0, 0.001, 0.0])
def default_timeout(request: pytest.FixtureRequest) -> Iterator[float | None]:
    """A time limit that another library set for all sockets."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(request.param)
    yield request.param
    socket.setdefaulttimeout(before)


def waits(connection: socket.socket) -> bool:
    return connection.gettimeout() is None and os.get_blocking(connection.fileno())


@pytest.mark.usefixtures("default_timeout")
def test_sockets_wait_whatever_the_default_timeout_is() -> None:
    ours, theirs = pair()
    with ours, adopt(theirs.detach()) as other:
        assert waits(ours)
        assert waits(other)


@pytest.mark.usefixtures("default_timeout")
def test_a_request_is_answered() -> None:
    ours, theirs = pair()
    thread = threading.Thread(target=serve, args=(theirs, lambda request, data: (request, data[::-1])))
    thread.start()
    with ours:
        assert exchange(ours, ["a", 1], b"xyz" * 100_000) == ([True, ["a", 1]], b"zyx" * 100_000)
    thread.join()


def test_connections_avoid_the_numbers_of_standard_files() -> None:
    """A daemon that closed its standard files: what a library prints must not go into a connection."""
    child = os.fork()
    if not child:
        try:
            for fd in (0, 1, 2):
                os.close(fd)
            numbers = [one.fileno() for one in pair()]
            os._exit(0 if min(numbers) > 2 else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    "sent", [FormatError("p.h5: is damaged. Make it again.", part="rows"), UsageError("a: is wrong. Pass b.")]
)
def test_errors_come_through_as_they_were(sent: PackerError) -> None:
    made = error_from_record(error_record(sent))
    assert (type(made), str(made)) == (type(sent), str(sent))
    assert getattr(made, "part", "") == ""


@pytest.mark.parametrize("name", ["annotations", "Sentence", "nothing", "OSError"])
def test_an_error_is_one_of_packer_s(name: str) -> None:
    assert type(error_from_record([name, "x"])) is PackerError


def test_nothing_that_crosses_between_processes_of_several_users_is_a_pickle() -> None:
    """Pickles are read only from a process's own children, over anonymous pipes, and in a process itself."""
    root = Path(service.__file__).parent
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if re.search(
            r"pickle\.loads?\b|Unpickler|allow_pickle=True|import (marshal|shelve)", path.read_text()
        )
    }
    found.remove("samples/array_problems.py")  # a remedy in a message names allow_pickle
    assert {name for name in found if not name.startswith("testing/")} == {
        "load/processes/calling.py",
        "load/processes/workerproc.py",
        "load/processes/workers.py",
        "samples/dataset_rows.py",
    }
