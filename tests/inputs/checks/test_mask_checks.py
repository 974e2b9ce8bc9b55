from __future__ import annotations

from collections.abc import Callable


def test_images_that_may_be_masks_are_noted(notes: Callable[..., list[str]]) -> None:
    keys = ["a/x (1).png", "a/x (1)_mask.png", "a/y.png", "b/z_mask.png"]
    assert notes(keys) == [
        "1 image named like masks of other images, such as a/x (1)_mask.png beside a/x (1).png: "
        "packed as images. If they are masks, move them into a separate folder, and pass it by pairs={'mask': 'DIR'}."
    ]
