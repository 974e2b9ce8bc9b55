"""Starts and queries the processes that run lanes."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import packer
from lanes.lane import Lane, Setting
from lanes.process import Memory, Peak
from lanes.registry import PIP

PATIENCE = 600  # seconds without an answer
_FIND = """
import json, sys
from importlib import metadata, util
found = {}
for module, pip in json.loads(sys.argv[1]).items():
    if util.find_spec(module) is not None:
        try: found[module] = metadata.version(pip)
        except metadata.PackageNotFoundError: found[module] = ""
print(json.dumps(found))
"""


class LaneError(Exception):
    """A lane could not run, or yielded wrong rows."""


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter, and its importable modules with their versions ("" if unknown)."""

    path: str
    modules: Mapping[str, str]


def interpreters(paths: Sequence[str], lanes: Iterable[Lane]) -> list[Interpreter]:
    """Return this Python and the given ones, in the order in which lanes search them for modules."""
    wanted = {module: PIP.get(module, module) for lane in lanes for module in lane.modules} | {
        "numpy": "numpy"
    }
    found = []
    for path in (sys.executable, *paths):
        done = subprocess.run(
            [path, "-c", _FIND, json.dumps(wanted)],
            capture_output=True,
            text=True,
            check=True,
            env=_environment(None),
        )
        found.append(Interpreter(path, json.loads(done.stdout)))
    return found


def interpreter_of(modules: Sequence[str], given: Sequence[Interpreter]) -> Interpreter | None:
    """Return the first interpreter that has all modules."""
    return next((one for one in given if all(module in one.modules for module in modules)), None)


def _environment(scratch: str | None) -> dict[str, str]:
    here = str(Path(__file__).parents[1])
    ours = str(Path(packer.__file__).parents[1])
    known = os.environ.get("PYTHONPATH")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([here, ours, *([known] if known else [])])}
    if scratch is None:
        return environment
    # Peers' caches are deleted with the lane; datasets would access the network.
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": scratch}
    return environment | offline | {"TMPDIR": scratch, "PYTHONWARNINGS": "ignore"}


class Running:
    """A lane in a separate process. A context manager."""

    def __init__(self, interpreter: Interpreter, lane: Lane, setting: Setting) -> None:
        # Not in the work folder: torch's workers create sockets here, whose paths are limited to 107 bytes.
        self._scratch = tempfile.TemporaryDirectory(prefix="lanes-", ignore_cleanup_errors=True)
        self._log = Path(setting.work, re.sub(r"\W+", "-", lane.name) + ".log")
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [interpreter.path, "-m", "lanes.serve", lane.name, json.dumps(asdict(setting))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=_environment(self._scratch.name),
            )
        try:
            self._answer()
        except LaneError:
            self.close()
            raise

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and return the answer. Raises LaneError."""
        assert self._process.stdin is not None
        try:
            print(json.dumps({"do": do, **arguments}), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise LaneError(f"its process ended. {self._last_words()}") from None
        return self._answer()

    def watched(self, do: str, **arguments: Any) -> tuple[dict[str, Any], Memory]:
        """Send a command. Returns the answer, and the peak memory meanwhile."""
        with Peak(self._process.pid) as peak:
            answer = self.ask(do, **arguments)
        return answer, peak.highest

    def _answer(self) -> dict[str, Any]:
        out = self._process.stdout
        assert out is not None
        if not select.select([out], [], [], PATIENCE)[0]:
            raise LaneError(f"no answer in {PATIENCE} seconds. {self._last_words()}")
        line = out.readline()
        if not line:
            raise LaneError(f"its process ended. {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise LaneError(answer["error"])
        return answer

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._scratch.cleanup()
