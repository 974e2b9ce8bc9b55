"""Objects read and written through the helper process, whatever the server does."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from packer.errors import FormatError, MissingObjectError, RemoteError, UsageError
from packer.remote import access, object_store
from packer.remote.urls import ObjectUrl
from tests.remote.object_server import Fault, Handler, ObjectServer, once_each, serving

DATA = bytes(range(256)) * 4096


def test_an_object_is_looked_up_and_read(server: ObjectServer, bucket: str) -> None:
    server.objects["bucket/a b/c.bin"] = DATA
    info = access.stat(f"{bucket}/a b/c.bin" if bucket[0] == "s" else f"{bucket}/a%20b/c.bin")
    assert info.size == len(DATA)
    url = f"{bucket}/a b/c.bin"
    assert access.read_all(url) == (DATA, info)
    assert access.read_end(url, 1000) == (DATA[-1000:], info)
    assert access.read_end(url, 1 << 30) == (DATA, info)
    assert access.read_range(url, 10, 70_000, info) == DATA[10:70_000]
    assert access.read_range(url, 10, 10, info) == b""
    with pytest.raises(RemoteError, match="bytes 0 to 1,048,577 were requested; it has 1,048,576"):
        access.read_range(url, 0, len(DATA) + 1, info)
    with pytest.raises(RemoteError, match="is 1,048,576 bytes long; at most 100 are read"):
        access.read_all(url, 100)


def test_reading_stops_at_the_requested_bytes(server: ObjectServer, bucket: str, tmp_path: Path) -> None:
    server.objects["bucket/x"] = DATA
    url, file = f"{bucket}/x", tmp_path / "part"
    info = access.stat(url)
    file.write_bytes(bytes(2 * len(DATA)))
    server.fault = Handler.pour
    for read in (
        lambda: access.read_range(url, 7, 200_007, info),
        lambda: access.read_range(url, 7, 200_007, info, str(file)),
        lambda: access.read_end(url, 200_000),
    ):
        server.ranges.clear()
        with pytest.raises(RemoteError) as caught:
            read()
        assert str(caught.value) == (
            f"{url}: the server sent more than the 200,000 bytes that were requested. Copy the object to a store"
            " that keeps to requests."
        )
        assert len(server.ranges) == 1
    written = file.read_bytes()
    assert len(written) == 2 * len(DATA)
    assert not any(written[:7] + written[200_007:])


def test_redirects_end_after_ten(server: ObjectServer, bucket: str) -> None:
    server.objects["bucket/x"] = DATA
    info = access.stat(f"{bucket}/x")
    server.fault = lambda handler, body: handler.answer(307, headers={"Location": handler.path}) or True
    with pytest.raises(RemoteError, match=r"x: the server redirects again and again\. Pass the address at"):
        access.read_range(f"{bucket}/x", 0, 100, info)
    assert server.requests["GET", "bucket/x"] == 11


@pytest.mark.skipif(sys.platform != "linux", reason="Linux limits memory")
def test_the_helper_s_memory_is_limited_by_what_is_requested(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.objects["bucket/x"] = DATA
    monkeypatch.setattr(access, "_HELPER", access._Helper())
    for count in (1, 8):
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(access.read_all, ["s3://bucket/x"] * 8 * count))
    limit = resource.prlimit(access.helper_process(), resource.RLIMIT_DATA)[0]
    rest = object_store._ROOM + object_store._CORE_ROOM * (os.cpu_count() or 1)
    used = len(access._HELPER._idle)
    assert limit == rest + used * (object_store._CONNECTION_ROOM + 2 * len(DATA))

    def large(
        handler: Any, body: bytes
    ) -> bool:  # the client's library takes memory for it at its second piece
        handler.answer(404, headers={"Content-Length": str(100 << 30)})
        with suppress(OSError):
            for _ in range(16):
                handler.wfile.write(bytes(1 << 16))
        return True

    server.fault = large
    with pytest.raises(RemoteError, match="and whether the server sends more than was requested"):
        access.read_all("s3://bucket/x", patience=0)
    access._HELPER.close()


@pytest.mark.parametrize("first", ["z", ""], ids=["the same", "nothing"])
def test_a_listing_without_end_ends(
    server: ObjectServer, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = "<Contents><Key>{}</Key><LastModified>2026-11-01T10:00:00.000Z</LastModified><Size>1</Size></Contents>"
    page = "".join(entry.format(f"photos/{first}{n}") for n in range(1000)) if first else ""
    head = "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
    answer = f"<ListBucketResult><Name>b</Name>{head}{page}</ListBucketResult>".encode()
    monkeypatch.setattr(Handler, "list", lambda handler: handler.answer(200, answer))
    monkeypatch.setattr(object_store, "_PAGE_SECONDS", 0.3)
    url, environment = "s3://bucket/photos", {k: v for k, v in os.environ.items() if k.startswith("AWS_")}
    store = object_store.store_of(ObjectUrl.parse(url), environment, 10.0)  # in this process
    told = "the server lists photos/z0 again, perhaps without end" if first else "it stalled"
    with pytest.raises(RemoteError, match=told):
        object_store.patiently(url, 0.0, lambda: store.list_objects(url, "photos"))


@pytest.mark.parametrize("seconds", [60.0, 0.001, 0.0])
def test_a_default_timeout_of_sockets_does_not_count(seconds: float) -> None:
    helper, before = access._Helper(), socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        assert helper.ask([None, "pid"])[0] > 0
    finally:
        socket.setdefaulttimeout(before)
        helper.close()


def test_an_empty_object(server: ObjectServer, bucket: str) -> None:
    server.objects["bucket/empty"] = b""
    data, info = access.read_end(f"{bucket}/empty", 10)
    assert (data, info.size) == (b"", 0)
    assert access.read_all(f"{bucket}/empty")[0] == b""


FAULTS = {"cut": Handler.cut, "refuse": Handler.refuse, "stall": Handler.stall}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_what_fails_in_passing_is_asked_for_again(server: ObjectServer, bucket: str, fault: Fault) -> None:
    server.objects["bucket/x"] = DATA
    info = access.stat(f"{bucket}/x")
    server.fault = once_each(fault)
    assert access.read_range(f"{bucket}/x", 0, len(DATA), info) == DATA


@pytest.mark.parametrize(
    ("fault", "told"), [(Handler.refuse, "503"), (Handler.stall, "it stalled")], ids=["refuse", "stall"]
)
def test_what_does_not_pass_is_an_error(server: ObjectServer, bucket: str, fault: Fault, told: str) -> None:
    server.objects["bucket/x"] = DATA
    server.fault = fault
    with pytest.raises(RemoteError, match=rf"bucket/x: the request to the server failed \(.*{told}"):
        access.read_all(f"{bucket}/x", patience=0.5)


@pytest.mark.parametrize("tags", [True, False])
def test_another_version_is_refused(server: ObjectServer, bucket: str, tags: bool) -> None:
    server.objects["bucket/x"] = DATA
    server.tags = tags
    info = access.stat(f"{bucket}/x")
    server.objects["bucket/x"] = DATA[::-1] if tags else DATA + b"more"
    with pytest.raises(FormatError, match="was replaced or changed after it was opened"):
        access.read_range(f"{bucket}/x", 0, 100, info)


def test_listing_goes_through_all_pages(server: ObjectServer) -> None:
    names = sorted(f"photos/{n % 3}/{n:04d}.jpg" for n in range(2500))
    server.objects |= {f"bucket/{name}": b"x" for name in [*names, "photos2/y.jpg"]}
    found = access.list_objects("s3://bucket/photos/")
    assert [name for name, _ in found] == [name.removeprefix("photos/") for name in names]
    assert {info.size for _, info in found} == {1}
    assert len(access.list_objects("s3://bucket")) == 2501
    assert access.list_objects("s3://bucket/none") == []


def test_a_web_server_is_not_listed(server: ObjectServer) -> None:
    with pytest.raises(RemoteError, match="does not support this request"):
        access.list_objects(f"{server.url}/bucket", patience=0)


def test_objects_are_written_whole(server: ObjectServer, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(DATA)
    access.put_file(f"{bucket}/small", str(tmp_path / "small"))
    assert server.objects["bucket/small"] == DATA
    (tmp_path / "large").write_bytes(DATA * 20)
    access.put_file("s3://bucket/large", str(tmp_path / "large"))
    assert server.objects["bucket/large"] == DATA * 20
    assert server.requests["PUT", "bucket/large"] == 2  # parts


@pytest.mark.parametrize(
    ("url", "error", "told"),
    [
        ("s3://bucket/none", MissingObjectError, "s3://bucket/none: is not there. Check the name."),
        ("s3:///none", UsageError, "names no bucket or host"),
        ("s3://bucket/a/../b", UsageError, "has an empty part, '.' or '..'"),
        ("http://user@host/x", UsageError, "holds a user, a query or a fragment"),
        (
            "https://host/x?token=secret",
            UsageError,
            r"^https://host/x\?\*\*\*: holds a user, a query or a fragment",
        ),
        (
            "s3://key:secret@bucket/x",
            UsageError,
            r"^s3://\*\*\*@bucket/x: holds a password, which would appear in messages",
        ),
        ("sftp://me:secret@host/x", UsageError, r"^sftp://\*\*\*@host/x: holds a password"),
        ("unheard://x/y", UsageError, "unheard://: cannot be read"),
        ("http://127.0.0.1:9/x", RemoteError, r"request to the server failed \(no connection\)"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(
    server: ObjectServer, url: str, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told) as caught:
        access.read_all(url, patience=0.1)
    assert "secret" not in str(caught.value)


def test_another_host_does_not_get_the_session_token(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    server.objects["bucket/x"] = server.objects["bucket/y"] = DATA
    assert access.read_all("s3://bucket/x")[0] == DATA
    with serving() as other:
        other.objects["bucket/x"] = other.objects["bucket/y"] = DATA
        for host in ("localhost", "127.0.0.1"):  # the endpoint is 127.0.0.1, at another port
            place = {"Location": f"http://{host}:{other.server_port}/bucket/x"}
            server.fault = lambda handler, body, place=place: handler.answer(307, headers=place) or True
            if host == "127.0.0.1":
                assert access.read_all("s3://bucket/x")[0] == DATA
                continue
            with pytest.raises(RemoteError) as caught:
                access.read_all("s3://bucket/x")
            assert str(caught.value) == (
                "s3://bucket/x: the server redirects to another host, which would receive the session token; packer does not"
                " follow. Set AWS_ENDPOINT_URL to the host that has the objects."
            )
            assert not other.requests


def test_a_server_that_sends_a_byte_now_and_then_is_left(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trickle(handler: Any, body: bytes) -> bool:
        handler.send_response(handler.status)
        for name, value in {"Content-Length": str(len(body)), **handler.extra}.items():
            handler.send_header(name, value)
        handler.end_headers()
        with suppress(OSError):
            for byte in body:
                handler.wfile.write(bytes([byte]))
                time.sleep(0.05)
        return True

    server.objects["bucket/x"] = DATA
    server.fault = trickle
    monkeypatch.setattr(object_store, "_SLOW_SECONDS", 0.2)
    url, environment = "s3://bucket/x", {k: v for k, v in os.environ.items() if k.startswith("AWS_")}
    store = object_store.store_of(
        ObjectUrl.parse(url), environment, 10.0
    )  # in this process, which forks no more
    for read, most in ((store.read_all, None), (store.read_end, 100_000)):
        with pytest.raises(RemoteError, match=r"it sent \d+ bytes in 0 s, less than 4,096 a second"):
            object_store.patiently(url, 0.1, lambda read=read, most=most: read(url, "x", most))


def test_refused_keys_and_missing_buckets(server: ObjectServer) -> None:
    server.objects["bucket/x"] = DATA
    server.fault = lambda handler, body: (
        handler.answer(403, b"<Error><Code>InvalidAccessKeyId</Code></Error>") or True
    )
    with pytest.raises(
        RemoteError, match=r"access was refused \(InvalidAccessKeyId\). Check AWS_ACCESS_KEY_ID"
    ):
        access.read_all("s3://bucket/x")
    server.fault = lambda handler, body: (
        handler.answer(404, b"<Error><Code>NoSuchBucket</Code></Error>") or True
    )
    with pytest.raises(RemoteError, match="there is no such bucket"):
        access.read_all("s3://bucket/x")


def test_the_environment_counts_when_it_is_set(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.objects["bucket/x"] = b"x"
    assert access.read_all("s3://bucket/x")[0] == b"x"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(RemoteError, match="no connection"):
        access.read_all("s3://bucket/x", patience=0)


def test_files_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.bin").write_bytes(DATA)
    url = f"file://{tmp_path}"
    info = access.stat(f"{url}/a/x.bin")
    assert access.read_range(f"{url}/a/x.bin", 5, 99, info) == DATA[5:99]
    assert access.read_end(f"{url}/a/x.bin", 7)[0] == DATA[-7:]
    assert [name for name, _ in access.list_objects(url)] == ["a/x.bin"]
    access.put_file(f"{url}/y.bin", str(tmp_path / "a" / "x.bin"))
    assert (tmp_path / "y.bin").read_bytes() == DATA
    with pytest.raises(MissingObjectError, match="is not there"):
        access.stat(f"{url}/z.bin")


def test_other_schemes_are_only_read(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    (tmp_path / "x.bin").write_bytes(DATA)
    url = f"local://{tmp_path}"
    info = access.stat(f"{url}/x.bin")
    assert access.read_range(f"{url}/x.bin", 5, 99, info) == DATA[5:99]
    assert access.read_end(f"{url}/x.bin", 7)[0] == DATA[-7:]
    assert access.read_all(f"{url}/x.bin")[0] == DATA
    with pytest.raises(MissingObjectError, match="is not there"):
        access.stat(f"{url}/z.bin")
    (tmp_path / "x.bin").write_bytes(DATA + b"more")
    with pytest.raises(FormatError, match="was replaced or changed"):
        access.read_range(f"{url}/x.bin", 5, 99, info)
    for write in (
        lambda: access.put_file(f"{url}/y.bin", str(tmp_path / "x.bin")),
        lambda: access.list_objects(url),
    ):
        with pytest.raises(UsageError, match="packer only reads there"):
            write()


def test_what_fsspec_returns_beyond_the_request_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    files = type(fsspec.filesystem("memory"))
    fsspec.filesystem("memory").pipe("/x", DATA)
    store = object_store.store_of(ObjectUrl.parse("memory://x"), {}, 10.0)
    with pytest.raises(RemoteError, match="is 1,048,576 bytes long; at most 100 are read"):
        store.read_all("memory://x", "", 100)
    monkeypatch.setattr(files, "cat_file", lambda *_: DATA)
    with pytest.raises(RemoteError, match="the server sent more than the 10 bytes that were requested"):
        store.read_range("memory://x", "", 0, 10, store.stat("memory://x", "")[0], "")

    def bomb(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(files, "cat_file", bomb)
    with pytest.raises(RemoteError, match="sent more than the helper process has memory for"):
        object_store.patiently("memory://x", 5.0, lambda: store.read_end("memory://x", "", 10))


def test_forked_children_ask_the_same_helper(server: ObjectServer) -> None:
    server.objects["bucket/x"] = DATA
    info = access.stat("s3://bucket/x")
    before = access.helper_process()
    child = os.fork()
    if not child:
        try:
            ok = (
                access.read_range("s3://bucket/x", 0, 5000, info) == DATA[:5000]
                and access.helper_process() == before
            )
            os._exit(0 if ok else 1)
        except BaseException:
            os._exit(2)
    assert access.read_range("s3://bucket/x", 0, 9000, info) == DATA[:9000]
    assert os.waitpid(child, 0)[1] == 0


def test_a_helper_that_was_killed_is_started_again(server: ObjectServer) -> None:
    server.objects["bucket/x"] = DATA
    assert access.read_all("s3://bucket/x")[0] == DATA
    before = access.helper_process()
    os.kill(before, signal.SIGKILL)
    assert access.read_all("s3://bucket/x")[0] == DATA
    assert access.helper_process() != before


def test_the_helper_ends_with_its_last_process(server: ObjectServer) -> None:
    server.objects["bucket/x"] = DATA
    code = (
        "import os; from packer.remote import access; access.stat('s3://bucket/x');"
        " print(access.helper_process(), flush=True); os.kill(os.getpid(), 9)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout, run.stderr
    deadline = time.monotonic() + 30
    while alive(int(run.stdout)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{process}/stat")
    return not stat.exists() or ") Z " not in stat.read_text()


def test_many_threads_at_once_and_nothing_stays_open(server: ObjectServer) -> None:
    server.objects["bucket/x"] = DATA
    info = access.stat("s3://bucket/x")
    with ThreadPoolExecutor(16) as pool:
        for _ in range(3):
            got = list(pool.map(lambda n: access.read_range("s3://bucket/x", n, n + 4096, info), range(64)))
            assert got == [DATA[n : n + 4096] for n in range(64)]
    assert len(access._HELPER._idle) <= 16


def test_an_interrupted_request_leaves_no_answer_for_the_next(server: ObjectServer) -> None:
    server.objects |= {"bucket/x": b"slow", "bucket/y": b"next"}
    access.stat("s3://bucket/x")
    server.fault = lambda handler, body: handler.key == "bucket/x" and bool(time.sleep(0.5))
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        access.read_all("s3://bucket/x")
    assert access.read_all("s3://bucket/y")[0] == b"next"


def test_no_helper_is_needed_for_a_wrong_url() -> None:
    with pytest.raises(UsageError, match="is not a URL"):
        access.stat("train.h5")


def test_sockets_of_connections_are_not_inherited(server: ObjectServer) -> None:
    server.objects["bucket/x"] = b"x"
    access.stat("s3://bucket/x")
    assert access._HELPER._control is not None
    every = [access._HELPER._control[0], *access._HELPER._idle]
    assert not any(one.get_inheritable() for one in every)
