from __future__ import annotations

import dataclasses
import gc
import resource
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from packer.errors import FormatError
from packer.orders.runs import Runs, one_run
from packer.packs.joined_pack import join_packs
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.read import gather
from packer.read.array_store import PackStore
from packer.read.gather import FileArray
from tests.format.packs import KINDS, Content, write_shards
from tests.open_files import listed_files

ROWS = (2, 5, 1, 4, 3, 1, 1, 6, 2, 5, 3, 7)
TOTAL = sum(ROWS)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs of a few shards are read as those of thousands."""
    monkeypatch.setattr("packer.read.gather.FEW_FILES", 2)


def scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system does not let a process have all files."""
    monkeypatch.setattr(gather, "_room", lambda _: 3)
    monkeypatch.setattr(gather, "_LEAST_FILES", 3)


@pytest.fixture(params=["all stay open", "few stay open"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "few stay open":
        scarce(monkeypatch)
    return str(request.param)


def requests() -> list[Runs]:
    """Rows of one file, of several, of all; in order and mixed; none."""
    draws = np.random.default_rng(0)
    mixed = [np.sort(draws.permutation(TOTAL)[:n]) for n in (1, 7, 30)] + [draws.permutation(TOTAL)]
    runs = [Runs(rows, np.ones_like(rows)) for rows in mixed]
    runs += [one_run(a, b) for a, b in ((3, 4), (2, 9), (0, TOTAL), (9, 9))]
    return [*runs, Runs(np.array([20, 3, 33]), np.array([9, 0, 5])), *runs]


def check(pack: Pack, content: Content, reader: PackStore, runs: Runs) -> None:
    rows = runs.rows()
    assert (reader.array("label", runs) == content.labels[rows]).all()
    assert reader.ragged("text", runs) == [content.texts[row] for row in rows]
    if content.store != "jpeg":
        assert (reader.array("image", runs) == content.images[rows]).all()
    else:
        stored = content.stored_images()
        assert reader.ragged("image", runs) == [stored[row] for row in rows]


@pytest.fixture(scope="module", params=KINDS)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Content]:
    """Shards of each kind."""
    format, store = request.param
    content = Content.random(store, TOTAL)
    return write_shards(tmp_path_factory.mktemp("stored") / "p", content, ROWS, format=format), content


@pytest.mark.parametrize("verify", [True, False])
def test_rows_are_those_of_the_shards(stored: tuple[Path, Content], room: str, verify: bool):
    pack, content = open_pack(stored[0]), stored[1]
    reader = PackStore(pack, pack.fields, verify=verify)
    for runs in requests():
        check(pack, content, reader, runs)
        reader.prefetch(runs)
    with pytest.raises(IndexError):
        reader.array("label", one_run(TOTAL - 1, TOTAL + 1))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Content]:
    content = Content.random("raw", TOTAL)
    return write_shards(tmp_path_factory.mktemp("made") / "p", content, ROWS), content


def test_threads_read_it_together(made: tuple[Path, Content], room: str):
    pack, content = open_pack(made[0]), made[1]
    reader, asked = PackStore(pack, pack.fields), requests() * 8
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda runs: check(pack, content, reader, runs), asked))


def open_shards(pack: Path) -> list[str]:
    """Return the path of each open descriptor of the pack's files."""
    return [path for _, path in listed_files() if path.startswith(f"{pack}/")]


def test_a_file_is_opened_when_rows_of_it_are_needed(made: tuple[Path, Content]):
    path, _ = made
    pack = open_pack(path)
    gc.collect()  # what other tests left
    before = len(open_shards(path))
    reader = PackStore(pack, pack.fields)
    reader.array("label", one_run(3, 5))
    assert len(open_shards(path)) == before + 1
    reader.array("image", one_run(0, 6))  # of two shards
    assert len(open_shards(path)) == before + 3
    reader.array("label", one_run(0, TOTAL))
    assert before + 2 + len(ROWS) <= len(open_shards(path)) <= before + 2 + 2 * len(ROWS)  # perhaps mapped
    reader.array("label", one_run(0, TOTAL))
    reader.close()
    assert len(open_shards(path)) == before


def test_of_scarce_descriptors_few_are_held(made: tuple[Path, Content], monkeypatch: pytest.MonkeyPatch):
    scarce(monkeypatch)
    path, content = made
    pack = open_pack(path)
    gc.collect()  # what other tests left
    before = len(open_shards(path))
    reader = PackStore(pack, pack.fields)
    for runs in requests():
        check(pack, content, reader, runs)
        assert len(open_shards(path)) <= before + 4 * 3  # of labels, images, texts and their offsets
    reader.close()


def test_a_shard_that_is_replaced_while_it_is_closed_is_noticed(
    made: tuple[Path, Content], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    scarce(monkeypatch)
    pack = open_pack(shutil.copytree(made[0], tmp_path / "p"))
    reader = PackStore(pack, pack.fields)
    reader.array("label", one_run(0, TOTAL))
    shutil.copy(tmp_path / "p" / "00003.h5", tmp_path / "p" / "00000.h5")
    with pytest.raises(FormatError) as error:
        reader.array("label", one_run(0, 1))
    path = tmp_path / "p" / "00000.h5"
    assert str(error.value) == f"{path}: was replaced or changed after it was opened. Open it again."
    assert (reader.array("label", one_run(2, TOTAL)) == made[1].labels[2:]).all()


def test_a_shard_that_is_replaced_while_it_is_open_is_read_on(made: tuple[Path, Content], tmp_path: Path):
    pack = open_pack(shutil.copytree(made[0], tmp_path / "p"))
    reader = PackStore(pack, pack.fields)
    reader.array("label", one_run(0, 2))
    (tmp_path / "p" / "00000.h5").unlink()
    assert (reader.array("label", one_run(0, TOTAL)) == made[1].labels).all()


def test_a_wrong_shard_is_seen_when_it_is_needed(made: tuple[Path, Content], tmp_path: Path):
    folder = Path(shutil.copytree(made[0], tmp_path / "p"))
    shutil.copy(folder / "00003.h5", folder / "00001.h5")
    pack = open_pack(folder)
    reader = PackStore(pack, pack.fields)
    assert (reader.array("label", one_run(7, TOTAL)) == made[1].labels[7:]).all()
    for _ in range(2):
        with pytest.raises(FormatError, match=r"00001\.h5: is not the shard that index\.json lists"):
            reader.array("label", one_run(6, 7))


def test_files_of_two_packs_of_one_name_are_not_taken_for_each_other(
    made: tuple[Path, Content], tmp_path: Path
):
    """A reader holds those of the pack that was there before."""
    folder = Path(shutil.copytree(made[0], tmp_path / "p"))
    first = open_pack(folder)
    old = PackStore(first, first.fields)
    old.array("label", one_run(0, TOTAL))
    shutil.rmtree(folder)
    labels = np.arange(TOTAL)[::-1]
    write_shards(folder, dataclasses.replace(made[1], labels=labels), ROWS)
    second = open_pack(folder)
    assert (PackStore(second, second.fields).array("label", one_run(0, TOTAL)) == labels).all()
    assert (old.array("label", one_run(0, TOTAL)) == made[1].labels).all()


def test_packs_of_many_files_are_read_as_one(made: tuple[Path, Content], tmp_path: Path, room: str):
    other = Content.random("raw", 9)
    write_shards(tmp_path / "q", other, (2, 2, 3, 2))
    pack = join_packs([open_pack(made[0]), open_pack(tmp_path / "q")])
    labels = np.concatenate([made[1].labels, other.labels])
    reader = PackStore(pack, pack.fields)
    rows = np.random.default_rng(0).permutation(TOTAL + 9)
    for _ in range(2):
        assert (reader.array("label", Runs(rows, np.ones_like(rows))) == labels[rows]).all()


@pytest.mark.parametrize(
    ("limit", "maps", "most"), [(1 << 20, True, 12), (200, True, 12), (100, False, 12), (12, False, 1)]
)
def test_as_many_files_stay_open_as_the_system_allows(
    made: tuple[Path, Content], monkeypatch: pytest.MonkeyPatch, limit: int, maps: bool, most: int
):
    monkeypatch.setattr(gather, "allow_files", lambda _: None)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(gather.os, "listdir", lambda _: ["0", "1", "2"])
    monkeypatch.setattr(gather, "_LEFT_FILES", 1)
    monkeypatch.setattr(gather, "_LEAST_FILES", 1)
    pack = open_pack(made[0])
    array = FileArray(pack, pack.header.extents["label"])
    assert (array.maps, array.most) == (maps, most)
