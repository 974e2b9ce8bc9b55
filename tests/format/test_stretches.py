from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from packer.errors import FormatError
from packer.format.header import OFFSETS, Extent, Field, Header
from packer.format.pack import Pack, open_pack
from packer.format.remote_pack import RemoteFile, RemotePack
from packer.format.stretches import StretchMap, StretchRuns
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


def test_runs_of_numbers() -> None:
    runs = StretchRuns(np.array([3, 10, 20]), np.array([2, 0, 4]))
    assert runs.numbers().tolist() == [3, 4, 20, 21, 22, 23]
    assert [runs.part(a, b).tolist() for a, b in ((0, 6), (1, 3), (2, 2), (4, 6))] == [
        [3, 4, 20, 21, 22, 23],
        [4, 20],
        [],
        [22, 23],
    ]


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
    monkeypatch.setattr("packer.format.stretches.STRETCH_BYTES", 100)  # several stretches an array
    stretches = StretchMap(pack)
    for part in range(len(pack.parts)):
        for name in (field.name for field in pack.fields if field.ragged):

            def load(number: int, part: int = part) -> memoryview:
                begin, end = stretches.place(number)
                return memoryview(Path(pack.parts[part].path).read_bytes()[begin:end])

            stretches.find_blobs([(part, name)], load)
    places = {}
    for number in range(stretches.count):
        base, (begin, end) = stretches.address(stretches.file(number)), stretches.place(number)
        places[number] = base + begin, base + end
    assert len(places) > 3 * len(rows)
    draws = np.random.default_rng(0)
    for part, one in enumerate(pack.parts):
        base = stretches.address(stretches.files[part])
        for array, extents in one.header.extents.items():
            for extent in (e for e in extents if e.nbytes):
                cuts = np.sort(draws.integers(0, extent.nbytes + 1, (2, 8)), axis=0)
                begins, ends = base + extent.offset + cuts
                begins[0], ends[0] = base + extent.offset, base + extent.end
                expected = {
                    number
                    for number, (a, b) in places.items()
                    if any(
                        a < end and begin < b for begin, end in zip(begins, ends, strict=True) if begin < end
                    )
                }
                assert stretches.of_addresses(begins, ends).tolist() == sorted(expected), array
                assert stretches.parts_of(begins, ends) == [part]
    outside = np.array([0]), np.array([8])
    with pytest.raises(FormatError, match="rows lie outside its blocks"):
        stretches.of_addresses(*outside)
    last = max(end for _, end in places.values())
    with pytest.raises(FormatError, match="rows lie outside its blocks"):
        stretches.of_addresses(np.array([last - 1]), np.array([last + 1]))


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
    stretches = StretchMap(pack)
    begins = 4096 + np.array([0, 43, rows - 1]) * fields[0].row_bytes
    found = stretches.of_addresses(begins, begins + fields[0].row_bytes)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert stretches.count > 100_000_000
    assert [stretches.place(int(number))[0] for number in found[:2]] == begins[:2].tolist()
    assert stretches.place(int(found[2]))[1] == after
