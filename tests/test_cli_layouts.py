"""packer convert with data sets in layouts of their own."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from packer import open_pack
from packer.cli import cli
from packer.errors import UsageError


def png(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def run(*words: object) -> None:
    cli.main([*map(str, words), "--quiet"], standalone_mode=False)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tars(place: Path) -> list[str]:
    names = []
    for number in range(3):
        names.append(f"{number:06d}.tar")
        with tarfile.open(place / names[-1], "w") as tar:
            for member, data in ((f"{number}.cls", b"%d" % (number % 2)), (f"{number}.png", png(number))):
                info = tarfile.TarInfo(member)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return names


def test_several_tars_are_one_source(place: Path) -> None:
    names = tars(place)
    run("convert", *names, "a.h5", "--size", 4)
    run("convert", "{000000..000002}.tar", "b.h5", "--size", 4)
    run("convert", ".", "c.h5", "--size", 4)
    assert open_pack("a.h5").rows == 3
    assert Path("a.h5").read_bytes() == Path("b.h5").read_bytes() == Path("c.h5").read_bytes()


def test_the_plan_says_as_what_it_was_read(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = tars(place)
    cli.main(["convert", *names, "a.h5", "--size", "4"], standalone_mode=False)
    said = capsys.readouterr()
    text = said.out + said.err
    assert "000000.tar and 2 more: 3 images -> a.h5" in text
    assert text.count("note: Read as WebDataset: 3 samples of 3 tars.") == 1


def test_parquet_with_images_is_no_table(place: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    told = {"info": {"features": {"image": {"_type": "Image"}}}}
    table = pyarrow.table(
        {"image": [{"bytes": png(n), "path": f"{n}.png"} for n in range(4)], "label": [0, 1, 0, 1]}
    )
    table = table.replace_schema_metadata({"huggingface": json.dumps(told)})
    for number in range(2):
        parquet.write_table(table.slice(2 * number, 2), f"{number}.parquet")
    run("convert", "0.parquet", "1.parquet", "a.h5", "--size", 4, "--no-shuffle")
    run("convert", "*.parquet", "b.h5", "--size", 4, "--no-shuffle")
    with h5py.File("a.h5") as file:
        assert file["label"][:].tolist() == [0, 1, 0, 1]
    assert Path("a.h5").read_bytes() == Path("b.h5").read_bytes()
    with pytest.raises(UsageError, match=r"--missing: is about tables; 0\.parquet is read as images"):
        run("convert", "0.parquet", "c.h5", "--missing", "mean")
    parquet.write_table(pyarrow.table({"x": [1.0, 2.0], "y": [0, 1]}), "table.parquet")
    run("convert", "table.parquet", "t.h5", "--label", "y")
    assert open_pack("t.h5").header.table is not None
