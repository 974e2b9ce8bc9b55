"""Running an example here: a process of its own would spend most of its time on importing torch."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest


class Ran(NamedTuple):
    """How a script ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


Example = Callable[..., Ran]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads that wait for each other are slow on a busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def example(one_thread: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Example:
    """example("matting.py", *arguments) -> exit code, output, errors."""

    def run(name: str, *arguments: str | Path) -> Ran:
        script = str(Path(__file__).parents[2] / "examples" / name)
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        code, said = 0, ""
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as stop:
            code, said = (stop.code or 0, "") if isinstance(stop.code, int | None) else (1, f"{stop.code}\n")
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err + said)

    return run
