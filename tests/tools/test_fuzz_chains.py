"""The fuzzer of chains: right packs pass, and each kind of wrong row is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def chains(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tools")
    import fuzz_chains

    return fuzz_chains


def test_chains_of_whole_packs_are_right(chains: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert chains.main(["--count", "6", "--steps", "3"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("6 chains, ")


@pytest.mark.soak
def test_many_chains_are_right(chains: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert chains.main(["--count", "500"]) == 0, capsys.readouterr().out


@pytest.fixture
def right(chains: Any) -> tuple[Any, Any, Any]:
    """A picture, a row that holds it whole, and the pack's state."""
    picture = chains.Picture(3, "train/ant/3.png", "ant", "train", 96, 120, (0.2, 0.3, 0.6, 0.8))
    box = np.array(picture.box) * (120, 96, 120, 96)
    extra = {"mask": picture.mask(), "boxes": box[None], "keypoints": box[:2]}
    row = chains.Row(3, picture.pixels()[..., ::-1].copy(), "ant", "train/ant/3.png", "train", extra)
    return picture, row, chains.State(Path("pack.h5"), {3: picture}, fields=frozenset(extra))


def test_a_right_row_passes(right: tuple[Any, Any, Any]) -> None:
    picture, row, state = right
    row.compare(picture, state)


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ({"label": "bee"}, "has the label bee, not ant"),
        ({"split": None}, "is in the split None, not train"),
        ({"key": "train/ant/4.png"}, "has the key train/ant/4.png, not train/ant/3.png"),
        ({"mask": lambda mask: np.roll(mask, 40, axis=1)}, "has a mask that lies elsewhere than the image"),
        ({"mask": lambda mask: mask + 8}, "has the mask of another picture"),
        ({"mask": lambda mask: mask[:, ::-1]}, "has a mask that lies elsewhere than the image"),
        (
            {"boxes": lambda boxes: boxes + np.array([20, 0, 0, 0])},
            "box edge 0 is at 0.36. of the picture, not at 0.200",
        ),
        ({"boxes": lambda boxes: boxes[:0]}, "has 0 boxes, not 1"),
        ({"keypoints": lambda points: points + np.array([20, 0])}, "keypoint x is at "),
        ({"image": lambda image: image[:, ::-1]}, "is turned or torn"),
    ],
)
def test_a_wrong_row_is_told(
    chains: Any, right: tuple[Any, Any, Any], what: dict[str, Any], sentence: str
) -> None:
    picture, row, state = right
    ((name, value),) = what.items()
    if name in row.extra:
        row.extra[name] = value(row.extra[name])
    else:
        row = replace(row, **{name: value(row.image) if callable(value) else value})
    with pytest.raises(chains.Wrong, match=f"^{sentence}"):
        row.compare(picture, state)
