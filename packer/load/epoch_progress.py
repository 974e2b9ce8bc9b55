"""The next epoch, the position in it, and the state that another process resumes from."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property
from opcode import opname
from types import FrameType, NoneType, TracebackType
from typing import Any

from packer.arguments import whole
from packer.errors import UsageError
from packer.load.load_plan import LoadPlan
from packer.starting import ForkSafeLock

STATE_VERSION = 1


class Mark:
    """Position of one iterator, counted without a lock.

    handed: positions of its epoch handed out so far. done: those before the batch in hand; `handed` once the
    loop has asked for the next batch.
    """

    epoch: int
    handed: int
    done: int

    __slots__ = ("_handled", "done", "epoch", "handed")

    def __init__(self, epoch: int, handed: int) -> None:
        self.epoch, self.handed, self.done = epoch, handed, handed
        self._handled = _named(None)

    def hand(self, positions: int) -> None:
        """Count a batch that is about to be handed out. positions: `handed` with it."""
        self.done, self.handed = self.handed, positions
        self._handled = _named(sys.exc_info()[1])

    def leave(self) -> None:
        """Discount the batch in hand if an exception is ending the loop; called by the closed generator."""
        if sys is not None and not sys.is_finalizing() and _unwinds(sys._getframe(1).f_back):
            self.handed = self.done
        else:
            self.done = self.handed  # after a `break`, no later exception is one of the step

    @property
    def raised(self) -> bool:
        """True while an exception is handled that was raised after the batch in hand was handed out."""
        error = sys.exc_info()[1]
        return _named(error) != self._handled and not isinstance(error, GeneratorExit | NoneType)


def _named(error: BaseException | None) -> tuple[int, type]:
    """Identify an exception without a reference to it, which would keep the frames of its traceback."""
    return id(error), type(error)


# Instructions at which a loop that is left by `break` or `return` drops its iterator; those of a `yield`.
_BREAKS = ("POP_TOP", "POP_ITER", "END_FOR")
_RAISES = ("RERAISE", "RAISE_VARARGS")
_YIELDS = ("YIELD_VALUE", "RESUME")


def _unwinds(frame: FrameType | None) -> bool:
    """Return True if an exception is leaving a frame, or the loop over the generators that it runs.

    Python hides an exception from the code that closes an iterator meanwhile, but not its traceback, which
    refers to the frame and to the instruction that raised. Tracebacks of handled exceptions name others.
    """
    while frame is not None and (name := _instruction(frame, frame.f_lasti)) not in _BREAKS:
        found = [one.tb_lasti for one in gc.get_referrers(frame) if type(one) is TracebackType]
        if not any(_instruction(frame, at) in _YIELDS for at in found):
            return name in _RAISES or frame.f_lasti in found
        frame = frame.f_back  # a generator around the dataset, such as tqdm, is being closed too
    return False


def _instruction(frame: FrameType, at: int) -> str:
    return opname[frame.f_code.co_code[at]]


class EpochProgress:
    """The epoch of the latest iterator, and its positions handed out so far. Thread-safe.

    plan: the plan of these epochs; `load` replaces it.
    """

    def __init__(self, plan: LoadPlan) -> None:
        self.plan: LoadPlan = plan
        self._lock = ForkSafeLock()
        self._start = 0, 0  # epoch and position where the latest iterator began, or the next will begin
        self._latest: Mark | None = None
        self._before: tuple[tuple[int, int], Mark | None] = self._start, None

    @property
    def epoch(self) -> int:
        """Epoch of the latest iterator, or of the next before the first has begun."""
        with self._lock:
            return (self._start if self._latest else self.coming())[0]

    def coming(self) -> tuple[int, int]:
        """Return the epoch of the next iterator, and its positions handed out before."""
        with self._lock:
            epoch, origin = self._start
            # Every rank must decide alike: rank 0 has a batch as long as any rank has.
            ended = origin and not replace(self.plan.share(origin), rank=0).steps
            return (epoch + 1, 0) if self._latest or ended else self._start

    def begin(self) -> Mark:
        """Begin the next epoch, or resume one; return the iterator's mark.

        Only the latest iterator's mark counts.
        """
        with self._lock:
            self._before = self._start, copy(self._latest)
            self._start = self.coming()
            self._latest = Mark(*self._start)
            return self._latest

    def undo(self, mark: Mark) -> None:
        """Undo `begin` for the latest iterator if it failed before its first batch."""
        with self._lock:
            if self._latest is mark and mark.handed == self._start[1]:
                self._start, self._latest = self._before

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next epoch; if it is to be resumed anyway, keep its position."""
        with self._lock:
            coming, origin = self.coming()
            self.go_on(epoch, origin if epoch == coming else 0)

    def position(self) -> tuple[int, int]:
        """Return epoch, and positions handed out, without a batch whose step raised an exception."""
        with self._lock:
            latest = self._latest
            if latest is None:
                return self._start
            return latest.epoch, latest.done if latest.raised else latest.handed

    def go_on(self, epoch: int, positions: int) -> None:
        """Resume an epoch at a position with the next iterator."""
        with self._lock:
            self._start, self._latest = (epoch, positions), None

    @cached_property
    def _fingerprint(self) -> str:
        return self.plan.rows.subset.fingerprint

    def state(self) -> dict[str, Any]:
        """Return the position of the latest iterator, as PackedBatchDataset.state_dict does."""
        plan, (epoch, rows) = self.plan, self.position()
        return {
            "version": STATE_VERSION,
            "seed": plan.order.seed,
            "epoch": epoch,
            "rows": rows,
            "of": plan.rows.subset.rows,
            "subset": self._fingerprint,
            "order": plan.order.record(),
        } | ({"normalization": plan.normalization} if plan.normalization else {})

    def load(self, state: Any) -> None:
        """Resume from a state.

        Raises UsageError for anything else, or a state of other rows or another order.
        """
        names = {"seed", "epoch", "rows", "of", "subset", "order"}
        if (
            not isinstance(state, Mapping)
            or state.get("version") != STATE_VERSION
            or not names <= state.keys()
        ):
            raise UsageError(
                "load_state_dict: is no state of a PackedBatchDataset of this packer version. Pass the result"
                " of state_dict()."
            )
        plan, n = self.plan, self.plan.rows.subset.rows
        if (state["of"], state["subset"]) != (n, self._fingerprint):
            raise UsageError(
                f"load_state_dict: the state is of {state['of']} rows of a pack; this dataset has {n}, or"
                " others. Pass a state of the same pack, split, classes and subset."
            )
        seed = whole("load_state_dict: seed", state["seed"])
        order = plan.order.resumed(state["order"], seed)
        rows = whole("load_state_dict: rows", state["rows"], 0, order.length)
        epoch = whole("load_state_dict: epoch", state["epoch"], 0)
        normalized = plan.normalized(state.get("normalization"))
        self.plan = replace(normalized, order=order)
        self.go_on(epoch, rows)
