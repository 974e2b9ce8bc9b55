"""The data card: what was planted is found and counted, the page shows it, and loads nothing."""

from __future__ import annotations

import html
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from packer import convert_images, convert_table, open_pack, pack_dataset, report
from packer.errors import FormatError, MissingDependencyError, UsageError
from packer.reports.label_measures import LabelMeasures, spread_rows
from tests.remote.conftest import server as server
from tests.remote.object_server import ObjectServer

Pixels = NDArray[np.uint8]


def scene(number: int) -> Pixels:
    """uint8 [64, 80, 3], smooth, and unlike that of any other number."""
    draws = np.random.default_rng(number)
    coarse = Image.fromarray(draws.integers(0, 256, (5, 6, 3), np.uint8))
    return np.asarray(coarse.resize((80, 64), Image.Resampling.BICUBIC))


def save(pixels: Pixels, path: Path, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    """photos/ of 2 classes with 8 scenes each, all unlike."""
    for number in range(16):
        save(scene(number), tmp_path / f"photos/{'ab'[number % 2]}/{number}.png")
    return tmp_path / "photos"


def page_of(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "options", [{}, {"store": "jpeg"}, {"size": "max=64"}, {"size": "max=64", "store": "jpeg"}, {"shards": 5}]
)
def test_images_that_are_all_unlike_are_no_duplicates(scenes: Path, tmp_path: Path, options: Any) -> None:
    convert_images(scenes, tmp_path / "p.h5", **{"size": 64, "split": "train=0.5,val=0.5", **options})
    card = report(tmp_path / "p.h5", tmp_path / "r.html")
    assert (card.rows, card.exact, card.near, card.leaked, card.suspects) == (
        16,
        0,
        0,
        {"train": 0, "val": 0},
        0,
    )
    page = page_of(card.path)
    assert re.findall('<figure class="shot" title="(.);', page) == ["a", "b"] * 8
    assert "None were found." in page


def smaller(pixels: Pixels) -> Pixels:
    return np.asarray(Image.fromarray(pixels).resize((40, 32), Image.Resampling.LANCZOS))


def recompressed(pixels: Pixels) -> Pixels:
    memory = io.BytesIO()
    Image.fromarray(pixels).save(memory, "JPEG", quality=30)
    return np.asarray(Image.open(memory))


def brighter(pixels: Pixels) -> Pixels:
    return (pixels * 1.15).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("change", [smaller, recompressed, brighter])
@pytest.mark.parametrize("store", ["raw", "jpeg"])
def test_near_duplicates_are_found_in_another_pack(
    scenes: Path, tmp_path: Path, change: Any, store: str
) -> None:
    """Of 6 images of a second pack 2 are changed copies, one of them under another label."""
    save(change(scene(2)), tmp_path / "test/a/0.png")
    save(change(scene(5)), tmp_path / "test/a/1.png")  # a "b"
    for number in range(100, 104):
        save(scene(number), tmp_path / f"test/b/{number}.png")
    convert_images(scenes, tmp_path / "train.h5", size=64, store=store)
    convert_images(tmp_path / "test", tmp_path / "test.h5", size=64, store=store)
    card = report([tmp_path / "train.h5", tmp_path / "test.h5"], tmp_path / "r.html")
    assert (card.rows, card.exact, card.near) == (22, 0, 4)
    assert card.leaked == {"train.h5": 2, "test.h5": 2}
    assert card.suspects == 2
    page = page_of(card.path)
    assert "2 rows of test.h5 (33 %): (nearly) the same as a row of another pack." in page
    for key in ("a/2.png", "b/5.png", "a/0.png", "a/1.png"):
        assert page.count(f"<span>{key}</span>") >= 2, key  # on the contact sheet, and in a pair


def test_exact_duplicates_are_counted_by_bytes(scenes: Path, tmp_path: Path) -> None:
    for copy in range(3):
        shutil.copy(scenes / "a/0.png", scenes / f"a/copy{copy}.png")
    convert_images(scenes, tmp_path / "p.h5", size=64)
    card = report(tmp_path / "p.h5", tmp_path / "r.html")
    assert (card.rows, card.exact, card.near, card.suspects, card.leaked) == (19, 3, 4, 0, {})
    assert "<h3>Exact duplicates: 1 pair</h3>" in page_of(card.path)


def test_images_of_one_colour_are_compared_by_bytes_alone(tmp_path: Path) -> None:
    images = np.repeat(np.arange(0, 80, 10, dtype=np.uint8), 32 * 32 * 3).reshape(-1, 32, 32, 3)
    pack_dataset((np.concatenate((images, images[:1])), np.arange(9)), tmp_path / "p.h5")
    card = report(tmp_path / "p.h5", tmp_path / "r.html")
    assert (card.exact, card.near, card.suspects) == (1, 2, 2)
    assert "9 images of (nearly) one colour: compared by bytes alone." in page_of(card.path)


def test_pixels_of_16_bits_are_compared_as_bytes_are(tmp_path: Path) -> None:
    images = np.stack([scene(n) for n in range(8)]) / 255
    images = np.concatenate((images, images[:1] * 0.9))
    pack_dataset({"image": (images * 65535).astype(np.uint16)}, tmp_path / "p.h5")
    card = report(tmp_path / "p.h5", tmp_path / "r.html")
    assert (card.exact, card.near) == (0, 2)


def test_the_page_tells_of_classes_sizes_and_what_was_left_out(scenes: Path, tmp_path: Path) -> None:
    (scenes / "a/0.png").write_bytes(b"no image")
    save(scene(50)[:32], scenes / "b/wide.png")
    convert_images(scenes, tmp_path / "p.h5", size="max=64", on_error="skip")
    page = page_of(report(tmp_path / "p.h5", tmp_path / "r.html").path)
    left_out = page[page.index('id="skipped"') :]
    assert re.search(r"<td[^>]*>a/0\.png</td><td[^>]*>[^<]{10,}</td>", left_out)
    assert "1 input could not be packed." in page
    classes = page[page.index('id="classes"') : page.index('id="sheet"')]
    assert re.findall(r'<td class="name">(\w)</td>.*?<td class="n">(\d+)</td>', classes, re.DOTALL) == [
        ("b", "9"),
        ("a", "7"),
    ]
    assert (
        "25 to 51 px, median 51" in page
    )  # heights, of 32 x 80 pixels brought to 25 x 64; all widths are 64
    assert "64 to 64 px, median 64" in page


def test_text_from_files_is_no_markup(tmp_path: Path) -> None:
    for number in range(4):
        save(scene(number), tmp_path / f"photos/<script>alert(1)<b>/{number}&quot;<img src=x>.png")
    convert_images(tmp_path / "photos", tmp_path / "<i>p.h5", size=32, labels=None)
    page = page_of(report(tmp_path / "<i>p.h5", tmp_path / "r.html").path)
    for markup in ("<script", "<img src=x", "<i>p"):
        assert markup not in page
    assert html.escape("<script>alert(1)<b>") in page


def test_the_page_loads_nothing_and_is_the_same_each_time(scenes: Path, tmp_path: Path) -> None:
    convert_images(scenes, tmp_path / "p.h5", size=32)
    first = Path(report(tmp_path / "p.h5", tmp_path / "a.html", workers=1).path).read_bytes()
    second = Path(report(tmp_path / "p.h5", tmp_path / "b.html", workers=3).path).read_bytes()
    assert first == second
    page = first.decode()
    assert "<script" not in page
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)
    assert "default-src 'none'" in page
    assert not list(tmp_path.glob("*.writing"))


@pytest.fixture
def flights(tmp_path: Path) -> Path:
    """100 flights: `distance` tells `delay` but for its sign, `noise` does not, `carrier` is nearly the class."""
    draws = np.random.default_rng(0)
    distance = draws.normal(0, 100, 100)
    lines = ["distance,noise,carrier,empty,delay"]
    for n, value in enumerate(distance):
        empty = "" if n % 4 else f"{n}"
        lines.append(
            f"{value:.4f},{draws.normal():.4f},{'AB'[int(value > 0)]},{empty},{-2 * value + draws.normal():.4f}"
        )
    lines += [lines[5], lines[6]]  # repeated rows
    (tmp_path / "flights.csv").write_text("\n".join([*lines, ""]))
    return tmp_path / "flights.csv"


def test_columns_of_a_table(flights: Path, tmp_path: Path) -> None:
    convert_table(flights, tmp_path / "t.h5", label="delay", missing="median", standardize=True)
    card = report(tmp_path / "t.h5", tmp_path / "r.html")
    assert (card.rows, card.exact, card.suspects) == (102, 2, 0)
    page = page_of(card.path)
    assert "2 of 102 rows repeat the features and categories of an earlier row." in page
    assert "76 (75 %)" in page  # cells that are missing in `empty`


def test_the_same_features_with_two_labels_are_suspects(flights: Path, tmp_path: Path) -> None:
    lines = flights.read_text().split()
    rows = [line.split(",") for line in lines[1:]]
    rows = [[*row[:-1], "late" if row[2] == "A" else "early"] for row in rows]
    rows.append([*rows[0][:-1], "late" if rows[0][-1] == "early" else "early"])
    flights.write_text("\n".join([lines[0], *(",".join(row) for row in rows), ""]))
    convert_table(flights, tmp_path / "t.h5", label="delay", missing="median")
    assert report(tmp_path / "t.h5", tmp_path / "r.html").suspects == 2


@pytest.mark.parametrize(
    ("labels", "title"),
    [
        ([0, 1, 2] * 40, "Classes"),
        ([-1, 0, 1] * 40, "Classes"),  # -1: unlabeled
        ([-2, 0, 1] * 40, "Label"),
        ([*range(1001), *range(200)], "Label"),
    ],
)
def test_whole_numbers_of_a_table_are_classes_or_amounts(
    tmp_path: Path, labels: list[int], title: str
) -> None:
    lines = ["x,y", *(f"{number}.5,{label}" for number, label in enumerate(labels))]
    (tmp_path / "t.csv").write_text("\n".join([*lines, ""]))
    convert_table(tmp_path / "t.csv", tmp_path / "t.h5", label="y")
    page = page_of(report(tmp_path / "t.h5", tmp_path / "r.html").path)
    assert f'<section id="classes"><h2>{title}</h2>' in page


def test_a_pack_in_a_store(server: ObjectServer, scenes: Path, tmp_path: Path) -> None:
    convert_images(scenes, tmp_path / "p.h5", size=64, store="jpeg", split="train=0.5,val=0.5")
    server.objects["bucket/p.h5"] = (tmp_path / "p.h5").read_bytes()
    local = report(tmp_path / "p.h5", tmp_path / "local.html")
    stored = report("s3://bucket/p.h5", tmp_path / "stored.html")
    assert stored.packs == ("s3://bucket/p.h5",)
    assert page_of(stored.path) == page_of(local.path)


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("r.txt", "r.txt: is not named as a page; .html and .htm are allowed. Pass another name."),
        ("no/r.html", "its folder"),
        (
            "taken.html",
            "taken.html: exists; nothing is overwritten unasked. Pass overwrite=True, or another name.",
        ),
    ],
)
def test_what_cannot_be_written_is_said_before_any_work(
    scenes: Path, tmp_path: Path, out: str, said: str
) -> None:
    convert_images(scenes, tmp_path / "p.h5", size=32)
    (tmp_path / "taken.html").write_text("mine")
    with pytest.raises(UsageError) as error:
        report(tmp_path / "p.h5", tmp_path / out)
    assert said in str(error.value)
    with pytest.raises(UsageError, match="is no report"):
        report(tmp_path / "p.h5", tmp_path / "taken.html", overwrite=True)
    assert (tmp_path / "taken.html").read_text() == "mine"


def test_a_report_is_replaced_when_asked(scenes: Path, tmp_path: Path) -> None:
    convert_images(scenes, tmp_path / "p.h5", size=32)
    report(tmp_path / "p.h5", tmp_path / "r.html", rows=0)
    small = (tmp_path / "r.html").stat().st_size
    report(tmp_path / "p.h5", tmp_path / "r.html", overwrite=True)
    assert (tmp_path / "r.html").stat().st_size > small


def test_packs_that_do_not_go_together(scenes: Path, flights: Path, tmp_path: Path) -> None:
    convert_images(scenes, tmp_path / "p.h5", size=32)
    convert_table(flights, tmp_path / "t.h5", label="delay", missing="median")
    for packs, said in (
        ([], "names no pack"),
        (["p.h5", "p.h5"], "is given twice"),
        (["p.h5", "t.h5"], "a report shows packs of images, or packs of tables with the same columns"),
    ):
        with pytest.raises(UsageError, match=said):
            report([tmp_path / name for name in packs], tmp_path / "r.html")


def test_a_damaged_pack_leaves_no_page(scenes: Path, tmp_path: Path) -> None:
    convert_images(scenes, tmp_path / "p.h5", size=64, store="jpeg")
    pack = open_pack(tmp_path / "p.h5")
    (extent,) = pack.header.extents["image"]
    with open(tmp_path / "p.h5", "r+b") as file:
        file.seek(extent.offset)
        file.write(b"\0" * 64)
    with pytest.raises(FormatError, match="row 0 of 'image' is damaged"):
        report(tmp_path / "p.h5", tmp_path / "r.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.h5", "photos"]


def test_without_jinja_nothing_is_read(monkeypatch: pytest.MonkeyPatch, scenes: Path, tmp_path: Path) -> None:
    convert_images(scenes, tmp_path / "p.h5", size=32)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    read: list[int] = []
    with pytest.raises(MissingDependencyError) as error:
        report(tmp_path / "p.h5", tmp_path / "r.html", on_progress=read.append)
    assert str(error.value) == "report: jinja2 is not installed. Run: pip install jinja2"
    assert read == []


def test_the_sheet_has_all_classes_in_turn_spread_over_the_pack() -> None:
    ids = np.array([0] * 1000 + [1] * 3)
    labels = LabelMeasures("class", ("a", "b"), np.array([[1000, 3]]), ids)
    rows = spread_rows(labels, len(ids), 13)
    assert ids[rows].tolist() == [0, 1] * 3 + [0] * 7
    large = rows[ids[rows] == 0]
    assert np.diff(large, prepend=0, append=1000).max() < 170
    assert np.diff(spread_rows(labels._replace(kind="number", ids=None), 1000, 10)).max() < 170


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_a_browser_shows_the_page_without_a_request_or_an_error(scenes: Path, tmp_path: Path) -> None:
    convert_images(scenes, tmp_path / "p.h5", size=64, split="train=0.5,val=0.5")
    report(tmp_path / "p.h5", tmp_path / "r.html")
    done = subprocess.run(
        [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-component-update",
            "--disable-background-networking", "--disable-sync", "--enable-logging=stderr", "--window-size=1200,900",
            f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={tmp_path / 'r.png'}", (tmp_path / "r.html").as_uri(),
        ],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr  # what a page does wrong, refused requests among it
    shown = np.asarray(Image.open(tmp_path / "r.png").convert("RGB"))
    assert shown.shape == (900, 1200, 3)
    assert len(np.unique(shown.reshape(-1, 3), axis=0)) > 500  # photos
