"""How far an epoch is: what state_dict saves, and what the next iterator goes on with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from packer.errors import UsageError
from packer.load.dataloader_workers import Passes, this_worker
from packer.load.fork_safe import ForkSafeLock

Ended = Callable[[int], bool]


class Mark:
    """An iterator's own place: it notes in `handed` how many positions of its epoch it has handed out, without a lock.

    It gives the batches first, first + stride, ... of what is left: all of them, or those of a DataLoader's worker. `handed` is
    then the position at which this worker's next batch begins, once it has handed out one (`own`).
    """

    __slots__ = ("epoch", "first", "handed", "own", "stride")

    def __init__(self, epoch: int, handed: int, first: int = 0, stride: int = 1, own: bool = False) -> None:
        self.epoch, self.handed = epoch, handed
        self.first, self.stride, self.own = first, stride, own


class EpochProgress:
    """The epoch of the latest iterator, and the positions of it that were handed out. Thread-safe.

    `ended`, of several methods, says of a number of positions handed out whether nothing of the epoch is left, alike on every
    rank. (Kept here, it would tie a knot with its dataset, whose threads then lived until the garbage collector came.)
    """

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._epoch, self._origin, self._begun = 0, 0, False
        self._own = False  # the origin is that of a DataLoader's worker, which goes on by itself
        self._handed: tuple[int, int, bool] | None = None
        self._latest: Mark | None = None
        self._before: tuple[int, int, bool, tuple[int, int, bool] | None] = 0, 0, False, None
        self._passes = Passes()
        self._passes.set(0)

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            self._absorb()
            return self.__dict__ | {"_handed": self._noted, "_latest": None}

    def share(self) -> None:
        """Make the memory by which workers of a DataLoader agree on epochs, after unpickling."""
        self._passes.share()

    @property
    def _noted(self) -> tuple[int, int, bool] | None:
        latest = self._latest
        return (latest.epoch, latest.handed, latest.own) if latest else self._handed

    @property
    def _elsewhere(self) -> int | None:
        """The epoch that a DataLoader's workers, copies of this process's dataset, began after all that began here."""
        return self._passes.latest if this_worker() is None else None

    def _absorb(self) -> None:
        """Note here what workers began."""
        if (elsewhere := self._elsewhere) is not None:
            self._epoch, self._origin, self._begun = elsewhere, 0, True
            self._handed = self._latest = None

    def epoch(self, ended: Ended) -> int:
        """That the latest iterator began, or else the next one will."""
        with self._lock:
            if (elsewhere := self._elsewhere) is not None:
                return elsewhere
            return self._epoch if self._begun else self.coming(ended)[0]

    def coming(self, ended: Ended) -> tuple[int, int]:
        """The epoch of the next iterator, and the positions of it that were handed out before."""
        with self._lock:
            if (elsewhere := self._elsewhere) is not None:
                return elsewhere + 1, 0
            return self._coming_here(ended)

    def _coming_here(self, ended: Ended) -> tuple[int, int]:
        over = self._begun or (self._origin and not self._own and ended(self._origin))
        return (self._epoch + 1, 0) if over else (self._epoch, self._origin)

    def begin(self, ended: Ended) -> tuple[int, int, Mark]:
        """Begin what comes. Returns the epoch, the positions handed out before, and the new iterator's mark.

        Only what the latest one's mark says counts.
        """
        with self._lock:
            self._absorb()
            self._before = self._epoch, self._origin, self._begun, self._noted
            epoch, origin = self.coming(ended)
            worker = this_worker()
            if worker is None:
                self._passes.set(epoch + 1)
                mark = Mark(epoch, origin)
            else:
                number = self._passes.begin(worker, epoch)
                if number != epoch:
                    epoch, origin, self._own = number, 0, False
                own = self._own and not self._begun
                mark = Mark(epoch, origin, 0 if own else worker.number, worker.workers, own)
            self._epoch, self._origin = epoch, origin
            self._begun, self._latest = True, mark
            return epoch, origin, mark

    def undo(self, mark: Mark, ended: Ended) -> None:
        """Have the latest iterator never begun, if it failed before it handed anything out."""
        with self._lock:
            if self._latest is mark and mark.handed == self._origin:
                self._epoch, self._origin, self._begun, self._handed = self._before
                self._latest = None
                self._passes.set(self._coming_here(ended)[0])

    def set_epoch(self, epoch: int, ended: Ended) -> None:
        """Have `epoch` come next, or the rest of it if that comes anyway."""
        with self._lock:
            coming, origin = self.coming(ended)
            self._origin = origin if epoch == coming and not self._begun else 0
            self._epoch, self._begun, self._handed, self._latest = epoch, False, None, None
            self._passes.set(epoch)

    def position(self) -> tuple[int, int, bool]:
        """Epoch, positions handed out, and whether these are those of a DataLoader's worker alone. Raises UsageError."""
        with self._lock:
            if self._elsewhere is not None:
                raise UsageError(
                    "state_dict: batches are read by workers of a DataLoader, and only they know how far they are."
                    " Pass num_workers=0 (the dataset has threads), or take the state_dict() of torchdata's StatefulDataLoader."
                )
            return self._noted or (self._epoch, self._origin, self._own)

    def go_on(self, epoch: int, positions: int, ended: Ended, *, own: bool = False) -> None:
        """Have the rest of an epoch come next. own: the state is that of this DataLoader's worker."""
        with self._lock:
            self._epoch, self._origin, self._own = epoch, positions, own
            self._begun, self._handed, self._latest = False, None, None
            worker = this_worker()
            if worker is None:
                self._passes.set(self._coming_here(ended)[0], state=True)
            else:
                self._passes.load(worker, self.coming(ended)[0])
