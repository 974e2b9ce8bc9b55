"""A process that fills a pack, forked from one that has imported what it needs: Python started anew takes half a second for that."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import subprocess
from multiprocessing.connection import Connection
from multiprocessing.popen_forkserver import Popen
from typing import Any


def start_helper(args: list[str], **options: Any) -> subprocess.Popen[bytes] | ForkedHelper:
    """Start a process that fills a pack as FillingClient asks subprocess.Popen to; one of a pack in memory is not forked."""
    make = ForkedHelper if len(options["pass_fds"]) == 1 else subprocess.Popen
    return make(args, **options)


class ForkedHelper(Popen):
    """What FillingClient uses of subprocess.Popen, for a process that gets one descriptor."""

    def __init__(self, args: list[str], *, cwd: str | None, pass_fds: list[int], **_: Any) -> None:
        self.args, self._starter = args, os.getpid()
        module = re.findall(r"from (\S+) import main", args[2])[0]
        (fd,) = pass_fds
        with Connection(os.dup(fd)) as link, Connection(os.dup(2)) as errors:
            given = module, cwd, dict(os.environ), link, errors
            super().__init__(multiprocessing.get_context("forkserver").Process(target=run, args=given))

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """Return the exit code, None while it runs; a child of its starter has none, as with subprocess."""
        return super().poll(flag) if os.getpid() == self._starter else 0

    def wait(self, timeout: float | None = None) -> int | None:
        """Return the exit code."""
        code = super().wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code


def run(module: str, cwd: str | None, environment: dict[str, str], link: Any, errors: Any) -> None:
    """Run a module's main function as in a process of its own."""
    os.setsid()
    if cwd is not None:
        os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    for number in (1, 2):
        os.dup2(errors.fileno(), number)
    fd = os.dup(link.fileno())
    link.close()
    errors.close()
    importlib.import_module(module).main(fd)
