"""Progress of long work on stderr: a bar on a terminal or in a notebook, elsewhere (a log file, SLURM, Docker) a line a minute."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from packer import units

LINE_SECONDS = 60.0
"""Between two lines where there is no terminal; work that ends sooner prints none."""


class Progress:
    """The progress of one piece of work, shown or not. A context manager.

    shown: False shows nothing. unit: what is counted, "images", "rows" or "B" for bytes.
    then: called with each number of units done, shown or not.
    """

    def __init__(self, shown: bool, unit: str, then: Callable[[int], object] | None = None) -> None:
        self._shown, self._unit, self._then = shown, unit, then
        self._view: _Bar | None = None

    def start(self, total: int | None, unit: str | None = None) -> None:
        """Begin to show, or begin anew with the next stage of the work. total: units in all, None if unknown."""
        self.close()
        self._unit = unit or self._unit
        if self._shown:
            self._view = _bar(total, self._unit) or Lines(total, self._unit)

    def move(self, done: int) -> None:
        """Show that so many units are done."""
        if self._then is not None:
            self._then(done)
        if self._view is not None:
            self._view.update(done - self._view.n)

    def close(self) -> None:
        """Remove the bar."""
        view, self._view = self._view, None
        if view is not None:
            view.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Status:
    """The line that says what is being done now: one that changes on a terminal, elsewhere a line a minute. A context manager."""

    def __init__(self, shown: bool) -> None:
        self._shown, self._last = shown, time.monotonic()
        self._bar: Any = None

    def say(self, text: str) -> None:
        """Show a few words."""
        if not self._shown:
            return
        if self._bar is None:
            self._bar = _bar(None, "", bar_format="{desc}")
        now = time.monotonic()
        if self._bar is not None:
            self._bar.set_description_str(text)
        elif now - self._last >= LINE_SECONDS and sys.stderr is not None:
            self._last = now
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def __enter__(self) -> Status:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.close()


class _Bar(Protocol):
    """A subset of tqdm's interface."""

    n: int

    def update(self, more: int) -> object: ...

    def close(self) -> None: ...


class Lines:
    """Print a line when LINE_SECONDS have gone since the last one: units done, a second, and the time left.

    >>> Lines.text(1200, 3000, "images", 60.0)
    '1,200 of 3,000 images, 20 images/s, 1 min 30 s left'
    """

    def __init__(self, total: int | None, unit: str) -> None:
        self.n, self._total, self._unit = 0, total, unit
        self._began = self._last = time.monotonic()

    def update(self, more: int) -> None:
        """Count `more` units as done."""
        self.n += more
        now = time.monotonic()
        if now - self._last >= LINE_SECONDS and sys.stderr is not None:
            self._last = now
            text = self.text(self.n, self._total, self._unit, now - self._began)
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def close(self) -> None:
        """Do nothing: lines stay where they are."""

    @staticmethod
    def text(done: int, total: int | None, unit: str, seconds: float) -> str:
        """Return the line. seconds: since the work began."""
        rate = done / max(seconds, 1e-9)
        if unit == "B":
            counted = units.size(done) + (f" of {units.size(total)}" if total else "")
            speed = f"{units.size(rate)}/s"
        else:
            counted = f"{done:,}" + (f" of {total:,}" if total else "") + f" {unit}"
            speed = f"{rate:,.0f} {unit}/s"
        left = f", {units.duration((total - done) / rate)} left" if total and 0 < done <= total else ""
        return f"{counted}, {speed}{left}"


def _bar(total: int | None, unit: str, **options: Any) -> Any:
    """Return tqdm's bar for a notebook or a terminal, None where there is neither."""
    tqdm: Any
    if "ipykernel" in sys.modules:
        from tqdm.auto import tqdm
    elif sys.stderr is not None and sys.stderr.isatty():
        from tqdm import tqdm
    else:
        return None
    scale = unit in ("B", "rows")
    return tqdm(
        total=total,
        unit=unit if unit == "B" else f" {unit}",
        unit_scale=scale,
        leave=False,
        dynamic_ncols=True,
        **options,
    )
