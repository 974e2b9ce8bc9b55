"""Every row of a remote pack equal to the local pack's: kinds of packs x servers x sizes of the cache x what goes wrong."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer import PackedBatchDataset
from packer.errors import FormatError
from packer.filling.opening import open_pack as with_cache
from packer.packs.remote_pack import RemotePack, open_remote
from packer.packs.stretch_cache import KEPT
from packer.remote import access
from tests.filling.test_remote_cache import KINDS, check_equal, fields_of, objects, packs, store, taken
from tests.remote.object_server import Handler, ObjectServer

__all__ = ["objects", "packs", "store"]

pytestmark = pytest.mark.soak

SHARES = {"100 %": 1.0, "30 %": 0.3, "0 %": 0.0}
LEAST_CACHE = 300_000  # for the tables of a small pack
EPOCHS = 10

RANK = """
import sys
import numpy as np
from packer import PackedBatchDataset, open_pack
from packer.remote import access
print(access.helper_process(), flush=True)
url, local, cache, fields = sys.argv[1:]
fields = fields.split(",") if fields else None
with PackedBatchDataset(open_pack(url, cache), 100, fields=fields, output="numpy") as theirs:
    with PackedBatchDataset(local, 100, fields=fields, output="numpy") as ours:
        for a, b in zip(ours, theirs, strict=True):
            assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
            print("batch", flush=True)
"""


@pytest.fixture(scope="module")
def moto(packs: Path) -> Iterator[str]:
    """The address of a moto server that has the packs."""
    server = pytest.importorskip("moto.server", reason="moto is not installed: make soak")
    pytest.importorskip("obstore", reason="obstore is not installed: pip install obstore")
    running = server.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    running.start()
    try:
        url = "http://{}:{}".format(*running.get_host_and_port())
        urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT")).close()
        with pytest.MonkeyPatch.context() as patched:
            for name, text in {"ENDPOINT_URL": url, "ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "s"}.items():
                patched.setenv(f"AWS_{name}", text)
            for path in packs.rglob("*"):
                if path.suffix in (".h5", ".json"):
                    access.put_file(f"s3://bucket/{path.relative_to(packs)}", str(path))
        yield url
    finally:
        running.stop()


class Sent:
    """Answers of a server, each range first gone wrong in one of three ways; counted are those that were right."""

    def __init__(self, store: ObjectServer) -> None:
        self.right: Counter[Any] = Counter()
        self._seen: dict[Any, int] = {}
        store.fault = self.fault

    def fault(self, handler: Handler, body: bytes) -> bool:
        place = handler.key, handler.headers.get("Range")
        if place not in self._seen:
            self._seen[place] = len(self._seen)
            return (Handler.cut, Handler.refuse, Handler.flip)[self._seen[place] % 3](handler, body)
        if "=-" not in str(place[1]):  # the end of a file, which each process reads
            self.right[place] += 1
        return False


@contextmanager
def bounded(cache: Path, most: int) -> Iterator[None]:
    """Watch what a cache takes on the disk, which may at no moment be more."""
    seen, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.002):
            with suppress(FileNotFoundError):  # a file has got another name in this moment
                seen.append(taken(cache))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        stop.set()
        watching.join()
    assert max(seen) <= most


def cache_of(pack: RemotePack, share: float, folder: Path) -> dict[str, Any]:
    """The arguments for a cache of a share of a pack."""
    files = sum(file.info.size for file in pack.files.values())
    most = 2 * files + LEAST_CACHE if share == 1 else int(share * files) + LEAST_CACHE
    return {"cache": folder / "cache", "cache_size": most} if share else {}


@pytest.mark.parametrize("share", SHARES.values(), ids=SHARES)
@pytest.mark.parametrize("server_of", ["http", "s3", "moto"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_equal_whatever_the_server_does(
    request: pytest.FixtureRequest,
    store: ObjectServer,
    packs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    server_of: str,
    share: float,
) -> None:
    if server_of == "moto":
        monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("moto"))
    url = f"{store.url if server_of == 'http' else 's3:/'}/bucket/{kind}"
    pack = open_remote(url)
    cache = cache_of(pack, share, tmp_path)
    cached = with_cache(pack.path, **cache)
    sent = Sent(store)
    with bounded(tmp_path, cache.get("cache_size", 0)):
        check_equal(packs / kind, cached, 2, "sequential" if share == 0 else "blocks")
    if server_of != "moto":
        assert sent.right
        assert share < 1 or set(sent.right.values()) == {1}  # each stretch once, in two epochs


@pytest.mark.parametrize("share", SHARES.values(), ids=SHARES)
@pytest.mark.parametrize("kind", KINDS)
def test_another_object_in_its_place_is_an_error(
    store: ObjectServer, packs: Path, tmp_path: Path, kind: str, share: float
) -> None:
    pack = open_remote(f"s3://bucket/{kind}")
    cached = with_cache(pack.path, **cache_of(pack, share, tmp_path))
    for key in store.objects:
        store.objects[key] += b" "
    with (
        PackedBatchDataset(cached, 100) as dataset,
        pytest.raises(FormatError, match=r"replaced or changed|was opened for writing after it was sealed"),
    ):
        list(dataset)


@pytest.mark.parametrize("share", [1.0, 0.0], ids=["100 %", "0 %"])
def test_a_server_that_stalls(store: ObjectServer, packs: Path, tmp_path: Path, share: float) -> None:
    pack = open_remote("s3://bucket/raw.h5")
    cached = with_cache(pack.path, **cache_of(pack, share, tmp_path))
    first = threading.Lock()
    store.fault = lambda handler, body: first.acquire(blocking=False) and Handler.stall(handler, body)
    check_equal(packs / "raw.h5", cached)


@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_is_full(store: ObjectServer, packs: Path, tmp_path: Path, kind: str) -> None:
    """A limit of the system's on how long the files of the process that writes may be: what is behind it passes through memory."""
    pack = open_remote(f"s3://bucket/{kind}")
    cached = with_cache(pack.path, **cache_of(pack, 1, tmp_path))
    files = max(file.info.size for file in pack.files.values())
    helper = access.helper_process()
    resource.prlimit(helper, resource.RLIMIT_FSIZE, (files // 2, files // 2))
    check_equal(packs / kind, cached, 2)
    assert access.helper_process() == helper
    rows = cached.units
    assert rows is not None
    assert rows.cache is not None
    assert (rows.cache.states(rows.map) != KEPT).any()
    rows.close()
    os.kill(helper, signal.SIGKILL)  # its limit is not for the tests that follow


@pytest.mark.parametrize("whom", ["rank", "helper", "both"])
@pytest.mark.parametrize("kind", KINDS)
def test_killed_in_the_middle(store: ObjectServer, packs: Path, tmp_path: Path, kind: str, whom: str) -> None:
    url, cache = f"s3://bucket/{kind}", tmp_path / "cache"
    command = [RANK, url, str(packs / kind), str(cache), ",".join(fields_of(kind) or [])]
    held = threading.Event()  # until then the last stretches do not come
    seen: set[Any] = set()

    def hold(handler: Handler, body: bytes) -> bool:
        seen.add((handler.key, handler.headers.get("Range")))
        if len(seen) > 2:
            held.wait(60)
        return False

    pack = with_cache(url, cache)
    store.fault = hold
    rank = subprocess.Popen([sys.executable, "-c", *command], stdout=subprocess.PIPE, text=True)
    assert rank.stdout is not None
    helper = int(rank.stdout.readline())
    deadline = time.monotonic() + 60
    while len(seen) < 3 and rank.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    if whom != "helper":
        rank.kill()
    if whom != "rank":
        os.kill(helper, signal.SIGKILL)
    held.set()
    rank.communicate()
    assert rank.returncode == (0 if whom == "helper" else -signal.SIGKILL)
    check_equal(packs / kind, pack, 2)


@pytest.mark.parametrize("share", [0.3, 0.0], ids=["30 %", "0 %"])
def test_memory_and_descriptors_stay_flat(
    store: ObjectServer, packs: Path, tmp_path: Path, share: float
) -> None:
    pack = open_remote("s3://bucket/shards")
    cached = with_cache(pack.path, **cache_of(pack, share, tmp_path))
    seen = []
    with PackedBatchDataset(cached, 100, order="blocks", output="numpy") as dataset:
        for _ in range(EPOCHS):
            for _ in dataset:
                pass
            processes = [os.getpid(), access.helper_process()]
            files = [len(os.listdir(f"/proc/{pid}/fd")) for pid in processes]
            pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in processes]
            seen.append([files, [page * resource.getpagesize() >> 20 for page in pages]])
    descriptors, megabytes = np.array(seen).transpose(1, 0, 2)
    half = EPOCHS // 2
    assert (descriptors[-1] <= descriptors[:half].max(0) + 2).all()
    assert (megabytes[-1] <= megabytes[:half].max(0) + 32).all()
