from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from packer.errors import FormatError
from packer.format.fields import Field
from packer.packs.pack_opening import open_pack
from packer.packs.shards import read_index, seal_of, shard_name, write_index
from tests.format.packs import KINDS, Content, begin, out_path, write_blocks, write_content, write_shards

ROWS = (7, 1, 12)
TOTAL = sum(ROWS)


def text_of(record: dict[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode()


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """An index that is changed, with a true checksum, whatever it says."""
    record = json.loads((folder / "index.json").read_bytes())
    change(record)
    del record["checksum"]
    record["checksum"] = xxhash.xxh3_128_hexdigest(text_of(record))
    (folder / "index.json").write_bytes(text_of(record))


def put(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change of one value of the index."""

    def change(record: Any) -> None:
        for name in path[:-1]:
            record = record[name]
        record[path[-1]] = value

    return change


def test_an_index_comes_back(sharded: Path):
    shards, digest, skipped = read_index(str(sharded))
    assert [(one.name, one.rows) for one in shards] == [
        (shard(sharded, number).name, rows) for number, rows in enumerate(ROWS)
    ]
    assert list(shards) == [open_pack(one.path) for one in shards]
    assert digest == xxhash.xxh3_128_digest((sharded / "index.json").read_bytes())
    assert skipped == ()
    record = json.loads((sharded / "index.json").read_bytes())
    assert record["shards"] == [[one.name, one.rows, seal_of(one.seal)] for one in shards]


def test_names_of_shards():
    assert [shard_name(n, "h5") for n in (0, 123456)] == ["00000.h5", "123456.h5"]
    assert shard_name(7, "npy") == "00007"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda record: record.update(shards=[], headers=[]), "it lists no shards, or one twice"),
        (put("shards", 1, 0, value="00000.h5"), "it lists no shards, or one twice"),
        (put("shards", 0, 0, value="../x"), "'../x' is not the name of a shard"),
        (put("shards", 0, 0, value="a/b"), "'a/b' is not the name of a shard"),
        (put("shards", 0, 0, value="/etc/passwd"), "'/etc/passwd' is not the name of a shard"),
        (put("shards", 0, 0, value="a\\b"), "'a\\\\b' is not the name of a shard"),
        (put("shards", 0, 0, value=""), "'' is not the name of a shard"),
        (put("shards", 0, 0, value="."), "'.' is not the name of a shard"),
        (put("shards", 0, 0, value=".."), "'..' is not the name of a shard"),
        (put("shards", 0, 0, value=".hidden"), "'.hidden' is not the name of a shard"),
        (put("shards", 0, 0, value="a\0b"), "'a\\x00b' is not the name of a shard"),
        (put("shards", 0, 0, value="a\ud800"), "'\\ud800' is not a character"),
        (put("shards", 0, 0, value=5), "'int' object has no attribute 'startswith'"),
        (put("shards", 0, 1, value=0), "a header has another number of rows than its shard"),
        (put("shards", 0, 1, value=1 << 62), "a header has another number of rows than its shard"),
        (put("shards", 0, 2, value=None), "a trailer does not match its shard's seal"),
        (put("shards", 0, 2, value="ab"), "a trailer does not match its shard's seal"),
        (put("shards", 0, value="abc"), "a trailer does not match its shard's seal"),
        (put("shards", 0, value=["a", 5]), "not enough values to unpack (expected 3, got 2)"),
        (put("shards", 0, value=["a", 5, "ab", 1]), "too many values to unpack (expected 3)"),
        (put("shards", value=5), "'int' object is not iterable"),
        (lambda record: record.pop("shards"), "'shards'"),
        (lambda record: record.pop("headers"), "'headers'"),
        (lambda record: record.pop("version"), "'version'"),
    ],
)
def test_each_impossible_index_is_one_sentence(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], reason: str
):
    folder = write_shards(tmp_path / "p", Content.random("raw", 8), (5, 3))
    rewrite(folder, change)
    with pytest.raises(FormatError) as error:
        open_pack(folder)
    assert str(error.value) == f"{folder}/index.json: is damaged ({reason}). Convert the images again."


def test_members_that_are_not_known_are_ignored(sharded: Path):
    """As those of later versions are."""
    rewrite(sharded, put("later", value={"what": 5}))
    assert open_pack(sharded).rows == TOTAL


def test_an_index_of_another_version(sharded: Path):
    rewrite(sharded, put("version", value=2))
    with pytest.raises(FormatError) as error:
        open_pack(sharded)
    assert str(error.value) == (
        f"{sharded}/index.json: format version is 2; this packer reads 1."
        " Upgrade packer, or convert the images again."
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"5",
        b"[]",
        b"null",
        b'"index"',
        b"{}",
        b'{"checksum":5}',
        b"[" * 99_999,
        "\u00e4".encode(),
        b"{nan",
    ],
)
def test_noise_is_a_format_error(tmp_path: Path, data: bytes):
    (tmp_path / "index.json").write_bytes(data)
    with pytest.raises(
        FormatError, match=r"^.*/index\.json: is damaged \(.*\)\. Convert the images again\.$"
    ):
        open_pack(tmp_path)


@given(st.data())
def test_every_changed_byte_of_an_index_is_seen(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    folder = write_shards(tmp_path_factory.mktemp("index") / "p", Content.random("raw", 2), (1, 1))
    text = bytearray((folder / "index.json").read_bytes())
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] = data.draw(st.integers(0, 255).filter(lambda byte: byte != text[place]))
    (folder / "index.json").write_bytes(bytes(text))
    with pytest.raises(FormatError, match=r"index\.json: is damaged"):
        read_index(str(folder))


@pytest.fixture
def sharded(tmp_path: Path, format: str) -> Path:
    return write_shards(tmp_path / "p", Content.random("raw", TOTAL), ROWS, format=format)


def shard(folder: Path, number: int) -> Path:
    return next(path for path in (folder / f"{number:05d}", folder / f"{number:05d}.h5") if path.exists())


def rename_shards(folder: Path) -> None:
    one, two = shard(folder, 0), shard(folder, 1)
    os.rename(one, folder / "x")
    os.rename(two, one)
    os.rename(folder / "x", two)


def replace_shard(folder: Path) -> None:
    """By a pack of as many rows, but others."""
    path = shard(folder, 0)
    content = Content.random("raw", 9).take(range(7))
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    write_content(path, content)


def shard_of_shards(folder: Path) -> None:
    path = shard(folder, 0)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    write_shards(path, Content.random("raw", 2), (1, 1))


def loop(folder: Path) -> None:
    path = shard(folder, 0)
    os.rename(path, folder / "away")
    path.symlink_to(path.name)


def loop_to_itself(folder: Path) -> None:
    """The pack, as its own first shard."""
    path = shard(folder, 0)
    os.rename(path, folder / "away")
    path.symlink_to(folder)


NOT_LISTED = (
    "{p}/{0}: is not the shard that index.json lists; it was replaced or changed."
    " Restore the original, or convert the images again."
)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            lambda p: os.rename(shard(p, 1), p / "away"),
            "{p}/{1}: cannot be read (No such file or directory). Check the name and the permissions.",
        ),
        (rename_shards, NOT_LISTED),
        (replace_shard, NOT_LISTED),
        (
            shard_of_shards,
            "{p}/{0}: is a folder without a 'trailer' file, not a pack."
            " Run packer convert {p}/{0} OUT.h5, or packer.fill_pack(images, 'OUT.h5'), which converts while it is loaded from.",
        ),
        (
            loop,
            "{p}/{0}: cannot be read (Too many levels of symbolic links). Check the name and the permissions.",
        ),
        (
            loop_to_itself,
            "{p}/{0}: is a folder without a 'trailer' file, not a pack."
            " Run packer convert {p}/{0} OUT.h5, or packer.fill_pack(images, 'OUT.h5'), which converts while it is loaded from.",
        ),
        (
            lambda p: rewrite(p, put("shards", 0, 0, value="index.json")),
            "{p}/index.json: is neither a pack nor an HDF5 file. Pass what packer convert wrote.",
        ),
    ],
)
def test_each_wrong_shard_is_one_sentence(
    sharded: Path, format: str, damage: Callable[[Path], None], sentence: str
):
    damage(sharded)
    with pytest.raises(FormatError) as error:
        open_pack(sharded).confirm()
    names = [shard_name(number, format) for number in range(3)]
    assert str(error.value) == sentence.format(*names, p=sharded)


@pytest.mark.parametrize("change", ["fields", "classes"])
def test_shards_with_other_fields_or_classes_are_refused(tmp_path: Path, format: str, change: str):
    folder, content = write_shards(tmp_path / "p", Content.random("raw", 8), (4, 4), format=format), None
    second = shard(folder, 1)
    content = Content.random("raw", 4)
    fields = [*content.fields, Field("more", "|u1", None)] if change == "fields" else content.fields
    members = {"classes": ("cat", "dog")} if change == "classes" else {}
    with begin(second, content, fields=fields, overwrite=True, block_rows=4) as writer:
        write_blocks(writer, content, [0])
        ragged = {"key": content.keys, "more": [b""] * 4}
        writer.finish(rows=4, ragged=ragged if change == "fields" else {"key": content.keys}, **members)
    shards = [open_pack(shard(folder, 0)), open_pack(second)]
    with pytest.raises(FormatError) as error:
        write_index(str(folder), shards)
    assert str(error.value) == (
        f"{second}: has other fields or classes than {shards[0].name}; all shards of a pack have the same."
        " Restore the original."
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [ROWS, (TOTAL,), (1,) * 4])
def test_shards_read_as_one(tmp_path: Path, kind: tuple[str, str], rows: tuple[int, ...]):
    content = Content.random(kind[1], sum(rows))
    pack = open_pack(write_shards(tmp_path / "p", content, rows, format=kind[0]))
    assert (pack.rows, pack.format, pack.sealed, len(pack.parts)) == (sum(rows), kind[0], True, len(rows))
    assert pack.fields == content.fields
    for start, stop in ((0, None), (0, 3), (2, 4), (3, 3), (1, 99)):
        part = slice(start, stop)
        assert (pack.read("label", start, stop) == content.labels[part]).all()
        assert pack.read_ragged("text", start, stop) == content.texts[part]
        assert [os.fsencode(key) for key in pack.keys(start, stop)] == content.keys[part]
        if kind[1] == "raw":
            assert (pack.read("image", start, stop) == content.images[part]).all()
        elif kind[1] == "jpeg":
            assert pack.read_ragged("image", start, stop) == content.stored_images()[part]
    for name in ("text", "text.offsets", "key", *(["image"] if kind[1] != "raw" else [])):
        with pytest.raises(ValueError, match=r"is not stored in one piece$"):
            pack.read(name)


def test_the_bytes_of_a_shard_are_those_of_a_pack_of_its_own(sharded: Path, format: str):
    """Checksums and stored blocks are asked of the parts."""
    pack = open_pack(sharded)
    alone = [open_pack(os.path.join(sharded, shard_name(n, format))) for n in range(3)]
    assert pack.nbytes == sum(part.nbytes for part in alone)
    for part, own in zip(pack.parts, alone, strict=True):
        assert (part.checksums() == own.checksums()).all()
        for array in part.header.columns:
            for block in range(part.header.blocks):
                data = b"".join(part.stored_block(array, block, 100))
                number = part.header.columns.index(array)
                assert xxhash.xxh3_64_intdigest(data) == part.checksums()[block, number]


def test_files_that_are_not_listed_are_no_part_of_the_pack(sharded: Path, format: str):
    shutil.copytree(sharded / "00000", sharded / "00003") if format == "npy" else shutil.copy(
        sharded / "00000.h5", sharded / "00003.h5"
    )
    (sharded / "index.json.new").write_text("half")
    assert open_pack(sharded).rows == TOTAL


def test_a_pack_that_has_grown_is_another(sharded: Path, format: str):
    pack = open_pack(sharded)
    pack.check_same()
    path = out_path(sharded, format, "00003")
    write_content(path, Content.random("raw", 5))
    shards, *_ = read_index(str(sharded))
    write_index(str(sharded), [*shards, open_pack(path)])
    with pytest.raises(FormatError) as error:
        pack.check_same()
    assert str(error.value) == f"{sharded}: was replaced or changed after it was opened. Open it again."
    assert open_pack(sharded).rows == TOTAL + 5


def test_a_replaced_shard_is_noticed(sharded: Path):
    pack = open_pack(sharded)
    pack.confirm()
    replace_shard(sharded)
    with pytest.raises(FormatError) as error:
        pack.check_same()
    name = shard(sharded, 0)
    assert str(error.value) == f"{name}: was replaced or changed after it was opened. Open it again."


def test_a_missing_index_is_not_a_pack(sharded: Path):
    (sharded / "index.json").unlink()
    with pytest.raises(FormatError, match="is a folder without a 'trailer' file, not a pack"):
        open_pack(sharded)
