"""Pillow's global settings, which programs change and which must change no result of packer."""

from __future__ import annotations

import os
import threading
from contextlib import ContextDecorator
from types import ModuleType
from typing import Any

from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    PngImagePlugin,
    TiffImagePlugin,
)

_SETTINGS: tuple[tuple[ModuleType, str, Any], ...] = (
    (Image, "MAX_IMAGE_PIXELS", 1024 * 1024 * 1024 // 4 // 3),
    (ImageFile, "LOAD_TRUNCATED_IMAGES", False),
    (ImageFile, "MAXBLOCK", 64 << 10),  # with 16 bytes, the JPEG encoder never ends
    (PngImagePlugin, "MAX_TEXT_CHUNK", 1 << 20),
    (PngImagePlugin, "MAX_TEXT_MEMORY", 64 << 20),
    (GifImagePlugin, "LOADING_STRATEGY", GifImagePlugin.LoadingStrategy.RGB_AFTER_FIRST),
    (TiffImagePlugin, "READ_LIBTIFF", False),
    (BmpImagePlugin, "USE_RAW_ALPHA", False),
    (AvifImagePlugin, "DECODE_CODEC_CHOICE", "auto"),
)
_DEFAULTS = [value for _, _, value in _SETTINGS]
_lock = threading.Lock()
_users = 0
_changed: list[Any] = []
_for_good = False


class PillowSettings(ContextDecorator):
    """A context in which Pillow's global settings have their defaults; for any number of threads.

    With LOAD_TRUNCATED_IMAGES, for example, half an image would be packed as a whole one.
    """

    def __enter__(self) -> None:
        """Set the defaults, unless another thread already did."""
        global _users, _changed
        if _for_good:
            return
        with _lock:
            _users += 1
            if _users == 1:
                given = [getattr(module, name) for module, name, _ in _SETTINGS]
                _changed = [] if given == _DEFAULTS else given
                _set(_changed and _DEFAULTS)

    def __exit__(self, *_: object) -> None:
        """Restore the program's settings when the last thread leaves."""
        global _users
        if _for_good:
            return
        with _lock:
            _users = max(0, _users - 1)  # 0 in a child that was forked in the context
            if not _users:
                _set(_changed)


def _after_fork() -> None:
    """Restore the settings in a forked child, whose other threads do not leave the context any more."""
    global _lock, _users
    _lock = threading.Lock()
    if _users:
        _users = 0
        _set(_changed)


os.register_at_fork(after_in_child=_after_fork)


def keep_defaults() -> None:
    """Set the defaults until this worker process ends; entering the context then costs nothing."""
    global _for_good
    _set(_DEFAULTS)
    _for_good = True


def _set(values: list[Any]) -> None:
    for (module, name, _), value in zip(_SETTINGS, values, strict=False):
        setattr(module, name, value)
