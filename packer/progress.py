"""Progress of long work on stderr: a bar on a terminal or in a notebook, elsewhere a line per minute."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from packer import units
from packer.path_text import visible
from packer.standard_streams import Outlet

LINE_SECONDS = 60.0
"""Seconds between two lines without a terminal; shorter work prints none."""


class Progress:
    """The progress of a piece of work: a bar on a terminal, elsewhere a line per minute. A context manager.

    shown: False shows nothing; unit: counted unit, "images", "rows" or "B" for bytes;
    then: called with each number of units done, also if nothing is shown.
    """

    def __init__(self, shown: bool, unit: str = "", then: Callable[[int], object] | None = None) -> None:
        self._stream = Outlet(sys.stderr)
        self._shown, self._unit, self._then = shown and self._stream.error is None, unit, then
        self._began = self._last = time.monotonic()
        self._total: int | None = None
        self._bar: Any = None

    def start(self, total: int | None, unit: str | None = None, **options: Any) -> None:
        """Show a new bar, for the work or its next stage.

        total: number of units, None if unknown; options: of tqdm.
        """
        self.close()
        self._total, self._unit = total, unit or self._unit
        self._began = self._last = time.monotonic()
        if self._shown:
            self._bar = _bar(self._stream, total, self._unit, **options)

    def move(self, done: int) -> None:
        """Show that `done` units are done."""
        if self._then is not None:
            self._then(done)
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
        elif self._is_due():  # called for each row
            self._stream.write(line(done, self._total, self._unit, self._last - self._began) + "\n")

    def say(self, text: str) -> None:
        """Show a few words about the current work."""
        text = visible(text)
        if self._shown and self._bar is None:
            self._bar = _bar(self._stream, None, "", bar_format="{desc}")
        if self._bar is not None:
            self._bar.set_description_str(text)
        elif self._is_due():
            self._stream.write(f"{text}\n")

    def print(self, text: str) -> None:
        """Remove the bar and print a line, which stays."""
        self.close()
        if self._shown:
            self._stream.write(f"{visible(text)}\n")

    def _is_due(self) -> bool:
        """Return True if LINE_SECONDS have passed since the last line."""
        now = time.monotonic()
        due = self._shown and now - self._last >= LINE_SECONDS
        self._last = now if due else self._last
        return due

    def close(self) -> None:
        """Remove the bar; printed lines stay."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def line(done: int, total: int | None, unit: str, seconds: float) -> str:
    """Return the units done, the rate, and the time left. seconds: since the work began.

    >>> line(1200, 3000, "images", 60.0)
    '1,200 of 3,000 images, 20 images/s, 1 min 30 s left'
    """
    rate = done / max(seconds, 1e-9)
    if unit == "B":
        counted = units.size(done) + (f" of {units.size(total)}" if total else "")
        speed = f"{units.size(rate)}/s"
    else:
        counted = f"{done:,}" + (f" of {total:,}" if total else "") + f" {unit}"
        speed = f"{rate:,.0f} {unit}/s"
    left = f", {units.duration((total - done) / rate)} left" if total and 0 < done <= total else ""
    return f"{counted}, {speed}{left}"


def _bar(stream: Outlet, total: int | None, unit: str, **options: Any) -> Any:
    """Return a tqdm bar for a notebook or a terminal, None if there is neither."""
    tqdm: Any
    if "ipykernel" in sys.modules:
        from tqdm.auto import tqdm
    elif stream.isatty():
        from tqdm import tqdm
    else:
        return None
    options |= {"unit": unit if unit == "B" else f" {unit}", "unit_scale": unit in ("B", "rows")}
    return tqdm(total=total, leave=False, dynamic_ncols=True, **options)
