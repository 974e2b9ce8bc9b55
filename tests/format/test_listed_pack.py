from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from packer.errors import FormatError
from packer.orders.runs import one_run
from packer.packs.joined_pack import concatenate_packs
from packer.packs.pack import Pack, PackFiles
from packer.packs.pack_opening import open_pack
from packer.packs.verify import verify_pack
from packer.read.array_store import PackStore
from tests.format.packs import FORMATS, Content, write_content, write_shards
from tests.packs.test_shards import NOT_LISTED, shard, text_of

ROWS = (4, 1, 7)
CONTENT = Content.random("raw", sum(ROWS))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one pack of each format."""
    folder = tmp_path_factory.mktemp("made")
    for format in FORMATS:
        write_shards(folder / format, CONTENT, ROWS, format=format)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, format: str) -> Path:
    shutil.copytree(made / format, tmp_path / "p")
    return tmp_path / "p"


each_format = pytest.mark.parametrize("format", FORMATS)


def rows_by(pack: Pack, field: str, **options: Any) -> np.ndarray | list[bytes]:
    reader = PackStore(pack, [pack.header.field(field)], **options)
    runs = one_run(0, pack.rows)
    return reader.ragged(field, runs) if field == "text" else reader.array(field, runs)


def hold_files(pack: Pack) -> None:
    with PackFiles(pack):
        pass


WAYS: dict[str, Callable[[Pack], Any]] = {
    "confirm": lambda pack: pack.confirm(),
    "read": lambda pack: pack.read("label"),
    "read_ragged": lambda pack: pack.read_ragged("text"),
    "read of a part": lambda pack: pack.parts[0].read("label"),
    "stored_block": lambda pack: list(pack.parts[0].stored_block("label", 0, 100)),
    "files": hold_files,
    "rows": lambda pack: rows_by(pack, "image"),
    "ragged rows": lambda pack: rows_by(pack, "text"),
    "verified rows": lambda pack: rows_by(pack, "label", verify=True),
    "rows of a part": lambda pack: rows_by(pack.parts[0], "label"),
    "joined": lambda pack: rows_by(concatenate_packs([pack]), "label"),
    "unpickled": lambda pack: pickle.loads(pickle.dumps(pack)).read("label"),
}


@each_format
@pytest.mark.parametrize("way", WAYS)
def test_rows_are_those_of_the_shards(folder: Path, way: str):
    WAYS[way](open_pack(folder))
    pack = open_pack(folder)
    assert (pack.read("label") == CONTENT.labels).all()
    assert (rows_by(pack, "image") == CONTENT.images).all()
    assert rows_by(pack, "text") == CONTENT.texts
    assert verify_pack(folder).ok


def replace_shard(path: Path) -> None:
    """By a pack of as many rows, but others."""
    folder = path.is_dir()
    shutil.rmtree(path) if folder else path.unlink()
    write_content(path, Content.random("raw", 9).take(range(ROWS[0])))


def swap_shards(path: Path) -> None:
    other = shard(path.parent, 2)
    os.rename(path, path.parent / "x")
    os.rename(other, path)
    os.rename(path.parent / "x", other)


def lead_out(path: Path) -> None:
    os.rename(path, path.parent.parent / path.name)
    path.symlink_to(path.parent.parent / path.name)


def remove_trailer(path: Path) -> None:
    (path / "trailer").unlink()


def cut(path: Path) -> None:
    file = path / "label.npy" if path.is_dir() else path
    os.truncate(file, file.stat().st_size - 8)


def rewrite_head(path: Path) -> None:
    """As another program does that writes an array anew."""
    labels = np.load(path / "label.npy")
    np.save(path / "label.npy", labels.reshape(2, -1))


def lie(member: str, column: str, change: int) -> Callable[[Path], None]:
    """The index describes the first shard's extents otherwise, with a true checksum."""

    def of(path: Path) -> None:
        index = path.parent / "index.json"
        record = json.loads(index.read_bytes())
        del record["checksum"]
        extent = record["headers"][0]["extents"][member][0]
        extent[["file", "offset", "rows", "row_bytes", "stored"].index(column)] += change
        record["checksum"] = xxhash.xxh3_128_hexdigest(text_of(record))
        index.write_bytes(text_of(record))

    return of


LEADS_OUT = "{p}/{0}: is a link that leads out of the pack, to {q}/{0};"
NO_TRAILER = "{p}/{0}: is a folder without a 'trailer' file, not a pack."
SHORT = "{p}/{0}/label.npy: is 152 bytes long; the rows of 'label' reach to 160. It was cut short"
OTHER_HEAD = "{p}/{0}/label.npy: its .npy header is not the one that packer wrote"
DAMAGE: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "a file replaced": ("h5", replace_shard, NOT_LISTED),
    "a folder replaced": ("npy", replace_shard, NOT_LISTED),
    "files swapped": ("h5", swap_shards, NOT_LISTED),
    "a file cut": ("h5", cut, "{p}/{0}: trailer is damaged."),
    "an array cut": ("npy", cut, SHORT),
    "no trailer": ("npy", remove_trailer, NO_TRAILER),
    "a link that leads out": ("h5", lead_out, LEADS_OUT),
    "another head": ("npy", rewrite_head, OTHER_HEAD),
    "extents moved in the index": ("h5", lie("label", "offset", 8), NOT_LISTED),
    "a blob made longer in the index": ("npy", lie("text", "rows", 1), NOT_LISTED),
}


@pytest.mark.parametrize(
    ("damage", "way"),
    [(damage, "rows") for damage in DAMAGE]
    + [(damage, way) for damage in ("a folder replaced", "extents moved in the index") for way in WAYS],
)
def test_a_wrong_shard_is_seen_before_a_row_of_it_is_handed_out(
    made: Path, tmp_path: Path, damage: str, way: str
):
    format, harm, sentence = DAMAGE[damage]
    folder = Path(shutil.copytree(made / format, tmp_path / "p"))
    path = shard(folder, 0)
    harm(path)
    with pytest.raises(FormatError) as error:
        WAYS[way](open_pack(folder))
    assert str(error.value).startswith(sentence.format(path.name, p=folder, q=folder.parent))


@pytest.mark.parametrize(("format", "harm", "sentence"), DAMAGE.values(), ids=DAMAGE)
def test_verifying_names_it(folder: Path, harm: Callable[[Path], None], sentence: str):
    harm(shard(folder, 0))
    verdict = verify_pack(folder)
    assert not verdict.ok
    assert f"{folder}/{shard(folder, 0).name}" in verdict.problems[0].text


@each_format
def test_a_shard_that_is_missing_is_seen_at_once(folder: Path):
    path = shard(folder, 1)
    os.rename(path, folder / "away")
    with pytest.raises(FormatError) as error:
        open_pack(folder)
    assert str(error.value) == (
        f"{path}: cannot be read (No such file or directory). Check the name and the permissions."
    )


@each_format
def test_the_others_can_be_read_meanwhile(folder: Path):
    replace_shard(shard(folder, 0))
    pack = open_pack(folder)
    assert (pack.read("label", 4) == CONTENT.labels[4:]).all()
    with pytest.raises(FormatError, match=r"is not the shard that index\.json lists"):
        pack.read("label", 3)


@each_format
def test_a_shard_that_is_replaced_after_it_was_opened_is_noticed(folder: Path):
    pack = open_pack(folder)
    rows_by(pack, "label")
    replace_shard(shard(folder, 0))
    with pytest.raises(FormatError) as error:
        rows_by(pack, "image")
    assert str(error.value) == (
        f"{shard(folder, 0)}: was replaced or changed after it was opened. Open it again."
    )


@each_format
def test_opening_reads_the_index_alone(folder: Path):
    for number in range(3):
        path = shard(folder, number)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        path.write_bytes(b"")
    pack = open_pack(folder)
    assert (pack.rows, len(pack.parts), pack.parts[2].rows) == (12, 3, 7)
    assert [field.name for field in pack.fields] == ["image", "label", "text", "key"]
