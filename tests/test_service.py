"""packer.service: sockets between processes of one user."""

from __future__ import annotations

import os
import re
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from packer import service
from packer.errors import FormatError, PackerError
from packer.service import adopt, connect, error_of, exchange, failure, listen, pair, serve


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
def test_sockets_wait_whatever_the_default_timeout_is(tmp_path: Path) -> None:
    ours, theirs = pair()
    with ours, adopt(theirs.detach()) as other, listen(str(tmp_path / "s")) as listener:
        client = connect(str(tmp_path / "s"))
        assert client is not None
        with client, listener.accept()[0] as accepted:
            assert all(map(waits, (ours, other, listener, client, accepted)))


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


def test_no_other_user_may_connect_from_the_moment_a_socket_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.uname().sysname != "Linux":
        pytest.skip("only Linux takes the mode of a socket before bind")
    modes: list[int] = []
    real = os.chmod
    monkeypatch.setattr(
        service.os, "chmod", lambda path, mode: (modes.append(os.stat(path).st_mode), real(path, mode))
    )
    before = os.umask(0)
    try:
        listen(str(tmp_path / "s")).close()
    finally:
        os.umask(before)
    assert [stat.S_IMODE(mode) for mode in modes] == [0o600]


def test_a_process_of_another_user_is_neither_asked_nor_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "s")
    with listen(path) as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        monkeypatch.setattr(service.os, "geteuid", lambda: 1 + os.getuid())
        assert connect(path) is None
        listener.settimeout(0.05)
        with pytest.raises(TimeoutError):
            listener.accept()
        assert client.recv(1) == b""  # closed


def test_an_error_is_one_of_packer_s(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = FormatError("a.h5: is not a pack.")
    made = error_of(failure(sent)[1])
    assert (type(made), str(made)) == (FormatError, str(sent))
    for name in ("annotations", "PackerErrors", "nothing", "OSError"):
        assert type(error_of([name, "x"])) is PackerError


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
