from __future__ import annotations

import io
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import packer
from packer import progress
from packer.progress import Progress, line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_when_its_time_has_come(monkeypatch: pytest.MonkeyPatch):
    now = [1000.0]
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    seen: list[int] = []
    with Progress(True, "images", seen.append) as bar:
        bar.start(3000)
        for seconds, done in ((30, 500), (61, 1220), (90, 1800), (122, 2440), (150, 3000)):
            now[0] = 1000.0 + seconds
            bar.move(done)
    assert log.getvalue().splitlines() == [
        "1,220 of 3,000 images, 20 images/s, 1 min 29 s left",
        "2,440 of 3,000 images, 20 images/s, 28 s left",
    ]
    assert seen == [500, 1220, 1800, 2440, 3000]


def test_a_full_stderr_does_not_end_the_work(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", -1.0)
    with open("/dev/full", "w", buffering=1, encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stderr", full)
        with Progress(True, "images") as bar:
            bar.start(3)
            bar.move(1)
            bar.say("almost")
            bar.move(3)
        monkeypatch.undo()
        with suppress(OSError):
            full.close()


@pytest.mark.parametrize(
    ("done", "total", "unit", "text"),
    [
        (5_000_000, None, "B", "5 MB, 500 kB/s"),
        (5_000_000, 20_000_000, "B", "5 MB of 20 MB, 500 kB/s, 30 s left"),
        (0, 7, "rows", "0 of 7 rows, 0 rows/s"),
        (7, None, "rows", "7 rows, 1 rows/s"),
    ],
)
def test_what_a_line_says(done: int, total: int | None, unit: str, text: str):
    assert line(done, total, unit, 10.0) == text


def test_a_terminal_gets_a_bar_and_keeps_none_of_it(monkeypatch: pytest.MonkeyPatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress(True, "images") as bar:
        bar.start(10)
        bar.move(4)
        assert "0/10" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r")


def test_nothing_is_shown_unless_asked_for(
    photo_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(progress, "LINE_SECONDS", -1.0)
    packer.convert_images(photo_folder, "quiet.h5", size=16)
    assert capsys.readouterr().err == ""
    done = packer.convert_images(photo_folder, "told.h5", size=16, progress=True)
    assert f"{done.rows} of {done.rows} images" in capsys.readouterr().err
    packer.verify_pack("told.h5", progress=True)
    packer.repack("told.h5", "again.h5", size=8, progress=True)
    said = capsys.readouterr().err
    assert "B/s" in said
    assert f"{done.rows} of {done.rows} rows" in said


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
