"""packer.native: without a compiler everything works, and it is said once what is slow."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from packer import convert_images, native

ROOT = Path(__file__).parents[1]
REMEDY = " Install a C compiler, then reinstall packer with pip --no-cache-dir."
WITHOUT = """
import logging, sys
sys.modules["packer.native._native"] = None
logging.basicConfig(format="log: %(message)s")
"""


def run(code: str, *arguments: object) -> str:
    """All that code prints in a process that has none of the loops."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT + code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def convert(*arguments: object) -> list[str]:
    """The notes and log lines of packer convert."""
    printed = run("from packer.cli import main\nmain()", "convert", *arguments)
    return [line for line in printed.splitlines() if line.startswith(("note: packer", "log: "))]


def test_all_c_files_are_in_the_folder_that_setup_compiles() -> None:
    assert {path.parent for path in (ROOT / "packer").rglob("*.[ch]")} == {ROOT / "packer" / "native"}


@pytest.mark.skipif(not native.COMPILED, reason="packer was installed without a compiler")
def test_the_stub_names_what_the_extension_has() -> None:
    stub = ast.parse((ROOT / "packer" / "native" / "_native.pyi").read_text())
    named = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
    assert named == {name for name in dir(native.loops) if not name.startswith("__")}


def test_an_installation_without_a_compiler_says_what_is_slow(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", tmp_path, "--build-temp", tmp_path],
        env=os.environ | {"CC": "/nonexistent"},
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    said = [line for line in built.stderr.splitlines() if "without its C extension" in line]
    assert said == [f"warning: BuildLoops: {native.without(*native.COSTS)}"]
    assert not list(tmp_path.rglob("*.so"))


def test_converting_images_says_it(photo_folder: Path, tmp_path: Path) -> None:
    assert convert(photo_folder, tmp_path / "out.h5", "--size", "16") == [
        f"note: packer was installed without its C extension: converting images takes 2 to 3 times as long.{REMEDY}"
    ]


def test_files_kept_as_they_are_need_no_loop(photo_folder: Path, tmp_path: Path) -> None:
    assert (
        convert(photo_folder, tmp_path / "out.h5", "--size", "keep", "--store", "jpeg", "--on-error", "stop")
        == []
    )


def test_reading_csv_says_it(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n" + "1.5,2\n" * 20)
    assert convert(tmp_path / "t.csv", tmp_path / "out.h5") == [
        "note: packer was installed without its C extension: reading CSV takes 27 times as long;"
        f" statistics of tables take 11 times as long.{REMEDY}"
    ]


def test_parquet_is_not_csv(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(
        pyarrow.table({"a": [1.5, 2.5]}), tmp_path / "t.parquet"
    )
    assert convert(tmp_path / "t.parquet", tmp_path / "out.h5") == [
        f"note: packer was installed without its C extension: statistics of tables take 11 times as long.{REMEDY}"
    ]


def test_orders_of_many_rows_say_it_once() -> None:
    printed = run(
        """
import numpy as np
from packer import native, randomness
for _ in range(2):
    randomness.permute(np.arange(9), 99_999, 1)
assert not native.warn.cache_info().currsize
for n in (100_000, 200_000):
    randomness.permute(np.arange(9), n, 1)
    randomness.unpermute(np.arange(9), n, 1)
"""
    )
    assert printed == f"log: {native.without('orders')}\n"


def test_loading_a_pack_says_it(photo_folder: Path, tmp_path: Path) -> None:
    convert_images(photo_folder, tmp_path / "out.h5", size=16)
    printed = run(
        """
import packer
for _ in range(2):
    with packer.PackedBatchDataset(sys.argv[1], 4, shuffle=True, output="numpy") as data:
        assert sum(len(labels) for images, labels in data) == packer.open_pack(sys.argv[1]).rows
""",
        tmp_path / "out.h5",
    )
    assert printed == f"log: {native.without('gather')}\n"


def test_nothing_is_said_where_all_is_compiled(
    photo_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if not native.COMPILED:
        pytest.skip("packer was installed without a compiler")
    plans = []
    convert_images(photo_folder, tmp_path / "out.h5", size=16, on_plan=plans.append)
    assert plans[0].notes == ()
    assert caplog.records == []
