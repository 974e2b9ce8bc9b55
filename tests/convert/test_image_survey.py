"""Notes before the work begins: images that are enlarged, and bits that are lost."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer.convert.image_conversion import convert_images
from packer.convert.image_planning import ConversionPlan
from packer.inputs.label_options import Labels
from packer.packs.pack_opening import open_pack


def notes(source: Path, out: Path, **options: object) -> list[str]:
    plans: list[ConversionPlan] = []
    report = convert_images(source, out, on_plan=plans.append, **options)  # type: ignore[arg-type]
    assert report.notes[: len(plans[0].notes)] == plans[0].notes
    return [note for note in report.notes if "class folders" not in note]


def folder_of(folder: Path, *sizes: tuple[int, int]) -> Path:
    folder.mkdir()
    for number, (height, width) in enumerate(sizes):
        Image.new("RGB", (width, height)).save(folder / f"{number}.png")
    return folder


def test_images_that_are_enlarged(tmp_path: Path):
    folder = folder_of(tmp_path / "a", *[(32, 32)] * 8)
    assert notes(folder, tmp_path / "p.h5") == [
        "8 of 8 images examined are smaller than 256x256 and are enlarged, which adds no detail. Pass size=32."
    ]
    assert notes(folder, tmp_path / "q.h5", size=32) == []


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ([(28, 28)] * 10, "10 of 10 images examined are smaller than 64x64 and are enlarged, which adds no detail. Pass size=28."),
        (
            [(50, 90), (60, 61), (100, 120), (90, 90)],
            "2 of 4 images examined are smaller than 64x64 and are enlarged, which adds no detail. Pass size=60.",
        ),
        ([(70, 90)] * 20 + [(60, 80)], None),  # one of many
    ],
)  # fmt: skip
def test_the_size_to_pass(tmp_path: Path, sizes: list[tuple[int, int]], text: str | None):
    found = notes(folder_of(tmp_path / "a", *sizes), tmp_path / "p.h5", size=64)
    assert len(found) == (text is not None)
    assert text is None or found[0].startswith(text)


def test_shapes_count_as_they_are_fitted(tmp_path: Path):
    folder = folder_of(tmp_path / "a", *[(40, 200)] * 4)
    assert len(notes(folder, tmp_path / "p.h5", size=64)) == 1
    assert notes(folder, tmp_path / "q.h5", size=64, fit="pad") == []


@pytest.mark.parametrize("store", ["raw", "jpeg"])
@pytest.mark.parametrize("shard_rows", [None, 2])
def test_bits_that_are_lost_are_counted(tmp_path: Path, store: str, shard_rows: int | None):
    folder = folder_of(tmp_path / "a", *[(32, 32)] * 3)
    for number in (7, 8):
        Image.fromarray(np.full((32, 32), 4095, np.uint16)).save(folder / f"{number}.png")
    found = notes(folder, tmp_path / "p", size=32, store=store, shards=shard_rows)
    assert found == [
        "2 of 5 images examined have more than 8 bits a channel; only the high byte is stored, so the largest value seen, "
        "4,095, becomes 15. To store all bits, pass dtype='uint16'.",
        "2 images have more than 8 bits a channel; the high byte is stored. To store all bits, pass dtype='uint16'.",
    ]
    assert store == "jpeg" or open_pack(tmp_path / "p").read("image").max() == 15


def test_bits_are_counted_over_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("packer.convert.row_storage.block_rows", lambda rows, row_bytes, least: min(rows, 2))
    folder = tmp_path / "a"
    folder.mkdir()
    for number in range(6):
        Image.fromarray(np.full((32, 32), 999, np.uint16)).save(folder / f"{number}.png")

    def stop(done: int) -> None:
        if done >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_images(folder, tmp_path / "p.h5", size=32, workers=1, on_progress=stop)
    report = convert_images(folder, tmp_path / "p.h5", size=32, workers=1)
    assert report.notes[-1].startswith("6 images have more than 8 bits")


@pytest.mark.parametrize(
    ("name", "mode", "lossy"),
    [("a.png", "I;16", True), ("a.tif", "I;16", True), ("a.png", "L", False), ("a.png", "P", False)],
)
def test_which_files_lose_bits(tmp_path: Path, name: str, mode: str, lossy: bool):
    (tmp_path / "a").mkdir()
    Image.new(mode, (32, 32)).save(tmp_path / "a" / name)
    assert bool(notes(tmp_path / "a", tmp_path / "p.h5", size=32)) is lossy


@pytest.mark.parametrize(("largest", "lossy"), [(255, False), (4095, True), (65535, True)])
@pytest.mark.parametrize("kind", ["P5", "P6"])
def test_of_pgm_and_ppm_the_largest_value_tells(tmp_path: Path, kind: str, largest: int, lossy: bool):
    (tmp_path / "a").mkdir()
    pixels = bytes(32 * 32 * (3 if kind == "P6" else 1) * (2 if largest > 255 else 1))
    (tmp_path / "a" / "a.ppm").write_bytes(f"{kind} 32 32 {largest}\n".encode() + pixels)
    assert bool(notes(tmp_path / "a", tmp_path / "p.h5", size=32)) is lossy


# The locale

NAMES = ("cat", "caf\u00e9", "\u732b", "\U0001f431 \ue000")
C_LOCALE = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
SCRIPT = """
import json, os, sys
from packer.cli import main

for words in json.loads(bytes.fromhex(sys.argv[1])):
    sys.argv = ["packer", *(os.fsdecode(word.encode()) for word in words)]  # as a shell hands over arguments
    try:
        main()
    except SystemExit as done:
        print(json.dumps([words[-1], done.code]), flush=True)
"""


def under_c_locale(folder: Path, *commands: list[str]) -> tuple[list[int], str, str]:
    """Run commands in one process under LC_ALL=C. Returns: their exit codes, stdout and stderr."""
    words = json.dumps(commands).encode().hex()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, words], cwd=folder, env=C_LOCALE, capture_output=True, check=True
    )
    out = done.stdout.decode("ascii")
    codes = [json.loads(line)[1] for line in out.splitlines() if line.startswith('["')]
    return codes, out, done.stderr.decode("ascii")


def test_names_are_utf_8_whatever_the_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    pets, masks = Path("p\u00e9ts"), Path("m\u00e4sks")
    keys = [f"{name}/{name} 1.png" for name in NAMES]
    for number, key in enumerate(keys):
        for folder, file in ((pets, key), (masks, key.replace(".png", "_m\u00e4sk.png"))):
            (folder / file).parent.mkdir(parents=True)
            Image.new("L", (8, 8), number + 1).save(folder / file)
    for name, form in (("p\u00e9ts.tar", tarfile.GNU_FORMAT), ("p\u00e9ts.tgz", tarfile.PAX_FORMAT)):
        with tarfile.open(name, "w:gz" if name.endswith("tgz") else "w", format=form) as tar:
            tar.add(pets, "p\u00e9ts")
    with zipfile.ZipFile("p\u00e9ts.zip", "w") as archive:
        for key in keys:
            archive.write(pets / key, f"p\u00e9ts/{key}")
    rows = [(key, key.split("/")[0]) for key in keys]
    Path("list.txt").write_text("".join(f"p\u00e9ts/{key}\t{name}\n" for key, name in rows), "utf-8")
    Path("l.csv").write_text("".join(f"{key},{name}\n" for key, name in rows), "utf-8")
    Path("n.csv").write_text("f\u00efle,kl\u00e4sse\n" + Path("l.csv").read_text("utf-8"), "utf-8")
    listed = ",".join(reversed(NAMES))
    Path("names.txt").write_text("\n".join(NAMES[::-1]), "utf-8")
    columns = {
        "labels": "n.csv",
        "label": "kl\u00e4sse",
        "label_file_column": "f\u00efle",
        "classes": "names.txt",
    }
    given: dict[str, tuple[str, dict[str, str]]] = {
        "folder": ("p\u00e9ts", {}),
        "tar": ("p\u00e9ts.tar", {}),
        "tgz": ("p\u00e9ts.tgz", {}),
        "zip": ("p\u00e9ts.zip", {}),
        "list": ("list.txt", {}),
        "csv": ("p\u00e9ts", {"labels": "l.csv", "classes": listed}),
        "columns": ("p\u00e9ts", columns),
        "splits": ("p\u00e9ts", {"split": "\u00fcben=0.5,test=0.5"}),
        "masks": ("p\u00e9ts", {"pair": "mask=m\u00e4sks/*_m\u00e4sk.png"}),
    }  # fmt: skip
    commands = []
    for name, (source, options) in given.items():
        words = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", value)]
        commands.append(["convert", source, "--size", "8", *words, f"{name}-c.h5"])
    codes, _, err = under_c_locale(tmp_path, *commands)
    assert (codes, err) == ([0] * len(given), "")
    for name, (source, options) in given.items():
        known: dict[str, Any] = {key: value for key, value in options.items() if key != "pair"}
        if name == "columns":
            labels = Labels(known["labels"], known.pop("label"), file_column=known.pop("label_file_column"))
            known["labels"] = labels
        pairs = {"mask": "m\u00e4sks/*_m\u00e4sk.png"} if name == "masks" else None
        convert_images(source, f"{name}.h5", size=8, pairs=pairs, **known)
        assert Path(f"{name}-c.h5").read_bytes() == Path(f"{name}.h5").read_bytes(), name
        pack = open_pack(f"{name}-c.h5")
        found = [key.removeprefix("p\u00e9ts/") for key in pack.keys()]
        assert sorted(found) == sorted(keys), name
        expected = NAMES[::-1] if "classes" in options else tuple(sorted(NAMES))
        assert pack.header.classes == expected, name
    codes, out, err = under_c_locale(
        tmp_path,
        ["info", "folder-c.h5"],
        ["convert", "p\u00e9ts", "--classes", "cat", "--size", "8", "x.h5"],
        ["convert", "p\u00e9ts", "--classes", "cat", "--on-error", "skip", "--size", "8", "x.h5"],
    )
    assert codes == [0, 2, 3]
    assert r"caf\xe9" in out
    assert r"holds the class caf\xe9; 1 class, cat, are allowed" in err
    assert r"  caf\xe9/caf\xe9 1.png: its class is caf\xe9" in err


def test_the_names_of_a_zip_file_that_does_not_say_how_they_are_encoded(tmp_path: Path):
    Image.new("L", (8, 8)).save(tmp_path / "1.png")
    written = {
        "caf\u00e9/1.png".encode(): "caf\u00e9/1.png",
        "caf\u00e9/2.png".encode("cp437"): "caf\u00e9/2.png",
    }
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in written:
            archive.write(
                tmp_path / "1.png",
                name.replace(b"/", b"-").decode("latin-1").encode("ascii", "replace").decode(),
            )
    data = (tmp_path / "a.zip").read_bytes()
    for name in written:
        plain = name.replace(b"/", b"-").decode("latin-1").encode("ascii", "replace")
        data = data.replace(plain, name)
    (tmp_path / "a.zip").write_bytes(data)
    convert_images(tmp_path / "a.zip", tmp_path / "p.h5", size=8)
    assert sorted(open_pack(tmp_path / "p.h5").keys()) == sorted(written.values())
