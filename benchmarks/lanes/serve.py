"""The process that runs a lane: commands are JSON lines on stdin, answers JSON lines on stdout.

    {"do": "open"}                              construct the loader     {"seconds"}
    {"do": "run", "seconds": s, "touch": bool}  complete epochs for s    {"images", "seconds", "first", "cpu"}
    {"do": "check"}                             compare with the pack    {"least_db", "mean_db"} or {}
    {"do": "write"}                             write the lane's store   {}

An answer {"error": sentence} is the last. `first`: seconds from iter() to the first batch of each epoch.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from lanes.content import check, touch
from lanes.lane import Epoch, Lane, Rows, Setting
from lanes.process import cpu_seconds
from lanes.registry import STORES, lanes


class Serving:
    """The loader of a lane."""

    def __init__(self, lane: Lane, setting: Setting) -> None:
        self._lane, self._setting = lane, setting
        self._path = os.path.join(setting.work, lane.store)
        self._epoch: Epoch | None = None
        self._rate: Callable[[float], float] | None = None

    def write(self) -> dict[str, Any]:
        """Write the store under a temporary name first, so that a partial store is never used."""
        folder, name = os.path.split(self._path)
        part = os.path.join(folder, f"part-{name}")
        STORES[name].write(Rows.of(folder), part)
        os.rename(part, self._path)
        return {}

    def open(self) -> dict[str, Any]:
        """Construct the loader."""
        began = time.perf_counter()
        if self._lane.rate is not None:
            self._rate = self._lane.rate(self._setting)
        else:
            assert self._lane.open is not None
            self._epoch = self._lane.open(self._path, self._setting)
        return {"seconds": time.perf_counter() - began}

    def check(self) -> dict[str, Any]:
        """Compare an epoch with the pack."""
        if self._epoch is None:
            return {}
        lane = self._lane
        return check(self._epoch(), Rows.of(self._setting.work), exact=lane.exact, least_db=lane.least_db)

    def run(self, seconds: float, touched: bool) -> dict[str, Any]:
        """Run complete epochs, at least one, until the seconds have passed."""
        if self._rate is not None:
            began_cpu, began = cpu_seconds(), time.perf_counter()
            rate = self._rate(max(seconds, 0.05))
            took = time.perf_counter() - began
            return {"images": rate * took, "seconds": took, "first": [], "cpu": cpu_seconds() - began_cpu}
        assert self._epoch is not None
        images, cpu = 0, cpu_seconds()
        first: list[float] = []
        began = now = time.perf_counter()
        while not first or now - began < seconds:
            started, before = now, images
            for batch in self._epoch():
                if images == before:
                    first.append(time.perf_counter() - started)
                images += len(batch[1])
                if touched:
                    touch(batch[0])
            if images == before:
                raise ValueError("an epoch had no rows")
            now = time.perf_counter()
        return {"images": images, "seconds": now - began, "first": first, "cpu": cpu_seconds() - cpu}


def main(name: str, setting: str) -> None:
    """Answer until stdin ends. The peers' output goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    given = Setting(**json.loads(setting))
    serving = Serving(lanes(given.threads)[name], given)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = _do(serving, command)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def _do(serving: Serving, command: dict[str, Any]) -> dict[str, Any]:
    if command["do"] == "run":
        return serving.run(command["seconds"], command["touch"])
    answer: dict[str, Any] = {"open": serving.open, "check": serving.check, "write": serving.write}[
        command["do"]
    ]()
    return answer


if __name__ == "__main__":
    main(*sys.argv[1:])
