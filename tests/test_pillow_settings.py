"""packer.pillow_settings: a program's settings of Pillow, set aside and restored."""

from __future__ import annotations

import os
import threading

import pytest
from PIL import ImageFile

from packer.pillow_settings import PillowSettings


def test_settings_are_restored_when_the_last_thread_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with PillowSettings():
        with PillowSettings():
            assert not ImageFile.LOAD_TRUNCATED_IMAGES
        assert not ImageFile.LOAD_TRUNCATED_IMAGES
    assert ImageFile.LOAD_TRUNCATED_IMAGES


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_forked_while_a_thread_is_in_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the program's settings, and can set them aside itself."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    inside, leave = threading.Event(), threading.Event()

    def decode() -> None:
        with PillowSettings():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=decode)
    thread.start()
    inside.wait()
    child = os.fork()
    if not child:
        given = ImageFile.LOAD_TRUNCATED_IMAGES
        with PillowSettings():
            used = ImageFile.LOAD_TRUNCATED_IMAGES
        os._exit(0 if (given, used, ImageFile.LOAD_TRUNCATED_IMAGES) == (True, False, True) else 1)
    leave.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
