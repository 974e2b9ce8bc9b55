"""Rows of packs in stores: equal to the local pack's whatever the pack, the cache and the server are like."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

import packer
from packer import PackedBatchDataset, PackedDataset, open_pack, repack
from packer.errors import FormatError, MissingObjectError, PackerError, SpaceError, UsageError
from packer.filling.opening import open_pack as with_cache
from packer.format.checksums import Trailer
from packer.format.fields import OFFSETS, Field
from packer.orders.runs import one_run
from packer.packs import stretch_window
from packer.packs.remote_file import END_BYTES
from packer.packs.remote_pack import RemotePack, RemoteRows, open_remote
from packer.packs.stretch_cache import KEPT, StretchCache
from packer.packs.stretches import StretchMap
from packer.packs.unit_states import MISSING
from packer.remote import access
from packer.writing.pack_writer import PackWriter
from tests.packs.test_shards import text_of
from tests.remote.object_server import Fault, Handler, ObjectServer, once_each

ROWS = 600
KINDS = ("raw.h5", "shards", "jpeg.h5", "zstd.h5", "table.h5")
FIELDS = (
    Field("image", "|u1", (128, 128, 3), {"layout": "HWC", "color": "rgb"}),
    Field("label", "<i8", ()),
    Field("key", "|u1", None, {"encoding": "utf-8"}),
)


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packs of each kind, of several stretches of 8 MiB each."""
    folder = tmp_path_factory.mktemp("packs")
    images = np.random.default_rng(0).integers(0, 256, (ROWS, 128, 128, 3), dtype=np.uint8)
    rows = {"image": images, "label": np.arange(ROWS, dtype="<i8")}
    with PackWriter(str(folder / "raw.h5"), fields=FIELDS, rows=ROWS, block_rows=175, format="h5") as writer:
        for block in range(writer.blocks):
            writer.write_block(block, {k: v[block * 175 : (block + 1) * 175] for k, v in rows.items()})
        writer.finish(rows=ROWS, ragged={"key": [b"%d.png" % row for row in range(ROWS)]}, seed=1)
    packer.repack(folder / "raw.h5", folder / "jpeg.h5", store="jpeg")
    packer.repack(folder / "raw.h5", folder / "shards", shards=225, format="h5")
    pytest.importorskip("zstandard")
    packer.repack(folder / "raw.h5", folder / "zstd.h5", store="zstd")
    lines = "".join(f"{row},{row * 0.5},{row % 3}\n" for row in range(20_000))
    (folder / "t.csv").write_text("a,b,y\n" + lines)
    packer.convert_table(folder / "t.csv", folder / "table.h5", label="y")
    return folder


@pytest.fixture(scope="module")
def objects(packs: Path) -> dict[str, bytes]:
    """The packs as objects of a bucket."""
    return {
        f"bucket/{path.relative_to(packs)}": path.read_bytes()
        for path in packs.rglob("*")
        if path.suffix in (".h5", ".json")
    }


@pytest.fixture
def store(server: ObjectServer, objects: dict[str, bytes]) -> ObjectServer:
    """The server, with all packs in it."""
    server.objects |= objects
    return server


def fields_of(kind: str) -> list[str] | None:
    return None if kind == "table.h5" else ["image", "label", "key", "row"]


def check_equal(
    local: Path, url: str | RemotePack, epochs: int = 1, order: str = "blocks", **cache: Any
) -> None:
    """Compare all rows with the local pack's."""
    fields = fields_of(local.name)
    with (
        PackedBatchDataset(local, 25, order=order, fields=fields, output="numpy") as ours,
        PackedBatchDataset(
            url if isinstance(url, RemotePack) else with_cache(url, **cache),
            25,
            order=order,
            fields=fields,
            output="numpy",
        ) as theirs,
    ):
        for _ in range(epochs):
            for expected, actual in zip(ours, theirs, strict=True):
                for a, b in zip(expected, actual, strict=True):
                    assert np.array_equal(a, b)


SIZES = {"whole": "1GB", "part": "12MB", "none": None}


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        *((kind, "whole") for kind in KINDS),
        ("raw.h5", "part"),
        ("raw.h5", "none"),
        ("zstd.h5", "part"),
        ("table.h5", "none"),
    ],
)
def test_rows_are_the_local_packs(
    store: ObjectServer, packs: Path, tmp_path: Path, kind: str, size: str
) -> None:
    url = f"{'s3:/' if size != 'part' else store.url}/bucket/{kind}"
    check_equal(
        packs / kind,
        url,
        1 + (size == "part"),
        "sequential" if size == "none" else "blocks",
        **cached(tmp_path, size),
    )
    if size != "none":
        assert taken(tmp_path / "cache") <= (1 << 30 if size == "whole" else 12_000_000)
    if size == "whole":
        check_equal(packs / kind, url, 1, "rows", **cached(tmp_path, size))
        once(store, f"bucket/{kind}")


def test_stretches_without_room_are_asked_for_again_by_whoever_needs_them(
    store: ObjectServer, packs: Path, tmp_path: Path
) -> None:
    """Also once all have been asked for: by a copy, and after the process that asks the server was killed."""
    options: Any = {"output": "numpy", "fields": ["image", "label", "key", "row"]}
    with (
        PackedBatchDataset(packs / "raw.h5", 25, **options) as ours,
        PackedBatchDataset(
            with_cache("s3://bucket/raw.h5", **cached(tmp_path, "part")), 25, **options
        ) as theirs,
    ):
        expected = list(ours)
        for case in ("all asked for", "a copy", "killed"):
            if case == "killed":
                os.kill(access.helper_process(), signal.SIGKILL)
            read = pickle.loads(pickle.dumps(theirs)) if case == "a copy" else theirs
            for a, b in zip(expected, read, strict=True):
                assert np.array_equal(a.image, b.image), case
            if case == "a copy":
                read.close()


def cached(folder: Path, size: str) -> dict[str, Any]:
    """The arguments for a cache of a size."""
    return {} if SIZES[size] is None else {"cache": folder / "cache", "cache_size": SIZES[size]}


def taken(folder: Path) -> int:
    """Bytes that a folder takes on the disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def once(store: ObjectServer, key: str) -> None:
    """See that no stretch was sent twice."""
    ends = {name: len(data) for name, data in store.objects.items()}
    many = Counter(
        place
        for place in store.ranges
        if place[0].startswith(key) and place[2] - place[1] != min(END_BYTES, ends[place[0]])
    )
    assert not [place for place, count in many.items() if count > 1 and not place[0].endswith("index.json")]


FAULTS = {"cut": Handler.cut, "refuse": Handler.refuse, "flip": Handler.flip}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("size", ["whole", "none"])
def test_what_a_server_does_wrong_once_changes_no_row(
    store: ObjectServer, packs: Path, tmp_path: Path, fault: Fault, size: str
) -> None:
    cache = cached(tmp_path, size)
    pack = with_cache("s3://bucket/raw.h5", cache.get("cache"), cache.get("cache_size"))
    store.fault = only_large(once_each(fault))
    check_equal(packs / "raw.h5", pack)


def test_what_is_wrong_once_beside_the_rows_changes_nothing(store: ObjectServer, packs: Path) -> None:
    pack = open_remote("s3://bucket/shards")
    store.fault = once_each(Handler.flip)
    check_equal(packs / "shards", pack)


def only_large(fault: Fault) -> Fault:
    """A fault of stretches of images only."""
    return lambda handler, body: len(body) > END_BYTES and fault(handler, body)


def test_a_stall_is_passed_over(store: ObjectServer, packs: Path, tmp_path: Path) -> None:
    pack = with_cache("s3://bucket/raw.h5")
    store.fault = only_large(once_each(Handler.stall))
    with (
        PackedBatchDataset(packs / "raw.h5", 175, output="numpy") as ours,
        PackedBatchDataset(pack, 175, output="numpy") as theirs,
    ):
        assert np.array_equal(next(iter(ours)).image, next(iter(theirs)).image)


@pytest.mark.parametrize("size", SIZES)
def test_bytes_that_stay_wrong_are_an_error(store: ObjectServer, tmp_path: Path, size: str) -> None:
    cache = cached(tmp_path, size)
    dataset = PackedBatchDataset(with_cache("s3://bucket/raw.h5", **cache), 25)
    store.fault = only_large(Handler.flip)
    with (
        dataset,
        pytest.raises(FormatError, match=r"raw.h5: rows \d+ to \d+ of 'image' are damaged in the store"),
    ):
        list(dataset)


@pytest.mark.parametrize("size", SIZES)
def test_an_object_that_is_replaced_is_an_error(store: ObjectServer, tmp_path: Path, size: str) -> None:
    cache = cached(tmp_path, size)
    dataset = PackedBatchDataset(with_cache("s3://bucket/raw.h5", **cache), 25)
    store.objects["bucket/raw.h5"] = store.objects["bucket/zstd.h5"]
    with dataset, pytest.raises(FormatError, match="was replaced or changed after it was opened"):
        list(dataset)


def test_the_same_name_with_other_rows_is_another_pack(
    store: ObjectServer, packs: Path, tmp_path: Path
) -> None:
    check_equal(packs / "raw.h5", "s3://bucket/raw.h5", cache=tmp_path)
    store.objects["bucket/raw.h5"] = store.objects["bucket/jpeg.h5"]
    check_equal(packs / "jpeg.h5", "s3://bucket/raw.h5", cache=tmp_path)


def test_two_addresses_of_one_pack_share_its_rows(store: ObjectServer, packs: Path, tmp_path: Path) -> None:
    check_equal(packs / "raw.h5", "s3://bucket/raw.h5", cache=tmp_path)
    store.ranges.clear()
    check_equal(packs / "raw.h5", f"{store.url}/bucket/raw.h5", cache=tmp_path)
    assert [place for place in store.ranges if place[2] - place[1] > END_BYTES] == []


def test_what_follows_is_asked_for_before_the_loop_comes_there(store: ObjectServer, packs: Path) -> None:
    together = threading.Barrier(4)

    def all_at_once(handler: Handler, body: bytes) -> bool:
        together.wait(60)
        return False

    with PackedBatchDataset("s3://bucket/raw.h5", 25, order="sequential", output="numpy") as dataset:
        store.fault = only_large(all_at_once)
        assert np.array_equal(next(iter(dataset)).label, np.arange(25))


def folder_in(cache: Path) -> Path:
    (folder,) = cache.glob("*.cached")
    return folder


def test_a_state_is_set_once_its_bytes_are_on_the_disk(
    store: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = open_remote("s3://bucket/raw.h5")
    stretches = StretchMap(pack, pack.files)
    cache = StretchCache(pack, pack.files, str(tmp_path), 1 << 30)
    number = int(stretches.numbers("image").rows()[1])
    seen: list[tuple[str, int]] = []

    def flush(path: str) -> None:
        seen.append((os.path.basename(path), int(cache.states(stretches)[number])))

    monkeypatch.setattr("packer.packs.stretch_cache.fsync_path", flush)
    assert len(cache.bring(stretches, number)) == 0
    assert seen == [("pack.h5", MISSING)]
    assert cache.states(stretches)[number] == KEPT
    cache.close()


def test_files_are_made_when_they_are_needed(store: ObjectServer, packs: Path, tmp_path: Path) -> None:
    with contextlib.closing(PackedDataset(with_cache("s3://bucket/shards", tmp_path, "1GB"))) as rows:
        files = folder_in(tmp_path) / "files"
        assert list(files.iterdir()) == []
        assert int(rows[250].label) == int(open_pack(packs / "shards").read("label", 250, 251)[0])
        assert len(list(files.iterdir())) == 3  # so few are opened at once


def test_a_file_that_was_lost_is_fetched_again(store: ObjectServer, packs: Path, tmp_path: Path) -> None:
    check_equal(packs / "shards", "s3://bucket/shards", cache=tmp_path)
    (folder_in(tmp_path) / "files" / "1").unlink()
    check_equal(packs / "shards", "s3://bucket/shards", cache=tmp_path)


def test_a_file_that_is_lost_meanwhile_is_no_zeros(store: ObjectServer, packs: Path, tmp_path: Path) -> None:
    check_equal(packs / "shards", "s3://bucket/shards", cache=tmp_path)
    pack = with_cache("s3://bucket/shards", tmp_path, "1GB")
    assert isinstance(pack.units, RemoteRows)
    pack.units.kept(np.arange(0))  # it is in use
    (folder_in(tmp_path) / "files" / "1").unlink()
    with (
        contextlib.closing(PackedDataset(pack)) as rows,
        pytest.raises(FormatError, match=r"files/1: cannot be read"),
    ):
        rows[250]
    pack.close()


def test_a_full_disk_lets_rows_pass(
    store: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pack = open_remote("s3://bucket/raw.h5")
    stretches = StretchMap(pack, pack.files)
    cache = StretchCache(pack, pack.files, str(tmp_path), 1 << 30)
    units = [int(u) for name in ("image", "key" + OFFSETS) for u in stretches.numbers(name).rows()]
    assert [len(cache.bring(stretches, unit)) for unit in units[:2]] == [0, 0]
    fetch, asked = StretchMap.fetch, []

    def full(self: StretchMap, number: int, path: str = "") -> memoryview:
        asked.append((number, bool(path)))
        if path:
            raise SpaceError(f"{path}: cannot be written (No space left on device).")
        return fetch(self, number)

    monkeypatch.setattr(StretchMap, "fetch", full)
    for unit in units[2:]:
        begin, end = stretches.place(unit)
        assert len(cache.bring(stretches, unit)) == end - begin
    assert asked == [(units[2], True), *((unit, False) for unit in units[2:])]  # it is not tried again
    states = cache.states(stretches)[units]
    assert states.tolist() == [KEPT, KEPT] + [MISSING] * (len(units) - 2)
    assert caplog.text.count("No space left on device") == 1
    cache.close()
    pack.close()


RANK = """
import os, sys, numpy as np
from packer import PackedBatchDataset, open_pack
url, cache, local, rank, world = sys.argv[1:]
with PackedBatchDataset(open_pack(url, cache), 25, order="rows", output="numpy", rank=int(rank), world_size=int(world)) as theirs:
    with PackedBatchDataset(local, 25, order="rows", output="numpy", rank=int(rank), world_size=int(world)) as ours:
        for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert np.array_equal(a.image, b.image) and np.array_equal(a.label, b.label)
            print("batch", flush=True)
print("done")
"""


def start_rank(packs: Path, cache: Path, rank: int = 0, world: int = 1) -> subprocess.Popen[str]:
    arguments = ["s3://bucket/raw.h5", str(cache), str(packs / "raw.h5"), str(rank), str(world)]
    return subprocess.Popen(
        [sys.executable, "-c", RANK, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_ranks_of_a_node_fetch_each_stretch_once(store: ObjectServer, packs: Path, tmp_path: Path) -> None:
    ranks = [start_rank(packs, tmp_path, rank, 2) for rank in range(2)]
    for rank in ranks:
        out, err = rank.communicate()
        assert out.endswith("done\n"), err
    once(store, "bucket/raw.h5")


def test_a_killed_rank_leaves_a_cache_that_is_whole(store: ObjectServer, packs: Path, tmp_path: Path) -> None:
    rank = start_rank(packs, tmp_path)
    assert rank.stdout is not None
    assert rank.stdout.readline() == "batch\n"
    rank.kill()
    rank.communicate()
    check_equal(packs / "raw.h5", "s3://bucket/raw.h5", 2, "rows", cache=tmp_path)
    once(store, "bucket/raw.h5")


def test_a_killed_helper_is_started_again(store: ObjectServer, packs: Path, tmp_path: Path) -> None:
    pack = with_cache("s3://bucket/raw.h5", tmp_path)
    with (
        PackedBatchDataset(packs / "raw.h5", 25, output="numpy") as ours,
        PackedBatchDataset(pack, 25, output="numpy") as theirs,
    ):
        for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert np.array_equal(a.image, b.image)
            if number == 3:
                os.kill(access.helper_process(), signal.SIGKILL)


def test_a_helper_that_is_killed_closes_its_connections_one_after_the_other(store: ObjectServer) -> None:
    access.stat("s3://bucket/raw.h5")
    ends = [socket.socketpair() for _ in range(3)]  # each looks alive until it is asked
    threads = [threading.Thread(target=lambda end=end: (end.recv(1), end.close())) for _, end in ends]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    age = os.getpid(), access._HELPER._deaths
    for ours, _ in ends:
        access._HELPER._idle.append(ours)
        access._HELPER._made[ours] = age
    assert access.stat("s3://bucket/raw.h5").size > 0
    for ours, _ in ends:  # of one, its request; the others were closed with it
        assert ours.fileno() == -1
    for thread in threads:
        thread.join()


def test_packs_that_nobody_has_open_make_room(store: ObjectServer, packs: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.cached").mkdir()
    (tmp_path / "mine.cached" / "thesis.txt").write_text("not to be lost")
    check_equal(packs / "raw.h5", "s3://bucket/raw.h5", cache=tmp_path, cache_size="40MB")
    first = {path.name for path in tmp_path.glob("raw*.cached")}
    check_equal(packs / "zstd.h5", "s3://bucket/zstd.h5", cache=tmp_path, cache_size="40MB")
    assert first
    assert not list(tmp_path.glob("raw*.cached"))
    assert (tmp_path / "mine.cached" / "thesis.txt").read_text() == "not to be lost"


def test_of_an_open_pack_nothing_is_removed(store: ObjectServer, packs: Path, tmp_path: Path) -> None:
    with PackedBatchDataset(with_cache("s3://bucket/raw.h5", tmp_path, "40MB"), 25, output="numpy") as one:
        list(one)
        check_equal(packs / "zstd.h5", "s3://bucket/zstd.h5", 2, cache=tmp_path, cache_size="40MB")
        assert taken(tmp_path) <= 40_000_000
        store.ranges.clear()
        list(one)
        assert store.ranges == []


def test_a_smaller_cache_begins_anew(store: ObjectServer, packs: Path, tmp_path: Path) -> None:
    check_equal(packs / "raw.h5", "s3://bucket/raw.h5", cache=tmp_path)
    check_equal(packs / "raw.h5", "s3://bucket/raw.h5", cache=tmp_path, cache_size="10MB")
    assert taken(tmp_path) <= 10_000_000


def test_a_cache_that_is_removed_meanwhile_gives_no_other_rows(
    store: ObjectServer, packs: Path, tmp_path: Path
) -> None:
    pack = with_cache("s3://bucket/raw.h5", tmp_path / "cache")
    images = open_pack(packs / "raw.h5").read("image")
    with contextlib.closing(PackedDataset(pack)) as dataset:
        assert np.array_equal(dataset[:50].image.permute(0, 2, 3, 1), images[:50])
        shutil.rmtree(tmp_path / "cache")
        with pytest.raises(PackerError, match="was removed while it was in use"):
            dataset[ROWS - 50 :]


def _label_sum(sample: dict[str, Any]) -> dict[str, Any]:
    return {"total": np.int64(sample["image"].sum(dtype=np.int64)), "label": sample["label"]}


@pytest.mark.parametrize("cached", [True, False])
def test_processes_of_a_transform_read_it(
    store: ObjectServer, packs: Path, tmp_path: Path, cached: bool
) -> None:
    cache = {"cache": tmp_path / "cache"} if cached else {}
    with PackedBatchDataset(
        with_cache("s3://bucket/raw.h5", **cache), 75, output="numpy", transform=_label_sum
    ) as dataset:
        found = [batch for _ in range(2) for batch in dataset]
    images = open_pack(packs / "raw.h5").read("image")
    expected = images.reshape(ROWS, -1).sum(1, dtype=np.int64)
    assert np.array_equal(np.concatenate([batch.total for batch in found]), np.tile(expected, 2))


@pytest.mark.parametrize("size", ["whole", "none"])
def test_rows_that_follow_are_asked_for_where_reads_go_on(
    store: ObjectServer, packs: Path, tmp_path: Path, size: str
) -> None:
    def is_asked(row: int) -> bool:
        (images,) = open_pack(packs / "raw.h5").header.extents["image"]
        at = images.offset + row * images.row_bytes
        return any(key == "bucket/raw.h5" and start <= at < stop for key, start, stop in store.ranges)

    for order in ([400, 0, 200], [0, 200, 400]):  # of three stretches; there is a fourth
        pack = with_cache("s3://bucket/raw.h5", **cached(tmp_path, size))
        with contextlib.closing(PackedDataset(pack, fields=["image"])) as rows:
            for row in order:
                rows[row]
            until = time.monotonic() + (0.3 if order[0] else 10)
            while not is_asked(ROWS - 1) and time.monotonic() < until:
                time.sleep(0.01)
        assert is_asked(ROWS - 1) == (order[0] == 0)
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)


@pytest.mark.parametrize("cached", [True, False])
def test_workers_of_a_dataloader_read_it(
    store: ObjectServer, packs: Path, tmp_path: Path, cached: bool
) -> None:
    torch = pytest.importorskip("torch")
    cache = {"cache": tmp_path / "cache"} if cached else {}
    rows = PackedDataset(with_cache("s3://bucket/raw.h5", **cache))
    first = rows[0].image  # the parent has made requests before it forks
    loader = torch.utils.data.DataLoader(
        rows, 50, num_workers=2, multiprocessing_context=multiprocessing.get_context("fork")
    )
    for _ in range(2):
        labels = torch.cat([batch.label for batch in loader])
        assert torch.equal(labels, torch.arange(ROWS))
    assert torch.equal(first, PackedDataset(packs / "raw.h5")[0].image)
    rows.close()


def test_a_pack_opens_with_two_requests_and_no_rows(store: ObjectServer) -> None:
    pack = open_pack("s3://bucket/raw.h5")
    assert isinstance(pack, RemotePack)
    assert pack.rows == ROWS
    assert len(store.ranges) == 1
    assert pack.keys(3, 5) == ["3.png", "4.png"]
    assert np.array_equal(pack.read("label", 10, 20), np.arange(10, 20))


def test_shards_of_npy_files_are_refused_when_they_are_opened(
    store: ObjectServer, packs: Path, tmp_path: Path
) -> None:
    repack(packs / "raw.h5", tmp_path / "npy", format="npy", shards=2)
    store.objects["bucket/shards/index.json"] = (tmp_path / "npy" / "index.json").read_bytes()
    with pytest.raises(FormatError, match=r"s3://bucket/shards/00000: is a folder of \.npy files"):
        open_pack("s3://bucket/shards")


def test_what_is_no_pack(store: ObjectServer) -> None:
    store.objects["bucket/x.h5"] = b"nothing" * 100
    with pytest.raises(FormatError, match="is not a pack, or was opened for writing"):
        open_pack("s3://bucket/x.h5")
    for url in ("s3://bucket/none.h5", "s3://bucket/none/"):
        with pytest.raises(MissingObjectError, match="there is no pack"):
            open_pack(url)
    store.objects["bucket/npy/header.json"] = b"{}"
    with pytest.raises(FormatError, match=r"is a folder of \.npy files"):
        open_pack("s3://bucket/npy")
    data = bytearray(store.objects["bucket/raw.h5"])
    trailer = Trailer.from_bytes(bytes(data[-128:]))
    assert trailer is not None
    data[trailer.checksums_offset] ^= 1
    store.objects["bucket/y.h5"] = bytes(data)
    with (
        PackedBatchDataset("s3://bucket/y.h5", 10) as dataset,
        pytest.raises(FormatError, match="checksum table is damaged"),
    ):
        list(dataset)


def test_shards_open_with_one_request_and_no_look_at_them(store: ObjectServer, packs: Path) -> None:
    pack = open_pack("s3://bucket/shards/")
    assert sum(store.requests.values()) == 1
    assert pack.header == open_pack(packs / "shards").header
    assert np.array_equal(pack.read("label", 0, 3), open_pack(packs / "shards").read("label", 0, 3))
    assert {key for key, *_ in store.ranges} == {"bucket/shards/index.json", "bucket/shards/00000.h5"}


def test_a_shard_by_itself_is_a_pack(store: ObjectServer, packs: Path) -> None:
    local, remote = (open_pack(place).shards[1] for place in (packs / "shards", "s3://bucket/shards"))
    with contextlib.closing(PackedDataset(remote)) as rows:
        assert rows[5].label == local.read("label", 5, 6)[0]


def test_a_shard_is_read_with_one_request_more_than_its_rows(store: ObjectServer) -> None:
    """Its trailer and its checksums come together."""
    with PackedBatchDataset("s3://bucket/shards/", 25, order="sequential", fields=["label"]) as dataset:
        next(iter(dataset))
    asked = {
        place for place in store.ranges if place[0] == "bucket/shards/00000.h5"
    }  # a slow request is made twice
    assert len(asked) == 2, store.ranges


def test_texts_are_read_without_the_offsets_of_other_shards(store: ObjectServer) -> None:
    with contextlib.closing(PackedDataset("s3://bucket/shards/", fields=["key", "label"])) as rows:
        assert rows[3].key.endswith(".png")
    assert {key for key, *_ in store.ranges} == {"bucket/shards/index.json", "bucket/shards/00000.h5"}


def replace_shard(store: ObjectServer) -> None:
    store.objects["bucket/shards/00001.h5"] = store.objects["bucket/shards/00000.h5"]


def cut_shard(store: ObjectServer) -> None:
    store.objects["bucket/shards/00001.h5"] = store.objects["bucket/shards/00001.h5"][:-200]


def remove_shard(store: ObjectServer) -> None:
    del store.objects["bucket/shards/00001.h5"]


def lie_about_extents(store: ObjectServer) -> None:
    """The index, with a true checksum, places labels 8 bytes further than they are."""
    record = json.loads(store.objects["bucket/shards/index.json"])
    del record["checksum"]
    record["headers"][1]["extents"]["label"][0][1] += 8
    record["checksum"] = xxhash.xxh3_128_hexdigest(text_of(record))
    store.objects["bucket/shards/index.json"] = text_of(record)


WAYS = {
    "confirmed": lambda pack: pack.confirm(),
    "read": lambda pack: pack.read("label", 215, 235),
    "keys": lambda pack: pack.keys(215, 235),
    "rows": lambda pack: PackedDataset(pack)[215:235],
    "verified": lambda pack: refuse(packer.verify_pack(pack.path)),
}


def refuse(verdict: packer.Verdict) -> None:
    """Raise what is wrong."""
    raise FormatError(verdict.problems[0].text)


@pytest.mark.parametrize("way", [*WAYS, "cached"])
@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (replace_shard, r"00001\.h5: is not the shard that index\.json lists"),
        (cut_shard, r"00001\.h5: is not a pack, or was opened for writing"),
        (remove_shard, r"00001\.h5: "),
        (lie_about_extents, r"00001\.h5: is not the shard that index\.json lists"),
    ],
)
def test_a_wrong_shard_is_seen_before_a_row_of_it_is_handed_out(
    store: ObjectServer, tmp_path: Path, harm: Any, sentence: str, way: str
) -> None:
    harm(store)
    pack = open_pack("s3://bucket/shards/")
    assert isinstance(pack, RemotePack)
    assert np.array_equal(pack.read("label", 0, 5), pack.read("label", 0, 9)[:5])
    if way == "cached":
        pack = with_cache(pack.path, tmp_path / "cache", "1GB")
    with pytest.raises(PackerError, match=sentence), contextlib.closing(pack):
        WAYS["rows" if way == "cached" else way](pack)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"cache_size": "1GB"}, r"needs a cache\. Pass cache= \(a folder\) too"),
        ({"cache": "c", "cache_size": "much"}, "cache_size='much': is not a size"),
        ({"cache": 3}, "cache=3: is not the path of a folder"),
        ({"cache_shared": True}, r"needs a cache\. Pass cache= \(a folder\) too"),
        ({"cache": "c", "cache_size": "50KB"}, "the tables and cached rows of this pack need"),
    ],
)
def test_wrong_arguments(
    store: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=told):
        with_cache("s3://bucket/raw.h5", **arguments)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "name",
    ["files/pack.h5", "about.json.new", "about.json", "state", "lock", "turn5", "../lock", "files", "."],
)
def test_links_in_a_cache_are_refused(
    store: ObjectServer, packs: Path, tmp_path: Path, name: str, shared: bool
) -> None:
    """Somebody has put them there before the cache was the user's alone, or shares it."""
    victim, cache = tmp_path / "home" / "precious", tmp_path / "cache"
    victim.parent.mkdir()
    victim.write_text("precious")
    check_equal(packs / "raw.h5", "s3://bucket/raw.h5", cache=cache, cache_shared=shared)
    path = Path(os.path.normpath(folder_in(cache) / name))
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(victim.parent if name in ("files", ".") else victim)
    with pytest.raises(UsageError) as error:
        with_cache("s3://bucket/raw.h5", cache, cache_shared=shared)
    assert str(error.value).startswith(f"{path}: is a link; a cache must hold no links")
    assert [(file.name, file.read_text()) for file in victim.parent.iterdir()] == [("precious", "precious")]


def test_a_cache_that_others_can_write_to_is_shared_on_request(
    store: ObjectServer, packs: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o775)
    with pytest.raises(UsageError) as error:
        with_cache("s3://bucket/raw.h5", cache)
    assert str(error.value) == (
        f"{cache}: others can write to it (mode 775); a cache must hold no links, and nothing that others can"
        " write to. Pass a cache= that does not exist yet, or cache_shared=True if it belongs to a group."
    )
    check_equal(packs / "raw.h5", "s3://bucket/raw.h5", cache=cache, cache_shared=True)
    check_equal(packs / "raw.h5", "s3://bucket/raw.h5", cache=tmp_path / "new")


@pytest.mark.parametrize("shared", [False, True])
def test_the_files_of_a_cache_are_open_to_its_users_alone(
    store: ObjectServer, packs: Path, tmp_path: Path, shared: bool
) -> None:
    cache = tmp_path / "cache"
    check_equal(packs / "raw.h5", "s3://bucket/raw.h5", cache=cache, cache_shared=shared)
    paths = [cache, *cache.rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_dir()} == {0o770 if shared else 0o700}
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_file()} == {0o660 if shared else 0o600}


def test_rows_of_a_shared_cache_are_compared_before_their_use(
    store: ObjectServer, packs: Path, tmp_path: Path
) -> None:
    """Another user has written other rows, and all states say that they are the pack's."""
    check_equal(packs / "raw.h5", "s3://bucket/raw.h5", cache=tmp_path, cache_shared=True)
    file = folder_in(tmp_path) / "files" / "pack.h5"
    pack = open_remote("s3://bucket/raw.h5")
    begin, _ = StretchMap(pack, pack.files).place(0)
    with open(file, "r+b") as written:
        written.seek(begin + 5000)
        written.write(bytes(4096))
    store.ranges.clear()
    check_equal(packs / "raw.h5", "s3://bucket/raw.h5", cache=tmp_path, cache_shared=True)
    assert [place[1] for place in store.ranges if place[2] - place[1] > END_BYTES] == [begin]


def test_stretches_that_another_process_of_a_shared_cache_fetched_are_used(
    store: ObjectServer, packs: Path, tmp_path: Path
) -> None:
    with contextlib.closing(
        PackedDataset(with_cache("s3://bucket/raw.h5", tmp_path, cache_shared=True))
    ) as rows:
        rows[0]
        check_equal(packs / "raw.h5", "s3://bucket/raw.h5", cache=tmp_path, cache_shared=True)
        store.ranges.clear()
        rows[0], rows[ROWS - 1]
        assert [place for place in store.ranges if place[2] - place[1] > END_BYTES] == []


def test_memory_and_descriptors_stay_flat(store: ObjectServer, packs: Path, tmp_path: Path) -> None:
    pack = with_cache("s3://bucket/raw.h5", tmp_path, "12MB")
    with PackedBatchDataset(pack, 25, order="sequential", output="numpy") as dataset:
        seen = []
        for _ in range(10):
            for _ in dataset:
                pass
            helper = access.helper_process()
            seen.append([len(os.listdir(f"/proc/{process}/fd")) for process in (helper, os.getpid())])
    assert seen[-1] <= [most + 2 for most in map(max, zip(*seen[:5], strict=True))]


@pytest.mark.parametrize("kind", KINDS)
def test_verifying_reads_every_byte_once(store: ObjectServer, kind: str) -> None:
    url = f"s3://bucket/{kind}"
    verdict = packer.verify_pack(url)
    assert verdict.ok
    assert verdict.nbytes == open_pack(url).nbytes


@pytest.mark.parametrize("kind", ["raw.h5", "jpeg.h5"])
def test_verifying_names_what_is_damaged(store: ObjectServer, kind: str) -> None:
    data = bytearray(store.objects[f"bucket/{kind}"])
    pack = open_remote(f"s3://bucket/{kind}")
    places = StretchMap(pack, pack.files)
    for name in (field.name for field in pack.fields if field.ragged):
        places.find(name, one_run(0, 1), lambda numbers: map(places.fetch, numbers.tolist()))
    begin, _ = places.place(int(places.numbers("image").rows()[0]))
    data[begin + 10] ^= 4
    data[0x60] ^= 4  # of HDF5's own
    store.objects[f"bucket/{kind}"] = bytes(data)
    found = packer.verify_pack(f"s3://bucket/{kind}").problems
    assert [(problem.kind, problem.array, problem.block) for problem in found] == [
        ("rows", "image", 0),
        ("metadata", None, None),
    ]
    assert found[0].text.endswith("(block 0: its checksum differs). Copy the pack there again.")
    data[-10] ^= 1
    store.objects[f"bucket/{kind}"] = bytes(data)
    with pytest.raises(FormatError, match="is not a pack"):
        packer.verify_pack(f"s3://bucket/{kind}")


def test_nothing_is_read_for_no_rows(store: ObjectServer) -> None:
    with contextlib.closing(PackedDataset("s3://bucket/raw.h5")) as rows:
        assert len(rows[5:5].label) == 0
        assert rows[ROWS - 1].label == ROWS - 1


def test_a_window_of_a_forked_child_counts_as_its_own_once_it_is_empty(monkeypatch: pytest.MonkeyPatch):
    window: stretch_window.StretchWindow[int] = stretch_window.StretchWindow(lambda number: memoryview(b"x"))
    window._pid, seen = -1, []  # as in a child, whose second thread comes while the first renews it
    monkeypatch.setattr(stretch_window, "OrderedDict", lambda: seen.append(window._pid) or {})
    window._renew()
    assert seen == [-1]
    assert window._pid == os.getpid()
