from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from packer.errors import FormatError
from packer.format.fields import OFFSETS, Extent, Field
from packer.format.header import Header
from packer.orders.runs import Runs, one_run
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.packs.remote_file import RemoteFile
from packer.packs.remote_pack import RemotePack
from packer.packs.shards import merge_headers
from packer.packs.stretches import Numbers, StretchMap
from packer.remote.object_store import ObjectInfo
from tests.format.packs import Content, write_content, write_shards


def as_remote(pack: Pack) -> RemotePack:
    """A local pack as one in a store, of which nothing is read."""
    files, shards = {}, []
    for part in pack.parts:
        name = Path(part.path).name if pack.shards else ""
        file = RemoteFile(part.path, ObjectInfo(Path(part.path).stat().st_size, None, ""))
        files[name] = file
        shards.append(RemotePack(part.path, part.header, part.seal, files={"": file}))
    return RemotePack(pack.path, pack.header, pack.seal, tuple(shards if pack.shards else ()), files=files)


@pytest.mark.parametrize("kind", ["raw", "jpeg", "zstd"])
@pytest.mark.parametrize("rows", [(40,), (7, 1, 25)], ids=["file", "shards"])
def test_stretches_hold_the_bytes_that_they_are_asked_for(
    tmp_path: Path, kind: str, rows: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "zstd":
        pytest.importorskip("zstandard")
    content = Content.random(kind, sum(rows))
    if len(rows) > 1:
        pack = as_remote(open_pack(write_shards(tmp_path / "p", content, rows, format="h5")))
    else:
        write_content(tmp_path / "p.h5", content)
        pack = as_remote(open_pack(tmp_path / "p.h5"))
    monkeypatch.setattr("packer.packs.stretches.STRETCH_BYTES", 100)  # several stretches an array
    stretches = StretchMap(pack, pack.files)
    data = [Path(part.path).read_bytes() for part in pack.parts]
    for name in (field.name for field in pack.fields if field.ragged):

        def load(numbers: Numbers) -> Iterator[memoryview]:
            for number in numbers.tolist():
                begin, end = stretches.place(number)
                yield memoryview(data[stretches.files.index(stretches.file(number))][begin:end])

        nbytes = sum(extent.rows for extent in pack.header.extents[name])
        stretches.find(name, one_run(0, nbytes), load)
    assert stretches.count > 3 * len(rows)
    draws = np.random.default_rng(0)
    for array, extents in pack.header.extents.items():
        numbers = stretches.numbers(array).rows().tolist()
        blob = f"{array}{OFFSETS}" in pack.header.extents
        for at, number in enumerate(numbers):
            after = [n for n in numbers[at + 1 :] if not blob or stretches.file(n) == stretches.file(number)]
            assert stretches.following(array, number, 3).tolist() == after[:3]
        spans = {number: stretches.span(number) for number in numbers}
        size, before = stretches.element_bytes(array), 0
        bounds, stored = [], []
        for part, own in zip(pack.parts, data, strict=True):
            compressed = part.header.field(array.removesuffix(OFFSETS)).compressed
            places = part.header.extents[array]
            if compressed:
                bounds += [(before + e.offset, before + e.end) for e in places]
                stored.append(own[: max(e.end for e in places)])
            else:
                bounds += [(before, before + e.rows) for e in places]
                stored.append(own[places[0].offset : places[0].end])
            before += len(stored[-1]) // size
        held = b"".join(stored)
        for number, (first, last) in spans.items():  # each holds the bytes of its elements
            begin, end = stretches.place(number)
            own = data[stretches.files.index(stretches.file(number))]
            assert own[begin:end] == held[first * size : last * size]
        for a, b in bounds:
            cuts = np.sort(draws.integers(a, b + 1, (2, 8)), axis=0)
            cuts[:, 0] = a, b
            starts, lengths = cuts[0], cuts[1] - cuts[0]
            expected = {
                number
                for number, (first, last) in spans.items()
                if any(
                    first < start + length and start < last
                    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
                    if length
                )
            }
            assert stretches.holding(array, Runs(starts, lengths)).tolist() == sorted(expected), array
        for start in (-1, before):
            with pytest.raises(FormatError, match="rows lie outside its blocks"):
                stretches.holding(array, Runs(np.array([start]), np.array([1])))
        if any(e.stored is not None for e in extents):
            with pytest.raises(FormatError, match="rows lie outside its blocks"):
                stretches.holding(array, Runs(np.array([0]), np.array([1])))


def test_compressed_blocks_in_any_order(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    write_content(tmp_path / "p.h5", Content.random("zstd", 40))
    pack = as_remote(open_pack(tmp_path / "p.h5"))
    header = pack.header
    array = next(f.name for f in header.fields if f.compressed)
    assert len(header.extents[array]) > 2
    turned = {**header.extents, array: header.extents[array][::-1]}
    stretches = StretchMap(replace(pack, header=replace(header, extents=turned)), pack.files)
    firsts = stretches.numbers(array).rows()
    for block, extent in enumerate(turned[array]):
        assert (
            stretches.holding(array, Runs(np.array([extent.offset]), np.array([extent.nbytes])))
            == firsts[block]
        )
        assert stretches.place(int(firsts[block])) == (extent.offset, extent.end)


def test_a_first_shard_without_bytes_of_a_ragged_field() -> None:
    shards, files = [], {}
    for number, nbytes in enumerate((0, 100)):
        extents = {"key": (Extent("", 4096, nbytes, 1),), "key" + OFFSETS: (Extent("", 8192, 11, 8),)}
        files[str(number)] = file = RemoteFile(f"s3://bucket/{number}", ObjectInfo(9000, None, ""))
        header = Header(10, 10, (Field("key", "|u1", None),), extents)
        shards.append(RemotePack(file.url, header, b"", files={"": file}))
    header = merge_headers([shard.header for shard in shards])
    stretches = StretchMap(RemotePack("s3://bucket", header, b"", tuple(shards), files=files), files)
    some = Runs(np.array([0]), np.array([10]))
    offsets = np.arange(0, 101, 10, dtype="<i8").tobytes()
    stretches.find("key", some, lambda numbers: [memoryview(offsets)] * len(numbers))
    (number,) = stretches.holding("key", some).tolist()
    assert (stretches.file(number), stretches.place(number), stretches.span(number)) == (
        "1",
        (4096, 4196),
        (0, 100),
    )


def test_a_petabyte_takes_no_memory() -> None:
    fields = (
        Field("image", "|u1", (256, 256, 3), {"layout": "HWC"}),
        Field("key", "|u1", None, {"encoding": "utf-8"}),
    )
    rows = 5 * 10**9
    after = 4096 + rows * fields[0].row_bytes
    extents = {
        "image": (Extent("", 4096, rows, fields[0].row_bytes),),
        "key": (Extent("", after, 10 * rows, 1),),
        "key" + OFFSETS: (Extent("", after + 10 * rows, rows + 1, 8),),
    }
    file = RemoteFile("s3://bucket/p.h5", ObjectInfo(after + 10 * rows + 8 * rows + 8, None, ""))
    pack = RemotePack(file.url, Header(rows, 43, fields, extents), b"", files={"": file})
    tracemalloc.start()
    stretches = StretchMap(pack, pack.files)
    begins = np.array([0, 43, rows - 1])
    found = stretches.holding("image", Runs(begins, np.ones(3, np.int64)))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert stretches.count > 100_000_000
    assert [stretches.place(int(number))[0] for number in found[:2]] == [
        4096,
        4096 + 43 * fields[0].row_bytes,
    ]
    assert stretches.place(int(found[2]))[1] == after
