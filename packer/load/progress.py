"""How far an epoch is: what state_dict saves, and what the next iterator goes on with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from packer.load.lock import Lock

Ended = Callable[[int], bool]


class Mark:
    """An iterator's own place: it notes in `handed` how many positions of its epoch it has handed out, without a lock."""

    __slots__ = ("epoch", "handed")

    def __init__(self, epoch: int, handed: int) -> None:
        self.epoch, self.handed = epoch, handed


class Progress:
    """The epoch of the latest iterator, and the positions of it that were handed out. Thread-safe.

    `ended`, of several methods, says of a number of positions handed out whether nothing of the epoch is left, alike on every
    rank. (Kept here, it would tie a knot with its dataset, whose threads then lived until the garbage collector came.)
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._epoch, self._origin, self._begun = 0, 0, False
        self._handed: tuple[int, int] | None = None
        self._latest: Mark | None = None
        self._before: tuple[int, int, bool, tuple[int, int] | None] = 0, 0, False, None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_handed": self._noted, "_latest": None}

    @property
    def _noted(self) -> tuple[int, int] | None:
        latest = self._latest
        return (latest.epoch, latest.handed) if latest else self._handed

    def epoch(self, ended: Ended) -> int:
        """That the latest iterator began, or else the next one will."""
        with self._lock:
            return self._epoch if self._begun else self.coming(ended)[0]

    def coming(self, ended: Ended) -> tuple[int, int]:
        """The epoch of the next iterator, and the positions of it that were handed out before."""
        with self._lock:
            over = self._begun or (self._origin and ended(self._origin))
            return (self._epoch + 1, 0) if over else (self._epoch, self._origin)

    def begin(self, ended: Ended) -> tuple[int, int, Mark]:
        """Begin what comes. Returns the epoch, the positions handed out before, and the new iterator's mark.

        Only what the latest one's mark says counts.
        """
        with self._lock:
            self._before = self._epoch, self._origin, self._begun, self._noted
            self._epoch, self._origin = self.coming(ended)
            self._begun, self._latest = True, Mark(self._epoch, self._origin)
            return self._epoch, self._origin, self._latest

    def undo(self, mark: Mark) -> None:
        """Have the latest iterator never begun, if it failed before it handed anything out."""
        with self._lock:
            if self._latest is mark and mark.handed == self._origin:
                self._epoch, self._origin, self._begun, self._handed = self._before
                self._latest = None

    def set_epoch(self, epoch: int, ended: Ended) -> None:
        """Have `epoch` come next, or the rest of it if that comes anyway."""
        with self._lock:
            coming, origin = self.coming(ended)
            self._origin = origin if epoch == coming and not self._begun else 0
            self._epoch, self._begun, self._handed, self._latest = epoch, False, None, None

    def position(self) -> tuple[int, int]:
        """Epoch, and positions handed out."""
        with self._lock:
            return self._noted or (self._epoch, self._origin)

    def go_on(self, epoch: int, positions: int) -> None:
        """Have the rest of an epoch come next."""
        with self._lock:
            self._epoch, self._origin = epoch, positions
            self._begun, self._handed, self._latest = False, None, None
