"""Progress of long work on stderr: a bar on a terminal or in a notebook, elsewhere (a log file, SLURM, Docker) a line a minute."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from packer import units

S = TypeVar("S", bound="Status")

LINE_SECONDS = 60.0
"""Between two lines where there is no terminal; work that ends sooner prints none."""


class Status:
    """The line that says what is being done now: one that changes on a terminal, elsewhere a line a minute. A context manager.

    shown: False shows nothing.
    """

    def __init__(self, shown: bool) -> None:
        self._shown, self._last = shown, time.monotonic()
        self._bar: Any = None

    def say(self, text: str) -> None:
        """Show a few words."""
        if self._shown and self._bar is None:
            self._bar = _bar(None, "", bar_format="{desc}")
        if self._bar is not None:
            self._bar.set_description_str(text)
        else:
            self._print(text)

    def close(self) -> None:
        """Remove the bar; lines stay where they are."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()

    def _print(self, text: str) -> None:
        """Print a line when LINE_SECONDS have gone since the last one."""
        now = time.monotonic()
        if self._shown and now - self._last >= LINE_SECONDS and sys.stderr is not None:
            self._last = now
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Progress(Status):
    """The progress of one piece of work. A context manager.

    unit: what is counted, "images", "rows" or "B" for bytes.
    then: called with each number of units done, shown or not.
    """

    def __init__(self, shown: bool, unit: str, then: Callable[[int], object] | None = None) -> None:
        super().__init__(shown)
        self._unit, self._then, self._began = unit, then, self._last
        self._total: int | None = None

    def start(self, total: int | None, unit: str | None = None) -> None:
        """Begin to show, or begin anew with the next stage of the work. total: units in all, None if unknown."""
        self.close()
        self._total, self._unit = total, unit or self._unit
        self._began = self._last = time.monotonic()
        if self._shown:
            self._bar = _bar(total, self._unit)

    def move(self, done: int) -> None:
        """Show that so many units are done."""
        if self._then is not None:
            self._then(done)
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
        elif self._shown and time.monotonic() - self._last >= LINE_SECONDS:  # each row may come here
            self._print(line(done, self._total, self._unit, time.monotonic() - self._began))


def line(done: int, total: int | None, unit: str, seconds: float) -> str:
    """Return units done, a second, and the time left. seconds: since the work began.

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


def _bar(total: int | None, unit: str, **options: Any) -> Any:
    """Return tqdm's bar for a notebook or a terminal, None where there is neither."""
    tqdm: Any
    if "ipykernel" in sys.modules:
        from tqdm.auto import tqdm
    elif sys.stderr is not None and sys.stderr.isatty():
        from tqdm import tqdm
    else:
        return None
    options |= {"unit": unit if unit == "B" else f" {unit}", "unit_scale": unit in ("B", "rows")}
    return tqdm(total=total, leave=False, dynamic_ncols=True, **options)
