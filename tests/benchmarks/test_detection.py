"""benchmarks/detection.py compares the boxes of every lane, and measures each."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.torchvision_here import READY, REASON

pytest.importorskip("torch")
FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def detection(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    made: ModuleType = pytest.importorskip("detection")
    monkeypatch.setattr(made, "sleep", lambda _: None)
    monkeypatch.setattr(made, "cores", lambda: 1)
    return made


@pytest.mark.skipif(not READY, reason=REASON)
def test_every_lane_is_compared_and_measured(
    detection: ModuleType,
    photo_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    compared: list[str] = []
    check = detection.check_boxes
    monkeypatch.setattr(
        detection, "check_boxes", lambda lane, *boxes: (compared.append(lane), check(lane, *boxes))
    )
    out = tmp_path / "found.json"
    sizes = ("--images", "20", "--long", "96", "--side", "64", "--rounds", "1")
    arguments = ["detection.py", str(photo_folder), "--work", str(tmp_path), *sizes, "--json", str(out)]
    monkeypatch.setattr(sys, "argv", arguments)
    detection.main()
    record = json.loads(out.read_text())
    lanes = [name for name in record["images/s"] if name != "Ultralytics"]
    assert lanes == ["hand-off alone", "torchvision v2", "packer, JPEG", "packer, rows"]
    assert [name for name in compared if name != "Ultralytics"] == lanes[1:]
    for name in lanes:
        assert record["images/s"][name][0] > 0
        assert 0 < record["hand-off ms"][name][0] < 10_000
    assert record["conditions"]["boxes an image"] == 7
    assert "packer, JPEG" in capsys.readouterr().out


def test_other_boxes_end_it(detection: ModuleType) -> None:
    expected = {"0.jpg": np.array([[2.0, 3.0, 20.0, 30.0], [0.0, 0.0, 3.0, 30.0]])}
    detection.check_boxes("lane", {"0.jpg": expected["0.jpg"][:1] + 0.4}, expected)  # without the sliver
    for other in (expected["0.jpg"][:0], expected["0.jpg"] + 3):
        with pytest.raises(SystemExit, match=r"lane: boxes of 0\.jpg are "):
            detection.check_boxes("lane", {"0.jpg": other}, expected)
    with pytest.raises(SystemExit, match=r"lane: 0 of 1 photos came\."):
        detection.check_boxes("lane", {}, expected)
