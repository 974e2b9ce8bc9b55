"""Names, words and files under locales that are not UTF-8: the same packs, the same files, and no traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from packer import Labels, convert_images, convert_table, create, fill_pack, open_pack
from packer.arguments import absolute
from packer.errors import PackerError
from packer.path_text import as_text, on_disk
from packer.writing.working_folder import WorkingFolder

NAMES = ("weiß", "黒")
SCRIPT = """
import json, os, sys
from packer.cli import main

for words in json.loads(bytes.fromhex(sys.argv[1])):
    sys.argv = ["packer", *(os.fsdecode(word.encode()) for word in words)]  # as a shell hands over arguments
    try:
        main()
    except SystemExit as done:
        print("code", done.code, flush=True)
"""


@pytest.fixture(params=["C", "en_US.ISO-8859-1"])
def locale(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Environment of a locale; Latin-1 is compiled where the system has what it takes."""
    given = {
        "LC_ALL": request.param,
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PATH": os.environ["PATH"],
    }
    if request.param != "C":
        if shutil.which("localedef") is None:
            pytest.skip("no localedef")
        folder = tmp_path / "locales"
        folder.mkdir()
        command = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", str(folder / request.param)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("no sources of locales")
        given["LOCPATH"] = str(folder)
    return given


def test_the_command_line_is_utf_8_whatever_the_locale(
    locale: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkdir("bilder-ä")
    rows = []
    for number in range(8):
        Image.new("L", (8, 8), number).save(f"bilder-ä/ü{number}.png")
        rows.append(f"ü{number}.png,{NAMES[number % 2]}\n")
    Path("l.csv").write_text("datei,größe\n" + "".join(rows), "utf-8")
    cells = "".join(f"{n},{NAMES[n % 2]},é{n}\n" for n in range(9))
    Path("tabelle-ä.csv").write_text("größe,farbe,text\n" + cells, "utf-8")
    commands = [
        [
            "convert",
            "tabelle-ä.csv",
            "t-c.h5",
            "--label",
            "farbe",
            "--keep",
            "text",
            "--type",
            "größe=category",
        ],
        ["convert", "bilder-ä", "p-c.h5", "--size", "8", "--labels", "l.csv", "--label", "größe"],
        ["convert", "bilder-ä", "q-c.h5", "--size", "8", "--labels", "l.csv", "--classes", ",".join(NAMES)],
        ["split", "p-c.h5", "prüf=0.5,rest=0.5"],
        ["export", "p-c.h5", "heraus-ä"],
        ["report", "p-c.prüf.h5", "-o", "karte-ä.html"],
        ["info", "t-c.h5"],
        ["convert", "gibt-es-nicht-ä", "x.h5"],
    ]
    words = json.dumps(commands).encode().hex()
    done = subprocess.run([sys.executable, "-c", SCRIPT, words], env=locale, capture_output=True, check=True)
    assert done.stdout.count(b"code 0\n") == len(commands) - 1, done.stderr.decode("latin-1")
    assert done.stdout.endswith(b"code 2\n")
    assert b"Traceback" not in done.stderr
    convert_table("tabelle-ä.csv", "t.h5", label="farbe", keep=["text"], types={"größe": "category"})
    convert_images("bilder-ä", "p.h5", size=8, labels=Labels("l.csv", column="größe"))
    convert_images("bilder-ä", "q.h5", size=8, labels="l.csv", classes=list(NAMES))
    for name in "tpq":
        assert Path(f"{name}-c.h5").read_bytes() == Path(f"{name}.h5").read_bytes(), name
    assert open_pack("p-c.prüf.h5").rows == 4
    listed = Path("heraus-ä/labels.csv").read_text("utf-8").split()
    assert sorted(listed[1:]) == [row.strip() for row in rows]
    assert sorted(path.name for path in Path("heraus-ä").glob("*.png")) == [f"ü{n}.png" for n in range(8)]
    assert "<title>p-c.prüf.h5<" in Path("karte-ä.html").read_text("utf-8")


def test_a_relative_name_without_a_working_folder_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert absolute("a/../b") == os.path.join(os.getcwd(), "b")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert absolute("/a/b") == "/a/b"
    for work in (absolute, WorkingFolder, create, partial(fill_pack, "/images")):
        with pytest.raises(PackerError) as error:
            work("b.h5")
        assert str(error.value) == (
            "b.h5: is relative to the working folder, which was removed. Change to another folder, or pass a full"
            " path."
        )


def test_paths_are_text_and_come_back() -> None:
    for data in ("ä/猫".encode(), b"caf\xe9"):
        assert on_disk(as_text(data)) == data
        assert as_text(os.fsdecode(data)) == as_text(data)
