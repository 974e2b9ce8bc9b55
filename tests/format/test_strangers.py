"""Packs from strangers: no file but the pack's own is opened, nothing hangs, and what bombs announce is not believed."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xxhash

from packer.errors import FormatError
from packer.format.header import HEADER_DATASET, MAX_DEPTH, MAX_VALUES, read_json
from packer.packs import hdf5_inspection
from packer.packs.pack_opening import open_pack
from packer.packs.verify import verify_pack
from packer.writing.journal import Journal, read_journal
from tests.format.packs import Content, write_pack, write_shards

TABLE = "packer/checksums"
IN_OPEN = 0x20  # inotify(7)
ROOT = Path(__file__).parents[2]
Opened = Callable[[], bool]


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A file of the user: another pack, in which every name that an attack may ask for is there."""
    write_pack(tmp_path / "private.h5")
    return tmp_path / "private.h5"


@pytest.fixture
def opened(private: Path) -> Iterator[Opened]:
    """opened() -> whether anybody has opened the user's file since."""
    if not sys.platform.startswith("linux"):
        pytest.skip("inotify is Linux's")
    libc = ctypes.CDLL(None)
    fd = libc.inotify_init1(os.O_NONBLOCK)

    def look() -> bool:
        try:
            return bool(os.read(fd, 4096))
        except BlockingIOError:
            return False

    def begin() -> None:
        libc.inotify_add_watch(fd, os.fsencode(private), IN_OPEN)

    look.begin = begin  # type: ignore[attr-defined]
    yield look
    os.close(fd)


def stranger(folder: Path, edit: Callable[[h5py.File], None]) -> Path:
    """A pack that another program has changed, and so left unsealed."""
    path = folder / "stranger.h5"
    write_pack(path)
    with h5py.File(path, "r+") as file:
        edit(file)
    return path


def external_link(file: h5py.File, name: str, private: Path) -> None:
    del file[name]
    file[name] = h5py.ExternalLink(str(private), name)


def soft_to_external(file: h5py.File, name: str, private: Path) -> None:
    file["aside"] = h5py.ExternalLink(str(private), name)
    del file[name]
    file[name] = h5py.SoftLink("/aside")


def virtual(file: h5py.File, name: str, private: Path) -> None:
    shape, dtype = file[name].shape, file[name].dtype
    del file[name]
    layout = h5py.VirtualLayout(shape, dtype)
    layout[...] = h5py.VirtualSource(str(private), name, shape, dtype)
    file.create_virtual_dataset(name, layout)


def external_storage(file: h5py.File, name: str, private: Path) -> None:
    shape, dtype = file[name].shape, file[name].dtype
    del file[name]
    file.create_dataset(name, shape, dtype, external=[(str(private), 0, h5py.h5f.UNLIMITED)])


WAYS = [external_link, soft_to_external, virtual, external_storage]


@pytest.mark.parametrize(
    ("name", "way"),
    [*itertools.product([HEADER_DATASET, "image", "key.offsets"], WAYS), ("packer", external_link)],
)
def test_arrays_in_other_files_are_refused_unread(
    tmp_path: Path, private: Path, opened: Any, way: Any, name: str
):
    path = stranger(tmp_path, lambda file: way(file, name, private))
    opened.begin()
    said = hdf5_inspection.described(str(path))  # as the process that asks HDF5 does
    named = HEADER_DATASET if name == "packer" else name
    assert said == {
        "error": f"{path}: {named!r} leads to another place or file, which packer did not read;"
        " a pack's arrays lie in the pack. Convert the images again."
    }
    assert not opened()


@pytest.mark.parametrize("way", WAYS)
def test_a_checksum_table_in_another_file_is_not_read(tmp_path: Path, private: Path, opened: Any, way: Any):
    path = stranger(tmp_path, lambda file: way(file, TABLE, private))
    opened.begin()
    assert "error" not in hdf5_inspection.described(str(path))
    assert not opened()


def test_it_is_refused_by_whoever_opens_it(tmp_path: Path, private: Path, opened: Any):
    path = stranger(tmp_path, lambda file: external_link(file, HEADER_DATASET, private))
    opened.begin()
    with pytest.raises(FormatError, match="leads to another place or file"):
        open_pack(path)
    assert not opened()


def test_a_foreign_file_is_described_without_opening_what_it_names(
    tmp_path: Path, private: Path, opened: Any
):
    path = tmp_path / "foreign.h5"
    with h5py.File(path, "w") as file:
        for name in ("image", "label", "key"):
            file[name] = np.zeros((23, 2), "u1")
        file["a" * 200] = np.zeros(3)
        external_link(file, "image", private)
        # Of such a one HDF5 looks for the sources as soon as it is asked for the shape.
        layout = h5py.VirtualLayout((23, 4, 6, 3), "u1", (None, 4, 6, 3))
        source = h5py.VirtualSource(str(private), "image", (23, 4, 6, 3), "u1", (None, 4, 6, 3))
        layout[: h5py.h5s.UNLIMITED] = source[: h5py.h5s.UNLIMITED]
        file.create_virtual_dataset("endless", layout)
        external_storage(file, "label", private)
    opened.begin()
    said = hdf5_inspection.described(str(path))
    assert said["holds"] == [
        f"{'a' * 77}... float64 [3]",
        "endless uint8 in other files",
        "key uint8 [23, 2]",
        "label uint8 in other files",
    ]
    assert not opened()


def bomb(file: h5py.File) -> None:
    del file[HEADER_DATASET]
    dataset = file.create_dataset(HEADER_DATASET, (1 << 29,), "u1", chunks=(1 << 24,), compression="gzip")
    chunk = zlib.compress(b"[" * (1 << 24))
    for start in range(0, 1 << 29, 1 << 24):
        dataset.id.write_direct_chunk((start,), chunk)


def empty(file: h5py.File) -> None:
    del file[HEADER_DATASET]
    file.create_dataset(HEADER_DATASET, (1 << 29,), "u1", fillvalue=ord("["))


@pytest.mark.parametrize("edit", [bomb, empty])
def test_a_header_that_is_not_all_there_is_not_unfolded(tmp_path: Path, edit: Any):
    path = stranger(tmp_path, edit)
    assert hdf5_inspection.described(str(path)) == {
        "error": f"{path}: its header is compressed, or larger than the file or than"
        " 1073741824 bytes; packer writes no such header. Convert the images again."
    }


@pytest.mark.parametrize(
    "dtype",
    [h5py.string_dtype(), h5py.ref_dtype, np.dtype([("a", "u1")]), np.dtype(("u1", (2,))), np.dtype("V1")],
)
@pytest.mark.parametrize("name", [HEADER_DATASET, "image", TABLE])
def test_objects_are_never_read(tmp_path: Path, dtype: Any, name: str):
    def edit(file: h5py.File) -> None:
        del file[name]
        file.create_dataset(name, (23,), dtype)

    path = stranger(tmp_path, edit)
    said = hdf5_inspection.described(str(path))
    assert said.get("now") is None or name == TABLE


def test_the_process_that_asks_hdf5_imports_nothing_from_the_current_folder(tmp_path: Path):
    path = stranger(tmp_path, lambda file: None)
    for name in ("json", "h5py", "resource", "numpy"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')\nraise SystemExit\n")
    code = (
        "import sys; sys.path[:] = [p for p in sys.path if p]; import packer; packer.open_pack('stranger.h5')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "Run packer seal stranger.h5." in done.stderr
    assert (path.exists(), (tmp_path / "run").exists()) == (True, False)


# --- folders ----------------------------------------------------------------------------------------------------------

NPY_FILES = ("trailer", "header.json", "image.npy", "key.offsets.npy", "checksums.npy")


def refused(path: Path) -> list[str]:
    """What opening and verifying say."""
    said = []
    for call in (open_pack, verify_pack):
        with pytest.raises(FormatError) as error:
            call(path)
        said.append(str(error.value))
    return said


@pytest.mark.parametrize("name", NPY_FILES)
def test_links_out_of_a_folder_are_not_followed(tmp_path: Path, name: str):
    pack, private = tmp_path / "pack", tmp_path / "private"
    write_pack(pack)
    (pack / name).rename(private)
    (pack / name).symlink_to(private)
    sentence = (
        f"{pack / name}: is a link that leads out of the pack, to {private}; packer reads nothing there."
        f" If you trust it, copy the pack with the files that it links to: cp -rL {pack} COPY."
    )
    assert refused(pack) == [sentence, sentence]


@pytest.mark.parametrize("name", NPY_FILES)
def test_pipes_are_not_waited_for(tmp_path: Path, name: str):
    pack = tmp_path / "pack"
    write_pack(pack)
    (pack / name).unlink()
    os.mkfifo(pack / name)
    sentence = f"{pack / name}: is not a regular file. Pass what packer convert wrote."
    assert refused(pack) == [sentence, sentence]


def test_links_within_a_folder_and_to_a_pack_are_followed(tmp_path: Path):
    pack = tmp_path / "pack"
    write_pack(pack)
    (pack / "image.npy").rename(pack / "pixels.npy")
    (pack / "image.npy").symlink_to("pixels.npy")
    (tmp_path / "link").symlink_to(pack)
    assert open_pack(tmp_path / "link").rows == 23
    assert verify_pack(tmp_path / "link").ok


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    return write_shards(tmp_path / "shards", Content.random("raw", 23), (10, 8, 5))


@pytest.mark.parametrize("name", ["index.json", "00001.h5"])
def test_neither_index_nor_shard_leads_outside(shards: Path, tmp_path: Path, name: str):
    (shards / name).rename(tmp_path / "private")
    (shards / name).symlink_to(tmp_path / "private")
    with pytest.raises(FormatError, match="is a link that leads out of the pack"):
        open_pack(shards)
    try:
        said = [problem.text for problem in verify_pack(shards).problems]
    except FormatError as error:
        said = [str(error)]
    assert [re.sub("; .*", "", text) for text in said] == [
        f"{shards / name}: is a link that leads out of the pack, to {tmp_path / 'private'}"
    ]


@pytest.mark.parametrize("name", ["index.json", "00001.h5"])
def test_an_index_or_a_shard_that_is_a_pipe(shards: Path, name: str):
    (shards / name).unlink()
    os.mkfifo(shards / name)
    with pytest.raises(FormatError, match="is not a regular file"):
        open_pack(shards)


def test_a_shard_that_is_the_pack_itself_is_looked_at_once(shards: Path):
    (shards / "00000.h5").unlink()
    (shards / "00000.h5").symlink_to(".")
    with pytest.raises(FormatError, match="is a folder without a 'trailer' file"):
        open_pack(shards)
    (problem,) = verify_pack(shards).problems
    assert problem.text == (
        f"{shards / '00000.h5'}: is a folder without a 'trailer' file, not a pack."
        f" Run packer convert {shards / '00000.h5'} OUT.h5, or"
        " packer.fill_pack(images, 'OUT.h5'), which converts while it is loaded from."
    )


def test_an_index_that_is_a_folder_is_a_sentence(shards: Path):
    (shards / "index.json").unlink()
    (shards / "index.json").mkdir()
    for call in (open_pack, verify_pack):
        with pytest.raises(FormatError, match="cannot be read \\(Is a directory\\)"):
            call(shards)


def test_arrays_of_objects_are_never_unpickled(tmp_path: Path):
    pack, ran = tmp_path / "pack", tmp_path / "ran"
    write_pack(pack)

    class Attack:
        def __reduce__(self) -> Any:
            return open, (str(ran), "w")

    for count in (2, 2000):  # a smaller file than it was, and a larger one
        np.save(pack / "image.npy", np.array([Attack()] * count, object), allow_pickle=True)
        with pytest.raises(FormatError, match=r"image.npy: (is .* bytes long|its .npy header)"):
            open_pack(pack)
    assert not ran.exists()


@pytest.mark.parametrize(
    "change", [np.asfortranarray, lambda a: a.view(np.int8), lambda a: a.reshape(-1, 6, 4, 3)]
)
def test_an_array_that_numpy_reads_otherwise_is_not_loaded(tmp_path: Path, change: Any):
    pack = tmp_path / "pack"
    write_pack(pack)
    array = np.load(pack / "image.npy")
    np.save(pack / "image.npy", change(array))
    with pytest.raises(FormatError) as error:
        open_pack(pack)
    assert str(error.value) == (
        f"{pack / 'image.npy'}: its .npy header is not the one that packer wrote; another program has changed the file, or it is"
        " damaged. Convert the images again."
    )
    assert not verify_pack(pack).ok
    np.save(pack / "image.npy", np.ascontiguousarray(array))
    assert open_pack(pack).rows == 23


# --- JSON -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[" * 100_000 + b"]" * 100_000, f"it is nested more than {MAX_DEPTH} deep"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, f"it is nested more than {MAX_DEPTH} deep"),
        (b"[" * 70 + b"]" * 70, f"it is nested more than {MAX_DEPTH} deep"),
        (b"9" * 1_000_000, "it contains a number of 1,000,000 digits"),
        (b"[NaN]", "NaN is not a JSON number"),
        (b"[-Infinity]", "-Infinity is not a JSON number"),
        (b"[1e999]", "1e999 is out of the range of a float"),
        ("é".encode(), "'ascii' codec can't decode byte 0xc3 in position 0: ordinal not in range(128)"),
    ],
)
def test_json_bombs(text: bytes, reason: str):
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
        read_json(text)


def test_json_of_too_many_values():
    with pytest.raises(ValueError, match=r"^it lists 16,777,217 values; at most 16,777,216 are read$"):
        read_json(b"," * MAX_VALUES)


def test_json_that_is_read(tmp_path: Path):
    deep = b"[" * MAX_DEPTH + b"1.5" + b"]" * MAX_DEPTH
    assert json.dumps(read_json(deep)).encode() == deep
    assert read_json(b'{"a":[1,-2,{"b":null}],"b":"x"}') == {"a": [1, -2, {"b": None}], "b": "x"}


def test_a_journal_of_others_is_left_out(tmp_path: Path):
    path = str(tmp_path / "journal")
    journal = Journal(path)
    journal.add({"a": 1})
    journal.close()
    deep = b"[" * 100_000
    with open(path, "ab") as file:
        file.write(xxhash.xxh3_64_hexdigest(deep).encode() + b" " + deep + b"\n")
    assert read_journal(path) == [{"a": 1}]


def test_rows_are_not_counted_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    from pack_mutations import Original, fit

    path = tmp_path / "pack.h5"
    write_pack(path)
    original = Original.read(path)
    record = original.record
    record["rows"] *= 1000
    for name, extents in record["extents"].items():
        last = [["", extents[0][1], 1, 8]] if name == "key.offsets" else []
        extents[:] = [["", extents[0][1], 23, extents[0][3]]] * 1000 + last
    header = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
    path.write_bytes(fit(original, original.files, header=header)[""])
    size = path.stat().st_size
    with pytest.raises(
        FormatError, match=f"is {size} bytes long; its header places 2047008 bytes of rows there"
    ):
        open_pack(path)


def test_a_header_that_no_worker_could_be_sent_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    from pack_mutations import Original, fit

    path = tmp_path / "pack.h5"
    write_pack(path)
    original = Original.read(path)
    text = original.header.to_bytes().replace(b'"HWC"', b"[" * 960 + b"]" * 960)
    path.write_bytes(fit(original, original.files, header=text)[""])
    with pytest.raises(FormatError) as error:
        open_pack(path)
    assert str(error.value) == (
        f"{path}: header is not JSON (it is nested more than {MAX_DEPTH} deep). Convert the images again."
    )
    shutil.rmtree(tmp_path)
